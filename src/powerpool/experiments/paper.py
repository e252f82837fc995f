"""What the paper reports, to be printed beside what was measured here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

DATA_NAMES = {"PTC_MR": "PTC"}
"""Data sets that the paper calls by another name."""

PROTOCOL_NAMES = {"validation-only": "validation_only", "retrain": "retrained_on_train_and_validation"}


@dataclass(frozen=True)
class Figure:
    """A number of the paper."""

    mean: float
    std: float


def paper_figure(pipeline: str, data: str, method: str, protocol: str) -> Figure | None:
    """The paper's number for one row of one table; None where it reports none.

    Only the tables of graph classification are known by protocol. The other sections of the file have no run to stand
    beside yet.

    Example:
        >>> paper_figure("graph", "PTC_MR", "SOP+SpecMaxExpF", "validation-only")
        Figure(mean=68.3, std=9.3)
    """
    if pipeline != "graph":
        return None
    table = figures()["graph"].get(PROTOCOL_NAMES.get(protocol), {})
    found = table.get(DATA_NAMES.get(data, data), {}).get(method)
    return None if found is None else Figure(*map(float, found))


@cache
def figures() -> dict[str, Any]:
    """Every number of the paper, in the structure of the file that ships with the package."""
    import yaml

    text = resources.files("powerpool").joinpath("recipes", "paper.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found
