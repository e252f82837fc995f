"""``powerpool bench`` as a user types it, and the pieces that it is made of."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerpool.bench import command, launch, record
from powerpool.bench.command import BenchOptions, suite_cases
from powerpool.bench.runner import Effort, run_case
from powerpool.bench.targets import TARGETS
from powerpool.cli.main import main
from powerpool.errors import LockedError
from powerpool.files import locked
from tests.bench import samples

POWERPOOL = Path(sys.executable).with_name("powerpool")
SMALL = ("--quick", "--threads", "1", "--repetitions", "3")


def powerpool(*arguments: str | Path, ready: bool = True) -> subprocess.CompletedProcess[str]:
    """In a process that has the right environment already, unless ``ready`` is false: torch then starts only once."""
    given = os.environ | (launch.variables(1) if ready else {"OMP_NUM_THREADS": "7"})
    return subprocess.run([POWERPOOL, *arguments], capture_output=True, text=True, timeout=120, check=False, env=given)


@pytest.fixture(scope="module")
def curves_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    return powerpool("bench", "curves", *SMALL, "--out", out, ready=False), out


def test_a_suite_prints_tables_and_writes_its_record(curves_run):
    result, out = curves_run
    assert result.returncode == 0, result.stderr
    made = record.load(out / "curves.json")
    assert made.complete
    assert made.environment["threads"] == 1
    assert made.environment["variables"]["OMP_WAIT_POLICY"] == "PASSIVE"
    assert made.environment["command"].startswith("powerpool bench --suite=curves --quick=true")
    assert {file.name for file in out.iterdir()} == {"curves.json", ".lock"}
    assert len(made.cases) == 7
    for case in made.cases:
        assert case.name in result.stdout
        assert not case.error
        for found in case.results:
            assert found.repetitions == 3
            assert found.value_error is not None
            assert found.value_error < 1e-4
            assert found.total.median > 0
            assert found.total.lower <= found.total.median <= found.total.upper
            assert found.peak_bytes >= 8 * 32 * 32 * 4
    assert "total ms (quartiles)" in result.stdout
    assert "Traceback" not in result.stderr


def test_compare_accepts_a_record_with_itself_and_catches_one_planted_regression(curves_run, tmp_path):
    _, out = curves_run
    path = out / "curves.json"
    assert main(["bench", "compare", str(path), str(path)]) == 0
    data = json.loads(path.read_text())
    for phase in ("median", "lower", "upper"):
        data["cases"][3]["results"][1]["total"][phase] *= 100
    planted = tmp_path / "planted.json"
    planted.write_text(json.dumps(data))
    slower = powerpool("bench", "compare", path, planted)  # the exit code that a shell sees
    assert slower.returncode == 1
    assert "1 of powerpool got slower" in slower.stdout
    assert main(["bench", "compare", str(path), str(planted), "--threshold", "1000"]) == 0


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("bench", "pool"), "pool"),
        (("bench", "--threads", "0"), "threads must be >= 1 (got 0)"),
        (("bench", "--repetitions", "-1"), "repetitions must be >= 1, or 0"),
        (("bench", "--device", "abacus"), "device must be 'cpu' or 'cuda'"),
        (("bench", "--suites", "pools"), "There is no option --suites. Did you mean --suite?"),
        (("bench", "compare"), "old"),
        (("bench", "compare", "no-such-file.json", "no-such-file.json"), "Cannot read no-such-file.json"),
        (("bench", "compare", __file__, __file__), "is not JSON"),
        (("bench", "compare", "a.json", "b.json", "--threshold", "0.5"), "threshold must be above 1 (got 0.5)"),
    ],
)
def test_bad_input_is_told_in_words_with_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_an_unknown_suite_lists_the_suites(capsys):
    assert main(["bench", "pool"]) == 2
    errors = capsys.readouterr().err
    assert all(suite in errors for suite in command.SUITES)


@pytest.mark.parametrize("suite", ["pools", "solvers"])
def test_the_first_case_of_every_quick_suite_runs(suite):
    case, *_ = suite_cases(suite, quick=True, device="cpu")
    measured = run_case(case, Effort(3, 0.1, 0))
    assert measured.error == ""
    assert {result.name for result in measured.results} == {contender.name for contender in case.contenders}
    made = samples.record(measured, suite=suite)
    command._conclude(made, complete=True)
    assert made.targets if suite == "pools" else made.selection


@pytest.mark.parametrize("suite", ["pools", "solvers", "curves"])
@pytest.mark.parametrize("quick", [True, False])
def test_suites_are_lists_of_different_cases_without_making_tensors(suite, quick):
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
    cases = [case.sizes for case in suite_cases("pools", quick=False, device="cpu")]
    for target in TARGETS:
        wanted = {"batch": target.batch, "channels": target.channels, "locations": target.locations, "eta": 50}
        assert wanted in cases
    assert {size["channels"] for size in cases if size["batch"] == 2 and size["locations"] == 49} >= {64, 512, 2048}
    assert len({size["eta"] for size in cases if (size["channels"], size["locations"]) == (512, 49)}) == 9


def test_an_interrupted_run_keeps_what_it_has_and_goes_on(tmp_path):
    # So many repetitions that every case takes as long as its budget: the signal comes before the last one.
    arguments = [POWERPOOL, "bench", "curves", *SMALL[:-1], "100000", "--out", tmp_path]
    path = tmp_path / "curves.json"
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    kept = record.load(path)
    assert not kept.complete
    assert 1 <= len(kept.cases) < 7
    result = powerpool(*arguments[1:], "--resume")
    assert result.returncode == 0, result.stderr
    whole = record.load(path)
    assert whole.complete
    assert len(whole.cases) == 7
    assert whole.cases[: len(kept.cases)] == kept.cases


def test_a_folder_that_cannot_be_made_is_refused_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "is_set", lambda threads: True)
    monkeypatch.setattr(command, "run_suite", lambda *_: pytest.fail("it was measured"))
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="Cannot make the folder"):
            command.run(BenchOptions(out=out))


def test_quick_records_do_not_take_the_place_of_full_ones(tmp_path, monkeypatch):
    assert BenchOptions().folder == Path("runs/bench")
    assert BenchOptions(quick=True).folder == Path("runs/bench-quick")
    assert BenchOptions(quick=True, out=tmp_path).folder == tmp_path
    assert not [word for word in command.as_arguments(BenchOptions()) if word.startswith("--out")]


def test_a_folder_is_for_one_command_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "is_set", lambda threads: True)
    monkeypatch.setattr(command, "run_suite", lambda *_: pytest.fail("it was measured"))
    with locked(tmp_path), pytest.raises(LockedError, match="is at work in"):
        command.run(BenchOptions(out=tmp_path))


def test_another_run_is_not_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)
    path = tmp_path / "curves.json"
    options = BenchOptions("curves", threads=1, resume=True)
    first = command._start("curves", options, path)
    first.cases.append(samples.case("done", {}))
    first.save(path)
    assert command._start("curves", options, path) == first
    with pytest.raises(ValueError, match=r"Cannot go on with .*curves.json: not the same options"):
        command._start("curves", BenchOptions("curves", threads=1, resume=True, quick=True), path)
    first.environment["commit"] = "another"
    first.save(path)
    with pytest.raises(ValueError, match=r"not the same commit"):
        command._start("curves", options, path)
    assert command._start("curves", BenchOptions("curves", threads=1), path).cases == []


def test_the_child_has_the_threads_and_its_exit_code_is_passed_on(monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert not launch.is_set(1)
    script = tmp_path / "child.py"
    script.write_text(
        "import os, sys\n"
        "assert os.environ['OMP_NUM_THREADS'] == '1' and os.environ['OMP_WAIT_POLICY'] == 'PASSIVE'\n"
        "sys.exit(int(sys.argv[-1]))\n"
    )
    executable = tmp_path / "python"
    executable.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))
    assert launch.relaunch(["41"], threads=1) == 41


def test_options_survive_being_typed():
    options = BenchOptions("pools", quick=True, out=Path("a b"), threads=3, repetitions=4, plots=False)
    assert command.as_arguments(options) == [
        "--suite=pools",
        "--quick=true",
        "--out=a b",
        "--threads=3",
        "--repetitions=4",
        "--device=cpu",
        "--plots=false",
        "--resume=false",
    ]
