"""The protocol on frozen features: what is chosen, by what, and what is tested with it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from powerpool.data import load_images
from powerpool.errors import ArgumentError
from powerpool.tasks.vision import evaluation
from powerpool.tasks.vision.config import GridConfig, HeadConfig, PoolConfig
from powerpool.tasks.vision.evaluation import (
    best_point,
    chosen_pool,
    make_pool,
    require_memory,
    stored_logits,
    train_again,
    validate,
    validate_heads,
)
from powerpool.tasks.vision.extraction import Features, extract
from powerpool.tasks.vision.frozen import descriptors
from powerpool.tasks.vision.model import SetPool
from tests.pipelines.vision.samples import CHANNELS, HEAD_CHANNELS, small_config, use_tiny


@pytest.fixture(scope="module")
def features(textures, tmp_path_factory) -> Features:
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        return extract(small_config(textures), load_images(textures), folder=tmp_path_factory.mktemp("f"), workers=0)


@pytest.fixture
def config(textures, tiny):
    grid = GridConfig(eta=[2, 9], beta=[0.0, 0.5])
    return small_config(textures, grid=grid, head=HeadConfig(epochs=3, ridge_penalty=[0.001, 0.1]))


def points(config, features):
    return [validate(config, pool, features) for pool in config.points()]


def timeless(found):
    """Without seconds."""
    return {name: value for name, value in found.items() if name != "seconds"}


@pytest.mark.parametrize("kind", ["ridge", "softmax"])
def test_no_choice_sees_the_test_pictures(config, features, kind):
    config = replace(config, head=replace(config.head, kind=kind))
    draw = torch.Generator().manual_seed(0)
    shuffled = features.targets["test"][torch.randperm(len(features.targets["test"]), generator=draw)]
    assert not torch.equal(shuffled, features.targets["test"])
    other = replace(features, targets={**features.targets, "test": shuffled})
    one, two = points(config, features), points(config, other)
    assert list(map(timeless, one)) == list(map(timeless, two))
    first, second = (train_again([config], [found], own)[0] for found, own in ((one, features), (two, other)))
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)
    scores = stored_logits([first], features.maps("test"))[0]
    (result,) = evaluation.test([first], [one], other)
    assert result["value"] == pytest.approx(100 * float((scores.argmax(1) == shuffled).double().mean()))


def test_validation_is_ridge_regression_on_the_training_pictures(config, features):
    pool = list(config.points())[1]
    found = validate(config, pool, features)
    module = make_pool(config, pool, CHANNELS)
    train, others = (descriptors(module, features.maps(name)).double().numpy() for name in ("train", "validation"))
    targets, right = features.targets["train"].numpy(), features.targets["validation"].numpy()
    assert len(found["trials"]) == 2
    for trial, penalty in zip(found["trials"], config.head.ridge_penalty, strict=True):
        scores = Ridge(alpha=penalty).fit(train, np.eye(3)[targets]).predict(others)
        assert trial["value"] == pytest.approx(100 * (scores.argmax(1) == right).mean())
        assert trial["chosen"] == {"eta": 2, "beta": 0.5, "pivots": 3, "sigma": 0.5, "alpha": 0.1, "penalty": penalty}
    best = min(found["trials"], key=lambda trial: (-trial["value"], trial["loss"]))
    assert (found["chosen"], found["value"], found["loss"]) == (best["chosen"], best["value"], best["loss"])


def test_the_best_accuracy_is_chosen_and_of_equal_ones_the_lowest_loss():
    found = [{"value": 80.0, "loss": 0.1}, {"value": 90.0, "loss": 0.9}, {"value": 90.0, "loss": 0.5}]
    assert best_point(found) is found[2]
    assert best_point(found[:2]) is found[1]


def test_the_best_is_trained_again_on_training_and_validation_pictures(config, features):
    own = points(config, features)
    (trained,) = train_again([config], [own], features)
    best = best_point(own)
    assert trained.pool.config == chosen_pool(config, best)
    splits = [descriptors(trained.pool, features.maps(name)) for name in ("train", "validation")]
    vectors = torch.cat(splits).double().numpy()
    targets = torch.cat([features.targets["train"], features.targets["validation"]]).numpy()
    reference = Ridge(alpha=best["chosen"]["penalty"]).fit(vectors, np.eye(3)[targets])
    tested = descriptors(trained.pool, features.maps("test"))
    expected = best["temperature"] * torch.from_numpy(reference.predict(tested.double().numpy()))
    scores = stored_logits([trained], features.maps("test"))[0]
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=1e-3 * best["temperature"])
    (result,) = evaluation.test([trained], [own], features)
    assert result["value"] == pytest.approx(100 * float((scores.argmax(1) == features.targets["test"]).double().mean()))
    assert result["count"] == len(features.targets["test"])
    assert result["chosen"] == best["chosen"]
    assert result["validation"] == {"value": best["value"], "loss": best["loss"]}
    assert len(result["grid"]) == 4 * 2
    assert result["top5"] == 100.0
    assert result["seconds"] > 0


def test_both_classifiers_at_once_are_those_one_by_one(config, features):
    both = [replace(config, head=replace(config.head, kind=kind)) for kind in ("ridge", "softmax")]
    pools = list(config.points())
    together = [validate_heads(both, pool, features) for pool in pools]
    grids = [[point[number] for point in together] for number in (0, 1)]
    for one, grid in zip(both, grids, strict=True):
        assert list(map(timeless, points(one, features))) == list(map(timeless, grid))
    trained = train_again(both, grids, features)
    results = evaluation.test(trained, grids, features)
    for one, grid, own, result in zip(both, grids, trained, results, strict=True):
        (alone,) = train_again([one], [grid], features)
        torch.testing.assert_close(alone.weight, own.weight)
        assert timeless(evaluation.test([alone], [grid], features)[0]) == timeless(result)
    assert results[0]["converged"] is None
    assert 1 <= results[1]["converged"] <= 3
    assert len(results[1]["curves"]["train_loss"]) == 3


def test_the_baseline_is_the_head_of_the_backbone(config, features):
    config = replace(config, pool=PoolConfig("Baseline"))
    own = points(config, features)
    assert len(own) == 1
    (trained,) = train_again([config], [own], features)
    assert trained.weight.shape == (3, HEAD_CHANNELS)


def test_a_choice_that_is_no_point_is_told(config):
    with pytest.raises(ArgumentError, match="is no point of the grid"):
        chosen_pool(config, {"chosen": {"eta": 4, "beta": 0.0, "pivots": 3, "sigma": 0.5, "alpha": 0.1}})


def test_what_cannot_fit_into_memory_is_refused(monkeypatch):
    pool = SetPool(PoolConfig("SOP"), 2048)
    require_memory(pool, 10)
    monkeypatch.setattr(evaluation.os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 1 << 20)
    with pytest.raises(ArgumentError, match=r"of 2,098,176 numbers each, take 17 GB with a copy, .* has 4 GB"):
        require_memory(pool, 1000)
