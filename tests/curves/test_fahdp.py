"""FAHDP: the battery for each rounding, its relation to HDP, and the gradient of a rounded exponent."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import pytest
import torch
from mpmath import ceil, e, exp, floor, log, mpf, nint, sqrt

import powerpool as pp
from powerpool.curves import IntegerPower
from tests.contracts.curve import CurveContract


def eta(t):
    return mpf(1) / 2 + sqrt(mpf(1) / 4 + (1 / (t * (e - 1)) - 1 / e) ** 2)


class FAHDPContract(CurveContract):
    curve = pp.FAHDP
    # Both sides of t = 1, and t = 1 itself. Rounded exponents: 74 or 75, 2, 1 or 2; then 1, 1 or 2, 3 or 4.
    parameters = (0.0078125, 0.3125, 0.96875, 1, 1.75, 3.7)
    trainable = (0.0625, 1.75)
    parameter_range = (0.001, 4.0)
    domain = (0.0, 1.0)
    trace_normalize = True

    @classmethod
    @abstractmethod
    def below(cls, t):
        """The exponent for t < 1."""

    @classmethod
    @abstractmethod
    def above(cls, t):
        """The exponent for t >= 1."""

    @classmethod
    def value(cls, p, theta):
        if theta < 1:
            return exp(-theta) * (1 - (1 - p) ** cls.below(theta))
        return exp(-theta) * p ** cls.above(theta)

    @classmethod
    def derivative(cls, p, theta):
        if theta < 1:
            return exp(-theta) * cls.below(theta) * (1 - p) ** (cls.below(theta) - 1)
        return exp(-theta) * cls.above(theta) * p ** (cls.above(theta) - 1)

    @classmethod
    def parameter_derivative(cls, p, theta):
        return -cls.value(p, theta)

    @classmethod
    def integer_power(cls, theta):
        scale = math.exp(-theta)
        if theta < 1:
            return IntegerPower(exponent=int(cls.below(mpf(theta))), complement=True, scale=scale)
        return IntegerPower(exponent=int(cls.above(mpf(theta))), complement=False, scale=scale)


class TestIdentity(FAHDPContract):
    options: ClassVar = {"rounding": "identity"}
    exponential = ("derivative", "slope", "divided_difference", "parameter_derivative")

    @classmethod
    def below(cls, t):
        return eta(t)

    @classmethod
    def above(cls, t):
        return t

    @classmethod
    def exponent(cls, points, theta):
        # (1-p)^eta~ is e^-x, and x carries the round-off of eta~(t): with a tensor t, of each step of its formula.
        return -3 * eta(theta) * log(1 - min(points)) if theta < 1 and min(points) < 1 else mpf(0)

    @classmethod
    def parameter_derivative(cls, p, theta):
        through_scale = -cls.value(p, theta)
        if theta >= 1:
            return through_scale + (exp(-theta) * p**theta * log(p) if p > 0 else 0)
        inner = 1 / (theta * (e - 1)) - 1 / e
        d_eta = inner / sqrt(mpf(1) / 4 + inner**2) * (-1 / (theta**2 * (e - 1)))
        return through_scale - (exp(-theta) * (1 - p) ** eta(theta) * log(1 - p) * d_eta if p < 1 else 0)

    @classmethod
    def integer_power(cls, theta):
        return super().integer_power(theta) if theta == 1 else None


class RoundedContract(FAHDPContract):
    @classmethod
    def learnable(cls, theta, dtype=torch.float64):
        with pytest.warns(UserWarning, match="identity"):
            return super().learnable(theta, dtype)


class TestRound(RoundedContract):
    options: ClassVar = {"rounding": "round"}
    parameters = (0.3125, 0.96875, 3.7)

    @classmethod
    def below(cls, t):
        return nint(eta(t))

    @classmethod
    def above(cls, t):
        return nint(t)


class TestCeil(RoundedContract):
    options: ClassVar = {"rounding": "ceil"}
    parameters = (0.3125, 0.96875, 3.7)

    @classmethod
    def below(cls, t):
        return ceil(eta(t))

    @classmethod
    def above(cls, t):
        return floor(t)


POINTS = torch.linspace(0, 1, 2001, dtype=torch.float64)
TIMES = torch.linspace(0.01, 3.7, 124).tolist()


@pytest.mark.parametrize("rounding", ["identity", "ceil"])
def test_bounds_hdp_from_above(rounding):
    for t in TIMES:
        gap = pp.FAHDP(t, rounding).value(POINTS) - pp.HDP(t).value(POINTS)
        assert gap.min() >= -1e-15, t


def test_rounding_to_nearest_can_be_below_hdp():
    dips = torch.stack([pp.HDP(t).value(POINTS) - pp.FAHDP(t, "round").value(POINTS) for t in TIMES])
    assert 0.07 < dips.max() < 0.09


def test_meets_hdp_at_one():
    for t in (0.01, 0.5, 1.0, 2.5):
        torch.testing.assert_close(pp.FAHDP(t).value(POINTS[-1]), pp.HDP(t).value(POINTS[-1]), rtol=1e-14, atol=0)


@pytest.mark.parametrize("rounding", ["round", "ceil"])
@pytest.mark.parametrize("t", [0.3, 2.4])
def test_a_rounded_exponent_has_a_gradient_through_the_scale_only(rounding, t):
    with pytest.warns(UserWarning, match="identity"):
        curve = pp.FAHDP(torch.nn.Parameter(torch.tensor(t)), rounding)
    value = curve.value(torch.tensor([0.3, 0.7]))
    (grad,) = torch.autograd.grad(value.sum(), curve.t)
    torch.testing.assert_close(grad, -value.sum().detach())


@pytest.mark.parametrize("t", [0.3, 2.4])
def test_an_exact_exponent_learns_through_both(t):
    curve = pp.FAHDP(torch.nn.Parameter(torch.tensor(t)), "identity")  # warnings are errors: this one gives none
    value = curve.value(torch.tensor([0.3, 0.7]))
    (grad,) = torch.autograd.grad(value.sum(), curve.t)
    assert grad < -1.4 * value.sum()


@pytest.mark.parametrize("t", [1.5, torch.tensor(1.5)], ids=["number", "tensor"])
def test_an_infinite_second_derivative_is_never_backpropagated(t):
    """As with Gamma(1.5), whose formula it is for t = 1.5."""
    p = torch.zeros(1, requires_grad=True)
    (grad,) = torch.autograd.grad(pp.FAHDP(t, "identity").value(p), p, create_graph=True)
    assert torch.autograd.grad(grad.square(), p)[0].item() == 0


def test_a_tensor_that_does_not_learn_gives_no_warning():
    assert not pp.FAHDP(torch.tensor(0.3), "ceil").t.requires_grad


def test_a_tensor_with_both_kinds_of_times_takes_both_formulas():
    times = torch.tensor([[0.3], [2.4]], dtype=torch.float64)
    both = pp.FAHDP(times, "ceil").value(POINTS)
    one_by_one = torch.stack([pp.FAHDP(t, "ceil").value(POINTS) for t in (0.3, 2.4)])
    torch.testing.assert_close(both, one_by_one, rtol=1e-14, atol=0)


def test_repr():
    assert repr(pp.FAHDP()) == "FAHDP(t=0.01, rounding='ceil', exponent=59)"
    assert repr(pp.FAHDP(0.5, "identity")) == "FAHDP(t=0.5, rounding='identity', exponent=1.44007)"
    assert repr(pp.FAHDP(torch.tensor(0.5))) == "FAHDP(t=0.5 (tensor), rounding='ceil')"
