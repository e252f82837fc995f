"""Pooled vectors of stored maps: kept in memory where they fit, otherwise pooled whenever they are needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from powerpool.tasks.base import Watch, ignore_progress
from powerpool.tasks.vision.model import SetPool

POOL_BATCH = 8
"""Images that are pooled at once."""
KEEP_BLOCK = 64
"""Images between two reports of progress."""
ORIGIN_IMAGES = 64
"""Images whose mean is subtracted from all vectors."""
COLUMNS = 8192
"""Numbers of each vector that are multiplied at once: sums of float32 products grow no longer than this."""
SINGLE = 5e11
"""Multiplications above which products are computed in float32, which takes less than half of the time of float64."""


def descriptors(pool: SetPool, maps: Tensor) -> Tensor:  # shape: (n, K, C, h, w) -> (n, D)
    """Pool stored maps, a few images at a time, so that little memory is needed beside the vectors."""
    found = torch.empty(len(maps), pool.out_features)
    with torch.inference_mode():
        for start in range(0, len(maps), POOL_BATCH):
            part = slice(start, start + POOL_BATCH)
            found[part] = pool(maps[part].float())
    return found


class Vectors:
    """The vectors of the images of some splits, minus one vector near their mean.

    Vectors of images are nearly parallel. Without their common part, products of float32 are exact enough to tell them
    apart.

    Args:
        pool: the pool.
        maps: stored maps of each split, (n, K, C, h, w).
        keep: whether to pool all images now and keep the vectors; otherwise they are pooled at every access.
        watch: called with the number of pooled images.
    """

    def __init__(
        self, pool: SetPool, maps: Sequence[Tensor], *, keep: bool = True, watch: Watch = ignore_progress
    ) -> None:
        self.pool, self.maps, self.width = pool, maps, pool.out_features
        self.ends = list(accumulate(map(len, maps)))
        few = torch.linspace(0, len(maps[0]) - 1, min(ORIGIN_IMAGES, len(maps[0]))).long()
        self._kept: Tensor | None = None
        self.origin = torch.zeros(self.width)
        self.origin = self.take(few).mean(0)
        if keep:
            self._kept = self._pool_all(watch)

    def __len__(self) -> int:
        return self.ends[-1]

    @property
    def is_kept(self) -> bool:
        """Whether the vectors are in memory."""
        return self._kept is not None

    @property
    def dtype(self) -> torch.dtype:
        """Precision of products."""
        return choose_dtype(len(self), self.width)

    def take(self, indices: Tensor) -> Tensor:  # shape: (n,) -> (n, D)
        """Return the vectors of some images, by their place in all splits."""
        if self._kept is not None:
            return self._kept[indices]
        found = torch.empty(len(indices), self.width)
        for part in torch.arange(len(indices)).split(POOL_BATCH):
            maps = torch.stack([self._map(place) for place in indices[part].tolist()])
            found[part] = descriptors(self.pool, maps)
        return found.sub_(self.origin)

    def blocks(self, size: int, start: int = 0, end: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """Iterate over images in their order: places and vectors of at most ``size`` images."""
        end = len(self) if end is None else end
        for first in range(start, end, size):
            part = slice(first, min(first + size, end))
            kept = self._kept
            yield part, self.take(torch.arange(part.start, part.stop)) if kept is None else kept[part]

    def mean(self, end: int, block: int) -> Tensor:  # shape: (D,)
        """Return the mean of the first ``end`` images."""
        total = torch.zeros(self.width, dtype=torch.float64)
        for _, rows in self.blocks(block, end=end):
            total += rows.sum(0, dtype=torch.float64)
        return (total / end).float()

    def _map(self, place: int) -> Tensor:
        split = bisect_right(self.ends, place)
        return self.maps[split][place - self.ends[split]]  # a negative place, from the end of the split

    def _pool_all(self, watch: Watch) -> Tensor:
        found = torch.empty(len(self), self.width)
        watch("pooled images", 0, len(self))
        for part, rows in self.blocks(KEEP_BLOCK):
            found[part] = rows
            watch("pooled images", part.stop, len(self))
        return found


def choose_dtype(images: int, width: int) -> torch.dtype:
    """Return the precision of products: float32 where float64 would take long; sums over blocks are in float64."""
    return torch.float32 if images * width * min(images, width) > SINGLE else torch.float64


def products(ones: Tensor, others: Tensor, dtype: torch.dtype) -> Tensor:  # shape: (n, D), (m, D) -> (n, m)
    """Return all dot products in float64, with sums of at most ``COLUMNS`` numbers in ``dtype``."""
    found = torch.zeros(len(ones), len(others), dtype=torch.float64)
    for one, other in zip(ones.split(COLUMNS, 1), others.split(COLUMNS, 1), strict=True):
        found += one.to(dtype) @ other.to(dtype).T
    return found
