"""The record of a run: results, settings and environment, in one JSON file."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from powerpool.errors import RecordError
from powerpool.files import read_json, write_json
from powerpool.runs.compare import Summary, summarize

SCHEMA = 1
DERIVED = ("count", "mean", "std", "interval")


@dataclass(frozen=True)
class RunRecord:
    """The values of one method on all folds of one data set, and all that they depend on.

    Mean, deviation and interval are derived from the values of the folds. They stand in the file for its readers, and
    :meth:`read` refuses a file in which they are not those of the values.
    """

    pipeline: str
    data: str
    method: str
    protocol: str
    metric: str
    """What the values are, with their unit: "accuracy in %". More is better."""
    folds: tuple[dict[str, Any], ...]
    """Each with its number ``fold`` and its ``value``, and whatever else is known of it."""
    config: dict[str, Any]
    seed: int
    seconds: float
    environment: dict[str, Any]

    def __post_init__(self) -> None:
        for name in ("pipeline", "data", "method", "protocol", "metric"):
            text = getattr(self, name)
            _require(isinstance(text, str) and text != "", name, "a text that is not empty", text)
        _require(_is_whole(self.seed), "seed", "a whole number", self.seed)
        _require(_is_number(self.seconds) and self.seconds >= 0, "seconds", "a number >= 0", self.seconds)
        _require(isinstance(self.config, dict), "config", "an object of named settings", self.config)
        _require(isinstance(self.environment, dict), "environment", "an object of named facts", self.environment)
        _require(isinstance(self.folds, list | tuple) and len(self.folds) > 0, "folds", "a list of folds", self.folds)
        for position, fold in enumerate(self.folds):
            name = f"folds[{position}]"
            _require(isinstance(fold, dict), name, "an object", fold)
            number, value = fold.get("fold"), fold.get("value")
            _require(_is_whole(number), f"{name}.fold", "the number of the fold", number)
            _require(_is_number(value), f"{name}.value", "a finite number", value)
        numbers = [fold["fold"] for fold in self.folds]
        _require(len(set(numbers)) == len(numbers), "folds", "folds of different numbers", numbers)
        # As JSON has them, with lists for tuples: what is read is equal to what was written, down to the last setting.
        object.__setattr__(self, "config", _as_json(self.config, "config"))
        object.__setattr__(self, "environment", _as_json(self.environment, "environment"))
        object.__setattr__(self, "folds", tuple(_as_json(list(self.folds), "folds")))

    @property
    def values(self) -> tuple[float, ...]:
        """The value of every fold, in the order of the folds."""
        return tuple(float(fold["value"]) for fold in self.folds)

    @property
    def summary(self) -> Summary:
        """Count, mean, deviation and interval of the values."""
        return summarize(self.values)

    @property
    def count(self) -> int:
        return len(self.folds)

    @property
    def mean(self) -> float:
        return self.summary.mean

    @property
    def std(self) -> float | None:
        """Of the sample of folds; None where there is only one."""
        return self.summary.std

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean; None where there is only one fold."""
        return self.summary.interval

    def paired(self, other: RunRecord) -> tuple[list[float], list[float]]:
        """The values of both records on the folds that both have, in the order of their numbers."""
        ours, theirs = ({fold["fold"]: float(fold["value"]) for fold in record.folds} for record in (self, other))
        common = sorted(ours.keys() & theirs.keys())
        return [ours[number] for number in common], [theirs[number] for number in common]

    def write(self, path: str | Path) -> None:
        """Write the record atomically, with the numbers that are derived from its values."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        heads = {name: data.pop(name) for name in ("pipeline", "data", "method", "protocol", "metric")}
        write_json(path, {"schema": SCHEMA, **heads, **_derived(self.summary), **data})

    @classmethod
    def read(cls, path: str | Path) -> RunRecord:
        """The record in a file; an error names the file, and the field that is not as it has to be."""
        data = read_json(path)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = f"schema {data.get('schema')!r}" if isinstance(data, dict) else f"a {type(data).__name__}"
            raise RecordError(f"{path} is not a record of a run: it has {found}, needed is schema {SCHEMA}.")
        names = [field.name for field in fields(cls)]
        expected = {"schema", *names, *DERIVED}
        for problem, wrong in (("lacks", expected - data.keys()), ("has an unknown", data.keys() - expected)):
            if wrong:
                listed = ", ".join(repr(name) for name in sorted(wrong))
                raise RecordError(f"{path} {problem} field {listed}. Make the record again, or restore the file.")
        try:
            record = cls(**{name: data[name] for name in names})
        except RecordError as error:
            raise RecordError(f"{path} is a damaged record: {error}") from error
        for name, derived in _derived(record.summary).items():
            if not _is_close(data[name], derived):
                raise RecordError(
                    f"{path} is a damaged record: its {name} is {data[name]!r}, that of its folds is {derived!r}. "
                    "Numbers are not edited by hand: make the record again, or restore the file."
                )
        return record


def _derived(summary: Summary) -> dict[str, Any]:
    interval = None if summary.interval is None else list(summary.interval)
    return {"count": summary.count, "mean": summary.mean, "std": summary.std, "interval": interval}


def _is_close(found: Any, derived: Any) -> bool:
    """Whether a number, a pair of numbers or None is the derived one, but for the round-off of another machine."""
    if isinstance(derived, list):
        pairs = zip(found, derived, strict=True) if isinstance(found, list) and len(found) == len(derived) else None
        return pairs is not None and all(_is_close(one, other) for one, other in pairs)
    if derived is None or isinstance(derived, int):
        return type(found) is type(derived) and found == derived
    return _is_number(found) and math.isclose(found, derived, rel_tol=1e-9, abs_tol=1e-9)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(fits: bool, name: str, needed: str, given: Any) -> None:
    if not fits:
        raise RecordError(f"{name} must be {needed} (got {given!r}).")


def _as_json(value: Any, name: str) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"{name} must hold what JSON can: texts, finite numbers, lists, objects, none ({error})."
        ) from error
