"""What all loaders share: errors, limits on file sizes, data folders, the cache, offline mode and digests."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from powerpool.errors import ArgumentError, DiskError, PowerPoolError, RecordError, shorten
from powerpool.files import DISK, make_folder, read_json, write_json

OFFLINE = "POWERPOOL_OFFLINE"
"""The environment variable that forbids all use of the network."""
CHUNK = 1 << 20
"""Bytes that are read at a time."""
MAKING = ".making-"
"""Prefix of cache folders that are still being filled."""
ABANDONED = 86_400.0
"""Age in seconds at which an unfinished folder is considered abandoned."""


# ---- errors ----------------------------------------------------------------------------------------------------------


class DataError(PowerPoolError, ValueError):
    """A file is damaged or not in the expected format; the message names the file, and the line if there is one.

    Example:
        >>> issubclass(MissingDataError, DataError) and issubclass(DataError, ValueError)
        True
    """


class MissingDataError(DataError):
    """A data set, or one of its files, was not found; the message says where to put it."""


class ImageError(DataError):
    """An image cannot be decoded, is too large, or has an unsupported format; the message names it."""

    def __init__(self, message: str) -> None:
        # A DataLoader re-raises the error of a worker with the worker's whole traceback as its message; the last line
        # is the original message.
        if message.startswith("Caught ") and "DataLoader worker" in message:
            message = message.rpartition(f"{type(self).__name__}: ")[2].strip()
        super().__init__(message)


def require_package(module: str, purpose: str, extra: str) -> Any:
    """Import an optional package, or raise an error that says how to install it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{purpose} needs {module}, which is not installed. Run: pip install 'powerpool[{extra}]'.", name=error.name
        ) from error


