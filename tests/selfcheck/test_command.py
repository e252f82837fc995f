"""``powerpool selfcheck``: table, JSON, options and exit code."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from powerpool import solvers
from powerpool.bench import reference
from powerpool.cli.main import main
from powerpool.curves import CURVES
from powerpool.errors import ArgumentError
from powerpool.selfcheck import command
from powerpool.selfcheck.battery import Battery
from powerpool.selfcheck.checks import NAME_WIDTH, Check
from powerpool.selfcheck.command import SelfcheckOptions, run

ALL_CHECKS = Battery.checks


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory, battery: Battery) -> tuple[int, str, dict[str, Any]]:
    """One quick run: its exit code, output and JSON file."""
    path = tmp_path_factory.mktemp("selfcheck") / "new" / "found.json"
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "print_line", lines.append)
        patch.setattr(command, "Battery", lambda seed, device: battery)
        code = run(SelfcheckOptions(quick=True, out=path))
    return code, "\n".join(lines), json.loads(path.read_text())


@pytest.fixture
def only(monkeypatch) -> Callable[..., None]:
    """Let the battery have some of its checks."""

    def choose(*names: str) -> None:
        def chosen(self: Battery, quick: bool = False) -> Iterator[Check]:
            return (check for check in ALL_CHECKS(self, quick) if check.name in names)

        monkeypatch.setattr(Battery, "checks", chosen)

    return choose


def test_everything_passes_on_this_machine(whole_run):
    code, printed, data = whole_run
    assert code == 0, printed
    assert data["passed"] is True
    skipped = [check for check in data["checks"] if check["status"] == "skipped"]
    assert [check["name"] for check in skipped] == ["torch.compile, inductor"]
    assert "--quick" in skipped[0]["note"]
    assert {check["status"] for check in data["checks"]} == {"passed", "skipped"}


def test_every_solver_curve_dtype_and_pool_has_its_row(whole_run):
    _, printed, data = whole_run
    rows = {check["name"] for check in data["checks"]}
    dtypes = ("float64", "float32", "bfloat16", "float16")
    assert {f"solver {solver}, {dtype}" for solver in (*solvers.SOLVERS, "auto") for dtype in dtypes} <= rows
    assert {f"curve {curve}, {dtype}" for curve in CURVES for dtype in dtypes[:2]} <= rows
    assert {f"pool {kind}, float64" for kind in ("dense", "masked", "by segment")} <= rows
    assert {f"newton_schulz null space, {dtype}" for dtype in dtypes} <= rows
    assert {"torch.compile, aot_eager", "autocast bfloat16, float32", "two runs are equal"} <= rows
    assert all(name in printed and len(name) <= NAME_WIDTH for name in rows)


def test_errors_are_far_below_the_tolerances(whole_run):
    for check in whole_run[2]["checks"]:
        if check["status"] == "passed" and check["name"].endswith(("float64", "float32")):
            jittered = check["name"].startswith("solver jitter")  # noise, not round-off
            assert check["worst"] <= check["tolerance"] / (2 if jittered else 8), check


def test_machine_and_versions_are_in_the_output(whole_run):
    _, printed, data = whole_run
    assert data["environment"]["torch"] == torch.__version__
    assert data["settings"]["default_dtype"] == "torch.float32"
    assert (data["device"], data["seed"], data["quick"]) == ("cpu", 0, True)
    assert data.keys() == {"passed", "device", "seed", "quick", "seconds", "checks", "settings", "environment"}
    assert data["checks"][0].keys() == {
        "name", "status", "cases", "failed", "worst", "tolerance", "note", "seconds"
    }  # fmt: skip
    for name in ("torch:", "seed:", "processor:"):
        assert name in printed
    assert re.search(r"^quick: +True$", printed, re.MULTILINE)


def test_a_failure_is_named_and_gives_exit_code_1(monkeypatch, only, capsys):
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("no such reference\nat all")

    only("large pools, float32", "two runs are equal")
    monkeypatch.setattr(reference, "spectral", broken)
    assert run(SelfcheckOptions()) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAILED" in lines[1]
    assert "no such reference" in lines[1]
    assert lines[2].endswith("passed")
    assert any(line.startswith("1 of 2 checks FAILED") and "large pools, float32" in line for line in lines)


def test_json_replaces_the_table_and_quiet_prints_nothing(only, capsys):
    only("two runs are equal")
    assert main(["selfcheck", "--seed", "5", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["passed"], data["seed"]) == (True, 5)
    assert [check["name"] for check in data["checks"]] == ["two runs are equal"]
    assert main(["selfcheck", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("options", [{"seed": -1}, {"device": "abacus"}, {"device": "meta"}])
def test_bad_options_are_refused(options):
    ((_, value),) = options.items()
    with pytest.raises(ArgumentError, match=str(value)):
        SelfcheckOptions(**options)


def test_an_output_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "Battery", lambda *_: pytest.fail("it ran"))
    with pytest.raises(ArgumentError, match="out"):
        SelfcheckOptions(out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"found\.json"):
        run(SelfcheckOptions(out=tmp_path / "file" / "found.json"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe"):
        run(SelfcheckOptions(out=tmp_path / "pipe"))
