"""Ranges grow where validation selects the first or last value, by validation only, and within limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from powerpool.data import load_images
from powerpool.errors import ArgumentError
from powerpool.runs.record import Score, Trial
from powerpool.tasks.base import Unit, run_chain
from powerpool.tasks.vision import frozen
from powerpool.tasks.vision.config import GridConfig, HeadConfig, PoolConfig
from powerpool.tasks.vision.extraction import extract
from powerpool.tasks.vision.frozen import FrozenFit, HeadFit, validate
from powerpool.tasks.vision.task import TASK
from powerpool.tasks.vision.widening import next_value
from tests.tasks.vision.samples import small_config, use_tiny

BOTH = ("frozen", "frozen-softmax")


@pytest.fixture(scope="module")
def features(textures, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        return extract(small_config(textures), load_images(textures), folder=tmp_path_factory.mktemp("f"))


@pytest.mark.parametrize(
    "name, tried, selected, expected",
    [
        ("penalty", [0.1, 0.3], 0.3, 0.9),
        ("penalty", [0.3, 0.1], 0.1, 0.03333),
        ("penalty", [0.1, 0.3, 0.9], 0.3, None),
        ("penalty", [0.3], 0.3, None),
        ("penalty", [0.0, 0.1], 0.1, None),  # no ratio
        ("penalty", [0.0, 0.1], 0.0, None),
        ("gamma", [0.3, 0.5, 0.7], 0.3, 0.18),
        ("gamma", [0.5, 0.8], 0.8, 1.0),
        ("gamma", [0.8, 1.0], 1.0, None),
        ("eta", [10, 20, 40], 10, 5.0),
        ("eta", [2, 5], 2, 1.0),
        ("eta", [1, 5], 1, None),
        ("eta", [2, 5], 5, 12.0),  # whole, as the fast form needs it
        ("eta", [1.5, 3.0], 1.5, 1.0),
    ],
)
def test_the_next_value_keeps_the_ratio_and_the_limits(name, tried, selected, expected):
    assert next_value(name, tried, selected) == expected


def grow(monkeypatch, config, best, features=None):
    """The grid points that are tried if the score falls with the distance from a best point."""

    def score(config, unit, features, protocols, *rest):
        pool = frozen.pool_of(config, unit)
        own = {name: getattr(pool, name) for name in ("eta", "beta", "pivots", "sigma", "alpha")}
        loss = sum(abs(own[name] - value) for name, value in best.items())
        head = HeadFit(Score(50.0, loss), 0.1, 1.0, (Trial({**own, "penalty": 0.1}, 50.0, loss),), {}, 0.0)
        return FrozenFit(unit.point, dict.fromkeys(protocols, head))

    monkeypatch.setattr(frozen, "validate", score)
    fits = [TASK.fit(config, features, unit, ["frozen"], None, lambda *_: None) for unit in TASK.units(config, 0)]
    names = []
    while (unit := TASK.further_unit(config, 0, fits, "frozen")) is not None:
        fits.append(TASK.fit(config, features, unit, ["frozen"], None, lambda *_: None))
        names.append(dict(unit.settings))
    return names


def test_a_range_grows_until_its_best_value_has_neighbours(monkeypatch, textures):
    config = small_config(textures, grid=GridConfig(eta=[5, 10]), widen=4)
    assert [one["eta"] for one in grow(monkeypatch, config, {"eta": 38})] == [20, 40, 80]
    assert [one["eta"] for one in grow(monkeypatch, config, {"eta": 1000})] == [20, 40, 80, 160]
    assert [one["eta"] for one in grow(monkeypatch, config, {"eta": 1})] == [2, 1]
    assert grow(monkeypatch, replace(config, widen=0), {"eta": 1000}) == []


def test_a_range_grows_no_further_than_the_method_allows(monkeypatch, textures):
    config = small_config(textures, grid=GridConfig(eta=[100, 50_000]), widen=3)
    assert grow(monkeypatch, config, {"eta": 1e9}) == []
    slow = replace(config, pool=replace(config.pool, method="SOP+SC+SpecMaxExp"))
    assert len(grow(monkeypatch, slow, {"eta": 1e20})) == 3
    with pytest.raises(ArgumentError, match="1,048,576"):
        PoolConfig("SOP+SpecMaxExpF", eta=2e6)


def test_several_ranges_grow_along_the_selected_values_and_shares_and_counts_do_not(monkeypatch, textures):
    grid = GridConfig(eta=[5, 10], beta=[0.0, 0.5], pivots=[3, 4], alpha=[0.1, 0.2])
    config = small_config(textures, grid=grid, widen=2)
    found = grow(monkeypatch, config, {"eta": 16, "beta": 0.9, "pivots": 9, "alpha": 0.5})
    assert [(one["eta"], one["beta"], one["pivots"], one["alpha"]) for one in found] == [
        (20, 0.5, 4, 0.2),
        (40, 0.5, 4, 0.2),
        (20, 0.5, 4, 0.4),
        (20, 0.5, 4, 0.8),
    ]
    assert all(isinstance(one["pivots"], int) for one in found)


@pytest.mark.usefixtures("tiny")
def test_every_trial_is_in_the_result_and_each_protocol_is_selected_as_if_alone(textures, features):
    head = HeadConfig(epochs=2, ridge_penalty=[0.001, 0.002], softmax_penalty=[0.01, 0.1])
    grid = GridConfig(eta=[2, 5])
    config = small_config(textures, grid=grid, head=head, widen=2)
    both = run_chain(TASK, config, features, 0, BOTH)
    for protocol in BOTH:
        result = both.results[protocol]
        assert result.trials == run_chain(TASK, config, features, 0, [protocol]).results[protocol].trials
        best = min(result.trials, key=lambda trial: (-trial.value, trial.loss))
        assert (best.settings, best.value) == (result.chosen, result.validation.value)
    ridge = both.results["frozen"]
    for eta in {trial.settings["eta"] for trial in ridge.trials}:
        own = [trial for trial in ridge.trials if trial.settings["eta"] == eta]
        alone = replace(config, pool=replace(config.pool, eta=eta), grid=GridConfig())
        penalties = replace(head, ridge_penalty=[one.settings["penalty"] for one in own])
        found = validate(replace(alone, widen=0, head=penalties), Unit(0), features, ["frozen"])
        assert [trial.loss for trial in found.heads["frozen"].trials] == pytest.approx([one.loss for one in own])
        assert 2 <= len(own) <= 4
    (remark,) = TASK.result_remarks(config, "frozen", ridge)
    assert "penalty 0.001 to 0.002, added" in remark


def test_results_of_fixed_ranges_are_stored_under_the_keys_of_earlier_versions(textures, features):
    config = small_config(textures)
    assert "widen" not in TASK.settings(config, features)
    assert TASK.settings(replace(config, widen=3), features)["widen"] == 3


def test_bad_numbers_of_values_are_refused(textures):
    for widen in (-1, 11):
        with pytest.raises(ArgumentError, match="widen"):
            small_config(textures, widen=widen, pool=PoolConfig())
