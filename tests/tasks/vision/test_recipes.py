"""The recipes of images: each fits the configuration, and every method of the tables can be built from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from powerpool.data.sources import KNOWN
from powerpool.runs.config import read_recipe, recipe_names
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.model import SetPool
from powerpool.tasks.vision.options import ReproduceOptions

RECIPES = [name for name in recipe_names() if name.startswith("vision/")]
SCALES = {"vision/default", "vision/quick"}
FEW_SHOT_ONLY = {"miniimagenet", "omniglot", "open_mic"}
"""Data sets that are not meant for a classifier of all classes."""
CLASSIFIED = sorted(KNOWN.keys() - FEW_SHOT_ONLY)


def test_every_known_data_set_has_a_recipe():
    named = {read_recipe(name, VisionConfig).data for name in RECIPES if name not in SCALES}
    assert named == set(CLASSIFIED)
    assert set(RECIPES) >= SCALES | {f"vision/{name}" for name in CLASSIFIED}


@pytest.mark.parametrize("name", RECIPES)
def test_every_pool_can_be_built_from_every_recipe(name):
    recipe = read_recipe(name, VisionConfig)
    if name not in SCALES:  # a recipe may add its backbone to the name of the data set
        assert name.removeprefix("vision/").split("-")[0] == recipe.data
        assert recipe.download == recipe.backbone.startswith("hf:")
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
