"""The protocols: what was only to be tested on changes no choice and no weight."""

from __future__ import annotations

import platform
import re
from dataclasses import asdict, replace

import pytest
import torch
from powerpool.tasks.graph.methods import METHODS

from powerpool.data import GraphSet, load_graphs, stratified_folds
from powerpool.errors import ArgumentError, RecordError
from powerpool.tasks.graph import evaluation
from powerpool.tasks.graph.config import GridConfig
from powerpool.tasks.graph.training import Training, batches, score
from tests.pipelines.graph.samples import assert_equal_states, small_config, states_differ

GRID = GridConfig(hidden=[4, 8], eta=[3.0, 20.0])
CONFIG = small_config(grid=GRID, training={"batch_size": 64}, seed=2)
NUMBER = 1


@pytest.fixture(scope="module")
def graphs():
    return load_graphs("MUTAG", download=False)


@pytest.fixture(scope="module")
def fold(graphs):
    return stratified_folds(graphs.targets, CONFIG.folds, CONFIG.seed)[NUMBER]


@pytest.fixture(scope="module")
def trials(graphs):
    return evaluation.choose(CONFIG, graphs, NUMBER)


def poisoned(graphs: GraphSet, chosen: torch.Tensor) -> GraphSet:
    """Other classes and other node features for the chosen graphs."""
    targets, columns = graphs.targets.clone(), graphs.columns.clone()
    targets[chosen] = 1 - targets[chosen]
    hit = torch.isin(graphs.graph, chosen)
    columns[hit] = (columns[hit] + 3) % graphs.channels
    return replace(graphs, targets=targets, columns=columns)


@pytest.fixture
def fixed(monkeypatch, fold):
    """The parts stay as they are: with other classes they would be cut in another way."""
    monkeypatch.setattr(evaluation, "make_fold", lambda config, graphs, number: fold)


def plain(trials) -> list[object]:
    return [(trial.model, trial.epoch, trial.score, asdict(trial.curves)) for trial in trials]


@pytest.mark.usefixtures("fixed")
def test_test_graphs_change_neither_a_choice_nor_a_weight(graphs, fold, trials):
    other = poisoned(graphs, fold.test)
    again = evaluation.choose(CONFIG, other, NUMBER)
    assert plain(again) == plain(trials)
    for one, two in zip(trials, again, strict=True):
        assert_equal_states(one.weights, two.weights)
    best = trials[0]
    trained = [evaluation.train_again(CONFIG, data, NUMBER, best.model, 3) for data in (graphs, other)]
    assert_equal_states(trained[0].model.state_dict(), trained[1].model.state_dict())
    tested = [evaluation.test_score(CONFIG, data, NUMBER, trained[0].model) for data in (graphs, other)]
    assert tested[0] != tested[1]  # the poison works where it may


MEASURED = {"value", "test_loss", "confusion", "spectrum", "seconds"}
"""What a fold says of the test graphs."""


@pytest.mark.usefixtures("fixed")
def test_only_the_value_of_a_recorded_fold_depends_on_the_test_graphs(graphs, fold, monkeypatch):
    config, results = small_config(grid=GridConfig(hidden=[4, 8]), training={"epochs": 3}), []
    for data in (graphs, poisoned(graphs, fold.test)):
        monkeypatch.setattr(evaluation, "read_graphs", lambda config, data=data: data)
        chosen = evaluation.validation_only(config, NUMBER, data.digest)
        results.append((chosen, evaluation.retrain(config, NUMBER, data.digest, chosen)))
    for one, two in zip(*results, strict=True):
        assert {name for name in one if one[name] != two[name]} <= MEASURED
        assert one["test_loss"] != two["test_loss"]


def test_a_fold_of_other_graphs_than_those_of_the_command_is_refused(graphs, fold, monkeypatch):
    monkeypatch.setattr(evaluation, "read_graphs", lambda config: poisoned(graphs, fold.test))
    monkeypatch.setattr(evaluation, "Training", lambda *_: pytest.fail("it was trained"))
    said = rf"MUTAG on {re.escape(platform.node())} is not the data that .* not {graphs.digest}\. Put the same files"
    with pytest.raises(RecordError, match=said):
        evaluation.validation_only(CONFIG, NUMBER, graphs.digest)
    with pytest.raises(RecordError, match=said):
        evaluation.retrain(CONFIG, NUMBER, graphs.digest, {})


@pytest.mark.usefixtures("fixed")
def test_validation_graphs_are_trained_on_by_retrain_alone(graphs, fold, trials):
    other = poisoned(graphs, fold.validation)
    again = {trial.model: trial for trial in evaluation.choose(CONFIG, other, NUMBER)}
    for trial in trials:
        assert trial.curves.train_loss == again[trial.model].curves.train_loss
        assert trial.curves.validation_loss != again[trial.model].curves.validation_loss
    trained = [evaluation.train_again(CONFIG, data, NUMBER, trials[0].model, 2) for data in (graphs, other)]
    assert states_differ(trained[0].model.state_dict(), trained[1].model.state_dict())


