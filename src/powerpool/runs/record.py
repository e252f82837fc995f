"""Records: the typed results of one method on one data set, with settings and environment, in one JSON file.

A result is of one of three kinds, and the record says which: :class:`FoldResult` (cross-validation),
:class:`SplitResult` (a fixed test split) and :class:`EpisodeResult` (few-shot episodes). Records of version 0.1 are
converted when they are read.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from torch import Tensor

from powerpool.errors import RecordError, shown
from powerpool.files import read_json, write_json
from powerpool.runs.compare import Summary, summarize
from powerpool.runs.environment import Environment
from powerpool.runs.typed import Json, from_json, to_json

SCHEMA = 2
OLD_SCHEMA = 1
HEADS = ("task", "data", "method", "protocol", "metric")
QUICK_NOTE = "These numbers mean nothing: a quick run only shows that everything works."
Chosen = float | Literal["none", "concat"]  # of a selected setting; the words are those of the mean of a readout
DERIVED = ("count", "mean", "std", "interval")


@dataclass(frozen=True)
class Score:
    """Accuracy in % and mean loss on some samples."""

    value: float
    loss: float


@dataclass(frozen=True)
class Trial:
    """A grid point, and its validation score."""

    settings: dict[str, Chosen]
    value: float
    loss: float
    epoch: int | None = None


@dataclass(frozen=True)
class Confusion:
    """A confusion matrix as a sparse list of ``"TRUE PREDICTED COUNT"``, which stays short for many classes.

    Example:
        >>> import torch
        >>> found = Confusion.of(torch.tensor([[5, 0], [2, 3]]), ["cat", "dog"])
        >>> found.counts, found.dense()
        (('0 0 5', '1 0 2', '1 1 3'), [[5, 0], [2, 3]])
    """

    classes: tuple[str, ...]
    counts: tuple[str, ...]

    @classmethod
    def of(cls, matrix: Tensor, classes: Sequence[object]) -> Confusion:  # shape: (classes, classes)
        """Convert a dense matrix of counts, rows being the true classes."""
        found = matrix.cpu()
        entries = (f"{row} {column} {int(found[row, column])}" for row, column in found.nonzero().tolist())
        return cls(tuple(map(str, classes)), tuple(entries))

    def dense(self) -> list[list[int]]:
        """Return the matrix as rows of counts."""
        size = len(self.classes)
        rows = [[0] * size for _ in range(size)]
        for entry in self.counts:
            words = entry.split()
            if len(words) != 3 or not all(word.isdecimal() and len(word) < 16 for word in words):
                raise RecordError(f"confusion.counts must be 'TRUE PREDICTED COUNT' (got {shown(entry)}).")
            row, column, count = map(int, words)
            if row >= size or column >= size:
                raise RecordError(f"confusion.counts must name classes below {size} (got {shown(entry)}).")
            rows[row][column] = count
        return rows


@dataclass(frozen=True)
class Spectrum:
    """Mean shares of the eigenvalues of pooled matrices, before and after power normalization."""

    samples: int
    size: int
    """Number of rows of a matrix."""
    ranks: tuple[int, ...]
    """Which eigenvalues are kept, from 1 (the largest)."""
    before: tuple[float, ...]
    after: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.ranks) == len(self.before) == len(self.after):
            raise RecordError("spectrum.ranks, before and after must have the same length.")


@dataclass(frozen=True, kw_only=True)
class Result:
    """A test, and the selection that led to it."""

    number: int
    """Which fold, split or seed of the record."""
    value: float
    """Test accuracy in %, or what the metric of the record is."""
    test_loss: float
    seconds: float
    chosen: dict[str, Chosen] = field(default_factory=dict)
    """The selected settings."""
    validation: Score | None = None
    trials: tuple[Trial, ...] = ()
    """What the settings were selected from; after a short search, with the validation scores of that search."""
    curves: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Training curves by name, one number per epoch or validation."""
    confusion: Confusion | None = None
    spectrum: Spectrum | None = None

    def run(self, seed: int) -> tuple[int, int]:
        """Return what a result of another record must share to be paired with it, given the seed of the record."""
        return self.number, 0


@dataclass(frozen=True, kw_only=True)
class FoldResult(Result):
    """The test of one fold of a cross-validation."""

    epoch: int
    """The selected epoch, from 1; of a model that was trained again, the last one."""
    fold: int | None = None
    """Which fold is tested; None in records of version 0.2, where it is the number."""
    seed: int | None = None
    """Of the training; None in records of version 0.2, where it is that of the record."""
    measures: dict[str, float] = field(default_factory=dict)
    """Other measures of the test by name, such as "ROC-AUC in %"."""

    def run(self, seed: int) -> tuple[int, int]:
        """Return the fold and the seed of the training."""
        return (self.number if self.fold is None else self.fold), (seed if self.seed is None else self.seed)


