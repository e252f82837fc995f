"""The suite ``solvers``: the measurements that the thresholds of ``select_solver`` come from."""

from __future__ import annotations

import itertools
import statistics
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

import powerpool as pp
from powerpool.bench import reference
from powerpool.bench.case import BenchCase, Skipped
from powerpool.bench.inputs import FLOOR_ANSWERS, GRAM_RATIO, GRAM_REASON, Inputs
from powerpool.bench.record import CaseRecord
from powerpool.bench.reference import Scalar
from powerpool.curves import Curve
from powerpool.solvers import select

PREFIX = "powerpool "

CURVES: dict[str, tuple[Curve, Scalar]] = {
    "MaxExp(50)": (pp.MaxExp(50), reference.maxexp(50)),
    "MaxExp(500)": (pp.MaxExp(500), reference.maxexp(500)),
    # Not Gamma(0.5): with as many locations as channels its gradient is ill-conditioned, and no float32 answer agrees.
    "HDP(0.01)": (pp.HDP(0.01), reference.hdp(0.01)),
}
CHANNELS = (16, 32, 64, 128, 256, 512)
RATIOS = (0.25, 0.5, 0.7, 0.9, 1.0, 1.5, 4.0)
"""Locations as a multiple of channels."""
LARGE = 512
"""From here on only up to as many locations as channels: beyond, gram is out, and nothing else depends on them."""
BATCH = 8


class Thresholds(NamedTuple):
    """Below which ratio of locations to channels ``gram`` is the solver to take."""

    squaring: float
    """Against ``squaring``."""
    squaring_small: float
    """The same where a matrix is so small that what counts is the number of calls."""
    squaring_by_count: float
    """Against ``squaring`` by floating-point operations in products, whatever the device."""
    eigen: float
    """Against ``eigen``."""


def cases(quick: bool, device: str = "cpu") -> list[BenchCase]:
    """Every solver that can take the curve, over channels and locations; and from the matrix alone."""
    channels, ratios = ((16, 64), (0.5, 2.0)) if quick else (CHANNELS, RATIOS)
    names = ("MaxExp(50)", "HDP(0.01)") if quick else tuple(CURVES)
    found = []
    for name in names:
        for size in channels:
            used = ratios if size < LARGE else [ratio for ratio in ratios if ratio <= 1]
            found += [features_case(Inputs(BATCH, size, round(ratio * size), device), name) for ratio in used]
            found.append(matrix_case(Inputs(BATCH, size, 2 * size, device), name))
    return found


def features_case(inputs: Inputs, name: str) -> BenchCase:
    """``second_order_pool`` with each solver."""
    curve, scalar = CURVES[name]
    answers = f"spectral {name}"
    contenders = [inputs.floor()]
    skipped = []
    for solver in _solvers(curve, features=True):
        if solver == "gram" and inputs.locations > GRAM_RATIO * inputs.channels:
            skipped.append(Skipped(PREFIX + solver, GRAM_REASON))
            continue
        pool = partial(pp.second_order_pool, curve=curve, solver=solver)
        contenders.append(inputs.contender(PREFIX + solver, "powerpool", answers, pool))
    references = {
        FLOOR_ANSWERS: inputs.floor_reference,
        answers: lambda: reference.spectral(inputs.features, inputs.upstream, scalar),
    }
    labels = {"curve": name, "from": "features"}
    return BenchCase("solvers", f"{name} {inputs.name}", inputs.sizes, contenders, references, skipped, labels)


def matrix_case(inputs: Inputs, name: str) -> BenchCase:
    """``spectral`` of a matrix that is given: M is formed first, for everyone, so that the input is the same."""
    curve, scalar = CURVES[name]
    answers = f"spectral {name}"

    def of_matrix(features: Tensor, solver: str) -> Tensor:
        return pp.spectral(pp.autocorrelation(features), curve, solver=solver)

    contenders = [
        inputs.floor(),
        *(
            inputs.contender(PREFIX + solver, "powerpool", answers, partial(of_matrix, solver=solver))
            for solver in _solvers(curve, features=False)
        ),
    ]
    references = {
        FLOOR_ANSWERS: inputs.floor_reference,
        answers: lambda: reference.spectral(inputs.features, inputs.upstream, scalar),
    }
    sizes = {"batch": inputs.batch, "channels": inputs.channels}
    labels = {"curve": name, "from": "matrix"}
    return BenchCase(
        "solvers", f"{name} B{inputs.batch} C{inputs.channels} matrix", sizes, contenders, references, labels=labels
    )


def selection(cases: list[CaseRecord]) -> list[dict[str, Any]]:
    """For every case the time of each solver, the best, and what ``select_solver`` answers today."""
    rows = []
    for case in cases:
        measured = {result.name.removeprefix(PREFIX): result for result in case.results if result.origin == "powerpool"}
        if not measured:
            continue
        seconds = {name: result.total.median for name, result in measured.items()}
        channels, locations = case.sizes["channels"], case.sizes.get("locations")
        chosen = pp.select_solver(CURVES[case.labels["curve"]][0], channels, locations).name
        best = min(seconds, key=lambda name: seconds[name])
        rows.append(
            {
                "curve": case.labels["curve"],
                "batch": case.sizes["batch"],
                "channels": channels,
                "locations": locations,
                "seconds": seconds,
                # What does not depend on the machine: where decompositions are slow (batched, on CUDA), these decide.
                "product_flops": {name: result.product_flops for name, result in measured.items()},
                "decompositions": {name: result.decompositions for name, result in measured.items()},
                "best": best,
                "chosen": chosen,
                "times_best": seconds[chosen] / seconds[best],
            }
        )
    return rows


def thresholds(rows: list[dict[str, Any]]) -> Thresholds:
    """The ratios with the smallest worst loss over the table, and among those the smallest mean loss."""
    by_products = [row for row in rows if "squaring" in row["seconds"]]
    large = [row for row in by_products if row["channels"] >= select.SMALL]
    small = [row for row in by_products if row["channels"] < select.SMALL]
    return Thresholds(
        squaring=_threshold(large, "squaring"),
        squaring_small=_threshold(small, "squaring"),
        squaring_by_count=_threshold(large, "squaring", cost="product_flops"),
        eigen=_threshold([row for row in rows if "squaring" not in row["seconds"]], "eigen"),
    )


def _threshold(rows: list[dict[str, Any]], other: str, cost: str = "seconds") -> float:
    measured = [row for row in rows if "gram" in row[cost]]
    ratios = sorted({round(row["locations"] / row["channels"], 1) for row in measured})
    # Half-way between two ratios that were measured; the first means never, the last always but there.
    candidates = [ratios[0], *(round((a + b) / 2, 3) for a, b in itertools.pairwise(ratios)), ratios[-1]]

    def loss(threshold: float) -> tuple[float, float]:
        times_best = [
            row[cost]["gram" if row["locations"] < threshold * row["channels"] else other]
            / min(row[cost]["gram"], row[cost][other])
            for row in measured
        ]
        return max(times_best), statistics.fmean(times_best)

    return min(candidates, key=loss)


def _solvers(curve: Curve, features: bool) -> list[str]:
    names = ["eigen"]
    if curve.integer_power() is not None:
        names.append("squaring")
    if features:
        names.append("gram")
    return names
