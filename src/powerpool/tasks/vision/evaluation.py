"""The protocol on frozen features: every point of the grid on validation, then once more on all but the test pictures.

A point is trained on the training pictures and scored on the validation pictures, for every penalty. The best point and
penalty are trained again on both together, and tested once. No choice ever sees the test pictures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from powerpool.data import ImageSet, Splits, check_images, load_images
from powerpool.errors import ArgumentError
from powerpool.integrations.backbones import load_backbone
from powerpool.tasks.confusion import as_entry, confusion_matrix
from powerpool.tasks.spectra import mean_spectrum, spread_out
from powerpool.tasks.vision.config import Head, PoolConfig, VisionConfig, chosen_values
from powerpool.tasks.vision.extraction import SPLITS, Features
from powerpool.tasks.vision.frozen import POOL_BATCH, Fit, Span, descriptors, fit, score, summary, temperature
from powerpool.tasks.vision.model import SetPool

METRIC = "top-1 accuracy in %"
PLACES = ("data_root", "download", "accelerator")
"""Settings that say where data is and where it is computed, on which no result depends."""
PROTOCOLS: dict[Head, str] = {"ridge": "frozen", "softmax": "frozen-softmax"}
"""What records and tables call training on frozen features, by its classifier."""


def read_images(config: VisionConfig) -> tuple[ImageSet, dict[str, list[str]]]:
    """The pictures of a configuration in their splits, and the names of those that could not be read, by split."""
    splits = Splits(validation=config.validation_share, test=config.test_share, seed=config.seed)
    images = load_images(config.data, config.data_root, download=config.download, splits=splits)
    missing = [name for name in SPLITS if name not in images.splits]
    if missing:
        raise ArgumentError(
            f"{images.name} has no pictures for {' and '.join(missing)}: it has {', '.join(images.splits)}. Add a "
            f"folder {missing[0]!r}, or put all classes into one folder without splits, which are then drawn."
        )
    if len(images.classes) < 2:
        raise ArgumentError(f"{images.name} has one class, {images.classes[0]!r}: there is nothing to tell apart.")
    if config.corrupt == "error":  # whoever reads a picture that is none will say so
        return images, {}
    checked = {name: check_images(split, config.corrupt) for name, split in images.splits.items()}
    kept = {name: split for name, (split, _) in checked.items()}
    return replace(images, splits=kept), {name: skipped for name, (_, skipped) in checked.items() if skipped}


def make_pool(config: VisionConfig, pool: PoolConfig, channels: int) -> SetPool:
    """The pool for stored maps; that of the baseline has layers of the backbone in it."""
    if pool.method != "Baseline":
        return SetPool(pool, channels).eval()
    backbone = load_backbone(config.backbone, download=config.download)
    return SetPool(pool, channels, backbone.head, backbone.head_channels).eval()


def require_memory(pool: SetPool, count: int) -> None:
    """Refuse what cannot fit: the vectors of all training pictures at once, a copy, and their dot products."""
    products = 3 * 8 * min(count, pool.out_features) ** 2
    needed = 2 * 4 * count * pool.out_features + products
    here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > here:
        raise ArgumentError(
            f"The vectors of {count} pictures by {pool.config.method}, of {pool.out_features:,} numbers each, take "
            f"{needed / 1e9:.0f} GB with a copy, and this machine has {here / 1e9:.0f} GB. Take a backbone with fewer "
            f"channels than {pool.channels}, or train with mode end-to-end and pool.reduce_to."
        )


def validate(config: VisionConfig, pool: PoolConfig, features: Features) -> dict[str, Any]:
    """A point of the grid on the validation pictures, with the best of the penalties, as plain values."""
    return validate_heads([config], pool, features)[0]


def validate_heads(configs: Sequence[VisionConfig], pool: PoolConfig, features: Features) -> list[dict[str, Any]]:
    """The same for configurations that differ in the classifier alone: pictures are pooled once."""
    start = time.perf_counter()
    module = make_pool(configs[0], pool, features.channels)
    require_memory(module, sum(len(features.targets[split]) for split in ("train", "validation")))
    span = Span.of(descriptors(module, features.maps("train")))
    others = span.project(descriptors(module, features.maps("validation")))
    seconds = time.perf_counter() - start
    return [_validate(config, pool, span.coordinates, others, features, seconds) for config in configs]


def _validate(
    config: VisionConfig, pool: PoolConfig, train: Tensor, others: Tensor, features: Features, seconds: float
) -> dict[str, Any]:
    start = time.perf_counter()
    targets, validation = features.labels("train"), (others, features.labels("validation"))
    penalties, settings = config.head.penalties, chosen_values(pool)
    fits = fit(train, targets, len(features.classes), config.head, penalties, config.seed, validation)
    trials = [
        {"chosen": {**settings, "penalty": penalty}, **_outcome(config, found, validation)}
        for penalty, found in zip(penalties, fits, strict=True)
    ]
    best = min(trials, key=_rank)
    kept = ("chosen", "value", "loss")
    return {
        **best,
        "trials": [{name: trial[name] for name in kept} for trial in trials],
        "seconds": seconds + time.perf_counter() - start,
    }


def best_point(points: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Of what :func:`validate` found, that with the highest accuracy; of equal ones, that with the lowest loss."""
    return min(points, key=_rank)


