"""Settings of graph classification. A recipe is a YAML file of these fields."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, Literal, get_args

from powerpool.checks import require_at_least, require_seed
from powerpool.errors import ArgumentError, require_choice
from powerpool.runs.record import Chosen
from powerpool.tasks.graph.backbones import BACKBONES
from powerpool.tasks.methods import GRAPH_METHODS
from powerpool.tasks.training import ClassWeights, require_device_name

Features = Literal["auto", "labels", "degree", "constant", "attributes", "labels+attributes"]
Edges = Literal["undirected", "symmetrise", "directed"]
Protocol = Literal["validation-only", "retrain"]
BatchNorm = Literal["recomputed", "running"]
Mean = Literal["concat"]
RetrainEpochs = Literal["all", "selected"]
PROTOCOLS: tuple[str, ...] = get_args(Protocol)
TEST_PROTOCOLS = TEST_EPOCH, TEST_EPOCH_PER_FOLD = ("test-epoch", "test-epoch-per-fold")
OPTIMISTIC = "chosen on test graphs: optimistic, only for comparison with published figures"
NO_MEAN = "none"
"""What records call a readout without the mean."""
MOST_LAYERS = 256
"""More come from damaged or hostile files, and would take long to build."""


@dataclass(frozen=True)
class ModelConfig:
    """The backbone and its readout.

    Args:
        method: the readout, by its name in the tables, such as GIN0, SOP or SOP+SpecMaxExpF
        hidden: channels of every layer
        layers: graph convolutions
        backbone: the graph convolutions: GIN0, GIN-eps, GCN or GraphSAGE; GINE, GATv2 or PNA, which use edge features
        neighbours: most neighbours of a node in a training step, sampled anew each time; null uses all
        eta: parameter of MaxExp
        sigme_eta: parameter of SigmE
        gamma: parameter of Gamma
        asinhe_gamma: parameter of AsinhE
        t: parameter of HDP and FAHDP
        iterations: of Newton-Schulz
        beta: strength of centering, from 0 (autocorrelation) to 1 (covariance)
        mean: concat appends the mean of the nodes to a second-order readout; null leaves it out
        trace_power: a second-order readout is multiplied by this power of the trace of the moment
        dropout: dropout rate of the head
    """

    method: str = "SOP+SpecMaxExpF"
    hidden: int = 64
    layers: int = 4
    backbone: str = "GIN0"
    neighbours: int | None = None
    eta: float = 20.0
    sigme_eta: float = 20.0
    gamma: float = 0.5
    asinhe_gamma: float = 10.0
    t: float = 0.01
    iterations: int = 5
    beta: float = 0.0
    mean: Mean | None = None
    trace_power: float = 0.0
    dropout: float = 0.5

    def __post_init__(self) -> None:
        require_choice(self.method, tuple(GRAPH_METHODS), "model.method")
        require_choice(self.mean or "concat", get_args(Mean), "model.mean")
        require_choice(self.backbone, BACKBONES, "model.backbone")
        require_at_least(1, "model", hidden=self.hidden, iterations=self.iterations)
        if not 1 <= self.layers <= MOST_LAYERS:
            raise ArgumentError(f"model.layers must be from 1 to {MOST_LAYERS} (got {self.layers}).")
        if self.neighbours is not None:
            require_at_least(1, "model", neighbours=self.neighbours)
        if not 0 <= self.dropout < 1:
            raise ArgumentError(f"model.dropout must be at least 0 and below 1 (got {self.dropout}).")
        if not abs(self.trace_power) < math.inf:
            raise ArgumentError(f"model.trace_power must be finite (got {self.trace_power}).")
        GRAPH_METHODS[self.method].require_settings(self.method, self, "model")

    @property
    def title(self) -> str:
        """The name in tables."""
        return name_in_tables(self.method, self.backbone)


def name_in_tables(method: str, backbone: str) -> str:
    """Return the name of a readout, with the backbone if that is not GIN0, as GCN, GCN+Max or GCN+SOP."""
    return method if backbone == "GIN0" else f"{backbone}+{method}".replace("+GIN0", "")


@dataclass(frozen=True)
class TrainingConfig:
    """Adam with a learning rate that falls in steps.

    Args:
        epochs: passes over the training graphs
        batch_size: graphs per step
        learning_rate: initial learning rate
        decay_every: epochs between two reductions of the learning rate
        decay_factor: what the learning rate is multiplied by
        weight_decay: of Adam
        batch_norm: statistics used in evaluation: recomputed from the training graphs with the current weights, or the
            running ones
        retrain_epochs: how long protocol retrain trains: all epochs, or as many as validation selected
        search_epochs: epochs after which the grid point is selected; only its training is continued to the last epoch.
            Default: every point is trained for all epochs
        seed: of initial weights, batches and dropout; default: that of the folds
        class_weights: balanced weighs the loss of a class by the inverse of its frequency
        device: cpu, cuda or cuda:1
    """

    epochs: int = 100
    batch_size: int = 128
    learning_rate: float = 0.01
    decay_every: int = 50
    decay_factor: float = 0.5
    weight_decay: float = 0.0
    batch_norm: BatchNorm = "recomputed"
    retrain_epochs: RetrainEpochs = "all"
    search_epochs: int | None = None
    seed: int | None = None
    class_weights: ClassWeights = "equal"
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_at_least(1, "training", epochs=self.epochs, decay_every=self.decay_every)
        # Batch normalization needs two nodes, and a graph may have one.
        require_at_least(2, "training", batch_size=self.batch_size)
        require_at_least(0, "training", weight_decay=self.weight_decay)
        if not self.learning_rate > 0:
            raise ArgumentError(f"training.learning_rate must be above 0 (got {self.learning_rate}).")
        if not 0 < self.decay_factor <= 1:
            raise ArgumentError(f"training.decay_factor must be above 0 and at most 1 (got {self.decay_factor}).")
        require_choice(self.batch_norm, get_args(BatchNorm), "training.batch_norm")
        require_choice(self.retrain_epochs, get_args(RetrainEpochs), "training.retrain_epochs")
        if self.search_epochs is not None:
            require_at_least(1, "training", search_epochs=self.search_epochs)
        if self.seed is not None:
            require_seed(self.seed)
        require_choice(self.class_weights, get_args(ClassWeights), "training.class_weights")
        require_device_name(self.device)


@dataclass(frozen=True)
class GridConfig:
    """Values to select from by validation loss; an empty list keeps the value of the model or the training.

    Args:
        hidden: channels of every layer
        layers: graph convolutions
        dropout: dropout rate of the head
        learning_rate: initial learning rate
        beta: strength of centering
        mean: concat, or null for no mean
        trace_power: power of the trace
        eta: parameter of MaxExp
        sigme_eta: parameter of SigmE
        gamma: parameter of Gamma
        asinhe_gamma: parameter of AsinhE
        t: parameter of HDP and FAHDP
        iterations: of Newton-Schulz
    """

    hidden: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    dropout: list[float] = field(default_factory=list)
    learning_rate: list[float] = field(default_factory=list)
    beta: list[float] = field(default_factory=list)
    mean: list[Mean | None] = field(default_factory=list)
    trace_power: list[float] = field(default_factory=list)
    eta: list[float] = field(default_factory=list)
    sigme_eta: list[float] = field(default_factory=list)
    gamma: list[float] = field(default_factory=list)
    asinhe_gamma: list[float] = field(default_factory=list)
    t: list[float] = field(default_factory=list)
    iterations: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name, values in vars(self).items():
            if len(set(values)) != len(values):
                raise ArgumentError(f"grid.{name} must not repeat a value (got {values}).")

    def __bool__(self) -> bool:
        return any(vars(self).values())


EVERY_METHOD = ("hidden", "layers", "dropout", "learning_rate")
"""Settings of the grid that every method depends on."""


@dataclass(frozen=True)
class Point:
    """A point of the grid."""

    model: ModelConfig
    training: TrainingConfig
    values: dict[str, Chosen] = field(compare=False)
    """What records show of it: sizes, the parameter of the curve, and all that is searched."""


@dataclass(frozen=True)
class GraphConfig:
    """All settings of a result.

    Args:
        data: a data set of the TU collection, such as MUTAG, a folder or zip in the TU format, a saved data set of PyG
            (FILE.pt), or a graph property data set of OGB, such as ogbg-molhiv
        data_root: folder with data sets, as zips or folders; default: $POWERPOOL_DATA, then the cache
        features: node features: labels, attributes, labels+attributes, degree, constant; or auto: labels and attributes
            (labels only for the data sets of the paper), else degree, but constant for REDDIT
        edges: undirected refuses edges without a reverse, symmetrise adds it, directed keeps edges as they are
        degree_cap: the last column of degree features stands for this degree and all higher ones
        download: allow downloads of data that is not on this machine
        permute_labels: a control: the labels of all graphs are shuffled, so that nothing can be learnt from the graphs
        model: GIN0 and its readout
        training: Adam and its schedule
        grid: what is selected by validation loss
        plain_grid: used instead of grid, if it has a value, for second-order readouts without a parameter to search:
            SOP and SOP+NewtonSchulz
        first_order_grid: used instead of grid, if it has a value, for first-order readouts: mean, sum, maximum, Set2Set
        search: false trains the values of model and training alone, whatever the grids are
        folds: number of folds; one is tested on, one validates
        seed: of folds, and of initial weights, batches and dropout unless training.seed is given
    """

    data: str = "MUTAG"
    data_root: str | None = None
    features: Features = "auto"
    edges: Edges = "undirected"
    degree_cap: int = 500
    download: bool = False
    permute_labels: bool = False
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    plain_grid: GridConfig = field(default_factory=GridConfig)
    first_order_grid: GridConfig = field(default_factory=GridConfig)
    search: bool = True
    folds: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice(self.features, get_args(Features), "features")
        require_choice(self.edges, get_args(Edges), "edges")
        require_at_least(1, "", degree_cap=self.degree_cap)
        require_at_least(3, "", folds=self.folds)
        require_seed(self.seed)
        list(self.points())  # a bad grid value fails here, not after an hour

    @property
    def own_grid(self) -> GridConfig:
        """The grid of the method."""
        method = GRAPH_METHODS[self.model.method]
        if method.order == "first":
            return self.first_order_grid or self.grid
        return self.plain_grid or self.grid if method.norm.parameter in (None, "iterations") else self.grid

    @property
    def training_seed(self) -> int:
        """The seed of trainings: that of the folds unless another is given."""
        return self.seed if self.training.seed is None else self.training.seed

    @property
    def short_search(self) -> int | None:
        """Epochs of each grid point where only the selected one is trained to the last epoch; None if all are."""
        epochs = self.training.search_epochs
        is_short = epochs is not None and epochs < self.training.epochs
        return epochs if is_short and len(list(self.points())) > 1 else None

    def fold_seed(self, fold: int) -> int:
        """Return the seed of all trainings on a fold, the same for all methods."""
        return 1000 * self.training_seed + fold

    def with_training_seed(self, seed: int) -> GraphConfig:
        """Return the settings with a seed of trainings; that of the folds is left out, to find stored units."""
        return replace(self, training=replace(self.training, seed=None if seed == self.seed else seed))

    def points(self) -> Iterator[Point]:
        """Iterate over the grid, in a fixed order."""
        grid = {name: getattr(self.own_grid, name) for name in grid_names(self.model.method)}
        own = {**vars(self.training), **vars(self.model)}
        shown = ("hidden", "layers", GRAPH_METHODS[self.model.method].norm.parameter)
        for values in product(*((self.search and grid[name]) or [own[name]] for name in grid)):
            point = dict(zip(grid, values, strict=True))
            kept = {name: value for name, value in point.items() if grid[name] or name in shown}
            if "mean" in kept:
                kept["mean"] = kept["mean"] or NO_MEAN
            yield Point(*self._place(point), kept)

    def at(self, values: Mapping[str, Any]) -> GraphConfig:
        """Return these settings with the values of a grid point, as records show them, and without a search."""
        point = {name: None if name == "mean" and value == NO_MEAN else value for name, value in values.items()}
        model, training = self._place(point)
        return replace(self, model=model, training=training, search=False)

    def _place(self, values: Mapping[str, Any]) -> tuple[ModelConfig, TrainingConfig]:
        model = {name: value for name, value in values.items() if name != "learning_rate"}
        model |= {name: int(model[name]) for name in ("hidden", "layers", "iterations") if name in model}
        rate = values.get("learning_rate", self.training.learning_rate)
        return replace(self.model, **model), replace(self.training, learning_rate=rate)


def grid_names(method: str) -> tuple[str, ...]:
    """Return the settings that can be selected for a method."""
    return (*EVERY_METHOD, *GRAPH_METHODS[method].parameters)
