"""The text files of the TU collection of graphs: from a folder or a zip to tensors, or to an error that names the line.

A set ``NAME`` consists of lines of whole numbers, counted from 1:

- ``NAME_A.txt``: one edge per line, ``source, target``, as numbers of nodes;
- ``NAME_graph_indicator.txt``: the graph of each node;
- ``NAME_graph_labels.txt``: the class of each graph;
- ``NAME_node_labels.txt``: the label of each node; many sets have none.

Nothing is unpacked and nothing is cached: a file that is damaged, or replaced, cannot leave a result behind.
"""

from __future__ import annotations

import re
import stat
import struct
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import torch
from torch import Tensor

from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.limits import Limits, how_to_raise

EDGES = ("undirected", "symmetrise", "directed")
CHUNK = 1 << 24
"""Bytes that are parsed at once: memory should not hold all the text of a large set, and its copies, at a time."""
DIGITS = 18
"""The longest number that is sure to fit into 64 bits."""


@dataclass(frozen=True)
class TuTables:
    """The content of a set, checked: nodes and edges come graph by graph, and all are counted from 0."""

    node_ptr: Tensor  # shape: (graphs + 1,), first node of each graph
    edge_index: Tensor  # shape: (2, edges), source and target; sorted by target, then source
    edge_ptr: Tensor  # shape: (graphs + 1,), first edge of each graph
    graph_labels: Tensor | None  # shape: (graphs,), as in the file
    node_labels: Tensor | None  # shape: (nodes,), as in the file
    dropped: int  # lines that repeat an edge, or join a node to itself


class TuFiles:
    """The text files of one set, in a folder or in a zip; ``name`` is what their names begin with."""

    def __init__(
        self,
        path: Path,
        name: str,
        files: dict[str, Path | zipfile.ZipInfo],
        archive: zipfile.ZipFile | None,
        limits: Limits,
    ) -> None:
        self.path, self.name = path, name
        self._files, self._archive, self._limits = files, archive, limits

    @classmethod
    @contextmanager
    def open(cls, path: Path, name: str | None = None, limits: Limits | None = None) -> Iterator[TuFiles]:
        """The set ``name`` at a path; without a name, the one set that is there."""
        limits = limits or Limits()
        with ExitStack() as stack:
            archive: zipfile.ZipFile | None = None
            files: dict[str, Path | zipfile.ZipInfo]
            with _naming(str(path)):
                if path.is_dir():
                    files = {file.name: file for file in sorted(path.iterdir()) if file.is_file()}
                else:
                    archive = stack.enter_context(_open_zip(path, limits))
                    files = {PurePosixPath(info.filename).name: info for info in archive.infolist()}
            yield cls(path, _only_set(path, files) if name is None else name, files, archive, limits)

    def file_name(self, kind: str) -> str:
        """As in ``MUTAG_A.txt`` for the kind ``A``."""
        return f"{self.name}_{kind}.txt"

    def label(self, kind: str) -> str:
        """The file as errors call it."""
        file = self._files.get(self.file_name(kind))
        return str(self.path / (file.filename if isinstance(file, zipfile.ZipInfo) else self.file_name(kind)))

    def __contains__(self, kind: str) -> bool:
        return self.file_name(kind) in self._files

    def numbers(self, kind: str, columns: int = 1) -> Tensor:  # shape: (lines, columns)
        """The whole numbers of a file that has to be there."""
        if kind not in self:
            present = [name for name in self._files if name.endswith(".txt")]
            raise MissingDataError(
                f"{self.label(kind)} is missing: a set of graphs in TU format has {self.name}_A.txt, "
                f"{self.name}_graph_indicator.txt and {self.name}_graph_labels.txt "
                f"(found {', '.join(present) if present else 'no text files'}). Copy or download the set again."
            )
        file = self._files[self.file_name(kind)]
        with _naming(self.label(kind)), self._stream(file) as stream:
            size = file.stat().st_size if isinstance(file, Path) else file.file_size
            if size > self._limits.text:
                raise DataError(
                    f"{self.label(kind)} is refused: it has {size:,} bytes, at most {self._limits.text:,} are read. "
                    f"{how_to_raise('text')}."
                )
            return read_integers(stream, self.label(kind), columns)

    def _stream(self, file: Path | zipfile.ZipInfo) -> IO[bytes]:
        if isinstance(file, Path):
            return file.open("rb")
        assert self._archive is not None
        return self._archive.open(file)


def read_tables(files: TuFiles, edges: str = "undirected", labelled: bool = True) -> TuTables:
    """Read all files of a set and check that they agree; see :func:`powerpool.data.load_graphs` for the arguments."""
    _require_numpy()
    owner = _owners(files)
    node_ptr = torch.searchsorted(owner, torch.arange(int(owner[-1]) + 2))
    graph_labels = node_labels = None
    if labelled:
        graph_labels = files.numbers("graph_labels").flatten()
        _require_lines(files, "graph_labels", len(graph_labels), "graph", len(node_ptr) - 1)
    if "node_labels" in files:
        node_labels = files.numbers("node_labels").flatten()
        _require_lines(files, "node_labels", len(node_labels), "node", len(owner))
    edge_index, dropped = _edges(files, owner, edges)
    edge_ptr = torch.searchsorted(edge_index[1], node_ptr)
    return TuTables(node_ptr, edge_index, edge_ptr, graph_labels, node_labels, dropped)


