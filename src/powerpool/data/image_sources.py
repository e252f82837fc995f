"""Where a set of pictures is: a folder, a zip, the sets of the paper by name, the Hugging Face hub."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerpool.data.archives import CHUNK, content_hash, passed_over
from powerpool.data.digits import DIGITS, digits_folder
from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.glyphs import GLYPHS, glyphs_folder
from powerpool.data.image_hub import HUB, is_cached
from powerpool.data.image_layouts import some
from powerpool.data.limits import Limits, how_to_raise
from powerpool.data.pictures import ImageError, require_file
from powerpool.data.places import cache_folder, data_folders, how_to_fetch, may_fetch
from powerpool.errors import RecordError, UnknownNameError, did_you_mean
from powerpool.files import read_json, write_json


@dataclass(frozen=True)
class Known:
    """What is special about a set that can be asked for by name."""

    official: str
    """What its authors offer, and how it has to lie in the folder of the set."""
    hub: str | None = None
    """Its name on the Hugging Face hub, where a copy with the official splits is known."""
    folders: tuple[str, ...] = ()
    """What its folder or zip may be called, beside its name."""
    tests_on_validation: bool = False
    """The labels of the test split are secret, or there is none: what is published as validation is tested on."""
    test: float | None = None
    """The share of each class that is tested on where there are no official splits."""


KNOWN = {
    "flower102": Known("<split>/<class>/<picture>", "dpdl-benchmark/oxford_flowers102"),
    "mit67": Known("Images/<class>/<picture>, TrainImages.txt and TestImages.txt", folders=("indoorCVPR_09",)),
    "fmd": Known("image/<class>/<picture>", "mcimpoi/fmd_materials", folders=("FMD",), test=0.5),
    "food101": Known(
        "images/<class>/<picture>, meta/train.txt and meta/test.txt",
        "ethz/food101",
        folders=("food-101",),
        tests_on_validation=True,
    ),
    "imagenet": Known(
        "train/<wnid>/<picture> and val/<wnid>/<picture>", "ILSVRC/imagenet-1k", tests_on_validation=True
    ),
    "cub200": Known(
        "images/<class>/<picture>, images.txt, image_class_labels.txt, train_test_split.txt and classes.txt",
        "bentrevett/caltech-ucsd-birds-200-2011",
        folders=("CUB_200_2011",),
    ),
    "miniimagenet": Known(
        "<split>/<wnid>/<picture>, or images/<picture> with train.csv, val.csv and test.csv",
        folders=("miniImageNet", "mini-imagenet"),
    ),
    "omniglot": Known("<alphabet>/<character>/<picture>", folders=("omniglot28",)),
    "open_mic": Known("<exhibition>/<source or target>/<class>/<picture>", folders=("open-mic", "OpenMIC")),
}
"""The sets of the paper, and Omniglot. The copy of MIT67 on the hub is not split as in the literature, and not used."""

MADE = {DIGITS: digits_folder, GLYPHS: glyphs_folder}
"""Sets that are made on this machine, without a network."""

PACKED = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".rar", ".7z")
"""Archives that are not read."""


@dataclass(frozen=True)
class Place:
    """Where a set is: the path of a folder or zip, or the name of a set on the hub."""

    name: str
    path: Path | None = None
    hub: str | None = None
    known: Known | None = None


def locate(data: str | Path, root: str | Path | None, download: bool) -> Place:
    """The place that a path or a name stands for; see :func:`powerpool.data.load_images`."""
    if root is not None and not Path(root).expanduser().is_dir():
        raise MissingDataError(f"There is no folder {root} to look for data in.")
    text = str(data)
    if isinstance(data, str) and data.startswith("hf:"):
        return Place(data[3:].rpartition("/")[2], hub=data[3:])
    path = Path(data).expanduser()
    # As for graphs: a name of the table is always that set, even where a folder of that name lies in the working
    # directory. Path("fmd") and "./fmd" are the folder.
    if isinstance(data, Path) or "/" in text or os.sep in text:
        return _at(path)
    found = find(text, root)
    if found is not None:
        return Place(text, found, known=KNOWN.get(text))
    if text in MADE:
        return Place(text, MADE[text]())
    if text in KNOWN:
        return _from_hub(text, root, download)
    if path.exists():
        return _at(path)
    raise UnknownNameError(_unknown(text, root))


def find(name: str, root: str | Path | None) -> Path | None:
    """The folder or zip of a named set below the data folders; None where there is none."""
    for folder in data_folders(root, "images"):
        for own in names_of(name):
            if (folder / own).is_dir():
                return folder / own
            if (folder / f"{own}.zip").is_file():
                return folder / f"{own}.zip"
    return None


def names_of(name: str) -> tuple[str, ...]:
    """What the folder or zip of a named set may be called."""
    return (name, *(KNOWN[name].folders if name in KNOWN else ()))


def _at(path: Path) -> Place:
    if not path.exists():
        hub = f" A set of the Hugging Face hub is hf:{path}." if HUB.fullmatch(str(path)) else ""
        raise MissingDataError(f"There is no file or folder {path}.{hub}")
    if path.is_file() and path.suffix.lower() in PACKED:
        raise DataError(f"{path} is no zip: unpack it, and pass the folder.")
    return Place(path.absolute().name if path.is_dir() else path.stem, path)


def _from_hub(name: str, root: str | Path | None, download: bool) -> Place:
    """A known set that lies in no data folder."""
    known = KNOWN[name]
    if known.hub is not None and (may_fetch(download) or is_cached(known.hub)):
        return Place(name, hub=known.hub, known=known)
    looked = ", ".join(str(folder) for folder in data_folders(root, "images")) or "POWERPOOL_DATA is not set"
    here = f" The folder of that name here is ./{name}." if Path(name).is_dir() else ""
    from_hub = f"allow download=True ({known.hub} on the Hugging Face hub), or " if known.hub else ""
    remedy = f"{from_hub}pass root=, a folder that holds {name}/ or {name}.zip with {known.official}.{here}"
    remedy = how_to_fetch(remedy) if known.hub else remedy
    raise MissingDataError(f"{name} is not on this machine (looked in: {looked}): {remedy}")


def _unknown(name: str, root: str | Path | None) -> str:
    here = sorted({entry for folder in data_folders(root, "images") for entry in _sets_in(folder)})
    known = [*here, *(name for name in (*KNOWN, *MADE) if name not in here)]
    listed = f"In the data folder are {some(here, 20)}. " if here else ""
    return (
        f"Unknown set of pictures {name!r}.{did_you_mean(name, known)} {listed}Known by name are "
        f"{', '.join((*KNOWN, *MADE))}; or pass the path of a folder or zip of class folders, or hf:owner/name."
    )


def _sets_in(folder: Path) -> Iterator[str]:
    if folder.is_dir():
        for entry in folder.iterdir():
            if entry.name in ("images", "graphs") or passed_over(entry.name):
                continue
            if entry.is_dir() or entry.suffix == ".zip":
                yield entry.name if entry.is_dir() else entry.stem


# ---- folders ---------------------------------------------------------------------------------------------------------


def scan(folder: Path) -> list[str]:
    """All files below a folder, relative to it and sorted; without those that are hidden or left by a system."""
    found: list[str] = []

    def refuse(error: OSError) -> None:
        raise DataError(f"Cannot read the folder {error.filename}: {error.strerror}.") from error

    seen = set()
    for place, folders, files in os.walk(folder, followlinks=True, onerror=refuse):
        about = os.stat(place)
        if (about.st_dev, about.st_ino) in seen:  # a link that leads back to a folder above
            folders.clear()
            continue
        seen.add((about.st_dev, about.st_ino))
        folders[:] = [name for name in folders if not passed_over(name)]
        base = "" if Path(place) == folder else Path(place).relative_to(folder).as_posix() + "/"
        found += [base + name for name in files if not passed_over(name)]
    return sorted(found)


def read_list(path: Path, limits: Limits) -> bytes:
    """The content of a list of pictures; an OSError where there is none."""
    require_file(path)
    size = path.stat().st_size
    if size > limits.text:
        raise DataError(
            f"{path} is refused: it has {size:,} bytes, at most {limits.text:,} are read. {how_to_raise('text')}."
        )
    return path.read_bytes()


def hash_files(folder: Path, names: list[str]) -> dict[str, str]:
    """The hash of the bytes of each file; those of files that did not change since the last time are in the cache."""
    key = hashlib.blake2b(str(folder.resolve()).encode(errors="surrogateescape"), digest_size=8).hexdigest()
    cache = cache_folder("images") / "digests" / f"{key}.json"
    known: dict[str, Any] = {}
    with contextlib.suppress(RecordError):
        content = read_json(cache)
        known = content if isinstance(content, dict) else {}

    def describe(name: str) -> list[Any]:
        path = folder / name
        try:
            require_file(path)
            about = path.stat()
            facts = [about.st_size, about.st_mtime_ns]
            entry = known.get(name)
            if isinstance(entry, list) and entry[:2] == facts and len(entry) == 3:
                return entry
            digest = content_hash()
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
        except OSError as error:
            raise ImageError(f"Cannot read {path}: {error.strerror or error}.") from error
        return [*facts, digest.hexdigest()]

    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # reading and hashing release the interpreter
        found = dict(zip(names, pool.map(describe, names), strict=True))
    if found != known:
        with contextlib.suppress(RecordError, OSError):  # without a cache it only takes longer
            write_json(cache, found)
    return {name: digest for name, (_, _, digest) in found.items()}
