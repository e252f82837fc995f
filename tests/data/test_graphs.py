"""Graph data sets: what was written is read, batches equal those of PyTorch Geometric, real data sets are complete."""

from __future__ import annotations

import random
import shutil
import tempfile
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch_geometric.data import Batch
from torch_geometric.datasets import TUDataset

from powerpool.data import GraphSet, NodeFeatures, load_graphs
from tests.data.tu_sets import TINY, Graph, graph_sets, texts, write_folder, write_zip
from tests.real_data import require_data


def exactly(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert_close(actual, expected, rtol=0, atol=0)


def one_graph(graphs: GraphSet, number: int) -> tuple[list[int], list[tuple[int, int]], int]:
    """Return the node values, edges and label of one graph."""
    batch = graphs[number]
    assert batch.batch.unique().tolist() == [0]
    assert (batch.x.sum(1) == 1).all()
    values = [graphs.features.values[column] for column in batch.x.argmax(1).tolist()]
    return values, [(a, b) for a, b in batch.edge_index.T.tolist()], graphs.classes[int(batch.y)]


@pytest.fixture
def tiny(tmp_path: Path) -> GraphSet:
    return load_graphs(write_folder(tmp_path, texts(TINY)))


class TestRoundTrip:
    @settings(max_examples=30)
    @given(graph_sets(), st.sampled_from(["folder", "zip"]), st.booleans(), st.randoms(use_true_random=False))
    def test_what_was_written_is_read(
        self, written: list[Graph], form: str, windows: bool, shuffler: random.Random
    ) -> None:
        content = texts(written)
        lines = content["A"].splitlines(keepends=True)
        shuffler.shuffle(lines)
        content["A"] = "".join(lines) + "\n\n"
        if windows:
            content = {kind: text.replace("\n", "\r\n") for kind, text in content.items()}
        with tempfile.TemporaryDirectory() as temporary:
            where = Path(temporary) / "set.zip"
            graphs = load_graphs((write_zip if form == "zip" else write_folder)(where, content))
        assert graphs.name == "TINY"
        assert graphs.source == str(where)
        assert len(graphs) == len(written)
        assert graphs.dropped == 0
        assert graphs.features == NodeFeatures("labels", tuple(sorted({label for g in written for label in g.labels})))
        assert graphs.classes == tuple(sorted({graph.target for graph in written}))
        for number, graph in enumerate(written):
            assert one_graph(graphs, number) == (graph.labels, graph.edges, graph.target)

    @settings(max_examples=30)
    @given(graph_sets(), st.data())
    def test_any_batch_is_that_of_pyg(self, written: list[Graph], data: st.DataObject) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            graphs = load_graphs(write_folder(Path(temporary), texts(written)))
        chosen = data.draw(st.lists(st.integers(0, len(written) - 1), min_size=1, max_size=10))
        single = graphs.to_pyg()
        expected, batch = Batch.from_data_list([single[number] for number in chosen]), graphs[torch.tensor(chosen)]
        for name in ("x", "edge_index", "batch", "y", "ptr"):
            exactly(getattr(batch, name), getattr(expected, name))
        for name in ("num_graphs", "num_nodes", "num_edges", "num_node_features"):
            assert getattr(batch, name) == getattr(expected, name)

    def test_spaces_and_leading_zeros_are_allowed(self, tmp_path: Path) -> None:
        content = {"A": " 1 ,2\n02,\t1", "graph_indicator": "1\n1", "graph_labels": "-5 \r\n"}
        graphs = load_graphs(write_folder(tmp_path, content))
        assert one_graph(graphs, 0) == ([1, 1], [(1, 0), (0, 1)], -5)


class TestGraphSet:
    def test_columns(self, tiny: GraphSet) -> None:
        assert repr(tiny) == "GraphSet('TINY', 3 graphs, 9 nodes, 14 edges, 2 classes, features from labels (3))"
        assert tiny.graph.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2]
        assert tiny.node_ptr.tolist() == [0, 3, 5, 9]
        assert tiny.edge_ptr.tolist() == [0, 4, 6, 14]
        assert tiny.columns.tolist() == [0, 1, 1, 2, 0, 1, 1, 1, 0]
        assert tiny.targets.tolist() == [1, 0, 1]
        assert tiny.classes == (-1, 1)
        assert {tiny.targets.dtype, tiny.edge_index.dtype} == {torch.int64}
        assert tiny[[0]].x.dtype == torch.float32

    def test_edges_are_sorted_by_target_then_source(self, tiny: GraphSet) -> None:
        for edges in (tiny.edge_index, tiny[[2, 0, 1]].edge_index):
            pairs = [(target, source) for source, target in edges.T.tolist()]
            assert pairs == sorted(pairs)

    @pytest.mark.parametrize(
        "index, same",
        [
            (slice(None), [0, 1, 2]),
            (slice(None, None, -1), [2, 1, 0]),
            ([2, 0], [2, 0]),
            ((1,), [1]),
            (-1, [2]),
            (torch.tensor([True, False, True]), [0, 2]),
            (torch.tensor([2, 2], dtype=torch.int32), [2, 2]),
        ],
        ids=str,
    )
    def test_kinds_of_indices(self, tiny: GraphSet, index: object, same: list[int]) -> None:
        for found, expected in zip(tiny[index], tiny[torch.tensor(same)], strict=True):  # type: ignore[index]
            exactly(found, expected)

    @pytest.mark.parametrize(
        "index, error, message",
        [
            (3, IndexError, r"TINY has graphs 0 to 2 \(got 3\)"),
            (torch.tensor([0, -1]), IndexError, "got -1"),
            ([], ValueError, "empty"),
            (torch.zeros(3, dtype=torch.bool), ValueError, "empty"),
            (torch.zeros(2, dtype=torch.bool), ValueError, "3 entries.*got 2"),
            (torch.zeros(1, 1, dtype=torch.long), ValueError, r"\(1, 1\)"),
            ([0.5], TypeError, "float"),
        ],
        ids=str,
    )
    def test_invalid_indices(self, tiny: GraphSet, index: object, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            tiny[index]  # type: ignore[index]

    def test_other_devices(self, tiny: GraphSet) -> None:
        moved = tiny.to("meta")
        assert {moved.columns.device.type, moved.targets.device.type, moved.edge_index.device.type} == {"meta"}
        assert {tensor.device.type for tensor in tiny[[0]].to("meta")[:5]} == {"meta"}

    def test_graphs_of_pyg_do_not_share_memory(self, tiny: GraphSet) -> None:
        for graph in tiny.to_pyg():
            for tensor in (graph.x, graph.edge_index, graph.y):
                assert tensor.is_contiguous()
                assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


class TestFeatures:
    def test_degree(self, tmp_path: Path) -> None:
        where = write_folder(tmp_path, texts(TINY, node_labels=False))
        graphs = load_graphs(where)
        assert graphs.features == NodeFeatures("degree", (0, 1, 2))
        assert graphs.columns.tolist() == [1, 2, 1, 1, 1, 2, 2, 2, 2]
        assert load_graphs(where, features="degree", degree_cap=1).columns.tolist() == [1] * 9
        alone = write_folder(tmp_path / "alone", texts([*TINY, Graph([5], [], 1)]))
        assert load_graphs(alone, features="degree").columns[-1] == 0

    def test_constant(self, tmp_path: Path) -> None:
        graphs = load_graphs(write_folder(tmp_path, texts(TINY)), features="constant")
        exactly(graphs[:].x, torch.ones(9, 1))

    def test_reddit_is_constant_unless_it_has_labels(self, tmp_path: Path) -> None:
        without = write_folder(tmp_path / "a", texts(TINY, node_labels=False), "REDDIT-TINY")
        assert load_graphs(without).features.kind == "constant"
        assert load_graphs(without, features="degree").features.kind == "degree"
        assert load_graphs(write_folder(tmp_path / "b", texts(TINY), "REDDIT-TINY")).features.kind == "labels"

    def test_features_of_another_set(self, tmp_path: Path) -> None:
        trained = load_graphs(write_folder(tmp_path / "trained", texts(TINY)))
        fewer = [Graph([2, 1], [(0, 1)], target=1)]
        other = load_graphs(
            write_folder(tmp_path / "other", texts(fewer)), features=trained.features, classes=trained.classes
        )
        exactly(other[0].x, torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]))
        assert other.targets.tolist() == [1]
        assert other.classes == trained.classes
        degrees = load_graphs(tmp_path / "other", features=NodeFeatures("degree", (0, 1, 2, 3)))
        assert degrees[0].x.shape == (2, 4)

    def test_labels_and_classes_that_were_not_trained_on(self, tmp_path: Path) -> None:
        where = write_folder(tmp_path, texts(TINY))
        with pytest.raises(ValueError, match=r"TINY_node_labels\.txt, line 4: .* 2, .* 0, 1"):
            load_graphs(where, features=NodeFeatures("labels", (0, 1)))
        with pytest.raises(ValueError, match=r"TINY_graph_labels\.txt, line 2: .* -1, .* 1, 0"):
            load_graphs(where, classes=[1, 0])
        with pytest.raises(ValueError, match=r"\[1, 1\]"):
            load_graphs(where, classes=[1, 1])
        assert load_graphs(where, classes=[1, 7, -1]).targets.tolist() == [0, 2, 0]

    def test_graphs_of_unknown_class(self, tmp_path: Path) -> None:
        content = texts(TINY)
        del content["graph_labels"]
        graphs = load_graphs(write_folder(tmp_path, content), labelled=False, classes=(-1, 1))
        assert graphs.targets.tolist() == [-1, -1, -1]
        assert graphs.classes == (-1, 1)

    @pytest.mark.parametrize("kind, values", [("auto", (0,)), ("labels", ()), ("labels", (1, 0)), ("degree", (1, 2))])
    def test_invalid_features(self, kind: str, values: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"auto|values"):
            NodeFeatures(kind, values)

    @pytest.mark.parametrize("arguments", [{"features": "label"}, {"edges": "both"}, {"degree_cap": 0}])
    def test_invalid_arguments(self, tmp_path: Path, arguments: dict[str, object]) -> None:
        with pytest.raises(ValueError, match=r"label|both|degree_cap"):
            load_graphs(write_folder(tmp_path, texts(TINY)), **arguments)  # type: ignore[arg-type]

    def test_missing_node_labels(self, tmp_path: Path) -> None:
        where = write_folder(tmp_path, texts(TINY, node_labels=False))
        with pytest.raises(ValueError, match=r"TINY_node_labels\.txt is missing.*features='degree'"):
            load_graphs(where, features="labels")


