"""Records sorted into groups, one for each table: a data set, a protocol and a backbone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from powerpool.errors import RecordError
from powerpool.report.paper import Figure, describe_paper_setup, record_figure, way_and_shot
from powerpool.report.results import (
    Comparison,
    Interval,
    compare_records,
    compute_interval,
    describe_record,
    get_backbone,
    get_count,
    get_setting,
)
from powerpool.runs.record import EpisodeResult, RunRecord, SplitResult
from powerpool.tasks.graph.config import OPTIMISTIC, name_in_tables
from powerpool.tasks.methods import METHODS

BASELINES = {"graph": "GIN0", "vision": "FOP", "fewshot": "RelationNet"}
"""The method that the others of a task are compared with."""
FROZEN_BASELINE = "FOP+NCM"
"""The same for few-shot learning on frozen features."""
OTHER_BASELINES = ("PrototypicalNet", "RelationNet+Enc")
"""The same for few-shot learning where the table has no Relation Net from random weights: the first of these.
The second may start from the same encoder as the methods that are compared with it."""
PROTOCOLS = {
    "validation-only": "validation selects the model, which is trained on the training part alone",
    "retrain": "validation selects the settings; the model is trained again on the training and validation parts",
    "test-epoch": "trained on all but the test graphs; the epoch with the best mean test accuracy over folds, as in "
    f"the code of GIN, is {OPTIMISTIC}",
    "test-epoch-per-fold": "trained on all but the test graphs; the epoch with the best test accuracy of each fold, "
    f"as in the code of SOPool, is {OPTIMISTIC}",
    "frozen": "pretrained backbone, ridge regression; validation selects the settings, and the classifier is trained "
    "again on the training and validation images",
    "frozen-softmax": "as frozen, with softmax regression instead of ridge regression",
    "end-to-end": "the backbone is trained, too; training.validation tells how the validation images are used",
}
"""Known protocols, in the order of the tables. Those of episodes are described by their numbers."""


@dataclass(frozen=True)
class Row:
    """One method beside the paper and the baseline."""

    record: RunRecord
    interval: Interval | None
    """95 % interval: of the mean over folds or episodes, or of the share of correct samples."""
    paper: Figure | None
    to_baseline: float | None
    """Ours - baseline: on what both have where it can be paired, else of the means."""
    test: Comparison | None
    """None where nothing can be paired: other folds, test samples or test episodes, or no baseline."""

    @property
    def to_paper(self) -> float | None:
        """Ours - paper."""
        return None if self.paper is None else self.record.mean - self.paper.mean

    @property
    def is_within(self) -> bool | None:
        """Whether our mean is within one standard deviation of the paper's; None where the paper has none."""
        if self.paper is None or self.paper.std is None:
            return None
        return abs(self.record.mean - self.paper.mean) <= self.paper.std

    @property
    def validation(self) -> float | None:
        """Validation accuracy of the selected settings, averaged over runs."""
        return mean_of([None if one.validation is None else one.validation.value for one in self.record.results])


@dataclass(frozen=True)
class Group:
    """All methods of one data set under one protocol, with one backbone where there is one."""

    task: str
    data: str
    protocol: str
    backbone: str | None
    baseline: str
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        return f"{self.data}, {self.protocol}" + ("" if self.backbone is None else f" {self.backbone}")

    @property
    def metric(self) -> str:
        return self.records[0].metric

    @cached_property
    def records(self) -> list[RunRecord]:
        return [row.record for row in self.rows]

    @property
    def known(self) -> list[Row]:
        """The rows with a figure in the paper."""
        return [row for row in self.rows if row.paper is not None]

    @property
    def paper_setup(self) -> str | None:
        """What the paper's figures are for, where ours are for something else."""
        return describe_paper_setup([row.record for row in self.known])

    def find(self, method: str) -> Row | None:
        """Return the row of a method."""
        return next((row for row in self.rows if row.record.method == method), None)

    def encoder_of(self, record: RunRecord) -> RunRecord | None:
        """Return the record of the trainings whose encoders a method starts from; None if they are not in the table.

        They are found by their data, method and number of episodes.
        """
        part, data, method = (get_setting(record, "pretraining", name) for name in ("part", "data", "method"))
        row = self.find(str(method)) if part == "encoder" and data == self.data else None
        episodes = get_count(record, "pretraining", "episodes")
        return row.record if row and get_count(row.record, "training", "episodes") == episodes else None


