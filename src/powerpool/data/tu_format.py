"""Graph data sets in the text format of the TU collection: finding, downloading, and reading them as tensors.

A data set ``NAME`` consists of files with one row of comma-separated numbers per line; nodes and graphs count from 1:

- ``NAME_A.txt``: one edge per line, ``source, target``, as node numbers;
- ``NAME_graph_indicator.txt``: the graph of each node;
- ``NAME_graph_labels.txt``: the class of each graph; or ``NAME_graph_attributes.txt``, a target for regression;
- optional: ``NAME_node_labels.txt``, ``NAME_node_attributes.txt``, and for each line of ``NAME_A.txt``
  ``NAME_edge_labels.txt`` and ``NAME_edge_attributes.txt``. Labels are integers, attributes any numbers.

Nothing is unpacked or cached: a damaged or replaced file cannot leave a result behind.
"""

from __future__ import annotations

import importlib.util
import logging
import re
import urllib.request
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path, PurePosixPath
from typing import IO

import torch
from torch import Tensor

from powerpool.data.archives import open_zip
from powerpool.data.graph_tables import GraphSource, read_tables
from powerpool.data.store import (
    DataError,
    Limits,
    MissingDataError,
    cache_error,
    cache_folder,
    data_folders,
    find_named,
    how_to_fetch,
    is_path,
    may_fetch,
    require_package,
    require_size,
)
from powerpool.errors import RecordError, UnknownNameError, did_you_mean, shorten
from powerpool.files import atomic

GRAPHS = {
    "MUTAG": 188,
    "PTC_MR": 344,
    "PROTEINS": 1113,
    "NCI1": 4110,
    "COLLAB": 5000,
    "REDDIT-BINARY": 2000,
    "REDDIT-MULTI-5K": 4999,
    "IMDB-BINARY": 1000,
    "IMDB-MULTI": 1500,
}
"""The data sets known by name, and their numbers of graphs."""
URL = "https://www.chrsmrrs.com/graphkerneldatasets/{name}.zip"
"""The official copy of the TU collection."""
TIMEOUT = 30.0
"""Seconds without an answer after which a download fails."""


# ---- finding and downloading -----------------------------------------------------------------------------------------


def locate(name: str | Path, root: str | Path | None, download: bool, limits: Limits) -> tuple[Path, str | None]:
    """Return the folder or zip of a data set, and its name unless it was given by its path.

    A name is looked for in ``root`` (by default ``$POWERPOOL_DATA``), in the cache, and, for MUTAG, in the installed
    package grakel.
    """
    if is_at_path(name):
        return Path(name).expanduser(), None
    name = str(name)
    folders = [*data_folders(root, "graphs"), cache_folder("graphs")]
    looked = f"looked in {', '.join(str(folder) for folder in folders)}"
    found = find_named([name], folders)
    if found is not None:
        return (found / "raw" if (found / "raw").is_dir() else found), name
    if name not in GRAPHS:
        raise UnknownNameError(
            f"Unknown graph data set {name!r} ({looked}).{did_you_mean(name, GRAPHS)} Choose one of "
            f"{', '.join(GRAPHS)}, or pass the path of a folder or zip in TU format."
        )
    if name == "MUTAG" and (folder := _mutag_of_grakel()) is not None:
        return folder, name
    if not may_fetch(download):
        remedy = how_to_fetch(f"Pass download=True, or root=, a folder with {name}.zip or {name}/.")
        raise MissingDataError(f"{name} was not found ({looked}). {remedy}")
    return fetch(name, limits), name


def is_at_path(name: str | Path) -> bool:
    """Whether a data set is given by the path of a folder or zip."""
    return is_path(name) or (name not in GRAPHS and Path(name).exists())


def fetch(name: str, limits: Limits) -> Path:
    """Download a data set into the cache; the file appears once it has been read without an error."""
    target, url = cache_folder("graphs") / f"{name}.zip", URL.format(name=name)
    by_hand = f"Download it by other means, and pass root=, the folder that contains {name}.zip."
    logging.getLogger(__name__).info("Downloading %s to %s", url, target)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            content = answer.read(limits.text + 1)
            if answer.length and len(content) <= limits.text:
                raise IncompleteRead(content, answer.length)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise MissingDataError(f"{name} could not be downloaded from {url} ({reason}). {by_hand}") from error
    require_size(url, len(content), limits)
    try:
        with atomic(target) as temporary:
            temporary.write_bytes(content)
            with TuFiles.open(temporary, name, limits) as files:
                graphs = len(read_tables(files, edges="directed").node_ptr) - 1
            if graphs != GRAPHS[name]:
                raise DataError(f"{graphs} graphs instead of {GRAPHS[name]}.")
    except DataError as error:
        raise DataError(f"The download of {url} is not {name} and was not kept: {error} {by_hand}") from error
    except (OSError, RecordError) as error:
        raise cache_error(target, error, DataError) from error
    return target


