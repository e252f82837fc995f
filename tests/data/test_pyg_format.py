"""Graphs of PyTorch Geometric: lists, saved data sets and OGB; nothing but data is loaded from a file."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import Subset
from torch_geometric.data import Batch, Data, HeteroData, InMemoryDataset
from torch_geometric.datasets import FakeDataset

from powerpool.data import DataError, GraphSet, Limits, MissingDataError, NodeFeatures, load_graphs
from powerpool.errors import ArgumentError
from tests.data.tu_sets import TINY, with_attributes, write_folder


def exactly(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert_close(actual, expected, rtol=0, atol=0)


PAIR = torch.tensor([[0, 1], [1, 0]])


def graph(**values: object) -> Data:
    """A graph of two nodes and one edge; ``values`` replace its tensors."""
    return Data(**{"x": torch.tensor([[1.0, 0.5], [0.0, 2.0]]), "edge_index": PAIR, "y": torch.tensor([1]), **values})


class TestFromPyG:
    def test_round_trip(self, tmp_path: Path) -> None:
        original = load_graphs(write_folder(tmp_path, with_attributes(TINY)), edge_features=True)
        again = GraphSet.from_pyg(original.to_pyg(), "TINY", edge_features=True)
        for found, expected in zip(again[[2, 0]], original[[2, 0]], strict=True):
            exactly(found, expected)
        assert again.features == NodeFeatures("attributes", (), 5)
        assert again.classes == (0, 1)

    def test_integers_are_labels(self) -> None:
        one = graph(x=torch.tensor([[3, 0], [1, 7]]), edge_attr=torch.tensor([5, 4]), y=torch.tensor([[2]]))
        graphs = GraphSet.from_pyg([one, one], edge_features=True)
        exactly(
            graphs[0].x, torch.tensor([[0.0, 1, 1, 0], [1, 0, 0, 1]])
        )  # values 1, 3 of the first, 0, 7 of the second
        exactly(graphs[0].edge_attr, torch.tensor([[1.0, 0], [0, 1]]))  # sorted by target: edge 1 -> 0 first
        other = graph(x=torch.tensor([[3, 7], [1, 1]]), y=torch.tensor([[2]]))
        with pytest.raises(DataError, match="graph 0, node 1: unknown node label 1, expected one of 1, 3, 0, 7"):
            GraphSet.from_pyg([other], features=graphs.features)
        assert graphs.classes == (2,)

    def test_without_node_features(self) -> None:
        alone = graph(x=None, num_nodes=3, pos=torch.zeros(3, 2))
        graphs = GraphSet.from_pyg([graph(x=None, num_nodes=3), alone])
        assert graphs.features == NodeFeatures("degree", (0, 1))
        assert graphs.columns.tolist() == [1, 1, 0] * 2
        assert graphs.ignored == ("pos",)

    def test_targets(self) -> None:
        graphs = GraphSet.from_pyg([graph(y=1.5), graph(y=torch.tensor([2.0]))])
        assert graphs.is_regression
        exactly(graphs.targets, torch.tensor([1.5, 2.0]))
        unlabelled = GraphSet.from_pyg([graph(y=None)], labelled=False, classes=(0, 1))
        assert unlabelled.targets.tolist() == [-1]
        with pytest.raises(MissingDataError, match=r"integer y .*floating-point"):
            GraphSet.from_pyg([graph(y=None)])

    def test_a_data_set_of_pyg(self) -> None:
        torch.manual_seed(0)
        fake = FakeDataset(num_graphs=12, avg_num_nodes=10, edge_dim=2, num_classes=3, is_undirected=True)
        graphs = GraphSet.from_pyg(fake, "fake", edge_features=True)
        assert (len(graphs), graphs.channels, graphs.edge_channels) == (12, fake.num_node_features, 2)
        exactly(graphs[4].x, fake[4].x)
        distinct = [{(a, b) for a, b in one.edge_index.T.tolist() if a != b} for one in fake]
        assert graphs.num_edges == sum(map(len, distinct))

    @pytest.mark.parametrize(
        "bad, message",
        [
            (graph(edge_index=None), "graph 1: .*edge_index None"),
            (HeteroData(), "graph 1: .*HeteroData"),
            (graph(edge_index=torch.tensor([[0, 2], [2, 0]])), r"graph 1, edge 0: .*\[0, 2\].* 0 to 1"),
            (graph(edge_index=torch.tensor([[0], [1]])), "graph 1, edge 0: .*node 0 to node 1 .*symmetrise"),
            (graph(x=torch.ones(2, 3)), r"graph 1: expected x of shape \(2, 2\).*\(2, 3\)"),
            (graph(x=None), r"graph 1: expected x of shape .*None"),
            (graph(x=torch.tensor([[1.0, 1], [torch.nan, 1]])), "graph 1, node 1: attribute 1 is nan"),
            (graph(y=torch.tensor([1, 0])), r"graph 1: expected y of shape \(1, 1\)"),
            (graph(y="toxic"), "graph 1: expected y .*toxic"),
            (graph(x=torch.zeros(0, 2), edge_index=PAIR[:, :0]), "graph 1: it has no nodes"),
        ],
    )
    def test_bad_graphs_are_named(self, bad: Data, message: str) -> None:
        with pytest.raises(DataError, match=f"mine, {message}"):
            GraphSet.from_pyg([graph(), bad], "mine")

    def test_bad_lists(self) -> None:
        with pytest.raises(DataError, match="no graphs"):
            GraphSet.from_pyg([])
        for wrong, message in ((5, "int"), (graph(), "Data"), (Batch.from_data_list([graph()]), "to_data_list")):
            with pytest.raises(DataError, match=f"list of Data .*{message}"):
                GraphSet.from_pyg(wrong)  # type: ignore[arg-type]
        part = Subset([graph(), graph(), graph()], [0, 2])  # has no __iter__  # type: ignore[arg-type]
        assert len(GraphSet.from_pyg(part)) == 2
        with pytest.raises(ArgumentError, match="from_pyg"):
            load_graphs([graph()])  # type: ignore[arg-type]
        with pytest.raises(DataError, match="2 columns"):
            GraphSet.from_pyg([graph(y=torch.tensor([[1, 0]]))])


class Evil:
    """A pickle that would run a function."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("the pickle ran",))


