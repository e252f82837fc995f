"""Errata of the paper: each test computes both versions, and that of the paper fails.

The slopes of single curves are in tests/curves; the trace coupling of App. B is in tests/test_functional.py.
"""

from __future__ import annotations

import math
import zipfile

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

import powerpool as pp
from tests.real_data import require_data
from tests.solvers.test_squaring import _count

F64 = torch.float64


def _problem() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(4, 6, generator=generator, dtype=F64)
    noise = torch.randn(4, 4, generator=generator, dtype=F64)
    return features @ features.mT / 6, noise + noise.mT


def _difference(function: object, matrix: Tensor, grad: Tensor) -> Tensor:
    """dL/dM by central differences along symmetric directions."""
    result = torch.zeros_like(matrix)
    step = 1e-6
    for i in range(len(matrix)):
        for j in range(len(matrix)):
            direction = torch.zeros_like(matrix)
            direction[i, j] += 0.5
            direction[j, i] += 0.5
            change = function(matrix + step * direction) - function(matrix - step * direction)  # type: ignore[operator]
            result[i, j] = (grad * change).sum() / (2 * step)
    return result


def test_the_derivative_of_maxexp_is_positive() -> None:
    """Eq. binom_mat_der, der_maxexp0 and der_maxexp carry a minus sign."""
    moment, grad = _problem()
    matrix, identity, eta = moment / moment.trace(), torch.eye(4, dtype=F64), 5
    base = identity - matrix
    total = sum(
        torch.linalg.matrix_power(base, n) @ grad @ torch.linalg.matrix_power(base, eta - 1 - n) for n in range(eta)
    )
    measured = _difference(lambda m: identity - torch.linalg.matrix_power(identity - m, eta), matrix, grad)
    torch.testing.assert_close(total, measured, rtol=1e-6, atol=1e-6)
    leaf = matrix.clone().requires_grad_()
    (ours,) = torch.autograd.grad(pp.solvers.Squaring().apply(leaf, pp.MaxExp(eta), True, 1e-5), leaf, grad)
    torch.testing.assert_close(ours, measured, rtol=1e-6, atol=1e-6)
    assert (-total - measured).abs().max() > 1  # of the paper


def test_hdp_is_zero_on_the_null_space() -> None:
    """Table 2: Exp(-t M^+) is the identity there."""
    features = torch.rand(5, 2, generator=torch.Generator().manual_seed(1), dtype=F64)
    matrix = features @ features.mT / 2
    ours = pp.spectral(matrix, pp.HDP(0.1), eps=0.0)
    null = torch.linalg.svd(features).U[:, 2:]
    torch.testing.assert_close(ours @ null, torch.zeros(5, 3, dtype=F64), rtol=0, atol=1e-12)
    paper = torch.linalg.matrix_exp(-0.1 * torch.linalg.pinv(matrix / matrix.trace()))
    torch.testing.assert_close(paper @ null, null)
    torch.testing.assert_close(ours, paper - null @ null.mT)


def test_the_sylvester_gradient_is_too_large_by_two() -> None:
    """App. D: 2 Res(Vec(sym G)^T (I x M^1/2 + M^1/2 x I)^+)."""
    matrix, grad = _problem()
    root = pp.spectral(matrix, pp.Gamma(0.5), "eigen")
    identity = torch.eye(4, dtype=F64)
    kronecker = torch.kron(identity, root) + torch.kron(root, identity)
    solved = (grad.flatten() @ torch.linalg.pinv(kronecker)).reshape(4, 4)
    leaf = matrix.clone().requires_grad_()
    (ours,) = torch.autograd.grad(pp.spectral(leaf, pp.Gamma(0.5), "eigen"), leaf, grad)
    torch.testing.assert_close(ours, solved)
    measured = _difference(lambda m: pp.spectral(m, pp.Gamma(0.5), "eigen"), matrix, grad)
    torch.testing.assert_close(ours, measured, rtol=1e-6, atol=1e-6)
    assert (2 * solved - measured).abs().max() > 0.1  # of the paper


def test_products_for_eta_fifty() -> None:
    """Forward 7, not 8: the eighth multiplies by the identity. Backward 7, not 11."""
    forward, backward = _count(50)
    assert forward < 8
    assert backward < 11


def test_eigenvector_derivatives_break_at_equal_eigenvalues() -> None:
    """Eq. eig_der divides by eigenvalue gaps; Daleckii-Krein does not."""
    plain, ours = torch.eye(3, dtype=F64).requires_grad_(), torch.eye(3, dtype=F64).requires_grad_()
    _, grad = _problem()
    values, vectors = torch.linalg.eigh(plain)
    (broken,) = torch.autograd.grad((vectors * values.sqrt()) @ vectors.mT, plain, grad[:3, :3])
    assert not torch.isfinite(broken).all()
    (right,) = torch.autograd.grad(pp.spectral(ours, pp.Gamma(0.5), "eigen"), ours, grad[:3, :3])
    torch.testing.assert_close(right, grad[:3, :3] / 2)


