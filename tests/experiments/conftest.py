"""Workers that are threads, for tests that are not about processes."""

from __future__ import annotations

import pytest

from powerpool.runs import scheduler as runner
from tests.experiments.threads import Threads


@pytest.fixture
def threads(monkeypatch):
    monkeypatch.setattr(runner, "_make_executor", Threads)
