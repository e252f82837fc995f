"""Means, shares, intervals and paired tests: against SciPy, and against numbers worked by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from powerpool.errors import ArgumentError, NotFiniteError
from powerpool.runs.compare import (
    McNemarTest,
    Summary,
    mcnemar,
    paired_test,
    proportion_interval,
    summarize,
)


@pytest.mark.parametrize("count", [2, 3, 10, 600])
def test_a_summary_is_that_of_scipy(count: int) -> None:
    draw = random.Random(count)
    values = [draw.gauss(80, 5) for _ in range(count)]
    found = summarize(values)
    interval = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert found.mean == pytest.approx(sum(values) / count, rel=1e-12)
    assert found.std == pytest.approx(stats.tstd(values), rel=1e-12)
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-10)


def test_one_value_has_no_spread_and_equal_values_have_none() -> None:
    assert summarize([81.5]) == Summary(1, 81.5, None, None)
    assert summarize([81.5, 81.5, 81.5]) == Summary(3, 81.5, 0.0, (81.5, 81.5))


def test_nothing_and_what_is_not_finite_are_refused() -> None:
    with pytest.raises(ArgumentError, match="at least one number"):
        summarize([])
    with pytest.raises(NotFiniteError, match=r"values must be finite .got nan, one of 2 of 3"):
        summarize([1.0, math.nan, math.inf])


@pytest.mark.parametrize("count", [2, 3, 10, 50])
@pytest.mark.parametrize("gap", [0.0, 0.5, -20.0])
def test_a_paired_test_is_that_of_scipy(count: int, gap: float) -> None:
    draw = random.Random(count)
    baseline = [draw.gauss(80, 5) for _ in range(count)]
    ours = [value + draw.gauss(gap, 2) for value in baseline]
    found, oracle = paired_test(ours, baseline, test_to_train=1 / 8), stats.ttest_rel(ours, baseline)
    interval = oracle.confidence_interval(0.95)
    assert found.p_value == pytest.approx(oracle.pvalue, rel=1e-9)
    assert found.interval == pytest.approx((interval.low, interval.high), rel=1e-9)
    corrected = oracle.statistic / math.sqrt(1 + count / 8)
    assert found.corrected_p_value == pytest.approx(2 * stats.t.sf(abs(corrected), count - 1), rel=1e-9)
    assert found.corrected_p_value > found.p_value
    # Without overlap there is nothing to correct, and turning the comparison round changes the sign only.
    assert paired_test(ours, baseline, test_to_train=0.0).corrected_p_value == pytest.approx(found.p_value)
    turned = paired_test(baseline, ours, test_to_train=1 / 8)
    assert (turned.difference, turned.p_value) == (-found.difference, found.p_value)


def test_equal_methods_have_p_1_and_a_constant_gap_has_p_0() -> None:
    values = [80.0, 85.0, 90.0]
    same = paired_test(values, values, test_to_train=1 / 2)
    assert (same.difference, same.interval, same.p_value, same.corrected_p_value) == (0.0, (0.0, 0.0), 1.0, 1.0)
    gap = paired_test([81.0, 86.0, 91.0], values, test_to_train=1 / 2)
    assert (gap.difference, gap.interval, gap.p_value, gap.corrected_p_value) == (1.0, (1.0, 1.0), 0.0, 0.0)
    # The gains cancel: the mean is 0 though the folds differ.
    assert paired_test([81.0, 84.0], [80.0, 85.0], test_to_train=1 / 2).p_value == 1.0


def test_round_off_is_no_difference() -> None:
    assert 0.1 + 0.2 != 0.3
    found = paired_test([0.1 + 0.2] * 3, [0.3] * 3, test_to_train=1 / 2)
    assert (found.difference, found.p_value) == (0.0, 1.0)
    assert paired_test([0.0, 0.0], [0.0, 0.0], test_to_train=1 / 2).p_value == 1.0


def test_what_cannot_be_compared_is_refused() -> None:
    for ours, baseline, ratio, message in (
        ([1.0, 2.0], [1.0], 0.1, "got 2 and 1"),
        ([1.0], [2.0], 0.1, "two folds.*1 and 1"),
        ([1.0, 2.0], [1.0, 2.0], math.nan, "test_to_train.*nan"),
        ([1.0, 2.0], [1.0, math.nan], 0.1, "baseline.*nan"),
    ):
        with pytest.raises(ValueError, match=message):
            paired_test(ours, baseline, test_to_train=ratio)


@given(st.integers(1, 60_000), st.floats(0, 1), st.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_wilsons_interval_is_that_of_scipy_and_solves_its_equation(count: int, share: float, confidence: float) -> None:
    right = round(share * count)
    low, high = proportion_interval(right, count, confidence)
    oracle = stats.binomtest(right, count).proportion_ci(confidence, method="wilson")
    assert (low, high) == pytest.approx((oracle.low, oracle.high), abs=1e-12)
    assert 0 <= low <= right / count <= high <= 1
    assert low < high
    # Each bound is a share p that is z of its own standard deviations from the one that was found.
    z = stats.norm.ppf((1 + confidence) / 2)
    for bound in (low, high):
        assert (right / count - bound) ** 2 == pytest.approx(z**2 * bound * (1 - bound) / count, abs=1e-12)


def test_the_ends_of_wilsons_interval_are_exact_and_the_default_is_95_percent() -> None:
    for count in range(1, 300):
        assert proportion_interval(0, count)[0] == 0.0
        assert proportion_interval(count, count)[1] == 1.0
    assert proportion_interval(3, 10) == proportion_interval(3, 10, 0.95)
    assert proportion_interval(2.5, 10)[0] == pytest.approx(
        sum(proportion_interval(k, 10)[0] for k in (2, 3)) / 2, abs=0.01
    )


def test_shares_that_are_none_are_refused() -> None:
    for right, count, confidence, message in (
        (0, 0, 0.95, "0 of 0"),
        (6, 5, 0.95, "6 of 5"),
        (math.nan, 5, 0.95, "nan of 5"),
        (3, 5, 95, "confidence.*95"),
    ):
        with pytest.raises(ArgumentError, match=message):
            proportion_interval(right, count, confidence)


def answers(both: int, won: int, lost: int, neither: int) -> tuple[list[bool], list[bool]]:
    ours = [True] * both + [True] * won + [False] * lost + [False] * neither
    return ours, [True] * both + [False] * won + [True] * lost + [False] * neither


def test_mcnemars_test_worked_by_hand() -> None:
    # Of 6 tosses at most one on the rarer side: 2 (1 + 6) / 64.
    found = mcnemar(*answers(both=10, won=5, lost=1, neither=4))
    assert (found.won, found.lost, found.count) == (5, 1, 20)
    assert found.difference == pytest.approx(20.0)
    assert found.p_value == pytest.approx(14 / 64, rel=1e-12)
    # The example of the function ci.prop.ps in the R package statpsych.
    found = mcnemar(*answers(both=6, won=26, lost=4, neither=12))
    assert found.interval == pytest.approx((25.48067, 62.51933), abs=1e-5)
    assert found.difference == pytest.approx(100 * 22 / 48)


@given(*[st.integers(0, 400)] * 4)
def test_mcnemars_test_is_that_of_scipy(both: int, won: int, lost: int, neither: int) -> None:
    count = both + won + lost + neither
    if count == 0:
        return
    ours, theirs = answers(both, won, lost, neither)
    found, turned = mcnemar(ours, theirs), mcnemar(theirs, ours)
    expected = stats.binomtest(won, won + lost).pvalue if won + lost else 1.0
    assert (found.won, found.lost, found.count) == (won, lost, count)
    assert found.p_value == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert found.difference == pytest.approx(100 * (sum(ours) - sum(theirs)) / count)
    assert -100 <= found.interval[0] <= found.difference <= found.interval[1] <= 100
    low, high = found.interval
    assert turned == McNemarTest(lost, won, count, -found.difference, (-high, -low), found.p_value)


def test_p_is_1_where_items_are_won_and_lost_as_evenly_as_can_be() -> None:
    for won, lost in ((0, 0), (7, 7), (8, 7), (7, 8), (0, 1), (20_001, 20_000)):
        assert mcnemar(*answers(1, won, lost, 0)).p_value == 1.0


def test_items_that_do_not_match_are_refused() -> None:
    with pytest.raises(ArgumentError, match="got 2 and 1"):
        mcnemar([True, False], [True])
    with pytest.raises(ArgumentError, match="got 0 and 0"):
        mcnemar([], [])
