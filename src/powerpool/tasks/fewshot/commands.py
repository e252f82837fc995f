"""``powerpool train|evaluate|predict fewshot``: a network that compares pictures of classes it has never seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.console import Bars, cell, console, emit, note, say
from powerpool.data import FewShotSet, list_images
from powerpool.data.images import Corrupt
from powerpool.data.layouts import is_open_mic
from powerpool.data.sources import locate
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import locked, read_json, write_json
from powerpool.runs.compare import summarize
from powerpool.runs.config import read_recipe, recipe_names
from powerpool.runs.environment import environment
from powerpool.runs.folder import (
    CONFIG,
    DATA,
    EVALUATION,
    RECORD,
    is_of,
    open_run,
    require_answer_file,
    require_place,
    write_answers,
)
from powerpool.runs.record import RunRecord
from powerpool.tasks.fewshot.config import EpisodeConfig, FewShotConfig, TrainingConfig
from powerpool.tasks.fewshot.evaluation import (
    CHECKPOINT,
    METRIC,
    PLACES,
    assess,
    make_training,
    outcome,
    read_set,
    training_model,
)
from powerpool.tasks.fewshot.evaluation import train as train_in
from powerpool.tasks.fewshot.runs import Pictures, load_run
from powerpool.tasks.fewshot.training import Training

SHOWN = 3
"""Classes that a prediction names, the most alike first."""

# ---- train -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainOptions(FewShotConfig):
    """Train a network by episodes, choose its weights by validation classes, test it on others, and keep it.

    Args:
        out: the run folder; runs/train/fewshot/DATA/METHOD-WAY-way-SHOT-shot without it
        overwrite: start anew where the folder holds another run, instead of refusing
    """

    out: str | None = None
    overwrite: bool = False

    @property
    def config(self) -> FewShotConfig:
        """What a result depends on."""
        return FewShotConfig(**{entry.name: getattr(self, entry.name) for entry in fields(FewShotConfig)})


def train(options: TrainOptions) -> None:
    """Train, test, write the run folder, and print what came out."""
    config = with_absolute_paths(options.config)
    data = read_pictures(config)
    folder = Path(
        options.out or Path("runs", "train", "fewshot", data.name, f"{config.model.method}-{config.protocol}")
    )
    record = _train_run(config, data, folder, overwrite=options.overwrite)
    result = record.folds[0]
    emit({"run": folder, "record": read_json(folder / RECORD)})
    say(f"{config.model.method} on {data.name}, {config.protocol}: {_accuracy(result)}. The model is in {folder}.")


def _train_run(config: FewShotConfig, data: FewShotSet, folder: Path, *, overwrite: bool) -> RunRecord:
    """Fill a run folder, from where it was if it was stopped: the model, and the record, which is returned."""
    start = environment()  # the code that runs is that of now, whatever lies there when it ends
    training = make_training(config, data)  # before anything is written: what does not fit shows here
    with locked(folder):
        open_run(
            folder,
            config,
            (data.name, data.digest),
            pipeline="fewshot",
            made=[folder / CHECKPOINT],
            overwrite=overwrite,
        )
        with training_bar(config.training) as watch:
            train_in(training, folder, watch=watch)
        with testing_bar(config.test) as watch_test:
            found = assess(training_model(training), data["test"], config.test, config.training.device, watch_test)
        result = {"fold": 0, **found, **outcome(training)}
        record = make_record(config, data, [result], start)
        record.write(folder / RECORD)
    return record


def make_record(
    config: FewShotConfig, data: FewShotSet, folds: list[dict[str, Any]], start: dict[str, Any]
) -> RunRecord:
    """The record of one method, from one result for each seed."""
    settings = {name: value for name, value in asdict(config).items() if name not in PLACES}
    pictures = {name: len(bank) for name, bank in data.splits.items()}
    return RunRecord(
        pipeline="fewshot",
        data=data.name,
        method=config.model.method,
        protocol=config.protocol,
        metric=METRIC,
        folds=tuple(folds),
        config={**settings, "data": data.name, "data_digest": data.digest, "pictures": pictures},
        seed=config.seed,
        seconds=sum(fold["seconds"] for fold in folds),
        environment=start,
    )


def read_pictures(config: FewShotConfig) -> FewShotSet:
    """The pictures of a configuration, with a bar while they are decoded; how many had to be skipped is said."""
    with Bars(left=False) as bars:
        own: dict[str, Any] = {}

        def watch(split: str, done: int, count: int) -> None:
            if split not in own:
                own[split] = bars.add(f"pictures of {split}", count)
            bars.update(own[split], done)

        data = read_set(config, watch=watch)
    if data.skipped:
        text = f"{len(data.skipped)} pictures cannot be read and were skipped, the first is {data.skipped[0]}."
        note(text)
    return data


@contextmanager
def training_bar(config: TrainingConfig) -> Iterator[Any]:
    """A bar for training episodes, and a line after every validation."""
    with _bar("training episodes", config.episodes, lines=False) as move:
        said = 0

        def watch(training: Training) -> None:
            nonlocal said
            move(training.done)
            values, curves = training.curves.validation_value, training.curves
            if len(curves.episode) > said and training.done == curves.episode[-1]:
                said = len(curves.episode)
                text = f"episode {training.done} of {config.episodes}: loss {curves.train_loss[-1]:.4f}"
                text += f", validation {values[-1]:.2f} %" if values else ""
                note(text)

        yield watch


@contextmanager
def testing_bar(config: EpisodeConfig) -> Iterator[Any]:
    """A bar for test episodes."""
    with _bar("test episodes", config.count) as move:
        yield move


@contextmanager
def _bar(text: str, total: int, *, lines: bool = True) -> Iterator[Any]:
    with Bars(lines=lines) as bars:
        bar = bars.add(text, total)
        yield lambda done: bars.update(bar, done)


def _say_recipe(config: FewShotConfig, data: FewShotSet) -> None:
    """Tell of a recipe for the data, where other settings were taken."""
    name = f"fewshot/{data.name}"
    if name in recipe_names() and Pictures.of(read_recipe(name, FewShotConfig)) != Pictures.of(config):
        text = f"There is a recipe for {data.name}, with other sizes or colours: --config {name}."
        note(text)


def with_absolute_paths(config: FewShotConfig) -> FewShotConfig:
    """The configuration with whole paths of its data and of the run it starts from, so that it works from anywhere."""
    place = None if config.data.startswith("hf:") else locate(config.data, config.data_root, config.download)
    path = Path(config.data).expanduser()
    data = str(path.absolute()) if place is not None and place.path == path else config.data
    start = None if config.pretrained is None else str(Path(config.pretrained).expanduser().absolute())
    return replace(config, data=data, pretrained=start)


def _accuracy(result: dict[str, Any]) -> str:
    """``accuracy 52.31 ± 0.80 % over 600 episodes``, with half of the interval of 95 %."""
    shares = [100 * int(right) / result["queries"] for right in result["right_by_episode"].split()]
    interval = summarize(shares).interval
    spread = "" if interval is None else f" ± {(interval[1] - interval[0]) / 2:.2f}"
    return f"accuracy {result['value']:.2f}{spread} % over {result['count']} episodes"


# ---- evaluate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluateOptions:
    """Test the network of a run again: in other episodes, or on other pictures.

    Args:
        run: the run folder that 'powerpool train fewshot' wrote
        data: other pictures, all classes of which are tested on: a folder or zip of class folders, or a data set
        data_root: folder with data sets; that of the run without it
        way: classes of an episode; as many as in the run without it
        shot: support pictures of each class; as many as in the run without it
        queries: pictures of each class that are to be named; as many as in the run without it
        count: episodes; as many as in the run without it
        transductive: whether batch normalization takes its statistics from the pictures of the episode itself
        corrupt: whether a picture that cannot be read is an error, or is skipped and counted
        download: whether data that is not on this machine may be fetched from the network
        device: cpu, cuda or cuda:1
        out: folder for evaluation.json; the run folder without it
    """

    run: str
    data: str | None = None
    data_root: str | None = None
    way: int | None = None
    shot: int | None = None
    queries: int | None = None
    count: int | None = None
    transductive: bool | None = None
    corrupt: Corrupt = "error"
    download: bool = False
    device: str = "cpu"
    out: str | None = None


def evaluate(options: EvaluateOptions) -> None:
    """Print and write the mean accuracy over episodes, with its interval."""
    model = load_run(options.run)
    folder = Path(options.out or options.run)
    require_place(folder / EVALUATION)
    config = read_recipe(Path(options.run, CONFIG), FewShotConfig)
    root = options.data_root or config.data_root
    names = ("way", "shot", "queries", "count", "transductive")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    episodes = replace(config.test, **given)
    if options.data is None:
        config = replace(config, data_root=root, download=options.download, corrupt=options.corrupt)
        data = read_pictures(config)
        if not is_of(options.run, data.digest):
            raise RecordError(
                f"{data.name} has changed since the run was trained: which classes are for test is no longer known. "
                "Name the pictures to test on with --data."
            )
        bank, which = data["test"], f"test classes of {data.name}"
    else:
        bank, name = model.pictures.read_all(options.data, root, download=options.download, corrupt=options.corrupt)
        if is_open_mic(bank.names):
            raise ArgumentError(
                f"{options.data} is Open MIC, all classes of which are no test: its problems say which photos belong "
                "together. Train a run with --data open_mic --problem, and leave --data out here."
            )
        which = f"all classes of {name}"
        if name == read_json(Path(options.run, DATA))["name"]:
            text = f"The network was trained on classes of {name}, which are among these: this is no test."
            note(text)
    with testing_bar(episodes) as watch:
        found = assess(model, bank, episodes, options.device, watch)
    method = model.network.config.method
    figures = {"pictures": which, "method": method, "test": asdict(episodes), **found, "environment": environment()}
    emit({**figures, "written": [folder / EVALUATION]})
    form = f"{episodes.way}-way {episodes.shot}-shot{', transductive' if episodes.transductive else ''}"
    say(f"{method}, {which}, {form}: {_accuracy(found)}")
    write_json(folder / EVALUATION, figures)
    say(f"written: {folder / EVALUATION}")


# ---- predict ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictOptions:
    """Name pictures by a few examples of each class, without any training, with the network of a run.

    Args:
        run: the run folder that 'powerpool train fewshot' wrote
        support: folder or zip with a folder of example pictures for each class, at least two classes
        pictures: files and folders to name; folders are searched to the bottom
        corrupt: whether a picture that cannot be read is an error, or is skipped and counted
        out: a file for the answers with all scores, .csv or .json by its name; without it a table is printed
    """

    run: str
    support: str
    pictures: list[str] = field(default_factory=list)
    corrupt: Corrupt = "error"
    out: str | None = None

    def __post_init__(self) -> None:
        require_answer_file(self.out)
        if not self.pictures:
            raise ArgumentError(
                "pictures must name at least one file or folder: powerpool predict fewshot --run RUN --support "
                "EXAMPLES photo.jpg"
            )


def predict(options: PredictOptions) -> None:
    """Print a table of the classes that are most alike to every picture, or write all scores."""
    model = load_run(options.run)
    bank, _ = model.pictures.read_all(options.support, corrupt=options.corrupt)
    seen = bank.targets.unique().tolist()
    if len(seen) < 2:
        raise ArgumentError(
            f"support must hold example pictures of at least two classes, in a folder for each (got {len(seen)} in "
            f"{options.support})."
        )
    support = [bank.batch((bank.targets == label).nonzero().flatten()) for label in seen]
    asked = list_images(options.pictures)
    queries = model.pictures.read(asked, (), options.corrupt)
    for name in sorted({*asked.names} - {*queries.names}):
        note(f"skipped, not readable: {name}")
    queries = replace(queries, mean=bank.mean)  # that of the examples: queries alone may be of one class
    scores = model.scores(support, queries.batch(torch.arange(len(queries))))
    classes = [bank.classes[label] for label in seen]
    answers = _answers(queries.names, scores, classes)
    emit(answers)
    if options.out is not None:
        write_answers(answers, options.out)
        return
    console().print(_table(queries.names, scores, classes))


def _answers(names: tuple[str, ...], scores: Tensor, classes: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "picture": name,
            "class": classes[int(row.argmax())],
            "score": float(row.max()),
            **{f"score of {label}": float(value) for label, value in zip(classes, row, strict=True)},
        }
        for name, row in zip(names, scores, strict=True)
    ]


def _table(names: tuple[str, ...], scores: Tensor, classes: list[str]) -> Any:
    from rich.table import Table

    table = Table("picture", "class", "score", "then")
    best = scores.topk(min(SHOWN, len(classes)), dim=-1)
    for name, values, places in zip(names, best.values.tolist(), best.indices.tolist(), strict=True):
        said = [f"{classes[place]} {value:.3f}" for place, value in zip(places, values, strict=True)]
        table.add_row(*map(cell, (name, classes[places[0]], f"{values[0]:.3f}", ", ".join(said[1:]))))
    return table
