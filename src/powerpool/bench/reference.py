"""Reference answers: the formulas of the curves, and second-order pooling by them in float64.

They share no code with what is timed. Float64 is fast enough for the sizes of a network, and exact to about 1e-9;
``powerpool.selfcheck.oracle`` applies the same formulas in 50 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import mpmath
import torch
from torch import Tensor

EPS = 1e-6
"""Added to the trace, and to entries under a power: the default of the library."""
TIE = 1e-9
NULL = 1e-12
Number: TypeAlias = Any
"""A tensor, or a number of mpmath, which is a dependency of torch."""


@dataclass(frozen=True)
class Answer:
    """A value, and the gradient with respect to the input (None if there is no backward)."""

    value: Tensor
    gradient: Tensor | None = None


# ---- formulas --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """A curve as the formula that a user would type, and its derivative."""

    value: Callable[[Number], Number]
    slope: Callable[[Number], Number]
    trace_normalize: bool = True
    adds_eps: bool = False
    """Whether the element-wise form adds eps to every entry."""
    infinite_slope: bool = False
    """Whether the slope at 0 is infinite: the gradient between null vectors is then defined as 0."""
    signed: bool = False
    """Whether the curve is defined for negative numbers."""


def gamma(exponent: Number) -> Scalar:
    """p^gamma."""
    return Scalar(
        lambda p: p**exponent,
        lambda p: exponent * p ** (exponent - 1),
        trace_normalize=False,
        adds_eps=True,
        infinite_slope=exponent < 1,
    )


def maxexp(eta: Number, scale: Number = 1.0) -> Scalar:
    """scale * (1 - (1-p)^eta)."""
    return Scalar(lambda p: scale * (1 - (1 - p) ** eta), lambda p: scale * eta * (1 - p) ** (eta - 1))


def signed_maxexp(eta: Number) -> Scalar:
    """sign(p) * (1 - (1-|p|)^eta)."""
    return Scalar(
        lambda p: _functions(p).sign(p) * (1 - (1 - abs(p)) ** eta),
        lambda p: eta * (1 - abs(p)) ** (eta - 1),
        signed=True,
    )


def asinhe(slope: Number) -> Scalar:
    """asinh(slope * p)."""
    return Scalar(
        lambda p: _functions(p).asinh(slope * p),
        lambda p: slope / _functions(p).sqrt(1 + (slope * p) ** 2),
        trace_normalize=False,
        signed=True,
    )


def sigme(eta: Number, trace_normalize: bool = True) -> Scalar:
    """2/(1 + e^(-eta p)) - 1."""
    return Scalar(
        lambda p: 2 / (1 + _functions(p).exp(-eta * p)) - 1,
        lambda p: eta / (1 + _functions(p).cosh(eta * p)),
        trace_normalize,
        signed=True,
    )


def hdp(time: Number) -> Scalar:
    """e^(-t/p), 0 at 0."""

    def value(p: Number) -> Number:
        if isinstance(p, Tensor):
            return torch.exp(-time / p)
        return mpmath.exp(-time / p) if p > 0 else mpmath.mpf(0)

    def slope(p: Number) -> Number:
        if isinstance(p, Tensor):
            return torch.where(p > 1e-4 * time, time * torch.exp(-time / p) / p**2, 0.0)
        return time * mpmath.exp(-time / p) / p**2 if p > 0 else mpmath.mpf(0)

    return Scalar(value, slope)


def fahdp(time: Number, rounded: bool = True) -> Scalar:
    """e^-t (1 - (1-p)^n) for t < 1, e^-t p^n for t >= 1; the exponent n is rounded up or down, respectively."""
    functions = math if isinstance(time, float) else mpmath
    scale = functions.exp(-time)
    if time >= 1:
        exponent = math.floor(time) if rounded else time
        return Scalar(lambda p: scale * p**exponent, lambda p: scale * exponent * p ** (exponent - 1))
    exact = 0.5 + functions.sqrt(0.25 + (1 / (time * (functions.exp(1) - 1)) - 1 / functions.exp(1)) ** 2)
    return maxexp(math.ceil(exact) if rounded else exact, scale)


def _functions(p: Number) -> Any:
    return torch if isinstance(p, Tensor) else mpmath


# ---- answers ---------------------------------------------------------------------------------------------------------


def moment(features: Tensor, upstream: Tensor) -> Answer:  # shape: (B, C, N), (B, C, C)
    """X X^T / N."""
    x = features.detach().double().requires_grad_()
    return _differentiate(_form_moment(x), x, upstream)


def elementwise(features: Tensor, upstream: Tensor, curve: Scalar) -> Answer:
    """Apply a curve to every entry of the moment."""
    x = features.detach().double().requires_grad_()
    points = _form_points(x, curve) + (EPS if curve.adds_eps else 0.0)
    gradient = _differentiate(points, x, upstream * curve.slope(points)).gradient
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
    loewner = torch.where(both_null, 0.0, torch.where(tie, curve.slope(middle), quotient))
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
