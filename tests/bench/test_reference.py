"""References in float64 against the 50-digit oracle; competitors against NumPy, SciPy and gradcheck."""

from functools import partial

import pytest
import torch
from mpmath import mpf

from powerpool.bench import competitors, operators, reference
from powerpool.selfcheck import oracle
from tests.tolerances import tolerance

ETA = 7
MAXEXP = {
    "eigh_autograd": competitors.eigh_autograd,
    "svd_autograd": competitors.svd_autograd,
    "matrix_power_autograd": competitors.matrix_power_autograd,
    "eigh_loewner": competitors.eigh_loewner,
}
FORMULAS = {
    "Gamma(0.5)": (reference.gamma, "0.5"),
    "MaxExp(50)": (reference.maxexp, "50"),
    "SignedMaxExp(50)": (reference.signed_maxexp, "50"),
    "AsinhE(10)": (reference.asinhe, "10"),
    "SigmE(50)": (reference.sigme, "50"),
    "HDP(0.01)": (reference.hdp, "0.01"),
    "FAHDP(0.01)": (reference.fahdp, "0.01"),
}
RANKS = pytest.mark.parametrize("locations", [3, 9], ids=["rank-deficient", "full rank"])


def features_of(channels: int, locations: int, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, channels, locations, generator=generator, dtype=torch.float64).requires_grad_()


def as_tensor(matrix: oracle.Matrix) -> torch.Tensor:
    return torch.tensor(oracle.floats(matrix), dtype=torch.float64)


@RANKS
@pytest.mark.parametrize("name", operators.CURVES)
def test_references_agree_with_the_oracle(name, locations):
    """Value and gradient, spectral and element-wise; and the plain formula, as a user would type it."""
    row, (formula, theta) = operators.CURVES[name], FORMULAS[name]
    features = features_of(4, locations, batch=1)
    upstream = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows, sent = oracle.exact(features[0].tolist()), oracle.exact(upstream[0].tolist())
    moment = oracle.moment(rows)
    with oracle.exactly():
        scalar = formula(mpf(theta))
        entries = oracle.elementwise(moment, sent, scalar)
        through = oracle.symmetric(entries.gradient) * rows * 2 / locations
    expected = {
        row.spectral: oracle.pool(rows, oracle.spectrum(moment), sent, scalar),
        row.elementwise: oracle.Answer(entries.value, entries.value_size, through, oracle.norm(through)),
    }
    for compute, right in expected.items():
        found = compute(features, upstream)
        slack = {"rtol": 1e-7, "atol": 1e-9}  # float64, divided differences of nearly equal eigenvalues
        torch.testing.assert_close(found.value[0], as_tensor(right.value), **slack)
        torch.testing.assert_close(found.gradient[0], as_tensor(right.gradient), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(row.plain_pool(features)[0], as_tensor(entries.value), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MAXEXP)
def test_gradient_of_a_competitor_is_right_at_full_rank(name):
    assert torch.autograd.gradcheck(partial(MAXEXP[name], eta=ETA), features_of(4, 9))


def test_loewner_gradient_is_right_at_equal_eigenvalues():
    # M = diag(1, 1, 1, 4, 0)/N: ties and a null vector, where autograd through eigenvectors is undefined.
    features = torch.diag(torch.tensor([1.0, 1.0, 1.0, 2.0, 0.0], dtype=torch.float64)).unsqueeze(0).requires_grad_()
    assert torch.autograd.gradcheck(partial(competitors.eigh_loewner, eta=ETA), features)
    gradient = torch.autograd.grad(competitors.eigh_autograd(features, ETA).square().sum(), features)[0]
    assert not torch.isfinite(gradient).all()


@RANKS
@pytest.mark.parametrize("iterations", [1, 5])
def test_newton_schulz_backward_is_that_of_the_iteration(iterations, locations):
    features = features_of(4, locations)
    assert torch.autograd.gradcheck(partial(competitors.newton_schulz, iterations=iterations), features)
    upstream = torch.rand(2, 4, 4, dtype=torch.float64)
    value = competitors.newton_schulz(features, iterations)
    (gradient,) = torch.autograd.grad(value, features, upstream)
    expected = reference.newton_schulz(features, upstream, iterations)
    torch.testing.assert_close(value.detach(), expected.value, **tolerance(torch.float64, slack=10))
    torch.testing.assert_close(gradient, expected.gradient, **tolerance(torch.float64, slack=10))


def test_gspn_is_maxexp_of_a_matrix_with_noise_on_its_diagonal():
    features = torch.rand(2, 6, 20, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(0)
    found = competitors.gspn_autograd(features, ETA)
    exact = competitors.eigh_autograd(features, ETA)
    assert 0 < (found - exact).norm() / exact.norm() < 1e-2
    # The reason for the noise: without it autograd divides by gaps of 0.
    equal = torch.eye(4, dtype=torch.float64).expand(1, 4, 4).clone().requires_grad_()
    assert torch.autograd.grad(competitors.gspn_autograd(equal, ETA)[0, 0, 1], equal)[0].isfinite().all()
