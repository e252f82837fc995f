"""Processes of this machine: how many at a time, and that none outlives the one that started it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """How many cores this process may use: affinity and the limit of a container count, not what the machine has."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    limit = _container_limit()
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def _container_limit() -> float | None:
    """The time of cores that a container gets, in cores; None where there is no limit."""
    with contextlib.suppress(OSError, ValueError):  # version 2, "150000 100000"; "max" is no number
        quota, period = (CGROUPS / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):  # version 1; no limit is -1
        quota, period = ((CGROUPS / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    return None


def python(code: str, *arguments: str) -> list[str]:
    """The command of a child that runs ``code``, and ends when this process ends, however it ends.

    The working folder is not among the places of its modules: a file ``random.py`` there would take the place of
    Python's own.
    """
    places = "import sys; sys.path[:] = filter(None, sys.path)"
    bond = f"from powerpool.runs.processes import die_with; die_with({os.getpid()})"
    return [sys.executable, "-c", f"{places}; {bond}; {code}", *arguments]


def module_places() -> dict[str, str]:
    """The variable with which a child finds the modules that this process finds."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def die_with(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL: an orphan would compute and write for nobody."""
    if sys.platform == "linux":
        import ctypes

        # PR_SET_PDEATHSIG. A thread that looks out for the parent would have to wait for code that keeps the GIL.
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before it could be watched
        os._exit(1)


def _watch(parent: int, interval: float = 0.5) -> None:
    while os.getppid() == parent:
        time.sleep(interval)
    os._exit(1)
