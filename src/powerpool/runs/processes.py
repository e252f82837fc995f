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
    """Return how many cores this process may use, by its affinity and the limit of its container."""
    allowed = getattr(os, "sched_getaffinity", None)
    cores = len(allowed(0)) if allowed else os.cpu_count() or 1
    limit = _container_limit()
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def _container_limit() -> float | None:
    """Return the CPU quota of the container in cores; None without a limit."""
    with contextlib.suppress(OSError, ValueError):  # cgroup v2: "150000 100000", or "max 100000"
        quota, period = (CGROUPS / "cpu.max").read_text(encoding="ascii").split()
        return int(quota) / int(period)
    with contextlib.suppress(OSError, ValueError):  # cgroup v1: a quota of -1 is no limit
        quota, period = ((CGROUPS / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else None
    return None


def python_command(code: str, *arguments: str) -> list[str]:
    """Return the command of a child that runs ``code``, and ends when this process ends, even by SIGKILL.

    The working folder is not on its module path: a file ``random.py`` there would shadow Python's own.
    """
    path = "import sys; sys.path[:] = filter(None, sys.path)"
    bond = f"from powerpool.runs.processes import end_with_parent; end_with_parent({os.getpid()})"
    return [sys.executable, "-c", f"{path}; {bond}; {code}", *arguments]


def module_path() -> dict[str, str]:
    """Return the variable with which a child finds the modules that this process finds."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def end_with_parent(parent: int) -> None:
    """End this process when its parent ends, even by SIGKILL, so that no orphan keeps computing."""
    if sys.platform == "linux":
        import ctypes

        # PR_SET_PDEATHSIG. A watching thread would have to wait for code that holds the GIL.
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before it could be watched
        os._exit(1)


def _watch(parent: int, interval: float = 0.5) -> None:
    while os.getppid() == parent:
        time.sleep(interval)
    os._exit(1)
