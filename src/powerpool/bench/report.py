"""Tables of bench records, and plots of the pools: time against C, N and eta, memory against C."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from powerpool.bench.measure import Spread
from powerpool.bench.record import (
    GRAM,
    LOEWNER,
    LOSS,
    NEWTON_SCHULZ,
    OURS,
    SIZES,
    BenchRecord,
    CaseRecord,
    Measured,
    Sweep,
    find_losses,
    find_sweeps,
)
from powerpool.console import Bold, TextTable
from powerpool.files import csv_text, write_text
from powerpool.report import drawing
from powerpool.runs.environment import Environment

if TYPE_CHECKING:
    from matplotlib.figure import Figure

UNITS = {"time": "total time of forward and backward (ms)", "memory": "peak memory of both passes (MB)"}
STYLES = {"powerpool": "-", "competitor": "--", "floor": ":"}
FORMATS = ("png", "svg", "csv")
GROWING = (OURS, GRAM, "powerpool squaring", LOEWNER, NEWTON_SCHULZ, "form M")
"""The contenders whose growth is published."""
SHORT = {"batch": "B", "channels": "C", "locations": "N"}


def make_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> TextTable:
    """A table whose columns of numbers are aligned at the right."""
    text = [
        heading
        for place, heading in enumerate(headings)
        if place == 0 or any(row[place][:1] not in "0123456789-" for row in rows)
    ]
    return TextTable(title, headings, rows, text)


def case_table(case: CaseRecord) -> TextTable:
    """Times and memory of every contender of one case."""
    headings = ("contender", "forward ms", "backward ms", "total ms (quartiles)", "x floor", "peak MB", "note")
    rows = [
        (
            result.name,
            milliseconds(result.forward.median),
            milliseconds(result.backward.median),
            _with_quartiles(result.total),
            "" if case.floor is None else ratio(result, case.floor),
            f"{result.peak_bytes / 2**20:.2f}",
            result.note,
        )
        for result in case.results
    ]
    rows += [(skipped.name, "-", "-", "-", "-", "-", skipped.reason) for skipped in case.skipped]
    return make_table(case.name, headings, rows)


def target_table(record: BenchRecord) -> TextTable:
    """Targets, met and missed."""
    rows = []
    for target in record.targets:
        sign = "at least" if "faster" in target.what else "at most"
        result = "met" if target.met else Bold("missed")
        rows.append((target.case, target.what, f"{sign} {target.wanted:g}", f"{target.measured:.3g}", result))
    return make_table("Targets", ("case", "what", "wanted", "measured", "result"), rows)


def growth_table(record: BenchRecord, only: Collection[str] = ()) -> TextTable:
    """How the total time of contenders grows."""
    rows = []
    for fit in record.fits:
        if not only or fit.contender in only:
            fixed = " ".join(f"{SHORT.get(name, name)}{size}" for name, size in fit.fixed.items())
            numbers = (fit.exponent, fit.exponent_upper_half, fit.r2_logarithm)
            cells = ("" if number is None else f"{number:.2f}" for number in numbers)
            rows.append((fit.contender, fit.against, fixed, *cells))
    headings = ("contender", "against", "at", "exponent", "of the larger half", "R2 of a + b log2")
    return make_table("Growth: time ~ size^exponent", headings, rows)


def selection_table(record: BenchRecord) -> TextTable:
    """The time of each solver, the choice of ``select_solver``, and operations, which any device has to do."""
    solvers = list(dict.fromkeys(name for row in record.selection for name in row.seconds))
    rows = []
    for row in record.selection:
        times = [milliseconds(row.seconds[name]) if name in row.seconds else "" for name in solvers]
        work = ", ".join(
            f"{name} {rounded(flops / 1e6)}"
            + (f" + {row.decompositions[name]} eigh" if row.decompositions[name] else "")
            for name, flops in row.product_flops.items()
        )
        where = "matrix" if row.locations is None else str(row.locations)
        times_best = f"{row.times_best:.2f}"
        rows.append((row.curve, str(row.channels), where, *times, row.chosen, times_best, work))
    headings = ("curve", "C", "N", *solvers, "chosen", "x best", "products, Mflop")
    return make_table("Solvers, ms", headings, rows)


def loss_table(record: BenchRecord) -> TextTable:
    """Where a competitor with the same answer is faster."""
    rows = [
        (case, ours.name, rival.name, f"{ours.total.median / rival.total.median:.2f}")
        for case, ours, rival in find_losses(record.cases)
    ]
    return make_table(f"Losses: more than {LOSS:g} times slower", ("case", "ours", "faster", "times"), rows)


def pool_table(record: BenchRecord) -> TextTable:
    """The cases of the pools that have targets."""
    wanted = {target.case for target in record.targets}
    names = (OURS, LOEWNER, NEWTON_SCHULZ, "eigh autograd", "matrix_power autograd", "element-wise MaxExp")
    rows = []
    for case in record.cases:
        floor = case.floor
        if case.name in wanted and floor is not None and case.find(OURS) is not None:
            memory = [
                "" if found is None else f"{found.peak_bytes / floor.peak_bytes:.2f}"
                for found in (case.find(GRAM), case.find(NEWTON_SCHULZ))
            ]
            rows.append((case.name, _time(floor), *(_time(case.find(name)) for name in names), *memory))
    headings = ("case", "form M", *names, "memory of gram, x forming M", "of Newton-Schulz 5")
    return make_table("Pools, ms (*: the answer or the gradient is off)", headings, rows)


def curve_table(record: BenchRecord) -> TextTable:
    """Every contender of the curves beside forming M."""
    rows = [
        (case.name, result.name, _time(result), "" if case.floor is None else ratio(result, case.floor), result.note)
        for case in record.cases
        for result in case.results
        if result.origin != "floor"
    ]
    return make_table("Curves, ms (*: see the note)", ("case", "contender", "total", "x forming M", "note"), rows)


def job_table(record: BenchRecord) -> TextTable:
    """Whole jobs: training, episodes, extraction."""
    rows = [
        (case.name, result.name, _time(result), f"{result.peak_bytes / 2**20:.0f}")
        for case in record.cases
        for result in case.results
    ]
    return make_table("Times, ms", ("case", "contender", "total", "peak MB"), rows)


def machine_line(environment: Environment) -> str:
    """The machine, versions and date of a record, in one line."""
    commit = "no commit" if environment.commit is None else environment.commit[:10]
    changed = " with changes" if environment.dirty else ""
    return (
        f"{environment.cuda or environment.processor}, {environment.threads} threads, torch {environment.torch}, "
        f"powerpool {environment.powerpool}, {commit}{changed}, {str(environment.time)[:10]}"
    )


def milliseconds(seconds: float) -> str:
    """Milliseconds with three digits."""
    return rounded(1e3 * seconds)


def rounded(value: float) -> str:
    """A number with three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def ratio(result: Measured, floor: Measured) -> str:
    """The time of a contender as a multiple of another one's."""
    return f"{result.total.median / floor.total.median:.2f}"


