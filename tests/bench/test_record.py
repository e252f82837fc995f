"""Records survive the file, and damaged ones are refused; fits, targets, the choice of solvers and losses."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

import powerpool as pp
from powerpool.bench import record
from powerpool.bench.operators import SOLVER_CURVES
from powerpool.bench.record import (
    TARGETS,
    Fit,
    Selection,
    Skipped,
    check_limits,
    find_fits,
    find_losses,
    find_outcomes,
    find_selection,
)
from powerpool.errors import RecordError
from powerpool.files import write_json
from powerpool.solvers import select
from tests.bench import samples


def full_record() -> record.BenchRecord:
    made = samples.pair(auto=3.0)
    made.cases[0].skipped.append(Skipped("svd autograd", "too slow"))
    made.targets = find_outcomes(made.cases)
    made.fits = [Fit("form M", "channels", {"batch": 8}, [[64, 0.1]], 1.5, None)]
    made.selection = [Selection("HDP", 8, 64, None, {"eigen": 1.0}, {"eigen": 9}, {"eigen": 1}, "eigen", "eigen", 1.0)]
    return made


def test_a_record_survives_the_file(tmp_path):
    made = full_record()
    made.save(tmp_path / "pools.json")
    loaded = record.load(tmp_path / "pools.json")
    assert loaded == made
    assert dataclasses.asdict(loaded) == dataclasses.asdict(made)
    assert loaded.cases[0].floor == made.cases[0].results[0]


@pytest.mark.parametrize("data", [{"schema": "other/1"}, [1, 2], {}])
def test_a_foreign_file_is_refused(tmp_path, data):
    path = tmp_path / "foreign.json"
    write_json(path, data)
    with pytest.raises(RecordError, match=r"foreign\.json is not a record"):
        record.load(path)


@pytest.mark.parametrize(
    "whole, damaged",
    [
        ('"suite": "pools"', '"suite": 3'),
        ('"median": 0.003', '"median": "long"'),
        ('"peak_bytes": 1048576', '"peak_bytes": 0.5'),
    ],
)
def test_a_damaged_record_is_refused(tmp_path, whole, damaged):
    text = json.dumps(dataclasses.asdict(samples.pair(auto=3.0)))
    assert whole in text
    path = tmp_path / "pools.json"
    path.write_text(text.replace(whole, damaged))
    with pytest.raises(RecordError, match=r"pools\.json is a damaged record"):
        record.load(path)


SOLVERS_RECORD = Path(__file__).parents[2] / "results" / "bench" / "solvers.json"
stored = pytest.mark.skipif(not SOLVERS_RECORD.exists(), reason="results are stored in a checkout only")
CURVES = {name: row.curve for name, row in SOLVER_CURVES.items()}


def sweep(against: str, values, seconds, **fixed: int):
    sizes = {"batch": 8, "channels": 64, "locations": 49, "eta": 50} | fixed
    return [
        samples.case(
            f"{against}{value}",
            sizes | {against: value},
            samples.measured("form M", 1e3 * seconds(value) / 2, "floor", peak=value),
            samples.measured("powerpool auto", 1e3 * seconds(value), peak=2 * value),
        )
        for value in values
    ]


def fits_of(*cases):
    return [fit for fit in find_fits(cases) if fit.contender == "powerpool auto"]


@pytest.mark.parametrize("exponent", [1.0, 3.0])
def test_exponent_of_a_power_law_is_found(exponent):
    cases = sweep("channels", (64, 128, 256, 512, 1024, 2048), lambda c: 1e-9 * c**exponent)
    (fit,) = fits_of(*cases)
    assert (fit.against, fit.fixed) == ("channels", {"batch": 8, "locations": 49, "eta": 50})
    assert fit.exponent == pytest.approx(exponent)
    assert fit.exponent_upper_half == pytest.approx(exponent)
    assert fits_of(*cases[:2]) == []  # two points are not enough


def test_logarithmic_growth_in_eta_is_distinguished_from_linear():
    etas = (2, 5, 10, 20, 50, 100, 200, 500, 1000)
    (logarithmic,) = fits_of(*sweep("eta", etas, lambda eta: 1e-3 * (1 + math.log2(eta))))
    (linear,) = fits_of(*sweep("eta", etas, lambda eta: 1e-3 * eta))
    assert logarithmic.per_doubling == pytest.approx(1e-3)
    assert logarithmic.r2_logarithm == pytest.approx(1)
    assert logarithmic.exponent < 0.35
    assert linear.exponent == pytest.approx(1)
    assert linear.r2_logarithm < 0.8


def target_case(target, newton_schulz: float, loewner: float, floor: float, memory: float):
    return samples.case(
        target.name,
        {"batch": target.batch, "channels": target.channels, "locations": target.locations, "eta": 50},
        samples.measured("form M", 10.0 / floor, "floor", peak=1000),
        samples.measured("powerpool auto", 10.0),
        samples.measured("powerpool gram", 10.0, peak=int(1000 * memory)),
        samples.measured("Newton-Schulz 5", 10.0 * newton_schulz, "competitor"),
        samples.measured("eigh + Loewner", 10.0 * loewner, "competitor"),
    )


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.channels}-{target.locations}")
def test_targets_are_met_just_inside_and_missed_just_outside(target):
    wanted = {"newton_schulz": target.newton_schulz, "loewner": target.loewner, "floor": target.floor, "memory": 1.3}
    better = {"newton_schulz": 1.01, "loewner": 1.01, "floor": 0.99, "memory": 0.99}
    good = {name: value * better[name] for name, value in wanted.items()}
    count = 4 if target.locations < target.channels else 3
    assert [outcome.met for outcome in find_outcomes([target_case(target, **good)])] == [True] * count
    for name in list(wanted)[:count]:
        bad = good | {name: wanted[name] / better[name]}
        met = [outcome.met for outcome in find_outcomes([target_case(target, **bad)])]
        assert met == [other != name for other in list(wanted)[:count]]


@pytest.mark.parametrize("channels, wanted", [(64, 2.2), (512, 2.0)])
def test_element_wise_targets_are_those_of_the_slowest_curve(channels, wanted):
    def met(time: float, plain: float) -> list[bool]:
        curves = [("powerpool A", 1.0), ("plain A", 1.5), ("powerpool B", time), ("plain B", plain)]
        results = [samples.measured(name, value) for name, value in curves]
        sizes = {"batch": 8, "channels": channels, "locations": 49}
        case = samples.case("element-wise row", sizes, samples.measured("form M", 1.0, "floor"), *results)
        return [outcome.met for outcome in find_outcomes([case])]

    assert met(wanted - 0.01, plain=wanted) == [True, True]
    assert met(wanted + 0.01, plain=3.0) == [False, True]
    assert met(1.5, plain=1.4) == [True, False]


def test_element_wise_cases_of_equal_sizes_all_have_outcomes():
    results = [samples.measured("form M", 1.0, "floor"), samples.measured("powerpool A", 1.0)]
    cases = [samples.case(f"element-wise {name}", {"channels": 64}, *results) for name in ("a", "b")]
    assert [outcome.case for outcome in find_outcomes(cases)] == [case.name for case in cases]


def test_limits_are_met_just_inside_and_missed_just_outside():
    cases = [
        samples.case(name, {}, samples.measured("floor", 1.0, "floor"), samples.measured("ours", time))
        for name, time in (("GIN0 epoch on MUTAG", 1.24), ("ResNet-50 step", 1.16), ("without a limit", 9.0))
    ]
    met = {outcome.case: outcome.met for outcome in check_limits(cases)}
    assert met == {"GIN0 epoch on MUTAG": True, "ResNet-50 step": False}


def test_selection_compares_the_choice_with_the_fastest():
    sizes = {"batch": 8, "channels": 512, "locations": 49}
    results = [samples.measured(f"powerpool {name}", time) for name, time in (("gram", 6.0), ("squaring", 3.0))]
    case = samples.case("row", sizes, samples.measured("form M", 1.0, "floor"), *results)
    (row,) = find_selection([case], CURVES)
    assert row.curve == "MaxExp(50)"
    assert row.chosen == pp.select_solver(pp.MaxExp(50), 512, 49).name == "gram"
    assert (row.best, row.times_best) == ("squaring", pytest.approx(2.0))


def test_the_fastest_solver_is_an_exact_one():
    sizes = {"batch": 8, "channels": 64, "locations": 192}
    results = [samples.measured(f"powerpool {name}", time) for name, time in (("eigen", 6.0), ("minimax", 3.0))]
    case = dataclasses.replace(samples.case("row", sizes, *results), labels={"curve": "Gamma(0.5)"})
    (row,) = find_selection([case], CURVES)
    assert (row.chosen, row.best, row.times_best) == ("eigen", "eigen", 1.0)
    assert row.seconds["minimax"] == pytest.approx(3e-3)


@pytest.mark.parametrize("rival, lost", [(2.0, True), (2.9, False), (4.0, False)])
def test_a_competitor_with_the_same_answer_and_less_time_is_a_loss(rival: float, lost: bool) -> None:
    floor = dataclasses.replace(samples.measured("form M", 1.0, "floor"), answers="another question")
    others = samples.measured("powerpool auto", 3.0), samples.measured("rival", rival, "competitor")
    found = find_losses([samples.case("row", {"channels": 64}, floor, *others)])
    assert [(case, ours.name, other.name) for case, ours, other in found] == (
        [("row", "powerpool auto", "rival")] if lost else []
    )


def test_the_floor_counts_as_a_loss_and_a_rival_without_a_gradient_does_not() -> None:
    floor, ours = samples.measured("form M", 1.0, "floor"), samples.measured("powerpool autocorrelation", 3.0)
    broken = dataclasses.replace(samples.measured("svd", 2.0, "competitor"), note="gradient: not finite")
    found = find_losses([samples.case("row", {"channels": 64}, floor, ours, broken)])
    assert [(mine.name, rival.name) for _, mine, rival in found] == [("powerpool autocorrelation", "form M")]


# The thresholds of select_solver are derived from the stored measurements.


def threshold(rows: Sequence[Selection], other: str, cost: str = "seconds") -> float:
    """The ratio of locations to channels below which gram is taken, with the smallest worst, then mean, loss."""
    measured = [(row, getattr(row, cost)) for row in rows if "gram" in row.seconds]
    ratios = sorted({round(row.locations / row.channels, 1) for row, _ in measured})
    # Half-way between two measured ratios; the first means never, the last always except there.
    candidates = [ratios[0], *(round((a + b) / 2, 3) for a, b in itertools.pairwise(ratios)), ratios[-1]]

    def loss(limit: float) -> tuple[float, float]:
        times_best = [
            costs["gram" if row.locations < limit * row.channels else other] / min(costs["gram"], costs[other])
            for row, costs in measured
        ]
        return max(times_best), statistics.fmean(times_best)

    return min(candidates, key=loss)


@stored
def test_the_thresholds_of_select_solver_are_those_of_the_stored_record():
    kept = record.load(SOLVERS_RECORD)
    assert kept.complete
    assert not kept.options.quick
    rows = find_selection(kept.cases, CURVES)
    by_products = [row for row in rows if "squaring" in row.seconds]
    large = [row for row in by_products if row.channels >= select.SMALL]
    small = [row for row in by_products if row.channels < select.SMALL]
    assert threshold(large, "squaring") == select.GRAM_BELOW_SQUARING
    assert threshold(small, "squaring") == select.GRAM_BELOW_SQUARING_SMALL
    assert threshold(large, "squaring", cost="product_flops") == select.GRAM_BELOW_SQUARING_BY_COUNT
    assert threshold([row for row in rows if row not in by_products], "eigen") == select.GRAM_BELOW_EIGEN
    slow = [row for row in rows if row.times_best > 1.5]
    assert not slow, slow
