"""Moments of ragged sets: the rows of a batch of graphs, one segment index per row.

A *tile* is a block of ``T`` rows of one segment; the last tile of a segment is padded with zeros. All tiles have the
same height, so one batched product serves segments of every size, and a large segment is many tiles: nothing is padded
to the largest segment, and no ``N x C x C`` outer products exist. Tiles are built a few megabytes at a time.

The shapes of the plan depend on ``N``, ``S`` and ``C`` alone, so nothing synchronises a device. The two kernels are
opaque to ``torch.compile`` and ``torch.export``, so their loop over chunks is not unrolled and does not fix ``N``.
The derivatives of the two kernels are each other, so derivatives of any order are correct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from powerpool.autodiff import Function, call, save
from powerpool.checks import require_beta, require_finite, require_floating, values_are_checked, zero_or_nan
from powerpool.errors import ArgumentError, DomainError, DTypeError, ShapeError
from powerpool.linalg.precision import at_least_float32, without_autocast
from powerpool.moments.dense import overflow_error

# Elements that a kernel processes at a time. 4 MB of float32 stay in cache: the products of REDDIT-BINARY
# (859,254 x 32) take 67 ms in such chunks, 139 ms in one piece and 129 ms in pieces of 64 kB (1 core).
_CHUNK = 2**20


def segment_autocorrelation(
    features: Tensor,
    index: Tensor,
    num_segments: int | None = None,
    beta: float = 0.0,
    *,
    check: bool | None = None,
) -> Tensor:
    r"""Second-order moment of ragged sets, for instance of the nodes of each graph of a batch.

    .. math::
        M_s = \frac{1}{N_s} \sum_{n : i_n = s} \bar\phi_n \bar\phi_n^\top,
        \qquad \bar\phi_n = \phi_n - \beta \, \frac{1}{N_s} \sum_{n' : i_{n'} = s} \phi_{n'}

    Forward and backward use at most four times the memory of input and output together, however uneven the sets are,
    plus about 64 bytes per row for the layout; half precision counts as its float32 copy.

    Args:
        features: rows first as in PyTorch Geometric, ``(N, C)``.
        index: segment of each row, ``(N,)`` int64, sorted or not.
        num_segments: ``S``; by default the largest index plus one, which reads a value and so synchronises a device.
        beta: strength of the centering, in ``[0, 1]``.
        check: as in :func:`powerpool.autocorrelation`.

    Returns:
        ``(S, C, C)``, in the dtype of the features. A segment without rows gives the zero matrix.

    Examples:
        >>> features = torch.tensor([[1.0, 2.0], [3.0, -2.0], [0.0, 1.0]])  # N = 3, C = 2
        >>> segment_autocorrelation(features, torch.tensor([0, 0, 1]), num_segments=3)
        tensor([[[ 5., -2.],
                 [-2.,  4.]],
        <BLANKLINE>
                [[ 0.,  0.],
                 [ 0.,  1.]],
        <BLANKLINE>
                [[ 0.,  0.],
                 [ 0.,  0.]]])
    """
    require_beta(beta)
    num_segments = _validate_segments(features, index, num_segments, check)
    with without_autocast(features):
        rows = at_least_float32(features)
        if beta != 0:
            means = _segment_means(rows, index, num_segments)  # (S, C)
            rows = rows - (beta * means).index_select(0, index)
        matrix = segment_moment(rows, plan_segments(index, num_segments, rows.shape[1]))
        if values_are_checked(features, check):
            diagonal = matrix.detach().diagonal(dim1=-2, dim2=-1)
            if not bool(torch.isfinite(diagonal).all()):
                raise overflow_error(features, matrix.dtype)
    return matrix.to(features.dtype)


def segment_mean(
    features: Tensor,
    index: Tensor,
    num_segments: int | None = None,
    *,
    check: bool | None = None,
) -> Tensor:
    r"""First-order moment of ragged sets, :math:`\frac{1}{N_s} \sum_{n : i_n = s} \phi_n`.

    Arguments as in :func:`segment_autocorrelation`.

    Returns:
        ``(S, C)``, in the dtype of the features. A segment without rows gives zeros.

    Examples:
        >>> segment_mean(torch.tensor([[1.0, 2.0], [3.0, -2.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
        tensor([[2., 0.],
                [0., 1.]])
    """
    num_segments = _validate_segments(features, index, num_segments, check)
    return _segment_means(at_least_float32(features), index, num_segments).to(features.dtype)


def _segment_means(rows: Tensor, index: Tensor, num_segments: int) -> Tensor:
    totals = rows.new_zeros(num_segments, rows.shape[1]).index_add(0, index, rows)  # (S, C)
    sizes = rows.new_zeros(num_segments).index_add(0, index, rows.new_ones(index.shape))  # (S,)
    poison = zero_or_nan(totals)
    return totals / (sizes.clamp(min=1).unsqueeze(-1) + poison)


def _validate_segments(features: Tensor, index: Tensor, num_segments: int | None, check: bool | None) -> int:
    require_floating(features, "features")
    if features.ndim != 2 or 0 in features.shape:
        raise ShapeError(
            f"features must have shape (N, C): rows, then channels, N >= 1 and C >= 1 (got {tuple(features.shape)}). "
            "A dense batch of shape (*, C, N) goes to autocorrelation; a batch without rows has no moment."
        )
    if not isinstance(index, Tensor) or index.dtype != torch.int64:
        given = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise DTypeError(f"index must be an int64 tensor, the segment of each row (got {given}). Use index.long().")
    if index.shape != features.shape[:1]:
        raise ShapeError(
            f"index must have shape (N,) = ({features.shape[0]},), one segment per row of features "
            f"(got {tuple(index.shape)} for features of shape {tuple(features.shape)})."
        )
    if index.device != features.device:
        raise ArgumentError(
            f"index must be on the device of features, {features.device} (got {index.device}). Use index.to(...)."
        )
    if num_segments is None:
        if torch.compiler.is_compiling():
            raise ArgumentError("num_segments must be given while torch.compile or torch.export traces (got None).")
        num_segments = int(index.max()) + 1
    elif isinstance(num_segments, bool) or not isinstance(num_segments, (int, torch.SymInt)) or num_segments < 1:
        raise ArgumentError(
            f"num_segments must be an integer >= 1, or None to take max(index) + 1 (got {num_segments!r})."
        )
    if values_are_checked(features, check):
        low, high = (int(bound) for bound in torch.aminmax(index))
        if low < 0 or high >= num_segments:
            raise DomainError(
                f"index must lie in [0, num_segments) = [0, {num_segments}) (got {low} to {high}). "
                "Raise num_segments, or renumber the segments."
            )
        require_finite(features, "features")
    return num_segments


@dataclass(frozen=True)
class SegmentPlan:
    """The row in each slot of each tile. Built once per call, shared by forward and backward."""

    slots: Tensor  # shape: (tiles, T), the row in each slot, or N in an empty slot
    owner: Tensor  # shape: (tiles,), the segment of each tile
    sizes: Tensor  # shape: (S,), the number of rows of each segment, at least 1 because it divides


def plan_segments(index: Tensor, num_segments: int, channels: int) -> SegmentPlan:
    """Arrange the rows in tiles.

    Args:
        index: segment of each row, sorted or not, ``(N,)`` int64 in ``[0, S)``.
        num_segments: ``S``.
        channels: ``C``; the wider the rows, the more a tile costs, and the taller the tiles.
    """
    rows = index.shape[0]
    height = _tile_height(rows, num_segments, channels)
    sizes = index.new_zeros(num_segments).index_add(0, index, torch.ones_like(index))  # (S,)
    tiles_of = (sizes + height - 1) // height  # (S,)
    ends = tiles_of.cumsum(0)  # (S,), the tile after the last of each segment
    # ceil(n / T) <= 1 + floor(n / T) bounds the number of tiles without reading a value; on the CPU it is read.
    readable = values_are_checked(index, None)
    tiles = int(ends[-1]) if readable else num_segments + rows // height

    position = torch.arange(rows, device=index.device)  # (N,)
    is_sorted = readable and bool((index[1:] >= index[:-1]).all())
    order = position if is_sorted else torch.argsort(index, stable=True)  # (N,), rows by segment
    shift = (ends - tiles_of) * height - (sizes.cumsum(0) - sizes)  # (S,), first slot minus first row
    slot = position + shift.index_select(0, index.index_select(0, order))  # (N,)
    slots = index.new_full((tiles * height,), rows).index_copy(0, slot, order)
    # The owner of tile t is the number of segments that end at or before t; unused tiles belong to the last segment.
    owner = index.new_zeros(tiles + 1).index_add(0, ends, torch.ones_like(ends)).cumsum(0)[:-1]  # (tiles,)
    return SegmentPlan(slots.view(tiles, height), owner.clamp(max=num_segments - 1), sizes.clamp(min=1))


def _tile_height(rows: int, num_segments: int, channels: int) -> int:
    """Return T: short tiles have few empty slots, tall tiles give few products to sum.

    The minimum is flat. Fitted on 128 x 18 rows x 64 and x 512 channels, 2000 x 10 + 4000 rows x 64, 16 x 250 rows x
    1024, and REDDIT-BINARY x 32 and x 64.
    """
    mean = -(-rows // num_segments)
    return min(mean // 4 + channels // 4 + 16, (3 * mean + 1) // 2)


def segment_moment(rows: Tensor, plan: SegmentPlan) -> Tensor:
    r"""Compute the mean of the outer products of each segment, :math:`M_s = \frac{1}{N_s} \sum_{n \in s} x_n x_n^\top`.

    Args:
        rows: ``(N, C)``, float32 or float64.
        plan: of the index of the rows.

    Returns:
        ``(S, C, C)``; zero for a segment without rows, NaN in every entry for one with NaN or infinity.
    """
    moment: Tensor = call(_Moment, rows, plan.slots, plan.owner, plan.sizes)
    return moment


# ---- kernels: values only --------------------------------------------------------------------------------------------


@torch.library.custom_op("powerpool::segment_pair", mutates_args=())
def _pair_kernel(x: Tensor, y: Tensor | None, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    """Mean of x_n y_n^T + y_n x_n^T over each segment, or of x_n x_n^T without y: (N, C), (N, C) -> (S, C, C)."""
    out = x.new_zeros(sizes.shape[0], x.shape[1], x.shape[1])
    x, y = _with_empty_row(x), None if y is None else _with_empty_row(y)
    with without_autocast(x):
        for chunk, segments in _chunks(slots, owner, x, out):
            out.index_add_(0, segments, _pair_tiles(x, y, chunk, sizes.index_select(0, segments)))
    return out


@torch.library.custom_op("powerpool::segment_apply", mutates_args=())
def _apply_kernel(matrices: Tensor, x: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    """(A_s + A_s^T) x_n / N_s for each row n of segment s: (S, C, C), (N, C) -> (N, C)."""
    out = x.new_empty(x.shape[0] + 1, x.shape[1])  # row N receives the results of empty slots
    last = x.shape[0] - 1
    with without_autocast(x):
        for chunk, segments in _chunks(slots, owner, x, matrices):
            tiles = _gather(x, chunk.clamp(max=last))
            result = _apply_tiles(matrices.index_select(0, segments), tiles, sizes.index_select(0, segments))
            out.index_copy_(0, chunk.flatten(), result.flatten(0, 1))
    return out.resize_(x.shape)  # not a view: forward mode requires that of its tangent, too


def _chunks(slots: Tensor, owner: Tensor, rows: Tensor, matrices: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Split the plan so that tiles take at most ``_CHUNK`` elements, and twice those of rows and matrices."""
    per_tile = (2 * slots.shape[1] + rows.shape[1]) * rows.shape[1]
    step = max(1, min(_CHUNK, 2 * (rows.numel() + matrices.numel())) // per_tile)
    return zip(slots.split(step), owner.split(step), strict=True)


def _with_empty_row(rows: Tensor) -> Tensor:  # shape: (N, C) -> (N + 1, C)
    """Append the zeros that empty slots get: to mask them takes four times as long."""
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])


def _gather(rows: Tensor, slots: Tensor) -> Tensor:
    """Return the rows of a chunk of tiles, (t, T) -> (t, T, C)."""
    return rows.index_select(0, slots.flatten()).view(*slots.shape, -1)


def _pair_tiles(x: Tensor, y: Tensor | None, slots: Tensor, sizes: Tensor) -> Tensor:  # -> (t, C, C)
    left = _gather(x, slots)
    if y is None:
        product = torch.bmm(left.mT, left)
    else:
        product = torch.bmm(left.mT, _gather(y, slots))
        product = product + product.mT
    # A NaN divisor makes the whole tile NaN, and with it its segment.
    poison = zero_or_nan(product.diagonal(dim1=-2, dim2=-1)).sum(-1)  # (t,)
    return product.div_((sizes + poison)[:, None, None])


def _apply_tiles(matrices: Tensor, tiles: Tensor, sizes: Tensor) -> Tensor:  # -> (t, T, C)
    return torch.bmm(tiles, matrices + matrices.mT).div_(sizes[:, None, None])


@_pair_kernel.register_fake
def _(x: Tensor, y: Tensor | None, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    return x.new_empty(sizes.shape[0], x.shape[1], x.shape[1])


@_apply_kernel.register_fake
def _(matrices: Tensor, x: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _one_by_one(kernel: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, int]]:
    """Return the vmap rule of a kernel that is already batched: run it for each example."""

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


class _Moment(Function):
    """M_s = mean of x_n x_n^T; x_bar_n = (M_bar_s + M_bar_s^T) x_n / N_s."""

    @staticmethod
    def forward(x: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
        return _pair_kernel(x, None, slots, owner, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, *plan = ctx.saved_tensors
        return call(_Apply, grad, x, *plan), None, None, None

    @staticmethod
    def tangent(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        x, *plan = ctx.saved_tensors
        return call(_Pair, tangent, x, *plan)


class _Apply(Function):
    """z_n = (A_s + A_s^T) x_n / N_s; A_bar_s = mean of z_bar_n x_n^T + x_n z_bar_n^T, x_bar_n like z_n with z_bar_n."""

    @staticmethod
    def forward(matrices: Tensor, x: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
        return _apply_kernel(matrices, x, slots, owner, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrices, x, *plan = ctx.saved_tensors
        matrices_bar = call(_Pair, grad, x, *plan) if ctx.needs_input_grad[0] else None
        x_bar = call(_Apply, matrices, grad, *plan) if ctx.needs_input_grad[1] else None
        return matrices_bar, x_bar, None, None, None

    @staticmethod
    def tangent(ctx: Any, matrices_tangent: Tensor, x_tangent: Tensor, *_: Any) -> Tensor:
        matrices, x, *plan = ctx.saved_tensors
        return call(_Apply, matrices_tangent, x, *plan) + call(_Apply, matrices, x_tangent, *plan)


class _Pair(Function):
    """P_s = mean of x_n y_n^T + y_n x_n^T; x_bar_n = (P_bar_s + P_bar_s^T) y_n / N_s, and y_bar_n likewise."""

    @staticmethod
    def forward(x: Tensor, y: Tensor, slots: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
        return _pair_kernel(x, y, slots, owner, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        save(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, y, *plan = ctx.saved_tensors
        x_bar = call(_Apply, grad, y, *plan) if ctx.needs_input_grad[0] else None
        y_bar = call(_Apply, grad, x, *plan) if ctx.needs_input_grad[1] else None
        return x_bar, y_bar, None, None, None

    @staticmethod
    def tangent(ctx: Any, x_tangent: Tensor, y_tangent: Tensor, *_: Any) -> Tensor:
        x, y, *plan = ctx.saved_tensors
        return call(_Pair, x_tangent, y, *plan) + call(_Pair, x, y_tangent, *plan)
