"""Files that are complete or absent: atomic writes, JSON, bounded reads, and locked folders."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import os
import pickle
import pickletools
import re
import stat
import tempfile
import time
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch.utils._python_dispatch import TorchDispatchMode

from powerpool.errors import DiskError, LockedError, PowerPoolError, RecordError, shown

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of the disk itself: another folder on the same disk would not help."""
DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors of permission: another folder would help."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a cell begins with that a spreadsheet may run as a formula."""
LARGEST = 256 << 20
"""Limit in bytes for JSON files, far above any that powerpool writes."""
LOCK = ".lock"
PART = ".part-"
"""Prefix of the temporary file that an atomic write fills."""
PART_SECONDS = 3600.0
"""Age at which a temporary file is considered abandoned."""
ZIP = b"PK\3\4"
NAMES_IN_PICKLES = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch (?!Typed|Untyped)\w+Storage"
)
"""Module and name of what the pickle of tensors and plain values refers to."""


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
    """Remove the temporary files of killed writers in a folder and below it.

    Recent ones stay: another process, such as a worker of a cluster, may still be writing.
    """
    ours = re.compile(rf"{re.escape(PART)}[a-z0-9_]{{8}}(\..*)?")  # the pattern of tempfile.mkstemp
    for place, _, names in os.walk(folder):
        for part in (Path(place, name) for name in names if ours.fullmatch(name)):
            with contextlib.suppress(OSError):
                if time.time() - part.stat().st_mtime > PART_SECONDS:
                    part.unlink()


def require_writable(path: str | Path, remedy: str = "") -> None:
    """Refuse a path that cannot be written before the work whose result goes there; nothing is created."""
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
    """Return the file to write: the target of a link; pipes and devices are refused."""
    target = Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)
    if os.path.exists(target) and not (os.path.isfile(target) or os.path.isdir(target)):
        raise RecordError(f"Cannot write {path}: it is a pipe or a device. Name a file.")
    return target


def cannot_write(path: str | Path, error: OSError, remedy: str = "") -> RecordError:
    """Return the error for a file that could not be written; a :class:`DiskError` if the disk is full or failing.

    Example:
        >>> str(cannot_write("run/model.pt", OSError(errno.ENOSPC, "No space left on device")))
        'Cannot write run/model.pt: No space left on device. Existing files are unchanged: free some space and retry.'
    """
    message = f"Cannot write {path}: {error.strerror or error}."
    if error.errno in DISK:
        return DiskError(f"{message} {remedy or 'Existing files are unchanged: free some space and retry.'}")
    if not remedy and error.errno in DENIED:
        remedy = "Choose a folder that you may write to."
    return RecordError(f"{message} {remedy}".rstrip())


