"""Read the CSV of a figure."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

Tables = dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def lines(path: Path) -> Tables:
    """x and y of every line, by panel and name; without marks, which have only one of them."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for row in read(path):
        if row["x"] and row["y"]:
            found.setdefault((row["panel"], row["line"]), []).append((float(row["x"]), float(row["y"])))
    return {key: tuple(np.array(points).T) for key, points in found.items()}


def marks(path: Path) -> dict[str, float]:
    return {row["line"]: float(row["x"] or row["y"]) for row in read(path) if not (row["x"] and row["y"])}
