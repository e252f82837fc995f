"""A group as a table, with the words above it and what it says against us."""

from __future__ import annotations

from powerpool.report.document import Table
from powerpool.report.tables.base import Group
from powerpool.report.tables.formats import MISSING, signed
from powerpool.runs.record import RunRecord

OPTIONAL = ("runs", "paper, top-5", "std over runs")
"""Columns that stand only where a row has something in them."""


def table(group: Group) -> Table:
    """One line for each method; the best of ours is bold."""
    lines = [group.kind.line(group, row) for row in group.rows]
    # Columns of which no row has anything to say.
    shown = [name for name in lines[0] if name not in OPTIONAL or any(line[name] != MISSING for line in lines)]
    return Table(tuple(shown), [tuple(line[name] for name in shown) for line in lines])


def introduction(group: Group) -> str:
    """What the table shows: protocol; folds, pictures or episodes; and seeds."""
    meaning = group.kind.meaning(group)
    start = f"Protocol {group.protocol}" + (f": {meaning}" if meaning else "")
    seeds = sorted({seed for record in group.records for seed in _seeds(record)})
    seeds_text = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    return f"{start}. {group.kind.extent(group)}, {seeds_text}; {group.metric}."


def _seeds(record: RunRecord) -> set[int]:
    """Those of the runs, where they say so: the seed of a record is that of the first."""
    found = [fold.get("seed") for fold in record.folds]
    return {seed if isinstance(seed, int) else record.seed for seed in found}


def losses(group: Group) -> list[str]:
    """What the table says against us, and against the claim that it repeats the paper."""
    return [_against_baseline(group), *group.kind.against_paper(group), *_not_paired(group)]


def _against_baseline(group: Group) -> str:
    name = group.baseline
    if group.baseline_record is None:
        return f"There is no record of {name} here: no method is compared with it."
    if not group.compared:
        return f"There is no method beside {name} here."
    if not group.below_baseline:
        return f"None of {len(group.compared)} is below {name}."
    listed = ", ".join(
        f"{row.record.method} ({signed(row.to_baseline)}{'' if row.test is None else row.test.text})"
        for row in group.below_baseline
    )
    return f"Below {name}, {len(group.below_baseline)} of {len(group.compared)}: {listed}."


def _not_paired(group: Group) -> list[str]:
    alone = [row.record.method for row in group.compared if row.test is None]
    lack = group.kind.lack(group)
    return [f"Not tested against {group.baseline}, for lack of {lack}: {', '.join(alone)}."] if alone else []
