"""Functions of a symmetric matrix whose hand-written backward uses what forward computed on the way.

What forward keeps is a constant to autograd, so a second derivative through it would be silently wrong. When one is
asked for (``create_graph=True``), backward runs forward again, differentiably, and is right.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from powerpool.linalg.precision import without_autocast
from powerpool.linalg.products import symmetrize


class Recipe(ABC):
    """Forward and backward of one function, in plain differentiable operations."""

    @abstractmethod
    def forward(self, matrix: Tensor) -> tuple[Tensor, list[Tensor]]:  # shape: (B, C, C)
        """The result, and what backward needs beside the input."""

    @abstractmethod
    def backward(self, matrix: Tensor, grad: Tensor, kept: list[Tensor]) -> Tensor:  # shape: (B, C, C)
        """The gradient of the input, for a symmetric gradient of the result; may consume ``kept``."""


def run(recipe: Recipe, matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    """The recipe's result, differentiable twice."""
    flat = matrix.reshape(-1, *matrix.shape[-2:])
    result: Tensor = _Replay.apply(flat, recipe)[0]
    return result.reshape(matrix.shape)


class _Replay(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, recipe: Recipe) -> tuple[Tensor, ...]:
        result, kept = recipe.forward(matrix)
        return result, *kept

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Recipe], output: tuple[Tensor, ...]) -> None:
        matrix, ctx.recipe = inputs
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
                kept = ctx.recipe.forward(matrix)[1]
            return ctx.recipe.backward(matrix, symmetrize(grad), list(kept)), None
