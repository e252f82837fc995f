"""Linear classifiers of pooled vectors: ridge regression and softmax regression.

The weights of ridge regression are linear combinations of training vectors, and so are those of softmax regression that
starts from 0 and is trained by gradient descent with momentum and weight decay. Training therefore runs in coordinates
of the space that the n vectors span: at most n numbers per image instead of D = C'(C'+1)/2, with the same dot products,
hence the same classifier up to round-off. Vectors are centred: the mean of the training vectors is moved into the bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from powerpool.runs.record import Score
from powerpool.tasks.base import round_curve
from powerpool.tasks.vision.config import HeadConfig

MOMENTUM = 0.9
CONVERGED = 0.5
"""A training has converged at the first epoch whose validation accuracy is this near to the best, in points."""
BLOCK = 4096
"""Columns of vectors that are multiplied at once in float64: a copy of all would be twice as large as the vectors."""
SCALES = tuple(2 ** (step / 4) for step in range(-8, 41))
"""Temperatures to choose from: 1/4 to 1024."""


@dataclass(frozen=True)
class Span:
    r"""Coordinates in the space that vectors :math:`V` (n, D) span, in which dot products are the same.

    .. math:: V V^T = U S U^T, \qquad B = V^T U S^{-1/2} \in \mathbb{R}^{D \times r}, \qquad x \mapsto x B

    Directions whose share of S is round-off are left out. Products are summed in float64: vectors of images are nearly
    parallel, and in float32 their differences would be of the size of the round-off. Where D is at most n, vectors are
    their own coordinates.

    Example:
        >>> import torch
        >>> vectors = torch.rand(5, 100, dtype=torch.float64)
        >>> span = Span.of(vectors)
        >>> torch.allclose(span.coordinates @ span.coordinates.T, vectors @ vectors.T)
        True
    """

    vectors: Tensor
    mixing: Tensor | None
    """U S^(-1/2), (n, r), in float64; None where vectors are their own coordinates."""
    coordinates: Tensor
    """Coordinates of the vectors themselves: U S^(1/2), (n, r)."""

    @classmethod
    def of(cls, vectors: Tensor) -> Span:  # shape: (n, D)
        """Compute the span of the rows."""
        if vectors.shape[1] <= len(vectors):
            return cls(vectors, None, vectors)
        values, U = torch.linalg.eigh(_products(vectors, vectors))
        kept = values > values[-1].clamp_min(0) * len(values) * torch.finfo(values.dtype).eps
        root, U = values[kept].sqrt(), U[:, kept]
        return cls(vectors, U / root, (U * root).to(vectors.dtype))

    def project(self, others: Tensor) -> Tensor:  # shape: (m, D) -> (m, r)
        """Return the coordinates of the projections of other vectors onto the span."""
        if self.mixing is None:
            return others
        return (_products(others, self.vectors) @ self.mixing).to(others.dtype)

    def weights(self, weights: Tensor) -> Tensor:  # shape: (r, classes) -> (classes, D)
        """Convert weights for coordinates into weights for vectors."""
        if self.mixing is None:
            return weights.T
        shares = (self.mixing @ weights.double()).T  # (classes, n)
        parts = [shares @ part.double() for part in self.vectors.split(BLOCK, 1)]
        return torch.cat(parts, 1).to(weights.dtype)


def _products(ones: Tensor, others: Tensor) -> Tensor:  # shape: (n, D), (m, D) -> (n, m)
    """Return all dot products, in float64."""
    found = torch.zeros(len(ones), len(others), dtype=torch.float64)
    for one, other in zip(ones.split(BLOCK, 1), others.split(BLOCK, 1), strict=True):
        found.addmm_(one.double(), other.double().T)
    return found


@dataclass
class LinearFit:
    """A linear classifier, and the curves of its training."""

    weight: Tensor
    """(r, classes), for coordinates that are not centred."""
    bias: Tensor
    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    validation_value: list[float] = field(default_factory=list)
    """Accuracy in % after every epoch; ridge regression, which has no epochs, has one value."""

    @property
    def converged(self) -> int | None:
        """See :func:`first_near_best`; None without epochs."""
        return first_near_best(self.validation_value) if self.train_loss else None

    @property
    def curves(self) -> dict[str, tuple[float | None, ...]]:
        """The curves that a record keeps; empty without epochs."""
        names = ("train_loss", "validation_loss", "validation_value") if self.train_loss else ()
        return {name: round_curve(getattr(self, name)) for name in names if getattr(self, name)}

    def logits(self, vectors: Tensor) -> Tensor:  # shape: (m, r) -> (m, classes)
        """Return the logits of coordinates."""
        return torch.addmm(self.bias, vectors, self.weight)

    def note_validation(self, scores: Tensor, targets: Tensor) -> None:
        """Append loss and accuracy to the curves."""
        found = score(scores, targets)
        self.validation_loss.append(found.loss)
        self.validation_value.append(found.value)


def first_near_best(values: Sequence[float]) -> int | None:
    """Return the first epoch, counted from 1, whose accuracy is within half a point of the best.

    Example:
        >>> first_near_best([50.0, 89.7, 90.0])
        2
    """
    return next((number for number, value in enumerate(values, 1) if value >= max(values) - CONVERGED), None)


def fit(
    vectors: Tensor,  # shape: (n, r)
    targets: Tensor,  # shape: (n,)
    classes: int,
    head: HeadConfig,
    penalties: Sequence[float],
    seed: int,
    validation: tuple[Tensor, Tensor] | None = None,
) -> list[LinearFit]:
    """Train a classifier for each penalty.

    Args:
        vectors: coordinates of the training images.
        targets: their classes.
        classes: number of classes.
        head: the kind of classifier and its settings.
        penalties: on the weights, not on the bias.
        seed: of the order of the images.
        validation: coordinates and classes of other images, for the curves only.
    """
    mean = vectors.mean(0)
    centred = vectors - mean
    if head.kind == "ridge":
        found = _fit_ridge(centred, targets, classes, penalties)
    else:
        moved = None if validation is None else (validation[0] - mean, validation[1])
        found = [_fit_softmax(centred, targets, classes, head, penalty, seed, moved) for penalty in penalties]
    for one in found:
        one.bias = one.bias - mean @ one.weight
        if head.kind == "ridge" and validation is not None:
            one.note_validation(one.logits(validation[0]), validation[1])
    return found


def _fit_ridge(vectors: Tensor, targets: Tensor, classes: int, penalties: Sequence[float]) -> list[LinearFit]:
    r"""Regression to centred one-hot columns Y, for all penalties from one eigendecomposition of the smaller matrix.

    .. math:: W = (X^T X + p I)^{-1} X^T Y = X^T (X X^T + p I)^{-1} Y

    Not scikit-learn's Ridge, which solves once per penalty.
    """
    rows = vectors.double()
    one_hot = nn.functional.one_hot(targets, classes).double()
    share = one_hot.mean(0)
    is_wide = len(rows) < rows.shape[1]
    right = (one_hot - share) if is_wide else rows.T @ (one_hot - share)
    values, U = torch.linalg.eigh(rows @ rows.T if is_wide else rows.T @ rows)
    found = []
    for penalty in penalties:
        solved = U @ ((U.T @ right) / (values.clamp_min(0) + penalty)[:, None])
        weight = rows.T @ solved if is_wide else solved
        found.append(LinearFit(weight.to(vectors.dtype), share.to(vectors.dtype)))
    return found


def _fit_softmax(
    vectors: Tensor,
    targets: Tensor,
    classes: int,
    head: HeadConfig,
    penalty: float,
    seed: int,
    validation: tuple[Tensor, Tensor] | None,
) -> LinearFit:
    """Gradient descent with momentum; the learning rate falls to 0 as a cosine."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.zeros(vectors.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    groups = [{"params": [weight], "weight_decay": penalty}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=head.learning_rate, momentum=MOMENTUM)
    steps = head.epochs * math.ceil(len(vectors) / head.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    found = LinearFit(weight, bias)
    scaled = head.scale * vectors
    for _ in range(head.epochs):
        total = 0.0
        for part in torch.randperm(len(scaled), generator=generator).split(head.batch_size):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(torch.addmm(bias, scaled[part], weight), targets[part])
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(part)
        found.train_loss.append(total / len(scaled))
        if validation is not None:
            with torch.no_grad():
                found.note_validation(torch.addmm(bias, head.scale * validation[0], weight), validation[1])
    found.weight, found.bias = head.scale * weight.detach(), bias.detach()
    return found


def temperature(scores: Tensor, targets: Tensor) -> float:
    """Return the factor for which the softmax of scores has the lowest cross-entropy.

    Scores of ridge regression are between 0 and 1, so that their softmax does not show confidence.
    """
    return min(SCALES, key=lambda scale: float(nn.functional.cross_entropy(scale * scores, targets)))


def score(scores: Tensor, targets: Tensor) -> Score:  # shape: (n, classes), (n,)
    """Return accuracy in % and mean cross-entropy."""
    right = (scores.argmax(-1) == targets).double().mean()
    return Score(100 * float(right), float(nn.functional.cross_entropy(scores, targets)))


def top_five(scores: Tensor, targets: Tensor) -> float:  # shape: (n, classes), (n,)
    """Return the share in % of samples whose class is among the five with the highest scores."""
    best = scores.topk(min(5, scores.shape[-1]), dim=-1).indices
    return 100 * float((best == targets[:, None]).any(-1).double().mean())