ONE_WAY = {"A": "1, 2\n2, 1\n2, 2\n3, 2\n1, 2\n", "graph_indicator": "1\n1\n1\n", "graph_labels": "0\n"}


class TestEdges:
    def test_a_missing_reverse_edge_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"TINY_A\.txt, line 4: .*node 3 to node 2 .*edges="):
            load_graphs(write_folder(tmp_path, ONE_WAY))

    def test_a_missing_reverse_edge_is_kept_or_added(self, tmp_path: Path) -> None:
        where = write_folder(tmp_path, ONE_WAY)
        directed = load_graphs(where, edges="directed", features="degree")
        assert directed.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1]]
        assert directed.columns.tolist() == [1, 2, 0]
        assert directed.dropped == 2  # a repeated edge and a loop
        assert load_graphs(where, edges="symmetrise").edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]


# ---- real data sets --------------------------------------------------------------------------------------------------

SETS = {  # graphs, classes, columns, and the digest of version 0.1, which records and run folders contain
    "MUTAG": (188, 2, "labels", 7, "0166097e9cd348bb"),
    "PTC_MR": (344, 2, "labels", 18, "0a82d2a5d0394932"),
    "PROTEINS": (1113, 2, "labels", 3, "f291ec02b317b64d"),
    "NCI1": (4110, 2, "labels", 37, "5031db5afeb6e1aa"),
    "IMDB-BINARY": (1000, 2, "degree", 136, "c4ee2d3e1ac5e574"),
    "IMDB-MULTI": (1500, 3, "degree", 89, "8abb360716d8c93b"),
    "REDDIT-BINARY": (2000, 2, "constant", 1, "f06abe415c15dc41"),
}


