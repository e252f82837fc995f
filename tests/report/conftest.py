"""Fixtures of the tests of reports."""

from __future__ import annotations

import pytest

from powerpool.report import write


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the plots, which take most of the time of a report."""
    monkeypatch.setattr(write, "draw_plots", lambda group, folder, stem: {})
