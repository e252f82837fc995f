"""Plots of records as SVG files: values, training curves, test episodes, confusions, spectra and sweeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from powerpool.errors import ArgumentError
from powerpool.report.drawing import COLOURS, line_look, plain, save, shorten_middle
from powerpool.report.groups import Group
from powerpool.report.results import CPU_SECONDS, STEPS, accuracies, mean_spectrum, row_shares, sum_confusions
from powerpool.runs.compare import summarize
from powerpool.runs.record import Confusion, EpisodeResult, Result, RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

OURS, PAPER = COLOURS[:2]
WIDE = 30
"""Values of a setting that span this factor are drawn on a logarithmic axis."""
CURVES = {
    "train_loss": "training loss",
    "validation_loss": "validation loss",
    "validation_accuracy": "validation accuracy",
    "validation_value": "validation accuracy in %",
    "retrain_loss": "training loss, with the validation part",
}
"""Titles of known curves, which are drawn first; others follow under their own names."""
VALIDATION = "validation_value"
LEGEND = 90
"""Characters that fit beside the other entry of a legend."""
FEW_CLASSES = 5
"""Up to this many classes every method has a confusion matrix; beyond that, the baseline and the best."""
MANY_CLASSES = 25
"""Beyond this many classes a heat map cannot be read."""
WIDTH = 11.0
"""Inches in which confusion matrices are laid out."""
LOWEST = 1e-6
"""Smaller shares of eigenvalues are not drawn: in float32 they are round-off."""
BIN = 5.0
"""Smallest width in % of a bin of episodes."""
FORMATS = (".png", ".svg")
NAMED = 40
"""Up to this many classes the axes show names; beyond that, indices."""
NUMBERED = 25
"""Up to this many classes the cells show their share."""
LONGEST = 28
"""Characters of a class name."""
TICKS = [0, 1, 5, 10, 25, 50, 75, 100]


def draw_values(group: Group, path: Path) -> None:
    """Draw mean and 95 % interval of every method, the first on top, and the paper's figures."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        places = range(len(group.rows))
        means = [row.record.mean for row in group.rows]
        # A single fold has no interval: a bar of length NaN is not drawn.
        ends = [row.interval or (math.nan, math.nan) for row in group.rows]
        bars = [[mean - low, high - mean] for mean, (low, high) in zip(means, ends, strict=True)]
        sides = list(zip(*bars, strict=True))
        axes.errorbar(means, places, xerr=sides, fmt="o", color=OURS, capsize=3, label="ours, with 95 % interval")
        known = [(row.paper.mean, place + 0.25) for place, row in enumerate(group.rows) if row.paper is not None]
        label = "paper" if group.paper_setup is None else f"paper, for {group.paper_setup}"
        if known:
            axes.plot(*zip(*known, strict=True), "D", color=PAPER, fillstyle="none", label=label)
        axes.set_yticks(places, [plain(record.method) for record in group.records])
        axes.set_ylim(len(group.rows) - 0.4, -0.6)
        axes.set_xlabel(plain(group.metric))
        axes.set_title(plain(group.title))
        axes.grid(axis="x", alpha=0.3)
        figure.legend(loc="outside lower center", ncols=2 if len(label) <= LEGEND else 1, fontsize="small")

    save(draw, [path], (8, 1.6 + 0.35 * len(group.rows)))


def draw_curves(group: Group, path: Path) -> bool:
    """Draw the training curves of every method: mean over results, and one standard deviation; False without any."""
    results = [result for record in group.records for result in record.results]
    names = {name for result in results for name, curve in result.curves.items() if curve} - {STEPS, CPU_SECONDS}
    if not names:
        return False
    ordered = [*(name for name in CURVES if name in names), *sorted(names - CURVES.keys())]
    step = "training episode" if any(STEPS in result.curves for result in results) else "epoch"

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(ordered), squeeze=False)[0]
        for axes, name in zip(panels, ordered, strict=True):
            for number, record in enumerate(group.records):
                _draw_curve(axes, record, name, number)
            axes.set(xlabel=step, title=plain(CURVES.get(name, name)))
            axes.grid(alpha=0.3)
        # A method has the same colour in every panel, and may be missing in the first.
        handles = {line.get_label(): line for axes in panels for line in axes.get_lines()}
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize="small")
        figure.suptitle(plain(group.title))

    save(draw, [path], (2.5 + 3.6 * len(ordered), 4.2))
    return True