def join_some(names: Iterable[str], most: int = 5) -> str:
    """Join the first names with commas, and say how many more there are."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


# ---- limits ----------------------------------------------------------------------------------------------------------

DEFAULT_LIMITS = {
    "pixels": 50_000_000,
    "files": 2_000_000,
    "unpacked": 50 << 30,
    "ratio": 200,
    "text": 2 << 30,
}
SMALL = 64 << 20
"""Bytes below which an archive is accepted whatever its compression ratio."""


def limit_variable(name: str) -> str:
    """Return the environment variable that sets a limit."""
    return f"POWERPOOL_MAX_{name.upper()}"


def limit_hint(name: str) -> str:
    """Return the sentence that tells users how to raise a limit for data that they trust."""
    return f"Raise the limit with {limit_variable(name)} or Limits({name}=...)."


def _default_limit(name: str) -> int:
    given = os.environ.get(limit_variable(name), "")
    if not given:
        return DEFAULT_LIMITS[name]
    try:
        limit = int(given)
    except ValueError:
        limit = 0
    if limit < 1:
        raise ArgumentError(
            f"The environment variable {limit_variable(name)} must be a positive integer (got {shorten(given)!r})."
        )
    return limit


def _limit(name: str) -> int:
    return field(default_factory=partial(_default_limit, name))


@dataclass(frozen=True)
class Limits:
    """Maximum sizes of images, archives and text files; anything larger is refused before it is decoded or unpacked.

    A limit that is not passed comes from the environment variable ``POWERPOOL_MAX_<NAME>``, for instance
    ``POWERPOOL_MAX_PIXELS``, which also applies to the command line, and else from the default.

    Example:
        >>> Limits().pixels, Limits(pixels=1_000).pixels
        (50000000, 1000)
    """

    pixels: int = _limit("pixels")
    """Pixels of one image; 50 million by default, as large cameras produce."""
    files: int = _limit("files")
    """Files in one archive; 2 million by default (ImageNet has 1.3 million)."""
    unpacked: int = _limit("unpacked")
    """Total bytes of an archive's files when unpacked; 50 GiB by default."""
    ratio: int = _limit("ratio")
    """Unpacked size divided by the size of the archive; 200 by default (6 is usual for text, 1 for images)."""
    text: int = _limit("text")
    """Bytes of a text file that is read as a whole, such as a list of edges, and of a download; 2 GiB by default."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise ArgumentError(f"{each.name} must be at least 1 (got {getattr(self, each.name)}).")

    def excess(self, packed: int, files: int, unpacked: int) -> str | None:
        """Return why an archive exceeds the limits, or None if it does not.

        Args:
            packed: size of the archive file in bytes.
            files: number of files in it.
            unpacked: total size of these files in bytes.

        Example:
            >>> Limits(files=3).excess(packed=100, files=4, unpacked=200)
            'it has 4 files, and the limit is 3. Raise the limit with POWERPOOL_MAX_FILES or Limits(files=...).'
        """
        if files > self.files:
            return f"it has {files:,} files, and the limit is {self.files:,}. {limit_hint('files')}"
        if unpacked > self.unpacked:
            return f"it unpacks to {unpacked:,} bytes, and the limit is {self.unpacked:,}. {limit_hint('unpacked')}"
        # Of the whole archive, not of single members: members may share compressed bytes, and each may be small.
        if unpacked > max(SMALL, self.ratio * packed):
            return (
                f"it unpacks to {unpacked:,} bytes, {unpacked / max(packed, 1):,.0f} times its own size, and the limit "
                f"is {self.ratio:,} times. {limit_hint('ratio')}"
            )
        return None


def require_size(name: str | Path, size: int, limits: Limits, limit: str = "text") -> None:
    """Refuse a file with more bytes than a limit allows."""
    most = getattr(limits, limit)
    if size > most:
        raise DataError(f"{name} is too large: {size:,} bytes, and the limit is {most:,}. {limit_hint(limit)}")


def require_file(path: str | Path) -> None:
    """Refuse pipes and devices, which could block or never end; raise OSError if there is no such file."""
    if stat.S_IFMT(os.stat(path).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # reading a folder fails by itself
        raise DataError(f"Cannot read {path}: it is a pipe or a device, not a file.")


# ---- folders and the network -----------------------------------------------------------------------------------------


def cache_folder(kind: str) -> Path:
    """Return the cache folder for one kind of data: downloads, unpacked archives and computed features.

    This is ``$POWERPOOL_CACHE/kind`` or, without that variable, ``powerpool/kind`` in ``$XDG_CACHE_HOME`` or
    ``~/.cache``.
    """
    given = os.environ.get("POWERPOOL_CACHE")
    if given:
        return Path(given).expanduser() / kind
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "powerpool" / kind


def data_folders(root: str | Path | None, kind: str) -> list[Path]:
    """Return the folders that may contain data sets: ``root``, or else ``$POWERPOOL_DATA``, and its folder ``kind``."""
    given = root or os.environ.get("POWERPOOL_DATA")
    return [Path(given).expanduser(), Path(given).expanduser() / kind] if given else []


def find_named(names: Iterable[str], folders: Iterable[Path]) -> Path | None:
    """Return the first folder or zip with one of the names, or None."""
    listed = tuple(names)
    for folder in folders:
        for name in listed:
            if (folder / name).is_dir():
                return folder / name
            if (folder / f"{name}.zip").is_file():
                return folder / f"{name}.zip"
    return None


def is_path(data: str | Path) -> bool:
    """Whether a data set is given by its path, not by its name.

    A name always means the data set of that name, even if the working directory has a folder with the same name;
    ``Path("fmd")`` and ``"./fmd"`` mean the folder.
    """
    return isinstance(data, Path) or "/" in data or os.sep in data


def is_offline() -> bool:
    """Whether the network is forbidden: POWERPOOL_OFFLINE is set to something other than 0, false, no or off."""
    return os.environ.get(OFFLINE, "").strip().lower() not in ("", "0", "false", "no", "off")


def may_fetch(download: bool) -> bool:
    """Whether a download was requested and the network is not forbidden; every download asks here first."""
    return download and not is_offline()


def how_to_fetch(remedy: str) -> str:
    """Return ``remedy``, followed by the note that the network is forbidden if it is.

    Example:
        >>> how_to_fetch("Pass download=True.")
        'Pass download=True.'
    """
    if not is_offline():
        return remedy
    return f"{remedy} But the network is forbidden (--offline, or {OFFLINE}={os.environ[OFFLINE]})."


def cache_error(path: Path, error: Exception, kind: type[PowerPoolError] = RecordError) -> PowerPoolError:
    """Return the error to raise if the cache cannot be written: a :class:`DiskError` if the disk is full."""
    is_full = isinstance(error, DiskError) or (isinstance(error, OSError) and error.errno in DISK)
    return (DiskError if is_full else kind)(
        f"Cannot write {path}: {str(error).rstrip('.')}. Set POWERPOOL_CACHE to a writable folder with enough space."
    )


def make_once(target: Path, write: Callable[[Path], None]) -> Path:
    """Return a cache folder that is complete: ``write`` fills it, unless it exists."""
    if target.is_dir():
        return target
    try:
        make_folder(target.parent)
        for left in target.parent.glob(f"{MAKING}*"):  # of a process that was killed
            if time.time() - left.stat().st_mtime > ABANDONED:
                shutil.rmtree(left, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=MAKING, dir=target.parent))
        temporary.chmod(0o755)  # mkdtemp grants access to the owner only
        try:
            write(temporary)
            os.rename(temporary, target)
        except OSError:
            if not target.is_dir():  # otherwise another process was faster
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, RecordError) as error:
        raise cache_error(target, error) from error
    return target


# ---- digests ---------------------------------------------------------------------------------------------------------


def hash_text(parts: Iterable[str]) -> str:
    """Return a digest of 16 hexadecimal digits of concatenated texts, which may be file names in any encoding."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part.encode(errors="surrogatepass"))
    return digest.hexdigest()


def content_hash(content: bytes = b"") -> hashlib.blake2b:
    """Return the hash object that identifies the bytes of a file."""
    return hashlib.blake2b(content, digest_size=16)


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the content hash of each file; hashes of unchanged files come from the cache."""
    cache = cache_folder("images") / "digests" / f"{hash_text([str(folder.resolve())])}.json"
    known = {}
    with contextlib.suppress(RecordError):
        content = read_json(cache)
        known = content if isinstance(content, dict) else {}

    def describe(name: str) -> list[Any]:
        path = folder / name
        try:
            require_file(path)
            about = path.stat()
            entry = known.get(name)
            if isinstance(entry, list) and entry[:2] == [about.st_size, about.st_mtime_ns] and len(entry) == 3:
                return entry
            digest = content_hash()
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise ImageError(f"Cannot read {path}: {error.strerror or error}.") from error
        return [about.st_size, about.st_mtime_ns, digest.hexdigest()]

    listed = list(names)
    found: dict[str, list[Any]] = {}
    with ThreadPoolExecutor(default_threads()) as pool:  # reading and hashing release the interpreter lock
        for start in range(0, len(listed), 256):  # a million waiting tasks would take gigabytes
            part = listed[start : start + 256]
            found.update(zip(part, pool.map(describe, part), strict=True))
    if not found.items() <= known.items():
        with contextlib.suppress(RecordError, OSError):  # without a cache, files are hashed again next time
            write_json(cache, known | found)
    return {name: entry[2] for name, entry in found.items()}


def default_threads() -> int:
    """Return how many files are read at a time: one per processor, at most 8."""
    return min(8, os.cpu_count() or 1)
