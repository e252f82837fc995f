"""Options of ``powerpool train|evaluate|predict|reproduce|sweep vision``, and the records of ``sweep``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from powerpool.checks import require_seed
from powerpool.data.images import Corrupt
from powerpool.errors import ArgumentError, RecordError, require_choice, shown
from powerpool.files import read_json
from powerpool.runs.config import RenamedFieldWarning, Setting
from powerpool.runs.typed import Json, from_json
from powerpool.tasks import options as base
from powerpool.tasks.methods import RECTIFIED_POOLS, VISION_METHODS
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

SCHEMA = "powerpool sweep 1"


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
        """Return the settings that are stored with the run; workers and memory may differ when it is resumed."""
        return replace(config, workers=None, head=replace(config.head, memory=None))

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
        run: run folder of 'powerpool train vision', or a folder in the format of transformers, which needs data
        data: other images, all of which are tested: a folder or zip of class folders, or a data set
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
        run: run folder of 'powerpool train vision', or a folder in the format of transformers
        images: image files and folders; folders are searched recursively
        corrupt: error: refuse images that cannot be read; skip: leave them out and count them
        download: allow downloads of weights that are not on this machine
        workers: processes that read images, and run the backbone on a CPU; default: the number of cores
        out: file for the predictions with all probabilities, .csv or .json; default: a table is printed
        top: number of classes to name for each image, with their probabilities, the most probable first; default: three
            in the table, all in files
    """

    task: ClassVar[str] = "vision"
    RENAMED: ClassVar[dict[str, str]] = {"pictures": "images"}

    run: str
    images: list[str] = field(default_factory=list)
    corrupt: Corrupt = "error"
    download: bool = False
    workers: int | None = None
    out: str | None = None
    top: int | None = None

    def __post_init__(self) -> None:
        require_answer_file(self.out)
        require_workers(self.workers)
        if self.top is not None and self.top < 1:
            raise ArgumentError(f"top must be at least 1 (got {self.top}).")
        if not self.images:
            raise ArgumentError("Name at least one image file or folder: powerpool predict vision photo.jpg")


@dataclass(frozen=True)
class ReproduceOptions(base.ReproduceOptions):
    """Train and test methods on data sets, on frozen features or end to end, and compare them with the paper.

    Args:
        data: data sets that have a recipe, such as flower102, food101, mit67, fmd, imagenet or cub200, or folders or
            zips of class folders
        mode: frozen or end-to-end; default: that of the recipe
        backbone: efficientnet-lite0, hf:NAME or a folder after hf:, timm:NAME or torchvision:NAME; default: that of the
            recipe. The size of crops is then that of the image processor of an hf: backbone
        heads: classifiers on frozen features: ridge, softmax or both; each has its own table
        workers: processes that read images, and run the backbone on a CPU; default: the number of cores
        seed: of splits and batches; default: that of the recipe
        seeds: of weights and batches, with a training end to end for each on the same split; default: one, seed
    """

    task: ClassVar[str] = "vision"
    default_data: ClassVar[str] = "digits"
    methods: list[str] = field(default_factory=lambda: [name for name in VISION_METHODS if name not in RECTIFIED_POOLS])
    mode: Mode | None = None
    backbone: str | None = None
    heads: list[Head] = field(default_factory=lambda: list(PROTOCOLS))
    workers: int | None = None
    seed: int | None = None
    seeds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        for head in self.heads:
            require_choice(head, PROTOCOLS, "value of heads")
        require_distinct(heads=self.heads, seeds=self.seeds)
        for seed in self.seeds:
            require_seed(seed, "each of seeds")
        if not self.heads or not self.methods:
            raise ArgumentError("heads and methods must each have at least one value.")
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
    typed |= {name: getattr(options, name) for name in ("data_root", "download", "workers", "seed", "backbone")}
    # Crops of a recipe are for its own backbone.
    has_processor = (options.backbone or "").startswith("hf:")
    without = [f"crops.{name}" for name in ("size", "resize", "interpolation")] if has_processor else []
    scales = ["quick"] if options.quick else []
    return read_layered(VisionConfig, "vision", data, options.recipe, scales, without, **typed)


# ---- sweeps ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Study:
    """The method with which a setting is tried, and its values."""

    method: str
    values: tuple[float, ...]


