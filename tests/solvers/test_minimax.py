"""The square root by minimax polynomials: its polynomials, value and gradient against oracles, and where it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import powerpool as pp
from powerpool.errors import ArgumentError, NotPositiveError
from powerpool.solvers import minimax
from tests import oracles
from tests.cases import MATRICES
from tests.contracts.solver import check_gradients, check_values, random_symmetric
from tests.counting import ProductCounter

SQRT = pp.Gamma(0.5)


def _root(matrix: Tensor, check: bool | None = None) -> Tensor:
    return pp.spectral(matrix, SQRT, "minimax", check=check)


def _with_condition(size: int, condition: float, seed: int = 0) -> Tensor:
    """Eigenvalues that decay geometrically; the float64 matrix has the entries of its float32 rounding."""
    noise = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    vectors = torch.linalg.qr(noise)[0]
    matrix = (vectors * torch.logspace(0, 1, size, base=condition, dtype=torch.float64)) @ vectors.mT / condition
    return ((matrix + matrix.mT) / 2).float().double()


def _reference(matrix: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The root and the solution of S X + X S = G in float64."""
    values, vectors = torch.linalg.eigh(matrix)
    roots = values.sqrt()
    rotated = vectors.mT @ grad @ vectors / (roots.unsqueeze(-1) + roots)
    return (vectors * roots) @ vectors.mT, vectors @ rotated @ vectors.mT


def _errors(matrix: Tensor, dtype: torch.dtype) -> tuple[float, float]:
    grad = random_symmetric(matrix.shape[-1], seed=1)
    leaf = matrix.to(dtype, copy=True).requires_grad_()
    value = _root(leaf)
    (gradient,) = torch.autograd.grad(value, leaf, grad.to(dtype))
    found, expected = (value.detach(), gradient), _reference(matrix, grad)
    value_error, gradient_error = (
        float((a.double() - b).norm() / b.norm()) for a, b in zip(found, expected, strict=True)
    )
    return value_error, gradient_error


@pytest.mark.parametrize(
    "steps, smallest, error", [(minimax.ROOT, minimax.SMALLEST, 8e-7), (minimax.LYAPUNOV, 1 / 25, 1.1e-5)]
)
def test_polynomials_are_close_to_one_on_their_interval(
    steps: tuple[tuple[float, ...], ...], smallest: float, error: float
) -> None:
    points = torch.logspace(torch.tensor(smallest).log10(), 0, 100_000, dtype=torch.float64)
    for step in steps:
        points = sum(coefficient * points ** (2 * power + 1) for power, coefficient in enumerate(step))
    assert (points - 1).abs().max() <= error
    assert (points - 1).abs().max() >= error / 2  # the bound is not loose


@pytest.mark.parametrize("name", list(MATRICES))
def test_agrees_with_the_oracle(name: str) -> None:
    matrix, reference = MATRICES[name], oracles.gamma(0.5)
    for dtype in (torch.float32, torch.float64):
        given = matrix.to(dtype)
        check_values([_root], given.double(), given, reference)
    check_gradients({"minimax": _root}, matrix, matrix, reference)


@pytest.mark.parametrize(
    "size, condition, value, gradient",
    [(16, 1e6, 3e-5, 1e-2), (64, 1e2, 5e-6, 1e-5), (64, 1e4, 8e-6, 5e-5), (64, 1e6, 2e-5, 4e-3)],
)
def test_error_in_float32(size: int, condition: float, value: float, gradient: float) -> None:
    value_error, gradient_error = _errors(_with_condition(size, condition), torch.float32)
    assert value_error <= value
    assert gradient_error <= gradient


def test_error_in_float64_is_round_off() -> None:
    value_error, gradient_error = _errors(_with_condition(32, 1e5), torch.float64)
    assert value_error <= 1e-12
    assert gradient_error <= 1e-9


@pytest.mark.parametrize("name", ["random", "repeated", "one-by-one"])
def test_derivatives_of_both_orders(name: str) -> None:
    leaf = torch.stack([MATRICES[name], 3 * MATRICES[name]]).requires_grad_()
    assert gradcheck(_root, (leaf,), fast_mode=True, check_forward_ad=True)
    assert gradgradcheck(_root, (leaf,), fast_mode=True, check_fwd_over_rev=True)


