"""Zips of pictures: unpacked once, into a cache. One that could do harm is refused before anything is written."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import lzma
import shutil
import stat
import struct
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.limits import Limits
from powerpool.data.pictures import SUFFIXES
from powerpool.data.places import cache_folder, without_cache
from powerpool.errors import LockedError, RecordError
from powerpool.files import DISK, LOCK, locked, make_folder, read_json, write_json

UNPACKED = (*SUFFIXES, ".txt", ".csv")
"""How the names of files end that are unpacked: pictures, and lists that say what they show."""
SYSTEM = ("thumbs.db", "desktop.ini", "__macosx")
"""What systems leave in folders and archives, beside hidden files."""
ABANDONED = 60.0
"""Seconds after which a folder that no process has locked is one that its process did not live to finish."""
UNPACKING = ".unpacking-"
"""How the names of folders begin that are not whole yet."""
MANIFEST = 1 << 30
"""Bytes of the list of all files of a copy, which may be some millions."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class Unpacked:
    """The content of a zip, in a folder."""

    folder: Path
    hashes: dict[str, str]
    """The hash of each file, by its name relative to the folder."""
    others: tuple[str, ...]
    """Files of the zip that were not unpacked."""


def passed_over(part: str) -> bool:
    """Whether a file or folder of that name is none of the set's: hidden, or left by a system."""
    return part.startswith(".") or part.lower() in SYSTEM


def content_hash() -> hashlib.blake2b:
    """The hash that stands for the bytes of one file."""
    return hashlib.blake2b(digest_size=16)


def unpack(path: Path, limits: Limits) -> Unpacked:
    """The unpacked copy of a zip in the cache; made now unless it is there.

    A copy is named after the names, sizes and checksums in the archive: moving the zip does not make another copy, and
    another content does. It is there once all of it was unpacked and no checksum was wrong, and not before.
    """
    if not path.is_file():
        raise MissingDataError(f"There is no file {path}.")
    with _naming(path), zipfile.ZipFile(path) as archive:
        members, others = _members(path, archive, limits)
        target = cache_folder("images") / "unpacked" / f"{path.stem.lstrip('.')}-{_key(members, others)}"
        found = _read_copy(target)
        if found is None:
            _make_copy(archive, members, others, target)
            found = _read_copy(target)
    if found is None:
        raise DataError(f"{target} was changed by another process while it was made. Delete it and try again.")
    return found


# ---- what is in an archive -------------------------------------------------------------------------------------------


def _members(
    path: Path, archive: zipfile.ZipFile, limits: Limits
) -> tuple[dict[str, zipfile.ZipInfo], tuple[str, ...]]:
    """The files to unpack, by name, and the names of all others; refuses what no archive of pictures has."""
    infos = archive.infolist()
    found: dict[str, zipfile.ZipInfo] = {}
    others = []
    for info in infos:
        name = _safe_name(path, info)
        if info.is_dir() or any(passed_over(part) for part in name.split("/")):
            continue
        if not name.lower().endswith(UNPACKED):
            others.append(name)
        elif name in found:
            raise DataError(f"{path} is refused: it has two files of the name {name!r}.")
        else:
            found[name] = info
    size = sum(info.file_size for info in found.values())
    if (excess := limits.excess(path.stat().st_size, len(infos), size)) is not None:
        raise DataError(f"{path} is refused: {excess}, or unpack it by other means and pass the folder.")
    return found, tuple(sorted(others))


def _safe_name(path: Path, info: zipfile.ZipInfo) -> str:
    """The name of a member, relative to where it is unpacked; refused if it leads elsewhere."""
    name = info.filename.replace("\\", "/")  # archives made on Windows
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or (parts and ":" in parts[0]):
        raise DataError(f"{path} is refused: its member {info.filename!r} would be written outside of the folder.")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a link" if kind == stat.S_IFLNK else "a device or a pipe"
        raise DataError(f"{path} is refused: its member {info.filename!r} is {what}. Pack the files themselves.")
    return "/".join(parts)


def _key(members: dict[str, zipfile.ZipInfo], others: tuple[str, ...]) -> str:
    found = hashlib.blake2b(repr(others).encode(errors="surrogatepass"), digest_size=8)
    for name in sorted(members):
        line = f"{name}\0{members[name].file_size} {members[name].CRC}\n"
        found.update(line.encode(errors="surrogatepass"))
    return found.hexdigest()


# ---- copies ----------------------------------------------------------------------------------------------------------


def _read_copy(target: Path) -> Unpacked | None:
    """The copy, if it is there and none of its files was deleted or cut."""
    folder = target / "files"
    try:
        manifest = read_json(target / "manifest.json", MANIFEST)
        sizes = {name: size for name, size, _ in manifest["files"]}
        if any((folder / name).stat().st_size != size for name, size in sizes.items()):
            return None
        hashes = {name: digest for name, _, digest in manifest["files"]}
        return Unpacked(folder, hashes, tuple(manifest["others"]))
    except (RecordError, OSError, KeyError, TypeError, ValueError):
        return None


def _make_copy(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], others: tuple[str, ...], target: Path
) -> None:
    try:
        make_folder(target.parent)
        _sweep(target.parent)
        temporary = Path(tempfile.mkdtemp(prefix=UNPACKING, dir=target.parent))
    except (OSError, RecordError) as error:
        raise without_cache(target, error, DataError) from error
    try:
        with locked(temporary):
            files = _extract(archive, members, temporary)
            write_json(temporary / "manifest.json", {"files": files, "others": others})
            (temporary / LOCK).unlink()
            temporary.chmod(0o755)
            _put(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], folder: Path
) -> list[tuple[str, int, str]]:  # name, size and hash of each file
    free, needed = shutil.disk_usage(folder).free, sum(info.file_size for info in members.values())
    if needed > free:
        raise DataError(
            f"{archive.filename} needs {needed:,} bytes in {folder.parent}, where {free:,} are free. "
            "Set POWERPOOL_CACHE to a folder on a larger disk."
        )
    files = []
    for name, info in members.items():
        target, digest = folder / "files" / name, content_hash()
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(info) as source, target.open("xb") as sink:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                sink.write(chunk)
        files.append((name, info.file_size, digest.hexdigest()))
    return files


def _put(temporary: Path, target: Path) -> None:
    """Make the finished copy the one that is used."""
    if _read_copy(target) is not None:
        return  # another process made the same meanwhile
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(target)  # a copy from which files were deleted
    try:
        temporary.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # these: the other process was quicker by a moment
            raise


def _sweep(folder: Path) -> None:
    """Remove what processes left that were killed while they unpacked."""
    for left in folder.glob(f"{UNPACKING}*"):
        with contextlib.suppress(OSError, LockedError, RecordError):
            if time.time() - left.stat().st_mtime > ABANDONED:
                with locked(left):
                    shutil.rmtree(left)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of reading a zip name it."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error) as error:
        raise DataError(f"{path} is damaged, or no zip: {error}. Copy or download it again.") from error
    except (NotImplementedError, RuntimeError, OSError) as error:  # ways of packing and passwords; the disk
        if isinstance(error, LockedError):
            raise
        if isinstance(error, OSError) and error.errno in DISK:
            raise without_cache(cache_folder("images"), error) from error
        raise DataError(f"Cannot unpack {path}: {error}.") from error
