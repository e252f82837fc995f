"""Studies of one setting, as in the paper's sensitivity plots: what is tried, and the record of ``powerpool sweep``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from powerpool.errors import RecordError, shown
from powerpool.files import read_json
from powerpool.runs.typed import Json, from_json
from powerpool.tasks.vision.config import RENAMED_PARAMETERS

SCHEMA = "powerpool sweep 1"
OLD_SETTINGS = RENAMED_PARAMETERS


@dataclass(frozen=True)
class Study:
    """The method with which a setting is tried, and its values."""

    method: str
    values: tuple[float, ...]


STUDIES = {
    "beta": Study("SOP+SC+SpecMaxExpF", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
    "alpha": Study("SOP+SC+SpecMaxExpF", (0.01, 0.03, 0.1, 0.2, 0.3, 0.5)),
    "sigme_eta": Study("SOP+SC+SigmE", (50, 200, 1000, 5000, 20000)),
    "eta": Study("SOP+SC+SpecMaxExpF", (1, 5, 10, 20, 40, 80, 160)),
    "gamma": Study("SOP+SC+SpecGamma", (0.2, 0.35, 0.5, 0.65, 0.8, 1.0)),
    "asinhe_gamma": Study("SOP+SC+AsinhE", (100, 1000, 10000, 100000)),
    "t": Study("SOP+SC+SpecHDP", (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1)),
    "sigma": Study("SOP+SC+SpecMaxExpF", (0.2, 0.35, 0.5, 0.7, 1.0)),
    "pivots": Study("SOP+SC+SpecMaxExpF", (3, 5, 7, 10)),
}
"""The first four are those of the paper."""
PAPER = ("beta", "alpha", "sigme_eta", "eta")


@dataclass(frozen=True)
class SweepPoint:
    """A value of the setting, and the accuracy in % on validation images."""

    value: float
    accuracy: float


@dataclass(frozen=True)
class SweepRecord:
    """What ``powerpool sweep vision`` found for one setting."""

    data: str
    method: str
    setting: str
    points: tuple[SweepPoint, ...]
    images: int | None = None
    """Number of validation images; older records do not have it."""
    quick: bool = False


def read_sweep(path: str | Path) -> SweepRecord:
    """Read a record of ``powerpool sweep``; an error names the file and the field that is wrong."""
    data = read_json(path)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise RecordError(
            f"{path} is not a record of `powerpool sweep`: schema must be {SCHEMA!r} (got {shown(schema)})."
        )
    try:
        return _build(data)
    except RecordError as error:
        raise RecordError(f"{path} is a damaged record of `powerpool sweep`: {error}") from error


def _build(data: dict[str, Json]) -> SweepRecord:
    setting = data.get("setting")
    rows = data.get("values")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise RecordError(f"values must be a list of objects (got {shown(rows)}).")
    environment = data.get("environment")
    found = {
        "data": data.get("data"),
        "method": data.get("method"),
        "setting": OLD_SETTINGS.get(str(setting), setting),
        "points": [{"value": row.get(str(setting)), "accuracy": row.get("accuracy")} for row in rows],
        "images": data.get("images", data.get("pictures")),
        "quick": isinstance(environment, dict) and environment.get("quick") is True,
    }
    return from_json(SweepRecord, found)
