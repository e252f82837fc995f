"""What a test of an image classifier shows: accuracies, which classes are mistaken for which, a picture and tables."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from powerpool.checks import require_finite
from powerpool.console import cell
from powerpool.errors import ArgumentError, DomainError, ShapeError
from powerpool.files import atomic
from powerpool.report.drawing import plain
from powerpool.tasks.confusion import confusion_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

PAIRS = 10
"""Pairs of classes that are mistaken for one another most often: so many are listed."""
ROWS = 20
"""Classes in a table for the terminal."""
NAMED = 40
"""Up to so many classes a picture has their names; beyond that, their numbers."""
NUMBERED = 20
"""Up to so many classes a picture has the share of every cell in it."""
LONGEST = 28
"""Letters of a class name in a picture."""
PICTURES = (".png", ".svg")


def assess(logits: Tensor, targets: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Accuracies in %, mean cross-entropy, and how often each class was said for each.

    Args:
        logits: (n, classes), of n pictures.
        targets: (n,), the numbers of their classes.
        classes: the names, in the order of the columns.

    Returns:
        ``top1``, ``top5``, ``loss``, ``count``; ``accuracy_by_class``: of every class its ``accuracy`` (``None`` where
        it has no picture) and ``count``; ``confusion``: a row for each class, a column for each that was said;
        ``confused``: the pairs that were mistaken most often, with the share of the pictures of the class in %.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
        >>> figures = assess(logits, torch.tensor([0, 1, 1]), ["cat", "dog"])
        >>> figures["confusion"], figures["accuracy_by_class"]["dog"]
        ([[1, 0], [1, 1]], {'accuracy': 50.0, 'count': 2})
        >>> figures["confused"]
        [{'class': 'dog', 'said': 'cat', 'count': 1, 'share': 50.0}]
    """
    _require_answers(logits, targets, classes)
    size = len(classes)
    confusion = confusion_matrix(logits.argmax(-1), targets, size)
    among = logits.topk(min(5, size), dim=-1).indices
    counts, right = confusion.sum(1).tolist(), confusion.diagonal().tolist()
    return {
        "top1": 100 * sum(right) / len(targets),
        "top5": 100 * int((among == targets[:, None]).sum()) / len(targets),
        "loss": float(nn.functional.cross_entropy(logits.double(), targets)),
        "count": len(targets),
        "accuracy_by_class": {
            name: {"accuracy": 100 * hits / count if count else None, "count": count}
            for name, hits, count in zip(classes, right, counts, strict=True)
        },
        "confusion": confusion.tolist(),
        "confused": _pairs(confusion, classes),
    }


