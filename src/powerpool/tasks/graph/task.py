"""Graph classification as a task: a chain is a fold, a unit is a grid point of a fold.

``validation-only`` trains every grid point on the training graphs, selects the epoch and then the grid point by
validation loss, and tests that model. ``retrain`` trains the selected point again on training and validation graphs,
for all epochs or for the selected number of them. No choice depends on the test graphs. With ``search_epochs`` the
grid point is selected after short trainings, and one more unit continues that training, whose epoch is then selected.

``test-epoch`` and ``test-epoch-per-fold`` train as ``retrain`` does and choose the epoch on test graphs, see
:mod:`powerpool.tasks.graph.protocols`.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.data import GraphSet
from powerpool.data.tu_format import is_at_path
from powerpool.errors import ArgumentError, NotFiniteError, NotPositiveError, RecordError
from powerpool.runs.config import RenamedFieldWarning
from powerpool.runs.folder import DataIdentity, load_state, require_same_data, save_model, save_state
from powerpool.runs.record import Confusion, FoldResult, Score, Trial
from powerpool.runs.typed import Json
from powerpool.tasks.base import (
    Evaluation,
    Row,
    Task,
    Unit,
    Watch,
    confusion_matrix,
    extend_by_seeds,
    ignore_progress,
    with_absolute_paths,
)
from powerpool.tasks.graph.config import (
    OPTIMISTIC,
    TEST_EPOCH,
    TEST_EPOCH_PER_FOLD,
    TEST_PROTOCOLS,
    GraphConfig,
    ModelConfig,
    Point,
)
from powerpool.tasks.graph.dataset import describe_data, load_data, make_fold
from powerpool.tasks.graph.inference import TrainedModel, describe_measures, evaluate, feature_source, predict
from powerpool.tasks.graph.model import make_network
from powerpool.tasks.graph.options import EvaluateOptions, PredictOptions, ReproduceOptions
from powerpool.tasks.graph.protocols import at_best_epoch, at_common_epoch, shown_curves
from powerpool.tasks.graph.scores import MAE, measure
from powerpool.tasks.graph.training import Training, TrainingCurves, collate, compute_logits
from powerpool.tasks.methods import GRAPH_METHODS, PARAMETERS, unused_settings
from powerpool.tasks.pooling import FeatureSource, Samples, mean_spectrum, spread_out
from powerpool.tasks.predictions import Predictions

CHECKPOINT_SECONDS = 5.0
"""How much work a killed training may lose."""
NEW_SETTINGS = (
    ("", "edges", "undirected"),
    ("", "permute_labels", False),
    ("model", "backbone", "GIN0"),
    ("training", "class_weights", "equal"),
    ("training", "search_epochs", None),
)
"""Groups, names and defaults of settings that records of earlier versions do not have."""


@dataclass(frozen=True)
class GraphFit:
    """A trained grid point: its selected epoch, and the weights after it."""

    point: Point
    epoch: int
    score: Score
    curves: TrainingCurves
    weights: dict[str, Tensor]
    seconds: float
    is_continued: bool = False
    """Whether the search had selected it after fewer epochs."""

    @property
    def trial(self) -> Trial:
        """What a record keeps of it."""
        return Trial(self.point.values, self.score.value, self.score.loss, self.epoch)


@dataclass(frozen=True, eq=False)
class GraphModel:
    """A model to test, and how it was trained."""

    trained: TrainedModel
    fit: GraphFit
    curves: TrainingCurves
    seconds: float
    """Of training it again, where that was done."""


class GraphTask(Task[GraphConfig, GraphSet, GraphFit, GraphModel]):
    """Graph classification by GIN0 with a readout of the tables."""

    name = "graph"
    version = 4
    baseline = "GIN0"
    config_type = GraphConfig
    packages = ("torch_geometric",)

    def load(self, config: GraphConfig, watch: Watch = ignore_progress) -> GraphSet:
        return load_data(config)

    def metric_of(self, data: GraphSet) -> str:
        return MAE if data.is_regression else self.metric

    def settings(self, config: GraphConfig, data: GraphSet) -> dict[str, Json]:
        """Leave out what has its default and did not exist before, so that stored units are found."""
        found = super().settings(config, data)
        for group, name, default in NEW_SETTINGS:
            own: Any = found[group] if group else found
            if own[name] == default:
                del own[name]
        return found

    def data_remarks(self, data: GraphSet) -> list[str]:
        return describe_data(data)

    def identity(self, data: GraphSet) -> DataIdentity:
        return DataIdentity(data.name, data.digest)

    def open(self, config: GraphConfig, reference: Json) -> GraphSet:
        graphs = self.load(config)
        require_same_data(self.identity(graphs), reference)
        return graphs

    def units(self, config: GraphConfig, chain: int) -> list[Unit]:
        return [Unit(chain, point) for point in range(len(list(config.points())))]

    def fit(
        self,
        config: GraphConfig,
        data: GraphSet,
        unit: Unit,
        protocols: Sequence[str],
        checkpoint: Path | None,
        watch: Watch,
    ) -> GraphFit | None:
        fold = make_fold(config, data, unit.chain)
        points = list(config.points())
        point = points[unit.point]
        training = Training(
            point.model, point.training, data, fold.train, fold.validation, seed=config.fold_seed(unit.chain)
        )
        is_continued = unit.protocol is not None
        if is_continued:
            what, before, total = "epochs of the selected point", 0, config.training.epochs
            epochs, start = total, checkpoint and checkpoint.with_name(Unit(unit.chain, unit.point).name)
        else:
            epochs, start = config.short_search or config.training.epochs, None
            what, before, total = "epochs", unit.point * epochs, len(points) * epochs
        _run(training, epochs, checkpoint, lambda training: watch(what, before + training.epoch, total), start)
        best = training.best
        if best is None:
            if is_continued:
                raise _diverged(config, unit.chain)
            return None
        return GraphFit(point, best.epoch, best.score, training.curves, best.weights, training.seconds, is_continued)

    def further_unit(self, config: GraphConfig, chain: int, fits: Sequence[GraphFit], protocol: str) -> Unit | None:
        """Return the unit that continues the selected training; None if all were trained to the last epoch."""
        if config.short_search is None or not fits or any(fit.is_continued for fit in fits):
            return None
        return Unit(chain, list(config.points()).index(self.select(fits, protocol).point), protocol)

    def select(self, fits: Sequence[GraphFit], protocol: str) -> GraphFit:
        """Return the fit with the lowest validation loss, the first of equals, or the one that was continued."""
        return min([fit for fit in fits if fit.is_continued] or fits, key=lambda fit: fit.score.loss)

    def finish(
        self,
        config: GraphConfig,
        data: GraphSet,
        chain: int,
        fits: Sequence[GraphFit],
        protocols: Sequence[str],
        checkpoint: Path | None,
        watch: Watch,
    ) -> dict[str, GraphModel]:
        if not fits:
            raise _diverged(config, chain)
        models, again = {}, dict[int, Training]()
        for protocol in protocols:
            best = self.select(fits, protocol)
            if protocol != "validation-only":
                is_short = protocol == "retrain" and config.training.retrain_epochs == "selected"
                epochs = best.epoch if is_short else config.training.epochs
                if epochs not in again:
                    watched = not set(TEST_PROTOCOLS).isdisjoint(protocols)
                    own = checkpoint and checkpoint.with_name(f"{checkpoint.name}-{epochs}{'-watched' * watched}")
                    again[epochs] = self._train_again(config, data, chain, best, epochs, watched, own, watch)
                training = again[epochs]
                network, curves, seconds = training.model, training.curves, training.seconds
            else:
                network = make_network(best.point.model, data.features, data.edge_features, len(data.classes))
                network.load_state_dict(best.weights)
                curves, seconds = best.curves, 0.0
            network = network.to(config.training.device)
            read = (data.features, data.classes, data.edge_features, config.edges)
            trained = TrainedModel(best.point.model, network, *read)
            models[protocol] = GraphModel(trained, best, curves, seconds)
        return models

    def _train_again(
        self,
        config: GraphConfig,
        data: GraphSet,
        chain: int,
        best: GraphFit,
        epochs: int,
        watched: bool,
        checkpoint: Path | None,
        watch: Watch,
    ) -> Training:
        """Train the selected point on all graphs but those of the test, which are tested every epoch if watched."""
        fold, point = make_fold(config, data, chain), best.point
        training = Training(
            point.model,
            point.training,
            data,
            fold.train_and_validation,
            watched=fold.test if watched else None,
            seed=config.fold_seed(chain),
        )
        _run(training, epochs, checkpoint, lambda training: watch("epochs of retraining", training.epoch, epochs))
        if training.epoch < epochs:
            raise _diverged(config, chain)
        training.prepare_evaluation()
        return training

    @torch.no_grad()
    def test(
        self,
        config: GraphConfig,
        data: GraphSet,
        chain: int,
        fits: Sequence[GraphFit],
        models: Mapping[str, GraphModel],
        watch: Watch,
    ) -> dict[str, FoldResult]:
        chosen, size = make_fold(config, data, chain).test, config.training.batch_size
        own = data.to(config.training.device)
        batches = collate(own, chosen, size)
        analysed = collate(own, chosen[spread_out(len(chosen))], size)
        targets = torch.cat([batch.y for batch in batches])
        ordered = sorted((fit for fit in fits if not fit.is_continued), key=lambda fit: fit.score.loss)
        # The time of a training that was continued contains its first epochs.
        seconds = sum({fit.point: fit.seconds for fit in fits}.values())
        found = {}
        for protocol, model in models.items():
            network, best = model.trained.network, model.fit
            logits = compute_logits(network, batches)
            score = network.objective().score(logits, targets)
            confusion = None
            if data.classes:
                counts = confusion_matrix(logits.argmax(-1), targets, len(data.classes))
                confusion = Confusion.of(counts, data.classes)
            sets = (one for batch in analysed for one in network.feature_sets(batch))
            found[protocol] = FoldResult(
                number=chain,
                value=score.value,
                test_loss=score.loss,
                seconds=seconds + model.seconds,
                fold=chain,
                seed=config.training_seed,
                chosen=best.point.values,
                epoch=best.epoch if protocol == "validation-only" else len(model.curves.train_loss),
                validation=best.score,
                trials=tuple(fit.trial for fit in ordered),
                curves=shown_curves(model.curves, tested=protocol in TEST_PROTOCOLS),
                confusion=confusion,
                measures=measure(logits, targets),
                spectrum=mean_spectrum(network.normalization, sets),
            )
        if TEST_EPOCH_PER_FOLD in found:
            found[TEST_EPOCH_PER_FOLD] = at_best_epoch(found[TEST_EPOCH_PER_FOLD])
        return found

    def combine(self, protocol: str, results: Sequence[FoldResult]) -> Sequence[FoldResult]:
        return at_common_epoch(results) if protocol == TEST_EPOCH else results

    def protocol_settings(self, protocol: str) -> dict[str, Json]:
        return {"epoch_is": OPTIMISTIC} if protocol in TEST_PROTOCOLS else {}

    def save(self, model: GraphModel, folder: Path) -> None:
        save_model(folder, self.name, model.trained.spec, model.trained.network.state_dict())

    def evaluate(self, options: EvaluateOptions, watch: Watch) -> Evaluation:
        return evaluate(options, make_fold)

    def predict(self, options: PredictOptions, watch: Watch) -> Predictions:
        return predict(options)

    def feature_source(self, folder: Path, samples: Samples) -> FeatureSource:
        return feature_source(folder, samples, make_fold)

    def prepare(self, config: GraphConfig) -> GraphConfig:
        """Make paths absolute, and take ``eta`` for SigmE where only that is set, as version 0.1 did."""
        config = with_absolute_paths(config, data_is_path=is_at_path(config.data))
        if "sigme_eta" not in GRAPH_METHODS[config.model.method].parameters:
            return config
        model, grid, default = config.model, config.grid, ModelConfig()
        if model.eta != default.eta and model.sigme_eta == default.sigme_eta:
            model = replace(model, sigme_eta=model.eta)
        if grid.eta and not grid.sigme_eta:
            grid = replace(grid, sigme_eta=grid.eta)
        if (model, grid) != (config.model, config.grid):
            warnings.warn("eta of SigmE is now called sigme_eta, in model and grid.", RenamedFieldWarning, stacklevel=2)
        return replace(config, model=model, grid=grid)

    def check(self, config: GraphConfig, data: GraphSet, chain: int) -> None:
        make_fold(config, data, chain)

    def method(self, config: GraphConfig) -> str:
        return config.model.title

    def remarks(self, config: GraphConfig, data: GraphSet) -> list[str]:
        method = GRAPH_METHODS[config.model.method]
        unused = unused_settings(method, config.model, ModelConfig(), "model")
        unused += [
            f"grid.{name}"
            for name in PARAMETERS
            if getattr(config.own_grid, name, None) and name not in method.parameters
        ]
        found = [f"{config.model.method} does not depend on {', '.join(unused)}."] if unused else []
        if config.training.search_epochs is not None and config.short_search is None:
            found.append("training.search_epochs: not used, as there is one grid point or no later epoch.")
        if config.training.class_weights != "equal" and data.is_regression:
            found.append("training.class_weights: not used, as the targets are numbers.")
        return found

    def plan(self, options: ReproduceOptions, watch: Watch) -> list[Row[GraphConfig, GraphSet]]:
        rows = []
        for data in options.data_sets:
            recipe = options.read_config(data)
            graphs = self.load(recipe, watch)
            if graphs.is_regression and not set(TEST_PROTOCOLS).isdisjoint(options.protocols):
                raise ArgumentError(f"{', '.join(TEST_PROTOCOLS)} are for classes, and {graphs.name} has numbers.")
            folds = options.fold_subset or list(range(recipe.folds))
            for fold in folds:
                make_fold(recipe, graphs, fold)
            first, *others = options.seeds or [recipe.training_seed]
            for method in options.methods:
                # A recipe serves all methods: its settings are for those that have them.
                own = GRAPH_METHODS[method].parameters
                unused = {name for name in ("beta", "mean", "trace_power") if name not in own}
                model = replace(recipe.model, method=method, **{name: getattr(ModelConfig, name) for name in unused})
                config = self.prepare(replace(recipe, model=model))
                row = Row(
                    (config.with_training_seed(first),) * len(folds),
                    graphs,
                    tuple(options.protocols),
                    self.method(config),
                    graphs.name,
                    chains=tuple(folds),
                )
                extended = [(config.with_training_seed(seed),) * len(folds) for seed in others]
                rows += extend_by_seeds(row, extended, first, GraphConfig.at)
        return rows

    def describe(self, config: GraphConfig, data: GraphSet, protocol: str, result: Any) -> str:
        chosen = ", ".join(f"{name} {value}" for name, value in result.chosen.items())
        return (
            f"{self.method(config)} on {data.name}, {protocol}, fold {result.number}: test "
            f"{describe_measures({self.metric_of(data): result.value, **result.measures})}, epoch {result.epoch}, "
            f"{chosen}, {result.seconds:.1f} s."
        )


TASK = GraphTask()


def _run(training: Training, epochs: int, file: Path | None, show: Any, start: Path | None = None) -> None:
    """Train to the end, resuming from ``file``, or else from ``start``, and saving to ``file`` every few seconds."""
    found = next((one for one in (file, start) if one is not None and one.exists()), None)
    if found is not None:
        try:
            training.load_state_dict(load_state(found))
        except RecordError as error:
            raise RecordError(f"{error} Delete it and repeat the command to train it anew.") from error
        show(training)
    saved = time.monotonic()

    def after(training: Training) -> None:
        nonlocal saved
        due = training.epoch == epochs or time.monotonic() - saved > CHECKPOINT_SECONDS
        if file is not None and due:
            save_state(file, training.state_dict())
            saved = time.monotonic()
        show(training)

    with contextlib.suppress(NotFiniteError, NotPositiveError):  # it diverged: the best epoch so far stands
        training.run(epochs, after)


def _diverged(config: GraphConfig, fold: int) -> ArgumentError:
    return ArgumentError(
        f"The training of {config.model.method} on fold {fold} diverges: losses, features or pooled vectors are not "
        f"finite. Lower training.learning_rate (it is {config.training.learning_rate})."
    )
