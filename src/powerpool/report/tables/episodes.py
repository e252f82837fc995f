"""Records of few-shot learning, which say how many queries were right in every test episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from powerpool.report.paper import (
    FEW_SHOT_SIZE,
    PRETRAINED_ON,
    SOURCE_NAMES,
    TRAINING_EPISODES,
    set_of_paper,
    way_and_shot,
)
from powerpool.report.tables.answers import accuracies, shared_runs
from powerpool.report.tables.base import (
    Comparison,
    Group,
    Interval,
    Kind,
    Row,
    below_paper_text,
    best,
    chosen,
    compared_cells,
    count_below_paper,
    paper,
)
from powerpool.report.tables.formats import MISSING, decimals, mean, seconds, signed, span, spread
from powerpool.report.tables.pretraining import PRETRAINED, findings, source_set
from powerpool.runs.compare import paired_test, summarize
from powerpool.runs.record import RunRecord

ALIKE = ("precision", "learning_rate", "decay_every", "decay_factor", "clip", "turns", "settling_episodes")
"""Further settings of training in which methods of one table should not differ."""


class Episodes(Kind):
    """The mean accuracy over test episodes, and paired t-tests over the same episodes.

    The episodes are the same for every seed of training, so that further runs are no further episodes: of several, the
    accuracy in an episode is the mean.
    """

    value_text = (
        "the mean accuracy over test episodes, and ± is half of its 95 % interval, by Student's t over episodes, as is "
        "usual in the literature. It speaks of other episodes from the same test classes, and not of other classes or "
        "other seeds of training. The column episodes/s is of training steps alone, without validation and what comes "
        "before it. Each training had one thread, beside whatever else ran on the machine at that time: to compare "
        "speed there is powerpool bench episodes."
    )
    value_where = "Where a test consists of episodes"
    p_text = (
        "that of a paired, two-sided t-test over the same test episodes, to which the interval of the difference "
        "belongs. Both are about these trained models in other episodes; another seed may differ by more. They are not "
        "corrected for the number of rows: of twenty without any difference, one is expected below 0.05."
    )
    p_where = "Over test episodes"
    chosen_on_test = "the test episodes themselves, a choice that favours the kind with more methods"

    def holds(self, record: RunRecord) -> bool:
        return all("right_by_episode" in fold for fold in record.folds)

    def interval(self, record: RunRecord) -> Interval | None:
        return summarize(accuracies(record)).interval

    def compare(self, record: RunRecord, other: RunRecord) -> Comparison | None:
        runs = shared_runs(record, other)
        if not runs:
            return None
        found = paired_test(accuracies(record, runs), accuracies(other, runs), test_to_train=0.0)
        return Comparison(found.difference, found.interval, found.p_value, len(runs))

    def line(self, group: Group, row: Row) -> dict[str, str]:
        record, several = row.record, any(record.count > 1 for record in group.records)
        return {
            "method": record.method,
            "ours": best(group, row, spread(f"{record.mean:.2f}", self._half(row))),
            "runs": str(record.count) if several else MISSING,
            "std over runs": decimals(record.std),
            "paper": paper(row),
            "ours - paper": signed(row.to_paper),
            **compared_cells(group, row),
            "validation": decimals(row.validation),
            "chosen": chosen(record) or MISSING,
            "training episodes": _budget(record),
            "episodes/s": decimals(mean([fold.get("episodes_per_second") for fold in record.folds])),
            "seconds": seconds(record),
        }

    def meaning(self, group: Group) -> str:
        shown = way_and_shot(group.protocol)
        if shown is None:
            return ""
        way, shot = shown
        pictures = f"{shot} support picture{'s' if shot > 1 else ''}"
        if _is_transductive(group):
            test = (
                "batch normalization takes its statistics from the test episode itself (transductive), as in the "
                "original code, and what is said of a query depends on the others"
            )
        else:
            test = (
                "batch normalization keeps the statistics of training, while the original code took those of the test "
                "episode itself (transductive)"
            )
        return f"an episode has {way} classes, and {pictures} of each; {test}"

    def extent(self, group: Group) -> str:
        folds = [fold for record in group.records if self.holds(record) for fold in record.folds]
        counts, queries = (span([fold.get(name) for fold in folds]) for name in ("count", "queries"))
        runs = [record.count for record in group.records]
        several = f", {span(runs)} runs of each method, of which ours is the mean" if max(runs) > 1 else ""
        return f"{counts} test episodes with {queries} queries each{several}"

    def against_paper(self, group: Group) -> list[str]:
        """Where our training is not the paper's, and what is below its figures."""
        said = _unequal(group)
        if not group.known:
            return [*said, "The paper has no figures for these methods in such episodes on this data set."]
        if group.paper_for is not None:
            said.append(
                f"The paper's figures are for {group.paper_for}; ours are for {_our_training(group)}. The difference "
                "to the paper is therefore one of data, budget and test first, and no measure of how well the methods "
                "were reproduced: their order is."
            )
        return [*said, below_paper_text(group)]

    def lack(self, group: Group) -> str:
        return "the same test episodes"

    def count_paper(self, groups: Sequence[Group], of: str) -> str:
        return count_below_paper(groups, of, "for another training or another test than ours")

    def paper_for(self, group: Group) -> str | None:
        """The paper's data, size, budget and test, as far as ours are others."""
        name, parts = set_of_paper(group.data), []
        if name is None or not group.known:
            return None
        if name == "miniimagenet100":
            parts.append("all 600 pictures of a class")
        if name == "open_mic":
            parts.append("the mean over twelve pairs of parts (protocol I)")
        sizes = _settings(group.records, "size")
        if name in FEW_SHOT_SIZE and sizes != {FEW_SHOT_SIZE[name]}:
            parts.append(f"SoSN on pictures of {FEW_SHOT_SIZE[name]} px")
        budget = TRAINING_EPISODES[name]
        if _settings(group.records, "training", "episodes") != {budget}:
            parts.append(f"{budget} training episodes")
        if _has_other_source(group, PRETRAINED_ON[name]):
            parts.append(f"pre-training on {PRETRAINED_ON[name]}")
        if not _is_transductive(group):
            parts.append("transductive tests")
        return ", ".join(parts) or None

    def more_findings(self, group: Group) -> list[str]:
        """Whether pre-training helped the methods that are there with it and without."""
        return findings(group)

    def _half(self, row: Row) -> str | None:
        if row.interval is None or not self.holds(row.record):
            return None
        low, high = row.interval
        return f"{(high - low) / 2:.2f}"


