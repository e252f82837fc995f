"""The content of a figure: axes, lines, marks. ``powerpool.figures.drawing`` draws it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

POINTS = 401
"""Points of a line that is a formula; odd, so that the middle of a range is one of them."""


@dataclass(frozen=True)
class Axis:
    """The label of an axis, its unit and its scale.

    Example:
        >>> Axis("time", "ms").text, Axis("eigenvalue").text
        ('time (ms)', 'eigenvalue')
    """

    label: str
    unit: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    """The range that is shown; default: all points."""

    @property
    def text(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, eq=False)
class Line:
    """One line of the legend: points, each with an interval if there are any."""

    name: str
    x: Tensor  # shape: (n,)
    y: Tensor  # shape: (n,)
    interval: tuple[Tensor, Tensor] | None = None
    """Lower and upper end at each point, NaN for a point without an interval."""
    measured: bool = False
    """Whether each point is a measurement, and gets a marker."""
    joined: bool = True
    """Whether points are joined; the few points of the paper are not."""
    like: str | None = None
    """The name of an earlier line with the same colour."""
    dash: int | None = None
    """The number of its dash; default: the next one."""


@dataclass(frozen=True)
class Mark:
    """A named position on an axis, "x" or "y"."""

    name: str
    at: float
    axis: str = "x"


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes with lines and marks."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, eq=False)
class FigureData:
    """The content of a figure."""

    title: str
    panels: tuple[Panel, ...]
    note: str = ""
    """The source of measured numbers."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every point as a row of a table."""
        for panel in self.panels:
            axes = {"panel": panel.title, "x_axis": panel.x.text, "y_axis": panel.y.text}
            for line in panel.lines:
                low, high = line.interval or (None, None)
                for number in range(len(line.x)):
                    yield {
                        **axes,
                        "line": line.name,
                        "x": line.x[number].item(),
                        "y": line.y[number].item(),
                        "lower": _end(low, number),
                        "upper": _end(high, number),
                    }
            for mark in panel.marks:
                at = {"x": "", "y": "", mark.axis: mark.at}
                yield {**axes, "line": mark.name, **at, "lower": "", "upper": ""}


def _end(ends: Tensor | None, number: int) -> float | str:
    """The end of an interval as a cell of a table; empty if there is none."""
    return "" if ends is None or bool(ends[number].isnan()) else float(ends[number])


def linear(low: float, high: float, points: int = POINTS) -> Tensor:
    """Evenly spaced points."""
    return torch.linspace(low, high, points, dtype=torch.float64)


def logarithmic(low: float, high: float, points: int = POINTS) -> Tensor:
    """Points evenly spaced on a logarithmic scale; the ends are exact."""
    exponents = torch.log10(torch.tensor([low, high], dtype=torch.float64))
    found = torch.logspace(exponents[0].item(), exponents[1].item(), points, dtype=torch.float64)
    found[0], found[-1] = low, high
    return found


def formula(name: str, x: Tensor, function: Callable[[Tensor], Tensor]) -> Line:
    """A line of y = function(x)."""
    return Line(name, x, function(x))
