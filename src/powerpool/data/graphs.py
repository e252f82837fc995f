"""Graph classification data sets, stored by column, so that batches need no loop over graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from powerpool.checks import values_are_checked
from powerpool.data.graph_tables import (
    EDGES,
    FEATURES,
    GraphSource,
    NodeFeatures,
    encode,
    encode_classes,
    one_hot,
    read_tables,
)
from powerpool.data.pyg_format import PygColumns, is_pyg, open_pyg
from powerpool.data.store import Limits, require_package
from powerpool.data.tu_format import GRAPHS, TuFiles, locate
from powerpool.errors import ArgumentError, DTypeError, ShapeError, require_choice

if TYPE_CHECKING:
    from torch_geometric.data import Data

__all__ = ["GraphBatch", "GraphIndexError", "GraphSet", "NodeFeatures", "load_graphs"]


class GraphIndexError(ArgumentError, IndexError):
    """There is no graph with that index."""


class GraphBatch(NamedTuple):
    """A batch of graphs, with the field names of PyTorch Geometric."""

    x: Tensor  # shape: (nodes, channels)
    edge_index: Tensor  # shape: (2, edges), source and target; sorted by target, then source
    batch: Tensor  # shape: (nodes,), graph of each node, ascending
    y: Tensor  # shape: (graphs,)
    ptr: Tensor  # shape: (graphs + 1,), first node of each graph
    edge_attr: Tensor | None = None  # shape: (edges, edge channels)

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
        moved = {name: value.to(device) for name, value in self._asdict().items() if value is not None}
        return GraphBatch(**moved)


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
    columns: Tensor  # shape: (nodes,) or (nodes, labels), the columns of the node features that are 1
    node_ptr: Tensor  # shape: (graphs + 1,), first node of each graph
    edge_index: Tensor  # shape: (2, edges), numbered across graphs; sorted by target, then source
    edge_ptr: Tensor  # shape: (graphs + 1,), first edge of each graph
    targets: Tensor  # shape: (graphs,), class of each graph, -1 if unknown; float32 for regression
    classes: tuple[int, ...]
    """The label of each class in the file; empty for regression."""
    dropped: int = 0
    """The number of repeated edges and self-loops in the file, which are removed, as in PyTorch Geometric."""
    attributes: Tensor | None = None  # shape: (nodes, attributes)
    edge_features: NodeFeatures | None = None
    """The meaning of the columns of edge features, if there are any."""
    edge_attr: Tensor | None = None  # shape: (edges, edge channels)
    ignored: tuple[str, ...] = ()
    """What the files contain beside what is used, such as edge labels."""

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        edges = f", edge features from {self.edge_features.kind} ({self.edge_channels})" if self.edge_features else ""
        return (
            f"GraphSet({self.name!r}, {len(self)} graphs, {self.num_nodes} nodes, {self.num_edges} edges, "
            f"{'regression' if self.is_regression else f'{len(self.classes)} classes'}, "
            f"features from {self.features.kind} ({self.channels}){edges})"
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
    def edge_channels(self) -> int:
        """The number of channels of the edge features."""
        return self.edge_features.channels if self.edge_features else 0

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers, not classes."""
        return self.targets.is_floating_point()

    @property
    def digest(self) -> str:
        """A digest of the nodes, edges, features and classes."""
        found = hashlib.blake2b(f"{self.features} {self.classes}".encode(), digest_size=8)
        for column in (self.columns, self.node_ptr, self.edge_index, self.targets, self.attributes, self.edge_attr):
            if column is not None:
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
            x=self._features(nodes.rows),
            edge_index=self.edge_index.index_select(1, edges.rows).add_(moved.index_select(0, edges.owner)),
            batch=nodes.owner,
            y=self.targets.index_select(0, chosen),
            ptr=nodes.ptr,
            edge_attr=None if self.edge_attr is None else self.edge_attr.index_select(0, edges.rows),
        )

    def to(self, device: torch.device | str) -> GraphSet:
        """Return the data set on another device, where batches are then created."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    @classmethod
    def from_pyg(
        cls,
        graphs: Iterable[Data],
        name: str = "graphs",
        *,
        features: str | NodeFeatures = "auto",
        degree_cap: int = 500,
        edges: str = "undirected",
        labelled: bool = True,
        classes: Sequence[int] | None = None,
        edge_features: bool | NodeFeatures = False,
    ) -> GraphSet:
        """Return graphs of PyTorch Geometric: a list of ``Data``, or a data set such as an ``InMemoryDataset``.

        Floating-point ``x`` and ``edge_attr`` are attributes, integers are labels, and without ``x`` nodes have their
        degree. Integer ``y`` are classes, floating-point ``y`` are targets of a regression.

        Args:
            graphs: in any order; each has ``edge_index``, and ``x`` or ``num_nodes``.
            name: of the data set.
            features, degree_cap, edges, labelled, classes, edge_features: see :func:`load_graphs`.

        Example:
            >>> again = GraphSet.from_pyg(load_graphs("MUTAG").to_pyg(), "MUTAG")
            >>> again
            GraphSet('MUTAG', 188 graphs, 3371 nodes, 7442 edges, 2 classes, features from attributes (7))
        """
        source = PygColumns.of(graphs, name)
        return _build(source, name, features, degree_cap, edges, labelled, classes, edge_features)

    def to_pyg(self) -> list[Data]:
        """Return a list of ``torch_geometric.data.Data``, for the loaders and transforms of PyTorch Geometric."""
        require_package("torch_geometric", "to_pyg()", "graph")
        from torch_geometric.data import Data

        moved = self.edge_index - self.node_ptr[self.graph[self.edge_index[1]]]
        nodes, edges = self.node_ptr.diff().tolist(), self.edge_ptr.diff().tolist()
        parts = {
            "x": self._features(None).split(nodes),
            "edge_index": moved.split(edges, dim=1),
            "y": self.targets.split(1),
        }
        if self.edge_attr is not None:
            parts["edge_attr"] = self.edge_attr.split(edges)
        # Copies: pickling one view would pickle the tensors of the whole data set.
        return [
            Data(**{name: part.clone(memory_format=torch.contiguous_format) for name, part in row.items()})
            for row in (dict(zip(parts, row, strict=True)) for row in zip(*parts.values(), strict=True))
        ]

    def _features(self, rows: Tensor | None) -> Tensor:  # shape: (rows,) -> (rows, channels)
        columns, attributes = self.columns, self.attributes
        if rows is not None:
            columns = columns.index_select(0, rows)
            attributes = None if attributes is None else attributes.index_select(0, rows)
        return one_hot(columns, len(self.features.values), attributes)

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
    edge_features: bool | NodeFeatures = False,
    download: bool = False,
    limits: Limits | None = None,
) -> GraphSet:
    """Read and validate a graph data set in the format of the TU collection, or a saved one of PyTorch Geometric.

    Args:
        name: MUTAG, PTC_MR, PROTEINS, NCI1, COLLAB, REDDIT-BINARY, REDDIT-MULTI-5K, IMDB-BINARY or IMDB-MULTI; the path
            of a folder or zip with files in TU format (``NAME_A.txt`` and so on, for any NAME); the path of a file
            ``*.pt`` with a list of ``Data``, or that ``InMemoryDataset.save`` has written, see
            :meth:`GraphSet.from_pyg`; or a graph property data set of OGB, such as ogbg-molhiv, if ogb is installed.
        root: a folder with ``NAME.zip``, ``NAME/`` or ``NAME/raw/``, directly or in a subfolder ``graphs``; by default
            that of the environment variable POWERPOOL_DATA. Then the cache is searched (``~/.cache/powerpool/graphs``);
            MUTAG also comes with the package grakel.
        features: one-hot ``"labels"`` of nodes, ``"attributes"``, ``"labels+attributes"``, one-hot ``"degree"``, or
            ``"constant"``, a single 1. ``"auto"`` means labels and attributes if there are any, but labels only for the
            data sets above, as in the GIN paper; else constant for the REDDIT data sets, and degree for all others.
            Pass the ``features`` of another data set to use the same columns.
        degree_cap: the highest degree with its own column, which also stands for all higher degrees. The default is
            well above the degrees of the IMDB data sets (at most 135), and limits the width for graphs with hubs.
        edges: TU files list each edge in both directions, and a missing reverse edge usually means a damaged file:
            ``"undirected"`` refuses it, ``"symmetrise"`` adds it, ``"directed"`` keeps edges as they are.
        labelled: False for graphs of unknown class: ``NAME_graph_labels.txt`` is not read, and all targets are -1.
        classes: the label of each class, for instance the ``classes`` of another data set; by default all labels in the
            file, ascending.
        edge_features: whether edge labels (one-hot) and edge attributes are read; or the ``edge_features`` of another
            data set, to use the same columns.
        download: whether a data set that is not found may be downloaded into the cache.
        limits: maximum sizes of files and zips.

    Example:
        >>> graphs = load_graphs("MUTAG", features="degree")
        >>> graphs.features.values
        (0, 1, 2, 3, 4)
        >>> graphs[:2].x.sum(0)  # nodes of the first two graphs by degree
        tensor([ 0.,  4., 16., 10.,  0.])
    """
    limits = limits or Limits()
    wrong = None if isinstance(name, str | Path) else type(name).__name__
    if wrong:
        raise ArgumentError(f"name must be a name or a path (got {wrong}). GraphSet.from_pyg takes a list of Data.")
    options = (features, degree_cap, edges, labelled, classes, edge_features)
    if is_pyg(name):
        source, path = open_pyg(name, root, download, limits)
        return _build(source, path, *options)
    path, known_name = locate(name, root, download, limits)
    with TuFiles.open(path, known_name, limits) as files:
        return _build(files, path, *options)


def _build(
    source: GraphSource,
    path: str | Path,
    features: str | NodeFeatures,
    degree_cap: int,
    edges: str,
    labelled: bool,
    classes: Sequence[int] | None,
    edge_features: bool | NodeFeatures,
) -> GraphSet:
    require_choice(edges, EDGES, "choice of edges")
    if degree_cap < 1:
        raise ArgumentError(f"degree_cap must be at least 1 (got {degree_cap}).")
    if not isinstance(features, NodeFeatures):
        require_choice(features, FEATURES, "kind of node features")
        features = _choose(source) if features == "auto" else features
    edge_kinds = source.available("edge")
    wanted = edge_features if isinstance(edge_features, NodeFeatures) else "+".join(edge_kinds if edge_features else [])
    tables = read_tables(source, edges, labelled)
    nodes = encode(source, tables, "node", features, degree_cap)
    encoded = encode(source, tables, "edge", wanted) if wanted else None
    targets, known_classes = encode_classes(source, tables, classes)
    ignored = [f"node {kind}" for kind in source.available("node") if not nodes.features.uses(kind)]
    ignored += [f"edge {kind}" for kind in edge_kinds if not encoded or not encoded.features.uses(kind)]
    if not targets.is_floating_point() and "graph_attributes" in source:
        ignored.append("graph attributes")
    return GraphSet(
        name=source.name,
        source=str(path),
        features=nodes.features,
        columns=nodes.columns,
        node_ptr=tables.node_ptr,
        edge_index=tables.edge_index,
        edge_ptr=tables.edge_ptr,
        targets=targets,
        classes=known_classes,
        dropped=tables.dropped,
        attributes=nodes.attributes,
        edge_features=encoded.features if encoded else None,
        edge_attr=one_hot(encoded.columns, len(encoded.features.values), encoded.attributes) if encoded else None,
        ignored=(*ignored, *source.other),
    )


def _choose(source: GraphSource) -> str:
    """Return the kind of node features of a data set."""
    kinds = source.available("node")
    if source.name in GRAPHS and "labels" in kinds:
        return "labels"
    return "+".join(kinds) or ("constant" if source.name.startswith("REDDIT") else "degree")


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
