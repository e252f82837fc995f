"""Rows and groups of rows, and what a kind of records has to know so that they become a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from powerpool.report.document import Bold
from powerpool.report.paper import Figure
from powerpool.report.tables.formats import MISSING, as_printed, mean, p_text, signed, spread
from powerpool.runs.quick import is_quick
from powerpool.runs.record import RunRecord

Interval = tuple[float, float]

CHANCE = 0.05
"""A difference with a p of at least this may be chance."""


@dataclass(frozen=True)
class Protocol:
    """How the validation part of a fold is used, or what of a network is trained."""

    text: str
    not_trained_on: int
    """Parts of the data, of as many as there are folds, that the tested model has not seen."""


PROTOCOLS = {
    "validation-only": Protocol(
        "the validation part of a fold chooses the model, and the model that is tested was trained on the training "
        "part alone",
        not_trained_on=2,
    ),
    "retrain": Protocol(
        "the validation part of a fold chooses the model, which is then trained again on the training and validation "
        "parts together and tested",
        not_trained_on=1,
    ),
    "frozen": Protocol(
        "the backbone keeps its pretrained weights, and ridge regression classifies; the validation pictures choose "
        "the settings, with which the classifier is then trained again on the training and validation pictures "
        "together and tested",
        not_trained_on=1,
    ),
    "frozen-softmax": Protocol(
        "the same features and choices, with softmax regression by gradient descent in the place of ridge regression",
        not_trained_on=1,
    ),
    "end-to-end": Protocol(
        "the backbone is trained together with all that follows it; the validation pictures choose the epoch, or are "
        "trained on, too, as the setting training.validation says",
        not_trained_on=2,
    ),
}
"""Those that have a name. Episodes are described by their numbers."""


@dataclass(frozen=True)
class Comparison:
    """How far two methods are apart on the same folds, test pictures or test episodes."""

    difference: float
    """Ours - the other."""
    interval: Interval
    """Of the difference, with a confidence of 95 %."""
    p_value: float
    count: int
    """Folds or runs that both have."""
    corrected_p_value: float | None = None
    """With the variance that overlapping training sets call for; None where there are no folds."""

    @property
    def text(self) -> str:
        """p, behind a comma: the corrected one where there is one."""
        if self.corrected_p_value is None:
            return f", p {p_text(self.p_value)}"
        return f", corrected p {p_text(self.corrected_p_value)}"


@dataclass(frozen=True)
class Row:
    """One method beside the paper and the baseline."""

    record: RunRecord
    interval: Interval | None
    """With a confidence of 95 %: of the mean over folds or episodes, or of the share of right pictures."""
    paper: Figure | None
    to_baseline: float | None
    """Ours - baseline: on what both have where it is paired, else of the means."""
    test: Comparison | None
    """None where nothing can be paired: no baseline, another seed, too few folds in common, or other pictures."""

    @property
    def to_paper(self) -> float | None:
        return None if self.paper is None else self.record.mean - self.paper.mean

    @property
    def is_within(self) -> bool | None:
        """Whether our mean is within one standard deviation of the paper's; None where the paper has none."""
        if self.paper is None or self.paper.std is None:
            return None
        return abs(self.record.mean - self.paper.mean) <= self.paper.std

    @property
    def validation(self) -> float | None:
        """What the chosen settings gave on the validation split, the mean of all runs; None where one does not say."""
        parts = [fold.get("validation") for fold in self.record.folds]
        return mean([part.get("value") if isinstance(part, dict) else None for part in parts])


@dataclass(frozen=True)
class Group:
    """All methods of one data set under one protocol, with one backbone where there is one."""

    pipeline: str
    data: str
    protocol: str
    backbone: str | None
    baseline: str
    rows: tuple[Row, ...]
    kind: Kind

    @property
    def title(self) -> str:
        return f"{self.data}, {self.protocol}" + ("" if self.backbone is None else f" {self.backbone}")

    @property
    def metric(self) -> str:
        return self.rows[0].record.metric

    @property
    def records(self) -> list[RunRecord]:
        return [row.record for row in self.rows]

    @property
    def is_quick(self) -> bool:
        """Whether a row is of a quick run: what is said of the rows beside one another then means nothing."""
        return any(map(is_quick, self.records))

    @property
    def baseline_record(self) -> RunRecord | None:
        return next((row.record for row in self.rows if row.record.method == self.baseline), None)

    @property
    def compared(self) -> list[Row]:
        """The rows that stand beside the baseline."""
        return [row for row in self.rows if row.to_baseline is not None]

    @property
    def below_baseline(self) -> list[Row]:
        # As it is printed: the same graphs in other folds add up to the same mean but for round-off.
        return [row for row in self.rows if row.to_baseline is not None and float(signed(row.to_baseline)) < 0]

    @property
    def known(self) -> list[Row]:
        """The rows with a figure in the paper."""
        return [row for row in self.rows if row.paper is not None]

    @property
    def below_paper(self) -> list[Row]:
        return [row for row in self.rows if row.to_paper is not None and float(signed(row.to_paper)) < 0]

    @property
    def outside_paper(self) -> list[Row]:
        return [row for row in self.rows if row.is_within is False]

    @property
    def paper_for(self) -> str | None:
        """What the paper's figures are for, where ours are for something else."""
        return self.kind.paper_for(self)


