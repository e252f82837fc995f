"""Means over ragged sets: the rows of a batch of graphs, one segment index per row.

A *tile* is a block of ``T`` rows of one segment; the last tile of a segment is filled up with zeros. All tiles have the
same height, so one batched product serves segments of every size, and a large segment is simply many tiles: nothing is
padded to the largest, and no ``N x C x C`` outer products exist. Tiles are made and used a few megabytes at a time.

The shapes of the plan depend on ``N``, ``S`` and ``C`` alone, so nothing synchronises a device. The two kernels are
opaque to ``torch.compile`` and ``torch.export``, so their loop over chunks is not unrolled and does not pin down ``N``.
The derivatives of the two kernels are each other, so any order of differentiation is right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from powerpool.checks import values_are_checked, zero_or_nan
from powerpool.linalg.precision import without_autocast

# Elements that a kernel works on at a time. 4 MB of float32 stay in cache: the products of REDDIT-BINARY (859,254 x 32)
# take 67 ms in such chunks, 139 ms in one piece and 129 ms in pieces of 64 kB (1 core).
_CHUNK = 2**20


@dataclass(frozen=True)
class SegmentPlan:
    """Which row sits in which slot of which tile. Built once per call, shared by forward and backward."""

    slots: Tensor  # shape: (tiles, T), the row in each slot, or N where the slot is empty
    owner: Tensor  # shape: (tiles,), the segment of each tile
    sizes: Tensor  # shape: (S,), the number of rows of each segment, at least 1: it divides


def plan_segments(index: Tensor, num_segments: int, channels: int) -> SegmentPlan:
    """Lay the rows out in tiles.

    Args:
        index: segment of each row, sorted or not, ``(N,)`` int64 in ``[0, S)``.
        num_segments: ``S``.
        channels: ``C``; the wider the rows, the dearer a tile, and the taller the tiles.
    """
    rows = index.shape[0]
    height = _tile_height(rows, num_segments, channels)
    sizes = index.new_zeros(num_segments).index_add(0, index, torch.ones_like(index))  # (S,)
    tiles_of = (sizes + height - 1) // height  # (S,)
    ends = tiles_of.cumsum(0)  # (S,), the tile after the last of each segment
    # ceil(n / T) <= 1 + floor(n / T) bounds the number of tiles without reading a value; on the CPU we read it.
    readable = values_are_checked(index, None)
    tiles = int(ends[-1]) if readable else num_segments + rows // height

    position = torch.arange(rows, device=index.device)  # (N,)
    is_sorted = readable and bool((index[1:] >= index[:-1]).all())
    order = position if is_sorted else torch.argsort(index, stable=True)  # (N,), rows by segment
    shift = (ends - tiles_of) * height - (sizes.cumsum(0) - sizes)  # (S,), first slot minus first row
    slot = position + shift.index_select(0, index.index_select(0, order))  # (N,)
    slots = index.new_full((tiles * height,), rows).index_copy(0, slot, order)
    # The owner of tile t is the number of segments that end at or before t; spare tiles are empty and go to the last.
    owner = index.new_zeros(tiles + 1).index_add(0, ends, torch.ones_like(ends)).cumsum(0)[:-1]  # (tiles,)
    return SegmentPlan(slots.view(tiles, height), owner.clamp(max=num_segments - 1), sizes.clamp(min=1))


def _tile_height(rows: int, num_segments: int, channels: int) -> int:
    """T: short tiles have few empty slots, tall tiles make few products to add up.

    The minimum is flat. Fitted on 128 x 18 rows x 64 and x 512 channels, 2000 x 10 + 4000 rows x 64, 16 x 250 rows x
    1024, and REDDIT-BINARY x 32 and x 64.
    """
    mean = -(-rows // num_segments)
    return min(mean // 4 + channels // 4 + 16, (3 * mean + 1) // 2)


def segment_moment(rows: Tensor, plan: SegmentPlan) -> Tensor:
    r"""Mean of the outer products of each segment, :math:`M_s = \frac{1}{N_s} \sum_{n \in s} x_n x_n^\top`.

    Args:
        rows: ``(N, C)``, float32 or float64.
        plan: of the index of the rows.

    Returns:
        ``(S, C, C)``; zero for a segment without rows, NaN all over for one with NaN or infinity.
    """
    moment: Tensor = _Moment.apply(rows, plan.slots, plan.owner, plan.sizes)
    return moment


# ---- kernels: values only --------------------------------------------------------------------------------------------


@torch.library.custom_op("powerpool::segment_pair", mutates_args=())
def _pair_kernel(x: Tensor, y: Tensor | None, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    """Mean of x_n y_n^T + y_n x_n^T in each segment, of x_n x_n^T without y: (N, C), (N, C) -> (S, C, C)."""
    out = x.new_zeros(sizes.shape[0], x.shape[1], x.shape[1])
    with without_autocast(x):
        for chunk, segments in _chunks(slots, owner, x, out):
            out.index_add_(0, segments, _pair_tiles(x, y, chunk, sizes.index_select(0, segments)))
    return out


@torch.library.custom_op("powerpool::segment_apply", mutates_args=())
def _apply_kernel(matrices: Tensor, x: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    """(A_s + A_s^T) x_n / N_s for each row n of segment s: (S, C, C), (N, C) -> (N, C)."""
    out = x.new_empty(x.shape[0] + 1, x.shape[1])  # row N takes what comes out of empty slots
    with without_autocast(x):
        for chunk, segments in _chunks(slots, owner, x, matrices):
            result = _apply_tiles(matrices.index_select(0, segments), x, chunk, sizes.index_select(0, segments))
            out.index_copy_(0, chunk.flatten(), result.flatten(0, 1))
    return out[:-1]


def _chunks(slots: Tensor, owner: Tensor, rows: Tensor, matrices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Pieces of the plan whose tiles take at most ``_CHUNK`` elements, and no more than rows and matrices."""
    per_tile = (2 * slots.shape[1] + rows.shape[1]) * rows.shape[1]
    step = max(1, min(_CHUNK, rows.numel() + matrices.numel()) // per_tile)
    return zip(slots.split(step), owner.split(step), strict=True)


def _gather(rows: Tensor, slots: Tensor) -> Tensor:
    """The rows in a chunk of tiles, (t, T) -> (t, T, C); the last row of all in empty slots."""
    return rows.index_select(0, slots.clamp(max=rows.shape[0] - 1).flatten()).view(*slots.shape, -1)


def _pair_tiles(x: Tensor, y: Tensor | None, slots: Tensor, sizes: Tensor) -> Tensor:  # -> (t, C, C)
    empty = (slots == x.shape[0]).unsqueeze(-1)  # (t, T, 1)
    left = _gather(x, slots).masked_fill_(empty, 0)
    if y is None:
        product = left.mT @ left
    else:
        product = left.mT @ _gather(y, slots).masked_fill_(empty, 0)
        product = product + product.mT
    # A NaN divisor makes the whole tile NaN, and so its segment.
    poison = zero_or_nan(product.diagonal(dim1=-2, dim2=-1)).sum(-1)  # (t,)
    return product.div_((sizes + poison)[:, None, None])


def _apply_tiles(matrices: Tensor, x: Tensor, slots: Tensor, sizes: Tensor) -> Tensor:  # -> (t, T, C)
    return (_gather(x, slots) @ (matrices + matrices.mT)).div_(sizes[:, None, None])


@_pair_kernel.register_fake
def _(x: Tensor, y: Tensor | None, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    return x.new_empty(sizes.shape[0], x.shape[1], x.shape[1])


@_apply_kernel.register_fake
def _(matrices: Tensor, x: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _one_by_one(kernel: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, int]]:
    """The vmap rule of a kernel that is batched already: run it for each example."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        def example(number: int) -> Tensor:
            pairs = zip(inputs, in_dims, strict=True)
            return kernel(*(value if dim is None else value.select(dim, number) for value, dim in pairs))

        return torch.stack([example(number) for number in range(info.batch_size)]), 0

    return rule


_pair_kernel.register_vmap(_one_by_one(_pair_kernel))
_apply_kernel.register_vmap(_one_by_one(_apply_kernel))


# ---- derivatives: only the inputs are saved --------------------------------------------------------------------------
# torch.library.register_autograd would be shorter, but its gradients do not pass through torch.func (torch 2.13).


class _Moment(torch.autograd.Function):
    """M_s = mean of x_n x_n^T; x_bar_n = (M_bar_s + M_bar_s^T) x_n / N_s."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
        return _pair_kernel(x, None, slots, owner, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *plan = ctx.saved_tensors
        return _Apply.apply(grad, x, *plan), None, None, None


class _Apply(torch.autograd.Function):
    """z_n = (A_s + A_s^T) x_n / N_s; A_bar_s = mean of z_bar_n x_n^T + x_n z_bar_n^T, x_bar_n like z_n with z_bar_n."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrices: Tensor, x: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
        return _apply_kernel(matrices, x, slots, owner, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrices, x, *plan = ctx.saved_tensors
        matrices_bar = _Pair.apply(grad, x, *plan) if ctx.needs_input_grad[0] else None
        x_bar = _Apply.apply(matrices, grad, *plan) if ctx.needs_input_grad[1] else None
        return matrices_bar, x_bar, None, None, None


class _Pair(torch.autograd.Function):
    """P_s = mean of x_n y_n^T + y_n x_n^T; x_bar_n = (P_bar_s + P_bar_s^T) y_n / N_s, and y_bar_n likewise."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
        return _pair_kernel(x, y, slots, owner, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *plan = ctx.saved_tensors
        x_bar = _Apply.apply(grad, y, *plan) if ctx.needs_input_grad[0] else None
        y_bar = _Apply.apply(grad, x, *plan) if ctx.needs_input_grad[1] else None
        return x_bar, y_bar, None, None, None
