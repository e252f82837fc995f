"""The record of a bench run, and what follows from its cases: growth, targets, the choice of solvers, losses."""

from __future__ import annotations

import math
import statistics
import typing
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import powerpool as pp
from powerpool.bench.measure import Spread
from powerpool.curves import Curve
from powerpool.errors import RecordError, shown
from powerpool.files import read_json, write_json
from powerpool.runs.environment import Environment
from powerpool.runs.typed import Json, from_json

SCHEMA = "powerpool-bench/1"
SuiteName = Literal["all", "pools", "solvers", "curves", "training", "extraction", "episodes"]
SUITES = typing.get_args(SuiteName)[1:]


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


# ---- findings --------------------------------------------------------------------------------------------------------

OURS, GRAM = "powerpool auto", "powerpool gram"
NEWTON_SCHULZ, LOEWNER = "Newton-Schulz 5", "eigh + Loewner"
SIZES = {"channels": "channels C", "locations": "locations N", "eta": "eta"}
"""Sizes that sweeps vary, and their names."""
LEAST_POINTS = 3
MEMORY = 1.3
"""Most memory that ``gram`` may need, relative to forming M."""
LOSS = 1.05
"""From this ratio on a competitor counts as faster; smaller differences are noise on a shared machine."""


# ---- growth ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sweep:
    """Cases that differ in one size only, in ascending order."""

    against: str
    fixed: dict[str, int]
    cases: list[CaseRecord]

    @property
    def where(self) -> str:
        """The fixed sizes, as text."""
        return ", ".join(f"{SIZES.get(name, name).split()[-1]} = {size}" for name, size in self.fixed.items())


def find_sweeps(cases: Iterable[CaseRecord], against: str) -> list[Sweep]:
    """Every sweep over one size with at least three cases, the longest first."""
    groups: dict[tuple[tuple[str, int], ...], list[CaseRecord]] = defaultdict(list)
    for case in cases:
        if against in case.sizes and not case.error:
            fixed = tuple((name, size) for name, size in case.sizes.items() if name != against)
            groups[fixed].append(case)
    found = [
        Sweep(against, dict(fixed), sorted(members, key=lambda case: case.sizes[against]))
        for fixed, members in groups.items()
        if len(members) >= LEAST_POINTS
    ]
    return sorted(found, key=lambda sweep: -len(sweep.cases))


def find_fits(cases: Sequence[CaseRecord]) -> list[Fit]:
    """A fit for every contender that takes part in at least three cases of a sweep."""
    found = []
    for sweep in (sweep for against in SIZES for sweep in find_sweeps(cases, against)):
        series: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for case in sweep.cases:
            for result in case.results:
                series[result.name].append((case.sizes[sweep.against], result.total.median))
        found += [
            _fit(name, sweep.against, sweep.fixed, points)
            for name, points in series.items()
            if len(points) >= LEAST_POINTS
        ]
    return found


