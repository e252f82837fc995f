"""Attributes and edge features: what was written is read, in the order of sorted edges; bad values are named."""

from __future__ import annotations

from pathlib import Path

import grakel
import pytest
import torch
from torch.testing import assert_close
from torch_geometric.datasets import TUDataset

from powerpool.data import DataError, GraphSet, MissingDataError, NodeFeatures, load_graphs
from tests.data.tu_sets import TINY, with_attributes, write_folder

CONTENT = with_attributes(TINY)
CUNEIFORM = Path(grakel.__file__).parent / "tests" / "data" / "Cuneiform"


def exactly(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert_close(actual, expected, rtol=0, atol=0)


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "tiny", CONTENT)


class TestNodeAttributes:
    def test_auto_takes_labels_and_attributes(self, where: Path) -> None:
        graphs = load_graphs(where)
        assert graphs.features == NodeFeatures("labels+attributes", (0, 1, 2), attributes=2)
        assert graphs.channels == 5
        assert graphs.ignored == ("edge labels", "edge attributes")
        number = torch.arange(9)
        expected = torch.stack([number / 4, -number / 10], dim=1)
        exactly(graphs[:].x[:, 3:], expected)
        exactly(graphs[:].x[:, :3], load_graphs(where, features="labels")[:].x)
        exactly(graphs[[2]].x[:, 3:], expected[5:])
        exactly(load_graphs(where, features="attributes")[:].x, expected)

    def test_data_sets_known_by_name_use_labels_as_published(self, tmp_path: Path) -> None:
        graphs = load_graphs(write_folder(tmp_path, CONTENT, "PROTEINS"))
        assert graphs.features.kind == "labels"
        assert graphs.ignored == ("node attributes", "edge labels", "edge attributes")

    def test_the_digest_depends_on_attributes_only_where_they_are_used(self, where: Path, tmp_path: Path) -> None:
        changed = CONTENT | {"node_attributes": CONTENT["node_attributes"].replace("0.5,", "0.75,")}
        other = write_folder(tmp_path / "other", changed)
        assert load_graphs(where).digest != load_graphs(other).digest
        assert load_graphs(where, features="labels").digest == load_graphs(other, features="labels").digest

    @pytest.mark.parametrize(
        "line, text, message",
        [
            (3, "nan, 1", r"line 3: attribute 1 is nan.*features="),
            (9, "1, -inf", r"line 9: attribute 2 is -inf"),
            (2, "1e39, 1", r"line 2: attribute 1 is 1e\+39.*float32"),
            (4, "1", "line 4: expected .*'1'"),
            (4, "1, x", "line 4: expected .*'1, x'"),
            (4, "1, 1_0", "line 4: expected .*'1, 1_0'"),
            (4, None, "8 lines, expected 9"),
        ],
    )
    def test_bad_lines_are_named(self, tmp_path: Path, line: int, text: str | None, message: str) -> None:
        lines = CONTENT["node_attributes"].splitlines()
        lines[line - 1 : line] = [] if text is None else [text]
        damaged = write_folder(tmp_path, CONTENT | {"node_attributes": "\n".join(lines)})
        with pytest.raises(DataError, match=rf"TINY_node_attributes\.txt.*{message}"):
            load_graphs(damaged)
        assert load_graphs(damaged, features="labels").channels == 3  # the remedy

    def test_features_of_another_set(self, where: Path, tmp_path: Path) -> None:
        trained = load_graphs(where).features
        lines = CONTENT["node_attributes"].splitlines()
        narrow = write_folder(
            tmp_path / "narrow", CONTENT | {"node_attributes": "\n".join(line.split(",")[0] for line in lines)}
        )
        with pytest.raises(DataError, match="1 attributes for each node, expected 2"):
            load_graphs(narrow, features=trained)
        without = {kind: text for kind, text in CONTENT.items() if kind != "node_attributes"}
        with pytest.raises(MissingDataError, match=r"TINY_node_attributes\.txt is missing"):
            load_graphs(write_folder(tmp_path / "without", without), features=trained)


