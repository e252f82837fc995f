"""Records of one test split that say of every picture whether it was named right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from powerpool.report.paper import NETWORKS, network, paper_network
from powerpool.report.tables.answers import pictures
from powerpool.report.tables.base import (
    Comparison,
    Group,
    Interval,
    Kind,
    Row,
    below_paper_text,
    chosen,
    compared_cells,
    count_below_paper,
    ours,
    paper,
)
from powerpool.report.tables.formats import MISSING, as_printed, decimals, interval_text, mean, seconds, signed, span
from powerpool.runs.compare import mcnemar, proportion_interval
from powerpool.runs.record import RunRecord


class Splits(Kind):
    """The share of right pictures, and McNemar's test.

    The pictures are the same in every run, so that further runs are no further pictures: of several, the difference is
    the mean, its interval spans theirs, and p is the largest.
    """

    value_text = (
        "the share of test pictures whose class is named right, for top-5 among the best five guesses, and the "
        "interval is Wilson's. It speaks of other pictures of the same kind, and not of other seeds of training."
    )
    value_where = "Where there is one test split"
    p_text = (
        "that of McNemar's exact, two-sided test: among the pictures that only one of two methods names right, how "
        "likely so uneven a share is by chance alone. The interval of the difference is that of Bonett and Price "
        "(2012). Both are about these trained models on other pictures; another seed may differ by more. They are not "
        "corrected for the number of rows: of twenty without any difference, one is expected below 0.05."
    )
    p_where = "On one test split"

    def holds(self, record: RunRecord) -> bool:
        return all("right" in fold for fold in record.folds)

    def interval(self, record: RunRecord) -> Interval | None:
        """In %, and of several runs that of their mean share: further runs are no further pictures."""
        runs = list(pictures(record).values())
        count = min(map(len, runs))
        share = math.fsum(sum(right) / len(right) for right in runs) / len(runs)
        low, high = proportion_interval(share * count, count)
        return 100 * low, 100 * high

    def compare(self, record: RunRecord, other: RunRecord) -> Comparison | None:
        # The digest is that of the test split as well, and the seed of a record is that of training alone.
        same = record.config.get("data_digest") == other.config.get("data_digest")
        if not (self.holds(record) and self.holds(other) and same):
            return None
        own, theirs = pictures(record), pictures(other)
        runs = sorted(own.keys() & theirs.keys())
        if not runs or any(len(own[run]) != len(theirs[run]) for run in runs):
            return None
        tests = [mcnemar(own[run], theirs[run]) for run in runs]
        lows, highs = zip(*(test.interval for test in tests), strict=True)
        difference = math.fsum(test.difference for test in tests) / len(tests)
        return Comparison(difference, (min(lows), max(highs)), max(test.p_value for test in tests), len(tests))

    def line(self, group: Group, row: Row) -> dict[str, str]:
        folds, top5 = row.record.folds, None if row.paper is None else row.paper.top5
        return {
            "method": row.record.method,
            "top-1": ours(group, row),
            "95 % interval": interval_text(row.interval if self.holds(row.record) else None),
            "runs": str(row.record.count) if any(record.count > 1 for record in group.records) else MISSING,
            "top-5": decimals(mean([fold.get("top5") for fold in folds])),
            "paper": paper(row),
            "paper, top-5": MISSING if top5 is None else as_printed(top5),
            "ours - paper": signed(row.to_paper),
            **compared_cells(group, row),
            "validation": decimals(row.validation),
            "chosen": chosen(row.record) or MISSING,
            "epochs to convergence": span([fold.get("converged") for fold in folds]),
            "seconds": seconds(row.record),
        }

    def extent(self, group: Group) -> str:
        records = group.records
        counts = span([fold["count"] for record in records if self.holds(record) for fold in record.folds])
        text = f"One test split of {counts} pictures"
        if all(record.count == 1 for record in records):
            return text
        return (
            f"{text}, with {span([record.count for record in records])} runs of each method: top-1 is their mean, ± "
            "their standard deviation, and p the largest of theirs"
        )

    def against_paper(self, group: Group) -> list[str]:
        """What the paper's figures are for, which may be another network, and what is below them."""
        if not group.known:
            return ["The paper has no figures for these methods on this data set."]
        said = f"The paper's figures are for {_paper_network(group)}, and so are ours."
        if group.paper_for is not None:
            how = "a frozen " if group.protocol.startswith("frozen") else "a fine-tuned "
            said = (
                f"The paper's figures are for {group.paper_for}; ours here are for {how}"
                f"{group.backbone or 'network without a name'}. The difference to the paper is therefore one of "
                "network and training first, and no measure of how well the methods were reproduced: their order is."
            )
        return [said, below_paper_text(group)]

    def lack(self, group: Group) -> str:
        return "the same test pictures"

    def count_paper(self, groups: Sequence[Group], of: str) -> str:
        return count_below_paper(groups, of, "for another network or another training than ours")

    def paper_for(self, group: Group) -> str | None:
        """The paper's network, where ours is another one or is trained otherwise."""
        if group.pipeline != "vision" or not group.known:
            return None
        same = group.protocol == "end-to-end" and network(group.backbone) == paper_network(group.data, group.backbone)
        return None if same else _paper_network(group)


def _paper_network(group: Group) -> str:
    return NETWORKS[paper_network(group.data, group.backbone)]
