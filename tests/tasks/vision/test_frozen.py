"""The protocol on frozen features: what is selected, by what, and what is tested with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from powerpool.data import load_images
from powerpool.runs.record import Score
from powerpool.runs.typed import from_json, to_json
from powerpool.tasks.base import Unit, run_chain
from powerpool.tasks.vision import frozen, plan
from powerpool.tasks.vision.config import PROTOCOLS, GridConfig, HeadConfig, PoolConfig
from powerpool.tasks.vision.extraction import Features, extract
from powerpool.tasks.vision.frozen import FrozenFit, HeadFit, make_pool, stored_logits, validate
from powerpool.tasks.vision.task import TASK
from powerpool.tasks.vision.vectors import descriptors
from tests.tasks.vision.samples import HEAD_CHANNELS, small_config, use_tiny

BOTH = tuple(PROTOCOLS.values())


@pytest.fixture(scope="module")
def features(textures, tmp_path_factory) -> Features:
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        return extract(small_config(textures), load_images(textures), folder=tmp_path_factory.mktemp("f"))


@pytest.fixture
def config(textures, tiny):
    grid = GridConfig(eta=[2, 9], beta=[0.0, 0.5])
    return small_config(textures, grid=grid, head=HeadConfig(epochs=3, ridge_penalty=[0.001, 0.1]))


def without_seconds(found):
    """The JSON of a fit or result without times."""
    if isinstance(found, dict):
        return {name: without_seconds(value) for name, value in found.items() if name != "seconds"}
    return [without_seconds(value) for value in found] if isinstance(found, list) else found


def test_no_choice_depends_on_the_test_images(config, features):
    draw = torch.Generator().manual_seed(0)
    shuffled = features.targets["test"][torch.randperm(len(features.targets["test"]), generator=draw)]
    assert not torch.equal(shuffled, features.targets["test"])
    other = replace(features, targets={**features.targets, "test": shuffled})
    one, two = (run_chain(TASK, config, data, 0, BOTH) for data in (features, other))
    for protocol in BOTH:
        first, second = one.models[protocol], two.models[protocol]
        assert torch.equal(first.weight, second.weight)
        assert torch.equal(first.bias, second.bias)
        scores = stored_logits(one.models, features.maps("test"))[protocol]
        right = float((scores.argmax(1) == shuffled).double().mean())
        assert two.results[protocol].value == pytest.approx(100 * right)


def test_validation_is_ridge_regression_on_the_training_images(config, features):
    pool = list(config.points())[1]
    found = validate(config, Unit(0, 1), features, ["frozen"]).heads["frozen"]
    module = make_pool(config, pool, features)
    train, others = (descriptors(module, features.maps(name)).double().numpy() for name in ("train", "validation"))
    targets, right = features.targets["train"].numpy(), features.targets["validation"].numpy()
    assert len(found.trials) == 2
    for trial, penalty in zip(found.trials, config.head.ridge_penalty, strict=True):
        scores = Ridge(alpha=penalty).fit(train, np.eye(3)[targets]).predict(others)
        assert trial.value == pytest.approx(100 * (scores.argmax(1) == right).mean())
        assert trial.settings == {"eta": 2, "beta": 0.5, "pivots": 3, "sigma": 0.5, "alpha": 0.1, "penalty": penalty}
    best = min(found.trials, key=lambda trial: (-trial.value, trial.loss))
    assert (found.penalty, found.score) == (best.settings["penalty"], Score(best.value, best.loss))


def test_the_highest_accuracy_is_selected_and_of_equal_ones_the_lowest_loss():
    scores = [Score(80.0, 0.1), Score(90.0, 0.9), Score(90.0, 0.5)]
    fits = [FrozenFit(place, {"frozen": HeadFit(one, 1.0, 1.0, (), {}, 0.0)}) for place, one in enumerate(scores)]
    assert TASK.select(fits, "frozen").point == 2
    assert TASK.select(fits[:2], "frozen").point == 1


def test_the_selected_point_is_trained_again_on_training_and_validation_images(config, features):
    fits = [validate(config, Unit(0, point), features, ["frozen"]) for point in range(4)]
    model = TASK.finish(config, features, 0, fits, ["frozen"], None, print)["frozen"]
    best = TASK.select(fits, "frozen")
    assert model.pool.config == list(config.points())[best.point]
    splits = [descriptors(model.pool, features.maps(name)) for name in ("train", "validation")]
    targets = torch.cat([features.targets["train"], features.targets["validation"]]).numpy()
    head = best.heads["frozen"]
    reference = Ridge(alpha=head.penalty).fit(torch.cat(splits).double().numpy(), np.eye(3)[targets])
    tested = descriptors(model.pool, features.maps("test"))
    expected = head.temperature * torch.from_numpy(reference.predict(tested.double().numpy()))
    scores = stored_logits({"frozen": model}, features.maps("test"))["frozen"]
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=1e-3 * head.temperature)
    result = TASK.test(config, features, 0, fits, {"frozen": model}, print)["frozen"]
    assert result.value == pytest.approx(100 * float((scores.argmax(1) == features.targets["test"]).double().mean()))
    assert (result.count, result.top5) == (len(features.targets["test"]), 100.0)
    assert result.validation == head.score
    assert result.chosen["penalty"] == head.penalty
    assert len(result.trials) == 4 * 2
    assert result.seconds > 0
    assert sum(map(sum, result.confusion.dense())) == result.count
    assert result.spectrum is not None


def test_both_classifiers_together_are_those_one_by_one(config, features):
    together = run_chain(TASK, config, features, 0, BOTH)
    for protocol in BOTH:
        alone = run_chain(TASK, config, features, 0, [protocol])
        torch.testing.assert_close(alone.models[protocol].weight, together.models[protocol].weight)
        one, other = (to_json(run.results[protocol]) for run in (alone, together))
        assert without_seconds(one) == without_seconds(other)
    ridge, softmax = (together.results[protocol] for protocol in BOTH)
    assert ridge.converged is None
    assert 1 <= softmax.converged <= 3
    assert len(softmax.curves["train_loss"]) == 3


def test_a_fit_is_read_from_its_file_as_it_was_written(config, features, tmp_path, monkeypatch):
    unit = TASK.units(config, 0)[2]
    first = TASK.fit(config, features, unit, BOTH, tmp_path / "point", print)
    assert from_json(FrozenFit, to_json(first)) == first
    monkeypatch.setattr(frozen, "validate", None)
    assert TASK.fit(config, features, unit, ["frozen"], tmp_path / "point", print) == first


def test_the_baseline_is_the_head_of_the_backbone(config, features):
    config = replace(config, pool=PoolConfig("Baseline"))
    assert len(TASK.units(config, 0)) == 1
    model = run_chain(TASK, config, features, 0, ["frozen"]).models["frozen"]
    assert model.weight.shape == (3, HEAD_CHANNELS)


def test_the_final_training_reports_to_its_own_caller(config, features):
    selecting, training = [], []
    config = replace(config, grid=GridConfig())
    fits = [validate(config, Unit(0), features, BOTH, None, lambda what, *_: selecting.append(what))]
    count = len(selecting)
    frozen.train_again(config, fits, features, BOTH, None, lambda what, *_: training.append(what))
    assert len(selecting) == count > 0
    assert "batches of the classifier" in training


def test_the_solver_is_part_of_the_settings_and_the_limit_is_not(config, features, monkeypatch):
    monkeypatch.setattr(plan, "_gram_bytes", lambda head, shape: 10**6)
    many, same, few = (
        TASK.settings(replace(config, head=replace(config.head, memory=memory)), features)
        for memory in (None, 1.0, 0.0005)
    )
    assert many == same
    assert many["solvers"] != few["solvers"]
    assert {**many, "solvers": few["solvers"]} == few
