"""Reference answers in float64, by formulas that share no code with what is timed.

Fast enough for the sizes of a network, and exact to about 1e-9; ``powerpool.selfcheck.oracle`` has 50 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

EPS = 1e-6
"""Added to the trace, and to entries under a power: the default of the library."""
TIE = 1e-9
NULL = 1e-12


@dataclass(frozen=True)
class Answer:
    """A value, and the gradient with respect to the input (None if there is no backward)."""

    value: Tensor
    gradient: Tensor | None = None


@dataclass(frozen=True)
class Scalar:
    """A curve as two formulas, value and derivative, for tensors in its domain."""

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    trace_normalize: bool = True
    adds_eps: bool = False


def maxexp(eta: float, scale: float = 1.0) -> Scalar:
    """scale * (1 - (1-p)^eta)."""
    return Scalar(lambda p: scale * (1 - (1 - p) ** eta), lambda p: scale * eta * (1 - p) ** (eta - 1))


def signed_maxexp(eta: float) -> Scalar:
    """sign(p) * (1 - (1-|p|)^eta)."""
    return Scalar(lambda p: p.sign() * (1 - (1 - p.abs()) ** eta), lambda p: eta * (1 - p.abs()) ** (eta - 1))


def gamma(exponent: float) -> Scalar:
    """p^gamma."""
    return Scalar(lambda p: p**exponent, lambda p: exponent * p ** (exponent - 1), trace_normalize=False, adds_eps=True)


def asinhe(slope: float) -> Scalar:
    """asinh(slope * p)."""
    return Scalar(
        lambda p: torch.log(slope * p + torch.sqrt(1 + (slope * p) ** 2)),
        lambda p: slope / torch.sqrt(1 + (slope * p) ** 2),
        trace_normalize=False,
    )


def sigme(eta: float) -> Scalar:
    """2/(1 + e^(-eta p)) - 1."""
    return Scalar(
        lambda p: 2 / (1 + torch.exp(-eta * p)) - 1,
        lambda p: 2 * eta * torch.exp(-eta * p) / (1 + torch.exp(-eta * p)) ** 2,
    )


def hdp(time: float) -> Scalar:
    """e^(-t/p), 0 at 0."""
    return Scalar(
        lambda p: torch.where(p > 0, torch.exp(-time / p), 0.0),
        lambda p: torch.where(p > 1e-4 * time, time * torch.exp(-time / p) / p**2, 0.0),
    )


def fahdp(time: float) -> Scalar:
    """e^-t (1 - (1-p)^n) for t < 1, with the exponent n rounded up."""
    return maxexp(fahdp_exponent(time), math.exp(-time))


def fahdp_exponent(time: float) -> int:
    """The exponent of FAHDP for t < 1, rounded up."""
    return math.ceil(0.5 + math.sqrt(0.25 + (1 / (time * (math.e - 1)) - 1 / math.e) ** 2))


def moment(features: Tensor, upstream: Tensor) -> Answer:  # shape: (B, C, N), (B, C, C)
    """X X^T / N."""
    x, matrix, g = _prepare(features, upstream)
    return Answer(matrix, _to_features(g, x))


def elementwise(features: Tensor, upstream: Tensor, curve: Scalar) -> Answer:
    """Apply a curve to every entry of the moment."""
    x, matrix, g = _prepare(features, upstream)
    divisor = _divisor(matrix, curve)
    points = matrix / divisor + (EPS if curve.adds_eps else 0.0)
    grad = _through_division(g * curve.derivative(points), matrix, divisor, curve)
    return Answer(curve.value(points), _to_features(grad, x))


def spectral(features: Tensor, upstream: Tensor, curve: Scalar) -> Answer:
    """Apply a curve to the eigenvalues of the moment; the gradient is that of the Loewner matrix.

    Eigenvalues below round-off are 0. Between two of them the Loewner matrix is set to 0: X is orthogonal to both
    vectors, so that this entry does not reach the gradient.
    """
    x, matrix, g = _prepare(features, upstream)
    divisor = _divisor(matrix, curve)
    points, vectors = torch.linalg.eigh(matrix / divisor)
    largest = points.amax(-1, keepdim=True)
    points = torch.where(points < NULL * largest, 0.0, points)
    values = torch.where(points > 0, curve.value(points), 0.0)
    a, b = points.unsqueeze(-1), points.unsqueeze(-2)
    tie = (a - b).abs() <= TIE * largest.unsqueeze(-1)
    both_null = (a == 0) & (b == 0)
    middle = torch.where(both_null, 0.5, (a + b) / 2)
    quotient = (values.unsqueeze(-1) - values.unsqueeze(-2)) / torch.where(tie, 1.0, a - b)
    loewner = torch.where(both_null, 0.0, torch.where(tie, curve.derivative(middle), quotient))
    grad = vectors @ (loewner * (vectors.mT @ ((g + g.mT) / 2) @ vectors)) @ vectors.mT
    value = (vectors * values.unsqueeze(-2)) @ vectors.mT
    return Answer(value, _to_features(_through_division(grad, matrix, divisor, curve), x))


def newton_schulz(features: Tensor, upstream: Tensor, iterations: int) -> Answer:
    """The square root of the moment by the same number of iterations in float64, differentiated by autograd."""
    x, _, g = _prepare(features, upstream)
    leaf = x.requires_grad_()
    matrix = leaf @ leaf.mT / x.shape[-1]
    trace = torch.einsum("bcc->b", matrix)[:, None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=x.device)
    y, z = matrix / trace, identity.expand_as(matrix)
    for _ in range(iterations):
        w = 1.5 * identity - 0.5 * z @ y
        y, z = y @ w, w @ z
    value = trace.sqrt() * y
    (gradient,) = torch.autograd.grad(value, leaf, g)
    return Answer(value.detach(), gradient)


def _prepare(features: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Features, their moment and the gradient of the result, in float64."""
    x = features.detach().double()
    return x, torch.einsum("bcn,bdn->bcd", x, x) / x.shape[-1], upstream.double()


def _divisor(matrix: Tensor, curve: Scalar) -> Tensor:
    if not curve.trace_normalize:
        return torch.ones(matrix.shape[0], 1, 1, dtype=matrix.dtype, device=matrix.device)
    return torch.einsum("bcc->b", matrix)[:, None, None] + EPS


def _through_division(grad: Tensor, matrix: Tensor, divisor: Tensor, curve: Scalar) -> Tensor:
    """The gradient with respect to M, from that with respect to M/(tr M + eps)."""
    if not curve.trace_normalize:
        return grad
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return grad / divisor - (grad * matrix).sum((-2, -1), keepdim=True) / divisor**2 * identity


def _to_features(grad: Tensor, x: Tensor) -> Tensor:
    return (grad + grad.mT) @ x / x.shape[-1]
