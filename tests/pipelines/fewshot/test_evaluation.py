"""A training and its test as a unit of work: results, checkpoints, what is refused, and kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest
import torch

from powerpool.errors import RecordError
from powerpool.files import read_json
from powerpool.runs.checkpoint import load_state
from powerpool.tasks.fewshot import evaluation
from powerpool.tasks.fewshot import training as module
from powerpool.tasks.fewshot.config import EpisodeConfig
from powerpool.tasks.fewshot.evaluation import (
    CHECKPOINT,
    assess_again,
    make_training,
    read_set,
    train,
    train_and_test,
)
from powerpool.tasks.fewshot.runs import TrainedModel
from tests.pipelines.fewshot.samples import small_config, stripe_set, write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("own") / "bars")


def own_config(folder, method="SoSN(x)+SigmE", **changes):
    cut = {"train_classes": 6, "validation_classes": 3, "class_order": "drawn"}
    return small_config(method, data=str(folder), **cut, **changes)


def test_the_result_says_all_that_a_record_needs(folder, tmp_path):
    config = own_config(folder)
    data = read_set(config)
    result = train_and_test(config, tmp_path, data.digest)
    right = [int(one) for one in result["right_by_episode"].split()]
    assert (len(right), result["count"], result["queries"]) == (6, 6, 6)
    assert result["value"] == pytest.approx(100 * sum(right) / 36)
    assert result["chosen"]["episode"] in (2, 4, 6)
    assert result["curves"]["episode"] == [2, 4, 6]
    assert result["validation"]["value"] == max(result["curves"]["validation_value"])
    assert result["episodes_per_second"] > 6 / result["seconds"]  # which has validation in it, too
    assert (tmp_path / "model.pt").exists()
    assert read_json(tmp_path / "data.json") == {"name": data.name, "digest": data.digest}


def test_the_same_network_can_be_asked_again_with_more_classes(folder, tmp_path):
    config = own_config(folder)
    digest = read_set(config).digest
    result = train_and_test(config, tmp_path, digest)
    again = assess_again(config, tmp_path, digest, result, config.test)
    assert again["right_by_episode"] == result["right_by_episode"]
    more = assess_again(config, tmp_path, digest, result, EpisodeConfig(way=3, count=4, queries=2))
    assert (more["queries"], more["count"], more["chosen"]) == (6, 4, result["chosen"])


def test_other_pictures_than_those_of_the_command_are_refused(folder, tmp_path):
    config = own_config(folder)
    with pytest.raises(RecordError, match=r"bars on .* is not the data that the command has read: .*, not other\."):
        train_and_test(config, tmp_path, "other")
    assert not list(tmp_path.iterdir())
    result = train_and_test(config, tmp_path, read_set(config).digest)
    with pytest.raises(RecordError, match="not the data that the command has read"):
        assess_again(config, tmp_path, "other", result, config.test)


def test_it_is_asked_again_on_the_device_of_the_training(folder, tmp_path, monkeypatch):
    config = own_config(folder)
    digest = read_set(config).digest
    result, asked = train_and_test(config, tmp_path, digest), []
    monkeypatch.setattr(evaluation, "assess", lambda model, bank, episodes, device: asked.append(device) or {})
    assess_again(
        replace(config, training=replace(config.training, device="cuda:1")), tmp_path, digest, result, config.test
    )
    assert asked == ["cuda:1"]


def test_a_training_that_is_done_is_read_and_not_repeated(tmp_path):
    config, data = small_config(), stripe_set()
    first = train(make_training(config, data), tmp_path)
    seen = []
    again = train(make_training(config, data), tmp_path, watch=seen.append)
    assert seen == []
    for name, value in first.network.state_dict().items():
        assert torch.equal(value, again.network.state_dict()[name])
    assert again.curves == first.curves


def test_another_training_in_the_same_folder_is_refused(tmp_path):
    train(make_training(small_config(), stripe_set()), tmp_path)
    for config, data in ((small_config(seed=1), stripe_set()), (small_config(), stripe_set(seed=1))):
        with pytest.raises(RecordError, match="of another training"):
            train(make_training(config, data), tmp_path)


def press_ctrl_c(at):
    def watch(training):
        if training.done == at:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


@pytest.mark.parametrize("at", [1, 3, 4])  # a validation is after every second
def test_an_interrupt_ends_the_episode_and_is_saved(tmp_path, at):
    config, data = small_config(), stripe_set()
    with pytest.raises(KeyboardInterrupt, match=f"Stopped after {at + 1} of 6 training episodes"):
        train(make_training(config, data), tmp_path, watch=press_ctrl_c(at))
    assert load_state(tmp_path / CHECKPOINT)["training"]["done"] == at + 1
    done = []
    resumed = train(make_training(config, data), tmp_path, watch=lambda training: done.append(training.done))
    assert done == list(range(at + 2, 7))
    assert_same_weights(train(make_training(config, data), tmp_path / "whole"), resumed)


@pytest.mark.parametrize("where", ["ask", "answer", "settling"])
def test_an_interrupt_in_the_middle_costs_what_was_done_since_the_last_checkpoint(tmp_path, monkeypatch, where):
    """As a second Ctrl-C does: whatever runs is broken off, and no state is saved that fits no episode."""
    config, data = small_config(), stripe_set()
    real, calls = getattr(module, where), []

    def broken_off(*args, **kwargs):
        calls.append(where)
        if len(calls) == {"ask": 2, "answer": 14, "settling": 2}[where]:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, where, broken_off)
        with pytest.raises(KeyboardInterrupt):
            train(make_training(config, data), tmp_path, minutes=0)
    resumed = train(make_training(config, data), tmp_path)
    whole = train(make_training(config, data), tmp_path / "whole")
    assert_same_weights(whole, resumed)
    assert whole.curves == resumed.curves


def assert_same_weights(one, two):
    for name, value in one.network.state_dict().items():
        assert torch.equal(value, two.network.state_dict()[name]), name


PROGRAM = """
    import sys, time
    from pathlib import Path
    from powerpool.tasks.fewshot import evaluation
    from tests.pipelines.fewshot.samples import small_config, stripe_set

    def watch(training):
        print(training.done, flush=True)
        if training.done == 5 and len(sys.argv) > 2:
            time.sleep(60)  # to be killed here

    evaluation.train(evaluation.make_training(small_config(), stripe_set()), Path(sys.argv[1]), minutes=0, watch=watch)
