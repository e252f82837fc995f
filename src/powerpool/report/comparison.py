"""Intervals of results, and tests of two methods on the same folds, test samples or test episodes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from powerpool.report.results import accuracies, get_count, get_setting, is_right
from powerpool.runs.compare import mcnemar, paired_test, proportion_interval, summarize
from powerpool.runs.record import EpisodeResult, RunRecord, SplitResult

Interval = tuple[float, float]

NOT_TRAINED_ON = {"validation-only": 2, "retrain": 1}
"""Parts of the data, of as many as there are folds, that the tested model has not seen."""


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


def compute_interval(record: RunRecord) -> Interval | None:
    """Return the 95 % interval of the mean: over folds, of the share of correct samples, or over episodes."""
    if record.task == "vision":
        # Runs share the test samples, so that further runs are not further samples.
        runs = list(_flags(record).values())
        count = min(map(len, runs))
        share = math.fsum(sum(flags) / len(flags) for flags in runs) / len(runs)
        low, high = proportion_interval(share * count, count)
        return 100 * low, 100 * high
    return summarize(accuracies(record)).interval if record.task == "fewshot" else record.interval


def compare_records(record: RunRecord, other: RunRecord) -> Comparison | None:
    """Compare two records of one task; None where nothing can be paired.

    - Folds: a paired t-test, with the correction of Nadeau and Bengio (2003).
    - A test split: McNemar's test. Of several runs the difference is the mean, the interval spans theirs, and the
      p-value is the largest.
    - Episodes: a paired t-test over episodes, of the mean over runs.
    """
    if record.task == "vision":
        return _compare_splits(record, other)
    return _compare_episodes(record, other) if record.task == "fewshot" else _compare_folds(record, other)


def compare_gains(
    after: RunRecord, before: RunRecord, other_after: RunRecord, other_before: RunRecord
) -> Comparison | None:
    """Compare how much two methods gain, over the episodes and runs that all four records share."""
    records = (after, before, other_after, other_before)
    numbers = shared_runs(*records)
    if not numbers:
        return None
    values = [accuracies(record, numbers) for record in records]
    gain, other_gain = ([x - y for x, y in zip(*pair, strict=True)] for pair in (values[:2], values[2:]))
    found = paired_test(gain, other_gain, test_to_train=0.0)
    return Comparison(found.difference, found.interval, found.p_value, len(numbers))


def shared_runs(*records: RunRecord) -> list[int]:
    """Return the numbers of the runs that all records have; none where their test episodes differ."""
    if len({_test_episodes(record) for record in records}) > 1:
        return []
    return sorted(set.intersection(*({result.number for result in record.results} for record in records)))


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
    tests = [mcnemar(ours[number], theirs[number]) for number in numbers]
    lows, highs = zip(*(test.interval for test in tests), strict=True)
    difference = math.fsum(test.difference for test in tests) / len(tests)
    return Comparison(difference, (min(lows), max(highs)), max(test.p_value for test in tests), len(tests))


def _compare_episodes(record: RunRecord, other: RunRecord) -> Comparison | None:
    numbers = shared_runs(record, other)
    if not numbers:
        return None
    found = paired_test(accuracies(record, numbers), accuracies(other, numbers), test_to_train=0.0)
    return Comparison(found.difference, found.interval, found.p_value, len(numbers))


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
