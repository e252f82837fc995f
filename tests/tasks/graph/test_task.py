"""Graph classification under the protocol: test graphs change no choice and no weight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from powerpool.data import GraphSet, load_graphs, stratified_folds
from powerpool.errors import ArgumentError, NotPositiveError
from powerpool.runs.record import FoldResult
from powerpool.tasks.base import run_chain
from powerpool.tasks.graph import task as module
from powerpool.tasks.graph.config import GridConfig
from powerpool.tasks.graph.task import TASK, make_fold
from powerpool.tasks.graph.training import Training, collate, score
from tests.tasks.graph.samples import assert_equal_states, small_config

CONFIG = small_config(grid=GridConfig(hidden=[4, 8], eta=[3.0, 20.0]), training={"batch_size": 64}, seed=2)
SHORT = replace(CONFIG, training=replace(CONFIG.training, search_epochs=2))
NUMBER = 1
BOTH = ["validation-only", "retrain"]
MEASURED = {"measures", "value", "test_loss", "confusion", "spectrum", "seconds"}
"""Fields of a result that depend on the test graphs."""


@pytest.fixture(scope="module")
def graphs():
    return load_graphs("MUTAG", download=False)


@pytest.fixture(scope="module")
def fold(graphs):
    return stratified_folds(graphs.targets, CONFIG.folds, CONFIG.seed)[NUMBER]


def fit_all(data, checkpoints=None, watch=lambda *args: None):
    files = [None if checkpoints is None else checkpoints / unit.name for unit in TASK.units(CONFIG, NUMBER)]
    units = zip(TASK.units(CONFIG, NUMBER), files, strict=True)
    return [TASK.fit(CONFIG, data, unit, BOTH, file, watch) for unit, file in units]


@pytest.fixture(scope="module")
def fits(graphs):
    return fit_all(graphs)


@pytest.fixture(scope="module")
def outcome(graphs, fits):
    models = TASK.finish(CONFIG, graphs, NUMBER, fits, BOTH, None, lambda *args: None)
    return models, TASK.test(CONFIG, graphs, NUMBER, fits, models, lambda *args: None)


def poison(graphs: GraphSet, chosen: torch.Tensor) -> GraphSet:
    """Change the classes and node features of the chosen graphs."""
    targets, columns = graphs.targets.clone(), graphs.columns.clone()
    targets[chosen] = 1 - targets[chosen]
    hit = torch.isin(graphs.graph, chosen)
    columns[hit] = (columns[hit] + 3) % graphs.channels
    return replace(graphs, targets=targets, columns=columns)


@pytest.fixture
def fixed(monkeypatch, fold):
    """Keep the fold, which would be another one with other classes."""
    monkeypatch.setattr(module, "make_fold", lambda config, graphs, number: fold)


@pytest.mark.usefixtures("fixed")
def test_test_graphs_change_neither_a_choice_nor_a_weight(graphs, fold, outcome):
    again = run_chain(TASK, CONFIG, poison(graphs, fold.test), NUMBER, BOTH)
    for protocol in BOTH:
        one, two = outcome[1][protocol], again.results[protocol]
        assert {name for name, value in vars(one).items() if value != getattr(two, name)} <= MEASURED
        assert one.test_loss != two.test_loss
        networks = [models[protocol].trained.network.state_dict() for models in (outcome[0], again.models)]
        assert_equal_states(*networks)


@pytest.mark.usefixtures("fixed")
def test_validation_graphs_select_but_are_not_trained_on(graphs, fold, fits):
    for one, two in zip(fits, fit_all(poison(graphs, fold.validation)), strict=True):
        assert one.curves.train_loss == two.curves.train_loss
        assert one.curves.validation_loss != two.curves.validation_loss


def test_the_epoch_and_grid_point_with_the_lowest_validation_loss_are_selected(graphs, fold, fits, outcome):
    assert [fit.point for fit in fits] == list(CONFIG.points())
    best = TASK.select(fits, "validation-only")
    losses = {(fit.point, epoch): loss for fit in fits for epoch, loss in enumerate(fit.curves.validation_loss, 1)}
    assert len(losses) == 16
    assert min(losses, key=losses.get) == (best.point, best.epoch)
    network = outcome[0]["validation-only"].trained.network
    assert score(network, collate(graphs, fold.validation, 64)) == best.score


@pytest.mark.parametrize("epochs", ["all", "selected"])
def test_retrain_uses_all_but_the_test_graphs(graphs, fold, fits, epochs):
    config = replace(CONFIG, training=replace(CONFIG.training, retrain_epochs=epochs))
    fits = [replace(fit, epoch=2) for fit in fits]
    best = TASK.select(fits, "retrain")
    rest = torch.tensor([number for number in range(len(graphs)) if number not in set(fold.test.tolist())])
    expected = Training(best.point.model, CONFIG.training, graphs, rest, seed=2001)
    expected.run(best.epoch if epochs == "selected" else CONFIG.training.epochs)
    expected.prepare_evaluation()
    models = TASK.finish(config, graphs, NUMBER, fits, ["retrain"], None, lambda *args: None)
    assert_equal_states(models["retrain"].trained.network.state_dict(), expected.model.state_dict())
    (result,) = TASK.test(config, graphs, NUMBER, fits, models, lambda *args: None).values()
    assert (result.epoch, result.fold, result.seed) == (expected.epoch, NUMBER, 2)


def test_a_result_holds_what_was_selected_and_measured(graphs, fold, fits, outcome):
    best = TASK.select(fits, "validation-only")
    result, again = (outcome[1][protocol] for protocol in BOTH)
    with torch.no_grad():
        predicted = outcome[0]["validation-only"].trained.network(graphs[fold.test]).argmax(1)
    targets = graphs.targets[fold.test]
    assert result.value == pytest.approx(100 * float((predicted == targets).double().mean()))
    counts = [[int(((targets == row) & (predicted == column)).sum()) for column in (0, 1)] for row in (0, 1)]
    assert result.confusion.dense() == counts
    assert result.chosen == {"hidden": best.point.model.hidden, "layers": 2, "eta": best.point.model.eta}
    assert (result.number, result.epoch) == (NUMBER, best.epoch)
    assert result.validation == best.score
    assert [trial.loss for trial in result.trials] == sorted(fit.score.loss for fit in fits)
    assert result.curves["validation_loss"] == pytest.approx(best.curves.validation_loss, rel=1e-3)
    assert len(again.curves["train_loss"]) == again.epoch == CONFIG.training.epochs
    assert again.chosen == result.chosen
    assert again.seconds > result.seconds
    assert "validation_loss" not in again.curves


def test_all_methods_have_the_same_folds_and_another_seed_has_others(graphs):
    first = make_fold(small_config("GIN0"), graphs, 0)
    for method in ("GIN0+Sum", "SOP", "SOP+SpecHDP"):
        assert all(torch.equal(*pair) for pair in zip(vars(make_fold(small_config(method), graphs, 0)).values(),
                                                      vars(first).values(), strict=True))  # fmt: skip
    assert not torch.equal(make_fold(small_config("GIN0", seed=1), graphs, 0).test, first.test)
    for number in (-1, 3):
        with pytest.raises(ArgumentError, match=rf"got {number}"):
            make_fold(small_config(), graphs, number)


def test_a_diverging_training_names_the_learning_rate(graphs):
    config = small_config("GIN0", training={"learning_rate": 1e30})
    with pytest.raises(ArgumentError, match=r"learning_rate.*1e\+30"):
        run_chain(TASK, config, graphs, 0, BOTH)


@pytest.mark.parametrize("error", [None, NotPositiveError("Newton-Schulz diverged")])
def test_a_diverging_grid_point_is_left_out(graphs, monkeypatch, error):
    config = small_config("GIN0", grid=GridConfig(hidden=[4, 8]))
    original = Training.step

    def step(self):
        if self.model.convolutions[0].nn[0].out_features == 8:
            self.model.convolutions[0].nn[0].weight.data.fill_(float("nan"))
            if error is not None:
                raise error
        original(self)

    monkeypatch.setattr(Training, "step", step)
    (trial,) = run_chain(TASK, config, graphs, 0, ["validation-only"]).results["validation-only"].trials
    assert trial.settings["hidden"] == 4


def test_finished_units_and_epochs_are_not_repeated(graphs, fits, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", -1.0)  # after every epoch
    steps, original = [], Training.step

    def step(training):
        if len(steps) == 6:
            steps.append("stopped")
            raise KeyboardInterrupt
        steps.append(training.epoch)
        original(training)

    monkeypatch.setattr(Training, "step", step)
    with pytest.raises(KeyboardInterrupt):
        fit_all(graphs, tmp_path)
    found = fit_all(graphs, tmp_path)
    assert steps == [0, 1, 2, 3, 0, 1, "stopped", 2, 3, *[0, 1, 2, 3] * 2]
    for one, two in zip(found, fits, strict=True):
        assert (one.curves, one.epoch, one.score) == (two.curves, two.epoch, two.score)
        assert_equal_states(one.weights, two.weights)


@pytest.mark.parametrize("kept, stopped", [(False, False), (True, False), (True, True)])
def test_a_short_search_continues_the_selected_point_bit_for_bit(graphs, fits, tmp_path, monkeypatch, kept, stopped):
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", -1.0)
    steps, original = [], Training.step

    def step(training):
        if stopped and len(steps) == 9:
            steps.append("stopped")
            raise KeyboardInterrupt
        steps.append(training.epoch)
        original(training)

    monkeypatch.setattr(Training, "step", step)
    words = (TASK, SHORT, graphs, NUMBER, ["validation-only"], tmp_path if kept else None)
    if stopped:
        with pytest.raises(KeyboardInterrupt):
            run_chain(*words)
    outcome = run_chain(*words)
    losses = {fit.point.model: min(fit.curves.validation_loss[:2]) for fit in fits}
    expected = next(fit for fit in fits if fit.point.model == min(losses, key=losses.get))
    result, found = outcome.results["validation-only"], outcome.models["validation-only"].fit
    assert found.point.model == expected.point.model
    assert (found.curves, found.epoch, result.validation) == (expected.curves, expected.epoch, expected.score)
    assert_equal_states(found.weights, expected.weights)
    assert [trial.loss for trial in result.trials] == sorted(losses.values())
    continued = [2, "stopped", 3] if stopped else [2, 3]
    assert steps == [*[0, 1] * 4, *(continued if kept else [0, 1, 2, 3])]


def test_a_point_of_a_short_search_is_trained_again(graphs):
    outcome = run_chain(TASK, SHORT, graphs, NUMBER, BOTH)
    selected, again = (outcome.results[protocol] for protocol in BOTH)
    assert (again.chosen, again.epoch, again.trials) == (selected.chosen, 4, selected.trials)
    network = outcome.models["retrain"].trained.network
    fold, fit = make_fold(SHORT, graphs, NUMBER), outcome.models["retrain"].fit
    expected = Training(fit.point.model, CONFIG.training, graphs, fold.train_and_validation, seed=2001)
    expected.run()
    expected.prepare_evaluation()
    assert_equal_states(network.state_dict(), expected.model.state_dict())


def test_a_search_is_short_only_where_it_saves_epochs(graphs):
    assert (SHORT.short_search, TASK.remarks(SHORT, graphs)) == (2, [])
    for config in (
        replace(SHORT, training=replace(SHORT.training, search_epochs=4)),
        replace(SHORT, search=False),
        replace(SHORT, grid=GridConfig()),
    ):
        assert config.short_search is None
        assert any("training.search_epochs" in remark for remark in TASK.remarks(config, graphs))
    with pytest.raises(ArgumentError, match=r"search_epochs.*got 0"):
        replace(SHORT.training, search_epochs=0)


def test_settings_without_effect_are_remarked(graphs):
    config = small_config("GIN0", model={"eta": 7.0, "beta": 1.0}, grid=GridConfig(eta=[3.0]))
    (remark,) = TASK.remarks(config, graphs)
    assert all(name in remark for name in ("model.eta", "model.beta", "grid.eta"))
    assert TASK.remarks(small_config("SOP+SpecMaxExpF", model={"eta": 7.0}), graphs) == []


ON_TEST = ["retrain", "test-epoch", "test-epoch-per-fold"]


def test_a_stopped_retraining_leaves_nothing_to_one_that_tests_every_epoch(graphs, fits, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", -1.0)  # after every epoch

    def stop(what, done, total):
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        TASK.finish(CONFIG, graphs, NUMBER, fits, ["retrain"], tmp_path / "final", stop)
    models = TASK.finish(CONFIG, graphs, NUMBER, fits, ["test-epoch"], tmp_path / "final", lambda *args: None)
    found = TASK.test(CONFIG, graphs, NUMBER, fits, models, lambda *args: None)["test-epoch"]
    assert len(found.curves["test_accuracy"]) == CONFIG.training.epochs


def test_epochs_chosen_on_test_graphs_are_those_of_the_test_curves(graphs, fold, fits):
    models = TASK.finish(CONFIG, graphs, NUMBER, fits, ON_TEST, None, lambda *args: None)
    found = TASK.test(CONFIG, graphs, NUMBER, fits, models, lambda *args: None)
    best = TASK.select(fits, "retrain")
    training = Training(best.point.model, CONFIG.training, graphs, fold.train_and_validation, seed=2001)
    tests = []

    def test(training):
        training.prepare_evaluation()
        tests.append(score(training.model, collate(graphs, fold.test, 64)))

    training.run(after=test)
    result = found["test-epoch-per-fold"]
    assert result.curves["test_accuracy"] == tuple(one.value for one in tests)
    assert result.value == max(one.value for one in tests) == tests[result.epoch - 1].value
    assert result.test_loss == tests[result.epoch - 1].loss
    assert result.confusion is result.spectrum is None
    assert found["retrain"].value == found["test-epoch"].value == tests[-1].value  # until folds are combined
    assert "test_accuracy" not in found["retrain"].curves
    assert_equal_states(models["retrain"].trained.network.state_dict(), training.model.state_dict())


def test_one_epoch_is_taken_for_all_folds_of_a_seed():
    curves = {0: [(50.0, 90.0, 70.0), (80.0, 60.0, 75.0)], 3: [(40.0, 40.0, 60.0), (90.0, 10.0, 60.0)]}
    results = [
        FoldResult(
            number=number,
            value=values[-1],
            test_loss=0.5,
            seconds=1.0,
            epoch=3,
            fold=number % 2,
            seed=seed,
            curves={"test_accuracy": values, "test_loss": (0.1, 0.2, 0.3)},
        )
        for number, (seed, values) in enumerate((seed, values) for seed in curves for values in curves[seed])
    ]
    found = TASK.combine("test-epoch", results)
    assert [(one.value, one.epoch, one.test_loss) for one in found] == [
        (90.0, 2, 0.2),
        (60.0, 2, 0.2),
        (40.0, 1, 0.1),
        (90.0, 1, 0.1),
    ]
    assert TASK.combine("retrain", results) == results


def test_permuted_labels_are_a_data_set_of_its_own(graphs):
    found = TASK.load(replace(CONFIG, permute_labels=True))
    assert found.name == "MUTAG (permuted labels)"
    assert torch.equal(found.targets.bincount(), graphs.targets.bincount())
    assert not torch.equal(found.targets, graphs.targets)
    assert TASK.identity(found).digest != TASK.identity(graphs).digest
    assert torch.equal(TASK.load(replace(CONFIG, permute_labels=True)).targets, found.targets)
