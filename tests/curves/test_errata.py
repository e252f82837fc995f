"""Errata of the paper about curves: our formula holds, and the printed one fails the same comparison.

Slopes are compared with numerical differentiation of the curve, in 50 digits. Other errata: tests/test_errata.py.
"""

from __future__ import annotations

import mpmath
import pytest
import torch
from mpmath import asinh, e, exp, mpf, sqrt

import powerpool as pp


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(50):
        yield


def slope(curve, p: float) -> torch.Tensor:
    """g' by autograd, which must equal ``derivative``."""
    leaf = torch.tensor(p, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(curve.value(leaf), leaf)
    torch.testing.assert_close(curve.derivative(leaf).detach(), grad, rtol=1e-15, atol=0)
    return grad


def close(found: torch.Tensor, true: mpf) -> None:
    torch.testing.assert_close(found.item(), float(true), rtol=1e-12, atol=0)


def fails(found: torch.Tensor, printed: mpf) -> None:
    with pytest.raises(AssertionError):
        close(found, printed)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 10.0])
def test_slope_of_asinhe_at_zero(gamma):
    """Table 1 prints gamma'/sqrt(1 + gamma'^2): that is the slope at 1."""
    printed = gamma / sqrt(1 + mpf(gamma) ** 2)
    curve = pp.AsinhE(gamma)
    true = mpmath.diff(lambda p: asinh(mpf(gamma) * p), 0)
    close(slope(curve, 0.0), true)
    fails(slope(curve, 0.0), printed)
    close(slope(curve, 1.0), printed)


@pytest.mark.parametrize("eta", [1.5, 2.0, 20.0])
def test_sign_of_the_derivative_of_maxexp(eta):
    """Eq. der_maxexp carries a minus; 1 - (1-p)^eta rises."""
    p = 0.125
    true = mpmath.diff(lambda q: 1 - (1 - q) ** mpf(eta), mpf(p))
    printed = -mpf(eta) * (1 - mpf(p)) ** (mpf(eta) - 1)
    for curve, at in ((pp.MaxExp(eta), p), (pp.SignedMaxExp(eta), p), (pp.SignedMaxExp(eta), -p)):
        close(slope(curve, at), true)
        fails(slope(curve, at), printed)


@pytest.mark.parametrize("t", [0.01, 0.5, 2.0])
def test_sign_of_the_derivative_of_hdp(t):
    """App. P has d/dlambda e^(-t/lambda) negative; it is positive."""
    p = 0.25
    true = mpmath.diff(lambda q: exp(-mpf(t) / q), mpf(p))
    printed = -mpf(t) / mpf(p) ** 2 * exp(-mpf(t) / mpf(p))
    close(slope(pp.HDP(t), p), true)
    fails(slope(pp.HDP(t), p), printed)


@pytest.mark.parametrize("t", [0.05, 0.3, 0.9])
def test_the_gap_of_fahdp_to_hdp(t):
    """App. P measures it at y = t/lambda as e^-t (1 - (1-t/y)^eta) - y^-y; HDP is e^-y there."""
    p = torch.tensor(0.75, dtype=torch.float64)
    y = mpf(t) / mpf(0.75)
    eta = mpf(1) / 2 + sqrt(mpf(1) / 4 + (1 / (mpf(t) * (e - 1)) - 1 / e) ** 2)
    bound = exp(-mpf(t)) * (1 - (1 - mpf(t) / y) ** eta)
    gap = pp.FAHDP(t, "identity").value(p) - pp.HDP(t).value(p)
    close(gap, bound - exp(-y))
    fails(gap, bound - y**-y)
