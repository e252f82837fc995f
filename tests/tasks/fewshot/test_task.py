"""Few-shot learning under the protocol: results, checkpoints, kill -9 and Ctrl-C, and the rows of reproduce."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import pytest

from powerpool.data import MissingDataError
from powerpool.errors import ArgumentError, RecordError
from powerpool.runs.config import read_recipe
from powerpool.runs.folder import load_state
from powerpool.tasks.base import Unit, run_chain
from powerpool.tasks.fewshot import task as module
from powerpool.tasks.fewshot import training as training_module
from powerpool.tasks.fewshot.config import FewShotConfig
from powerpool.tasks.fewshot.inference import run_test
from powerpool.tasks.fewshot.options import ReproduceOptions
from powerpool.tasks.fewshot.rows import make_row, with_pretraining
from powerpool.tasks.fewshot.task import MORE_SHOTS, ONE_SHOT, PRETRAINING, TASK
from powerpool.tasks.methods import FEWSHOT_METHODS
from tests.tasks.fewshot.samples import assert_same_weights, small_config, stripe_set


@pytest.fixture(scope="module")
def data():
    return stripe_set()


def fit(folder, data, watch=lambda *args: None, **changes):
    return TASK.fit(small_config(**changes), data, Unit(0), [], folder / "00-00", watch)


def test_a_result_holds_everything_that_a_record_needs(data):
    config, remarks = small_config(seed=3), []
    outcome = run_chain(
        TASK,
        config,
        data,
        0,
        ["2-way-1-shot", "3-way-1-shot"],
        watch=lambda what, done, total, remark="": remarks.append(remark) if remark else None,
    )
    two, three = outcome.results["2-way-1-shot"], outcome.results["3-way-1-shot"]
    assert (len(two.right), two.queries, three.queries, two.seed) == (6, 6, 9, 3)
    assert two.value == pytest.approx(100 * sum(two.right) / 36)
    assert two.chosen["episode"] in (2, 4, 6)
    assert two.curves["episode"] == (2, 4, 6)
    assert two.validation.value == max(two.curves["validation_value"])
    assert two.episodes_per_second > 6 / two.seconds  # seconds include validation
    assert two.spectrum is not None
    assert (two.curves, two.validation) == (three.curves, three.validation)
    again = run_test(outcome.models["3-way-1-shot"], data["test"], replace(config.test, way=3))
    assert again.scores.right == three.right
    assert [remark.split(":")[0] for remark in remarks] == [f"episode {number} of 6" for number in (2, 4, 6)]
    assert f"{two.curves['validation_value'][-1]:.2f}" in remarks[-1]


def test_a_finished_training_is_not_repeated(tmp_path, data):
    first, steps = fit(tmp_path, data), []
    again = fit(tmp_path, data, lambda *args: steps.append(args))
    assert steps == []
    assert_same_weights(first.network, again.network)
    assert again.curves == first.curves


def test_a_damaged_checkpoint_is_refused_by_name(tmp_path, data):
    (tmp_path / "00-00").write_bytes(b"PK\3\4 damaged")
    with pytest.raises(RecordError, match=r"00-00.*Delete"):
        fit(tmp_path, data)


@pytest.mark.parametrize("at", [1, 4])  # a validation follows every second episode
def test_ctrl_c_ends_after_the_episode_and_the_training_is_resumed_bit_for_bit(tmp_path, data, at):
    def interrupt(what, done, total, remark=""):
        if done == at:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=f"{at + 1} of 6"):
        fit(tmp_path, data, interrupt)
    assert load_state(tmp_path / "00-00")["done"] == at + 1
    done = []
    resumed = fit(tmp_path, data, lambda what, number, *args: done.append(number))
    assert done == list(range(at + 2, 7))
    assert_same_weights(fit(tmp_path / "whole", data).network, resumed.network)


@pytest.mark.parametrize("where, call", [("run_episodes", 2), ("compare_queries", 14), ("recompute_batch_norm", 2)])
def test_an_interrupt_inside_an_episode_leaves_a_checkpoint_that_fits(tmp_path, data, monkeypatch, where, call):
    real, calls = getattr(training_module, where), []

    def interrupted(*args, **kwargs):
        calls.append(where)
        if len(calls) == call:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(training_module, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(tmp_path, data)
    resumed, whole = fit(tmp_path, data), fit(tmp_path / "whole", data)
    assert_same_weights(whole.network, resumed.network)
    assert whole.curves == resumed.curves


PROGRAM = """
    import sys, time
    from pathlib import Path
    from powerpool.tasks.base import Unit
    from powerpool.tasks.fewshot import task
    from tests.tasks.fewshot.samples import small_config, stripe_set

    def watch(what, done, total, remark=""):
        print(done, flush=True)
        if done == 5:
            time.sleep(60)  # to be killed here

    task.CHECKPOINT_SECONDS = 0.0
    task.TASK.fit(small_config(), stripe_set(), Unit(0), [], Path(sys.argv[1], "00-00"), watch)
