"""Trained image classifiers: loading them from run folders, testing them, and predicting with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from powerpool.console import print_note
from powerpool.data import Crops, ImageDataset, ImageSet, ImageSplit, Splits, check_images, list_images, load_images
from powerpool.errors import ArgumentError, RecordError
from powerpool.integrations.backbones import Backbone, load_backbone
from powerpool.runs.config import read_recipe
from powerpool.runs.folder import (
    CONFIG,
    MODEL,
    DataIdentity,
    build_network,
    is_data_of,
    read_identity,
    read_model,
    save_model,
)
from powerpool.runs.record import Spectrum
from powerpool.runs.typed import Json
from powerpool.tasks.base import Watch
from powerpool.tasks.pooling import FeatureSource, Samples, mean_spectrum, spread_out
from powerpool.tasks.predictions import Predictions
from powerpool.tasks.vision.config import RENAMED_PARAMETERS, PoolConfig, VisionConfig, require_crops
from powerpool.tasks.vision.evaluation import VisionEvaluation
from powerpool.tasks.vision.extraction import find_features, freeze, read_images, stream_maps
from powerpool.tasks.vision.hub import HubModel, is_hub_folder, load_hub
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.tasks.vision.options import EvaluateOptions, PredictOptions

FEW = 16
"""Below this many images, starting worker processes takes longer than the work."""
FROZEN_PARTS = ("backbone.", "pool.head.")
"""Weights that are not stored where the backbone was not trained: its name stands for them."""
WHOLE = Splits(validation=0.0, test=0.0)
"""Images without splits are one."""


# ---- models ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackboneSpec:
    """The backbone of a model: its name, the digest of its weights, and whether they were trained."""

    name: str
    digest: str
    is_trained: bool


@dataclass(frozen=True)
class ModelSpec:
    """What ``model.json`` holds: the settings of the network, and how images are read for it."""

    pool: PoolConfig
    crops: Crops
    classes: tuple[str, ...]
    backbone: BackboneSpec

    def __post_init__(self) -> None:
        require_crops(self.crops)
        if len(set(self.classes)) != len(self.classes) or not self.classes:
            raise RecordError(f"classes must be different names, at least one (got {len(self.classes)}).")


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, and how images are read for it.

    Example:
        >>> from powerpool.integrations.backbones import load_backbone
        >>> network = ImageClassifier(load_backbone("efficientnet-lite0"), PoolConfig("SOP"), classes=2)
        >>> model = TrainedModel(network, ("cat", "dog"), Crops(size=64, count=1))
        >>> model.network(torch.zeros(1, 1, 3, 64, 64)).shape
        torch.Size([1, 2])
    """

    network: ImageClassifier
    classes: tuple[str, ...]
    crops: Crops
    is_trained: bool = False
    """Whether the weights of the backbone were trained, too; otherwise its name stands for them."""

    @property
    def method(self) -> str:
        """The method of the pool."""
        return self.network.pool.config.method

    @property
    def backbone(self) -> Backbone:
        """The part before the pool."""
        return self.network.backbone

    def logits(
        self,
        images: ImageSplit,
        workers: int | None = None,
        watch: Callable[[int], None] = lambda done: None,
        accelerator: str = "auto",
    ) -> Tensor:  # shape: (n, classes)
        """Return the logits of images; for workers see :func:`powerpool.tasks.vision.extraction.stream_maps`."""
        network, parts = self.network.eval().cpu(), []
        with torch.inference_mode():
            for maps in self.maps(images, workers, accelerator):
                parts.append(network.classify(network.pool(maps)))
                watch(sum(map(len, parts)))
        return torch.cat(parts)

    def spectrum(self, images: ImageSplit, accelerator: str = "auto") -> Spectrum | None:
        """Return the mean spectrum of some of the images; see :func:`powerpool.tasks.pooling.mean_spectrum`."""
        pool = self.network.eval().cpu().pool
        with torch.random.fork_rng(devices=[]):  # the random state of the caller does not change
            stream = self.maps(images.select(spread_out(len(images)).tolist()), 0, accelerator)
            with torch.inference_mode():
                return mean_spectrum(pool.normalization, (pool.feature_set(maps) for part in stream for maps in part))

    def maps(self, images: ImageSplit, workers: int | None, accelerator: str) -> Iterator[Tensor]:
        """Compute the feature maps of images, a few images at a time."""
        frozen = freeze(self.backbone, self.crops.size, accelerator)
        return stream_maps(ImageDataset(images, self.crops), frozen, 0 if len(images) < FEW else workers)

    def save(self, folder: Path) -> None:
        """Write the model into a run folder. A backbone that was not trained is stored as its name and digest."""
        weights = self.network.state_dict()
        if not self.is_trained:
            weights = {name: value for name, value in weights.items() if not name.startswith(FROZEN_PARTS)}
        backbone = BackboneSpec(self.backbone.name, self.backbone.digest(), self.is_trained)
        save_model(folder, "vision", ModelSpec(self.network.pool.config, self.crops, self.classes, backbone), weights)


def load_run(folder: str | Path, *, backbone: Backbone | None = None, download: bool = False) -> TrainedModel:
    """Load the model of a run folder.

    Args:
        folder: the run folder.
        backbone: the backbone, where no name stands for it.
        download: allow the download of its weights.
    """
    stored = read_model(folder, "vision", ModelSpec, _convert_old)
    spec, file = stored.spec, Path(folder, MODEL)
    named = spec.backbone
    if backbone is None and not named.is_trained:
        backbone = load_backbone(named.name, download=download)

    def make() -> ImageClassifier:
        # A trained backbone is built here, so that its shapes are compared before memory is allocated.
        own = backbone or load_backbone(named.name, pretrained=False, download=download)
        return ImageClassifier(own, spec.pool, len(spec.classes))

    optional = () if named.is_trained else FROZEN_PARTS
    weights = stored.weights.rename("pool.reduction.", "pool.pool.reduction.")  # as version 0.1 called them
    network = build_network(make, weights, file, optional=optional)
    if network.backbone.digest() != named.digest:
        raise RecordError(
            f"{file}: the weights of {named.name} have changed since the training. Install the version of the backbone "
            "that the run was trained with, or train again."
        )
    return TrainedModel(network, spec.classes, spec.crops, named.is_trained)


