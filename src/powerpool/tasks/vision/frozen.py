"""Training on stored features: pooled once for each method, then a linear classifier on identical inputs.

The weights of ridge regression are sums of training vectors, and so are those of softmax regression that starts at 0
and is trained by gradient descent, with momentum and weight decay. So training runs in coordinates of the space that
those n vectors span: at most n numbers a picture instead of D = C'(C'+1)/2, with the same dot products, hence the same
classifier up to round-off. Vectors are centred: the mean of the training vectors is removed, and put into the bias.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.tasks.vision.config import HeadConfig
from powerpool.tasks.vision.model import SetPool

MOMENTUM = 0.9
CONVERGED = 0.5
"""A training has converged at the first epoch whose validation accuracy is this near to the best, in points."""
CURVE_DIGITS = 4
"""Significant digits of curves in a record: they are there to be looked at."""
POOL_BATCH = 8
BLOCK = 4096
"""Columns of vectors that are multiplied at once in float64: a copy of all would be twice as large as the vectors."""
SCALES = tuple(2 ** (step / 4) for step in range(-8, 41))
"""Of scores that are tried: 1/4 to 1024."""


@dataclass(frozen=True)
class Span:
    r"""Coordinates in the space that vectors :math:`V` (n, D) span, in which dot products are the same.

    .. math:: V V^T = U S U^T, \qquad B = V^T U S^{-1/2} \in \mathbb{R}^{D \times r}, \qquad x \mapsto x B

    Directions whose share of S is round-off are left out. Products are summed in float64: vectors of pictures are
    nearly parallel, and in float32 what tells them apart would be of the size of the round-off. Where D is at most n,
    vectors are their own coordinates.

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
    """Of the vectors themselves: U S^(1/2), (n, r)."""

    @classmethod
    def of(cls, vectors: Tensor) -> Span:  # shape: (n, D)
        """The span of the rows."""
        if vectors.shape[1] <= len(vectors):
            return cls(vectors, None, vectors)
        values, U = torch.linalg.eigh(_products(vectors, vectors))
        kept = values > values[-1].clamp_min(0) * len(values) * torch.finfo(values.dtype).eps
        root, U = values[kept].sqrt(), U[:, kept]
        return cls(vectors, U / root, (U * root).to(vectors.dtype))

    def project(self, others: Tensor) -> Tensor:  # shape: (m, D) -> (m, r)
        """The coordinates of other vectors: what of them lies in the span."""
        if self.mixing is None:
            return others
        return (_products(others, self.vectors) @ self.mixing).to(others.dtype)

    def weights(self, weights: Tensor) -> Tensor:  # shape: (r, classes) -> (classes, D)
        """The weights for vectors from those for coordinates."""
        if self.mixing is None:
            return weights.T
        shares = (self.mixing @ weights.double()).T  # (classes, n)
        parts = [shares @ part.double() for part in self.vectors.split(BLOCK, 1)]
        return torch.cat(parts, 1).to(weights.dtype)


def _products(ones: Tensor, others: Tensor) -> Tensor:  # shape: (n, D), (m, D) -> (n, m)
    """All dot products, in float64."""
    found = torch.zeros(len(ones), len(others), dtype=torch.float64)
    for one, other in zip(ones.split(BLOCK, 1), others.split(BLOCK, 1), strict=True):
        found.addmm_(one.double(), other.double().T)
    return found


@dataclass
class Fit:
    """A classifier, and how its training went."""

    weight: Tensor
    """(r, classes), for coordinates as they are."""
    bias: Tensor
    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    validation_value: list[float] = field(default_factory=list)
    """Accuracy in %, after every epoch; of ridge regression, which has none, once."""

    @property
    def converged(self) -> int | None:
        """See :func:`first_near_best`; None where there are no epochs."""
        return first_near_best(self.validation_value) if self.train_loss else None

    def curves(self) -> dict[str, list[float]]:
        """What a record keeps of a training by epochs."""
        if not self.train_loss:
            return {}
        named = {name: getattr(self, name) for name in ("train_loss", "validation_loss", "validation_value")}
        return {name: [_rounded(value) for value in values] for name, values in named.items() if values}

    def logits(self, vectors: Tensor) -> Tensor:  # shape: (m, r) -> (m, classes)
        """Of coordinates of pictures."""
        return torch.addmm(self.bias, vectors, self.weight)


def first_near_best(values: Sequence[float]) -> int | None:
    """When a training has converged: the first epoch, from 1 on, whose accuracy is within half a point of the best.

    Example:
        >>> first_near_best([50.0, 89.7, 90.0])
        2
    """
    return next((number for number, value in enumerate(values, 1) if value >= max(values) - CONVERGED), None)


def descriptors(pool: SetPool, maps: Tensor) -> Tensor:  # shape: (n, K, C, h, w) -> (n, D)
    """The vectors of stored maps, in a few pictures at a time: memory for them is the vectors' own."""
    found = torch.empty(len(maps), pool.out_features)
    with torch.inference_mode():
        for start in range(0, len(maps), POOL_BATCH):
            part = slice(start, start + POOL_BATCH)
            found[part] = pool(maps[part].float())
    return found