def test_the_epoch_and_the_point_with_the_lowest_validation_loss_are_chosen(graphs, fold, trials):
    assert [
        trial.model for trial in sorted(trials, key=lambda trial: list(CONFIG.points()).index(trial.model))
    ] == list(CONFIG.points())
    best = trials[0]
    losses = {
        (trial.model, epoch): loss for trial in trials for epoch, loss in enumerate(trial.curves.validation_loss, 1)
    }
    assert len(losses) == 16
    assert min(losses, key=losses.get) == (best.model, best.epoch)
    assert [trial.score.loss for trial in trials] == sorted(trial.score.loss for trial in trials)
    restored = evaluation.restore(CONFIG, graphs, best)
    assert score(restored, batches(graphs, fold.validation, 64)) == best.score
    tested = evaluation.test_score(CONFIG, graphs, NUMBER, restored)
    with torch.no_grad():
        said = restored(graphs[fold.test])
    assert tested.accuracy == pytest.approx(100 * float((said.argmax(1) == graphs.targets[fold.test]).double().mean()))


def test_retrain_trains_so_many_epochs_on_all_but_the_test_graphs(graphs, fold, trials):
    model, epochs = trials[0].model, []
    training = evaluation.train_again(CONFIG, graphs, NUMBER, model, 3, watch=lambda done: epochs.append(done.epoch))
    assert epochs == [1, 2, 3]
    rest = torch.tensor([number for number in range(len(graphs)) if number not in set(fold.test.tolist())])
    assert torch.equal(training.train, rest)
    expected = Training(model, CONFIG.training, graphs, rest, seed=2001)
    expected.run(3)
    expected.settle()
    assert_equal_states(training.model.state_dict(), expected.model.state_dict())


def test_a_recorded_fold_has_what_was_chosen_and_measured(graphs, fold, trials):
    result = evaluation.validation_only(CONFIG, NUMBER, graphs.digest)
    best, model = trials[0], evaluation.restore(CONFIG, graphs, trials[0])
    tested = evaluation.test_score(CONFIG, graphs, NUMBER, model)
    assert result["value"] == tested.accuracy
    assert result["test_loss"] == tested.loss
    assert result["chosen"] == {"hidden": best.model.hidden, "layers": 2, "eta": best.model.eta}
    assert (result["fold"], result["epoch"]) == (NUMBER, best.epoch)
    assert result["validation_loss"] == best.score.loss == min(trial["validation_loss"] for trial in result["trials"])
    assert len(result["trials"]) == 4
    assert result["curves"]["validation_loss"] == pytest.approx(best.curves.validation_loss, rel=1e-3)
    again = evaluation.retrain(CONFIG, NUMBER, graphs.digest, result)
    assert len(again["curves"]["train_loss"]) == again["epoch"] == best.epoch
    assert again["chosen"] == result["chosen"]
    assert again["seconds"] > result["seconds"]
    assert "validation_loss" not in again["curves"]


def test_all_methods_have_the_same_folds_and_another_seed_has_others(graphs):
    for number in range(3):
        first = evaluation.make_fold(small_config("GIN0"), graphs, number)
        for method in METHODS:
            fold = evaluation.make_fold(small_config(method), graphs, number)
            for part in ("train", "validation", "test"):
                assert torch.equal(getattr(fold, part), getattr(first, part))
        assert not torch.equal(evaluation.make_fold(small_config("GIN0", seed=1), graphs, number).test, first.test)
    for number in (-1, 3):
        with pytest.raises(ArgumentError, match=rf"fold must be 0 to 2 with folds=3 \(got {number}\)\."):
            evaluation.make_fold(small_config(), graphs, number)


def test_a_training_without_a_finite_loss_says_what_to_lower(graphs):
    config = small_config("GIN0", training={"learning_rate": 1e30, "epochs": 2})
    with pytest.raises(ArgumentError, match=r"GIN0 on fold 0 diverges: .* Lower training\.learning_rate"):
        evaluation.choose(config, graphs, 0)


def test_a_point_that_diverges_is_left_out(graphs, monkeypatch):
    config = small_config("SOP+SigmE", grid=GridConfig(hidden=[4, 8]), training={"epochs": 2})
    original = evaluation.Training.step

    def step(self):
        if self.model.convolutions[0].nn[0].out_features == 8:
            self.model.convolutions[0].nn[0].weight.data.fill_(float("nan"))
        original(self)

    monkeypatch.setattr(evaluation.Training, "step", step)
    assert [trial.model.hidden for trial in evaluation.choose(config, graphs, 0)] == [4]


def test_finished_trials_and_the_one_in_progress_are_taken_from_the_folder(graphs, trials, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "CHECKPOINT_SECONDS", -1.0)  # after every epoch
    done: list[tuple[int, float, int]] = []

    class Stopped(Exception):  # noqa: N818
        pass

    def watch(training):
        done.append(
            (training.model.convolutions[0].nn[0].out_features, training.model.readout.curve.eta, training.epoch)
        )
        if len(done) == 6:
            raise Stopped

    with pytest.raises(Stopped):
        evaluation.choose(CONFIG, graphs, NUMBER, tmp_path, watch)
    found = evaluation.choose(CONFIG, graphs, NUMBER, tmp_path, watch)
    # What is taken from the folder is shown once more, for the progress, and not trained again.
    epochs = [(hidden, eta, epoch) for hidden in (4, 8) for eta in (3.0, 20.0) for epoch in (1, 2, 3, 4)]
    assert done == [*epochs[:6], epochs[3], epochs[5], *epochs[6:]]
    assert plain(found) == plain(trials)
    assert_equal_states(found[0].weights, trials[0].weights)
