"""Remark maxexp_sigmoid and App. K: SigmE and MaxExp meet, and agree in the limit."""

from __future__ import annotations

import itertools
import math

import mpmath
import pytest
import torch
from hypothesis import given
from mpmath import mpf
from scipy import integrate

import powerpool as pp
from powerpool import theory
from powerpool.errors import ArgumentError
from tests.theory.grids import ETAS, F64, few_examples, log_floats


@few_examples
@given(log_floats(0.3, 1e6))
def test_sigme_meets_maxexp_where_it_bends_most(eta):
    slope = theory.eta_prime_of_eta(eta)
    point = torch.tensor(theory.alignment_point(slope), dtype=F64)
    assert 0 < point < 1
    sigme = pp.SigmE(slope).value(point).item()
    maxexp = -math.expm1(eta * math.log1p(-point.item()))
    assert sigme == pytest.approx(1 / math.sqrt(3), rel=1e-12)
    assert maxexp == pytest.approx(1 / math.sqrt(3), rel=1e-9)
    assert theory.eta_of_eta_prime(slope) == pytest.approx(eta, rel=1e-9)


@pytest.mark.parametrize("slope", [1.4, 10.0, 1e3])
def test_alignment_point_is_where_sigme_is_most_concave(slope):
    """A zero of the third derivative, and the largest bend on [0, 1]."""
    with mpmath.workdps(40):
        sigme = lambda p: 2 / (1 + mpmath.exp(-mpf(slope) * p)) - 1  # noqa: E731
        point = mpmath.log(mpmath.sqrt(3) + 2) / mpf(slope)
        assert theory.alignment_point(slope) == pytest.approx(float(point), rel=1e-14)
        assert abs(float(mpmath.diff(sigme, point, 3) / mpf(slope) ** 3)) < 1e-20
    p = torch.linspace(0, 1, 20001, dtype=F64)
    bend = -torch.tanh(slope * p / 2) * (1 - torch.tanh(slope * p / 2).square())
    assert p[bend.argmin()].item() == pytest.approx(theory.alignment_point(slope), abs=1e-4)


@pytest.mark.parametrize("slope", [4.0, 50.0, 1e4])
def test_error_point_is_a_zero_of_the_fifth_derivative(slope):
    with mpmath.workdps(60):
        sigme = lambda p: 2 / (1 + mpmath.exp(-mpf(slope) * p)) - 1  # noqa: E731
        root = mpmath.sqrt(105)
        point = mpmath.log(mpmath.sqrt(26 * root + 270) / 2 + root / 2 + mpf(13) / 2) / mpf(slope)
        assert theory.error_point(slope) == pytest.approx(float(point), rel=1e-14)
        assert abs(float(mpmath.diff(sigme, point, 5) / mpf(slope) ** 5)) < 1e-15


def _difference(p: torch.Tensor, eta: float) -> torch.Tensor:
    return pp.SigmE(theory.eta_prime_of_eta(eta)).value(p) - pp.MaxExp(eta).value(p)


@pytest.mark.parametrize("eta, share", [(5.0, 0.45), (20.0, 0.97), (100.0, 0.97), (1e4, 0.97), (1e6, 0.97)])
def test_the_difference_at_the_error_point_stands_for_the_largest(eta, share):
    """Within 3 % for eta >= 20, only half of it at eta = 5: an approximate measure."""
    slope = theory.eta_prime_of_eta(eta)
    p = torch.cat([torch.logspace(-9, 0, 20001, dtype=F64), torch.linspace(0, 1, 2001, dtype=F64)])
    largest = _difference(p, eta).abs().max().item()
    measured = _difference(torch.tensor(theory.error_point(slope), dtype=F64), eta).abs().item()
    twice = _difference(torch.tensor(2 * theory.alignment_point(slope), dtype=F64), eta).abs().item()
    assert share * largest <= measured <= largest
    assert twice <= largest
    assert largest < 0.046


PAIRS = [
    (2.28, 1.0),
    (0.5, 3.0),
    (8.3, 5.0),
    (20.0, 5.0),
    (30.0, 20.0),
    (77.0, 50.0),
    (40.0, 50.0),
    (5.0, 0.3),
    (1e4, 9e3),
]


@pytest.mark.parametrize("slope, eta", PAIRS)
def test_distance_is_the_integral(slope, eta):
    """By adaptive quadrature, for parameters with no, one and two crossings inside (0, 1)."""

    def gap(p: float) -> float:
        return abs(math.tanh(slope * p / 2) + (math.expm1(eta * math.log1p(-p)) if p < 1 else -1.0))

    knots = [0, *(min(1.0, k / slope) for k in (0.5, 1, 1.317, 2, 3, 5, 8, 12, 20, 40)), 1]
    total = sum(
        integrate.quad(gap, a, b, epsabs=1e-13, epsrel=1e-11, limit=400)[0]
        for a, b in itertools.pairwise(knots)
        if b > a
    )
    assert theory.sigme_maxexp_distance(slope, eta) == pytest.approx(total, rel=1e-7)


@few_examples
@given(log_floats(0.01, 1e6), log_floats(0.01, 1e6))
def test_distance_is_below_a_bound_that_vanishes(slope, eta):
    found = theory.sigme_maxexp_distance(slope, eta)
    assert 0 <= found <= 2 * math.log(2) / slope + 1 / (eta + 1)


def test_distance_vanishes_in_the_limit():
    tied = theory.sigme_maxexp_distance(theory.eta_prime_of_eta(ETAS), ETAS)
    assert tied[-1] < 2e-7
    large = tied[ETAS >= 10]
    assert (large.diff() < 0).all()
    # At the rate 1/eta: with tied parameters the difference keeps its shape and is compressed.
    assert (tied * ETAS)[-1].item() == pytest.approx((tied * ETAS)[-2].item(), rel=1e-3)


@few_examples
@given(log_floats(3.0, 1e6))
def test_tied_parameters_are_closer_than_equal_ones(eta):
    """Tied parameters are better than eta' = eta, and than equal slopes at 0."""
    tied = theory.sigme_maxexp_distance(theory.eta_prime_of_eta(eta), eta)
    assert tied < theory.sigme_maxexp_distance(eta, eta)
    assert tied < theory.sigme_maxexp_distance(2 * eta, eta)


def test_bad_arguments():
    with pytest.raises(ArgumentError, match=r"eta_prime.*1\.316958"):
        theory.eta_of_eta_prime(1.3)
    with pytest.raises(ArgumentError, match="eta must"):
        theory.sigme_maxexp_distance(1.0, float("inf"))
