"""Kinds of data through the commands' own functions: attributes, edge features, rare classes, targets, PyG files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch_geometric.data import Data

from powerpool.cli.commands import evaluate, predict, train
from powerpool.cli.main import main
from powerpool.cli.reproduce import reproduce
from powerpool.data import DataError, GraphSet, NodeFeatures, load_graphs
from powerpool.files import read_json
from powerpool.report.groups import group_records
from powerpool.report.tables import make_table
from powerpool.runs.record import FoldResult, RunRecord
from powerpool.tasks.base import ignore_progress
from powerpool.tasks.graph.backbones import BACKBONES, WITH_EDGES
from powerpool.tasks.graph.config import GraphConfig, ModelConfig, TrainingConfig
from powerpool.tasks.graph.inference import load_run
from powerpool.tasks.graph.options import EvaluateOptions, PredictOptions, ReproduceOptions, TrainOptions
from powerpool.tasks.graph.task import TASK
from powerpool.tasks.graph.training import Training
from tests.tasks.graph.samples import write_own_set

SMALL = ModelConfig("SOP+SpecMaxExpF", hidden=8, layers=1)
SHORT = TrainingConfig(epochs=2, batch_size=16)


def make_graphs(count: int = 30, rare: int = 1, *, regression: bool = False, seed: int = 0) -> list[Data]:
    """Rings with attributes of large offset, whose mean depends on the class or on the target."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for number in range(count):
        nodes = 4 + number % 3
        ring = torch.arange(nodes)
        edges = torch.stack([ring, (ring + 1) % nodes])
        label = int(number % (rare + 1) == 0)
        target = float(torch.rand((), generator=generator)) if regression else float(label)
        x = 1000 + 3 * target + torch.randn(nodes, 2, generator=generator) / 2
        y = torch.tensor([50 + 10 * target]) if regression else torch.tensor([label])
        both = torch.cat([edges, edges.flip(0)], dim=1)
        found.append(Data(x=x, edge_index=both, y=y, edge_attr=torch.randn(2 * nodes, 3, generator=generator)))
    return found


def save(path: Path, graphs: list[Data]) -> str:
    torch.save(graphs, path)
    return str(path)


