"""The confusion matrix of a test as an image."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from powerpool.errors import ArgumentError
from powerpool.files import atomic
from powerpool.report.drawing import plain
from powerpool.runs.record import Confusion

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
NAMED = 40
"""Up to this many classes the axes show names; beyond that, indices."""
NUMBERED = 20
"""Up to this many classes the cells show their share."""
LONGEST = 28
"""Characters of a class name."""


def draw_confusion(confusion: Confusion, path: str | Path, title: str = "") -> None:
    """Draw a confusion matrix into a PNG or SVG file; rows are in % of the samples of their class.

    A class without samples is grey.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix not in FORMATS:
        raise ArgumentError(f"The image of a confusion matrix must be {' or '.join(FORMATS)} (got {str(path)!r}).")
    # A fixed salt and no date: the same matrix gives the same file.
    fixed = rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"})
    with fixed, atomic(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=_figure_size(confusion.classes), layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure, confusion, title)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(temporary, format=path.suffix[1:], dpi=150, metadata=metadata)


def _draw(figure: Figure, confusion: Confusion, title: str) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    names = confusion.classes
    counts = torch.tensor(confusion.dense(), dtype=torch.float64)
    shares = 100 * counts / counts.sum(1, keepdim=True)  # NaN for a class without samples
    axes = figure.add_subplot()
    # One hue is readable for every kind of colour vision; the square root shows small shares.
    colours = colormaps["Blues"].with_extremes(bad="0.8")
    image = axes.imshow(shares.numpy(), cmap=colours, norm=PowerNorm(0.5, 0, 100), interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, ticks=[0, 1, 5, 10, 25, 50, 75, 100], shrink=0.8)
    bar.set_label("% of the samples of the class")
    _label(axes, names)
    if len(names) <= NUMBERED:
        for row, column in counts.nonzero().tolist():
            share = float(shares[row, column])
            text = f"{share:.0f}" if share >= 1 else "<1"
            colour = "white" if share > 35 else "black"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=_font_size(names))
    axes.set_title(plain(title), fontsize="medium")


def _label(axes: Axes, names: Sequence[str]) -> None:
    if len(names) > NAMED:
        axes.set(xlabel="predicted (class index)", ylabel="true (class index)")
        return
    axes.set(xlabel="predicted", ylabel="true")
    shown = [plain(_shorten(name)) for name in names]
    size = _font_size(names)
    axes.set_xticks(range(len(names)), shown, rotation=90, fontsize=size)
    axes.set_yticks(range(len(names)), shown, fontsize=size)
    borders = [place - 0.5 for place in range(1, len(names))]
    axes.set_xticks(borders, minor=True)
    axes.set_yticks(borders, minor=True)
    axes.grid(which="minor", color="0.85", linewidth=0.5)
    axes.tick_params(which="minor", length=0)


def _font_size(names: Sequence[str]) -> str:
    return "medium" if len(names) <= 10 else "small"


def _figure_size(names: Sequence[str]) -> tuple[float, float]:
    """Return width and height in inches: a third of an inch per cell, and room for the longest name."""
    cells = min(10.0, max(2.4, 0.34 * len(names)))
    letters = max(len(_shorten(name)) for name in names) if len(names) <= NAMED else 0
    return cells + 0.09 * letters + 1.8, cells + 0.09 * letters + 0.9


def _shorten(name: str) -> str:
    """Keep the beginning and the end of a long name: related names often differ in their end."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[1 - half :]}"
