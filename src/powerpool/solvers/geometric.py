r"""The sum of powers :math:`T_n(K) = \sum_{k<n} (I-K)^k`, MaxExp divided by K, by matrix products alone.

The chain carries :math:`T_m` and :math:`R_m = I - (I-K)^m = K T_m`, from :math:`T_1 = I`, :math:`R_1 = K`:

.. math:: T_{fm} = T_m Q_f, \quad R_{fm} = R_m Q_f, \quad Q_f = \sum_{k<f} (I-R_m)^k, \qquad
          T_{m+1} = T_m + I - R_m, \quad R_{m+1} = R_m + K - R_m K

The sums of two, three and five powers take zero, one and two products, all of them squares:

.. math:: Q_2 = 2I - R, \qquad Q_3 = R^2 - 3R + 3I, \qquad
          Q_5 = V^2 - \tfrac58 R + \tfrac{95}{64} I, \quad V = R^2 - \tfrac52 R + \tfrac{15}{8} I

The derivative of a function of a symmetric matrix is self-adjoint: the gradient is the derivative in the direction of
the gradient, and is computed along the chain, not in reverse. There a square costs one product and any other two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from powerpool.autodiff import in_forward_mode
from powerpool.linalg.products import (
    MatrixFunction,
    inner_product,
    sandwich,
    symmetric_baddbmm,
    symmetric_bmm,
    twice_symmetric,
)
from powerpool.linalg.trace import Shift, features_by_trace, sandwich_by_trace
from powerpool.solvers import replay


def geometric_sum(matrix: Tensor, terms: int) -> Tensor:  # shape: (*, N, N) -> (*, N, N)
    """Compute T_n of a symmetric matrix for n >= 2, differentiable twice."""
    return replay.run(_GeometricSum(_steps(terms)), matrix)


def geometric_pool(features: Tensor, shift: Shift, terms: int) -> Tensor:  # shape: (*, C, N) -> (*, C, C)
    r"""Compute I - (I - P)^n, :math:`P = \Phi\Phi^T/t`, t = |Phi|^2 + shift, for n >= 2, in one node.

    As :math:`X\,T_n(X^T X)\,X^T` with :math:`X = \Phi/\sqrt t`; differentiable twice.
    """
    if in_forward_mode():
        x = features_by_trace(features, shift)
        return sandwich(x, geometric_sum(inner_product(x), terms))
    return sandwich_by_trace(features, shift, _GeometricSum(_steps(terms)))


def _steps(terms: int) -> tuple[int, ...]:
    # Dynamo warns about functools.cache; it can trace the search itself.
    return _cheapest(terms) if torch.compiler.is_compiling() else chain(terms)


@cache
def chain(terms: int) -> tuple[int, ...]:
    """Return the cheapest steps from T_1 to T_terms over forward and backward: a factor 2, 3 or 5, or 1 for "plus 1".

    Example:
        >>> chain(50), products(50)
        ((5, 2, 5), (8, 11))
    """
    return _cheapest(terms)


def products(terms: int) -> tuple[int, int]:
    """Return the number of matrix products of the chain: forward, backward."""
    costs = _costs(chain(terms))
    return sum(forward for forward, _ in costs), sum(backward for _, backward in costs)


def _cheapest(terms: int) -> tuple[int, ...]:
    return min(_options(terms, {}), key=lambda steps: sum(map(sum, _costs(steps))))


def _options(terms: int, known: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the cheapest chain for each possible last step."""
    options = [(*_way(terms // factor, known), factor) for factor in (2, 3, 5) if terms % factor == 0]
    if terms % 2 == 1:
        options.append((*_way(terms - 1, known), 1))
    return options


def _way(terms: int, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """Return the cheapest steps to T_terms and R_terms, if the chain continues."""
    if terms == 1:
        return ()
    if terms not in known:
        known[terms] = min(_options(terms, known), key=lambda steps: sum(map(sum, _costs((*steps, 2)))))
    return known[terms]


_SQUARE = (1, 1)
_PRODUCT = (1, 2)


def _costs(steps: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the products forward and backward, one pair for each product of the chain."""
    costs = []
    for position, step in enumerate(steps):
        costs += [_SQUARE] * {1: 0, 2: 0, 3: 1, 5: 2}[step]  # of Q
        if position > 0 and step > 1:
            costs.append(_PRODUCT)  # T Q
        if position + 1 < len(steps):
            costs.append(_SQUARE if step == 2 else _PRODUCT)  # R Q, 2R - R^2 or R + K - R K
    return costs


@dataclass(frozen=True)
class _GeometricSum(MatrixFunction):
    steps: tuple[int, ...]

    def forward(self, matrix: Tensor) -> tuple[Tensor, list[Tensor]]:
        return _forward(matrix, self.steps)

    def backward(self, matrix: Tensor, grad: Tensor, kept: list[Tensor]) -> Tensor:
        return _derivative(matrix, grad, self.steps, kept)


def _forward(gram: Tensor, steps: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
    """Compute T_n, and the matrices that :func:`_derivative` needs beside K, in the order in which it takes them."""
    rest = total = gram  # R_1 = K; T_1 = I is never used, because the first step is a factor
    kept: list[Tensor] = []
    for position, step in enumerate(steps):
        last = position + 1 == len(steps)
        if position > 0:
            kept.append(rest)
        if step == 1:
            total = _plus_identity(total - rest, 1.0)
            rest = rest if last else symmetric_baddbmm(rest + gram, rest, gram, alpha=-1)
            continue
        if position > 1:  # after the first step T is the quotient
            kept.append(total)
        if step == 2:
            total = _plus_identity(-rest, 2.0) if position == 0 else _doubled(total, rest)
            rest = rest if last else _doubled(rest, rest)
            continue
        quotient, root = _quotient(rest, step)
        kept += root
        if len(steps) > 1:  # the quotient of a single step is the result itself
            kept.append(quotient)
        total = quotient if position == 0 else symmetric_bmm(total, quotient)
        rest = rest if last else symmetric_bmm(rest, quotient)
    return total, kept


def _derivative(gram: Tensor, direction: Tensor, steps: tuple[int, ...], kept: list[Tensor]) -> Tensor:
    """Compute the derivative of T_n at K in a symmetric direction; consumes ``kept`` from the front."""
    rest = total = gram
    rest_slope = total_slope = direction
    for position, step in enumerate(steps):
        last = position + 1 == len(steps)
        if position > 0:
            rest = kept.pop(0)
        if step == 1:
            total_slope = total_slope - rest_slope
            if not last:
                rest_slope = torch.baddbmm(rest_slope + direction, rest_slope, gram, alpha=-1)
                rest_slope = torch.baddbmm(rest_slope, rest, direction, alpha=-1)
            continue
        if position > 1:
            total = kept.pop(0)
        if step == 2:
            if position == 0:
                total, total_slope = _plus_identity(-rest, 2.0), -rest_slope
            else:
                total_slope = torch.baddbmm(total_slope, total_slope, rest, beta=2, alpha=-1)
                total_slope = torch.baddbmm(total_slope, total, rest_slope, alpha=-1)
            if not last:
                rest_slope = twice_symmetric(torch.baddbmm(rest_slope, rest_slope, rest, alpha=-1))
            continue
        slope = _quotient_derivative(rest, rest_slope, step, kept)
        if len(steps) == 1:
            return slope
        quotient = kept.pop(0)
        if position == 0:
            total, total_slope = quotient, slope
        else:
            total_slope = _product_derivative(total, total_slope, quotient, slope)
        if not last:
            rest_slope = _product_derivative(rest, rest_slope, quotient, slope)
        del slope  # the peak of memory is in the next step
    return total_slope


def _doubled(matrix: Tensor, rest: Tensor) -> Tensor:
    """Compute M Q_2 = 2 M - M R, for M = T_m and M = R_m."""
    return symmetric_baddbmm(matrix, matrix, rest, beta=2, alpha=-1)


def _quotient(rest: Tensor, factor: int) -> tuple[Tensor, list[Tensor]]:
    """Compute Q_3 or Q_5, and the matrices that its derivative needs beside R."""
    if factor == 3:
        return _plus_identity(symmetric_baddbmm(rest, rest, rest, beta=-3), 3.0), []
    root = _plus_identity(symmetric_baddbmm(rest, rest, rest, beta=-5 / 2), 15 / 8)
    return _plus_identity(symmetric_baddbmm(rest, root, root, beta=-5 / 8), 95 / 64), [root]


def _quotient_derivative(rest: Tensor, slope: Tensor, factor: int, kept: list[Tensor]) -> Tensor:
    """Compute the derivative of Q_3 or Q_5 for the symmetric derivative ``slope`` of R; consumes ``kept``."""
    if factor == 3:
        return twice_symmetric(torch.baddbmm(slope, slope, rest, beta=-3 / 2))
    half = torch.baddbmm(slope, slope, rest, beta=-5 / 4)
    half = torch.baddbmm(slope, twice_symmetric(half), kept.pop(0), beta=-5 / 16)
    return twice_symmetric(half)


def _product_derivative(a: Tensor, a_slope: Tensor, b: Tensor, b_slope: Tensor) -> Tensor:
    """Compute the derivative of A B; it is symmetric, because A and B commute on the whole path."""
    return torch.baddbmm(torch.bmm(a_slope, b), a, b_slope)


def _plus_identity(matrix: Tensor, weight: float) -> Tensor:
    """Compute M + weight I in place, for a matrix that is not used elsewhere."""
    if torch.compiler.is_compiling():  # writing to a diagonal cannot be exported to ONNX
        return matrix + weight * torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    matrix.diagonal(dim1=-2, dim2=-1).add_(weight)
    return matrix
