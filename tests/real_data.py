"""Real data sets for tests, which are not part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("POWERPOOL_DATA") or Path(__file__).parents[2] / "shared" / "data")


def require_data(name: str) -> Path:
    """Return a file of the data folder, or skip the test."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path} does not exist: set POWERPOOL_DATA to the folder that contains {name}")
    return path
