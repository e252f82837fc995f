"""Competitors and float64 references, against NumPy, SciPy and finite differences."""

from functools import partial

import mpmath
import numpy as np
import pytest
import scipy.linalg
import torch

from powerpool.bench import competitors, curves, reference
from powerpool.bench.inputs import Inputs
from tests import oracles
from tests.tolerances import tolerance

ETA = 7
MAXEXP = {
    "eigh_autograd": competitors.eigh_autograd,
    "svd_autograd": competitors.svd_autograd,
    "matrix_power_autograd": competitors.matrix_power_autograd,
    "eigh_loewner": competitors.eigh_loewner,
}
ORACLES = {
    "Gamma(0.5)": oracles.gamma(0.5),
    "MaxExp(50)": oracles.maxexp(50),
    "SignedMaxExp(50)": oracles.signed_maxexp(50),
    "AsinhE(10)": oracles.asinhe(10),
    "SigmE(50)": oracles.sigme(50),
    "HDP(0.01)": oracles.hdp(0.01),
    "FAHDP(0.01)": oracles.fahdp(0.01, "ceil"),
}


def features_of(channels: int, locations: int, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, channels, locations, generator=generator, dtype=torch.float64).requires_grad_()


def moments(features: torch.Tensor) -> list[np.ndarray]:
    return [x @ x.T / x.shape[1] for x in features.detach().numpy()]


@pytest.mark.parametrize("name", MAXEXP)
@pytest.mark.parametrize("locations", [3, 9], ids=["rank-deficient", "full rank"])
def test_value_is_maxexp_of_the_eigenvalues(name, locations):
    features = features_of(5, locations)
    result = MAXEXP[name](features, ETA)
    for matrix, given in zip(moments(features), result.detach(), strict=True):
        divided = matrix / np.trace(matrix)
        expected = np.eye(5) - np.linalg.matrix_power(np.eye(5) - divided, ETA)
        torch.testing.assert_close(given, torch.from_numpy(expected), **tolerance(torch.float64, slack=10))


@pytest.mark.parametrize("name", MAXEXP)
def test_gradient_is_right_at_full_rank(name):
    assert torch.autograd.gradcheck(partial(MAXEXP[name], eta=ETA), features_of(4, 9))


def test_loewner_gradient_is_right_where_eigenvalues_are_equal():
    # M = diag(1, 1, 1, 4)/N, and a null vector: ties, where autograd through eigenvectors has no answer.
    features = torch.diag(torch.tensor([1.0, 1.0, 1.0, 2.0, 0.0], dtype=torch.float64)).unsqueeze(0).requires_grad_()
    assert torch.autograd.gradcheck(partial(competitors.eigh_loewner, eta=ETA), features)
    gradient = torch.autograd.grad(competitors.eigh_autograd(features, ETA).square().sum(), features)[0]
    assert not torch.isfinite(gradient).all()


@pytest.mark.parametrize("iterations", [1, 2, 5])
@pytest.mark.parametrize("locations", [3, 9], ids=["rank-deficient", "full rank"])
def test_newton_schulz_backward_is_that_of_the_iteration(iterations, locations):
    assert torch.autograd.gradcheck(
        partial(competitors.newton_schulz, iterations=iterations), features_of(4, locations)
    )


def test_newton_schulz_converges_to_the_square_root():
    features = features_of(4, 40)
    result = competitors.newton_schulz(features, 30)
    for matrix, given in zip(moments(features), result.detach(), strict=True):
        expected = torch.from_numpy(np.real(scipy.linalg.sqrtm(matrix)))
        torch.testing.assert_close(given, expected, **tolerance(torch.float64, slack=1e3))
    # and five iterations are not enough, which is why the label says how many
    assert not torch.equal(result, competitors.newton_schulz(features, 5))


