"""Trained few-shot networks: loading them from run folders, testing them, and predicting with them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from powerpool.curves.base import EXTRA_STATE
from powerpool.data import FewShotSet, ImageBank, ImageSplit, Splits, list_images, load_fewshot, load_images
from powerpool.data.banks import Resize, read_bank
from powerpool.data.images import Corrupt
from powerpool.errors import RecordError
from powerpool.runs.config import read_recipe
from powerpool.runs.folder import CONFIG, MODEL, DataIdentity, build_network, is_data_of, read_identity, read_model
from powerpool.runs.typed import Json
from powerpool.tasks.base import Watch, ignore_progress
from powerpool.tasks.fewshot.config import EpisodeConfig, FewShotConfig, ModelConfig, require_image_format
from powerpool.tasks.fewshot.model import EpisodeNetwork, feature_sets, make_network, normalization
from powerpool.tasks.fewshot.options import EvaluateOptions, PredictOptions
from powerpool.tasks.fewshot.results import (
    EpisodeTest,
    FewShotEvaluation,
    describe_few_images,
    describe_left_out,
    describe_unreadable,
    require_classes,
)
from powerpool.tasks.fewshot.testing import draw_episodes, episode_spectrum, run_episodes
from powerpool.tasks.pooling import FeatureSource, Samples
from powerpool.tasks.predictions import Predictions
from powerpool.tasks.training import require_device

TEST_OPTIONS = ("way", "shot", "queries", "count", "transductive")
ANALYSIS_BATCH = 64


@dataclass(frozen=True)
class ImageFormat:
    """How images are read for a network; see :class:`powerpool.tasks.fewshot.config.FewShotConfig`."""

    size: int
    channels: int
    resize: Resize
    invert: bool
    centred: bool = False
    """Whether the mean image is subtracted, as for Open MIC."""

    @classmethod
    def of(cls, config: FewShotConfig) -> ImageFormat:
        """Return the format of a configuration."""
        return cls(config.size, config.channels, config.resize, config.invert, config.problem is not None)

    def apply(self, config: FewShotConfig) -> FewShotConfig:
        """Return a configuration that reads images in this format."""
        return replace(config, size=self.size, channels=self.channels, resize=self.resize, invert=self.invert)

    def read(self, split: ImageSplit, classes: tuple[str, ...], corrupt: Corrupt = "error") -> ImageBank:
        """Read images into memory, without centring them."""
        settings = {name: value for name, value in asdict(self).items() if name != "centred"}
        return read_bank(split, classes, **settings, corrupt=corrupt)

    def read_all(
        self, data: str, root: str | None = None, *, download: bool = False, corrupt: Corrupt = "error"
    ) -> tuple[ImageBank, str, list[str]]:
        """Read all images of a data set, which may have nested class folders; return them, its name, and remarks."""
        images = load_images(data, root, download=download, splits=Splits(validation=0.0, test=0.0), nested=True)
        first, *others = images.splits.values()
        every = sum(others, start=first)
        bank = self.read(every, images.classes, corrupt)
        remarks = [*images.remarks, *describe_unreadable(every.names, bank.names)]
        return bank.centred() if self.centred else bank, images.name, remarks


@dataclass(frozen=True)
class ModelSpec:
    """What ``model.json`` holds: the settings of the network, and how images are read for it."""

    config: ModelConfig
    images: ImageFormat

    def __post_init__(self) -> None:
        require_image_format(self.images.size, self.images.channels, self.config.method)


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A network, and how images are read for it.

    Example:
        >>> network = make_network(ModelConfig("SoSN(x)+SigmE", hidden=8), channels=1, size=28)
        >>> model = TrainedModel(network.eval(), ImageFormat(28, 1, "squeeze", False))
        >>> support = [torch.rand(3, 1, 28, 28), torch.rand(1, 1, 28, 28)]  # two classes, with three images and one
        >>> model.scores(support, torch.rand(4, 1, 28, 28)).shape
        torch.Size([4, 2])
    """

    network: EpisodeNetwork
    images: ImageFormat

    @property
    def spec(self) -> ModelSpec:
        """What is stored beside the weights."""
        return ModelSpec(self.network.config, self.images)

    @torch.no_grad()
    def scores(
        self,
        support: Sequence[Tensor],  # shape: (J_c, C, H, W) for each class c
        query: Tensor,  # shape: (n, C, H, W)
        batch_size: int = 64,
    ) -> Tensor:  # shape: (n, L)
        """Return the similarity of each query to each class; classes may have different numbers of images."""
        network = self.network.eval()
        classes = torch.cat([network.represent(network.encode(images)[None]) for images in support])
        parts = [network.match_in_parts(classes, network.encode(part)) for part in query.split(batch_size)]
        return network.scores(torch.cat(parts))


