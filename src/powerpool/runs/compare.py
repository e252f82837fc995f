"""Means and shares with intervals, and tests of two methods on the same folds or the same test items.

A leaf of the import graph. Student's distribution and the binomial one are computed here: a run that took hours must
not fail at its last step because SciPy is missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

from powerpool.errors import ArgumentError, NotFiniteError

LEVEL = 0.95
"""Confidence level of every interval."""


@dataclass(frozen=True)
class Summary:
    """A mean, and what is known of its spread.

    One value alone has no spread: ``std`` and ``interval`` are None, and never 0.
    """

    count: int
    mean: float
    std: float | None
    """Of the sample: the sum of squares is divided by ``count - 1``."""
    interval: tuple[float, float] | None
    """Where the mean of the population lies with a confidence of 95 %, by Student's t."""


@dataclass(frozen=True)
class PairedTest:
    """How far two methods are apart on the same folds, and how likely so large a difference is by chance alone."""

    difference: float
    """Mean of ours - baseline."""
    interval: tuple[float, float]
    """Of the difference, with a confidence of 95 %; it belongs to ``p_value`` and takes folds for independent."""
    p_value: float
    """Of the paired, two-sided t-test."""
    corrected_p_value: float
    """The same, with the variance that overlapping training sets call for."""
    count: int


@dataclass(frozen=True)
class McNemarTest:
    """Two methods on the same test items: who was right where the other was wrong."""

    won: int
    """Items that ours has right and the baseline wrong."""
    lost: int
    """Items that ours has wrong and the baseline right."""
    count: int
    difference: float
    """Of the shares of right items, ours - baseline, in percentage points."""
    interval: tuple[float, float]
    """Of the difference, with a confidence of 95 %, in percentage points."""
    p_value: float
    """Of the exact, two-sided test: how likely so uneven a share of won and lost is if each is as likely."""


def summarize(values: Sequence[float]) -> Summary:
    """Count, mean, standard deviation and the 95 % interval of the mean.

    Example:
        >>> summarize([3.0, 4.0, 5.0, 4.0]).mean
        4.0
        >>> summarize([80.0])
        Summary(count=1, mean=80.0, std=None, interval=None)
    """
    values = _finite(values, "values")
    count = len(values)
    if count == 0:
        raise ArgumentError("values must hold at least one number (got none): nothing has no mean.")
    mean = math.fsum(values) / count
    if count == 1:
        return Summary(count, mean, None, None)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_quantile(count - 1) * std / math.sqrt(count)
    return Summary(count, mean, std, (mean - half, mean + half))


def paired_test(ours: Sequence[float], baseline: Sequence[float], *, test_to_train: float) -> PairedTest:
    r"""Compare two methods on the same folds: value :math:`i` of both belongs to the same fold.

    .. math:: t = \frac{\bar d}{s / \sqrt n}, \qquad
        t_\text{corrected} = \frac{\bar d}{s \sqrt{1/n + n_\text{test} / n_\text{train}}}

    with the mean :math:`\bar d` and the standard deviation :math:`s` of the differences, and :math:`n - 1` degrees of
    freedom. Training sets of two folds share most of their items, so that the differences are not independent and the
    first t is too large; the second is the correction of Nadeau and Bengio (2003).

    Methods that agree on every fold have a p-value of 1; those that differ by the same amount on every fold, of 0.

    Args:
        ours: values of one method.
        baseline: values of the other.
        test_to_train: items in a test set for every item in its training set; 1/8 where one part of ten is tested on,
            one is validated on, and eight are trained on.

    Example:
        >>> found = paired_test([3.0, 5.0, 4.0], [2.0, 3.0, 1.0], test_to_train=1 / 2)
        >>> found.difference, round(found.p_value, 4), round(found.corrected_p_value, 4)
        (2.0, 0.0742, 0.1598)
    """
    ours, baseline = _finite(ours, "ours"), _finite(baseline, "baseline")
    if len(ours) != len(baseline):
        raise ArgumentError(
            f"ours and baseline must have one value for each fold (got {len(ours)} and {len(baseline)}). "
            "Keep the folds that both have."
        )
    count = len(ours)
    if count < 2:
        raise ArgumentError(f"A paired test needs at least two folds (got {count}). Run more folds.")
    if not 0.0 <= test_to_train < math.inf:
        raise ArgumentError(
            f"test_to_train must be >= 0 and finite (got {test_to_train}); with k folds it is 1 / (k - 1)."
        )
    # Two values that are the same number but for round-off would otherwise differ "by the same amount on every fold".
    noise = 1e-12 * max(map(abs, (*ours, *baseline)))
    gaps = [mine - other for mine, other in zip(ours, baseline, strict=True)]
    summary = summarize([0.0 if abs(gap) <= noise else gap for gap in gaps])
    assert summary.std is not None
    assert summary.interval is not None
    p_values = [
        _p_value(summary.mean, summary.std * math.sqrt(variance), count - 1)
        for variance in (1 / count, 1 / count + test_to_train)
    ]
    return PairedTest(summary.mean, summary.interval, p_values[0], p_values[1], count)