def fit(
    vectors: Tensor,  # shape: (n, r)
    targets: Tensor,  # shape: (n,)
    classes: int,
    head: HeadConfig,
    penalties: Sequence[float],
    seed: int,
    validation: tuple[Tensor, Tensor] | None = None,
) -> list[Fit]:
    """A classifier of the kind that the configuration names, for each penalty.

    Args:
        vectors: coordinates of the training pictures.
        targets: their classes.
        classes: how many there are.
        head: the kind and its settings.
        penalties: of the weights and not of the bias.
        seed: of the order of the pictures.
        validation: coordinates and classes of other pictures, to look at.
    """
    mean = vectors.mean(0)
    centred = vectors - mean
    if head.kind == "ridge":
        found = _ridge(centred, targets, classes, penalties)
    else:
        moved = None if validation is None else (validation[0] - mean, validation[1])
        found = [_softmax(centred, targets, classes, head, penalty, seed, moved) for penalty in penalties]
    for one in found:
        one.bias = one.bias - mean @ one.weight
        if head.kind == "ridge" and validation is not None:
            _note(one, one.logits(validation[0]), validation[1])
    return found


def _ridge(vectors: Tensor, targets: Tensor, classes: int, penalties: Sequence[float]) -> list[Fit]:
    r"""Regression to one-hot columns, all penalties from one spectrum.

    .. math:: W = (X^T X + p I)^{-1} X^T Y = X^T (X X^T + p I)^{-1} Y, \qquad Y \text{ centred, too}

    whichever of the two matrices is smaller.
    """
    rows = vectors.double()
    wanted = nn.functional.one_hot(targets, classes).double()
    share = wanted.mean(0)
    wide = len(rows) < rows.shape[1]
    right = (wanted - share) if wide else rows.T @ (wanted - share)
    values, U = torch.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    found = []
    for penalty in penalties:
        solved = U @ ((U.T @ right) / (values.clamp_min(0) + penalty)[:, None])
        weight = rows.T @ solved if wide else solved
        found.append(Fit(weight.to(vectors.dtype), share.to(vectors.dtype)))
    return found


def _softmax(
    vectors: Tensor,
    targets: Tensor,
    classes: int,
    head: HeadConfig,
    penalty: float,
    seed: int,
    validation: tuple[Tensor, Tensor] | None,
) -> Fit:
    """Gradient descent with momentum; the rate falls to 0 as a cosine."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.zeros(vectors.shape[1], classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    groups = [{"params": [weight], "weight_decay": penalty}, {"params": [bias], "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=head.learning_rate, momentum=MOMENTUM)
    steps = head.epochs * math.ceil(len(vectors) / head.batch_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    found = Fit(weight, bias)
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
                _note(found, torch.addmm(bias, head.scale * validation[0], weight), validation[1])
    found.weight, found.bias = head.scale * weight.detach(), bias.detach()
    return found


def temperature(scores: Tensor, targets: Tensor) -> float:
    """What scores are to be multiplied with so that their softmax has the lowest cross-entropy on these pictures.

    Scores of ridge regression are between 0 and 1, whose softmax says nothing of how sure the classifier is.
    """
    return min(SCALES, key=lambda scale: float(nn.functional.cross_entropy(scale * scores, targets)))


def _note(found: Fit, scores: Tensor, targets: Tensor) -> None:
    loss, value = score(scores, targets)
    found.validation_loss.append(loss)
    found.validation_value.append(value)


def score(scores: Tensor, targets: Tensor) -> tuple[float, float]:
    """Cross-entropy and accuracy in %."""
    right = (scores.argmax(-1) == targets).double().mean()
    return float(nn.functional.cross_entropy(scores, targets)), 100 * float(right)


def summary(scores: Tensor, targets: Tensor) -> dict[str, Any]:
    """What a record says of a test: top-1 and top-5 accuracy in %, and which pictures were right."""
    right = scores.argmax(-1) == targets
    among = min(5, scores.shape[-1])
    top5 = (scores.topk(among, dim=-1).indices == targets[:, None]).any(-1)
    return {
        "value": 100 * float(right.double().mean()),
        "top5": 100 * float(top5.double().mean()),
        "count": len(targets),
        "right": bits(right),
    }


def bits(flags: Tensor) -> str:
    """Truth values as hexadecimal digits, the first in the highest bit of the first.

    Example:
        >>> import torch
        >>> bits(torch.tensor([True, False, False, False, True]))
        '88'
    """
    padded = nn.functional.pad(flags.long(), (0, -len(flags) % 8))
    weights = torch.tensor([8, 4, 2, 1])
    return "".join(f"{digit:x}" for digit in (padded.view(-1, 4) * weights).sum(1).tolist())


def _rounded(value: float) -> float:
    return float(f"{value:.{CURVE_DIGITS}g}")
