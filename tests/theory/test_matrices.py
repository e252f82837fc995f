"""Gradients of matrix powers and effects on a spectrum against autograd and SciPy; kernels against their sums."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, linalg, stats
from torch import Tensor

import powerpool as pp
from powerpool import theory
from powerpool.errors import ArgumentError, ShapeError
from tests.theory.grids import F64, covariance, few_examples, log_floats, symmetric

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def _autograd(matrix: Tensor, grad: Tensor, exponent: int, complement: bool) -> Tensor:
    """Autograd through the products; the symmetric part of the gradient."""
    leaf = matrix.clone().requires_grad_()
    identity = torch.eye(matrix.shape[-1], dtype=F64)
    power = torch.linalg.matrix_power(identity - leaf if complement else leaf, exponent)
    (found,) = torch.autograd.grad(identity - power if complement else power, leaf, grad)
    return (found + found.mT) / 2


@pytest.mark.parametrize("exponent", [1, 2, 5, 12, 50])
def test_linear_time_derivatives(exponent):
    """Eq. der_maxexp0 with a plus, der_maxexp, der_gamma: full sum, half sum, autograd, the library's backward."""
    matrix, grad = covariance(4), symmetric(4)
    for function, curve, complement in (
        (theory.maxexp_gradient, pp.MaxExp(exponent), True),
        (theory.gamma_gradient, pp.Gamma(exponent), False),
    ):
        expected = _autograd(matrix, grad, exponent, complement)
        torch.testing.assert_close(function(matrix, grad, exponent), expected, **CLOSE)
        torch.testing.assert_close(function(matrix, grad, exponent, halved=False), expected, **CLOSE)
        leaf = matrix.clone().requires_grad_()
        (ours,) = torch.autograd.grad(pp.solvers.Squaring().apply(leaf, curve, True, 1e-5), leaf, grad)
        torch.testing.assert_close(ours, expected, **CLOSE)


@few_examples
@given(st.integers(1, 6), st.integers(1, 20), st.integers(0, 2**16))
def test_linear_time_derivatives_of_any_gradient(size, exponent, seed):
    """Only the symmetric part of a gradient counts; batches are computed matrix by matrix."""
    generator = torch.Generator().manual_seed(seed)
    matrix = torch.stack([covariance(size, seed=seed), covariance(size, 1, seed)])
    grad = torch.randn(2, size, size, generator=generator, dtype=F64)
    for halved in (True, False):
        found = theory.maxexp_gradient(matrix, grad, exponent, halved)
        expected = torch.stack([_autograd(m, g, exponent, True) for m, g in zip(matrix, grad, strict=True)])
        torch.testing.assert_close(found, expected, **CLOSE)
        found = theory.gamma_gradient(matrix, grad, exponent, halved)
        expected = torch.stack([_autograd(m, g, exponent, False) for m, g in zip(matrix, grad, strict=True)])
        torch.testing.assert_close(found, expected, **CLOSE)


RAW = {
    "gamma": (pp.Gamma(0.5), lambda m: 0.5 * (m + 1e-6) ** -0.5),
    "gamma-2": (pp.Gamma(2), lambda m: 2 * (m + 1e-6)),
    "sigme": (
        pp.SigmE(3.0, trace_normalize=False),
        lambda m: 2 * 3.0 * torch.exp(-3.0 * m) / (1 + torch.exp(-3.0 * m)) ** 2,
    ),
    "asinhe": (pp.AsinhE(3.0), lambda m: 3.0 / torch.sqrt(9.0 * m**2 + 1)),
}


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("coordinates", [False, True])
def test_gradients_of_features(name, coordinates):
    """Eq. der_auto2 with the D of App. B and C: 2/N sym(G * D), its first rows, times the features and coordinates."""
    curve, slope = RAW[name]
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(3, 4, generator=generator, dtype=F64)
    codes = pp.spatial_coordinates(2, 2, pivots=3, dtype=F64) if coordinates else torch.zeros(0, 4, dtype=F64)
    leaf = features.clone().requires_grad_()
    result = pp.second_order_pool(leaf, curve, "elementwise", coordinates=codes if coordinates else None)
    grad = torch.randn(result.shape, generator=generator, dtype=F64)
    (found,) = torch.autograd.grad(result, leaf, grad)
    joined = torch.cat([features, codes])
    weighted = grad * slope(joined @ joined.mT / 4)
    expected = 2 / 4 * ((weighted + weighted.mT) / 2)[:3] @ joined
    torch.testing.assert_close(found, expected, **CLOSE)


def test_the_autocorrelation_moves_as_der_auto_says():
    """Eq. der_auto: the derivative of the sum of outer products by one entry of the features."""
    features, codes = (
        torch.rand(3, 4, generator=torch.Generator().manual_seed(1), dtype=F64),
        torch.ones(2, 4, dtype=F64),
    )

    def total(phi: Tensor) -> Tensor:
        joined = torch.cat([phi, codes])
        return joined @ joined.mT

    jacobian = torch.autograd.functional.jacobian(total, features)  # (5, 5, 3, 4)
    for k, n in ((0, 0), (2, 3)):
        unit = torch.zeros(5, dtype=F64)
        unit[k] = 1
        joined = torch.cat([features, codes])[:, n]
        torch.testing.assert_close(jacobian[:, :, k, n], torch.outer(unit, joined) + torch.outer(joined, unit), **CLOSE)


