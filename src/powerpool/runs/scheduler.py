"""Units of work in parallel processes: results in files, dead workers replaced, interrupted work resumed.

joblib's ``Parallel`` aborts every unit when one worker dies. Here each slot has an executor of its own with one worker,
so that a death costs one unit, which is tried again.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import re
import signal
import textwrap
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path

import torch

from powerpool.console import Bars, current_settings, output_settings, print_note
from powerpool.errors import PowerPoolError, RecordError
from powerpool.files import make_folder, read_json, write_json
from powerpool.runs.engines import (
    WORKER_VARIABLES,
    EngineOptions,
    Slots,
    end_with_parent,
    open_cluster,
    usable_cores,
)
from powerpool.runs.typed import Json

ATTEMPTS = 3
"""How often a unit is tried whose process dies."""
LONGEST_CAUSE = 160
"""Characters of an unexpected error in the message."""


class UnitError(PowerPoolError, RuntimeError):
    """A unit failed with an expected error, or its process died too often."""

    exit_code = 1


class UnexpectedUnitError(RuntimeError):
    """A unit failed with an unexpected error: a bug. The message ends with the traceback of its process."""


@dataclass(frozen=True)
class WorkUnit:
    """One piece of work, and the file that its result goes to."""

    path: Path
    """A unit is done when this file is there; no two units share one."""
    title: str
    work: Callable[[], dict[str, Json]]
    """A module-level function, or a :func:`functools.partial` of one, that returns a JSON object.

    It is pickled before the first unit starts: it should carry names of things to load, not the things.
    """
    keys: tuple[str, ...] = ()
    """What a result must have; a file without them is computed again."""


def run_units(
    units: Sequence[WorkUnit],
    jobs: int | None = None,
    *,
    description: str = "units",
    engine: EngineOptions | None = None,
) -> list[dict[str, Json]]:
    """Run the units whose file is not there yet, and return the results of all, in order, read from the files.

    - A file that is not a JSON object with the keys of the unit is renamed to ``NAME.broken``, and the unit runs again.
    - A worker that dies is replaced, and its unit is tried again at the end, at most three times.
    - After a failure no unit starts; those that run finish and are kept, then the error is raised.
    - An interrupt stops the workers at once. They also end when this process ends, even by SIGKILL.

    Args:
        units: what to run.
        jobs: how many run at a time; default: the number of usable cores, or of the cluster's workers.
        description: what the units are, in the plural.
        engine: where they run; default: processes on this machine.
    """
    waiting = deque(_Task(unit, pickle.dumps(unit.work)) for unit in units if not is_done(unit))
    for parent in {task.unit.path.parent for task in waiting}:
        make_folder(parent)  # before anything is computed that could not be written
    done = len(units) - len(waiting)
    if done and waiting:
        print_note(f"{description}: {done} of {len(units)} are done already.")
    if waiting:
        with Bars() as bars, warnings.catch_warnings():
            # Of loky, when it replaces a worker that has grown by 300 MB.
            warnings.filterwarnings("ignore", message="A worker stopped while some jobs", category=UserWarning)
            bar = bars.add(description, len(units))
            bars.update(bar, done)
            try:
                with _open_slots(engine, jobs, waiting[0].unit.path.parent) as slots:
                    failures = _run(waiting, slots, partial(bars.advance, bar))
            except KeyboardInterrupt as error:
                raise KeyboardInterrupt(_count_done(units, description)) from error
        if failures:
            raise _make_error(failures, _count_done(units, description))
    return [read_json(unit.path) for unit in units]


@dataclass
class _Task:
    unit: WorkUnit
    payload: bytes
    deaths: int = 0


@dataclass(frozen=True)
class _Failure:
    """An error as text, because not every exception survives pickling."""

    message: str
    expected: bool
    trace: str = ""


def is_done(unit: WorkUnit) -> bool:
    """Whether the result is there; a file that is not a result is renamed, not deleted."""
    if not unit.path.exists():
        return False
    try:
        found = read_json(unit.path)
        if isinstance(found, dict) and all(key in found for key in unit.keys):
            return True
        reason = f"{unit.path} is not the result of a unit."
    except RecordError as error:
        if isinstance(error.__cause__, OSError):  # unreadable is not broken
            raise
        reason = str(error)
    aside = unit.path.with_name(f"{unit.path.name}.broken")
    unit.path.replace(aside)
    print_note(f"{reason} Renamed to {aside.name}; {unit.title} runs again.")
    return False


def _open_slots(
    engine: EngineOptions | None, jobs: int | None, folder: Path
) -> contextlib.AbstractContextManager[Slots]:
    if engine is None or engine.engine == "loky":
        return contextlib.nullcontext(Slots(usable_cores() if jobs is None else jobs, _make_executor))
    return open_cluster(engine, jobs, folder)


def _run(waiting: deque[_Task], slots: Slots, advance: Callable[[], None]) -> list[tuple[WorkUnit, _Failure]]:
    failures: list[tuple[WorkUnit, _Failure]] = []
    idle: list[Executor] = []
    running: dict[Future[_Failure | None], tuple[_Task, Executor]] = {}
    executors: list[Executor] = []  # all that may have a worker, also if an interrupt comes between two lines
    try:
        while running or (waiting and not failures):
            while waiting and not failures and len(running) < slots.jobs:
                task = waiting.popleft()
                executor, future = _submit(task, idle.pop() if idle else None, executors, slots.make)
                running[future] = task, executor
            # The timeout lets an interrupt through that another thread has received.
            ended, _ = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in ended:
                task, executor = running.pop(future)
                try:
                    failure = future.result()
                    idle.append(executor)
                except BrokenExecutor as error:
                    _stop(executor)
                    executors.remove(executor)
                    task.deaths += 1
                    if is_done(task.unit):  # it died after writing the result
                        failure = None
                    elif task.deaths < ATTEMPTS:
                        print_note(
                            f"{task.unit.title}: its process died{_signal_name(error)}; "
                            f"attempt {task.deaths + 1} of {ATTEMPTS} follows."
                        )
                        waiting.append(task)
                        continue
                    else:
                        failure = _Failure(
                            f"its process died {task.deaths} times{_signal_name(error)}. Most likely memory ran out: "
                            "run fewer jobs at a time, or close other programs.",
                            expected=True,
                        )
                if failure is None:
                    advance()
                else:
                    failures.append((task.unit, failure))
    finally:
        for executor in executors:
            _stop(executor)
    return failures


def _submit(
    task: _Task, executor: Executor | None, executors: list[Executor], make: Callable[[], Executor]
) -> tuple[Executor, Future[_Failure | None]]:
    call = partial(_execute, task.unit.path.absolute(), task.payload, current_settings())
    if executor is not None:
        try:
            with _block_interrupts():
                return executor, executor.submit(call)
        except BrokenExecutor:  # its worker died while it was idle
            _stop(executor)
            executors.remove(executor)
    executor = make()
    executors.append(executor)
    with _block_interrupts():
        return executor, executor.submit(call)


def _make_executor() -> Executor:
    from joblib.externals.loky import ProcessPoolExecutor

    resource_tracker.ensure_running()  # it would unblock interrupts if it started together with the first worker
    executor: Executor = ProcessPoolExecutor(
        1, env=WORKER_VARIABLES, initializer=end_with_parent, initargs=(os.getpid(),)
    )
    return executor


def _stop(executor: Executor) -> None:
    executor.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg]  # an option of loky and of our slots


@contextlib.contextmanager
def _block_interrupts() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which a terminal sends to all: this process stops them."""
    old = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


