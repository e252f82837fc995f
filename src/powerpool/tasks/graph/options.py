"""Options of ``powerpool train|evaluate|predict|reproduce graph``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from powerpool.checks import require_seed
from powerpool.errors import ArgumentError, require_choice
from powerpool.tasks import options as base
from powerpool.tasks.graph.backbones import BACKBONES
from powerpool.tasks.graph.config import PROTOCOLS, TEST_PROTOCOLS, Edges, Features, GraphConfig, Protocol
from powerpool.tasks.methods import GRAPH_METHODS, MORE_READOUTS
from powerpool.tasks.options import read_layered, require_answer_file, require_distinct, take_fields


@dataclass(frozen=True)
class RunConfig(GraphConfig):
    """What ``config.yaml`` of a run folder holds.

    Args:
        protocol: validation-only keeps the selected model; retrain trains it again on all but the test graphs, for
            training.retrain_epochs
        fold: which fold is tested on
    """

    protocol: Protocol = "validation-only"
    fold: int = 0


@dataclass(frozen=True)
class TrainOptions(RunConfig):
    """Train GIN0 with one readout, select epoch and grid point by validation, test once, and keep the model.

    Args:
        out: run folder; default: runs/train/graph/DATA/METHOD
        overwrite: start anew where the folder contains another run, instead of refusing
    """

    task: ClassVar[str] = "graph"
    out: str | None = None
    overwrite: bool = False

    @property
    def config(self) -> GraphConfig:
        """The settings of the task."""
        return take_fields(self, GraphConfig)

    def stored_config(self, config: GraphConfig) -> RunConfig:
        """Return the settings that are stored with the run."""
        return RunConfig(**vars(config), protocol=self.protocol, fold=self.fold)

    @property
    def chain(self) -> int:
        """The fold to train."""
        return self.fold

    @property
    def protocols(self) -> Sequence[str]:
        """The protocol as a list of one."""
        return [self.protocol]

    def default_folder(self, data: str) -> Path:
        """Return the run folder where none is given."""
        return Path("runs", "train", "graph", data, self.model.title)


@dataclass(frozen=True)
class EvaluateOptions(base.EvaluateOptions):
    """Test the model of a run: on the test graphs of its fold, or on other labelled graphs.

    Args:
        run: run folder of 'powerpool train graph'
        data: other graphs, all of which are tested: a data set, a folder or zip in the TU format, or a FILE.pt of PyG
        data_root: folder with data sets; default: that of the run
        download: allow downloads of data that is not on this machine
        out: JSON file for the results; default: evaluation.json in the run folder
    """

    task: ClassVar[str] = "graph"


@dataclass(frozen=True)
class PredictOptions:
    """Predict the class of graphs, with the probability of each class, by the model of a run.

    Args:
        run: run folder of 'powerpool train graph'
        data: the graphs: a data set, a folder or zip in the TU format, or a FILE.pt of PyG; graph labels are not needed
        data_root: folder with data sets
        download: allow downloads of data that is not on this machine
        out: file for the predictions, .csv or .json; default: CSV is printed
    """

    task: ClassVar[str] = "graph"
    run: str
    data: str
    data_root: str | None = None
    download: bool = False
    out: str | None = None

    def __post_init__(self) -> None:
        require_answer_file(self.out)


@dataclass(frozen=True)
class ReproduceOptions(base.ReproduceOptions):
    """Train and test readouts on all folds, and compare them with the figures of the paper.

    Args:
        data: data sets of the TU collection, folders or zips in the TU format, or saved data sets of PyG (FILE.pt)
        protocols: validation-only and retrain, or one of them. test-epoch takes the best epoch of the mean test curve
            over folds, as the code of GIN does, and test-epoch-per-fold the best epoch of each fold, as that of SOPool
            does; both are chosen on test graphs: optimistic, only for comparison with published figures
        features: node features: labels, attributes, labels+attributes, degree, constant or auto; default: those of the
            recipe
        edges: undirected refuses edges without a reverse, symmetrise adds it, directed keeps edges as they are;
            default: that of the recipe
        backbone: the graph convolutions: GIN0, GIN-eps, GCN, GraphSAGE, GINE, GATv2 or PNA; default: those of the
            recipe
        permute_labels: a control: the labels of all graphs are shuffled
        full: a grid over the whole ranges of the paper: hours to days
        seed: of folds, weights and batches; default: that of the recipe
        seeds: of initial weights, batches and dropout, on the same folds; the first searches the grid, and the others
            use what it selected on each fold; default: that of the folds
        fold_subset: folds to run, counted from 0; default: all
    """

    task: ClassVar[str] = "graph"
    default_data: ClassVar[str] = "MUTAG"
    methods: list[str] = field(default_factory=lambda: [name for name in GRAPH_METHODS if name not in MORE_READOUTS])
    protocols: list[str] = field(default_factory=lambda: list(PROTOCOLS))
    full: bool = False
    features: Features | None = None
    edges: Edges | None = None
    backbone: str | None = None
    permute_labels: bool | None = None
    seed: int | None = None
    seeds: list[int] = field(default_factory=list)
    fold_subset: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        for seed in self.seeds:
            require_seed(seed)
        for protocol in self.protocols:
            require_choice(protocol, (*PROTOCOLS, *TEST_PROTOCOLS), "value of protocols")
        if self.backbone is not None:
            require_choice(self.backbone, BACKBONES, "backbone")
        require_distinct(protocols=self.protocols, seeds=self.seeds, fold_subset=self.fold_subset)
        if not self.protocols or not self.methods:
            raise ArgumentError("protocols and methods must each have at least one value.")
        if self.full and (self.quick or self.recipe):
            raise ArgumentError("--full excludes --quick and --recipe: each chooses the settings.")

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.out or "runs/reproduce/graph-full") if self.full else super().folder

    def read_config(self, data: str | None) -> GraphConfig:
        """Return the settings for a data set; None stands for the one that the recipe names."""
        scales = [name for name in ("quick", "full") if getattr(self, name)]
        # Methods come from the options. The baseline fits whatever parameters a recipe has for others.
        return read_layered(
            GraphConfig,
            "graph",
            data,
            self.recipe,
            scales,
            data_root=self.data_root,
            download=self.download,
            features=self.features,
            edges=self.edges,
            permute_labels=self.permute_labels,
            seed=self.seed,
            model__method="GIN0",
            model__backbone=self.backbone,
        )