def draw_confusion(figures: dict[str, Any], path: str | Path) -> None:
    """The confusion matrix of :func:`assess` as a picture, PNG or SVG by the suffix of ``path``, atomically.

    Each row is in % of the pictures of its class; a class without pictures is grey.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix not in PICTURES:
        raise ArgumentError(f"A picture must end in {' or '.join(PICTURES)} (got {str(path)!r}).")
    # Without a date and with fixed ids the same figures give the same file. Text of an SVG stays text.
    fixed = rc_context({"svg.hashsalt": path.name, "svg.fonttype": "none"})
    with fixed, atomic(path) as temporary, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # boxes for names in other scripts
        # Figure and not pyplot: no window system, and nothing global that another user of matplotlib would notice.
        figure = Figure(figsize=_picture_size(list(figures["accuracy_by_class"])), layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure, figures)
        dated = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(temporary, format=path.suffix[1:], dpi=150, metadata=dated)


def assessment_table(figures: dict[str, Any], title: str = "") -> list[Table]:
    """Tables of :func:`assess` for the terminal: the worst classes, and the pairs that are mistaken most often."""
    from rich.table import Table

    named = figures["accuracy_by_class"]
    names = list(named)
    # Those without a picture have nothing to be worst at.
    worst = sorted(names, key=lambda name: math.inf if (value := named[name]["accuracy"]) is None else value)
    whole = f"{title}: " if title else ""
    classes = Table(
        title=cell(
            f"{whole}top-1 {figures['top1']:.2f} %, top-5 {figures['top5']:.2f} %, loss {figures['loss']:.3f}, "
            f"{figures['count']} pictures"
        ),
        caption=f"the {ROWS} worst of {len(names)} classes" if len(names) > ROWS else None,
    )
    classes.add_column("class")
    for header in ("pictures", "accuracy %"):
        classes.add_column(header, justify="right")
    classes.add_column("most often taken for")
    for name in worst[:ROWS]:
        accuracy, count = named[name]["accuracy"], named[name]["count"]
        taken = cell(_taken_for(figures["confusion"][names.index(name)], names, name))
        classes.add_row(cell(name), str(count), "-" if accuracy is None else f"{accuracy:.1f}", taken)
    if not figures["confused"]:
        return [classes]
    pairs = Table(title="most confused")
    pairs.add_column("class")
    pairs.add_column("taken for")
    for header in ("pictures", "% of the class"):
        pairs.add_column(header, justify="right")
    for pair in figures["confused"]:
        pairs.add_row(cell(pair["class"]), cell(pair["said"]), str(pair["count"]), f"{pair['share']:.1f}")
    return [classes, pairs]


def _require_answers(logits: Tensor, targets: Tensor, classes: Sequence[str]) -> None:
    if logits.ndim != 2 or logits.shape[1] != len(classes) or targets.shape != logits.shape[:1]:
        raise ShapeError(
            f"logits must have shape (n, {len(classes)}), a column for each class, and targets (n,) "
            f"(got {tuple(logits.shape)} and {tuple(targets.shape)})."
        )
    if not len(targets):
        raise ArgumentError("There is no picture to test on (got 0).")
    if len(set(classes)) != len(classes):
        raise ArgumentError(f"classes must have different names (got {len(classes)}, {len(set(classes))} different).")
    low, high = (int(bound) for bound in targets.aminmax())
    if low < 0 or high >= len(classes):
        raise DomainError(f"targets must be from 0 to {len(classes) - 1} (got {low} to {high}).")
    require_finite(logits, "logits")


def _pairs(confusion: Tensor, classes: Sequence[str]) -> list[dict[str, Any]]:
    """What was said for another class, the most often first; of equal counts, the larger share of the class."""
    counts = confusion.sum(1).tolist()
    mistaken = confusion.clone().fill_diagonal_(0)
    found = [
        {"class": classes[row], "said": classes[column], "count": (count := int(mistaken[row, column]))}
        | {"share": 100 * count / counts[row]}
        for row, column in mistaken.nonzero().tolist()
    ]
    return sorted(found, key=lambda pair: (-pair["count"], -pair["share"]))[:PAIRS]


def _taken_for(row: Sequence[int], names: Sequence[str], own: str) -> str:
    others = [(count, name) for count, name in zip(row, names, strict=True) if name != own and count]
    if not others:
        return ""
    count, name = max(others, key=lambda other: other[0])
    return f"{name} ({count})"


def _draw(figure: Figure, figures: dict[str, Any]) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import PowerNorm

    names = list(figures["accuracy_by_class"])
    confusion = torch.tensor(figures["confusion"], dtype=torch.float64)
    shares = 100 * confusion / confusion.sum(1, keepdim=True)  # NaN for a class without pictures
    axes = figure.add_subplot()
    # Of one hue from light to dark: readable for every kind of colour vision, and in grey. The root shows small shares.
    colours = colormaps["Blues"].with_extremes(bad="0.8")
    image = axes.imshow(shares.numpy(), cmap=colours, norm=PowerNorm(0.5, 0, 100), interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, ticks=[0, 1, 5, 10, 25, 50, 75, 100], shrink=0.8)
    bar.set_label("% of the pictures of the class")
    _label(axes, names)
    if len(names) <= NUMBERED:
        for row, column in confusion.nonzero().tolist():
            share = float(shares[row, column])
            text = f"{share:.0f}" if share >= 1 else "<1"
            colour = "white" if share > 35 else "black"
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=_font_size(names))
    axes.set_title(
        f"top-1 {figures['top1']:.2f} %, top-5 {figures['top5']:.2f} %, {figures['count']} pictures", fontsize="medium"
    )


def _label(axes: Axes, names: Sequence[str]) -> None:
    axes.set(xlabel="said", ylabel="class")
    if len(names) <= NAMED:
        shown = [plain(_shortened(name)) for name in names]
        size = _font_size(names)
        axes.set_xticks(range(len(names)), shown, rotation=90, fontsize=size)
        axes.set_yticks(range(len(names)), shown, fontsize=size)
        # Lines between the cells.
        axes.set_xticks([place - 0.5 for place in range(1, len(names))], minor=True)
        axes.set_yticks([place - 0.5 for place in range(1, len(names))], minor=True)
        axes.grid(which="minor", color="0.85", linewidth=0.5)
        axes.tick_params(which="minor", length=0)
    else:
        axes.set(xlabel="said (number of the class, from 0)", ylabel="class (number, from 0)")


def _font_size(names: Sequence[str]) -> str:
    return "medium" if len(names) <= 10 else "small"


def _picture_size(names: Sequence[str]) -> tuple[float, float]:
    """Width and height in inches: cells of a third of an inch, and room for the longest name on both sides."""
    cells = min(10.0, max(2.4, 0.34 * len(names)))
    letters = max(len(_shortened(name)) for name in names) if len(names) <= NAMED else 0
    return cells + 0.09 * letters + 1.8, cells + 0.09 * letters + 0.9


def _shortened(name: str) -> str:
    """The beginning and the end of a long name: names of one kind often differ in their end."""
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[1 - half :]}"
