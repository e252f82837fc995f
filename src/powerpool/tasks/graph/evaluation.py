"""The two protocols: what is trained on, what is chosen on, and what is only ever tested on.

Of the parts that the graphs are cut into, a fold tests on one and validates on another. ``validation-only`` trains
every point of the grid on the rest, takes the epoch and then the point with the lowest validation loss, and tests that
model. ``retrain`` trains that point again for that many epochs, on all graphs but those of the test, and tests what
comes out. No choice ever sees the test graphs.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.data import Fold, GraphSet, load_graphs, stratified_folds
from powerpool.errors import ArgumentError, NotFiniteError, RecordError
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.runs.folder import require_same_data
from powerpool.tasks.confusion import as_entry, confusion_matrix
from powerpool.tasks.graph.config import GraphConfig, ModelConfig, grid_names
from powerpool.tasks.graph.model import GraphClassifier
from powerpool.tasks.graph.training import Curves, Score, Training, batches, logits, score_of
from powerpool.tasks.spectra import mean_spectrum, spread_out

METRIC = "accuracy in %"
CURVE_DIGITS = 4
"""Significant digits of the training curves in a record: they are there to be looked at."""
CHECKPOINT_SECONDS = 5.0
"""How much work a killed training may lose."""

Watcher = Callable[[Training], None]


@dataclass(frozen=True)
class Tested(Score):
    """How well a finished model does on the test graphs of a fold, and what else a record says of it."""

    details: dict[str, Any]
    """``confusion``, see :func:`powerpool.tasks.confusion.as_entry`, and, where the readout is of second order,
    ``spectrum``, see :func:`powerpool.tasks.spectra.mean_spectrum`."""


@dataclass(frozen=True)
class Trial:
    """A trained model: its configuration, and the epoch that was chosen for it."""

    model: ModelConfig
    epoch: int
    score: Score
    """On the validation graphs after that epoch."""
    curves: Curves
    weights: dict[str, Tensor]
    seconds: float

    def summary(self) -> dict[str, Any]:
        """The numbers that a record keeps of every trial."""
        return {
            **grid_values(self.model),
            "epoch": self.epoch,
            "validation_loss": self.score.loss,
            "validation_accuracy": self.score.accuracy,
        }


def read_graphs(config: GraphConfig) -> GraphSet:
    """The data of a configuration."""
    return load_graphs(
        config.data,
        config.data_root,
        features=config.features,
        degree_cap=config.degree_cap,
        download=config.download,
    )


def make_fold(config: GraphConfig, graphs: GraphSet, number: int) -> Fold:
    """Fold ``number`` of a configuration, the same for all methods."""
    if not 0 <= number < config.folds:
        raise ArgumentError(f"fold must be 0 to {config.folds - 1} with folds={config.folds} (got {number}).")
    return stratified_folds(graphs.targets, config.folds, config.seed)[number]


def choose(
    config: GraphConfig,
    graphs: GraphSet,
    number: int,
    folder: Path | None = None,
    watch: Watcher = lambda training: None,
) -> list[Trial]:
    """Train every point of the grid on a fold. The trials, the one with the lowest validation loss first.

    A point whose training diverges at once, without a finite validation loss, is left out.

    Args:
        config: the grid, and everything else.
        graphs: the data of the configuration.
        number: the fold.
        folder: where finished trials and the one in progress are kept, to go on from if they are there already.
        watch: called after every epoch.
    """
    fold = make_fold(config, graphs, number)
    trials = []
    for place, model in enumerate(config.points()):
        file = None if folder is None else folder / f"trial-{place:02d}.pt"
        training = Training(model, config.training, graphs, fold.train, fold.validation, _seed(config, number))
        _run(training, config.training.epochs, file, watch)
        best = training.best
        if best is not None:
            trials.append(Trial(model, best.epoch, best.score, training.curves, best.weights, training.seconds))
    if not trials:
        raise _diverged(config, number)
    return sorted(trials, key=lambda trial: trial.score.loss)


def train_again(
    config: GraphConfig,
    graphs: GraphSet,
    number: int,
    model: ModelConfig,
    epochs: int,
    folder: Path | None = None,
    watch: Watcher = lambda training: None,
) -> Training:
    """Train a chosen model for a chosen number of epochs on all graphs but those of the test."""
    fold = make_fold(config, graphs, number)
    training = Training(model, config.training, graphs, fold.train_and_validation, seed=_seed(config, number))
    _run(training, epochs, None if folder is None else folder / "retrain.pt", watch)
    if training.epoch < epochs:
        raise _diverged(config, number)
    training.settle()
    return training


def restore(config: GraphConfig, graphs: GraphSet, trial: Trial) -> GraphClassifier:
    """The model of a trial after its best epoch."""
    model = GraphClassifier(trial.model, graphs.channels, len(graphs.classes))
    model.load_state_dict(trial.weights)
    return model.to(config.training.device)


@torch.no_grad()
def test_score(config: GraphConfig, graphs: GraphSet, number: int, model: GraphClassifier) -> Tested:
    """Loss, accuracy, confusions and spectra of a finished model on the test graphs of a fold."""
    chosen, size = make_fold(config, graphs, number).test, config.training.batch_size
    own = graphs.to(config.training.device)
    parts = batches(own, chosen, size)
    scores, targets = logits(model, parts), torch.cat([part.y for part in parts])
    found = score_of(scores, targets)
    confusion = confusion_matrix(scores.argmax(-1), targets, len(graphs.classes))
    looked_at = batches(own, chosen[spread_out(len(chosen))], size)
    spectrum = mean_spectrum(model.normalization, (one for part in looked_at for one in model.feature_sets(part)))
    details = {"confusion": as_entry(confusion, graphs.classes), **({"spectrum": spectrum} if spectrum else {})}
    return Tested(found.loss, found.accuracy, details)


# ---- a fold of a table -----------------------------------------------------------------------------------------------


def validation_only(config: GraphConfig, number: int, digest: str) -> dict[str, Any]:
    """The result of ``validation-only`` on one fold of the graphs of a digest, as plain values."""
    graphs = _graphs_of(config, digest)
    trials = choose(config, graphs, number)
    tested = test_score(config, graphs, number, restore(config, graphs, trials[0]))
    return chosen_result(number, trials, tested)


def retrain(config: GraphConfig, number: int, digest: str, earlier: dict[str, Any]) -> dict[str, Any]:
    """The result of ``retrain`` on one fold, from the result of ``validation-only`` on it, as plain values."""
    graphs = _graphs_of(config, digest)
    model = next(point for point in config.points() if grid_values(point) == earlier["chosen"])
    training = train_again(config, graphs, number, model, earlier["epoch"])
    tested = test_score(config, graphs, number, training.model)
    return retrained_result(earlier, training, tested)


def _graphs_of(config: GraphConfig, digest: str) -> GraphSet:
    """The data of a configuration, if it is what the result is for: a worker may find other files by the same name."""
    graphs = read_graphs(config)
    require_same_data(graphs.name, graphs.digest, digest)
    return graphs


def chosen_result(number: int, trials: list[Trial], tested: Tested) -> dict[str, Any]:
    """What is recorded of a fold after ``validation-only``; the best trial is the first."""
    best = trials[0]
    return {
        "fold": number,
        "value": tested.accuracy,
        "test_loss": tested.loss,
        "chosen": grid_values(best.model),
        "epoch": best.epoch,
        "validation_loss": best.score.loss,
        "validation_accuracy": best.score.accuracy,
        "seconds": sum(trial.seconds for trial in trials),
        "trials": [trial.summary() for trial in trials],
        "curves": _rounded(best.curves),
        **tested.details,
    }


def retrained_result(earlier: dict[str, Any], training: Training, tested: Tested) -> dict[str, Any]:
    """What is recorded of a fold after ``retrain``; its seconds have those of the choice in them."""
    return {
        **{name: earlier[name] for name in ("fold", "chosen", "epoch", "validation_loss", "validation_accuracy")},
        "value": tested.accuracy,
        "test_loss": tested.loss,
        "seconds": earlier["seconds"] + training.seconds,
        "curves": _rounded(training.curves),
        **tested.details,
    }


def grid_values(model: ModelConfig) -> dict[str, Any]:
    """What can be chosen of a model."""
    return {name: getattr(model, name) for name in grid_names(model.method)}


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _seed(config: GraphConfig, number: int) -> int:
    """The seed of all trainings on a fold: another one on every fold, the same one for all methods."""
    return 1000 * config.seed + number


def _run(training: Training, epochs: int, file: Path | None, watch: Watcher) -> None:
    """Train to the end, from where ``file`` stopped and with everything in it every few seconds."""
    if file is not None and file.exists():
        try:
            training.load_state_dict(load_state(file))
        except RecordError as error:
            raise RecordError(f"{error} Delete it and give the command again: what it held is trained anew.") from error
        watch(training)
    saved = time.monotonic()

    def after(training: Training) -> None:
        nonlocal saved
        due = training.epoch == epochs or time.monotonic() - saved > CHECKPOINT_SECONDS
        if file is not None and due:
            save_state(file, training.state_dict())
            saved = time.monotonic()
        watch(training)

    with contextlib.suppress(NotFiniteError):  # it has diverged: what was best before stands, nothing better follows
        training.run(epochs, after)


def _diverged(config: GraphConfig, number: int) -> ArgumentError:
    return ArgumentError(
        f"The training of {config.model.method} on fold {number} diverges: its losses or features are not finite. "
        f"Lower training.learning_rate (it is {config.training.learning_rate})."
    )


def _rounded(curves: Curves) -> dict[str, list[float | None]]:
    """Curves for a record: JSON has no NaN, which a training that diverges has."""
    return {
        name: [float(f"{value:.{CURVE_DIGITS}g}") if math.isfinite(value) else None for value in values]
        for name, values in asdict(curves).items()
        if values
    }
