"""Settings of few-shot learning: what is refused, how classes are divided, and the recipes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from powerpool.data import ClassCut
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.runs.config import read_recipe, recipe_names
from powerpool.tasks.fewshot.config import EpisodeConfig, FewShotConfig, ModelConfig, StudyConfig, TrainingConfig
from powerpool.tasks.fewshot.feature_config import FeatureStudyConfig
from powerpool.tasks.fewshot.rows import with_method
from powerpool.tasks.methods import FEWSHOT_METHODS


@pytest.mark.parametrize(
    "make, name",
    [
        (lambda: ModelConfig("SoSN"), "model.method"),
        (lambda: ModelConfig(hidden=7), r"model.hidden .*\(got 7\)"),
        (lambda: ModelConfig(beta=1.5), "model.beta"),
        (lambda: ModelConfig("SoSN(x)+MaxExp", beta=0.5), "model.beta must be 0"),
        (lambda: ModelConfig("SoSN(x)+SpecMaxExpF", eta=2.5), "model.eta=2.5"),
        (lambda: ModelConfig("SoSN(x)+SigmE", sigme_eta=-1.0), "model.sigme_eta=-1.0"),
        (lambda: ModelConfig("SoSN(x)+SC+SigmE", pivots=1), "model.pivots=1"),
        (lambda: EpisodeConfig(way=1), "test.way"),
        (lambda: EpisodeConfig(shot=0), "test.shot"),
        (lambda: TrainingConfig(way=1), "training.way"),
        (lambda: TrainingConfig(shot=0), "training.shot"),
        (lambda: TrainingConfig(learning_rate=0.0), "training.learning_rate"),
        (lambda: TrainingConfig(clip=-1.0), "training.clip"),
        (lambda: TrainingConfig(decay_factor=2.0), "training.decay_factor"),
        (lambda: TrainingConfig(precision="bf16"), "training.precision"),
        (lambda: TrainingConfig(device="tpu9"), "training.device"),
        (lambda: FewShotConfig(size=9), "size .*10"),
        (lambda: FewShotConfig(size=30_000), "size .*2048"),
        (lambda: FewShotConfig(size=15, model=ModelConfig("PrototypicalNet")), "size .*16"),
        (lambda: FewShotConfig(channels=2), "channels"),
        (lambda: FewShotConfig(seed=-1), "seed"),
        (lambda: FewShotConfig(train_classes=5), "class_order"),
    ],
)
def test_impossible_settings_are_refused_by_name(make, name):
    with pytest.raises(PowerPoolError, match=name):
        make()


def test_classes_are_divided_as_usual_or_by_the_settings():
    assert FewShotConfig().cut is None
    found = FewShotConfig(train_classes=5, validation_classes=0.2, class_order="names", seed=3).cut
    assert found == ClassCut(5, 0.2, "names", 3)
    with pytest.raises(ArgumentError):
        FewShotConfig(train_classes=0.9, validation_classes=0.2, class_order="names")


def test_methods_of_the_paper_are_available():
    paper = ["RelationNet", "PrototypicalNet", "SoSN(x)", "SoSN(x)+AsinhE", "SoSN(x)+SigmE", "SoSN(x+L)+SC+SigmE"]
    assert FEWSHOT_METHODS.keys() >= {*paper, "SoSN(x+L)+SC+SpecGamma", "SoSN(x+L)+SC+SpecMaxExpF", "SoSN(x+P)+SigmE"}
    assert FEWSHOT_METHODS["SoSN(x)+SC+SpecHDP"].is_spectral
    assert not FEWSHOT_METHODS["SoSN(x)+SigmE"].is_spectral
    assert FEWSHOT_METHODS["RelationNet"].order == "first"


@pytest.mark.parametrize(
    "name, size, episodes, rate, queries, count",
    [
        ("miniimagenet-224", 224, 200_000, 1e-3, (5, 3), 600),
        ("flower102", 224, 40_000, 1e-3, (5, 3), 600),
        ("open_mic", 84, 15_000, 1e-4, (2, 2), 1000),
        ("miniimagenet100-5-shot", 84, 2000, 1e-3, (5, 3), 600),
    ],
)
def test_recipes_have_the_published_settings(name, size, episodes, rate, queries, count):
    config = read_recipe(f"fewshot/{name}", FewShotConfig)
    assert config.data == name.removesuffix("-224").removesuffix("-5-shot")
    assert (config.size, config.training.episodes, config.training.learning_rate) == (size, episodes, rate)
    assert (config.training.queries, config.test.queries) == queries
    assert (config.test.way, config.test.shot, config.test.count) == (5, 5 if name.endswith("-5-shot") else 1, count)
    assert not config.test.transductive


def test_every_recipe_serves_every_method():
    names = [name for name in recipe_names() if name.startswith("fewshot/") and "features" not in name]
    assert len(names) >= 13
    for name in names:
        recipe = read_recipe(name, StudyConfig if name.startswith("fewshot/pretraining") else FewShotConfig)
        centred = replace(recipe, model=replace(recipe.model, beta=0.5))
        for method, known in FEWSHOT_METHODS.items():
            model = with_method(centred, method, 1).model
            assert (model.method, model.beta) == (method, 0.5 if "beta" in known.parameters else 0.0)


@pytest.mark.parametrize("name", ["features", "features-quick"])
def test_recipes_of_the_study_of_frozen_features(name):
    assert read_recipe(f"fewshot/{name}", FeatureStudyConfig).test.shot == 1


def test_a_study_trains_on_two_data_sets():
    study = StudyConfig(source="digits", source_episodes=7, train_classes=5, validation_classes=3, class_order="names")
    first, target = study.first, study.target
    assert (first.data, first.training.episodes, first.cut) == ("digits", 7, None)
    assert (target.data, target.training.episodes, target.cut) == ("glyphs", 5000, study.cut)
    assert type(target) is FewShotConfig
