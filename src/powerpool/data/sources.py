"""Where image data sets come from: folders, zips, known names, data made on this machine, and the Hugging Face hub."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from powerpool.data.archives import is_ignored, open_tree
from powerpool.data.layouts import (
    OPEN_MIC_LAYOUT,
    are_shards,
    arrange,
    arrange_open_mic,
    describe_left_out,
    is_open_mic,
    no_problems,
)
from powerpool.data.lists import SPLITS, TABLE
from powerpool.data.shards import Member, find_shards, list_shards
from powerpool.data.splits import Labelled
from powerpool.data.store import (
    DataError,
    ImageError,
    Limits,
    MissingDataError,
    cache_folder,
    content_hash,
    data_folders,
    find_named,
    hash_files,
    how_to_fetch,
    is_path,
    join_some,
    may_fetch,
    require_file,
    require_package,
)
from powerpool.data.synthetic import DIGITS, GLYPHS, digits_folder, glyphs_folder
from powerpool.errors import ArgumentError, RecordError, UnknownNameError, did_you_mean
from powerpool.files import read_json, write_json


@dataclass(frozen=True)
class Known:
    """A data set that is known by name."""

    layout: str
    """Its official layout, relative to its folder."""
    hub: str | None = None
    """Its name on the Hugging Face hub, if a copy with the official splits is known."""
    folders: tuple[str, ...] = ()
    """Other names of its folder or zip."""
    tests_on_validation: bool = False
    """Whether to test on the published validation split, because there is no test split, or its labels are secret."""
    test: float | None = None
    """The usual share of test images per class, if there are no official splits."""


KNOWN = {
    "flower102": Known("<split>/<class>/<image>", "dpdl-benchmark/oxford_flowers102"),
    "mit67": Known("Images/<class>/<image>, TrainImages.txt and TestImages.txt", folders=("indoorCVPR_09",)),
    "fmd": Known("image/<class>/<image>", "mcimpoi/fmd_materials", folders=("FMD",), test=0.5),
    "food101": Known(
        "images/<class>/<image>, meta/train.txt and meta/test.txt",
        "ethz/food101",
        folders=("food-101",),
        tests_on_validation=True,
    ),
    "imagenet": Known("train/<wnid>/<image> and val/<wnid>/<image>", "ILSVRC/imagenet-1k", tests_on_validation=True),
    "cub200": Known(
        "images/<class>/<image>, images.txt, image_class_labels.txt, train_test_split.txt and classes.txt",
        "bentrevett/caltech-ucsd-birds-200-2011",
        folders=("CUB_200_2011",),
    ),
    "dtd": Known("images/<class>/<image>, labels/train1.txt, val1.txt and test1.txt", folders=("DTD",)),
    "aircraft": Known(
        "images/<image>, images_variant_trainval.txt (or _train.txt and _val.txt) and images_variant_test.txt",
        folders=("fgvc-aircraft-2013b",),
    ),
    "cars": Known(
        "cars_train/<image>, cars_test/<image>, devkit/cars_meta.mat, devkit/cars_train_annos.mat and "
        "cars_test_annos_withlabels.mat, or <split>/<class>/<image>",
        folders=("stanford_cars",),
    ),
    "miniimagenet": Known(
        "<split>/<wnid>/<image>, or images/<image> with train.csv, val.csv and test.csv",
        folders=("miniImageNet", "mini-imagenet"),
    ),
    "omniglot": Known("<alphabet>/<character>/<image>", folders=("omniglot28",)),
    "open_mic": Known(OPEN_MIC_LAYOUT, folders=("open-mic", "OpenMIC")),
}
"""The data sets of the paper, and others for fine-grained and few-shot recognition. The hub has no copy of MIT67 with
the splits of the literature."""

SYNTHETIC = {DIGITS: digits_folder, GLYPHS: glyphs_folder}
"""Data sets that are made on this machine, without a network."""

OTHER_ARCHIVES = (".tgz", ".gz", ".bz2", ".xz", ".zst", ".rar", ".7z")


@dataclass(frozen=True)
class Place:
    """Where a data set is: the path of a folder or zip, or its name on the hub."""

    name: str
    path: Path | None = None
    hub: str | None = None
    known: Known | None = None
    table: str | None = None
    """The absolute path of a file with paths, classes and splits, if one was named."""


def locate(data: str | Path, root: str | Path | None, download: bool) -> Place:
    """Find a data set by path or name; see :func:`powerpool.data.load_images`."""
    if root is not None and not Path(root).expanduser().is_dir():
        raise MissingDataError(f"The data folder {root} does not exist.")
    if isinstance(data, str) and data.startswith("hf:"):
        return Place(data[3:].rpartition("/")[2], hub=data[3:])
    if is_path(data):
        return _at_path(Path(data).expanduser())
    name = str(data)
    folders = data_folders(root, "images")
    if (found := find_named(names_of(name), folders)) is not None:
        return Place(name, found, known=KNOWN.get(name))
    if name in SYNTHETIC:
        return Place(name, SYNTHETIC[name]())
    if name in KNOWN:
        return _on_hub(name, folders, download)
    if Path(name).exists():
        return _at_path(Path(name))
    present = sorted({entry for folder in folders for entry in _data_sets_in(folder)})
    listed = f"The data folder contains {join_some(present, 20)}. " if present else ""
    raise UnknownNameError(
        f"Unknown image data set {name!r}.{did_you_mean(name, (*present, *KNOWN, *SYNTHETIC))} {listed}Choose one of "
        f"{', '.join((*KNOWN, *SYNTHETIC))}, or pass the path of a folder, zip or table, or hf:owner/name."
    )


def is_at_path(data: str, root: str | None, download: bool) -> bool:
    """Whether a data set is given by the path of a folder, zip or table; raise an error if there is none."""
    if data.startswith("hf:"):
        return False
    place = locate(data, root, download)
    return place.table is not None or place.path == Path(data).expanduser()


def names_of(name: str) -> tuple[str, ...]:
    """Return the possible names of the folder or zip of a data set."""
    return (name, *(KNOWN[name].folders if name in KNOWN else ()))


def _at_path(path: Path) -> Place:
    if (shards := find_shards(path)) is not None:
        return Place(path.stem if path.is_file() else shards.folder.absolute().name, path)
    if not path.exists():
        hub = f" A data set on the Hugging Face hub is written hf:{path}." if HUB_NAME.fullmatch(str(path)) else ""
        raise MissingDataError(f"There is no file or folder {path}.{hub}")
    if path.is_file() and path.suffix.lower() in OTHER_ARCHIVES:
        raise DataError(f"{path} is not a zip file. Unpack it, and pass the folder.")
    if path.is_file() and path.suffix.lower() == ".csv":
        folder = path.absolute().parent
        return Place(folder.name if path.name == TABLE else path.stem, path.parent, table=str(path.absolute()))
    return Place(path.absolute().name if path.is_dir() else path.stem, path)


def _on_hub(name: str, folders: list[Path], download: bool) -> Place:
    """Return the place of a known data set that is not in a data folder."""
    known = KNOWN[name]
    if known.hub is not None and (may_fetch(download) or _is_cached(known.hub)):
        return Place(name, hub=known.hub, known=known)
    looked = f"looked in {join_some(map(str, folders))}" if folders else "POWERPOOL_DATA is not set"
    here = f" To use the folder of that name here, pass ./{name}." if Path(name).is_dir() else ""
    remedy = f"pass root=, a folder with {name}/ or {name}.zip that contains {known.layout}.{here}"
    if known.hub is not None:
        remedy = how_to_fetch(f"pass download=True to load {known.hub} from the Hugging Face hub, or {remedy}")
    raise MissingDataError(f"{name} was not found ({looked}): {remedy}")


def _data_sets_in(folder: Path) -> Iterator[str]:
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name in ("images", "graphs") or is_ignored(entry.name):
            continue
        if entry.is_dir() or entry.suffix == ".zip":
            yield entry.name if entry.is_dir() else entry.stem


# ---- listings --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row of a table of the hub, with the bytes of an image or the path of its file."""

    table: Any
    column: str
    number: int

    def read(self) -> bytes:
        """Return the bytes of the image."""
        cell = self.table[self.number][self.column]
        if cell["bytes"] is not None:
            return cell["bytes"]
        try:
            require_file(cell["path"])
            return Path(cell["path"]).read_bytes()
        except (OSError, TypeError, ValueError) as error:  # a foreign table may contain any path, or none
            raise ImageError(f"Cannot read the file {cell['path']!r} of row {self.number}: {error}") from error


