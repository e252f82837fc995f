"""The links between curves: their formulas in 50 digits, and the bounds that they promise; SigmE against MaxExp."""

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
from tests.theory.grids import ETAS, F64, SHORT_TIMES, TIMES, E, few_examples, log_floats, unit_points


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(50):
        yield


def t_of_eta(eta):
    return mpmath.e / (mpmath.e - 1) * eta**eta / (eta + 1) ** (eta + 1)


def eta_of_t(t):
    return mpf(1) / 2 * mpmath.sqrt(1 + 4 / (t**2 * (mpmath.e - 1) ** 2)) - mpf(1) / 2


def eta_tilde(t):
    return mpf(1) / 2 + mpmath.sqrt(mpf(1) / 4 + (1 / (t * (mpmath.e - 1)) - 1 / mpmath.e) ** 2)


def t_of_eta_bar(eta):
    r = ((eta - 1) / eta) ** eta
    return mpmath.e / (mpmath.e - 1) * r / (r + eta - 1)


def t_tilde(eta):
    root = mpmath.sqrt(eta)
    return mpmath.e / (mpmath.e - 1) * root / (root + mpmath.e * eta * mpmath.sqrt(eta - 1))


def eta_bar(t):
    return eta_tilde(2 * t - t_of_eta_bar(eta_tilde(t)))


def eta_prime(eta):
    return mpmath.log(mpmath.sqrt(3) + 2) / (1 - ((4 - 2 * mpmath.sqrt(3)) / 3) ** (1 / (2 * eta)))


def eta_of_eta_prime(slope):
    root = mpmath.sqrt(3)
    return mpmath.log((4 - 2 * root) / 3) / (2 * mpmath.log(1 - mpmath.log(root + 2) / slope))


