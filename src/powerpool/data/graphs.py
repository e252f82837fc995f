"""Graph classification data sets, stored by column, so that batches need no loop over graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerpool.checks import values_are_checked
from powerpool.data.store import DataError, Limits, MissingDataError, join_some, require_package
from powerpool.data.tu_format import EDGES, TuFiles, TuTables, locate, read_tables
from powerpool.errors import ArgumentError, DTypeError, ShapeError, require_choice

if TYPE_CHECKING:
    from torch_geometric.data import Data

FEATURES = ("auto", "labels", "degree", "constant")


class GraphIndexError(ArgumentError, IndexError):
    """There is no graph with that index."""


class GraphBatch(NamedTuple):
    """A batch of graphs, with the field names of PyTorch Geometric."""

    x: Tensor  # shape: (nodes, channels)
    edge_index: Tensor  # shape: (2, edges), source and target; sorted by target, then source
    batch: Tensor  # shape: (nodes,), graph of each node, ascending
    y: Tensor  # shape: (graphs,)
    ptr: Tensor  # shape: (graphs + 1,), first node of each graph

    @property
    def num_graphs(self) -> int:
        """The number of graphs."""
        return len(self.y)

    @property
    def num_nodes(self) -> int:
        """The number of nodes in all graphs."""
        return len(self.x)

    @property
    def num_edges(self) -> int:
        """The number of columns of ``edge_index``; an undirected edge counts twice."""
        return self.edge_index.shape[1]

    @property
    def num_node_features(self) -> int:
        """The number of channels of ``x``."""
        return self.x.shape[1]

    def to(self, device: torch.device | str) -> GraphBatch:
        """Return the batch on another device."""
        return GraphBatch(*(tensor.to(device) for tensor in self))


@dataclass(frozen=True)
class NodeFeatures:
    """The meaning of the columns of one-hot node features.

    To use a model on another data set, encode that in the same way:
    ``load_graphs(other, features=trained.features)``.
    """

    kind: str
    """``"labels"``, ``"degree"`` or ``"constant"``."""
    values: tuple[int, ...]
    """The node label or degree of each column, ascending; the last degree also stands for all higher ones."""

    def __post_init__(self) -> None:
        require_choice(self.kind, FEATURES[1:], "kind of node features")
        if not self.values or list(self.values) != sorted(set(self.values)):
            raise ArgumentError(f"values must be ascending and not empty (got {self.values}).")
        if self.kind == "degree" and self.values != tuple(range(len(self.values))):
            raise ArgumentError(f"values of degree features must be 0, 1, 2, ... (got {self.values}).")

    @property
    def channels(self) -> int:
        """The number of columns."""
        return len(self.values)


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value
class GraphSet:
    """Many graphs in few tensors. Index it with a tensor, a list, a slice or a mask of graphs to get a batch.

    One-hot node features are stored as column numbers, and edges as one ``edge_index`` for all graphs: graph ``g`` has
    the nodes ``node_ptr[g]`` to ``node_ptr[g + 1]``, and likewise for edges. A batch takes a few gathers, whatever the
    number of graphs.

    Example:
        >>> graphs = load_graphs("MUTAG")
        >>> graphs
        GraphSet('MUTAG', 188 graphs, 3371 nodes, 7442 edges, 2 classes, features from labels (7))
        >>> graphs[torch.tensor([5, 0])].batch.bincount()
        tensor([28, 17])
        >>> graphs.classes, graphs.targets.bincount()
        ((-1, 1), tensor([ 63, 125]))
    """

    name: str
    source: str
    """The folder or zip that was read."""
    features: NodeFeatures
    columns: Tensor  # shape: (nodes,), the column of the node features that is 1
    node_ptr: Tensor  # shape: (graphs + 1,), first node of each graph
    edge_index: Tensor  # shape: (2, edges), numbered across graphs; sorted by target, then source
    edge_ptr: Tensor  # shape: (graphs + 1,), first edge of each graph
    targets: Tensor  # shape: (graphs,), class of each graph; -1 if unknown
    classes: tuple[int, ...]
    """The label of each class in the file."""
    dropped: int = 0
    """The number of repeated edges and self-loops in the file, which are removed, as in PyTorch Geometric."""

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return (
            f"GraphSet({self.name!r}, {len(self)} graphs, {self.num_nodes} nodes, {self.num_edges} edges, "
            f"{len(self.classes)} classes, features from {self.features.kind} ({self.channels}))"
        )

    @property
    def num_nodes(self) -> int:
        """The number of nodes in all graphs."""
        return len(self.columns)

    @property
    def num_edges(self) -> int:
        """The number of columns of ``edge_index``; an undirected edge counts twice."""
        return self.edge_index.shape[1]

    @property
    def channels(self) -> int:
        """The number of channels of the node features."""
        return self.features.channels

    @property
    def digest(self) -> str:
        """A digest of the nodes, edges, features and classes."""
        found = hashlib.blake2b(f"{self.features} {self.classes}".encode(), digest_size=8)
        for column in (self.columns, self.node_ptr, self.edge_index, self.targets):
            found.update(column.cpu().numpy().tobytes())
        return found.hexdigest()

    @property
    def graph(self) -> Tensor:  # shape: (nodes,)
        """The graph of each node."""
        numbers = torch.arange(len(self), device=self.node_ptr.device)
        return numbers.repeat_interleave(self.node_ptr.diff(), output_size=self.num_nodes)

    def __getitem__(self, index: Tensor | Sequence[int] | slice | int) -> GraphBatch:
        chosen = self._numbers(index)
        nodes, edges = _rows(self.node_ptr, chosen), _rows(self.edge_ptr, chosen)
        # From node numbers in the data set to those in the batch. index_select, here and below, because indexing with
        # brackets takes up to four times as long for integers.
        moved = nodes.ptr[:-1] - self.node_ptr.index_select(0, chosen)
        return GraphBatch(
            x=self._one_hot(self.columns.index_select(0, nodes.rows)),
            edge_index=self.edge_index.index_select(1, edges.rows).add_(moved.index_select(0, edges.owner)),
            batch=nodes.owner,
            y=self.targets.index_select(0, chosen),
            ptr=nodes.ptr,
        )

    def to(self, device: torch.device | str) -> GraphSet:
        """Return the data set on another device, where batches are then created."""
        names = ("columns", "node_ptr", "edge_index", "edge_ptr", "targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def to_pyg(self) -> list[Data]:
        """Return a list of ``torch_geometric.data.Data``, for the loaders and transforms of PyTorch Geometric."""
        require_package("torch_geometric", "to_pyg()", "graph")
        from torch_geometric.data import Data

        moved = self.edge_index - self.node_ptr[self.graph[self.edge_index[1]]]
        parts = zip(
            self._one_hot(self.columns).split(self.node_ptr.diff().tolist()),
            moved.split(self.edge_ptr.diff().tolist(), dim=1),
            self.targets.split(1),
            strict=True,
        )
        # Copies: pickling one view would pickle the tensors of the whole data set.
        return [
            Data(x=x.clone(), edge_index=edges.clone(memory_format=torch.contiguous_format), y=y.clone())
            for x, edges, y in parts
        ]

    def _one_hot(self, columns: Tensor) -> Tensor:  # shape: (nodes,) -> (nodes, channels)
        x = torch.zeros(len(columns), self.channels, device=columns.device)
        return x.scatter_(1, columns[:, None], 1.0)

    def _numbers(self, index: Tensor | Sequence[int] | slice | int) -> Tensor:  # shape: (chosen,)
        if isinstance(index, slice):
            index = range(len(self))[index]
        elif isinstance(index, int):
            index = [index + len(self) if index < 0 else index]
        chosen = torch.as_tensor(index, device=self.node_ptr.device)
        if chosen.ndim != 1:
            raise ShapeError(f"The index must be a 1-D tensor (got shape {tuple(chosen.shape)}).")
        if chosen.dtype == torch.bool:
            if len(chosen) != len(self):
                raise ShapeError(f"A mask must have {len(self)} entries, one for each graph (got {len(chosen)}).")
            chosen = chosen.nonzero().flatten()
        if len(chosen) == 0:
            raise ArgumentError("A batch needs at least one graph (got an empty index).")
        if chosen.is_floating_point() or chosen.is_complex():
            raise DTypeError(f"The index must be an integer tensor (got {chosen.dtype}). Use index.long().")
        if values_are_checked(chosen, None):
            low, high = (int(end) for end in chosen.aminmax())
            if low < 0 or high >= len(self):
                wrong = low if low < 0 else high
                raise GraphIndexError(f"{self.name} has graphs 0 to {len(self) - 1} (got {wrong}).")
        return chosen.long()


def load_graphs(
    name: str | Path,
    root: str | Path | None = None,
    *,
    features: str | NodeFeatures = "auto",
    degree_cap: int = 500,
    edges: str = "undirected",
    labelled: bool = True,
    classes: Sequence[int] | None = None,
    download: bool = False,
    limits: Limits | None = None,
) -> GraphSet:
    """Read and validate a graph data set in the format of the TU collection.

    Args:
        name: MUTAG, PTC_MR, PROTEINS, NCI1, COLLAB, REDDIT-BINARY, REDDIT-MULTI-5K, IMDB-BINARY or IMDB-MULTI; or the
            path of a folder or zip with files in TU format (``NAME_A.txt`` and so on, for any NAME).
        root: a folder with ``NAME.zip``, ``NAME/`` or ``NAME/raw/``, directly or in a subfolder ``graphs``; by default
            that of the environment variable POWERPOOL_DATA. Then the cache is searched (``~/.cache/powerpool/graphs``);
            MUTAG also comes with the package grakel.
        features: one-hot ``"labels"`` of nodes, one-hot ``"degree"``, or ``"constant"``, a single 1. ``"auto"`` means
            labels if there are any; else constant for the REDDIT data sets, as in the GIN paper, and degree for all
            others. Pass the ``features`` of another data set to use the same columns. Node attributes and edge labels
            are not read.
        degree_cap: the highest degree with its own column, which also stands for all higher degrees. The default is
            well above the degrees of the IMDB data sets (at most 135), and limits the width for graphs with hubs.
        edges: TU files list each edge in both directions, and a missing reverse edge usually means a damaged file:
            ``"undirected"`` refuses it, ``"symmetrise"`` adds it, ``"directed"`` keeps edges as they are.
        labelled: False for graphs of unknown class: ``NAME_graph_labels.txt`` is not read, and all targets are -1.
        classes: the label of each class, for instance the ``classes`` of another data set; by default all labels in the
            file, ascending.
        download: whether a data set that is not found may be downloaded into the cache.
        limits: maximum sizes of files and zips.

    Example:
        >>> graphs = load_graphs("MUTAG", features="degree")
        >>> graphs.features.values
        (0, 1, 2, 3, 4)
        >>> graphs[:2].x.sum(0)  # nodes of the first two graphs by degree
        tensor([ 0.,  4., 16., 10.,  0.])
    """
    require_choice(edges, EDGES, "choice of edges")
    if degree_cap < 1:
        raise ArgumentError(f"degree_cap must be at least 1 (got {degree_cap}).")
    limits = limits or Limits()
    path, known_name = locate(name, root, download, limits)
    with TuFiles.open(path, known_name, limits) as files:
        tables = read_tables(files, edges, labelled)
        if not isinstance(features, NodeFeatures):
            require_choice(features, FEATURES, "kind of node features")
            features = _choose_features(files, tables, features, degree_cap)
        columns = _columns(files, tables, features)
        targets, known_classes = _targets(files, tables, classes)
    return GraphSet(
        name=files.name,
        source=str(path),
        features=features,
        columns=columns,
        node_ptr=tables.node_ptr,
        edge_index=tables.edge_index,
        edge_ptr=tables.edge_ptr,
        targets=targets,
        classes=known_classes,
        dropped=tables.dropped,
    )


# ---- node features and classes ---------------------------------------------------------------------------------------


def _choose_features(files: TuFiles, tables: TuTables, kind: str, degree_cap: int) -> NodeFeatures:
    if kind == "auto":
        without_labels = "constant" if files.name.startswith("REDDIT") else "degree"
        kind = without_labels if tables.node_labels is None else "labels"
    if kind == "labels":
        return NodeFeatures(kind, tuple(_node_labels(files, tables).unique().tolist()))
    if kind == "degree":
        return NodeFeatures(kind, tuple(range(min(int(_degree(tables).max()), degree_cap) + 1)))
    return NodeFeatures(kind, (1,))


def _columns(files: TuFiles, tables: TuTables, features: NodeFeatures) -> Tensor:  # shape: (nodes,)
    """Return the feature column of each node."""
    if features.kind == "constant":
        return torch.zeros_like(_degree(tables))
    if features.kind == "degree":
        return _degree(tables).clamp(max=features.channels - 1)
    return _positions(_node_labels(files, tables), features.values, files.label("node_labels"), "node label")


def _targets(files: TuFiles, tables: TuTables, classes: Sequence[int] | None) -> tuple[Tensor, tuple[int, ...]]:
    """Return the class of each graph, and the label of each class."""
    if classes is not None and len(set(classes)) != len(classes):
        raise ArgumentError(f"classes must not repeat a label (got {list(classes)}).")
    labels = tables.graph_labels
    if labels is None:
        return torch.full((len(tables.node_ptr) - 1,), -1), tuple(classes or ())
    known = tuple(classes or labels.unique().tolist())
    return _positions(labels, known, files.label("graph_labels"), "class"), known


def _positions(labels: Tensor, values: Sequence[int], file: str, what: str) -> Tensor:
    """Return the index of each label in ``values``."""
    ascending, order = torch.tensor(values).sort()
    position = torch.searchsorted(ascending, labels).clamp(max=len(values) - 1)
    unknown = ascending[position] != labels
    if bool(unknown.any()):
        line = int(unknown.int().argmax())
        listed = join_some(map(str, values), 20)
        raise DataError(f"{file}, line {line + 1}: unknown {what} {int(labels[line])}, expected one of {listed}.")
    return order[position]


def _node_labels(files: TuFiles, tables: TuTables) -> Tensor:  # shape: (nodes,)
    if tables.node_labels is None:
        raise MissingDataError(
            f"{files.label('node_labels')} is missing, which features='labels' needs. Use features='degree' or "
            "features='constant'."
        )
    return tables.node_labels


def _degree(tables: TuTables) -> Tensor:  # shape: (nodes,)
    """Return the number of edges that end in each node."""
    return torch.bincount(tables.edge_index[1], minlength=int(tables.node_ptr[-1]))


# ---- batches ---------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """The rows of selected graphs, and their positions in the batch."""

    rows: Tensor  # shape: (rows,), row in the data set
    owner: Tensor  # shape: (rows,), graph in the batch
    ptr: Tensor  # shape: (chosen + 1,), first row of each graph in the batch


def _rows(offsets: Tensor, chosen: Tensor) -> _Rows:
    first = offsets.index_select(0, chosen)
    sizes = offsets.index_select(0, chosen + 1) - first
    ptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    total = int(ptr[-1])
    owner = torch.arange(len(chosen), device=chosen.device).repeat_interleave(sizes, output_size=total)
    rows = (first - ptr[:-1]).index_select(0, owner).add_(torch.arange(total, device=chosen.device))
    return _Rows(rows, owner, ptr)
