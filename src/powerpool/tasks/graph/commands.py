"""``powerpool train|evaluate|predict graph``: a model for a user's own graphs, kept in a run folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from powerpool.console import Bars, cell, console, emit, note, say
from powerpool.data import GraphSet
from powerpool.errors import RecordError
from powerpool.files import locked, read_json, write_json
from powerpool.runs.config import read_recipe
from powerpool.runs.environment import environment
from powerpool.runs.folder import (
    CONFIG,
    EVALUATION,
    MODEL,
    RECORD,
    is_of,
    open_run,
    require_answer_file,
    require_place,
    write_answers,
)
from powerpool.runs.record import RunRecord
from powerpool.tasks.confusion import confusion_matrix
from powerpool.tasks.graph.config import GraphConfig, ModelConfig, Protocol
from powerpool.tasks.graph.evaluation import (
    METRIC,
    choose,
    chosen_result,
    make_fold,
    read_graphs,
    restore,
    retrained_result,
    test_score,
    train_again,
)
from powerpool.tasks.graph.methods import METHODS
from powerpool.tasks.graph.runs import TRIALS, TrainedModel, load_run
from powerpool.tasks.graph.training import Training

if TYPE_CHECKING:
    from typing_extensions import Self

READOUT_FIELDS = ("eta", "gamma", "asinhe_gamma", "t", "iterations", "beta")
"""Settings of the model that only some readouts have."""

# ---- train -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainOptions(GraphConfig):
    """Train GIN0 with one readout, choose epoch and grid point by validation, test once, and keep the model.

    Args:
        protocol: validation-only keeps the model that was chosen; retrain trains it again on all but the test graphs
        fold: which of the folds is for test
        out: the run folder; runs/train/graph/DATA/METHOD without it
        overwrite: start anew where the folder holds another run, instead of refusing
    """

    protocol: Protocol = "validation-only"
    fold: int = 0
    out: str | None = None
    overwrite: bool = False

    @property
    def config(self) -> GraphConfig:
        """What a result depends on, beside the fold and the protocol."""
        return GraphConfig(**self.shared)

    @property
    def shared(self) -> dict[str, Any]:
        """The fields that it has from the configuration."""
        return {field.name: getattr(self, field.name) for field in fields(GraphConfig)}


@dataclass(frozen=True)
class RunConfig(GraphConfig):
    """What ``config.yaml`` of a run folder holds."""

    protocol: Protocol = "validation-only"
    fold: int = 0


def train(options: TrainOptions) -> None:
    """Train, test once, write the run folder, and print what came out."""
    config = options.config
    graphs = read_graphs(config)
    make_fold(config, graphs, options.fold)  # a fold that there is not shows before anything is written
    folder = Path(options.out or Path("runs", "train", "graph", graphs.name, config.model.method))
    _say_unused(config)
    with locked(folder):
        open_run(
            folder,
            RunConfig(**options.shared, protocol=options.protocol, fold=options.fold),
            (graphs.name, graphs.digest),
            pipeline="graph",
            made=folder.glob(f"{TRIALS}/*.pt"),
            overwrite=options.overwrite,
        )
        result = _train(options, graphs, folder)
    emit({"run": folder, "record": read_json(folder / RECORD)})
    say(
        f"{config.model.method} on {graphs.name}, {options.protocol}, fold {options.fold}: "
        f"test accuracy {result['value']:.1f} %, epoch {result['epoch']}, {_listed(result['chosen'])}, "
        f"{result['seconds']:.1f} s. The model is in {folder}."
    )


def _train(options: TrainOptions, graphs: GraphSet, folder: Path) -> dict[str, Any]:
    """Train and test; the model and the record are in the folder then. What is recorded of the fold."""
    config = options.config
    points = len(list(config.points()))
    with _Epochs(points * config.training.epochs) as epochs:
        trials = choose(config, graphs, options.fold, folder / TRIALS, epochs.watch)
        best, network = trials[0], restore(config, graphs, trials[0])
        tested = test_score(config, graphs, options.fold, network)
        result = chosen_result(options.fold, trials, tested)
        if options.protocol == "retrain":
            epochs.add(best.epoch)
            training = train_again(config, graphs, options.fold, best.model, best.epoch, folder / TRIALS, epochs.watch)
            network = training.model
            tested = test_score(config, graphs, options.fold, network)
            result = retrained_result(result, training, tested)
    TrainedModel(best.model, network, graphs.features, graphs.classes).save(folder / MODEL)
    RunRecord(
        pipeline="graph",
        data=graphs.name,
        method=config.model.method,
        protocol=options.protocol,
        metric=METRIC,
        folds=(result,),
        config=asdict(config),
        seed=config.seed,
        seconds=result["seconds"],
        environment=environment(),
    ).write(folder / RECORD)
    return result


def _say_unused(config: GraphConfig) -> None:
    """Tell of settings that do not concern the method: the user may have meant another one."""
    default, model = ModelConfig(), config.model
    concerned = METHODS[model.method].parameters
    given = [name for name in READOUT_FIELDS if getattr(model, name) != getattr(default, name)]
    unused = [f"model.{name}" for name in given if name not in concerned]
    unused += ["grid.eta"] if config.grid.eta and "eta" not in concerned else []
    if unused:
        text = f"{', '.join(unused)}: not used, {model.method} does not depend on it."
        note(text)


class _Epochs:
    """A bar of epochs, with the time that is left."""

    def __init__(self, total: int) -> None:
        self._bars = Bars()
        self._bar = self._bars.add("epochs", total)
        self._total, self._before = total, 0
        self._training: Training | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def add(self, epochs: int) -> None:
        """Another training is to come."""
        self._total += epochs
        self._bars.update(self._bar, total=self._total)

    def watch(self, training: Training) -> None:
        """Show the epochs of this training, after those of the ones before it."""
        if self._training is not training:
            self._before += 0 if self._training is None else self._training.epoch
            self._training = training
        loss = training.curves.train_loss[-1]
        self._bars.update(self._bar, self._before + training.epoch, text=f"epochs, loss {loss:.3f}")


# ---- evaluate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluateOptions:
    """Test the model of a run: on the test graphs of its fold, or on other labelled graphs.

    Args:
        run: the run folder that 'powerpool train graph' wrote
        data: other graphs, all of which are tested on: a data set, or a folder or zip in the TU format
        data_root: folder with data sets; that of the run without it
        download: whether data that is not on this machine may be fetched from the network
        out: a JSON file for the figures; evaluation.json in the run folder without it
    """

    run: str
    data: str | None = None
    data_root: str | None = None
    download: bool = False
    out: str | None = None


def evaluate(options: EvaluateOptions) -> None:
    """Print and write accuracy, loss, accuracy by class and the confusion matrix."""
    from rich.table import Table

    file = Path(options.out or Path(options.run, EVALUATION))
    model, config = load_run(options.run), read_recipe(Path(options.run, CONFIG), RunConfig)
    require_place(file)
    root = options.data_root or config.data_root
    graphs = model.read(options.data or config.data, root, download=options.download)
    own = is_of(options.run, graphs.digest)
    if not options.data and not own:
        raise RecordError(
            f"{graphs.name} has changed since the run was trained, and its folds with it: which graphs are for test is "
            "no longer known. Name the graphs to test on with --data."
        )
    if options.data and own:
        note("These are the graphs of the run: most of them were trained on. Without --data the others are tested.")
    chosen = torch.arange(len(graphs)) if options.data else make_fold(config, graphs, config.fold).test
    which = "all graphs" if options.data else f"the test graphs of fold {config.fold}"
    figures = evaluation_figures(model, graphs, chosen)
    found = {"data": graphs.name, "graphs": which, **figures, "environment": environment()}
    emit({**found, "written": [file]})
    table = Table(
        title=cell(
            f"{model.config.method} on {which} of {graphs.name}: accuracy {figures['accuracy']:.1f} %, "
            f"loss {figures['loss']:.3f}, {figures['count']} graphs"
        ),
    )
    table.add_column("class", justify="right")
    table.add_column("graphs", justify="right")
    table.add_column("accuracy %", justify="right")
    for label in model.classes:
        table.add_column(f"said {label}", justify="right")
    for label, row in zip(model.classes, figures["confusion"], strict=True):
        right = figures["accuracy_by_class"][str(label)]
        table.add_row(str(label), str(sum(row)), "-" if right is None else f"{right:.1f}", *map(str, row))
    console().print(table)
    write_json(file, found)
    say(f"written: {file}")


def evaluation_figures(model: TrainedModel, graphs: GraphSet, chosen: Tensor) -> dict[str, Any]:
    """Accuracy in percent, mean cross-entropy, accuracy by class, and how often each class was said for each."""
    scores, targets = model.logits(graphs, chosen), graphs.targets[chosen]
    count = len(model.classes)
    confusion = confusion_matrix(scores.argmax(-1), targets, count)
    sizes, right = confusion.sum(1).tolist(), confusion.diagonal().tolist()
    return {
        "accuracy": 100 * sum(right) / len(chosen),
        "loss": float(nn.functional.cross_entropy(scores, targets)),
        "count": len(chosen),
        "accuracy_by_class": {
            str(label): 100 * hits / size if size else None
            for label, hits, size in zip(model.classes, right, sizes, strict=True)
        },
        "confusion": confusion.tolist(),
    }


# ---- predict ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictOptions:
    """Say the class of graphs, and how probable each class is, with the model of a run.

    Args:
        run: the run folder that 'powerpool train graph' wrote
        data: the graphs: a data set, or a folder or zip in the TU format; graph labels are not needed
        data_root: folder with data sets
        download: whether data that is not on this machine may be fetched from the network
        out: a file for the answers, .csv or .json by its name; CSV is printed without it
    """

    run: str
    data: str
    data_root: str | None = None
    download: bool = False
    out: str | None = None

    def __post_init__(self) -> None:
        require_answer_file(self.out)


def predict(options: PredictOptions) -> None:
    """Print or write one row for each graph: its number from 0 on, the class, its probability, all probabilities."""
    model = load_run(options.run)
    graphs = model.read(options.data, options.data_root, labelled=False, download=options.download)
    probabilities = model.probabilities(graphs)
    rows = [
        {
            "graph": number,
            "class": model.classes[int(row.argmax())],
            "probability": float(row.max()),
            **{f"probability of {label}": float(value) for label, value in zip(model.classes, row, strict=True)},
        }
        for number, row in enumerate(probabilities)
    ]
    emit(rows)
    write_answers(rows, options.out)


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
