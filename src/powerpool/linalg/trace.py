r"""Division by the trace, with hand-written derivatives, and the residual terms of a normalized matrix.

Every entry depends on the trace, and the trace on every feature. Autograd needs about eight passes over the divided
tensor for that coupling. In closed form, with G the gradient of the result,

.. math:: X = \Phi/\sqrt t: \frac{G - \langle G, X\rangle X}{\sqrt t}, \qquad
          P = \Phi\Phi^T/t: \frac{G + G^T - 2\langle G, P\rangle I}{t}\,\Phi, \qquad
          P = M/t: \frac{G - \langle G, P\rangle I}{t}

where t is the sum of the squares of the features, or the trace, plus a shift. When a second derivative is requested,
backward reconnects t with the features, so that second derivatives are correct.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerpool.autodiff import Function, call, is_differentiated, save
from powerpool.checks import nan_unless_finite, require_eps, require_finite, round_off
from powerpool.curves.base import Curve
from powerpool.errors import ArgumentError, NotFiniteError, NotPositiveError
from powerpool.linalg.precision import without_autocast
from powerpool.linalg.products import (
    MatrixFunction,
    self_product,
    symmetric_times,
    times_transpose,
    twice_symmetric,
    twice_symmetric_times,
)

Shift = float | Tensor
"""Added to a sum of squares or to a trace: a number, or ``(*, 1, 1)``, with NaN for a set that must become NaN."""


# ---- a moment as the curve sees it -----------------------------------------------------------------------------------


class Divided(NamedTuple):
    """A moment M as the curve sees it: M is ``p`` times ``divisor``, and ``scale`` is tr M + eps."""

    p: Tensor  # shape: (*, C, C), or features X with X X^T = p, or the core of a Gram factor
    scale: Tensor | None  # shape: (*, 1, 1); None if no residual term needs it
    divisor: Tensor | None  # shape: (*, 1, 1); None if the curve does not divide by the trace


class Terms(NamedTuple):
    """The settings around a curve: eps, the two residual terms, and the round-off of the given dtype."""

    eps: float
    trace_power: float
    slope: float
    round_off: float

    @property
    def has_residual(self) -> bool:
        """Whether there is a residual term."""
        return self.trace_power != 0 or self.slope != 0

    def divide_matrix(self, moment: Tensor, curve: Curve | None, checked: bool) -> Divided:
        """Compute M/(tr M + eps) if the curve divides by the trace, else M.

        A trace that cannot be used is an error if values are checked. Otherwise a bad matrix is divided by NaN, so
        that its value and its gradient are NaN.
        """
        trace = trace_of(moment)
        if checked:
            self._require_trace(moment, trace, curve)
        scale = trace_scale(trace[..., None, None], self.eps)
        mark = None if checked else _nan_if_unusable(moment, trace, curve)
        if _divides(curve):
            total = scale.detach()
            return Divided(matrix_by_trace(moment, total if mark is None else total + mark), scale, divisor=scale)
        return Divided(moment if mark is None else moment / (1 + mark), scale, divisor=None)

    def divide_features(self, features: Tensor, number: int | Tensor, curve: Curve | None) -> Divided:
        """Compute features X with X X^T = M/(tr M + eps), or M; ``number`` counts the locations of each set."""
        p = features_by_trace(features, number * self.eps) if _divides(curve) else features / number**0.5
        return self._with_scale(p, features, number, curve)

    def divide_product(self, features: Tensor, number: int | Tensor, curve: Curve | None) -> Divided:
        """Compute M/(tr M + eps), or M, from features; the smaller of features and product is divided."""
        channels, locations = features.shape[-2:]
        if locations <= channels:
            divided = self.divide_features(features, number, curve)
            return divided._replace(p=self_product(divided.p))
        p = product_by_trace(features, number * self.eps) if _divides(curve) else self_product(features, number)
        return self._with_scale(p, features, number, curve)

    def add_residual(self, result: Tensor, divided: Divided) -> Tensor:
        """Add the residual terms to a power-normalized matrix."""
        if self.trace_power:
            assert divided.scale is not None  # by _with_scale
            result = result * divided.scale**self.trace_power
        if self.slope:
            moment = divided.p if divided.divisor is None else divided.divisor * divided.p
            result = result + self.slope * moment
        return result

    def _with_scale(self, p: Tensor, features: Tensor, number: int | Tensor, curve: Curve | None) -> Divided:
        if not self.has_residual:
            return Divided(p, scale=None, divisor=None)
        scale = trace_scale(energy_of(features) / number, self.eps)
        return Divided(p, scale, divisor=scale if _divides(curve) else None)

    def _require_trace(self, moment: Tensor, trace: Tensor, curve: Curve | None) -> None:
        if _divides(curve):
            _require_usable(moment, trace, f"{type(curve).__name__} divides the matrix by its trace")
        elif self.trace_power:
            _require_usable(moment, trace, "trace_power multiplies by a power of the trace")


def make_terms(eps: float, trace_power: float, slope: float, dtype: torch.dtype) -> Terms:
    """Check the settings and collect them; ``dtype`` is that of the given matrix."""
    require_eps(eps)
    if not (abs(trace_power) < math.inf and abs(slope) < math.inf):  # Dynamo does not trace math.isfinite
        raise ArgumentError(f"trace_power and slope must be finite (got {trace_power} and {slope}); 0 leaves them out.")
    return Terms(eps, trace_power, slope, round_off(dtype))


def _divides(curve: Curve | None) -> bool:
    return curve is not None and curve.trace_normalize


def _require_usable(moment: Tensor, trace: Tensor, what: str) -> None:
    """Refuse a negative or infinite trace, and a trace of 0 unless the matrix is zero. Reads values."""
    if bool(((trace > 0) & (trace < torch.inf)).all()):
        return
    moment, trace = moment.detach(), trace.detach()
    require_finite(moment, "matrix")
    if bool((trace == torch.inf).any()):
        raise NotFiniteError(
            f"matrix is too large: its trace overflows {moment.dtype} (got entries up to "
            f"{moment.abs().max().item():.6g}). Scale it down, or use float64."
        )
    refused = (trace <= 0) & (moment != 0).flatten(-2).any(-1)
    if bool(refused.any()):
        raise NotPositiveError(
            f"{what}, which must be > 0 (got {trace[refused].min().item():.6g} for a matrix that is not zero). "
            "Use AsinhE, or SigmE with trace_normalize=False, for such a matrix."
        )


def _nan_if_unusable(moment: Tensor, trace: Tensor, curve: Curve | None) -> Tensor:  # shape: (*, C, C) -> (*, 1, 1)
    """Return NaN for a matrix that is not finite, or whose trace cannot divide it; else 0."""
    mark = nan_unless_finite(moment)
    if _divides(curve):
        values, trace = moment.detach(), trace.detach()
        is_zero = (values.amax((-2, -1)) == 0) & (values.amin((-2, -1)) == 0)
        mark = torch.where(((trace > 0) & (trace < torch.inf)) | is_zero, mark, torch.nan)
    return mark[..., None, None]


# ---- division --------------------------------------------------------------------------------------------------------


def features_by_trace(features: Tensor, shift: Shift) -> Tensor:  # shape: (*, C, N) -> (*, C, N)
    """Compute Phi / sqrt(t), t = |Phi|^2 + shift."""
    return call(_FeaturesByTrace, features, shift)[0]


def product_by_trace(features: Tensor, shift: Shift) -> Tensor:  # shape: (*, C, N) -> (*, C, C)
    """Compute Phi Phi^T / t, t = |Phi|^2 + shift."""
    return call(_ProductByTrace, features, shift)[0]


def matrix_by_trace(matrix: Tensor, total: Tensor) -> Tensor:  # shape: (*, C, C), (*, 1, 1) -> (*, C, C)
    """Compute M / t, where t, detached, is the trace of M plus a constant."""
    return call(_MatrixByTrace, matrix, total)


def sandwich_by_trace(features: Tensor, shift: Shift, function: MatrixFunction) -> Tensor:  # (*, C, N) -> (*, C, C)
    r"""Compute :math:`X f(X^T X) X^T` with :math:`X = \Phi/\sqrt t`, t = |Phi|^2 + shift, in one node.

    Differentiable twice, in reverse mode. ``function`` computes f and its derivative.
    """
    flat = features.reshape(-1, *features.shape[-2:])
    if isinstance(shift, Tensor):
        shift = shift.expand(*features.shape[:-2], 1, 1).reshape(-1, 1, 1)
    result: Tensor = _SandwichByTrace.apply(flat, shift, function)[0]
    return result.reshape(*features.shape[:-1], features.shape[-2])


def trace_of(matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*,)
    """Return the trace of each matrix."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def energy_of(features: Tensor) -> Tensor:  # shape: (*, C, N) -> (*, 1, 1)
    """Return the sum of the squares of each set."""
    return features.square().sum((-2, -1), keepdim=True)


