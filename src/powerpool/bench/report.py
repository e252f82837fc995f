"""The tables that a bench run prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from powerpool.bench.record import BenchRecord, CaseRecord
from powerpool.bench.timing import Spread
from powerpool.console import cell

if TYPE_CHECKING:
    from rich.table import Table

SHORT = {"batch": "B", "channels": "C", "locations": "N"}


def case_table(case: CaseRecord) -> Table:
    """Times and memory of every contender of one case."""
    from rich.table import Table

    table = Table(title=cell(case.name), title_justify="left")
    table.add_column("contender", no_wrap=True)
    for heading in ("forward ms", "backward ms", "total ms (quartiles)", "x floor", "peak MB"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("note")
    floor = case.floor
    for result in case.results:
        ratio = "" if floor is None else f"{result.total.median / floor.total.median:.2f}"
        style = "bold" if result.origin == "powerpool" else None
        table.add_row(
            cell(result.name),
            _milliseconds(result.forward.median),
            _milliseconds(result.backward.median),
            _with_quartiles(result.total),
            ratio,
            f"{result.peak_bytes / 2**20:.2f}",
            cell(result.note),
            style=style,
        )
    for skipped in case.skipped:
        table.add_row(cell(skipped.name), "-", "-", "-", "-", "-", cell(skipped.reason), style="dim")
    return table


def target_table(record: BenchRecord) -> Table:
    """Wanted and measured, with misses shown as misses."""
    from rich.table import Table

    met = sum(target["met"] for target in record.targets)
    table = Table(title=f"Targets: {met} of {len(record.targets)} met", title_justify="left")
    for heading in ("case", "what"):
        table.add_column(heading)
    for heading in ("wanted", "measured"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for target in record.targets:
        sign = "<=" if "floor" in target["what"] else ">="
        table.add_row(
            cell(target["case"]),
            cell(target["what"]),
            f"{sign} {target['wanted']:g}",
            f"{target['measured']:.3g}",
            "met" if target["met"] else "[red]missed[/red]",
        )
    return table


def fit_table(record: BenchRecord) -> Table:
    """How the cost of our contenders grows."""
    from rich.table import Table

    table = Table(title="Growth of total time: exponent of size^exponent", title_justify="left")
    for heading in ("contender", "against", "at"):
        table.add_column(heading)
    for heading in ("exponent", "upper half", "R2 of a + b log2"):
        table.add_column(heading, justify="right")
    for fit in record.fits:
        fixed = " ".join(f"{SHORT.get(name, name)}{size}" for name, size in fit["fixed"].items())
        cells = (number(fit[name]) for name in ("exponent", "exponent_upper_half", "r2_logarithm"))
        table.add_row(cell(fit["contender"]), cell(fit["against"]), cell(fixed), *cells)
    return table


def selection_table(record: BenchRecord) -> Table:
    """What every solver took, and what ``auto`` would have."""
    from rich.table import Table

    table = Table(title="Solvers: total ms, and the choice of select_solver", title_justify="left")
    for heading in ("curve", "C", "N"):
        table.add_column(heading)
    solvers = list(dict.fromkeys(name for row in record.selection for name in row["seconds"]))
    for heading in (*solvers, "chosen", "x best"):
        table.add_column(cell(heading), justify="right")
    for row in record.selection:
        times = [_milliseconds(row["seconds"][name]) if name in row["seconds"] else "-" for name in solvers]
        where = "matrix" if row["locations"] is None else str(row["locations"])
        ratio = f"{row['times_best']:.2f}"
        shown = f"[red]{ratio}[/red]" if row["times_best"] > 1.5 else ratio
        table.add_row(cell(row["curve"]), str(row["channels"]), cell(where), *times, cell(row["chosen"]), shown)
    return table


def machine_line(environment: dict[str, Any]) -> str:
    """One line that says where the numbers come from."""
    commit = "no commit" if environment["commit"] is None else environment["commit"][:10]
    changed = " with changes" if environment["dirty"] else ""
    return (
        f"{environment['cuda'] or environment['processor']}, {environment['threads']} threads, "
        f"torch {environment['torch']}, powerpool {environment['powerpool']}, {commit}{changed}, "
        f"{environment['time'][:10]}"
    )


def _milliseconds(seconds: float) -> str:
    value = 1e3 * seconds
    return f"{value:.3f}" if value < 10 else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def _with_quartiles(spread: Spread) -> str:
    return f"{_milliseconds(spread.median)} ({_milliseconds(spread.lower)}-{_milliseconds(spread.upper)})"


def number(value: float | None) -> str:
    """Two decimals, or nothing."""
    return "" if value is None else f"{value:.2f}"
