"""What a run of image classification is made of. A recipe is a YAML file of these fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from itertools import product
from typing import Any, Literal

from powerpool.checks import require_above, require_at_least, require_seed
from powerpool.data import Crops
from powerpool.data.images import Corrupt
from powerpool.errors import ArgumentError, PowerPoolError, require_choice
from powerpool.moments.coordinates import spatial_coordinates
from powerpool.tasks.vision.methods import METHODS

Head = Literal["ridge", "softmax"]
Training = Literal["frozen", "end-to-end"]
Precision = Literal["float16", "float32"]
TrainPrecision = Literal["32-true", "bf16-mixed", "16-mixed"]


@dataclass(frozen=True)
class PoolConfig:
    """The pool between the maps of the backbone and the classifier.

    Args:
        method: by its name in the tables, such as FOP, SOP+SC+SigmE or SOP+SC+SpecMaxExpF
        eta: parameter of MaxExp
        eta_prime: parameter of SigmE, the eta' of the paper
        gamma: parameter of Gamma
        gamma_prime: parameter of AsinhE, the gamma' of the paper
        t: parameter of HDP
        iterations: of Newton-Schulz
        beta: how much of the mean of a picture's features is removed, 0 (autocorrelation) to 1 (covariance)
        pivots: Z, the pivots of the spatial coordinates; they add 2 Z channels
        sigma: width of the spatial coordinates
        alpha: weight of the spatial coordinates
        reduce_to: channels after a 1 x 1 convolution that is trained with the classifier, for second-order methods end
            to end; null: none
        unit_scale: whether the features of a picture are divided by their root mean square norm first
        unit_norm: whether the vector that the classifier sees is scaled to length 1
    """

    method: str = "SOP+SC+SpecMaxExpF"
    eta: float = 20.0
    eta_prime: float = 500.0
    gamma: float = 0.5
    gamma_prime: float = 1000.0
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
        require_choice(self.method, tuple(METHODS), "pool.method")
        if not 0 <= self.beta <= 1:
            raise ArgumentError(f"pool.beta must be at least 0 and at most 1 (got {self.beta}).")
        if self.reduce_to is not None:
            require_at_least(1, "pool", reduce_to=self.reduce_to)
        method = METHODS[self.method]
        try:  # the curve knows what its parameter may be
            method.make_curve(self)
            method.make_solver(self)
            if method.coordinates:
                spatial_coordinates(2, 2, self.pivots, self.sigma, self.alpha)
        except PowerPoolError as error:
            named = ", ".join(f"pool.{name}={getattr(self, name)}" for name in method.parameters)
            raise ArgumentError(f"{self.method} cannot be built from {named}: {error}") from error


@dataclass(frozen=True)
class HeadConfig:
    """The linear classifier on frozen features.

    Args:
        kind: ridge, regression to one column for each class, in closed form; or softmax regression by gradient descent
        ridge_penalty: weights of the squared norm in ridge; the best on validation is taken
        epochs: of softmax regression: passes over the training pictures
        batch_size: of softmax regression: pictures in a step
        learning_rate: of softmax regression: of gradient descent with momentum 0.9; it falls to 0 as a cosine
        softmax_penalty: of softmax regression: weight decay; the best on validation is taken
        scale: of softmax regression: what centred vectors are multiplied with; the larger, the sharper the softmax
    """

    kind: Head = "ridge"
    ridge_penalty: list[float] = field(default_factory=lambda: [0.001, 0.003, 0.01, 0.03, 0.1, 0.3])
    epochs: int = 50
    batch_size: int = 32
    learning_rate: float = 0.01
    softmax_penalty: list[float] = field(default_factory=lambda: [0.0001, 0.001, 0.01])
    scale: float = 30.0

    def __post_init__(self) -> None:
        require_at_least(1, "head", epochs=self.epochs, batch_size=self.batch_size)
        require_above(0, "head", learning_rate=self.learning_rate, scale=self.scale)
        for name, bound in (("ridge_penalty", require_above), ("softmax_penalty", require_at_least)):
            values = getattr(self, name)
            if not values or len(set(values)) != len(values):
                raise ArgumentError(f"head.{name} must name at least one value, and each once (got {values}).")
            for value in values:
                bound(0, "head", **{name: value})

    @property
    def penalties(self) -> list[float]:
        """Those of the kind."""
        return self.ridge_penalty if self.kind == "ridge" else self.softmax_penalty


@dataclass(frozen=True)
class FineTuningConfig:
    """Training of backbone, pool and classifier together: RMSprop, as in the paper.

    Args:
        epochs: passes over the training pictures
        batch_size: pictures in a step
        crops: random crops of a picture, whose locations form one set; as in the paper, all of them are seen at once
        learning_rate: of the backbone, in the first epochs
        head_learning_rate: of the pool and the classifier
        smoothing: the moving average of RMSprop
        decay_every: epochs after which the rates fall
        decay_factor: what the rates are multiplied with then
        weight_decay: of RMSprop
        smallest_crop: share of the area of a picture that a random crop has at least
        flip: whether crops are mirrored at random
        jitter: how much brightness, contrast and saturation of crops vary
        batch_norm: whether statistics of batch normalization are trained, too; they need large batches
        precision: 32-true, bf16-mixed or 16-mixed
        validation: choose: validation pictures choose the epoch; train: they are trained on, too, for all epochs
        warm_start: whether the classifier begins as the one that was trained on frozen features
        devices: how many processes or GPUs
        nodes: how many machines
        logger: csv or tensorboard
    """

    epochs: int = 20
    batch_size: int = 5
    crops: int = 12
    learning_rate: float = 1e-4
    head_learning_rate: float = 1e-3
    smoothing: float = 0.99
    decay_every: int = 10
    decay_factor: float = 0.1
    weight_decay: float = 0.0
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
        require_at_least(
            1,
            "training",
            epochs=self.epochs,
            batch_size=self.batch_size,
            crops=self.crops,
            decay_every=self.decay_every,
            devices=self.devices,
            nodes=self.nodes,
        )
        require_at_least(0, "training", weight_decay=self.weight_decay, jitter=self.jitter)
        require_above(0, "training", learning_rate=self.learning_rate, head_learning_rate=self.head_learning_rate)
        for name in ("decay_factor", "smallest_crop"):
            if not 0 < getattr(self, name) <= 1:
                raise ArgumentError(f"training.{name} must be above 0 and at most 1 (got {getattr(self, name)}).")
        if not 0 <= self.smoothing < 1:
            raise ArgumentError(f"training.smoothing must be at least 0 and below 1 (got {self.smoothing}).")


@dataclass(frozen=True)
class GridConfig:
    """Values to choose from by validation; an empty list leaves the value that the pool has.

    A method that does not depend on a setting does not repeat its trials for it.
    """

    eta: list[float] = field(default_factory=list)
    eta_prime: list[float] = field(default_factory=list)
    gamma: list[float] = field(default_factory=list)
    gamma_prime: list[float] = field(default_factory=list)
    t: list[float] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)
    beta: list[float] = field(default_factory=list)
    pivots: list[int] = field(default_factory=list)
    sigma: list[float] = field(default_factory=list)
    alpha: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if len(set(values)) != len(values):
                raise ArgumentError(f"grid.{name} names a value twice (got {values}).")


@dataclass(frozen=True)
class VisionConfig:
    """Everything that a result depends on.

    Args:
        data: a data set by name, such as flower102, or a folder or zip of class folders, or hf:OWNER/NAME
        data_root: folder with data sets; without it $POWERPOOL_DATA and the cache are searched
        download: whether data and weights that are not on this machine may be fetched from the network
        corrupt: whether a picture that cannot be read is an error, or is skipped and counted
        validation_share: of the training pictures, where the data set has no validation split
        test_share: of all pictures, where the data set has no test split
        backbone: efficientnet-lite0, hf:NAME or a folder after hf:, timm:NAME or torchvision:NAME
        mode: frozen trains the classifier on stored features of the backbone; end-to-end trains everything
        crops: how a picture becomes a set of crops
        stored: how stored features are rounded
        pool: from maps to a vector
        head: the classifier on frozen features
        training: of everything together
        grid: what is chosen by validation
        accelerator: auto, cpu or gpu: where networks run
        seed: of the split, the initial weights, the order of the pictures and the augmentation
    """

    data: str = "digits"
    data_root: str | None = None
    download: bool = False
    corrupt: Corrupt = "error"
    validation_share: float = 0.2
    test_share: float = 0.2
    backbone: str = "efficientnet-lite0"
    mode: Training = "frozen"
    crops: Crops = field(default_factory=Crops)
    stored: Precision = "float16"
    pool: PoolConfig = field(default_factory=PoolConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    training: FineTuningConfig = field(default_factory=FineTuningConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("validation_share", "test_share"):
            if not 0 < getattr(self, name) < 1:
                raise ArgumentError(f"{name} must be above 0 and below 1 (got {getattr(self, name)}).")
        require_seed(self.seed)
        if self.mode == "frozen" and self.pool.reduce_to is not None:
            raise ArgumentError(
                f"pool.reduce_to needs mode end-to-end (got {self.pool.reduce_to} with mode frozen): a convolution "
                "that nothing trains would only mix the channels at random."
            )
        if self.training.warm_start and self.mode == "end-to-end" and self.training.validation == "choose":
            raise ArgumentError(
                "training.warm_start needs training.validation train (got choose): the classifier that it begins with "
                "was trained on the validation pictures, which can therefore not choose the epoch."
            )
        if self.training.warm_start and self.pool.reduce_to is not None:
            raise ArgumentError(
                f"training.warm_start needs pool.reduce_to null (got {self.pool.reduce_to}): a classifier that was "
                "trained on frozen features knows nothing of a convolution that is yet to be trained."
            )
        list(self.points())  # a value of the grid that no pool can have shows here, not after an hour

    def points(self) -> Iterator[PoolConfig]:
        """The pools of the grid, in a fixed order."""
        names = grid_names(self.pool.method)
        for point in product(*(getattr(self.grid, name) or [getattr(self.pool, name)] for name in names)):
            yield replace(self.pool, **dict(zip(names, point, strict=True)))


def grid_names(method: str) -> tuple[str, ...]:
    """What can be chosen for a method: the settings that it depends on."""
    return tuple(entry.name for entry in fields(GridConfig) if entry.name in METHODS[method].parameters)


def chosen_values(pool: PoolConfig) -> dict[str, Any]:
    """The settings that a pool depends on, by name."""
    return {name: getattr(pool, name) for name in grid_names(pool.method)}
