"""Options of the commands that all tasks have; each task adds its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from powerpool.errors import ArgumentError, require_choice
from powerpool.files import require_writable
from powerpool.runs.config import Setting, is_quick_recipe, make_config, read_settings, recipe_names
from powerpool.runs.engines import EngineOptions
from powerpool.tasks.methods import METHODS

C = TypeVar("C")


def take_fields(options: Any, kind: type[C]) -> C:
    """Build a dataclass from the fields that it shares with the options."""
    return kind(**{entry.name: getattr(options, entry.name) for entry in fields(kind)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class EvaluateOptions:
    """Test the model of a run again.

    Args:
        run: run folder of 'powerpool train'
        data: other labelled data, all of which is tested
        data_root: folder with data sets; default: that of the run
        download: allow downloads of data and weights that are not on this machine
        out: where the results are written; default: the run folder
    """

    task: ClassVar[str]
    run: str
    data: str | None = None
    data_root: str | None = None
    download: bool = False
    out: str | None = None


def require_answer_file(out: str | None) -> None:
    """Refuse a file for predictions that is not CSV or JSON, or cannot be written."""
    if out is not None:
        if Path(out).suffix not in (".csv", ".json"):
            raise ArgumentError(f"out must end in .csv or .json (got {out!r}).")
        require_writable(out, "Choose another place with --out.")


@dataclass(frozen=True, kw_only=True)  # after the options of each command
class StudyOptions(EngineOptions):
    """Options of commands that run many trainings.

    Args:
        recipe: settings for all data sets instead of the recipe of each: a YAML file, or the name of one that ships
        quick: a few tiny trainings that show that everything works; the numbers mean nothing
        jobs: trainings that run at once, each on one thread; default: the number of cores. Results do not depend on it
        out: folder for results and reports; default: runs/COMMAND/TASK
        data_root: folder with data sets; default: $POWERPOOL_DATA, then the cache
        download: allow downloads of data and weights that are not on this machine
    """

    command: ClassVar[str]
    task: ClassVar[str]
    recipe: str | None = None
    quick: bool = False
    jobs: int | None = None
    out: str | None = None
    data_root: str | None = None
    download: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jobs is not None and self.jobs < 1:
            raise ArgumentError(f"jobs must be at least 1 (got {self.jobs}).")

    @property
    def is_quick(self) -> bool:
        """Whether the numbers mean nothing."""
        return self.quick or is_quick_recipe(self.recipe)

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        return Path(self.out or f"runs/{self.command}/{self.task}{'-quick' if self.quick else ''}")


@dataclass(frozen=True)
class ReproduceOptions(StudyOptions):
    """Train and test methods on data sets, and compare them with the figures of the paper.

    Args:
        data: data sets
        methods: rows of the table; default: all. The method of a recipe is ignored
    """

    command: ClassVar[str] = "reproduce"
    default_data: ClassVar[str]
    data: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        for method in self.methods:
            require_choice(method, self.known_methods, "value of methods")
        require_distinct(data=self.data, methods=self.methods)
        if self.recipe and self.quick:
            raise ArgumentError("--recipe and --quick exclude each other: both choose the settings.")

    @property
    def known_methods(self) -> Sequence[str]:
        """What ``methods`` may name."""
        return tuple(METHODS[self.task])

    @property
    def data_sets(self) -> list[str | None]:
        """What to read; None stands for the data set that the recipe names."""
        return [*self.data] or ([None] if self.recipe else [self.default_data])


def require_distinct(**lists: Sequence[Any]) -> None:
    """Refuse lists that name something twice."""
    for name, values in lists.items():
        if len(set(values)) != len(values):
            raise ArgumentError(f"{name} must not repeat a value (got {list(values)}).")


def read_layered(
    kind: type[C],
    task: str,
    data: str | None,
    recipe: str | None,
    scales: Sequence[str],
    without: Collection[str] = (),
    **typed: Any,
) -> C:
    """Read settings in layers: the recipe of the data set, then those of ``scales``, then typed options.

    Args:
        kind: the configuration.
        task: whose recipes.
        data: the data set; None for the one that the recipe names.
        recipe: used instead of the recipe of the data set.
        scales: recipes such as "quick", which override some settings.
        without: settings of the recipe that are left out.
        typed: settings by name, with ``__`` for dots. None leaves a setting unchanged, ``Setting(None)`` sets it to
            None.
    """
    own = f"{task}/{data}"
    found = read_settings(recipe or (own if own in recipe_names() else f"{task}/default"), kind)
    settings = {name: setting for name, setting in found.items() if name not in without}
    for scale in scales:
        settings |= read_settings(f"{task}/{scale}", kind)
    changes = {"data": data, **{name.replace("__", "."): value for name, value in typed.items()}}
    given = {name: value for name, value in changes.items() if value is not None}
    settings |= {name: value if isinstance(value, Setting) else Setting(value) for name, value in given.items()}
    return make_config(kind, settings)
