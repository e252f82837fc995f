"""The Task contract: load data, fit, select, test, predict. A task knows nothing of commands, reports or run folders.

A *chain* is one independent result: a fold, a split or a seed. Its *units* are the trainings that it needs, one for
each grid point. :func:`run_chain` is the one protocol: ``powerpool train`` runs one chain and keeps its model,
``powerpool reproduce`` runs the chains of all methods and data sets through the scheduler.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import Tensor

from powerpool.console import TextTable
from powerpool.files import read_json
from powerpool.runs.folder import DataIdentity
from powerpool.runs.record import Confusion, Result, RunRecord, Trial
from powerpool.runs.typed import Json, to_json
from powerpool.tasks.pooling import FeatureSource, Samples
from powerpool.tasks.predictions import Predictions
from powerpool.tasks.training import keep_freed_memory

C = TypeVar("C")
D = TypeVar("D")
F = TypeVar("F")
M = TypeVar("M")


class Watch(Protocol):
    """Shows progress."""

    def __call__(self, what: str, done: int, total: int, remark: str = "") -> None:
        """Show what is counted, how many are done, of how many, and a line to print, such as a validation score."""


def ignore_progress(what: str, done: int, total: int, remark: str = "") -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Unit:
    """One training: a grid point of a chain."""

    chain: int
    point: int = 0
    protocol: str | None = None
    """The protocol whose selection asked for it; None for a point of the grid."""
    settings: tuple[tuple[str, float], ...] = ()
    """The values of a point beyond the grid."""

    @property
    def name(self) -> str:
        """A file name for its checkpoint."""
        return "-".join((f"{self.chain:02d}", f"{self.point:02d}", *([self.protocol] if self.protocol else [])))


@dataclass(frozen=True)
class Outcome(Generic[M]):
    """The models and test results of a chain, by protocol."""

    models: Mapping[str, M]
    results: Mapping[str, Result]


@dataclass(frozen=True, eq=False)
class Row(Generic[C, D]):
    """A row of a table: one method on one data set, as ``reproduce`` runs it."""

    configs: tuple[C, ...]
    """One for each chain; seeds may differ."""
    data: D
    protocols: tuple[str, ...]
    method: str
    """Name in the tables."""
    data_name: str
    source: Row[C, D] | None = None
    """The row whose trained models this one starts from."""
    start_from: Callable[[C, Path], C] | None = None
    """Puts what ``source`` found into the configuration that starts from it. The argument is the file of the result,
    beside which the model is, if it is kept."""
    extends: bool = False
    """Whether the results belong to the record of ``source``: the same method with another seed."""
    chains: tuple[int, ...] = ()
    """The number of each chain where only some are run; default: all."""
    exclusive: bool = False
    """Whether a training uses the whole machine, so that one runs after the other in this process."""
    settings: dict[str, Json] = field(default_factory=dict)
    """What results depend on and records state beside the settings of :meth:`Task.settings`, which they replace."""
    facts: dict[str, Json] = field(default_factory=dict)
    """What records state beside that, and stored results are not looked up by."""

    def chain(self, place: int) -> int:
        """Return the number of a chain among those with the same configuration: a fold, or 0 for a seed."""
        return self.chains[place] if self.chains else self.configs[:place].count(self.configs[place])


class Evaluation(ABC):
    """What a test of a trained model shows."""

    remarks: tuple[str, ...] = ()
    """Warnings for the user."""

    @abstractmethod
    def plain(self) -> dict[str, Json]:
        """Return what ``evaluation.json`` holds."""

    @abstractmethod
    def tables(self) -> list[TextTable]:
        """Return what is printed."""

    @property
    def confusion(self) -> Confusion | None:
        """The confusion matrix, if it is worth drawing."""
        return None


class Task(ABC, Generic[C, D, F, M]):
    """A task, generic over its configuration, data, fits and models."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    """Raised whenever the same settings and data give other numbers: stored units are then computed again."""
    metric: ClassVar[str] = "accuracy in %"
    baseline: ClassVar[str]
    """The method that the others are compared with."""
    config_type: ClassVar[type]
    ignored_settings: ClassVar[tuple[str, ...]] = ("data_root", "download")
    """Settings that no result depends on: where data is found, and what computes."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose version may change numbers, beside torch."""
    keeps_models: ClassVar[bool] = False
    """Whether later work needs the models of finished chains."""
    draws_confusion: ClassVar[bool] = False
    """Whether ``evaluate`` draws the confusion matrix."""

    # ---- data ----

    @abstractmethod
    def load(self, config: C, watch: Watch = ignore_progress) -> D:
        """Read the data of a configuration."""

    @abstractmethod
    def identity(self, data: D) -> DataIdentity:
        """Return name and digest of the data."""

    def reference(self, config: C, data: D) -> Json:
        """Return what another process opens the data from, see :meth:`open`."""
        return self.identity(data).digest

    @abstractmethod
    def open(self, config: C, reference: Json) -> D:
        """Open the data in a worker; data that has changed since is refused."""

    def settings(self, config: C, data: D) -> dict[str, Json]:
        """Return all that a result depends on: the configuration, and the identity of the data instead of its path."""
        found = self.identity(data)
        own = {entry.name: getattr(config, entry.name) for entry in fields(config)}  # type: ignore[arg-type]
        plain = {name: _plain(value) for name, value in own.items() if name not in self.ignored_settings}
        return {**plain, "data": found.name, "data_digest": found.digest}

    def metric_of(self, data: D) -> str:
        """Return the name and unit of the values of the data, which may be classes or numbers."""
        return self.metric

    def data_remarks(self, data: D) -> list[str]:
        """Return remarks about the data, such as images that were skipped."""
        return []

    # ---- the protocol ----

    @abstractmethod
    def units(self, config: C, chain: int) -> Sequence[Unit]:
        """Return the trainings of a chain."""

    @abstractmethod
    def fit(
        self, config: C, data: D, unit: Unit, protocols: Sequence[str], checkpoint: Path | None, watch: Watch
    ) -> F | None:
        """Train a unit, from its checkpoint if there is one; None if the training diverges."""

    def further_unit(self, config: C, chain: int, fits: Sequence[F], protocol: str) -> Unit | None:
        """Return one more training for the selection of a protocol, such as a value beyond a grid; None if complete."""
        return None

    @abstractmethod
    def select(self, fits: Sequence[F], protocol: str) -> F:
        """Choose a fit by validation only."""

    def with_protocol(self, config: C, protocol: str) -> C:
        """Return the settings of a test under a protocol, which its record shows."""
        return config

    @abstractmethod
    def finish(
        self,
        config: C,
        data: D,
        chain: int,
        fits: Sequence[F],
        protocols: Sequence[str],
        checkpoint: Path | None,
        watch: Watch,
    ) -> Mapping[str, M]:
        """Return the model to test under each protocol: the selected one, or one trained again."""

    @abstractmethod
    def test(
        self, config: C, data: D, chain: int, fits: Sequence[F], models: Mapping[str, M], watch: Watch
    ) -> Mapping[str, Result]:
        """Test the model of each protocol, once."""

    def combine(self, protocol: str, results: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a record, where those of one chain depend on the others."""
        return results

    def protocol_settings(self, protocol: str) -> dict[str, Json]:
        """Return what a record states about its protocol beside the settings."""
        return {}

    # ---- trained models ----

    @abstractmethod
    def save(self, model: M, folder: Path) -> None:
        """Write a model into a run folder."""

    @abstractmethod
    def evaluate(self, options: Any, watch: Watch) -> Evaluation:
        """Test the model of a run again, as the options of ``powerpool evaluate`` say."""

    @abstractmethod
    def predict(self, options: Any, watch: Watch) -> Predictions:
        """Classify new inputs by the model of a run, as the options of ``powerpool predict`` say."""

    @abstractmethod
    def feature_source(self, folder: Path, samples: Samples) -> FeatureSource:
        """Return the features that the model of a run pools, for ``powerpool inspect`` and ``powerpool explore``."""

    # ---- commands ----

    def prepare(self, config: C) -> C:
        """Return the configuration that is stored, with absolute paths."""
        return config

    def adapt(self, config: C, data: D) -> C:
        """Return the settings, with defaults that the data does not allow replaced by what it allows."""
        return config

    def leads(self, config: C, *, overwrite: bool) -> bool:
        """Whether this process writes and prints; another one, started by a launcher such as torchrun, only fits."""
        return True

    def check(self, config: C, data: D, chain: int) -> None:
        """Refuse what cannot be trained before anything is written."""

    @abstractmethod
    def method(self, config: C) -> str:
        """Return the name of the method in the tables."""

    def remarks(self, config: C, data: D) -> list[str]:
        """Return remarks for the user before a training, such as settings without effect."""
        return []

    def result_remarks(self, config: C, protocol: str, result: Any) -> list[str]:
        """Return remarks about a selection, such as a selected value at the edge of its range."""
        return []

    @abstractmethod
    def plan(self, options: Any, watch: Watch) -> list[Row[C, D]]:
        """Return the rows that ``powerpool reproduce`` is to run; data is loaded, and bad settings are refused."""

    def study(self, options: Any, watch: Watch) -> list[RunRecord] | None:
        """Return the records of a study that needs no trainings; None if ``powerpool reproduce`` is to run rows."""
        return None

    @abstractmethod
    def describe(self, config: C, data: D, protocol: str, result: Any) -> str:
        """Return one line about a finished training."""


class SweepableTask(Task[C, D, F, M]):
    """A task whose settings ``powerpool sweep`` can vary one at a time."""

    sweep_schema: ClassVar[str]
    """The schema of its records of sweeps."""
    validation_part: ClassVar[str]
    """What the validation scores are of, such as "validation images"."""

    def load_selection(self, config: C, watch: Watch = ignore_progress) -> D:
        """Read the data that settings are selected with; test data may be left out."""
        return self.load(config, watch)

    @abstractmethod
    def sweep_facts(self, data: D) -> dict[str, Json]:
        """Return what the record of a sweep states about the validation part, such as its size."""

    @abstractmethod
    def protocol(self, config: C) -> str:
        """Return the protocol that the settings choose."""

    @abstractmethod
    def trial(self, fit: F, protocol: str) -> Trial:
        """Return the grid point of a fit and its validation score."""


def run_chain(
    task: Task[C, D, F, M],
    config: C,
    data: D,
    chain: int,
    protocols: Sequence[str],
    checkpoints: Path | None = None,
    watch: Watch = ignore_progress,
) -> Outcome[M]:
    """Fit every unit of a chain, select by validation, and test what was selected.

    Args:
        task: the task.
        config: its settings.
        data: what :meth:`Task.load` returned for them.
        chain: which fold, split or seed.
        protocols: how models are finished and tested.
        checkpoints: folder to resume from; None to keep nothing.
        watch: called with the progress.
    """
    fits = fit_units(task, config, data, chain, protocols, checkpoints, watch)
    last = None if checkpoints is None else checkpoints / f"{chain:02d}-final"
    models = task.finish(config, data, chain, fits, protocols, last, watch)
    return Outcome(models, task.test(config, data, chain, fits, models, watch))


def fit_units(
    task: Task[C, D, F, M],
    config: C,
    data: D,
    chain: int,
    protocols: Sequence[str],
    checkpoints: Path | None,
    watch: Watch,
) -> list[F]:
    """Fit every unit of a chain, and those that the selection then asks for; see :func:`run_chain`."""
    keep_freed_memory()
    fits: list[F] = []

    def fit(unit: Unit, protocols: Sequence[str]) -> None:
        file = None if checkpoints is None else checkpoints / unit.name
        found = task.fit(config, data, unit, protocols, file, watch)
        if found is not None:
            fits.append(found)

    for unit in task.units(config, chain):
        fit(unit, protocols)
    for protocol in protocols:
        while (further := task.further_unit(config, chain, fits, protocol)) is not None:
            fit(further, [protocol])
    return fits


TASKS = {"graph": "powerpool.tasks.graph", "vision": "powerpool.tasks.vision", "fewshot": "powerpool.tasks.fewshot"}


def get_task(name: str) -> Task[Any, Any, Any, Any]:
    """Return a task by name; its packages are imported now."""
    task: Task[Any, Any, Any, Any] = importlib.import_module(f"{TASKS[name]}.task").TASK
    return task


def confusion_matrix(
    predicted: Tensor, targets: Tensor, classes: int
) -> Tensor:  # shape: (n,), (n,) -> (classes, classes)
    """Count predictions: a row for each true class, a column for each predicted one.

    Example:
        >>> import torch
        >>> confusion_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), classes=2)
        tensor([[1, 0],
                [1, 1]])
    """
    return (targets * classes + predicted).bincount(minlength=classes * classes).view(classes, classes)


def extend_by_seeds(
    row: Row[C, D], others: Sequence[tuple[C, ...]], seed: int, use: Callable[[C, Mapping[str, Any]], C]
) -> list[Row[C, D]]:
    """Return a row whose seed searches the grid, and one for each other seed, which uses what that one selected.

    Args:
        row: the row of the seed that searches.
        others: the configurations of the other seeds.
        seed: the one that searches.
        use: returns a configuration with the selected settings of a result instead of the grid.
    """
    searched: dict[str, Json] = {"search_seed": seed} if others else {}
    first = replace(row, facts={**row.facts, **searched})

    def start(config: C, result: Path) -> C:
        (found, *_) = read_json(result)["results"].values()
        return use(config, found["chosen"])

    own = replace(first, source=first, start_from=start, extends=True, settings={**row.settings, **searched})
    return [first, *(replace(own, configs=configs) for configs in others)]


def round_curve(values: Sequence[float], digits: int = 4) -> tuple[float | None, ...]:
    """Round a training curve for a record; values that are not finite become None, as JSON has no NaN."""
    finite = (value if abs(value) < float("inf") else None for value in values)
    return tuple(None if value is None else float(f"{value:.{digits}g}") for value in finite)


def with_absolute_paths(config: C, *, data_is_path: bool) -> C:
    """Return the settings with absolute paths, so that they hold in every working folder.

    Args:
        config: the settings of a task, with the fields ``data`` and ``data_root``.
        data_is_path: whether its data set is given by a path, not by a name.
    """

    def absolute(path: str) -> str:
        return str(Path(path).expanduser().absolute())

    own: Any = config
    data = absolute(own.data) if data_is_path else own.data
    found: C = replace(own, data=data, data_root=own.data_root and absolute(own.data_root))
    return found


def _plain(value: Any) -> Json:
    """Like ``dataclasses.asdict`` for JSON: None stays, so that settings are complete."""
    if hasattr(value, "__dataclass_fields__"):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return to_json(value)