class TestEdgeFeatures:
    def test_follow_their_edges(self, where: Path) -> None:
        graphs = load_graphs(where, edge_features=True)
        assert graphs.edge_features == NodeFeatures("labels+attributes", (0, 1, 2), attributes=1)
        assert graphs.ignored == ()
        rows = [tuple(map(int, line.split(","))) for line in CONTENT["A"].splitlines()]
        batch = graphs[:]
        for (source, target), found in zip(batch.edge_index.T.tolist(), batch.edge_attr, strict=True):
            expected = torch.zeros(4)
            expected[(source + target + 2) % 3] = 1
            expected[3] = rows.index((source + 1, target + 1)) + 0.5
            exactly(found, expected)
        assert batch.edge_attr is not None
        exactly(graphs[[1]].edge_attr, batch.edge_attr[4:6])

    def test_added_edges_have_the_features_of_their_reverse(self, tmp_path: Path) -> None:
        content = {
            "A": "1, 2\n3, 2\n1, 2\n2, 1\n2, 2\n",
            "graph_indicator": "1\n1\n1\n",
            "graph_labels": "0\n",
            "edge_attributes": "1\n2\n3\n4\n5\n",
        }
        folder = write_folder(tmp_path, content)
        found = load_graphs(folder, edges="symmetrise", edge_features=True)
        edges = {
            (a, b): float(value) for (a, b), value in zip(found.edge_index.T.tolist(), found.edge_attr, strict=True)
        }
        assert edges == {(0, 1): 1, (1, 0): 4, (2, 1): 2, (1, 2): 2}
        assert found.dropped == 2

    def test_columns_of_another_set(self, where: Path, tmp_path: Path) -> None:
        trained = load_graphs(where, edge_features=True).edge_features
        assert trained is not None
        fewer = CONTENT | {"edge_labels": CONTENT["edge_labels"].replace("2", "1")}
        assert load_graphs(write_folder(tmp_path / "a", fewer), edge_features=trained).edge_channels == 4
        more = CONTENT | {"edge_labels": CONTENT["edge_labels"].replace("2", "7")}
        with pytest.raises(DataError, match=r"TINY_edge_labels\.txt, line \d+: unknown edge label 7, .* 0, 1, 2"):
            load_graphs(write_folder(tmp_path / "b", more), edge_features=trained)
        short = CONTENT | {"edge_attributes": "1\n2\n"}
        with pytest.raises(DataError, match=r"TINY_edge_attributes\.txt has 2 lines, expected 14.*edge"):
            load_graphs(write_folder(tmp_path / "c", short), edge_features=True)


WITHOUT_CLASSES = {kind: text for kind, text in CONTENT.items() if kind != "graph_labels"}


class TestTargets:
    def test_graph_attributes_are_targets(self, tmp_path: Path) -> None:
        graphs = load_graphs(write_folder(tmp_path, WITHOUT_CLASSES | {"graph_attributes": "0.5\n-2e1\n3\n"}))
        assert graphs.is_regression
        assert graphs.classes == ()
        exactly(graphs[[1, 0]].y, torch.tensor([-20.0, 0.5]))
        assert "regression" in repr(graphs)

    def test_classes_come_first(self, tmp_path: Path) -> None:
        graphs = load_graphs(write_folder(tmp_path, CONTENT | {"graph_attributes": "0.5\n-2e1\n3\n"}))
        assert not graphs.is_regression
        assert "graph attributes" in graphs.ignored

    def test_bad_targets(self, tmp_path: Path) -> None:
        for text, message in (
            ("1\nnan\n3\n", r"line 2: attribute 1 is nan.*Remove graphs"),
            ("1, 2\n1, 2\n1, 2\n", "2 targets for each graph"),
        ):
            with pytest.raises(DataError, match=rf"TINY_graph_attributes\.txt.*{message}"):
                load_graphs(write_folder(tmp_path, WITHOUT_CLASSES | {"graph_attributes": text}))
        regression = write_folder(tmp_path, WITHOUT_CLASSES | {"graph_attributes": "1\n2\n3\n"})
        with pytest.raises(DataError, match=r"TINY_graph_labels\.txt is missing"):
            load_graphs(regression, classes=(-1, 1))


@pytest.mark.skipif(not CUNEIFORM.is_dir(), reason="grakel does not contain Cuneiform")
def test_a_real_data_set_equals_that_of_pyg(tmp_path: Path) -> None:
    """Cuneiform has two labels and three attributes for each node, one label and two attributes for each edge."""
    graphs = load_graphs(CUNEIFORM, edge_features=True)
    (tmp_path / "Cuneiform").mkdir()
    (tmp_path / "Cuneiform" / "raw").symlink_to(CUNEIFORM)
    pyg = TUDataset(str(tmp_path), "Cuneiform", use_node_attr=True, use_edge_attr=True)
    assert len(graphs) == len(pyg) == 267
    assert (graphs.channels, graphs.edge_channels) == (10, 4)
    for number in (0, 100, 266):
        found, expected = graphs[number], pyg[number].sort(sort_by_row=False)
        # PyG puts attributes before labels.
        exactly(found.x, torch.cat([expected.x[:, 3:], expected.x[:, :3]], dim=1))
        assert found.edge_attr is not None
        exactly(found.edge_index, expected.edge_index)
        exactly(found.edge_attr, torch.cat([expected.edge_attr[:, 2:], expected.edge_attr[:, :2]], dim=1))
    assert isinstance(graphs, GraphSet)
