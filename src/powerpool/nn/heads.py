"""Linear classifiers of symmetric matrices, from the matrix or from its factors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from powerpool.checks import require_square
from powerpool.errors import ArgumentError, DTypeError, ShapeError
from powerpool.linalg.precision import at_least_float32, without_autocast
from powerpool.linalg.products import product
from powerpool.solvers import GramFactor
from powerpool.vectorize import to_vector


class DenseHead(nn.Module):
    r"""Logits :math:`\langle W_k, \Psi \rangle + b_k` of symmetric matrices :math:`\Psi` (*, C, C).

    :math:`W_k` is symmetric and stored as its vector, so there are C(C+1)/2 weights per class.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.nn.DenseHead(size=16, classes=10)(torch.eye(16)).shape
        torch.Size([10])
    """

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        if size < 1 or classes < 1:
            raise ArgumentError(f"DenseHead needs size, classes >= 1 (got {size}, {classes}).")
        self.size, self.classes = size, classes
        self.linear = nn.Linear(size * (size + 1) // 2, classes)

    def forward(self, matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*, classes)
        """Return the logits."""
        require_square(matrix)
        if matrix.shape[-1] != self.size:
            raise ShapeError(f"DenseHead of size {self.size} got matrices of shape {tuple(matrix.shape)}.")
        return self.linear(to_vector(matrix))


class FactoredHead(nn.Module):
    r"""A low-rank bilinear classifier of matrices :math:`X T X^T` given by their factors, without C x C matrices.

    .. math:: W_k = \sum_{r \le R} \sigma_r v_{kr} v_{kr}^T, \qquad
              \langle W_k, X T X^T \rangle = \sum_r \sigma_r\, (X^T v_{kr})^T\, T\, (X^T v_{kr})

    with signs :math:`\sigma_r = +1, -1, +1, \dots`, so that a class can have evidence for and against. There are R C
    weights per class instead of C(C+1)/2. :meth:`to_dense` returns the same classifier on matrices.

    Example:
        >>> import torch, powerpool as pp
        >>> factor = pp.gram_factor(torch.rand(2, 512, 49), pp.MaxExp(eta=50))
        >>> pp.nn.FactoredHead(size=512, classes=10, rank=4)(factor).shape
        torch.Size([2, 10])
    """

    signs: Tensor

    def __init__(self, size: int, classes: int, rank: int = 8) -> None:
        super().__init__()
        if size < 1 or classes < 1 or rank < 1:
            raise ArgumentError(f"FactoredHead needs size, classes, rank >= 1 (got {size}, {classes}, {rank}).")
        self.size, self.classes, self.rank = size, classes, rank
        # Two factors of C^(-1/2): W_k then has the scale of nn.Linear, up to the rank.
        self.weight = nn.Parameter(torch.randn(classes, rank, size) * size**-0.5)
        self.bias = nn.Parameter(torch.zeros(classes))
        self.register_buffer("signs", torch.tensor([1.0, -1.0]).repeat((rank + 1) // 2)[:rank], persistent=False)

    def forward(self, factor: GramFactor) -> Tensor:  # shape: (*, C, N), (*, N, N) -> (*, classes)
        """Return the logits."""
        if not isinstance(factor, GramFactor):
            raise DTypeError(
                f"FactoredHead takes a GramFactor, from gram_factor, SecondOrderFactor1d or 2d "
                f"(got {type(factor).__name__}). For matrices use to_dense()."
            )
        if factor.features.shape[-2] != self.size:
            raise ShapeError(
                f"FactoredHead of size {self.size} got features of shape {tuple(factor.features.shape)}, (*, C, N)."
            )
        with without_autocast(factor.features):
            weight = at_least_float32(self.weight).flatten(0, 1)
            projected = product(weight, factor.features)  # (*, classes * rank, N)
            forms = (product(projected, factor.core) * projected).sum(-1)  # (*, classes * rank)
            logits = (forms.unflatten(-1, (self.classes, self.rank)) * self.signs).sum(-1) + self.bias
            return logits.to(self.weight.dtype)

    def dense_weight(self) -> Tensor:  # shape: (classes, C, C)
        """Return the symmetric matrices W_k."""
        return (self.weight.mT * self.signs) @ self.weight

    def to_dense(self) -> DenseHead:
        """Return the same classifier on matrices: equal logits, C(C+1)/2 weights per class."""
        head = DenseHead(self.size, self.classes).to(self.weight)
        with torch.no_grad():
            head.linear.weight.copy_(to_vector(self.dense_weight()))
            head.linear.bias.copy_(self.bias)
        return head

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"size={self.size}, classes={self.classes}, rank={self.rank}"
