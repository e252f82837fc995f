"""A machine where all is well passes; an error of a thousandth is found and named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import powerpool as pp
from powerpool import solvers
from powerpool.curves import CURVES
from powerpool.linalg import triangle
from powerpool.moments import dense as moments
from powerpool.moments import segments
from powerpool.selfcheck import checks as checks_module
from powerpool.selfcheck.battery import Battery
from powerpool.selfcheck.checks import Check, Outcome, run_check

OFF = 1e-3


def forward_off(value: Tensor) -> Tensor:
    """The value larger by a thousandth, the gradient right."""
    return value + OFF * value.detach()


def backward_off(value: Tensor) -> Tensor:
    """The gradient larger by a thousandth, the value right."""
    return value + OFF * (value - value.detach())


BOTH = (forward_off, backward_off)
both = pytest.mark.parametrize("change", BOTH)


@pytest.fixture(scope="module")
def checks(battery: Battery) -> dict[str, Check]:
    return {check.name: check for check in battery.checks(quick=True)}


@pytest.fixture
def outcomes(checks: dict[str, Check]) -> Callable[..., list[Outcome]]:
    return lambda *names: [run_check(checks[name]) for name in names]


def plant(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[[Tensor], Tensor]) -> None:
    """Let a function of the library return something else."""
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        return change(original(*arguments, **options))

    monkeypatch.setattr(owner, name, call)


def part_of(change: Callable[[Tensor], Tensor]) -> str:
    return "value of " if change is forward_off else "gradient of "


@both
@pytest.mark.parametrize("solver", solvers.SOLVERS)
def test_a_wrong_solver_is_named(solver, change, monkeypatch, outcomes):
    other = "newton_schulz" if solver == "squaring" else "squaring"
    plant(monkeypatch, solvers.SOLVERS[solver], "apply", change)
    wrong, right = outcomes(f"solver {solver}, float64", f"solver {other}, float64")
    assert (wrong.status, right.status) == ("failed", "passed")
    assert wrong.note.startswith(part_of(change))


@pytest.mark.parametrize("solver", ["eigen", "squaring", "newton_schulz", "jitter"])
def test_an_error_in_float32_alone_is_found(solver, monkeypatch, outcomes):
    kind = solvers.SOLVERS[solver]
    exact = kind.apply

    def apply(self: Any, matrix: Tensor, *rest: Any) -> Tensor:
        return (forward_off if matrix.dtype == torch.float32 else Tensor.clone)(exact(self, matrix, *rest))

    monkeypatch.setattr(kind, "apply", apply)
    right, wrong = outcomes(f"solver {solver}, float64", f"solver {solver}, float32")
    assert (right.status, wrong.status) == ("passed", "failed")


@both
@pytest.mark.parametrize("solver", [*solvers.SOLVERS, "auto"])
def test_an_error_in_batches_alone_is_found(solver, change, monkeypatch, outcomes):
    name = "second_order_pool" if solver == "gram" else "spectral"
    exact = getattr(pp, name)

    def call(given: Tensor, *rest: Any, **options: Any) -> Tensor:
        return (change if given.ndim > 2 else Tensor.clone)(exact(given, *rest, **options))

    monkeypatch.setattr(pp, name, call)
    rows = [f"solver {solver}, float32"] + ["newton_schulz null space, float64"] * (solver == "newton_schulz")
    for outcome in outcomes(*rows):
        assert outcome.status == "failed"
        assert outcome.note.startswith(part_of(change))
        assert " stacked, " in outcome.note


def test_the_noise_of_jitter_comes_from_the_seed_and_leaves_the_generator_alone(outcomes):
    before = torch.random.get_rng_state()
    (first,) = outcomes("solver jitter, float64")
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        assert outcomes("solver jitter, float64")[0].worst == first.worst


def test_large_pools_and_autocast_find_a_wrong_solver(monkeypatch, outcomes):
    plant(monkeypatch, solvers.Eigen, "apply", forward_off)
    for outcome in outcomes("large pools, float32", "autocast bfloat16, float32"):
        assert outcome.status == "failed"


@pytest.mark.parametrize("formula", ["_value", "_derivative"])
@pytest.mark.parametrize("name", CURVES)
def test_a_wrong_curve_is_named(name, formula, monkeypatch, outcomes):
    other = "asinhe" if name != "asinhe" else "hdp"
    plant(monkeypatch, CURVES[name], formula, lambda x: (1 + OFF) * x)
    *wrong, right = outcomes(f"curve {name}, float64", f"curve {name}, float32", f"curve {other}, float64")
    assert [outcome.status for outcome in (*wrong, right)] == ["failed", "failed", "passed"]


POOLS: list[tuple[str, Any, str, tuple[Callable[[Tensor], Tensor], ...]]] = [
    ("pool dense, float64", moments, "self_product", BOTH),
    ("pool by segment, float64", segments, "segment_moment", BOTH),
    ("pool masked, float64", moments, "self_product", BOTH),
    ("pool dense, float64", pp, "first_order_pool", BOTH),
    ("pool dense, float64", pp, "spatial_coordinates", (forward_off,)),
    ("learnable parameters, float64", solvers.Eigen, "apply", BOTH),
    ("to_vector, from_vector, float64", pp, "to_vector", BOTH),
    ("to_vector, from_vector, float32", pp, "from_vector", BOTH),
    ("to_vector, from_vector, float64", triangle, "weights_of", (forward_off,)),
]


@pytest.mark.parametrize("row, owner, name, change", [(*pool[:3], change) for pool in POOLS for change in pool[3]])
def test_a_wrong_pool_or_vector_is_named(row, owner, name, change, monkeypatch, outcomes):
    plant(monkeypatch, owner, name, change)
    assert outcomes(row)[0].status == "failed"


def test_a_mask_that_lets_something_through_is_found(monkeypatch, outcomes):
    monkeypatch.setattr(moments, "kept", lambda features, mask: features.nan_to_num(1.0))
    assert outcomes("pool masked, float64")[0].status == "failed"


def test_results_that_change_from_run_to_run_are_found(monkeypatch, outcomes):
    calls = itertools.count()  # not random numbers: in float32 two of them may round to one
    plant(monkeypatch, solvers.Squaring, "apply", lambda x: x * (1 + 1e-6 * next(calls)))
    (outcome,) = outcomes("two runs are equal")
    assert outcome.status == "failed"
    assert "squaring" in outcome.note


@pytest.mark.parametrize(
    "seed, rows",
    [
        (1, ("solver squaring, float32", "solver newton_schulz, float32")),
        (2**32 - 1, ("solver gram, float32", "pool dense, float64")),
        # With this seed round-off in the null space is larger than the rounding to float16.
        (16, ("newton_schulz null space, float16", "solver newton_schulz, float16")),
    ],
)
def test_other_seeds_pass(seed, rows):
    for check in Battery(seed).checks(quick=True):
        if check.name in rows:
            assert run_check(check).status == "passed", check.name


def test_the_default_dtype_and_no_grad_change_nothing(outcomes):
    torch.set_default_dtype(torch.float64)
    try:
        rows = ("solver gram, float32", "pool by segment, float32", "two runs are equal")
        assert [outcome.status for outcome in outcomes(*rows)] == ["passed"] * 3
    finally:
        torch.set_default_dtype(torch.float32)


def test_without_a_compiler_inductor_is_skipped_and_tracing_is_checked(monkeypatch, battery):
    monkeypatch.setattr("shutil.which", lambda name: None)
    last = [check for check in battery.checks() if check.name.startswith("torch.compile")]
    assert [check.name for check in last] == ["torch.compile, inductor", "torch.compile, aot_eager"]
    assert run_check(last[0]).status == "skipped"
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/g++")
    assert [check.name for check in battery.checks()][-1] == "torch.compile, inductor"
    assert checks_module.find_obstacle("cuda") == "" or "triton" in checks_module.find_obstacle("cuda")


def test_a_compiler_that_compiles_nothing_is_not_a_failure_of_the_library(monkeypatch, battery):
    def broken(function: Any, **options: Any) -> Any:
        raise RuntimeError("Python.h: No such file\nmore of it")

    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/g++")
    compile_check = list(battery.checks())[-1]
    monkeypatch.setattr(torch, "compile", broken)
    found = run_check(compile_check)
    assert found.status == "skipped"
    assert "Python.h: No such file" in found.note
    # A compiler that fails for the library alone is a failure.
    monkeypatch.setattr(checks_module, "find_fault", lambda device: None)
    again = list(battery.checks())[-1]
    assert run_check(again).status == "failed"
