"""Pictures of what records say of a test beside its value: confusions, spectra, and the spread over test episodes."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from powerpool.report.details import Confusion, confusion_of, most_telling, spectrum_of
from powerpool.report.drawing import line_look, plain
from powerpool.report.plots import save_svg
from powerpool.report.tables import Group, accuracies

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW_CLASSES = 5
"""Up to so many classes there is a panel for every method; beyond that, for the baseline and the best."""
MANY_CLASSES = 25
"""Beyond so many classes a heat map cannot be read."""
WIDTH = 11.0
"""Inches that panels are laid out in."""
CELL, SMALLEST_PANEL = 0.34, 1.5
"""Sides in inches."""
LONGEST = 18
"""Letters of a class or method above and beside a panel."""
LOWEST = 1e-6
"""Shares below this are not shown: in float32, in which pools compute, they are round-off."""
BIN = 5.0
"""Accuracies of test episodes are counted in steps of at least so many percent."""


def draw_confusions(group: Group, path: Path) -> bool:
    """A heat map for each method, or for two of them where there are many classes; False where there are none to draw.

    Numbers are counts over all folds, colours the share of a row.
    """
    found = [(record.method, confusion) for record in group.records if (confusion := confusion_of(record)) is not None]
    classes = max((len(confusion.classes) for _, confusion in found), default=0)
    if not 0 < classes <= MANY_CLASSES:
        return False
    if classes > FEW_CLASSES:
        shown = {record.method for record in most_telling(group)}
        found = [(method, confusion) for method, confusion in found if method in shown] or found[:1]
    side = max(SMALLEST_PANEL, CELL * classes)
    columns = max(1, min(len(found), int(WIDTH // (side + 0.25))))
    rows = math.ceil(len(found) / columns)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(rows, columns, squeeze=False)
        for place, axes in enumerate(panels.flat):
            if place >= len(found):
                axes.set_visible(False)
                continue
            _draw_confusion(axes, *found[place], is_first=place % columns == 0, is_last=place + columns >= len(found))
        figure.suptitle(plain(group.title))
        figure.supxlabel("said", fontsize="medium")
        figure.supylabel("class", fontsize="medium")

    labels = [_shortened(name) for _, confusion in found for name in confusion.classes]
    beside = 0.085 * max(map(len, labels))
    below = beside if _is_long(labels) else 0.15
    save_svg(draw, path, (columns * (side + 0.25) + beside + 0.6, rows * (side + 0.35) + below + 0.8))
    return True


def draw_spectra(group: Group, path: Path) -> bool:
    """Mean shares of eigenvalues against their rank, before and after, of every method; False where there are none."""
    found = [
        (number, record.method, spectrum)
        for number, record in enumerate(group.records)
        if (spectrum := spectrum_of(record)) is not None
    ]
    if not found:
        return False

    def draw(figure: Figure) -> None:
        axes, last = figure.add_subplot(), 1
        for number, method, spectrum in found:
            colour, dash = line_look(number)
            for shares, look in (
                (spectrum.before, {"linewidth": 0.9, "alpha": 0.5}),
                (spectrum.after, {"linewidth": 1.8, "label": plain(method)}),
            ):
                seen = [place for place, share in enumerate(shares) if share > LOWEST]
                x, y = ([values[place] for place in seen] for values in (spectrum.ranks, shares))
                axes.plot(x, y, dash, color=colour, **look)
                last = max([last, *(spectrum.ranks[place] for place in seen)])
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="rank of the eigenvalue",
            ylabel="share of the trace",
            title=plain(group.title),
        )
        ticks = [2**power for power in range(last.bit_length())]
        axes.set_xticks(ticks, map(str, ticks))
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper", fontsize="small", title="thick: after\nthin: before")

    save_svg(draw, path, (9.0, 4.8))
    return True


def draw_episodes(group: Group, path: Path) -> bool:
    """How many of the test episodes had which accuracy, for every method; False where there are no episodes."""
    records = [record for record in group.records if all("right_by_episode" in fold for fold in record.folds)]
    if not records:
        return False
    edges = bin_edges(min(int(fold["queries"]) for record in records for fold in record.folds))
    counts = [(record.method, counted(accuracies(record), edges)) for record in records]
    filled = [place for place in range(len(edges) - 1) if any(shares[place] for _, shares in counts)]
    numbers = {record.method: number for number, record in enumerate(group.records)}

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for method, shares in counts:
            colour, dash = line_look(numbers[method])
            axes.stairs(shares, edges, color=colour, linestyle=dash, linewidth=1.6, label=plain(method))
        axes.set_xlim(edges[max(0, filled[0] - 1)], edges[min(len(edges) - 1, filled[-1] + 2)])
        axes.set_ylim(bottom=0)
        axes.set(xlabel="accuracy in an episode, in %", ylabel="% of the episodes", title=plain(group.title))
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper", fontsize="small")

    save_svg(draw, path, (9.0, 4.2))
    return True


def bin_edges(queries: int) -> list[float]:
    """Edges between the accuracies that so many queries can give, with equally many of them between each two.

    Example:
        >>> bin_edges(4), len(bin_edges(75))
        ([-12.5, 12.5, 37.5, 62.5, 87.5, 112.5], 20)
    """
    step = 100 / queries
    inside = math.ceil(BIN / step)  # accuracies between two edges
    return [(inside * place - 0.5) * step for place in range(math.ceil((queries + 1) / inside) + 1)]


def counted(values: Sequence[float], edges: Sequence[float]) -> list[float]:
    """The share of values in % between each two edges, the lower of which belongs to it."""
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[bisect(edges, value) - 1] += 1
    return [100 * count / len(values) for count in counts]


def _draw_confusion(axes: Axes, method: str, confusion: Confusion, *, is_first: bool, is_last: bool) -> None:
    size, known = len(confusion.classes), confusion.shares()
    shares = [[known.get((row, column), 0.0) for column in range(size)] for row in range(size)]
    # Of one hue from light to dark: readable for every kind of colour vision, and in grey.
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=100, interpolation="nearest")
    for (row, column), count in confusion.counts.items():
        colour = "white" if shares[row][column] > 50 else "black"
        axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize="small")
    names = [plain(_shortened(name)) for name in confusion.classes]
    axes.set_xticks(range(size), names if is_last else [""] * size, rotation=90 if _is_long(names) else 0)
    axes.set_yticks(range(size), names if is_first else [""] * size)
    axes.tick_params(length=0, labelsize="small")
    # Lines between the cells.
    axes.set_xticks([place - 0.5 for place in range(1, size)], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, size)], minor=True)
    axes.grid(which="minor", color="0.85", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    axes.set_title(plain(_shortened(method)), fontsize="small")


def _is_long(names: Sequence[str]) -> bool:
    return max(map(len, names)) > 3


def _shortened(name: str) -> str:
    """The beginning and the end of a long name: names of one kind often differ in their end."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[1 - half :]}"
