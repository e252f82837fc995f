"""Image classification as a task: a single chain, the split of the data.

On frozen features a unit is a grid point; the selected one is trained again on training and validation images. End to
end a unit is the training of the whole network with one learning rate; rate and epoch are selected by validation.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from powerpool.console import print_note
from powerpool.data import ImageSet
from powerpool.data.sources import is_at_path
from powerpool.errors import ArgumentError
from powerpool.runs.config import read_recipe, read_settings, recipe_names
from powerpool.runs.folder import DataIdentity, require_same_data
from powerpool.runs.record import Confusion, Spectrum, SplitResult, Trial, pack_bits
from powerpool.runs.typed import Json
from powerpool.tasks.base import (
    Evaluation,
    Row,
    SweepableTask,
    Unit,
    Watch,
    confusion_matrix,
    extend_by_seeds,
    ignore_progress,
    round_curve,
    with_absolute_paths,
)
from powerpool.tasks.methods import VISION_METHODS, unused_settings
from powerpool.tasks.pooling import FeatureSource, Samples
from powerpool.tasks.predictions import Predictions
from powerpool.tasks.training import announce_precision, choose_precision
from powerpool.tasks.vision import frozen, tuned, widening
from powerpool.tasks.vision.config import (
    PROTOCOLS,
    FineTuningConfig,
    GridConfig,
    PoolConfig,
    VisionConfig,
    grid_names,
    grid_values,
)
from powerpool.tasks.vision.extraction import (
    SELECTION,
    SPLITS,
    Features,
    choose_device,
    extract,
    open_features,
    read_images,
)
from powerpool.tasks.vision.finetuning import FineTuned, is_first, require_joint_training
from powerpool.tasks.vision.frozen import FrozenFit, FrozenModel
from powerpool.tasks.vision.inference import TrainedModel, evaluate, feature_source, predict
from powerpool.tasks.vision.linear import score, top_five
from powerpool.tasks.vision.model import require_rectified
from powerpool.tasks.vision.options import SCHEMA, EvaluateOptions, PredictOptions, ReproduceOptions
from powerpool.tasks.vision.plan import with_memory_share
from powerpool.tasks.vision.tuned import TunedModel

END_TO_END = "end-to-end"
NEW_TRAINING = ("learning_rates", "head_learning_rates", "search_epochs", "optimizer", "class_weights", "patience")
"""Settings of training that records of earlier versions do not have."""


Data = Features | ImageSet
Fit = FrozenFit | FineTuned
Model = FrozenModel | TunedModel


class VisionTask(SweepableTask[VisionConfig, Data, Fit, Model]):
    """Image classification by a backbone, a pool of the tables and a linear classifier."""

    name = "vision"
    version = 2
    metric = "top-1 accuracy in %"
    sweep_schema = SCHEMA
    validation_part = "validation images"
    baseline = "FOP"
    config_type = VisionConfig
    ignored_settings = ("data_root", "download", "split_file", "strict", "accelerator", "workers")
    packages = ("pillow", "kornia", "lightning")
    draws_confusion = True

    # ---- data ----

    def load(self, config: VisionConfig, watch: Watch = ignore_progress) -> Data:
        return self._load(config, SPLITS, watch)

    def load_selection(self, config: VisionConfig, watch: Watch = ignore_progress) -> Data:
        return self._load(config, SELECTION, watch)

    def _load(self, config: VisionConfig, needed: Sequence[str], watch: Watch) -> Data:
        images, skipped = read_images(config)
        for remark in images.remarks:
            print_note(remark)
        for split, names in skipped.items():
            print_note(f"{len(names)} {split} images cannot be read and are skipped, the first is {names[0]}.")
        return extract(config, images, needed=needed, watch=watch) if config.mode == "frozen" else images

    def identity(self, data: Data) -> DataIdentity:
        if isinstance(data, Features):
            return DataIdentity(data.facts["data"], data.facts["data_digest"])
        return DataIdentity(data.name, data.digest)

    def reference(self, config: VisionConfig, data: Data) -> Json:
        return str(data.folder.absolute()) if isinstance(data, Features) else super().reference(config, data)

    def open(self, config: VisionConfig, reference: Json) -> Data:
        if config.mode == "frozen":
            return open_features(reference)
        images = self.load(config)
        require_same_data(self.identity(images), reference)
        return images

    def sweep_facts(self, data: Data) -> dict[str, Json]:
        return {"images": len(_targets(data, "validation"))}

    def settings(self, config: VisionConfig, data: Data) -> dict[str, Json]:
        found = super().settings(config, data)
        found["pictures"] = {split: len(_targets(data, split)) for split in SPLITS}
        # Where they have their defaults, results are those of versions without these settings.
        training = [(found["training"], name) for name in NEW_TRAINING]
        for group, name in ((found, "backbone_weights"), (found, "split_seed"), *training):
            if group[name] in (None, [], "pretrained", "rmsprop", "equal"):
                del group[name]
        is_selected = config.mode == "frozen" or config.training.warm_start
        if config.widen == 0 or not is_selected:
            del found["widen"]
        if isinstance(data, Features):
            # No result on frozen features depends on the settings of end-to-end training.
            kept = {name: value for name, value in found.items() if name not in ("training", "mode")}
            del kept["head"]["memory"]  # which matters only by the solver that it leads to
            return {
                **kept,
                "solvers": frozen.solvers(config, data, [self.protocol(config)]),
                "backbone_digest": data.facts["backbone_digest"],
                "features": data.facts["made_by"],
            }
        digest = tuned.digest_backbone(config.backbone, config.download, None if config.pretrained else config.seed)
        return {**found, "backbone_digest": digest}

    # ---- the protocol ----

    def units(self, config: VisionConfig, chain: int) -> list[Unit]:
        if config.mode == END_TO_END:
            return tuned.list_units(config, chain)
        return [Unit(chain, point) for point, _ in enumerate(config.points())]

    def further_unit(self, config: VisionConfig, chain: int, fits: Sequence[Fit], protocol: str) -> Unit | None:
        if config.mode == END_TO_END:
            return tuned.further_unit(config, chain, _trainings(fits), protocol)
        return frozen.further_unit(config, chain, _points(fits), protocol)

    def with_protocol(self, config: VisionConfig, protocol: str) -> VisionConfig:
        return frozen.with_protocol(config, protocol)

    def fit(
        self,
        config: VisionConfig,
        data: Data,
        unit: Unit,
        protocols: Sequence[str],
        checkpoint: Path | None,
        watch: Watch,
    ) -> Fit | None:
        if isinstance(data, ImageSet):
            return tuned.train(config, data, unit, checkpoint, watch)
        return frozen.fit(config, unit, data, protocols, checkpoint, watch)

    def select(self, fits: Sequence[Fit], protocol: str) -> Fit:
        points = _points(fits)
        return frozen.select(points, protocol) if points else tuned.select(_trainings(fits))

    def protocol(self, config: VisionConfig) -> str:
        return PROTOCOLS[config.head.kind] if config.mode == "frozen" else END_TO_END

    def trial(self, fit: Fit, protocol: str) -> Trial:
        assert isinstance(fit, FrozenFit)  # a sweep uses frozen features
        head = fit.heads[protocol]
        return next(trial for trial in head.trials if trial.settings["penalty"] == head.penalty)

    def finish(
        self,
        config: VisionConfig,
        data: Data,
        chain: int,
        fits: Sequence[Fit],
        protocols: Sequence[str],
        checkpoint: Path | None,
        watch: Watch,
    ) -> dict[str, Model]:
        if isinstance(data, Features):
            return {**frozen.train_again(config, _points(fits), data, protocols, checkpoint, watch)}
        fit = tuned.select(_trainings(fits))
        trained = TrainedModel(fit.model, data.classes, config.crops, is_trained=True)
        return {protocol: TunedModel(trained, fit) for protocol in protocols}

    def test(
        self,
        config: VisionConfig,
        data: Data,
        chain: int,
        fits: Sequence[Fit],
        models: Mapping[str, Model],
        watch: Watch,
    ) -> dict[str, SplitResult]:
        if isinstance(data, Features):
            return self._test_frozen(data, fits, models, watch)
        found, split = {}, data["test"]
        for protocol, model in models.items():
            assert isinstance(model, TunedModel)
            fit, tried = model.fit, _trainings(fits)
            rates = tuned.listed_rates(config, fit)
            logits = model.trained.logits(split, config.workers, lambda done: watch("test images", done, len(split)))
            found[protocol] = _measure(
                logits,
                split.targets,
                data.classes,
                model.trained.spectrum(split),
                chosen={"epoch": float(fit.epoch), **rates},
                trials=tuple(tuned.list_trials(config, tried)),
                converged=fit.converged,
                validation=fit.validation,
                curves={name: round_curve(values, digits=17) for name, values in fit.curves.items()},
                seconds=tuned.count_seconds(tried),
                seed=config.seed,
            )
        return found

    def _test_frozen(
        self, data: Features, fits: Sequence[Fit], models: Mapping[str, Model], watch: Watch
    ) -> dict[str, SplitResult]:
        start = time.perf_counter()
        own = {protocol: model for protocol, model in models.items() if isinstance(model, FrozenModel)}
        points = _points(fits)
        logits = frozen.stored_logits(own, data.maps("test"), watch)
        seconds = time.perf_counter() - start
        spectra = {model.pool: frozen.stored_spectrum(model.pool, data.maps("test")) for model in own.values()}
        found = {}
        for protocol, model in own.items():
            heads = [point.heads[protocol] for point in points if protocol in point.heads]
            found[protocol] = _measure(
                logits[protocol],
                data.labels("test"),
                data.classes,
                spectra[model.pool],
                chosen={**grid_values(model.pool.config), "penalty": model.fit.penalty},
                converged=model.fit.converged,
                validation=model.fit.score,
                trials=tuple(trial for head in heads for trial in head.trials),
                curves=model.fit.curves,
                solver=model.fit.solver,
                seconds=sum(head.seconds for head in heads) + model.seconds + seconds,
            )
        return found

    # ---- trained models ----

    def save(self, model: Model, folder: Path) -> None:
        model.trained.save(folder)

    def evaluate(self, options: EvaluateOptions, watch: Watch) -> Evaluation:
        return evaluate(options, watch)

    def predict(self, options: PredictOptions, watch: Watch) -> Predictions:
        return predict(options, watch)

    def feature_source(self, folder: Path, samples: Samples) -> FeatureSource:
        return feature_source(folder, samples)

    # ---- commands ----

    def prepare(self, config: VisionConfig) -> VisionConfig:
        is_path = is_at_path(config.data, config.data_root, config.download)
        found = with_precision(with_absolute_paths(config, data_is_path=is_path))
        if config.split_file is not None:
            found = replace(found, split_file=str(Path(config.split_file).expanduser().absolute()))
        folder = Path(config.backbone.removeprefix("hf:"))
        is_folder = config.backbone.startswith("hf:") and folder.is_dir()
        return replace(found, backbone=f"hf:{folder.absolute()}") if is_folder else found

    def leads(self, config: VisionConfig, *, overwrite: bool) -> bool:
        require_joint_training(config, overwrite=overwrite)
        return is_first(config)

    def check(self, config: VisionConfig, data: Data, chain: int) -> None:
        if isinstance(data, Features):
            require_rectified(config.pool.method, data.maps("train"), config.backbone)
            for pool in config.points():
                frozen.plan_head(config, frozen.make_pool(config, pool, data), data)

    def method(self, config: VisionConfig) -> str:
        return config.pool.method

    def remarks(self, config: VisionConfig, data: Data) -> list[str]:
        pool, found = config.pool, []
        unused = unused_settings(VISION_METHODS[pool.method], pool, PoolConfig(), "pool")
        varied = [name for name in vars(GridConfig()) if getattr(config.grid, name)]
        unused += [f"grid.{name}" for name in varied if name not in grid_names(pool.method)]
        if unused:
            found.append(f"{pool.method} does not depend on {', '.join(unused)}.")
        used = [f"grid.{name}" for name in varied if name in grid_names(pool.method)]
        if used and config.mode == END_TO_END and not config.training.warm_start:
            found.append(f"{', '.join(used)}: not used in mode end-to-end. Select settings with mode frozen.")
        if config.mode == END_TO_END and config.training.search_epochs is not None and len(config.training.rates) == 1:
            found.append("training.search_epochs: not used, as there is one pair of learning rates.")
        if config.mode == "frozen" and (changed := _changed_training(config)):
            found.append(f"{', '.join(changed)}: not used in mode frozen. Train everything with mode end-to-end.")
        elif config.training.optimizer == "adamw" and config.training.smoothing != FineTuningConfig.smoothing:
            found.append("training.smoothing: not used by AdamW.")
        name, trained = self.identity(data).name, set(_targets(data, "train").tolist())
        unseen = [label for place, label in enumerate(data.classes) if place not in trained]
        if unseen:
            listed = ", ".join(unseen[:5]) + (", ..." if len(unseen) > 5 else "")
            found.append(f"{len(unseen)} classes have no training images, so they can never be predicted: {listed}.")
        recipe = f"vision/{name}"
        if recipe in recipe_names() and read_recipe(recipe, VisionConfig).crops != config.crops:
            found.append(f"There is a recipe for {name} with the settings of the paper: --config {recipe}.")
        return found

    def result_remarks(self, config: VisionConfig, protocol: str, result: SplitResult) -> list[str]:
        if config.mode == END_TO_END:
            edges = tuned.describe_edges(config, result.chosen)
            return [f"{config.pool.method}: {edges}"] if edges else []
        own, tried = self.with_protocol(config, protocol), [trial.settings for trial in result.trials]
        remark = widening.describe(own, tried, result.chosen)
        return [f"{config.pool.method}, {protocol}: {remark}"] if remark else []

    def plan(self, options: ReproduceOptions, watch: Watch) -> list[Row[VisionConfig, Data]]:
        rows: list[Row[VisionConfig, Data]] = []
        for name in options.data_sets:
            recipe = with_memory_share(with_precision(options.read_config(name)))
            # Before the data is read: a method that cannot have the values of the grid is refused at once.
            configs = [replace(recipe, pool=replace(recipe.pool, method=method)) for method in options.methods]
            data = self.load(recipe, watch)
            is_frozen = recipe.mode == "frozen"
            protocols = tuple(PROTOCOLS[head] for head in options.heads) if is_frozen else (END_TO_END,)
            if is_frozen and options.seeds:
                raise ArgumentError("--seeds needs mode end-to-end: on frozen features nothing else depends on a seed.")
            split_seed = recipe.seed if recipe.split_seed is None else recipe.split_seed
            for config in configs:
                title, own = self.identity(data).name, {}
                if isinstance(data, Features):
                    require_rectified(config.pool.method, data.maps("train"), config.backbone)
                    own["solvers"] = frozen.solvers(config, data, protocols)
                seeded = [replace(config, seed=seed, split_seed=split_seed) for seed in options.seeds] or [config]
                method = config.pool.method
                row = Row(tuple(seeded), data, protocols, method, title, exclusive=not is_frozen, settings=own)
                if is_frozen or len(config.training.rates) == 1:
                    rows.append(row)
                else:
                    others = [(other,) for other in seeded[1:]]
                    rows += extend_by_seeds(replace(row, configs=(seeded[0],)), others, seeded[0].seed, _use_rates)
        return rows

    def describe(self, config: VisionConfig, data: Data, protocol: str, result: Any) -> str:
        chosen = ", ".join(f"{name} {value:g}" for name, value in result.chosen.items())
        return (
            f"{config.pool.method} on {self.identity(data).name}, {protocol}: test accuracy {result.value:.2f} %, "
            f"top-5 {result.top5:.2f} %, {result.count} images, {chosen}."
        )


TASK = VisionTask()


def _points(fits: Sequence[Fit]) -> list[FrozenFit]:
    return [fit for fit in fits if isinstance(fit, FrozenFit)]


def _trainings(fits: Sequence[Fit]) -> list[FineTuned]:
    return [fit for fit in fits if isinstance(fit, FineTuned)]


def _use_rates(config: VisionConfig, chosen: Mapping[str, Any]) -> VisionConfig:
    """Return the settings with the learning rates that another seed selected."""
    rates: dict[str, Any] = {f"{name}s": [chosen[name]] for name in config.training.listed_rates}
    return replace(config, training=replace(config.training, **rates))


def with_precision(config: VisionConfig) -> VisionConfig:
    """Return the settings with the precision that ``auto`` stands for; training on frozen features has none."""
    if config.mode == "frozen" or config.training.precision != "auto":
        return config
    choose = announce_precision if is_first(config) else choose_precision
    precision = choose(str(choose_device(config.accelerator)))
    return replace(config, training=replace(config.training, precision=precision))


def _changed_training(config: VisionConfig) -> list[str]:
    """Return the settings of end-to-end training that are not the default; none if a recipe has the same."""
    given, default = vars(config.training), vars(FineTuningConfig())
    changed = {f"training.{name}": value for name, value in given.items() if value != default[name]}
    for recipe in recipe_names() if changed else []:
        shipped = read_settings(recipe, VisionConfig) if recipe.startswith("vision/") else {}
        if changed.items() <= {name: setting.value for name, setting in shipped.items()}.items():
            return []
    return list(changed)


def _targets(data: Data, split: str) -> Tensor:
    return data.targets[split] if isinstance(data, Features) else data[split].targets


def _measure(
    logits: Tensor, targets: Tensor, classes: Sequence[str], spectrum: Spectrum | None, **rest: Any
) -> SplitResult:  # shape: (n, classes), (n,)
    """Return the result of a test."""
    right, found = logits.argmax(-1) == targets, score(logits, targets)
    return SplitResult(
        number=0,
        value=found.value,
        test_loss=found.loss,
        top5=top_five(logits, targets),
        count=len(targets),
        right=pack_bits(right),
        confusion=Confusion.of(confusion_matrix(logits.argmax(-1), targets, len(classes)), classes),
        spectrum=spectrum,
        **rest,
    )
