"""HDP: the battery, and p <= 0."""

from __future__ import annotations

import pytest
import torch
from mpmath import exp, mpf

import powerpool as pp
from powerpool.errors import ArgumentError
from tests.contracts.curve import CurveContract


class TestHDP(CurveContract):
    curve = pp.HDP
    parameters = (2**-18, 0.01, 0.5, 3)
    trainable = (2**-7, 0.25)
    parameter_range = (1e-6, 5.0)
    domain = (0.0, float("inf"))
    bound = 1.0
    trace_normalize = True
    exponential = ("value", "derivative", "slope", "ratio", "divided_difference", "parameter_derivative")

    @classmethod
    def value(cls, p, theta):
        return exp(-theta / p) if p > 0 else mpf(0)

    @classmethod
    def derivative(cls, p, theta):
        return theta * exp(-theta / p) / p**2 if p > 0 else mpf(0)

    @classmethod
    def parameter_derivative(cls, p, theta):
        return -exp(-theta / p) / p if p > 0 else mpf(0)

    @classmethod
    def exponent(cls, points, theta):
        return theta / max(points) if max(points) > 0 else mpf(0)

    @classmethod
    def steepest(cls, theta):
        return [theta / 2]


def test_is_zero_with_all_its_derivatives_at_and_below_zero():
    p = torch.tensor([0.0, -1e-7, -1.0], requires_grad=True)
    curve = pp.HDP(torch.nn.Parameter(torch.tensor(0.1)))
    (grad,) = torch.autograd.grad(curve.value(p).sum(), p, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), p)
    for found in (curve.value(p), curve.derivative(p), curve.ratio(p), grad, second):
        assert (found == 0).all()


def test_second_derivatives_are_finite_if_the_curve_underflows():
    """t/p^2 overflows in float32 long before p is subnormal: 0 * inf must not appear."""
    p = torch.logspace(-44, 0, 200, requires_grad=True)
    curve = pp.HDP(torch.nn.Parameter(torch.tensor(0.01)))
    grads = torch.autograd.grad(curve.value(p).sum(), (p, curve.t), create_graph=True)
    for grad in grads:
        for second in torch.autograd.grad(grad.sum(), (p, curve.t), retain_graph=True):
            assert torch.isfinite(second).all()


def test_a_subnormal_exponential_does_not_affect_a_normal_slope():
    """e^-100 has five digits of two in float32, t e^(-t/p)/p^2 at p = t/100 = 1e-8 is 3.7e-34 and has all."""
    p = torch.tensor(1e-8)
    exact = mpf("1e-6") * exp(-mpf("1e-6") / mpf(p.item())) / mpf(p.item()) ** 2
    torch.testing.assert_close(pp.HDP(1e-6).derivative(p).item(), float(exact), rtol=100 * 1.2e-7, atol=0)


def test_default():
    assert repr(pp.HDP()) == "HDP(t=0.01)"


def test_the_smallest_t_has_a_gradient_in_float32_and_smaller_ones_are_refused() -> None:
    features = torch.rand(4, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    exact = features.detach().double().requires_grad_()
    weights = torch.arange(16.0).view(4, 4)
    found, expected = (
        torch.autograd.grad((pp.second_order_pool(x, pp.HDP(1e-18), "elementwise") * weights).sum(), x)[0]
        for x in (features, exact)
    )
    torch.testing.assert_close(found.double() * 1e18, expected * 1e18, rtol=1e-5, atol=1e-5)
    for t in (1e-19, 1e-39, 0.0, -1.0):
        with pytest.raises(ArgumentError, match=f"1e-18.*{t}"):
            pp.HDP(t)
