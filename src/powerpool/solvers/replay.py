"""Functions of a symmetric matrix whose backward uses intermediate results of forward.

Intermediate results are constants to autograd, so a second derivative through them would be silently wrong. When one is
requested (``create_graph=True``), backward runs forward again, differentiably.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from powerpool.linalg.precision import without_autocast
from powerpool.linalg.products import MatrixFunction, symmetrize


def run(function: MatrixFunction, matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    """Apply the function, differentiable twice."""
    flat = matrix.reshape(-1, *matrix.shape[-2:])
    result: Tensor = _Replay.apply(flat, function)[0]
    return result.reshape(matrix.shape)


class _Replay(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, function: MatrixFunction) -> tuple[Tensor, ...]:
        result, kept = function.forward(matrix)
        return result, *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, MatrixFunction], output: tuple[Tensor, ...]) -> None:
        matrix, ctx.function = inputs
        kept = output[1:]
        ctx.mark_non_differentiable(*kept)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(matrix, *kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None]:
        if grad is None:
            return None, None
        matrix, *kept = ctx.saved_tensors
        with without_autocast(matrix):
            if torch.is_grad_enabled():
                kept = ctx.function.forward(matrix)[1]
            return ctx.function.backward(matrix, symmetrize(grad), list(kept)), None
