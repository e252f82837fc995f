"""Matrix products whose backward keeps the precision of forward inside ``torch.autocast``.

Symmetric products use the backward that symmetry allows: autograd computes two large products for the gradient of
X X^T, one for each factor. The two are equal, so one is enough.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerpool.autodiff import Function, call, save
from powerpool.linalg.precision import without_autocast


class MatrixFunction(ABC):
    """A function of symmetric matrices and its derivative, both in plain differentiable operations."""

    @abstractmethod
    def forward(self, matrix: Tensor) -> tuple[Tensor, list[Tensor]]:  # shape: (B, C, C)
        """Return the result, and the tensors that backward needs in addition to the input."""

    @abstractmethod
    def backward(self, matrix: Tensor, grad: Tensor, kept: list[Tensor]) -> Tensor:  # shape: (B, C, C)
        """Return the gradient of the input for a symmetric gradient of the result; may consume ``kept``.

        The derivative of a function of a symmetric matrix is self-adjoint, so this is also the derivative in the
        direction ``grad``.
        """


def self_product(x: Tensor, divisor: int | Tensor = 1) -> Tensor:  # shape: (*, A, B), (*, 1, 1) -> (*, A, A)
    """Compute X X^T, divided by a constant for each matrix; differentiable twice in X."""
    return call(_SelfProduct, x, divisor)


def inner_product(x: Tensor) -> Tensor:  # shape: (*, A, B) -> (*, B, B)
    """Compute X^T X, differentiable twice; the gradient has the memory layout of X."""
    return call(_InnerProduct, x)


def sandwich(x: Tensor, core: Tensor) -> Tensor:  # shape: (*, A, B), (*, B, B) -> (*, A, A)
    """Compute X T X^T for symmetric T, differentiable twice."""
    return call(_Sandwich, x, core)


def product(a: Tensor, b: Tensor) -> Tensor:  # shape: (*, A, B), (*, B, C) -> (*, A, C)
    """Compute A B, differentiable twice."""
    return call(_Product, a, b)


def symmetrize(matrix: Tensor) -> Tensor:  # shape: (*, A, A) -> (*, A, A)
    """Compute (M + M^T)/2, halved before the sum, which could overflow."""
    return (matrix * 0.5).add_(matrix.mT, alpha=0.5)


def twice_symmetric(matrix: Tensor) -> Tensor:  # shape: (*, A, A) -> (*, A, A)
    """Compute M + M^T."""
    return matrix + matrix.mT


def symmetric_times(matrix: Tensor, x: Tensor) -> Tensor:  # shape: (*, A, A), (*, A, B) -> (*, A, B)
    """Compute M X for symmetric M; the result has the memory layout of X.

    Rows of graphs are transposed features. Their products take two thirds of the time in their own layout, and the
    gradient of the rows needs no copy.
    """
    multiply = torch.bmm if x.dim() == matrix.dim() == 3 else torch.matmul  # matmul takes five calls more
    return multiply(x.mT, matrix).mT if x.mT.is_contiguous() else multiply(matrix, x)


def twice_symmetric_times(matrix: Tensor, x: Tensor) -> Tensor:  # shape: (*, A, A), (*, A, B) -> (*, A, B)
    """Compute (M + M^T) X."""
    size, columns = x.shape[-2:]
    if torch.compiler.is_compiling():  # a choice by size would fix a dynamic dimension
        return twice_symmetric(matrix) @ x
    # Reading M^T entry by entry misses the cache from A = 1024 on: 38 ms for 2 x 2048 x 2048 floats, where a product
    # with 49 columns takes 8 ms. A second product is cheaper where it has few columns, and needs no A x A memory.
    if 8 * columns <= size:
        return matrix @ x + (x.mT @ matrix).mT  # M^T X itself takes 1.4 times as long
    if size < _PANELS_FROM[1]:
        return symmetric_times(twice_symmetric(matrix), x)
    # In panels the sum takes a quarter of the memory, which dominates that of a Gram pool, and hardly more time.
    height = -(-size // _PANELS)
    panels = [
        (matrix[..., start : start + height, :] + matrix[..., start : start + height].mT) @ x
        for start in range(0, size, height)
    ]
    return torch.cat(panels, dim=-2)


# A symmetric product is computed in panels of rows. They pay off if an entry sums many products: for 8 matrices,
# 256 x 784 and 512 x 512 save a seventh of the time and 1024 x 1024 a quarter; 256 x 256 loses the cost of the copies.
_PANELS = 4
_PANELS_FROM = (256, 512)


def times_transpose(x: Tensor) -> Tensor:  # shape: (*, A, B) -> (*, A, A)
    """Compute X X^T with the backward of autograd; :func:`self_product` has a cheaper one."""
    flat = x.reshape(-1, *x.shape[-2:])
    return symmetric_bmm(flat, flat.mT).reshape(*x.shape[:-1], x.shape[-2])


def symmetric_bmm(a: Tensor, b: Tensor) -> Tensor:  # shape: (B, C, N), (B, N, C) -> (B, C, C)
    """Compute A B if it is symmetric, as for commuting matrices: 10 of 16 blocks are computed, the others mirrored."""
    if not _panels_pay(a):
        return torch.bmm(a, b)
    return _mirrored(a, lambda rows, start: torch.bmm(a[:, rows], b[:, :, start:]))


def symmetric_baddbmm(base: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """Compute beta base + alpha A B if it is symmetric; shapes as in :func:`symmetric_bmm`."""
    if not _panels_pay(a):
        return torch.baddbmm(base, a, b, beta=beta, alpha=alpha)

    def panel(rows: slice, start: int) -> Tensor:
        return torch.baddbmm(base[:, rows, start:], a[:, rows], b[:, :, start:], beta=beta, alpha=alpha)

    return _mirrored(a, panel)


def _panels_pay(a: Tensor) -> bool:
    if torch.compiler.is_compiling():  # a choice by size would fix a dynamic dimension
        return False
    return a.shape[-2] >= _PANELS_FROM[0] and a.shape[-1] >= _PANELS_FROM[1] and a.device.type == "cpu"


def _mirrored(a: Tensor, panel: Callable[[slice, int], Tensor]) -> Tensor:
    """Assemble a symmetric matrix with as many rows as ``a``; ``panel(rows, start)`` begins at column ``start``."""
    size = a.shape[-2]
    result = a.new_empty(a.shape[0], size, size)
    height = -(-size // _PANELS)
    for start in range(0, size, height):
        rows, below = slice(start, start + height), slice(start + height, size)
        result[:, rows, start:] = panel(rows, start)
        result[:, below, rows] = result[:, rows, below].mT
    return result


class _SelfProduct(Function):
    @staticmethod
    def forward(x: Tensor, divisor: int | Tensor) -> Tensor:
        return _divide(times_transpose(x), divisor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int | Tensor], output: Tensor) -> None:
        x, divisor = inputs
        ctx.number = None if isinstance(divisor, Tensor) else divisor
        save(ctx, x, divisor if isinstance(divisor, Tensor) else None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, divisor = ctx.saved_tensors
        with without_autocast(x):
            return _divide(twice_symmetric_times(grad, x), ctx.number or divisor), None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, _: Any) -> Tensor:
        x, divisor = ctx.saved_tensors
        return _divide(twice_symmetric(tangent @ x.mT), ctx.number or divisor)


def _divide(matrix: Tensor, divisor: int | Tensor) -> Tensor:
    """Divide in place, for a matrix that is not used elsewhere."""
    return matrix.div_(divisor) if isinstance(divisor, Tensor) or divisor != 1 else matrix


class _InnerProduct(Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.mT @ x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with without_autocast(x):
            return x @ twice_symmetric(grad)

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return twice_symmetric(tangent.mT @ x)


class _Sandwich(Function):
    @staticmethod
    def forward(x: Tensor, core: Tensor) -> Tensor:
        return (x @ core) @ x.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, core = ctx.saved_tensors
        with without_autocast(x):
            weighted = twice_symmetric_times(grad, x)  # (*, A, B)
            return weighted @ core, (x.mT @ weighted) * 0.5

    @staticmethod
    def tangent(ctx: Any, x_tangent: Tensor, core_tangent: Tensor) -> Tensor:
        x, core = ctx.saved_tensors
        return twice_symmetric((x_tangent @ core) @ x.mT) + (x @ core_tangent) @ x.mT


class _Product(Function):
    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        with without_autocast(a):
            if a.dim() == 2:  # shared by the batch: one product over batch and columns instead of a sum of products
                outer = [*range(b.dim() - 2), b.dim() - 1]
                grad_a = torch.tensordot(grad, b, dims=(outer, outer))
            else:
                grad_a = (grad @ b.mT).sum_to_size(a.shape)
            return grad_a, (a.mT @ grad).sum_to_size(b.shape)

    @staticmethod
    def tangent(ctx: Any, a_tangent: Tensor, b_tangent: Tensor) -> Tensor:
        a, b = ctx.saved_tensors
        return a_tangent @ b + a @ b_tangent
