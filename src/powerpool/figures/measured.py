"""Figures of measurements: time against eta and C, accuracy against settings, Open MIC against the way."""

from __future__ import annotations

import math
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from powerpool.bench.plots import Sweep, sweeps
from powerpool.bench.record import BenchRecord
from powerpool.bench.report import machine_line
from powerpool.data.layouts import EXHIBITIONS, OPEN_MIC_PAIRS
from powerpool.figures.data import Axis, FigureData, Line, Panel
from powerpool.figures.sources import MissingRecordError, Sources
from powerpool.report.paper import paper_figure, way_and_shot
from powerpool.report.plots import WIDE
from powerpool.runs.compare import Summary, proportion_interval, summarize
from powerpool.runs.record import RunRecord

BENCH = "powerpool bench pools"
MATRICES = 1000
"""For which times are given, as in the paper."""
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
SETTINGS = {"beta": "beta", "alpha": "alpha", "eta_prime": "eta'", "eta": "eta"}
SWEEP_DATA = {"alpha": "fmd"}
"""The data set that the paper tries a setting on, where it is not Flower102."""
ACCURACY = Axis("accuracy", "%")
WILSON = "Bands: 95 % intervals of a share (Wilson). All values saw the same pictures: differences are surer than that."
WAYS = (5, 20, 90)


def timing_eta(sources: Sources) -> FigureData:
    """Forward and backward of spectral MaxExp against its exponent."""
    record = sources.bench("pools", BENCH)
    return _timing(record, "eta", AGAINST_ETA, Axis("eta", log=True), "Time against eta")


def timing_channels(sources: Sources) -> FigureData:
    """Forward and backward of poolings against the side of the matrix."""
    record = sources.bench("pools", BENCH)
    return _timing(record, "channels", AGAINST_CHANNELS, Axis("channels C", log=True), "Time against C")


def sensitivity(sources: Sources, setting: str) -> FigureData:
    """Accuracy on validation pictures against one setting, for every method and data set of which there is a record."""
    lines = []
    for record in sources.sweeps(setting, sweep_command(setting)):
        points = sorted((float(row[setting]), float(row["accuracy"])) for row in record["values"])
        x, y = _columns(points)
        interval = _share_intervals(y, record.get("pictures"))
        lines.append(Line(f"{record['method']} on {record['data']}", x, y, interval, measured=True))
    smallest, largest = (float(torch.cat([line.x for line in lines]).aminmax()[side]) for side in (0, 1))
    axis = Axis(SETTINGS[setting], log=smallest > 0 and largest >= WIDE * smallest)
    title = f"Accuracy against {SETTINGS[setting]}"
    note = WILSON if any(line.interval is not None for line in lines) else ""
    return FigureData(title, (Panel("validation pictures", axis, ACCURACY, tuple(lines)),), note)


def sweep_command(setting: str) -> str:
    """The command that makes the record of a sweep."""
    return f"powerpool sweep vision --data {SWEEP_DATA.get(setting, 'flower102')} --over {setting}"


def open_mic_pairs(sources: Sources) -> FigureData:
    """Protocol I: the mean over pairs of parts, of which one is trained on and the other tested on."""
    return _open_mic(sources, OPEN_MIC_PAIRS, "Open MIC, protocol I", "pairs")


def open_mic_exhibitions(sources: Sources) -> FigureData:
    """Protocol II: the mean over exhibitions, trained on source pictures and tested on target pictures."""
    return _open_mic(sources, EXHIBITIONS, "Open MIC, protocol II", "exhibitions")


def open_mic_command(problems: tuple[str, ...]) -> str:
    """The command that makes the records of a protocol.

    Example:
        >>> open_mic_command(("p1->p2", "shn"))
        "powerpool reproduce fewshot --data open_mic --problems 'p1->p2' shn --ways 5 20 90"
    """
    ways = " ".join(map(str, WAYS))
    return f"powerpool reproduce fewshot --data open_mic --problems {shlex.join(problems)} --ways {ways}"


def _timing(record: BenchRecord, against: str, contenders: Mapping[str, str], x: Axis, title: str) -> FigureData:
    y = Axis(f"time for {MATRICES} matrices", "s", log=True)
    for sweep in sweeps(record, against):  # the longest first
        forward, backward = (_times(sweep, against, contenders, name) for name in ("forward", "backward"))
        if forward:
            break
    else:
        raise MissingRecordError(
            f"the record of `{BENCH}` has no three cases that differ in {against} alone. Make it: {BENCH}"
        )
    panels = (Panel("forward pass", x, y, forward), Panel("backward pass", x, y, backward))
    note = f"With forming M; {sweep.where}; median and quartiles. {machine_line(record.environment)}"
    return FigureData(title, panels, note)