def draw_costs(group: Group, path: Path) -> bool:
    """Draw validation accuracy against training episodes and CPU seconds, with a band of one standard deviation.

    A curve begins where the training of its encoder ends. A method is left out if the CPU seconds of its training are
    not known, or those of the network that it starts from. False if none is left.
    """

    def is_known(record: RunRecord) -> bool:
        encoder = group.encoder_of(record) if "pretraining" in record.config else record
        return encoder is not None and all(mean_curve(one, CPU_SECONDS) for one in (record, encoder))

    known = [(number, record) for number, record in enumerate(group.records) if is_known(record)]
    if not known:
        return False

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, 2, sharey=True)
        for number, record in known:
            encoder = group.encoder_of(record)
            before = mean_curve(encoder, CPU_SECONDS) if encoder else []
            first, first_seconds, _ = before[-1] if before else (0, 0.0, 0.0)
            seconds = {step: first_seconds + mean for step, mean, _ in mean_curve(record, CPU_SECONDS)}
            points = [point for point in mean_curve(record, VALIDATION) if point[0] in seconds]
            steps = [step for step, _, _ in points]
            _draw_means(panels[0], [first + step for step in steps], points, record, number, marker=".")
            _draw_means(panels[1], [seconds[step] for step in steps], points, record, number, marker=".")
        for axes, what in zip(panels, ("training episodes", "CPU seconds of training episodes"), strict=True):
            axes.set(xscale="log", xlabel=what)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(CURVES[VALIDATION])
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper", fontsize="small")
        figure.suptitle(plain(f"{group.title}, mean over seeds"))

    save(draw, [path], (9.7, 4.2))
    return True


def mean_curve(record: RunRecord, name: str) -> list[tuple[int, float, float]]:
    """Return step, mean and standard deviation over the results that reached the step.

    A step is an epoch, or a training episode where the curves say so. The deviation of a single result is 0.
    """
    values: dict[int, list[float]] = {}
    for result in record.results:
        curve = result.curves.get(name, ())
        for step, value in zip(_steps(result, len(curve)), curve, strict=True):
            if value is not None:
                values.setdefault(step, []).append(value)
    summaries = ((step, summarize(values[step])) for step in sorted(values))
    return [(step, summary.mean, summary.std or 0.0) for step, summary in summaries]


def draw_episodes(group: Group, path: Path) -> bool:
    """Draw how many of the test episodes had which accuracy, for every method; False without episodes."""
    import numpy as np

    if group.task != "fewshot":
        return False
    results = [one for record in group.records for one in record.results if isinstance(one, EpisodeResult)]
    edges = bin_edges(min(result.queries for result in results))
    counts = [np.histogram(accuracies(record), edges)[0] for record in group.records]
    filled = np.flatnonzero(sum(counts))

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for number, (record, count) in enumerate(zip(group.records, counts, strict=True)):
            colour, dash = line_look(number)
            axes.stairs(
                100 * count / count.sum(),
                edges,
                color=colour,
                linestyle=dash,
                linewidth=1.6,
                label=plain(record.method),
            )
        axes.set_xlim(edges[max(0, filled[0] - 1)], edges[min(len(edges) - 1, filled[-1] + 2)])
        axes.set_ylim(bottom=0)
        axes.set(xlabel="accuracy in an episode, in %", ylabel="% of the episodes", title=plain(group.title))
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper", fontsize="small")

    save(draw, [path], (9.0, 4.2))
    return True


def bin_edges(queries: int) -> list[float]:
    """Return edges between the accuracies that so many queries can give, with equally many between each two."""
    step = 100 / queries
    inside = math.ceil(BIN / step)  # accuracies between two edges
    return [(inside * place - 0.5) * step for place in range(math.ceil((queries + 1) / inside) + 1)]


def draw_spectra(group: Group, path: Path) -> bool:
    """Draw mean shares of eigenvalues against their rank, before and after normalization; False without spectra."""
    found = [
        (line_look(number), record.method, spectrum)
        for number, record in enumerate(group.records)
        if (spectrum := mean_spectrum(record)) is not None
    ]
    if not found:
        return False

    def draw(figure: Figure) -> None:
        axes, last = figure.add_subplot(), 1
        for (colour, dash), method, spectrum in found:
            for shares, look in (
                (spectrum.before, {"linewidth": 0.9, "alpha": 0.5}),
                (spectrum.after, {"linewidth": 1.8, "label": plain(method)}),
            ):
                points = [(rank, one) for rank, one in zip(spectrum.ranks, shares, strict=True) if one > LOWEST]
                ranks, values = zip(*points, strict=True) if points else ((), ())
                axes.plot(ranks, values, dash, color=colour, **look)
                last = max(last, *ranks, 1)
        axes.set(xscale="log", yscale="log", xlabel="rank of the eigenvalue", ylabel="share of the trace")
        axes.set_title(plain(group.title))
        ticks = [2**power for power in range(last.bit_length())]
        axes.set_xticks(ticks, map(str, ticks))
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper", fontsize="small", title="thick: after\nthin: before")

    save(draw, [path], (9.0, 4.8))
    return True


