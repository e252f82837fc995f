"""The tables of bench records, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from powerpool.bench.measure import Spread
from powerpool.bench.record import (
    GRAM,
    LOEWNER,
    LOSS,
    NEWTON_SCHULZ,
    OURS,
    TARGETS,
    BenchRecord,
    CaseRecord,
    Measured,
    find_losses,
)
from powerpool.console import cell
from powerpool.report.document import Bold, escaped
from powerpool.runs.environment import Environment

if TYPE_CHECKING:
    from rich.table import Table as RichTable

GROWING = (OURS, GRAM, "powerpool squaring", LOEWNER, NEWTON_SCHULZ, "form M")
"""The contenders whose growth is published."""
SHORT = {"batch": "B", "channels": "C", "locations": "N"}


@dataclass(frozen=True)
class Table:
    """Headings and rows of plain text. Names come from records: they are escaped when the table is shown."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Rows with a :class:`Bold` cell are red."""

    def as_rich(self) -> RichTable:
        """The table for a terminal; numbers are aligned at the right."""
        from rich.table import Table as RichTable

        table = RichTable(title=cell(self.title), title_justify="left")
        for number, heading in enumerate(self.headings):
            is_number = number > 0 and all(row[number][:1] in "0123456789-" for row in self.rows)
            table.add_column(cell(heading), justify="right" if is_number else "left")
        for row in self.rows:
            style = "red" if any(isinstance(text, Bold) for text in row) else None
            table.add_row(*map(cell, row), style=style)
        return table

    def as_markdown(self) -> list[str]:
        """The lines of the table in Markdown, without its title."""
        lines = [f"| {' | '.join(map(escaped, cells))} |" for cells in (self.headings, *self.rows)]
        return [lines[0], "|" + "---|" * len(self.headings), *lines[1:]]


def case_table(case: CaseRecord) -> Table:
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
    return Table(case.name, headings, rows)


def target_table(record: BenchRecord) -> Table:
    """Targets, met and missed."""
    rows = []
    for target in record.targets:
        sign = "at most" if "floor" in target.what else "at least"
        result = "met" if target.met else Bold("missed")
        rows.append((target.case, target.what, f"{sign} {target.wanted:g}", f"{target.measured:.3g}", result))
    return Table("Targets", ("case", "what", "wanted", "measured", "result"), rows)


def growth_table(record: BenchRecord, only: Collection[str] = ()) -> Table:
    """How the total time of contenders grows."""
    rows = []
    for fit in record.fits:
        if not only or fit.contender in only:
            fixed = " ".join(f"{SHORT.get(name, name)}{size}" for name, size in fit.fixed.items())
            numbers = (fit.exponent, fit.exponent_upper_half, fit.r2_logarithm)
            cells = ("" if number is None else f"{number:.2f}" for number in numbers)
            rows.append((fit.contender, fit.against, fixed, *cells))
    headings = ("contender", "against", "at", "exponent", "of the larger half", "R2 of a + b log2")
    return Table("Growth: time ~ size^exponent", headings, rows)


def selection_table(record: BenchRecord) -> Table:
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
    return Table("Solvers, ms", headings, rows)


def loss_table(record: BenchRecord) -> Table:
    """Where a competitor with the same answer is faster."""
    rows = [
        (case, ours.name, rival.name, f"{ours.total.median / rival.total.median:.2f}")
        for case, ours, rival in find_losses(record.cases)
    ]
    return Table(f"Losses: more than {LOSS:g} times slower", ("case", "ours", "faster", "times"), rows)


def pool_table(record: BenchRecord) -> Table:
    """The cases of the pools that have targets."""
    wanted = {target.case for target in record.targets}
    names = (OURS, LOEWNER, NEWTON_SCHULZ, "eigh autograd", "matrix_power autograd", "element-wise MaxExp")
    rows = []
    for case in record.cases:
        floor = case.floor
        if case.name in wanted and floor is not None:
            memory = [
                "" if found is None else f"{found.peak_bytes / floor.peak_bytes:.2f}"
                for found in (case.find(GRAM), case.find(NEWTON_SCHULZ))
            ]
            rows.append((case.name, _time(floor), *(_time(case.find(name)) for name in names), *memory))
    headings = ("case", "form M", *names, "memory of gram, x forming M", "of Newton-Schulz 5")
    return Table("Pools, ms (*: the answer or the gradient is off)", headings, rows)


def curve_table(record: BenchRecord) -> Table:
    """Every contender of the curves beside forming M."""
    rows = [
        (case.name, result.name, _time(result), "" if case.floor is None else ratio(result, case.floor), result.note)
        for case in record.cases
        for result in case.results
        if result.origin != "floor"
    ]
    return Table("Curves, ms (*: see the note)", ("case", "contender", "total", "x forming M", "note"), rows)


def job_table(record: BenchRecord) -> Table:
    """Whole jobs: training, episodes, extraction."""
    rows = [
        (case.name, result.name, _time(result), f"{result.peak_bytes / 2**20:.0f}")
        for case in record.cases
        for result in case.results
    ]
    return Table("Times, ms", ("case", "contender", "total", "peak MB"), rows)


def summary_table(record: BenchRecord) -> Table:
    """The targets of the pools in one table, as in the README of the project."""
    rows = []
    for target in TARGETS:
        for case in record.cases:
            ours, floor = case.find(OURS), case.floor
            if case.sizes == target.sizes and ours is not None and floor is not None:
                times = [
                    "" if rival is None else f"{rival.total.median / ours.total.median:.3g}x ({wanted:g})"
                    for rival, wanted in (
                        (case.find(LOEWNER), target.loewner),
                        (case.find(NEWTON_SCHULZ), target.newton_schulz),
                    )
                ]
                over = f"{ratio(ours, floor)} ({target.floor:g})"
                rows.append((f"{target.channels}, {target.locations}", _time(ours), over, *times))
    headings = ("C, N", "powerpool, ms", "times forming M", f"faster than {LOEWNER}", f"faster than {NEWTON_SCHULZ}")
    return Table("Pools", headings, rows)


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
