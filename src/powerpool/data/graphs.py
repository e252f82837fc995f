"""Sets of graphs for classification, stored by column, and batches of them without a loop over graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from powerpool.checks import values_are_checked
from powerpool.data import tu_sources
from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.limits import Limits
from powerpool.data.tu_format import EDGES, TuFiles, TuTables, read_tables
from powerpool.errors import ArgumentError, DTypeError, ShapeError, require_choice

if TYPE_CHECKING:
    from torch_geometric.data import Data

FEATURES = ("auto", "labels", "degree", "constant")


class GraphIndexError(ArgumentError, IndexError):
    """There is no graph of that number in the set."""


class GraphBatch(NamedTuple):
    """Graphs side by side, under the names that PyTorch Geometric's own batches have."""

    x: Tensor  # shape: (nodes, channels)
    edge_index: Tensor  # shape: (2, edges), source and target; sorted by target, then source
    batch: Tensor  # shape: (nodes,), graph of each node, ascending
    y: Tensor  # shape: (graphs,)
    ptr: Tensor  # shape: (graphs + 1,), first node of each graph

    @property
    def num_graphs(self) -> int:
        """Graphs in the batch."""
        return len(self.y)

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs together."""
        return len(self.x)

    @property
    def num_edges(self) -> int:
        """Columns of ``edge_index``: an edge that goes both ways counts twice."""
        return self.edge_index.shape[1]

    @property
    def num_node_features(self) -> int:
        """Channels of ``x``."""
        return self.x.shape[1]

    def to(self, device: torch.device | str) -> GraphBatch:
        """The same batch on another device."""
        return GraphBatch(*(tensor.to(device) for tensor in self))


@dataclass(frozen=True)
class NodeFeatures:
    """What the columns of one-hot node features stand for.

    A model that was trained on one file reads another one with the features of the first:
    ``load_graphs(other, features=trained.features)``.
    """

    kind: str
    """``"labels"``, ``"degree"`` or ``"constant"``."""
    values: tuple[int, ...]
    """The node label of each column, ascending; or its degree, and the last column is for all higher degrees too."""

    def __post_init__(self) -> None:
        require_choice(self.kind, FEATURES[1:], "kind of node features")
        if not self.values or list(self.values) != sorted(set(self.values)):
            raise ArgumentError(f"The values of node features must be ascending, and at least one (got {self.values}).")
        if self.kind == "degree" and self.values != tuple(range(len(self.values))):
            raise ArgumentError(f"The values of degree features must be 0, 1, 2, ... (got {self.values}).")

    @property
    def channels(self) -> int:
        """Columns."""
        return len(self.values)


@dataclass(frozen=True, eq=False, repr=False)  # tensors do not compare to one truth value
class GraphSet:
    """Many graphs in few tensors. Index it with a tensor of graph numbers, a list, a slice or a mask to get a batch.

    Node features are kept as the number of the column that is 1, and edges as columns of one ``edge_index`` for the
    whole set: graph ``g`` has the nodes ``node_ptr[g]`` to ``node_ptr[g + 1]``, and likewise for edges. A batch is a
    handful of gathers, whatever the number of graphs.

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
    edge_index: Tensor  # shape: (2, edges), nodes counted through the set; sorted by target, then source
    edge_ptr: Tensor  # shape: (graphs + 1,), first edge of each graph
    targets: Tensor  # shape: (graphs,), class of each graph from 0 on; -1 where the file does not say
    classes: tuple[int, ...]
    """The label in the file of each class."""
    dropped: int = 0
    """Lines of the file that repeat an edge or join a node to itself: they are left out, as PyTorch Geometric does."""

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        return (
            f"GraphSet({self.name!r}, {len(self)} graphs, {self.num_nodes} nodes, {self.num_edges} edges, "
            f"{len(self.classes)} classes, features from {self.features.kind} ({self.channels}))"
        )

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs together."""
        return len(self.columns)

    @property
    def num_edges(self) -> int:
        """Columns of ``edge_index``: an edge that goes both ways counts twice."""
        return self.edge_index.shape[1]

    @property
    def channels(self) -> int:
        """Channels of the node features."""
        return self.features.channels

    @property
    def digest(self) -> str:
        """A name for the content: graphs with other nodes, edges, features or classes have another one."""
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
        # From places in the set to places in the batch: each graph's nodes move together. index_select, here and below,
        # because indexing with brackets takes up to four times as long for whole numbers.
        moved = nodes.ptr[:-1] - self.node_ptr.index_select(0, chosen)
        return GraphBatch(
            x=self._one_hot(self.columns.index_select(0, nodes.rows)),
            edge_index=self.edge_index.index_select(1, edges.rows).add_(moved.index_select(0, edges.owner)),
            batch=nodes.owner,
            y=self.targets.index_select(0, chosen),
            ptr=nodes.ptr,
        )

    def to(self, device: torch.device | str) -> GraphSet:
        """The same set on another device; its batches are made there."""
        names = ("columns", "node_ptr", "edge_index", "edge_ptr", "targets")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def to_pyg(self) -> list[Data]:
        """One ``torch_geometric.data.Data`` per graph, for the loaders and transforms of PyTorch Geometric."""
        try:
            from torch_geometric.data import Data
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                "to_pyg() needs torch_geometric, which is not installed: pip install 'powerpool[graph]'.",
                name=error.name,
            ) from error

        moved = self.edge_index - self.node_ptr[self.graph[self.edge_index[1]]]
        parts = zip(
            self._one_hot(self.columns).split(self.node_ptr.diff().tolist()),
            moved.split(self.edge_ptr.diff().tolist(), dim=1),
            self.targets.split(1),
            strict=True,
        )
        # Copies: a view would drag the tensors of the whole set along whenever one graph is pickled.
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
            raise ShapeError(f"A batch is chosen by a 1-D tensor of graph numbers (got shape {tuple(chosen.shape)}).")
        if chosen.dtype == torch.bool:
            if len(chosen) != len(self):
                raise ShapeError(f"A mask must have one flag for each of the {len(self)} graphs (got {len(chosen)}).")
            chosen = chosen.nonzero().flatten()
        if len(chosen) == 0:
            raise ArgumentError("A batch needs at least one graph (none was chosen).")
        if chosen.is_floating_point() or chosen.is_complex():
            raise DTypeError(f"Graph numbers must be whole (got {chosen.dtype}). Use index.long().")
        if values_are_checked(chosen, None):
            low, high = (int(end) for end in chosen.aminmax())
            if low < 0 or high >= len(self):
                wrong = low if low < 0 else high
                raise GraphIndexError(f"{self.name} has graphs 0 to {len(self) - 1} (asked for {wrong}).")
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
    """Read a set of graphs in the format of the TU collection, and check it.

    Args:
        name: MUTAG, PTC_MR, PROTEINS, NCI1, COLLAB, REDDIT-BINARY, REDDIT-MULTI-5K, IMDB-BINARY or IMDB-MULTI; or the
            path of a folder, or of a zip, with files in TU format (``NAME_A.txt`` and so on, for any NAME).
        root: a folder with ``NAME.zip``, ``NAME/`` or ``NAME/raw/``, in itself or in its folder ``graphs``; by default
            the one that the environment variable POWERPOOL_DATA names. A set that is not there is looked for in the
            cache (``~/.cache/powerpool/graphs``); MUTAG is then taken from the installed package grakel.
        features: one-hot ``"labels"`` of nodes, one-hot ``"degree"``, or ``"constant"``, a single 1. ``"auto"`` is
            labels where there are any; else constant for the REDDIT sets, as in the paper that introduced GIN, and
            degree for all others. The ``features`` of another set encode this one in the same columns. Attributes of
            nodes and labels of edges are not read.
        degree_cap: the highest degree with a column; that column also stands for all higher degrees. The default is
            well above the degrees of the IMDB sets (135 at most), and bounds the width for sets with hubs.
        edges: TU files list each edge in both directions, and a way that is missing is most often a damaged file:
            ``"undirected"`` refuses it. ``"symmetrise"`` adds it, ``"directed"`` keeps edges as they are.
        labelled: False for graphs of unknown class: ``NAME_graph_labels.txt`` is not read, all targets are -1.
        classes: labels in the order of their classes, as in the ``classes`` of another set; by default all labels in
            the file, ascending.
        download: whether a set that is on this machine nowhere may be fetched from the network, into the cache.
        limits: how large files and zips may be.

    Example:
        >>> graphs = load_graphs("MUTAG", features="degree")
        >>> graphs.features.values
        (0, 1, 2, 3, 4)
        >>> graphs[:2].x.sum(0)  # nodes of the first two graphs by degree
        tensor([ 0.,  4., 16., 10.,  0.])
    """
    require_choice(edges, EDGES, "choice of edges")
    if degree_cap < 1:
        raise ArgumentError(f"degree_cap must be at least 1 (got {degree_cap}): 0 would tell no node from another.")
    place = tu_sources.locate(name, root, download, limits)
    with TuFiles.open(place.path, place.name, limits) as files:
        tables = read_tables(files, edges, labelled)
        if not isinstance(features, NodeFeatures):
            require_choice(features, FEATURES, "kind of node features")
            features = _choose_features(files, tables, features, degree_cap)
        columns = _columns(files, tables, features)
        targets, known = _targets(files, tables, classes)
    return GraphSet(
        name=files.name,
        source=str(place.path),
        features=features,
        columns=columns,
        node_ptr=tables.node_ptr,
        edge_index=tables.edge_index,
        edge_ptr=tables.edge_ptr,
        targets=targets,
        classes=known,
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
    """The column of each node."""
    if features.kind == "constant":
        return torch.zeros_like(_degree(tables))
    if features.kind == "degree":
        return _degree(tables).clamp(max=features.channels - 1)
    return _places(_node_labels(files, tables), features.values, files.label("node_labels"), "node label")


def _targets(files: TuFiles, tables: TuTables, classes: Sequence[int] | None) -> tuple[Tensor, tuple[int, ...]]:
    """The class of each graph, and the label of each class."""
    if classes is not None and len(set(classes)) != len(classes):
        raise ArgumentError(f"classes must name each label once (got {list(classes)}).")
    labels = tables.graph_labels
    if labels is None:
        return torch.full((len(tables.node_ptr) - 1,), -1), tuple(classes or ())
    known = tuple(classes or labels.unique().tolist())
    return _places(labels, known, files.label("graph_labels"), "class"), known


def _places(labels: Tensor, values: Sequence[int], file: str, what: str) -> Tensor:
    """Where each label is among ``values``."""
    ascending, order = torch.tensor(values).sort()
    place = torch.searchsorted(ascending, labels).clamp(max=len(values) - 1)
    unknown = ascending[place] != labels
    if bool(unknown.any()):
        line = int(unknown.int().argmax())
        listed = ", ".join(str(value) for value in values)
        raise DataError(f"{file}, line {line + 1}: unknown {what} {int(labels[line])}, expected one of {listed}.")
    return order[place]


def _node_labels(files: TuFiles, tables: TuTables) -> Tensor:  # shape: (nodes,)
    if tables.node_labels is None:
        raise MissingDataError(
            f"{files.label('node_labels')} is missing, and features of labels need it. Choose features='degree' or "
            "features='constant' for a set without node labels."
        )
    return tables.node_labels


def _degree(tables: TuTables) -> Tensor:  # shape: (nodes,)
    """Edges that end in each node."""
    return torch.bincount(tables.edge_index[1], minlength=int(tables.node_ptr[-1]))


# ---- batches ---------------------------------------------------------------------------------------------------------


class _Rows(NamedTuple):
    """The rows of some graphs in a column of the set, and how they lie in the batch."""

    rows: Tensor  # shape: (rows,), place in the set
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
