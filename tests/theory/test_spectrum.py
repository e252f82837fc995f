"""Table 2, and what a curve does to a whole spectrum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import linalg, stats

import powerpool as pp
from powerpool import theory
from powerpool.errors import ArgumentError
from tests.theory.grids import F64, covariance, few_examples

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
    values = torch.rand(4)
    for leading in (0, 5, 1.5):
        with pytest.raises(ArgumentError, match="leading"):
            theory.leading_variance(values, pp.MaxExp(2), leading)
    with pytest.raises(ArgumentError, match="eigenvalues"):
        theory.leading_variance(torch.tensor(1.0), pp.MaxExp(2), 1)
    with pytest.raises(TypeError, match="points"):
        theory.push_forward(torch.tensor([1]), torch.ones(1), pp.MaxExp(2))
