"""Zip files and folders of images: hostile archives are refused, zips are unpacked once into the cache."""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath

from powerpool.data.store import (
    CHUNK,
    DataError,
    Limits,
    MissingDataError,
    cache_error,
    cache_folder,
    content_hash,
    hash_text,
    make_once,
    require_file,
    require_size,
)
from powerpool.errors import PowerPoolError, RecordError
from powerpool.files import DISK, read_json, write_json

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
"""Suffixes of image files, in lower or upper case."""
UNPACKED_SUFFIXES = (*IMAGE_SUFFIXES, ".txt", ".csv", ".mat")
"""Suffixes of files that are unpacked: images, and lists of classes and splits."""
SYSTEM_FILES = ("thumbs.db", "desktop.ini", "__macosx")
MANIFEST_LIMIT = 1 << 30
"""Maximum bytes of a manifest, which may list millions of files."""


@dataclass(frozen=True)
class FileTree:
    """The files of an image data set: those of a folder, or of the unpacked copy of a zip."""

    folder: Path
    names: list[str]
    """Paths relative to the folder, sorted, with ``/`` as the separator; those in a zip include files not unpacked."""
    hashes: dict[str, str] | None = None
    """The content hash of each unpacked file, for zips."""
    empty: tuple[str, ...] = ()
    """Folders that contain nothing, relative to the folder."""
    repeated: tuple[str, ...] = ()
    """Links to folders that are listed already, such as a folder above them."""

    def read_text(self, name: str, limits: Limits) -> bytes:
        """Return the content of a list; raise OSError if it does not exist."""
        path = self.folder / name
        require_file(path)
        require_size(path, path.stat().st_size, limits)
        return path.read_bytes()


def open_tree(path: Path, limits: Limits) -> FileTree:
    """List the files of a folder, or of a zip, which is unpacked into the cache first."""
    if path.is_dir():
        return list_folder(path)
    if not path.exists():
        raise MissingDataError(f"There is no file {path}.")
    return unpack(path, limits)


def list_folder(folder: Path) -> FileTree:
    """List a folder and its subfolders; hidden files and system files are skipped."""

    def refuse(error: OSError) -> None:
        raise DataError(f"Cannot read the folder {error.filename}: {error.strerror}.") from error

    found: list[str] = []
    empty, repeated = [], []
    seen = set()
    tops = [str(folder)]
    for place, folders, files in chain.from_iterable(os.walk(top, onerror=refuse) for top in tops):
        about = os.stat(place)
        own = "" if Path(place) == folder else Path(place).relative_to(folder).as_posix()
        if (about.st_dev, about.st_ino) in seen:
            repeated.append(own)
            folders.clear()
            continue
        seen.add((about.st_dev, about.st_ino))
        folders[:] = sorted(name for name in folders if not is_ignored(name))
        # Links are followed after all folders, so that a folder keeps its own name.
        tops += [link for name in folders if os.path.islink(link := os.path.join(place, name))]
        inside = [f"{own}/{name}".lstrip("/") for name in files if not is_ignored(name)]
        if not inside and not folders:
            empty.append(own)
        found += inside
    return FileTree(folder, sorted(found), empty=tuple(sorted(empty)), repeated=tuple(sorted(repeated)))


def is_ignored(part: str) -> bool:
    """Whether a file or folder name is hidden or belongs to the operating system."""
    return part.startswith(".") or part.lower() in SYSTEM_FILES


