"""What a run of graph classification is made of. A recipe is a YAML file of these fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, get_args

from powerpool.checks import require_at_least, require_seed
from powerpool.errors import ArgumentError, PowerPoolError, require_choice
from powerpool.tasks.devices import require_device_name
from powerpool.tasks.graph.methods import METHODS

Features = Literal["auto", "labels", "degree", "constant"]
Protocol = Literal["validation-only", "retrain"]
BatchNorm = Literal["recomputed", "running"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)


@dataclass(frozen=True)
class ModelConfig:
    """GIN0 and its readout.

    Args:
        method: the readout, by its name in the tables, such as GIN0, SOP or SOP+SpecMaxExpF
        hidden: channels of every layer
        layers: graph convolutions
        neighbours: in a training step every node sees at most this many of its neighbours, drawn anew; null: all
        eta: parameter of MaxExp and SigmE
        gamma: parameter of Gamma
        asinhe_gamma: parameter of AsinhE
        t: parameter of HDP and FAHDP
        iterations: of Newton-Schulz
        beta: how much of the mean of a graph's features is removed, 0 (autocorrelation) to 1 (covariance)
        dropout: share of the hidden units of the head that are dropped in training
    """

    method: str = "SOP+SpecMaxExpF"
    hidden: int = 64
    layers: int = 4
    neighbours: int | None = None
    eta: float = 20.0
    gamma: float = 0.5
    asinhe_gamma: float = 10.0
    t: float = 0.01
    iterations: int = 5
    beta: float = 0.0
    dropout: float = 0.5

    def __post_init__(self) -> None:
        require_choice(self.method, tuple(METHODS), "model.method")
        require_at_least(1, "model", hidden=self.hidden, layers=self.layers, iterations=self.iterations)
        if self.neighbours is not None:
            require_at_least(1, "model", neighbours=self.neighbours)
        if not 0 <= self.beta <= 1:
            raise ArgumentError(f"model.beta must be at least 0 and at most 1 (got {self.beta}).")
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"model.dropout must be at least 0 and below 1 (got {self.dropout}).")
        method = METHODS[self.method]
        if method.rectified and self.beta:
            raise ArgumentError(
                f"model.beta must be 0 for {self.method} (got {self.beta}): centred features give negative entries, "
                "which this curve has no value for. Take SOP+SigmE or SOP+AsinhE, or a method on the spectrum."
            )
        try:  # the curve knows what its parameter may be
            method.make_curve(self)
            method.make_solver(self)
        except PowerPoolError as error:
            named = ", ".join(f"model.{name}={getattr(self, name)}" for name in method.parameters)
            raise ArgumentError(f"{self.method} cannot be built from {named}: {error}") from error


@dataclass(frozen=True)
class TrainingConfig:
    """Adam with a rate that falls in steps.

    Args:
        epochs: passes over the training graphs
        batch_size: graphs in a step
        learning_rate: of Adam, in the first epochs
        decay_every: epochs after which the rate falls
        decay_factor: what the rate is multiplied with then
        weight_decay: of Adam
        batch_norm: statistics that a model is evaluated with: recomputed from the training graphs with the weights as
            they are, or running, as they were gathered while the weights changed
        device: cpu, cuda or cuda:1
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 0.01
    decay_every: int = 50
    decay_factor: float = 0.5
    weight_decay: float = 0.0
    batch_norm: BatchNorm = "recomputed"
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_at_least(1, "training", epochs=self.epochs, decay_every=self.decay_every)
        # A batch of one graph with one node has no variance.
        require_at_least(2, "training", batch_size=self.batch_size)
        require_at_least(0, "training", weight_decay=self.weight_decay)
        if not self.learning_rate > 0:
            raise ArgumentError(f"training.learning_rate must be above 0 (got {self.learning_rate}).")
        if not 0 < self.decay_factor <= 1:
            raise ArgumentError(f"training.decay_factor must be above 0 and at most 1 (got {self.decay_factor}).")
        require_choice(self.batch_norm, get_args(BatchNorm), "training.batch_norm")
        require_device_name(self.device)


@dataclass(frozen=True)
class GridConfig:
    """Values to choose from by validation loss; an empty list leaves the value that the model has.

    Args:
        hidden: channels of every layer
        layers: graph convolutions
        eta: parameter of MaxExp and SigmE; methods without it do not repeat their trials
    """

    hidden: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    eta: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if len(set(values)) != len(values):
                raise ArgumentError(f"grid.{name} names a value twice (got {values}).")


@dataclass(frozen=True)
class GraphConfig:
    """Everything that a result depends on, beside the fold.

    Args:
        data: a set of the TU collection, such as MUTAG, or a folder or zip in the TU format
        data_root: folder with data sets, as zips or folders; without it $POWERPOOL_DATA and the cache are searched
        features: one-hot node features: labels, degree, constant, or auto: labels, else degree, but constant for REDDIT
        degree_cap: the last column of degree features is for this degree and all higher ones
        download: whether data that is not on this machine may be fetched from the network
        model: GIN0 and its readout
        training: Adam and its schedule
        grid: what is chosen by validation loss
        folds: parts that the graphs are cut into; one is for test, one for validation
        seed: of the folds, the initial weights, the order of the graphs and dropout
    """

    data: str = "MUTAG"
    data_root: str | None = None
    features: Features = "auto"
    degree_cap: int = 500
    download: bool = False
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    folds: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        require_at_least(1, "", degree_cap=self.degree_cap)
        require_at_least(3, "", folds=self.folds)
        require_seed(self.seed)
        list(self.points())  # a value of the grid that no model can have shows here, not after an hour

    def points(self) -> Iterator[ModelConfig]:
        """The models of the grid, in a fixed order."""
        names = grid_names(self.model.method)
        for point in product(*(getattr(self.grid, name) or [getattr(self.model, name)] for name in names)):
            yield replace(self.model, **dict(zip(names, point, strict=True)))


def grid_names(method: str) -> tuple[str, ...]:
    """What can be chosen for a method: eta only where it has one."""
    return ("hidden", "layers", "eta") if "eta" in METHODS[method].parameters else ("hidden", "layers")