ABOVE_ONE = 1 + torch.logspace(-9, 6, 31, dtype=F64)
FORMULAS = {
    "t_of_eta": (t_of_eta, torch.logspace(-3, 6, 37, dtype=F64)),
    "eta_of_t": (eta_of_t, TIMES),
    "eta_slope": (lambda t: mpmath.diff(eta_of_t, t), TIMES),
    "gamma_of_t": (lambda t: mpmath.e * t, TIMES),
    "t_of_gamma": (lambda gamma: gamma / mpmath.e, TIMES),
    "t_of_eta_bar": (t_of_eta_bar, ABOVE_ONE),
    "t_tilde_of_eta_bar": (t_tilde, ABOVE_ONE),
    "eta_tilde_of_t": (eta_tilde, TIMES),
    "eta_bar_of_t": (eta_bar, SHORT_TIMES),
    "eta_prime_of_eta": (eta_prime, torch.logspace(-1, 6, 36, dtype=F64)),
    "eta_of_eta_prime": (eta_of_eta_prime, 1.4 + torch.logspace(-2, 6, 36, dtype=F64)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_in_fifty_digits(name):
    reference, points = FORMULAS[name]
    found = getattr(theory, name)(points)
    expected = torch.tensor([float(reference(mpf(x))) for x in points.tolist()], dtype=F64)
    # 1e-12 of relative error: the exponent of t_of_eta is about log(eta), that of eta_bar a difference of two times.
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


# Theorem param_bounds: MaxExp above HDP.


def _maxexp_over_hdp(eta: float) -> torch.Tensor:
    t = theory.t_of_eta(eta)
    points = unit_points(t, 1 / (eta + 1))
    return pp.MaxExp(eta).value(points) - pp.HDP(t).value(points)


@pytest.mark.parametrize("eta", ETAS.tolist())
def test_maxexp_is_above_hdp(eta):
    gap = _maxexp_over_hdp(eta)
    assert gap.min() >= 0
    assert gap[0] == 0  # they meet at lambda = 0


@few_examples
@given(log_floats(1.0, 1e6))
def test_maxexp_is_above_hdp_for_any_eta(eta):
    assert _maxexp_over_hdp(eta).min() >= 0


def test_maxexp_is_not_above_hdp_below_eta_one():
    eta = 0.5
    points = unit_points(0.3)
    maxexp = -torch.expm1(eta * torch.log1p(-points))
    assert (maxexp - pp.HDP(theory.t_of_eta(eta)).value(points)).min() < -1e-3


@pytest.mark.parametrize("eta", ETAS.tolist())
def test_eta_of_t_is_nearly_the_inverse_and_never_below_it(eta):
    """The relative error of Stirling's formula is at most 1/(12 eta^2), and positive: the bound holds with it too."""
    found = theory.eta_of_t(theory.t_of_eta(eta))
    assert found / eta - 1 >= -1e-12
    assert found / eta - 1 <= 1 / (12 * eta**2) + 1e-12


@pytest.mark.parametrize("t", TIMES.tolist())
def test_the_combined_bound_is_above_hdp(t):
    points = unit_points(t, 1 / E)
    bound = theory.combined_bound(points, torch.tensor(t, dtype=F64))
    hdp = pp.HDP(t).value(points)
    # In relative terms, where Gamma touches HDP, an exponent of e t log(p) leaves round-off of that size.
    slack = 4e-16 * (1 + E * t * torch.log(points.clamp(min=1e-12)).abs())
    assert (bound >= hdp * (1 - slack)).all()
    eta = theory.eta_of_t(t)
    maxexp = -torch.expm1(eta * torch.log1p(-points))
    gamma = pp.Gamma(E * t).value(points)
    torch.testing.assert_close(bound, torch.minimum(maxexp, gamma), rtol=1e-13, atol=1e-300)


def test_the_combined_bound_is_tighter_than_each():
    points = unit_points()
    bound = theory.combined_bound(points, torch.tensor(0.1, dtype=F64))
    assert (pp.MaxExp(theory.eta_of_t(0.1)).value(points) > bound + 0.01).any()
    assert (pp.Gamma(0.1 * E).value(points) > bound + 0.01).any()


def test_eta_of_t_crosses_one_where_it_says():
    assert theory.eta_of_t(0.4114) > 1 > theory.eta_of_t(0.4116)


# Theorem gamma_bounds: Gamma above HDP, touching.


@pytest.mark.parametrize("t", TIMES.tolist())
def test_gamma_is_above_hdp_and_touches_it(t):
    """lambda^(et) >= e^(-t/lambda) is e t log(lambda) + t/lambda >= 0: in logarithms, over the whole range of t."""
    points = torch.logspace(-8, 3, 2001, dtype=F64)
    gap = theory.gamma_of_t(t) * torch.log(points) + t / points
    assert gap.min() >= 0
    curves = pp.Gamma(theory.gamma_of_t(t)), pp.HDP(t)
    touch = torch.tensor(1 / E, dtype=F64)
    if E * t < 700:  # both are 0 beyond
        torch.testing.assert_close(curves[0].value(touch), curves[1].value(touch), rtol=1e-12, atol=0)
        torch.testing.assert_close(curves[0].derivative(touch), curves[1].derivative(touch), rtol=1e-12, atol=0)


@few_examples
@given(log_floats(1e-8, 1e3), log_floats(1e-6, 1e3))
def test_no_smaller_time_and_no_larger_gamma_bounds(t, scale):
    """For any larger gamma, Gamma is below HDP at 1/e."""
    gamma = theory.gamma_of_t(t) * (1 + scale)
    at_touch = gamma * math.log(1 / E) + t * E  # log Gamma - log HDP
    assert at_touch < 0
    assert theory.t_of_gamma(theory.gamma_of_t(t)) == pytest.approx(t, rel=1e-14)


# App. P: the links of FAHDP.


def test_t_of_eta_bar_has_its_limit_at_one_and_falls():
    grid = torch.cat([torch.ones(1, dtype=F64), ABOVE_ONE])
    times = theory.t_of_eta_bar(grid)
    assert times[0].item() == pytest.approx(E / (2 * (E - 1)), rel=1e-15)
    assert (times.diff() < 0).all()
    assert times.max() < 0.791
    assert theory.t_tilde_of_eta_bar(1.0) == pytest.approx(E / (E - 1))


def test_eta_tilde_inverts_t_tilde():
    times = TIMES[TIMES < E / (E - 1)]
    back = theory.t_tilde_of_eta_bar(theory.eta_tilde_of_t(times))
    torch.testing.assert_close(back, times, rtol=1e-13, atol=0)


def _inverse_of_t_of_eta_bar(t: float) -> float:
    start = mpmath.log(mpf(theory.eta_bar_of_t(t)) - 1)
    log_excess = mpmath.findroot(lambda u: mpmath.log(t_of_eta_bar(1 + mpmath.exp(u)) / t), start)
    return float(1 + mpmath.exp(log_excess))


def test_eta_tilde_is_above_the_inverse_and_comes_closer_as_t_falls():
    """App. P: eta~(t) >= eta-bar(t), with a gap that falls monotonically with t; eta_bar_of_t lies in between."""
    times = [1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75]
    exact = [_inverse_of_t_of_eta_bar(t) for t in times]
    gaps = [theory.eta_tilde_of_t(t) - eta for t, eta in zip(times, exact, strict=True)]
    assert all(gap > -1e-9 for gap in gaps)
    assert all(low < high for low, high in itertools.pairwise(gaps))  # below that it is round-off
    for t, eta in zip(times, exact, strict=True):
        assert eta * (1 - 1e-12) <= theory.eta_bar_of_t(t) <= theory.eta_tilde_of_t(t)


def test_eta_tilde_is_the_exponent_of_fahdp():
    for t in SHORT_TIMES.tolist():
        assert theory.eta_tilde_of_t(t) == pytest.approx(pp.FAHDP(t, "identity").exponent(t), rel=1e-14)


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
