"""Graphs of PyTorch Geometric: lists of ``Data``, saved data sets, and the graph property data sets of OGB."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from powerpool.data.graph_tables import GraphSource
from powerpool.data.store import (
    DataError,
    Limits,
    MissingDataError,
    cache_folder,
    data_folders,
    how_to_fetch,
    may_fetch,
    require_package,
)
from powerpool.errors import RecordError, shorten
from powerpool.files import read_tensors

if TYPE_CHECKING:
    from torch_geometric.data import Data

OGB = "ogbg-"
"""Prefix of the names of OGB's graph property data sets."""
REMEDY = "Save a list of Data with torch.save, or a data set with InMemoryDataset.save."
USED = ("x", "edge_index", "edge_attr", "y", "num_nodes", "batch", "ptr")
NAMES = {"A": "edge_index", "node": "x", "edge": "edge_attr", "graph": "y"}


@dataclass(frozen=True)
class PygColumns(GraphSource):
    """A list of ``Data`` as columns: integers in ``x``, ``edge_attr`` and ``y`` are labels, others attributes."""

    name: str
    place: str
    """What errors call the data set."""
    columns: dict[str, Tensor]
    node_ptr: Tensor  # shape: (graphs + 1,)
    edge_ptr: Tensor  # shape: (graphs + 1,)
    other: tuple[str, ...] = ()

    @classmethod
    def of(cls, graphs: Iterable[Data], name: str, place: str | None = None) -> PygColumns:
        """Collect the tensors of all graphs."""
        place = place or name
        listed = _list_graphs(graphs, place)
        sizes = [_count_nodes(graph) for graph in listed]
        if 0 in sizes:
            raise DataError(f"{place}, graph {sizes.index(0)}: it has no nodes. Remove it.")
        node_ptr = torch.tensor([0, *sizes]).cumsum(0)
        edge_ptr = torch.tensor([0, *(graph.edge_index.shape[1] for graph in listed)]).cumsum(0)
        other = tuple(dict.fromkeys(key for graph in listed for key in graph.keys() if key not in USED))  # noqa: SIM118
        found = cls(name, place, {}, node_ptr, edge_ptr, other)
        edges = torch.cat([graph.edge_index.cpu().long() for graph in listed], dim=1)
        owner = torch.repeat_interleave(edge_ptr.diff())
        wrong = ((edges < 0) | (edges >= node_ptr.diff()[owner])).any(0)
        if bool(wrong.any()):
            row = int(wrong.int().argmax())
            raise DataError(
                f"{found.where('A', row)}: it connects nodes {edges[:, row].tolist()}, and the graph has nodes 0 to "
                f"{sizes[int(owner[row])] - 1}."
            )
        found.columns["A"] = (edges + node_ptr[owner] + 1).T
        found.columns["graph_indicator"] = torch.repeat_interleave(node_ptr.diff())[:, None] + 1
        for what, rows in (("node", sizes), ("edge", edge_ptr.diff().tolist()), ("graph", None)):
            values = _stack(listed, NAMES[what], rows, place)
            if values is not None:
                found.columns[f"{what}_{'attributes' if values.is_floating_point() else 'labels'}"] = values
        return found

    def __contains__(self, kind: str) -> bool:
        return kind in self.columns

    def label(self, kind: str) -> str:
        """Return the attribute of ``Data`` that a column comes from."""
        what, _, form = kind.partition("_")
        number = {"labels": "integer ", "attributes": "floating-point "}.get(form, "")
        return f"{number}{NAMES.get(what, kind)} of {self.place}"

    def where(self, kind: str, row: int) -> str:
        """Return the graph of a row, and the node or edge."""
        what = "edge" if kind == "A" else kind.partition("_")[0]
        if what == "graph":
            return f"{self.place}, graph {row}"
        ptr = self.edge_ptr if what == "edge" else self.node_ptr
        graph = int(torch.searchsorted(ptr, row, right=True)) - 1
        return f"{self.place}, graph {graph}, {what} {row - int(ptr[graph])}"

    def node(self, number: int) -> str:
        """Return the number of a node in its graph, from 0."""
        graph = int(torch.searchsorted(self.node_ptr, number - 1, right=True)) - 1
        return str(number - 1 - int(self.node_ptr[graph]))

    def read(self, kind: str, columns: int | None = 1) -> Tensor:  # shape: (rows, columns)
        """Return a column."""
        if kind not in self:
            remedy = " Give classes as integers, or targets of a regression as floating-point numbers."
            raise MissingDataError(f"{self.label(kind)} is missing.{remedy if kind == 'graph_labels' else ''}")
        found = self.columns[kind]
        if columns is not None and found.shape[1] != columns:
            raise DataError(f"{self.label(kind)} has {found.shape[1]} columns, expected {columns}. Keep one of them.")
        return found


