"""``powerpool bench publish``: finished records and their tables, losses included, in one folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powerpool.bench import plots, tables
from powerpool.bench.command import SUITES
from powerpool.bench.record import BenchRecord, load
from powerpool.bench.tables import Table
from powerpool.console import emit, print_line
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import make_folder, write_text
from powerpool.report.document import escaped

INTRODUCTION = """# Measured

Written by `powerpool bench publish` from the records beside this file; do not edit. Times are medians of
interleaved repetitions in one process, forward and backward together, after the answers agreed. How they are
measured, and their limits, is in [docs/speed.md](../../docs/speed.md)."""


@dataclass(frozen=True)
class PublishOptions:
    """Copy finished records of `powerpool bench` and write the tables of all of them, losses included.

    Args:
        source: folder with the records, SUITE.json
        out: folder that gets the records and README.md
    """

    source: Path = Path("runs/bench")
    out: Path = Path("results/bench")

    def __post_init__(self) -> None:
        if not self.source.is_dir():
            raise ArgumentError(f"source must be a folder with records of `powerpool bench` (got {self.source}).")


def run(options: PublishOptions) -> None:
    """Write the records and their tables."""
    paths = [options.source / f"{suite}.json" for suite in SUITES]
    records = [_load(path) for path in paths if path.exists()]
    if not records:
        raise RecordError(f"{options.source} holds no record: run `powerpool bench --out {options.source}` first.")
    for record in records:
        if not record.complete or record.options.quick:
            kind = "quick" if record.complete else "unfinished"
            raise RecordError(f"The record of {record.suite} is {kind}: run `powerpool bench {record.suite}` in full.")
    make_folder(options.out)
    for record in records:
        record.save(options.out / f"{record.suite}.json")
        if record.suite == "pools":
            plots.draw(record, options.out, formats=("svg",))
    published = [_load(path) for suite in SUITES if (path := options.out / f"{suite}.json").exists()]
    write_text(options.out / "README.md", markdown(published))
    names = [f"{record.suite}.json" for record in published]
    emit({"written": [options.out / name for name in ("README.md", *names)]})
    print_line(f"{options.out}: README.md and {', '.join(names)}")


def markdown(records: Sequence[BenchRecord]) -> str:
    """The text of README.md."""
    lines = [INTRODUCTION]
    for record in records:
        machine = escaped(tables.machine_line(record.environment))
        lines += ["", f"## {record.suite}", "", f"`powerpool bench {record.suite}`: {machine}."]
        for table in _tables_of(record):
            if table.rows:
                lines += ["", f"### {escaped(table.title)}", "", *table.as_markdown()]
        if record.suite == "pools":
            for stem, sweep, quantity in plots.list_plots(record):
                title = f"{quantity} against {plots.NAMES[sweep.against]}, {sweep.where}"
                lines += ["", f"![{escaped(title)}]({stem}.svg)"]
        wrong = [f"- {escaped(case.name)}: {escaped(case.error[:200])}" for case in record.cases if case.error]
        if wrong:
            lines += ["", "### Not timed: answers disagreed", "", *wrong]
    return "\n".join(lines) + "\n"


def _tables_of(record: BenchRecord) -> list[Table]:
    if record.suite == "pools":
        growth = tables.growth_table(record, tables.GROWING)
        return [tables.target_table(record), tables.pool_table(record), tables.loss_table(record), growth]
    if record.suite == "solvers":
        return [tables.selection_table(record)]
    if record.suite == "curves":
        return [tables.curve_table(record), tables.loss_table(record)]
    return [tables.target_table(record), tables.job_table(record)]


def _load(path: Path) -> BenchRecord:
    """Read the record of the suite that the file is named after; its suite becomes the name of another file."""
    record = load(path)
    if record.suite != path.stem:
        raise RecordError(f"{path} holds the suite {record.suite!r}: name the file after its suite.")
    return record
