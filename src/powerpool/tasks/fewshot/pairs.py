"""The first block of a comparison on all pairs of an episode, without stacking the pairs.

The block is a convolution, batch normalization, 2 x 2 max-pooling and ReLU. The convolution is linear in its channels:
that of a pair is the sum of one of the support and one of the query. L classes and n queries therefore need L + n
convolutions, not L n. Mean and variance over the L n pairs follow from those of support and query. What remains for
each pair is a sum, a maximum and a store.

:class:`PairBlock` compares matrices: it takes the statistics from their 3 x 3 windows, and folds them into the weights.
:func:`compare_maps` compares maps of many channels, for which the statistics of the convolved maps are cheaper.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from powerpool.errors import ShapeError
from powerpool.linalg.precision import at_least_float32, without_autocast

BLOCK = 2**19
"""Output values computed at once on a CPU, so that they stay in its cache."""


class PairBlock(nn.Module):
    r"""Convolution, batch normalization, max-pooling and ReLU of the two-channel inputs of all pairs.

    .. math:: y_{qc} = \operatorname{relu}\,\operatorname{pool}\,\operatorname{norm}(w_1 * s_c + w_2 * z_q)

    with support :math:`s_c`, query :math:`z_q` and 3 x 3 filters. The result is that of the layers on stacked pairs.

    Args:
        channels: of the output.
        padding: of the convolution, 0 or 1.

    Example:
        >>> import torch
        >>> block = PairBlock(64)
        >>> block(torch.rand(5, 64, 64), torch.rand(25, 64, 64)).shape
        torch.Size([125, 64, 32, 32])
    """

    def __init__(self, channels: int, padding: int = 1) -> None:
        super().__init__()
        self.convolution = init_for_relu(nn.Conv2d(2, channels, 3, padding=padding, bias=False))
        self.norm = nn.BatchNorm2d(channels)
        self.padding = padding

    def forward(self, support: Tensor, query: Tensor) -> Tensor:  # shape: (L, H, W), (n, H, W) -> (n L, F, h, w)
        """Return the maps of all pairs: those of the first query first, in the order of the classes."""
        if support.ndim != 3 or query.ndim != 3 or support.shape[1:] != query.shape[1:]:
            raise ShapeError(
                "PairBlock needs support (L, H, W) and query (n, H, W) of one size "
                f"(got {tuple(support.shape)} and {tuple(query.shape)})."
            )
        if support.shape[1] % 2 or support.shape[2] % 2:
            raise ShapeError(f"PairBlock needs an even height and width (got {tuple(support.shape[1:])}).")
        with without_autocast(query):
            parts = (windows(at_least_float32(matrices), self.padding) for matrices in (support, query))
            first, second = self._normalize(*parts)
        if torch.is_autocast_enabled(query.device.type):  # only the pairs, of which there are many, are rounded
            half = torch.get_autocast_dtype(query.device.type)
            first, second = first.to(half), second.to(half)
        return pool_pairs(first, second).flatten(0, 1)

    def _normalize(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Apply convolution and batch normalization to windows of support and query; a pair is the sum of both."""
        weights = self.convolution.weight.flatten(2).unbind(1)  # (F, 9) each
        mean, variance = self._statistics(first, second, torch.cat(weights, 1))
        scale = self.norm.weight * torch.rsqrt(variance + self.norm.eps)
        support = _filter(first, weights[0] * scale[:, None]) + (self.norm.bias - mean * scale)
        return support, _filter(second, weights[1] * scale[:, None])

    def _statistics(self, first: Tensor, second: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:  # shape: (F,), (F,)
        """Return mean and variance of each channel over all pairs and locations; the running ones in evaluation."""
        norm = self.norm
        if not norm.training and norm.running_mean is not None and norm.running_var is not None:
            return norm.running_mean, norm.running_var
        mean, covariance = window_statistics(first, second)
        means = weight @ mean
        variances = ((weight @ covariance) * weight).sum(1).clamp_min(0)
        if norm.training:
            _track(norm, means, variances, first[..., 0].numel() * second.shape[1])
        return means, variances


def compare_maps(block: nn.Module, support: Tensor, query: Tensor) -> Tensor:
    """Apply a block to the concatenated maps of all pairs, those of the first query first, without concatenating them.

    Args:
        block: a convolution of 2 K channels, batch normalization, optional 2 x 2 max-pooling, and ReLU.
        support: maps of the classes, ``(L, K, H, W)``.
        query: maps of the queries, ``(n, K, H, W)``.

    Returns:
        ``(n L, F, H', W')``.
    """
    convolution, norm, *rest = block.children()
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    weights = convolution.weight.chunk(2, 1)
    first, second = (
        nn.functional.conv2d(maps, weight, padding=convolution.padding)
        for maps, weight in zip((support, query), weights, strict=True)
    )
    dtype = first.dtype
    with without_autocast(query):
        first, second = _normalize_maps(norm, at_least_float32(first), at_least_float32(second))
    first, second = first.to(dtype), second.to(dtype)  # only the pairs, of which there are many, are rounded
    if len(rest) == 1:  # no pooling
        return (first + second[:, None]).relu().flatten(0, 1)
    return pool_pairs(_corners(first), _corners(second)).flatten(0, 1)


def _normalize_maps(norm: nn.BatchNorm2d, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Apply batch normalization to convolved maps of support and query; a pair is the sum of both."""
    if not norm.training and norm.running_mean is not None and norm.running_var is not None:
        means, variance = (norm.running_mean, torch.zeros_like(norm.running_mean)), norm.running_var
    else:
        means = first.mean((0, 2, 3)), second.mean((0, 2, 3))
    first, second = (maps - mean[:, None, None] for maps, mean in zip((first, second), means, strict=True))
    if norm.training or norm.running_var is None:
        between = (first.mean(0) * second.mean(0)).mean((1, 2))  # the covariance of support and query over locations
        variance = first.square().mean((0, 2, 3)) + second.square().mean((0, 2, 3)) + 2 * between
        if norm.training:
            _track(norm, means[0] + means[1], variance, first[:, 0].numel() * len(second))
    scale = (norm.weight * torch.rsqrt(variance.clamp_min(0) + norm.eps))[:, None, None]
    return first * scale + norm.bias[:, None, None], second * scale


@torch.no_grad()
def _track(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the running statistics as batch normalization of all pairs would."""
    if norm.num_batches_tracked is None or norm.running_mean is None or norm.running_var is None:
        return
    norm.num_batches_tracked += 1
    share = 1 / float(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance * (count / (count - 1)), share)


def init_for_relu(layer: nn.Conv2d) -> nn.Conv2d:
    """Initialize the weights by Kaiming's rule for ReLU, and return the layer."""
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


def windows(matrices: Tensor, padding: int) -> Tensor:  # shape: (B, H, W) -> (4, B, h, w, 9)
    """Return the 3 x 3 windows, zero-padded or not, grouped by the corners of 2 x 2 blocks."""
    batch = len(matrices)
    height, width = (side + 2 * padding - 2 for side in matrices.shape[1:])
    found = nn.functional.unfold(matrices[:, None], 3, padding=padding)  # (B, 9, H W)
    found = found.view(batch, 9, height // 2, 2, width // 2, 2)
    return found.permute(3, 5, 0, 2, 4, 1).flatten(0, 1).contiguous()


def _corners(maps: Tensor) -> Tensor:  # shape: (B, F, H, W) -> (4, B, H/2, W/2, F)
    """Return the four corners of 2 x 2 blocks; an odd row or column at the end belongs to none."""
    height, width = (side // 2 for side in maps.shape[2:])
    blocks = maps[..., : 2 * height, : 2 * width].unflatten(3, (width, 2)).unflatten(2, (height, 2))
    return blocks.permute(3, 5, 0, 2, 4, 1).flatten(0, 1).contiguous()


def _filter(parts: Tensor, weight: Tensor) -> Tensor:  # shape: (4, B, h, w, 9), (F, 9) -> (4, B, h, w, F)
    """Multiply windows by filters, matrix by matrix, so that the gradient of the filters is a sum of small products.

    As a single product it is tall and thin, which is slow in libraries: 55 ms instead of 10 ms for 25 queries.
    """
    flat = parts.flatten(2, 3).flatten(0, 1)  # (4 B, h w, 9)
    return torch.bmm(flat, weight.T.expand(len(flat), -1, -1)).view(*parts.shape[:-1], len(weight))


def window_statistics(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:  # shape: (18,), (18, 18)
    r"""Return mean and covariance of the concatenated windows of all pairs.

    Over classes c, queries q and locations p, the windows :math:`a_{cp}` and :math:`b_{qp}` have the diagonal blocks
    :math:`\operatorname{cov} a` and :math:`\operatorname{cov} b`; the other block is that of the means over c and q.
    """
    parts, means = [], []
    for part in (first, second):
        flat = part.flatten(0, 3)
        means.append(flat.mean(0))
        parts.append(part - means[-1])
    own = [flat.T @ flat / len(flat) for flat in (part.flatten(0, 3) for part in parts)]
    locations = [part.mean(1).flatten(0, 2) for part in parts]  # (H W, 9)
    between = locations[0].T @ locations[1] / len(locations[0])
    rows = [torch.cat([own[0], between], 1), torch.cat([between.T, own[1]], 1)]
    return torch.cat(means), torch.cat(rows)


def pool_pairs(first: Tensor, second: Tensor) -> Tensor:  # shape: (4, L, h, w, F), (4, n, h, w, F) -> (n, L, F, h, w)
    r"""Return the ReLU of the largest of the four sums of each pair; the first largest one gets the gradient.

    .. math:: y_{qc} = \operatorname{relu}\bigl(\max_k (a_{kc} + b_{kq})\bigr)

    The sums are not stored: backward computes them again. The memory format of the result is channels-last.

    Example:
        >>> import torch
        >>> a, b = torch.randn(4, 5, 3, 3, 8), torch.randn(4, 2, 3, 3, 8)
        >>> direct = (a[:, None] + b[:, :, None]).amax(0).relu().movedim(-1, 2)
        >>> torch.equal(pool_pairs(a, b), direct)
        True
    """
    pooled: Tensor = _PoolPairs.apply(first, second)
    return pooled.movedim(-1, 2)


class _PoolPairs(torch.autograd.Function):
    """See :func:`pool_pairs`."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor) -> Tensor:  # shape: (n, L, h, w, F)
        pooled = first.new_empty(second.shape[1], *first.shape[1:])
        size = _queries_at_once(first)
        for out, query in zip(pooled.split(size), second.split(size, dim=1), strict=True):
            torch.add(first[0], query[0, :, None], out=out)
            for corner in range(1, 4):
                torch.maximum(out, first[corner] + query[corner, :, None], out=out)
            out.relu_()
        ctx.save_for_backward(first, second, pooled)
        return pooled

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        first, second, pooled = ctx.saved_tensors
        to_first, to_second = torch.zeros_like(first), torch.empty_like(second)
        size = _queries_at_once(first)
        parts = (pooled.split(size), gradient.split(size), second.split(size, dim=1), to_second.split(size, dim=1))
        for out, upstream, query, to_query in zip(*parts, strict=True):
            rest = _where_above(upstream, out, 0.0)  # ReLU cuts off entries of 0
            own = torch.empty_like(out)
            for corner in range(4):
                chosen = rest
                if corner < 3:
                    torch.add(first[corner], query[corner, :, None], out=own)
                    own.sub_(out)  # 0 if this corner is the largest, else negative
                    chosen = _where_above(rest, own, -_smallest(own.dtype))
                    rest.sub_(chosen)  # of several largest corners the first gets the gradient
                to_first[corner] += chosen.sum(0) if len(chosen) > 1 else chosen[0]
                torch.sum(chosen, 1, out=to_query[corner])
        return to_first, to_second


def _where_above(gradient: Tensor, values: Tensor, threshold: float) -> Tensor:
    """Return the gradient where ``values`` are above a threshold, and 0 elsewhere.

    This is the backward of ReLU, in one pass. With boolean masks the backward above takes 87 instead of 47 ms.
    """
    return torch.ops.aten.threshold_backward(gradient, values, threshold)


def _smallest(dtype: torch.dtype) -> float:
    """Return the smallest positive number."""
    found = torch.finfo(dtype)
    return found.smallest_normal * found.eps


def _queries_at_once(first: Tensor) -> int:
    """All queries, but on a CPU only as many as fit into its cache."""
    own = first[0].numel()
    return max(1, BLOCK // own) if first.device.type == "cpu" else 2**62
