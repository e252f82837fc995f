"""Newton-Schulz is approximate: the value after convergence, the gradient against its own iteration."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import powerpool as pp
from powerpool.errors import ArgumentError, NotPositiveError
from powerpool.solvers import NewtonSchulz
from tests.cases import FEATURES, MATRICES
from tests.tolerances import tolerance

SQRT = pp.Gamma(0.5)


def _reference_iteration(matrix: Tensor, iterations: int) -> Tensor:
    """The coupled iteration of the iSQRT-COV paper, differentiated by autograd."""
    trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand_as(matrix)
    y, z = matrix / trace, identity
    for _ in range(iterations):
        y, z = 0.5 * y @ (3 * identity - z @ y), 0.5 * (3 * identity - z @ y) @ z
    return y * trace.sqrt()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["random", "repeated", "identity", "one-by-one"])
def test_value_after_twenty_iterations(name: str, dtype: torch.dtype) -> None:
    matrix = MATRICES[name].to(dtype)
    root = pp.spectral(matrix, SQRT, NewtonSchulz(20))
    torch.testing.assert_close(root, pp.spectral(matrix, SQRT, "eigen"), **tolerance(dtype))
    torch.testing.assert_close(root @ root, matrix, **tolerance(dtype))


@pytest.mark.parametrize("iterations", [1, 2, 3, 5, 20])
def test_backward_is_that_of_the_iteration(iterations: int) -> None:
    batch = torch.stack([MATRICES["random"], MATRICES["repeated"]])
    ours, theirs = batch.clone().requires_grad_(), batch.clone().requires_grad_()
    noise = torch.randn(batch.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    grad = noise + noise.mT
    value = pp.spectral(ours, SQRT, NewtonSchulz(iterations))
    expected = _reference_iteration(theirs, iterations)
    torch.testing.assert_close(value, expected)
    (found,) = torch.autograd.grad(value, ours, grad)
    (reference,) = torch.autograd.grad(expected, theirs, grad)
    torch.testing.assert_close(found, (reference + reference.mT) / 2)


@pytest.mark.parametrize("iterations", [1, 2, 5])
def test_derivatives_of_both_orders(iterations: int) -> None:
    leaf = MATRICES["random"].clone().requires_grad_()
    assert gradcheck(
        lambda m: pp.spectral(m, SQRT, NewtonSchulz(iterations)), (leaf,), fast_mode=True, check_forward_ad=True
    )
    assert gradgradcheck(
        lambda m: pp.spectral(m, SQRT, NewtonSchulz(iterations)), (leaf,), fast_mode=True, check_fwd_over_rev=True
    )


def test_five_iterations_are_not_enough() -> None:
    """On ill-conditioned input the error is not small."""
    vectors = torch.linalg.qr(torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    matrix = (vectors * torch.logspace(-3, 0, 64, dtype=torch.float64)) @ vectors.mT
    exact = pp.spectral(matrix, SQRT, "eigen")
    error = (pp.spectral(matrix, SQRT, NewtonSchulz(5)) - exact).norm() / exact.norm()
    assert 0.1 < error < 1


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_accuracy_does_not_depend_on_scale(scale: float) -> None:
    matrix = (scale * MATRICES["random"]).float()
    root = pp.spectral(matrix, SQRT, "newton_schulz")
    torch.testing.assert_close((root @ root / scale), matrix / scale, **tolerance(torch.float32))


def test_zero_matrix_has_value_and_gradient_zero() -> None:
    leaf = torch.stack([torch.zeros(3, 3), torch.eye(3)]).requires_grad_()
    value = pp.spectral(leaf, SQRT, "newton_schulz")
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    assert torch.equal(value[0], torch.zeros(3, 3))
    assert torch.equal(grad[0], torch.zeros(3, 3))
    torch.testing.assert_close(value[1], torch.eye(3))
    assert grad[1].abs().sum() > 0


@pytest.mark.parametrize("channels, locations", [(64, 8), (64, 49), (256, 49)])
def test_the_default_is_close_on_singular_moments(channels: int, locations: int) -> None:
    features = torch.randn(channels, locations, generator=torch.Generator().manual_seed(0)).relu()
    exact = pp.second_order_pool(features.double(), SQRT, solver="gram")
    found = pp.second_order_pool(features, SQRT, solver="newton_schulz")
    assert (found - exact).norm() / exact.norm() < 2e-3


def test_divergence_is_an_error_or_nan() -> None:
    """Round-off in the null space grows by 1.5 in each iteration, and must not be returned."""
    features = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)).relu()
    matrix = features @ features.mT / 8
    with pytest.raises(NotPositiveError, match="60 iterations"):
        pp.spectral(matrix, SQRT, NewtonSchulz(60))
    with pytest.raises(NotPositiveError, match="60 iterations"):
        pp.second_order_pool(features, SQRT, solver=NewtonSchulz(60))
    assert torch.isnan(pp.spectral(matrix, SQRT, NewtonSchulz(60), check=False)).all()


def test_the_result_is_close_or_nan() -> None:
    """A diverging iteration is finite for a while, and must not be returned then either."""
    features = torch.rand(64, 20, generator=torch.Generator().manual_seed(0))
    exact = pp.second_order_pool(features.double(), SQRT, solver="gram")
    for iterations in range(16, 40, 2):
        found = pp.second_order_pool(features, SQRT, solver=NewtonSchulz(iterations), check=False)
        assert torch.isnan(found).all() or (found - exact).norm() / exact.norm() < 0.1


def test_round_off_of_a_moment_is_not_refused() -> None:
    row = torch.randn(8, 1, generator=torch.Generator().manual_seed(0))
    equal = row.expand(8, 2**18).contiguous()  # sums of equal products round in one direction: off by 4e-5
    pooled = pp.second_order_pool(equal, pp.Gamma(gamma=0.5), solver=NewtonSchulz(5))
    torch.testing.assert_close(pooled, row @ row.T / row.norm(), rtol=0, atol=2e-3 * float(row.norm()))
    beyond = torch.tensor([[1.0, 1 + 4e-5], [1 + 4e-5, 1.0]])
    with pytest.raises(NotPositiveError):
        pp.spectral(beyond, pp.Gamma(gamma=0.5), solver=NewtonSchulz(5))


def test_rank_deficient_gradients_are_finite() -> None:
    leaf = FEATURES["rank-deficient"].float().requires_grad_()
    (grad,) = torch.autograd.grad(pp.second_order_pool(leaf, SQRT, solver="newton_schulz").sum(), leaf)
    assert torch.isfinite(grad).all()


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="newton_schulz"):
        pp.spectral(torch.eye(3), pp.Gamma(torch.nn.Parameter(torch.tensor(0.5))), "newton_schulz")
    with pytest.raises(ArgumentError, match="got 0"):
        NewtonSchulz(0)
