"""Confusion matrices as images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from powerpool.errors import ArgumentError
from powerpool.report.drawing import plain, save_with_text, shorten_middle
from powerpool.report.results import row_shares
from powerpool.runs.record import Confusion

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

FORMATS = (".png", ".svg")
NAMED = 40
"""Up to this many classes the axes show names; beyond that, indices."""
NUMBERED = 25
"""Up to this many classes the cells show their share."""
LONGEST = 28
"""Characters of a class name."""
TICKS = [0, 1, 5, 10, 25, 50, 75, 100]


def draw_confusion(confusion: Confusion, path: str | Path, title: str = "") -> None:
    """Draw a confusion matrix into a PNG or SVG file; rows are in % of the samples of their class.

    A class without samples is grey.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ArgumentError(f"The image of a confusion matrix must be {' or '.join(FORMATS)} (got {str(path)!r}).")

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        image = draw_panel(axes, confusion)
        bar = figure.colorbar(image, ax=axes, ticks=TICKS, shrink=0.8)
        bar.set_label("% of the samples of the class")
        unit = "" if len(confusion.classes) <= NAMED else " (class index)"
        axes.set(xlabel=f"predicted{unit}", ylabel=f"true{unit}")
        axes.set_title(plain(title), fontsize="medium")

    side = min(10.0, max(2.4, 0.34 * len(confusion.classes)))
    names = 0.09 * longest_label(confusion.classes)
    save_with_text(draw, path, (side + names + 1.8, side + names + 0.9))


def draw_panel(axes: Axes, confusion: Confusion) -> AxesImage:
    """Draw a confusion matrix as a heat map, with rows in % of the samples of their class."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    classes, shares = confusion.classes, row_shares(confusion)
    size = len(classes)
    grid = np.zeros((size, size))
    grid[sorted(set(range(size)) - {true for true, _ in shares})] = np.nan  # no samples
    for pair, share in shares.items():
        grid[pair] = share
    # One hue is readable for every kind of colour vision; the square root shows small shares.
    colours = colormaps["Blues"].with_extremes(bad="0.8")
    image = axes.imshow(grid, cmap=colours, norm=PowerNorm(0.5, 0, 100), interpolation="nearest")
    font = "medium" if size <= 10 else "small"
    if size <= NUMBERED:
        for (true, predicted), share in shares.items():
            text, colour = f"{share:.0f}" if share >= 1 else "<1", "white" if share > 35 else "black"
            axes.text(predicted, true, text, ha="center", va="center", color=colour, fontsize=font)
    if size <= NAMED:
        names = [plain(shorten_middle(name, LONGEST)) for name in classes]
        axes.set_xticks(range(size), names, rotation=90, fontsize=font)
        axes.set_yticks(range(size), names, fontsize=font)
        borders = [place - 0.5 for place in range(1, size)]
        axes.set_xticks(borders, minor=True)
        axes.set_yticks(borders, minor=True)
        axes.grid(which="minor", color="0.85", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    return image


def longest_label(classes: Sequence[str]) -> int:
    """Return the number of characters of the longest label."""
    return max(min(len(name), LONGEST) for name in classes) if len(classes) <= NAMED else 0
