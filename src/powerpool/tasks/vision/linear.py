"""Linear classifiers: the solution of ridge regression, the training of softmax regression, and their scores.

The weights of both are linear combinations of training vectors. Where vectors are longer than there are images, a
classifier has one coefficient for each image instead of one for each of D = C'(C'+1)/2 numbers, and needs only the dot
products of the images: the result is the same up to round-off. See :mod:`powerpool.tasks.vision.systems`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.runs.folder import load_state, save_state
from powerpool.runs.record import Score
from powerpool.tasks.base import Watch, ignore_progress, round_curve
from powerpool.tasks.vision.config import HeadConfig

MOMENTUM = 0.9
CONVERGED = 0.5
"""A training has converged at the first epoch whose validation accuracy is this near to the best, in points."""
SCALES = tuple(2 ** (step / 4) for step in range(-8, 41))
"""Temperatures to choose from: 1/4 to 1024."""


@dataclass
class LinearFit:
    """A linear classifier, and the curves of its training."""

    weight: Tensor
    """(r, classes), for rows that are not centred: vectors, or dot products with the training images."""
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

    def logits(self, rows: Tensor) -> Tensor:  # shape: (m, r) -> (m, classes)
        """Return the logits of rows."""
        return torch.addmm(self.bias, rows.to(self.weight.dtype), self.weight)

    def note_validation(self, found: Score) -> None:
        """Append loss and accuracy to the curves."""
        self.validation_loss.append(found.loss)
        self.validation_value.append(found.value)


def first_near_best(values: Sequence[float]) -> int | None:
    """Return the first epoch, counted from 1, whose accuracy is within half a point of the best.

    Example:
        >>> first_near_best([50.0, 89.7, 90.0])
        2
    """
    return next((number for number, value in enumerate(values, 1) if value >= max(values) - CONVERGED), None)


def solve_ridge(
    make_matrix: Callable[[], Tensor], right: Tensor, penalties: Sequence[float], watch: Watch = ignore_progress
) -> list[Tensor]:  # shape: () -> (s, s), (s, classes)
    r"""Return :math:`(M + p I)^{-1} R` for each penalty p, in float64.

    An eigendecomposition would serve all penalties, but takes as long as 20 Cholesky factorizations (5.9 and 0.25 s at
    s = 2000). The factor overwrites M.

    Args:
        make_matrix: returns the positive semi-definite M, which is overwritten.
        right: R.
        penalties: on the squared norm of the weights, above 0.
        watch: called with the number of penalties.
    """
    found: list[Tensor] = []
    watch("penalties of the classifier", 0, len(penalties))
    for penalty in penalties:
        # No name here refers to a matrix, so that it is freed before the next one is made.
        solved = _solve_by_factor(make_matrix(), right, penalty)
        if solved is None:  # the penalty is below the round-off of a singular M
            solved = _solve_by_eigenvalues(make_matrix(), right, penalty)
        found.append(solved)
        watch("penalties of the classifier", len(found), len(penalties))
    return found


def _solve_by_factor(matrix: Tensor, right: Tensor, penalty: float) -> Tensor | None:
    """Solve by a Cholesky factor, which overwrites the matrix; None if there is none."""
    # LAPACK needs columns one after the other, as the transpose has them: neither call below copies the matrix.
    matrix, failed = matrix.mT, torch.empty((), dtype=torch.int32)
    matrix.diagonal().add_(penalty)
    torch.linalg.cholesky_ex(matrix, out=(matrix, failed))
    if failed:
        return None
    half = torch.linalg.solve_triangular(matrix, right, upper=False)
    return torch.linalg.solve_triangular(matrix.mT, half, upper=True)


def _solve_by_eigenvalues(matrix: Tensor, right: Tensor, penalty: float) -> Tensor:
    """Solve in the range of the matrix only: the right side has nothing but round-off outside of it."""
    values, U = torch.linalg.eigh(matrix)
    is_zero = values <= values[-1].clamp_min(0) * len(values) * torch.finfo(values.dtype).eps
    inverse = torch.where(is_zero, 0.0, 1 / (values.clamp_min(0) + penalty))
    return U @ (inverse[:, None] * (U.T @ right))


def centred_targets(targets: Tensor, classes: int) -> tuple[Tensor, Tensor]:  # shape: (n,) -> (n, classes), (classes,)
    """Return one-hot rows minus their mean, and the mean, in float64."""
    one_hot = nn.functional.one_hot(targets, classes).double()
    share = one_hot.mean(0)
    return one_hot.sub_(share), share


# ---- softmax regression ----------------------------------------------------------------------------------------------


class Rows(ABC):
    """What softmax regression is trained on: rows whose products with the weights are the logits, up to the bias."""

    count: int
    """Number of images."""
    width: int
    """Length of a row."""
    factor: float
    """Of the rows; the weights of rows without it are multiplied by it."""
    dtype: torch.dtype

    @abstractmethod
    def take(self, part: Tensor) -> Tensor:  # shape: (b,) -> (b, width)
        """Return the centred rows of some images, multiplied by the factor."""

    @abstractmethod
    def gradient(self, part: Tensor, rows: Tensor, slopes: Tensor) -> Tensor:  # shape: -> (width, classes)
        """Return the gradient of the weights, from that of the logits of a batch."""


class VectorRows(Rows):
    """Centred vectors themselves."""

    def __init__(
        self, take: Callable[[Tensor], Tensor], count: int, mean: Tensor, scale: float
    ) -> None:  # shape: (b,) -> (b, D), _, (D,)
        self.count, self.width, self.factor, self.dtype = count, len(mean), scale, mean.dtype
        self._take, self._mean = take, mean

    def take(self, part: Tensor) -> Tensor:
        return (self._take(part) - self._mean).mul_(self.factor)

    def gradient(self, part: Tensor, rows: Tensor, slopes: Tensor) -> Tensor:
        return rows.T @ slopes


class GramRows(Rows):
    """Dot products of centred vectors with all training vectors, whose combinations the weights are.

    A step changes the coefficients of the images of its batch only, apart from momentum and weight decay.
    """

    def __init__(self, gram: Tensor, scale: float) -> None:  # shape: (n, n)
        self.count, self.width, self.factor, self.dtype = len(gram), len(gram), scale**2, gram.dtype
        self._gram = gram

    def take(self, part: Tensor) -> Tensor:
        return self._gram[part].mul_(self.factor)

    def gradient(self, part: Tensor, rows: Tensor, slopes: Tensor) -> Tensor:
        return torch.zeros(self.width, slopes.shape[1], dtype=slopes.dtype).index_add_(0, part, slopes)


@dataclass
class Descent:
    """A classifier while it is trained: gradient descent with momentum and weight decay."""

    fit: LinearFit
    speed: Tensor
    bias_speed: Tensor
    penalty: float

    @classmethod
    def start(cls, rows: Rows, classes: int, penalty: float) -> Descent:
        """Start from zeros."""
        weight, bias = torch.zeros(rows.width, classes, dtype=rows.dtype), torch.zeros(classes, dtype=rows.dtype)
        return cls(LinearFit(weight, bias), torch.zeros_like(weight), torch.zeros_like(bias), penalty)

    def step(self, rows: Rows, part: Tensor, batch: Tensor, targets: Tensor, rate: float) -> float:
        """Take a step on a batch, and return its mean loss."""
        scores = self.fit.logits(batch)
        slopes = scores.softmax(1)
        slopes[torch.arange(len(part)), targets] -= 1
        slopes /= len(part)
        change = rows.gradient(part, batch, slopes).add_(self.fit.weight, alpha=self.penalty)
        self.speed.mul_(MOMENTUM).add_(change)
        self.bias_speed.mul_(MOMENTUM).add_(slopes.sum(0))
        self.fit.weight.sub_(self.speed, alpha=rate)
        self.fit.bias.sub_(self.bias_speed, alpha=rate)
        return float(nn.functional.cross_entropy(scores, targets))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        return {**vars(self.fit), "speed": self.speed, "bias_speed": self.bias_speed}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.speed, self.bias_speed = state["speed"], state["bias_speed"]
        self.fit = LinearFit(**{name: state[name] for name in vars(self.fit)})


def train_softmax(
    rows: Rows,
    targets: Tensor,  # shape: (n,)
    classes: int,
    head: HeadConfig,
    penalties: Sequence[float],
    seed: int,
    *,
    validate: Callable[[Sequence[LinearFit]], Sequence[Score]] | None = None,
    checkpoint: Path | None = None,
    watch: Watch = ignore_progress,
) -> list[LinearFit]:
    """Train softmax regression by gradient descent with momentum; the learning rate falls to 0 as a cosine.

    The classifiers of all penalties see the same batches, so that rows are read once. Their weights are for centred
    rows without the factor.

    Args:
        rows: the training images.
        targets: their classes.
        classes: number of classes.
        head: epochs, batch size, learning rate.
        penalties: weight decay of the weights, not of the bias.
        seed: of the order of the images.
        validate: returns validation scores for the curves, after every epoch.
        checkpoint: file that the state is saved to after every epoch, and resumed from.
        watch: called with the number of batches.
    """
    order = torch.Generator().manual_seed(seed)
    trained, first = [Descent.start(rows, classes, penalty) for penalty in penalties], 0
    if checkpoint is not None and checkpoint.exists():
        stored = load_state(checkpoint)
        first = stored["epoch"]
        order.set_state(stored["order"])
        for one, state in zip(trained, stored["trained"], strict=True):
            one.restore(state)
    batches = math.ceil(rows.count / head.batch_size)
    for epoch in range(first, head.epochs):
        totals = [0.0] * len(trained)
        for number, part in enumerate(torch.randperm(rows.count, generator=order).split(head.batch_size)):
            done, total = epoch * batches + number, head.epochs * batches
            rate = head.learning_rate * (1 + math.cos(math.pi * done / total)) / 2
            batch = rows.take(part)
            for place, one in enumerate(trained):
                totals[place] += one.step(rows, part, batch, targets[part], rate) * len(part)
            watch("batches of the classifier", done + 1, total)
        scores = None if validate is None else validate([_without_factor(one.fit, rows) for one in trained])
        for place, one in enumerate(trained):
            one.fit.train_loss.append(totals[place] / rows.count)
            if scores is not None:
                one.fit.note_validation(scores[place])
        if checkpoint is not None:
            state = {"epoch": epoch + 1, "order": order.get_state(), "trained": [one.state() for one in trained]}
            save_state(checkpoint, state)
    return [_without_factor(one.fit, rows) for one in trained]


def _without_factor(fit: LinearFit, rows: Rows) -> LinearFit:
    return replace(fit, weight=rows.factor * fit.weight)


# ---- scores ----------------------------------------------------------------------------------------------------------


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