def test_eigenvalues_move_along_their_vectors():
    """Eq. eig_der, first half: d lambda_i / dM = u_i u_i^T."""
    matrix = covariance(4).requires_grad_()
    values, vectors = torch.linalg.eigh(matrix)
    for i in range(4):
        (found,) = torch.autograd.grad(values[i], matrix, retain_graph=True)
        torch.testing.assert_close(found, torch.outer(vectors[:, i], vectors[:, i]), **CLOSE)


IDENTITY = np.eye(4)
CLOSED_FORMS = {
    "gamma": (pp.Gamma(0.5), linalg.sqrtm),
    "gamma-0.3": (pp.Gamma(0.3), lambda m: linalg.fractional_matrix_power(m, 0.3)),
    "maxexp": (pp.MaxExp(7), lambda m: IDENTITY - np.linalg.matrix_power(IDENTITY - m, 7)),
    "asinhe": (pp.AsinhE(3.0), lambda m: linalg.logm(3 * m + linalg.sqrtm(IDENTITY + 9 * m @ m))),
    "sigme": (pp.SigmE(5.0), lambda m: 2 * linalg.inv(IDENTITY + linalg.expm(-5 * m)) - IDENTITY),
    "hdp": (pp.HDP(0.01), lambda m: linalg.expm(-0.01 * linalg.pinv(m))),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_closed_forms_of_matrices(name):
    """Table 2, for a matrix of full rank and trace 1."""
    curve, closed = CLOSED_FORMS[name]
    matrix = covariance(4)
    found = pp.spectral(matrix, curve, "eigen", eps=0.0)
    torch.testing.assert_close(found, torch.from_numpy(np.real(closed(matrix.numpy()))), rtol=1e-9, atol=1e-10)


@few_examples
@given(st.integers(2, 20), st.integers(0, 2**16))
def test_leading_variance_is_the_variance(count, seed):
    values = torch.rand(3, count, generator=torch.Generator().manual_seed(seed), dtype=F64)
    leading = 1 + seed % count
    found = theory.leading_variance(values, pp.MaxExp(5), leading)
    expected = [np.var(1 - (1 - np.sort(row)[::-1][:leading]) ** 5) for row in values.numpy()]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=F64), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("leading", [5, 10, 15])
def test_leading_variance_falls_in_the_end(leading):
    """Fig. var1: after its peak it falls monotonically to 0."""
    spectrum = 1.0 / torch.arange(1, 101, dtype=F64) ** 1.5
    spectrum = spectrum / spectrum.sum()
    etas = torch.logspace(0, 5, 60, dtype=F64).tolist()
    found = torch.stack([theory.leading_variance(spectrum, pp.MaxExp(eta), leading) for eta in etas])
    peak = int(found.argmax())
    assert (found[peak:].diff() <= 1e-15).all()
    assert found[-1] < 1e-12


@pytest.mark.parametrize("curve", [pp.MaxExp(20), pp.Gamma(0.2), pp.HDP(0.01)], ids=str)
def test_push_forward_of_a_beta_spectrum(curve):
    """Fig. epn-dist: the density is that of the transformed samples, has mass 1, and piles up near 1."""
    beta = stats.beta(1.0, 6.0)
    points = torch.linspace(1e-6, 0.9, 200001, dtype=F64)
    values, density = theory.push_forward(points, torch.from_numpy(beta.pdf(points.numpy())), curve)
    usable = values > 1e-9  # below, slope and density are not reliable numbers
    mass = torch.trapezoid(density[usable], values[usable]).item()
    assert mass == pytest.approx(1, abs=0.01)
    samples = curve.value(torch.from_numpy(beta.rvs(20000, random_state=0))).numpy()
    grid = np.linspace(0.1, 0.9, 9)
    below = [
        torch.trapezoid(density[usable & (values <= edge)], values[usable & (values <= edge)]).item() for edge in grid
    ]
    np.testing.assert_allclose(below, [(samples <= edge).mean() for edge in grid], atol=0.015)
    assert np.median(samples) > 0.6 > 5 * np.median(beta.rvs(20000, random_state=0))


def test_bad_arguments():
    eye, values = torch.eye(2), torch.rand(4)
    with pytest.raises(ArgumentError, match=r"eta.*2\.5"):
        theory.maxexp_gradient(eye, eye, 2.5)
    with pytest.raises(ArgumentError, match=r"gamma.*0"):
        theory.gamma_gradient(eye, eye, 0)
    with pytest.raises(ShapeError, match="grad"):
        theory.maxexp_gradient(eye, torch.eye(3), 2)
    with pytest.raises(ArgumentError, match="leading"):
        theory.leading_variance(values, pp.MaxExp(2), 5)
    with pytest.raises(TypeError, match="points"):
        theory.push_forward(torch.tensor([1]), torch.ones(1), pp.MaxExp(2))


