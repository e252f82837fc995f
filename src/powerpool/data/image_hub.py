"""Sets of pictures of the Hugging Face hub, as tables of bytes: nothing is decoded before it is asked for."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerpool.data.archives import content_hash
from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.image_layouts import SPLITS, Labelled
from powerpool.data.pictures import ImageError, require_file
from powerpool.data.places import cache_folder, how_to_fetch, may_fetch
from powerpool.errors import RecordError, UnknownNameError
from powerpool.files import read_json, write_json

HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""How sets are called: owner/name."""
Table = Any
"""A ``datasets.Dataset``; that package has no types."""

_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Row:
    """One row of a table, with the bytes of a picture or the path of its file."""

    table: Table
    column: str
    number: int

    def read(self) -> bytes:
        """The bytes of the picture."""
        cell = self.table[self.number][self.column]
        if cell["bytes"] is not None:
            return cell["bytes"]
        try:
            require_file(cell["path"])
            return Path(cell["path"]).read_bytes()
        except (OSError, TypeError, ValueError) as error:  # a table of others may name anything, or nothing
            if isinstance(error, ImageError):
                raise
            raise ImageError(f"Row {self.number} names the file {cell['path']!r}, which cannot be read.") from error


PictureSource = str | Row
"""Where a picture is read from: the path of a file, or a row of a table."""


@dataclass(frozen=True)
class HubSet:
    """A set of the hub, as it is described there."""

    labelled: list[Labelled]
    classes: tuple[str, ...]
    sources: dict[str, PictureSource]
    hashes: dict[str, str]


def is_cached(name: str) -> bool:
    """Whether there is a copy of a set of the hub on this machine, as far as can be told without importing datasets."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    folder = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    return (folder / name.replace("/", "___")).is_dir()


def load_hub(name: str, download: bool) -> HubSet:
    """A set of the hub, from this machine or, if that is allowed, from the network."""
    tables = _load_tables(name, download)
    labelled: list[Labelled] = []
    sources: dict[str, PictureSource] = {}
    hashes: dict[str, str] = {}
    classes: tuple[str, ...] = ()
    for own, table in tables.items():
        split = SPLITS.get(str(own).lower())
        if split is None:
            continue
        picture, label = _columns(name, table)
        table = table.cast_column(picture, _datasets().Image(decode=False))
        labels, classes = _labels(name, table, label)
        if set(labels) == {None}:  # a test split whose labels are secret
            continue
        names = [f"{split}/{label}/{number:06d}" for number, label in enumerate(labels)]
        labelled += [Labelled(file, str(label), split) for file, label in zip(names, labels, strict=True)]
        sources |= {file: Row(table, picture, number) for number, file in enumerate(names)}
        hashes |= dict(zip(names, _hash_rows(table, picture), strict=True))
    if not labelled:
        raise DataError(f"{name} on the hub has no split of labelled pictures (it has {', '.join(map(str, tables))}).")
    return HubSet(labelled, classes or tuple(sorted({picture.label for picture in labelled})), sources, hashes)


def _load_tables(name: str, download: bool) -> dict[str, Table]:
    if not HUB.fullmatch(name):
        raise UnknownNameError(f"A set on the Hugging Face hub is called owner/name (got {name!r}).")
    datasets = _datasets()
    try:
        with _settings(offline=not may_fetch(download)):
            return datasets.load_dataset(name)
    except Exception as error:  # of the network, the hub, the files and the cache: one for each, and more
        if may_fetch(download):
            remedy = "HF_HUB_OFFLINE is set." if datasets.config.HF_HUB_OFFLINE else "Look at the name and the network."
        else:
            remedy = f"It is not on this machine: {how_to_fetch('allow download=True.')}"
        raise MissingDataError(f"Cannot load {name} from the Hugging Face hub: {error} {remedy}") from error


@contextlib.contextmanager
def _settings(offline: bool) -> Iterator[None]:
    """No use is reported, and nothing goes over the network where that is not allowed."""
    from huggingface_hub import constants

    config = _datasets().config
    # Both read the variables of the environment once, when they are imported: later it is these that count.
    changes: list[tuple[Any, str, bool]] = [(config, "HF_UPDATE_DOWNLOAD_COUNTS", False)]
    changes.append((constants, "HF_HUB_DISABLE_TELEMETRY", True))
    if offline:
        changes += [(config, "HF_HUB_OFFLINE", True), (constants, "HF_HUB_OFFLINE", True)]
    with _one_at_a_time:
        before = [getattr(module, name) for module, name, _ in changes]
        try:
            for module, name, value in changes:
                setattr(module, name, value)
            yield
        finally:
            for (module, name, _), value in zip(changes, before, strict=True):
                setattr(module, name, value)


def _columns(name: str, table: Table) -> tuple[str, str]:
    """The columns of the pictures and of their classes."""
    kinds = _datasets()
    pictures = [column for column, kind in table.features.items() if isinstance(kind, kinds.Image)]
    labels = [column for column, kind in table.features.items() if isinstance(kind, kinds.ClassLabel)]
    labels = [column for column in ("label", "labels") if column in table.features] or labels
    if len(pictures) != 1 or len(labels) != 1:
        raise DataError(
            f"{name} on the hub must have one column of pictures and one of classes, called label "
            f"(it has {', '.join(f'{column}: {type(kind).__name__}' for column, kind in table.features.items())})."
        )
    return pictures[0], labels[0]


def _labels(name: str, table: Table, column: str) -> tuple[list[str | None], tuple[str, ...]]:
    """The class of each row, None where it is not told; and all classes in their order, where they are declared."""
    kind, values = table.features[column], list(table[column])
    if isinstance(kind, _datasets().ClassLabel):
        known = [None if value is None or value < 0 else kind.names[value] for value in values]
    else:
        known = [None if value is None else str(value) for value in values]
    if None in known and set(known) != {None}:
        raise DataError(f"{name} on the hub has no class in row {known.index(None)} of {len(known)}.")
    return known, tuple(kind.names) if isinstance(kind, _datasets().ClassLabel) else ()


def _hash_rows(table: Table, column: str) -> list[str]:
    """The hash of each picture; kept in the cache, under the fingerprint that the library gives a table."""
    cache = cache_folder("images") / "digests" / f"hub-{table._fingerprint}-{len(table)}.json"
    with contextlib.suppress(RecordError):
        found = read_json(cache)
        if isinstance(found, list) and len(found) == len(table):
            return found
    logging.getLogger(__name__).info("Hashing %d pictures of the Hugging Face hub, once", len(table))
    hashes = []
    for number in range(len(table)):
        digest = content_hash()
        digest.update(Row(table, column, number).read())
        hashes.append(digest.hexdigest())
    with contextlib.suppress(RecordError, OSError):
        write_json(cache, hashes)
    return hashes


def _datasets() -> Any:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Sets of the Hugging Face hub need datasets, which is not installed: pip install 'powerpool[vision]'.",
            name=error.name,
        ) from error
    return datasets