ImageSource = str | Row | Member
"""Where an image is read from: the path of a file, a row of a table, or a part of a shard."""


@dataclass(frozen=True)
class Listing:
    """The labelled images of a data set, before it is split."""

    source: str
    """What error messages call the data set."""
    images: list[Labelled]
    sources: Mapping[str, ImageSource]
    hashes: Mapping[str, str]
    classes: tuple[str, ...] | None = None
    """The classes in the order of the data set, if it has one."""
    remarks: tuple[str, ...] = ()
    """What was left out."""


def list_place(
    place: Place,
    limits: Limits,
    download: bool,
    *,
    nested: bool = False,
    strict: bool = False,
    problem: str | None = None,
) -> Listing:
    """List the images of a data set with their classes, splits and hashes; no image is decoded.

    Args:
        place: where it is.
        limits: maximum sizes of zips and lists.
        download: whether a data set of the hub may be downloaded.
        nested: whether class names may have several parts. Only then Open MIC is recognised.
        strict: whether anything that would be left out is an error.
        problem: a problem of Open MIC.
    """
    if place.path is None:
        assert place.hub is not None
        if place.table is not None:
            raise ArgumentError(f"A table of splits needs a folder or zip of images (got {place.hub} of the hub).")
        if problem is not None:
            raise no_problems(place.hub, problem)
        return load_hub(place.hub, download)
    source, tree = str(place.path), find_shards(place.path) or open_tree(place.path, limits)
    shards = list_shards(tree, limits, place.table) if problem is None and are_shards(tree.names) else None
    if shards:
        images = shards.images
    elif problem is not None or (nested and (place.name == "open_mic" or is_open_mic(tree.names))):
        images = arrange_open_mic(tree.names, problem, source)
    else:
        read = partial(tree.read_text, limits=limits)
        images = arrange(tree.names, read, source, nested=nested, table=place.table)
    remarks = describe_left_out(images, tree, place.table)
    if remarks and strict:
        raise DataError(f"{source}: {' '.join(remarks)} Move them away, or allow to skip them without strict.")
    if shards:
        return Listing(source, *shards, classes=shards.classes, remarks=remarks)
    sources: dict[str, ImageSource] = {image.file: str(tree.folder / image.file) for image in images}
    return Listing(source, images, sources, tree.hashes or hash_files(tree.folder, [*sources]), remarks=remarks)


