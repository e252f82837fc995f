"""Settings and recipes: bad values are refused by the name of their field, and grids have the right points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from powerpool.data import Crops
from powerpool.data.sources import KNOWN
from powerpool.errors import PowerPoolError
from powerpool.runs.config import Setting, make_config, read_recipe, recipe_names, to_yaml
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.vision.config import (
    FineTuningConfig,
    GridConfig,
    HeadConfig,
    PoolConfig,
    VisionConfig,
    grid_names,
    grid_values,
)
from powerpool.tasks.vision.model import SetPool
from powerpool.tasks.vision.options import ReproduceOptions
from tests.tasks.vision.samples import texture

NAN = float("nan")
RECIPES = [name for name in recipe_names() if name.startswith("vision/")]
SCALES = {"vision/default", "vision/quick"}
FEW_SHOT_ONLY = {"miniimagenet", "omniglot", "open_mic"}
"""Data sets that are not meant for a classifier of all classes."""
CLASSIFIED = sorted(KNOWN.keys() - FEW_SHOT_ONLY)


@pytest.mark.parametrize(
    "kind, values, field",
    [
        (PoolConfig, {"method": "SOP+SC+SpecMaxExpG"}, "SpecMaxExpF"),
        (PoolConfig, {"beta": -0.1}, "pool.beta"),
        (PoolConfig, {"beta": NAN}, "pool.beta"),
        (PoolConfig, {"eta": 0.5}, "pool.eta=0.5"),
        (PoolConfig, {"eta": 2.5}, "pool.eta=2.5"),  # the fast form needs an integer
        (PoolConfig, {"pivots": 1}, "pool.pivots=1"),
        (PoolConfig, {"pivots": 10**9}, "pool.pivots"),
        (PoolConfig, {"sigma": 0.0}, "pool.sigma=0.0"),
        (PoolConfig, {"alpha": -1.0}, "pool.alpha=-1.0"),
        (PoolConfig, {"method": "SOP+SigmE", "sigme_eta": 0.0}, "pool.sigme_eta=0.0"),
        (PoolConfig, {"method": "SOP+SC+SpecGamma", "gamma": 0.0}, "pool.gamma=0.0"),
        (PoolConfig, {"method": "FOP+AsinhE", "asinhe_gamma": -1.0}, "pool.asinhe_gamma=-1.0"),
        (PoolConfig, {"method": "SOP+SC+SpecHDP", "t": 0.0}, "pool.t=0.0"),
        (PoolConfig, {"method": "SOP+NewtonSchulz", "iterations": 0}, "pool.iterations"),
        (PoolConfig, {"reduce_to": 0}, "pool.reduce_to"),
        (HeadConfig, {"epochs": 0}, "head.epochs"),
        (HeadConfig, {"learning_rate": NAN}, "head.learning_rate"),
        (HeadConfig, {"ridge_penalty": []}, "head.ridge_penalty"),
        (HeadConfig, {"ridge_penalty": [0.1, 0.0]}, "head.ridge_penalty"),
        (HeadConfig, {"softmax_penalty": [0.1, 0.1]}, "head.softmax_penalty"),
        (HeadConfig, {"softmax_penalty": [-0.1]}, "head.softmax_penalty"),
        (FineTuningConfig, {"crops": 0}, "training.crops"),
        (FineTuningConfig, {"patience": 0}, "training.patience"),
        (FineTuningConfig, {"patience": 2, "validation": "train"}, "training.patience"),
        (FineTuningConfig, {"devices": 0}, "training.devices"),
        (FineTuningConfig, {"learning_rate": 0.0}, "training.learning_rate"),
        (FineTuningConfig, {"jitter": NAN}, "training.jitter"),
        (FineTuningConfig, {"decay_factor": 0.0}, "training.decay_factor"),
        (FineTuningConfig, {"smallest_crop": 1.5}, "training.smallest_crop"),
        (FineTuningConfig, {"smoothing": 1.0}, "training.smoothing"),
        (FineTuningConfig, {"precision": "auto", "nodes": 2}, "training.precision"),
        (GridConfig, {"eta": [1, 2, 1.0]}, "grid.eta"),
        (VisionConfig, {"validation_share": 0.0}, "validation_share"),
        (VisionConfig, {"test_share": 1.0}, "test_share"),
        (VisionConfig, {"seed": 2**31}, "seed"),
        (VisionConfig, {"workers": -1}, "workers"),
        (VisionConfig, {"crops": Crops(size=30_000)}, "crops.size"),
        (VisionConfig, {"crops": Crops(resize=10**6)}, "crops.resize"),
        (VisionConfig, {"pool": PoolConfig(reduce_to=4)}, "pool.reduce_to"),
        (VisionConfig, {"grid": GridConfig(eta=[2, 2.5])}, "pool.eta=2.5"),
        (VisionConfig, {"mode": "end-to-end", "training": FineTuningConfig(warm_start=True)}, "training.warm_start"),
    ],
)
def test_a_bad_value_is_refused_by_name(kind: type, values: dict[str, Any], field: str):
    with pytest.raises(PowerPoolError, match=field):
        kind(**values)


def test_a_warm_start_excludes_a_reduction():
    warm = FineTuningConfig(warm_start=True, validation="train")
    with pytest.raises(PowerPoolError, match=r"pool\.reduce_to"):
        VisionConfig(mode="end-to-end", pool=PoolConfig(reduce_to=4), training=warm)


def test_settings_that_a_method_does_not_use_are_not_checked():
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
    assert grid_values(points[0]) == {"eta": 2, "beta": 0.0, "pivots": 5, "sigma": 0.7, "alpha": 0.1}
    without = VisionConfig(pool=PoolConfig("SOP+SC+SpecGamma"), grid=grid)
    assert {grid_values(one)["gamma"] for one in without.points()} == {0.3, 0.5}


def test_all_parameters_of_a_method_can_be_selected():
    for name, method in VISION_METHODS.items():
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


# ---- recipes ---------------------------------------------------------------------------------------------------------


def test_every_known_data_set_has_a_recipe():
    named = {read_recipe(name, VisionConfig).data for name in RECIPES if name not in SCALES}
    assert named == {*CLASSIFIED, "digits"}
    assert set(RECIPES) >= SCALES | {f"vision/{name}" for name in CLASSIFIED}


@pytest.mark.parametrize("name", RECIPES)
def test_every_pool_can_be_built_from_every_recipe(name):
    recipe = read_recipe(name, VisionConfig)
    if name not in SCALES:  # a recipe may add its backbone to the name of the data set
        assert name.removeprefix("vision/").split("-")[0] == recipe.data
        assert recipe.download == (recipe.backbone.startswith("hf:") and recipe.pretrained)
    assert (recipe.data_root, recipe.seed, recipe.accelerator, recipe.workers) == (None, 0, "auto", None)
    for method in VISION_METHODS:
        points = list(replace(recipe, pool=replace(recipe.pool, method=method)).points())
        assert len(set(points)) == len(points)
        assert SetPool(points[-1], channels=3, head_channels=3).out_features > 0


@pytest.mark.parametrize("data", [*CLASSIFIED, "digits", "some/where"])
def test_the_recipe_of_a_data_set_is_found(data):
    name = f"vision/{data}" if data in CLASSIFIED else "vision/default"
    recipe = read_recipe(name, VisionConfig, {"data": data, "pool.method": "FOP"})
    options = ReproduceOptions(data=[data])
    assert options.read_config(data) == recipe
    changed = replace(options, seed=5, download=False).read_config(data)
    assert changed == replace(recipe, seed=5, download=False)
    frozen = replace(options, mode="frozen").read_config(data)
    assert (frozen.mode, frozen.pool.reduce_to, frozen.grid) == ("frozen", None, recipe.grid)
    quick = replace(options, mode="frozen", quick=True).read_config(data)
    assert (quick.crops.size, quick.crops.count, quick.head.epochs, quick.training.epochs) == (64, 1, 3, 1)
    for method in VISION_METHODS:
        assert len(list(replace(quick, pool=replace(quick.pool, method=method)).points())) == 1


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_can_be_shortened(recipe):
    assert read_recipe(recipe, VisionConfig, {"training.epochs": 1}).training.epochs == 1


def test_a_central_crop_is_cut_from_a_resized_image_unless_the_settings_say_otherwise(tmp_path):
    def crops(**values: Any) -> Crops:
        return make_config(VisionConfig, {f"crops.{name}": Setting(value) for name, value in values.items()}).crops

    image = texture(0, seed=0, side=600).crop((0, 0, 600, 512))
    wide = image.resize((300, 256), Image.Resampling.BILINEAR).crop((38, 16, 262, 240))
    torch.testing.assert_close(crops(count=1)(image)[0], pil_to_tensor(wide), rtol=0, atol=0)
    assert crops(count=2, size=112).resize == 128
    # Others keep their defaults, and thereby the keys of stored features.
    assert crops(count=12).resize is crops(count=1, resize=None).resize is crops(count=1, layout="whole").resize is None
    old = tmp_path / "config.yaml"
    old.write_text(to_yaml(VisionConfig(crops=Crops(count=1))))  # of a run of an earlier version
    assert read_recipe(old, VisionConfig).crops == Crops(count=1, resize=None)


def pil_to_tensor(image: Image.Image) -> torch.Tensor:  # shape: (3, H, W)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
