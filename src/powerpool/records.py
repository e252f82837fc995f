"""What a run writes down: the machine and the versions, and JSON files that are whole or not there.

A leaf of the import graph: it knows files, and nothing of what is recorded.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from powerpool.checks import PowerPoolError


class RecordError(PowerPoolError, ValueError):
    """A file is missing, is not JSON, or is not the record that was asked for."""


def environment() -> dict[str, Any]:
    """Processor, versions, threads, commit, time and command: all that a number depends on beside the code's input."""
    commit = _git("rev-parse", "HEAD")
    changes = None if commit is None else _git("status", "--porcelain")
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "powerpool": metadata.version("powerpool"),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(("OMP_", "MKL_"))},
        "commit": commit,
        "dirty": None if changes is None else bool(changes),
        "time": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


@contextlib.contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes the place of ``path`` when the block ends without an error.

    A process that is killed leaves the old file as it was; a reader sees the old one or the new one, never a part.
    """
    path = Path(path)
    make_folder(path.parent)
    # The suffix stays, for writers that choose the format by it. mkstemp makes files that only their owner can read.
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    except OSError as error:
        raise RecordError(f"Cannot write {path}: {error.strerror}. Choose a folder that you may write to.") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def make_folder(path: str | Path) -> None:
    """Make a folder and those above it, unless they are there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"Cannot make the folder {path}: {error.strerror}. Choose another one.") from error


def write_json(path: str | Path, data: Any) -> None:
    """Write ``data`` atomically. NaN and infinity are refused: JSON has none, and other readers would stumble."""
    try:
        text = json.dumps(data, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"Cannot write {path} as JSON: {error}.") from error
    write_text(path, text + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """The content of a JSON file; an error names the file, and the line where it is no JSON."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror or error}.") from error
    except json.JSONDecodeError as error:
        raise RecordError(f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is not JSON: it is not text in UTF-8.") from error


def _processor() -> str:
    with contextlib.suppress(OSError):  # platform.processor() is empty or "x86_64" on Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """The answer of git about the checkout that this package is in, or None where there is none."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), *arguments]
    try:
        # An installed copy may lie inside someone else's repository, in its .venv: only tracked files are ours.
        ours = [*command[:3], "ls-files", "--error-unmatch", "__init__.py"]
        tracked = subprocess.run(ours, capture_output=True, check=False)
        if tracked.returncode != 0:
            return None
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