# ---- kernels ---------------------------------------------------------------------------------------------------------


@few_examples
@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 7), st.integers(0, 2**16))
def test_autocorrelations_linearise_the_polynomial_kernel(channels, first, second, seed):
    """Prop. linearize, Eq. hok1: by a double loop."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(2, channels, first, generator=generator, dtype=F64)
    b = torch.randn(2, channels, second, generator=generator, dtype=F64)
    expected = [
        sum(float(a[i, :, n] @ b[i, :, m]) ** 2 for n in range(first) for m in range(second)) / (first * second)
        for i in range(2)
    ]
    for kernel in (theory.polynomial_kernel, theory.moment_kernel):
        torch.testing.assert_close(kernel(a, b), torch.tensor(expected, dtype=F64), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("x, y, sigma", [(0.0, 0.0, 0.5), (0.1, 0.9, 0.3), (1.0, 0.2, 2.0), (0.4, 0.6, 0.05)])
def test_the_rbf_kernel_is_an_integral(x, y, sigma):
    """Eq. gauss_integral, by quadrature; and in two dimensions as a product."""

    def product(z: float) -> float:
        return math.exp(-((x - z) ** 2) / sigma**2) * math.exp(-((y - z) ** 2) / sigma**2)

    total, _ = integrate.quad(product, (x + y) / 2 - 12 * sigma, (x + y) / 2 + 12 * sigma, points=[(x + y) / 2])
    found = theory.rbf_kernel(x, y, sigma)
    assert found == pytest.approx(math.sqrt(2 / (math.pi * sigma**2)) * total, rel=1e-9)
    assert found == pytest.approx(math.exp(-((x - y) ** 2) / (2 * sigma**2)), rel=1e-14)


@pytest.mark.parametrize("pivots", [3, 5, 10])
def test_the_riemann_sum_is_that_of_the_spatial_coordinates(pivots):
    """With the features of the library: c <varphi(x), varphi(y)>."""
    sigma, places = 0.3, torch.linspace(0, 1, 6, dtype=F64)
    codes = pp.spatial_coordinates(1, 6, pivots=pivots, sigma=sigma, dtype=F64)[:pivots]
    constant = math.sqrt(2 / math.pi) / sigma * 1.4 / (pivots - 1)
    found = theory.rbf_riemann_sum(places[:, None], places[None, :], torch.tensor(sigma, dtype=F64), pivots)
    torch.testing.assert_close(found, constant * codes.mT @ codes, rtol=1e-12, atol=1e-15)


@few_examples
@given(st.floats(0, 1), st.floats(0, 1), log_floats(0.02, 2.0), st.integers(2, 40))
def test_the_error_of_the_riemann_sum_is_bounded(x, y, sigma, pivots):
    error = abs(theory.rbf_riemann_sum(x, y, sigma, pivots) - theory.rbf_kernel(x, y, sigma))
    assert error <= theory.rbf_riemann_bound(x, y, sigma, pivots) * (1 + 1e-9) + 1e-14


def test_the_bound_is_within_a_factor_of_two():
    """Both for few pivots and for a wide kernel that extends beyond [-0.2, 1.2]."""
    for sigma, pivots in ((0.3, 5), (1.0, 40)):
        error = abs(theory.rbf_riemann_sum(0.4, 0.6, sigma, pivots) - theory.rbf_kernel(0.4, 0.6, sigma))
        assert error > theory.rbf_riemann_bound(0.4, 0.6, sigma, pivots) / 2


def test_pivots_beyond_the_unit_interval_are_needed():
    """App. L: for places at 0 and 1 the integrand reaches beyond; a sum over [0, 1] alone loses half of it."""
    sigma, pivots = 0.2, 60
    inside = np.linspace(0, 1, pivots)
    constant = math.sqrt(2 / math.pi) / sigma / (pivots - 1)
    lost = 1 - constant * float((np.exp(-(inside**2) / sigma**2) ** 2).sum())
    assert lost > 0.4
    assert abs(theory.rbf_riemann_sum(0.0, 0.0, sigma, pivots) - 1) < 0.03


def test_bad_arguments_of_kernels():
    with pytest.raises(ShapeError, match="channels"):
        theory.moment_kernel(torch.ones(2, 3), torch.ones(3, 3))
    with pytest.raises(ArgumentError, match="pivots"):
        theory.rbf_riemann_sum(0.0, 0.0, 0.5, 1)
    for function in (theory.rbf_riemann_sum, theory.rbf_riemann_bound):
        with pytest.raises(ArgumentError, match="sigma"):
            function(0.0, 0.0, 0.0, 5)
    with pytest.raises(ArgumentError, match="sigma"):
        theory.rbf_kernel(0.0, 0.0, -1.0)
    with pytest.raises(ArgumentError, match="y must"):
        theory.rbf_riemann_bound(0.0, 1.5, 0.5, 5)
