"""Training on stored features: every grid point on validation, then once more on training and validation images.

A grid point is trained on the training images and scored on the validation images, for every penalty. The best point
and penalty are trained again on both together. No choice depends on the test images. How much memory this needs is
decided in :mod:`powerpool.tasks.vision.plan`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.errors import RecordError
from powerpool.files import read_json, write_json
from powerpool.integrations.backbones import load_backbone
from powerpool.runs.record import Score, Spectrum, Trial
from powerpool.runs.typed import from_json, to_json
from powerpool.tasks.base import Unit, Watch, ignore_progress
from powerpool.tasks.pooling import mean_spectrum, spread_out
from powerpool.tasks.vision import widening
from powerpool.tasks.vision.config import PROTOCOLS, PoolConfig, VisionConfig, grid_names, grid_values
from powerpool.tasks.vision.extraction import Features
from powerpool.tasks.vision.inference import TrainedModel
from powerpool.tasks.vision.linear import score, temperature
from powerpool.tasks.vision.model import ImageClassifier, SetPool
from powerpool.tasks.vision.plan import Plan, Shape, make_plan
from powerpool.tasks.vision.systems import Samples, System
from powerpool.tasks.vision.vectors import POOL_BATCH, Vectors

TRAINED = ("train", "validation")
"""The splits that the final classifier is trained on."""


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
    solver: str | None = None
    """How it was computed, see :class:`powerpool.tasks.vision.plan.Plan`."""


@dataclass(frozen=True)
class FrozenFit:
    """The classifiers at a grid point, by protocol."""

    point: int
    """Its place in the grid; those beyond it follow."""
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


def make_pool(config: VisionConfig, pool: PoolConfig, features: Features) -> SetPool:
    """Build a pool for stored features; that of the baseline contains layers of the backbone."""
    if pool.method != "Baseline":
        return SetPool(pool, features.channels, prefix_tokens=features.prefix_tokens).eval()
    backbone = load_backbone(config.backbone, download=config.download)
    return SetPool(pool, features.channels, backbone.head, backbone.head_channels, features.prefix_tokens).eval()


@dataclass(frozen=True, eq=False)
class Prepared:
    """The pool of a grid point, and the systems that its classifiers are computed from, by protocol."""

    pool: SetPool
    plans: dict[str, Plan]
    systems: dict[str, System]
    seconds: float


def plan_head(config: VisionConfig, pool: SetPool, features: Features) -> Plan:
    """Return how the classifier is computed; refuse one that does not fit into memory."""
    return make_plan(config.head, Shape(len(features.labels(*TRAINED)), pool.out_features, len(features.classes)))


def solvers(config: VisionConfig, features: Features, protocols: Sequence[str]) -> dict[str, list[str]]:
    """Return the solvers of the grid points by protocol, which results depend on; the limit of memory chooses them."""
    found: dict[str, list[str]] = {}
    sizes = {pool.pivots: pool for pool in config.points()}  # no other parameter changes the length of vectors
    modules = [make_pool(config, pool, features) for pool in sizes.values()]
    for protocol in protocols:
        own = with_protocol(config, protocol)
        found[protocol] = [plan_head(own, module, features).method for module in modules]
    return found


def pool_of(config: VisionConfig, unit: Unit) -> PoolConfig:
    """Return the pool of a grid point, or of a point beyond the grid."""
    beyond: dict[str, Any] = dict(unit.settings)
    return replace(config.pool, **beyond) if beyond else list(config.points())[unit.point]


def is_current(
    found: FrozenFit, config: VisionConfig, pool: PoolConfig, features: Features, protocols: Sequence[str]
) -> bool:
    """Whether a stored grid point has the classifiers of all protocols, computed by the solvers of this limit."""
    module = make_pool(config, pool, features)
    for protocol in protocols:
        head, plan = found.heads.get(protocol), plan_head(with_protocol(config, protocol), module, features)
        if head is None or head.solver is None or not head.solver.startswith(plan.method):
            return False
    return True


def prepare(
    config: VisionConfig, pool: PoolConfig, features: Features, protocols: Sequence[str], watch: Watch
) -> Prepared:
    """Pool images and set up the systems of their vectors, unless this was done last for the same grid point."""
    key, latest = (pool, tuple(protocols), config.backbone, config.head.memory), features.latest
    if latest.key == key and isinstance(latest.value, Prepared):
        for system in latest.value.systems.values():
            system.samples = replace(system.samples, watch=watch)
        return replace(latest.value, seconds=0.0)
    latest.key = latest.value = None  # its memory is needed now
    start = time.perf_counter()
    module = make_pool(config, pool, features)
    targets = features.labels("train"), features.labels("validation")
    plans = {protocol: plan_head(with_protocol(config, protocol), module, features) for protocol in protocols}
    is_kept, block = all(plan.keep for plan in plans.values()), min(plan.block for plan in plans.values())
    maps = [features.maps(split) for split in TRAINED]
    vectors = Vectors(module, maps, keep=is_kept, watch=watch)
    samples = Samples(vectors, targets, len(features.classes), block, watch)
    built: dict[str, System] = {}
    for plan in plans.values():
        if plan.solver not in built:
            built[plan.solver] = plan.build(samples)
    systems = {protocol: built[plan.solver] for protocol, plan in plans.items()}
    latest.key, latest.value = key, Prepared(module, plans, systems, time.perf_counter() - start)
    return latest.value


def validate(
    config: VisionConfig,
    unit: Unit,
    features: Features,
    protocols: Sequence[str],
    checkpoint: Path | None = None,
    watch: Watch = ignore_progress,
) -> FrozenFit:
    """Train and validate a grid point for the classifier of each protocol; images are pooled once."""
    pool, heads = pool_of(config, unit), {}
    if not unit.point:  # before anything takes long
        module = make_pool(config, pool, features)
        for own in (with_protocol(config, protocol) for protocol in protocols):
            plan = plan_head(own, module, features)
            watch("grid points", 0, len(list(config.points())), f"{pool.method}, {own.head.kind}: {plan.text}.")
    prepared = prepare(config, pool, features, protocols, watch)
    for protocol in protocols:
        own, file = with_protocol(config, protocol), _state_file(checkpoint, protocol)
        heads[protocol] = _validate_head(own, pool, prepared, protocol, file)
        prepared.systems[protocol].release()
        for state in [] if file is None else file.parent.glob(f"{file.name}*"):
            state.unlink()
    return FrozenFit(unit.point, heads)


def _state_file(checkpoint: Path | None, protocol: str) -> Path | None:
    return None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}-{protocol}.pt")


def _validate_head(
    config: VisionConfig, pool: PoolConfig, prepared: Prepared, protocol: str, checkpoint: Path | None
) -> HeadFit:
    start, system, head = time.perf_counter(), prepared.systems[protocol], config.head
    targets, tried, penalties = system.samples.targets[1], [], head.penalties
    while True:
        fits = system.fit(1, head, penalties, config.seed, checkpoint)
        for one, penalty, scores in zip(fits, penalties, system.scores(fits), strict=True):
            sharpness = temperature(scores, targets) if head.kind == "ridge" else 1.0
            tried.append((one, penalty, score(sharpness * scores, targets), sharpness))
        best, penalty, found, sharpness = min(tried, key=lambda entry: rank(entry[2]))
        beyond = widening.next_value("penalty", [entry[1] for entry in tried], penalty)
        if beyond is None or len(tried) - len(head.penalties) >= config.widen:
            break
        penalties = [beyond]
        checkpoint = None if checkpoint is None else checkpoint.with_name(f"{checkpoint.name}+")
    return HeadFit(
        score=found,
        penalty=penalty,
        temperature=sharpness,
        trials=tuple(Trial({**grid_values(pool), "penalty": value}, own.value, own.loss) for _, value, own, _ in tried),
        curves=best.curves,
        seconds=prepared.seconds + time.perf_counter() - start,
        converged=best.converged,
        solver=prepared.plans[protocol].text,
    )


def fit(
    config: VisionConfig,
    unit: Unit,
    features: Features,
    protocols: Sequence[str],
    checkpoint: Path | None,
    watch: Watch,
) -> FrozenFit:
    """Validate a grid point, or read it where that was done; ``checkpoint`` is the stem of its files."""
    file = None if checkpoint is None else checkpoint.with_suffix(".json")
    if file is not None and file.exists():
        found = _read_fit(file)
        if is_current(found, config, pool_of(config, unit), features, protocols):
            return found
    found = validate(config, unit, features, protocols, checkpoint, watch)
    if file is not None:
        write_json(file, to_json(found))
    watch("grid points", unit.point + 1, max(unit.point + 1, len(list(config.points()))))
    return found


def further_unit(config: VisionConfig, chain: int, fits: Sequence[FrozenFit], protocol: str) -> Unit | None:
    """Return a grid point beyond the edge of a range where the selected one lies; None if there is none."""
    own = [fit for fit in fits if protocol in fit.heads]
    points = [_values(config, fit, protocol) for fit in own]
    found = widening.next_point(config, points, _values(config, select(own, protocol), protocol))
    return None if found is None else Unit(chain, len(own), protocol, tuple(found.items()))


def _values(config: VisionConfig, found: FrozenFit, protocol: str) -> dict[str, Any]:
    """Return the values of a grid point; whole numbers of the settings stay whole."""
    settings = found.heads[protocol].trials[0].settings
    return {name: type(getattr(config.pool, name))(settings[name]) for name in grid_names(config.pool.method)}


def _read_fit(file: Path) -> FrozenFit:
    try:
        return from_json(FrozenFit, read_json(file))
    except RecordError as error:
        raise RecordError(f"{file} is damaged: {error} Delete it and repeat the command.") from error


def train_network(config: VisionConfig, features: Features, folder: Path, watch: Watch) -> ImageClassifier:
    """Return the network with the classifier of frozen features."""
    protocols, units = [PROTOCOLS[config.head.kind]], [Unit(0, point) for point in range(len(list(config.points())))]
    fits = [fit(config, unit, features, protocols, folder / unit.name, watch) for unit in units]
    while (unit := further_unit(config, 0, fits, protocols[0])) is not None:
        fits.append(fit(config, unit, features, protocols, folder / unit.name, watch))
    (model,) = train_again(config, fits, features, protocols, None, watch).values()
    return model.trained.network


def rank(found: Score) -> tuple[float, float]:
    """Sort by accuracy, and equal ones by loss; the best is the smallest."""
    return -found.value, found.loss


def select(fits: Sequence[FrozenFit], protocol: str) -> FrozenFit:
    """Return the grid point with the highest accuracy; of equal ones, the one with the lowest loss."""
    return min((fit for fit in fits if protocol in fit.heads), key=lambda one: rank(one.heads[protocol].score))


def train_again(
    config: VisionConfig,
    fits: Sequence[FrozenFit],
    features: Features,
    protocols: Sequence[str],
    checkpoint: Path | None = None,
    watch: Watch = ignore_progress,
) -> dict[str, FrozenModel]:
    """Train the selected point of each protocol on training and validation images together."""
    models, chosen = {}, {protocol: select(fits, protocol) for protocol in protocols}
    pools = {name: replace(config.pool, **_values(config, fit, name)) for name, fit in chosen.items()}
    latest = features.latest.key
    # The grid point that was prepared last comes first, and those of several protocols are prepared once.
    for pool in sorted(dict.fromkeys(pools.values()), key=lambda pool: isinstance(latest, tuple) and latest[0] != pool):
        prepared = prepare(config, pool, features, protocols, watch)
        for protocol in (protocol for protocol in protocols if pools[protocol] == pool):
            start, head, own = time.perf_counter(), chosen[protocol].heads[protocol], with_protocol(config, protocol)
            system, file = prepared.systems[protocol], _state_file(checkpoint, protocol)
            (found,) = system.fit(2, own.head, [head.penalty], config.seed, file)
            weight, bias = (head.temperature * part for part in system.weights(found))
            system.release()
            if file is not None:
                file.unlink(missing_ok=True)
            seconds = prepared.seconds + time.perf_counter() - start
            models[protocol] = FrozenModel(own, features.classes, prepared.pool, weight, bias, head, seconds)
    features.latest.key = features.latest.value = None  # nothing needs the vectors any more
    return {protocol: models[protocol] for protocol in protocols}


def stored_logits(
    models: Mapping[str, FrozenModel], maps: Tensor, watch: Watch = ignore_progress
) -> dict[str, Tensor]:  # shapes: (n, classes)
    """Return the logits of stored maps, a few images at a time; models that share a pool share its vectors."""
    found: dict[str, list[Tensor]] = {protocol: [] for protocol in models}
    pools = {model.pool for model in models.values()}
    with torch.inference_mode():
        for start in range(0, len(maps), POOL_BATCH):
            part = maps[start : start + POOL_BATCH].float()
            vectors = {pool: pool(part) for pool in pools}
            for protocol, model in models.items():
                found[protocol].append(torch.addmm(model.bias, vectors[model.pool], model.weight.T))
            watch("test images", start + len(part), len(maps))
    return {protocol: torch.cat(parts) for protocol, parts in found.items()}


def stored_spectrum(pool: SetPool, maps: Tensor) -> Spectrum | None:  # shape: (n, K, C, h, w)
    """Return the mean spectrum of some of the stored maps; see :func:`powerpool.tasks.pooling.mean_spectrum`."""
    chosen = spread_out(len(maps)).tolist()
    with torch.inference_mode():
        return mean_spectrum(pool.normalization, (pool.feature_set(maps[row]) for row in chosen))
