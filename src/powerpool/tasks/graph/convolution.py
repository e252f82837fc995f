"""Sums over neighbours as sparse products, for GIN convolutions without a message for each edge."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn


class Adjacency:
    r"""The adjacency matrix A of a batch in CSR form, :math:`A_{vu} = 1` for an edge from u to v.

    Args:
        edge_index: sources and targets, ``(2, edges)``. Edges that are sorted by target, as those of a
            :class:`powerpool.data.GraphBatch` are, need no sort.
        nodes: the number of nodes.
        symmetric: whether every edge is there in both directions, so that :math:`A^T = A`. Otherwise a backward pass
            sorts the edges by source, once for each batch.
    """

    def __init__(self, edge_index: Tensor, nodes: int, *, symmetric: bool = False) -> None:
        source, target = edge_index
        if bool((target[1:] < target[:-1]).any()):
            order = target.argsort(stable=True)
            source, target = source[order], target[order]
        self.source, self.target, self.nodes, self.symmetric = source, target, nodes, symmetric

    @cached_property
    def matrix(self) -> Tensor:  # shape: (nodes, nodes), CSR
        """A."""
        return self._csr(self.target, self.source)

    @cached_property
    def transpose(self) -> Tensor:  # shape: (nodes, nodes), CSR
        """The transpose of A."""
        if self.symmetric:
            return self.matrix
        order = self.source.argsort(stable=True)
        return self._csr(self.source[order], self.target[order])

    def _csr(self, rows: Tensor, columns: Tensor) -> Tensor:
        ends = rows.bincount(minlength=self.nodes).cumsum(0)
        values = torch.ones(len(rows), device=rows.device)
        size = (self.nodes, self.nodes)
        starts = nn.functional.pad(ends, (1, 0))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state", UserWarning)
            return torch.sparse_csr_tensor(starts, columns, values, size, check_invariants=False)


def neighbour_sum(x: Tensor, adjacency: Adjacency) -> Tensor:  # shape: (nodes, channels) -> (nodes, channels)
    r"""Return :math:`(A + I)\, x`, each node and its neighbours added up."""
    found: Tensor = _NeighbourSum.apply(x, adjacency, False)
    return found


def gin_convolution(mlp: nn.Sequential, x: Tensor, adjacency: Adjacency) -> Tensor:
    r"""Return :math:`\operatorname{MLP}((A + I)\, x)`, as ``GINConv`` with eps = 0 of PyTorch Geometric does.

    The first linear layer W and the sum commute, :math:`((A + I) x) W^T = (A + I)(x W^T)`, so the narrower side is
    summed.
    """
    first, *rest = mlp
    assert isinstance(first, nn.Linear)
    if first.in_features < first.out_features:
        x = first(neighbour_sum(x, adjacency))
    else:
        x = neighbour_sum(nn.functional.linear(x, first.weight), adjacency) + first.bias
    for module in rest:
        x = module(x)
    return x


def is_symmetric(edge_index: Tensor) -> bool:  # shape: (2, edges)
    """Whether every edge, of edges that do not repeat, is there in both directions.

    Example:
        >>> is_symmetric(torch.tensor([[0, 1], [1, 0]])), is_symmetric(torch.tensor([[0, 1], [1, 2]]))
        (True, False)
    """
    if edge_index.shape[1] == 0:
        return True
    source, target = edge_index
    nodes = int(edge_index.max()) + 1
    return torch.equal((target * nodes + source).sort().values, (source * nodes + target).sort().values)


class _NeighbourSum(torch.autograd.Function):
    """(A + I) x, or with the transpose of A. The backward pass of ``torch.sparse.mm`` sorts the edges every time."""

    @staticmethod
    def forward(x: Tensor, adjacency: Adjacency, transposed: bool) -> Tensor:
        matrix = adjacency.transpose if transposed else adjacency.matrix
        return torch.addmm(x, matrix if matrix.dtype == x.dtype else matrix.to(x.dtype), x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Adjacency, bool], output: Tensor) -> None:
        _, ctx.adjacency, ctx.transposed = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _NeighbourSum.apply(gradients[0], ctx.adjacency, not ctx.transposed), None, None
