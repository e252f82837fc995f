"""Units of work in worker processes, each with one thread; what is done is on the disk, and is never done again.

The worker writes the result of a unit as soon as there is one, whole or not at all. Whatever is killed - a worker, the
command, the machine - costs the units that were running, and the same command goes on with what is left.

A unit always runs in a worker, with one thread, a fixed hash seed and fixed seeds of the global generators: its result
depends neither on the number of workers, nor on the units that the same worker ran before.

Every worker is an executor of its own, as :mod:`concurrent.futures` defines them. A pool of several workers breaks as a
whole when one of them dies, and does not tell which of its tasks was to blame; here a death concerns one unit, and the
others do not notice. The loop needs ``submit`` and ``BrokenExecutor`` only, so that the executors of a cluster take
the place of the local ones: see :mod:`powerpool.runs.engines`. POSIX systems only.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import re
import signal
import textwrap
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from powerpool.console import governed, setting
from powerpool.errors import ArgumentError, PowerPoolError, RecordError
from powerpool.files import locked, make_folder, read_json, write_json, write_text
from powerpool.runs.engines import Engine, Slots, opened
from powerpool.runs.processes import die_with, usable_cores
from powerpool.runs.progress import Display

if TYPE_CHECKING:
    from rich.console import Console

# Set before the interpreter of a worker starts: torch.set_num_threads is too late for what was imported before it, and
# batched LU fails after it in torch 2.13.
WORKER_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",  # a waiting thread that spins takes the core from one that works
    "PYTHONHASHSEED": "0",  # else the order of a set of strings is another one in every worker
}

LONGEST_CAUSE = 160
"""Characters of an error that nobody expected: the command prints one line, which says more than that."""


class UnitError(PowerPoolError, RuntimeError):
    """A unit raised an error on purpose, or its process died too often; the message names the unit."""

    exit_code = 1


class UnexpectedUnitError(RuntimeError):
    """A unit raised an error that nobody expected: a bug.

    The first line of the message says which error, and the file with the traceback from its process, with which the
    message ends.
    """


@dataclass(frozen=True)
class Unit:
    """One piece of work, and the file that its result goes to."""

    path: Path
    """Where the result is written. No two units share one: a unit is done when its file is there."""
    title: str
    """What progress and errors call it."""
    work: Callable[[], dict[str, Any]]
    """Can be pickled - a module-level function, or a :func:`functools.partial` of one - and returns what JSON can hold.

    It is pickled before the first unit starts, so it carries the names of things to load, not the things.
    """
    keys: tuple[str, ...] = ()
    """What the result has at least: a file without them is none."""


def run_units(
    units: Sequence[Unit],
    jobs: int | None = None,
    *,
    folder: str | Path | None = None,
    console: Console | None = None,
    description: str = "folds",
    attempts: int = 3,
    engine: Engine | None = None,
) -> list[dict[str, Any]]:
    """Run the units whose file is not there yet, and return the results of all of them, in their order.

    Results are always read from the files: a run that was resumed returns what an uninterrupted one returns.

    - A file that is no JSON object is moved aside (``NAME.broken``), and its unit runs again.
    - A worker that dies is replaced, and its unit goes to the end of the queue: if memory was short, others may have
      ended by then. After ``attempts`` deaths of one unit it has failed.
    - When a unit fails no other starts; those that run come to their end and are kept, then the error is raised.
    - An interrupt stops the workers at once. Workers also end when this process ends, however it ends. Those of a
      dask cluster that was there before come to the end of their units first.

    Args:
        units: what to run.
        jobs: how many workers run at a time; ``None`` for as many as there are usable cores, or as the cluster has.
        folder: is locked meanwhile, so that a second process with the same folder is refused.
        console: where progress is shown; stderr unless given. A few plain lines where it is no terminal.
        description: what the units are, in the plural.
        attempts: how many deaths of its process make a unit fail.
        engine: what the workers are; processes of this machine unless given.
    """
    if jobs is not None and jobs < 1:
        raise ArgumentError(f"jobs must be >= 1 (got {jobs}), or None for the number of usable cores.")
    if attempts < 1:
        raise ArgumentError(f"attempts must be >= 1 (got {attempts}).")
    for path, count in Counter(unit.path for unit in units).items():
        if count > 1:
            raise ArgumentError(f"{count} units write to {path}. Give each unit a file of its own.")
    with contextlib.nullcontext() if folder is None else locked(folder):
        progress = Display(console, description, len(units), jobs or 1)
        waiting = deque(_Task(unit, _pickled(unit)) for unit in units if not _is_done(unit, progress.say))
        for parent in {task.unit.path.parent for task in waiting}:
            make_folder(parent)  # before anything is computed that could not be written
        for task in waiting:
            _trace_file(task.unit.path).unlink(missing_ok=True)  # of an error of another run
        progress.resumed(len(units) - len(waiting))
        if waiting:
            with progress, _quiet_replacement():
                try:
                    with _slots(engine, jobs, waiting[0].unit.path.parent) as slots:
                        progress.jobs = slots.jobs
                        failures = _run(waiting, slots, attempts, progress)
                except KeyboardInterrupt as stopped:
                    raise KeyboardInterrupt(_kept(units, description)) from stopped
            if failures:
                raise _error(failures, _kept(units, description))
    return [read_json(unit.path) for unit in units]


@dataclass
class _Task:
    """A unit that has to run, and what became of it so far."""

    unit: Unit
    payload: bytes
    deaths: int = 0
    began: float = 0.0


@dataclass(frozen=True)
class _Failure:
    """An error, as it is told to another process: as text, because not every error survives pickling."""

    message: str
    expected: bool
    trace: str = ""


def _pickled(unit: Unit) -> bytes:
    try:
        return pickle.dumps(unit.work)
    except Exception as error:  # PicklingError, AttributeError, TypeError: pickle is not of one mind
        raise ArgumentError(
            f"The work of {unit.title} cannot be sent to a process: {error}. "
            "Use a module-level function, or functools.partial of one."
        ) from error


def _is_done(unit: Unit, say: Callable[[str], None]) -> bool:
    """Whether the result is there; a file that is none is moved aside, not deleted: it may be someone's."""
    if not unit.path.exists():
        return False
    try:
        found = read_json(unit.path)
        if isinstance(found, dict) and all(key in found for key in unit.keys):
            return True
        reason = (
            f"{unit.path} is not the result of a unit: it holds no JSON object with {', '.join(unit.keys) or 'keys'}."
        )
    except RecordError as error:
        if isinstance(error.__cause__, OSError):  # it may be whole, and cannot be read: that is not ours to mend
            raise
        reason = str(error)
    aside = unit.path.with_name(f"{unit.path.name}.broken")
    unit.path.replace(aside)
    say(f"{reason} Moved to {aside.name}; {unit.title} runs again.")
    return False