"""


def test_a_killed_process_goes_on_bit_for_bit(tmp_path):
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "killed")]
    killed = subprocess.Popen([*program, "wait"], stdout=subprocess.PIPE, text=True)
    for line in killed.stdout:
        if line.strip() == "5":
            os.kill(killed.pid, signal.SIGKILL)
            break
    killed.wait()
    killed.stdout.close()
    assert killed.returncode == -signal.SIGKILL
    said = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
    assert said == ["6"]  # what was done was not done again
    whole = train(make_training(small_config(), stripe_set()), tmp_path / "whole")
    found = TrainedModel.load(tmp_path / "killed" / "model.pt").network.state_dict()
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, found[name]), name


def test_checkpoints_come_by_the_clock(tmp_path, monkeypatch):
    times = iter(range(0, 10**6, 50))  # seconds; one checkpoint is due every 120
    monkeypatch.setattr(evaluation.time, "monotonic", lambda: next(times))
    saved = []
    real = evaluation.save_state
    monkeypatch.setattr(
        evaluation, "save_state", lambda path, state: saved.append(state["training"]["done"]) or real(path, state)
    )
    train(make_training(small_config(), stripe_set()), tmp_path)
    assert saved[-1] == 6
    assert 1 < len(saved) < 6
    assert time.monotonic() >= 0