def _mutag_of_grakel() -> Path | None:
    found = importlib.util.find_spec("grakel")  # only the folder: importing grakel takes a second
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / "tests" / "data" / "MUTAG"
    return folder if folder.is_dir() else None


# ---- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TuFiles(GraphSource):
    """The text files of one data set, in a folder or in a zip; ``name`` is the prefix of their names."""

    path: Path
    name: str
    files: dict[str, Path | zipfile.Path]
    limits: Limits

    @classmethod
    @contextmanager
    def open(cls, path: Path, name: str | None, limits: Limits) -> Iterator[TuFiles]:
        """Open the data set ``name`` at a path, or the only one there."""
        with ExitStack() as stack:
            files: dict[str, Path | zipfile.Path]
            if path.is_dir():
                files = {file.name: file for file in sorted(path.iterdir()) if file.is_file()}
            else:
                archive = stack.enter_context(open_zip(path, limits))
                files = {PurePosixPath(inner).name: zipfile.Path(archive, inner) for inner in archive.namelist()}
            yield cls(path, name or _only_name(path, files), files, limits)

    def file_name(self, kind: str) -> str:
        """Return the file name of a kind, for instance ``MUTAG_A.txt`` for ``A``."""
        return f"{self.name}_{kind}.txt"

    def label(self, kind: str) -> str:
        """Return what errors call a file."""
        return str(self.files.get(self.file_name(kind), self.path / self.file_name(kind)))

    def __contains__(self, kind: str) -> bool:
        return self.file_name(kind) in self.files

    def where(self, kind: str, row: int) -> str:
        """Return the file and the line of a row."""
        return f"{self.label(kind)}, line {row + 1}"

    def read(self, kind: str, columns: int | None = 1) -> Tensor:  # shape: (lines, columns)
        """Return the numbers of a required file."""
        label, is_integer = self.label(kind), not kind.endswith("_attributes")
        if kind not in self:
            raise MissingDataError(
                f"{label} is missing. A graph data set in TU format needs {self.file_name('A')}, "
                f"{self.file_name('graph_indicator')} and {self.file_name('graph_labels')}."
            )
        file = self.files[self.file_name(kind)]
        size = file.stat().st_size if isinstance(file, Path) else file.root.getinfo(file.at).file_size
        require_size(label, size, self.limits)
        try:
            # Latin-1 decodes any bytes: text that is not ASCII then fails as a number, with its line.
            with file.open(encoding="latin-1") as stream:
                return parse_numbers(stream, columns, is_integer)
        except OSError as error:
            raise DataError(f"Cannot read {label}: {error.strerror or error}.") from error
        except (ValueError, Warning) as error:
            with file.open(encoding="latin-1") as stream:
                raise _describe_damage(stream, label, columns, is_integer) from error


def _only_name(path: Path, files: Iterable[str]) -> str:
    found = [name.removesuffix("_A.txt") for name in files if name.endswith("_A.txt")]
    if len(found) != 1:
        raise MissingDataError(
            f"{path} must contain one graph data set in TU format, with one file NAME_A.txt "
            f"(found {', '.join(found) if found else 'none'})."
        )
    return found[0]


def parse_numbers(
    stream: IO[str], columns: int | None = 1, is_integer: bool = True
) -> Tensor:  # shape: (lines, columns)
    """Parse lines of comma-separated integers, or of any numbers as float64; empty lines are skipped.

    Example:
        >>> import io
        >>> parse_numbers(io.StringIO("1, 2\\n2, 1\\n"), columns=2).tolist()
        [[1, 2], [2, 1]]
    """
    numpy = require_package("numpy", "Reading graph data sets", "graph")
    dtype = numpy.int64 if is_integer else numpy.float64
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of an empty file, and of decimals where it still accepts them
        numbers = numpy.loadtxt(stream, dtype=dtype, delimiter=",", comments=None, ndmin=2)
    if columns is not None and numbers.shape[1] != columns:
        raise ValueError(f"{numbers.shape[1]} columns")
    return torch.from_numpy(numbers)


def _describe_damage(stream: IO[str], label: str, columns: int | None, is_integer: bool) -> DataError:
    """Find the line that could not be parsed."""
    what = "integer" if is_integer else "number"
    is_valid = re.compile(r"\s*[-+]?\d{1,18}\s*", re.ASCII).fullmatch if is_integer else _is_number
    wanted = f"one {what}" if columns == 1 else f"{columns or 'as many'} {what}s separated by commas"
    for number, line in enumerate(stream, start=1):
        text = line.rstrip("\r\n")
        if not text:
            continue
        parts = text.split(",")
        columns = columns or len(parts)
        if len(parts) != columns or not all(is_valid(part) for part in parts):
            return DataError(f"{label}, line {number}: expected {wanted} (got {shorten(text, 40)!r}).")
    return DataError(f"{label} is empty: expected {wanted} per line. Copy or download the data set again.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text  # Python allows it between digits, numpy does not