def _require_numpy() -> None:
    try:
        import numpy as np  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "Reading sets of graphs needs numpy, which is not installed: pip install 'powerpool[graph]'.",
            name=error.name,
        ) from error


# ---- what the numbers mean -------------------------------------------------------------------------------------------


def _owners(files: TuFiles) -> Tensor:  # shape: (nodes,)
    """The graph of each node, from 0; refused unless nodes come graph by graph and no graph is left out."""
    owner = files.numbers("graph_indicator").flatten()
    before = torch.cat([owner.new_zeros(1), owner[:-1]])
    wrong = ((owner != before) & (owner != before + 1)) | (owner < 1)
    if bool(wrong.any()):
        line = int(wrong.int().argmax())
        last = int(before[line])
        raise DataError(
            f"{files.label('graph_indicator')}, line {line + 1}: node {line + 1} is in graph {int(owner[line])}, "
            f"expected {f'{last} or {last + 1}' if line else 1}. Nodes are listed graph by graph from graph 1 on, and "
            "each graph has at least one."
        )
    return owner - 1


def _require_lines(files: TuFiles, kind: str, lines: int, what: str, expected: int) -> None:
    if lines == expected:
        return
    found = f"the file ends after {lines}" if lines < expected else f"there is a label for {what} {expected + 1}"
    raise DataError(
        f"{files.label(kind)}, line {min(lines, expected) + 1}: {found}, expected {expected} labels, one for each "
        f"{what} of {files.file_name('graph_indicator')}. One of the two files is not whole: copy or download "
        "the set again."
    )


