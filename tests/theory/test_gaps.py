"""App. F and P: the lines between HDP and its bounds, their touching points, and the gaps there."""

from __future__ import annotations

import sys

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf
from scipy import optimize

import powerpool as pp
from powerpool import theory
from powerpool.errors import ArgumentError
from tests.theory.grids import ETAS, F64, SHORT_TIMES, E, few_examples, log_floats


def _maxexp(y: torch.Tensor, t: float, eta: float) -> torch.Tensor:
    """MaxExp in y = t/lambda."""
    return -torch.expm1(eta * torch.log1p(-t / y))


# Theorem param_bounds and App. F.


def test_the_line_is_above_hdp_between_zero_and_one_only():
    y = torch.linspace(0, 1, 10001, dtype=F64)
    gap = theory.auxiliary_line(y) - torch.exp(-y)
    assert gap.min() >= -1e-16
    assert gap[0] == 0
    assert abs(gap[-1].item()) < 1e-16
    assert gap[1:-1].min() > 0
    beyond = torch.linspace(1.001, 50, 1000, dtype=F64)
    assert (theory.auxiliary_line(beyond) < torch.exp(-beyond)).all()


@pytest.mark.parametrize("eta", ETAS.tolist())
def test_maxexp_is_lowered_onto_the_line(eta):
    """Eq. syst1: the same value and the same slope at y(eta), lambda = 1/(eta+1); above the line elsewhere."""
    t, touch = theory.t_of_eta(eta), theory.y_of_eta(eta)
    assert touch / t == pytest.approx(eta + 1, rel=1e-12)
    assert theory.alpha_of_eta(eta) == pytest.approx(t * eta, rel=1e-14)
    y = torch.cat(
        [touch * torch.linspace(0.9, 1.1, 41, dtype=F64), torch.linspace(t * (1 + 1e-12), 1, 2001, dtype=F64)]
    )
    y = y[(y > t) & (y <= 1)]
    assert (_maxexp(y, t, eta) - theory.auxiliary_line(y)).min() >= -1e-15
    with mpmath.workdps(40):
        alpha, exact_touch = mpf(1) * mpmath.e / (mpmath.e - 1), mpf(0)
        ratio = mpf(eta) / (mpf(eta) + 1)
        exact_touch, alpha = alpha * ratio ** mpf(eta), alpha * ratio ** (mpf(eta) + 1)
        maxexp = lambda y: 1 - (1 - alpha / (mpf(eta) * y)) ** mpf(eta)  # noqa: E731
        assert float(exact_touch) == pytest.approx(touch, rel=1e-13)
        assert float(maxexp(exact_touch) - ((1 / mpmath.e - 1) * exact_touch + 1)) == pytest.approx(0, abs=1e-30)
        assert float(mpmath.diff(maxexp, exact_touch)) == pytest.approx(1 / E - 1, rel=1e-12)


@few_examples
@given(log_floats(1.0, 1e6), st.floats(1e-6, 0.5))
def test_no_earlier_time_keeps_maxexp_above_the_line(eta, share):
    """At the touching point MaxExp with a smaller t is below the line."""
    touch = theory.y_of_eta(eta)
    lower = _maxexp(torch.tensor(touch, dtype=F64), theory.t_of_eta(eta) * (1 - share), eta)
    assert lower.item() < theory.auxiliary_line(touch)


def test_y_of_eta_falls_and_stays_below_one():
    grid = torch.cat([torch.logspace(-8, 0, 60, dtype=F64), 1 + torch.logspace(-6, 6, 60, dtype=F64)])
    y = theory.y_of_eta(grid)
    assert (y.diff() < 0).all()
    assert y[0].item() == pytest.approx(E / (E - 1), rel=1e-6)  # the limit at 0
    assert theory.y_of_eta(1.0) == pytest.approx(E / (2 * (E - 1)))
    assert 1 / (E - 1) < y[-1].item() < 1 / (E - 1) + 1e-6  # the limit at infinity
    assert theory.y_of_eta(1.0) < 1


