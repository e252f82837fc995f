"""WebDataset shards: tar files with the samples of a data set, ``KEY.jpg`` and ``KEY.cls``.

Shards are not unpacked. Where each image lies in its shard is found once and kept in the cache; an image is then read
by its offset, in any order. Batches, splits over processes and resuming are therefore those of a folder of images in
the same order.
"""

from __future__ import annotations

import contextlib
import os
import re
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from powerpool.data.archives import IMAGE_SUFFIXES, FileTree, is_ignored
from powerpool.data.lists import SPLITS, TABLE
from powerpool.data.splits import Labelled, natural_key
from powerpool.data.store import (
    DataError,
    ImageError,
    Limits,
    MissingDataError,
    cache_folder,
    content_hash,
    default_threads,
    hash_text,
    join_some,
    require_file,
    require_size,
)
from powerpool.errors import PowerPoolError, RecordError
from powerpool.files import read_json, write_json

SHARD = ".tar"
VERSION = 2
"""Of the stored index of a shard."""
SAMPLE = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)")
"""The key of a sample and the kind of its file: as in the webdataset package, the first dot of the name is between."""
CLASS = "cls"


class Member(NamedTuple):
    """An image in a shard."""

    shard: str
    offset: int
    size: int

    def read(self) -> bytes:
        """Return the bytes of the image."""
        try:
            with open(self.shard, "rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise ImageError(f"Cannot read {self.shard}: {error.strerror or error}.") from error


class Entry(NamedTuple):
    """A line of the index of a shard."""

    name: str
    label: str
    offset: int
    size: int
    digest: str


class Shards(NamedTuple):
    """The images of a data set, where each of them is, and their content hashes."""

    images: list[Labelled]
    sources: dict[str, Member]
    hashes: dict[str, str]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, with 2 before 10: numbers keep their order."""
        return tuple(sorted({image.label for image in self.images}, key=natural_key))


def is_shard(name: str) -> bool:
    """Whether a file has the suffix of a shard."""
    return name.lower().endswith(SHARD)


def find_shards(path: Path) -> FileTree | None:
    """Return the shards that the path of a tar file stands for, with or without braces; None for another path.

    Raises:
        MissingDataError: one of them does not exist.
    """
    if not is_shard(path.name) or path.is_dir():
        return None
    found = [path] if path.exists() else [Path(name) for name in _expand(str(path))]
    if missing := [str(shard) for shard in found if not shard.is_file()]:
        raise MissingDataError(f"{len(missing)} of {len(found)} shards were not found: {join_some(missing, 3)}.")
    folder = Path(os.path.commonpath([shard.parent for shard in found]))
    if folder.name.lower() in SPLITS:  # val/0000.tar has a split also without other shards
        folder = folder.parent
    return FileTree(folder, sorted(shard.relative_to(folder).as_posix() for shard in found))


def _expand(pattern: str) -> list[str]:
    """Replace braces as a shell does.

    Example:
        >>> _expand("{train,val}-{08..10}.tar")
        ['train-08.tar', 'train-09.tar', 'train-10.tar', 'val-08.tar', 'val-09.tar', 'val-10.tar']
        >>> _expand("{10..8}.tar")
        ['10.tar', '9.tar', '8.tar']
    """
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        return [pattern]
    choices = braces[1].split(",")
    if numbers := re.fullmatch(r"([0-9]+)\.\.([0-9]+)", braces[1]):
        first, last = map(int, numbers.groups())
        width = max(map(len, numbers.groups())) if re.search(r"\b0[0-9]", braces[1]) else 0
        step = 1 if first <= last else -1
        choices = [str(number).zfill(width) for number in range(first, last + step, step)]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return list(dict.fromkeys(name for choice in choices for name in _expand(before + choice + after)))


def list_shards(tree: FileTree, limits: Limits, table: str | None = None) -> Shards:
    """List the images of shards with their classes and splits; no image is decoded.

    A split is a word in the path of a shard, as in ``imagenet-train-0000.tar`` or ``val/0000.tar``. A table of splits,
    named or in the folder, is refused.
    """
    if table := table or next((name for name in tree.names if name.rpartition("/")[2] == TABLE), None):
        raise DataError(
            f"{table} cannot list the images of the shards in {tree.folder}. Write the split into the path of each "
            "shard, as in train-0000.tar, and leave the table out; or unpack the shards."
        )
    names = [name for name in tree.names if is_shard(name)]
    splits = {name: _find_split(name) for name in names}
    without = [name for name, split in splits.items() if split is None]
    if 0 < len(without) < len(names):
        raise DataError(
            f"{tree.folder} has shards without a split in their path ({join_some(without)}) next to others with one "
            f"({join_some(name for name in names if splits[name])}). Add train, val or test to all names, or to none."
        )
    found = Shards([], {}, {})
    with ThreadPoolExecutor(default_threads()) as pool:  # reading and hashing release the interpreter lock
        for shard, entries in zip(names, pool.map(lambda name: _index(tree.folder / name, limits), names), strict=True):
            place = str(tree.folder / shard)
            for entry in entries:
                file = f"{shard}/{entry.name}"
                found.images.append(Labelled(file, entry.label, splits[shard]))
                found.sources[file] = Member(place, entry.offset, entry.size)
                found.hashes[file] = entry.digest
    if not found.images:
        raise MissingDataError(f"The shards in {tree.folder} contain no images. Expected pairs of KEY.jpg and KEY.cls.")
    return found


def _find_split(shard: str) -> str | None:
    words = [SPLITS[word] for word in re.split("[^a-z]+", shard.lower()) if word in SPLITS]
    return words[-1] if words else None


def _index(shard: Path, limits: Limits) -> list[Entry]:
    """Return the images of a shard in their order, from the cache if the shard has not changed."""
    try:
        require_file(shard)
        about = shard.stat()
        cache = cache_folder("images") / "shards" / f"{hash_text([str(shard.resolve())])}.json"
        stamp = [VERSION, about.st_size, about.st_mtime_ns]
        with contextlib.suppress(RecordError, KeyError, TypeError):
            found = read_json(cache)
            if found["stamp"] == stamp:
                return [Entry(*row) for row in found["images"]]
        entries = list(_scan(shard, limits))
    except PowerPoolError:
        raise
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        raise DataError(f"{shard} is damaged or not an uncompressed tar file: {error}. Copy it again.") from error
    with contextlib.suppress(RecordError, OSError):  # without a cache, the shard is read again next time
        write_json(cache, {"stamp": stamp, "images": entries})
    return entries


def _scan(shard: Path, limits: Limits) -> Iterator[Entry]:
    """Read a shard from its beginning to its end."""
    images: dict[str, tuple[str, Member, str]] = {}
    classes: dict[str, str] = {}
    with tarfile.open(shard, "r:") as archive:
        for info in archive:
            sample = SAMPLE.fullmatch(info.name)
            if sample is None or not info.isreg() or info.issparse() or any(map(is_ignored, info.name.split("/"))):
                continue
            key, kind = sample[1], sample[2].lower()
            if kind != CLASS and f".{kind}" not in IMAGE_SUFFIXES:
                continue
            require_size(f"{info.name} in {shard}", info.size, limits)
            member = Member(str(shard), info.offset_data, info.size)
            content = member.read()
            if len(content) < info.size:
                raise DataError(f"{shard} is damaged: it ends within {info.name}. Copy it again.")
            if kind == CLASS:
                classes[key] = _decode_class(content, f"{info.name} in {shard}")
            elif key in images:
                raise DataError(f"{shard} has two images for the sample {key}: {images[key][0]} and {info.name}.")
            else:
                images[key] = (info.name, member, content_hash(content).hexdigest())
        # A cut tar ends without it, and tarfile takes a damaged header for the end.
        if Member(str(shard), archive.offset, tarfile.BLOCKSIZE).read() != bytes(tarfile.BLOCKSIZE):
            raise DataError(f"{shard} is damaged: it has no block of zeros at its end. Copy it again.")
    for key, (name, member, digest) in images.items():
        if not classes.get(key):
            raise DataError(
                f"{key}.{CLASS} in {shard}, the class of {name} as a number or a name, is missing or empty. Add it "
                "(classes in other files, such as .json, are not read), or unpack a tar of class folders."
            )
        yield Entry(name, classes[key], member.offset, member.size, digest)


def _decode_class(content: bytes, at: str) -> str:
    try:
        return content.decode().strip()
    except UnicodeDecodeError as error:
        raise DataError(f"{at} is not UTF-8 text. It must contain the class as a number or a name.") from error
