"""Functions of a symmetric matrix whose backward uses intermediate results of forward.

Intermediate results are constants to autograd, so a second derivative through them would be silently wrong. When one is
requested (``create_graph=True``), backward runs forward again, differentiably; so does forward mode.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from powerpool.autodiff import Function, call, is_differentiated, save
from powerpool.linalg.precision import without_autocast
from powerpool.linalg.products import MatrixFunction, symmetrize


def run(function: MatrixFunction, matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    """Apply the function, differentiable twice."""
    flat = matrix.reshape(-1, *matrix.shape[-2:])
    result: Tensor = call(_Replay, flat, function)[0]
    return result.reshape(matrix.shape)


class _Replay(Function):
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
        save(ctx, matrix, *kept)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None]:
        return (None if grad is None else _Replay._derivative(ctx, grad)), None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors[1:]
        return (_Replay._derivative(ctx, tangent), *(None for _ in kept))

    @staticmethod
    def _derivative(ctx: Any, direction: Tensor) -> Tensor:
        """Compute the derivative, which is self-adjoint: in the direction of the gradient it is that of the input."""
        matrix, *kept = ctx.saved_tensors
        with without_autocast(matrix):
            if is_differentiated():
                kept = ctx.function.forward(matrix)[1]
            return ctx.function.backward(matrix, symmetrize(direction), list(kept))
