"""Configurations of graph classification: what is refused, in the words of the user, and what the grid has."""

from __future__ import annotations

import pytest
from powerpool.tasks.graph.methods import METHODS

from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.runs.config import RecipeError, read_recipe
from powerpool.tasks.graph.config import GraphConfig, GridConfig, ModelConfig, TrainingConfig, grid_names

WITH_ETA = {"SOP+SigmE", "SOP+MaxExp", "SOP+SpecMaxExp", "SOP+SpecMaxExpF"}


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"method": "SOP+SpecMaxexp"}, r"model\.method 'SOP\+SpecMaxexp'.*SOP\+SpecMaxExp\b"),
        ({"hidden": 0}, r"model\.hidden must be at least 1 \(got 0\)\."),
        ({"layers": 0}, r"model\.layers must be at least 1 \(got 0\)\."),
        ({"iterations": 0}, r"model\.iterations must be at least 1 \(got 0\)\."),
        ({"neighbours": 0}, r"model\.neighbours must be at least 1 \(got 0\)\."),
        ({"dropout": 1.0}, r"model\.dropout must be at least 0 and below 1 \(got 1\.0\)\."),
        ({"dropout": -0.1}, r"model\.dropout must be at least 0 and below 1 \(got -0\.1\)\."),
        ({"dropout": float("nan")}, r"model\.dropout must be"),
        ({"beta": 1.5}, r"model\.beta must be at least 0 and at most 1 \(got 1\.5\)"),
        ({"beta": -0.5}, r"model\.beta must be at least 0 and at most 1 \(got -0\.5\)"),
        ({"eta": 0.5}, r"SOP\+SpecMaxExpF cannot be built from model\.eta=0\.5, model\.beta=0\.0: MaxExp .*got 0\.5"),
        (
            {"eta": 2.5},
            r"SOP\+SpecMaxExpF cannot be built from model\.eta=2\.5.*a whole eta \(got 2\.5\)\. Take",
        ),
        ({"method": "SOP+SpecMaxExp", "eta": 0.99}, r"SOP\+SpecMaxExp cannot be built from model\.eta=0\.99"),
        ({"method": "SOP+SigmE", "eta": 0.0}, r"SOP\+SigmE cannot be built from model\.eta=0\.0"),
        ({"method": "SOP+Gamma", "gamma": 0.0}, r"SOP\+Gamma cannot be built from model\.gamma=0\.0"),
        ({"method": "SOP+SpecGamma", "gamma": -1.0}, r"SOP\+SpecGamma cannot be built from model\.gamma=-1\.0"),
        ({"method": "SOP+AsinhE", "asinhe_gamma": 0.0}, r"SOP\+AsinhE cannot be built from model\.asinhe_gamma=0\.0"),
        ({"method": "SOP+SpecHDP", "t": 0.0}, r"SOP\+SpecHDP cannot be built from model\.t=0\.0"),
        ({"method": "SOP+SpecFAHDP", "t": -0.1}, r"SOP\+SpecFAHDP cannot be built from model\.t=-0\.1"),
        ({"method": "SOP+MaxExp", "beta": 0.5}, r"model\.beta must be 0 for SOP\+MaxExp \(got 0\.5\).*Take SOP\+SigmE"),
        ({"method": "SOP+Gamma", "beta": 1.0}, r"model\.beta must be 0 for SOP\+Gamma \(got 1\.0\)"),
    ],
)
def test_a_model_that_cannot_be_is_refused_by_the_name_of_the_option(values, expected):
    with pytest.raises(PowerPoolError, match=expected):
        ModelConfig(**values)


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"epochs": 0}, r"training\.epochs must be at least 1 \(got 0\)\."),
        ({"batch_size": 1}, r"training\.batch_size must be at least 2 \(got 1\)\."),
        ({"decay_every": 0}, r"training\.decay_every must be at least 1 \(got 0\)\."),
        ({"weight_decay": -0.1}, r"training\.weight_decay must be at least 0 \(got -0\.1\)\."),
        ({"learning_rate": 0.0}, r"training\.learning_rate must be above 0 \(got 0\.0\)\."),
        ({"learning_rate": float("nan")}, r"training\.learning_rate must be above 0"),
        ({"decay_factor": 0.0}, r"training\.decay_factor must be above 0 and at most 1 \(got 0\.0\)\."),
        ({"decay_factor": 1.5}, r"training\.decay_factor must be above 0 and at most 1 \(got 1\.5\)\."),
    ],
)
def test_a_training_that_cannot_be_is_refused_by_the_name_of_the_option(values, expected):
    with pytest.raises(ArgumentError, match=expected):
        TrainingConfig(**values)


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"folds": 2}, r"^folds must be at least 3 \(got 2\)\."),
        ({"degree_cap": 0}, r"^degree_cap must be at least 1 \(got 0\)\."),
        ({"seed": -1}, r"^seed must be at least 0 and below 2\*\*31 \(got -1\)\."),
        ({"seed": 2**31}, r"^seed must be at least 0 and below"),
        ({"grid": GridConfig(hidden=[8, 0])}, r"model\.hidden must be at least 1 \(got 0\)\."),
        ({"grid": GridConfig(eta=[20.0, 2.5])}, r"needs a whole eta \(got 2\.5\)"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_it_starts(values, expected):
    with pytest.raises(ArgumentError, match=expected):
        GraphConfig(**values)


@pytest.mark.parametrize("name, values", [("hidden", [8, 16, 8]), ("layers", [2, 2]), ("eta", [5.0, 5])])
def test_a_value_that_the_grid_names_twice_is_refused(name, values):
    with pytest.raises(ArgumentError, match=rf"grid\.{name} names a value twice \(got \["):
        GridConfig(**{name: values})


def test_the_edges_of_what_is_allowed_are_allowed():
    for method in METHODS:
        assert ModelConfig(method, eta=1.0, dropout=0.0, hidden=1, layers=1).method == method
    assert ModelConfig("SOP+SpecMaxExp", eta=2.5, beta=1.0).eta == 2.5
    assert ModelConfig("GIN0", eta=0.5, gamma=-3.0, beta=1.0).eta == 0.5  # nothing that GIN0 depends on
    assert GraphConfig(folds=3, seed=2**31 - 1, training=TrainingConfig(decay_factor=1.0, batch_size=2)).folds == 3


def test_a_recipe_with_such_a_value_names_the_file(tmp_path):
    (tmp_path / "my.yaml").write_text("model: {method: SOP+SpecMaxExpF, eta: 2.5}")
    with pytest.raises(RecipeError, match=r"my\.yaml.*needs a whole eta \(got 2\.5\)"):
        read_recipe(tmp_path / "my.yaml", GraphConfig)


def test_the_grid_has_every_combination_in_a_fixed_order():
    grid = GridConfig(hidden=[16, 8], layers=[2, 3], eta=[20.0, 5.0])
    config = GraphConfig(model=ModelConfig("SOP+SpecMaxExpF", dropout=0.25), grid=grid)
    points = list(config.points())
    expected = [(h, k, eta) for h in (16, 8) for k in (2, 3) for eta in (20.0, 5.0)]
    assert [(point.hidden, point.layers, point.eta) for point in points] == expected
    assert {(point.method, point.dropout) for point in points} == {("SOP+SpecMaxExpF", 0.25)}


def test_an_empty_grid_is_the_model_itself():
    model = ModelConfig("SOP", hidden=5, layers=1)
    assert list(GraphConfig(model=model).points()) == [model]


@pytest.mark.parametrize("method", METHODS)
def test_eta_is_varied_for_methods_that_have_one_and_no_others(method):
    grid = GridConfig(hidden=[8, 16], eta=[5.0, 20.0, 50.0])
    points = list(GraphConfig(model=ModelConfig(method, eta=7.0), grid=grid).points())
    assert ("eta" in grid_names(method)) == (method in WITH_ETA)
    assert len(set(points)) == len(points) == (6 if method in WITH_ETA else 2)
    assert {point.eta for point in points} == ({5.0, 20.0, 50.0} if method in WITH_ETA else {7.0})