@dataclass(frozen=True, eq=False)
class Trained:
    """A pool and the classifier of its vectors."""

    pool: SetPool
    weight: Tensor
    """(classes, D), for vectors as they are."""
    bias: Tensor
    seconds: float


def train_again(
    configs: Sequence[VisionConfig], points: Sequence[list[dict[str, Any]]], features: Features
) -> list[Trained]:
    """The best point of each grid, trained on training and validation pictures together.

    Args:
        configs: differ in the classifier alone.
        points: what :func:`validate` found for each of them.
        features: the stored maps.
    """
    pooled: dict[PoolConfig, tuple[SetPool, Span, float]] = {}
    splits, trained = ("train", "validation"), []
    for config, own in zip(configs, points, strict=True):
        best = best_point(own)
        pool = chosen_pool(config, best)
        if pool not in pooled:
            start = time.perf_counter()
            module = make_pool(config, pool, features.channels)
            vectors = torch.cat([descriptors(module, features.maps(split)) for split in splits])
            pooled[pool] = module, Span.of(vectors), time.perf_counter() - start
        module, span, seconds = pooled[pool]  # of pooling, which each classifier would need alone
        start = time.perf_counter()
        targets, penalties = features.labels(*splits), [best["chosen"]["penalty"]]
        (found,) = fit(span.coordinates, targets, len(features.classes), config.head, penalties, config.seed)
        sharpness = best["temperature"]
        weight, bias = sharpness * span.weights(found.weight), sharpness * found.bias
        trained.append(Trained(module, weight, bias, seconds + time.perf_counter() - start))
    return trained


def test(
    trained: Sequence[Trained], points: Sequence[list[dict[str, Any]]], features: Features
) -> list[dict[str, Any]]:
    """What records say of the test split, for each of the classifiers, as plain values."""
    start, targets = time.perf_counter(), features.labels("test")
    scores = stored_logits(trained, features.maps("test"))
    seconds = time.perf_counter() - start
    pools = {one.pool: stored_spectrum(one.pool, features.maps("test")) for one in trained}
    return [
        {
            **_test_result(one, own, logits, targets, seconds),
            **test_details(logits, targets, features.classes, pools[one.pool]),
        }
        for one, own, logits in zip(trained, points, scores, strict=True)
    ]


def test_details(
    scores: Tensor, targets: Tensor, classes: Sequence[str], spectrum: dict[str, Any] | None
) -> dict[str, Any]:
    """What a record says of a test beside its figures: which classes were taken for which, and spectra of the pool."""
    confusion = confusion_matrix(scores.argmax(-1), targets, len(classes))
    return {"confusion": as_entry(confusion, classes), **({"spectrum": spectrum} if spectrum else {})}


def stored_spectrum(pool: SetPool, maps: Tensor) -> dict[str, Any] | None:  # shape: (n, K, C, h, w)
    """Of a part of stored maps, see :func:`powerpool.tasks.spectra.mean_spectrum`."""
    chosen = spread_out(len(maps)).tolist()
    with torch.inference_mode():
        return mean_spectrum(pool.normalization, (pool.feature_set(maps[row]) for row in chosen))


def _test_result(
    trained: Trained, points: list[dict[str, Any]], scores: Tensor, targets: Tensor, seconds: float
) -> dict[str, Any]:
    best = best_point(points)
    return {
        "fold": 0,
        **summary(scores, targets),
        "test_loss": score(scores, targets)[0],
        "chosen": best["chosen"],
        "converged": best["converged"],
        "validation": {name: best[name] for name in ("value", "loss")},
        "grid": [trial for point in points for trial in point["trials"]],
        "curves": best["curves"],
        "seconds": sum(point["seconds"] for point in points) + trained.seconds + seconds,
    }


def chosen_pool(config: VisionConfig, best: dict[str, Any]) -> PoolConfig:
    """The point of the grid that was chosen."""
    for pool in config.points():
        if all(best["chosen"][name] == value for name, value in chosen_values(pool).items()):
            return pool
    raise ArgumentError(f"{best['chosen']} is no point of the grid.")


def stored_logits(trained: Sequence[Trained], maps: Tensor) -> list[Tensor]:  # shapes: (n, classes)
    """Of stored maps, a few at a time: their vectors are never all in memory. Those with one pool are pooled once."""
    found: list[list[Tensor]] = [[] for _ in trained]
    with torch.inference_mode():
        for part in maps.split(POOL_BATCH):
            vectors = {one.pool: one.pool(part.float()) for one in {one.pool: one for one in trained}.values()}
            for one, scores in zip(trained, found, strict=True):
                scores.append(torch.addmm(one.bias, vectors[one.pool], one.weight.T))
    return [torch.cat(scores) for scores in found]


def _outcome(config: VisionConfig, found: Fit, validation: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """What a classifier gave on the validation pictures, after its last epoch where it has any."""
    scores = found.logits(validation[0])
    sharpness = temperature(scores, validation[1]) if config.head.kind == "ridge" else 1.0
    loss, value = score(sharpness * scores, validation[1])
    return {
        "value": value,
        "loss": loss,
        "temperature": sharpness,
        "converged": found.converged,
        "curves": found.curves(),
    }


def _rank(trial: dict[str, Any]) -> tuple[float, float]:
    return -trial["value"], trial["loss"]
