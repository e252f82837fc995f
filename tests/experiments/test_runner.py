"""Units in real processes: what is killed is replaced, what is done stays done, results do not depend on workers."""

import ctypes
import io
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import BrokenExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import joblib
import numpy as np
import pytest
import torch
from rich.console import Console

from powerpool.console import governed, setting
from powerpool.errors import ArgumentError, LockedError, PowerPoolError, RecordError
from powerpool.files import write_json
from powerpool.runs import processes, progress
from powerpool.runs import scheduler as runner
from powerpool.runs.scheduler import UnexpectedUnitError, Unit, UnitError, run_units
from tests.experiments.threads import Threads

PATIENCE = 60  # seconds: no test is about time, and none waits for ever


# What the units do, in their own processes.


def note(folder: Path, text: str) -> None:
    with (folder / "log").open("a", encoding="utf-8") as log:
        log.write(f"{text}\n")


def noted(folder: Path) -> Counter[str]:
    path = folder / "log"
    return Counter(path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else [])


def until(condition, what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"in vain: {what}")
        time.sleep(0.02)


def square(folder: Path, number: int) -> dict[str, int]:
    note(folder, f"start {number}")
    return {"number": number, "square": number**2}


def noisy() -> dict[str, object]:
    print("printed by another package")
    warnings.warn("of another package", UserWarning, stacklevel=1)
    return {"done": True}


def revealing(number: int) -> dict[str, object]:
    """All that could differ between one worker and two: threads, the order of units, hashes."""
    drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]  # noqa: NPY002
    generator = torch.Generator().manual_seed(number)
    features = torch.randn(40, 60_000, generator=generator)
    names = [name for name in os.environ if name.endswith("_THREADS")]
    return {
        "unseeded": drawn,
        "sums": [float(features.sum()), float((features @ features.T).sum()), float(features.logsumexp(1).sum())],
        "set": list({f"graph {index}" for index in range(20)}),
        "threads": torch.get_num_threads(),
        "deaf": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "variables": {name: os.environ[name] for name in sorted([*names, "OMP_WAIT_POLICY"])},
    }


def dies_once(folder: Path, number: int) -> dict[str, int]:
    again = noted(folder)[f"start {number}"] > 0
    result = square(folder, number)
    if not again:
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def dies_with_its_result_written(folder: Path, number: int, path: Path) -> dict[str, int]:
    write_json(path, square(folder, number))
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def dies_always(folder: Path, number: int) -> dict[str, int]:
    square(folder, number)
    os._exit(3)


def waits_for(folder: Path, number: int, path: Path) -> dict[str, int]:
    result = square(folder, number)
    until(path.exists, f"{path} for unit {number}")
    return result


def spins_until(folder: Path, number: int, path: Path) -> dict[str, int]:
    """Busy: a worker that computes has no time to ask whether anybody still wants the result."""
    note(folder, f"pid {os.getpid()}")
    result = square(folder, number)
    while not path.exists():
        sum(range(1000))
    return result


class StubbornError(Exception):
    """An error that pickle cannot rebuild."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def raises(folder: Path, number: int) -> dict[str, int]:
    square(folder, number)
    until(lambda: noted(folder)["start 1"], "unit 1 beside the one that fails")
    write_json(folder / "raised", None)
    raise StubbornError("this", "that")


def refuses(number: int) -> dict[str, int]:
    raise ArgumentError(f"number must be even (got {number}).")


def leaves(number: int) -> dict[str, int]:
    sys.exit("enough")


def keeps_memory(store: list[bytes] = []) -> dict[str, int]:  # noqa: B006
    store.append(b"")
    if len(store) == 2:
        store.append(b"x" * 400_000_000)
        time.sleep(1.1)  # loky looks once a second
    return {"pid": os.getpid()}


def units_of(folder: Path, *works: object) -> list[Unit]:
    """Unit ``number`` of ``works`` has the title "fold NUMBER" and the file NUMBER.json."""
    return [Unit(folder / f"{number}.json", f"fold {number}", work) for number, work in enumerate(works)]


def six_units(folder: Path) -> list[Unit]:
    """Two that end, and four that wait for the file "go"."""
    quick = [partial(square, folder, number) for number in (0, 1)]
    return units_of(folder, *quick, *(partial(spins_until, folder, number, folder / "go") for number in range(2, 6)))


SIX_RESULTS = [{"number": number, "square": number**2} for number in range(6)]


def drive(name: str) -> int:
    """What the command in another process does."""
    folder = Path(name)
    try:
        run_units(six_units(folder), 2, folder=folder)
    except KeyboardInterrupt as stopped:
        sys.stderr.write(f"{stopped}\n")
        return 130
    return 0


@pytest.fixture
def driver(tmp_path):
    """A command that has done two of six units and is at work on two more, in a session of its own."""
    code = "import sys; from tests.experiments.test_runner import drive; sys.exit(drive(sys.argv[1]))"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        until(lambda: len(noted(tmp_path)) == 6 or process.poll() is not None, "four units started")
        assert process.poll() is None, process.stderr.read()
        yield process
        (tmp_path / "go").touch()
        process.kill()


def results_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[0-9].json"))


def workers_in(folder: Path) -> list[int]:
    return [int(line.split()[1]) for line in noted(folder) if line.startswith("pid ")]


def is_gone(pid: int) -> bool:
    """A zombie is gone, too: it neither computes nor writes."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


