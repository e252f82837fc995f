"""Configurations: what cannot be is refused with the name of its field, and grids have the points that they should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from powerpool.tasks.vision.methods import METHODS

from powerpool.data import Crops
from powerpool.errors import PowerPoolError
from powerpool.runs.config import make_config, read_recipe, to_yaml
from powerpool.tasks.vision.config import (
    FineTuningConfig,
    GridConfig,
    HeadConfig,
    PoolConfig,
    VisionConfig,
    chosen_values,
    grid_names,
)

NAN = float("nan")


@pytest.mark.parametrize(
    "kind, values, said",
    [
        (PoolConfig, {"method": "SOP+SC+SpecMaxExpG"}, "pool.method 'SOP.SC.SpecMaxExpG'|'SOP.SC.SpecMaxExpG'"),
        (PoolConfig, {"beta": -0.1}, "pool.beta must be at least 0 and at most 1"),
        (PoolConfig, {"beta": NAN}, "pool.beta must be at least 0 and at most 1"),
        (PoolConfig, {"eta": 0.5}, "pool.eta=0.5"),
        (PoolConfig, {"pivots": 1}, "pool.pivots=1.*pivots must be"),
        (PoolConfig, {"sigma": 0.0}, "pool.sigma=0.0.*sigma must be"),
        (PoolConfig, {"alpha": -1.0}, "pool.alpha=-1.0.*alpha must be"),
        (PoolConfig, {"method": "SOP+SigmE", "eta_prime": 0.0}, "pool.eta_prime=0.0"),
        (PoolConfig, {"method": "SOP+SC+SpecGamma", "gamma": 0.0}, "pool.gamma=0.0"),
        (PoolConfig, {"method": "FOP+AsinhE", "gamma_prime": -1.0}, "pool.gamma_prime=-1.0"),
        (PoolConfig, {"method": "SOP+SC+SpecHDP", "t": 0.0}, "pool.t=0.0"),
        (PoolConfig, {"method": "SOP+NewtonSchulz", "iterations": 0}, "pool.iterations=0"),
        (PoolConfig, {"reduce_to": 0}, "pool.reduce_to must be at least 1"),
        (HeadConfig, {"epochs": 0}, "head.epochs must be at least 1"),
        (HeadConfig, {"batch_size": 0}, "head.batch_size must be at least 1"),
        (HeadConfig, {"learning_rate": 0.0}, "head.learning_rate must be above 0"),
        (HeadConfig, {"learning_rate": NAN}, "head.learning_rate must be above 0"),
        (HeadConfig, {"scale": -1.0}, "head.scale must be above 0"),
        (HeadConfig, {"ridge_penalty": []}, "head.ridge_penalty must name at least one value"),
        (HeadConfig, {"ridge_penalty": [0.1, 0.0]}, "head.ridge_penalty must be above 0"),
        (HeadConfig, {"softmax_penalty": [0.1, 0.1]}, "head.softmax_penalty must name at least one value, and each"),
        (HeadConfig, {"softmax_penalty": [-0.1]}, "head.softmax_penalty must be at least 0"),
        (FineTuningConfig, {"epochs": 0}, "training.epochs must be at least 1"),
        (FineTuningConfig, {"crops": 0}, "training.crops must be at least 1"),
        (FineTuningConfig, {"devices": 0}, "training.devices must be at least 1"),
        (FineTuningConfig, {"learning_rate": 0.0}, "training.learning_rate must be above 0"),
        (FineTuningConfig, {"weight_decay": -1.0}, "training.weight_decay must be at least 0"),
        (FineTuningConfig, {"jitter": NAN}, "training.jitter must be at least 0"),
        (FineTuningConfig, {"decay_factor": 0.0}, "training.decay_factor must be above 0 and at most 1"),
        (FineTuningConfig, {"smallest_crop": 1.5}, "training.smallest_crop must be above 0 and at most 1"),
        (FineTuningConfig, {"smoothing": 1.0}, "training.smoothing must be at least 0 and below 1"),
        (GridConfig, {"eta": [1, 2, 1.0]}, "grid.eta names a value twice"),
        (VisionConfig, {"validation_share": 0.0}, "validation_share must be above 0 and below 1"),
        (VisionConfig, {"test_share": 1.0}, "test_share must be above 0 and below 1"),
        (VisionConfig, {"seed": -1}, "seed must be at least 0"),
        (VisionConfig, {"seed": 2**31}, "seed must be at least 0"),
        (VisionConfig, {"pool": PoolConfig(reduce_to=4)}, "pool.reduce_to needs mode end-to-end"),
        (VisionConfig, {"grid": GridConfig(eta=[2, 2.5])}, "pool.eta=2.5"),
        (VisionConfig, {"grid": GridConfig(pivots=[5, 1])}, "pool.pivots=1"),
        (
            VisionConfig,
            {"mode": "end-to-end", "training": FineTuningConfig(warm_start=True)},
            "training.warm_start needs training.validation train",
        ),
        (
            VisionConfig,
            {
                "mode": "end-to-end",
                "pool": PoolConfig(reduce_to=4),
                "training": FineTuningConfig(warm_start=True, validation="train"),
            },
            "training.warm_start needs pool.reduce_to null",
        ),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(kind: type, values: dict[str, Any], said: str):
    with pytest.raises(PowerPoolError, match=said):
        kind(**values)


def test_a_value_that_the_method_does_not_have_may_be_anything():
    config = VisionConfig(pool=PoolConfig("FOP", eta=0.1, pivots=0), grid=GridConfig(eta=[0.1, 0.2], t=[-1.0]))
    assert list(config.points()) == [config.pool]


def test_points_are_the_product_of_what_the_method_depends_on():
    grid = GridConfig(eta=[2, 5], beta=[0.0, 1.0], gamma=[0.3, 0.5], alpha=[0.1, 0.2, 0.3])
    config = VisionConfig(pool=PoolConfig("SOP+SC+SpecMaxExpF", sigma=0.7), grid=grid)
    points = list(config.points())
    assert len(points) == len(set(points)) == 2 * 2 * 3
    assert [(one.eta, one.beta, one.alpha) for one in points[:4]] == [
        (2, 0.0, 0.1),
        (2, 0.0, 0.2),
        (2, 0.0, 0.3),
        (2, 1.0, 0.1),
    ]
    assert {one.sigma for one in points} == {0.7}
    assert chosen_values(points[0]) == {"eta": 2, "beta": 0.0, "pivots": 5, "sigma": 0.7, "alpha": 0.1}
    without = VisionConfig(pool=PoolConfig("SOP+SC+SpecGamma"), grid=grid)
    assert {chosen_values(one)["gamma"] for one in without.points()} == {0.3, 0.5}


def test_everything_that_a_method_depends_on_can_be_chosen():
    for name, method in METHODS.items():
        assert set(grid_names(name)) == set(method.parameters)


def test_penalties_are_those_of_the_kind():
    head = HeadConfig(ridge_penalty=[1.0], softmax_penalty=[0.0, 2.0])
    assert head.penalties == [1.0]
    assert replace(head, kind="softmax").penalties == [0.0, 2.0]


def test_a_configuration_is_read_as_it_was_written(tmp_path):
    config = VisionConfig(
        data="some: where",
        crops=Crops(size=96, count=5, resize=100),
        pool=PoolConfig("SOP+SC+SpecHDP", t=1e-3),
        head=HeadConfig("softmax", softmax_penalty=[0.0, 1e-5]),
        grid=GridConfig(t=[1e-3, 3e-3], pivots=[3, 4]),
        seed=7,
    )
    (tmp_path / "mine.yaml").write_text(to_yaml(config), encoding="utf-8")
    assert read_recipe(tmp_path / "mine.yaml", VisionConfig) == config
    assert make_config(VisionConfig, {}) == VisionConfig()
