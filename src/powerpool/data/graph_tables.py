"""Graph data sets as validated tables, whatever they are read from, and the encoding of node and edge features.

A source names its columns as the TU format names its files: ``A`` (edges), ``graph_indicator``, ``graph_labels``,
``graph_attributes``, ``node_labels``, ``node_attributes``, ``edge_labels`` and ``edge_attributes``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from powerpool.data.store import DataError, MissingDataError, join_some
from powerpool.errors import ArgumentError, require_choice

EDGES = ("undirected", "symmetrise", "directed")
FEATURES = ("auto", "labels", "degree", "constant", "attributes", "labels+attributes")
SECOND_LABEL = 1 << 32
"""Added to the values of the second label of a node or edge, twice this to those of the third, and so on."""


@dataclass(frozen=True)
class NodeFeatures:
    """The meaning of the columns of node features, or of edge features: one-hot columns, then attributes.

    To use a model on another data set, encode that in the same way:
    ``load_graphs(other, features=trained.features)``.
    """

    kind: str
    """``"labels"``, ``"degree"``, ``"constant"``, ``"attributes"`` or ``"labels+attributes"``."""
    values: tuple[int, ...] = ()
    """The label or degree of each one-hot column, ascending; the last degree also stands for all higher ones. Where
    nodes have several labels, value v of label k is k * 2^32 + v."""
    attributes: int = field(default=0, repr=False)  # not shown: the digests of data sets contain the representation
    """The number of attributes, which follow the one-hot columns."""

    def __post_init__(self) -> None:
        require_choice(self.kind, FEATURES[1:], "kind of features")
        if list(self.values) != sorted(set(self.values)) or bool(self.values) == (self.kind == "attributes"):
            raise ArgumentError(
                f"values must be ascending, and empty for attributes only (got {self.values} for {self.kind!r})."
            )
        if self.kind == "degree" and self.values != tuple(range(len(self.values))):
            raise ArgumentError(f"values of degree features must be 0, 1, 2, ... (got {self.values}).")
        if (self.attributes > 0) != self.uses("attributes"):
            raise ArgumentError(f"attributes must be above 0 for {self.kind!r} or 0 (got {self.attributes}).")

    @property
    def channels(self) -> int:
        """The number of columns."""
        return len(self.values) + self.attributes

    def uses(self, what: str) -> bool:
        """Whether labels, attributes, ... are among the features."""
        return what in self.kind.split("+")


# ---- sources ---------------------------------------------------------------------------------------------------------


class GraphSource(ABC):
    """Columns of a data set by kind, with numbers of nodes and graphs that count from 1, as in the TU format."""

    name: str
    other: tuple[str, ...] = ()
    """Content that has no use, which :attr:`GraphSet.ignored` lists."""

    @abstractmethod
    def __contains__(self, kind: str) -> bool: ...

    @abstractmethod
    def read(self, kind: str, columns: int | None = 1) -> Tensor:  # shape: (rows, columns)
        """Return a column of integers, or of float64 for attributes; None for any number of columns."""

    @abstractmethod
    def label(self, kind: str) -> str:
        """Return what errors call a column."""

    @abstractmethod
    def where(self, kind: str, row: int) -> str:
        """Return what errors call a row of a column."""

    def node(self, number: int) -> str:
        """Return what errors call a node."""
        return str(number)

    def available(self, what: str) -> list[str]:
        """Return which of labels and attributes nodes or edges have."""
        return [kind for kind in ("labels", "attributes") if f"{what}_{kind}" in self]


@dataclass(frozen=True)
class GraphTables:
    """The validated content of a data set: nodes and edges are sorted by graph, and everything is counted from 0."""

    node_ptr: Tensor  # shape: (graphs + 1,), first node of each graph
    edge_index: Tensor  # shape: (2, edges), source and target; sorted by target, then source
    edge_ptr: Tensor  # shape: (graphs + 1,), first edge of each graph
    edge_row: Tensor  # shape: (edges,), row of each edge in the column of edges
    edge_rows: int  # number of rows in that column
    targets: Tensor | None  # shape: (graphs,), integers for classes, float32 for regression
    dropped: int  # rows with a repeated edge or a self-loop


def read_tables(source: GraphSource, edges: str = "undirected", labelled: bool = True) -> GraphTables:
    """Read graphs, edges and targets, and check that they agree."""
    owner = _read_owners(source)
    node_ptr = torch.searchsorted(owner, torch.arange(int(owner[-1]) + 2))
    targets = _read_targets(source, len(node_ptr) - 1) if labelled else None
    edge_index, edge_row, edge_rows, dropped = _read_edges(source, owner, edges)
    edge_ptr = torch.searchsorted(edge_index[1], node_ptr)
    return GraphTables(node_ptr, edge_index, edge_ptr, edge_row, edge_rows, targets, dropped)


def _first(wrong: Tensor) -> int | None:
    """Return the first index that is True, or None."""
    return int(wrong.int().argmax()) if bool(wrong.any()) else None


def _read_owners(source: GraphSource) -> Tensor:  # shape: (nodes,)
    """Return the graph of each node from 0; nodes must be sorted by graph, and every graph needs a node."""
    owner = source.read("graph_indicator").flatten()
    before = torch.cat([owner.new_zeros(1), owner[:-1]])
    line = _first(((owner != before) & (owner != before + 1)) | (owner < 1))
    if line is not None:
        raise DataError(
            f"{source.where('graph_indicator', line)}: graph {int(owner[line])} follows graph {int(before[line])}. "
            "Nodes must be sorted by graph, from graph 1 on and without gaps."
        )
    return owner - 1


def _read_targets(source: GraphSource, graphs: int) -> Tensor:  # shape: (graphs,)
    """Return the class of each graph, or its attribute where there are no classes."""
    if "graph_labels" in source or "graph_attributes" not in source:
        return _read_rows(source, "graph_labels", graphs, 1).flatten()
    targets = _read_rows(source, "graph_attributes", graphs, None)
    if targets.shape[1] != 1:
        raise DataError(
            f"{source.label('graph_attributes')} has {targets.shape[1]} targets for each graph, and one can be "
            "predicted. Keep one of them, or add classes."
        )
    return targets.flatten()


def _read_rows(source: GraphSource, kind: str, expected: int, columns: int | None = None) -> Tensor:
    """Return the rows of graphs, nodes or edges; attributes as float32."""
    rows = source.read(kind, columns)
    if len(rows) != expected:
        what, of = kind.partition("_")[0], "A" if kind.startswith("edge") else "graph_indicator"
        raise DataError(
            f"{source.label(kind)} has {len(rows)} lines, expected {expected}, one for each {what} in "
            f"{source.label(of)}. Copy or download the data set again."
        )
    if not rows.is_floating_point():
        return rows
    numbers = rows.float()
    if (line := _first(~torch.isfinite(numbers).all(1))) is not None:
        column = _first(~torch.isfinite(numbers[line])) or 0
        raise DataError(
            f"{source.where(kind, line)}: attribute {column + 1} is {float(rows[line, column])}, which is not a finite "
            f"float32 number. {_remedy(kind)}"
        )
    return numbers


def _remedy(kind: str) -> str:
    if kind == "graph_attributes":
        return "Remove graphs without a target."
    other = ", or use features='degree'." if kind.startswith("node") else "."
    return f"Replace it, for instance by the mean{other}"


def _read_edges(source: GraphSource, owner: Tensor, direction: str) -> tuple[Tensor, Tensor, int, int]:
    """Return edges sorted by target, then source, their rows, the number of rows, and of those that are dropped."""
    pairs = source.read("A", columns=2)  # shape: (lines, 2)
    nodes = len(owner)

    def refuse(line: int, problem: str) -> DataError:
        start, end = (source.node(number) for number in pairs[line].tolist())
        return DataError(f"{source.where('A', line)}: the edge from node {start} to node {end} {problem}")

    if (line := _first(((pairs < 1) | (pairs > nodes)).any(1))) is not None:
        raise refuse(line, f"is invalid: {source.label('graph_indicator')} has nodes 1 to {nodes}.")
    ends = owner[pairs - 1]
    if (line := _first(ends[:, 0] != ends[:, 1])) is not None:
        first, second = (ends[line] + 1).tolist()
        raise refuse(line, f"connects graph {first} with graph {second}.")
    start, target = (pairs - 1).T
    # One number per edge: equal edges have equal numbers, which sort by target, then source.
    row = (start != target).nonzero().flatten()
    key, row = _distinct((target * nodes + start)[row], row)
    dropped = len(pairs) - len(key)
    if direction != "directed":
        reverse = key % nodes * nodes + key // nodes
        if direction == "undirected" and not torch.equal(key, reverse.sort().values):
            line = _first(torch.isin(start * nodes + target, key, invert=True) & (start != target))
            assert line is not None
            raise refuse(
                line,
                "has no reverse edge. If this is intended, use edges='symmetrise' to add reverse edges, or "
                "edges='directed' to keep edges as they are.",
            )
        if direction == "symmetrise":
            key, row = _distinct(torch.cat([key, reverse]), torch.cat([row, row]))
    return torch.stack([key % nodes, key // nodes]), row, len(pairs), dropped


def _distinct(key: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys, sorted and without repetitions, and the row of the first of equals."""
    key, order = key.sort(stable=True)
    kept = key.diff(prepend=key.new_full((1,), -1)) > 0
    return key[kept], row[order[kept]]