def trace_scale(trace: Tensor, eps: float) -> Tensor:
    """Return tr + eps; NaN if the trace is negative or infinite, 1 for the zero matrix with eps = 0."""
    return total_of(torch.where((trace >= 0) & (trace < torch.inf), trace, torch.nan), eps)


def total_of(energy: Tensor, shift: Shift) -> Tensor:  # shape: (*, 1, 1)
    """Return t = energy + shift; 1 where that is 0, so that a set of zeros without shift stays zero."""
    total = energy + shift
    return total if isinstance(shift, float) and shift > 0 else torch.where(total == 0, 1.0, total)


def connected(total: Tensor, variable: Tensor) -> Tensor:
    """Return the value of ``total`` with the derivative of ``variable``."""
    return total + (variable - variable.detach())


def inner(a: Tensor, b: Tensor) -> Tensor:  # shape: (*, A, B), (*, A, B) -> (*, 1, 1)
    """Return the inner product of each pair of matrices."""
    # Not vecdot: it is a batched product, and waking the threads for one takes longer than these two passes.
    return (a * b).sum((-2, -1), keepdim=True)


class _FeaturesByTrace(Function):
    @staticmethod
    def forward(features: Tensor, shift: Shift) -> tuple[Tensor, Tensor]:
        total = total_of(energy_of(features), shift)
        return features / total.sqrt(), total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Shift], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        save(ctx, inputs[0], *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        return _FeaturesByTrace._derivative(ctx, grad), None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, _: Any) -> tuple[Tensor, None]:
        return _FeaturesByTrace._derivative(ctx, tangent), None

    @staticmethod
    def _derivative(ctx: Any, direction: Tensor) -> Tensor:
        """Compute the derivative, which is self-adjoint: in the direction of the gradient it is that of the input."""
        features, x, total = ctx.saved_tensors
        if is_differentiated():
            total = connected(total, energy_of(features))
            x = features / total.sqrt()
        with without_autocast(x):
            root = total.sqrt()
            return torch.addcmul(direction / root, x, inner(direction, x) / root, value=-1)


