"""Real data, where there is any: never part of the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("POWERPOOL_DATA") or Path(__file__).parents[2] / "shared" / "data")


def require_data(name: str) -> Path:
    """The file of that name below the data folder; skips the test, and says why, where it is missing."""
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"no {name} in {FOLDER}: set POWERPOOL_DATA to the folder that holds it")
    return path
