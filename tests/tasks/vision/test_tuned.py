"""Learning rates of end-to-end training: what is tried, what validation selects, and what other seeds use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from powerpool.cli.main import main
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.report.write import read_records
from powerpool.runs.record import RunRecord
from powerpool.tasks.vision.config import FineTuningConfig
from powerpool.tasks.vision.loop import Loop

RATES = [(0.0001, 0.003), (0.0001, 0.01), (0.001, 0.003), (0.001, 0.01)]
SEARCH = "learning_rates: [0.0001, 0.001], head_learning_rates: [0.003, 0.01], search_epochs: 1"
# Two of the settings of Tiny maps: small images, and batches that do not divide the images.
RECIPE = """
mode: end-to-end
crops: {{size: 32, count: 1}}
accelerator: cpu
workers: 0
training: {{epochs: 3, crops: 1, batch_size: 9, batch_norm: true, {rates}}}
"""


def reproduce(out: Path, data: Path, rates: str, *words: str) -> list[RunRecord]:
    recipe = out.with_suffix(".yaml")
    recipe.write_text(RECIPE.format(rates=rates))
    fixed = ["reproduce", "vision", "--data", str(data), "--recipe", str(recipe), "--out", str(out)]
    assert main([*fixed, "--methods", "SOP", *words]) == 0
    return read_records(out)


def numbers(record: RunRecord) -> list[Any]:
    return [(result.value, result.test_loss, result.curves, result.chosen) for result in record.results]


def test_learning_rates_change_both_groups_by_one_factor():
    training = FineTuningConfig(learning_rate=0.1, head_learning_rate=0.2, learning_rates=[0.1, 0.3])
    assert training.rates == [(0.1, 0.2), (0.3, pytest.approx(0.6))]
    with pytest.raises(PowerPoolError, match="learning_rates"):
        FineTuningConfig(learning_rates=[0.1, 0.2], validation="train")


def test_head_learning_rates_are_combined_with_each_learning_rate():
    assert FineTuningConfig(learning_rates=[0.0001, 0.001], head_learning_rates=[0.003, 0.01]).rates == RATES
    assert FineTuningConfig(learning_rate=0.5, head_learning_rates=[0.003]).rates == [(0.5, 0.003)]


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"search_epochs": 0}, "search_epochs"),
        ({"search_epochs": 4, "epochs": 3}, "search_epochs"),
        ({"head_learning_rates": [0.1, 0.1]}, "head_learning_rates"),
        ({"head_learning_rates": [-0.1]}, "head_learning_rates"),
        ({"head_learning_rates": [0.1, 0.2], "validation": "train"}, "head_learning_rates"),
    ],
)
def test_bad_rates_are_refused(settings, named):
    with pytest.raises(ArgumentError, match=named):
        FineTuningConfig(**settings)


@pytest.mark.usefixtures("tiny")
def test_a_short_search_is_continued_as_if_it_had_not_stopped(textures, tmp_path):
    (record,) = reproduce(tmp_path / "searched", textures, SEARCH)
    (result,) = record.results
    tried = {(trial.settings["learning_rate"], trial.settings["head_learning_rate"]): trial for trial in result.trials}
    assert list(tried) == RATES
    assert {trial.epoch for trial in result.trials} == {1}
    rate, head = min(tried, key=lambda rates: (-tried[rates].value, tried[rates].loss))
    assert (result.chosen["learning_rate"], result.chosen["head_learning_rate"]) == (rate, head)
    assert len(result.curves["train_loss"]) == 3
    alone = f"learning_rates: [{rate}], head_learning_rates: [{head}]"
    (expected,) = reproduce(tmp_path / "alone", textures, alone)
    assert numbers(expected) == numbers(record)


@pytest.mark.usefixtures("tiny")
def test_a_search_that_is_killed_in_its_last_training_selects_the_same(textures, tmp_path, monkeypatch):
    (expected,) = reproduce(tmp_path / "whole", textures, SEARCH)
    train_epoch = Loop.train_epoch

    def fail(loop: Loop) -> None:
        if loop.progress.epoch == 2:
            raise SystemExit(1)
        train_epoch(loop)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "train_epoch", fail)
        with pytest.raises(SystemExit):
            reproduce(tmp_path / "killed", textures, SEARCH)
    (record,) = reproduce(tmp_path / "killed", textures, SEARCH)
    assert numbers(record) == numbers(expected)
    assert record.results[0].trials == expected.results[0].trials


@pytest.mark.usefixtures("tiny")
def test_other_seeds_use_the_rates_that_the_first_selected(textures, tmp_path):
    (record,) = reproduce(tmp_path / "out", textures, SEARCH, "--seeds", "3", "4")
    first, second = record.results
    assert (first.seed, second.seed, record.config["search_seed"]) == (3, 4, 3)
    assert (len(first.trials), len(second.trials)) == (4, 1)
    for name in ("learning_rate", "head_learning_rate"):
        assert second.chosen[name] == first.chosen[name]
    assert second.curves != first.curves
