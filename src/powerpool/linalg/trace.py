r"""Division by the trace, with a hand-written backward.

Every entry depends on the trace, and the trace on every feature. Autograd goes through that coupling in about eight
passes over what was divided. In closed form, with G the gradient of the result,

.. math:: X = \Phi/\sqrt t: \frac{G - \langle G, X\rangle X}{\sqrt t}, \qquad
          P = \Phi\Phi^T/t: \frac{G + G^T - 2\langle G, P\rangle I}{t}\,\Phi, \qquad
          P = M/t: \frac{G - \langle G, P\rangle I}{t}

where t is the sum of the squares of the features, or the trace, plus a shift. When a second derivative is asked for,
backward connects t with the features again, and is right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerpool.linalg.precision import without_autocast
from powerpool.linalg.products import times_transpose, twice_symmetric

Shift = float | Tensor
"""What is added to a sum of squares or to a trace: a number, or ``(*, 1, 1)``, NaN for a set that is to become NaN."""


def features_by_trace(features: Tensor, shift: Shift) -> Tensor:  # shape: (*, C, N) -> (*, C, N)
    """Phi / sqrt(t), t = |Phi|^2 + shift."""
    return _FeaturesByTrace.apply(features, shift)[0]


def product_by_trace(features: Tensor, shift: Shift) -> Tensor:  # shape: (*, C, N) -> (*, C, C)
    """Phi Phi^T / t, t = |Phi|^2 + shift."""
    return _ProductByTrace.apply(features, shift)[0]


def matrix_by_trace(matrix: Tensor, total: Tensor) -> Tensor:  # shape: (*, C, C), (*, 1, 1) -> (*, C, C)
    """M / t, where t, detached, is the trace of M plus a constant."""
    return _MatrixByTrace.apply(matrix, total)


def total_of(energy: Tensor, shift: Shift) -> Tensor:  # shape: (*, 1, 1)
    """t = energy + shift; 1 where that is 0, so that a set of zeros without shift stays zero."""
    total = energy + shift
    return total if isinstance(shift, float) and shift > 0 else torch.where(total == 0, 1.0, total)


def connected(total: Tensor, variable: Tensor) -> Tensor:
    """``total`` with the value that it has and the derivative of ``variable``."""
    return total + (variable - variable.detach())


def trace_of(matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*,)
    """The trace of each matrix."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def energy_of(features: Tensor) -> Tensor:  # shape: (*, C, N) -> (*, 1, 1)
    """The sum of the squares of each set."""
    return features.square().sum((-2, -1), keepdim=True)


def inner(a: Tensor, b: Tensor) -> Tensor:  # shape: (*, A, B), (*, A, B) -> (*, 1, 1)
    """The sum of the products of entries, of each pair of matrices."""
    # Not vecdot: it is a batched product, and waking the threads for one takes longer than these two passes.
    return (a * b).sum((-2, -1), keepdim=True)


class _FeaturesByTrace(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor, shift: Shift) -> tuple[Tensor, Tensor]:
        total = total_of(energy_of(features), shift)
        return features / total.sqrt(), total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Shift], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        features, x, total = ctx.saved_tensors
        if torch.is_grad_enabled():
            total = connected(total, energy_of(features))
            x = features / total.sqrt()
        with without_autocast(x):
            root = total.sqrt()
            return torch.addcmul(grad / root, x, inner(grad, x) / root, value=-1), None


class _ProductByTrace(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor, shift: Shift) -> tuple[Tensor, Tensor]:
        product = times_transpose(features)
        total = total_of(trace_of(product)[..., None, None], shift)
        return product.div_(total), total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Shift], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], *output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        features, p, total = ctx.saved_tensors
        with without_autocast(p):
            if torch.is_grad_enabled():
                total = connected(total, energy_of(features))
                p = times_transpose(features) / total
            weights = twice_symmetric(grad)
            weights.diagonal(dim1=-2, dim2=-1).sub_(2 * inner(grad, p).squeeze(-1))
            return weights.div_(total) @ features, None


class _MatrixByTrace(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, total: Tensor) -> Tensor:
        return matrix / total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        matrix, total, p = ctx.saved_tensors
        if torch.is_grad_enabled():
            total = connected(total, trace_of(matrix)[..., None, None])
            p = matrix / total
        with without_autocast(p):
            weights = grad / total
            weights.diagonal(dim1=-2, dim2=-1).sub_((inner(grad, p) / total).squeeze(-1))
            return weights, None