def _list_graphs(graphs: Iterable[Data], place: str) -> list[Data]:
    """Return the graphs as a list, after checking that each has edges."""
    from torch_geometric.data import Data

    problem = f"{place}: expected a list of Data or a data set (got {type(graphs).__name__})."
    if isinstance(graphs, Data):  # it iterates over its attributes
        raise DataError(f"{problem} Put it into a list, or use the to_data_list() of a Batch.")
    try:
        listed = list(graphs)
    except TypeError:
        raise DataError(problem) from None
    if not listed:
        raise DataError(f"{place} has no graphs.")
    for number, graph in enumerate(listed):
        edges = getattr(graph, "edge_index", None)
        if not isinstance(edges, Tensor) or edges.ndim != 2 or len(edges) != 2 or edges.is_floating_point():
            raise DataError(
                f"{place}, graph {number}: expected a Data with an integer edge_index of shape (2, edges) (got "
                f"{type(graph).__name__} with edge_index {_describe(edges)})."
            )
    return listed


def _describe(value: Any) -> str:
    return f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else shorten(repr(value), 40)


def _count_nodes(graph: Data) -> int:
    if isinstance(graph.x, Tensor) and graph.x.ndim:
        return len(graph.x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns that it counts the nodes of edge_index, as it does everywhere
        return int(graph.num_nodes or 0)


def _stack(graphs: list[Data], key: str, rows: list[int] | None, place: str) -> Tensor | None:  # shape: (rows, columns)
    """Return the values of all graphs as int64 or float64, one row for each graph if ``rows`` is None."""
    values = [getattr(graph, key, None) for graph in graphs]
    if all(value is None for value in values):
        return None
    parts: list[Tensor] = []
    for number, value in enumerate(values):
        part = torch.as_tensor(value) if isinstance(value, (Tensor, int, float)) else torch.empty(0, 0, 0)
        if rows is None:
            part = part.reshape(1, -1)
        elif part.ndim == 1:
            part = part[:, None]
        count = 1 if rows is None else rows[number]
        columns = parts[0].shape[1] if parts else part.shape[-1]
        if part.shape != (count, columns) or not columns or part.is_complex():
            shape = f"({count}, {columns or 'columns'})"
            raise DataError(f"{place}, graph {number}: expected {key} of shape {shape} (got {_describe(value)}).")
        parts.append(part.cpu())
    dtype = torch.float64 if any(part.is_floating_point() for part in parts) else torch.int64
    return torch.cat([part.to(dtype) for part in parts])


# ---- files and names -------------------------------------------------------------------------------------------------


def is_pyg(name: str | Path) -> bool:
    """Whether a data set is a saved one of PyTorch Geometric, or one of OGB."""
    return str(name).endswith(".pt") or str(name).startswith(OGB)


def open_pyg(name: str | Path, root: str | Path | None, download: bool, limits: Limits) -> tuple[PygColumns, Path]:
    """Read a data set for which :func:`is_pyg` holds; return its columns and its path."""
    require_package("torch_geometric", f"Reading {name}", "graph")
    if str(name).startswith(OGB):
        return _open_ogb(str(name), root, download)
    path = Path(name).expanduser()
    # PyG writes NAME/processed/data.pt.
    title = path.parent.parent.name if path.parent.name == "processed" else path.stem
    return PygColumns.of(_read_saved(path, limits), title, str(path)), path


@contextlib.contextmanager
def _safe_classes() -> Iterator[None]:
    """Let ``torch.load`` read the classes that PyG saves, and no others."""
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    # Only those that are not registered yet: leaving the context removes them, also those that PyG registered itself.
    known = torch.serialization.get_safe_globals()
    missing = [kind for kind in (Data, DataEdgeAttr, DataTensorAttr, GlobalStorage) if kind not in known]
    with torch.serialization.safe_globals(missing):
        yield


def _read_saved(path: Path, limits: Limits) -> list[Data]:
    from torch_geometric.data import Data
    from torch_geometric.data.separate import separate

    if not path.exists():
        raise MissingDataError(f"There is no file {path}.")
    try:
        with _safe_classes():
            content = read_tensors(path, limits.text, "PyG data set")
    except RecordError as error:
        raise DataError(f"{error} {REMEDY}") from error
    if isinstance(content, list):
        return content
    try:
        data, slices, *_ = content
        data = Data.from_dict(data) if isinstance(data, dict) else data
        if not slices:
            return [data]
        count = len(slices["edge_index"]) - 1
        return [separate(Data, data, idx, slices, decrement=False) for idx in range(count)]
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, RuntimeError) as error:
        raise DataError(f"{path} is not a PyG data set: it contains a {type(content).__name__}. {REMEDY}") from error


def _open_ogb(name: str, root: str | Path | None, download: bool) -> tuple[PygColumns, Path]:
    try:
        ogb = importlib.import_module("ogb.graphproppred")
    except ModuleNotFoundError as error:
        message = f"{name} needs ogb, which is not installed. Run: pip install ogb."
        raise ModuleNotFoundError(message, name="ogb") from error
    folders, folder = [*data_folders(root, "graphs"), cache_folder("graphs")], name.replace("-", "_")
    own = (folder, f"{folder}_pyg")  # the second is that of early versions of ogb
    there = next((each / one for each in folders for one in own if (each / one).is_dir()), None)
    if there is None and not may_fetch(download):
        remedy = how_to_fetch(f"Pass download=True, or root=, a folder that contains {folder}.")
        raise MissingDataError(f"{name} was not found (looked in {', '.join(map(str, folders))}). {remedy}")
    there = there or cache_folder("graphs") / folder
    with _safe_classes():
        graphs = ogb.PygGraphPropPredDataset(name=name, root=str(there.parent))
    return PygColumns.of(graphs, name), there
