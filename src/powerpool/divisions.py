r"""Division by the trace, with a hand-written backward.

Every entry depends on the trace, and the trace on every feature. Autograd goes through that coupling in about eight
passes over what was divided; the closed forms below take three. With G the gradient of the result,

.. math:: X = \Phi/\sqrt t: \frac{G - \langle G, X\rangle X}{\sqrt t}, \qquad
          P = \Phi\Phi^T/t: \frac{(G + G^T - 2\langle G, P\rangle I)\,\Phi}{t}, \qquad
          P = M/t: \frac{G - \langle G, P\rangle I}{t}

where t is the sum of the squares of the features, or the trace, plus a constant. It comes as a detached number: its
dependence on the features is what these formulas are about. When a second derivative is asked for, backward connects t
with the features again, and is right.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerpool.precision import without_autocast
from powerpool.products import times_transpose, twice_symmetric_times


def features_by_trace(features: Tensor, total: Tensor) -> Tensor:  # shape: (*, C, N), (*, 1, 1) -> (*, C, N)
    """Phi / sqrt(t), where t is the sum of the squares of Phi, plus a constant."""
    return _FeaturesByTrace.apply(features, total)


def product_by_trace(features: Tensor, total: Tensor) -> Tensor:  # shape: (*, C, N), (*, 1, 1) -> (*, C, C)
    """Phi Phi^T / t, where t is the sum of the squares of Phi, plus a constant."""
    return _ProductByTrace.apply(features, total)


def matrix_by_trace(matrix: Tensor, total: Tensor) -> Tensor:  # shape: (*, C, C), (*, 1, 1) -> (*, C, C)
    """M / t, where t is the trace of M, plus a constant."""
    return _MatrixByTrace.apply(matrix, total)


def trace_of(matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*,)
    """The trace of each matrix."""
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def energy_of(features: Tensor) -> Tensor:  # shape: (*, C, N) -> (*, 1, 1)
    """The sum of the squares of each set."""
    return features.square().sum((-2, -1), keepdim=True)


def _connected(total: Tensor, variable: Tensor) -> Tensor:
    """t with the value that it has and the derivative of ``variable``."""
    return total + (variable - variable.detach())


def _inner(a: Tensor, b: Tensor) -> Tensor:  # shape: (*, A, B), (*, A, B) -> (*, 1, 1)
    return torch.linalg.vecdot(a.flatten(-2), b.flatten(-2))[..., None, None]


class _FeaturesByTrace(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor, total: Tensor) -> Tensor:
        return features / total.sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        features, total, x = ctx.saved_tensors
        if torch.is_grad_enabled():
            total = _connected(total, energy_of(features))
            x = features / total.sqrt()
        with without_autocast(x):
            root = total.sqrt()
            return torch.addcmul(grad / root, x, _inner(grad, x) / root, value=-1), None


class _ProductByTrace(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(features: Tensor, total: Tensor) -> Tensor:
        return times_transpose(features).div_(total)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        features, total, p = ctx.saved_tensors
        with without_autocast(p):
            if torch.is_grad_enabled():
                total = _connected(total, energy_of(features))
                p = times_transpose(features) / total
            weighted = twice_symmetric_times(grad, features)  # (*, C, N)
            return torch.addcmul(weighted.div_(total), features, _inner(grad, p) / total, value=-2), None


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
            total = _connected(total, trace_of(matrix)[..., None, None])
            p = matrix / total
        with without_autocast(p):
            result = grad / total
            result.diagonal(dim1=-2, dim2=-1).sub_((_inner(grad, p) / total).squeeze(-1))
            return result, None
