"""Commands on finished records: ``powerpool bench compare OLD NEW`` and ``powerpool bench publish``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from powerpool.bench import report
from powerpool.bench.measure import Spread
from powerpool.bench.record import SIZES, SUITES, BenchRecord, CaseRecord, load
from powerpool.console import Bold, TextTable, emit, print_line, print_table
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import make_folder, write_text
from powerpool.report.tables import Table, escaped

Verdict = Literal["wrong", "slower", "missing", "faster", "new", "same"]
ORDER = ("wrong", "slower", "missing", "faster", "new")
MEANING = {"slower": "got slower", "missing": "missing", "wrong": "wrong: the answers of the case disagreed"}
Unit = Literal["x floor", "ms", ""]
INTRODUCTION = """# Measured

Written by `powerpool bench publish` from the records beside this file; do not edit. Times are medians of
interleaved repetitions in one process, forward and backward together, after the answers agreed. How they are
measured, and their limits, is in [docs/speed.md](../../docs/speed.md)."""


# ---- compare ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CompareOptions:
    """Compare two records of `powerpool bench` and list what got slower; exit code 1 if anything of powerpool did.

    Args:
        old: the record to compare with
        new: the record in question
        threshold: how many times the old time counts as slower, if the quartiles do not overlap either
        absolute: compare seconds, not times relative to forming M in the same case; only sensible on one quiet machine
    """

    old: Path
    new: Path
    threshold: float = 1.25
    absolute: bool = False

    def __post_init__(self) -> None:
        if not self.threshold > 1:
            raise ArgumentError(f"threshold must be above 1 (got {self.threshold}): 1.25 is a quarter slower.")


@dataclass(frozen=True)
class Change:
    """One contender in both records; a whole case has no origin."""

    case: str
    contender: str
    origin: str
    unit: Unit
    old: float | None
    new: float | None
    verdict: Verdict

    @property
    def is_regression(self) -> bool:
        """Whether it counts against the library: the floor and the competitors do not."""
        return self.verdict in MEANING and self.origin in ("powerpool", "")


def run_compare(options: CompareOptions) -> int:
    """Print what changed; return 1 if something of powerpool got slower."""
    old, new = load(options.old), load(options.new)
    changes = compare(old, new, options.threshold, options.absolute)
    found = [{**asdict(change), "is_regression": change.is_regression} for change in changes]
    worse = [change for change in changes if change.is_regression]
    emit({"regressions": len(worse), "changes": found})
    table = change_table(changes, options.threshold)
    if table.rows:
        print_table(table)
    same = sum(change.verdict == "same" for change in changes)
    print_line(f"{same} of {len(changes)} are the same. 'x floor' is relative to forming M in the same case and run.")
    for fact in ("processor", "torch"):
        was, now = getattr(old.environment, fact), getattr(new.environment, fact)
        if was != now:
            print_line(f"Not the same {fact}: {was}, now {now}.")
    for verdict, meaning in MEANING.items():
        count = sum(change.verdict == verdict for change in worse)
        if count:
            print_line(f"{count} of powerpool {meaning}.")
    if not worse:
        print_line("Nothing of powerpool got slower.")
    return 1 if worse else 0


def compare(old: BenchRecord, new: BenchRecord, threshold: float = 1.25, absolute: bool = False) -> list[Change]:
    """Compare case by case, contender by contender.

    If both cases have a floor, a time is divided by that of the floor in the same run: a busy machine slows down both.
    Slower means that the medians differ by more than ``threshold`` and that the quartiles, those of the floor included,
    do not overlap.
    """
    if old.suite != new.suite:
        raise RecordError(f"The records are of different suites, {old.suite!r} and {new.suite!r}.")
    changed = [name for name in ("device", "threads") if getattr(old.options, name) != getattr(new.options, name)]
    if changed:
        raise RecordError(f"The records differ in {' and '.join(changed)}: their times cannot be compared.")
    if not new.complete:
        raise RecordError("The new record is unfinished: finish it with `powerpool bench --resume` before comparing.")
    before = {case.name: case for case in old.cases if not case.error}
    if not before.keys() & {case.name for case in new.cases}:
        raise RecordError(
            f"The records of {old.suite!r} have no case in common (was one of them made with --quick?): run the same "
            "suite with the same options."
        )
    changes, seen = [], set()
    for case in new.cases:
        seen.add(case.name)
        if case.error:
            changes.append(_whole_case(case.name, "wrong"))
        elif case.name in before:
            changes += _compare_cases(before[case.name], case, threshold, absolute)
        else:
            changes.append(_whole_case(case.name, "new"))
    return changes + [_whole_case(name, "missing") for name in before if name not in seen]


def _whole_case(name: str, verdict: Verdict) -> Change:
    return Change(name, "(all)", "", "", None, None, verdict)


def _compare_cases(old: CaseRecord, new: CaseRecord, threshold: float, absolute: bool) -> list[Change]:
    changes = []
    for name, origin in {result.name: result.origin for result in (*old.results, *new.results)}.items():
        before, after = old.find(name), new.find(name)
        unit: Unit = "ms"
        old_floor = new_floor = Spread(1e-3, 1e-3, 1e-3)
        is_relative = before is not None and after is not None and origin != "floor" and not absolute
        if is_relative and old.floor is not None and new.floor is not None:
            unit, old_floor, new_floor = "x floor", old.floor.total, new.floor.total
        was = None if before is None else _divide(before.total, old_floor)
        now = None if after is None else _divide(after.total, new_floor)
        verdict: Verdict = "new" if was is None else "missing" if now is None else _judge(was, now, threshold)
        old_time, new_time = (None if spread is None else spread.median for spread in (was, now))
        changes.append(Change(old.name, name, origin, unit, old_time, new_time, verdict))
    return changes


def _divide(time: Spread, unit: Spread) -> Spread:
    """The quotient, with quartiles as far apart as those of both allow."""
    return Spread(time.median / unit.median, time.lower / unit.upper, time.upper / unit.lower)


def _judge(old: Spread, new: Spread, threshold: float) -> Verdict:
    if new.median > threshold * old.median and new.lower > old.upper:
        return "slower"
    if old.median > threshold * new.median and old.lower > new.upper:
        return "faster"
    return "same"


def change_table(changes: list[Change], threshold: float) -> TextTable:
    """What changed, wrong and slower first; regressions are emphasized."""
    rows = []
    for change in sorted((c for c in changes if c.verdict != "same"), key=lambda c: ORDER.index(c.verdict)):
        cells = [f"{value:.3g} {change.unit}" if value is not None else "" for value in (change.old, change.new)]
        times = "" if change.old is None or change.new is None else f"{change.new / change.old:.2f}"
        verdict = Bold(change.verdict.upper()) if change.is_regression else change.verdict
        rows.append((verdict, change.case, change.contender, *cells, times))
    headings = ("verdict", "case", "contender", "old", "new", "ratio")
    title = f"What changed by more than {threshold:g} times and more than the spread"
    return report.make_table(title, headings, rows)


# ---- publish ---------------------------------------------------------------------------------------------------------


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


def run_publish(options: PublishOptions) -> None:
    """Write the records and their report."""
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
            report.draw(record, options.out, formats=("svg",))
    published = [_load(path) for suite in SUITES if (path := options.out / f"{suite}.json").exists()]
    write_text(options.out / "README.md", markdown(published))
    names = [f"{record.suite}.json" for record in published]
    emit({"written": [options.out / name for name in ("README.md", *names)]})
    print_line(f"{options.out}: README.md and {', '.join(names)}")


def markdown(records: Sequence[BenchRecord]) -> str:
    """The text of README.md."""
    lines = [INTRODUCTION]
    for record in records:
        machine = escaped(report.machine_line(record.environment))
        lines += ["", f"## {record.suite}", "", f"`powerpool bench {record.suite}`: {machine}."]
        for table in _tables_of(record):
            if table.rows:
                lines += ["", f"### {escaped(table.title)}", "", Table(table.columns, table.rows).as_markdown()]
        if record.suite == "pools":
            for stem, sweep, quantity in report.list_plots(record):
                title = f"{quantity} against {SIZES[sweep.against]}, {sweep.where}"
                lines += ["", f"![{escaped(title)}]({stem}.svg)"]
        wrong = [f"- {escaped(case.name)}: {escaped(case.error[:200])}" for case in record.cases if case.error]
        if wrong:
            lines += ["", "### Not timed: answers disagreed", "", *wrong]
    return "\n".join(lines) + "\n"


def _tables_of(record: BenchRecord) -> list[TextTable]:
    if record.suite == "pools":
        growth = report.growth_table(record, report.GROWING)
        return [report.target_table(record), report.pool_table(record), report.loss_table(record), growth]
    if record.suite == "solvers":
        return [report.selection_table(record)]
    if record.suite == "curves":
        return [report.curve_table(record), report.loss_table(record)]
    return [report.target_table(record), report.job_table(record)]


def _load(path: Path) -> BenchRecord:
    """Read the record of the suite that the file is named after; its suite becomes the name of another file."""
    record = load(path)
    if record.suite != path.stem:
        raise RecordError(f"{path} holds the suite {record.suite!r}: name the file after its suite.")
    return record
