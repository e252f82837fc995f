"""The record of a bench run, as typed objects and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path

from powerpool.bench.measure import Spread
from powerpool.errors import RecordError, shown
from powerpool.files import read_json, write_json
from powerpool.runs.environment import Environment
from powerpool.runs.typed import Json, from_json

SCHEMA = "powerpool-bench/1"


@dataclass(frozen=True)
class Skipped:
    """A contender that is left out of a case, and why."""

    name: str
    reason: str


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
    """Of forward and backward together, above what was allocated before."""
    products: int
    """Matrix products of forward and backward, on any device."""
    product_flops: int
    decompositions: int
    """Eigendecompositions and the like, which are slow in batches on CUDA."""
    value_error: float | None
    gradient_error: float | None
    note: str = ""


@dataclass(frozen=True)
class CaseRecord:
    """All contenders of one case, or the error because of which there are none."""

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
        """The contender whose cost all others have on top."""
        return next((result for result in self.results if result.origin == "floor"), None)


@dataclass(frozen=True)
class Fit:
    """How the total time of one contender grows with one size, all other sizes fixed.

    ``exponent`` is that of time ~ size^exponent. For eta also time = constant + per_doubling * log2(eta).
    """

    contender: str
    against: str
    fixed: dict[str, int]
    points: list[list[float]]
    exponent: float
    exponent_upper_half: float | None
    """From the larger half of the sizes, where the fixed cost of a call matters less."""
    per_doubling: float | None = None
    r2_logarithm: float | None = None


@dataclass(frozen=True)
class Outcome:
    """A target and what was measured."""

    case: str
    what: str
    wanted: float
    measured: float
    met: bool


@dataclass(frozen=True)
class Selection:
    """The cost of each solver in one case, the fastest, and the choice of ``select_solver``."""

    curve: str
    batch: int
    channels: int
    locations: int | None
    """None if the matrix is given."""
    seconds: dict[str, float]
    product_flops: dict[str, int]
    """Independent of the machine, as are ``decompositions``: what decides where batched decompositions are slow."""
    decompositions: dict[str, int]
    best: str
    chosen: str
    times_best: float


@dataclass(frozen=True)
class RecordedOptions:
    """The options that measurements depend on."""

    quick: bool
    device: str
    threads: int
    repetitions: int


@dataclass
class BenchRecord:
    """One suite on one machine."""

    suite: str
    options: RecordedOptions
    environment: Environment
    protocol: dict[str, Json]
    cases: list[CaseRecord] = field(default_factory=list)
    fits: list[Fit] = field(default_factory=list)
    targets: list[Outcome] = field(default_factory=list)
    selection: list[Selection] = field(default_factory=list)
    complete: bool = False
    schema: str = SCHEMA

    def save(self, path: str | Path) -> None:
        """Write the record atomically."""
        write_json(path, asdict(self))


def load(path: str | Path) -> BenchRecord:
    """Read a record; an error names the file and what is wrong with it."""
    data = read_json(path)
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise RecordError(
            f"{path} is not a record of `powerpool bench`: schema must be {SCHEMA!r} (got {shown(schema)})."
        )
    try:
        return from_json(BenchRecord, data)
    except RecordError as error:
        raise RecordError(f"{path} is a damaged record of `powerpool bench`: {error}") from error