@pytest.mark.parametrize("locations", [3, 9], ids=["rank-deficient", "full rank"])
def test_newton_schulz_reference_is_the_same_iteration(locations):
    features = features_of(4, locations)
    upstream = torch.rand(2, 4, 4, dtype=torch.float64)
    value = competitors.newton_schulz(features, 5)
    (gradient,) = torch.autograd.grad(value, features, upstream)
    expected = reference.newton_schulz(features, upstream, 5)
    torch.testing.assert_close(value.detach(), expected.value, **tolerance(torch.float64, slack=10))
    torch.testing.assert_close(gradient, expected.gradient, **tolerance(torch.float64, slack=10))


def test_floor_reference_is_the_moment():
    inputs = Inputs(2, 5, 3)
    answer = inputs.floor_reference()
    for matrix, given in zip(moments(inputs.features.double()), answer.value, strict=True):
        torch.testing.assert_close(given, torch.from_numpy(matrix), **tolerance(torch.float64))
    assert_directional(reference.moment, features_of(5, 3))


@pytest.mark.parametrize("name", curves.ROWS)
@pytest.mark.parametrize("locations", [3, 9], ids=["rank-deficient", "full rank"])
@pytest.mark.parametrize("form", [reference.elementwise, reference.spectral])
def test_gradient_of_every_reference_is_the_slope_of_its_value(name, locations, form):
    scalar = curves.ROWS[name].scalar
    assert_directional(lambda x, g: form(x, g, scalar), features_of(5, locations))


@pytest.mark.parametrize("name", curves.ROWS)
def test_value_of_every_spectral_reference_is_the_curve_of_the_eigenvalues(name):
    row = curves.ROWS[name]
    features = features_of(5, 9)
    answer = reference.spectral(features, torch.zeros(2, 5, 5, dtype=torch.float64), row.scalar)
    for matrix, given in zip(moments(features), answer.value, strict=True):
        if row.scalar.trace_normalize:
            matrix = matrix / (np.trace(matrix) + 1e-6)
        eigenvalues, vectors = np.linalg.eigh(matrix)
        curved = np.array([float(ORACLES[name].value(mpmath.mpf(value))) for value in eigenvalues])
        expected = torch.from_numpy((vectors * curved) @ vectors.T)
        torch.testing.assert_close(given, expected, **tolerance(torch.float64, slack=100))
        diagonal = torch.tensor(eigenvalues) + (1e-6 if row.scalar.adds_eps else 0)
        entries = torch.tensor([float(ORACLES[name].value(mpmath.mpf(float(value)))) for value in diagonal])
        torch.testing.assert_close(row.plain(torch.tensor(eigenvalues)), entries.double(), rtol=1e-5, atol=1e-6)


def assert_directional(function, features: torch.Tensor, step: float = 1e-6) -> None:
    """<gradient, d> against (L(x + h d) - L(x - h d)) / 2h, with L = <value, upstream>."""
    generator = torch.Generator().manual_seed(1)
    x = features.detach()
    upstream = torch.randn(x.shape[0], x.shape[1], x.shape[1], generator=generator, dtype=torch.float64)
    direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    up, down = (function(x + sign * step * direction, upstream).value for sign in (1, -1))
    slope = ((up - down) * upstream).sum() / (2 * step)
    found = (function(x, upstream).gradient * direction).sum()
    # A difference of step 1e-6 has about 1e-10 of truncation and round-off each.
    torch.testing.assert_close(found, slope, rtol=1e-6, atol=1e-7)


def test_gspn_is_maxexp_of_a_matrix_with_noise_on_its_diagonal():
    features = torch.rand(2, 6, 20, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    found = competitors.gspn_autograd(features, ETA)
    exact = competitors.eigh_autograd(features, ETA)
    assert 0 < (found - exact).norm() / exact.norm() < 1e-2
    assert torch.autograd.grad(found.square().sum(), features)[0].isfinite().all()


def test_gspn_of_equal_eigenvalues_has_a_finite_gradient():
    """The reason for the noise: without it autograd divides by a gap of 0."""
    features = torch.eye(4, dtype=torch.float64).expand(1, 4, 4).clone().requires_grad_()
    assert torch.autograd.grad(competitors.gspn_autograd(features, ETA)[0, 0, 1], features)[0].isfinite().all()