# ---- reading zips ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_zip(path: Path, limits: Limits) -> Iterator[zipfile.ZipFile]:
    """Open a zip within the limits; errors of reading it, here and in the block, are raised as :class:`DataError`."""
    try:
        require_file(path)
        size = path.stat().st_size
        require_size(path, size, limits, "unpacked")  # the directory of the zip is read as a whole
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            excess = limits.excess(size, len(infos), sum(info.file_size for info in infos))
            if excess is not None:
                raise DataError(f"{path} was refused: {excess}")
            yield archive
    except PowerPoolError:
        raise
    except FileNotFoundError as error:
        raise MissingDataError(f"There is no file {error.filename or path}.") from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error, ValueError) as error:
        raise DataError(f"{path} is damaged or not a zip file: {error}. Copy or download it again.") from error
    except (NotImplementedError, RuntimeError, OSError) as error:  # compression methods, passwords, the disk
        if isinstance(error, OSError) and error.errno in DISK:
            raise cache_error(cache_folder("images"), error) from error
        raise DataError(f"Cannot read {path}: {error}.") from error


def unpack(path: Path, limits: Limits) -> FileTree:
    """Return the unpacked copy of a zip of images, which is made now unless it is in the cache.

    The name of the copy depends on the names, sizes and checksums in the archive: moving the zip keeps the copy, a
    changed zip gets a new one. A copy appears once it is complete and all checksums are right.
    """
    with open_zip(path, limits) as archive:
        members, others, empty = _check_members(path, archive)
        lines = [f"{name}\0{members[name].file_size} {members[name].CRC}\n" for name in sorted(members)]
        key = hash_text([repr(others), *lines])
        target = cache_folder("images") / "unpacked" / f"{path.stem.lstrip('.')}-{key}"
        found = _read_copy(target)
        if found is None:
            shutil.rmtree(target, ignore_errors=True)  # a copy with missing files
            make_once(target, lambda folder: _extract(archive, members, others, folder))
            found = _read_copy(target)
    if found is None:
        raise DataError(f"{target} was changed by another process. Delete it and try again.")
    return replace(found, empty=empty)


def _check_members(
    path: Path, archive: zipfile.ZipFile
) -> tuple[dict[str, zipfile.ZipInfo], tuple[str, ...], tuple[str, ...]]:
    """Return the files to unpack by name, the names of all others, and empty folders; refuse unsafe members."""
    found: dict[str, zipfile.ZipInfo] = {}
    others: list[str] = []
    folders: set[str] = set()
    used: set[str] = set()
    for info in archive.infolist():
        name = _safe_name(path, info)
        if any(is_ignored(part) for part in name.split("/")):
            continue
        used.update(map(str, PurePosixPath(name).parents))
        if info.is_dir():
            folders.add(name)
        elif not name.lower().endswith(UNPACKED_SUFFIXES):
            others.append(name)
        elif name in found:
            raise DataError(f"{path} was refused: it contains two files named {name!r}.")
        else:
            found[name] = info
    return found, tuple(sorted(others)), tuple(sorted(folders - used))


def _safe_name(path: Path, info: zipfile.ZipInfo) -> str:
    """Return the relative name of a member; refuse paths outside of the folder, links and devices."""
    name = info.filename.replace("\\", "/")  # archives made on Windows
    if not name:
        raise DataError(f"{path} was refused: one of its members has no name, so the archive is damaged.")
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts or (parts and ":" in parts[0]):
        raise DataError(f"{path} was refused: its member {info.filename!r} would be written outside of the folder.")
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a link" if kind == stat.S_IFLNK else "a device or a pipe"
        raise DataError(f"{path} was refused: its member {info.filename!r} is {what}. Pack the files themselves.")
    return "/".join(parts)


def _read_copy(target: Path) -> FileTree | None:
    """Return the copy if it exists and none of its files is missing or truncated."""
    folder = target / "files"
    try:
        manifest = read_json(target / "manifest.json", MANIFEST_LIMIT)
        if any((folder / name).stat().st_size != size for name, size, _ in manifest["files"]):
            return None
        hashes = {name: digest for name, _, digest in manifest["files"]}
        return FileTree(folder, sorted([*hashes, *manifest["others"]]), hashes)
    except (RecordError, OSError, KeyError, TypeError, ValueError):
        return None


def _extract(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], others: tuple[str, ...], folder: Path
) -> None:
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
    write_json(folder / "manifest.json", {"files": files, "others": others})
