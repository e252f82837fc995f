"""Pictures of records: the mean of every method with its interval, and how training went."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerpool.errors import RecordError
from powerpool.report.drawing import COLOURS, line_look, plain, save
from powerpool.report.tables import Group, Row
from powerpool.runs.compare import summarize
from powerpool.runs.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OURS, PAPER = COLOURS[:2]

WIDE = 30
"""From the smallest to the largest value of a setting: a range this wide has a logarithmic axis."""

CURVES = {
    "train_loss": "training loss",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
    "validation_value": "validation accuracy in %",
    "retrain_loss": "training loss, once more with validation",
}
"""Curves that are drawn first, and what they are called; others follow under their own names."""
LEGEND = 90
"""Letters for which there is room beside the other entry of a legend."""
STEPS = "episode"
"""A curve that says where the points of the others are; without it they are one epoch apart."""


def draw_values(group: Group, path: Path) -> None:
    """Mean and 95 % interval of every method, the first on top, and the paper's figure where it has one."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        places = range(len(group.rows))
        means = [row.record.mean for row in group.rows]
        bars = [_bar(row) for row in group.rows]
        axes.errorbar(
            means,
            places,
            xerr=list(zip(*bars, strict=True)),
            fmt="o",
            color=OURS,
            capsize=3,
            label="ours, with 95 % interval",
        )
        known = [(row.paper.mean, place + 0.25) for place, row in enumerate(group.rows) if row.paper is not None]
        if known:
            axes.plot(*zip(*known, strict=True), "D", color=PAPER, fillstyle="none", label=_paper(group))
        axes.set_yticks(places, [plain(row.record.method) for row in group.rows])
        axes.set_ylim(len(group.rows) - 0.4, -0.6)
        axes.set_xlabel(plain(group.metric))
        axes.set_title(plain(group.title))
        axes.grid(axis="x", alpha=0.3)
        ncols = 2 if len(_paper(group)) <= LEGEND else 1
        figure.legend(loc="outside lower center", ncols=ncols, fontsize="small")

    save_svg(draw, path, (8, 1.6 + 0.35 * len(group.rows)))


def draw_curves(group: Group, path: Path) -> bool:
    """The curves of every method against epochs or episodes; False where there are none.

    They are the mean over folds, with a band of one standard deviation.
    """
    records = [row.record for row in group.rows]
    names = {name for record in records for fold in record.folds for name in _curves(fold)}
    if not names:
        return False
    ordered = [*(name for name in CURVES if name in names), *sorted(names - CURVES.keys())]
    step = "training episode" if any(_steps(fold) for record in records for fold in record.folds) else "epoch"

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(ordered), squeeze=False)[0]
        for axes, name in zip(panels, ordered, strict=True):
            for number, record in enumerate(records):
                _draw_curve(axes, record, name, number)
            axes.set(xlabel=step, title=plain(CURVES.get(name, name)))
            axes.grid(alpha=0.3)
        # All methods have the same colour in every panel; one that is in no first panel is still in the legend.
        handles = {line.get_label(): line for axes in panels for line in axes.get_lines()}
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize="small")
        figure.suptitle(plain(group.title))

    save_svg(draw, path, (2.5 + 3.6 * len(ordered), 4.2))
    return True


def draw_sweep(rows: Sequence[Mapping[str, float]], setting: str, title: str, path: Path) -> None:
    """Accuracy in % against the values of one setting; the best is filled: of equals, that with the lowest loss.

    Args:
        rows: each with a value of the setting under its name, its ``accuracy`` and its ``loss``.
        setting: the name.
        title: what was measured.
        path: of the SVG file.
    """
    points = sorted((row[setting], row["accuracy"]) for row in rows)
    best = min(rows, key=lambda row: (-row["accuracy"], row["loss"], row[setting]))
    smallest, largest = points[0][0], points[-1][0]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.plot(*zip(*points, strict=True), "o-", color=OURS, fillstyle="none", linewidth=1.3)
        axes.plot(best[setting], best["accuracy"], "o", color=OURS)
        if smallest > 0 and largest >= WIDE * smallest:
            axes.set_xscale("log")
        axes.set(xlabel=plain(setting), ylabel="accuracy in %", title=plain(title))
        axes.grid(alpha=0.3)

    save_svg(draw, path, (6, 4.2))


def mean_curve(record: RunRecord, name: str) -> list[tuple[int, float, float]]:
    """Step, mean and standard deviation over the folds that reached it; steps that no fold knows are left out.

    A step is an epoch, or a training episode where the curves say so. One fold alone has no deviation: it is 0 here, a
    band without width.
    """
    values: dict[int, list[float]] = {}
    for fold in record.folds:
        curve = _curves(fold).get(name)
        if curve is None:
            continue
        for step, value in zip(_steps(fold) or range(1, len(curve) + 1), curve, strict=True):
            if value is not None:
                values.setdefault(step, []).append(value)
    summaries = ((step, summarize(values[step])) for step in sorted(values))
    return [(step, summary.mean, summary.std or 0.0) for step, summary in summaries]


def _bar(row: Row) -> tuple[float, float]:
    """How far the interval reaches to both sides of the mean."""
    # One fold has no interval: a bar of length nan is not drawn.
    low, high = row.interval or (math.nan, math.nan)
    return row.record.mean - low, high - row.record.mean


def _paper(group: Group) -> str:
    """What the paper's markers are called: with their network or training where it is not ours."""
    return "paper" if group.paper_for is None else f"paper, for {group.paper_for}"


def _draw_curve(axes: Axes, record: RunRecord, name: str, number: int) -> None:
    points = mean_curve(record, name)
    if not points:
        return
    epochs, means, deviations = zip(*points, strict=True)
    colour, dash = line_look(number)
    axes.plot(epochs, means, dash, color=colour, linewidth=1.3, label=plain(record.method))
    low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
    high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
    axes.fill_between(epochs, low, high, color=colour, alpha=0.12, linewidth=0)


def _curves(fold: dict[str, Any]) -> dict[str, Sequence[float | None]]:
    """The curves that have a point: retraining has none of validation."""
    curves = fold.get("curves")
    if not isinstance(curves, dict):
        return {}
    steps, found = _steps(fold), {name: curve for name, curve in curves.items() if curve and name != STEPS}
    for name, curve in found.items():
        if steps and len(curve) != len(steps):
            raise RecordError(f"The curve {name} must have a point for each {STEPS} (got {len(curve)}, {len(steps)}).")
    return found


def _steps(fold: dict[str, Any]) -> Sequence[int]:
    """Where the points of the curves are; nothing where they are one epoch apart."""
    curves = fold.get("curves")
    return curves.get(STEPS, ()) if isinstance(curves, dict) else ()


def save_svg(draw: Callable[[Figure], None], path: Path, size: tuple[float, float]) -> None:
    """Draw a picture of a report. Text stays text, which is a tenth in size."""
    with warnings.catch_warnings():
        # Only the room for a name is guessed then: a browser has fonts for other scripts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        save(draw, [path], size, style={"svg.fonttype": "none"})
