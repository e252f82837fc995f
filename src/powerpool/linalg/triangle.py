"""The upper triangle of symmetric matrices, row by row, with the weights that keep dot products."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Triangle(NamedTuple):
    """Where the entries of the triangle are in a flattened matrix, and their weights."""

    channels: int
    place: Tensor  # shape: (L,), L = C (C + 1) / 2
    weight: Tensor  # shape: (L,)

    @classmethod
    def of(cls, channels: int, like: Tensor) -> Triangle:
        """Return that of matrices with so many channels, on the device of ``like`` and with weights of its dtype."""
        row, column = torch.triu_indices(channels, channels, device=like.device)
        weight = weights_of(row == column, like)
        # In place, as new memory takes most of the time of 2048 channels. Not cached: tensors made in inference mode or
        # under a dispatch mode must not be used outside of it.
        return cls(channels, column.add_(row, alpha=channels), weight)

    def new_rows(self, batch: int) -> Tensor:  # shape: (B, 1, L)
        """Return uninitialized memory for the entries of a batch."""
        return self.weight.new_empty(batch, 1, len(self.weight))

    def read(self, matrix: Tensor, out: Tensor) -> None:  # shape: (B, C, C), (B, 1, L)
        """Write the entries of matrices into ``out``, without weights."""
        torch.gather(matrix.view(len(matrix), 1, self.channels**2), -1, self.place.expand(out.shape), out=out)

    def matrix_of(self, entries: Tensor) -> Tensor:  # shape: (B, 1, L) -> (B, C, C)
        """Return matrices with these entries, and 0 below the diagonal."""
        flat = entries.new_zeros(len(entries), 1, self.channels**2)
        filled = flat.scatter_(-1, self.place.expand(entries.shape), entries)
        return filled.view(len(entries), self.channels, self.channels)


def weights_of(diagonal: Tensor, like: Tensor) -> Tensor:
    """Return 1 on the diagonal and sqrt 2 elsewhere."""
    return like.new_full(diagonal.shape, math.sqrt(2.0)).masked_fill_(diagonal, 1.0)
