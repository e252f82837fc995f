"""Figures of measurements: time against eta and C, accuracy against settings, Open MIC against the way."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from powerpool.bench.record import Sweep, find_sweeps
from powerpool.bench.report import machine_line
from powerpool.data.layouts import EXHIBITIONS, OPEN_MIC_PAIRS
from powerpool.figures.data import Axis, FigureData, Line, MissingRecordError, Panel, Sources
from powerpool.report.paper import paper_figure, way_and_shot
from powerpool.runs.compare import Summary, proportion_interval, summarize
from powerpool.runs.record import RunRecord

BENCH = "powerpool bench pools"
MATRICES = 1000
"""Number of matrices that times are given for, as in the paper."""
AGAINST_ETA = {
    "powerpool squaring": "MaxExp(F), squaring",
    "powerpool gram": "MaxExp, gram",
    "powerpool eigen": "MaxExp, eigen",
    "matrix_power autograd": "matrix_power, autograd",
}
AGAINST_CHANNELS = {
    "powerpool squaring": "MaxExp(F), squaring",
    "powerpool auto": "MaxExp, auto",
    "Newton-Schulz 5": "Newton-Schulz, 5 iterations",
    "Newton-Schulz 20": "Newton-Schulz, 20 iterations",
    "GSPN (Algorithm 1)": "GSPN, Algorithm 1",
    "powerpool element-wise": "element-wise MaxExp",
}
"""Contenders by their names in records, and in the legend."""
SETTINGS = {"beta": "beta", "alpha": "alpha", "sigme_eta": "eta'", "eta": "eta"}
SWEEP_DATA = {"alpha": "fmd"}
"""The data set on which the paper varies a setting, if it is not Flower102."""
ACCURACY = Axis("accuracy", "%")
WIDE = 30
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
WILSON = "Bands: 95 % intervals of a proportion (Wilson). All values saw the same images: differences are more certain."
WAYS = (5, 20, 90)


def timing_eta(sources: Sources) -> FigureData:
    """Forward and backward time of spectral MaxExp against its exponent."""
    return _timing(sources, "eta", AGAINST_ETA, Axis("eta", log=True), "Time against eta")


def timing_channels(sources: Sources) -> FigureData:
    """Forward and backward time of poolings against the size of the matrix."""
    return _timing(sources, "channels", AGAINST_CHANNELS, Axis("channels C", log=True), "Time against C")


def sensitivity(sources: Sources, setting: str) -> FigureData:
    """Accuracy on validation images against one setting, for every method and data set with a record."""
    lines = []
    for record in sources.sweeps(setting, sweep_command(setting)):
        x, y = _columns(sorted((point.value, point.accuracy) for point in record.points))
        interval = None if record.images is None else _proportion_intervals(y, record.images)
        lines.append(Line(f"{record.method} on {record.data}", x, y, interval, measured=True))
    smallest, largest = (float(end) for end in torch.cat([line.x for line in lines]).aminmax())
    axis = Axis(SETTINGS[setting], log=smallest > 0 and largest >= WIDE * smallest)
    note = WILSON if any(line.interval is not None for line in lines) else ""
    panel = Panel("validation images", axis, ACCURACY, tuple(lines))
    return FigureData(f"Accuracy against {SETTINGS[setting]}", (panel,), note)


def sweep_command(setting: str) -> str:
    """The command that makes the record of a sweep."""
    return f"powerpool sweep vision --data {SWEEP_DATA.get(setting, 'flower102')} --over {setting}"


def open_mic_pairs(sources: Sources) -> FigureData:
    """Protocol I: the mean over pairs of parts, one for training and the other for testing."""
    return _open_mic(sources, OPEN_MIC_PAIRS, "Open MIC, protocol I", "pairs")


def open_mic_exhibitions(sources: Sources) -> FigureData:
    """Protocol II: the mean over exhibitions, trained on source images and tested on target images."""
    return _open_mic(sources, EXHIBITIONS, "Open MIC, protocol II", "exhibitions")


def open_mic_command(problems: tuple[str, ...]) -> str:
    """The command that makes the records of a protocol.

    Example:
        >>> open_mic_command(("p1->p2", "shn"))
        "powerpool reproduce fewshot --data open_mic --problems 'p1->p2' shn --ways 5 20 90"
    """
    ways = " ".join(map(str, WAYS))
    return f"powerpool reproduce fewshot --data open_mic --problems {shlex.join(problems)} --ways {ways}"


def _timing(sources: Sources, against: str, contenders: Mapping[str, str], x: Axis, title: str) -> FigureData:
    record = sources.bench("pools", BENCH)
    y = Axis(f"time for {MATRICES} matrices", "s", log=True)
    for sweep in find_sweeps(record.cases, against):  # the longest first
        forward, backward = (_times(sweep, contenders, name) for name in ("forward", "backward"))
        if forward:
            panels = (Panel("forward pass", x, y, forward), Panel("backward pass", x, y, backward))
            note = f"With forming M; {sweep.where}; median and quartiles. {machine_line(record.environment)}"
            return FigureData(title, panels, note)
    raise MissingRecordError(
        f"the record of `{BENCH}` has no three cases that differ in {against} alone. Make it: {BENCH}"
    )


def _times(sweep: Sweep, contenders: Mapping[str, str], which: str) -> tuple[Line, ...]:
    lines = []
    for name, legend in contenders.items():
        points = []
        for case in sweep.cases:
            result = case.find(name)
            if result is not None:
                spread, scale = getattr(result, which), MATRICES / case.sizes["batch"]
                times = (scale * spread.median, scale * spread.lower, scale * spread.upper)
                points.append((case.sizes[sweep.against], *times))
        if points:
            at, median, lower, upper = _columns(points)
            lines.append(Line(legend, at, median, (lower, upper), measured=True))
    return tuple(lines)


def _open_mic(sources: Sources, problems: tuple[str, ...], title: str, kind: str) -> FigureData:
    data = {f"open_mic-{problem.replace('->', '-to-')}" for problem in problems}
    groups: dict[str, dict[int, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for record in sources.runs(data, f"records of {title}", open_mic_command(problems)):
        shown = way_and_shot(record.protocol)
        if shown is not None and shown[1] == 1:
            groups[_line_name(record)][shown[0]].append(record)
    if not groups:
        raise MissingRecordError(f"no record of {title} has one support image. Make it: {open_mic_command(problems)}")
    lines: list[Line] = []
    for name, by_way in sorted(groups.items()):
        ways = sorted(by_way)
        summaries = [summarize([record.mean for record in by_way[way]]) for way in ways]
        x, y = _columns([(float(way), found.mean) for way, found in zip(ways, summaries, strict=True)])
        lines.append(Line(name, x, y, _mean_intervals(summaries), measured=True))
        lines += _paper_points(name, {way: by_way[way][0] for way in ways})
    panel = Panel("1-shot", Axis("classes of an episode (way)"), ACCURACY, tuple(lines))
    return FigureData(title, (panel,), _describe_points(groups.values(), len(problems), kind))


def _describe_points(groups: Iterable[Mapping[int, list[RunRecord]]], total: int, kind: str) -> str:
    """How many records a point is the mean of, and whether all points have the same problems."""
    members = [frozenset(record.data for record in found) for by_way in groups for found in by_way.values()]
    counts = sorted({len(found) for found in members})
    number = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    same = "" if len(set(members)) == 1 else ", which are not the same for all points"
    bands = f" Bands: 95 % intervals of the mean over {kind}." if counts[-1] > 1 else ""
    return f"Each point is the mean over {number} of {total} {kind}{same}.{bands}"


def _mean_intervals(summaries: Sequence[Summary]) -> tuple[Tensor, Tensor] | None:
    """The intervals of means; NaN for a point of one problem."""
    if all(found.interval is None for found in summaries):
        return None
    low, high = _columns([found.interval or (math.nan, math.nan) for found in summaries])
    return low, high


def _proportion_intervals(accuracy: Tensor, images: int) -> tuple[Tensor, Tensor]:
    ends = [proportion_interval(min(share, 100.0) / 100 * images, images) for share in accuracy.tolist()]
    low, high = _columns([(100 * lower, 100 * upper) for lower, upper in ends])
    return low, high


def _paper_points(name: str, records: Mapping[int, RunRecord]) -> list[Line]:
    """The numbers of the paper for the method, by way, if it prints any."""
    points = []
    for way, record in records.items():
        size = record.config.get("size")
        figure = paper_figure("fewshot", record.data, record.method, record.protocol, size=size)
        if figure is not None:
            points.append((float(way), figure.mean))
    if not points:
        return []
    x, y = _columns(points)
    return [Line(f"{name}, paper", x, y, joined=False, like=name)]


def _line_name(record: RunRecord) -> str:
    """Method, size of images, and whether the test is transductive: what makes a line."""
    size = f" {record.config['size']} px" if "size" in record.config else ""
    return f"{record.method}{size}{', transductive' if record.protocol.endswith('-transductive') else ''}"


def _columns(points: Sequence[tuple[float, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(points, dtype=torch.float64).unbind(-1))