@pytest.mark.parametrize("eta", ETAS.tolist())
def test_eps1_and_eps2_are_the_gaps_where_the_line_touches(eta):
    t = theory.t_of_eta(eta)
    with mpmath.workdps(40):
        time = mpmath.e / (mpmath.e - 1) * mpf(eta) ** mpf(eta) / (mpf(eta) + 1) ** (mpf(eta) + 1)
        gaps = [float(1 - (1 - p) ** mpf(eta) - mpmath.exp(-time / p)) for p in (time, 1 / (mpf(eta) + 1))]
    assert theory.eps1(eta) == pytest.approx(gaps[0], rel=1e-10)
    assert theory.eps2(eta) == pytest.approx(gaps[1], rel=1e-10)
    points = torch.tensor([t, 1 / (eta + 1)], dtype=F64)
    ours = pp.MaxExp(eta).value(points) - pp.HDP(t).value(points)
    torch.testing.assert_close(ours, torch.tensor(gaps, dtype=F64), rtol=1e-9, atol=0)


@few_examples
@given(log_floats(1.0, 1e6))
def test_eps1_is_at_most_eps2(eta):
    assert 0 < theory.eps1(eta) <= theory.eps2(eta) < 0.0734


def test_eps1_and_eps2_have_the_same_limit():
    limit = 1 - 1 / E - mpmath.exp(-1 / (mpmath.e - 1))
    assert theory.eps1(1e6) == pytest.approx(float(limit), abs=1e-6)
    assert theory.eps2(1e6) == pytest.approx(float(limit), abs=1e-6)


# App. P: FAHDP.


def _fahdp(y: torch.Tensor, t: float) -> torch.Tensor:
    return pp.FAHDP(t, "identity").value((t / y).clamp(max=1.0))


@few_examples
@given(log_floats(1e-6, 1e6))
def test_the_scaled_maxexp_touches_the_line(excess):
    """Eq. touch_maxexp_scaled2: (1 - (e-1)t/e)(1 - (1-t/y)^eta) meets the line at y0 = t, touches it at y1 = t eta."""
    eta = 1 + excess
    t = theory.t_of_eta_bar(eta)
    y1 = torch.tensor(t * eta, dtype=F64, requires_grad=True)
    value = (1 - (1 - 1 / E) * t) * _maxexp(y1, t, eta)
    (slope,) = torch.autograd.grad(value, y1)
    assert value.item() == pytest.approx(theory.auxiliary_line(t * eta), rel=1e-9)
    assert slope.item() == pytest.approx(1 / E - 1, rel=1e-6)
    y = torch.linspace(t, 1, 2001, dtype=F64)[1:]
    assert ((1 - (1 - 1 / E) * t) * _maxexp(y, t, eta) - theory.auxiliary_line(y)).min() >= -1e-9
    assert t * eta * (1 + 1e-9) >= 1 / (E - 1)
    assert t * eta <= E / (2 * (E - 1)) * (1 + 1e-9)


def test_the_touching_point_falls_with_eta_bar():
    grid = 1 + torch.logspace(-6, 5, 100, dtype=F64)
    y = theory.t_of_eta_bar(grid) * grid
    assert (y.diff() < 0).all()
    assert y[-1].item() == pytest.approx(1 / (E - 1), rel=1e-4)


def test_the_scale_of_the_scaled_maxexp_bounds_that_of_fahdp():
    t = torch.linspace(0, 1, 1001, dtype=F64)
    assert (1 - (1 - 1 / E) * t - torch.exp(-t)).min() >= -1e-16


@pytest.mark.parametrize("touch", ["eta_bar", "eta_tilde"])
@pytest.mark.parametrize("t", SHORT_TIMES.tolist())
def test_points_of_the_line_are_where_it_meets_the_curves(t, touch):
    line, points = theory.fahdp_line(t, touch), theory.touching_points(t, touch)
    assert points.y0 == t
    eta = theory.eta_bar_of_t(t) if touch == "eta_bar" else theory.eta_tilde_of_t(t)
    assert points.y1 == pytest.approx(t * eta)
    on_line = torch.tensor([line.a * y + line.b for y in points], dtype=F64)
    y = torch.tensor(points, dtype=F64)
    torch.testing.assert_close(on_line[:2], _fahdp(y[:2], t), rtol=1e-9, atol=1e-15)
    torch.testing.assert_close(on_line[2:], torch.exp(-y[2:]), rtol=1e-14, atol=1e-15)
    # The claims: y2 = y0, y2 <= y1 <= y3, and the line is above HDP between y2 and y3.
    assert points.y2 == pytest.approx(points.y0, rel=1e-12, abs=1e-14)
    assert points.y0 < points.y1 < points.y3
    between = torch.linspace(points.y2, points.y3, 1001, dtype=F64)[1:-1]
    assert (line.a * between + line.b > torch.exp(-between)).all()


