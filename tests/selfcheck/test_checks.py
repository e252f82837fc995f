"""How a check is run: errors, exceptions, skips, and what is shown."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

from powerpool.selfcheck.checks import Check, Findings, Problem, Right, run_check

ONES = torch.ones(2, dtype=torch.float64)


def compare(findings: Findings, label: str, factor: float, given: Tensor = ONES) -> None:
    """An operator that multiplies by a number and should not."""
    right = Right.of_tensors(given, torch.ones_like(given))
    findings.compare(label, lambda x: factor * x, Problem(given, torch.ones_like(given), right))


def raising(x: Tensor) -> Tensor:
    raise RuntimeError("no such instruction\nat 0x0")


def test_errors_of_value_and_gradient_are_relative():
    outcome = run_check(Check("x", 1e-2, lambda findings: compare(findings, "one", 1.5)))
    assert (outcome.status, outcome.cases, outcome.failed) == ("failed", 2, 2)
    assert outcome.worst == pytest.approx(0.5)
    assert outcome.note == "value of one"
    assert run_check(Check("x", 0.6, lambda findings: compare(findings, "one", 1.5))).status == "passed"


def test_each_problem_of_a_batch_is_relative_to_its_own_size():
    small, large = 1e-6 * ONES, 1e6 * ONES
    problems = [
        Problem(given, ONES, Right.of_tensors(given, ONES), str(size)) for size, given in enumerate((small, large))
    ]

    def shift(findings: Findings) -> None:
        findings.compare("two", lambda x: x + 1e-9, *problems)

    outcome = run_check(Check("x", 1e-4, shift))
    assert (outcome.cases, outcome.failed, outcome.note) == (4, 1, "value of 0 of two")


def test_an_exception_or_nan_fails_and_the_rest_still_runs():
    def made(findings: Findings) -> None:
        findings.compare("one", raising, Problem(ONES, ONES, Right.of_tensors(ONES, ONES)))
        compare(findings, "two", 1.001)
        compare(findings, "three", torch.nan)

    found = run_check(Check("x", 1e-2, made))
    assert (found.status, found.cases, found.failed, found.worst) == ("failed", 5, 3, None)
    assert "one raised RuntimeError: no such instruction" in found.line
    assert "0x0" not in found.line
    json.dumps(asdict(found), allow_nan=False)


def test_cases_before_an_exception_count():
    def made(findings: Findings) -> None:
        compare(findings, "one", 1.001)
        raise RuntimeError("broken")

    found = run_check(Check("x", 1e-2, made))
    assert (found.status, found.cases, found.failed, found.worst) == ("failed", 3, 1, None)
    assert "broken" in found.note


def test_a_check_without_comparisons_has_failed():
    assert run_check(Check("x", 1e-2, lambda findings: None)).status == "failed"


def test_a_check_is_skipped_beforehand_or_by_an_excuse():
    assert run_check(Check("x", 1e-2, lambda findings: pytest.fail("it ran"), skipped="not here")).note == "not here"
    problem = Problem(ONES, ONES, Right.of_tensors(ONES, ONES))
    broken = Check("x", 1e-2, lambda findings: findings.compare("one", raising, problem), excuse=lambda: "no compiler")
    outcome = run_check(broken)
    assert (outcome.status, outcome.note) == ("skipped", "no compiler")
    wrong = Check("x", 1e-2, lambda findings: compare(findings, "one", 2.0), excuse=lambda: "no compiler")
    assert run_check(wrong).status == "failed"  # a wrong number has no excuse


@pytest.mark.parametrize("function, word", [(Tensor.float, "dtype"), (lambda x: x[:1], "shape")])
def test_a_result_of_the_wrong_dtype_or_shape_fails(function, word):
    problem = Problem(ONES, None, Right(ONES, ONES))
    outcome = run_check(Check("x", 1e-2, lambda findings: findings.compare("one", function, problem)))
    assert outcome.status == "failed"
    assert word in outcome.note
