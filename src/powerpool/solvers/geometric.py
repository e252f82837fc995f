r"""The sum of powers :math:`T_n(K) = \sum_{k<n} (I-K)^k` by matrix products alone: what MaxExp is, divided by K.

The chain carries :math:`T_m` and :math:`R_m = I - (I-K)^m = K T_m`, from :math:`T_1 = I`, :math:`R_1 = K`:

.. math:: T_{fm} = T_m Q_f, \quad R_{fm} = R_m Q_f, \quad Q_f = \sum_{k<f} (I-R_m)^k, \qquad
          T_{m+1} = T_m + I - R_m, \quad R_{m+1} = R_m + K - R_m K

With :math:`B = I - R_m` the sums of three and of five powers take one and two products, all of them squares:

.. math:: Q_3 = B^2 + B + I, \qquad Q_5 = V^2 + \tfrac58 B + \tfrac{55}{64} I, \quad V = B^2 + \tfrac12 B + \tfrac38 I

The derivative of a function of a symmetric matrix is self-adjoint: the gradient is the derivative in the direction of
the gradient, and runs along the chain, not against it. There a square costs one product and any other product two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from powerpool.products import symmetric_baddbmm, symmetric_bmm, twice_symmetric
from powerpool.solvers import replay
from powerpool.solvers.replay import Recipe


def geometric_sum(matrix: Tensor, terms: int) -> Tensor:  # shape: (*, N, N) -> (*, N, N)
    """T_n of a symmetric matrix for n >= 2, differentiable twice."""
    # Dynamo warns of a cache that it cannot see through; the search itself it traces.
    steps = _cheapest(terms) if torch.compiler.is_compiling() else chain(terms)
    return replay.run(_GeometricSum(steps), matrix)


@cache
def chain(terms: int) -> tuple[int, ...]:
    """The cheapest steps from T_1 to T_terms, counted over forward and backward: a factor 2, 3 or 5, or 1 for "plus 1".

    Example:
        >>> chain(50), products(50)
        ((5, 2, 5), (8, 11))
    """
    return _cheapest(terms)


def products(terms: int) -> tuple[int, int]:
    """How many matrix products the chain takes: forward, backward."""
    costs = _costs(chain(terms))
    return sum(forward for forward, _ in costs), sum(backward for _, backward in costs)


def _cheapest(terms: int) -> tuple[int, ...]:
    return min(_options(terms, {}), key=lambda steps: sum(map(sum, _costs(steps))))


def _options(terms: int, known: dict[int, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """For each last step the cheapest way there."""
    options = [(*_way(terms // factor, known), factor) for factor in (2, 3, 5) if terms % factor == 0]
    if terms % 2 == 1:
        options.append((*_way(terms - 1, known), 1))
    return options


def _way(terms: int, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    """The cheapest steps to T_terms and R_terms, where the chain goes on."""
    if terms == 1:
        return ()
    if terms not in known:
        known[terms] = min(_options(terms, known), key=lambda steps: sum(map(sum, _costs((*steps, 2)))))
    return known[terms]


_SQUARE = (1, 1)
_PRODUCT = (1, 2)


def _costs(steps: tuple[int, ...]) -> list[tuple[int, int]]:
    """Products forward and backward, one pair for each product of the chain."""
    costs = []
    for position, step in enumerate(steps):
        costs += [_SQUARE] * {1: 0, 2: 0, 3: 1, 5: 2}[step]  # of Q
        if position > 0 and step > 1:
            costs.append(_PRODUCT)  # T Q
        if position + 1 < len(steps):
            costs.append(_SQUARE if step == 2 else _PRODUCT)  # R Q, 2R - R^2 or R + K - R K
    return costs


@dataclass(frozen=True)
class _GeometricSum(Recipe):
    steps: tuple[int, ...]

    def forward(self, matrix: Tensor) -> tuple[Tensor, list[Tensor]]:
        return _forward(matrix, self.steps)

    def backward(self, matrix: Tensor, grad: Tensor, kept: list[Tensor]) -> Tensor:
        return _derivative(matrix, grad, self.steps, kept)


def _forward(gram: Tensor, steps: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
    """T_n, and what :func:`_derivative` needs beside K, in the order in which it takes them."""
    rest = total = gram  # R_1 = K; T_1 = I is never used, as the first step is a factor
    kept: list[Tensor] = []
    for position, step in enumerate(steps):
        last = position + 1 == len(steps)
        if position > 0:
            kept.append(rest)
        if step == 1:
            total = _plus_identity(total - rest, 1.0)
            rest = rest if last else symmetric_baddbmm(rest + gram, rest, gram, alpha=-1)
            continue
        quotient, root = _quotient(rest, step)
        kept += root
        if step > 2 and len(steps) > 1:  # the quotient of a single step is the result itself
            kept.append(quotient)
        if position > 1:  # after the first step T is its quotient
            kept.append(total)
        total = quotient if position == 0 else symmetric_bmm(total, quotient)
        if not last:
            rest = _twice_less_square(rest) if step == 2 else symmetric_bmm(rest, quotient)
    return total, kept


def _derivative(gram: Tensor, direction: Tensor, steps: tuple[int, ...], kept: list[Tensor]) -> Tensor:
    """The derivative of T_n at K in a symmetric direction; consumes ``kept`` from its front."""
    if len(steps) == 1:
        return _quotient_derivative(gram, direction, steps[0], kept)
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
        slope = _quotient_derivative(rest, rest_slope, step, kept)
        quotient = _quotient(rest, step)[0] if step == 2 else kept.pop(0)
        if position == 0:
            total, total_slope = quotient, slope
        else:
            total = kept.pop(0) if position > 1 else total
            total_slope = _product_derivative(total, total_slope, quotient, slope)
        if last:
            break
        if step == 2:
            rest_slope = twice_symmetric(torch.baddbmm(rest_slope, rest_slope, rest, alpha=-1))
        else:
            rest_slope = _product_derivative(rest, rest_slope, quotient, slope)
    return total_slope


def _quotient(rest: Tensor, factor: int) -> tuple[Tensor, list[Tensor]]:
    """Q_f = sum_{k<f} (I - R)^k, and what its derivative needs beside R."""
    if factor == 2:
        return _plus_identity(-rest, 2.0), []
    power = _plus_identity(-rest, 1.0)
    if factor == 3:
        return _plus_identity(symmetric_baddbmm(power, power, power), 1.0), []
    root = _plus_identity(symmetric_baddbmm(power, power, power, beta=1 / 2), 3 / 8)
    return _plus_identity(symmetric_baddbmm(power, root, root, beta=5 / 8), 55 / 64), [root]


def _quotient_derivative(rest: Tensor, rest_slope: Tensor, factor: int, kept: list[Tensor]) -> Tensor:
    """The derivative of Q_f where that of R is ``rest_slope``, symmetric; consumes ``kept`` from its front."""
    power_slope = -rest_slope
    if factor == 2:
        return power_slope
    power = _plus_identity(-rest, 1.0)
    if factor == 3:
        return twice_symmetric(torch.baddbmm(power_slope, power_slope, power, beta=1 / 2))
    root_slope = twice_symmetric(torch.baddbmm(power_slope, power_slope, power, beta=1 / 4))
    return twice_symmetric(torch.baddbmm(power_slope, root_slope, kept.pop(0), beta=5 / 16))


def _product_derivative(a: Tensor, a_slope: Tensor, b: Tensor, b_slope: Tensor) -> Tensor:
    """Of A B; symmetric without help, as A and B commute all along."""
    return torch.baddbmm(torch.bmm(a_slope, b), a, b_slope)


def _twice_less_square(rest: Tensor) -> Tensor:
    """R_2m = 2 R_m - R_m^2."""
    return symmetric_baddbmm(rest, rest, rest, beta=2, alpha=-1)


def _plus_identity(matrix: Tensor, weight: float) -> Tensor:
    """M + weight I, in the memory of M: only for a matrix that nobody else holds."""
    matrix.diagonal(dim1=-2, dim2=-1).add_(weight)
    return matrix