class Kind(ABC):
    """What a test consists of - folds, pictures, episodes - and all that tables and words have to know of it."""

    value_text: ClassVar[str]
    """What a value and its interval are: the end of a sentence that begins with "A value is"."""
    value_where: ClassVar[str] = ""
    """Where that is so, if there are other kinds, too: a first clause of the sentence."""
    p_text: ClassVar[str]
    """What p is: the end of a sentence that begins with "p is"."""
    p_where: ClassVar[str] = ""
    chosen_on_test: ClassVar[str] = "the test split, which favours the kind with more methods"
    """What chose the best of several methods, where validation could not."""

    @abstractmethod
    def holds(self, record: RunRecord) -> bool:
        """Whether a record is of this kind."""

    @abstractmethod
    def interval(self, record: RunRecord) -> Interval | None:
        """Of the mean, with a confidence of 95 %."""

    @abstractmethod
    def compare(self, record: RunRecord, other: RunRecord) -> Comparison | None:
        """How far they are apart; None where nothing can be paired."""

    @abstractmethod
    def line(self, group: Group, row: Row) -> dict[str, str]:
        """The cells of a row, by the titles of their columns."""

    def meaning(self, group: Group) -> str:
        """What the name of the protocol stands for; nothing where it is not known."""
        protocol = PROTOCOLS.get(group.protocol)
        return "" if protocol is None else protocol.text

    @abstractmethod
    def extent(self, group: Group) -> str:
        """What was tested on, and how much of it."""

    @abstractmethod
    def against_paper(self, group: Group) -> list[str]:
        """What the table says against the claim that it repeats the paper."""

    @abstractmethod
    def lack(self, group: Group) -> str:
        """What two records do not share, of which nothing can be paired."""

    @abstractmethod
    def count_paper(self, groups: Sequence[Group], of: str) -> str:
        """How many rows of all groups have a figure in the paper, and how many are below it.

        Args:
            groups: at least one, all of this kind and of one pipeline.
            of: names the pipeline, with a blank before it, where there are several.
        """

    def paper_for(self, group: Group) -> str | None:
        """What the paper's figures are for, where ours are for something else."""
        return None

    def more_findings(self, group: Group) -> list[str]:
        """What the table says about claims of the paper that are not the order of two methods."""
        return []


def best(group: Group, row: Row, text: str) -> str:
    """The text of a mean; in bold where it is the best, of which there is none among equals."""
    means = [other.record.mean for other in group.rows]
    return Bold(text) if row.record.mean == max(means) and means.count(row.record.mean) == 1 else text


def ours(group: Group, row: Row) -> str:
    """Mean and deviation."""
    record = row.record
    return best(group, row, spread(f"{record.mean:.2f}", None if record.std is None else f"{record.std:.2f}"))


def paper(row: Row) -> str:
    """The figure of the paper, as it stands there."""
    if row.paper is None:
        return MISSING
    behind = row.paper.std if row.paper.half is None else row.paper.half
    return spread(as_printed(row.paper.mean), None if behind is None else as_printed(behind))


def fewer(row: Row, baseline: RunRecord | None, folds: str) -> str:
    """Says so where the difference is not that of the means, because some folds have no counterpart."""
    if row.test is None or baseline is None or row.test.count == row.record.count == baseline.count:
        return ""
    return f" on {row.test.count} {folds}"


def compared_cells(group: Group, row: Row) -> dict[str, str]:
    """The columns about the baseline, where there are runs and no folds."""
    test = row.test
    return {
        f"ours - {group.baseline}": signed(row.to_baseline) + fewer(row, group.baseline_record, "runs"),
        "95 % interval of it": MISSING if test is None else " to ".join(map(signed, test.interval)),
        "p": MISSING if test is None else p_text(test.p_value),
    }


def below_paper_text(group: Group) -> str:
    """Which rows are below the paper's figure."""
    listed = ", ".join(f"{row.record.method} ({signed(row.to_paper)})" for row in group.below_paper)
    if not listed:
        return f"None of {len(group.known)} with a figure in the paper is below it."
    return f"Below the paper's figure, {len(group.below_paper)} of {len(group.known)}: {listed}."


def count_below_paper(groups: Sequence[Group], of: str, other: str) -> str:
    """How many rows have a figure, how many of these are ``other`` than ours, and how many are below it."""
    rows, known = sum(len(group.rows) for group in groups), sum(len(group.known) for group in groups)
    different = sum(len(group.known) for group in groups if group.paper_for is not None)
    named = f", of which {different} are {other}" if different else ""
    below = sum(len(group.below_paper) for group in groups)
    return f"Of {rows} rows{of}, {known} have a figure in the paper{named}: {below} are below it."


def chosen(record: RunRecord) -> str:
    """How often each hyper-parameter was chosen: ``hidden 32 (7), 64 (3); eta 20``. Nothing where no fold says."""
    counts: dict[str, Counter[str]] = {}
    for fold in record.folds:
        settings = fold.get("chosen")
        for name, value in settings.items() if isinstance(settings, dict) else ():
            shown = f"{value:g}" if isinstance(value, float) else str(value)
            counts.setdefault(name, Counter())[shown] += 1
    parts = []
    for name, values in counts.items():
        ordered = sorted(values.items(), key=lambda item: (-item[1], item[0]))
        everywhere = len(ordered) == 1 and ordered[0][1] == record.count
        listed = ordered[0][0] if everywhere else ", ".join(f"{value} ({count})" for value, count in ordered)
        parts.append(f"{name} {listed}")
    return "; ".join(parts)
