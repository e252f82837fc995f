r"""Element-wise curves of a moment, from features to the result in one autograd node.

Fresh memory for a matrix of 2048 channels takes longer than the product that fills it, so there are no C x C
temporaries: the curve works on blocks of the product, and backward forms its weights block by block. With G the
gradient of the result, :math:`X = \Phi/\sqrt t` and :math:`P = X X^T`,

.. math:: W = G \odot g'(P), \qquad Y = (W + W^T) X, \qquad
          \frac{\partial L}{\partial\Phi} = \frac{Y - \langle Y, X\rangle X}{\sqrt t}

where the last term is the share of the trace; without division by the trace there is none, and t = N.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerpool.autodiff import in_forward_mode, is_differentiated
from powerpool.checks import has_values, require_finite
from powerpool.curves.base import Curve
from powerpool.errors import DomainError
from powerpool.linalg.precision import without_autocast
from powerpool.linalg.products import times_transpose, twice_symmetric_times
from powerpool.linalg.trace import Terms, connected, energy_of, inner, total_of
from powerpool.linalg.triangle import Triangle

_BLOCK = 2**19
"""Entries of a block: enough work for two threads, and little enough for a cache and for memory that is reused."""


def takes_curve(curve: Curve, features: Tensor, terms: Terms, checked: bool) -> bool:
    """Return whether :func:`curve_of_product` applies the curve, whose domain is checked here if values are checked.

    Not if the parameter is a tensor, if there are residual terms, if a compiler or transform traces the operator, in
    forward mode, or if features of both signs may give entries that have to be refused.
    """
    if curve.is_learnable or terms.has_residual or not has_values(features) or in_forward_mode():
        return False
    if curve.adds_eps and terms.eps < torch.finfo(features.dtype).tiny:  # the slope at 0 may be infinite
        return False
    largest = 1.0 if curve.trace_normalize else math.inf
    low, high = curve.domain
    if low not in (0.0, -largest, -math.inf) or high not in (largest, math.inf):
        return False
    return low < 0 or not checked or features.numel() == 0 or features.detach().amin().item() >= 0


def curve_of_product(
    features: Tensor,  # shape: (*, C, N)
    energy: Tensor,  # shape: (*, 1, 1)
    number: int | Tensor,
    curve: Curve,
    terms: Terms,
    checked: bool,
    as_vector: bool,
) -> Tensor:  # shape: (*, C, C), or (*, C(C+1)/2)
    """Apply a curve to every entry of M/(tr M + eps), or of M, or to the upper triangle for its vector.

    ``energy`` is the sum of the squares of each set, and ``number`` counts its locations. If values are not checked,
    negative entries that the curve does not accept become NaN. Differentiable twice.
    """
    tracked = torch.is_grad_enabled() and features.requires_grad
    total = total_of(energy, number * terms.eps) if curve.trace_normalize else number
    size = features.shape[-2]
    flat = features
    if features.ndim != 3:  # a view costs a node
        flat = features.reshape(-1, *features.shape[-2:])
        total = total.reshape(-1, 1, 1) if isinstance(total, Tensor) else total
    result: Tensor = _CurveOfProduct.apply(flat, total, curve, terms, checked, tracked, as_vector)
    if as_vector:
        return result.reshape(*features.shape[:-2], result.shape[-1])
    return result if features.ndim == 3 else result.reshape(*features.shape[:-1], size)


class _CurveOfProduct(torch.autograd.Function):
    """For vectors, every matrix of the formulas has one row, the entries of the triangle."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,  # shape: (B, C, N)
        total: int | Tensor,  # shape: (B, 1, 1)
        curve: Curve,
        terms: Terms,
        checked: bool,
        tracked: bool,
        as_vector: bool,
    ) -> Tensor:  # shape: (B, C, C), or (B, 1, L)
        batch, size, _ = features.shape
        # Here, not by the caller: torch.jit.trace does not find tensors that reach a function inside a tuple.
        triangle = Triangle.of(size, features) if as_vector else None
        theta = float(curve.parameter)
        unit, root, x, number = curve._unit(theta), None, features, 1
        if isinstance(total, Tensor):
            root = total.sqrt()
            x = features / root
        else:
            number = total
        slack = None
        if curve.domain[0] == 0 and not checked:  # the largest entry is on the diagonal
            slack = terms.round_off * x.square().sum(-1).amax(-1)[:, None, None]
        result = features.new_empty(batch, size, size) if triangle is None else triangle.new_rows(batch)
        shared = curve.keeps_value and triangle is None
        kept = result if shared else torch.empty_like(result) if tracked else None
        alpha = (unit if slack is None else 1) / number
        factor = 1.0
        for block in _blocks(batch, size, triangle is not None):
            out = block.of(result)
            points = torch.empty_like(out) if kept is None else block.of(kept)
            left, right = block.of(x), block.matrices_of(x).mT
            product = points if triangle is None else points.new_empty(len(left), size, size)
            torch.baddbmm(product, left, right, beta=0, alpha=alpha, out=product)
            if triangle is not None:
                triangle.read(product, points)
            if slack is not None:  # negative entries beyond it are NaN
                points.masked_fill_(points < -block.matrices_of(slack), math.nan).clamp_(min=0.0).mul_(unit)
            if curve.domain[1] < math.inf:  # round-off
                low, high = sorted(unit * bound for bound in curve.domain)
                points.clamp_(low, high)
            if curve.adds_eps:
                points.add_(terms.eps)
            factor = curve._write_value(points, theta, out, tracked)
            if triangle is not None:
                torch.mul(points if curve.keeps_value else out, triangle.weight, out=out)
        ctx.save_for_backward(features, x, kept, root)
        ctx.total, ctx.curve, ctx.terms, ctx.factor, ctx.triangle = total, curve, terms, factor, triangle
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, x, kept, root = ctx.saved_tensors
        curve: Curve = ctx.curve
        triangle: Triangle | None = ctx.triangle
        with without_autocast(features):
            # Outside functorch, is_grads_batched gives batched tensors: blocks in place accept neither.
            batched = not has_values(grad) or torch._C._functorch.is_legacy_batchedtensor(grad)
            factor = ctx.factor
            if is_differentiated() or batched:
                total = connected(ctx.total, energy_of(features)) if curve.trace_normalize else ctx.total
                points = curve.into_domain(times_transpose(features) / total, (-2, -1), ctx.terms.round_off)
                slope = curve._slope(points + ctx.terms.eps if curve.adds_eps else points, curve.parameter)
                if isinstance(total, Tensor):
                    root = total.sqrt()
                    x = features / root
                grad = grad if triangle is None else triangle.matrix_of(grad * triangle.weight)
                weighted, factor = twice_symmetric_times(grad * slope, x), 1.0
            else:
                weighted = _weigh(grad, kept, curve.keeps_value, x, triangle)
            if curve.trace_normalize:
                weighted = torch.addcmul(weighted, x, inner(weighted, x), value=-1)
            return weighted.div_((ctx.total if root is None else root) / factor), *(None,) * 6