@pytest.mark.parametrize("t", [1e-6, 0.01, 0.3, 0.9])
def test_y3_by_a_root_finder(t):
    """Without Lambert's W."""
    a, b = theory.fahdp_line(t)
    found = optimize.brentq(lambda y: a * y + b - torch.exp(torch.tensor(-y, dtype=F64)).item(), 0.59 + t / 2, 2)
    assert theory.touching_points(t).y3 == pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("t", SHORT_TIMES.tolist())
def test_the_tangent_is_between_hdp_and_fahdp(t):
    """With eta~ for eta-bar Eq. max_exp_final_set holds: HDP <= line on [y0, y1], line <= FAHDP for y > t."""
    a, b = theory.fahdp_line(t, "eta_tilde")
    y1 = theory.touching_points(t, "eta_tilde").y1
    y = torch.cat([torch.linspace(t, 3 + t, 3001, dtype=F64), y1 * torch.linspace(0.9, 1.1, 201, dtype=F64)])
    y = y[y >= t]
    assert (_fahdp(y, t) - (a * y + b)).min() >= -1e-12
    inside = y[y <= y1]
    assert (a * inside + b - torch.exp(-inside)).min() >= -1e-15


@pytest.mark.parametrize("touch", ["eta_bar", "eta_tilde"])
def test_eps3_and_eps4_are_the_gaps_at_y1_and_y3(touch):
    for t in SHORT_TIMES.tolist():
        points = theory.touching_points(t, touch)
        y = torch.tensor([points.y1, points.y3], dtype=F64)
        gaps = _fahdp(y, t) - torch.exp(-y)
        found = torch.tensor([theory.eps3(t, touch), theory.eps4(t, touch)], dtype=F64)
        torch.testing.assert_close(found, gaps, rtol=1e-7, atol=1e-12)
        assert 0 < found[0] <= found[1] < 0.0734


TIMES_OF_FAHDP = torch.cat(
    [SHORT_TIMES, torch.tensor([1.0, 1.5, 2.0, 2.999, 3.0, 10.5, 100.0, 700.0, 1000.0], dtype=F64)]
)


@pytest.mark.parametrize("rounding", ["identity", "ceil"])
def test_fahdp_is_above_hdp_at_all_times(rounding):
    """Below Eq. fahdp: FAHDP bounds HDP for t in (0, inf), and meets it at lambda = 1."""
    for t in TIMES_OF_FAHDP.tolist():
        points = torch.cat([torch.linspace(0, 1, 2001, dtype=F64), torch.logspace(-10, 0, 500, dtype=F64)])
        gap = pp.FAHDP(t, rounding).value(points) - pp.HDP(t).value(points)
        assert gap.min() >= -2e-16, t
        assert abs(gap[2000].item()) <= 2e-16


@pytest.mark.parametrize("t", [1.0, 1.5, 4.0, 30.0])
def test_scaled_gamma_touches_hdp_at_one(t):
    """Eq. touch_gamma_scaled1: gamma-bar = t is an exact solution, at lambda = 1."""
    one = torch.ones((), dtype=F64)
    scaled = torch.exp(-torch.tensor(t, dtype=F64))
    torch.testing.assert_close(scaled * pp.Gamma(t).value(one), pp.HDP(t).value(one), rtol=1e-14, atol=0)
    torch.testing.assert_close(scaled * pp.Gamma(t).derivative(one), pp.HDP(t).derivative(one), rtol=1e-14, atol=0)


def test_without_scipy_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    with pytest.raises(ModuleNotFoundError, match=r"scipy.*powerpool\[figures\]"):
        theory.touching_points(0.1)
    assert theory.eps3(0.1) > 0  # needs no W


def test_bad_arguments():
    for function in (theory.eps1, theory.eps2):
        with pytest.raises(ArgumentError, match=r"eta.* 1 .*0\.5"):
            function(0.5)
    for function in (theory.fahdp_line, theory.touching_points, theory.eps3, theory.eps4):
        for t in (0.0, 1.0, float("nan")):
            with pytest.raises(ArgumentError, match=r"t must .*\(0, 1\)"):
                function(t)
        with pytest.raises(ValueError, match=r"'y'.*'eta_bar', 'eta_tilde'"):
            function(0.5, "y")
