"""``powerpool bench compare OLD NEW``: what got slower, and an exit code that says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from powerpool.bench.record import BenchRecord, CaseRecord, Measured, load
from powerpool.bench.timing import Spread
from powerpool.console import cell, console, emit, say
from powerpool.errors import ArgumentError, RecordError

if TYPE_CHECKING:
    from rich.table import Table

Verdict = Literal["wrong", "slower", "missing", "faster", "new", "same"]
Unit = Literal["x floor", "ms", ""]


@dataclass(frozen=True)
class CompareOptions:
    """Compare two records of `powerpool bench` and say what got slower; exit code 1 if anything of powerpool did.

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
    """One contender in both records."""

    case: str
    contender: str
    origin: str
    unit: Unit
    old: float | None
    new: float | None
    verdict: Verdict

    @property
    def is_regression(self) -> bool:
        """Whether it counts against the library: the floor and the competitors do not. A whole case has no origin."""
        return self.verdict in ("wrong", "slower", "missing") and self.origin in ("powerpool", "")


def run(options: CompareOptions) -> int:
    """Print what changed; 1 where something of powerpool got slower."""
    old, new = load(options.old), load(options.new)
    changes = compare(old, new, options.threshold, options.absolute)
    found = [{**asdict(change), "is_regression": change.is_regression} for change in changes]
    emit({"regressions": sum(change.is_regression for change in changes), "changes": found})
    console().print(make_table(changes, options.threshold))
    for fact in ("processor", "torch"):
        if old.environment.get(fact) != new.environment.get(fact):
            say(f"Not the same {fact}: {old.environment.get(fact)}, now {new.environment.get(fact)}.")
    worse = [change for change in changes if change.is_regression]
    counts = {verdict: sum(change.verdict == verdict for change in worse) for verdict in ("slower", "missing", "wrong")}
    meaning = {"slower": "got slower", "missing": "missing", "wrong": "wrong: the answers of the case disagreed"}
    for verdict, count in counts.items():
        if count:
            say(f"{count} of powerpool {meaning[verdict]}.")
    if not worse:
        say("Nothing of powerpool got slower.")
    return 1 if worse else 0


def compare(old: BenchRecord, new: BenchRecord, threshold: float = 1.25, absolute: bool = False) -> list[Change]:
    """Case by case, contender by contender.

    Where both cases have a floor, a time is divided by the floor's of the same run: a machine that is busier today
    slows both. Slower means that the medians differ by more than ``threshold``, and by more than the spread: the
    quartiles, those of the floor included, do not overlap.
    """
    if old.suite != new.suite:
        raise RecordError(
            f"These are records of different suites, {old.suite!r} and {new.suite!r}: nothing to compare."
        )
    changed = [name for name in ("device", "threads") if old.options.get(name) != new.options.get(name)]
    if changed:
        raise RecordError(f"The two records differ in {' and '.join(changed)}: their times say nothing of each other.")
    if not new.complete:
        raise RecordError("The new record is unfinished: finish it with `powerpool bench --resume` before comparing.")
    before = {case.name: case for case in old.cases if not case.error}
    after = {case.name: case for case in new.cases if not case.error}
    if not before.keys() & {case.name for case in new.cases}:
        raise RecordError(
            f"The two records of {old.suite!r} have no case in common (was one of them made with --quick?): run the "
            "same suite with the same options."
        )
    changes = [Change(case.name, "(all)", "", "", None, None, "wrong") for case in new.cases if case.error]
    wrong = {change.case for change in changes}
    for name, case in before.items():
        if name in wrong:
            continue
        if name in after:
            changes += _compare_cases(case, after[name], threshold, absolute)
        else:
            changes.append(Change(name, "(all)", "", "", None, None, "missing"))
    changes += [Change(name, "(all)", "", "", None, None, "new") for name in after if name not in before]
    return changes


def _compare_cases(old: CaseRecord, new: CaseRecord, threshold: float, absolute: bool) -> list[Change]:
    changes = []
    old_floor, new_floor = old.floor, new.floor
    for before in old.results:
        after = new.find(before.name)
        if after is None:
            changes.append(
                Change(old.name, before.name, before.origin, "ms", 1e3 * before.total.median, None, "missing")
            )
            continue
        relative = not absolute and old_floor is not None and new_floor is not None and before.origin != "floor"
        one = Spread(1e-3, 1e-3, 1e-3)
        was = _divide(before.total, old_floor.total if relative and old_floor else one)
        now = _divide(after.total, new_floor.total if relative and new_floor else one)
        unit: Unit = "x floor" if relative else "ms"
        verdict = _judge(was, now, threshold)
        changes.append(Change(old.name, before.name, before.origin, unit, was.median, now.median, verdict))
    changes += [_appeared(new.name, result) for result in new.results if old.find(result.name) is None]
    return changes


def _appeared(case: str, result: Measured) -> Change:
    return Change(case, result.name, result.origin, "ms", None, 1e3 * result.total.median, "new")


def _divide(time: Spread, unit: Spread) -> Spread:
    """The quotient, with quartiles that are as far apart as those of both allow."""
    return Spread(time.median / unit.median, time.lower / unit.upper, time.upper / unit.lower)


def _judge(old: Spread, new: Spread, threshold: float) -> Verdict:
    if new.median > threshold * old.median and new.lower > old.upper:
        return "slower"
    if old.median > threshold * new.median and old.lower > new.upper:
        return "faster"
    return "same"


def make_table(changes: list[Change], threshold: float) -> Table:
    """What changed, the slower first; what stayed the same is counted in the caption."""
    from rich.table import Table

    same = sum(change.verdict == "same" for change in changes)
    table = Table(
        title=f"What changed by more than {threshold:g} times and more than the spread",
        caption=f"{same} of {len(changes)} the same; 'x floor' is relative to forming M in the same case and run",
    )
    for heading in ("", "case", "contender"):
        table.add_column(heading)
    for heading in ("old", "new", "ratio"):
        table.add_column(heading, justify="right")
    order = ("wrong", "slower", "missing", "faster", "new")
    for change in sorted((c for c in changes if c.verdict != "same"), key=lambda c: order.index(c.verdict)):
        ratio = "" if change.old is None or change.new is None else f"{change.new / change.old:.2f}"
        style = "red" if change.is_regression else {"slower": "yellow", "faster": "green"}.get(change.verdict)
        cells = [_number(value, change.unit) for value in (change.old, change.new)]
        table.add_row(change.verdict, cell(change.case), cell(change.contender), *cells, ratio, style=style)
    return table


def _number(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:.3g} {unit}".strip()
