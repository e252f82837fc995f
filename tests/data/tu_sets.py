"""Small graph data sets in TU format for tests."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

Pair = tuple[int, int]


@dataclass(frozen=True)
class Graph:
    """Node labels, undirected edges (each pair of nodes once, from 0), and the class."""

    labels: list[int]
    pairs: list[Pair]
    target: int

    @property
    def edges(self) -> list[Pair]:
        """Edges in both directions, sorted by target, then source."""
        both = {*self.pairs, *((b, a) for a, b in self.pairs)}
        return sorted(both, key=lambda edge: (edge[1], edge[0]))


TINY = [
    Graph([0, 1, 1], [(0, 1), (1, 2)], target=1),
    Graph([2, 0], [(0, 1)], target=-1),
    Graph([1, 1, 1, 0], [(0, 1), (1, 2), (2, 3), (0, 3)], target=1),
]


def texts(graphs: list[Graph], node_labels: bool = True) -> dict[str, str]:
    """Return the content of each file, by kind."""
    indicator, labels, lines = [], [], []
    for number, graph in enumerate(graphs, start=1):
        first = len(indicator) + 1
        lines += [f"{first + source}, {first + target}" for source, target in graph.edges]
        indicator += [number] * len(graph.labels)
        labels += graph.labels
    content = {
        "A": lines,
        "graph_indicator": indicator,
        "graph_labels": [graph.target for graph in graphs],
        **({"node_labels": labels} if node_labels else {}),
    }
    return {kind: "".join(f"{line}\n" for line in found) for kind, found in content.items()}


def with_attributes(graphs: list[Graph]) -> dict[str, str]:
    """Return the content of each file, with attributes of nodes, and labels and attributes of edges."""
    content = texts(graphs)
    lines = content["A"].splitlines()
    content["node_attributes"] = "".join(
        f"{number / 4}, {-number}e-1\n" for number in range(len(content["node_labels"].split()))
    )
    content["edge_labels"] = "".join(f"{sum(map(int, line.split(','))) % 3}\n" for line in lines)
    content["edge_attributes"] = "".join(f"{number}.5\n" for number in range(len(lines)))
    return content


def write_folder(folder: Path, content: dict[str, str], name: str = "TINY") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for kind, text in content.items():
        (folder / f"{name}_{kind}.txt").write_bytes(text.encode())
    return folder


def write_zip(path: Path, content: dict[str, str], name: str = "TINY") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for kind, text in content.items():
            archive.writestr(f"{name}/{name}_{kind}.txt", text)
    return path


@st.composite
def graph(draw: st.DrawFn) -> Graph:
    labels = draw(st.lists(st.integers(-3, 9), min_size=1, max_size=6))
    possible = [(a, b) for a in range(len(labels)) for b in range(a + 1, len(labels))]
    pairs = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    return Graph(labels, pairs, draw(st.integers(-2, 4)))


def graph_sets() -> st.SearchStrategy[list[Graph]]:
    """Data sets with at least one edge: an empty file is refused."""
    return st.lists(graph(), min_size=1, max_size=7).filter(lambda graphs: any(graph.pairs for graph in graphs))