def _time(result: Measured | None) -> str:
    return "" if result is None else milliseconds(result.total.median) + (" *" if result.note else "")


def _with_quartiles(spread: Spread) -> str:
    return f"{milliseconds(spread.median)} ({milliseconds(spread.lower)}-{milliseconds(spread.upper)})"


# ---- plots -----------------------------------------------------------------------------------------------------------


def list_plots(record: BenchRecord) -> list[tuple[str, Sweep, str]]:
    """File name, sweep and quantity ("time" or "memory") of every plot that the record has the data for."""
    found = []
    for against in SIZES:
        for number, sweep in enumerate(find_sweeps(record.cases, against)):
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
        axes.set(xscale="log", yscale="log", xlabel=SIZES[sweep.against], ylabel=UNITS[quantity])
        axes.set_xticks([case.sizes[sweep.against] for case in sweep.cases])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.set_title(drawing.plain(f"Spectral MaxExp against {SIZES[sweep.against]}: {quantity} ({sweep.where})"))
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
        write_text(stem.with_suffix(".csv"), csv_text(rows))
    return written


def _shown(result: Measured, quantity: str) -> Spread:
    """Milliseconds, or megabytes."""
    if quantity == "time":
        return Spread(1e3 * result.total.median, 1e3 * result.total.lower, 1e3 * result.total.upper)
    return Spread(*(result.peak_bytes / 2**20,) * 3)