def make_folder(path: str | Path) -> None:
    """Create a folder and its parents if they do not exist."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kind, remedy = (DiskError, "Make room") if error.errno in DISK else (RecordError, "Choose another one")
        raise kind(f"Cannot make the folder {path}: {error.strerror}. {remedy}.") from error


def write_json(path: str | Path, data: Any) -> None:
    """Write ``data`` atomically. NaN and infinity are refused because JSON cannot represent them."""
    try:
        text = json.dumps(data, indent=1, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordError(f"Cannot write {path} as JSON: {error}.") from error
    write_text(path, text + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file atomically; undecodable bytes of file names become backslash escapes."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as CSV; the keys are the first line.

    Text that a spreadsheet would read as a formula, such as a class called ``=1+1``, gets an apostrophe in front.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for cells in (list(rows[0]), *(list(row.values()) for row in rows)):
        writer.writerow([f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell for cell in cells])
    return text.getvalue()


def read_bytes(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes; pipes and devices are refused."""
    try:
        # Open without blocking on a pipe, and check the opened file: another process may replace the name at any time.
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
    """Return the content of a JSON file; an error names the file and the line."""
    content = read_bytes(path, limit)
    try:
        return json.loads(content.decode("utf-8"))
    except json.JSONDecodeError as error:
        raise RecordError(f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{path} is not JSON: it is not text in UTF-8.") from error
    except (ValueError, RecursionError) as error:  # numbers with thousands of digits, deep nesting
        raise RecordError(f"{path} is not valid JSON: {error}.") from error


def read_tensors(path: str | Path, limit: int, what: str) -> Any:
    """Return what ``torch.save`` wrote, on the CPU; anything but tensors, plain values and safe classes is refused."""
    if Path(path).is_file():  # if not, read_bytes names the reason
        # Before the whole file is read, look at both ends: torch goes by the first bytes, and zipfile by the last.
        with Path(path).open("rb") as file:
            first = file.read(len(ZIP))
        if first != ZIP or not _is_zip(path):
            raise RecordError(f"{path} is not a {what}: it is not a zip of tensors and plain values.")
    content = io.BytesIO(read_bytes(path, limit))
    try:
        _refuse_bomb(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign pickles, which are refused anyway
            with _WithinStorages():
                return torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RecordError(
            f"{path} was not loaded: it is damaged, or contains Python objects other than tensors and plain values."
        ) from error
    except Exception as error:  # a damaged pickle fails anywhere: IndexError, OSError, ...
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise RecordError(f"{path} is not a {what}, or is damaged: {reason}.") from error


def _is_zip(path: str | Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except zipfile.BadZipFile:  # it claims to span several disks
        return False


def _refuse_bomb(content: io.BytesIO) -> None:
    """Refuse a file that would fill memory: compressed records, or a pickle with anything but tensors and plain values.

    ``weights_only=True`` would call ``bytearray``, ``torch.Tensor`` and ``torch.UntypedStorage`` with any size.
    """
    with zipfile.ZipFile(content) as archive:
        size = sum(record.file_size for record in archive.infolist())
        if size > content.getbuffer().nbytes:
            raise ValueError(f"its records have {size:,} bytes, more than the file")
        for record in archive.infolist():
            if record.filename.lower().endswith("data.pkl"):
                _require_known_names(archive.read(record))
    content.seek(0)


def _require_known_names(data: bytes) -> None:
    kinds = torch.serialization.get_safe_globals()
    safe = {f"{kind.__module__} {kind.__qualname__}" for kind in kinds if not isinstance(kind, tuple)}
    for operation, argument in pickle_operations(data):
        if operation not in ("GLOBAL", "INST", "STACK_GLOBAL"):
            continue
        if argument not in safe and not NAMES_IN_PICKLES.fullmatch(str(argument)):
            what = shown(argument or operation)
            raise ValueError(f"its pickle names {what}, which tensors and plain values do not need")


def pickle_operations(data: bytes) -> Iterator[tuple[str, Any]]:
    """Return the operations of a pickle with their arguments, without loading it.

    Raises:
        ValueError: it is damaged, or its memo, an array in :class:`pickle.Unpickler`, would be longer than the pickle.
    """
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and (argument or 0) > len(data):
            raise ValueError(f"its pickle of {len(data):,} bytes asks for a memo of {argument:,} entries")
        yield operation.name, argument


class _WithinStorages(TorchDispatchMode):
    """Refuse a tensor that is larger than its storage, which torch would enlarge."""

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operator is torch.ops.aten.set_.source_Storage_storage_offset:
            tensor, storage, offset, sizes, *strides = args  # without strides if there is one element
            last = offset + sum((size - 1) * stride for size, stride in zip(sizes, *strides, strict=True))
            if 0 not in sizes and (last + 1) * tensor.element_size() > storage.nbytes():
                raise ValueError(f"a tensor of {' x '.join(map(str, sizes))} is larger than its storage")
        return operator(*args, **(kwargs or {}))


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Hold a folder exclusively; a second process gets a :class:`LockedError`.

    The system releases the lock when the process ends, even by SIGKILL, and forked children do not inherit it.
    Temporary files that killed writers left behind are removed, see :func:`remove_parts`.
    """
    make_folder(folder)
    path = Path(folder) / LOCK
    try:
        lock = FileLock(path, timeout=0)
        lock.acquire()
    except Timeout as error:
        raise LockedError(
            f"Another process is working in {folder}. Wait until it has finished, or choose another folder."
        ) from error
    except OSError as error:
        raise cannot_write(path, error) from error
    owner = os.getpid()
    try:
        remove_parts(folder)
        yield
    finally:
        if os.getpid() == owner:  # a forked child has dropped the lock already
            lock.release()
