"""Learning rates of end-to-end training: what is tried, what validation selects, and what other seeds use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from powerpool.cli.main import main
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.report.write import read_records
from powerpool.runs.record import RunRecord
from powerpool.tasks.vision import tuned
from powerpool.tasks.vision.config import FineTuningConfig, VisionConfig
from powerpool.tasks.vision.loop import DivergedError, Loop

RATES = [(0.0001, 0.003), (0.0001, 0.01), (0.001, 0.003), (0.001, 0.01)]
SEARCH = "learning_rates: [0.0001, 0.001], head_learning_rates: [0.003, 0.01], search_epochs: 2"
RECIPE = """
mode: end-to-end
crops: {{size: 32, count: 1}}
accelerator: cpu
workers: 0
training: {{epochs: 4, crops: 1, batch_size: 9, batch_norm: true, {rates}}}
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
    assert {trial.epoch for trial in result.trials} <= {1, 2}
    rate, head = min(tried, key=lambda rates: (-tried[rates].value, tried[rates].loss))
    assert (result.chosen["learning_rate"], result.chosen["head_learning_rate"]) == (rate, head)
    assert len(result.curves["train_loss"]) == 4
    alone = f"learning_rates: [{rate}], head_learning_rates: [{head}]"
    (expected,) = reproduce(tmp_path / "alone", textures, alone)
    assert numbers(expected) == numbers(record)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("epochs", [5, 8, 9])
def test_a_search_that_is_killed_selects_the_same(textures, tmp_path, monkeypatch, epochs):
    """In the third short training, before the first epoch of the continued one, and in its last."""
    (expected,) = reproduce(tmp_path / "whole", textures, SEARCH)
    train_epoch, done = Loop.train_epoch, []

    def fail(loop: Loop) -> None:
        if len(done) == epochs:
            raise SystemExit(1)
        done.append(loop)
        train_epoch(loop)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "train_epoch", fail)
        with pytest.raises(SystemExit):
            reproduce(tmp_path / "killed", textures, SEARCH)
    (record,) = reproduce(tmp_path / "killed", textures, SEARCH)
    assert numbers(record) == numbers(expected)
    assert record.results[0].trials == expected.results[0].trials


@pytest.mark.usefixtures("tiny")
def test_a_search_with_early_stopping_ends_as_the_selected_training_alone(textures, tmp_path):
    (record,) = reproduce(tmp_path / "searched", textures, f"{SEARCH}, patience: 1")
    rates = "learning_rates: [{learning_rate}], head_learning_rates: [{head_learning_rate}], patience: 1"
    (expected,) = reproduce(tmp_path / "alone", textures, rates.format(**record.results[0].chosen))
    assert numbers(record) == numbers(expected)


@pytest.mark.usefixtures("tiny")
def test_rates_that_diverge_are_left_out(textures, tmp_path, monkeypatch, capsys):
    train_batch = Loop.train_batch

    def diverge(loop: Loop, batch: Any) -> None:
        if loop.config.head_learning_rate == 0.01 or loop.progress.epoch == last:
            raise DivergedError("The loss is nan.")
        train_batch(loop, batch)

    monkeypatch.setattr(Loop, "train_batch", diverge)
    last = 99
    (record,) = reproduce(tmp_path / "out", textures, SEARCH)
    assert {trial.settings["head_learning_rate"] for trial in record.results[0].trials} == {0.003}
    for last, needed in ((0, "head_learning_rates"), (2, "search_epochs")):  # in every training; in the continued one
        with pytest.raises(AssertionError):
            reproduce(tmp_path / f"last-{last}", textures, SEARCH)
        assert needed in capsys.readouterr().err


@pytest.mark.usefixtures("tiny")
def test_one_rate_needs_no_validation_images(textures, tmp_path):
    (record,) = reproduce(tmp_path / "out", textures, "learning_rates: [0.001], validation: train")
    assert (record.results[0].chosen["learning_rate"], record.results[0].trials) == (0.001, ())


def test_rates_at_the_edge_of_their_range_are_named():
    training = FineTuningConfig(learning_rates=[0.1, 0.2], head_learning_rates=[1, 2, 3])
    config = VisionConfig(mode="end-to-end", training=training)
    found = [tuned.describe_edges(config, {"learning_rate": 0.1, "head_learning_rate": rate}) for rate in (1, 2, 3)]
    assert [("head_learning_rate 1" in found[0]), found[1], ("head_learning_rate 3" in found[2])] == [True, "", True]


@pytest.mark.usefixtures("tiny")
def test_images_are_checked_once(textures, tmp_path, monkeypatch):
    checked = []
    monkeypatch.setattr(tuned, "check_images", lambda split, corrupt, progress: checked.append(split))
    reproduce(tmp_path / "out", textures, SEARCH)
    assert len(checked) == 3  # splits


@pytest.mark.usefixtures("tiny")
def test_other_seeds_use_the_rates_that_the_first_selected(textures, tmp_path):
    (record,) = reproduce(tmp_path / "out", textures, SEARCH, "--seeds", "3", "4")
    first, second = record.results
    assert (first.seed, second.seed, record.config["search_seed"]) == (3, 4, 3)
    assert (len(first.trials), len(second.trials)) == (4, 1)
    for name in ("learning_rate", "head_learning_rate"):
        assert second.chosen[name] == first.chosen[name]
    alone = "learning_rates: [{learning_rate}], head_learning_rates: [{head_learning_rate}]".format(**first.chosen)
    (expected,) = reproduce(tmp_path / "alone", textures, alone, "--seeds", "4")
    assert numbers(expected) == numbers(record)[1:]