"""


def test_a_killed_process_is_resumed_bit_for_bit(tmp_path, data):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        for line in process.stdout:
            if line.strip() == "5":
                process.kill()
                break
    assert process.returncode == -signal.SIGKILL
    done = []
    resumed = fit(tmp_path, data, lambda what, number, *args: done.append(number))
    assert done == [6]
    assert_same_weights(fit(tmp_path / "whole", data).network, resumed.network)


def test_settings_hold_no_places(data):
    settings = TASK.settings(small_config(data_root="/somewhere", data="/here/stripes"), data)
    assert (settings["data"], settings["data_digest"]) == ("stripes", "digest 0")
    assert settings["images"] == {"train": 48, "validation": 48, "test": 48}
    assert not {"data_root", "download"} & settings.keys()


def test_settings_without_effect_and_skipped_images_are_remarked(data):
    (remark,) = TASK.remarks(small_config("SoSN(x)", model={"sigme_eta": 7.0}), data)
    assert "model.sigme_eta" in remark
    (remark,) = TASK.remarks(small_config("PrototypicalNet", model={"temperature": 7.0, "padding": True}), data)
    assert "model.temperature" in remark
    assert "model.padding" in remark
    assert TASK.remarks(small_config("NCM(x+L)", model={"temperature": 7.0}), data) == []
    assert TASK.data_remarks(data) == []
    (remark,) = TASK.data_remarks(replace(data, skipped=("a.png", "b.png")))
    assert "2 images" in remark


# ---- rows of reproduce -----------------------------------------------------------------------------------------------


@pytest.fixture
def loads(monkeypatch, data):
    """Loads stripes instead of any data set that is named."""
    monkeypatch.setattr(TASK, "prepare", lambda config: config)
    monkeypatch.setattr(TASK, "load", lambda config, watch=None: replace(data, name=config.data))


SMALL = (
    "size: 16\nchannels: 1\nmodel: {hidden: 8}\ntest: {way: 2, count: 6}\n"
    "training: {episodes: 4, queries: 2, validate_every: 2, validation_episodes: 3, settling_episodes: 1}\n"
)


@pytest.fixture
def small(tmp_path):
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return str(file)


def plan(**options):
    return TASK.plan(ReproduceOptions(**options), lambda *args: None)


@pytest.mark.usefixtures("loads")
def test_there_is_a_row_for_each_method_and_number_of_support_images(small):
    rows = plan(recipe=small, shots=[1, 2], ways=[2, 4], seeds=[5, 3])
    assert [(row.method, row.configs[0].test.shot) for row in rows] == [
        *((method, 1) for method in ONE_SHOT),
        *((method, 2) for method in MORE_SHOTS),
    ]
    assert rows[-1].protocols == ("2-way-2-shot", "4-way-2-shot")
    for row in rows:
        assert [config.seed for config in row.configs] == [5, 3]
        assert [row.chain(place) for place in range(2)] == [0, 0]  # a seed has a folder of its own
        assert {config.training.way for config in row.configs} == {2}
    assert set(ONE_SHOT + MORE_SHOTS + PRETRAINING) <= FEWSHOT_METHODS.keys()


def test_problems_of_open_mic_are_data_sets_of_their_own(data):
    options = ReproduceOptions(data=["open_mic"], problems=["p1->p2", "shn"])
    recipes = [options.read_config("open_mic", problem) for problem in options.chosen_problems]
    museum = replace(data, name="open_mic")
    rows = [make_row(options, small_config(problem=recipe.problem), museum) for recipe in recipes]
    assert [row.data_name for row in rows] == ["open_mic-p1-to-p2", "open_mic-shn"]
    assert [row.settings["data"] for row in rows] == ["open_mic-p1-to-p2", "open_mic-shn"]


@pytest.mark.usefixtures("loads")
def test_a_study_has_each_method_on_the_source_and_with_and_without_pretraining(small):
    rows = plan(recipe=small, study="pretraining", data=["target"], source="source")
    assert [(row.data_name, row.method) for row in rows] == [
        ("source", "SoSN(x+L)+SigmE"),
        ("target", "SoSN(x+L)+SigmE"),
        ("target", "SoSN(x+L)+Pretr+SigmE"),
        ("source", "SoSN(x+L)+SpecMaxExpF"),
        ("target", "SoSN(x+L)+SpecMaxExpF"),
        ("target", "SoSN(x+L)+Pretr+SpecMaxExpF"),
    ]
    first, without, pretrained = rows[:3]
    assert pretrained.source is first
    assert pretrained.configs == without.configs
    assert pretrained.settings == {
        "data": "target",
        "pretrained": "source 2-way-1-shot",
        "pretraining": {"data": "source", "data_digest": "digest 0", "episodes": 1000},
    }
    assert with_pretraining(replace(without, method="RelationNet"), first).method == "RelationNet+Pretr"
    with pytest.raises(ArgumentError, match="same"):
        plan(recipe=small, study="pretraining", data=["same"], source="same")


def test_a_missing_data_set_of_a_study_is_named_with_its_option(tmp_path, monkeypatch):
    monkeypatch.setenv("POWERPOOL_DATA", str(tmp_path))
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(MissingDataError, match=r"--source.*miniimagenet100"):
        plan(study="pretraining", download=False)
    monkeypatch.setattr(TASK, "load", lambda config, watch: SimpleNamespace(name=config.data))
    with pytest.raises(MissingDataError, match=r"--data.*flower102"):
        plan(study="pretraining", download=False, source=str(tmp_path))


@pytest.mark.usefixtures("loads")
def test_impossible_rows_are_refused_before_any_training(small, tmp_path):
    with pytest.raises(ValueError, match="50"):
        plan(recipe=small, ways=[2, 50])
    drawn = tmp_path / "drawn.yaml"
    drawn.write_text(f"{SMALL}train_classes: 5\nvalidation_classes: 3\nclass_order: drawn\n")
    assert read_recipe(drawn, FewShotConfig).cut is not None
    with pytest.raises(ArgumentError, match="--seeds"):
        plan(recipe=str(drawn), seeds=[0, 1])
    started = tmp_path / "started.yaml"
    started.write_text(f"{SMALL}pretrained: runs/first\n")
    with pytest.raises(ArgumentError, match="runs/first"):
        plan(recipe=str(started))
