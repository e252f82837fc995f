"""The sum of powers: its value and derivatives, its number of products, and that no chain needs fewer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from powerpool.linalg.products import symmetrize
from powerpool.solvers.geometric import chain, geometric_pool, geometric_sum, products
from tests.counting import ProductCounter

TERMS = [*range(2, 13), 25, 30, 49, 50, 97, 500]


def _gram(size: int = 6, rank: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
    x = torch.rand(2, rank, size, dtype=dtype)
    return x.mT @ x / x.square().sum((-2, -1), keepdim=True)


def _term_by_term(gram: Tensor, terms: int) -> Tensor:
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype)
    power = total = identity.expand_as(gram) + 0 * gram
    for _ in range(terms - 1):
        power = power @ (identity - gram)
        total = total + power
    return total


@pytest.mark.parametrize("terms", TERMS)
def test_value_gradient_and_number_of_products(terms: int) -> None:
    gram = _gram(size=7).requires_grad_()
    grad = symmetrize(torch.randn_like(gram))
    expected = _term_by_term(gram, terms)
    (expected_grad,) = torch.autograd.grad(expected, gram, grad)
    with ProductCounter(7) as forward:
        found = geometric_sum(gram, terms)
    with ProductCounter(7) as backward:
        (found_grad,) = torch.autograd.grad(found, gram, grad)
    assert (forward.count, backward.count) == products(terms)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12 * terms)
    torch.testing.assert_close(found_grad, symmetrize(expected_grad), rtol=1e-11, atol=1e-12 * terms**2)


@pytest.mark.parametrize("terms", [2, 3, 5, 6, 7, 11, 30, 50])
def test_second_derivative(terms: int) -> None:
    gram = _gram(size=3, rank=2)[:1].requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda k: geometric_sum(symmetrize(k), terms), gram, fast_mode=True, check_fwd_over_rev=True
    )


def test_the_chain_reaches_its_number() -> None:
    assert products(50) == (8, 11)
    for terms in [*range(2, 200), 1000, 4999, 10**6 + 3]:
        reached = 1
        for step in chain(terms):
            reached = reached + 1 if step == 1 else reached * step
        assert reached == terms
        assert chain(terms)[0] > 1


def _cost(steps: tuple[int, ...]) -> int:
    """Products forward and backward: 2 for a square, 3 for another product."""
    total = 0
    for position, step in enumerate(steps):
        first, last = position == 0, position == len(steps) - 1
        total += {1: 0, 2: 0, 3: 2, 5: 4}[step]
        total += 3 if step > 1 and not first else 0
        total += 0 if last else (2 if step == 2 else 3)
    return total


def _all_chains(terms: int) -> list[tuple[int, ...]]:
    """All chains: the last step is a factor, or an increment of an even number."""
    if terms == 1:
        return [()]
    ways = [(*way, factor) for factor in (2, 3, 5) if terms % factor == 0 for way in _all_chains(terms // factor)]
    return ways + ([(*way, 1) for way in _all_chains(terms - 1)] if terms % 2 else [])


def test_no_chain_is_cheaper() -> None:
    for terms in range(2, 130):
        assert sum(products(terms)) == min(map(_cost, _all_chains(terms)))


def test_small_matrices_keep_their_digits() -> None:
    """I - K rounds K to the round-off of 1, which 50 terms multiply by 1225; R keeps the error relative."""
    gram = (_gram(size=12, rank=12) * 1e-4).float()
    expected = _term_by_term(gram.double(), 50)
    error = (geometric_sum(gram, 50).double() - expected).abs().max() / expected.abs().max()
    assert error < 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("terms", [2, 3, 5, 7, 50])
@pytest.mark.parametrize("shape", [(2, 40, 4), (3, 4), (2, 2, 4, 6)])
def test_the_pool_is_the_sum_between_its_features(shape: tuple[int, ...], terms: int) -> None:
    features = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    x = features / (features.square().sum((-2, -1), keepdim=True) + 0.3).sqrt()
    expected, found = x @ _term_by_term(x.mT @ x, terms) @ x.mT, geometric_pool(features, 0.3, terms)
    torch.testing.assert_close(found, expected)
    grad, direction = torch.randn_like(expected), torch.randn_like(features)
    first = [torch.autograd.grad(value, features, grad, create_graph=True)[0] for value in (found, expected)]
    torch.testing.assert_close(*first)
    (without_graph,) = torch.autograd.grad(found, features, grad, retain_graph=True)
    torch.testing.assert_close(without_graph, first[1])
    second = [torch.autograd.grad(gradient, features, direction, retain_graph=True)[0] for gradient in first]
    torch.testing.assert_close(*second)
    assert second[1].abs().max() > 1e-4


def test_the_pool_of_zeros_without_shift_is_zero() -> None:
    features = torch.zeros(2, 5, 3, requires_grad=True)
    result = geometric_pool(features, 0.0, 50)
    result.sum().backward()
    assert features.grad is not None
    assert (result == 0).all()
    assert (features.grad == 0).all()


@pytest.mark.parametrize("shape", [(2, 6, 4), (1, 60, 7)])
@pytest.mark.parametrize("scale", [1e-19, 1e-12, 1e12, 3e17])
def test_the_scale_of_the_features_does_not_matter(scale: float, shape: tuple[int, ...]) -> None:
    """The value is that of the features without their scale, the gradient is divided by it; no step overflows."""
    features = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    scaled = (features.detach() * scale).float().requires_grad_()
    expected, found = geometric_pool(features, 0.0, 50), geometric_pool(scaled, 0.0, 50)
    torch.testing.assert_close(found.double(), expected, rtol=3e-5, atol=3e-6)
    grad = torch.randn_like(expected) * 65536  # like a loss scaler
    expected.backward(grad)
    found.backward(grad.float())
    assert features.grad is not None
    assert scaled.grad is not None
    largest = features.grad.abs().max()
    torch.testing.assert_close(scaled.grad.double() * scale / largest, features.grad / largest, rtol=0, atol=1e-4)
