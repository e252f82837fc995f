"""``powerpool selfcheck`` passes where all is well, and finds and names what is off by a thousandth."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import powerpool as pp
from powerpool import functional, solvers, vectorize
from powerpool.cli.main import main
from powerpool.curves import CURVES
from powerpool.moments import dense as moments
from powerpool.selfcheck import battery, command
from powerpool.selfcheck.battery import Battery, Case, Check, Skipped
from powerpool.selfcheck.command import SelfcheckOptions, run
from powerpool.selfcheck.report import run_check

ALL_CHECKS = Battery.checks
OFF = 1e-3


def forward_off(value: Tensor) -> Tensor:
    """The value larger by a thousandth, the gradient as it was."""
    return value + OFF * value.detach()


def backward_off(value: Tensor) -> Tensor:
    """The gradient larger by a thousandth, the value as it was."""
    return value + OFF * (value - value.detach())


@pytest.fixture(scope="module")
def shared() -> Battery:
    """Right answers are computed once for all tests."""
    return Battery(seed=0)


@pytest.fixture
def only(monkeypatch, shared) -> Callable[..., None]:
    def choose(*names: str) -> None:
        def some(self: Battery, quick: bool = False) -> Iterator[Check]:
            return (check for check in ALL_CHECKS(shared, quick) if check.name in names)

        monkeypatch.setattr(Battery, "checks", some)

    return choose


def results(capsys) -> dict[str, str]:
    """The result of every row that was printed."""
    table = capsys.readouterr().out.partition("\n\n")[0]
    return {line[:34].strip(): re.split(r"  +", line)[-1] for line in table.splitlines()[1:]}


def wrapped(original: Any, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if isinstance(result, solvers.GramFactor):
            return solvers.GramFactor(result.features, change(result.core))
        return change(result)

    return call


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory, shared) -> tuple[int, str, dict[str, Any]]:
    """One quick run as a user starts it."""
    patch = pytest.MonkeyPatch()
    path = tmp_path_factory.mktemp("selfcheck") / "new" / "found.json"
    said: list[str] = []
    patch.setattr(command, "_say", said.append)
    patch.setattr(command, "Battery", lambda seed, device: shared)
    code = run(SelfcheckOptions(quick=True, out=path))
    patch.undo()
    return code, "\n".join(said), json.loads(path.read_text())


def test_a_good_machine_passes(whole_run):
    code, said, data = whole_run
    assert code == 0, said
    assert data["passed"] is True
    assert "checks passed in" in said
    assert "A report of a bug should contain all of this." in said
    assert {check["status"] for check in data["checks"]} == {"passed", "skipped"}
    skipped = [check for check in data["checks"] if check["status"] == "skipped"]
    assert [(check["name"], check["note"]) for check in skipped] == [("torch.compile, inductor", "left out by --quick")]


def test_every_solver_curve_dtype_and_pool_has_its_row(whole_run):
    _, said, data = whole_run
    rows = {check["name"] for check in data["checks"]}
    for solver in (*solvers.SOLVERS, "auto"):
        for dtype in ("float64", "float32", "bfloat16", "float16"):
            assert f"solver {solver}, {dtype}" in rows
    for curve in CURVES:
        assert {f"curve {curve}, float64", f"curve {curve}, float32"} <= rows
    assert {f"pool {kind}, float64" for kind in ("dense", "masked", "by segment")} <= rows
    assert {f"newton_schulz null space, {dtype}" for dtype in ("float64", "float32", "bfloat16", "float16")} <= rows
    assert {"torch.compile, aot_eager", "autocast bfloat16, float32", "two runs are equal"} <= rows
    assert all(name in said for name in rows)
    assert all(len(name) <= 34 for name in rows)


def test_good_machines_stay_far_below_the_tolerances(whole_run):
    for check in whole_run[2]["checks"]:
        if check["status"] == "passed" and check["name"].endswith(("float64", "float32")):
            jittered = check["name"].startswith("solver jitter")  # of its noise, not of round-off
            assert check["worst"] <= check["tolerance"] / (2 if jittered else 8), check


def test_the_machine_and_the_versions_are_in_the_output(whole_run):
    _, said, data = whole_run
    assert data["environment"]["torch"] == torch.__version__
    assert data["settings"]["default_dtype"] == "torch.float32"
    assert (data["device"], data["seed"], data["quick"]) == ("cpu", 0, True)
    for line in (f"torch:                    {torch.__version__}", "seed:                     0", "processor: "):
        assert line in said


@pytest.mark.parametrize("change", [forward_off, backward_off])
@pytest.mark.parametrize("solver", ["eigen", "squaring", "newton_schulz", "jitter"])
def test_a_solver_that_is_off_is_named(solver, change, monkeypatch, only, capsys):
    other = "newton_schulz" if solver == "squaring" else "squaring"
    only(f"solver {solver}, float64", f"solver {other}, float64")
    kind = solvers.SOLVERS[solver]
    monkeypatch.setattr(kind, "apply", wrapped(kind.apply, change))
    assert run(SelfcheckOptions()) == 1
    found = results(capsys)
    part = "value" if change is forward_off else "gradient"
    assert found[f"solver {solver}, float64"].startswith("FAILED")
    assert f": {part} of " in found[f"solver {solver}, float64"]
    assert found[f"solver {other}, float64"] == "passed"


@pytest.mark.parametrize("change", [forward_off, backward_off])
@pytest.mark.parametrize("place", ["factor", "geometric_pool"])
def test_gram_that_is_off_is_named(place, change, monkeypatch, only, capsys):
    only("solver gram, float64", "solver squaring, float64")
    owner: Any = solvers.Gram if place == "factor" else functional
    monkeypatch.setattr(owner, place, wrapped(getattr(owner, place), change))
    assert run(SelfcheckOptions()) == 1
    found = results(capsys)
    assert found["solver gram, float64"].startswith("FAILED")
    assert found["solver squaring, float64"] == "passed"


@pytest.mark.parametrize("change", [forward_off, backward_off])
@pytest.mark.parametrize("solver", ["eigen", "squaring", "newton_schulz", "jitter"])
def test_float32_alone_off_by_a_thousandth_is_seen(solver, change, monkeypatch, only, capsys):
    only(f"solver {solver}, float64", f"solver {solver}, float32")
    kind = solvers.SOLVERS[solver]
    exact = kind.apply

    def apply(self: Any, matrix: Tensor, *rest: Any) -> Tensor:
        return (change if matrix.dtype == torch.float32 else Tensor.clone)(exact(self, matrix, *rest))

    monkeypatch.setattr(kind, "apply", apply)
    assert run(SelfcheckOptions()) == 1
    found = results(capsys)
    assert found[f"solver {solver}, float64"] == "passed"
    assert found[f"solver {solver}, float32"].startswith("FAILED")


@pytest.mark.parametrize("change", [forward_off, backward_off])
@pytest.mark.parametrize("solver", [*solvers.SOLVERS, "auto"])
def test_a_solver_that_is_off_for_batches_alone_is_seen(solver, change, monkeypatch, only, capsys):
    rows = [f"solver {solver}, {dtype}" for dtype in ("float64", "float32")]
    if solver == "newton_schulz":
        rows.append("newton_schulz null space, float64")
    only(*rows)
    name = "second_order_pool" if solver == "gram" else "spectral"
    exact = getattr(pp, name)

    def call(given: Tensor, *rest: Any, **options: Any) -> Tensor:
        return (change if given.ndim > 2 else Tensor.clone)(exact(given, *rest, **options))

    monkeypatch.setattr(pp, name, call)
    assert run(SelfcheckOptions()) == 1
    found = results(capsys)
    part = "value" if change is forward_off else "gradient"
    for row in rows:
        assert re.match(rf"FAILED \(\d+ of \d+\): {part} of .* stacked, ", found[row]), found[row]


@pytest.mark.parametrize("place", [0, 1])
def test_one_member_of_a_batch_that_is_off_is_seen(place, monkeypatch, only, capsys):
    rows = [f"solver eigen, {dtype}" for dtype in ("float64", "float32")]
    only(*rows)
    exact = solvers.Eigen.apply

    def apply(self: Any, matrix: Tensor, *rest: Any) -> Tensor:
        result = exact(self, matrix, *rest)
        if matrix.ndim == 2:
            return result
        return torch.stack([forward_off(one) if i == place else one for i, one in enumerate(result)])

    monkeypatch.setattr(solvers.Eigen, "apply", apply)
    assert run(SelfcheckOptions()) == 1
    assert all(result.startswith("FAILED") for result in results(capsys).values())


def test_jitter_takes_its_noise_from_the_seed_and_leaves_the_generator_alone(shared):
    (check,) = (check for check in ALL_CHECKS(shared) if check.name == "solver jitter, float64")
    before = torch.random.get_rng_state()
    first = run_check(check).worst
    assert torch.equal(torch.random.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        assert run_check(check).worst == first


def test_large_pools_and_autocast_see_a_solver_that_is_off(monkeypatch, only, capsys):
    only("large pools, float32", "autocast bfloat16, float32")
    monkeypatch.setattr(solvers.Eigen, "apply", wrapped(solvers.Eigen.apply, forward_off))
    assert run(SelfcheckOptions()) == 1
    assert all("eigen, " in result for result in results(capsys).values())


@pytest.mark.parametrize("formula", ["_value", "_derivative"])
@pytest.mark.parametrize("name", CURVES)
def test_a_curve_that_is_off_is_named(name, formula, monkeypatch, only, capsys):
    other = "asinhe" if name != "asinhe" else "hdp"
    only(f"curve {name}, float64", f"curve {name}, float32", f"curve {other}, float64")
    kind = CURVES[name]
    monkeypatch.setattr(kind, formula, wrapped(getattr(kind, formula), lambda x: (1 + OFF) * x))
    assert run(SelfcheckOptions()) == 1
    found = results(capsys)
    assert found[f"curve {name}, float64"].startswith("FAILED")
    assert found[f"curve {name}, float32"].startswith("FAILED")
    assert found[f"curve {other}, float64"] == "passed"


@pytest.mark.parametrize("part", ["to_vector", "from_vector", "weights"])
def test_a_vectorisation_that_is_off_is_named(part, monkeypatch, only, capsys):
    names = [f"to_vector, from_vector, {dtype}" for dtype in ("float64", "float32")]
    only(*names)
    if part == "weights":
        monkeypatch.setattr(vectorize, "_weights", wrapped(vectorize._weights, lambda x: x * (1 + OFF)))
    else:
        monkeypatch.setattr(pp, part, wrapped(getattr(pp, part), forward_off))
    assert run(SelfcheckOptions()) == 1
    assert all(result.startswith("FAILED") for result in results(capsys).values())


BOTH = (forward_off, backward_off)
POOLS: list[tuple[str, Any, str, tuple[Callable[[Tensor], Tensor], ...]]] = [
    ("pool dense, float64", moments, "self_product", BOTH),
    ("pool by segment, float64", moments, "segment_moment", BOTH),
    ("pool masked, float64", moments, "self_product", BOTH),
    ("pool dense, float64", pp, "first_order_pool", BOTH),
    ("pool dense, float64", pp, "spatial_coordinates", (forward_off,)),
    ("learnable parameters, float64", solvers.Eigen, "apply", (backward_off,)),
]


@pytest.mark.parametrize("row, owner, name, change", [(*pool[:3], change) for pool in POOLS for change in pool[3]])
def test_a_pool_that_is_off_is_named(row, owner, name, change, monkeypatch, only, capsys):
    only(row)
    monkeypatch.setattr(owner, name, wrapped(getattr(owner, name), change))
    assert run(SelfcheckOptions()) == 1
    assert results(capsys)[row].startswith("FAILED")


def test_a_mask_that_lets_something_through_is_seen(monkeypatch, only, capsys):
    only("pool masked, float64")
    monkeypatch.setattr(moments, "kept", lambda features, mask: features.nan_to_num(1.0))
    assert run(SelfcheckOptions()) == 1
    assert results(capsys)["pool masked, float64"].startswith("FAILED")


def test_what_changes_from_run_to_run_is_seen(monkeypatch, only, capsys):
    only("two runs are equal", "parameters saved and loaded")
    calls = itertools.count()  # no random numbers: in float32 two of them may round to one
    drift = wrapped(solvers.Squaring.apply, lambda x: x * (1 + 1e-6 * next(calls)))
    monkeypatch.setattr(solvers.Squaring, "apply", drift)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", lambda self, state: None)
    assert run(SelfcheckOptions()) == 1
    found = results(capsys)
    assert "squaring" in found["two runs are equal"]
    assert found["parameters saved and loaded"].startswith("FAILED (1 of 1)")


@pytest.mark.parametrize("seed", [1, 2**32 - 1])
def test_other_seeds_pass(seed):
    rows = ("solver eigen, float32", "solver gram, float32", "solver newton_schulz, float32", "pool dense, float64")
    for check in ALL_CHECKS(Battery(seed), quick=True):
        if check.name in rows:
            assert run_check(check).status == "passed", check.name


def test_a_null_space_in_half_precision_has_its_own_tolerance():
    """With this seed round-off in the null space is larger than the rounding to float16."""
    for check in ALL_CHECKS(Battery(seed=16), quick=True):
        if "newton_schulz" in check.name:
            assert run_check(check).status == "passed", check.name


def test_the_default_dtype_changes_nothing(only, capsys):
    only("solver gram, float32", "pool by segment, float32", "parameters saved and loaded", "two runs are equal")
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert run(SelfcheckOptions()) == 0, results(capsys)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.stress
@pytest.mark.parametrize("threads", [1, 2])
def test_twenty_seeds_pass(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed in range(20):
            for check in ALL_CHECKS(Battery(seed), quick=True):
                if not check.name.startswith("torch.compile"):
                    assert run_check(check).status == "passed", (seed, check.name)
    finally:
        torch.set_num_threads(before)


def test_without_a_compiler_the_other_half_of_compile_runs(monkeypatch, shared):
    monkeypatch.setattr("shutil.which", lambda name: None)
    last = [check for check in ALL_CHECKS(shared) if check.name.startswith("torch.compile")]
    assert [check.name for check in last] == ["torch.compile, inductor", "torch.compile, aot_eager"]
    skipped = run_check(last[0])
    assert skipped.status == "skipped"
    assert skipped.line.endswith("skipped: no C++ compiler on this machine (g++ or clang++)")


def test_with_a_compiler_there_is_one_compilation(monkeypatch, shared):
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/g++")
    assert [check.name for check in ALL_CHECKS(shared)][-1] == "torch.compile, inductor"
    assert battery._no_compiler("cuda") == "" or "triton" in battery._no_compiler("cuda")


def test_a_compiler_that_compiles_nothing_is_no_failure_of_ours(monkeypatch, shared):
    def broken(function: Any, **options: Any) -> Any:
        raise RuntimeError("Python.h: No such file\nmore of it")

    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/g++")
    monkeypatch.setattr(torch, "compile", broken)
    check = list(ALL_CHECKS(shared))[-1]
    found = run_check(check)
    assert found.status == "skipped"
    assert found.note == "Inductor does not work here, not even for x + 1: RuntimeError: Python.h: No such file"
    # A compiler that works for others, and not for ours, is a failure.
    monkeypatch.setattr(battery, "_compiles_nothing", lambda device: None)
    assert run_check(check).status == "failed"


def test_what_raises_has_failed_and_the_rest_still_runs():
    def broken() -> dict[str, float]:
        raise RuntimeError("no such instruction\nat 0x0")

    def made() -> list[Case]:
        return [Case("one", broken), Case("two", lambda: {"value": 1e-3}), Case("three", lambda: {"value": math.nan})]

    found = run_check(Check("x", 1e-2, made))
    assert (found.status, found.cases, found.failed, found.worst) == ("failed", 3, 2, None)
    assert found.line.endswith("not finite    1.0e-02  FAILED (2 of 3): one raised RuntimeError: no such instruction")
    json.dumps(found.__dict__, allow_nan=False)


def test_a_case_that_cannot_be_made_fails_its_row_alone(monkeypatch, only, capsys):
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("no such reference\nat all")

    only("large pools, float32", "two runs are equal")
    monkeypatch.setattr(battery.reference, "spectral", broken)
    assert run(SelfcheckOptions()) == 1
    said = capsys.readouterr().out
    assert "FAILED (1 of 1): making its next case raised RuntimeError: no such reference\n" in said
    assert re.search(r"^two runs are equal .* passed$", said, re.MULTILINE)
    assert "A report of a bug should contain all of this." in said


def test_cases_before_the_one_that_cannot_be_made_count():
    def made() -> Iterator[Case]:
        yield Case("one", lambda: {"value": 1e-3})
        yield Case("two", lambda: {"value": 1.0})
        raise RuntimeError

    found = run_check(Check("x", 1e-2, made))
    assert (found.status, found.cases, found.failed, found.worst) == ("failed", 3, 2, None)


def test_a_check_that_compares_nothing_has_failed():
    found = run_check(Check("x", 1e-2, list))
    assert (found.status, found.note) == ("failed", "nothing was compared")


def test_a_skipped_case_skips_its_check():
    def leave() -> dict[str, float]:
        raise Skipped("not here")

    found = run_check(Check("x", 1e-2, lambda: [Case("one", leave)]))
    assert (found.status, found.note) == ("skipped", "not here")


def test_an_answer_of_the_wrong_dtype_or_shape_fails(monkeypatch, only, capsys):
    only("solver squaring, float32", "to_vector, from_vector, float64")
    monkeypatch.setattr(functional, "at_least_float32", lambda tensor: tensor)
    monkeypatch.setattr(pp, "spectral", wrapped(pp.spectral, Tensor.double))
    monkeypatch.setattr(pp, "from_vector", wrapped(pp.from_vector, lambda x: x[:-1]))
    assert run(SelfcheckOptions()) == 1
    found = results(capsys)
    assert "torch.float32 was given and torch.float64 came back" in found["solver squaring, float32"]
    assert "The answer has shape" in found["to_vector, from_vector, float64"]


def test_json_takes_the_place_of_the_table(only, capsys):
    only("two runs are equal")
    assert main(["selfcheck", "--seed", "5", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["passed"], data["seed"]) == (True, 5)
    assert [check["name"] for check in data["checks"]] == ["two runs are equal"]


def test_quiet_says_nothing(only, capsys):
    only("two runs are equal")
    assert main(["selfcheck", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_failure_is_in_the_last_lines(monkeypatch, only, capsys):
    only("two runs are equal", "parameters saved and loaded")
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", lambda self, state: None)
    assert run(SelfcheckOptions()) == 1
    assert re.search(r"\n1 of 2 checks FAILED in \d+ s: parameters saved and loaded\.\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"seed": -1}, r"seed must be >= 0 and below 2\*\*32 \(got -1\)"),
        ({"device": "abacus"}, "The device 'abacus' cannot be used on this machine"),
        ({"device": "meta"}, "'meta'"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SelfcheckOptions(**options)


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "Battery", lambda *_: pytest.fail("it ran"))
    with pytest.raises(ValueError, match="out must be the path of a file"):
        SelfcheckOptions(out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"Cannot write .*found\.json: Not a directory"):
        run(SelfcheckOptions(out=tmp_path / "file" / "found.json"))
    os.mkfifo(tmp_path / "pipe")  # a place that a folder alone does not tell of
    with pytest.raises(ValueError, match=r"Cannot write .*pipe: it is a pipe or a device"):
        run(SelfcheckOptions(out=tmp_path / "pipe"))