# ---- in the worker ---------------------------------------------------------------------------------------------------


def _execute(path: Path, payload: bytes, output: dict[str, bool]) -> _Failure | None:
    """Run one unit and write its result; only an error is sent back."""
    if path.exists():  # a cluster may run a call twice
        return None
    try:
        with output_settings(**output):
            work = pickle.loads(payload)
            _seed()  # after the imports of unpickling, which may draw random numbers
            result = work()
        write_json(path, result)
    except BaseException as error:  # also SystemExit, which would look like a death
        if isinstance(error, PowerPoolError):
            return _Failure(str(error), expected=True)
        cause = textwrap.shorten(f"{type(error).__name__}: {error}", LONGEST_CAUSE, placeholder=" ...")
        return _Failure(cause, expected=False, trace=traceback.format_exc())
    return None


def _seed() -> None:
    """Seed all generators: a unit that does not must not depend on the units before it."""
    random.seed(0)
    torch.manual_seed(0)
    with contextlib.suppress(ModuleNotFoundError):
        import numpy as np

        np.random.seed(0)  # noqa: NPY002  # the global generator is what an unseeded unit draws from


# ---- errors ----------------------------------------------------------------------------------------------------------


def _signal_name(error: BrokenExecutor) -> str:
    """Return how a process ended, for instance " (SIGKILL)", from the text of loky; empty if unknown."""
    found = re.search(r"\{(\w+)\((-?\d+)\)\}", str(error))
    if found is None:
        return ""
    return f" ({found[1]})" if found[1].startswith("SIG") else f" (exit code {found[2]})"


def _count_done(units: Sequence[WorkUnit], description: str) -> str:
    done = sum(unit.path.exists() for unit in units)
    return f"{done} of {len(units)} {description} are done and kept. Repeat the command to run the rest."


def _make_error(failures: list[tuple[WorkUnit, _Failure]], kept: str) -> Exception:
    """Return the first failure as an exception that also names the others."""
    unit, first = failures[0]
    others = ", ".join(other.title for other, _ in failures[1:])
    kept = f"{kept} Also failed: {others}." if others else kept
    message = f"{unit.title}: {first.message.rstrip('.')}."
    if first.expected:
        return UnitError(f"{message} {kept}")
    return UnexpectedUnitError(f"{message} {kept}\n\nIn its process:\n{first.trace}")