def read_set(config: FewShotConfig, watch: Watch = ignore_progress) -> FewShotSet:
    """Read the images of a configuration; see :func:`powerpool.data.load_fewshot`."""
    return load_fewshot(
        config.data,
        config.data_root,
        size=config.size,
        channels=config.channels,
        cut=config.cut,
        problem=config.problem,
        invert=config.invert,
        resize=config.resize,
        download=config.download,
        corrupt=config.corrupt,
        watch=lambda split, done, count: watch(f"images of {split}", done, count),
    )


def load_run(folder: str | Path) -> TrainedModel:
    """Load the model of a run folder."""
    stored = read_model(folder, "fewshot", ModelSpec, _convert_old, _add_padding)
    config, images = stored.spec.config, stored.spec.images

    def make() -> EpisodeNetwork:
        return make_network(config, images.channels, images.size)

    return TrainedModel(build_network(make, stored.weights, Path(folder, MODEL)), images)


def _convert_old(state: dict[str, Json]) -> Json:
    """Convert the content of a ``model.pt`` of version 0.1, which had other names for two settings."""
    names = {"eta_prime": "sigme_eta", "gamma_prime": "asinhe_gamma"}
    config = {names.get(name, name): value for name, value in state["config"].items()}
    return {"config": config, "images": state["pictures"]}


def _add_padding(spec: dict[str, Json]) -> Json:
    """Return a specification with the padding that all networks had before it was a setting."""
    config = spec.get("config")
    return {**spec, "config": {"padding": True, **config}} if isinstance(config, dict) else spec


def read_pretrained(config: FewShotConfig, data: FewShotSet) -> dict[str, Tensor] | None:
    """Return the weights that a training starts from; None if the configuration names no run.

    A run on a data set of the same name with other images or another division of its classes is refused: classes that
    are tested now may have been trained on.
    """
    if config.pretrained is None:
        return None
    found = read_identity(config.pretrained)
    if found is not None and found.name == data.name and found.digest != data.digest:
        raise RecordError(
            f"pretrained {config.pretrained} was trained on {data.name} with other images or other training classes: "
            "it may have seen classes that are tested now."
        )
    model = load_run(config.pretrained)
    ours, theirs = config.model, model.network.config
    only_encoder = config.pretrained_part == "encoder"
    for name in ("hidden",) if only_encoder else ("method", "hidden", "padding"):
        if getattr(ours, name) != getattr(theirs, name):
            other = (
                " Use pretrained_part encoder to start from the encoder of another method." if name == "method" else ""
            )
            raise RecordError(
                f"pretrained {config.pretrained} was trained with model.{name} {getattr(theirs, name)}, but this run "
                f"has {getattr(ours, name)}.{other}"
            )
    # Without the fixed parameters of curves: a training may go on with others.
    weights = {name: value for name, value in model.network.state_dict().items() if not name.endswith(EXTRA_STATE)}
    if only_encoder:
        weights = {name: value for name, value in weights.items() if name.startswith("encoder.")}
    network = make_network(ours, config.channels, config.size)
    if network.make_encoder is not model.network.make_encoder:
        raise RecordError(
            f"pretrained {config.pretrained} is a {theirs.method}, whose encoder has other padding and pooling than "
            f"that of {ours.method}. Of all methods, PrototypicalNet alone has its own encoder."
        )
    own = network.state_dict()
    for name, value in weights.items():
        if own[name].shape != value.shape:
            raise RecordError(
                f"pretrained {config.pretrained} has {model.images.size} pixels, {model.images.channels} channels and "
                f"{theirs.pivots} pivots, but this run has {config.size}, {config.channels} and {ours.pivots}: "
                f"{name} does not fit."
            )
    return weights


# ---- test and evaluate -----------------------------------------------------------------------------------------------


def run_test(
    model: TrainedModel, bank: ImageBank, episodes: EpisodeConfig, device: str = "cpu", watch: Watch = ignore_progress
) -> EpisodeTest:
    """Test a model in the test episodes, which are the same for all models."""
    start = time.perf_counter()
    drawn = draw_episodes(bank, episodes, episodes.count)
    network, transductive = model.network.to(require_device(device)), episodes.transductive
    scores = run_episodes(network, bank, drawn, device, transductive=transductive, watch=watch)
    seconds = time.perf_counter() - start
    return EpisodeTest(scores, episode_spectrum(network, bank, drawn, device, transductive=transductive), seconds)


