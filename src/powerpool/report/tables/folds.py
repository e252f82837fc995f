"""Records with one value for each fold, and nothing about single items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from powerpool.report.tables.base import PROTOCOLS, Comparison, Group, Interval, Kind, Row, chosen, fewer, ours, paper
from powerpool.report.tables.formats import MISSING, interval_text, p_text, seconds, signed
from powerpool.runs.compare import paired_test
from powerpool.runs.record import RunRecord


class Folds(Kind):
    """The mean over folds, and paired t-tests over the same folds."""

    value_text = (
        "what one fold gave on its test part; ± is the standard deviation over folds, and the interval is that "
        "of the mean, by Student's t. It takes folds for independent, and is somewhat too narrow, because their "
        "training sets overlap."
    )
    p_text = (
        "that of a paired, two-sided t-test over the same folds; it is too small, because training sets of folds "
        "overlap. The corrected p takes that into account (Nadeau and Bengio, 2003). Neither is corrected for the "
        "number of rows: of twenty without any difference, one is expected below 0.05."
    )

    def holds(self, record: RunRecord) -> bool:
        return True

    def interval(self, record: RunRecord) -> Interval | None:
        return record.interval

    def compare(self, record: RunRecord, other: RunRecord) -> Comparison | None:
        values = record.paired(other)
        if _cut(record) != _cut(other) or len(values[0]) < 2:
            return None
        found = paired_test(*values, test_to_train=_test_to_train(record))
        return Comparison(found.difference, found.interval, found.p_value, found.count, found.corrected_p_value)

    def line(self, group: Group, row: Row) -> dict[str, str]:
        test = row.test
        corrected = None if test is None else test.corrected_p_value
        return {
            "method": row.record.method,
            "ours": ours(group, row),
            "95 % interval": interval_text(row.interval),
            "folds": str(row.record.count),
            "paper": paper(row),
            "ours - paper": signed(row.to_paper),
            "within one std of the paper": {True: "yes", False: "no", None: MISSING}[row.is_within],
            f"ours - {group.baseline}": signed(row.to_baseline) + fewer(row, group.baseline_record, "folds"),
            "p": MISSING if test is None else p_text(test.p_value),
            "corrected p": MISSING if corrected is None else p_text(corrected),
            "chosen (folds)": chosen(row.record) or MISSING,
            "seconds": seconds(row.record),
        }

    def extent(self, group: Group) -> str:
        counts = sorted({record.count for record in group.records})
        if len(counts) > 1:
            return f"{counts[0]} to {counts[-1]} folds, not the same number for every method"
        return f"{counts[0]} fold{'s' if counts[0] > 1 else ''}"

    def against_paper(self, group: Group) -> list[str]:
        known, outside = [row for row in group.rows if row.is_within is not None], group.outside_paper
        if not known:
            return ["The paper has no figures for this data set and protocol."]
        if not outside:
            return [f"All {len(known)} with a figure in the paper are within one standard deviation of it."]
        listed = ", ".join(f"{row.record.method} ({signed(row.to_paper)})" for row in outside)
        return [f"Further than one standard deviation from the paper, {len(outside)} of {len(known)}: {listed}."]

    def lack(self, group: Group) -> str:
        return f"two folds with the same {'graphs' if group.pipeline == 'graph' else 'items'}"

    def count_paper(self, groups: Sequence[Group], of: str) -> str:
        rows = [row for group in groups for row in group.rows]
        known = sum(row.is_within is not None for row in rows)
        outside = [row for group in groups for row in group.outside_paper]
        under = sum(row.to_paper is not None and row.to_paper < 0 for row in outside)
        return (
            f"Of {len(rows)} rows{of}, {known} have a figure in the paper: {known - len(outside)} are within one of "
            f"its standard deviations, {under} further below and {len(outside) - under} further above."
        )


def _cut(record: RunRecord) -> tuple[Any, ...]:
    """What the folds depend on: folds of the same number are the same graphs only where all of it is the same."""
    return record.seed, record.config.get("folds"), record.config.get("data_digest")


def _test_to_train(record: RunRecord) -> float:
    """Items tested on for each item trained on. A record may hold fewer folds than the data were cut into."""
    cut: Any = record.config.get("folds")
    parts = cut if isinstance(cut, int) else record.count
    protocol = PROTOCOLS.get(record.protocol, PROTOCOLS["validation-only"])
    return 1 / max(1, parts - protocol.not_trained_on)
