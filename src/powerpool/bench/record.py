"""What a bench run writes down, as typed objects and as JSON."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from powerpool.bench.case import Skipped
from powerpool.bench.timing import Spread
from powerpool.errors import RecordError
from powerpool.files import read_json, write_json

SCHEMA = "powerpool-bench/1"


@dataclass(frozen=True)
class Measured:
    """One contender in one case. Times are seconds."""

    name: str
    origin: str
    answers: str
    repetitions: int
    forward: Spread
    backward: Spread
    total: Spread
    peak_bytes: int
    """Of forward and backward together, above what was there before."""
    products: int
    """Matrix products of forward and backward, whatever the device."""
    product_flops: int
    decompositions: int
    """Eigendecompositions and the like: what is slow in batches on CUDA."""
    value_error: float | None
    gradient_error: float | None
    note: str = ""


@dataclass(frozen=True)
class CaseRecord:
    """All contenders of one case; ``error`` says why there are none."""

    name: str
    sizes: dict[str, int]
    labels: dict[str, str] = field(default_factory=dict)
    results: list[Measured] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    error: str = ""

    def find(self, name: str) -> Measured | None:
        """The contender of that name."""
        return next((result for result in self.results if result.name == name), None)

    @property
    def floor(self) -> Measured | None:
        """The contender that everything else comes on top of."""
        return next((result for result in self.results if result.origin == "floor"), None)


@dataclass
class BenchRecord:
    """One suite on one machine."""

    suite: str
    options: dict[str, Any]
    environment: dict[str, Any]
    protocol: dict[str, Any]
    cases: list[CaseRecord] = field(default_factory=list)
    fits: list[dict[str, Any]] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)
    selection: list[dict[str, Any]] = field(default_factory=list)
    complete: bool = False
    schema: str = SCHEMA

    def save(self, path: str | Path) -> None:
        """Write the record atomically."""
        write_json(path, dataclasses.asdict(self))


def load(path: str | Path) -> BenchRecord:
    """The record in a file; an error names the file and what is wrong with it."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise RecordError(
            f"{path} is not a record of `powerpool bench`: its schema is {found!r}, needed is {SCHEMA!r}."
        )
    try:
        record: BenchRecord = _build(BenchRecord, data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{path} is a damaged record of `powerpool bench`: {error!r}.") from error
    return record


def _build(kind: Any, data: Any) -> Any:
    """``data`` as the dataclass, list or plain value that the annotation says."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _build(hints[name], value) for name, value in data.items()})  # type: ignore[operator]
    if typing.get_origin(kind) is list:
        (item,) = typing.get_args(kind)
        return [_build(item, value) for value in data]
    return data