# ---- features --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Encoded:
    """Features of nodes or edges."""

    features: NodeFeatures
    columns: Tensor  # shape: (rows, labels), the one-hot columns that are 1; (rows,) for one label
    attributes: Tensor | None  # shape: (rows, attributes), float32


def encode(
    source: GraphSource,
    tables: GraphTables,
    what: str,
    features: str | NodeFeatures,
    degree_cap: int = 1,
) -> Encoded:
    """Encode the features of nodes or edges: of a kind, or in the columns of another data set."""
    kind = features.kind if isinstance(features, NodeFeatures) else features
    given = features if isinstance(features, NodeFeatures) else None
    rows = int(tables.node_ptr[-1]) if what == "node" else tables.edge_rows
    for name in ("labels", "attributes"):
        if name in kind.split("+") and f"{what}_{name}" not in source:
            others = " Use features='degree' or features='constant'." if what == "node" else ""
            column = source.label(f"{what}_{name}")
            raise MissingDataError(f"{column} is missing, which features={kind!r} of {what}s need.{others}")
    values: tuple[int, ...] = ()
    columns, attributes = torch.zeros(rows, 0, dtype=torch.long), None
    if "labels" in kind.split("+"):
        labels = _read_rows(source, f"{what}_labels", rows)
        codes = labels + SECOND_LABEL * torch.arange(labels.shape[1])
        values = given.values if given else tuple(codes.unique().tolist())
        columns = positions(source, f"{what}_labels", codes, values, f"{what} label")
    elif kind == "degree":
        degree = torch.bincount(tables.edge_index[1], minlength=rows)
        values = given.values if given else tuple(range(min(int(degree.max()), degree_cap) + 1))
        columns = degree.clamp(max=len(values) - 1)
    elif kind == "constant":
        values, columns = given.values if given else (1,), torch.zeros(rows, dtype=torch.long)
    if "attributes" in kind.split("+"):
        attributes = _read_rows(source, f"{what}_attributes", rows)
        if given and given.attributes != attributes.shape[1]:
            raise DataError(
                f"{source.label(f'{what}_attributes')} has {attributes.shape[1]} attributes for each {what}, expected "
                f"{given.attributes}."
            )
    found = given or NodeFeatures(kind, values, 0 if attributes is None else attributes.shape[1])
    if what == "edge":
        columns, attributes = columns[tables.edge_row], None if attributes is None else attributes[tables.edge_row]
    return Encoded(found, columns.squeeze(1) if columns.shape[1:] == (1,) else columns, attributes)