def test_the_variance_of_a_binomial() -> None:
    """App. M prints N p (p-1), which is negative."""
    trials, p = 20, 0.3
    counts = np.arange(trials + 1)
    mass = np.array([math.comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in counts])
    variance = float((mass * counts**2).sum() - (mass * counts).sum() ** 2)
    assert variance == pytest.approx(trials * p * (1 - p))
    assert variance != pytest.approx(trials * p * (p - 1))


def test_log_of_ten_ninths_is_positive() -> None:
    """App. P prints -0.105; at t = log(10/9) HDP(1) is 0.9."""
    t = math.log(10 / 9)
    assert t == pytest.approx(0.105, abs=5e-4)
    assert pp.HDP(t).value(torch.tensor(1.0, dtype=F64)).item() == pytest.approx(0.9)


def test_the_gap_eps1_needs_brackets() -> None:
    """App. F: 1 - (1 - a/(eta y))^eta - ((1/e - 1) y + 1) at y = 1; without brackets the + 1 has the wrong sign."""
    eta = 20.0
    t = math.e / (math.e - 1) * eta**eta / (eta + 1) ** (eta + 1)
    maxexp = 1 - (1 - t) ** eta  # at lambda = t, y = 1, where the line touches e^-1
    closed_form = (math.e - 1) / math.e - (1 - t) ** eta
    with_brackets = maxexp - ((1 / math.e - 1) * 1 + 1)
    without = maxexp - (1 / math.e - 1) * 1 + 1
    assert with_brackets == pytest.approx(closed_form)
    assert without != pytest.approx(closed_form)


def test_the_slope_of_gamma_in_y() -> None:
    """App. G: d/dy (t/y)^gamma is -gamma/y (t/y)^gamma, not -gamma/lambda (t/y)^gamma."""
    t, gamma, y = 0.2, 0.5, 0.7
    slope = float(mpmath.diff(lambda v: (t / v) ** gamma, y))
    assert slope == pytest.approx(-gamma / y * (t / y) ** gamma)
    assert slope != pytest.approx(-gamma / (t / y) * (t / y) ** gamma)


def test_the_fifth_derivative_is_of_sigme() -> None:
    """App. K calls it MaxExp's: the printed point is a zero of SigmE's fifth derivative and not of MaxExp's."""
    eta_prime = 10.0
    point = math.log(math.sqrt(26 * math.sqrt(105) + 270) / 2 + math.sqrt(105) / 2 + 13 / 2) / eta_prime
    eta = math.log(1 - 1 / math.sqrt(3)) / math.log(1 - math.log(math.sqrt(3) + 2) / eta_prime)
    with mpmath.workdps(40):
        sigme = mpmath.diff(lambda p: 2 / (1 + mpmath.exp(-eta_prime * p)) - 1, point, 5) / mpmath.mpf(eta_prime) ** 5
        maxexp = mpmath.diff(lambda p: 1 - (1 - p) ** eta, point, 5) / mpmath.mpf(eta) ** 5
    assert abs(float(sigme)) < 1e-12
    assert abs(float(maxexp)) > 1e-3


def test_what_the_line_bounds() -> None:
    """App. P: 1 - (e-1)t/e is above e^-t on (0, 1), not above e^t; and the gaps subtract e^-y, not y^-y."""
    t = np.linspace(0.01, 0.99, 99)
    line = 1 - (math.e - 1) / math.e * t
    assert (line >= np.exp(-t)).all()
    assert (line < np.exp(t)).all()
    # HDP in y = t/lambda is e^-y; FAHDP stays above it, but not above y^-y.
    time = 0.2
    y = np.linspace(time, 1.0, 200)
    fahdp = pp.FAHDP(time, "identity").value(torch.from_numpy(time / y)).numpy()
    assert (fahdp - np.exp(-y) >= -1e-12).all()
    assert (fahdp - y**-y).min() < -0.1


def test_hdp_rises_with_the_eigenvalue() -> None:
    """App. P prints d/dlambda e^(-t/lambda) = -t/lambda^2 e^(-t/lambda)."""
    points = torch.linspace(0.05, 1, 20, dtype=F64)
    slope = pp.HDP(0.3).derivative(points)
    assert (slope > 0).all()
    torch.testing.assert_close(slope, 0.3 / points**2 * torch.exp(-0.3 / points))


def test_how_many_classes_are_left_for_testing() -> None:
    """Few-shot: 80 classes train and validate. Flower102 has 102, so 22 are left; the text gives it Food-101's 21."""
    with zipfile.ZipFile(require_data("images/flower102.zip")) as files:
        classes = {name.split("/")[-2] for name in files.namelist() if name.endswith(".jpg")}
    assert len(classes) - 80 == 22
