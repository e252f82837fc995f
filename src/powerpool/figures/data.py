"""What a figure shows, as numbers and words: axes, lines, marks. Nothing here knows how it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from powerpool.errors import ShapeError

POINTS = 401
"""Of a line that is a formula; odd, so that the middle of a range is one of them."""


@dataclass(frozen=True)
class Axis:
    """The words beside an axis, its unit, and how it is divided.

    Example:
        >>> Axis("time", "ms").text, Axis("eigenvalue").text
        ('time (ms)', 'eigenvalue')
    """

    label: str
    unit: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    """What is shown; everything without it."""

    @property
    def text(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, eq=False)
class Line:
    """One line of the legend: points, and an interval at each of them where there is one."""

    name: str
    x: Tensor  # shape: (n,)
    y: Tensor  # shape: (n,)
    interval: tuple[Tensor, Tensor] | None = None
    """Lower and upper end at each point, NaN where a point has none."""
    measured: bool = False
    """Whether each point is a measurement, and has a marker."""
    joined: bool = True
    """Whether points are joined; those of the paper, which are few, are not."""
    like: str | None = None
    """The name of a line before, whose colour this one has too."""
    dash: int | None = None
    """The number of its dash, where that has a meaning; each line has the next one without it."""

    def __post_init__(self) -> None:
        for values in (self.x, self.y, *(self.interval or ())):
            if values.ndim != 1 or values.shape != self.x.shape:
                raise ShapeError(f"The line {self.name} must have as many y as x, in one dimension.")


@dataclass(frozen=True)
class Mark:
    """A place on an axis, "x" or "y", that has a name."""

    name: str
    at: float
    axis: str = "x"


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes, with all that is between them."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, eq=False)
class FigureData:
    """All that a figure shows."""

    title: str
    panels: tuple[Panel, ...]
    note: str = ""
    """Where measured numbers come from."""

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
    """The end of an interval as a cell of a table: empty where there is none."""
    return "" if ends is None or bool(ends[number].isnan()) else float(ends[number])


def linear(low: float, high: float, points: int = POINTS) -> Tensor:
    """Evenly spaced points."""
    return torch.linspace(low, high, points, dtype=torch.float64)


def logarithmic(low: float, high: float, points: int = POINTS) -> Tensor:
    """Points of which each is the same multiple of the one before; the ends are exact."""
    exponents = torch.log10(torch.tensor([low, high], dtype=torch.float64))
    found = torch.logspace(exponents[0].item(), exponents[1].item(), points, dtype=torch.float64)
    found[0], found[-1] = low, high
    return found


def formula(name: str, x: Tensor, function: Callable[[Tensor], Tensor]) -> Line:
    """A line of y = function(x)."""
    return Line(name, x, function(x))