# ---- the Hugging Face hub --------------------------------------------------------------------------------------------

HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_hub_settings = threading.Lock()


def load_hub(name: str, download: bool) -> Listing:
    """List a data set of the hub, from this machine or, if allowed, from the network; no image is decoded."""
    tables = _load_tables(name, download)
    images: list[Labelled] = []
    sources: dict[str, ImageSource] = {}
    hashes: dict[str, str] = {}
    classes: tuple[str, ...] = ()
    for own_name, table in tables.items():
        split = SPLITS.get(str(own_name).lower())
        if split is None:
            continue
        column, label_column = _find_columns(name, table)
        table = table.cast_column(column, _datasets().Image(decode=False))
        labels, classes = _read_labels(name, table, label_column)
        if set(labels) == {None}:  # a test split whose labels are secret
            continue
        names = [f"{split}/{label}/{number:06d}" for number, label in enumerate(labels)]
        images += [Labelled(file, str(label), split) for file, label in zip(names, labels, strict=True)]
        sources |= {file: Row(table, column, number) for number, file in enumerate(names)}
        hashes |= dict(zip(names, _hash_rows(table, column), strict=True))
    if not images:
        raise DataError(f"{name} on the Hugging Face hub has no split of labelled images (it has {', '.join(tables)}).")
    return Listing(name, images, sources, hashes, classes or tuple(sorted({image.label for image in images})))