class _ProductByTrace(Function):
    @staticmethod
    def forward(features: Tensor, shift: Shift) -> tuple[Tensor, Tensor]:
        product = times_transpose(features)
        total = total_of(trace_of(product)[..., None, None], shift)
        return product.div_(total), total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Shift], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        save(ctx, inputs[0], *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        features, p, total = ctx.saved_tensors
        with without_autocast(p):
            if is_differentiated():
                total = connected(total, energy_of(features))
                p = times_transpose(features) / total
                # Not in place: torch.func.hessian has a batch of totals, but one gradient if the loss is linear in p.
                return (twice_symmetric_times(grad, features) - 2 * inner(grad, p) * features) / total, None
            weights = twice_symmetric(grad)
            weights.diagonal(dim1=-2, dim2=-1).sub_(2 * inner(grad, p).squeeze(-1))
            return weights.div_(total) @ features, None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, _: Any) -> tuple[Tensor, None]:
        features, _, total = ctx.saved_tensors
        total = connected(total, energy_of(features))
        p = times_transpose(features) / total
        return (twice_symmetric(tangent @ features.mT) - 2 * inner(tangent, features) * p) / total, None


class _MatrixByTrace(Function):
    @staticmethod
    def forward(matrix: Tensor, total: Tensor) -> Tensor:
        return matrix / total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        save(ctx, *inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        matrix, total, p = ctx.saved_tensors
        if is_differentiated():
            total = connected(total, trace_of(matrix)[..., None, None])
            p = matrix / total
        with without_autocast(p):
            weights = grad / total
            weights.diagonal(dim1=-2, dim2=-1).sub_((inner(grad, p) / total).squeeze(-1))
            return weights, None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        matrix, total, _ = ctx.saved_tensors
        total = connected(total, trace_of(matrix)[..., None, None])
        return (tangent - trace_of(tangent)[..., None, None] * (matrix / total)) / total


class _SandwichByTrace(torch.autograd.Function):
    r"""With :math:`X = \Phi/\sqrt t` and :math:`K = X^T X` the value is :math:`X T X^T`, T = f(K). Its gradient, with
    :math:`Y = (G + G^T) X`, D the derivative of f at K in the direction :math:`Z = X^T Y`, and
    :math:`c = \langle Z, T\rangle + \langle K, D\rangle` for the share of the trace, is

    .. math:: (Y T + X (D - c I)) / \sqrt t

    X itself is never formed: it would be kept, and is as large as the features. Every product is divided by the root of
    t step by step, never by t at once, so that features of 1e-19 and of 1e18 stay within the range of float32.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor, shift: Shift, function: MatrixFunction) -> tuple[Tensor, ...]:
        gram = torch.bmm(features.mT, features)
        total = total_of(trace_of(gram)[:, None, None], shift)
        root = total.sqrt()
        gram = gram / total
        core, kept = function.forward(gram)
        left = symmetric_times(core / root, features.mT).div_(root)
        return torch.bmm(left.mT, features.mT), total, gram, core, *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Shift, MatrixFunction], output: tuple[Tensor, ...]) -> None:
        features, _, ctx.function = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(features, *output[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        features, total, gram, core, *kept = ctx.saved_tensors
        with without_autocast(features):
            if is_differentiated():
                total = connected(total, energy_of(features))
                gram = torch.bmm(features.mT, features) / total
                core, kept = ctx.function.forward(gram)
            root = total.sqrt()
            weighted = twice_symmetric_times(grad, features).div_(root)
            direction = torch.bmm(features.mT, weighted) / root
            slope = ctx.function.backward(gram, direction, list(kept))
            share = (inner(direction, core) + inner(gram, slope)) / root
            slope = slope / root
            slope.diagonal(dim1=-2, dim2=-1).sub_(share.squeeze(-1))
            result = symmetric_times(core, weighted.mT)
            del weighted
            return result.add_(symmetric_times(slope, features.mT)).div_(root).mT, None, None
