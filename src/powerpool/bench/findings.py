"""What follows from measured cases: growth, targets, the choice of solvers, losses."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import powerpool as pp
from powerpool.bench.record import CaseRecord, Fit, Measured, Outcome, Selection
from powerpool.curves import Curve

OURS, GRAM = "powerpool auto", "powerpool gram"
NEWTON_SCHULZ, LOEWNER = "Newton-Schulz 5", "eigh + Loewner"
LEAST_POINTS = 3
MEMORY = 1.3
"""Most memory that ``gram`` may need, relative to forming M."""
LOSS = 1.05
"""From this ratio on a competitor counts as faster; smaller differences are noise on a shared machine."""


# ---- growth ----------------------------------------------------------------------------------------------------------


def find_fits(cases: Iterable[CaseRecord]) -> list[Fit]:
    """A fit for every contender and every size that takes at least three values while the others are fixed."""
    found = []
    cases = list(cases)
    for against in ("channels", "locations", "eta"):
        series: dict[tuple[str, tuple[tuple[str, int], ...]], list[tuple[int, float]]] = defaultdict(list)
        for case in cases:
            if against in case.sizes:
                fixed = tuple(sorted((name, size) for name, size in case.sizes.items() if name != against))
                for result in case.results:
                    series[result.name, fixed].append((case.sizes[against], result.total.median))
        for (name, fixed), points in series.items():
            if len(points) >= LEAST_POINTS:
                found.append(_fit(name, against, dict(fixed), sorted(points)))
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
    def sizes(self) -> dict[str, int]:
        """The sizes of the case that the target is for."""
        return {"batch": self.batch, "channels": self.channels, "locations": self.locations, "eta": 50}


TARGETS = (
    Target(256, 49, newton_schulz=25, loewner=9, floor=2.5),
    Target(512, 49, newton_schulz=80, loewner=24, floor=1.5),
    Target(512, 196, newton_schulz=15, loewner=4.5, floor=2.8),
    Target(1024, 196, newton_schulz=45, loewner=13, floor=1.8),
    Target(2048, 49, newton_schulz=380, loewner=90, floor=1.1, batch=2),
    Target(256, 784, newton_schulz=3.2, loewner=1.5, floor=2.3),
    Target(64, 196, newton_schulz=3, loewner=2, floor=3),
)


def find_outcomes(cases: Iterable[CaseRecord]) -> list[Outcome]:
    """Every target of the pools whose case was run, met or missed."""
    by_sizes = {tuple(sorted(case.sizes.items())): case for case in cases if not case.error}
    found = []
    for target in TARGETS:
        case = by_sizes.get(tuple(sorted(target.sizes.items())))
        if case is not None:
            found += _outcomes_of(case, target)
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
    "GIN0 epoch on MUTAG": 1.5,
    "5-way 1-shot, 84 px": 2.2,
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
    """For every case the cost of each solver, the fastest, and what ``select_solver`` chooses."""
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
        best = min(seconds, key=lambda name: seconds[name])
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
