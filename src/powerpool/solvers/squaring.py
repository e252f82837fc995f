r"""Integer powers by matrix products alone: MaxExp(F), the paper's Algorithm 2, with a shorter chain and backward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from powerpool.curves.base import Curve, IntegerPower
from powerpool.errors import NotPositiveError
from powerpool.linalg.products import MatrixFunction, symmetric_baddbmm, symmetric_bmm, symmetrize
from powerpool.solvers import replay
from powerpool.solvers.base import MatrixSolver, require_pairwise_positive


@dataclass(frozen=True)
class Squaring(MatrixSolver):
    r"""Exponentiation by a chain of products, for curves that are integer powers.

    .. math:: I - (I-P)^{\eta}, \qquad \frac{\partial L}{\partial P} = S_\eta(I-P, \operatorname{sym} G), \qquad
              S_n(A, G) = \sum_{k<n} A^k G A^{n-1-k}, \qquad S_{ab}(A, G) = S_a(A^b, S_b(A, G))

    :func:`chain` decomposes the exponent into factors 2, 3, 5 and increments, cheapest over forward and backward
    together: eta = 50 = 2 * 5 * 5 takes 7 + 7 products. The chain carries :math:`R_n = I - A^n` instead of
    :math:`A^n`, by :math:`R_{a+b} = R_a + R_b - R_a R_b`: the number of products is the same, and a small P keeps all
    its digits. Double backward is supported. Errors are relative to the steepest slope, eta: if every eigenvalue is
    saturated, the true gradient is far smaller than that, and ``eigen`` has more correct digits.

    Without eigenvalues, checks detect a matrix that is not positive semi-definite only by its diagonal, by entries with
    :math:`|M_{ij}| > \sqrt{M_{ii} M_{jj}}`, and by a result whose diagonal leaves [0, 1]. ``eigen`` detects all.
    """

    name: ClassVar[str] = "squaring"

    def refusal(self, curve: Curve) -> str | None:
        """Refuse everything but integer powers with a Python number as exponent."""
        if curve.is_learnable:
            return (
                f"its {curve.parameter_name} is a tensor, and a chain of products needs a fixed integer. "
                "Use solver='eigen', or 'gram' with features."
            )
        if curve.integer_power() is None:
            return (
                "it needs an integer power: MaxExp with integer eta, Gamma with integer gamma, or FAHDP with a rounded "
                "exponent. Use solver='eigen', or 'gram' with features."
            )
        return None

    def apply(self, matrix: Tensor, curve: Curve, check: bool, round_off: float) -> Tensor:
        """See :class:`MatrixSolver`."""
        power = curve.integer_power()
        assert power is not None  # by refusal
        if check:
            require_pairwise_positive(matrix, type(curve).__name__, round_off)
        result = integer_power(matrix, power)
        if check and power.complement:
            _require_diagonal(result.detach(), power, type(curve).__name__, round_off)
        return result


def _require_diagonal(result: Tensor, power: IntegerPower, what: str, round_off: float) -> None:
    """Refuse a result whose diagonal leaves [0, scale], which an eigenvalue outside [0, 1] causes. Reads values."""
    diagonal = result.diagonal(dim1=-2, dim2=-1)
    # The result for an eigenvalue of -round_off; a truly negative eigenvalue gives far more.
    grown = math.expm1(min(power.exponent * math.log1p(round_off), 700.0))
    slack = power.scale * max(1e-2, 2 * grown)
    if not bool(((diagonal >= -slack) & (diagonal <= power.scale + slack)).all()):
        raise NotPositiveError(
            f"{what} needs a positive semi-definite matrix (got one whose power has a diagonal entry of "
            f"{diagonal.min().item():.6g} to {diagonal.max().item():.6g}, outside [0, {power.scale:.6g}]). "
            "For an indefinite symmetric matrix use AsinhE or SigmE."
        )


def integer_power(matrix: Tensor, power: IntegerPower) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    """Compute the power of a symmetric matrix, differentiable twice."""
    # Dynamo warns about functools.cache; it can trace the search itself.
    steps = _search(power.exponent, {}) if torch.compiler.is_compiling() else chain(power.exponent)
    result = replay.run(_ChainPower(steps, power.complement), matrix)
    return result if power.scale == 1 else power.scale * result


# Products of C x C matrices for one step of a chain: forward, backward.
_FACTOR_COST = {2: (1, 1), 3: (2, 2), 5: (3, 3)}
_INCREMENT_COST = (1, 2)


@cache
def chain(exponent: int) -> tuple[int, ...]:
    """Return the cheapest steps to A**exponent over forward and backward: a factor 2, 3 or 5, or 1 for "times A".

    ``(2, 5, 5)`` is ((A^2)^5)^5. After a 1 the rest of the chain applies to A itself, and A multiplies its result:
    ``(1, 2, 3)`` is A (A^2)^3.

    Example:
        >>> chain(50), products(50)
        ((2, 5, 5), (7, 7))
    """
    return _search(exponent, {})


def _search(exponent: int, known: dict[int, tuple[int, ...]]) -> tuple[int, ...]:
    if exponent == 1:
        return ()
    if exponent not in known:
        options = [(factor, *_search(exponent // factor, known)) for factor in _FACTOR_COST if exponent % factor == 0]
        if exponent % 2 == 1:
            options.append((1, *_search(exponent - 1, known)))
        known[exponent] = min(options, key=lambda steps: sum(_cost(steps)))
    return known[exponent]


def products(exponent: int) -> tuple[int, int]:
    """Return the number of matrix products of the chain: forward, backward."""
    return _cost(chain(exponent))


def _cost(steps: tuple[int, ...]) -> tuple[int, int]:
    costs = [_INCREMENT_COST if step == 1 else _FACTOR_COST[step] for step in steps]
    return sum(forward for forward, _ in costs), sum(backward for _, backward in costs)


@dataclass(frozen=True)
class _ChainPower(MatrixFunction):
    steps: tuple[int, ...]
    complement: bool

    def forward(self, matrix: Tensor) -> tuple[Tensor, list[Tensor]]:
        return _forward(matrix, self.steps, self.complement)

    def backward(self, matrix: Tensor, grad: Tensor, kept: list[Tensor]) -> Tensor:
        return _backward(matrix, grad, self.steps, kept, self.complement)


def _forward(base: Tensor, steps: tuple[int, ...], complement: bool) -> tuple[Tensor, list[Tensor]]:
    """Compute the power of ``base``, and the matrices that backward needs, in the order in which it pops them.

    With ``complement`` every matrix X stands for the power I - X.
    """
    if not steps:
        return base.clone(), []
    step, rest = steps[0], steps[1:]
    if step == 1:
        power, kept = _forward(base, rest, complement)
        return _multiply(power, base, complement), [power, *kept]
    square = _multiply(base, base, complement)
    used: list[Tensor] = []
    if step == 2:
        inner = square
    elif step == 3:
        inner = _multiply(square, base, complement)
    else:
        inner = _multiply(_multiply(square, square, complement), base, complement)
        used = [square]
    if not rest:
        return inner, used
    power, kept = _forward(inner, rest, complement)
    return power, [*used, inner, *kept]


def _backward(base: Tensor, grad: Tensor, steps: tuple[int, ...], kept: list[Tensor], complement: bool) -> Tensor:
    """Compute S_n(A, G) for symmetric G; consumes ``kept`` from the front."""
    if not steps:
        return grad
    step, rest = steps[0], steps[1:]
    if step == 1:
        power = kept.pop(0)
        inside = _backward(base, grad, rest, kept, complement)
        both = _times(base, inside, complement) + _times(power, grad, complement)
        return symmetrize(both)
    if step == 2:
        half = _times(base, grad, complement)
    elif step == 3:
        product = _times(base, grad, complement)
        half = _times(base, torch.add(product, product.mT, alpha=1 / 2), complement)
    else:
        square = kept.pop(0)
        product = _times(base, grad, complement)
        product = _times(base, torch.add(product, product.mT, alpha=2 / 3), complement)
        half = _times(square, torch.add(product, product.mT, alpha=1 / 2), complement)
    grad = half + half.mT
    if not rest:
        return grad
    return _backward(kept.pop(0), grad, rest, kept, complement)


def _multiply(a: Tensor, b: Tensor, complement: bool) -> Tensor:
    """Compute A B; for the complement I - (I-A)(I-B) = A + B - A B."""
    if not complement:
        return symmetric_bmm(a, b)
    return symmetric_baddbmm(a, a, b, beta=2, alpha=-1) if a is b else symmetric_baddbmm(a + b, a, b, alpha=-1)


def _times(power: Tensor, x: Tensor, complement: bool) -> Tensor:
    """Compute A X; for the complement (I - A) X = X - A X."""
    return torch.baddbmm(x, power, x, alpha=-1) if complement else torch.bmm(power, x)