def _weigh(grad: Tensor, kept: Tensor, is_value: bool, x: Tensor, triangle: Triangle | None) -> Tensor:
    """Compute (W + W^T) X, where W is the gradient times what was kept, or divided by it if that is the value."""
    multiply = torch.div if is_value else torch.mul
    batch, size, _ = x.shape
    weighted = []
    for block in _blocks(batch, size, triangle is not None):
        weights = multiply(block.of(grad), block.of(kept))
        if triangle is not None:
            weights = triangle.matrix_of(weights.mul_(triangle.weight))
        if block.rows is None:
            weighted.append(twice_symmetric_times(weights, block.matrices_of(x)))
            continue
        if block.rows.start == 0:
            weighted.append(torch.empty_like(block.matrices_of(x)))
            across = x.new_zeros(1, x.shape[2], size)  # the transpose of W^T X, which takes less time than W^T X
        torch.bmm(weights, block.matrices_of(x), out=weighted[-1][:, block.rows])
        across.baddbmm_(block.of(x).mT, weights)
        if block.rows.stop >= size:
            weighted[-1].add_(across.mT)
    return weighted[0] if len(weighted) == 1 else torch.cat(weighted)


class _Block(NamedTuple):
    """Part of a batch of matrices; None for all."""

    matrices: slice | None
    rows: slice | None

    def matrices_of(self, tensor: Tensor) -> Tensor:
        return tensor if self.matrices is None else tensor[self.matrices]

    def of(self, tensor: Tensor) -> Tensor:
        return self.matrices_of(tensor) if self.rows is None else tensor[self.matrices, self.rows]


def _blocks(batch: int, size: int, whole: bool) -> Iterator[_Block]:
    """Split a batch of matrices into several matrices at a time, or large ones into rows unless they stay whole."""
    if batch * size * size <= _BLOCK:
        yield _Block(None, None)
    elif whole or size * size <= _BLOCK:
        several = max(1, _BLOCK // (size * size))
        for start in range(0, batch, several):
            yield _Block(slice(start, start + several), None)
    else:
        height = -(-_BLOCK // size)
        for one in range(batch):
            for row in range(0, size, height):
                yield _Block(slice(one, one + 1), slice(row, row + height))


def apply_to_entries(p: Tensor, curve: Curve, checked: bool, terms: Terms, given: Tensor) -> Tensor:
    """Apply a curve to every entry of matrices by autograd; ``given`` is the argument of the user."""
    if checked:
        p = inside_domain(p, curve, given, "matrix", terms.round_off)
    else:
        p = curve.into_domain(p, (-2, -1), terms.round_off)
    return curve.value(p + terms.eps if curve.adds_eps else p)


def inside_domain(p: Tensor, curve: Curve, given: Tensor, what: str, precision: float) -> Tensor:
    """Move ``p`` into the domain if round-off put it outside; refuse anything further outside.

    ``given`` is the argument of the user and ``what`` its name: a matrix, or features pooled over locations.
    """
    if p.numel() == 0:
        return p
    bounds = torch.stack(torch.aminmax(p.detach()))
    low, high = bounds.tolist()
    if not bool(torch.isfinite(bounds).all()):
        require_finite(given, what)
    lower, upper = curve.domain
    if low >= lower and high <= upper:
        return p
    inside = curve.into_domain(p, (-2, -1) if what == "matrix" else (-1,), precision)
    if bool(torch.isnan(inside).any()):
        raise DomainError(_domain_message(curve, low, high, what))
    return inside


def _domain_message(curve: Curve, low: float, high: float, what: str) -> str:
    lower, upper = curve.domain
    kinds = "SigmE or AsinhE" if high > upper else "SignedMaxExp, SigmE or AsinhE"
    if what == "matrix":
        seen = "entries of the matrix after division by its trace" if curve.trace_normalize else "entries of the matrix"
        advice = (
            f"Centred features (beta > 0) give negative entries: for those use {kinds}, or mode='spectral', which "
            "accepts a positive semi-definite matrix with every curve."
        )
    else:
        seen = "features pooled over locations"
        advice = f"Use {kinds}, or scale the features into the domain first."
    return f"{type(curve).__name__} needs {seen} in [{lower:g}, {upper:g}] (got {low:.6g} to {high:.6g}). {advice}"