def _edges(files: TuFiles, owner: Tensor, direction: str) -> tuple[Tensor, int]:
    """Edges sorted by target and then source, and how many lines repeat another or join a node to itself."""
    label = files.label("A")
    pairs = files.numbers("A", columns=2)  # shape: (lines, 2)
    nodes = len(owner)
    outside = ((pairs < 1) | (pairs > nodes)).any(1)
    if bool(outside.any()):
        line = int(outside.int().argmax())
        raise DataError(
            f"{label}, line {line + 1}: an edge from node {int(pairs[line, 0])} to node {int(pairs[line, 1])}, "
            f"expected nodes from 1 to {nodes}, the number of lines of {files.file_name('graph_indicator')}."
        )
    pairs -= 1
    ends = owner[pairs]
    crossing = ends[:, 0] != ends[:, 1]
    if bool(crossing.any()):
        line = int(crossing.int().argmax())
        (start, end), (first, second) = (pairs[line] + 1).tolist(), (ends[line] + 1).tolist()
        raise DataError(
            f"{label}, line {line + 1}: an edge from node {start} of graph {first} to node {end} of graph {second}, "
            "expected both in the same graph."
        )
    source, target = pairs.T
    # One number per edge: equal edges are equal numbers, and their order is the order by target, then source.
    key = (target * nodes + source)[source != target].sort().values
    key = key[key.diff(prepend=key.new_full((1,), -1)) > 0]
    dropped = len(pairs) - len(key)
    if direction != "directed":
        reverse = (key % nodes * nodes + key // nodes).sort().values
        if direction == "undirected" and not torch.equal(key, reverse):
            one_way = torch.isin(source * nodes + target, key, invert=True) & (source != target)
            line = int(one_way.int().argmax())
            start, end = (pairs[line] + 1).tolist()
            raise DataError(
                f"{label}, line {line + 1}: an edge from node {start} to node {end}, expected a line for the way back "
                f"too: {end}, {start}. If the file is whole, pass edges='symmetrise' to have the missing ways back "
                "added, or edges='directed' to keep edges as they are."
            )
        if direction == "symmetrise":
            key = torch.cat([key, reverse]).unique()
    return torch.stack([key % nodes, key // nodes]), dropped


# ---- text to numbers -------------------------------------------------------------------------------------------------


def read_integers(stream: IO[bytes], label: str, columns: int = 1) -> Tensor:  # shape: (lines, columns)
    """Lines of whole numbers, separated by commas; empty lines are allowed at the end only.

    Example:
        >>> import io
        >>> read_integers(io.BytesIO(b"1, 2\\n2, 1\\n"), "some_A.txt", columns=2).tolist()
        [[1, 2], [2, 1]]
    """
    parts: list[Tensor] = []
    line, blank = 1, 0  # number of the next line; number of the first empty line, if there was one
    while text := stream.read(CHUNK):
        text += stream.readline()
        body = text.rstrip(b" \t\r\n")
        lines = body.count(b"\n") + 1 if body else 0
        if body and blank:
            raise _not_numbers(label, blank, b"", columns)
        if body:
            parts.append(_parse(body, lines, label, line, columns))
        if not blank and text.count(b"\n") > lines:
            blank = line + lines
        line += lines
    if not parts:
        raise DataError(
            f"{label} is empty: expected {_wanted(columns)} in each line, from line 1 on. Copy or download the "
            "set again."
        )
    return torch.cat(parts)


def _parse(body: bytes, lines: int, label: str, first: int, columns: int) -> Tensor:  # shape: (lines, columns)
    """All lines at once where they are as they should be; one by one where one of them is not, to find out which."""
    import numpy as np

    commas_and_breaks = body.translate(None, b"0123456789- \t\r") + b"\n"
    if commas_and_breaks == (b"," * (columns - 1) + b"\n") * lines:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)  # how numpy says that it stopped before the end
            try:
                numbers = np.fromstring(body.replace(b"\n", b","), dtype=np.int64, sep=" ,")
            except (DeprecationWarning, ValueError):
                numbers = np.empty(0, dtype=np.int64)
        # A field without a number, or with two, ends the parse early. Too long a number is clipped to the largest one.
        if len(numbers) == lines * columns and numbers.min() > -(10**DIGITS) and numbers.max() < 10**DIGITS:
            return torch.from_numpy(numbers.reshape(lines, columns))
    field = rb"[ \t]*(-?\d{1,%d})[ \t\r]*" % DIGITS
    pattern = re.compile(b",".join([field] * columns))
    rows = []
    for number, text in enumerate(body.split(b"\n"), start=first):
        match = pattern.fullmatch(text)
        if match is None:
            raise _not_numbers(label, number, text, columns)
        rows.append([int(group) for group in match.groups()])
    return torch.tensor(rows)


def _not_numbers(label: str, line: int, text: bytes, columns: int) -> DataError:
    shown = text.strip().decode("utf-8", "backslashreplace")
    shown = f"{shown[:40]!r}..." if len(shown) > 40 else repr(shown)
    return DataError(f"{label}, line {line}: expected {_wanted(columns)} (got {shown}).")


def _wanted(columns: int) -> str:
    return "one whole number" if columns == 1 else f"{columns} whole numbers with commas between them"


# ---- files -----------------------------------------------------------------------------------------------------------


def _only_set(path: Path, files: dict[str, Path | zipfile.ZipInfo]) -> str:
    ending = "_A.txt"
    found = [name.removesuffix(ending) for name in files if name.endswith(ending)]
    if len(found) != 1:
        what = f"several: {', '.join(found)}" if found else "none"
        raise MissingDataError(
            f"{path} must hold one set of graphs in TU format, and so one file NAME_A.txt, beside "
            f"NAME_graph_indicator.txt and NAME_graph_labels.txt (found {what})."
        )
    return found[0]


def _open_zip(path: Path, limits: Limits) -> zipfile.ZipFile:
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise DataError(f"Cannot read {path}: it is a pipe or a device. Name a folder or a zip file.")
    if found.st_size > limits.unpacked:  # its directory is read whole
        raise DataError(
            f"{path} is refused: it has {found.st_size:,} bytes, at most {limits.unpacked:,} are read. "
            f"{how_to_raise('unpacked')}."
        )
    archive = None
    try:
        archive = zipfile.ZipFile(path)
        infos = archive.infolist()
        excess = limits.excess(found.st_size, len(infos), sum(info.file_size for info in infos))
        if excess is not None:
            raise DataError(f"{path} is refused: {excess}.")
        # zipfile does not compare: a damaged length in the directory can hide the files that come after.
        if _files_in_zip(path) != len(archive.infolist()):
            raise zipfile.BadZipFile("its directory does not list as many files as it says")
        for info in archive.infolist():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise zipfile.BadZipFile(
                    f"{info.filename} is compressed by method {info.compress_type}, expected deflate"
                )
            # Compares the name in the directory with the one at the file: a damaged name must not make an optional file
            # look as if it were not there.
            archive.open(info).close()
    except BaseException as error:
        if archive is not None:
            archive.close()
        # zipfile lets its own difficulties with damaged numbers out; RuntimeError also stands for a password.
        if not isinstance(error, DataError) and isinstance(error, (RuntimeError, ValueError, struct.error)):
            raise zipfile.BadZipFile(str(error)) from error
        raise
    return archive


def _files_in_zip(path: Path) -> int:
    """How many files the record at the end of a zip promises; TU sets are far below 65535, where it stops counting."""
    with path.open("rb") as file:
        length = file.seek(0, 2)
        file.seek(max(0, length - 22 - 65535))  # the record and the longest comment that may follow it
        tail = file.read()
    record = tail.rfind(b"PK\5\6")
    return int.from_bytes(tail[record + 10 : record + 12], "little")


@contextmanager
def _naming(label: str) -> Iterator[None]:
    """Errors of the system and of damaged zips, told with the name of the file."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingDataError(f"{label} does not exist.") from error
    except OSError as error:
        raise DataError(f"Cannot read {label}: {error.strerror or error}.") from error
    # What zipfile raises depends on where the damage is: the directory, a header or the checksum; the bytes; the end.
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{label} is not a whole zip file: {error}. Copy or download it again; expected a zip with the text files."
        ) from error
