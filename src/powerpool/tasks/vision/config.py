"""Settings of image classification. A recipe is a YAML file of these fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any, ClassVar, Literal

from powerpool.checks import require_above, require_at_least, require_seed
from powerpool.data import Crops
from powerpool.data.images import Corrupt
from powerpool.errors import ArgumentError, require_choice
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.options import require_distinct
from powerpool.tasks.training import ClassWeights

Head = Literal["ridge", "softmax"]
Mode = Literal["frozen", "end-to-end"]
Precision = Literal["float16", "float32"]
TrainPrecision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]
PROTOCOLS: dict[Head, str] = {"ridge": "frozen", "softmax": "frozen-softmax"}
"""The names in records and tables of training on frozen features, by classifier."""
LARGEST_CROP, LARGEST_RESIZE = 4096, 8192
"""Pixels. Crops are settings of files that others hand to us: absurd ones are refused before memory is allocated."""
RENAMED_PARAMETERS = {"eta_prime": "sigme_eta", "gamma_prime": "asinhe_gamma"}
"""Names of version 0.1."""


@dataclass(frozen=True)
class PoolConfig:
    """The pool between the feature maps of the backbone and the classifier.

    Args:
        method: by its name in the tables. FOP is the mean of the map or of the tokens of patches, with C numbers;
            SOP+SC+SigmE, SOP+SC+SpecMaxExpF and others are second-order, with C (C + 1) / 2 numbers, C growing by twice
            the pivots with SC; Baseline is what the network itself has: its class token, with C numbers, or the output
            of its own layers after the map, with 1280 for efficientnet-lite0
        eta: parameter of MaxExp
        sigme_eta: parameter of SigmE, the eta' of the paper
        gamma: parameter of Gamma
        asinhe_gamma: parameter of AsinhE, the gamma' of the paper
        t: parameter of HDP
        iterations: of Newton-Schulz
        beta: strength of centering, from 0 (autocorrelation) to 1 (covariance)
        pivots: Z, the pivots of the spatial coordinates; they add 2 Z channels
        sigma: width of the spatial coordinates
        alpha: weight of the spatial coordinates
        reduce_to: channels after a 1 x 1 convolution that is trained with the classifier, for second-order methods end
            to end; null: no reduction
        unit_scale: divide the features of an image by their root mean square norm first
        unit_norm: scale the vector that the classifier gets to length 1
    """

    method: str = "SOP+SC+SpecMaxExpF"
    eta: float = 20.0
    sigme_eta: float = 500.0
    gamma: float = 0.5
    asinhe_gamma: float = 1000.0
    t: float = 0.01
    iterations: int = 5
    beta: float = 0.0
    pivots: int = 5
    sigma: float = 0.5
    alpha: float = 0.1
    reduce_to: int | None = None
    unit_scale: bool = True
    unit_norm: bool = True

    def __post_init__(self) -> None:
        require_choice(self.method, tuple(VISION_METHODS), "pool.method")
        method = VISION_METHODS[self.method]
        if self.reduce_to is not None:
            _require_range("pool.reduce_to", self.reduce_to, 1, 1 << 16)
        for name in {"pivots", "iterations"} & set(method.parameters):
            _require_range(f"pool.{name}", getattr(self, name), 1, 1000)
        method.require_settings(self.method, self, "pool")


@dataclass(frozen=True)
class HeadConfig:
    """The linear classifier on frozen features.

    Args:
        kind: ridge, regression to one-hot columns in closed form; or softmax, regression by gradient descent
        ridge_penalty: weights of the squared norm in ridge; the best on validation is used
        epochs: of softmax regression: passes over the training images
        batch_size: of softmax regression: images per step
        learning_rate: of softmax regression: gradient descent with momentum 0.9; it falls to 0 as a cosine
        softmax_penalty: of softmax regression: weight decay; the best on validation is used
        scale: of softmax regression: factor of the centred vectors; the larger, the sharper the softmax
        memory: GB for vectors and matrices of the training; images are pooled again where their vectors do not fit.
            null: half of the memory of the machine, which the processes of reproduce and sweep share
    """

    kind: Head = "ridge"
    ridge_penalty: list[float] = field(default_factory=lambda: [0.001, 0.003, 0.01, 0.03, 0.1, 0.3])
    epochs: int = 50
    batch_size: int = 32
    learning_rate: float = 0.01
    softmax_penalty: list[float] = field(default_factory=lambda: [0.0001, 0.001, 0.01])
    scale: float = 30.0
    memory: float | None = None

    def __post_init__(self) -> None:
        if self.memory is not None:
            require_above(0, "head", memory=self.memory)
        require_at_least(1, "head", epochs=self.epochs, batch_size=self.batch_size)
        require_above(0, "head", learning_rate=self.learning_rate, scale=self.scale)
        for name, require in (("ridge_penalty", require_above), ("softmax_penalty", require_at_least)):
            values = getattr(self, name)
            require_distinct(**{f"head.{name}": values})
            if not values:
                raise ArgumentError(f"head.{name} must have at least one value (got none).")
            for value in values:
                require(0, "head", **{name: value})

    @property
    def penalties(self) -> list[float]:
        """The penalties of the kind."""
        return self.ridge_penalty if self.kind == "ridge" else self.softmax_penalty


@dataclass(frozen=True)
class FineTuningConfig:
    """Training of backbone, pool and classifier together, by RMSprop as in the paper, or by AdamW.

    Args:
        epochs: passes over the training images
        batch_size: images per step
        crops: random crops of an image, whose locations form one set; as in the paper, all are pooled together
        learning_rate: of the backbone, in the first epochs
        head_learning_rate: of the pool and the classifier
        learning_rates: values of learning_rate to select from by validation, with a training for each;
            head_learning_rate changes by the same factor, unless head_learning_rates are given
        head_learning_rates: values of head_learning_rate to select from in the same way, with each of learning_rates
        search_epochs: epochs of the trainings that learning rates are selected by, the best of which is continued to
            the last epoch; null, or not less than epochs: all epochs
        optimizer: rmsprop or adamw, which with weight_decay 0 is Adam
        smoothing: of the moving average of RMSprop; AdamW has its usual averages, 0.9 and 0.999
        decay_every: epochs between two reductions of the learning rates
        decay_factor: what the learning rates are multiplied by
        weight_decay: of all weights; part of the gradient with RMSprop, and decoupled from it with AdamW
        class_weights: balanced weighs the loss of a class by the inverse of its frequency
        patience: stop after so many epochs without a better validation score; null: train all epochs
        smallest_crop: smallest share of the area of an image that a random crop covers
        flip: mirror crops at random
        jitter: how much brightness, contrast and saturation of crops vary
        batch_norm: train the statistics of batch normalization, too; this needs large batches
        precision: 32-true, bf16-mixed or 16-mixed; auto is bf16-mixed if the device has instructions for it, otherwise
            32-true
        validation: choose: validation images select the epoch; train: they are trained on, too, for all epochs
        warm_start: start from the classifier that was trained on frozen features
        devices: number of processes or GPUs on a machine
        nodes: number of machines
        logger: csv or tensorboard
    """

    epochs: int = 20
    batch_size: int = 5
    crops: int = 12
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-3
    learning_rates: list[float] = field(default_factory=list)
    head_learning_rates: list[float] = field(default_factory=list)
    search_epochs: int | None = None
    optimizer: Literal["rmsprop", "adamw"] = "rmsprop"
    smoothing: float = 0.99
    decay_every: int = 10
    decay_factor: float = 0.1
    weight_decay: float = 0.0
    class_weights: ClassWeights = "equal"
    patience: int | None = None
    smallest_crop: float = 0.5
    flip: bool = True
    jitter: float = 0.0
    batch_norm: bool = False
    precision: TrainPrecision = "32-true"
    validation: Literal["choose", "train"] = "choose"
    warm_start: bool = False
    devices: int = 1
    nodes: int = 1
    logger: Literal["csv", "tensorboard"] = "csv"

    def __post_init__(self) -> None:
        counts = ("epochs", "batch_size", "crops", "decay_every", "devices", "nodes")
        require_at_least(1, "training", **{name: getattr(self, name) for name in counts})
        require_at_least(0, "training", weight_decay=self.weight_decay, jitter=self.jitter)
        require_above(0, "training", learning_rate=self.learning_rate, head_learning_rate=self.head_learning_rate)
        for name in ("learning_rates", "head_learning_rates"):
            rates = getattr(self, name)
            require_distinct(**{f"training.{name}": rates})
            for rate in rates:
                require_above(0, "training", **{name: rate})
            if len(rates) > 1 and self.validation == "train":
                raise ArgumentError(
                    f"training.{name} must have one value where training.validation is train (got {rates}): no images "
                    "are left to select one."
                )
        if self.search_epochs is not None:
            require_at_least(1, "training", search_epochs=self.search_epochs)
        if self.patience is not None:
            require_at_least(1, "training", patience=self.patience)
            if self.validation == "train":
                raise ArgumentError(
                    f"training.patience needs training.validation choose (got {self.patience} with train): no images "
                    "are left to stop by."
                )
        for name in ("decay_factor", "smallest_crop"):
            if not 0 < getattr(self, name) <= 1:
                raise ArgumentError(f"training.{name} must be above 0 and at most 1 (got {getattr(self, name)}).")
        if not 0 <= self.smoothing < 1:
            raise ArgumentError(f"training.smoothing must be at least 0 and below 1 (got {self.smoothing}).")
        if self.precision == "auto" and self.nodes > 1:
            raise ArgumentError(
                f"training.precision auto needs training.nodes 1 (got {self.nodes}): machines may differ. Choose a "
                "precision for all of them."
            )

    @property
    def rates(self) -> list[tuple[float, float]]:
        """The pairs of learning rates to select from, of the backbone and of the rest.

        Example:
            >>> FineTuningConfig(learning_rate=0.001, head_learning_rate=0.01, learning_rates=[0.001, 0.004]).rates
            [(0.001, 0.01), (0.004, 0.04)]
            >>> FineTuningConfig(learning_rates=[0.001, 0.004], head_learning_rates=[0.01]).rates
            [(0.001, 0.01), (0.004, 0.01)]
        """
        own = self.learning_rates or [self.learning_rate]
        if self.head_learning_rates:
            return [(rate, head) for rate in own for head in self.head_learning_rates]
        return [(rate, self.head_learning_rate * (rate / self.learning_rate)) for rate in own]  # exact for a ratio of 1

    @property
    def is_searched(self) -> bool:
        """Whether learning rates are selected by trainings that are shorter than the one that is tested."""
        return len(self.rates) > 1 and self.search_epochs is not None and self.search_epochs < self.epochs

    @property
    def listed_rates(self) -> tuple[str, ...]:
        """The learning rates that values are listed for."""
        return tuple(name for name in ("learning_rate", "head_learning_rate") if getattr(self, f"{name}s"))


@dataclass(frozen=True)
class GridConfig:
    """Values to select from by validation; an empty list keeps the value of the pool.

    Settings that a method does not depend on add no grid points.
    """

    eta: list[float] = field(default_factory=list)
    sigme_eta: list[float] = field(default_factory=list)
    gamma: list[float] = field(default_factory=list)
    asinhe_gamma: list[float] = field(default_factory=list)
    t: list[float] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    beta: list[float] = field(default_factory=list)
    pivots: list[int] = field(default_factory=list)
    sigma: list[float] = field(default_factory=list)
    alpha: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        require_distinct(**{f"grid.{name}": values for name, values in vars(self).items()})


@dataclass(frozen=True)
class VisionConfig:
    """All settings of a result.

    Args:
        data: a data set by name, such as flower102, or a folder or zip of class folders, or a CSV file with the columns
            path, label and split, or WebDataset shards (a folder of them, or train-{0000..0099}.tar), or hf:OWNER/NAME
        data_root: folder with data sets; default: $POWERPOOL_DATA, then the cache
        download: allow downloads of data and weights that are not on this machine
        corrupt: error: refuse images that cannot be read; skip: leave them out and count them
        strict: refuse files in class folders that are no images, and folders without images, instead of skipping them
        validation_share: share of the training images, where the data set has no validation split
        test_share: share of the training images, where the data set has no test split; of all if it has no splits
        backbone: efficientnet-lite0, alexnet, hf:NAME or a folder after hf:, timm:NAME or torchvision:NAME; it gives a
            map of C channels, or tokens of C numbers for the patches
        backbone_weights: pretrained, or random to train end to end from scratch; then a folder after hf: needs no more
            than config.json
        mode: frozen trains the classifier on stored features of the backbone; end-to-end trains everything
        crops: how an image becomes a set of crops. Size, resize and interpolation are by default those of the image
            processor of an hf: backbone. Of another one, the default of resize for a central crop (count 1 or 2) is 256
            pixels for a size of 224, and in proportion for others
        stored: precision of stored features
        pool: from feature maps to a vector
        head: the classifier on frozen features
        training: of everything together
        grid: what is selected by validation
        widen: how many values a range of the grid or of the penalties may grow by, while the value that validation
            selects on frozen features is the first or the last of its range; 0: never
        accelerator: auto, cpu or gpu: where networks run
        workers: processes that read images, and run the backbone on a CPU; default: the number of cores
        seed: of the split, the initial weights, the order of the images and the augmentation
        split_seed: of the split, if another one
        split_file: CSV file with the columns path, label and split, and paths relative to the folder or zip of data;
            default: its splits.csv, if there is one
    """

    RENAMED: ClassVar[dict[str, str]] = {
        f"{group}.{old}": f"{group}.{new}" for group in ("pool", "grid") for old, new in RENAMED_PARAMETERS.items()
    }
    data: str = "digits"
    data_root: str | None = None
    download: bool = False
    corrupt: Corrupt = "error"
    strict: bool = False
    validation_share: float = 0.2
    test_share: float = 0.2
    backbone: str = "efficientnet-lite0"
    backbone_weights: Literal["pretrained", "random"] = "pretrained"
    mode: Mode = "frozen"
    crops: Crops = field(default_factory=Crops)
    stored: Precision = "float16"
    pool: PoolConfig = field(default_factory=PoolConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    training: FineTuningConfig = field(default_factory=FineTuningConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    widen: int = 3
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    workers: int | None = None
    seed: int = 0
    split_seed: int | None = None
    split_file: str | None = None

    def __post_init__(self) -> None:
        for name in ("validation_share", "test_share"):
            if not 0 < getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be above 0 and below 1 (got {getattr(self, name)}).")
        require_seed(self.seed)
        if self.split_seed is not None:
            require_seed(self.split_seed, "split_seed")
        require_crops(self.crops)
        require_workers(self.workers)
        _require_range("widen", self.widen, 0, 10)
        if self.backbone_weights == "random" and (self.mode == "frozen" or self.training.warm_start):
            raise ArgumentError(
                "backbone_weights random needs mode end-to-end without training.warm_start (got "
                f"{'training.warm_start' if self.mode == 'end-to-end' else 'mode frozen'}): features of random weights "
                "are not worth keeping."
            )
        if self.mode == "frozen" and self.pool.reduce_to is not None:
            raise ArgumentError(
                f"pool.reduce_to needs mode end-to-end (got {self.pool.reduce_to} with mode frozen): frozen features "
                "leave the convolution untrained."
            )
        if self.training.warm_start and self.mode == "end-to-end" and self.training.validation == "choose":
            raise ArgumentError(
                "training.warm_start needs training.validation train (got choose): the first classifier is trained on "
                "the validation images, so they cannot select the epoch."
            )
        if self.training.warm_start and self.pool.reduce_to is not None:
            raise ArgumentError(
                f"training.warm_start needs pool.reduce_to null (got {self.pool.reduce_to}): a classifier of frozen "
                "features does not fit reduced ones."
            )
        list(self.points())  # a bad grid value fails here, not after an hour

    @classmethod
    def derive(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the crops of the image processor of the backbone, unless their size is among the settings.

        A central crop is cut from an image whose short side is 256/224 of its size, as usual for ImageNet. The settings
        of a finished run name their resize, so that its crops stay as they are.

        Example:
            >>> VisionConfig.derive({"crops.count": 1}), VisionConfig.derive({"crops.count": 12})
            ({'crops.resize': 256}, {})
        """
        from powerpool.integrations.backbones import read_preprocessing  # imports torch

        backbone, download = settings.get("backbone"), settings.get("download") is True
        found = None
        if isinstance(backbone, str) and "crops.size" not in settings:
            found = read_preprocessing(backbone, download=download)
        if found is None or found.size is None:
            size, is_whole = settings.get("crops.size", Crops.size), settings.get("crops.layout") == "whole"
            is_central = settings.get("crops.count") in (1, 2) and not is_whole
            return {"crops.resize": round(size * 256 / 224)} if is_central and isinstance(size, int) else {}
        return {
            "crops.size": found.size,
            "crops.resize": found.resize,
            "crops.interpolation": found.interpolation,
        }

    @classmethod
    def complete(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the settings of a run stand for that was started before ranges could widen."""
        return {"widen": 0} if settings.get("mode") == "frozen" or settings.get("training.warm_start") else {}

    @property
    def pretrained(self) -> bool:
        """Whether the backbone starts from its weights."""
        return self.backbone_weights == "pretrained"

    def points(self) -> Iterator[PoolConfig]:
        """Iterate over the pools of the grid, in a fixed order."""
        names = grid_names(self.pool.method)
        for point in product(*(getattr(self.grid, name) or [getattr(self.pool, name)] for name in names)):
            yield replace(self.pool, **dict(zip(names, point, strict=True)))


def grid_names(method: str) -> tuple[str, ...]:
    """Return the settings that can be selected for a method: those that it depends on."""
    return tuple(entry.name for entry in fields(GridConfig) if entry.name in VISION_METHODS[method].parameters)


def grid_values(pool: PoolConfig) -> dict[str, float]:
    """Return the values of a grid point."""
    return {name: getattr(pool, name) for name in grid_names(pool.method)}


def require_crops(crops: Crops) -> None:
    """Refuse crops that would fill the memory."""
    _require_range("crops.size", crops.size, 1, LARGEST_CROP)
    if crops.resize is not None:
        _require_range("crops.resize", crops.resize, 1, LARGEST_RESIZE)


def require_workers(workers: int | None) -> None:
    """Refuse a negative number of worker processes."""
    if workers is not None:
        require_at_least(0, "", workers=workers)


def _require_range(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ArgumentError(f"{name} must be from {least} to {most:,} (got {value}).")
