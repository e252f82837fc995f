"""How cost grows: exponents fitted to the measured times."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from powerpool.bench.record import CaseRecord

LEAST_POINTS = 3


@dataclass(frozen=True)
class Line:
    """y = intercept + slope * x by least squares, and how much of the variance it explains."""

    slope: float
    intercept: float
    r2: float


def fit_line(x: Sequence[float], y: Sequence[float]) -> Line:
    """The least-squares line.

    Example:
        >>> fit_line([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
        Line(slope=2.0, intercept=1.0, r2=1.0)
    """
    slope, intercept = statistics.linear_regression(x, y)
    mean = statistics.fmean(y)
    total = sum((value - mean) ** 2 for value in y)
    rest = sum((value - intercept - slope * at) ** 2 for at, value in zip(x, y, strict=True))
    return Line(slope, intercept, 1.0 if total == 0 else 1 - rest / total)


@dataclass(frozen=True)
class Fit:
    """How the total time of one contender grows with one size, all others fixed.

    ``exponent`` is that of time ~ size^exponent. For eta also time = constant + per_doubling * log2(eta).
    """

    contender: str
    against: str
    fixed: dict[str, int]
    points: list[list[float]]
    exponent: float
    exponent_upper_half: float | None
    """From the larger half of the sizes, where the fixed cost of a call no longer shows."""
    per_doubling: float | None = None
    r2_logarithm: float | None = None


def fits(cases: list[CaseRecord], sizes: Sequence[str] = ("channels", "locations", "eta")) -> list[dict[str, Any]]:
    """One fit for every contender and every size that takes three values or more while the others stay."""
    found = []
    for against in sizes:
        series: dict[tuple[Any, ...], list[tuple[float, float]]] = defaultdict(list)
        for case in cases:
            if against not in case.sizes:
                continue
            fixed = tuple(sorted((name, size) for name, size in case.sizes.items() if name != against))
            # A curve's name carries eta, which must not split a sweep over eta.
            labels = tuple(sorted(case.labels.items())) if "eta" not in case.sizes else ()
            for result in case.results:
                series[(result.name, fixed, labels)].append((case.sizes[against], result.total.median))
        for (name, fixed, _), points in series.items():
            if len(points) >= LEAST_POINTS:
                found.append(asdict(_fit(name, against, dict(fixed), sorted(points))))
    return found


def _fit(name: str, against: str, fixed: dict[str, int], points: list[tuple[float, float]]) -> Fit:
    logs = [(math.log(size), math.log(seconds)) for size, seconds in points]
    upper = logs[len(logs) // 2 :] if len(logs) >= 2 * LEAST_POINTS else None
    logarithm = None
    if against == "eta":
        logarithm = fit_line([math.log2(size) for size, _ in points], [seconds for _, seconds in points])
    return Fit(
        name,
        against,
        fixed,
        [list(point) for point in points],
        fit_line(*zip(*logs, strict=True)).slope,
        None if upper is None else fit_line(*zip(*upper, strict=True)).slope,
        None if logarithm is None else logarithm.slope,
        None if logarithm is None else logarithm.r2,
    )
