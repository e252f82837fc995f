"""The measurements of the pools as pictures: time against C, N and eta, memory against C."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerpool.bench import report
from powerpool.bench.record import BenchRecord, CaseRecord
from powerpool.report import drawing as plotting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"channels": "channels C", "locations": "locations N", "eta": "eta"}


@dataclass(frozen=True)
class Sweep:
    """Cases that differ in one size only."""

    against: str
    fixed: dict[str, int]
    cases: list[CaseRecord]

    @property
    def where(self) -> str:
        """The sizes that stay, as text."""
        return ", ".join(f"{NAMES.get(name, name).split()[-1]} = {size}" for name, size in self.fixed.items())


def sweeps(record: BenchRecord, against: str, least: int = 3) -> list[Sweep]:
    """Every sweep over one size in the record, the longest first."""
    groups: dict[tuple[tuple[str, int], ...], list[CaseRecord]] = defaultdict(list)
    for case in record.cases:
        if against in case.sizes and not case.error:
            fixed = tuple((name, size) for name, size in case.sizes.items() if name != against)
            groups[fixed].append(case)
    found = [
        Sweep(against, dict(fixed), sorted(cases, key=lambda case: case.sizes[against]))
        for fixed, cases in groups.items()
        if len(cases) >= least
    ]
    return sorted(found, key=lambda sweep: -len(sweep.cases))


FORMATS = ("png", "svg", "csv")


def draw(record: BenchRecord, out: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write every plot that the record has the data for, in all formats, and return the files."""
    written: list[Path] = []
    for stem, sweep, quantity in pictures(record):
        written += _plot(record, sweep, Path(out) / stem, quantity, formats)
    return written


def pictures(record: BenchRecord) -> list[tuple[str, Sweep, str]]:
    """File name, sweep and quantity ("time" or "memory") of every plot that the record has the data for."""
    found = []
    for against in NAMES:
        for number, sweep in enumerate(sweeps(record, against)):
            suffix = "" if number == 0 else f"-{number + 1}"
            found.append((f"time-against-{against}{suffix}", sweep, "time"))
            if against == "channels":
                found.append((f"memory-against-{against}{suffix}", sweep, "memory"))
    return found


def _plot(record: BenchRecord, sweep: Sweep, stem: Path, quantity: str, formats: Sequence[str]) -> list[Path]:
    # The legend in the order of the lines at their right end, the highest first.
    series = sorted(_series(sweep, quantity), key=lambda line: -line[2][-1][1])
    rows: list[dict[str, Any]] = [
        {sweep.against: at, "contender": name, "origin": origin, "median": value, "lower": lower, "upper": upper}
        for name, origin, points in series
        for at, value, lower, upper in points
    ]

    def draw(figure: Figure) -> None:
        from matplotlib import colormaps

        axes = figure.add_subplot()
        for number, (name, origin, points) in enumerate(series):
            color = colormaps["tab20"](number % 20)
            style = {"powerpool": "-", "competitor": "--", "floor": ":"}[origin]
            x, y, low, high = zip(*points, strict=True)
            width = 2.2 if origin == "powerpool" else 1.2
            axes.plot(x, y, style, label=plotting.plain(name), color=color, marker="o", markersize=3, linewidth=width)
            if quantity == "time":
                axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
        unit = "total time of forward and backward (ms)" if quantity == "time" else "peak memory of both passes (MB)"
        axes.set(xscale="log", yscale="log", xlabel=NAMES[sweep.against], ylabel=unit)
        axes.set_xticks([case.sizes[sweep.against] for case in sweep.cases])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.set_title(plotting.plain(f"Spectral MaxExp against {NAMES[sweep.against]}: {quantity} ({sweep.where})"))
        figure.legend(loc="outside right upper", fontsize="small")
        figure.supxlabel(plotting.plain(report.machine_line(record.environment)), fontsize="x-small")

    written = [stem.with_suffix(f".{name}") for name in formats]
    pictures = [path for path in written if path.suffix != ".csv"]
    if pictures:
        plotting.save(draw, pictures, (9, 5.5), salt=stem.name)
    if "csv" in formats:
        plotting.write_rows(stem.with_suffix(".csv"), rows)
    return written


def _series(sweep: Sweep, quantity: str) -> list[tuple[str, str, list[tuple[float, float, float, float]]]]:
    """Name, origin and points (size, value, lower, upper) of every contender; ms or MB."""
    points: dict[tuple[str, str], list[tuple[float, float, float, float]]] = defaultdict(list)
    for case in sweep.cases:
        for result in case.results:
            at = case.sizes[sweep.against]
            if quantity == "time":
                values = (1e3 * result.total.median, 1e3 * result.total.lower, 1e3 * result.total.upper)
            else:
                values = (result.peak_bytes / 2**20,) * 3
            points[(result.name, result.origin)].append((at, *values))
    return [(name, origin, found) for (name, origin), found in points.items()]
