"""Ranges that widen themselves: where validation selects the first or last value of a range, one more is tried.

A range with two values or more grows by its own ratio there, at the selected values of the other settings, until the
selected value has neighbours on both sides, the limits of the setting are reached, or ``widen`` values were added. This
depends on the validation scores of the finished fits only, so that a resumed selection takes the same steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from powerpool.errors import ArgumentError
from powerpool.tasks.vision.config import GridConfig, VisionConfig, grid_names

LIMITS: dict[str, tuple[float, float]] = {
    "eta": (1.0, math.inf),  # 1 is the identity
    "sigme_eta": (0.0, math.inf),
    "gamma": (0.0, 1.0),  # 1 is the identity
    "asinhe_gamma": (0.0, math.inf),
    "t": (0.0, math.inf),
    "sigma": (0.0, math.inf),
    "alpha": (0.0, math.inf),
    "penalty": (0.0, math.inf),
}
"""Settings that are scales, and their limits. Others have fixed ranges: beta is a share, iterations and pivots are
counts."""
DIGITS = 4
"""Significant digits of a new value."""


def next_value(name: str, tried: Iterable[float], selected: float) -> float | None:
    """Return the value beyond the edge of a range where the selected one lies; None inside, or at a limit.

    Example:
        >>> next_value("t", [0.003, 0.01, 0.03], selected=0.03), next_value("t", [0.003, 0.01, 0.03], selected=0.01)
        (0.09, None)
        >>> next_value("gamma", [0.3, 0.5, 0.8], selected=0.8), next_value("eta", [1, 5], selected=1)
        (1.0, None)
    """
    values = sorted(set(tried))
    if len(values) < 2 or selected not in (values[0], values[-1]):
        return None
    neighbour = values[1] if selected == values[0] else values[-2]
    if neighbour <= 0 or selected <= 0:
        return None
    low, high = LIMITS[name]
    found = min(max(float(f"{selected**2 / neighbour:.{DIGITS}g}"), low), high)
    if name == "eta" and all(value == round(value) for value in values):
        found = float(round(found))  # the fast form of MaxExp needs whole numbers
    return None if found in values or found <= 0 else found


def next_point(
    config: VisionConfig, trials: Sequence[Mapping[str, float]], selected: Mapping[str, float]
) -> dict[str, float] | None:
    """Return one more grid point to try; None if every selected value is inside its range.

    Args:
        config: the grid, and how often a range may grow.
        trials: the values of all grid points that were tried.
        selected: those of the selected one.
    """
    for name in grid_names(config.pool.method):
        given = getattr(config.grid, name)
        tried = {trial[name] for trial in trials}
        if name in LIMITS and len(given) > 1 and len(tried) - len(given) < config.widen:
            found = next_value(name, tried, selected[name])
            if found is not None and _is_allowed(config, {**selected, name: found}):
                return {**selected, name: found}
    return None


def _is_allowed(config: VisionConfig, point: Mapping[str, Any]) -> bool:
    """Whether the method takes these values: the fast form of MaxExp, for instance, has a largest eta."""
    try:
        replace(config.pool, **point)
    except ArgumentError:
        return False
    return True


def describe(config: VisionConfig, trials: Sequence[Mapping[str, Any]], selected: Mapping[str, Any]) -> str:
    """Return which ranges were widened, and which selected values are at an edge all the same; empty if none.

    Args:
        config: the ranges that were given.
        trials: the values of all trials, with their penalty.
        selected: those of the selected one.
    """
    widened, edges = [], []
    for name in (*vars(GridConfig()), "penalty"):
        given = config.head.penalties if name == "penalty" else getattr(config.grid, name)
        if name not in LIMITS or name not in selected or len(given) < 2:
            continue
        tried = {trial[name] for trial in trials if name != "penalty" or {**trial, name: 0} == {**selected, name: 0}}
        added = ", ".join(f"{value:g}" for value in sorted(tried) if value not in given)
        if added:
            widened.append(f"{name} {min(given):g} to {max(given):g}, added {added}")
        if next_value(name, tried, selected[name]) is not None:
            edges.append(f"{name} {selected[name]:g}")
    found = f"Ranges widened: {'; '.join(widened)}." if widened else ""
    if edges:
        found += f" At the edge of {'its range' if len(edges) == 1 else 'their ranges'}: {', '.join(edges)}."
    return found.strip()