def _is_cached(name: str) -> bool:
    """Whether this machine has a copy of a data set of the hub, as far as is known without importing datasets."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    return (folder / name.replace("/", "___")).is_dir()


def _load_tables(name: str, download: bool) -> dict[str, Any]:
    if not HUB_NAME.fullmatch(name):
        raise UnknownNameError(f"The name of a data set on the Hugging Face hub must be owner/name (got {name!r}).")
    datasets = _datasets()
    try:
        with _hub_configured(offline=not may_fetch(download)):
            return datasets.load_dataset(name)
    except Exception as error:  # the network, the hub, files and caches all have their own errors
        if not may_fetch(download):
            remedy = f"It is not on this machine: {how_to_fetch('pass download=True.')}"
        else:
            remedy = "HF_HUB_OFFLINE is set." if datasets.config.HF_HUB_OFFLINE else "Check the name and the network."
        raise MissingDataError(f"Cannot load {name} from the Hugging Face hub: {error} {remedy}") from error


@contextlib.contextmanager
def _hub_configured(offline: bool) -> Iterator[None]:
    """Disable telemetry and, if asked for, the network."""
    from huggingface_hub import constants

    config = _datasets().config
    # Both packages read their environment variables once, on import; afterwards only these attributes count.
    changes: list[tuple[Any, str, bool]] = [
        (config, "HF_UPDATE_DOWNLOAD_COUNTS", False),
        (constants, "HF_HUB_DISABLE_TELEMETRY", True),
    ]
    if offline:
        changes += [(config, "HF_HUB_OFFLINE", True), (constants, "HF_HUB_OFFLINE", True)]
    with _hub_settings:
        before = [getattr(module, name) for module, name, _ in changes]
        try:
            for module, name, value in changes:
                setattr(module, name, value)
            yield
        finally:
            for (module, name, _), value in zip(changes, before, strict=True):
                setattr(module, name, value)


def _find_columns(name: str, table: Any) -> tuple[str, str]:
    """Return the columns of the images and of their classes."""
    kinds = _datasets()
    images = [column for column, kind in table.features.items() if isinstance(kind, kinds.Image)]
    labels = [column for column, kind in table.features.items() if isinstance(kind, kinds.ClassLabel)]
    labels = [column for column in ("label", "labels") if column in table.features] or labels
    if len(images) != 1 or len(labels) != 1:
        columns = ", ".join(f"{column}: {type(kind).__name__}" for column, kind in table.features.items())
        raise DataError(
            f"{name} on the Hugging Face hub must have one column of images and one of classes named label "
            f"(it has {columns})."
        )
    return images[0], labels[0]


def _read_labels(name: str, table: Any, column: str) -> tuple[list[str | None], tuple[str, ...]]:
    """Return the class of each row, None if it is unknown, and the declared classes in their order."""
    kind, values = table.features[column], list(table[column])
    if isinstance(kind, _datasets().ClassLabel):
        labels = [None if value is None or value < 0 else kind.names[value] for value in values]
    else:
        labels = [None if value is None else str(value) for value in values]
    if None in labels and set(labels) != {None}:
        raise DataError(f"{name} on the Hugging Face hub has no class in row {labels.index(None)} of {len(labels)}.")
    return labels, tuple(kind.names) if isinstance(kind, _datasets().ClassLabel) else ()


def _hash_rows(table: Any, column: str) -> list[str]:
    """Return the content hash of each image; hashes are cached under the fingerprint of the table."""
    cache = cache_folder("images") / "digests" / f"hub-{table._fingerprint}-{len(table)}.json"
    with contextlib.suppress(RecordError):
        found = read_json(cache)
        if isinstance(found, list) and len(found) == len(table):
            return found
    logging.getLogger(__name__).info("Hashing %d images of the Hugging Face hub, once", len(table))
    hashes = [content_hash(Row(table, column, number).read()).hexdigest() for number in range(len(table))]
    with contextlib.suppress(RecordError, OSError):
        write_json(cache, hashes)
    return hashes


def _datasets() -> Any:
    return require_package("datasets", "The Hugging Face hub", "vision")
