"""Means and proportions with 95 % intervals, and paired tests of two methods, by SciPy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from powerpool.errors import ArgumentError, NotFiniteError

LEVEL = 0.95
"""Confidence level of every interval."""


@dataclass(frozen=True)
class Summary:
    """A mean and its spread; a single value has none, so ``std`` and ``interval`` are None."""

    count: int
    mean: float
    std: float | None
    """Sample standard deviation, with ``count - 1`` degrees of freedom."""
    interval: tuple[float, float] | None
    """95 % interval of the mean, by Student's t."""


@dataclass(frozen=True)
class PairedTest:
    """A paired comparison of two methods on the same folds."""

    difference: float
    """Mean of ``ours - baseline``."""
    interval: tuple[float, float]
    """95 % interval of the difference, which takes the folds as independent, as ``p_value`` does."""
    p_value: float
    """Of the two-sided paired t-test."""
    corrected_p_value: float
    """The same, with the variance corrected for overlapping training sets."""
    count: int


@dataclass(frozen=True)
class McNemarTest:
    """A comparison of two methods on the same test samples."""

    won: int
    """Samples that only ours classifies correctly."""
    lost: int
    """Samples that only the baseline classifies correctly."""
    count: int
    difference: float
    """Difference in accuracy, ours - baseline, in percentage points."""
    interval: tuple[float, float]
    """95 % interval of the difference, in percentage points."""
    p_value: float
    """Of the exact two-sided test."""


def summarize(values: Sequence[float]) -> Summary:
    """Return count, mean, standard deviation and the 95 % interval of the mean.

    Example:
        >>> summarize([3.0, 4.0, 5.0, 4.0]).mean
        4.0
        >>> summarize([80.0])
        Summary(count=1, mean=80.0, std=None, interval=None)
    """
    from scipy import stats

    values = _finite(values, "values")
    count = len(values)
    if count == 0:
        raise ArgumentError("values must hold at least one number (got none).")
    mean = math.fsum(values) / count
    if count == 1:
        return Summary(count, mean, None, None)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = float(stats.t.ppf((1 + LEVEL) / 2, count - 1)) * std / math.sqrt(count)
    return Summary(count, mean, std, (mean - half, mean + half))


def paired_test(ours: Sequence[float], baseline: Sequence[float], *, test_to_train: float) -> PairedTest:
    r"""Compare two methods on the same folds: value :math:`i` of both belongs to the same fold.

    .. math:: t = \frac{\bar d}{s / \sqrt n}, \qquad
        t_\text{corrected} = \frac{\bar d}{s \sqrt{1/n + n_\text{test} / n_\text{train}}}

    with the mean :math:`\bar d` and the standard deviation :math:`s` of the differences, and :math:`n - 1` degrees of
    freedom. Training sets of two folds overlap, so the differences are not independent and the first t is too large;
    the second has the correction of Nadeau and Bengio (2003).

    The corrected test covers the choice of training and test samples from one data set. Several seeds of a fold share
    its samples and are no further folds: pass their mean, as :meth:`powerpool.runs.record.RunRecord.paired` does. The
    variation over seeds then enters as part of the spread over folds. Neither test covers other data sets.

    Methods that agree on every fold have a p-value of 1; methods that differ by the same amount on every fold, of 0.

    Args:
        ours: values of one method.
        baseline: values of the other.
        test_to_train: size of a test set divided by the size of its training set; 1/8 where one of ten parts is tested,
            one is validated and eight are trained on.

    Example:
        >>> found = paired_test([3.0, 5.0, 4.0], [2.0, 3.0, 1.0], test_to_train=1 / 2)
        >>> found.difference, round(found.p_value, 4), round(found.corrected_p_value, 4)
        (2.0, 0.0742, 0.1598)
    """
    ours, baseline = _finite(ours, "ours"), _finite(baseline, "baseline")
    count = len(ours)
    if count != len(baseline) or count < 2:
        raise ArgumentError(
            f"ours and baseline must have one value for each of at least two folds (got {count} and {len(baseline)})."
        )
    if not 0.0 <= test_to_train < math.inf:
        raise ArgumentError(f"test_to_train must be >= 0 and finite (got {test_to_train}).")
    # Values that are equal up to round-off would otherwise differ "by the same amount on every fold".
    noise = 1e-12 * max(map(abs, (*ours, *baseline)))
    gaps = [mine - other for mine, other in zip(ours, baseline, strict=True)]
    summary = summarize([0.0 if abs(gap) <= noise else gap for gap in gaps])
    assert summary.std is not None
    assert summary.interval is not None
    plain, corrected = (
        _p_value(summary.mean, summary.std * math.sqrt(variance), count - 1)
        for variance in (1 / count, 1 / count + test_to_train)
    )
    return PairedTest(summary.mean, summary.interval, plain, corrected, count)


