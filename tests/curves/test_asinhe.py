"""AsinhE: the battery."""

from __future__ import annotations

import math

import pytest
import torch
from mpmath import log, sign, sqrt

import powerpool as pp
from powerpool.errors import NotFiniteError
from tests.contracts.curve import CurveContract


class TestAsinhE(CurveContract):
    curve = pp.AsinhE
    parameters = (0.125, 0.3, 10, 1000)
    trainable = (0.25, 100.0)
    parameter_range = (0.01, 1000.0)
    domain = (-float("inf"), float("inf"))
    trace_normalize = False

    @classmethod
    def value(cls, p, theta):
        x = theta * abs(p)
        return sign(p) * log(x + sqrt(1 + x**2))

    @classmethod
    def derivative(cls, p, theta):
        return theta / sqrt(1 + theta**2 * p**2)

    @classmethod
    def parameter_derivative(cls, p, theta):
        return p / sqrt(1 + theta**2 * p**2)


def test_squares_do_not_overflow():
    """Moments of features of 1e12 are 1e24; their squares exceed float32."""
    p = torch.tensor([-1e24, 1e30])
    curve = pp.AsinhE(1)
    torch.testing.assert_close(curve.value(p), p.sign() * torch.log(2 * p.abs()))
    torch.testing.assert_close(curve.derivative(p), 1 / p.abs(), rtol=1e-6, atol=0)
    torch.testing.assert_close(curve.divided_difference(p, p), 1 / p.abs(), rtol=1e-6, atol=0)


def test_default():
    assert repr(pp.AsinhE()) == "AsinhE(gamma=10.0)"


@pytest.mark.parametrize("gamma, scale", [(10.0, 5e18), (1e10, 1e15)])
def test_an_argument_that_overflows_is_refused_element_wise(gamma: float, scale: float) -> None:
    features, curve = torch.full((4, 2), scale), pp.AsinhE(gamma)
    with pytest.raises(NotFiniteError, match="float32"):
        pp.second_order_pool(features, curve, "elementwise", check=True)
    found = pp.second_order_pool(features.double(), curve, "elementwise", check=True)
    torch.testing.assert_close(
        found, torch.full((4, 4), math.asinh(gamma * scale**2), dtype=torch.float64), rtol=1e-6, atol=0
    )