def test_number_of_products() -> None:
    leaf = _with_condition(8, 10.0).float().requires_grad_()
    with ProductCounter(8) as forward:
        value = _root(leaf)
    with ProductCounter(8) as backward:
        value.sum().backward()
    assert (forward.count, backward.count) == (24, 24)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_error_does_not_depend_on_scale(scale: float) -> None:
    matrix = MATRICES["random"].float()
    expected = _root(matrix)
    torch.testing.assert_close(_root(matrix * scale) / scale**0.5, expected, rtol=1e-5, atol=1e-5)


def test_zero_matrix_has_value_and_gradient_zero() -> None:
    leaf = torch.stack([torch.zeros(3, 3), torch.eye(3)]).requires_grad_()
    value = _root(leaf)
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    assert torch.equal(value[0], torch.zeros(3, 3))
    assert torch.equal(grad[0], torch.zeros(3, 3))
    torch.testing.assert_close(value[1], torch.eye(3))
    torch.testing.assert_close(grad[1], torch.full((3, 3), 0.5), rtol=2e-5, atol=0)


def _unsolvable() -> dict[str, Tensor]:
    features = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    dead = torch.diag(torch.tensor([1.0, 2.0, 0.0, 3.0]))
    vectors = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))[0]
    return {
        "singular": features @ features.mT / 8,
        "dead channel": dead,
        "condition 1e8": _with_condition(32, 1e8).float(),
        # Positive for every pair of channels: only its eigenvalue -0.1 is not.
        "indefinite": (vectors * torch.tensor([1.0, 1.0, -0.1])) @ vectors.mT,
    }


@pytest.mark.parametrize("name", list(_unsolvable()))
def test_what_does_not_converge_is_refused_or_nan(name: str) -> None:
    matrix = _unsolvable()[name]
    with pytest.raises(NotPositiveError, match="minimax"):
        _root(matrix)
    good = torch.eye(matrix.shape[-1])
    leaf = torch.stack([matrix, good]).requires_grad_()
    value = _root(leaf, check=False)
    (grad,) = torch.autograd.grad(value.sum(), leaf)
    assert torch.isnan(value[0]).all()
    assert torch.isnan(grad[0]).all()
    torch.testing.assert_close(value[1].detach(), good)
    assert torch.isfinite(grad[1]).all()


def test_features_with_a_redundant_channel_are_nan_without_checks() -> None:
    """Round-off must not pass for the eigenvalue 0 of an exact moment."""
    features = torch.randn(40, 32, 96, generator=torch.Generator().manual_seed(0)).relu()
    features[:20, 1] = features[:20, 0]
    features[20:, 1] = features[20:, 2:].mean(1)
    assert torch.isnan(pp.second_order_pool(features, SQRT, solver="minimax", check=False)).all()


def test_rank_deficient_features_are_refused() -> None:
    features = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(NotPositiveError, match="'gram'"):
        pp.second_order_pool(features, SQRT, solver="minimax")


@pytest.mark.parametrize("condition", [10.0 ** (power / 2) for power in range(8, 17)])
def test_the_result_is_close_or_nan(condition: float) -> None:
    matrix = _with_condition(64, condition)
    grad = random_symmetric(64, seed=1)
    expected = _reference(matrix + 1e-300 * torch.eye(64), grad)[0] if condition < 1e7 else None
    found = _root(matrix.float(), check=False)
    if expected is None:
        assert torch.isnan(found).all()
    else:
        assert torch.isnan(found).all() or (found - expected).norm() / expected.norm() < 3e-5


def test_bad_arguments() -> None:
    for curve in (pp.Gamma(0.3), pp.Gamma(torch.nn.Parameter(torch.tensor(0.5))), pp.MaxExp(5)):
        with pytest.raises(ArgumentError, match="minimax"):
            pp.spectral(torch.eye(3), curve, "minimax")
