"""What the results of a record hold beside their values: answers by sample or episode, confusions and spectra."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from powerpool.errors import RecordError
from powerpool.runs.record import Confusion, EpisodeResult, Result, RunRecord, Spectrum, SplitResult, unpack_bits
from powerpool.runs.typed import Json

STEPS = "episode"
"""The curve that says at which step the points of the others are; without it they are one epoch apart."""
MISTAKES = 15
"""Pairs of classes in a table of the most frequent mistakes."""


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
    """Return the name of the backbone; None for tasks without one."""
    value = get_setting(record, "backbone")
    return value if isinstance(value, str) and value else None


def describe_record(record: RunRecord) -> str:
    """Name a record in an error."""
    return f"the record of {record.method} on {record.data}, protocol {record.protocol}"


def is_right(result: SplitResult) -> list[bool]:
    """Whether each test sample was classified correctly.

    Example:
        >>> is_right(SplitResult(number=0, value=66.67, test_loss=0, seconds=0, top5=100, count=3, right="a0"))
        [True, False, True]
    """
    digits = 2 * math.ceil(result.count / 8)
    if result.count < 1 or not re.fullmatch(rf"[0-9a-f]{{{digits}}}", result.right):
        raise RecordError(
            f"right must have {digits} hexadecimal digits for {result.count} samples (got {len(result.right)} digits)."
        )
    flags = unpack_bits(result.right, 4 * digits)
    if any(flags[result.count :]):
        raise RecordError(f"right must not mark more samples than there are ({result.count}).")
    return flags[: result.count]


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
    if len(found) < record.count:
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