STUDIES = {
    "beta": Study("SOP+SC+SpecMaxExpF", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
    "alpha": Study("SOP+SC+SpecMaxExpF", (0.01, 0.03, 0.1, 0.2, 0.3, 0.5)),
    "sigme_eta": Study("SOP+SC+SigmE", (50, 200, 1000, 5000, 20000)),
    "eta": Study("SOP+SC+SpecMaxExpF", (1, 5, 10, 20, 40, 80, 160)),
    "gamma": Study("SOP+SC+SpecGamma", (0.2, 0.35, 0.5, 0.65, 0.8, 1.0)),
    "asinhe_gamma": Study("SOP+SC+AsinhE", (100, 1000, 10000, 100000)),
    "t": Study("SOP+SC+SpecHDP", (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1)),
    "sigma": Study("SOP+SC+SpecMaxExpF", (0.2, 0.35, 0.5, 0.7, 1.0)),
    "pivots": Study("SOP+SC+SpecMaxExpF", (3, 5, 7, 10)),
}
"""The first four are those of the paper."""
PAPER = ("beta", "alpha", "sigme_eta", "eta")


@dataclass(frozen=True)
class SweepOptions(base.StudyOptions):
    """Try the values of one setting on the validation images, and pick the best. Test images are not used.

    Args:
        data: a data set that has a recipe, such as flower102, or a folder or zip of class folders
        backbone: as for reproduce; default: that of the recipe
        over: settings, each of which is varied while the others stay as in the recipe: beta, alpha, sigme_eta and eta,
            as in the paper, and also gamma, asinhe_gamma, t, sigma and pivots
        values: values to try, for a single setting; default: a usual range
        method: method to try them with, for a single setting; default: that of the paper
        workers: processes that read images, and run the backbone on a CPU; default: the number of cores
        seed: of splits and batches; default: that of the recipe
    """

    command: ClassVar[str] = "sweep"
    task: ClassVar[str] = "vision"
    data: str | None = None
    backbone: str | None = None
    over: list[str] = field(default_factory=lambda: list(PAPER))
    values: list[float] = field(default_factory=list)
    method: str | None = None
    workers: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in set(self.over) & RENAMED_PARAMETERS.keys():
            warnings.warn(f"{name} is now {RENAMED_PARAMETERS[name]}.", RenamedFieldWarning, stacklevel=3)
        object.__setattr__(self, "over", [RENAMED_PARAMETERS.get(name, name) for name in self.over])
        for name in self.over:
            require_choice(name, STUDIES, "value of over")
        require_distinct(over=self.over)
        if not self.over:
            raise ArgumentError("over must name at least one setting (got none).")
        require_workers(self.workers)
        if len(self.over) > 1 and (self.values or self.method):
            raise ArgumentError(f"values and method need a single setting in over (got {', '.join(self.over)}).")
        if self.method is not None:
            require_choice(self.method, VISION_METHODS, "method")
            if self.over[0] not in grid_names(self.method):
                depends = ", ".join(grid_names(self.method)) or "no setting"
                raise ArgumentError(f"{self.method} does not depend on {self.over[0]}, only on {depends}.")

    def read_config(self) -> VisionConfig:
        """Return the settings that the sweep starts from."""
        from powerpool.tasks.vision.plan import with_memory_share  # imports much that options do not need

        config = read_config(self, self.data if self.data or self.recipe else "digits", "frozen")
        return with_memory_share(config)

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


@dataclass(frozen=True)
class SweepPoint:
    """A value of the setting, and the accuracy in % on validation images."""

    value: float
    accuracy: float


@dataclass(frozen=True)
class SweepRecord:
    """What ``powerpool sweep vision`` found for one setting."""

    data: str
    method: str
    setting: str
    points: tuple[SweepPoint, ...]
    images: int | None = None
    """Number of validation images; older records do not have it."""
    quick: bool = False


def read_sweep(path: str | Path) -> SweepRecord:
    """Read a record of ``powerpool sweep``; an error names the file and the field that is wrong."""
    data = read_json(path)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise RecordError(
            f"{path} is not a record of `powerpool sweep`: schema must be {SCHEMA!r} (got {shown(schema)})."
        )
    try:
        return _convert_sweep(data)
    except RecordError as error:
        raise RecordError(f"{path} is a damaged record of `powerpool sweep`: {error}") from error


def _convert_sweep(data: dict[str, Json]) -> SweepRecord:
    setting, rows, environment = (data.get(name) for name in ("setting", "values", "environment"))
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise RecordError(f"values must be a list of objects (got {shown(rows)}).")
    found = {
        "data": data.get("data"),
        "method": data.get("method"),
        "setting": RENAMED_PARAMETERS.get(str(setting), setting),
        "points": [{"value": row.get(str(setting)), "accuracy": row.get("accuracy")} for row in rows],
        "images": data.get("images", data.get("pictures")),
        "quick": isinstance(environment, dict) and environment.get("quick") is True,
    }
    return from_json(SweepRecord, found)