class TestSavedDataSets:
    def test_lists_and_data_sets(self, tmp_path: Path) -> None:
        graphs = [graph(), graph(y=torch.tensor([4]), x=torch.zeros(2, 2)), graph()]
        torch.save(graphs, tmp_path / "list.pt")
        folder = tmp_path / "MINE" / "processed"
        folder.mkdir(parents=True)
        InMemoryDataset.save(graphs, str(folder / "data.pt"))
        InMemoryDataset.save(graphs[:1], str(tmp_path / "one.pt"))
        for path, name in ((tmp_path / "list.pt", "list"), (folder / "data.pt", "MINE")):
            found = load_graphs(path)
            assert (found.name, found.source, found.classes) == (name, str(path), (1, 4))
            exactly(found[1].x, torch.zeros(2, 2))
            exactly(found[2].x, graphs[2].x)
        assert len(load_graphs(str(tmp_path / "one.pt"))) == 1
        assert Data in torch.serialization.get_safe_globals()  # PyG registered it

    def test_anything_else_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.pt"
        for content, message in (
            ([Evil()], "pickle names"),
            ({"weight": torch.ones(3)}, "not a PyG data set.*dict"),
            ((torch.ones(3), {"x": torch.ones(2)}), "not a PyG data set"),
            ([torch.ones(3)], "graph 0: .*Tensor"),
            ([], "no graphs"),
        ):
            torch.save(content, path)
            with pytest.raises(DataError, match=rf"bad\.pt.*{message}"):
                load_graphs(path)
        path.write_bytes(b"PK\3\4 damaged")
        with pytest.raises(DataError, match=r"bad\.pt is not a PyG data set"):
            load_graphs(path)
        torch.save([graph()], path)
        with pytest.raises(DataError, match=r"bad\.pt .* 100"):
            load_graphs(path, limits=Limits(text=100))
        with pytest.raises(MissingDataError, match=r"nowhere\.pt"):
            load_graphs(tmp_path / "nowhere.pt")


class TestOGB:
    def test_without_the_package(self) -> None:
        if "ogb" in sys.modules:
            pytest.skip("ogb is installed")
        with pytest.raises(ModuleNotFoundError, match="pip install ogb"):
            load_graphs("ogbg-molhiv")

    def test_molecules(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a stand-in for the package: graphs with the attributes of those of OGB, loaded as by ogb 1.3.6."""
        asked = []
        edge_attr = torch.zeros(2, 3).long()
        molecules = [
            graph(x=torch.tensor([[5, 0, 4], [6, 0, 3]]), edge_attr=edge_attr, y=torch.tensor([[k]]), num_nodes=2)
            for k in (0, 1, 0)
        ]
        torch.save(InMemoryDataset.collate(molecules)[:2], tmp_path / "processed.pt")

        class PygGraphPropPredDataset(InMemoryDataset):
            def __init__(self, name: str, root: str) -> None:
                asked.append((name, root))
                super().__init__()
                self.data, self.slices = torch.load(tmp_path / "processed.pt")

        module = types.ModuleType("ogb.graphproppred")
        module.PygGraphPropPredDataset = PygGraphPropPredDataset  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "ogb", types.ModuleType("ogb"))
        monkeypatch.setitem(sys.modules, "ogb.graphproppred", module)
        with pytest.raises(MissingDataError, match=r"ogbg-molhiv was not found .*ogbg_molhiv"):
            load_graphs("ogbg-molhiv", tmp_path)
        assert not asked
        (tmp_path / "graphs" / "ogbg_molhiv").mkdir(parents=True)
        graphs = load_graphs("ogbg-molhiv", tmp_path, edge_features=True)
        assert asked == [("ogbg-molhiv", str(tmp_path / "graphs"))]
        assert (graphs.name, graphs.channels, graphs.edge_channels, graphs.classes) == ("ogbg-molhiv", 5, 3, (0, 1))
        (tmp_path / "graphs" / "ogbg_molhiv").rename(tmp_path / "graphs" / "ogbg_molhiv_pyg")
        assert load_graphs("ogbg-molhiv", tmp_path).source == str(tmp_path / "graphs" / "ogbg_molhiv_pyg")
