"""Matrix products whose backward keeps the precision of forward when it runs inside ``torch.autocast``.

Two are symmetric by construction, and have the backward that symmetry allows: autograd spends two large products on the
gradient of X X^T, one for each factor; the two are equal, so one is enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from powerpool.linalg.precision import without_autocast


def self_product(x: Tensor) -> Tensor:  # shape: (*, A, B) -> (*, A, A)
    """X X^T; double backward is right."""
    return _SelfProduct.apply(x)


def inner_product(x: Tensor) -> Tensor:  # shape: (*, A, B) -> (*, B, B)
    """X^T X; double backward is right, and the gradient comes in the layout of X."""
    return _InnerProduct.apply(x)


def sandwich(x: Tensor, core: Tensor) -> Tensor:  # shape: (*, A, B), (*, B, B) -> (*, A, A)
    """X T X^T for symmetric T; double backward is right."""
    return _Sandwich.apply(x, core)


def product(a: Tensor, b: Tensor) -> Tensor:  # shape: (*, A, B), (*, B, C) -> (*, A, C)
    """A B; double backward is right."""
    return _Product.apply(a, b)


def symmetrize(matrix: Tensor) -> Tensor:  # shape: (*, A, A) -> (*, A, A)
    """(M + M^T)/2, halved before the sum, which could overflow."""
    return (matrix * 0.5).add_(matrix.mT, alpha=0.5)


def twice_symmetric(matrix: Tensor) -> Tensor:  # shape: (*, A, A) -> (*, A, A)
    """M + M^T."""
    return matrix + matrix.mT


def twice_symmetric_times(matrix: Tensor, x: Tensor) -> Tensor:  # shape: (*, A, A), (*, A, B) -> (*, A, B)
    """(M + M^T) X."""
    size, columns = x.shape[-2:]
    if torch.compiler.is_compiling():  # no choice by size: it would pin a dimension that is to stay free
        return twice_symmetric(matrix) @ x
    # Reading M^T entry by entry misses the cache from A = 1024 on: 38 ms for 2 x 2048 x 2048 floats, where a product
    # with 49 columns takes 8 ms. A second product is cheaper where it has few columns, and needs no A x A memory.
    if 8 * columns <= size:
        return matrix @ x + matrix.mT @ x
    if size < _PANELS_FROM[1]:
        return twice_symmetric(matrix) @ x
    # By panels the sum takes a quarter of the memory, which is most of what a Gram pool needs, and hardly more time.
    height = -(-size // _PANELS)
    panels = [
        (matrix[..., start : start + height, :] + matrix[..., start : start + height].mT) @ x
        for start in range(0, size, height)
    ]
    return torch.cat(panels, dim=-2)


# Panels of rows that a symmetric product is computed in. They pay where many products make one entry: of 8 matrices,
# 256 x 784 and 512 x 512 save a seventh of the time, 1024 x 1024 a quarter; 256 x 256 loses what the copies cost.
_PANELS = 4
_PANELS_FROM = (256, 512)


def times_transpose(x: Tensor) -> Tensor:  # shape: (*, A, B) -> (*, A, A)
    """X X^T, with the backward of autograd; :func:`self_product` has a better one."""
    flat = x.reshape(-1, *x.shape[-2:])
    return symmetric_bmm(flat, flat.mT).reshape(*x.shape[:-1], x.shape[-2])


def symmetric_bmm(a: Tensor, b: Tensor) -> Tensor:  # shape: (B, C, N), (B, N, C) -> (B, C, C)
    """A B where that is symmetric, as for matrices that commute: 10 blocks of 16 are computed, the others mirrored."""
    if not _panels_pay(a):
        return torch.bmm(a, b)
    return _mirrored(a, lambda rows, start: torch.bmm(a[:, rows], b[:, :, start:]))


def symmetric_baddbmm(base: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta base + alpha A B where that is symmetric; shapes as in :func:`symmetric_bmm`."""
    if not _panels_pay(a):
        return torch.baddbmm(base, a, b, beta=beta, alpha=alpha)

    def panel(rows: slice, start: int) -> Tensor:
        return torch.baddbmm(base[:, rows, start:], a[:, rows], b[:, :, start:], beta=beta, alpha=alpha)

    return _mirrored(a, panel)


def _panels_pay(a: Tensor) -> bool:
    if torch.compiler.is_compiling():  # no choice by size: it would pin a dimension that is to stay free
        return False
    return a.shape[-2] >= _PANELS_FROM[0] and a.shape[-1] >= _PANELS_FROM[1] and a.device.type == "cpu"


def _mirrored(a: Tensor, panel: Callable[[slice, int], Tensor]) -> Tensor:
    """A symmetric matrix as high as ``a``, from its panels: ``rows``, from column ``start`` on."""
    size = a.shape[-2]
    result = a.new_empty(a.shape[0], size, size)
    height = -(-size // _PANELS)
    for start in range(0, size, height):
        rows, below = slice(start, start + height), slice(start + height, size)
        result[:, rows, start:] = panel(rows, start)
        result[:, below, rows] = result[:, rows, below].mT
    return result


class _SelfProduct(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return times_transpose(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with without_autocast(x):
            return twice_symmetric_times(grad, x)


class _InnerProduct(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.mT @ x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with without_autocast(x):
            return x @ twice_symmetric(grad)


class _Sandwich(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, core: Tensor) -> Tensor:
        return (x @ core) @ x.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, core = ctx.saved_tensors
        with without_autocast(x):
            weighted = twice_symmetric_times(grad, x)  # (*, A, B)
            return weighted @ core, (x.mT @ weighted) * 0.5


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        with without_autocast(a):
            if a.dim() == 2:  # shared by the batch: one product over batch and columns, not one for each and their sum
                outer = [*range(b.dim() - 2), b.dim() - 1]
                grad_a = torch.tensordot(grad, b, dims=(outer, outer))
            else:
                grad_a = (grad @ b.mT).sum_to_size(a.shape)
            return grad_a, (a.mT @ grad).sum_to_size(b.shape)