def evaluate(options: EvaluateOptions, watch: Watch) -> FewShotEvaluation:
    """Test the model of a run: on its test classes, or on all classes of other data."""
    run = str(options.run)
    model, config = load_run(run), read_recipe(Path(run, CONFIG), FewShotConfig)
    if config.training.loss is not None:
        model.network.loss_name = config.training.loss
    given = {name: getattr(options, name) for name in TEST_OPTIONS if getattr(options, name) is not None}
    episodes = replace(config.test, **given)
    if options.data is None:
        bank, which, remarks = _read_own_test(model, config, options, watch)
    else:
        bank, which, remarks = _read_other(model, config, options)
    remarks += describe_left_out(bank.targets, episodes)
    tested = run_test(model, bank, episodes, options.device, watch)
    remarks += describe_few_images(tested.scores.accuracy, len(bank))
    return FewShotEvaluation(model.network.config.method, which, episodes, tested, tuple(remarks))


def _read_own_test(
    model: TrainedModel, config: FewShotConfig, options: EvaluateOptions, watch: Watch
) -> tuple[ImageBank, str, list[str]]:
    """Return the test images of a run, their description, and remarks."""
    own = replace(config, data_root=options.data_root or config.data_root, download=options.download)
    data = read_set(model.images.apply(replace(own, corrupt=options.corrupt)), watch)
    if not is_data_of(str(options.run), data.digest):
        raise RecordError(
            f"{data.name} has changed since the run was trained, so its test classes are unknown. Name the images to "
            "test with --data."
        )
    return data["test"], f"test classes of {data.name}", describe_skipped(data)


def _read_other(
    model: TrainedModel, config: FewShotConfig, options: EvaluateOptions
) -> tuple[ImageBank, str, list[str]]:
    """Return all images of other data, their description, and remarks."""
    root = options.data_root or config.data_root
    bank, name, remarks = model.images.read_all(
        str(options.data), root, download=options.download, corrupt=options.corrupt
    )
    identity = read_identity(str(options.run))
    trained = identity is not None and identity.name == name
    remarks += [f"The network was trained on some of these classes of {name}."] if trained else []
    return bank, f"all classes of {name}", remarks


def describe_skipped(data: FewShotSet) -> list[str]:
    """Return remarks about what was left out: images that could not be read, and files and folders without images."""
    return [*data.remarks, *describe_unreadable(data.skipped)]


# ---- predict ---------------------------------------------------------------------------------------------------------


def predict(options: PredictOptions) -> Predictions:
    """Classify images by a few example images of each class."""
    model = load_run(str(options.run))
    bank, _, remarks = model.images.read_all(options.support, corrupt=options.corrupt)
    labels = require_classes(bank.targets, options.support).tolist()
    support = [bank.batch((bank.targets == label).nonzero().flatten()) for label in labels]
    files = list_images(options.images)
    queries = model.images.read(files, (), options.corrupt)
    remarks += describe_unreadable(files.names, queries.names)
    queries = replace(queries, mean=bank.mean)  # of the examples: the queries may all be of one class
    scores = model.scores(support, queries.batch(torch.arange(len(queries))))
    classes = [bank.classes[label] for label in labels]
    return Predictions.of_images(queries.names, scores, classes, tuple(remarks))


# ---- analysis --------------------------------------------------------------------------------------------------------


def feature_source(folder: Path, samples: Samples) -> FeatureSource:
    """Return the features that the network of a run pools, one set for each drawn image."""
    model, identity = load_run(folder), None
    if samples.data is not None:
        bank, found, _ = model.images.read_all(samples.data, samples.data_root, download=samples.download)
        name = f"all images of {found}"
    else:
        config = read_recipe(folder / CONFIG, FewShotConfig)
        own = replace(config, data_root=samples.data_root or config.data_root, download=samples.download)
        data = read_set(model.images.apply(own))
        bank, identity = data[samples.split], DataIdentity(data.name, data.digest)
        name = f"images of the {samples.split} classes of {data.name}"
    network, drawn = model.network, samples.draw(torch.arange(len(bank)))
    parts = (network.encode(bank.batch(part)) for part in drawn.split(ANALYSIS_BATCH))
    sets = (one for maps in parts for one in feature_sets(network, maps))
    return FeatureSource(normalization(network), sets, len(drawn), name, identity)