# Threads in the place of processes, where only the loop is looked at.


def recorder(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=200)


# Results.


def test_results_do_not_depend_on_the_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # what a worker would inherit
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    works = [partial(revealing, number) for number in range(4)]
    files, returned = [], []
    for jobs in (1, 2):
        units = units_of(tmp_path / str(jobs), *works)
        returned.append(run_units(units, jobs, console=recorder()))
        files.append([unit.path.read_bytes() for unit in units])
    assert files[0] == files[1]
    assert returned[0] == returned[1] == [json.loads(content) for content in files[0]]
    assert len({tuple(result["sums"]) for result in returned[0]}) == 4
    for result in returned[0]:
        assert result["threads"] == 1
        assert result["deaf"]  # Ctrl-C is for the command alone, also while a worker still imports
        assert result["unseeded"] == returned[0][0]["unseeded"]
        assert set(result["variables"].values()) == {"1", "PASSIVE"}
        assert set(result["variables"]) >= {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"}


def test_units_that_are_done_are_not_run_again(tmp_path, threads):
    units = units_of(tmp_path, *(partial(square, tmp_path, number) for number in range(5)))
    first = run_units(units[1:3], 2, console=recorder())
    console = recorder()
    assert run_units(units, 2, console=console)[1:3] == first
    assert "folds: resumed 2 of 5\n" in console.file.getvalue()
    again = recorder()
    assert run_units(units, 2, console=again) == SIX_RESULTS[:5]
    assert again.file.getvalue() == "folds: resumed 5 of 5\n"
    assert noted(tmp_path) == {f"start {number}": 1 for number in range(5)}


@pytest.mark.parametrize("content", ['{"number": 0, "squ', "", "[1, 2]", "\x00\x00\x00", b"\xff\xfe"], ids=repr)
def test_a_file_that_is_no_result_is_moved_aside_and_said_so(tmp_path, threads, content):
    units = units_of(tmp_path, partial(square, tmp_path, 0), partial(square, tmp_path, 1))
    content = content if isinstance(content, bytes) else content.encode()
    units[0].path.write_bytes(content)
    console = recorder()
    assert run_units(units, 1, console=console, description="parts") == SIX_RESULTS[:2]
    said = console.file.getvalue()
    assert f"{units[0].path} is not" in said
    assert "Moved to 0.json.broken; fold 0 runs again." in said
    assert "resumed" not in said
    assert (tmp_path / "0.json.broken").read_bytes() == content


def test_a_file_that_cannot_be_read_stays_where_it_is(tmp_path, threads):
    units = units_of(tmp_path, partial(square, tmp_path, 0))
    units[0].path.mkdir()
    with pytest.raises(RecordError, match=r"Cannot read .*0\.json"):
        run_units(units, 1, console=recorder())
    assert units[0].path.is_dir()


# Deaths.


def test_a_worker_that_dies_is_replaced_and_the_others_do_not_notice(tmp_path):
    units = units_of(
        tmp_path,
        partial(dies_once, tmp_path, 0),
        partial(waits_for, tmp_path, 1, tmp_path / "0.json"),  # runs from before the death until after it
        partial(square, tmp_path, 2),
        partial(dies_with_its_result_written, tmp_path, 3, tmp_path / "3.json"),
    )
    console = recorder()
    assert run_units(units, 2, console=console) == SIX_RESULTS[:4]
    assert noted(tmp_path) == {"start 0": 2, "start 1": 1, "start 2": 1, "start 3": 1}
    said = console.file.getvalue()
    assert "fold 0: its process died (SIGKILL); attempt 2 of 3 follows." in said
    assert said.count("died") == 1


def test_a_unit_that_always_dies_is_named_after_the_last_attempt(tmp_path):
    units = units_of(tmp_path, partial(dies_always, tmp_path, 0), partial(square, tmp_path, 1))
    with pytest.raises(UnitError, match="fold 0: its process died 2 times") as caught:
        run_units(units, 1, attempts=2, console=recorder())
    assert noted(tmp_path) == {"start 0": 2, "start 1": 1}
    assert isinstance(caught.value, PowerPoolError)
    for said in ("(exit code 3)", "memory ran out", "fewer jobs", "1 of 2 folds are done and kept"):
        assert said in str(caught.value)
    assert results_in(tmp_path) == ["1.json"]


def test_a_worker_that_died_without_a_unit_costs_no_attempt(tmp_path, monkeypatch):
    class Mortal(Threads):
        given = 0

        def submit(self, *args, **kwargs):
            self.given += 1
            if self.given == 2:
                raise BrokenExecutor
            return super().submit(*args, **kwargs)

    monkeypatch.setattr(runner, "_make_executor", Mortal)
    units = units_of(tmp_path, *(partial(square, tmp_path, number) for number in range(3)))
    assert run_units(units, 1, attempts=1, console=recorder()) == SIX_RESULTS[:3]


def test_a_worker_that_keeps_memory_is_replaced_without_a_warning(tmp_path):
    units = units_of(tmp_path, *[keeps_memory] * 3)
    first, second, third = (result["pid"] for result in run_units(units, 1, console=recorder()))
    assert first == second
    pytest.importorskip("psutil")  # loky asks it
    assert third != second


def test_kill_9_of_the_command_ends_its_workers_and_loses_only_what_was_running(tmp_path, driver):
    with pytest.raises(LockedError, match=rf"Another process \(process {driver.pid} on .*\) is at work in"):
        run_units(six_units(tmp_path), 2, folder=tmp_path, console=recorder())
    driver.kill()
    driver.wait(PATIENCE)
    workers = workers_in(tmp_path)
    assert len(workers) == 2
    until(lambda: all(map(is_gone, workers)), "workers end with the command")
    (tmp_path / "go").touch()
    assert results_in(tmp_path) == ["0.json", "1.json"]
    console = recorder()
    assert run_units(six_units(tmp_path), 1, folder=tmp_path, console=console) == SIX_RESULTS
    assert "resumed 2 of 6" in console.file.getvalue()
    starts = {text: count for text, count in noted(tmp_path).items() if text.startswith("start")}
    assert starts == {"start 0": 1, "start 1": 1, "start 2": 2, "start 3": 2, "start 4": 1, "start 5": 1}


def test_an_interrupt_stops_the_workers_and_says_how_to_go_on(tmp_path, driver):
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to the command and to its workers
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130
    assert "2 of 6 folds are done and kept. The same command goes on with the rest.\n" in said
    assert "Traceback" not in said
    assert all(map(is_gone, workers_in(tmp_path)))
    assert results_in(tmp_path) == ["0.json", "1.json"]


class EndedError(Exception):
    """In the place of the end of the process."""


def end(code: int) -> None:
    raise EndedError


def test_a_worker_whose_parent_ended_before_it_was_watched_ends(monkeypatch):
    asked = []
    system = SimpleNamespace(prctl=lambda *arguments: asked.append(arguments[:2]))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: system)
    monkeypatch.setattr(os, "_exit", end)
    processes.die_with(os.getppid())
    with pytest.raises(EndedError):
        processes.die_with(os.getppid() + 1)
    assert asked == [(1, signal.SIGKILL)] * 2


