"""Trained graph classifiers: loading them from run folders, testing them, and predicting with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.console import TextTable
from powerpool.data import DataError, Fold, GraphSet, NodeFeatures, load_graphs
from powerpool.errors import RecordError
from powerpool.runs.config import read_recipe
from powerpool.runs.environment import environment
from powerpool.runs.folder import CONFIG, MODEL, DataIdentity, build_network, is_data_of, read_model
from powerpool.runs.typed import Json, to_json
from powerpool.tasks.base import Evaluation, confusion_matrix
from powerpool.tasks.graph.config import GraphConfig, ModelConfig
from powerpool.tasks.graph.dataset import permute_labels
from powerpool.tasks.graph.model import GraphClassifier, make_network
from powerpool.tasks.graph.options import EvaluateOptions, PredictOptions, RunConfig
from powerpool.tasks.graph.scores import MAE, Objective, measure
from powerpool.tasks.graph.training import collate, compute_logits
from powerpool.tasks.pooling import FeatureSource, Samples
from powerpool.tasks.predictions import Predictions

ANALYSIS_BATCH = 32


@dataclass(frozen=True)
class ModelSpec:
    """What ``model.json`` holds: the settings of the network, and how graphs are read for it."""

    config: ModelConfig
    features: NodeFeatures
    classes: tuple[int, ...]
    """The label of each class; empty for regression."""
    edge_features: NodeFeatures | None = None
    edges: str = "undirected"
    """How edges without a reverse are read."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, and how graphs are read for it.

    Example:
        >>> from powerpool.data import load_graphs
        >>> graphs = load_graphs("MUTAG")
        >>> config = ModelConfig("SOP", hidden=16, layers=2)
        >>> network = GraphClassifier(config, graphs.channels, classes=2)
        >>> model = TrainedModel(config, network, graphs.features, graphs.classes)
        >>> model.probabilities(graphs).shape
        torch.Size([188, 2])
    """

    config: ModelConfig
    network: GraphClassifier
    features: NodeFeatures
    classes: tuple[int, ...]
    edge_features: NodeFeatures | None = None
    edges: str = "undirected"

    @property
    def spec(self) -> ModelSpec:
        """What is stored beside the weights."""
        return ModelSpec(self.config, self.features, self.classes, self.edge_features, self.edges)

    def read(
        self, data: str | Path, root: str | Path | None = None, *, labelled: bool = True, **kwargs: Any
    ) -> GraphSet:
        """Read graphs with the node features and classes of the model; see :func:`powerpool.data.load_graphs`."""
        graphs = load_graphs(
            data,
            root,
            features=self.features,
            edge_features=self.edge_features or False,
            edges=self.edges,
            classes=self.classes or None,
            labelled=labelled,
            **kwargs,
        )
        if labelled and not self.classes and not graphs.is_regression:
            raise DataError(f"{graphs.name} has classes, and the model predicts numbers. Give it graphs with targets.")
        return graphs

    def logits(
        self, graphs: GraphSet, chosen: Tensor | Sequence[int] | None = None, batch_size: int = 128
    ) -> Tensor:  # shape: (graphs, classes)
        """Return the logits of all graphs, or of those with the given indices."""
        indices = torch.arange(len(graphs)) if chosen is None else torch.as_tensor(chosen)
        return compute_logits(self.network, collate(graphs, indices, batch_size))

    def probabilities(
        self, graphs: GraphSet, chosen: Tensor | Sequence[int] | None = None, batch_size: int = 128
    ) -> Tensor:  # shape: (graphs, classes)
        """Return the probability of each class."""
        return self.logits(graphs, chosen, batch_size).softmax(-1)


def load_run(folder: str | Path) -> TrainedModel:
    """Load the model of a run folder."""
    stored = read_model(folder, "graph", ModelSpec, _convert_old)
    spec = stored.spec

    def make() -> GraphClassifier:
        return make_network(spec.config, spec.features, spec.edge_features, len(spec.classes))

    network = build_network(make, stored.weights, Path(folder, MODEL))
    return TrainedModel(spec.config, network, spec.features, spec.classes, spec.edge_features, spec.edges)


def _convert_old(state: dict[str, Json]) -> Json:
    """Convert the content of a ``model.pt`` of version 0.1, where ``eta`` was also the parameter of SigmE."""
    config = dict(state["config"])
    if config.get("method") == "SOP+SigmE" and "eta" in config:
        config["sigme_eta"] = config["eta"]
    features = {"kind": state["features"]["kind"], "values": list(state["features"]["values"])}
    return {"config": config, "features": features, "classes": list(state["classes"])}


@dataclass(frozen=True)
class GraphEvaluation(Evaluation):
    """Accuracy, mean cross-entropy, accuracy by class and confusion matrix of a classifier on some graphs."""

    method: str
    data: str
    graphs: str
    """Which graphs of the data."""
    accuracy: float
    loss: float
    count: int
    classes: tuple[int, ...]
    matrix: tuple[tuple[int, ...], ...]
    """A row for each true class, a column for each predicted one."""
    measures: dict[str, float]
    """Balanced accuracy and ROC-AUC in %."""
    remarks: tuple[str, ...] = ()

    @property
    def accuracy_by_class(self) -> dict[str, float | None]:
        """Accuracy in % of each class; None for a class without graphs."""
        return {
            str(label): 100 * row[place] / sum(row) if sum(row) else None
            for place, (label, row) in enumerate(zip(self.classes, self.matrix, strict=True))
        }

    def plain(self) -> dict[str, Json]:
        return {
            "data": self.data,
            "graphs": self.graphs,
            "accuracy": self.accuracy,
            "loss": self.loss,
            "count": self.count,
            "measures": dict(self.measures),
            "accuracy_by_class": self.accuracy_by_class,
            "confusion": [list(row) for row in self.matrix],
            "environment": to_json(environment()),
        }

    def tables(self) -> list[TextTable]:
        title = (
            f"{self.method} on {self.graphs} of {self.data}: accuracy {self.accuracy:.1f} %, "
            f"{describe_measures(self.measures)}, loss {self.loss:.3f}, {self.count} graphs"
        )
        rows = []
        for label, row in zip(self.classes, self.matrix, strict=True):
            accuracy = self.accuracy_by_class[str(label)]
            rows.append((str(label), str(sum(row)), "-" if accuracy is None else f"{accuracy:.1f}", *map(str, row)))
        predicted = (f"predicted {label}" for label in self.classes)
        return [TextTable(title, ("true class", "graphs", "accuracy %", *predicted), tuple(rows))]


@dataclass(frozen=True)
class RegressionEvaluation(Evaluation):
    """Mean absolute and root mean square error of a model on some graphs, in the units of the targets."""

    method: str
    data: str
    graphs: str
    measures: dict[str, float]
    count: int
    remarks: tuple[str, ...] = ()

    def plain(self) -> dict[str, Json]:
        own = {"data": self.data, "graphs": self.graphs, "count": self.count, "measures": dict(self.measures)}
        return {**own, "environment": to_json(environment())}

    def tables(self) -> list[TextTable]:
        cells = (*(f"{value:.4g}" for value in self.measures.values()), str(self.count))
        return [TextTable(f"{self.method} on {self.graphs} of {self.data}", (*self.measures, "graphs"), (cells,))]


def describe_measures(measures: dict[str, float]) -> str:
    """Return measures in one line, such as "balanced accuracy 50.0 %, ROC-AUC 61.3 %"."""
    shown = (
        (name.removesuffix(" in %"), f"{value:.1f} %" if "%" in name else f"{value:.4g}")
        for name, value in measures.items()
    )
    return ", ".join(f"{name} {value}" for name, value in shown)


def evaluate(options: EvaluateOptions, make_fold: Callable[[GraphConfig, GraphSet, int], Fold]) -> Evaluation:
    """Test the model of a run: on the test graphs of its fold, or on all graphs of other data."""
    model, config = load_run(options.run), read_recipe(Path(options.run, CONFIG), RunConfig)
    if options.data:
        graphs = model.read(options.data, options.data_root or config.data_root, download=options.download)
    else:
        graphs = _read_own(model, config, options.data_root, options.download)
    is_own = is_data_of(options.run, graphs.digest)
    if not options.data and not is_own:
        raise RecordError(
            f"{graphs.name} has changed since the run was trained, so its test graphs are unknown. Name the graphs to "
            "test with --data."
        )
    remarks: tuple[str, ...] = ()
    if options.data and is_own:
        remarks = ("Most of these graphs were trained on. Without --data only the test graphs are used.",)
    chosen = torch.arange(len(graphs)) if options.data else make_fold(config, graphs, config.fold).test
    which = "all graphs" if options.data else f"the test graphs of fold {config.fold}"
    logits, targets = model.logits(graphs, chosen), graphs.targets[chosen]
    measures = measure(logits, targets)
    if graphs.is_regression:
        error = Objective(is_regression=True).score(logits, targets).value
        return RegressionEvaluation(
            model.config.title, graphs.name, which, {MAE: error, **measures}, len(chosen), remarks
        )
    matrix = confusion_matrix(logits.argmax(-1), targets, len(model.classes))
    return GraphEvaluation(
        method=model.config.title,
        data=graphs.name,
        graphs=which,
        accuracy=100 * int(matrix.diagonal().sum()) / len(chosen),
        loss=float(nn.functional.cross_entropy(logits, targets)),
        count=len(chosen),
        classes=model.classes,
        matrix=tuple(tuple(row) for row in matrix.tolist()),
        measures=measures,
        remarks=remarks,
    )


def _read_own(model: TrainedModel, config: RunConfig, root: str | None, download: bool) -> GraphSet:
    """Read the graphs of a run, with the labels that it was trained with, on which its folds depend."""
    graphs = model.read(config.data, root or config.data_root, download=download)
    return permute_labels(graphs, config.seed) if config.permute_labels else graphs


def predict(options: PredictOptions) -> Predictions:
    """Predict the class of every graph, with the probability of each class; or its target."""
    model = load_run(options.run)
    graphs = model.read(options.data, options.data_root, labelled=False, download=options.download)
    if not model.classes:
        found = model.logits(graphs).flatten().tolist()
        return Predictions([{"graph": number, "prediction": value} for number, value in enumerate(found)])
    rows = [
        {
            "graph": number,
            "class": model.classes[int(row.argmax())],
            "probability": float(row.max()),
            **{f"probability of {label}": float(value) for label, value in zip(model.classes, row, strict=True)},
        }
        for number, row in enumerate(model.probabilities(graphs))
    ]
    return Predictions(rows)


def feature_source(
    folder: Path, samples: Samples, make_fold: Callable[[GraphConfig, GraphSet, int], Fold]
) -> FeatureSource:
    """Return the node features that the readout of a run pools, one set for each drawn graph."""
    model, data = load_run(folder), None
    if samples.data is not None:
        graphs = model.read(samples.data, samples.data_root, labelled=False, download=samples.download)
        chosen, name = torch.arange(len(graphs)), f"all graphs of {graphs.name}"
    else:
        config = read_recipe(folder / CONFIG, RunConfig)
        graphs = _read_own(model, config, samples.data_root, samples.download)
        chosen = getattr(make_fold(config, graphs, config.fold), samples.split)
        name, data = f"the {samples.split} graphs of {graphs.name}", DataIdentity(graphs.name, graphs.digest)
    drawn, network = samples.draw(chosen), model.network
    sets = (one for part in drawn.split(ANALYSIS_BATCH) for one in network.feature_sets(graphs[part]))
    return FeatureSource(network.normalization, sets, len(drawn), name, data)
