"""Prop. 1 and App. L: kernels as dot products of features."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

import powerpool as pp
from powerpool import theory
from powerpool.errors import ArgumentError, ShapeError
from tests.theory.grids import F64, few_examples, log_floats


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


def test_bad_arguments():
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
