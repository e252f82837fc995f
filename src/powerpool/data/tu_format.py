"""Graph data sets in the text format of the TU collection: finding, downloading, and reading them as tensors.

A data set ``NAME`` consists of files with one or two integers per line, counted from 1:

- ``NAME_A.txt``: one edge per line, ``source, target``, as node numbers;
- ``NAME_graph_indicator.txt``: the graph of each node;
- ``NAME_graph_labels.txt``: the class of each graph;
- ``NAME_node_labels.txt``: the label of each node; optional.

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

EDGES = ("undirected", "symmetrise", "directed")
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
class TuFiles:
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

    def read(self, kind: str, columns: int = 1) -> Tensor:  # shape: (lines, columns)
        """Return the integers of a required file."""
        label = self.label(kind)
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
                return parse_integers(stream, columns)
        except OSError as error:
            raise DataError(f"Cannot read {label}: {error.strerror or error}.") from error
        except (ValueError, Warning) as error:
            with file.open(encoding="latin-1") as stream:
                raise _describe_damage(stream, label, columns) from error


def _only_name(path: Path, files: Iterable[str]) -> str:
    found = [name.removesuffix("_A.txt") for name in files if name.endswith("_A.txt")]
    if len(found) != 1:
        raise MissingDataError(
            f"{path} must contain one graph data set in TU format, with one file NAME_A.txt "
            f"(found {', '.join(found) if found else 'none'})."
        )
    return found[0]


def parse_integers(stream: IO[str], columns: int = 1) -> Tensor:  # shape: (lines, columns)
    """Parse lines of comma-separated integers; empty lines are skipped.

    Example:
        >>> import io
        >>> parse_integers(io.StringIO("1, 2\\n2, 1\\n"), columns=2).tolist()
        [[1, 2], [2, 1]]
    """
    numpy = require_package("numpy", "Reading graph data sets", "graph")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # numpy warns of an empty file, and of decimals where it still accepts them
        numbers = numpy.loadtxt(stream, dtype=numpy.int64, delimiter=",", comments=None, ndmin=2)
    if numbers.shape[1] != columns:
        raise ValueError(f"{numbers.shape[1]} columns")
    return torch.from_numpy(numbers)


def _describe_damage(stream: IO[str], label: str, columns: int) -> DataError:
    """Find the line that could not be parsed."""
    wanted = "one integer" if columns == 1 else f"{columns} integers separated by commas"
    line_format = re.compile(r"\s*,".join([r"\s*[-+]?\d{1,18}"] * columns), re.ASCII)
    for number, line in enumerate(stream, start=1):
        text = line.rstrip("\r\n")
        if text and not line_format.fullmatch(text.rstrip()):
            return DataError(f"{label}, line {number}: expected {wanted} (got {shorten(text, 40)!r}).")
    return DataError(f"{label} is empty: expected {wanted} per line. Copy or download the data set again.")


# ---- tables ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TuTables:
    """The validated content of a data set: nodes and edges are sorted by graph, and everything is counted from 0."""

    node_ptr: Tensor  # shape: (graphs + 1,), first node of each graph
    edge_index: Tensor  # shape: (2, edges), source and target; sorted by target, then source
    edge_ptr: Tensor  # shape: (graphs + 1,), first edge of each graph
    graph_labels: Tensor | None  # shape: (graphs,), as in the file
    node_labels: Tensor | None  # shape: (nodes,), as in the file
    dropped: int  # lines with a repeated edge or a self-loop


def read_tables(files: TuFiles, edges: str = "undirected", labelled: bool = True) -> TuTables:
    """Read all files and check that they agree; see :func:`powerpool.data.load_graphs` for the arguments."""
    owner = _read_owners(files)
    node_ptr = torch.searchsorted(owner, torch.arange(int(owner[-1]) + 2))
    graph_labels = _read_labels(files, "graph_labels", len(node_ptr) - 1, "graph") if labelled else None
    node_labels = _read_labels(files, "node_labels", len(owner), "node") if "node_labels" in files else None
    edge_index, dropped = _read_edges(files, owner, edges)
    edge_ptr = torch.searchsorted(edge_index[1], node_ptr)
    return TuTables(node_ptr, edge_index, edge_ptr, graph_labels, node_labels, dropped)


def _first(wrong: Tensor) -> int | None:
    """Return the first index that is True, or None."""
    return int(wrong.int().argmax()) if bool(wrong.any()) else None


def _read_owners(files: TuFiles) -> Tensor:  # shape: (nodes,)
    """Return the graph of each node from 0; nodes must be sorted by graph, and every graph needs a node."""
    owner = files.read("graph_indicator").flatten()
    before = torch.cat([owner.new_zeros(1), owner[:-1]])
    line = _first(((owner != before) & (owner != before + 1)) | (owner < 1))
    if line is not None:
        raise DataError(
            f"{files.label('graph_indicator')}, line {line + 1}: graph {int(owner[line])} follows graph "
            f"{int(before[line])}. Nodes must be sorted by graph, from graph 1 on and without gaps."
        )
    return owner - 1


def _read_labels(files: TuFiles, kind: str, expected: int, what: str) -> Tensor:  # shape: (expected,)
    labels = files.read(kind).flatten()
    if len(labels) != expected:
        raise DataError(
            f"{files.label(kind)} has {len(labels)} lines, expected {expected}, one for each {what} in "
            f"{files.file_name('graph_indicator')}. Copy or download the data set again."
        )
    return labels


def _read_edges(files: TuFiles, owner: Tensor, direction: str) -> tuple[Tensor, int]:
    """Return edges sorted by target, then source, and the number of repeated edges and self-loops."""
    pairs = files.read("A", columns=2)  # shape: (lines, 2)
    nodes = len(owner)

    def refuse(line: int, problem: str) -> DataError:
        start, end = pairs[line].tolist()
        return DataError(f"{files.label('A')}, line {line + 1}: the edge from node {start} to node {end} {problem}")

    if (line := _first(((pairs < 1) | (pairs > nodes)).any(1))) is not None:
        raise refuse(line, f"is invalid: {files.file_name('graph_indicator')} has nodes 1 to {nodes}.")
    ends = owner[pairs - 1]
    if (line := _first(ends[:, 0] != ends[:, 1])) is not None:
        first, second = (ends[line] + 1).tolist()
        raise refuse(line, f"connects graph {first} with graph {second}.")
    source, target = (pairs - 1).T
    # One number per edge: equal edges have equal numbers, which sort by target, then source.
    key = (target * nodes + source)[source != target].sort().values
    key = key[key.diff(prepend=key.new_full((1,), -1)) > 0]
    dropped = len(pairs) - len(key)
    if direction != "directed":
        reverse = (key % nodes * nodes + key // nodes).sort().values
        if direction == "undirected" and not torch.equal(key, reverse):
            line = _first(torch.isin(source * nodes + target, key, invert=True) & (source != target))
            assert line is not None
            raise refuse(
                line,
                "has no reverse edge. If the file is complete, pass edges='symmetrise' to add reverse edges, or "
                "edges='directed' to keep edges as they are.",
            )
        if direction == "symmetrise":
            key = torch.cat([key, reverse]).unique()
    return torch.stack([key % nodes, key // nodes]), dropped
