"""Plots of the pools: time against C, N and eta, memory against C."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from powerpool.bench.measure import Spread
from powerpool.bench.record import BenchRecord, CaseRecord, Measured
from powerpool.bench.tables import machine_line
from powerpool.report import drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"channels": "channels C", "locations": "locations N", "eta": "eta"}
UNITS = {"time": "total time of forward and backward (ms)", "memory": "peak memory of both passes (MB)"}
STYLES = {"powerpool": "-", "competitor": "--", "floor": ":"}
LEAST_CASES = 3
FORMATS = ("png", "svg", "csv")


@dataclass(frozen=True)
class Sweep:
    """Cases that differ in one size only."""

    against: str
    fixed: dict[str, int]
    cases: list[CaseRecord]

    @property
    def where(self) -> str:
        """The fixed sizes, as text."""
        return ", ".join(f"{NAMES.get(name, name).split()[-1]} = {size}" for name, size in self.fixed.items())


def sweeps(record: BenchRecord, against: str) -> list[Sweep]:
    """Every sweep over one size in the record, the longest first."""
    groups: dict[tuple[tuple[str, int], ...], list[CaseRecord]] = defaultdict(list)
    for case in record.cases:
        if against in case.sizes and not case.error:
            fixed = tuple((name, size) for name, size in case.sizes.items() if name != against)
            groups[fixed].append(case)
    found = [
        Sweep(against, dict(fixed), sorted(cases, key=lambda case: case.sizes[against]))
        for fixed, cases in groups.items()
        if len(cases) >= LEAST_CASES
    ]
    return sorted(found, key=lambda sweep: -len(sweep.cases))


def list_plots(record: BenchRecord) -> list[tuple[str, Sweep, str]]:
    """File name, sweep and quantity ("time" or "memory") of every plot that the record has the data for."""
    found = []
    for against in NAMES:
        for number, sweep in enumerate(sweeps(record, against)):
            suffix = "" if number == 0 else f"-{number + 1}"
            found.append((f"time-against-{against}{suffix}", sweep, "time"))
            if against == "channels":
                found.append((f"memory-against-{against}{suffix}", sweep, "memory"))
    return found


def draw(record: BenchRecord, out: str | Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write every plot in all formats, and return the files."""
    written: list[Path] = []
    for stem, sweep, quantity in list_plots(record):
        written += _plot(record, sweep, Path(out) / stem, quantity, formats)
    return written


def _plot(record: BenchRecord, sweep: Sweep, stem: Path, quantity: str, formats: Sequence[str]) -> list[Path]:
    lines: dict[tuple[str, str], list[tuple[int, Spread]]] = defaultdict(list)
    for case in sweep.cases:
        for result in case.results:
            lines[result.name, result.origin].append((case.sizes[sweep.against], _shown(result, quantity)))
    # The legend in the order of the lines at their right end, the highest first.
    series = sorted(lines.items(), key=lambda line: -line[1][-1][1].median)

    def fill(figure: Figure) -> None:
        from matplotlib import colormaps

        axes = figure.add_subplot()
        for number, ((name, origin), points) in enumerate(series):
            color, width = colormaps["tab20"](number % 20), 2.2 if origin == "powerpool" else 1.2
            x, spreads = zip(*points, strict=True)
            y, label = [spread.median for spread in spreads], drawing.plain(name)
            axes.plot(x, y, STYLES[origin], label=label, color=color, marker="o", markersize=3, linewidth=width)
            if quantity == "time":
                lower, upper = [spread.lower for spread in spreads], [spread.upper for spread in spreads]
                axes.fill_between(x, lower, upper, color=color, alpha=0.2, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel=NAMES[sweep.against], ylabel=UNITS[quantity])
        axes.set_xticks([case.sizes[sweep.against] for case in sweep.cases])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.set_title(drawing.plain(f"Spectral MaxExp against {NAMES[sweep.against]}: {quantity} ({sweep.where})"))
        figure.legend(loc="outside right upper", fontsize="small")
        figure.supxlabel(drawing.plain(machine_line(record.environment)), fontsize="x-small")

    written = [stem.with_suffix(f".{name}") for name in formats]
    images = [path for path in written if path.suffix != ".csv"]
    if images:
        drawing.save(fill, images, (9, 5.5), salt=stem.name)
    if "csv" in formats:
        rows = [
            {sweep.against: at, "contender": name, "origin": origin, **asdict(spread)}
            for (name, origin), points in series
            for at, spread in points
        ]
        drawing.write_rows(stem.with_suffix(".csv"), rows)
    return written


def _shown(result: Measured, quantity: str) -> Spread:
    """Milliseconds, or megabytes."""
    if quantity == "time":
        return Spread(1e3 * result.total.median, 1e3 * result.total.lower, 1e3 * result.total.upper)
    return Spread(*(result.peak_bytes / 2**20,) * 3)
