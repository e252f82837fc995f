"""``powerpool train|evaluate|predict vision``: a model for a user's own pictures, kept in a run folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from powerpool.console import Bars, cell, console, emit, governed, is_quiet, note, say, working
from powerpool.data import ImageSet, ImageSplit, Splits, check_images, list_images, load_images
from powerpool.data.images import Corrupt
from powerpool.data.sources import locate
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import locked, read_json, write_json
from powerpool.integrations.backbones import load_backbone
from powerpool.runs.config import read_recipe, recipe_names
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
from powerpool.tasks.vision.assessment import assess, assessment_table, draw_confusion
from powerpool.tasks.vision.config import GridConfig, PoolConfig, VisionConfig
from powerpool.tasks.vision.evaluation import (
    METRIC,
    PLACES,
    PROTOCOLS,
    read_images,
    test,
    test_details,
    train_again,
    validate,
)
from powerpool.tasks.vision.extraction import Features, Watcher, extract
from powerpool.tasks.vision.frozen import score, summary
from powerpool.tasks.vision.methods import METHODS
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.tasks.vision.ranks import is_first, require_together
from powerpool.tasks.vision.runs import TrainedModel, load_run

if TYPE_CHECKING:
    from powerpool.tasks.vision.finetuning import FineTuned

POINTS, TRAINING, CONFUSION = "points", "training", "confusion.png"
POOL_FIELDS = tuple(entry.name for entry in fields(GridConfig))
"""Settings of the pool that only some methods have."""
SHOWN = 3
"""Classes that a prediction names, the most probable first."""

# ---- train -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainOptions(VisionConfig):
    """Train a pool and a classifier on a backbone, choose settings by validation, test once, and keep the model.

    Args:
        out: the run folder; runs/train/vision/DATA/METHOD without it
        overwrite: start anew where the folder holds another run, instead of refusing
        workers: processes that read pictures, and run the backbone on a CPU; as many as there are cores without it
    """

    out: str | None = None
    overwrite: bool = False
    workers: int | None = None

    @property
    def config(self) -> VisionConfig:
        """What a result depends on."""
        return VisionConfig(**{entry.name: getattr(self, entry.name) for entry in fields(VisionConfig)})


def train(options: TrainOptions) -> None:
    """Train, test once, write the run folder, and print what came out."""
    require_together(options.config, overwrite=options.overwrite)
    config = with_absolute_path(options.config)
    if not is_first(config):
        with governed(quiet=True):  # the first process speaks for all
            images = read_pictures(config)
            _fine_tune(config, images, _folder(options, config, images), options.workers)
        return
    images = read_pictures(config)
    _say_recipe(config, images)
    folder = _folder(options, config, images)
    _say_unused(config)
    record = train_run(config, images, folder, options.workers, overwrite=options.overwrite)
    result = record.folds[0]
    emit({"run": folder, "record": read_json(folder / RECORD)})
    say(
        f"{config.pool.method} on {images.name}, {config.mode}: test accuracy {result['value']:.2f} %, "
        f"top-5 {result['top5']:.2f} %, {result['count']} pictures, {_listed(result['chosen'])}. "
        f"The model is in {folder}."
    )


def _folder(options: TrainOptions, config: VisionConfig, images: ImageSet) -> Path:
    return Path(options.out or Path("runs", "train", "vision", images.name, config.pool.method))


def train_run(
    config: VisionConfig,
    images: ImageSet,
    folder: Path,
    workers: int | None,
    *,
    overwrite: bool = False,
) -> RunRecord:
    """Fill a run folder, from where it was if it was stopped: the model, and the record, which is returned."""
    start = environment()  # the code that runs is that of now, whatever lies there when it ends
    train_mode = _train_frozen if config.mode == "frozen" else _train_end_to_end
    with locked(folder):
        if overwrite:
            shutil.rmtree(folder / TRAINING, ignore_errors=True)
        open_run(
            folder,
            config,
            (images.name, images.digest),
            pipeline="vision",
            made=[*folder.glob(f"{POINTS}/*.json"), folder / CONFUSION],
            overwrite=overwrite,
        )
        model, result = train_mode(config, images, folder, workers)
        model.save(folder / MODEL)
        record = _record(config, images, model, result, start)
        record.write(folder / RECORD)
    return record


def read_pictures(config: VisionConfig) -> ImageSet:
    """The pictures of a configuration; how many had to be skipped is said."""
    images, skipped = read_images(config)
    trained = {images.classes[target] for target in images["train"].targets.unique().tolist()}
    unseen = [name for name in images.classes if name not in trained]
    if unseen:
        text = f"{len(unseen)} classes have no training pictures and will never be said, the first is {unseen[0]}."
        note(text)
    for split, names in skipped.items():
        text = f"{len(names)} pictures of {split} cannot be read and were skipped, the first is {names[0]}."
        note(text)
    return images


@contextmanager
def extraction_bars(images: ImageSet) -> Iterator[Watcher]:
    """A bar for each split, for :func:`powerpool.tasks.vision.extraction.extract` to move."""
    with Bars() as bars:
        own = {name: bars.add(f"features of {name}", len(split)) for name, split in images.splits.items()}
        yield lambda split, done, count: bars.update(own[split], done, total=count)


def _train_frozen(
    config: VisionConfig, images: ImageSet, folder: Path, workers: int | None
) -> tuple[TrainedModel, dict[str, Any]]:
    with extraction_bars(images) as watch:
        features = extract(config, images, workers=workers, watch=watch)
    points = _grid(config, features, folder)
    with working("training on training and validation pictures"):
        (trained,) = train_again([config], [points], features)
        (result,) = test([trained], [points], features)
    network = ImageClassifier(
        load_backbone(config.backbone, download=config.download),
        trained.pool.config,
        len(images.classes),
    )
    with torch.no_grad():
        network.classifier.weight.copy_(trained.weight)
        network.classifier.bias.copy_(trained.bias)
    return TrainedModel(network, images.classes, config.crops), result


def _grid(config: VisionConfig, features: Features, folder: Path) -> list[dict[str, Any]]:
    """Every point of the grid on validation; those that are in the run folder are read."""
    pools, found = list(config.points()), []
    for place, pool in enumerate(pools):
        file = folder / POINTS / f"point-{place:02d}.json"
        if not file.exists():
            with working(f"point {place + 1} of {len(pools)}"):
                write_json(file, validate(config, pool, features))
        found.append(read_json(file))
    return found


def _fine_tune(config: VisionConfig, images: ImageSet, folder: Path, workers: int | None) -> FineTuned:
    from powerpool.tasks.vision.finetuning import fine_tune

    splits = images.splits
    for split in splits.values():  # a picture that cannot be read shows now, not when all has been trained
        check_images(split, "error")
    network = _first_network(config, images, folder, workers)
    on_all = config.training.validation == "train"
    return fine_tune(
        config,
        network,
        splits["train"] + splits["validation"] if on_all else splits["train"],
        None if on_all else splits["validation"],
        folder / TRAINING,
        workers=workers,
        show=not is_quiet(),
    )


def _train_end_to_end(
    config: VisionConfig, images: ImageSet, folder: Path, workers: int | None
) -> tuple[TrainedModel, dict[str, Any]]:
    splits = images.splits
    found = _fine_tune(config, images, folder, workers)
    model = TrainedModel(found.model, images.classes, config.crops, is_trained=True)
    with working("testing"):
        scores = model.logits(splits["test"], workers)
        spectrum = model.spectrum(splits["test"])
    result = {
        "fold": 0,
        **summary(scores, splits["test"].targets),
        "test_loss": score(scores, splits["test"].targets)[0],
        "chosen": {"epoch": found.epoch},
        "converged": found.converged,
        **({} if found.validation is None else {"validation": found.validation}),
        "curves": found.curves,
        "seconds": found.seconds,
        **test_details(scores, splits["test"].targets, images.classes, spectrum),
    }
    return model, result


def _first_network(config: VisionConfig, images: ImageSet, folder: Path, workers: int | None) -> ImageClassifier:
    """What training end to end starts with: a classifier of zeros, or one that was trained on frozen features."""
    torch.manual_seed(config.seed)
    if config.training.warm_start:
        return _train_frozen(config, images, folder, workers)[0].network
    backbone = load_backbone(config.backbone, download=config.download)
    return ImageClassifier(backbone, config.pool, len(images.classes))


def _record(
    config: VisionConfig, images: ImageSet, model: TrainedModel, result: dict[str, Any], start: dict[str, Any]
) -> RunRecord:
    facts = {
        "data": images.name,
        "data_digest": images.digest,
        "pictures": {name: len(split) for name, split in images.splits.items()},  # without those that were skipped
        "backbone_digest": model.backbone.digest(),
    }
    return RunRecord(
        pipeline="vision",
        data=images.name,
        method=config.pool.method,
        protocol=PROTOCOLS[config.head.kind] if config.mode == "frozen" else config.mode,
        metric=METRIC,
        folds=(result,),
        config={**{name: value for name, value in asdict(config).items() if name not in PLACES}, **facts},
        seed=config.seed,
        seconds=result["seconds"],
        environment=start,
    )


def _say_unused(config: VisionConfig) -> None:
    """Tell of settings that do not concern the method: the user may have meant another one."""
    default, pool = PoolConfig(), config.pool
    concerned = METHODS[pool.method].parameters
    given = [f"pool.{name}" for name in POOL_FIELDS if getattr(pool, name) != getattr(default, name)]
    given += [f"grid.{name}" for name in POOL_FIELDS if getattr(config.grid, name)]
    unused = [name for name in given if name.split(".")[1] not in concerned]
    grid = [name for name in given if name.startswith("grid.") and name not in unused]
    if unused:
        text = f"{', '.join(unused)}: not used, {pool.method} does not depend on it."
        note(text)
    if grid and config.mode == "end-to-end" and not config.training.warm_start:
        text = f"{', '.join(grid)}: not used, mode end-to-end trains one pool. Choose its settings with mode frozen."
        note(text)


def _say_recipe(config: VisionConfig, images: ImageSet) -> None:
    """Tell of a recipe for the data, where other settings were taken."""
    name = f"vision/{images.name}"
    if name in recipe_names() and read_recipe(name, VisionConfig).crops != config.crops:
        text = f"There is a recipe for {images.name}, with the paper's settings: --config {name}."
        note(text)


def with_absolute_path(config: VisionConfig) -> VisionConfig:
    """The configuration with the whole path of its data, so that the run folder can be used from anywhere."""
    path = Path(config.data).expanduser()
    place = None if config.data.startswith("hf:") else locate(config.data, config.data_root, config.download)
    return replace(config, data=str(path.absolute())) if place is not None and place.path == path else config


# ---- evaluate --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EvaluateOptions:
    """Test the model of a run: on a split of its own pictures, or on other labelled pictures.

    Args:
        run: the run folder that 'powerpool train vision' wrote
        data: other pictures, all of which are tested on: a folder or zip of class folders, or a data set
        data_root: folder with data sets; that of the run without it
        split: of those pictures; test without it, but all of other pictures. Those of train and validation of the run
            were trained on
        corrupt: whether a picture that cannot be read is an error, or is skipped and counted
        download: whether data and weights that are not on this machine may be fetched from the network
        workers: processes that read pictures, and run the backbone on a CPU; as many as there are cores without it
        out: folder for evaluation.json and confusion.png; the run folder without it
    """

    run: str
    data: str | None = None
    data_root: str | None = None
    split: Literal["train", "validation", "test"] | None = None
    corrupt: Corrupt = "error"
    download: bool = False
    workers: int | None = None
    out: str | None = None


def evaluate(options: EvaluateOptions) -> None:
    """Print and write top-1 and top-5 accuracy, accuracy by class, and the confusion matrix as a picture."""
    model = load_run(options.run, download=options.download)
    folder = Path(options.out or options.run)
    require_place(folder / EVALUATION, folder / CONFUSION)
    config = read_recipe(Path(options.run, CONFIG), VisionConfig)
    config = replace(config, data_root=options.data_root or config.data_root, download=options.download)
    if options.data:
        uncut = Splits(validation=0.0, test=0.0)
        images = load_images(options.data, config.data_root, download=options.download, splits=uncut)
        pictures = _in_classes_of(model, images, options.split)
        which = f"{options.split or 'all'} pictures of {images.name}"
    else:
        images = read_pictures(config)
        if not is_of(options.run, images.digest):
            raise RecordError(
                f"{images.name} has changed since the run was trained: which pictures are for test is no longer known. "
                "Name the pictures to test on with --data."
            )
        split = options.split or "test"
        pictures, which = images[split], f"{split} pictures of {images.name}"
    if options.corrupt == "skip":
        pictures, skipped = check_images(pictures, "skip")
        which += f", {len(skipped)} that cannot be read skipped" if skipped else ""
    with working(f"{len(pictures)} pictures"):
        scores = model.logits(pictures, options.workers)
    figures = assess(scores, pictures.targets, model.classes)
    found = {"pictures": which, **figures, "environment": environment()}
    emit({**found, "written": [folder / EVALUATION, folder / CONFUSION]})
    for table in assessment_table(figures, title=f"{model.network.pool.config.method} on {which}"):
        console().print(table)
    write_json(folder / EVALUATION, found)
    draw_confusion(figures, folder / CONFUSION)
    say(f"written: {folder / EVALUATION}, {folder / CONFUSION}")


def _in_classes_of(model: TrainedModel, images: ImageSet, split: str | None) -> ImageSplit:
    """The pictures of a split, or of all, labelled with the classes that the model knows."""
    unknown = [name for name in images.classes if name not in model.classes]
    if unknown:
        raise ArgumentError(
            f"{images.name} has classes that the model does not know: {', '.join(unknown[:5])}. The model knows "
            f"{len(model.classes)}, such as {', '.join(model.classes[:5])}."
        )
    places = torch.tensor([model.classes.index(name) for name in images.classes])
    first, *others = images.splits.values() if split is None else [images[split]]
    together = sum(others, start=first)
    return replace(together, targets=places[together.targets])


# ---- predict ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictOptions:
    """Say the classes of pictures, and how probable each is, with the model of a run.

    Args:
        run: the run folder that 'powerpool train vision' wrote
        pictures: files and folders; folders are searched to the bottom
        corrupt: whether a picture that cannot be read is an error, or is skipped and counted
        download: whether weights that are not on this machine may be fetched from the network
        workers: processes that read pictures, and run the backbone on a CPU; as many as there are cores without it
        out: a file for the answers with all probabilities, .csv or .json by its name; without it a table is printed
    """

    run: str
    pictures: list[str] = field(default_factory=list)
    corrupt: Corrupt = "error"
    download: bool = False
    workers: int | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        require_answer_file(self.out)
        if not self.pictures:
            raise ArgumentError("pictures must name at least one file or folder: powerpool predict vision photo.jpg")


def predict(options: PredictOptions) -> None:
    """Print a table of the most probable classes of every picture, or write all probabilities."""
    model = load_run(options.run, download=options.download)
    pictures = list_images(options.pictures)
    # With "error" whoever reads a picture that is none will say so.
    pictures, skipped = check_images(pictures, "skip") if options.corrupt == "skip" else (pictures, [])
    for name in skipped:
        note(f"skipped, not readable: {name}")
    if not len(pictures):
        raise ArgumentError(f"None of the {len(skipped)} pictures can be read.")
    probabilities = model.logits(pictures, options.workers).softmax(-1)
    answers = [
        {
            "picture": name,
            "class": model.classes[int(row.argmax())],
            "probability": float(row.max()),
            **{f"probability of {label}": float(value) for label, value in zip(model.classes, row, strict=True)},
        }
        for name, row in zip(pictures.names, probabilities, strict=True)
    ]
    emit(answers)
    if options.out is not None:
        write_answers(answers, options.out)
        return
    console().print(_prediction_table(pictures.names, probabilities, model.classes))


def _prediction_table(names: tuple[str, ...], probabilities: torch.Tensor, classes: tuple[str, ...]) -> Any:
    from rich.table import Table

    table = Table("picture", "class", "probability", "then")
    best = probabilities.topk(min(SHOWN, len(classes)), dim=-1)
    for name, values, places in zip(names, best.values.tolist(), best.indices.tolist(), strict=True):
        said = [f"{classes[place]} {100 * value:.1f} %" for place, value in zip(places, values, strict=True)]
        row = (name, classes[places[0]], f"{100 * values[0]:.1f} %", ", ".join(said[1:]))
        table.add_row(*map(cell, row))
    return table


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in values.items())
