"""The recipes of graphs: each fits the configuration, and every method of the tables can be built."""

from __future__ import annotations

from dataclasses import replace

import pytest
from powerpool.cli.reproduce_graph import ReproduceGraphOptions, read_config
from powerpool.tasks.graph.methods import METHODS

from powerpool.data.tu_format import GRAPHS
from powerpool.runs.config import read_recipe, recipe_names
from powerpool.tasks.graph.config import GraphConfig
from powerpool.tasks.graph.model import GraphClassifier

GRAPH_RECIPES = [name for name in recipe_names() if name.startswith("graph/")]
SCALES = {"graph/default", "graph/full", "graph/quick"}


def test_the_scales_that_the_command_names_are_there():
    assert set(GRAPH_RECIPES) >= SCALES


@pytest.mark.parametrize("name", GRAPH_RECIPES)
def test_a_recipe_is_called_by_the_set_that_it_is_for(name):
    config = read_recipe(name, GraphConfig)
    if name not in SCALES:
        assert name == f"graph/{config.data}"
        assert config.data in GRAPHS
    assert config.data_root is None
    assert not config.download  # nothing is fetched unless somebody asks for it


@pytest.mark.parametrize("name", GRAPH_RECIPES)
def test_every_method_can_be_built_from_every_recipe(name):
    recipe = read_recipe(name, GraphConfig)
    for method, kind in METHODS.items():
        beta = recipe.model.beta if "beta" in kind.parameters else 0.0
        config = replace(recipe, model=replace(recipe.model, method=method, beta=beta))
        points = list(config.points())
        smallest = min(points, key=lambda point: (point.hidden, point.layers))
        assert GraphClassifier(smallest, channels=3, classes=2).features > 0
        assert len(set(points)) == len(points)


@pytest.mark.parametrize("options, expected", [({}, "graph/MUTAG"), ({"recipe": "graph/default"}, "graph/default")])
def test_the_options_choose_the_recipe(options, expected):
    recipe = read_recipe(expected, GraphConfig, {"data": "MUTAG", "model.method": "GIN0"})
    assert read_config(ReproduceGraphOptions(**options), "MUTAG") == recipe
    assert read_config(ReproduceGraphOptions(**options, seed=5), "MUTAG") == replace(recipe, seed=5)


def test_quick_and_full_go_over_the_recipe_of_the_set():
    full = read_config(ReproduceGraphOptions(full=True), "COLLAB")
    assert (full.degree_cap, full.model.beta, full.grid.layers) == (100, 1.0, [2, 3, 4, 5])
    quick = read_config(ReproduceGraphOptions(quick=True), "MUTAG")
    assert (quick.model.hidden, quick.model.beta, quick.training.epochs, quick.folds) == (8, 1.0, 3, 3)
    assert len(list(quick.points())) == 1


def test_a_set_without_a_recipe_of_its_own_has_the_default():
    default = read_recipe("graph/default", GraphConfig, {"model.method": "GIN0"})
    assert read_config(ReproduceGraphOptions(), "somewhere/OWN") == replace(default, data="somewhere/OWN")