def proportion_interval(right: float, count: int, confidence: float = LEVEL) -> tuple[float, float]:
    r"""Return Wilson's score interval of a proportion, given :math:`k` right samples of :math:`n`.

    .. math:: \frac{k + z^2 / 2}{n + z^2} \pm \frac{z}{n + z^2} \sqrt{\frac{k (n - k)}{n} + \frac{z^2}{4}}

    with the quantile :math:`z` of the normal distribution. ``right`` may be a mean over runs, which SciPy does not
    take.

    Example:
        >>> low, high = proportion_interval(8, 10)
        >>> round(low, 4), round(high, 4)
        (0.4902, 0.9433)
    """
    if count < 1 or not 0 <= right <= count:
        raise ArgumentError(f"right must be from 0 to count, which must be at least 1 (got {right} of {count}).")
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence must be above 0 and below 1 (got {confidence}).")
    z = _normal_quantile(confidence)
    middle = (right + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * math.sqrt(right * (count - right) / count + z * z / 4)
    return (0.0 if right == 0 else middle - half), (1.0 if right == count else middle + half)


def mcnemar(ours: Sequence[bool], baseline: Sequence[bool]) -> McNemarTest:
    r"""Compare two methods on the same test samples, by McNemar's exact test.

    With :math:`b` samples won and :math:`c` lost the p-value is that of a two-sided binomial test of :math:`b` in
    :math:`b + c`. The interval of the difference is that of Bonett and Price (2012):

    .. math:: \tilde b - \tilde c \pm z \sqrt{\frac{\tilde b + \tilde c - (\tilde b - \tilde c)^2}{n + 2}},
        \qquad \tilde b = \frac{b + 1}{n + 2}, \quad \tilde c = \frac{c + 1}{n + 2}

    It is an approximation: near p = 0.05 the interval and the test may disagree.

    Args:
        ours: whether each sample was classified correctly by one method.
        baseline: the same for the other method.

    Example:
        >>> found = mcnemar([True, True, True, False, True, True], [True, False, False, True, False, False])
        >>> found.won, found.lost, found.difference, round(found.p_value, 4)
        (4, 1, 50.0, 0.375)
    """
    from scipy import stats

    count = len(ours)
    if count != len(baseline) or count == 0:
        raise ArgumentError(f"ours and baseline must have one entry for each sample (got {count} and {len(baseline)}).")
    won = sum(1 for mine, other in zip(ours, baseline, strict=True) if mine and not other)
    lost = sum(1 for mine, other in zip(ours, baseline, strict=True) if other and not mine)
    more, fewer = (won + 1) / (count + 2), (lost + 1) / (count + 2)
    half = _normal_quantile(LEVEL) * math.sqrt((more + fewer - (more - fewer) ** 2) / (count + 2))
    # With few samples the approximation may exceed the range of a difference.
    interval = (100 * max(-1.0, more - fewer - half), 100 * min(1.0, more - fewer + half))
    p_value = float(stats.binomtest(won, won + lost).pvalue) if won + lost else 1.0
    return McNemarTest(won, lost, count, 100 * (won - lost) / count, interval, p_value)


def _normal_quantile(confidence: float) -> float:
    from scipy import stats

    return float(stats.norm.ppf((1 + confidence) / 2))


def _p_value(mean: float, error: float, freedom: int) -> float:
    from scipy import stats

    if mean == 0:
        return 1.0
    return 0.0 if error == 0 else 2 * float(stats.t.sf(abs(mean) / error, freedom))


def _finite(values: Sequence[float], name: str) -> list[float]:
    numbers = [float(value) for value in values]
    bad = [number for number in numbers if not math.isfinite(number)]
    if bad:
        raise NotFiniteError(f"{name} must be finite (got {bad[0]}, one of {len(bad)} of {len(numbers)}).")
    return numbers
