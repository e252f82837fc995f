"""Training on stored features: every grid point on validation, then once more on training and validation images.

A grid point is trained on the training images and scored on the validation images, for every penalty. The best point
and penalty are trained again on both together. No choice depends on the test images.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from powerpool.errors import ArgumentError
from powerpool.integrations.backbones import load_backbone
from powerpool.runs.record import Score, Spectrum, Trial
from powerpool.tasks.pooling import mean_spectrum, spread_out
from powerpool.tasks.vision.config import PROTOCOLS, PoolConfig, VisionConfig, grid_values
from powerpool.tasks.vision.extraction import Features
from powerpool.tasks.vision.inference import TrainedModel
from powerpool.tasks.vision.linear import LinearFit, Span, fit, score, temperature
from powerpool.tasks.vision.model import ImageClassifier, SetPool

POOL_BATCH = 8
"""Images that are pooled at once."""


@dataclass(frozen=True)
class HeadFit:
    """One classifier at a grid point, with the best of its penalties."""

    score: Score
    penalty: float
    temperature: float
    trials: tuple[Trial, ...]
    """One for each penalty."""
    curves: dict[str, tuple[float | None, ...]]
    seconds: float
    converged: int | None = None


@dataclass(frozen=True)
class FrozenFit:
    """The classifiers at a grid point, by protocol."""

    point: int
    heads: dict[str, HeadFit]


@dataclass(frozen=True, eq=False)
class FrozenModel:
    """A pool and a linear classifier, trained on training and validation images."""

    config: VisionConfig
    classes: tuple[str, ...]
    pool: SetPool
    weight: Tensor  # shape: (classes, D)
    bias: Tensor
    fit: HeadFit
    seconds: float
    """Of training it again."""

    @cached_property
    def trained(self) -> TrainedModel:
        """The model with its backbone."""
        backbone = load_backbone(self.config.backbone, download=self.config.download)
        network = ImageClassifier(backbone, self.pool.config, len(self.classes))
        with torch.no_grad():
            network.classifier.weight.copy_(self.weight)
            network.classifier.bias.copy_(self.bias)
        return TrainedModel(network.eval(), self.classes, self.config.crops)


def with_protocol(config: VisionConfig, protocol: str) -> VisionConfig:
    """Return the settings with the classifier of a protocol."""
    kinds = {name: kind for kind, name in PROTOCOLS.items()}
    return replace(config, head=replace(config.head, kind=kinds[protocol])) if protocol in kinds else config


def make_pool(config: VisionConfig, pool: PoolConfig, channels: int) -> SetPool:
    """Build a pool for stored maps; that of the baseline contains layers of the backbone."""
    if pool.method != "Baseline":
        return SetPool(pool, channels).eval()
    backbone = load_backbone(config.backbone, download=config.download)
    return SetPool(pool, channels, backbone.head, backbone.head_channels).eval()


def require_memory(pool: SetPool, count: int) -> None:
    """Refuse what does not fit: the vectors of all training images at once, a copy, and their dot products."""
    products = 3 * 8 * min(count, pool.out_features) ** 2
    needed = 2 * 4 * count * pool.out_features + products
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise ArgumentError(
            f"{pool.config.method} needs {needed / 1e9:.0f} GB for vectors of {pool.out_features:,} numbers of {count} "
            f"images, and this machine has {available / 1e9:.0f} GB. Use a backbone with fewer channels than "
            f"{pool.channels}, or mode end-to-end with pool.reduce_to."
        )


def descriptors(pool: SetPool, maps: Tensor) -> Tensor:  # shape: (n, K, C, h, w) -> (n, D)
    """Pool stored maps, a few images at a time, so that little memory is needed beside the vectors."""
    found = torch.empty(len(maps), pool.out_features)
    with torch.inference_mode():
        for start in range(0, len(maps), POOL_BATCH):
            part = slice(start, start + POOL_BATCH)
            found[part] = pool(maps[part].float())
    return found


def validate(config: VisionConfig, point: int, features: Features, protocols: Sequence[str]) -> FrozenFit:
    """Train and validate a grid point for the classifier of each protocol; images are pooled once."""
    start = time.perf_counter()
    pool = list(config.points())[point]
    module = make_pool(config, pool, features.channels)
    require_memory(module, sum(len(features.targets[split]) for split in ("train", "validation")))
    span = Span.of(descriptors(module, features.maps("train")))
    others = span.project(descriptors(module, features.maps("validation")))
    seconds = time.perf_counter() - start
    heads = {}
    for protocol in protocols:
        own = with_protocol(config, protocol)
        heads[protocol] = _validate_head(own, pool, span.coordinates, others, features, seconds)
    return FrozenFit(point, heads)


def _validate_head(
    config: VisionConfig, pool: PoolConfig, train: Tensor, others: Tensor, features: Features, seconds: float
) -> HeadFit:
    start = time.perf_counter()
    targets, validation = features.labels("train"), (others, features.labels("validation"))
    penalties = config.head.penalties
    fits = fit(train, targets, len(features.classes), config.head, penalties, config.seed, validation)
    tried = [
        (one, penalty, *_score_head(config, one, *validation)) for one, penalty in zip(fits, penalties, strict=True)
    ]
    best, penalty, found, sharpness = min(tried, key=lambda entry: rank(entry[2]))
    return HeadFit(
        score=found,
        penalty=penalty,
        temperature=sharpness,
        trials=tuple(Trial({**grid_values(pool), "penalty": value}, own.value, own.loss) for _, value, own, _ in tried),
        curves=best.curves,
        seconds=seconds + time.perf_counter() - start,
        converged=best.converged,
    )


def _score_head(config: VisionConfig, found: LinearFit, vectors: Tensor, targets: Tensor) -> tuple[Score, float]:
    """Return the validation score of a classifier, and the temperature of its scores."""
    scores = found.logits(vectors)
    sharpness = temperature(scores, targets) if config.head.kind == "ridge" else 1.0
    return score(sharpness * scores, targets), sharpness


def rank(found: Score) -> tuple[float, float]:
    """Sort by accuracy, and equal ones by loss; the best is the smallest."""
    return -found.value, found.loss


def select(fits: Sequence[FrozenFit], protocol: str) -> FrozenFit:
    """Return the grid point with the highest accuracy; of equal ones, the one with the lowest loss."""
    return min(fits, key=lambda one: rank(one.heads[protocol].score))


def train_again(
    config: VisionConfig, fits: Sequence[FrozenFit], features: Features, protocols: Sequence[str]
) -> dict[str, FrozenModel]:
    """Train the selected point of each protocol on training and validation images together."""
    pooled: dict[int, tuple[SetPool, Span, float]] = {}
    points, splits, models = list(config.points()), ("train", "validation"), {}
    for protocol in protocols:
        own, best = with_protocol(config, protocol), select(fits, protocol)
        if best.point not in pooled:
            start = time.perf_counter()
            module = make_pool(config, points[best.point], features.channels)
            vectors = torch.cat([descriptors(module, features.maps(split)) for split in splits])
            pooled[best.point] = module, Span.of(vectors), time.perf_counter() - start
        module, span, seconds = pooled[best.point]  # each classifier alone would need these seconds
        start, head = time.perf_counter(), best.heads[protocol]
        targets = features.labels(*splits)
        (found,) = fit(span.coordinates, targets, len(features.classes), own.head, [head.penalty], config.seed)
        weight, bias = head.temperature * span.weights(found.weight), head.temperature * found.bias
        seconds += time.perf_counter() - start
        models[protocol] = FrozenModel(own, features.classes, module, weight, bias, head, seconds)
    return models


def stored_logits(models: Mapping[str, FrozenModel], maps: Tensor) -> dict[str, Tensor]:  # shapes: (n, classes)
    """Return the logits of stored maps, a few images at a time; models that share a pool share its vectors."""
    found: dict[str, list[Tensor]] = {protocol: [] for protocol in models}
    pools = {model.pool for model in models.values()}
    with torch.inference_mode():
        for part in maps.split(POOL_BATCH):
            vectors = {pool: pool(part.float()) for pool in pools}
            for protocol, model in models.items():
                found[protocol].append(torch.addmm(model.bias, vectors[model.pool], model.weight.T))
    return {protocol: torch.cat(parts) for protocol, parts in found.items()}


def stored_spectrum(pool: SetPool, maps: Tensor) -> Spectrum | None:  # shape: (n, K, C, h, w)
    """Return the mean spectrum of some of the stored maps; see :func:`powerpool.tasks.pooling.mean_spectrum`."""
    chosen = spread_out(len(maps)).tolist()
    with torch.inference_mode():
        return mean_spectrum(pool.normalization, (pool.feature_set(maps[row]) for row in chosen))
