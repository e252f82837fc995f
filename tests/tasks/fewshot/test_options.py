"""Options of few-shot commands: what is refused, which recipe is read, and which folder is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from powerpool.errors import PowerPoolError
from powerpool.tasks.fewshot.config import FewShotConfig
from powerpool.tasks.fewshot.options import PredictOptions, ReproduceOptions, TrainOptions


@pytest.mark.parametrize(
    "options, name",
    [
        ({"methods": ["SoSN"]}, "SoSN"),
        ({"methods": ["SoSN(x)", "SoSN(x)"]}, "methods"),
        ({"data": ["a", "a"]}, "data"),
        ({"ways": [5, 5]}, "ways"),
        ({"ways": [1]}, "ways"),
        ({"shots": [0]}, "shots"),
        ({"jobs": 0}, "jobs"),
        ({"recipe": "fewshot/omniglot", "quick": True}, "--recipe and --quick"),
        ({"data": ["a", "b"], "study": "pretraining"}, "one data set"),
        ({"study": "features", "transductive": True}, "transductive"),
        ({"source": "omniglot"}, "--source"),
    ],
)
def test_impossible_options_are_refused_by_name(options, name):
    with pytest.raises(PowerPoolError, match=name):
        ReproduceOptions(**options)


def test_predict_needs_images_and_a_known_format():
    with pytest.raises(PowerPoolError, match="images"):
        PredictOptions(support="support")
    with pytest.raises(PowerPoolError, match=r"\.csv or \.json"):
        PredictOptions(support="support", images=["a.png"], out="a.txt")


def test_the_settings_of_a_training_are_its_configuration():
    options = TrainOptions(size=16, seed=4, out="somewhere")
    assert options.config == options.stored_config(options.config) == FewShotConfig(size=16, seed=4)
    assert (options.chain, options.protocols) == (0, ["5-way-1-shot"])
    assert str(options.default_folder("glyphs")) == "runs/train/fewshot/glyphs/SoSN(x+L)+SigmE-5-way-1-shot"


def test_the_recipe_of_a_data_set_is_found_by_its_name():
    options = ReproduceOptions(data=["omniglot"], data_root="somewhere")
    config = options.read_config("omniglot")
    assert (config.channels, config.invert, config.training.turns, config.data_root) == (1, True, True, "somewhere")
    quick = replace(options, quick=True).read_config("omniglot")
    assert (quick.invert, quick.test.way, quick.training.episodes) == (True, 2, 10)
    assert options.read_config("a/folder").training.episodes == 5000


@pytest.mark.parametrize("shots, shot", [([], 2), ([1, 3], None)])
def test_training_uses_as_many_support_images_as_the_options_name(tmp_path, shots, shot):
    recipe = tmp_path / "two.yaml"
    recipe.write_text("training: {shot: 2}\n")
    assert ReproduceOptions(recipe=str(recipe), shots=shots).read_config("glyphs").training.shot == shot


@pytest.mark.parametrize(
    "given, source, target",
    [
        ({}, "glyphs", "digits"),
        ({"data": ["glyphs"]}, "digits", "glyphs"),
        ({"source": "digits"}, "digits", "glyphs"),
        ({"source": "food101", "data": ["flower102"]}, "food101", "flower102"),
    ],
)
def test_a_quick_study_uses_data_sets_that_every_machine_has(given, source, target):
    config = ReproduceOptions(study="pretraining", quick=True, **given).read_study()
    assert (config.first.data, config.target.data) == (source, target)
    assert config.first.training.episodes == config.target.training.episodes == 10


def test_a_study_reads_both_budgets_from_its_recipe():
    config = ReproduceOptions(study="pretraining").read_study()
    assert (config.target.data, config.first.data) == ("flower102", "miniimagenet100")
    assert (config.first.size, config.target.size) == (84, 84)
    assert (config.first.training.episodes, config.target.training.episodes) == (4000, 1000)


def test_studies_and_quick_runs_have_folders_of_their_own():
    cases = ({}, {"quick": True}, {"study": "pretraining"}, {"study": "pretraining", "quick": True})
    assert [str(ReproduceOptions(**options).folder) for options in cases] == [
        f"runs/reproduce/fewshot{suffix}" for suffix in ("", "-quick", "-pretraining", "-pretraining-quick")
    ]
    assert str(ReproduceOptions(study="pretraining", out="mine").folder) == "mine"
