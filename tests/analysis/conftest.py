"""Fixtures of the tests of analyses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.samples import write_run


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "graph", "SOP+SpecMaxExpF")