def test_where_the_system_does_not_end_orphans_a_thread_does(monkeypatch):
    parents = iter([7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(EndedError):
        processes._watch(7, interval=0)
    assert next(parents, None) is None


# Errors.


def test_after_an_error_running_units_end_and_no_other_starts(tmp_path):
    units = units_of(
        tmp_path,
        partial(raises, tmp_path, 0),
        partial(waits_for, tmp_path, 1, tmp_path / "raised"),
        partial(square, tmp_path, 2),
        partial(square, tmp_path, 3),
    )
    with pytest.raises(UnexpectedUnitError, match=r"^fold 0 failed: StubbornError: this and that\. ") as caught:
        run_units(units, 2, console=recorder())
    assert not isinstance(caught.value, PowerPoolError)  # or the command would hide the traceback
    trace, first = tmp_path / "0.json.trace", str(caught.value).splitlines()[0]
    assert f"Its trace is in {trace}. 1 of 4 folds are done and kept." in first
    assert str(caught.value).endswith(trace.read_text())
    assert 'raise StubbornError("this", "that")' in str(caught.value)
    assert str(caught.value).endswith("StubbornError: this and that\n")
    assert results_in(tmp_path) == ["1.json"]
    assert noted(tmp_path) == {"start 0": 1, "start 1": 1}


def test_an_error_raised_on_purpose_keeps_its_words(tmp_path, threads):
    units = units_of(tmp_path, partial(refuses, 1), partial(square, tmp_path, 1))
    with pytest.raises(UnitError, match=r"^fold 0: number must be even \(got 1\)\. 0 of 2 parts are done and kept\."):
        run_units(units, 1, console=recorder(), description="parts")


def test_sys_exit_in_a_unit_is_an_error_of_that_unit(tmp_path, threads):
    with pytest.raises(UnexpectedUnitError, match=r"^fold 0 failed: SystemExit: enough\. "):
        run_units(units_of(tmp_path, partial(leaves, 0)), 1, console=recorder())


def test_a_long_error_leaves_room_for_the_file_with_its_trace(tmp_path, threads):
    units = units_of(tmp_path, partial(fails_until, tmp_path / "mended"))
    with pytest.raises(UnexpectedUnitError) as caught:
        run_units(units, 1, console=recorder())
    first, _, rest = str(caught.value).partition("\n")
    assert re.search(r"^fold 0 failed: ValueError: word( word)* \.\.\. Its trace is in ", first)
    assert len(first.partition(" Its trace")[0]) < 200
    assert "ValueError: word" in rest
    (tmp_path / "mended").touch()
    run_units(units, 1, console=recorder())
    assert results_in(tmp_path) == ["0.json"]
    assert not (tmp_path / "0.json.trace").exists()


def fails_until(path: Path) -> dict[str, int]:
    if not path.exists():
        raise ValueError("word " * 1000 + "\n" + "more")
    return {}


def test_an_error_is_told_where_its_trace_cannot_be_written(tmp_path, threads, monkeypatch):
    units = units_of(tmp_path, partial(leaves, 0))

    def refuse(path, text):
        raise RecordError("the disk is full")

    monkeypatch.setattr(runner, "write_text", refuse)
    with pytest.raises(UnexpectedUnitError, match="enough") as caught:
        run_units(units, 1, console=recorder())
    assert ".trace" not in str(caught.value).splitlines()[0]


def test_a_call_that_a_cluster_makes_twice_runs_once(tmp_path):
    path = tmp_path / "0.json"
    for _ in range(2):
        assert runner._execute(path, pickle.dumps(partial(square, tmp_path, 0)), setting()) is None
    assert noted(tmp_path) == {"start 0": 1}


def test_every_unit_that_failed_is_named(tmp_path, threads):
    works = [partial(refuses_together, tmp_path, number) for number in (0, 1)]
    with pytest.raises(UnitError, match=r"fold [01]: refused\. 0 of 2 .* Also failed: fold [01]\.$"):
        run_units(units_of(tmp_path, *works), 2, console=recorder())


def refuses_together(folder: Path, number: int) -> dict[str, int]:
    note(folder, f"start {number}")
    until(lambda: len(noted(folder)) == 2, "the other one")
    raise ArgumentError("refused")


@pytest.mark.parametrize(
    "result, message",
    [([1], r"must return a dict.*0\.json.*\(got list\)"), ({"loss": float("nan")}, r"Cannot write .*0\.json as JSON")],
)
def test_a_result_that_the_file_cannot_hold_is_an_error(tmp_path, threads, result, message):
    with pytest.raises(UnitError, match=f"fold 0: .*{message}"):
        run_units(units_of(tmp_path, partial(dict, result) if isinstance(result, dict) else result.copy), 1)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("jobs", [0, -2])
def test_jobs_are_at_least_one(tmp_path, jobs):
    with pytest.raises(ArgumentError, match=rf"jobs must be >= 1 \(got {jobs}\)"):
        run_units([], jobs)


def test_bad_arguments_are_refused_before_anything_runs(tmp_path, threads):
    work = partial(square, tmp_path, 0)
    with pytest.raises(ArgumentError, match=r"attempts must be >= 1 \(got 0\)"):
        run_units([], 1, attempts=0)
    with pytest.raises(ArgumentError, match=r"2 units write to .*same\.json"):
        run_units([Unit(tmp_path / "same.json", title, work) for title in ("one", "two")], 1)
    with pytest.raises(ArgumentError, match=r"work of fold 1 cannot be sent to a process: .*lambda"):
        run_units(units_of(tmp_path, work, lambda: {"number": 1}), 1)
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="Cannot make the folder"):
        run_units(units_of(tmp_path, work) + units_of(tmp_path / "file" / "deep", work), 1)
    assert not noted(tmp_path)


def test_no_jobs_means_the_cores_that_may_be_used(tmp_path, threads, monkeypatch):
    monkeypatch.delenv("LOKY_MAX_CPU_COUNT", raising=False)
    assert processes.usable_cores() == joblib.cpu_count()
    assert run_units(units_of(tmp_path, partial(square, tmp_path, 0)), None, console=recorder()) == SIX_RESULTS[:1]
    assert run_units([], console=recorder()) == []


# Progress.


def test_a_log_gets_few_lines(tmp_path, threads):
    units = units_of(tmp_path, *(partial(square, tmp_path, number) for number in range(40)))
    console = recorder()
    run_units(units, 1, console=console)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4
    assert re.fullmatch(r"folds: 10 of 40 done, 0:00:\d\d elapsed, about 0:00:\d\d left, last: fold 9", lines[0])
    assert lines[-1].startswith("folds: 40 of 40 done")


def test_a_terminal_gets_a_bar_with_titles_as_they_are(tmp_path, threads):
    console = recorder(terminal=True)
    units = [
        Unit(tmp_path / f"{number}.json", f"[bold] {number}", partial(square, tmp_path, number)) for number in (0, 1)
    ]
    run_units(units[:1], 1, console=console)
    run_units(units, 1, console=console)
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    assert "folds: resumed 1 of 2" in said
    assert re.search(r"folds ━+ 2/2 0:00:\d\d about 0:00:00 left, last: \[bold\] 1", said)


def test_progress_goes_to_stderr(tmp_path, threads, capfd):
    run_units(units_of(tmp_path, partial(square, tmp_path, 0)), 1)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("folds: 1 of 1 done")


def test_workers_say_no_more_than_the_command(tmp_path, capfd):
    for quiet, as_json in ((True, False), (False, True), (True, True), (False, False)):
        with governed(quiet=quiet, as_json=as_json):
            run_units([Unit(tmp_path / f"{quiet}-{as_json}.json", "unit", noisy)], jobs=1)
        out, err = capfd.readouterr()
        assert ("printed by another package" in out) is not (quiet or as_json)
        assert ("printed by another package" in err) is (as_json and not quiet)
        assert ("of another package" in err) is not quiet


def test_the_estimate_counts_units_that_ended_and_shares_the_rest_among_the_workers():
    assert progress.remaining_seconds([], [5.0], 3, 2) is None
    assert progress.remaining_seconds([10.0, 20.0], [], 4, 2) == 30.0
    assert progress.remaining_seconds([10.0], [4.0, 99.0], 2, 2) == 13.0  # a late one ends at any moment
    assert progress.remaining_seconds([10.0], [4.0], 0, 8) == 6.0
    assert progress.remaining_seconds([10.0], [], 0, 2) == 0.0