def options(data: str, folder: Path, **changes: object) -> TrainOptions:
    settings = {"data": data, "model": SMALL, "training": SHORT, "folds": 3, "out": str(folder), **changes}
    return TrainOptions(**settings)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_train_evaluate_predict_of_a_pyg_file(
    tmp_path: Path, backbone: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = save(tmp_path / "mine.pt", make_graphs())
    model = replace(SMALL, backbone=backbone, neighbours=2 if backbone == "GATv2" else None)
    train(options(data, tmp_path / "run", model=model))
    shown = capsys.readouterr()
    assert "node features are attributes" in shown.err + shown.out
    assert ("not used: edge attributes" in shown.err + shown.out) == (backbone not in WITH_EDGES)
    evaluate(EvaluateOptions(run=str(tmp_path / "run")))
    measured = read_json(tmp_path / "run" / "evaluation.json")
    record = RunRecord.read(tmp_path / "run" / "record.json")
    (result,) = record.results
    assert isinstance(result, FoldResult)
    assert measured["measures"] == pytest.approx(result.measures)  # the stored model, with its statistics, is the same
    assert measured["accuracy"] == pytest.approx(result.value)
    assert record.method == SMALL.method if backbone == "GIN0" else f"{backbone}+{SMALL.method}"
    unlabelled = [Data(x=one.x, edge_index=one.edge_index, edge_attr=one.edge_attr) for one in make_graphs(5)]
    out = tmp_path / "answers.json"
    predict(PredictOptions(run=str(tmp_path / "run"), data=save(tmp_path / "new.pt", unlabelled), out=str(out)))
    assert len(read_json(out)) == 5


def test_statistics_are_those_of_the_training_graphs() -> None:
    graphs = GraphSet.from_pyg(make_graphs(), edge_features=True)
    chosen = torch.arange(10)
    training = Training(replace(SMALL, backbone="PNA"), SHORT, graphs, chosen)
    nodes = torch.cat([one.x for one in make_graphs()[:10]])
    edges = torch.cat([one.edge_attr for one in make_graphs()[:10]])
    scaled = training.model.scale_nodes
    assert scaled is not None
    assert_close(scaled.mean, nodes.double().mean(0).float())
    assert_close(scaled.scale, nodes.double().std(0, correction=0).float())
    assert training.model.scale_edges is not None
    assert_close(training.model.scale_edges.mean, edges.mean(0), rtol=1e-4, atol=1e-6)
    assert float(training.model.convolutions[0].conv.aggr_module.avg_deg_lin) == 2  # rings


class TestRegression:
    @pytest.fixture
    def data(self, tmp_path: Path) -> str:
        return save(tmp_path / "numbers.pt", make_graphs(60, regression=True))

    def test_commands(self, tmp_path: Path, data: str) -> None:
        model, training = replace(SMALL, method="GIN0"), TrainingConfig(epochs=30, batch_size=16)
        train(options(data, tmp_path / "run", model=model, training=training))
        record = RunRecord.read(tmp_path / "run" / "record.json")
        assert record.metric == "MAE"
        assert not record.higher_is_better
        assert record.mean < 1.5  # that of the mean target is 2.5
        evaluate(EvaluateOptions(run=str(tmp_path / "run")))
        measured = read_json(tmp_path / "run" / "evaluation.json")["measures"]
        assert measured["MAE"] == pytest.approx(record.mean)
        assert measured["MAE"] <= measured["RMSE"]
        predict(PredictOptions(run=str(tmp_path / "run"), data=data, out=str(tmp_path / "answers.json")))
        found = [row["prediction"] for row in read_json(tmp_path / "answers.json")]
        targets = torch.tensor([float(one.y) for one in make_graphs(60, regression=True)])
        assert float((torch.tensor(found) - targets).abs().mean()) < 2.5
        classes = save(tmp_path / "classes.pt", make_graphs())
        with pytest.raises(DataError, match="classes"):
            load_run(tmp_path / "run").read(classes)

    def test_lower_is_better_in_tables(self, tmp_path: Path, data: str) -> None:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(f"data: {data}\nmodel: {{hidden: 8, layers: 1}}\ntraining: {{epochs: 3}}\nfolds: 3\n")
        out = str(tmp_path / "out")
        found = reproduce(
            ReproduceOptions(
                recipe=str(recipe), methods=["GIN0", "SOP"], protocols=["validation-only"], out=out, jobs=1
            ),
            report=False,
        )
        (group,) = group_records(found.records)
        table = make_table(group)
        assert "RMSE" in table.headings
        bold = [row[0] for row in table.rows if type(row[1]).__name__ == "Bold"]
        best = min(group.records, key=lambda record: record.mean)
        assert bold == [best.method]


def test_remarks_say_what_is_used_and_what_is_dropped(tmp_path: Path) -> None:
    ring = torch.tensor([[0, 1, 1, 2, 2, 2], [1, 0, 2, 1, 2, 1]])  # a self-loop and a repeated edge
    graphs = [Data(edge_index=ring, y=torch.tensor([number % 2]), num_nodes=3) for number in range(4)]
    (remark,) = TASK.data_remarks(GraphSet.from_pyg(graphs, "mine"))
    assert "node features are degree" in remark
    assert "8 self-loops and repeated edges" in remark
    assert "regression" not in remark
    (remark,) = TASK.data_remarks(GraphSet.from_pyg(make_graphs(regression=True)))
    assert "regression: y is floating-point; use integer y for classes" in remark
    assert "dropped" not in remark
    (remark,) = TASK.data_remarks(load_graphs(write_own_set(tmp_path / "OWN")))
    assert remark == "OWN: node features are labels (3 channels)."
    mutag = replace(load_graphs("MUTAG", download=False), ignored=())
    assert TASK.data_remarks(mutag) == []
    assert len(TASK.data_remarks(replace(mutag, features=NodeFeatures("degree", (0, 1))))) == 1


class TestClasses:
    def test_rare_classes(self) -> None:
        graphs = GraphSet.from_pyg(make_graphs(60, rare=9))
        config = GraphConfig(model=SMALL, training=SHORT, folds=3)
        weighted = replace(SHORT, class_weights="balanced")
        plain, balanced = (Training(SMALL, one, graphs, torch.arange(60)) for one in (SHORT, weighted))
        assert plain.objective.weights is None
        assert_close(balanced.objective.weights, torch.tensor([60 / 2 / 54, 60 / 2 / 6]))
        balanced.run()
        plain.run()
        assert plain.curves.train_loss != balanced.curves.train_loss
        assert "class_weights" not in TASK.settings(config, graphs)["training"]  # keys of stored units stay
        assert TASK.settings(replace(config, training=weighted), graphs)["training"]["class_weights"] == "balanced"
        assert TASK.remarks(replace(config, training=weighted), graphs) == []
        numbers = GraphSet.from_pyg(make_graphs(regression=True))
        assert "class_weights" in TASK.remarks(replace(config, training=weighted), numbers)[0]

    def test_one_class_is_refused(self) -> None:
        graphs = GraphSet.from_pyg([one for one in make_graphs() if int(one.y) == 1], "same")
        with pytest.raises(DataError, match="same has one class only, 1"):
            TASK.check(GraphConfig(folds=3), graphs, 0)

    def test_one_way_edges(self, tmp_path: Path) -> None:
        graphs = make_graphs()
        for one in graphs:
            one.edge_index, one.edge_attr = one.edge_index[:, ::2], None
        data = save(tmp_path / "one-way.pt", graphs)
        with pytest.raises(DataError, match="edges='symmetrise'"):
            train(options(data, tmp_path / "run"))
        train(options(data, tmp_path / "run", edges="symmetrise"))
        evaluate(EvaluateOptions(run=str(tmp_path / "run")))

    def test_predict_says_what_is_chosen_in_training(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        train(options(save(tmp_path / "good.pt", make_graphs()), tmp_path / "run"))
        one_way, missing = make_graphs(), make_graphs()
        one_way[3].edge_index, one_way[3].edge_attr = one_way[3].edge_index[:, 1:], None
        missing[2].x[0] = torch.nan
        for graphs, option in ((one_way, "--edges directed"), (missing, "--features degree")):
            data = save(tmp_path / "bad.pt", [Data(x=one.x, edge_index=one.edge_index) for one in graphs])
            assert main(["predict", "graph", "--run", str(tmp_path / "run"), "--data", data]) == 2
            assert f"{option} in training" in capsys.readouterr().err

    def test_reproduce_takes_the_options_that_its_errors_name(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        graphs = make_graphs()
        for one in graphs:
            one.edge_index, one.edge_attr = one.edge_index[:, ::2], None
            one.x[0] = torch.nan
        words = {"data": [save(tmp_path / "hard.pt", graphs)], "quick": True, "methods": ["GIN0", "SOP"]}
        called = ["reproduce", "graph", "--data", *words["data"], "--quick", "--out", str(tmp_path / "out")]
        assert main(called) == 2
        assert "--edges symmetrise" in capsys.readouterr().err
        assert main([*called, "--edges", "symmetrise"]) == 2
        assert "--features degree" in capsys.readouterr().err
        assert main([*called, "--backbone", "GIN1"]) == 2
        rows = TASK.plan(
            ReproduceOptions(**words, edges="symmetrise", features="degree", backbone="GCN"), ignore_progress
        )
        assert [row.method for row in rows] == ["GCN", "GCN+SOP"]
        assert rows[0].data.features.kind == "degree"
        assert rows[0].configs[0].edges == "symmetrise"

    def test_edge_features_are_required_where_the_name_says_so(self, tmp_path: Path) -> None:
        graphs = make_graphs()
        for one in graphs:
            one.edge_attr = None
        data = save(tmp_path / "a.pt", graphs)
        with pytest.raises(ValueError, match="GINE needs edge features"):
            train(options(data, tmp_path / "run", model=replace(SMALL, backbone="GINE")))
        with pytest.raises(ValueError, match="GINE needs edge features"):
            TASK.plan(ReproduceOptions(data=[data], backbone="GINE"), ignore_progress)
