"""SigmE: the battery, and ``trace_normalize``."""

from __future__ import annotations

import torch
from mpmath import cosh, exp, mpf, sign

import powerpool as pp
from tests.contracts.curve import CurveContract


class TestSigmE(CurveContract):
    curve = pp.SigmE
    parameters = (0.125, 0.3, 50, 1000)
    trainable = (0.25, 50.0)
    parameter_range = (0.01, 1000.0)
    domain = (-float("inf"), float("inf"))
    bound = 1.0
    trace_normalize = True
    exponential = ("derivative", "slope", "divided_difference", "parameter_derivative")

    @classmethod
    def value(cls, p, theta):
        return sign(p) * (2 / (1 + exp(-theta * abs(p))) - 1)

    @classmethod
    def derivative(cls, p, theta):
        return theta / 2 / cosh(theta * p / 2) ** 2

    @classmethod
    def parameter_derivative(cls, p, theta):
        return p / 2 / cosh(theta * p / 2) ** 2

    @classmethod
    def exponent(cls, points, theta):
        # sech^2(eta p/2) falls like e^(-eta |p|); between points of opposite sign nothing decays.
        low, high = min(points), max(points)
        return theta * min(abs(low), abs(high)) if low * high > 0 else mpf(0)


def test_division_by_the_trace_does_not_change_the_curve():
    with_trace, without = pp.SigmE(5), pp.SigmE(5, trace_normalize=False)
    assert with_trace.trace_normalize
    assert not without.trace_normalize
    p = torch.linspace(-2, 2, 9)
    torch.testing.assert_close(with_trace.value(p), without.value(p), rtol=0, atol=0)


def test_repr_shows_trace_normalize():
    assert repr(pp.SigmE()) == "SigmE(eta=50.0, trace_normalize=True)"
    assert repr(pp.SigmE(3, trace_normalize=False)) == "SigmE(eta=3, trace_normalize=False)"
