"""Whether what the paper says of its methods is seen in a table, in sentences with figures and p."""

from __future__ import annotations

from collections.abc import Sequence

from powerpool.report.paper import Expectation, expectations
from powerpool.report.tables.base import CHANCE, Comparison, Group, Row
from powerpool.report.tables.formats import signed


def order_findings(group: Group) -> list[str]:
    """Whether the paper's order of methods is that of these records: a sentence for each pair, with figures and p.

    Pairs that were not measured are named behind them. There are none for graphs, or where no pair was measured.
    """
    expected = expectations(group.pipeline, group.protocol)
    found = {one.text: _finding(group, one) for one in expected}
    missing = [text for text, finding in found.items() if finding is None]
    said = [finding for finding in found.values() if finding is not None]
    if said and missing:
        said.append(f"Not measured here: {'; '.join(missing)}.")
    return said + group.kind.more_findings(group)


def _finding(group: Group, expected: Expectation) -> str | None:
    """Whether one method is above another; None where one of them is missing."""
    sides = [_rows(group, names) for names in (expected.above, expected.below)]
    if not all(sides):
        return None
    # Of a kind with more methods the best on the test split is better by luck alone: validation chooses.
    by_validation = all(row.validation is not None for rows in sides for row in rows)
    above, below = (max(rows, key=lambda row: _height(row, by_validation)) for rows in sides)
    names = f"{above.record.method} against {below.record.method}"
    if max(map(len, sides)) > 1:
        on = "validation" if by_validation else group.kind.chosen_on_test
        names += f", the best of {len(sides[0])} and of {len(sides[1])} on {on}"
    test = group.kind.compare(above.record, below.record)
    gap = above.record.mean - below.record.mean if test is None else test.difference
    p = "" if test is None else test.text
    figures = f"{above.record.mean:.2f} and {below.record.mean:.2f} ({signed(gap)}{p})"
    paper = f", in the paper {signed(above.paper.mean - below.paper.mean)}" if above.paper and below.paper else ""
    return f"{expected.text[0].upper()}{expected.text[1:]} ({names}): {_verdict(gap, test)}, {figures}{paper}."


def _rows(group: Group, names: Sequence[str]) -> list[Row]:
    """The rows of the named methods; a name that ends with ``*`` is that of a kind."""
    return [
        row
        for row in group.rows
        if row.record.method in names
        or any(name.endswith("*") and row.record.method.startswith(name[:-1]) for name in names)
    ]


def _height(row: Row, by_validation: bool) -> float:
    return row.validation if by_validation and row.validation is not None else row.record.mean


def _verdict(gap: float, test: Comparison | None) -> str:
    if float(signed(gap)) == 0:
        return "there is no difference"
    if test is not None and test.p_value < CHANCE:
        return "holds" if gap > 0 else "does not hold"
    reason = "untested" if test is None else "but by no more than chance may give"
    return f"{'as in the paper' if gap > 0 else 'the other way round'}, {reason}"
