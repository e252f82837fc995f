"""Exponentiation by products: their number, and the linear-time derivatives of the paper as oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import powerpool as pp
from powerpool.solvers.squaring import chain, products
from tests.counting import ProductCounter
from tests.tolerances import tolerance

EXPONENTS = [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 13, 20, 29, 50, 64, 97]


def _count(exponent: int, size: int = 12) -> tuple[int, int]:
    matrix = pp.autocorrelation(torch.rand(2, size, 20)).requires_grad_()
    with ProductCounter(size) as forward:
        result = pp.spectral(matrix, pp.MaxExp(exponent), "squaring")
    with ProductCounter(size) as backward:
        result.sum().backward()
    return forward.count, backward.count


def test_counts_are_those_of_the_chain() -> None:
    assert products(50) == (7, 7)  # the paper: 8 forward, one of them with the identity, and 11 backward
    for exponent in EXPONENTS:
        assert _count(exponent) == products(exponent)


def test_the_counter_counts() -> None:
    """Autograd through matrix_power takes two products for each forward one."""
    matrix = torch.rand(2, 12, 12, requires_grad=True)
    with ProductCounter(12) as counter:
        torch.linalg.matrix_power(matrix, 8).sum().backward()
    assert counter.count == 3 + 6


def test_the_chain_reaches_its_exponent() -> None:
    def evaluate(steps: tuple[int, ...]) -> int:
        if not steps:
            return 1
        return 1 + evaluate(steps[1:]) if steps[0] == 1 else steps[0] * evaluate(steps[1:])

    for exponent in [*range(1, 200), 1000, 4999, 10**6 + 3]:
        assert evaluate(chain(exponent)) == exponent
        # Never more than binary exponentiation with its own backward: 1 + 1 per doubling, 1 + 2 per increment.
        binary = 2 * (exponent.bit_length() - 1) + 3 * (exponent.bit_count() - 1)
        assert sum(products(exponent)) <= binary


def _linear_time(base: Tensor, grad: Tensor, exponent: int) -> Tensor:
    """sum_{n < exponent} A^n G A^(exponent-1-n), term by term (App. N and O)."""
    power = [torch.linalg.matrix_power(base, n) for n in range(exponent)]
    total = torch.zeros_like(base)
    for n in range(exponent):
        total = total + power[n] @ grad @ power[exponent - 1 - n]
    return total


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("complement", [True, False], ids=["maxexp", "gamma"])
def test_backward_is_the_linear_time_derivative(exponent: int, complement: bool) -> None:
    moment = pp.autocorrelation(torch.rand(5, 8, dtype=torch.float64))
    matrix = (moment / moment.trace()).requires_grad_()
    noise = torch.randn(5, 5, dtype=torch.float64)
    grad = noise + noise.mT
    curve = pp.MaxExp(exponent) if complement else pp.Gamma(exponent)
    result = pp.solvers.Squaring().apply(matrix, curve, check=True, round_off=1e-5)
    (found,) = torch.autograd.grad(result, matrix, grad)
    base = torch.eye(5, dtype=torch.float64) - matrix.detach() if complement else matrix.detach()
    torch.testing.assert_close(found, _linear_time(base, grad, exponent), **tolerance(torch.float64))


def test_small_matrices_keep_their_digits() -> None:
    """I - (I - P)^eta in float32 rounds P of 1e-6 to one digit; the chain carries R = I - A^n instead."""
    matrix = 1e-12 * pp.autocorrelation(torch.rand(6, 9, generator=torch.Generator().manual_seed(0)))
    exact = pp.spectral(matrix.double(), pp.MaxExp(50), "eigen")
    found = pp.spectral(matrix, pp.MaxExp(50), "squaring")
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=0)
    p = matrix / (matrix.trace() + 1e-6)
    naive = torch.eye(6) - torch.linalg.matrix_power(torch.eye(6) - p, 50)
    assert ((naive.double() - exact).abs() / exact).max() > 1e-3
