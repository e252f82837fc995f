"""``powerpool reproduce vision``: methods x data sets, as in the paper's tables of images.

On frozen features every method is trained on the same maps, several at a time. End to end every method trains the
backbone, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerpool.data import ImageSet
from powerpool.errors import ArgumentError, require_choice
from powerpool.files import locked
from powerpool.integrations.backbones import load_backbone
from powerpool.report.report import Reproduced, conclude, tell
from powerpool.runs.config import Setting, make_config, read_settings, recipe_names
from powerpool.runs.engines import Engine, EngineOptions
from powerpool.runs.environment import environment
from powerpool.runs.folder import RECORD
from powerpool.runs.provenance import fingerprint, guarded, origin_of, without_origin
from powerpool.runs.quick import is_quick_recipe
from powerpool.runs.record import RunRecord
from powerpool.runs.scheduler import Unit, run_units
from powerpool.tasks.vision.commands import extraction_bars, read_pictures, train_run
from powerpool.tasks.vision.config import Head, PoolConfig, Training, VisionConfig
from powerpool.tasks.vision.evaluation import METRIC, PLACES, PROTOCOLS, test, train_again, validate_heads
from powerpool.tasks.vision.extraction import Features, extract, open_features, usable_workers
from powerpool.tasks.vision.methods import METHODS

if TYPE_CHECKING:
    from powerpool.cli.sweep import SweepOptions

BASELINE = "FOP"
NOT_FROZEN = ("training", "mode")
"""Settings of training end to end, on which no result on frozen features depends."""


@dataclass(frozen=True)
class ReproduceVisionOptions(EngineOptions):
    """Train and test every method on data sets, on frozen features or end to end, and put the table beside the paper's.

    Args:
        data: data sets that have a recipe, such as flower102, food101, mit67, fmd, imagenet or cub200, or folders or
            zips of class folders
        methods: rows of the table; all of them without it. The method of a recipe is not looked at
        mode: frozen or end-to-end, instead of that of the recipe
        heads: classifiers on frozen features: ridge, softmax or both, each of which has a table
        recipe: settings for all data sets, instead of those of each: a YAML file, or the name of one that ships
        quick: a few small trainings on small pictures, to see that everything runs; the figures mean nothing
        jobs: methods that are trained at once, each on one thread; as many as there are cores without it. Figures do
            not depend on it
        workers: processes that read pictures, and run the backbone on a CPU; as many as there are cores without it
        seed: of splits and batches, instead of that of the recipe
        out: where results, records and the report go; runs/reproduce/vision (-quick) without it
        data_root: folder with data sets; without it $POWERPOOL_DATA and the cache are searched
        download: whether data and weights that are not on this machine may be fetched from the network
    """

    data: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=lambda: list(METHODS))
    mode: Training | None = None
    heads: list[Head] = field(default_factory=lambda: list(PROTOCOLS))
    recipe: str | None = None
    quick: bool = False
    jobs: int | None = None
    workers: int | None = None
    seed: int | None = None
    out: str | None = None
    data_root: str | None = None
    download: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("methods", tuple(METHODS)), ("heads", tuple(PROTOCOLS))):
            for value in getattr(self, name):
                require_choice(value, choices, f"value of {name}")
        for name in ("data", "methods", "heads"):
            values = getattr(self, name)
            if len(set(values)) != len(values) or (name != "data" and not values):
                raise ArgumentError(f"{name} must name at least one, and each once (got {values}).")
        if self.recipe and self.quick:
            raise ArgumentError("--recipe and --quick contradict one another: each says which settings to take.")
        require_processes(self.jobs, self.workers)

    @property
    def data_sets(self) -> list[str | None]:
        """What to read; None for the data set that the recipe names, which is digits if none does."""
        return [*self.data] or ([None] if self.recipe else ["digits"])

    @property
    def is_quick(self) -> bool:
        """Whether the figures mean nothing."""
        return self.quick or is_quick_recipe(self.recipe)

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.out or f"runs/reproduce/vision{'-quick' if self.quick else ''}")


def require_processes(jobs: int | None, workers: int | None) -> None:
    """Refuse numbers of processes before anything is computed."""
    if jobs is not None and jobs < 1:
        raise ArgumentError(f"jobs must be at least 1 (got {jobs}).")
    usable_workers(workers)


@dataclass(frozen=True, eq=False)
class Row:
    """A method on a data set: a row of a table for each classifier."""

    config: VisionConfig
    heads: tuple[Head, ...]
    features: Features
    folder: Path
    """Where the results of its grid and its test are: for these settings, features, versions and this code alone."""

    @property
    def title(self) -> str:
        """What progress and errors call it."""
        return f"{self.features.facts['data']} {self.config.pool.method}"

    @property
    def configs(self) -> tuple[VisionConfig, ...]:
        """The configuration with each of the classifiers."""
        return tuple(replace(self.config, head=replace(self.config.head, kind=kind)) for kind in self.heads)


def run(options: ReproduceVisionOptions) -> None:
    """Run what is not done yet, then write the records and the report, and say where they are."""
    tell(reproduce(options), options.folder)


def reproduce(options: ReproduceVisionOptions, *, report: bool = True) -> Reproduced:
    """Run what is not done yet, then write the records and, unless it is left to the caller, the report."""
    with locked(options.folder):
        configs = [read_config(options, data) for data in options.data_sets]
        sets = [(config, read_pictures(config)) for config in configs]
        _require_names([images.name for _, images in sets])
        records = [
            record
            for config, images in sets
            for record in (_frozen if config.mode == "frozen" else _end_to_end)(options, config, images)
        ]
        return conclude(records, options.folder, quick=options.is_quick, report=report)


def _require_names(names: list[str]) -> None:
    """Refuse two data sets of one name, whose records would take each other's place."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ArgumentError(
            f"data names {names.count(twice[0])} data sets that are called {twice[0]}. Rename a folder, or give each a "
            "command and an --out of its own."
        )


