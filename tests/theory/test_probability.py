"""Curves as probabilities: by enumeration, with fractions, and by exact sums."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import powerpool as pp
from powerpool import theory
from powerpool.errors import ArgumentError
from tests.theory.grids import F64, few_examples

probabilities = st.floats(0.0, 1.0)


@pytest.mark.parametrize("trials", [1, 2, 7])
@pytest.mark.parametrize("p", [Fraction(0), Fraction(1, 7), Fraction(1, 2), Fraction(1)])
def test_at_least_one_by_enumeration(p, trials):
    """Prop. maxexp: the sum of the probabilities of all vectors of {0, 1}^N with a one, with fractions."""
    total = sum(
        math.prod((p if event else 1 - p) for event in events)
        for events in itertools.product((0, 1), repeat=trials)
        if any(events)
    )
    assert theory.at_least_one(float(p), trials) == pytest.approx(float(total), rel=1e-14)


def test_at_least_one_is_maxexp():
    p = torch.linspace(0, 1, 101, dtype=F64)
    for trials in (1, 50, 10**6):
        torch.testing.assert_close(
            theory.at_least_one(p, torch.tensor(trials)), pp.MaxExp(trials).value(p), rtol=1e-13, atol=0
        )


@few_examples
@given(probabilities, probabilities, probabilities, st.integers(1, 30))
def test_co_occurrences_follow_the_same_law(p, x, y, trials):
    """Theorem cooc, Eq. my_maxexppr2: whatever the probabilities q and s of single occurrences are."""
    q = (1 - p) * x
    s = max(0.0, (1 - p - q) * y)
    found = theory.at_least_one_sum(p, q, s, trials)
    assert found == pytest.approx(theory.at_least_one(p, trials), rel=1e-10, abs=1e-13)


def test_co_occurrences_by_enumeration():
    """The four outcomes of a pair of features, over all sequences of three trials."""
    p, q, s = Fraction(1, 5), Fraction(3, 10), Fraction(1, 10)
    chances = {(1, 1): p, (1, 0): q, (0, 1): s, (0, 0): 1 - p - q - s}
    total = sum(
        math.prod(chances[pair] for pair in pairs) for pairs in itertools.product(chances, repeat=3) if (1, 1) in pairs
    )
    assert total == 1 - (1 - p) ** 3
    assert theory.at_least_one_sum(float(p), float(q), float(s), 3) == pytest.approx(float(total), rel=1e-13)


@few_examples
@given(probabilities, probabilities, st.integers(1, 60))
def test_the_difference_of_two_detections(p, x, trials):
    """Prop. cooc_anti, Eq. my_maxexppr22."""
    q = (1 - p) * x
    found = theory.signed_difference_sum(p, q, trials)
    assert found == pytest.approx(theory.signed_difference(p, q, trials), rel=1e-10, abs=1e-12)
    assert theory.signed_difference(q, p, trials) == -theory.signed_difference(p, q, trials)


@few_examples
@given(st.floats(-1, 1), st.integers(1, 10**6))
def test_signed_maxexp_is_that_difference(mean, trials):
    """p = max(0, p*), q = max(0, -p*)."""
    found = pp.SignedMaxExp(trials).value(torch.tensor(mean, dtype=F64)).item()
    assert found == pytest.approx(theory.signed_difference(max(0.0, mean), max(0.0, -mean), trials), rel=1e-12)


@few_examples
@given(st.floats(-50, 50), st.floats(0.05, 20))
def test_sigme_is_the_difference_of_posteriors(x, sigma):
    """Theorem sigmoids, with the Gaussians themselves in 60 digits."""
    with mpmath.workdps(60):
        plus, minus = (mpmath.exp(-((mpmath.mpf(x) - m) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for m in (1, -1))
        expected = float(minus / (plus + minus)), float(plus / (plus + minus))
    found = theory.mixture_posterior(x, sigma)
    assert found.minus == pytest.approx(expected[0], rel=1e-11, abs=1e-300)
    assert found.plus == pytest.approx(expected[1], rel=1e-11, abs=1e-300)
    sigme = pp.SigmE(theory.sigme_eta_of_sigma(sigma)).value(torch.tensor(x, dtype=F64)).item()
    assert sigme == pytest.approx(expected[1] - expected[0], rel=1e-11, abs=1e-15)


def test_posteriors_of_zero_are_equal():
    assert theory.mixture_posterior(0.0, 0.7) == (0.5, 0.5)


@few_examples
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_maxexp_of_the_mean_is_a_lower_bound(values):
    """Eq. adj1, by the inequality of the arithmetic and the geometric mean."""
    x = torch.tensor(values, dtype=F64)
    expected = 1 - math.prod(1 - value for value in values)
    found, bound = theory.likelihood_of_any(x).item(), theory.maxexp_of_mean(x).item()
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert bound == pytest.approx(1 - (1 - sum(values) / len(values)) ** len(values), rel=1e-9, abs=1e-12)
    assert found >= bound - 1e-12


def test_the_bound_is_met_by_equal_confidences_and_only_by_them():
    equal = torch.full((5,), 0.3, dtype=F64)
    torch.testing.assert_close(theory.likelihood_of_any(equal), theory.maxexp_of_mean(equal), rtol=1e-14, atol=0)
    uneven = torch.tensor([0.2, 0.4, 0.3, 0.3, 0.3], dtype=F64)
    assert theory.likelihood_of_any(uneven) > theory.maxexp_of_mean(uneven) + 1e-3


@few_examples
@given(st.floats(1e-9, 1e-3), st.floats(0.2, 5.0), st.integers(1, 500))
def test_exponent_and_scale_can_be_tied(x, alpha, trials):
    """Below Eq. adj1: (1 - alpha x)^N is (1 - x)^(alpha N) up to N alpha x^2, by log(1 - x) = -x."""
    untied = theory.at_least_one(alpha * x, float(trials))
    tied = theory.at_least_one(x, alpha * trials)
    assert abs(untied - tied) <= trials * alpha * abs(alpha - 1) * x**2 / (1 - 5e-3) + 1e-15


@few_examples
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**16))
def test_the_trace_is_above_every_entry(channels, locations, seed):
    """Below Eq. my_maxexp4: so M/(tr + eps) is in the domain of MaxExp."""
    generator = torch.Generator().manual_seed(seed)
    moment = pp.autocorrelation(torch.randn(channels, locations, generator=generator, dtype=F64))
    assert moment.trace() * (1 + 1e-12) >= moment.abs().max()


# Few-shot learning.


@pytest.mark.parametrize("shots", [0, 1, 2, 5])
@pytest.mark.parametrize("locations", [1, 2, 9])
def test_kappa_counts_configurations(shots, locations):
    """Eq. support: by convolving the mass functions of J + 1 independent counts."""

    def support(values: int) -> int:
        mass = np.ones(1)
        for _ in range(shots + 1):
            mass = np.convolve(mass, np.full(values, 1 / values))
        return int((mass > 1e-15).sum())

    counted, detected = support(locations + 1), support(2)
    assert (counted, detected) == ((shots + 1) * locations + 1, shots + 2)
    assert theory.kappa(shots, locations) == pytest.approx(counted / detected)


@few_examples
@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_kappa_grows_with_images_and_shots(shots, locations):
    here = theory.kappa(shots, locations)
    assert theory.kappa(shots, locations + 1) > here
    more = theory.kappa(shots + 1, locations)
    assert more > here if locations > 1 else more == here == 1
    assert 1 <= here <= locations


@pytest.mark.parametrize("shots", [0, 1, 5])
@pytest.mark.parametrize("p", [0.01, 0.3, 0.9])
def test_kappa_prime_is_the_ratio_of_variances(shots, p):
    """App. M: of J + 1 detections of probability p, over J + 1 counts of N trials."""
    locations = 25
    detections, counts = stats.binom(shots + 1, p).var(), (shots + 1) * stats.binom(locations, p).var()
    assert detections / counts == pytest.approx(theory.kappa_prime(locations))


@few_examples
@given(st.floats(1e-9, 1 - 1e-9), st.integers(1, 10**4))
def test_detections_vary_less_than_counts(p, locations):
    found = theory.detection_variance_ratio(p, locations)
    assert 0 <= found <= 1 + 1e-12
    with mpmath.workdps(50):
        none = (1 - mpmath.mpf(p)) ** locations
        expected = (1 - none) * none / (locations * mpmath.mpf(p) * (1 - mpmath.mpf(p)))
    assert found == pytest.approx(float(expected), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: theory.at_least_one(1.5, 3), r"p must.*1\.5"),
        (lambda: theory.at_least_one(0.5, 0), "trials"),
        (lambda: theory.at_least_one_sum(0.1, 0.1, 0.1, 2.5), r"trials.*2\.5"),
        (lambda: theory.signed_difference_sum(0.1, 0.1, 201), "200.*201"),
        (lambda: theory.at_least_one_sum(0.5, 0.4, 0.2, 2), "1 - p - q - s"),
        (lambda: theory.signed_difference(0.6, 0.5, 2), "1 - p - q"),
        (lambda: theory.mixture_posterior(0.0, 0.0), "sigma"),
        (lambda: theory.mixture_posterior(float("nan"), 1.0), "x must"),
        (lambda: theory.likelihood_of_any(torch.tensor([1.5])), "confidences"),
        (lambda: theory.kappa(-1, 3), "shots"),
        (lambda: theory.kappa_prime(0), "locations"),
        (lambda: theory.detection_variance_ratio(1.0, 3), "p must"),
    ],
)
def test_bad_arguments(call, name):
    with pytest.raises(ArgumentError, match=name):
        call()