def _times(sweep: Sweep, against: str, contenders: Mapping[str, str], which: str) -> tuple[Line, ...]:
    points: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for case in sweep.cases:
        for name in contenders:
            result = case.find(name)
            if result is not None:
                spread = getattr(result, which)
                scale = MATRICES / case.sizes["batch"]
                times = (scale * spread.median, scale * spread.lower, scale * spread.upper)
                points[name].append((case.sizes[against], *times))
    lines = []
    for name, legend in contenders.items():
        if name in points:
            at, median, lower, upper = _columns(points[name])
            lines.append(Line(legend, at, median, (lower, upper), measured=True))
    return tuple(lines)


def _open_mic(sources: Sources, problems: tuple[str, ...], title: str, kind: str) -> FigureData:
    data = {f"open_mic-{problem.replace('->', '-to-')}" for problem in problems}
    groups: dict[str, dict[int, list[RunRecord]]] = defaultdict(lambda: defaultdict(list))
    for record in sources.runs(data, f"records of {title}", open_mic_command(problems)):
        shown = way_and_shot(record.protocol)
        if shown is not None and shown[1] == 1:
            groups[_method(record)][shown[0]].append(record)
    if not groups:
        raise MissingRecordError(f"no record of {title} has one support picture. Make it: {open_mic_command(problems)}")
    lines: list[Line] = []
    for name, by_way in sorted(groups.items()):
        ways = sorted(by_way)
        summaries = [summarize([record.mean for record in by_way[way]]) for way in ways]
        x, y = _columns([(float(way), found.mean) for way, found in zip(ways, summaries, strict=True)])
        lines.append(Line(name, x, y, _mean_intervals(summaries), measured=True))
        lines += _paper_points(name, [found[0] for _, found in sorted(by_way.items())])
    panel = Panel("1-shot", Axis("classes of an episode (way)"), ACCURACY, tuple(lines))
    return FigureData(title, (panel,), _counted(groups.values(), len(problems), kind))


def _counted(groups: Iterable[Mapping[int, list[RunRecord]]], every: int, kind: str) -> str:
    """How many records are behind a point, and whether all points are of the same problems."""
    members = [frozenset(record.data for record in found) for by_way in groups for found in by_way.values()]
    counts = sorted({len(found) for found in members})
    counted = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    same = "" if len(set(members)) == 1 else ", which are not the same for all points"
    bands = f" Bands: 95 % intervals of the mean over {kind}." if counts[-1] > 1 else ""
    return f"Each point is the mean over {counted} of {every} {kind}{same}.{bands}"


def _mean_intervals(summaries: Sequence[Summary]) -> tuple[Tensor, Tensor] | None:
    """Of means over problems; a point of one problem has none."""
    if all(found.interval is None for found in summaries):
        return None
    low, high = _columns([found.interval or (math.nan, math.nan) for found in summaries])
    return low, high


def _share_intervals(accuracy: Tensor, pictures: Any) -> tuple[Tensor, Tensor] | None:
    """Of shares in percent, where the record says of how many pictures they are."""
    if not isinstance(pictures, int) or isinstance(pictures, bool) or pictures < 1:
        return None
    ends = [proportion_interval(min(share, 100.0) / 100 * pictures, pictures) for share in accuracy.tolist()]
    low, high = _columns([(100 * lower, 100 * upper) for lower, upper in ends])
    return low, high


def _paper_points(name: str, records: list[RunRecord]) -> list[Line]:
    """What the paper has for the method, where it names numbers."""
    points = []
    for record in records:
        size = record.config.get("size")
        figure = paper_figure("fewshot", record.data, record.method, record.protocol, size=size)
        shown = way_and_shot(record.protocol)
        if figure is not None and shown is not None:
            points.append((float(shown[0]), figure.mean))
    if not points:
        return []
    x, y = _columns(points)
    return [Line(f"{name}, paper", x, y, joined=False, like=name)]


def _method(record: RunRecord) -> str:
    """Method, size of pictures, and whether the test is transductive: what makes a line."""
    size = f" {record.config['size']} px" if "size" in record.config else ""
    return f"{record.method}{size}{', transductive' if re.search('-transductive$', record.protocol) else ''}"


def _columns(points: Sequence[tuple[float, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(points, dtype=torch.float64).unbind(-1))
