"""Gamma: the battery, and the convention at 0 for an infinite slope."""

from __future__ import annotations

import pytest
import torch
from mpmath import inf, log, mpf

import powerpool as pp
from powerpool.curves import IntegerPower
from tests.contracts.curve import CurveContract


class TestGamma(CurveContract):
    curve = pp.Gamma
    parameters = (0.01, 0.125, 0.5, 1, 1.5, 3, 50.25)
    trainable = (0.5, 1.5, 3.7)
    parameter_range = (0.01, 8.0)
    domain = (0.0, float("inf"))
    trace_normalize = False

    @classmethod
    def value(cls, p, theta):
        return p**theta

    @classmethod
    def derivative(cls, p, theta):
        if p == 0:
            return inf if theta < 1 else mpf(1) if theta == 1 else mpf(0)
        return theta * p ** (theta - 1)

    @classmethod
    def slope(cls, p, theta):
        return mpf(0) if p == 0 and theta < 1 else cls.derivative(p, theta)

    @classmethod
    def parameter_derivative(cls, p, theta):
        return p**theta * log(p) if p > 0 else mpf(0)

    @classmethod
    def integer_power(cls, theta):
        return IntegerPower(exponent=int(theta), complement=False) if theta in (1, 3) else None


@pytest.mark.parametrize("gamma", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_an_infinite_slope_is_returned_but_never_backpropagated(gamma):
    curve = pp.Gamma(gamma)
    zero = torch.zeros(3, requires_grad=True)
    assert (curve.derivative(zero) == torch.inf).all()
    (grad,) = torch.autograd.grad(curve.value(zero).sum(), zero)
    assert (grad == 0).all()
    assert (curve.ratio(zero) == 0).all()
    assert (curve.divided_difference(zero, zero) == 0).all()


@pytest.mark.parametrize("gamma", [0.5, 1.5])
def test_an_infinite_second_derivative_is_never_backpropagated(gamma):
    """A gradient penalty would give 0 * inf at an exactly zero entry without the convention."""
    p = torch.tensor([0.0, 0.25], dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(pp.Gamma(gamma).value(p).sum(), p, create_graph=True)
    (second,) = torch.autograd.grad(grad.square().sum(), p)
    expected = 2 * gamma**2 * (gamma - 1) * 0.25 ** (2 * gamma - 3)
    torch.testing.assert_close(second, torch.tensor([0.0, expected], dtype=torch.float64))


def test_a_small_gamma_keeps_the_digits_of_a_far_pair():
    """1 - low/high rounds to 1 in float32, but (low/high)^0.1 is 0.01: the difference quotient is 0.99."""
    far = pp.Gamma(0.1).divided_difference(torch.tensor(1.0), torch.tensor(1e-20))
    torch.testing.assert_close(far, torch.tensor(0.99), rtol=1e-6, atol=0)


def test_a_tensor_gamma_may_become_smaller_than_one():
    assert pp.Gamma(torch.tensor(1.5)).has_infinite_slope


def test_only_gamma_adds_eps_to_entries():
    adding = [name for name, curve in pp.curves.CURVES.items() if curve.adds_eps]
    assert adding == ["gamma"]


def test_default_is_the_square_root():
    torch.testing.assert_close(pp.Gamma().value(torch.tensor([4.0])), torch.tensor([2.0]))


def test_a_learnt_gamma_stays_below_its_bound() -> None:
    gamma = torch.nn.Parameter(torch.tensor(8.6e6))
    with pytest.raises(pp.errors.ArgumentError, match="64"):
        pp.Gamma(gamma)
    curve = pp.Gamma(torch.nn.Parameter(torch.tensor(2.0)))
    with torch.no_grad():
        curve.gamma.fill_(8.6e6)
    p = torch.tensor([0.5, 1.5])
    torch.testing.assert_close(curve.value(p), p**64)
    for sign, moves in [(1.0, True), (-1.0, False)]:  # descent on 1.5**gamma lowers gamma
        (grad,) = torch.autograd.grad(sign * curve.value(p).sum(), curve.gamma)
        assert (grad != 0) == moves