def _fit(name: str, against: str, fixed: dict[str, int], points: Sequence[tuple[int, float]]) -> Fit:
    logs = [(math.log(size), math.log(seconds)) for size, seconds in points]
    exponent = _slope(logs)
    upper = _slope(logs[len(logs) // 2 :]) if len(logs) >= 2 * LEAST_POINTS else None
    per_doubling = r2 = None
    if against == "eta":
        doublings = [(math.log2(size), seconds) for size, seconds in points]
        per_doubling, is_level = _slope(doublings), len({seconds for _, seconds in points}) == 1
        r2 = 1.0 if is_level else statistics.correlation(*zip(*doublings, strict=True)) ** 2
    return Fit(name, against, fixed, [list(point) for point in points], exponent, upper, per_doubling, r2)


def _slope(points: Sequence[tuple[float, float]]) -> float:
    """The slope of the least-squares line."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope


# ---- targets ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """At eta = 50: so many times faster than two competitors, at most so many times the floor."""

    channels: int
    locations: int
    newton_schulz: float
    loewner: float
    floor: float
    batch: int = 8

    @property
    def name(self) -> str:
        """The name of the case that the target is for."""
        return f"B{self.batch} C{self.channels} N{self.locations} eta50"


TARGETS = (
    Target(256, 49, newton_schulz=25, loewner=9, floor=2.5),
    Target(512, 49, newton_schulz=80, loewner=24, floor=1.5),
    Target(512, 196, newton_schulz=15, loewner=4.5, floor=2.8),
    Target(1024, 196, newton_schulz=45, loewner=13, floor=1.8),
    Target(2048, 49, newton_schulz=380, loewner=90, floor=1.1, batch=2),
    Target(256, 784, newton_schulz=3.2, loewner=1.5, floor=2.3),
    Target(64, 196, newton_schulz=3, loewner=2, floor=3),
)


ELEMENTWISE = "element-wise "
"""How the names of the cases with all element-wise curves begin."""
ELEMENTWISE_LARGE, ELEMENTWISE_SMALL = 2.0, 2.2
"""At most so many times the floor from 256 channels on, and below."""


def find_outcomes(cases: Iterable[CaseRecord]) -> list[Outcome]:
    """Every target of the pools whose case was run, met or missed."""
    by_name = {case.name: case for case in cases if not case.error}
    found = []
    for target in TARGETS:
        if target.name in by_name:
            found += _outcomes_of(by_name[target.name], target)
    for name, case in by_name.items():
        found += _elementwise_outcomes(case) if name.startswith(ELEMENTWISE) else []
    return found


def _elementwise_outcomes(case: CaseRecord) -> list[Outcome]:
    """The slowest element-wise curve beside forming M, and the one that loses most to its plain formula."""
    times = {result.name: result.total.median for result in case.results}
    ours = [name for name in times if name.startswith("powerpool ")]
    found = []
    if case.floor is not None and ours:
        wanted = ELEMENTWISE_SMALL if case.sizes["channels"] < 256 else ELEMENTWISE_LARGE
        ratio = max(times[name] for name in ours) / case.floor.total.median
        found.append(Outcome(case.name, "slowest curve, times the floor", wanted, ratio, ratio <= wanted))
    pairs = [(times[name], times.get(name.replace("powerpool", "plain", 1))) for name in ours]
    ratios = [mine / plain for mine, plain in pairs if plain is not None]
    if ratios:
        ratio = max(ratios)
        found.append(Outcome(case.name, "slowest curve, times its plain formula", 1.0, ratio, ratio <= 1))
    return found


def _outcomes_of(case: CaseRecord, target: Target) -> list[Outcome]:
    ours, floor, gram = case.find(OURS), case.floor, case.find(GRAM)
    assert ours is not None
    found = []
    for name, wanted in ((NEWTON_SCHULZ, target.newton_schulz), (LOEWNER, target.loewner)):
        rival = case.find(name)
        if rival is not None:
            ratio = rival.total.median / ours.total.median
            found.append(Outcome(case.name, f"times faster than {name}", wanted, ratio, ratio >= wanted))
    if floor is not None:
        ratio = ours.total.median / floor.total.median
        found.append(Outcome(case.name, "times the floor", target.floor, ratio, ratio <= target.floor))
        if gram is not None and target.locations < target.channels:
            ratio = gram.peak_bytes / floor.peak_bytes
            found.append(Outcome(case.name, "gram memory, times the floor", MEMORY, ratio, ratio <= MEMORY))
    return found


LIMITS = {
    "ResNet-50 step": 1.15,
    "GIN0 epoch on MUTAG": 1.25,
    "5-way 1-shot, 84 px": 1.5,
    "12 crops a picture": 1.1,
    "1 crop a picture": 1.1,
}
"""Most time of powerpool in the cases of whole jobs, in times of the floor: the same job with average pooling, with
Relation Net, or with the backbone alone as it was loaded."""


def check_limits(cases: Iterable[CaseRecord]) -> list[Outcome]:
    """The cases with a limit, met or missed."""
    found = []
    for case in cases:
        ours = next((result for result in case.results if result.origin == "powerpool"), None)
        if case.name in LIMITS and ours is not None and case.floor is not None:
            limit, ratio = LIMITS[case.name], ours.total.median / case.floor.total.median
            found.append(Outcome(case.name, "times the floor", limit, ratio, ratio <= limit))
    return found


# ---- solvers and losses ----------------------------------------------------------------------------------------------


def find_selection(cases: Iterable[CaseRecord], curves: Mapping[str, Curve]) -> list[Selection]:
    """For every case the cost of each solver, the fastest exact one, and what ``select_solver`` chooses."""
    rows = []
    for case in cases:
        measured = {
            result.name.removeprefix("powerpool "): result for result in case.results if result.origin == "powerpool"
        }
        if not measured:
            continue
        seconds = {name: result.total.median for name, result in measured.items()}
        channels, locations, curve = case.sizes["channels"], case.sizes.get("locations"), case.labels["curve"]
        chosen = pp.select_solver(curves[curve], channels, locations).name
        best = min((name for name in seconds if pp.solvers.SOLVERS[name].exact), key=lambda name: seconds[name])
        flops = {name: result.product_flops for name, result in measured.items()}
        decompositions = {name: result.decompositions for name, result in measured.items()}
        ratio, batch = seconds[chosen] / seconds[best], case.sizes["batch"]
        rows.append(Selection(curve, batch, channels, locations, seconds, flops, decompositions, best, chosen, ratio))
    return rows


def find_losses(cases: Iterable[CaseRecord]) -> list[tuple[str, Measured, Measured]]:
    """Case, our contender, and another one that gives the same answer in less time, gradient included."""
    return [
        (case.name, ours, rival)
        for case in cases
        for ours in case.results
        for rival in case.results
        if ours.origin == "powerpool"
        and rival.origin != "powerpool"
        and rival.answers == ours.answers
        and "gradient" not in rival.note
        and rival.total.median * LOSS < ours.total.median
    ]