def choose_confusions(group: Group) -> list[RunRecord]:
    """Return the records whose confusions are shown: all of few classes, else the baseline and the best."""
    sizes = {id(one): len(found.classes) for one in group.records if (found := sum_confusions(one)) is not None}
    known = [record for record in group.records if id(record) in sizes]
    if max(sizes.values(), default=0) <= FEW_CLASSES:
        return known
    best = max(group.records, key=lambda record: record.mean if record.higher_is_better else -record.mean)
    return [record for record in known if record is best or record.method == group.baseline] or known[:1]


def draw_confusions(group: Group, path: Path) -> bool:
    """Draw the confusion matrices of :func:`choose_confusions`; False without any, or with too many classes."""
    found = [(record.method, one) for record in choose_confusions(group) if (one := sum_confusions(record))]
    classes = max((len(confusion.classes) for _, confusion in found), default=0)
    if not 0 < classes <= MANY_CLASSES:
        return False
    side = max(1.5, 0.34 * classes)
    columns = max(1, min(len(found), int(WIDTH // (side + 0.25))))
    rows = math.ceil(len(found) / columns)
    names = 0.09 * max(_longest_label(confusion.classes) for _, confusion in found)

    def draw(figure: Figure) -> None:
        panels = figure.subplots(rows, columns, squeeze=False)
        for place, axes in enumerate(panels.flat):
            if place >= len(found):
                axes.set_visible(False)
                continue
            method, confusion = found[place]
            _draw_panel(axes, confusion)
            axes.set_title(plain(shorten_middle(method, 18)), fontsize="small")
            if place % columns:
                axes.tick_params(labelleft=False)
            if place + columns < len(found):
                axes.tick_params(labelbottom=False)
        figure.suptitle(plain(group.title))
        figure.supxlabel("predicted", fontsize="medium")
        figure.supylabel("true", fontsize="medium")

    save(draw, [path], (columns * (side + 0.25) + names + 0.6, rows * (side + 0.35) + names + 0.8))
    return True


def draw_confusion(confusion: Confusion, path: str | Path, title: str = "") -> None:
    """Draw a confusion matrix into a PNG or SVG file; rows are in % of the samples of their class.

    A class without samples is grey.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ArgumentError(f"The image of a confusion matrix must be {' or '.join(FORMATS)} (got {str(path)!r}).")

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        image = _draw_panel(axes, confusion)
        bar = figure.colorbar(image, ax=axes, ticks=TICKS, shrink=0.8)
        bar.set_label("% of the samples of the class")
        unit = "" if len(confusion.classes) <= NAMED else " (class index)"
        axes.set(xlabel=f"predicted{unit}", ylabel=f"true{unit}")
        axes.set_title(plain(title), fontsize="medium")

    side = min(10.0, max(2.4, 0.34 * len(confusion.classes)))
    names = 0.09 * _longest_label(confusion.classes)
    save(draw, [path], (side + names + 1.8, side + names + 0.9))


def _draw_panel(axes: Axes, confusion: Confusion) -> AxesImage:
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


def _longest_label(classes: Sequence[str]) -> int:
    return max(min(len(name), LONGEST) for name in classes) if len(classes) <= NAMED else 0


def draw_sweep(rows: Sequence[Mapping[str, float]], setting: str, title: str, path: Path) -> None:
    """Draw accuracy in % against the values of one setting; the best is filled, of equals the one with the lowest loss.

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

    save(draw, [path], (6, 4.2))


def _draw_curve(axes: Axes, record: RunRecord, name: str, number: int) -> None:
    points = mean_curve(record, name)
    _draw_means(axes, [step for step, _, _ in points], points, record, number)


def _draw_means(
    axes: Axes,
    places: Sequence[float],
    points: Sequence[tuple[int, float, float]],
    record: RunRecord,
    number: int,
    marker: str = "",
) -> None:
    """Draw means of :func:`mean_curve` against ``places``, one for each, with a band of one standard deviation."""
    if not points:
        return
    _, means, deviations = zip(*points, strict=True)
    colour, dash = line_look(number)
    axes.plot(places, means, dash, marker=marker, color=colour, linewidth=1.3, label=plain(record.method))
    low, high = (
        [mean + sign * deviation for mean, deviation in zip(means, deviations, strict=True)] for sign in (-1, 1)
    )
    axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)


def _steps(result: Result, count: int) -> Sequence[int]:
    """Where the points of a curve are."""
    steps = result.curves.get(STEPS)
    return range(1, count + 1) if steps is None or not count else [int(step or 0) for step in steps]
