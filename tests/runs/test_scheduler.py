"""Units in real processes: what dies is replaced, what is done stays done, results do not depend on workers."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import BrokenExecutor
from functools import partial
from pathlib import Path

import pytest
import torch

from powerpool.console import current_settings, output_settings
from powerpool.errors import ArgumentError, PowerPoolError, RecordError
from powerpool.files import write_json
from powerpool.runs import scheduler
from powerpool.runs.scheduler import UnexpectedUnitError, UnitError, WorkUnit, run_units
from tests.runs.threads import Threads

PATIENCE = 240
RESULTS = [{"number": number, "square": number**2} for number in range(6)]


@pytest.fixture
def threads(monkeypatch):
    """Threads instead of processes, where only the loop is tested."""
    monkeypatch.setattr(scheduler, "_make_executor", Threads)


# ---- what units do ----


def log(folder: Path, text: str) -> None:
    with (folder / "log").open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def logged(folder: Path) -> Counter[str]:
    path = folder / "log"
    return Counter(path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else [])


def wait_until(condition) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.02)


def square(folder: Path, number: int) -> dict[str, int]:
    log(folder, f"start {number}")
    return {"number": number, "square": number**2}


def reveal(number: int) -> dict[str, object]:
    """All that could differ between workers: threads, unseeded numbers, hashes, signals."""
    features = torch.randn(40, 6_000, generator=torch.Generator().manual_seed(number))
    return {
        "unseeded": [random.random(), float(torch.rand(()))],
        "sum": float((features @ features.T).sum()),
        "set": list({f"graph {index}" for index in range(20)}),
        "threads": torch.get_num_threads(),
        "blocked": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    }


def die_once(folder: Path, number: int) -> dict[str, int]:
    again = logged(folder)[f"start {number}"] > 0
    result = square(folder, number)
    if not again:
        os.kill(os.getpid(), signal.SIGKILL)
    return result


def die_after_writing(folder: Path, number: int, path: Path) -> dict[str, int]:
    write_json(path, square(folder, number))
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def die_always(folder: Path, number: int) -> dict[str, int]:
    square(folder, number)
    os._exit(3)


def wait_for(folder: Path, number: int, path: Path) -> dict[str, int]:
    result = square(folder, number)
    wait_until(path.exists)
    return result


def spin_until(folder: Path, number: int, path: Path) -> dict[str, int]:
    log(folder, f"pid {os.getpid()}")
    result = square(folder, number)
    while not path.exists():
        sum(range(1000))
    return result


class StubbornError(Exception):
    """An error that pickle cannot rebuild."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def fail(folder: Path, number: int) -> dict[str, int]:
    square(folder, number)
    wait_until(lambda: logged(folder)["start 1"])
    write_json(folder / "failed", None)
    raise StubbornError("this", "that")


def refuse(number: int) -> dict[str, int]:
    raise ArgumentError(f"number must be even (got {number}).")


def print_noise() -> dict[str, object]:
    print("noise of another package")
    return {}


def units_of(folder: Path, *works: object) -> list[WorkUnit]:
    return [WorkUnit(folder / f"{number}.json", f"fold {number}", work) for number, work in enumerate(works)]


def six_units(folder: Path) -> list[WorkUnit]:
    """Two that end, and four that wait for the file "go"."""
    quick = [partial(square, folder, number) for number in (0, 1)]
    return units_of(folder, *quick, *(partial(spin_until, folder, number, folder / "go") for number in range(2, 6)))


def drive(name: str) -> int:
    """Run six units in a process of its own."""
    try:
        run_units(six_units(Path(name)), 2)
    except KeyboardInterrupt as stopped:
        sys.stderr.write(f"{stopped}\n")
        return 130
    return 0


@pytest.fixture
def driver(tmp_path):
    """A command that has done two of six units and works on two more."""
    code = "import sys; from tests.runs.test_scheduler import drive; sys.exit(drive(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_until(lambda: len(logged(tmp_path)) == 6 or process.poll() is not None)
        assert process.poll() is None, process.stderr.read()
        yield process
        (tmp_path / "go").touch()
        process.kill()


def results_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[0-9].json"))


def workers_in(folder: Path) -> list[int]:
    return [int(line.split()[1]) for line in logged(folder) if line.startswith("pid ")]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


# ---- results ----


