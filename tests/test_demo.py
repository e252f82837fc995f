"""The demo as a user types it: one table of three tasks, one report, commands that run, and all of it again.

The backbone is tiny and workers are threads; both have tests of their own.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from powerpool.cli import demo, main
from powerpool.cli.demo import PARTS, DemoOptions, make_options
from powerpool.errors import ArgumentError
from powerpool.report import write
from powerpool.runs import scheduler
from powerpool.runs.record import RunRecord
from tests.runs.threads import Threads
from tests.tasks.vision.samples import use_tiny

DATA = {"graph": "MUTAG", "vision": "digits", "fewshot": "glyphs"}
METHODS = [(part.task, method) for part in PARTS for method in part.methods]
FOLDER = Path("runs/demo-quick")


@dataclass(frozen=True)
class Printed:
    """What a demo printed."""

    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The cells of the table."""
        lines = (line for line in self.out.splitlines() if line.startswith("│"))
        return [[part.strip() for part in line.strip("│").split("│")] for line in lines]


def run_demo(*words: str) -> Printed:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(["demo", "--quick", *words])
    assert code == 0, err.getvalue()
    return Printed(out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Iterator[Printed]:
    """The first demo, in a new folder."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        patch.chdir(folder)
        patch.setenv("POWERPOOL_CACHE", str(folder / "cache"))
        patch.delenv("POWERPOOL_DATA", raising=False)
        patch.setattr(scheduler, "_make_executor", Threads)
        found = run_demo("--offline")
        patch.setattr(write, "draw_plots", lambda group, folder, stem: {})
        yield found


def record(task: str, method: str) -> RunRecord:
    suffix = ".2-way-1-shot" if task == "fewshot" else ""
    return RunRecord.read(FOLDER / DATA[task] / f"{method}{suffix}.json")


def test_the_table_has_the_numbers_of_the_records(first):
    assert [tuple(row[:3]) for row in first.rows] == [(task, DATA[task], method) for task, method in METHODS]
    baselines = {part.task: record(part.task, part.methods[0]) for part in PARTS}
    for (task, method), row in zip(METHODS, first.rows, strict=True):
        found = record(task, method)
        assert found.environment.quick
        mean, low, high = map(float, re.fullmatch(r"([\d.]+) \(([\d.]+) to ([\d.]+)\)", row[3]).groups())
        assert mean == pytest.approx(found.mean, abs=0.051)
        assert low <= mean <= high
        if method == baselines[task].method:
            assert row[4] == "baseline"
        else:
            difference = float(row[4].split()[0])
            assert difference == pytest.approx(found.mean - baselines[task].mean, abs=0.051)


def test_it_ends_with_the_report_and_three_commands(first):
    lines = first.out.splitlines()
    assert f"Report: {FOLDER}/report.html" in lines
    assert (FOLDER / "report.html").exists()
    assert [shlex.split(line)[1] for line in lines[-3:]] == ["train", "inspect", "explore"]


def test_a_second_demo_trains_nothing_and_prints_json(first):
    units = {path: path.stat().st_mtime_ns for path in (FOLDER / demo.UNITS).rglob("*.json")}
    assert len(units) >= len(METHODS)
    found = json.loads(run_demo("--json").out)
    assert found["resumed"]
    assert {path: path.stat().st_mtime_ns for path in (FOLDER / demo.UNITS).rglob("*.json")} == units
    assert [(row["pipeline"], row["method"]) for row in found["records"]] == METHODS
    for row in found["records"]:
        assert row["mean"] == pytest.approx(record(row["pipeline"], row["method"]).mean)


def test_the_suggested_commands_run_in_order_and_again(first, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["powerpool", "demo"])
    commands = [shlex.split(command)[1:] for command in demo.next_commands(DemoOptions(quick=True))]
    for words in (*commands, commands[0]):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(words)
        assert code == 0, err.getvalue()
    assert (FOLDER / demo.MODEL / "explore.html").exists()


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.task)
@pytest.mark.parametrize("quick", [True, False])
def test_every_part_has_a_recipe_for_its_data(part, quick):
    options = make_options(part, DemoOptions(quick=quick, seed=3))
    assert options.is_quick is quick
    config = options.read_config(None)
    assert config.data == DATA[part.task]
    assert not config.download


def test_bad_options_are_refused():
    with pytest.raises(ArgumentError, match="jobs"):
        DemoOptions(jobs=0)
    with pytest.raises(ArgumentError, match="seed"):
        DemoOptions(seed=-1)


def test_a_missing_package_is_named_before_anything_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "PACKAGES", ("no_such_package",))
    assert main(["demo", "--quick"]) == 1
    assert "no_such_package" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_the_program_is_named_as_it_was_called(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/else/powerpool"])
    assert demo.program() == "/somewhere/else/powerpool"
    monkeypatch.setattr(sys, "argv", ["/x/__main__.py"])
    assert demo.program() == f"{shlex.quote(sys.executable)} -m powerpool"
