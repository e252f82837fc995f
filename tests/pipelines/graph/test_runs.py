"""A trained model in a file: it comes back as it was, and a file that is something else is refused in words."""

from __future__ import annotations

import os

import pytest
import torch
from powerpool.tasks.graph.methods import METHODS
from powerpool.tasks.graph.runs import TrainedModel, load_run
from torch.testing import assert_close

from powerpool.data import DataError, load_graphs
from powerpool.errors import RecordError
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.model import GraphClassifier
from tests.data.tu_sets import Graph
from tests.pipelines.graph.samples import assert_equal_states, rings_and_stars, write_own_set


@pytest.fixture
def graphs(tmp_path):
    return load_graphs(write_own_set(tmp_path / "own"))


def untrained(graphs, method: str = "SOP+SpecMaxExpF") -> TrainedModel:
    config = ModelConfig(method, hidden=6, layers=2, neighbours=3, eta=4.0)
    torch.manual_seed(1)
    network = GraphClassifier(config, graphs.channels, len(graphs.classes))
    network.train()(graphs[:8])  # so that batch normalization is no identity
    return TrainedModel(config, network.eval(), graphs.features, graphs.classes)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_comes_back_as_it_was(graphs, tmp_path, method):
    model = untrained(graphs, method)
    model.save(tmp_path / "run" / "model.pt")
    loaded = load_run(tmp_path / "run")
    assert loaded.config == model.config
    assert loaded.features == graphs.features
    assert loaded.classes == (3, 7)
    assert_equal_states(loaded.network.state_dict(), model.network.state_dict())
    assert not loaded.network.training
    assert torch.equal(loaded.probabilities(graphs), model.probabilities(graphs))


def test_probabilities_are_those_of_a_forward_whatever_the_batches(graphs):
    model = untrained(graphs)
    found = model.probabilities(graphs)
    assert_close(found.sum(1), torch.ones(len(graphs)))
    with torch.no_grad():
        scores = model.network(graphs[torch.arange(len(graphs))]).double()
    assert_close(found.double(), scores.exp() / scores.exp().sum(1, keepdim=True), rtol=1e-5, atol=1e-6)
    assert_close(model.probabilities(graphs, batch_size=5), found, rtol=1e-5, atol=1e-6)
    assert_close(model.probabilities(graphs, [7, 0]), found[[7, 0]], rtol=1e-5, atol=1e-6)


def test_other_graphs_are_read_as_those_that_it_was_trained_on(graphs, tmp_path):
    model = untrained(graphs)
    fewer = write_own_set(tmp_path / "fewer", [Graph([9, 9, 2], [(0, 1), (1, 2)], 7)], name="OTHER")
    read = model.read(fewer)
    assert read.columns.tolist() == [2, 2, 0]  # not 1, 1, 0 as on its own
    assert read.targets.tolist() == [1]
    assert model.read(write_own_set(tmp_path / "bare", without="graph_labels"), labelled=False).targets.unique() == -1
    with pytest.raises(DataError, match=r"unknown node label 4, expected one of 2, 5, 9"):
        model.read(write_own_set(tmp_path / "label", [Graph([2, 4], [(0, 1)], 7)]))
    with pytest.raises(DataError, match=r"unknown class 8, expected one of 3, 7"):
        model.read(write_own_set(tmp_path / "class", [Graph([2, 5], [(0, 1)], 8)]))


class Code:
    """What a hostile file holds: a command that runs when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_model_with_code_in_it_is_refused_and_the_code_does_not_run(graphs, tmp_path):
    untrained(graphs).save(tmp_path / "model.pt")
    state = load_state(tmp_path / "model.pt")
    torch.save({**state, "extra": Code(f"touch {tmp_path / 'ran'}")}, tmp_path / "model.pt")
    with pytest.raises(RecordError, match=r"model\.pt was not loaded: .* could run code"):
        load_run(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "change, expected",
    [
        ({"format": 2}, r"no model of graph classification: it has pipeline 'graph', format 2, needed is format 1"),
        ({"pipeline": "image"}, r"it has pipeline 'image', format 1"),
        ({"weights": {}}, r"a damaged model: RuntimeError: Error\(s\) in loading state_dict"),
        ({"weights": None}, r"a damaged model"),
        ({"classes": [1, 2, 3]}, r"a damaged model: RuntimeError"),
        ({"classes": 3}, r"a damaged model"),
        ({"features": {"kind": "labels"}}, r"a damaged model: KeyError"),
        ({"features": {"kind": "colour", "values": [1]}}, r"a damaged model"),
        ({"features": None}, r"a damaged model"),
        ({"config": {"method": "nothing"}}, r"a damaged model"),
        ({"config": {"hidden": "8"}}, r"a damaged model"),
        ({"config": {"heads": 8}}, r"a damaged model: TypeError"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_in_words(graphs, tmp_path, change, expected):
    untrained(graphs).save(tmp_path / "model.pt")
    save_state(tmp_path / "model.pt", {**load_state(tmp_path / "model.pt"), **change})
    with pytest.raises(RecordError, match=rf"model\.pt is .*{expected}"):
        load_run(tmp_path)


@pytest.mark.parametrize("kept", [0, 100, 2000, -10])
def test_a_file_that_was_cut_off_is_refused_in_words(graphs, tmp_path, kept):
    path = tmp_path / "model.pt"
    untrained(graphs).save(path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RecordError, match=r"model\.pt (is no checkpoint|was not loaded)"):
        load_run(tmp_path)


def test_a_folder_without_a_model_says_how_to_make_one(tmp_path):
    with pytest.raises(RecordError, match=r"There is no run folder .*nowhere\. Make one with: powerpool train graph"):
        load_run(tmp_path / "nowhere")
    (tmp_path / "config.yaml").write_text("folds: 3\n")
    with pytest.raises(RecordError, match=r"holds no model\.pt: .*powerpool train graph --config .*config\.yaml --out"):
        load_run(tmp_path)


def test_the_set_is_one_that_can_be_told_apart():
    """Rings and stars have other degrees: what the other tests train on means something."""
    assert {graph.target for graph in rings_and_stars()} == {3, 7}