def _settings(records: Sequence[RunRecord], *names: str) -> set[Any]:
    """All values that a setting has; whatever is none can be no other than missing."""
    found = set()
    for record in records:
        value: Any = record.config
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        found.add(value if isinstance(value, int) else None)
    return found


def _in_training(record: RunRecord, name: str) -> Any:
    """Of a training episode: classes, or support pictures of each, which are those of a test episode unless given."""
    (own,) = _settings([record], "training", name)
    (test,) = _settings([record], "test", name)
    return test if own is None else own


def _is_transductive(group: Group) -> bool:
    return group.protocol.endswith("-transductive")


def _has_other_source(group: Group, source: str) -> bool:
    """Whether a row with a figure was trained before on a set that is not the paper's."""
    sources = {source_set(row.record) for row in group.known if PRETRAINED in row.record.method}
    return any(SOURCE_NAMES.get(name or "") != source for name in sources)


def _budget(record: RunRecord) -> str:
    """Training episodes, and those of a training before it."""
    (own,) = _settings([record], "training", "episodes")
    (before,) = _settings([record], "pretraining", "episodes")
    text = MISSING if own is None else str(own)
    return text if before is None else f"{before} + {text}"


def _unequal(group: Group) -> list[str]:
    """Says so where methods were not trained alike."""
    records, said = group.records, []
    for text, values in (
        ("trained on the same number of episodes", _settings(records, "training", "episodes")),
        ("shown pictures of the same size", _settings(records, "size")),
        ("trained with the same number of classes in an episode", {_in_training(one, "way") for one in records}),
        ("trained with the same number of support pictures of a class", {_in_training(one, "shot") for one in records}),
        ("trained with the same number of queries of a class", _settings(records, "training", "queries")),
        *((f"trained with the same {name}", {_trained(one, name) for one in records}) for name in ALIKE),
    ):
        if len(values) > 1:
            ordered = sorted(values, key=lambda value: (value is not None, value))
            listed = ", ".join(MISSING if value is None else str(value) for value in ordered)
            said.append(f"The methods were not {text} ({listed}): that is not a fair comparison.")
    return said


def _trained(record: RunRecord, name: str) -> str | None:
    """A setting of training, whatever it is, as a text."""
    found: Any = record.config.get("training")
    value = found.get(name) if isinstance(found, dict) else None
    return None if value is None else str(value)


def _our_training(group: Group) -> str:
    """Our data, size, budget and test in words."""
    sizes, budgets = (span(list(_settings(group.records, *names))) for names in (("size",), ("training", "episodes")))
    part = "100 pictures of a class, " if set_of_paper(group.data) == "miniimagenet100" else ""
    pair = f"{group.data} alone, " if set_of_paper(group.data) == "open_mic" else ""
    test = "transductive tests" if _is_transductive(group) else "tests that are not transductive"
    return f"{part}{pair}pictures of {sizes} px, {budgets} training episodes and {test}"
