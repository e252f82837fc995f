"""The recipes that ship: each fits a command, and every method can be built from those of graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from powerpool.data.tu_format import GRAPHS
from powerpool.runs.config import read_recipe, recipe_names
from powerpool.tasks.base import ignore_progress, run_chain
from powerpool.tasks.graph.config import GraphConfig
from powerpool.tasks.graph.model import GraphClassifier
from powerpool.tasks.graph.options import ReproduceOptions
from powerpool.tasks.graph.task import TASK
from powerpool.tasks.methods import METHODS
from tests.tasks.graph.samples import rings_and_stars, write_own_set

GRAPH_RECIPES = [name for name in recipe_names() if name.startswith("graph/")]
TABLES = ("GIN0", "GIN0+Sum", "SOP", "SOP+SigmE", "SOP+NewtonSchulz", "SOP+SpecMaxExpF")
SCALES = {"graph/protocols", "graph/default", "graph/full", "graph/quick"}


def test_recipes_are_named_after_their_data_sets_and_download_nothing():
    assert set(GRAPH_RECIPES) >= SCALES
    for name in GRAPH_RECIPES:
        config = read_recipe(name, GraphConfig)
        if name not in SCALES:
            assert name == f"graph/{config.data}"
            assert config.data in GRAPHS
        assert config.data_root is None
        assert not config.download


@pytest.mark.parametrize("name", GRAPH_RECIPES)
def test_every_method_can_be_built_from_every_recipe(name):
    recipe = read_recipe(name, GraphConfig)
    for method, kind in METHODS["graph"].items():
        model = replace(recipe.model, method=method, beta=recipe.model.beta if "beta" in kind.parameters else 0.0)
        points = list(replace(recipe, model=model).points())
        smallest = min((point.model for point in points), key=lambda model: (model.hidden, model.layers))
        assert GraphClassifier(smallest, channels=3, classes=2).features > 0
        assert len(set(points)) == len(points)


@pytest.mark.parametrize("name", [name for name in GRAPH_RECIPES if name not in SCALES - {"graph/default"}])
def test_every_readout_of_the_tables_has_the_same_budget(name):
    recipe = read_recipe(name, GraphConfig)
    counts = {
        method: len(list(replace(recipe, model=replace(recipe.model, method=method)).points())) for method in TABLES
    }
    assert set(counts.values()) == {6}, counts
    assert recipe.grid.beta == recipe.plain_grid.beta == [0, 0.5, 1]
    assert len(recipe.grid.eta) == len(recipe.grid.sigme_eta) == 2


@pytest.mark.parametrize("data", ["COLLAB", "REDDIT-MULTI-5K"])
def test_recipes_of_sets_that_are_not_at_hand_run_on_the_files_of_a_user(data, tmp_path):
    write_own_set(tmp_path / data, rings_and_stars(40), without="node_labels", name=data)
    options = ReproduceOptions(data=[data], methods=["SOP+SpecMaxExpF"], data_root=str(tmp_path))
    (row,) = TASK.plan(options, ignore_progress)
    config = replace(row.configs[0], training=replace(row.configs[0].training, epochs=2))
    result = run_chain(TASK, config, row.data, 0, ["validation-only"]).results["validation-only"]
    assert len(result.trials) == 6
    assert result.confusion is not None
    assert result.confusion.classes == ("3", "7")


@pytest.mark.parametrize("options, expected", [({}, "graph/MUTAG"), ({"recipe": "graph/default"}, "graph/default")])
def test_the_options_choose_the_recipe(options, expected):
    recipe = read_recipe(expected, GraphConfig, {"data": "MUTAG", "model.method": "GIN0"})
    assert ReproduceOptions(**options).read_config("MUTAG") == recipe
    assert ReproduceOptions(**options, seed=5).read_config("MUTAG") == replace(recipe, seed=5)


def test_quick_and_full_take_precedence_over_the_recipe_of_the_data_set():
    full = ReproduceOptions(full=True).read_config("COLLAB")
    assert (full.degree_cap, full.model.mean, full.grid.layers) == (100, "concat", [2, 3, 4, 5])
    assert ReproduceOptions().read_config("NCI1").short_search == 10
    assert ReproduceOptions(full=True).read_config("NCI1").short_search is None
    quick = ReproduceOptions(quick=True).read_config("MUTAG")
    assert (quick.model.hidden, quick.model.mean, quick.training.epochs, quick.folds) == (8, "concat", 3, 3)
    assert len(list(quick.points())) == 1


def test_a_custom_data_set_has_the_default_recipe():
    default = read_recipe("graph/default", GraphConfig, {"model.method": "GIN0"})
    assert ReproduceOptions().read_config("somewhere/OWN") == replace(default, data="somewhere/OWN")
