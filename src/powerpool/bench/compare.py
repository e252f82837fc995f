"""``powerpool bench compare OLD NEW``: what got slower; exit code 1 if something did."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from powerpool.bench.measure import Spread
from powerpool.bench.record import BenchRecord, CaseRecord, load
from powerpool.bench.tables import Table
from powerpool.console import console, emit, print_line
from powerpool.errors import ArgumentError, RecordError
from powerpool.report.document import Bold

Verdict = Literal["wrong", "slower", "missing", "faster", "new", "same"]
ORDER = ("wrong", "slower", "missing", "faster", "new")
MEANING = {"slower": "got slower", "missing": "missing", "wrong": "wrong: the answers of the case disagreed"}
Unit = Literal["x floor", "ms", ""]


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


def run(options: CompareOptions) -> int:
    """Print what changed; return 1 if something of powerpool got slower."""
    old, new = load(options.old), load(options.new)
    changes = compare(old, new, options.threshold, options.absolute)
    found = [{**asdict(change), "is_regression": change.is_regression} for change in changes]
    worse = [change for change in changes if change.is_regression]
    emit({"regressions": len(worse), "changes": found})
    table = make_table(changes, options.threshold)
    if table.rows:
        console().print(table.as_rich())
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


def make_table(changes: list[Change], threshold: float) -> Table:
    """What changed, wrong and slower first; regressions are emphasized."""
    rows = []
    for change in sorted((c for c in changes if c.verdict != "same"), key=lambda c: ORDER.index(c.verdict)):
        cells = [f"{value:.3g} {change.unit}" if value is not None else "" for value in (change.old, change.new)]
        times = "" if change.old is None or change.new is None else f"{change.new / change.old:.2f}"
        verdict = Bold(change.verdict.upper()) if change.is_regression else change.verdict
        rows.append((verdict, change.case, change.contender, *cells, times))
    headings = ("verdict", "case", "contender", "old", "new", "ratio")
    title = f"What changed by more than {threshold:g} times and more than the spread"
    return Table(title, headings, rows)