def proportion_interval(right: float, count: int, confidence: float = LEVEL) -> tuple[float, float]:
    r"""Where the share of right items lies, given :math:`k` right ones of :math:`n`: Wilson's score interval.

    .. math:: \frac{k + z^2 / 2}{n + z^2} \pm \frac{z}{n + z^2} \sqrt{\frac{k (n - k)}{n} + \frac{z^2}{4}}

    with the quantile :math:`z` of the normal distribution. It stays within 0 and 1, and it has a width where all items
    are right, or none.

    Args:
        right: number of right items. A mean over several runs need not be whole.
        count: number of items.
        confidence: probability that such intervals hold the share, above 0 and below 1.

    Example:
        >>> low, high = proportion_interval(8, 10)
        >>> round(low, 4), round(high, 4)
        (0.4902, 0.9433)
    """
    if count < 1:
        raise ArgumentError(f"count must be at least 1 (got {count}): of no items there is no share.")
    if not 0 <= right <= count:
        raise ArgumentError(f"right must be at least 0 and at most count, {count} (got {right}).")
    if not 0 < confidence < 1:
        raise ArgumentError(f"confidence must be above 0 and below 1 (got {confidence}); 0.95 is usual.")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    middle = (right + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * math.sqrt(right * (count - right) / count + z * z / 4)
    # At the ends the bound is 0 or 1, and round-off may not move it: an interval holds what it is the interval of.
    return (0.0 if right == 0 else middle - half), (1.0 if right == count else middle + half)


def mcnemar(ours: Sequence[bool], baseline: Sequence[bool]) -> McNemarTest:
    r"""Compare two methods on the same test items: entry :math:`i` of both says whether item :math:`i` was right.

    .. math:: p = \min\Big(1,\ 2 \sum_{k=0}^{\min(b, c)} \binom{b + c}{k} 2^{-(b + c)}\Big)

    with :math:`b` items won and :math:`c` lost. Items that both have right, or both wrong, say nothing about which is
    better. This is McNemar's test in its exact form, for few as for many items.

    The interval of the difference is that of Bonett and Price (2012), Wald's with one more item won and one more lost:

    .. math:: \tilde b - \tilde c \pm z \sqrt{\frac{\tilde b + \tilde c - (\tilde b - \tilde c)^2}{n + 2}},
        \qquad \tilde b = \frac{b + 1}{n + 2}, \quad \tilde c = \frac{c + 1}{n + 2}

    It is an approximation: close to p = 0.05 it may hold 0 where p is below, or the other way round.

    Example:
        >>> found = mcnemar([True, True, True, False, True, True], [True, False, False, True, False, False])
        >>> found.won, found.lost, found.difference, round(found.p_value, 4)
        (4, 1, 50.0, 0.375)
    """
    if len(ours) != len(baseline):
        raise ArgumentError(
            f"ours and baseline must have one entry for each item (got {len(ours)} and {len(baseline)}). "
            "Test both on the same items."
        )
    count = len(ours)
    if count == 0:
        raise ArgumentError("ours and baseline must have at least one item (got none).")
    won = sum(1 for mine, other in zip(ours, baseline, strict=True) if mine and not other)
    lost = sum(1 for mine, other in zip(ours, baseline, strict=True) if other and not mine)
    more, fewer = (won + 1) / (count + 2), (lost + 1) / (count + 2)
    half = NormalDist().inv_cdf((1 + LEVEL) / 2) * math.sqrt((more + fewer - (more - fewer) ** 2) / (count + 2))
    # With few items the approximation may reach beyond what a difference can be.
    interval = (100 * max(-1.0, more - fewer - half), 100 * min(1.0, more - fewer + half))
    return McNemarTest(won, lost, count, 100 * (won - lost) / count, interval, _sign_p_value(won, lost))


@cache
def t_quantile(freedom: int) -> float:
    """The t that Student's t exceeds in absolute value with a probability of 5 %.

    Example:
        >>> round(t_quantile(9), 4)
        2.2622
    """
    low, high = 1.0, 16.0  # from the normal distribution's 1.96 to 12.71 for one degree of freedom
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        low, high = (middle, high) if t_tail(middle, freedom) > 1 - LEVEL else (low, middle)


def t_tail(t: float, freedom: int) -> float:
    r"""Probability that Student's t exceeds ``t`` in absolute value: the incomplete beta function.

    .. math:: I_x(\nu / 2, 1 / 2), \qquad x = \nu / (\nu + t^2)
    """
    square = t * t  # 0 or infinite where t is beyond what a float can square
    x = freedom / (freedom + square)
    return x if x in (0, 1) else _incomplete_beta(freedom / 2, 0.5, x, square / (freedom + square))


def _sign_p_value(won: int, lost: int) -> float:
    r"""Probability that a fair coin, tossed ``won + lost`` times, shows its sides at least as unevenly as this.

    .. math:: 2 P(K \le k) = 2 I_{1/2}(n - k, k + 1), \qquad n = b + c, \quad k = \min(b, c)

    No binomial coefficient is formed: those of some thousand items are beyond what a float can hold.
    """
    if abs(won - lost) <= 1:
        return 1.0  # as even as can be
    return 2 * _incomplete_beta(max(won, lost), min(won, lost) + 1, 0.5, 0.5)


def _incomplete_beta(a: float, b: float, x: float, rest: float) -> float:
    """The regularized incomplete beta function at ``x`` above 0 and below 1; ``rest`` is 1 - x without round-off."""
    scale = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest))
    # The fraction converges fast on one side of the mean of the beta distribution; the other side is the complement.
    if x < (a + 1) / (a + b + 2):
        return scale * _beta_fraction(a, b, x) / a
    return 1 - scale * _beta_fraction(b, a, rest) / b


def _p_value(mean: float, error: float, freedom: int) -> float:
    if mean == 0:
        return 1.0
    return 0.0 if error == 0 else t_tail(abs(mean) / error, freedom)


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, evaluated from the front by Lentz's method."""
    upper, lower = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = lower
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        step = 1.0
        for term in (even, odd):
            lower, upper = 1 / (1 + term * lower), 1 + term / upper
            step = lower * upper
            value *= step
        if abs(step - 1) < 1e-15:
            break
    return value


def _finite(values: Sequence[float], name: str) -> list[float]:
    numbers = [float(value) for value in values]
    bad = [number for number in numbers if not math.isfinite(number)]
    if bad:
        raise NotFiniteError(
            f"{name} must be finite (got {bad[0]}, one of {len(bad)} of {len(numbers)}). "
            "Look for the run that made it: a mean over the others would hide it."
        )
    return numbers
