"""``powerpool bench`` on the command line: options, threads, records, resumed runs."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from powerpool.bench import command, operators, record
from powerpool.bench.command import BenchOptions
from powerpool.cli.main import main
from powerpool.errors import LockedError
from powerpool.files import locked
from tests.bench import samples

SMALL = ("--quick", "--threads", "1", "--repetitions", "3")


@pytest.fixture
def ready(monkeypatch):
    """As in a process that was started with one thread."""
    monkeypatch.setattr(command, "has_threads", lambda threads: True)
    monkeypatch.setattr("torch.get_num_threads", lambda: 1)


@pytest.fixture(scope="module")
def curves_run(tmp_path_factory):
    """One suite in a new process, which starts another one with the right environment."""
    out = tmp_path_factory.mktemp("bench")
    words = [Path(sys.executable).with_name("powerpool"), "bench", "curves", *SMALL, "--out", out]
    given = os.environ | {"OMP_NUM_THREADS": "7"}
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=given), out


def test_a_suite_prints_tables_and_writes_its_record(curves_run):
    result, out = curves_run
    assert result.returncode == 0, result.stderr
    made = record.load(out / "curves.json")
    assert made.complete
    assert made.environment.threads == 1
    assert made.environment.variables["OMP_WAIT_POLICY"] == "PASSIVE"
    assert made.environment.command.startswith("powerpool bench --suite=curves --quick=true")
    assert len(made.cases) == len(operators.CURVES)
    for case in made.cases:
        assert case.name in result.stdout
        assert not case.error
        for found in case.results:
            assert found.repetitions == 3
            assert found.value_error < 1e-4
            assert 0 < found.total.lower <= found.total.median <= found.total.upper
            assert found.peak_bytes >= 8 * 32 * 32 * 4
    assert "Traceback" not in result.stderr


def test_compare_finds_one_planted_regression(curves_run, tmp_path, capsys):
    path, planted = curves_run[1] / "curves.json", tmp_path / "planted.json"
    assert main(["bench", "compare", str(path), str(path)]) == 0
    data = json.loads(path.read_text())
    for phase in ("median", "lower", "upper"):
        data["cases"][3]["results"][1]["total"][phase] *= 1e6  # beyond the spread of any machine
    planted.write_text(json.dumps(data))
    assert main(["bench", "compare", str(path), str(planted)]) == 1
    assert main(["bench", "compare", str(path), str(planted), "--threshold", "1e9"]) == 0


@pytest.mark.parametrize(
    "arguments, mention",
    [
        (("bench", "pool"), list(command.SUITES)),
        (("bench", "--threads", "0"), ["threads", "0"]),
        (("bench", "--device", "abacus"), ["device", "abacus"]),
        (("bench", "compare", "no-such-file.json", "no-such-file.json"), ["no-such-file.json"]),
        (("bench", "compare", __file__, __file__), ["JSON"]),
    ],
)
def test_bad_input_is_an_error_with_code_2(arguments, mention, capsys):
    assert main(arguments) == 2
    errors = capsys.readouterr().err
    assert all(word in errors for word in mention)
    assert "Traceback" not in errors


def test_an_interrupted_run_keeps_its_cases_and_is_resumed(tmp_path, ready, monkeypatch):
    ran = []

    def interrupted(case, *rest):
        if len(ran) == 2:
            raise KeyboardInterrupt
        ran.append(case.name)
        return samples.case(case.name, case.sizes)

    monkeypatch.setattr(command, "run_case", interrupted)
    options = BenchOptions("curves", quick=True, threads=1, out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        command.run(options)
    kept = record.load(tmp_path / "curves.json")
    assert not kept.complete
    assert [case.name for case in kept.cases] == ran
    monkeypatch.setattr(command, "run_case", lambda case, *rest: ran.append(case.name) or samples.case(case.name, {}))
    assert command.run(BenchOptions("curves", quick=True, threads=1, out=tmp_path, resume=True)) == 0
    whole = record.load(tmp_path / "curves.json")
    assert whole.complete
    assert [case.name for case in whole.cases] == ran
    assert len(set(ran)) == len(ran) == len(operators.CURVES)


def test_a_different_run_is_not_resumed(tmp_path, ready):
    path = tmp_path / "curves.json"
    options = BenchOptions("curves", threads=1, resume=True)
    first = command._start("curves", options, path)
    first.cases.append(samples.case("done", {}))
    first.save(path)
    assert command._start("curves", options, path) == first
    with pytest.raises(ValueError, match=r"curves.json: not the same options"):
        command._start("curves", BenchOptions("curves", threads=1, resume=True, quick=True), path)
    first.environment = dataclasses.replace(first.environment, commit="another")
    first.save(path)
    with pytest.raises(ValueError, match=r"not the same commit"):
        command._start("curves", options, path)
    assert command._start("curves", BenchOptions("curves", threads=1), path).cases == []


def test_the_output_folder_is_made_and_locked_before_anything_is_measured(tmp_path, ready, monkeypatch):
    monkeypatch.setattr(command, "run_suite", lambda *_: pytest.fail("it was measured"))
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ValueError, match="file"):
            command.run(BenchOptions(out=out))
    with locked(tmp_path), pytest.raises(LockedError):
        command.run(BenchOptions(out=tmp_path))


def test_quick_records_do_not_replace_full_ones(tmp_path):
    assert BenchOptions().folder == Path("runs/bench")
    assert BenchOptions(quick=True).folder == Path("runs/bench-quick")
    assert BenchOptions(quick=True, out=tmp_path).folder == tmp_path


def child(tmp_path: Path, monkeypatch, code: str) -> None:
    """Let a script stand in for the Python that is started."""
    script, executable = tmp_path / "child.py", tmp_path / "python"
    script.write_text(f"import os, signal, sys, time\n{code}\n")
    executable.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "$@"\n')
    executable.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(executable))


def test_an_interrupt_reaches_the_child(monkeypatch, tmp_path):
    ready = tmp_path / "ready"
    answer = "signal.signal(signal.SIGINT, lambda *_: sys.exit(130))"
    child(tmp_path, monkeypatch, f"{answer}\nopen({str(ready)!r}, 'w')\ntime.sleep(60)\nsys.exit(9)")
    monkeypatch.setattr(sys, "stdin", None)  # no terminal, which would signal both
    original = subprocess.Popen.wait

    def wait(self, timeout=None):
        if not ready.exists():
            while not ready.exists():
                time.sleep(0.01)
            raise KeyboardInterrupt
        return original(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    assert command.relaunch([], threads=1) == 130