def group_records(
    records: Iterable[RunRecord], baseline: str | None = None, order: Sequence[str] | None = None
) -> list[Group]:
    """Sort records into groups.

    Args:
        records: at most one for each data set, protocol, backbone and method.
        baseline: the method that the others are compared with; default: that of the task, or one of
            ``OTHER_BASELINES``.
        order: of the methods; default: that of the task. Other methods follow by name.
    """
    found: dict[tuple[str, str, str, str], dict[str, RunRecord]] = {}
    for record in records:
        key = (record.task, record.data, record.protocol, get_backbone(record) or "")
        methods = found.setdefault(key, {})
        if record.method in methods:
            where = describe_record(record) + (f", backbone {key[3]}" if key[3] else "")
            raise RecordError(f"There is a second file for {where}. Keep one of them.")
        other = next((one for one in methods.values() if one.metric != record.metric), None)
        if other is not None:
            raise RecordError(
                f"A table cannot mix {other.metric!r} of {other.method} and {record.metric!r} of {record.method} "
                f"({record.data}, {record.protocol}). Move one of them to another folder."
            )
        methods[record.method] = record
    keys = sorted(found, key=lambda key: (*key[:2], _rank(key[2], tuple(PROTOCOLS)), key[3]))
    groups = []
    for key in keys:
        task, data, protocol, backbone = key
        methods, compared = found[key], FROZEN_BASELINE if task == "fewshot" and backbone else BASELINES[task]
        known: Sequence[str] = tuple(METHODS[task])
        if task == "graph" and backbone:
            compared, *known = (name_in_tables(name, backbone) for name in (compared, *known))
        if task == "fewshot" and compared not in methods:
            compared = next((name for name in OTHER_BASELINES if name in methods), compared)
        compared = baseline or compared
        names = sorted(methods, key=lambda name: _rank(name, known if order is None else order))
        rows = tuple(_make_row(methods[name], methods.get(compared)) for name in names)
        groups.append(Group(task, data, protocol, backbone or None, compared, rows))
    return groups


def describe_protocol(group: Group) -> str | None:
    """Return what the name of the protocol stands for; None for unknown names."""
    numbers = way_and_shot(group.protocol)
    if numbers is None:
        return PROTOCOLS.get(group.protocol)
    way, shot = numbers
    source = "the test episode (transductive)" if group.protocol.endswith("-transductive") else "training"
    images = f"{shot} support image{'' if shot == 1 else 's'}"
    if group.backbone is not None:
        return (
            f"{way} classes with {images} each; frozen backbone, parameters and penalties chosen on validation classes"
        )
    return f"{way} classes with {images} each; batch normalization with statistics of {source}"


def describe_test(group: Group) -> str:
    """Return what was tested on: folds, images or episodes."""
    results = [result for record in group.records for result in record.results]
    counts = format_range([record.count for record in group.records])
    if group.task == "graph":
        counts, seeds = (format_range(column) for column in zip(*map(count_folds, group.records), strict=True))
        return f"{counts} fold{'' if counts == '1' else 's'}" + ("" if seeds == "1" else f", {seeds} seeds on each")
    runs = "" if counts == "1" else f", {counts} runs per method"
    if group.task == "vision":
        return f"{format_range([one.count for one in results if isinstance(one, SplitResult)])} images{runs}"
    tested = [one for one in results if isinstance(one, EpisodeResult)]
    episodes = format_range([len(one.right) for one in tested])
    kind = "" if group.backbone is None else " of test episodes"
    seeds = f"{counts} {'' if kind else 'training '}seed{'' if counts == '1' else 's'}{kind} per method"
    return f"{episodes} episodes with {format_range([one.queries for one in tested])} queries each, {seeds}"


def list_seeds(group: Group) -> list[int]:
    """Return the seeds of all runs."""
    pairs = ((record, getattr(result, "seed", None)) for record in group.records for result in record.results)
    return sorted({record.seed if seed is None else seed for record, seed in pairs})


def count_folds(record: RunRecord) -> tuple[int, int]:
    """Return the number of folds and the number of seeds on each."""
    folds = len({result.run(record.seed)[0] for result in record.results})
    return folds, -(-len(record.results) // folds)


def format_range(values: Iterable[int | None]) -> str:
    """Format one number, or the smallest and the largest; a dash for none."""
    numbers = sorted(value for value in values if value is not None)
    if not numbers:
        return "\N{EN DASH}"
    return str(numbers[0]) if numbers[0] == numbers[-1] else f"{numbers[0]} to {numbers[-1]}"


def mean_of(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if len(numbers) == len(values) else None


def _make_row(record: RunRecord, baseline: RunRecord | None) -> Row:
    interval, paper = compute_interval(record), record_figure(record)
    if baseline is None or baseline is record:
        return Row(record, interval, paper, None, None)
    test = compare_records(record, baseline)
    return Row(record, interval, paper, record.mean - baseline.mean if test is None else test.difference, test)


def _rank(name: str, order: Sequence[str]) -> tuple[int, list[str | int], str]:
    """Sort known names in their order, then the others, with 5-way before 20-way."""
    if name in order:
        return order.index(name), [], ""
    parts = re.split(r"(\d+)", name, flags=re.ASCII)
    return len(order), [int(part) if place % 2 else part for place, part in enumerate(parts)], name