def _slots(engine: Engine | None, jobs: int | None, folder: Path) -> contextlib.AbstractContextManager[Slots]:
    """The engine at work."""
    if engine is None or engine.name == "loky":
        return contextlib.nullcontext(Slots(usable_cores() if jobs is None else jobs, _make_executor))
    return opened(engine, jobs, WORKER_VARIABLES, folder)


def _run(waiting: deque[_Task], slots: Slots, attempts: int, progress: Display) -> list[tuple[Unit, _Failure]]:
    """Run all tasks; stop submitting after the first failure."""
    failures: list[tuple[Unit, _Failure]] = []
    idle: list[Executor] = []
    running: dict[Future[_Failure | None], tuple[_Task, Executor]] = {}
    made: list[Executor] = []  # all that were not stopped yet, also if an interrupt comes between two lines
    try:
        while running or (waiting and not failures):
            while waiting and not failures and len(running) < slots.jobs:
                task = waiting.popleft()
                executor, future = _submit(task, idle.pop() if idle else None, made, slots.make)
                running[future] = task, executor
            # Wakes up each second for the display, and for an interrupt that another thread has received.
            ended, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in ended:
                task, executor = running.pop(future)
                try:
                    failure = future.result()
                except BrokenExecutor as error:
                    _stop(executor)
                    made.remove(executor)
                    task.deaths += 1
                    if _is_done(task.unit, progress.say):  # it died with the result already written
                        failure = None
                    elif task.deaths < attempts:
                        progress.say(
                            f"{task.unit.title}: its process died{_how(error)}; "
                            f"attempt {task.deaths + 1} of {attempts} follows."
                        )
                        waiting.append(task)
                        continue
                    else:
                        failure = _death(task, error)
                else:
                    idle.append(executor)
                if failure is None:
                    progress.finished(task.unit.title, time.monotonic() - task.began)
                else:
                    failures.append((task.unit, failure))
            now = time.monotonic()
            progress.update([now - task.began for task, _ in running.values()], len(waiting))
    finally:
        for executor in made:
            _stop(executor)
    return failures