def _frozen(options: ReproduceVisionOptions, config: VisionConfig, images: ImageSet) -> list[RunRecord]:
    return run_rows(make_rows(options, config, images), options.jobs, options.runs_on)


def _end_to_end(options: ReproduceVisionOptions, config: VisionConfig, images: ImageSet) -> list[RunRecord]:
    """One training after the other: each takes all of the machine."""
    records = []
    digests = (images.digest, load_backbone(config.backbone, download=config.download).digest())
    for method in options.methods:
        own = replace(config, pool=replace(config.pool, method=method))
        settings = {name: value for name, value in asdict(own).items() if name not in PLACES}
        folder = options.folder / "runs" / images.name / f"{method}-{fingerprint('vision', settings, *digests)}"
        if (folder / RECORD).exists():
            records.append(RunRecord.read(folder / RECORD))
        else:
            records.append(train_run(own, images, folder, options.workers))
    return records


def run_rows(rows: list[Row], jobs: int | None, engine: Engine | None = None) -> list[RunRecord]:
    """The records of all rows, after their grids; what is on the disk is read."""
    start, units = environment(), [list(_grid_units(row)) for row in rows]
    every = [unit for own in units for unit in own]
    remaining = iter(run_units(every, jobs, description="points of the grid", engine=engine))
    points = [[without_origin(next(remaining)) for _ in own] for own in units]
    tests = [
        Unit(
            row.folder / "test.json",
            f"{row.title} test",
            guarded("vision", partial(_test, row.configs, found, row.features.folder)),
            (*row.heads, "origin"),
        )
        for row, found in zip(rows, points, strict=True)
    ]
    results = run_units(tests, jobs, description="tests", engine=engine)
    return [
        make_record(config, row.features, result, start)
        for row, result in zip(rows, results, strict=True)
        for config in row.configs
    ]


