"""Training of graph classifiers: reproducible, resumable, and as its definition says."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch

from powerpool.data import load_graphs, stratified_folds
from powerpool.errors import ArgumentError
from powerpool.runs.folder import load_state, save_state
from powerpool.runs.record import Score
from powerpool.tasks.graph import training as module
from powerpool.tasks.graph.config import ModelConfig, TrainingConfig
from powerpool.tasks.graph.model import GraphClassifier, recompute_statistics
from powerpool.tasks.graph.training import Training, collate, compute_logits, score
from tests.data.tu_sets import Graph
from tests.tasks.graph.samples import assert_equal_states, rings_and_stars, states_differ, write_own_set


@pytest.fixture(scope="module")
def graphs():
    return load_graphs("MUTAG", download=False)


def make(graphs, seed: int = 1, method: str = "SOP+SpecMaxExpF", neighbours: int | None = 2, **changes) -> Training:
    """A training with everything that is random: weights, order, dropout and neighbours."""
    fold = stratified_folds(graphs.targets, 3)[0]
    model = ModelConfig(method, hidden=8, layers=2, neighbours=neighbours)
    config = TrainingConfig(**{"epochs": 4, "batch_size": 32, "decay_every": 2} | changes)
    return Training(model, config, graphs, fold.train, fold.validation, seed)


def assert_same(one: Training, two: Training) -> None:
    assert_equal_states(one.model.state_dict(), two.model.state_dict())
    assert one.curves == two.curves
    assert (one.best.epoch, one.best.score) == (two.best.epoch, two.best.score)
    assert_equal_states(one.best.weights, two.best.weights)


def test_the_seed_determines_the_training_and_the_callers_generators_are_unchanged(graphs):
    one, two, other = make(graphs), make(graphs), make(graphs, seed=2)
    one.run()
    torch.manual_seed(5)
    random.seed(5)
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    two.run()
    other.run()
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert np.random.get_state()[1].tolist() == state[2]  # noqa: NPY002
    assert_same(one, two)
    assert states_differ(one.model.state_dict(), other.model.state_dict())


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_resumed_training_equals_one_that_was_not_stopped(graphs, tmp_path, stop):
    whole, stopped = make(graphs), make(graphs)
    whole.run()
    stopped.run(stop)
    kept = {name: value.clone() for name, value in stopped.best.weights.items()}
    save_state(tmp_path / "state", stopped.state_dict())
    resumed = make(graphs, seed=99)  # nothing of its own start is left
    resumed.load_state_dict(load_state(tmp_path / "state"))
    assert resumed.epoch == stop
    seen = []
    resumed.run(after=lambda training: seen.append(training.epoch))
    assert seen == list(range(stop + 1, 5))
    assert_same(whole, resumed)
    assert resumed.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]
    first = stopped.best
    stopped.run()
    assert_equal_states(first.weights, kept)  # later epochs do not change selected weights


@pytest.mark.parametrize(
    "losses, expected",
    [
        ([0.5, 0.3, 0.3, 0.4], 2),  # the first of equals
        ([float("inf"), 0.4, float("nan"), 0.3], 4),
    ],
)
def test_the_first_epoch_with_the_lowest_validation_loss_is_selected(graphs, monkeypatch, losses, expected):
    training = make(graphs)
    scores = iter([Score(50.0, loss) for loss in losses])
    monkeypatch.setattr(module, "score", lambda model, parts, objective: next(scores))
    weights = []
    training.run(after=lambda done: weights.append({k: v.clone() for k, v in done.model.state_dict().items()}))
    assert training.best.epoch == expected
    assert training.best.score.loss == losses[expected - 1]
    assert_equal_states(training.best.weights, weights[expected - 1])


def test_the_learning_rate_falls_in_steps(graphs):
    training = make(graphs, method="GIN0", learning_rate=0.02, decay_every=2, decay_factor=0.1, epochs=5)
    rates = []
    while training.epoch < 5:
        rates.append(training.optimizer.param_groups[0]["lr"])
        training.step()
    assert rates == pytest.approx([0.02, 0.02, 0.002, 0.002, 0.0002])


def test_training_is_adam_on_the_mean_loss_of_each_batch(graphs):
    """Three epochs by hand, with the order of the graphs from a generator of the same seed."""
    config = {"epochs": 3, "batch_size": 50, "weight_decay": 0.01, "decay_every": 100}
    model, train = ModelConfig("GIN0", hidden=8, layers=2, dropout=0.0), torch.arange(20, 140)
    training = Training(model, TrainingConfig(**config), graphs, train, seed=4)
    training.run()
    torch.manual_seed(4)
    network, order = GraphClassifier(model, graphs.channels, 2), torch.Generator().manual_seed(4)
    adam = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=0.01)
    means = []
    for _ in range(3):
        shuffled, total = train[torch.randperm(120, generator=order)], 0.0
        for part in (shuffled[:50], shuffled[50:100], shuffled[100:]):
            loss = -network(graphs[part]).log_softmax(1)[torch.arange(len(part)), graphs.targets[part]].mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += float(loss.detach()) * len(part)
        means.append(total / 120)
    assert training.curves.train_loss == pytest.approx(means, rel=1e-4)


@pytest.mark.parametrize("method", ["GIN0", "SOP+SpecMaxExpF"])
def test_mutag_is_learnt(graphs, method):
    training = make(graphs, method=method, neighbours=None, epochs=40, decay_every=50)
    training.run()
    losses = training.curves.train_loss
    assert losses[-1] < 0.8 * losses[0]
    train = score(training.model, collate(graphs, training.train, 64))
    majority = 100 * graphs.targets[training.train].bincount().max() / len(training.train)
    assert train.value > majority + 10


def test_a_score_is_the_mean_over_all_graphs_in_evaluation_mode(graphs):
    torch.manual_seed(0)
    model = GraphClassifier(ModelConfig("SOP", hidden=4, layers=1), graphs.channels, 2).train()
    chosen = torch.arange(0, 75)
    found = score(model, collate(graphs, chosen, 32))
    assert not model.training
    with torch.no_grad():
        logits = model(graphs[chosen])
    targets = graphs.targets[chosen]
    assert found.loss == pytest.approx(float(-logits.log_softmax(1)[torch.arange(75), targets].mean()), rel=1e-5)
    assert found.value == pytest.approx(100 * float((logits.argmax(1) == targets).double().mean()))
    assert not compute_logits(model, collate(graphs, chosen, 10)).requires_grad


def test_a_last_batch_of_one_graph_with_one_node_can_be_trained_on(tmp_path):
    points = [Graph([2], [], 3 + 4 * (number % 2)) for number in range(9)]
    own = load_graphs(write_own_set(tmp_path, [*rings_and_stars(6), *points]))
    training = Training(ModelConfig("GIN0", hidden=4, layers=1), TrainingConfig(batch_size=4), own, torch.arange(6, 15))
    training.run(3)
    assert all(torch.isfinite(value).all() for value in training.model.state_dict().values())


@pytest.mark.parametrize("kind", ["recomputed", "running"])
def test_validation_uses_the_batch_norm_statistics_of_the_settings(graphs, kind):
    training = make(graphs, method="GIN0", epochs=2, batch_norm=kind)
    training.run()
    network, parts = copy.deepcopy(training.model), training.statistics_batches
    recompute_statistics(network, [graphs[part] for part in parts])
    recomputed = score(network, training.validation).loss
    if kind == "recomputed":
        assert training.curves.validation_loss[-1] == recomputed
    else:
        assert training.curves.validation_loss[-1] != pytest.approx(recomputed, rel=1e-3)
    assert len(training.statistics_graphs) == (len(parts) if kind == "recomputed" else 0)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert torch.equal(torch.cat(parts).sort().values, training.train)
    assert not torch.equal(torch.cat(parts), training.train)  # shuffled, as files are often sorted by class


def test_a_missing_device_is_refused(graphs):
    with pytest.raises(ArgumentError, match="meta"):
        make(graphs, device="meta")
