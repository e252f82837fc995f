"""What the results of a record hold: answers by sample or episode, confusions and spectra; and tests of two records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from powerpool.errors import RecordError
from powerpool.runs.compare import mcnemar, paired_test, proportion_interval, summarize
from powerpool.runs.record import (
    Confusion,
    EpisodeResult,
    Result,
    RunRecord,
    Spectrum,
    SplitResult,
    pack_bits,
    unpack_bits,
)
from powerpool.runs.typed import Json

Interval = tuple[float, float]

STEPS = "episode"
"""The curve that says at which step the points of the others are; without it they are one epoch apart."""
CPU_SECONDS = "cpu_seconds"
"""The curve that says how much CPU time the training had taken at the points of the others."""
MISTAKES = 15
"""Pairs of classes in a table of the most frequent mistakes."""
NOT_TRAINED_ON = {"validation-only": 2, "retrain": 1, "test-epoch": 1, "test-epoch-per-fold": 1}
"""Parts of the data, of as many as there are folds, that the tested model has not seen."""


def get_setting(record: RunRecord, *names: str) -> Json:
    """Return a setting of a record, by the names of nested groups; None if the record does not have it."""
    value: Json = record.config
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def get_count(record: RunRecord, *names: str) -> int | None:
    """Return a setting that is a whole number; None if the record does not have it."""
    value = get_setting(record, *names)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def get_backbone(record: RunRecord) -> str | None:
    """Return the name of the backbone; None for GIN0 and for tasks without one."""
    value = get_setting(record, *(("model", "backbone") if record.task == "graph" else ("backbone",)))
    return value if isinstance(value, str) and value not in ("", "GIN0") else None


def describe_record(record: RunRecord) -> str:
    """Name a record in an error."""
    return f"the record of {record.method} on {record.data}, protocol {record.protocol}"


def is_right(result: SplitResult) -> list[bool]:
    """Whether each test sample was classified correctly.

    Example:
        >>> is_right(SplitResult(number=0, value=66.67, test_loss=0, seconds=0, top5=100, count=3, right="a0"))
        [True, False, True]
    """
    is_hexadecimal = set(result.right) <= set("0123456789abcdef")
    flags = unpack_bits(result.right, result.count) if is_hexadecimal else []
    if not flags or len(flags) != result.count or pack_bits(torch.tensor(flags)) != result.right:
        raise RecordError(
            f"right must have a bit for each of {result.count} samples (got {len(result.right)} hexadecimal digits)."
        )
    return flags


def accuracies(record: RunRecord, numbers: Sequence[int] | None = None) -> list[float]:
    """Return the accuracy in % of every test episode, averaged over the runs with the given numbers, or over all."""
    runs = [
        result.accuracies
        for result in record.results
        if isinstance(result, EpisodeResult) and (numbers is None or result.number in numbers)
    ]
    if len(set(map(len, runs))) > 1:
        raise RecordError(
            f"All runs must have the same test episodes in {describe_record(record)} (got {list(map(len, runs))})."
        )
    return [math.fsum(values) / len(values) for values in zip(*runs, strict=True)]


def sum_confusions(record: RunRecord) -> Confusion | None:
    """Sum the confusion matrices of all results; None unless every result has one."""
    found = [result.confusion for result in record.results if result.confusion is not None]
    if len(found) < len(record.results):
        return None
    if len({one.classes for one in found}) > 1:
        raise RecordError(f"All results must have the same classes in {describe_record(record)}.")
    total = torch.stack([torch.tensor(one.dense()) for one in found]).sum(0)
    return Confusion.of(total, found[0].classes)


def row_shares(confusion: Confusion) -> dict[tuple[int, int], float]:
    """Return shares in % of the true class, by the indices of the true and the predicted class; zeros are left out.

    Example:
        >>> row_shares(Confusion(("cat", "dog"), ("0 0 5", "1 0 1", "1 1 3")))
        {(0, 0): 100.0, (1, 0): 25.0, (1, 1): 75.0}
    """
    return {
        (true, predicted): 100 * count / sum(row)
        for true, row in enumerate(confusion.dense())
        for predicted, count in enumerate(row)
        if count
    }


def frequent_mistakes(records: Iterable[RunRecord]) -> list[tuple[str, ...]]:
    """Return the pairs of classes that the records confuse most often, taken together.

    Returns:
        For each pair the true class, the predicted class, and for each record ``3 (15 %)``: the count and its share of
        the class.
    """
    total: Counter[tuple[str, str]] = Counter()
    cells: list[dict[tuple[str, str], str]] = []
    for found in filter(None, map(sum_confusions, records)):
        rows, own = found.dense(), {}
        for (true, predicted), share in row_shares(found).items():
            if true != predicted:
                pair = found.classes[true], found.classes[predicted]
                total[pair] += rows[true][predicted]
                own[pair] = f"{rows[true][predicted]} ({share:.0f} %)"
        cells.append(own)
    most = sorted(total, key=lambda pair: (-total[pair], pair))[:MISTAKES]
    return [(*pair, *(own.get(pair, "0") for own in cells)) for pair in most]


def mean_spectrum(record: RunRecord) -> Spectrum | None:
    """Average the spectra of all results with matrices of the most frequent size; None without spectra."""
    found = [result.spectrum for result in record.results if result.spectrum is not None]
    if not found:
        return None
    sizes = Counter(one.size for one in found)
    size = max(sizes, key=lambda size: (sizes[size], size))
    own = [one for one in found if one.size == size]
    if len({one.ranks for one in own}) > 1:
        raise RecordError(f"Spectra of one size must have the same ranks in {describe_record(record)}.")
    before, after = (
        tuple(math.fsum(column) / len(column) for column in zip(*rows, strict=True))
        for rows in ([one.before for one in own], [one.after for one in own])
    )
    return Spectrum(sum(one.samples for one in own), size, own[0].ranks, before, after)


def check_record(record: RunRecord) -> None:
    """Refuse a record whose answers, confusions or curves are damaged or contradict its values."""
    try:
        for result in record.results:
            _check_result(result)
    except RecordError as error:
        raise RecordError(f"Result {result.number} of {describe_record(record)} is damaged: {error}") from error
    sum_confusions(record)
    mean_spectrum(record)
    if record.task == "fewshot":
        accuracies(record)


def _check_result(result: Result) -> None:
    if isinstance(result, SplitResult):
        _check_value(result, sum(is_right(result)), result.count)
    elif isinstance(result, EpisodeResult):
        if len(result.right) < 2 or min(result.right) < 0 or max(result.right) > result.queries or result.queries < 1:
            raise RecordError(f"right must have at least two counts from 0 to queries (got queries {result.queries}).")
        _check_value(result, sum(result.right), result.queries * len(result.right))
    if result.confusion is not None:
        if len(set(result.confusion.classes)) < len(result.confusion.classes):
            raise RecordError("confusion.classes must be different.")
        rows = result.confusion.dense()
        _check_value(result, sum(row[true] for true, row in enumerate(rows)), sum(map(sum, rows)))
    lengths = {len(curve) for curve in result.curves.values() if curve}
    if STEPS in result.curves and len(lengths) > 1:
        raise RecordError(f"every curve must have a point for each {STEPS} (got {sorted(lengths)} points).")


def _check_value(result: Result, right: int, count: int) -> None:
    if abs(right - result.value * count / 100) >= 0.5:  # to the sample: a value may have been rounded
        raise RecordError(f"value is {result.value} %, but {right} of {count} are right. Restore the file.")


# ---- comparisons -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """The difference of two methods on the same folds, test samples or test episodes."""

    difference: float
    """Ours - the other."""
    interval: Interval
    """95 % interval of the difference."""
    p_value: float
    count: int
    """Folds or runs that both have."""
    corrected_p_value: float | None = None
    """With the variance corrected for overlapping training sets; None where there are no folds."""
    unit: Literal["folds", "images", "episodes", "seeds"] = "folds"
    """What the interval and the p-value take as independent; they say nothing about the variation of anything else."""


def compute_interval(record: RunRecord) -> Interval | None:
    """Return the 95 % interval of the mean: over folds, of the share of correct samples, or over episodes."""
    if record.task == "vision":
        # Runs share the test samples, so that further runs are not further samples.
        runs = list(_flags(record).values())
        count = min(map(len, runs))
        share = math.fsum(sum(flags) / len(flags) for flags in runs) / len(runs)
        low, high = proportion_interval(share * count, count)
        return 100 * low, 100 * high
    if record.task == "fewshot":
        return summarize(accuracies(record)).interval
    return record.interval


def compare_records(record: RunRecord, other: RunRecord) -> Comparison | None:
    """Compare two records of one task; None where nothing can be paired.

    - Folds: a paired t-test over folds, of the mean over seeds, with the correction of Nadeau and Bengio (2003).
    - A test split: McNemar's test; of several runs, a paired t-test over runs.
    - Episodes: a paired t-test over training seeds; with one seed, or without training, over episodes.
    """
    if record.task == "vision":
        return _compare_splits(record, other)
    return compare_episodes([record], [other]) if record.task == "fewshot" else _compare_folds(record, other)


def compare_episodes(ours: Sequence[RunRecord], theirs: Sequence[RunRecord]) -> Comparison | None:
    """Compare two methods over the runs that all records share; None if there are none.

    The unit is the training seed, because a method is what is trained again: its seeds vary by more than the episodes
    of one test. One seed leaves the episodes as the unit, which establishes a difference between two trained networks,
    not between two methods. Frozen features are not trained, and their unit is the episode.

    Args:
        ours: one record, or the records after and before a change, whose gain is compared.
        theirs: as many records of the other method.
    """
    records = (*ours, *theirs)
    numbers = sorted(set.intersection(*({result.number for result in record.results} for record in records)))
    if not numbers or len({_test_episodes(record) for record in records}) > 1:
        return None
    by_seed = len(numbers) > 1 and any(get_setting(record, "training") is not None for record in records)
    sides = []
    for side in (ours, theirs):
        columns = [_values(record, numbers) if by_seed else accuracies(record, numbers) for record in side]
        sides.append([first - sum(others) for first, *others in zip(*columns, strict=True)])
    found = paired_test(*sides, test_to_train=0.0)
    unit: Literal["episodes", "seeds"] = "seeds" if by_seed else "episodes"
    return Comparison(found.difference, found.interval, found.p_value, len(numbers), unit=unit)


def _values(record: RunRecord, numbers: Sequence[int]) -> list[float]:
    """Return the accuracies of the runs with the given numbers, in their order."""
    found = {result.number: result.value for result in record.results}
    return [found[number] for number in numbers]


def _compare_folds(record: RunRecord, other: RunRecord) -> Comparison | None:
    # Folds of the same number hold the same samples only where all that they depend on is the same.
    cuts = {(one.seed, get_setting(one, "folds"), get_setting(one, "data_digest")) for one in (record, other)}
    values = record.paired(other)
    if len(cuts) > 1 or len(values[0]) < 2:
        return None
    # A record may hold fewer folds than the data were divided into.
    parts = get_count(record, "folds") or record.count
    train = max(1, parts - NOT_TRAINED_ON.get(record.protocol, 2))
    found = paired_test(*values, test_to_train=1 / train)
    return Comparison(found.difference, found.interval, found.p_value, found.count, found.corrected_p_value)


def _compare_splits(record: RunRecord, other: RunRecord) -> Comparison | None:
    # The digest covers the test split, and the seed of a record is that of training alone.
    if get_setting(record, "data_digest") != get_setting(other, "data_digest"):
        return None
    ours, theirs = _flags(record), _flags(other)
    numbers = sorted(ours.keys() & theirs.keys())
    if not numbers or any(len(ours[number]) != len(theirs[number]) for number in numbers):
        return None
    if len(numbers) > 1:
        found = paired_test(*record.paired(other), test_to_train=0.0)
        return Comparison(found.difference, found.interval, found.p_value, found.count, unit="seeds")
    single = mcnemar(ours[numbers[0]], theirs[numbers[0]])
    return Comparison(single.difference, single.interval, single.p_value, 1, unit="images")


def _flags(record: RunRecord) -> dict[int, list[bool]]:
    """Whether each test sample is right, by the number of the run."""
    return {result.number: is_right(result) for result in record.results if isinstance(result, SplitResult)}


def _test_episodes(record: RunRecord) -> tuple[object, ...]:
    """Return all that the test episodes depend on."""
    sizes = {(one.queries, len(one.right)) for one in record.results if isinstance(one, EpisodeResult)}
    test = [get_setting(record, "test", name) for name in ("way", "shot", "queries")]
    # In a transductive test the prediction for a query depends on the others.
    transductive = bool(get_setting(record, "test", "transductive"))
    return (str(get_setting(record, "data_digest")), record.protocol, str(test), transductive, tuple(sorted(sizes)))