@pytest.mark.parametrize("name", SETS)
def test_real_data_sets_are_complete(name: str) -> None:
    where = require_data(f"graphs/{name}.zip")
    graphs = load_graphs(name, where.parent.parent, download=False)
    assert graphs.source == str(where)
    assert (len(graphs), len(graphs.classes), graphs.features.kind, graphs.channels, graphs.digest) == SETS[name]
    assert graphs.targets.bincount().min() > 0
    source, target = graphs.edge_index
    exactly(graphs.graph[source], graphs.graph[target])


@pytest.mark.parametrize("name", ["MUTAG", "PTC_MR"])
def test_real_data_sets_equal_those_of_pyg(name: str, tmp_path: Path) -> None:
    raw = tmp_path / name / "raw"
    raw.mkdir(parents=True)
    with zipfile.ZipFile(require_data(f"graphs/{name}.zip")) as archive:
        for member in archive.namelist():
            with archive.open(member) as source, (raw / Path(member).name).open("wb") as target:
                shutil.copyfileobj(source, target)
    graphs, theirs = load_graphs(name, tmp_path), TUDataset(str(tmp_path), name)
    assert graphs.source == str(raw)
    for ours, other in zip(graphs.to_pyg(), theirs, strict=True):
        exactly(ours.x, other.x)
        exactly(ours.y, other.y)
        order = (other.edge_index[1] * other.num_nodes + other.edge_index[0]).argsort()
        exactly(ours.edge_index, other.edge_index[:, order])
