"""MaxExp and SignedMaxExp: the battery, and their relation."""

from __future__ import annotations

import pytest
import torch
from mpmath import log, mpf, sign

import powerpool as pp
from powerpool.curves import IntegerPower
from tests.contracts.curve import CurveContract


class TestMaxExp(CurveContract):
    curve = pp.MaxExp
    parameters = (1, 1.0078125, 2.5, 7.3, 50, 1000)
    trainable = (1.5, 50.0)
    parameter_range = (1.0, 200.0)
    domain = (0.0, 1.0)
    bound = 1.0
    trace_normalize = True

    @classmethod
    def value(cls, p, theta):
        return 1 - (1 - p) ** theta

    @classmethod
    def derivative(cls, p, theta):
        return theta * (1 - p) ** (theta - 1)

    @classmethod
    def parameter_derivative(cls, p, theta):
        return -((1 - p) ** theta) * log(1 - p) if p < 1 else mpf(0)

    @classmethod
    def integer_power(cls, theta):
        return IntegerPower(exponent=int(theta), complement=True) if theta in (1, 50, 1000) else None


class TestSignedMaxExp(TestMaxExp):
    curve = pp.SignedMaxExp
    parameters = (1, 2.5, 50)
    domain = (-1.0, 1.0)

    @classmethod
    def value(cls, p, theta):
        return (1 - max(mpf(0), -p)) ** theta - (1 - max(mpf(0), p)) ** theta

    @classmethod
    def derivative(cls, p, theta):
        return theta * (1 - abs(p)) ** (theta - 1)

    @classmethod
    def parameter_derivative(cls, p, theta):
        return -sign(p) * (1 - abs(p)) ** theta * log(1 - abs(p)) if abs(p) < 1 else mpf(0)

    @classmethod
    def integer_power(cls, theta):
        return None

    @classmethod
    def has_kink(cls, p):
        return p == 0


def test_the_slope_of_signed_maxexp_at_zero_depends_on_eta():
    """d/d eta of g'(0) = eta is 1, by either order of differentiation; abs and copysign alone would give 0."""
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    curve = pp.SignedMaxExp(torch.nn.Parameter(torch.tensor([5.0], dtype=torch.float64)))
    by_p, by_eta = torch.autograd.grad(curve.value(p), (p, curve.eta), create_graph=True)
    assert torch.autograd.grad(by_p, curve.eta)[0].item() == 1
    assert torch.autograd.grad(by_eta, p)[0].item() == 1


def test_one_draw_is_the_identity():
    p = torch.rand(100, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pp.MaxExp(1).value(p), p)
    torch.testing.assert_close(pp.SignedMaxExp(1).value(-p), -p)


def test_both_are_equal_for_positive_points():
    p = torch.rand(100, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(pp.SignedMaxExp(20).value(p), pp.MaxExp(20).value(p), rtol=0, atol=0)


def test_is_the_probability_of_a_hit_in_eta_draws():
    draws = torch.rand(20_000, 6, generator=torch.Generator().manual_seed(0))
    hits = (draws < 0.2).any(1).double().mean()
    torch.testing.assert_close(pp.MaxExp(6).value(torch.tensor(0.2)).double(), hits, rtol=0, atol=0.01)


def test_defaults():
    assert repr(pp.MaxExp()) == "MaxExp(eta=50)"
    assert repr(pp.SignedMaxExp()) == "SignedMaxExp(eta=50)"


@pytest.mark.parametrize("eta", [1e10, 1e20, 1e29])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_exponents_have_finite_derivatives(eta: float, dtype: torch.dtype) -> None:
    p = torch.tensor([0.0, 1e-12, 1e-6, 0.1, 0.3, 0.7, 1.0], dtype=dtype)
    for curve in (pp.MaxExp(eta), pp.MaxExp(torch.tensor(eta)), pp.FAHDP(1e-12, rounding="identity")):
        assert curve.derivative(p).isfinite().all()
        assert curve.derivative(p)[2:].abs().max() == 0
        assert curve.divided_difference(p, p.flip(0)).isfinite().all()