def load_model(folder: str | Path, *, download: bool = False) -> TrainedModel | HubModel:
    """Load the model of a run folder, or of a folder in the format of transformers."""
    return load_hub(folder) if is_hub_folder(folder) else load_run(folder, download=download)


def _convert_old(state: dict[str, Json]) -> Json:
    """Convert the content of a ``model.pt`` of version 0.1."""
    pool = {RENAMED_PARAMETERS.get(name, name): value for name, value in dict(state["pool"]).items()}
    own = {name: state[name] for name in ("crops", "backbone")}
    return {**own, "pool": pool, "classes": list(state["classes"])}


# ---- evaluation ------------------------------------------------------------------------------------------------------


def evaluate(options: EvaluateOptions, watch: Watch) -> VisionEvaluation:
    """Test the model of a run: on a split of its own images, or on other labelled images."""
    model = load_model(options.run, download=options.download)
    config = None if isinstance(model, HubModel) else _read_config(options.run, options)
    if options.data:
        root = options.data_root if config is None else config.data_root
        images = load_images(options.data, root, download=options.download, splits=WHOLE)
        tested = _with_classes_of(model, images, options.split)
        which = f"{options.split or 'all'} images of {images.name}"
    elif config is None:
        raise ArgumentError(
            f"{options.run} has the format of transformers, which does not name the images that the model was trained "
            "on. Name the images to test with --data."
        )
    else:
        images = read_images(config)[0]
        if not is_data_of(options.run, images.digest):
            raise RecordError(
                f"{images.name} has changed since the run was trained, so its test images are unknown. Name the images "
                "to test with --data."
            )
        split = options.split or "test"
        tested, which = images[split], f"{split} images of {images.name}"
    if options.corrupt == "skip":
        tested, skipped = check_images(tested, "skip")
        which += f", {len(skipped)} unreadable ones skipped" if skipped else ""
    logits = model.logits(tested, options.workers, lambda done: watch("images", done, len(tested)))
    found = VisionEvaluation.of(model.method, which, logits, tested.targets, model.classes)
    return replace(found, remarks=images.remarks)


def _read_config(folder: str | Path, places: EvaluateOptions | Samples) -> VisionConfig:
    """Return the settings of a run, with the place of its data on this machine."""
    config = read_recipe(Path(folder, CONFIG), VisionConfig)
    return replace(config, data_root=places.data_root or config.data_root, download=places.download)


def _join_splits(images: ImageSet) -> ImageSplit:
    first, *others = images.splits.values()
    return sum(others, start=first)


def _with_classes_of(model: TrainedModel | HubModel, images: ImageSet, split: str | None) -> ImageSplit:
    """Return a split, or all images, with the class indices of the model."""
    unknown = [name for name in images.classes if name not in model.classes]
    if unknown:
        raise ArgumentError(
            f"{images.name} has classes that the model does not know: {', '.join(unknown[:5])}. The model knows "
            f"{len(model.classes)}, such as {', '.join(model.classes[:5])}."
        )
    places = torch.tensor([model.classes.index(name) for name in images.classes])
    tested = _join_splits(images) if split is None else images[split]
    return replace(tested, targets=places[tested.targets])


# ---- prediction ------------------------------------------------------------------------------------------------------


def predict(options: PredictOptions, watch: Watch) -> Predictions:
    """Predict the class of every image, with the probability of each class."""
    model = load_model(options.run, download=options.download)
    images = list_images(options.images)
    if options.corrupt == "skip":
        images, skipped = check_images(images, "skip")
        for name in skipped:
            print_note(f"skipped, not readable: {name}")
    probabilities = model.logits(images, options.workers, lambda done: watch("images", done, len(images))).softmax(-1)
    return Predictions.of_images(
        images.names, probabilities, model.classes, word="probability", percent=True, top=options.top
    )


# ---- analysis --------------------------------------------------------------------------------------------------------


def feature_source(folder: Path, samples: Samples) -> FeatureSource:
    """Return the features that the pool of a run gets, one set for each drawn image; stored ones if there are any."""
    model, identity = load_run(folder, download=samples.download), read_identity(folder)
    pool, data = model.network.pool, None
    if samples.data is None and identity is not None and not model.is_trained:
        stored = find_features(identity.digest, model.backbone.digest(), model.crops, samples.split)
        if stored is not None:
            maps = stored.maps(samples.split)
            drawn = samples.draw(torch.arange(len(maps))).tolist()
            name = f"the {samples.split} images of {identity.name}, stored features"
            return FeatureSource(pool.normalization, (pool.feature_set(maps[row]) for row in drawn), len(drawn), name)
    if samples.data is not None:
        images = load_images(samples.data, samples.data_root, download=samples.download, splits=WHOLE)
        split, name = _join_splits(images), f"all images of {images.name}"
    else:
        images = read_images(_read_config(folder, samples))[0]
        split, name = images[samples.split], f"the {samples.split} images of {images.name}"
        data = DataIdentity(images.name, images.digest)
    chosen = split.select(samples.draw(torch.arange(len(split))).tolist())
    sets = (pool.feature_set(maps) for part in model.maps(chosen, 0, "auto") for maps in part)
    return FeatureSource(pool.normalization, sets, len(chosen), name, data)