def _submit(
    task: _Task, executor: Executor | None, made: list[Executor], make: Callable[[], Executor]
) -> tuple[Executor, Future[_Failure | None]]:
    task.began = time.monotonic()
    call = partial(_execute, task.unit.path.absolute(), task.payload, setting())
    if executor is not None:
        try:
            with _interrupts_blocked():
                return executor, executor.submit(call)
        except BrokenExecutor:  # its worker died while it had nothing to do
            _stop(executor)
            made.remove(executor)
    executor = make()
    made.append(executor)
    with _interrupts_blocked():
        return executor, executor.submit(call)


def _make_executor() -> Executor:
    """An executor of one worker, which starts with the first task."""
    from joblib.externals.loky import ProcessPoolExecutor

    resource_tracker.ensure_running()  # it would unblock interrupts if it started together with the first worker
    executor: Executor = ProcessPoolExecutor(1, env=WORKER_VARIABLES, initializer=die_with, initargs=(os.getpid(),))
    return executor


def _stop(executor: Executor) -> None:
    """End the worker at once, whatever it does."""
    executor.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg]  # an option of loky and our own


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes that are started meanwhile never see Ctrl-C, which a terminal sends to all: this one stops them."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


@contextlib.contextmanager
def _quiet_replacement() -> Iterator[None]:
    """loky replaces a worker that has kept 300 MB more than at first. That is welcome, and no reason for a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs", category=UserWarning)
        yield


# In the worker.


def _execute(path: Path, payload: bytes, said: dict[str, bool]) -> _Failure | None:
    """Run one unit, saying no more than the command may, and write its result; nothing but an error goes back."""
    if path.exists():  # a cluster may run a call twice; what was broken was moved aside before
        return None
    try:
        with governed(**said):
            work = pickle.loads(payload)
            _seed()  # after the imports that unpickling brings, which may draw, and happen in the first unit only
            result = work()
        if not isinstance(result, dict):
            raise RecordError(f"A unit must return a dict, which {path} can hold (got {type(result).__name__}).")
        write_json(path, result)
    except BaseException as error:  # sys.exit, too, must not end the worker: that would look like a death
        if isinstance(error, PowerPoolError):
            return _Failure(str(error), expected=True)
        cause = textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_CAUSE, placeholder=" ...")
        return _Failure(cause, expected=False, trace=traceback.format_exc())
    return None


def _seed() -> None:
    """A unit that forgets to seed must not depend on the units that this process ran before."""
    random.seed(0)
    torch.manual_seed(0)
    with contextlib.suppress(ModuleNotFoundError):
        import numpy as np

        np.random.seed(0)  # noqa: NPY002  # the global generator is what a careless unit draws from


# Errors.


def _death(task: _Task, error: BrokenExecutor) -> _Failure:
    times = "once" if task.deaths == 1 else f"{task.deaths} times"
    return _Failure(
        f"its process died {times}{_how(error)}. Most likely the system ended it because memory ran out: run fewer "
        "jobs at a time, or close other programs. If it dies in ample memory, too, it crashes: look above for a trace.",
        expected=True,
    )


def _how(error: BrokenExecutor) -> str:
    """How a process ended, for instance " (SIGKILL)", from the text of loky; nothing where it does not say."""
    found = re.search(r"\{(\w+)\((-?\d+)\)\}", str(error))
    if found is None:
        return ""
    return f" ({found[1]})" if found[1].startswith("SIG") else f" (exit code {found[2]})"


def _kept(units: Sequence[Unit], description: str) -> str:
    done = sum(unit.path.exists() for unit in units)
    return f"{done} of {len(units)} {description} are done and kept. The same command goes on with the rest."


def _error(failures: list[tuple[Unit, _Failure]], kept: str) -> Exception:
    """The first failure, as an error; the others are named."""
    unit, first = failures[0]
    others = ", ".join(other.title for other, _ in failures[1:])
    kept = f"{kept} Also failed: {others}." if others else kept
    stop = "" if first.message.endswith((".", "?", "!")) else "."
    if first.expected:
        return UnitError(f"{unit.title}: {first.message}{stop} {kept}")
    where = ""
    with contextlib.suppress(RecordError):  # of a full disk, which may be the very error
        write_text(_trace_file(unit.path), first.trace)
        where = f" Its trace is in {_trace_file(unit.path)}."
    return UnexpectedUnitError(
        f"{unit.title} failed: {first.message}{stop}{where} {kept}\n\nIn its process:\n{first.trace}"
    )


def _trace_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.trace")
