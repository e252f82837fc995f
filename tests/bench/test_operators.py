"""The suites of operators: their cases, and that quick ones run."""

import pytest

from powerpool.bench import command
from powerpool.bench.cases import Effort, run_case
from powerpool.bench.command import suite_cases
from powerpool.bench.operators import CURVES
from powerpool.bench.record import TARGETS
from tests.bench import samples

SUITES = ("pools", "solvers", "curves")


@pytest.mark.parametrize("suite", SUITES)
def test_the_first_quick_case_runs(suite):
    case, *_ = suite_cases(suite, quick=True, device="cpu")
    measured = run_case(case, Effort(3, 0.1, 0))
    assert measured.error == ""
    assert {result.name for result in measured.results} == {contender.name for contender in case.contenders}
    made = samples.record(measured, suite=suite)
    command._add_findings(made, complete=True)
    assert made.targets if suite == "pools" else made.selection or suite == "curves"


def test_the_square_root_is_measured_beside_newton_schulz():
    case = next(case for case in suite_cases("solvers", quick=True, device="cpu") if "Gamma" in case.name)
    results = {result.name: result for result in run_case(case, Effort(3, 0.1, 0)).results}
    assert results["powerpool minimax"].value_error < 1e-5
    assert results["powerpool minimax"].decompositions == 0
    assert results["Newton-Schulz 5"].value_error > 1e-2
    assert results["powerpool minimax"].products < results["Newton-Schulz 5"].products


@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.parametrize("quick", [True, False])
def test_cases_and_contenders_have_unique_names_and_references(suite, quick):
    cases = suite_cases(suite, quick, "cpu")
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    for case in cases:
        assert case.suite == suite
        contenders = [contender.name for contender in case.contenders]
        assert len(set(contenders)) == len(contenders)
        assert {contender.answers for contender in case.contenders} <= case.references.keys()
        assert not set(contenders) & {skipped.name for skipped in case.skipped}


def test_the_full_pools_have_every_target_and_every_sweep():
    made = suite_cases("pools", quick=False, device="cpu")
    cases = [case.sizes for case in made]
    assert {target.name for target in TARGETS} <= {case.name for case in made}
    assert {size["channels"] for size in cases if size["batch"] == 2 and size["locations"] == 49} >= {64, 512, 2048}
    assert len({size.get("eta") for size in cases if (size["channels"], size["locations"]) == (512, 49)} - {None}) == 9


def test_every_elementwise_curve_has_its_plain_formula_among_the_pools():
    cases = [case for case in suite_cases("pools", quick=False, device="cpu") if case.name.startswith("element-wise")]
    assert {case.sizes["channels"] for case in cases} == {64, 256, 512, 2048}
    for case in cases:
        names = [contender.name for contender in case.contenders]
        assert [name.removeprefix("plain ") for name in names if name.startswith("plain")] == list(CURVES)
        assert [name.removeprefix("powerpool ") for name in names if name.startswith("powerpool")] == list(CURVES)
