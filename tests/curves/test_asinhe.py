"""AsinhE: the battery."""

from __future__ import annotations

from mpmath import log, sign, sqrt

import powerpool as pp
from tests.contracts.curve import CurveContract


class TestAsinhE(CurveContract):
    curve = pp.AsinhE
    parameters = (0.125, 0.3, 1, 10, 1000)
    trainable = (0.25, 10.0, 100.0)
    fit = (3.0, 8.0, 5.0)
    parameter_range = (0.01, 1000.0)
    requirement = "a finite gamma > 0"
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


def test_default():
    assert repr(pp.AsinhE()) == "AsinhE(gamma=10.0)"