def test_results_do_not_depend_on_the_number_of_workers(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # what a worker would inherit
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    works = [partial(reveal, number) for number in range(3)]
    one, two = (run_units(units_of(tmp_path / str(jobs), *works), jobs) for jobs in (1, 2))
    assert one == two
    assert len({result["sum"] for result in one}) == 3
    for result in one:
        assert result["threads"] == 1
        assert result["blocked"]  # Ctrl-C is for the command alone
        assert result["unseeded"] == one[0]["unseeded"]


def test_finished_units_do_not_run_again(tmp_path, threads):
    units = units_of(tmp_path, *(partial(square, tmp_path, number) for number in range(5)))
    run_units(units[1:3], 2)
    assert run_units(units, 2) == run_units(units, 2) == RESULTS[:5]
    assert logged(tmp_path) == {f"start {number}": 1 for number in range(5)}
    assert run_units([]) == []


@pytest.mark.parametrize("content", [b'{"number": 0, "squ', b"", b"[1, 2]", b"\xff\xfe", b'{"number": 0}'])
def test_a_broken_result_is_renamed_and_computed_again(tmp_path, threads, content):
    unit = WorkUnit(tmp_path / "0.json", "fold 0", partial(square, tmp_path, 0), keys=("square",))
    unit.path.write_bytes(content)
    assert run_units([unit], 1) == RESULTS[:1]
    assert (tmp_path / "0.json.broken").read_bytes() == content


def test_a_result_that_cannot_be_read_stays(tmp_path, threads):
    (tmp_path / "0.json").mkdir()
    with pytest.raises(RecordError, match=r"0\.json"):
        run_units(units_of(tmp_path, partial(square, tmp_path, 0)), 1)
    assert (tmp_path / "0.json").is_dir()


def test_workers_print_no_more_than_the_command(tmp_path, capfd):
    for quiet in (True, False):
        with output_settings(quiet=quiet):
            run_units([WorkUnit(tmp_path / f"{quiet}.json", "unit", print_noise)], jobs=1)
        assert ("noise" in capfd.readouterr().out) is not quiet


# ---- deaths and interrupts ----


def test_a_worker_that_dies_is_replaced_and_the_others_go_on(tmp_path, capfd):
    units = units_of(
        tmp_path,
        partial(die_once, tmp_path, 0),
        partial(wait_for, tmp_path, 1, tmp_path / "0.json"),  # runs from before the death until after it
        partial(die_after_writing, tmp_path, 2, tmp_path / "2.json"),
    )
    assert run_units(units, 2) == RESULTS[:3]
    assert logged(tmp_path) == {"start 0": 2, "start 1": 1, "start 2": 1}
    err = capfd.readouterr().err
    assert "SIGKILL" in err
    assert "attempt 2 of 3" in err


def test_a_unit_that_always_dies_fails_after_three_attempts(tmp_path):
    units = units_of(tmp_path, partial(die_always, tmp_path, 0), partial(square, tmp_path, 1))
    with pytest.raises(UnitError, match=r"fold 0.*3 times \(exit code 3\).*1 of 2"):
        run_units(units, 1)
    assert logged(tmp_path) == {"start 0": 3, "start 1": 1}
    assert results_in(tmp_path) == ["1.json"]


def test_a_worker_that_dies_while_idle_costs_no_attempt(tmp_path, monkeypatch):
    class Mortal(Threads):
        calls = 0

        def submit(self, *args, **kwargs):
            self.calls += 1
            if self.calls == 2:
                raise BrokenExecutor
            return super().submit(*args, **kwargs)

    monkeypatch.setattr(scheduler, "_make_executor", Mortal)
    monkeypatch.setattr(scheduler, "ATTEMPTS", 1)
    units = units_of(tmp_path, *(partial(square, tmp_path, number) for number in range(3)))
    assert run_units(units, 1) == RESULTS[:3]


def test_kill_9_of_the_command_ends_its_workers_and_loses_only_running_units(tmp_path, driver):
    driver.kill()
    driver.wait(PATIENCE)
    workers = workers_in(tmp_path)
    assert len(workers) == 2
    wait_until(lambda: all(map(is_gone, workers)))
    (tmp_path / "go").touch()
    assert results_in(tmp_path) == ["0.json", "1.json"]
    assert run_units(six_units(tmp_path), 1) == RESULTS
    starts = {text: count for text, count in logged(tmp_path).items() if text.startswith("start")}
    assert starts == {"start 0": 1, "start 1": 1, "start 2": 2, "start 3": 2, "start 4": 1, "start 5": 1}


def test_an_interrupt_stops_the_workers(tmp_path, driver):
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to the command and to its workers
    _, err = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130
    assert "2 of 6" in err
    assert "Traceback" not in err
    assert all(map(is_gone, workers_in(tmp_path)))
    assert results_in(tmp_path) == ["0.json", "1.json"]


# ---- errors ----


def test_after_an_error_running_units_finish_and_no_other_starts(tmp_path):
    units = units_of(
        tmp_path,
        partial(fail, tmp_path, 0),
        partial(wait_for, tmp_path, 1, tmp_path / "failed"),
        partial(square, tmp_path, 2),
    )
    with pytest.raises(UnexpectedUnitError, match=r"^fold 0: StubbornError: this and that\..*1 of 3") as caught:
        run_units(units, 2)
    assert not isinstance(caught.value, PowerPoolError)  # the command shows the traceback
    assert 'raise StubbornError("this", "that")' in str(caught.value)
    assert logged(tmp_path) == {"start 0": 1, "start 1": 1}
    assert results_in(tmp_path) == ["1.json"]


def test_expected_errors_keep_their_message(tmp_path, threads):
    units = units_of(tmp_path, partial(refuse, 1), partial(square, tmp_path, 1))
    with pytest.raises(UnitError, match=r"^fold 0: number must be even \(got 1\)\. 0 of 2 parts"):
        run_units(units, 1, description="parts")


def test_sys_exit_is_an_error_of_its_unit(tmp_path, threads):
    with pytest.raises(UnexpectedUnitError, match="SystemExit: enough"):
        run_units(units_of(tmp_path, partial(sys.exit, "enough")), 1)


def test_a_call_that_a_cluster_repeats_runs_once(tmp_path):
    for _ in range(2):
        payload = pickle.dumps(partial(square, tmp_path, 0))
        assert scheduler._execute(tmp_path / "0.json", payload, current_settings()) is None
    assert logged(tmp_path) == {"start 0": 1}


def test_a_result_that_json_cannot_hold_is_an_error(tmp_path, threads):
    with pytest.raises(UnitError, match="fold 0"):
        run_units(units_of(tmp_path, partial(dict, loss=float("nan"))), 1)
    assert not any(tmp_path.iterdir())


def test_what_cannot_run_or_be_written_is_refused_before_anything_runs(tmp_path, threads):
    work = partial(square, tmp_path, 0)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        run_units(units_of(tmp_path, work, lambda: {"number": 1}), 1)
    (tmp_path / "file").touch()
    with pytest.raises(RecordError):
        run_units(units_of(tmp_path, work) + units_of(tmp_path / "file" / "deep", work), 1)
    assert not logged(tmp_path)
