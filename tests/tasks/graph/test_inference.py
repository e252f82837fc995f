"""Trained graph classifiers in run folders: the same predictions again, files of version 0.1, hostile files refused."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from powerpool.data import DataError, load_graphs
from powerpool.errors import RecordError
from powerpool.runs.folder import load_state, save_model, save_state
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.inference import TrainedModel, evaluate, load_run
from powerpool.tasks.graph.model import GraphClassifier
from powerpool.tasks.graph.options import EvaluateOptions
from powerpool.tasks.graph.task import make_fold
from tests.data.tu_sets import Graph
from tests.tasks.graph.samples import assert_equal_states, write_own_set

OLD_RUN = Path(__file__).parents[2] / "fixtures" / "runs" / "graph"


@pytest.fixture
def graphs(tmp_path):
    return load_graphs(write_own_set(tmp_path / "own"))


def untrained(graphs, method: str = "SOP+SpecMaxExpF") -> TrainedModel:
    config = ModelConfig(method, hidden=6, layers=2, neighbours=3, eta=4.0)
    torch.manual_seed(1)
    network = GraphClassifier(config, graphs.channels, len(graphs.classes))
    network.train()(graphs[:8])  # changes the batch-norm statistics
    return TrainedModel(config, network.eval(), graphs.features, graphs.classes)


def save(model: TrainedModel, folder: Path) -> None:
    save_model(folder, "graph", model.spec, model.network.state_dict())


@pytest.mark.parametrize("method", ["GIN0", "SOP+SpecMaxExpF", "SOP+NewtonSchulz"])
def test_a_model_is_loaded_as_it_was_saved(graphs, tmp_path, method):
    model = untrained(graphs, method)
    save(model, tmp_path)
    loaded = load_run(tmp_path)
    assert loaded.spec == model.spec
    assert_equal_states(loaded.network.state_dict(), model.network.state_dict())
    assert not loaded.network.training
    assert torch.equal(loaded.probabilities(graphs), model.probabilities(graphs))


def test_a_model_of_version_0_1_is_loaded_and_its_eta_is_that_of_sigme(tmp_path):
    model, state = load_run(OLD_RUN), load_state(OLD_RUN / "model.pt")
    weights = {name: value for name, value in model.network.state_dict().items() if not name.endswith("_extra_state")}
    assert_equal_states(weights, state["weights"])
    state["config"] |= {"method": "SOP+SigmE", "eta": 7.0}
    save_state(tmp_path / "model.pt", state)
    assert load_run(tmp_path).config.sigme_eta == 7.0
    for name, value in (("config", {"hidden": 60_000}), ("features", {"kind": "colour"})):
        save_state(tmp_path / "model.pt", {**state, name: state[name] | value})
        with pytest.raises(RecordError, match=r"model\.(pt|json)"):
            load_run(tmp_path)


@pytest.mark.parametrize(
    "edit",
    [
        {"config": {"hidden": 60_000}},
        {"config": {"layers": 10**6}},
        {"config": {"method": "nothing"}},
        {"config": {"hidden": "8"}},
        {"config": {"heads": 8}},
        {"classes": [1, 2, 3]},
        {"features": {"kind": "colour", "values": [1]}},
        {"features": None},
    ],
)
def test_an_edited_model_is_refused_before_memory_is_allocated(graphs, tmp_path, edit):
    save(untrained(graphs), tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(content | edit))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RecordError, match=r"model\.json"):
        load_run(tmp_path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_probabilities_do_not_depend_on_batches(graphs):
    model = untrained(graphs)
    found = model.probabilities(graphs)
    with torch.no_grad():
        scores = model.network(graphs[torch.arange(len(graphs))]).double()
    assert_close(found.double(), scores.exp() / scores.exp().sum(1, keepdim=True), rtol=1e-5, atol=1e-6)
    assert_close(model.probabilities(graphs, batch_size=5), found, rtol=1e-5, atol=1e-6)
    assert_close(model.probabilities(graphs, [7, 0]), found[[7, 0]], rtol=1e-5, atol=1e-6)


def test_other_graphs_are_read_with_the_features_of_the_model(graphs, tmp_path):
    model = untrained(graphs)
    fewer = write_own_set(tmp_path / "fewer", [Graph([9, 9, 2], [(0, 1), (1, 2)], 7)], name="OTHER")
    read = model.read(fewer)
    assert read.columns.tolist() == [2, 2, 0]  # not 1, 1, 0 as without the model
    assert read.targets.tolist() == [1]
    assert model.read(write_own_set(tmp_path / "bare", without="graph_labels"), labelled=False).targets.unique() == -1
    with pytest.raises(DataError, match="4"):
        model.read(write_own_set(tmp_path / "label", [Graph([2, 4], [(0, 1)], 7)]))
    with pytest.raises(DataError, match="8"):
        model.read(write_own_set(tmp_path / "class", [Graph([2, 5], [(0, 1)], 8)]))


def test_a_confident_wrong_model_has_a_finite_loss(tmp_path):
    shutil.copytree(OLD_RUN, tmp_path / "run")
    model = load_run(tmp_path / "run")
    with torch.no_grad():
        model.network.head[-1].weight.mul_(-1e4)
    save(model, tmp_path / "run")
    graphs = load_graphs("MUTAG", download=False)
    found = evaluate(EvaluateOptions(str(tmp_path / "run"), data="MUTAG"), make_fold)
    with torch.no_grad():
        logits = model.network(graphs[torch.arange(len(graphs))]).double()
    assert found.loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, graphs.targets)), rel=1e-3)
    assert found.loss > 100
