"""Training: the same twice, the same after a stop, and that something is learnt."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch

from powerpool.data import load_graphs, stratified_folds
from powerpool.errors import ArgumentError
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.tasks.graph import training as module
from powerpool.tasks.graph.config import ModelConfig, TrainingConfig
from powerpool.tasks.graph.model import GraphClassifier, settle_batch_norm
from powerpool.tasks.graph.training import Score, Training, batches, logits, score
from tests.pipelines.graph.samples import assert_equal_states, states_differ


@pytest.fixture(scope="module")
def graphs():
    return load_graphs("MUTAG", download=False)


def make(graphs, seed: int = 1, method: str = "SOP+SpecMaxExpF", neighbours: int | None = 2, **changes) -> Training:
    """Everything that draws at random is in it: weights, order, dropout and neighbours."""
    fold = stratified_folds(graphs.targets, 3)[0]
    model = ModelConfig(method, hidden=8, layers=2, neighbours=neighbours)
    config = TrainingConfig(**{"epochs": 6, "batch_size": 32, "decay_every": 2} | changes)
    return Training(model, config, graphs, fold.train, fold.validation, seed)


def assert_same(one: Training, two: Training) -> None:
    assert_equal_states(one.model.state_dict(), two.model.state_dict())
    assert one.curves == two.curves
    assert (one.best.epoch, one.best.score) == (two.best.epoch, two.best.score)
    assert_equal_states(one.best.weights, two.best.weights)


def test_the_same_seed_gives_the_same_training_bit_for_bit(graphs):
    one, two, other = make(graphs), make(graphs), make(graphs, seed=2)
    one.run()
    torch.rand(7)  # what else the process draws does not matter
    for _ in range(6):
        torch.manual_seed(random.randrange(1000))
        two.step()
    other.run()
    assert_same(one, two)
    assert states_differ(one.model.state_dict(), other.model.state_dict())


def test_the_generators_of_the_caller_stay_where_they_are(graphs):
    torch.manual_seed(5)
    random.seed(5)
    state = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    make(graphs).run(2)
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert np.random.get_state()[1].tolist() == state[2]  # noqa: NPY002


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(graphs, tmp_path, stop):
    whole = make(graphs)
    whole.run()
    stopped = make(graphs)
    stopped.run(stop)
    save_state(tmp_path / "state.pt", stopped.state_dict())
    resumed = make(graphs, seed=99)  # nothing of its own beginning is left
    resumed.load_state_dict(load_state(tmp_path / "state.pt"))
    assert resumed.epoch == stop
    seen = []
    resumed.run(after=lambda training: seen.append(training.epoch))
    assert seen == list(range(stop + 1, 7))
    assert_same(whole, resumed)
    assert resumed.optimizer.param_groups[0]["lr"] == whole.optimizer.param_groups[0]["lr"]


def test_weights_that_were_kept_do_not_change_with_later_epochs(graphs):
    training = make(graphs)
    training.run(1)
    first, copied = training.best, {name: value.clone() for name, value in training.best.weights.items()}
    training.run(4)
    assert_equal_states(first.weights, copied)


@pytest.mark.parametrize(
    "losses, expected",
    [
        ([0.5, 0.3, 0.3, 0.4], 2),  # the first of equals
        ([0.2, 0.3, 0.4, 0.2], 1),
        ([0.4, 0.3, 0.2, 0.1], 4),
        ([float("nan"), 0.4, 0.6, 0.5], 2),  # no number is no best
        ([float("inf"), 0.4, float("nan"), 0.3], 4),
    ],
)
def test_the_first_epoch_with_the_lowest_validation_loss_is_the_best(graphs, monkeypatch, losses, expected):
    training = make(graphs, epochs=4)
    scores = iter([Score(loss, 50.0) for loss in losses])
    monkeypatch.setattr(module, "score", lambda model, parts: next(scores))
    weights = []
    training.run(after=lambda done: weights.append({k: v.clone() for k, v in done.model.state_dict().items()}))
    assert training.best.epoch == expected
    assert training.best.score.loss == losses[expected - 1]
    assert_equal_states(training.best.weights, weights[expected - 1])


def test_without_validation_graphs_nothing_is_chosen(graphs):
    training = Training(ModelConfig("GIN0", hidden=4, layers=1), TrainingConfig(epochs=2), graphs, torch.arange(50))
    training.run()
    assert training.best is None
    assert training.curves.validation_loss == []
    assert len(training.curves.train_loss) == 2


def test_the_rate_falls_by_the_factor_after_so_many_epochs(graphs):
    training = make(graphs, method="GIN0", learning_rate=0.02, decay_every=2, decay_factor=0.1, epochs=5)
    rates = []
    while training.epoch < 5:
        rates.append(training.optimizer.param_groups[0]["lr"])
        training.step()
    assert rates == pytest.approx([0.02, 0.02, 0.002, 0.002, 0.0002])


def test_the_optimiser_is_adam_on_the_mean_loss_of_each_batch(graphs):
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
            batch = graphs[part]
            loss = -network(batch).log_softmax(1)[torch.arange(len(part)), graphs.targets[part]].mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            total += float(loss.detach()) * len(part)
        means.append(total / 120)
    assert training.curves.train_loss == pytest.approx(means, rel=1e-4)


def test_every_training_graph_is_seen_once_in_each_epoch_in_another_order(graphs, monkeypatch):
    training = make(graphs, method="GIN0", epochs=2, batch_norm="running")
    seen: list[int] = []
    original = type(graphs).__getitem__
    monkeypatch.setattr(
        type(graphs), "__getitem__", lambda self, index: (seen.extend(index.tolist()), original(self, index))[1]
    )
    training.run()
    count = len(training.train)
    first, second = seen[:count], seen[count:]
    assert sorted(first) == sorted(second) == training.train.tolist()
    assert first != second


@pytest.mark.parametrize("method", ["GIN0", "SOP+SpecMaxExpF"])
def test_something_is_learnt(graphs, method):
    training = make(graphs, method=method, neighbours=None, epochs=40, decay_every=50)
    training.run()
    losses = training.curves.train_loss
    assert losses[-1] < 0.8 * losses[0]
    train = score(training.model, batches(graphs, training.train, 64))
    majority = 100 * graphs.targets[training.train].bincount().max() / len(training.train)
    assert train.accuracy > majority + 10


def test_a_score_is_the_mean_over_all_graphs_in_evaluation_mode(graphs):
    torch.manual_seed(0)
    model = GraphClassifier(ModelConfig("SOP", hidden=4, layers=1), graphs.channels, 2).train()
    chosen = torch.arange(0, 75)
    found = score(model, batches(graphs, chosen, 32))
    assert not model.training
    with torch.no_grad():
        said = model(graphs[chosen])
    targets = graphs.targets[chosen]
    assert found.loss == pytest.approx(float(-said.log_softmax(1)[torch.arange(75), targets].mean()), rel=1e-5)
    assert found.accuracy == pytest.approx(100 * float((said.argmax(1) == targets).double().mean()))
    assert logits(model, batches(graphs, chosen, 10)).shape == (75, 2)
    assert not logits(model, batches(graphs, chosen, 10)).requires_grad


def test_a_last_batch_of_one_graph_with_one_node_is_trained_on(tmp_path):
    from tests.data.tu_sets import Graph
    from tests.pipelines.graph.samples import rings_and_stars, write_own_set

    points = [Graph([2], [], 3 + 4 * (number % 2)) for number in range(9)]
    own = load_graphs(write_own_set(tmp_path, [*rings_and_stars(6), *points]))
    training = Training(ModelConfig("GIN0", hidden=4, layers=1), TrainingConfig(batch_size=4), own, torch.arange(6, 15))
    training.run(3)
    assert training.epoch == 3
    assert all(torch.isfinite(value).all() for value in training.model.state_dict().values())


@pytest.mark.parametrize("kind", ["recomputed", "running"])
def test_the_validation_loss_is_that_of_the_statistics_that_were_asked_for(graphs, kind):
    training = make(graphs, method="GIN0", epochs=2, batch_norm=kind)
    training.run()
    network = copy.deepcopy(training.model)
    settle_batch_norm(network, [graphs[part] for part in training.settling])
    settled = score(network, training.validation).loss
    if kind == "recomputed":
        assert training.curves.validation_loss[-1] == settled
    else:
        assert training.curves.validation_loss[-1] != pytest.approx(settled, rel=1e-3)


def test_statistics_are_recomputed_from_mixed_parts_of_equal_size(graphs):
    training = make(graphs, batch_size=50)
    sizes = [len(part) for part in training.settling]
    assert max(sizes) <= 50
    assert max(sizes) - min(sizes) <= 1
    assert torch.equal(torch.cat(training.settling).sort().values, training.train)
    assert not torch.equal(torch.cat(training.settling), training.train)


@pytest.mark.parametrize("device", ["cuda", "meta"])
def test_a_device_that_is_not_there_is_refused(graphs, device):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ArgumentError, match=f"The device '{device}' cannot be used on this machine"):
        make(graphs, device=device)
