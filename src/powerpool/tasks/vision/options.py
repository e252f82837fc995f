"""Options of ``powerpool train|evaluate|predict|reproduce|sweep vision``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from powerpool.data.images import Corrupt
from powerpool.errors import ArgumentError, require_choice
from powerpool.runs.config import Setting
from powerpool.runs.engines import EngineOptions
from powerpool.runs.quick import is_quick_recipe
from powerpool.tasks import options as base
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.options import read_layered, require_answer_file, require_distinct, take_fields
from powerpool.tasks.vision.config import (
    PROTOCOLS,
    RENAMED_PARAMETERS,
    GridConfig,
    Head,
    Mode,
    VisionConfig,
    grid_names,
    require_workers,
)
from powerpool.tasks.vision.studies import PAPER, STUDIES


@dataclass(frozen=True)
class TrainOptions(VisionConfig):
    """Train a pool and a classifier on a backbone, select settings by validation, test once, and keep the model.

    Args:
        out: run folder; default: runs/train/vision/DATA/METHOD
        overwrite: start anew where the folder contains another run, instead of refusing
    """

    task: ClassVar[str] = "vision"
    out: str | None = None
    overwrite: bool = False

    @property
    def config(self) -> VisionConfig:
        """The settings of the task."""
        return take_fields(self, VisionConfig)

    def stored_config(self, config: VisionConfig) -> VisionConfig:
        """Return the settings that are stored with the run; it may be resumed with another number of workers."""
        return replace(config, workers=None)

    @property
    def chain(self) -> int:
        """There is one split."""
        return 0

    @property
    def protocols(self) -> Sequence[str]:
        """The protocol as a list of one."""
        return [PROTOCOLS[self.head.kind] if self.mode == "frozen" else self.mode]

    def default_folder(self, data: str) -> Path:
        """Return the run folder where none is given."""
        return Path("runs", "train", "vision", data, self.pool.method)


@dataclass(frozen=True)
class EvaluateOptions(base.EvaluateOptions):
    """Test the model of a run: on a split of its own images, or on other labelled images.

    Args:
        run: run folder of 'powerpool train vision'
        data: other images, all of which are tested: a folder or zip of class folders, or a data set
        data_root: folder with data sets; default: that of the run
        download: allow downloads of data and weights that are not on this machine
        out: folder for evaluation.json and confusion.png; default: the run folder
        split: split to test; default: test, or all of other images. The run was trained on its train and validation
            images
        corrupt: error: refuse images that cannot be read; skip: leave them out and count them
        workers: processes that read images, and run the backbone on a CPU; default: the number of cores
    """

    task: ClassVar[str] = "vision"
    split: Literal["train", "validation", "test"] | None = None
    corrupt: Corrupt = "error"
    workers: int | None = None

    def __post_init__(self) -> None:
        require_workers(self.workers)


@dataclass(frozen=True)
class PredictOptions:
    """Predict the classes of images, with the probability of each class, by the model of a run.

    Args:
        run: run folder of 'powerpool train vision'
        pictures: image files and folders; folders are searched recursively
        corrupt: error: refuse images that cannot be read; skip: leave them out and count them
        download: allow downloads of weights that are not on this machine
        workers: processes that read images, and run the backbone on a CPU; default: the number of cores
        out: file for the predictions with all probabilities, .csv or .json; default: a table is printed
    """

    task: ClassVar[str] = "vision"
    run: str
    pictures: list[str] = field(default_factory=list)
    corrupt: Corrupt = "error"
    download: bool = False
    workers: int | None = None
    out: str | None = None

    def __post_init__(self) -> None:
        require_answer_file(self.out)
        require_workers(self.workers)
        if not self.pictures:
            raise ArgumentError("Name at least one image file or folder: powerpool predict vision photo.jpg")


@dataclass(frozen=True)
class ReproduceOptions(base.ReproduceOptions):
    """Train and test methods on data sets, on frozen features or end to end, and compare them with the paper.

    Args:
        data: data sets that have a recipe, such as flower102, food101, mit67, fmd, imagenet or cub200, or folders or
            zips of class folders
        mode: frozen or end-to-end; default: that of the recipe
        heads: classifiers on frozen features: ridge, softmax or both; each has its own table
        workers: processes that read images, and run the backbone on a CPU; default: the number of cores
        seed: of splits and batches; default: that of the recipe
    """

    task: ClassVar[str] = "vision"
    default_data: ClassVar[str] = "digits"
    methods: list[str] = field(default_factory=lambda: list(VISION_METHODS))
    mode: Mode | None = None
    heads: list[Head] = field(default_factory=lambda: list(PROTOCOLS))
    workers: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for head in self.heads:
            require_choice(head, PROTOCOLS, "value of heads")
        require_distinct(heads=self.heads)
        if not self.heads:
            raise ArgumentError("heads must name at least one classifier (got none).")
        require_workers(self.workers)

    def read_config(self, data: str | None) -> VisionConfig:
        """Return the settings for a data set; None stands for the one that the recipe names."""
        return read_config(self, data, self.mode)


def read_config(options: Any, data: str | None, mode: Mode | None) -> VisionConfig:
    """Return the settings of ``reproduce`` or ``sweep`` for a data set."""
    # Methods come from the options. The baseline fits whatever parameters a recipe has for others.
    typed: dict[str, Any] = {"mode": mode, "pool__method": "FOP"}
    if mode == "frozen":  # a recipe for training end to end may reduce channels
        typed["pool__reduce_to"] = Setting(None)
    typed |= {name: getattr(options, name) for name in ("data_root", "download", "workers", "seed")}
    return read_layered(VisionConfig, "vision", data, options.recipe, ["quick"] if options.quick else [], **typed)


@dataclass(frozen=True)
class SweepOptions(EngineOptions):
    """Try the values of one setting on the validation images, and pick the best. Test images are not used.

    Args:
        data: a data set that has a recipe, such as flower102, or a folder or zip of class folders
        over: settings, each of which is varied while the others stay as in the recipe: beta, alpha, sigme_eta and eta,
            as in the paper, and also gamma, asinhe_gamma, t, sigma and pivots
        values: values to try, for a single setting; default: a usual range
        method: method to try them with, for a single setting; default: that of the paper
        recipe: settings instead of those of the data set: a YAML file, or the name of one that ships
        quick: small images that show that everything works; the numbers mean nothing
        jobs: values that are tried at once, each on one thread; default: the number of cores
        workers: processes that read images, and run the backbone on a CPU; default: the number of cores
        seed: of splits and batches; default: that of the recipe
        out: folder for results and plots; default: runs/sweep/vision
        data_root: folder with data sets; default: $POWERPOOL_DATA, then the cache
        download: allow downloads of data and weights that are not on this machine
    """

    task: ClassVar[str] = "vision"
    data: str | None = None
    over: list[str] = field(default_factory=lambda: list(PAPER))
    values: list[float] = field(default_factory=list)
    method: str | None = None
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
        for name in set(self.over) & RENAMED_PARAMETERS.keys():
            warnings.warn(f"{name} is now {RENAMED_PARAMETERS[name]}.", DeprecationWarning, stacklevel=3)
        object.__setattr__(self, "over", [RENAMED_PARAMETERS.get(name, name) for name in self.over])
        for name in self.over:
            require_choice(name, STUDIES, "value of over")
        require_distinct(over=self.over)
        if not self.over:
            raise ArgumentError("over must name at least one setting (got none).")
        if self.jobs is not None and self.jobs < 1:
            raise ArgumentError(f"jobs must be at least 1 (got {self.jobs}).")
        require_workers(self.workers)
        if len(self.over) > 1 and (self.values or self.method):
            raise ArgumentError(f"values and method need a single setting in over (got {', '.join(self.over)}).")
        if self.method is not None:
            require_choice(self.method, VISION_METHODS, "method")
            if self.over[0] not in grid_names(self.method):
                depends = ", ".join(grid_names(self.method)) or "no setting"
                raise ArgumentError(f"{self.method} does not depend on {self.over[0]}, only on {depends}.")

    @property
    def is_quick(self) -> bool:
        """Whether the numbers mean nothing."""
        return self.quick or is_quick_recipe(self.recipe)

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.out or f"runs/sweep/vision{'-quick' if self.quick else ''}")

    def read_config(self) -> VisionConfig:
        """Return the settings that the sweep starts from."""
        return read_config(self, self.data if self.data or self.recipe else "digits", "frozen")

    def points(self, config: VisionConfig, name: str) -> list[VisionConfig]:
        """Return the configurations of a sweep over one setting; each has a single grid point."""
        study = STUDIES[name]
        values = self.values or list(study.values)
        if name == "pivots":
            if any(value != int(value) for value in values):
                raise ArgumentError(f"values of {name} must be whole numbers (got {values}).")
            values = [int(value) for value in values]
        pool = replace(config.pool, method=self.method or study.method)
        pools = [replace(pool, **{name: value}) for value in values]  # type: ignore[arg-type]
        return [replace(config, pool=one, grid=GridConfig()) for one in pools]