@dataclass(frozen=True, kw_only=True)
class SplitResult(Result):
    """The test on a fixed split."""

    top5: float
    count: int
    """Number of test samples."""
    right: str
    """Which samples were classified correctly, as hexadecimal digits; see :func:`pack_bits`."""
    converged: int | None = None
    """The first epoch whose validation accuracy is near the best."""
    solver: str | None = None
    """How the classifier on frozen features was computed."""
    seed: int | None = None
    """Of a training end to end; None in records without it, which have a single run."""


@dataclass(frozen=True, kw_only=True)
class EpisodeResult(Result):
    """The test of one seed in few-shot episodes."""

    seed: int = 0
    right: tuple[int, ...]
    """Correctly classified queries of each episode."""
    queries: int
    """Queries of an episode."""
    test_seconds: float
    episodes_per_second: float
    cpu_seconds: float | None = None
    """CPU time of the training with its validations; None in records of version 0.1."""

    @property
    def accuracies(self) -> list[float]:
        """Accuracy of every episode in %."""
        return [100 * right / self.queries for right in self.right]


KINDS: dict[str, type[Result]] = {"graph": FoldResult, "vision": SplitResult, "fewshot": EpisodeResult}
"""The kind of results of each task."""


@dataclass(frozen=True)
class RunRecord:
    """The results of one method on one data set under one protocol, and all that they depend on.

    Mean, standard deviation and interval are derived from the results. They are written for other readers of the file,
    and :meth:`read` refuses a file in which they differ from the results.
    """

    task: str
    data: str
    method: str
    protocol: str
    metric: str
    """The name and unit of the values, such as "accuracy in %", or "MAE", where lower is better."""
    results: tuple[Result, ...]
    config: dict[str, Json]
    seed: int
    seconds: float
    environment: Environment = field(default_factory=Environment)

    def __post_init__(self) -> None:
        for name in HEADS:
            if not getattr(self, name):
                raise RecordError(f"{name} must not be empty.")
        if not self.results:
            raise RecordError("results must have at least one entry (got none).")
        numbers = [result.number for result in self.results]
        if len(set(numbers)) != len(numbers):
            raise RecordError(f"results must have different numbers (got {shown(numbers)}).")
        if self.seconds < 0:
            raise RecordError(f"seconds must be at least 0 (got {self.seconds}).")
        # As JSON has them, with lists for tuples: what is read equals what was written.
        try:
            object.__setattr__(self, "config", json.loads(json.dumps(self.config, allow_nan=False)))
        except (TypeError, ValueError) as error:
            raise RecordError(f"config must be JSON ({error}).") from error

    @property
    def higher_is_better(self) -> bool:
        """Whether higher values are better, as for all but errors."""
        return not self.metric.startswith("MAE")

    @property
    def values(self) -> tuple[float, ...]:
        """The value of every result."""
        return tuple(result.value for result in self.results)

    @property
    def summary(self) -> Summary:
        """Count, mean, standard deviation and interval over runs, or over folds, each with its mean over seeds."""
        return summarize(self.paired(self)[0])

    @property
    def count(self) -> int:
        """The number of folds or runs: seeds of a fold share its graphs and do not count."""
        return self.summary.count

    @property
    def mean(self) -> float:
        return self.summary.mean

    @property
    def std(self) -> float | None:
        """Sample standard deviation; None for a single result."""
        return self.summary.std

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean; None for a single result."""
        return self.summary.interval

    @property
    def folds(self) -> tuple[dict[str, Json], ...]:
        """Deprecated: ``results``, as the dictionaries of version 0.1."""
        warnings.warn("RunRecord.folds is now RunRecord.results.", DeprecationWarning, stacklevel=2)
        return tuple(_as_old_result(result) for result in self.results)

    @property
    def pipeline(self) -> str:
        """Deprecated: ``task``."""
        warnings.warn("RunRecord.pipeline is now RunRecord.task.", DeprecationWarning, stacklevel=2)
        return self.task

    def paired(self, other: RunRecord) -> tuple[list[float], list[float]]:
        """Return the values of what both records have; a fold has its mean over seeds, which share its graphs."""
        ours, theirs = ({one.run(record.seed): one.value for one in record.results} for record in (self, other))
        runs: dict[int, list[tuple[int, int]]] = {}
        for run in sorted(ours.keys() & theirs.keys()):
            runs.setdefault(run[0], []).append(run)
        values, others = ([fmean(own[run] for run in same) for same in runs.values()] for own in (ours, theirs))
        return values, others

    def write(self, path: str | Path) -> None:
        """Write the record atomically, with the numbers derived from its results."""
        data = to_json(self)
        heads = {name: data.pop(name) for name in HEADS}
        write_json(path, {"schema": SCHEMA, **heads, **asdict(self.summary), **data})

    @classmethod
    def read(cls, path: str | Path) -> RunRecord:
        """Read a record; an error names the file and the field that is wrong."""
        data = read_json(path)
        schema = data.get("schema") if isinstance(data, dict) else None
        if isinstance(schema, bool) or schema not in (SCHEMA, OLD_SCHEMA):
            raise RecordError(
                f"{path} is not a powerpool record: schema must be {OLD_SCHEMA} or {SCHEMA} (got {shown(schema)})."
            )
        try:
            found = _convert_old(data) if schema == OLD_SCHEMA else data
            record = _build(cls, found)
            of_all = asdict(summarize(record.values))  # files of earlier versions have these
            for name, derived in asdict(record.summary).items():
                if not any(_is_close(data.get(name), one) for one in (derived, of_all[name])):
                    raise RecordError(
                        f"{name} is {shown(data.get(name))}, but its results give {derived}. Restore the file."
                    )
        except RecordError as error:
            raise RecordError(f"{path} is a damaged record: {error}") from error
        return record


def mark_quick(record: RunRecord) -> RunRecord:
    """Return the record with the mark of a quick run."""
    return replace(record, environment=replace(record.environment, quick=True))


def pack_bits(flags: Tensor) -> str:
    """Pack booleans into hexadecimal digits, the first flag in the highest bit of the first digit.

    Example:
        >>> import torch
        >>> pack_bits(torch.tensor([True, False, False, False, True]))
        '88'
    """
    bits = "".join("1" if flag else "0" for flag in flags.tolist())
    padded = bits + "0" * (-len(bits) % 8)
    return f"{int(padded, 2):0{len(padded) // 4}x}" if padded else ""


def unpack_bits(digits: str, count: int) -> list[bool]:
    """Return the flags that :func:`pack_bits` packed."""
    bits = "".join(f"{int(digit, 16):04b}" for digit in digits)
    return [bit == "1" for bit in bits[:count]]


def _build(cls: type[RunRecord], data: dict[str, Json]) -> RunRecord:
    task = data.get("task")
    if not isinstance(task, str) or task not in KINDS:
        raise RecordError(f"task must be one of {', '.join(KINDS)} (got {shown(task)}).")
    own = {name: value for name, value in data.items() if name not in ("schema", *DERIVED)}
    return from_json(cls, own, results=tuple[KINDS[task], ...])  # type: ignore[valid-type]


def _convert_old(data: dict[str, Json]) -> dict[str, Json]:
    """Convert a record of version 0.1, whose ``folds`` were folds, splits or seeds."""
    found = {name: value for name, value in data.items() if name not in ("pipeline", "folds")}
    folds = data.get("folds")
    if not isinstance(folds, list) or not all(isinstance(fold, dict) for fold in folds):
        raise RecordError(f"folds must be a list of objects (got {shown(folds)}).")
    return found | {"task": data.get("pipeline"), "results": [_convert_old_result(fold) for fold in folds]}


def _convert_old_result(fold: dict[str, Json]) -> dict[str, Json]:
    found = dict(fold)
    found["number"] = found.pop("fold", None)
    if "validation_loss" in found:
        found["validation"] = {"value": found.pop("validation_accuracy", None), "loss": found.pop("validation_loss")}
    for old in ("trials", "grid"):
        if isinstance(found.get(old), list):
            found["trials"] = [_convert_old_trial(trial) for trial in found.pop(old)]
    if isinstance(found.get("right_by_episode"), str):
        words = found.pop("right_by_episode").split()
        if not all(word.isdecimal() for word in words):
            raise RecordError("right_by_episode must list whole numbers.")
        found["right"] = [int(word) for word in words]
        found.pop("count", None)  # of episodes: the length of the list
    return found


def _as_old_result(result: Result) -> dict[str, Json]:
    found = to_json(result)
    found["fold"] = found.pop("number")
    if isinstance(result, FoldResult) and "validation" in found:
        score = found.pop("validation")
        found |= {"validation_accuracy": score["value"], "validation_loss": score["loss"]}
    if isinstance(result, EpisodeResult):
        found |= {"right_by_episode": " ".join(map(str, found.pop("right"))), "count": len(result.right)}
    if isinstance(result, SplitResult):
        found["grid"] = [{"chosen": one.settings, "value": one.value, "loss": one.loss} for one in result.trials]
        found.pop("trials")
    return found


def _convert_old_trial(trial: Json) -> Json:
    if not isinstance(trial, dict):
        return trial
    if "chosen" in trial:
        return {"settings": trial["chosen"], **{name: trial[name] for name in trial.keys() - {"chosen"}}}
    named = {"epoch": "epoch", "validation_accuracy": "value", "validation_loss": "loss"}
    scores = {new: trial[old] for old, new in named.items() if old in trial}
    return {"settings": {name: value for name, value in trial.items() if name not in named}, **scores}


def _is_close(found: Json, derived: Json) -> bool:
    """Whether a number, a pair of numbers or None is the derived one, up to the round-off of another machine."""
    if isinstance(derived, tuple):
        return isinstance(found, list) and len(found) == len(derived) and all(map(_is_close, found, derived))
    if derived is None or isinstance(derived, int):
        return type(found) is type(derived) and found == derived
    return type(found) in (int, float) and math.isclose(found, derived, rel_tol=1e-9, abs_tol=1e-9)
