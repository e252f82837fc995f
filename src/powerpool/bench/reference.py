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
    """A curve as the formula that a user would type, for tensors in its domain."""

    value: Callable[[Tensor], Tensor]
    trace_normalize: bool = True
    adds_eps: bool = False
    slope: Callable[[Tensor], Tensor] | None = None
    """The derivative, where autograd through the formula is wrong at 0."""

    def derivative(self, points: Tensor) -> Tensor:
        """The derivative at every point."""
        if self.slope is not None:
            return self.slope(points)
        leaf = points.detach().requires_grad_()
        return torch.autograd.grad(self.value(leaf).sum(), leaf)[0]


def maxexp(eta: float, scale: float = 1.0) -> Scalar:
    """scale * (1 - (1-p)^eta)."""
    return Scalar(lambda p: scale * (1 - (1 - p) ** eta))


def signed_maxexp(eta: float) -> Scalar:
    """sign(p) * (1 - (1-|p|)^eta)."""
    return Scalar(lambda p: p.sign() * (1 - (1 - p.abs()) ** eta), slope=lambda p: eta * (1 - p.abs()) ** (eta - 1))


def gamma(exponent: float) -> Scalar:
    """p^gamma."""
    return Scalar(lambda p: p**exponent, trace_normalize=False, adds_eps=True)


def asinhe(slope: float) -> Scalar:
    """asinh(slope * p)."""
    return Scalar(lambda p: torch.asinh(slope * p), trace_normalize=False)


def sigme(eta: float) -> Scalar:
    """2/(1 + e^(-eta p)) - 1."""
    return Scalar(lambda p: 2 / (1 + torch.exp(-eta * p)) - 1)


def hdp(time: float) -> Scalar:
    """e^(-t/p), 0 at 0."""
    return Scalar(
        lambda p: torch.exp(-time / p),
        slope=lambda p: torch.where(p > 1e-4 * time, time * torch.exp(-time / p) / p**2, 0.0),
    )


def fahdp(time: float) -> Scalar:
    """e^-t (1 - (1-p)^n) for t < 1, with the exponent n rounded up."""
    exponent = math.ceil(0.5 + math.sqrt(0.25 + (1 / (time * (math.e - 1)) - 1 / math.e) ** 2))
    return maxexp(exponent, math.exp(-time))


def moment(features: Tensor, upstream: Tensor) -> Answer:  # shape: (B, C, N), (B, C, C)
    """X X^T / N."""
    x = features.detach().double().requires_grad_()
    return _differentiate(_form_moment(x), x, upstream)


def elementwise(features: Tensor, upstream: Tensor, curve: Scalar) -> Answer:
    """Apply a curve to every entry of the moment."""
    x = features.detach().double().requires_grad_()
    points = _form_points(x, curve) + (EPS if curve.adds_eps else 0.0)
    gradient = _differentiate(points, x, upstream * curve.derivative(points)).gradient
    return Answer(curve.value(points).detach(), gradient)


def spectral(features: Tensor, upstream: Tensor, curve: Scalar) -> Answer:
    """Apply a curve to the eigenvalues of the moment; the gradient is that of the Loewner matrix.

    Eigenvalues below round-off are 0. Between two of them the Loewner matrix is set to 0: X is orthogonal to both
    vectors, so that this entry does not reach the gradient.
    """
    x = features.detach().double().requires_grad_()
    matrix, g = _form_points(x, curve), upstream.double()
    points, vectors = torch.linalg.eigh(matrix.detach())
    largest = points.amax(-1, keepdim=True)
    points = torch.where(points < NULL * largest, 0.0, points)
    values = torch.where(points > 0, curve.value(points), 0.0)
    a, b = points.unsqueeze(-1), points.unsqueeze(-2)
    tie = (a - b).abs() <= TIE * largest.unsqueeze(-1)
    both_null = (a == 0) & (b == 0)
    middle = torch.where(both_null, 0.5, (a + b) / 2)
    quotient = (values.unsqueeze(-1) - values.unsqueeze(-2)) / torch.where(tie, 1.0, a - b)
    loewner = torch.where(both_null, 0.0, torch.where(tie, curve.derivative(middle), quotient))
    through = vectors @ (loewner * (vectors.mT @ ((g + g.mT) / 2) @ vectors)) @ vectors.mT
    value = (vectors * values.unsqueeze(-2)) @ vectors.mT
    return Answer(value, _differentiate(matrix, x, through).gradient)


def newton_schulz(features: Tensor, upstream: Tensor, iterations: int) -> Answer:
    """The square root of the moment by the same number of iterations in float64, differentiated by autograd."""
    x = features.detach().double().requires_grad_()
    matrix = _form_moment(x)
    trace = torch.einsum("bcc->b", matrix)[:, None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=x.device)
    y, z = matrix / trace, identity.expand_as(matrix)
    for _ in range(iterations):
        w = 1.5 * identity - 0.5 * z @ y
        y, z = y @ w, w @ z
    return _differentiate(trace.sqrt() * y, x, upstream)


def _form_moment(x: Tensor) -> Tensor:
    return torch.einsum("bcn,bdn->bcd", x, x) / x.shape[-1]


def _form_points(x: Tensor, curve: Scalar) -> Tensor:
    """The moment, divided by its trace if the curve needs it."""
    matrix = _form_moment(x)
    return matrix / (torch.einsum("bcc->b", matrix)[:, None, None] + EPS) if curve.trace_normalize else matrix


def _differentiate(value: Tensor, x: Tensor, upstream: Tensor) -> Answer:
    return Answer(value.detach(), torch.autograd.grad(value, x, upstream.double())[0])