def encode_classes(
    source: GraphSource, tables: GraphTables, classes: Sequence[int] | None
) -> tuple[Tensor, tuple[int, ...]]:
    """Return the class of each graph with the label of each class, or the target of each graph without classes."""
    if classes is not None and len(set(classes)) != len(classes):
        raise ArgumentError(f"classes must not repeat a label (got {list(classes)}).")
    labels = tables.targets
    if labels is None:
        return torch.full((len(tables.node_ptr) - 1,), -1), tuple(classes or ())
    if labels.is_floating_point():
        if classes:
            raise DataError(f"{source.label('graph_labels')} is missing, which a classifier needs.")
        return labels, ()
    known = tuple(labels.unique().tolist() if classes is None else classes)
    return positions(source, "graph_labels", labels[:, None], known, "class").flatten(), known


def positions(source: GraphSource, kind: str, labels: Tensor, values: Sequence[int], what: str) -> Tensor:
    """Return the index of each label in ``values``."""
    ascending, order = torch.tensor(values).sort()
    position = torch.searchsorted(ascending, labels).clamp(max=len(values) - 1)
    unknown = ascending[position] != labels
    if (line := _first(unknown.any(1))) is not None:
        label = int(labels[line][unknown[line]][0])
        listed = join_some((str(_value(value)) for value in values), 20)
        raise DataError(f"{source.where(kind, line)}: unknown {what} {_value(label)}, expected one of {listed}.")
    return order[position]


def _value(code: int) -> int:
    """Return the value of a label, without what tells it from those of other labels of the same node."""
    return (code + SECOND_LABEL // 2) % SECOND_LABEL - SECOND_LABEL // 2


def one_hot(
    columns: Tensor, channels: int, attributes: Tensor | None
) -> Tensor:  # shape: (rows, channels + attributes)
    """Return one-hot columns followed by attributes."""
    x = torch.zeros(len(columns), channels, device=columns.device)
    x.scatter_(1, columns[:, None] if columns.ndim == 1 else columns, 1.0)
    return x if attributes is None else torch.cat([x, attributes], dim=1)