def make_rows(options: ReproduceVisionOptions, recipe: VisionConfig, images: ImageSet) -> list[Row]:
    """The rows of a data set, once its features are there."""
    # Before the features: a value that a method cannot have shows at once.
    configs = [replace(recipe, pool=replace(recipe.pool, method=method)) for method in options.methods]
    features = read_features(recipe, images, options.workers)
    rows = []
    for config in configs:
        # All facts of the features, which settings do not have, such as the version of what reads pictures.
        key = fingerprint("vision", shared_settings(config, features), options.heads, features.facts)
        place = options.folder / "points" / str(features.facts["data"]) / f"{config.pool.method}-{key}"
        rows.append(Row(config, tuple(options.heads), features, place))
    return rows


def read_features(config: VisionConfig, images: ImageSet, workers: int | None) -> Features:
    """The features of a configuration, with a bar while they are computed."""
    with extraction_bars(images) as watch:
        return extract(config, images, workers=workers, watch=watch)


def read_config(options: ReproduceVisionOptions | SweepOptions, data: str | None) -> VisionConfig:
    """The settings for a data set: of its recipe, then of ``--quick``, then the options themselves."""
    names = recipe_names()
    known = f"vision/{data}" in names
    settings = read_settings(options.recipe or (f"vision/{data}" if known else "vision/default"), VisionConfig)
    if options.quick:
        settings |= read_settings("vision/quick", VisionConfig)
    typed = {"data": data, "data_root": options.data_root, "download": options.download, "seed": options.seed}
    settings |= {name: Setting(value) for name, value in typed.items() if value is not None}
    # The methods are those of the options. This one fits whatever parameters the recipe has for others.
    settings["pool.method"] = Setting(BASELINE)
    mode = options.mode if isinstance(options, ReproduceVisionOptions) else "frozen"
    settings |= {} if mode is None else {"mode": Setting(mode)}
    if mode == "frozen":
        settings["pool.reduce_to"] = Setting(None)
    return make_config(VisionConfig, settings)


def make_record(config: VisionConfig, features: Features, result: dict[str, Any], start: dict[str, Any]) -> RunRecord:
    """The record of a method with one classifier."""
    own = result[config.head.kind]
    return RunRecord(
        pipeline="vision",
        data=str(features.facts["data"]),
        method=config.pool.method,
        protocol=PROTOCOLS[config.head.kind],
        metric=METRIC,
        folds=(own,),
        config=shared_settings(config, features),
        seed=config.seed,
        seconds=own["seconds"],
        environment=origin_of([result], start),
    )


def _grid_units(row: Row) -> Iterator[Unit]:
    for place, pool in enumerate(row.config.points()):
        yield Unit(
            row.folder / f"point-{place:02d}.json",
            f"{row.title} point {place}",
            guarded("vision", partial(validate_stored, row.configs, pool, row.features.folder)),
            (*row.heads, "origin"),
        )


def validate_stored(configs: tuple[VisionConfig, ...], pool: PoolConfig, folder: Path) -> dict[str, Any]:
    """A point of the grid by classifier, from the folder of its features: what a worker process is given."""
    found = validate_heads(configs, pool, open_features(folder))
    return {config.head.kind: outcome for config, outcome in zip(configs, found, strict=True)}


def _test(configs: tuple[VisionConfig, ...], points: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    features, grids = open_features(folder), [[point[config.head.kind] for point in points] for config in configs]
    found = test(train_again(configs, grids, features), grids, features)
    return {config.head.kind: result for config, result in zip(configs, found, strict=True)}


def shared_settings(config: VisionConfig, features: Features) -> dict[str, Any]:
    """The configuration, with name and content of the data instead of the place where it lay."""
    settings = {name: value for name, value in asdict(config).items() if name not in (*PLACES, *NOT_FROZEN)}
    facts = {name: features.facts[name] for name in ("data", "data_digest", "backbone_digest")}
    return {**settings, **facts}
