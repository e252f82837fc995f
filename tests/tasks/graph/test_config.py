"""Settings of graph classification: what is refused, and the grid."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.runs.config import RecipeError, read_recipe
from powerpool.tasks.graph.config import GraphConfig, GridConfig, ModelConfig, TrainingConfig, grid_names
from powerpool.tasks.methods import GRAPH_METHODS


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: ModelConfig("SOP+SpecMaxexp"), r"model\.method.*'SOP\+SpecMaxExp'"),
        (lambda: ModelConfig(hidden=0), r"model\.hidden"),
        (lambda: ModelConfig(layers=0), r"model\.layers"),
        (lambda: ModelConfig(iterations=0), r"model\.iterations"),
        (lambda: ModelConfig(neighbours=0), r"model\.neighbours"),
        (lambda: ModelConfig(dropout=1.0), r"model\.dropout"),
        (lambda: ModelConfig(dropout=float("nan")), r"model\.dropout"),
        (lambda: ModelConfig(beta=1.5), r"model\.beta"),
        (lambda: ModelConfig(eta=0.5), r"model\.eta=0\.5"),
        (lambda: ModelConfig(eta=2.5), r"model\.eta=2\.5.*integer"),
        (lambda: ModelConfig("SOP+SigmE", sigme_eta=0.0), r"model\.sigme_eta=0\.0"),
        (lambda: ModelConfig("SOP+Gamma", gamma=0.0), r"model\.gamma=0\.0"),
        (lambda: ModelConfig("SOP+AsinhE", asinhe_gamma=0.0), r"model\.asinhe_gamma=0\.0"),
        (lambda: ModelConfig("SOP+SpecHDP", t=0.0), r"model\.t=0\.0"),
        (lambda: ModelConfig("SOP+MaxExp", beta=0.5), r"model\.beta must be 0"),
        (lambda: ModelConfig(mean="sum"), r"model\.mean"),
        (lambda: ModelConfig(trace_power=math.inf), r"model\.trace_power"),
        (lambda: TrainingConfig(retrain_epochs="best"), r"training\.retrain_epochs"),
        (lambda: TrainingConfig(seed=-1), r"seed"),
        (lambda: TrainingConfig(epochs=0), r"training\.epochs"),
        (lambda: TrainingConfig(batch_size=1), r"training\.batch_size"),
        (lambda: TrainingConfig(weight_decay=-0.1), r"training\.weight_decay"),
        (lambda: TrainingConfig(learning_rate=float("nan")), r"training\.learning_rate"),
        (lambda: TrainingConfig(decay_factor=1.5), r"training\.decay_factor"),
        (lambda: GraphConfig(folds=2), r"^folds"),
        (lambda: GraphConfig(degree_cap=0), r"^degree_cap"),
        (lambda: GraphConfig(seed=2**31), r"^seed"),
        (lambda: GraphConfig(grid=GridConfig(hidden=[8, 0])), r"model\.hidden .*got 0"),
        (lambda: GraphConfig(grid=GridConfig(eta=[20.0, 2.5])), r"model\.eta=2\.5"),
        (lambda: GridConfig(eta=[5.0, 5]), r"grid\.eta"),
    ],
)
def test_impossible_settings_are_refused_by_name(make, name):
    with pytest.raises(PowerPoolError, match=name):
        make()


def test_limits_are_allowed_and_settings_of_other_methods_are_ignored():
    for method in GRAPH_METHODS:
        assert ModelConfig(method, eta=1.0, dropout=0.0, hidden=1, layers=1).method == method
    assert ModelConfig("SOP+SpecMaxExp", eta=2.5, beta=1.0).eta == 2.5
    assert ModelConfig("GIN0", eta=0.5, gamma=-3.0, beta=1.0).eta == 0.5
    assert GraphConfig(folds=3, seed=2**31 - 1, training=TrainingConfig(decay_factor=1.0, batch_size=2)).folds == 3


def test_a_bad_value_of_a_recipe_is_named_with_the_file(tmp_path):
    (tmp_path / "my.yaml").write_text("model: {method: SOP+SpecMaxExpF, eta: 2.5}")
    with pytest.raises(RecipeError, match=r"my\.yaml.*model\.eta=2\.5"):
        read_recipe(tmp_path / "my.yaml", GraphConfig)


def test_the_grid_has_every_combination_in_a_fixed_order():
    grid = GridConfig(hidden=[16, 8], layers=[2, 3], eta=[20.0, 5.0])
    config = GraphConfig(model=ModelConfig("SOP+SpecMaxExpF", dropout=0.25), grid=grid)
    points = [point.model for point in config.points()]
    expected = [(h, k, eta) for h in (16, 8) for k in (2, 3) for eta in (20.0, 5.0)]
    assert [(point.hidden, point.layers, point.eta) for point in points] == expected
    assert {(point.method, point.dropout) for point in points} == {("SOP+SpecMaxExpF", 0.25)}
    model = ModelConfig("SOP", hidden=5, layers=1)
    assert [point.model for point in GraphConfig(model=model).points()] == [model]
    assert [point.model for point in replace(config, search=False).points()] == [config.model]


@pytest.mark.parametrize(
    "method, varied",
    [("SOP+SigmE", "sigme_eta"), ("SOP+MaxExp", "eta"), ("SOP+SpecMaxExpF", "eta"), ("SOP", None), ("GIN0", None)],
)
def test_the_grid_varies_the_parameter_of_the_method_only(method, varied):
    values = [5.0, 20.0, 50.0]
    grid = GridConfig(hidden=[8, 16], eta=values, sigme_eta=values)
    config = GraphConfig(model=ModelConfig(method, eta=7.0, sigme_eta=7.0), grid=grid)
    points = [point.model for point in config.points()]
    assert ("eta" in grid_names(method), "sigme_eta" in grid_names(method)) == (varied == "eta", varied == "sigme_eta")
    assert len(set(points)) == len(points) == (6 if varied else 2)
    for name in ("eta", "sigme_eta"):
        assert {getattr(point, name) for point in points} == ({*values} if name == varied else {7.0})


@pytest.mark.parametrize(
    "method, expected",
    [
        ("GIN0", {"hidden": [2, 4], "layers": [4], "learning_rate": [0.1, 0.2]}),
        ("SOP", {"hidden": [64], "layers": [4], "beta": [0.0, 1.0], "mean": ["none", "concat"]}),
        ("SOP+NewtonSchulz", {"hidden": [64], "layers": [4], "iterations": [5], "beta": [0.0, 1.0],
                              "mean": ["none", "concat"]}),
        ("SOP+SpecMaxExpF", {"hidden": [64], "layers": [4], "eta": [3.0], "trace_power": [0.5, 1.0]}),
    ],
)  # fmt: skip
def test_each_kind_of_readout_has_its_grid_and_a_point_can_be_taken_from_a_record(method, expected):
    config = GraphConfig(
        model=ModelConfig(method),
        grid=GridConfig(eta=[3.0], trace_power=[0.5, 1.0]),
        plain_grid=GridConfig(beta=[0.0, 1.0], mean=[None, "concat"]),
        first_order_grid=GridConfig(hidden=[2, 4], learning_rate=[0.1, 0.2]),
    )
    points = list(config.points())
    assert {name: list(dict.fromkeys(point.values[name] for point in points)) for name in points[0].values} == expected
    assert len(points) == math.prod(map(len, expected.values()))
    for point in points:
        (again,) = config.at(json.loads(json.dumps(point.values))).points()
        assert (again.model, again.training) == (point.model, point.training)
    assert len({(point.model, point.training) for point in points}) == len(points)


def test_a_recipe_of_the_paper_selects_both_etas():
    config = read_recipe("graph/MUTAG", GraphConfig)
    assert config.grid.eta
    assert config.grid.sigme_eta
    with pytest.raises(ArgumentError, match="folds"):
        read_recipe("graph/MUTAG", GraphConfig, {"folds": 2})
