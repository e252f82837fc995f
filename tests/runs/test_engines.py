"""Units on clusters: the same results as in processes of this machine, and the same way with what dies."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from powerpool.cli.main import main
from powerpool.errors import ArgumentError, UnknownNameError
from powerpool.runs import engines
from powerpool.runs.engines import (
    WORKER_VARIABLES,
    Conditions,
    DeathError,
    EngineError,
    EngineOptions,
    run_in_process,
)
from powerpool.runs.record import RunRecord
from powerpool.runs.scheduler import UnitError, run_units
from tests.runs.test_scheduler import (
    PATIENCE,
    RESULTS,
    die_always,
    die_once,
    is_gone,
    logged,
    refuse,
    results_in,
    reveal,
    six_units,
    square,
    units_of,
    wait_until,
    workers_in,
)

ROOT = Path(__file__).parents[2]


# What units do.


def kills_its_worker_once(folder: Path, number: int) -> dict[str, int]:
    """The process of the cluster that started the one of the unit."""
    again = logged(folder)[f"start {number}"] > 0
    result = square(folder, number)
    if not again:
        os.kill(os.getppid(), signal.SIGKILL)
        wait_until(lambda: False)
    return result


def outlives(folder: Path, number: int, *others: int) -> dict[str, int]:
    """Runs from before the deaths of others until after them."""
    result = square(folder, number)
    wait_until(lambda: all(logged(folder)[f"start {other}"] == 2 for other in others))
    return result


def drive(name: str, address: str) -> int:
    """What a command in another process does."""
    folder = Path(name)
    try:
        run_units(six_units(folder), 2, engine=EngineOptions(engine="dask", cluster=address or None))
    except KeyboardInterrupt:
        return 130
    return 0


def conditions(folder: Path, /, **changes: object) -> Conditions:
    token = folder / engines.TOKEN
    token.touch()
    return replace(Conditions(dict(WORKER_VARIABLES), str(folder), str(token), {}), **changes)


def call(function, *args: object) -> bytes:
    return pickle.dumps(partial(function, *args))


@pytest.fixture
def address(scheduler, monkeypatch) -> str:
    """Of the scheduler. Whoever edits a file while this runs is not refused: that is another test."""
    monkeypatch.setattr(engines, "installed_versions", dict)
    return scheduler


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """A dask cluster that was there before the command."""
    distributed = pytest.importorskip("distributed", reason="the engine dask is not tested: pip install distributed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=None,
        memory_limit=0,
        silence_logs=logging.CRITICAL,
        scheduler_kwargs={"allowed_failures": 0},
    ) as cluster:
        yield cluster.scheduler_address


# The process of a unit.


def test_a_unit_has_the_variables_of_the_command_whatever_its_worker_has(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("PYTHONHASHSEED", "6640")  # that of dask
    one, two = (run_in_process(call(reveal, 0), conditions(tmp_path)) for _ in range(2))
    assert one["sum"] == two["sum"]
    assert one["set"] == two["set"]
    assert one["threads"] == 1
    code = "print(list({f'graph {index}' for index in range(20)}))"
    plain = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | WORKER_VARIABLES, capture_output=True, text=True, check=True
    )
    assert str(one["set"]) == plain.stdout.strip()


def variables(*names: str) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in names}


def test_a_unit_has_no_variables_of_its_worker_that_change_data_or_numbers(tmp_path, monkeypatch):
    names = ("POWERPOOL_DATA", "XDG_CACHE_HOME", "ATEN_CPU_CAPABILITY", "MKL_CBWR", "KMP_AFFINITY", "UNTOUCHED")
    for name in names:
        monkeypatch.setenv(name, "default")  # of the worker
    given = conditions(tmp_path, variables={**WORKER_VARIABLES, "XDG_CACHE_HOME": "cache", "POWERPOOL_DATA": "data"})
    assert list(run_in_process(call(variables, *names), given).values()) == [
        "data",
        "cache",
        None,
        None,
        None,
        "default",
    ]


def test_the_variables_of_the_command_are_those_of_its_units(tmp_path, monkeypatch):
    found = []

    @contextlib.contextmanager
    def engine(cluster, jobs, given):
        found.append(given)
        yield None

    monkeypatch.setattr(engines, "_open_dask", engine)
    for name in ("XDG_CACHE_HOME", "POWERPOOL_DATA", "MKL_CBWR", "OMP_NUM_THREADS", "EDITOR"):
        monkeypatch.setenv(name, "mine")
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: True)
    with engines.open_cluster(EngineOptions(engine="dask"), 1, tmp_path):
        pass
    (given,) = found
    assert {"XDG_CACHE_HOME": "mine", "POWERPOOL_DATA": "mine", "MKL_CBWR": "mine"}.items() <= given.variables.items()
    assert given.variables["OMP_NUM_THREADS"] == "1"
    assert "EDITOR" not in given.variables


def test_what_cannot_be_imported_is_told_and_is_no_death(tmp_path, monkeypatch):
    module = types.ModuleType("only_here")
    module.work = type("Work", (), {"__module__": "only_here", "__qualname__": "work"})
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(RuntimeError, match="only_here"):
        run_in_process(call(module.work), conditions(tmp_path))


def test_a_slot_keeps_no_call_that_was_answered():
    """It would run it again when a worker dies that holds the answer, which nobody wants any more."""

    class Sent:
        def add_done_callback(self, callback):
            self.answer = partial(callback, self)

        def result(self):
            assert slot.sent is None  # the next call may come as soon as this one is passed on
            return 7

    sent = Sent()
    slot = engines.Slot(lambda payload: (sent, sent), lambda _: pytest.fail("it was answered"), lambda error: error)
    ours = slot.submit(int)
    assert slot.sent is sent
    sent.answer()
    assert ours.result() == 7
    slot.shutdown()


@pytest.mark.parametrize("how, said", [(signal.SIGKILL, r"\{SIGKILL\(-9\)\}"), (None, r"\{EXIT\(3\)\}")])
def test_the_death_of_a_unit_is_told(tmp_path, how, said):
    work = call(os._exit, 3) if how is None else call(signal.raise_signal, how)
    with pytest.raises(DeathError, match=said):
        run_in_process(work, conditions(tmp_path))
    assert issubclass(DeathError, BrokenExecutor)


def test_a_unit_does_not_run_where_its_result_would_not_be_seen(tmp_path):
    ran = call(Path.touch, tmp_path / "ran")
    for changes in ({"token": str(tmp_path / "none")}, {"folder": str(tmp_path / "none")}):
        with pytest.raises(EngineError, match="does not see"):
            run_in_process(ran, conditions(tmp_path, **changes))
    assert not (tmp_path / "ran").exists()


def test_other_versions_are_refused(tmp_path):
    here = engines.installed_versions()
    assert run_in_process(call(int, 3), conditions(tmp_path, versions=here)) == 3
    for name in ("python", "torch", "powerpool", "commit"):
        with pytest.raises(EngineError, match=rf"^{name} is .* and 0\.0"):
            run_in_process(call(int, 3), conditions(tmp_path, versions=here | {name: "0.0"}))


# What can be asked for.


def test_what_an_engine_needs_is_said(monkeypatch):
    with pytest.raises(UnknownNameError, match="slurm"):
        EngineOptions(engine="slurm")
    with pytest.raises(ArgumentError, match="cluster needs engine dask or ray"):
        EngineOptions(cluster="tcp://127.0.0.1:1")
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    for name, package in (("dask", "distributed"), ("ray", "ray")):
        with pytest.raises(ArgumentError, match=rf"needs the package {package}.*pip install 'powerpool\[{name}\]'"):
            EngineOptions(engine=name)


# On dask.


def test_a_scheduler_that_does_not_answer_is_an_error(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="the engine dask is not tested: pip install distributed")
    monkeypatch.setattr(engines, "PATIENCE", 1)
    units = units_of(tmp_path, partial(square, tmp_path, 0))
    with pytest.raises(EngineError, match=r"No dask scheduler answers at tcp://127\.0\.0\.1:9.*dask scheduler"):
        run_units(units, 1, engine=EngineOptions(engine="dask", cluster="tcp://127.0.0.1:9"))
    assert not any(tmp_path.iterdir())


@pytest.mark.stress
def test_what_is_killed_on_a_cluster_costs_one_unit_which_runs_again(tmp_path, address):
    units = units_of(
        tmp_path,
        partial(outlives, tmp_path, 0, 1, 2),
        partial(die_once, tmp_path, 1),
        partial(kills_its_worker_once, tmp_path, 2),
    )
    assert run_units(units, 2, engine=EngineOptions(engine="dask", cluster=address)) == RESULTS[:3]
    assert logged(tmp_path) == {"start 0": 1, "start 1": 2, "start 2": 2}
    assert not list(tmp_path.glob(f"{engines.TOKEN}*"))


def test_errors_of_units_are_those_of_loky(tmp_path, address):
    works = (partial(square, tmp_path, 0), partial(refuse, 1))
    with pytest.raises(UnitError, match=r"^fold 1: number must be even \(got 1\)\. 1 of 2"):
        run_units(units_of(tmp_path, *works), 1, engine=EngineOptions(engine="dask", cluster=address))
    (tmp_path / "deaths").mkdir()
    with pytest.raises(UnitError, match=r"fold 0.*\(exit code 3\)"):
        run_units(
            units_of(tmp_path / "deaths", partial(die_always, tmp_path / "deaths", 0)),
            engine=EngineOptions(engine="dask", cluster=address),
        )


@pytest.fixture
def driver(tmp_path) -> Iterator[subprocess.Popen[str]]:
    """A command with a cluster of its own that has done two of six units and is at work on two more."""
    pytest.importorskip("distributed", reason="the engine dask is not tested: pip install distributed")
    code = "import sys; from tests.runs.test_engines import drive; sys.exit(drive(*sys.argv[1:]))"
    command = [sys.executable, "-c", code, str(tmp_path), ""]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            wait_until(lambda: len(workers_in(tmp_path)) == 2 or process.poll() is not None)
            assert process.poll() is None, process.stderr.read()
            yield process
        finally:
            (tmp_path / "go").touch()
            process.kill()


@pytest.mark.stress  # a cluster of its own
def test_kill_9_of_the_command_ends_its_cluster_and_loses_only_what_was_running(tmp_path, driver):
    driver.kill()
    driver.wait(PATIENCE)
    wait_until(lambda: all(map(is_gone, workers_in(tmp_path))))
    (tmp_path / "go").touch()
    assert results_in(tmp_path) == ["0.json", "1.json"]
    assert run_units(six_units(tmp_path), 1) == RESULTS


@pytest.mark.stress  # a cluster of its own
def test_an_interrupt_stops_the_cluster_of_the_command(tmp_path, driver):
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to the command and to its workers
    _, said = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130, said
    assert "Traceback" not in said
    wait_until(lambda: all(map(is_gone, workers_in(tmp_path))))
    assert results_in(tmp_path) == ["0.json", "1.json"]
    assert not list(tmp_path.glob(f"{engines.TOKEN}*"))


@pytest.mark.stress
def test_records_are_those_of_loky_bit_for_bit(tmp_path, address):
    found = {}
    for engine in (["--engine", "loky"], ["--engine", "dask", "--cluster", address]):
        words = ["--data", "MUTAG", "--methods", "GIN0", "--protocols", "validation-only", "--quick", "--jobs", "2"]
        out = tmp_path / engine[1]
        assert main(["reproduce", "graph", *words, *engine, "--download", "false", "--out", str(out)]) == 0
        record = RunRecord.read(out / "MUTAG" / "GIN0.json")
        timeless = [replace(result, seconds=0.0) for result in record.results]
        found[engine[1]] = timeless, record.config, record.seed
    assert found["dask"] == found["loky"]


# On ray.


def test_ray_runs_units_and_repeats_what_dies(tmp_path):
    pytest.importorskip("ray", reason="the engine ray is not tested: pip install ray")
    units = units_of(
        tmp_path,
        partial(outlives, tmp_path, 0, 1, 2),
        partial(die_once, tmp_path, 1),
        partial(kills_its_worker_once, tmp_path, 2),
    )
    assert run_units(units, 2, engine=EngineOptions(engine="ray")) == RESULTS[:3]
    assert logged(tmp_path) == {"start 0": 1, "start 1": 2, "start 2": 2}


# Processes of this machine.


def test_the_number_of_cores_is_that_of_joblib_where_it_is_installed(monkeypatch):
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    assert engines.usable_cores() == 1
    monkeypatch.setitem(sys.modules, "joblib", None)
    assert engines.usable_cores() == (os.cpu_count() or 1)


def test_a_child_does_not_look_for_modules_in_the_working_folder(tmp_path):
    (tmp_path / "random.py").write_text("raise RuntimeError('not this one')")
    command = engines.python_command("import random; print(random.__file__, *sys.argv[1:])", "a b")
    given = os.environ | engines.module_path()
    said = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, check=True).stdout
    assert said.endswith("random.py a b\n")
    assert str(tmp_path) not in said


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread looks out for the parent, every half second")
def test_a_child_ends_with_the_one_that_started_it(tmp_path):
    code = (
        "import subprocess, sys\n"
        "from powerpool.runs.engines import python_command\n"
        "child = subprocess.Popen(python_command('print(1, flush=True); sys.stdin.read()'), stdin=subprocess.PIPE,"
        " stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.send_signal(signal.SIGKILL)
        parent.wait(PATIENCE)
    wait_until(lambda: is_gone(child))
