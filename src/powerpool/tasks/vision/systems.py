r"""The systems of equations that linear classifiers on frozen features are computed from.

With N images, vectors of D numbers, centred rows X (N, D) and centred one-hot columns Y:

- :class:`Gram`: the N x N dot products of all images, where N < D:
  :math:`W = X^T (X X^T + p I)^{-1} Y`. Softmax regression is trained on the same matrix.
- :class:`NormalEquations`: the D x D matrix :math:`X^T X`, summed over blocks of images, where D <= N. If neither
  matrix fits into memory, W is restricted to a block Krylov space of :math:`X^T Y`, as by steps of conjugate gradients.
- :class:`Minibatches`: softmax regression on the vectors of one batch at a time.

All of them read vectors in blocks from :class:`~powerpool.tasks.vision.vectors.Vectors`, which pools images again where
their vectors do not fit into memory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from powerpool.runs.record import Score
from powerpool.tasks.base import Watch, ignore_progress
from powerpool.tasks.vision.config import HeadConfig
from powerpool.tasks.vision.linear import (
    GramRows,
    LinearFit,
    VectorRows,
    centred_targets,
    score,
    solve_ridge,
    train_softmax,
)
from powerpool.tasks.vision.vectors import COLUMNS, Vectors, products

NEW = 1e-5
"""Directions of a Krylov step that are shorter than this, relative to the longest, are round-off."""


@dataclass(frozen=True, eq=False)
class Samples:
    """Vectors and classes of two splits: classifiers are trained on the first, or on both, and scored on the second."""

    vectors: Vectors
    targets: tuple[Tensor, Tensor]
    classes: int
    block: int
    """Images whose vectors are read at once."""
    watch: Watch = ignore_progress

    def labels(self, splits: int) -> Tensor:
        """Return the classes of the first splits."""
        return torch.cat(self.targets[:splits])


class System(ABC):
    """How classifiers are computed."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    @abstractmethod
    def fit(
        self, splits: int, head: HeadConfig, penalties: Sequence[float], seed: int, checkpoint: Path | None = None
    ) -> list[LinearFit]:
        """Train a classifier for each penalty.

        Args:
            splits: 1 to train on the first split, 2 on both.
            head: the kind of classifier and its settings.
            penalties: on the weights, not on the bias.
            seed: of the order of the images.
            checkpoint: file for the state of a training that takes long.
        """

    @abstractmethod
    def weights(self, found: LinearFit) -> tuple[Tensor, Tensor]:  # shapes: (classes, D), (classes,)
        """Return weight and bias for vectors."""

    def scores(self, fits: Sequence[LinearFit]) -> list[Tensor]:  # shapes: (n, classes)
        """Return the logits of the second split by classifiers that were trained on the first."""
        parts: list[list[Tensor]] = [[] for _ in fits]
        for _, vectors in self.samples.vectors.blocks(self.samples.block, len(self.samples.targets[0])):
            rows = self._coordinates(vectors)
            for part, one in zip(parts, fits, strict=True):
                part.append(one.logits(rows))
        return [torch.cat(part) for part in parts]

    def _coordinates(self, vectors: Tensor) -> Tensor:  # shape: (b, D) -> (b, r)
        return vectors

    def release(self) -> None:  # noqa: B027  # most systems have nothing to free
        """Free the memory of what the next training computes again."""

    def validate(self, fits: Sequence[LinearFit]) -> list[Score]:
        """Return the scores on the second split of classifiers that were trained on the first."""
        return [score(logits, self.samples.targets[1]) for logits in self.scores(fits)]

    def _for_vectors(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:  # shape: (classes, D), (classes,)
        """Add the common part that was subtracted from the vectors."""
        origin = self.samples.vectors.origin
        return weight.float(), (bias.double() - weight.double() @ origin.double()).float()


class Gram(System):
    """Dot products of all images of both splits, computed once for the selection and the final classifier."""

    def __init__(self, samples: Samples) -> None:
        super().__init__(samples)
        vectors = samples.vectors
        self.matrix = torch.empty(len(vectors), len(vectors), dtype=vectors.dtype)
        samples.watch("products of images", 0, len(vectors))
        for rows, ones in vectors.blocks(samples.block):
            for columns, others in chain(vectors.blocks(samples.block, end=rows.start), [(rows, ones)]):
                found = products(ones, others, vectors.dtype)
                self.matrix[rows, columns] = found
                self.matrix[columns, rows] = found.T
            samples.watch("products of images", rows.stop, len(vectors))

    def fit(
        self, splits: int, head: HeadConfig, penalties: Sequence[float], seed: int, checkpoint: Path | None = None
    ) -> list[LinearFit]:
        targets, classes, watch = self.samples.labels(splits), self.samples.classes, self.samples.watch
        if head.kind == "ridge":
            right, share = centred_targets(targets, classes)
            solved = solve_ridge(partial(self._centred, len(targets)), right, penalties, watch)
            return [LinearFit(one - one.mean(0), share) for one in solved]
        rows = GramRows(self._centred(len(targets)).float(), head.scale)
        validate = (lambda fits: self.validate([_centre(one) for one in fits])) if splits == 1 else None
        fits = train_softmax(rows, targets, classes, head, penalties, seed, validate=validate, watch=watch)
        return [_centre(one) for one in fits]

    def scores(self, fits: Sequence[LinearFit]) -> list[Tensor]:
        count = len(self.samples.targets[0])
        mean = self.matrix[:count, :count].mean(0, dtype=torch.float64)
        rows = self.matrix[count:, :count] - mean
        return [one.logits(rows) for one in fits]

    def weights(self, found: LinearFit) -> tuple[Tensor, Tensor]:
        vectors, count = self.samples.vectors, len(found.weight)
        weight = torch.zeros(self.samples.classes, vectors.width, dtype=torch.float64)
        mean = torch.zeros(vectors.width, dtype=torch.float64)
        for part, rows in vectors.blocks(self.samples.block, end=count):
            shares = found.weight[part].T.to(vectors.dtype)
            for own, columns in zip(weight.split(COLUMNS, 1), rows.split(COLUMNS, 1), strict=True):
                own += shares @ columns.to(vectors.dtype)
            mean += rows.sum(0, dtype=torch.float64) / count
            self.samples.watch("images for the weights", part.stop, count)
        return self._for_vectors(weight, found.bias.double() - weight @ mean)

    def _centred(self, count: int) -> Tensor:  # shape: (count, count)
        """Return the dot products of the first images minus their mean, in float64."""
        found = self.matrix[:count, :count].to(torch.float64, copy=True)
        mean = found.mean(0)
        return found.sub_(mean - mean.mean()).sub_(mean[:, None])


def _centre(found: LinearFit) -> LinearFit:
    """Return coefficients for dot products with vectors that are not centred."""
    return replace(found, weight=found.weight - found.weight.mean(0))


class NormalEquations(System):
    """Sums over images for ridge regression on the vectors, or on their coordinates in a subspace.

    Args:
        samples: the vectors.
        subspace: the size of the subspace; None for the space of the vectors.
    """

    def __init__(self, samples: Samples, subspace: Subspace | None = None) -> None:
        super().__init__(samples)
        self.subspace = subspace
        self.basis: Tensor | None = None  # shape: (D, r)
        self.sums: list[Sums] = []

    def fit(
        self, splits: int, head: HeadConfig, penalties: Sequence[float], seed: int, checkpoint: Path | None = None
    ) -> list[LinearFit]:
        own = self._sum_splits(splits)
        counts, by_class = sum(one.counts for one in own), sum(one.by_class for one in own)
        assert isinstance(counts, Tensor)  # there is at least one split
        assert isinstance(by_class, Tensor)
        share, mean = counts / counts.sum(), by_class.sum(0) / counts.sum()
        right = by_class.T - counts.sum() * mean[:, None] * share

        def centred() -> Tensor:
            found = own[0].squares.clone()
            for other in own[1:]:
                found += other.squares
            return found.addr_(mean, mean, alpha=-float(counts.sum()))

        solved = solve_ridge(centred, right, penalties, self.samples.watch)
        return [LinearFit(weight, share - mean @ weight) for weight in solved]

    def weights(self, found: LinearFit) -> tuple[Tensor, Tensor]:
        weight = found.weight.T if self.basis is None else found.weight.T.float() @ self.basis.T
        return self._for_vectors(weight, found.bias)

    def release(self) -> None:
        if self.subspace is not None:
            self.sums.clear()
            self.basis = None

    def _sum_splits(self, splits: int) -> list[Sums]:
        """Return the sums of the first splits; a subspace depends on the images that are trained on."""
        samples = self.samples
        if self.subspace is not None and len(self.sums) != splits:
            self.release()
            self.basis = krylov_basis(samples, self.subspace, splits)
        for split in range(len(self.sums), splits):
            first = sum(map(len, samples.targets[:split]))
            self.sums.append(self._sum_split(first, samples.targets[split]))
        return self.sums[:splits]

    def _sum_split(self, first: int, targets: Tensor) -> Sums:
        samples, basis = self.samples, self.basis
        found = Sums.zeros(samples.vectors.width if basis is None else basis.shape[1], samples.classes)
        dtype = samples.vectors.dtype if basis is None else torch.float64
        for part, rows in samples.vectors.blocks(samples.block, first, first + len(targets)):
            found.add(self._coordinates(rows), targets[part.start - first : part.stop - first], dtype)
            samples.watch("sums over images", part.stop, len(samples.vectors))
        return found

    def _coordinates(self, vectors: Tensor) -> Tensor:
        return vectors if self.basis is None else vectors @ self.basis


@dataclass(eq=False)
class Sums:
    """Sums over the images of a split, in float64."""

    squares: Tensor
    """(r, r): of the outer products of rows."""
    by_class: Tensor
    """(classes, r): of rows."""
    counts: Tensor
    """(classes,): of images."""

    @classmethod
    def zeros(cls, width: int, classes: int) -> Sums:
        """Start with no images."""
        zeros = partial(torch.zeros, dtype=torch.float64)
        return cls(zeros(width, width), zeros(classes, width), zeros(classes))

    def add(self, rows: Tensor, targets: Tensor, dtype: torch.dtype) -> None:  # shape: (b, r), (b,)
        """Add images; a block is multiplied in ``dtype``."""
        own = rows.to(dtype)
        self.squares += own.T @ own
        self.by_class.index_add_(0, targets, rows.double())
        self.counts += targets.bincount(minlength=len(self.counts))


@dataclass(frozen=True)
class Subspace:
    """The size of a block Krylov space."""

    steps: int
    groups: int = 1
    """Columns for each class: the images of a class are divided into as many groups, each of which adds its sum."""


def krylov_basis(samples: Samples, size: Subspace, splits: int) -> Tensor:  # shape: (D, r)
    r"""Return an orthonormal basis of :math:`Z, (X^T X) Z, \dots, (X^T X)^{s-1} Z` for the first splits.

    The columns of Z are sums of centred vectors over groups of images of one class; with one group for each class,
    :math:`Z = X^T Y`. The best weights in this space are those of s steps of block conjugate gradients, for all
    penalties at once. Three or four steps usually give the accuracy of all dimensions. Principal components, which do
    not depend on the classes, would need many more columns.
    """
    vectors, targets, block, steps = samples.vectors, samples.labels(splits), samples.block, size.steps
    draw = torch.Generator().manual_seed(0)
    labels = targets * size.groups + torch.randint(size.groups, (len(targets),), generator=draw)
    count = samples.classes * size.groups
    sums = torch.zeros(count, vectors.width)
    for part, rows in vectors.blocks(block, end=len(targets)):
        sums.index_add_(0, labels[part], rows)
        samples.watch("images for the subspace", part.stop, steps * len(targets))
    mean = sums.sum(0) / len(targets)
    counts = labels.bincount(minlength=count)
    basis = torch.empty(vectors.width, steps * count)
    last = _orthonormal(sums.sub_(counts[:, None] * mean).T)
    del sums
    width = 0
    for step in range(1, steps + 1):
        basis[:, width : width + last.shape[1]] = last
        width += last.shape[1]
        if step == steps or not last.shape[1]:
            break
        found = torch.zeros_like(last)
        shift = mean @ last
        for part, rows in vectors.blocks(block, end=len(targets)):
            found.addmm_(rows.T, rows @ last - shift)
            samples.watch("images for the subspace", step * len(targets) + part.stop, steps * len(targets))
        longest = found.norm(dim=0).max()
        for _ in range(2):  # once more, as the first time leaves round-off
            found -= basis[:, :width] @ (basis[:, :width].T @ found)
        last = _orthonormal(found, NEW * float(longest))
    return basis[:, :width]


def _orthonormal(columns: Tensor, shortest: float = 0.0) -> Tensor:  # shape: (D, c) -> (D, r)
    """Return an orthonormal basis of columns, without directions that are round-off."""
    values, U = torch.linalg.eigh(products(columns.T, columns.T, torch.float64))
    kept = values > max(float(values[-1]) * NEW**2, shortest**2)
    return columns @ (U[:, kept] / values[kept].sqrt()).float()


class Minibatches(System):
    """Softmax regression on the vectors of a batch at a time."""

    def fit(
        self, splits: int, head: HeadConfig, penalties: Sequence[float], seed: int, checkpoint: Path | None = None
    ) -> list[LinearFit]:
        samples, targets = self.samples, self.samples.labels(splits)
        mean = samples.vectors.mean(len(targets), samples.block)
        rows = VectorRows(samples.vectors.take, len(targets), mean, head.scale)

        def for_rows(found: LinearFit) -> LinearFit:
            return replace(found, bias=found.bias - mean @ found.weight)

        fits = train_softmax(
            rows,
            targets,
            samples.classes,
            head,
            penalties,
            seed,
            validate=(lambda fits: self.validate([for_rows(one) for one in fits])) if splits == 1 else None,
            checkpoint=None if samples.vectors.is_kept else checkpoint,
            watch=samples.watch,
        )
        return [for_rows(one) for one in fits]

    def weights(self, found: LinearFit) -> tuple[Tensor, Tensor]:
        return self._for_vectors(found.weight.T, found.bias)
