"""Several processes train as one: those of torchrun and those of the command; only the first writes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from powerpool.cli.main import main
from powerpool.errors import ArgumentError
from powerpool.runs.folder import RECORD, load_state
from powerpool.runs.record import RunRecord
from powerpool.tasks.vision.config import FineTuningConfig, VisionConfig
from powerpool.tasks.vision.finetuning import is_first, is_launched, require_joint_training, with_launched_sizes
from powerpool.tasks.vision.loop import CHECKPOINT, DivergedError, FineTuningError
from tests.tasks.vision import fine_tuning_samples
from tests.tasks.vision.fine_tuning_samples import network, pack, small_config, train, with_training

PATIENCE = 300
END_TO_END = VisionConfig(mode="end-to-end")


@pytest.fixture
def torchrun(monkeypatch):
    """The variables of the second of two processes on the first of three machines."""
    names = {"RANK": 1, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2, "WORLD_SIZE": 6, "TORCHELASTIC_RUN_ID": "none"}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))


# ---- which process this is -------------------------------------------------------------------------------------------


def test_without_a_launcher_this_is_the_only_process(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert not is_launched()
    assert is_first(END_TO_END)
    assert with_launched_sizes(END_TO_END) is END_TO_END
    require_joint_training(replace(END_TO_END, mode="frozen"), overwrite=True)


@pytest.mark.parametrize("rank, first", [(None, True), ("0", True), ("1", False)])
def test_of_several_machines_the_first_writes(monkeypatch, rank, first):
    monkeypatch.setenv("NODE_RANK", rank or "0")
    assert is_first(with_training(END_TO_END, nodes=2)) is first
    assert is_first(END_TO_END)


def test_torchrun_sets_the_number_of_processes(torchrun, monkeypatch):
    assert not is_first(END_TO_END)
    training = with_launched_sizes(END_TO_END).training
    assert (training.devices, training.nodes) == (2, 3)
    assert with_launched_sizes(with_training(END_TO_END, devices=2)).training.devices == 2
    with pytest.raises(ArgumentError, match=r"training\.devices is 4.* 2"):
        with_launched_sizes(with_training(END_TO_END, devices=4))
    monkeypatch.setenv("RANK", "0")
    assert is_first(END_TO_END)


@pytest.mark.parametrize(
    "config, overwrite, message",
    [
        (VisionConfig(), False, r"end-to-end \(got frozen\)"),
        (END_TO_END, True, "--overwrite"),
        (
            replace(END_TO_END, training=FineTuningConfig(warm_start=True, validation="train")),
            False,
            r"training\.warm_start",
        ),
    ],
)
def test_what_several_processes_cannot_do_is_refused(torchrun, config, overwrite, message):
    with pytest.raises(ArgumentError, match=message):
        require_joint_training(config, overwrite=overwrite)


def test_the_command_refuses_before_it_reads_anything(torchrun, tmp_path, capsys):
    assert main(["train", "vision", "--data", str(tmp_path / "none"), "--out", str(tmp_path / "run")]) == 2
    assert "torchrun" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


# ---- training together -----------------------------------------------------------------------------------------------


def test_two_processes_of_torchrun_train_on_shards_as_one_on_files_and_the_first_alone_writes(tmp_path):
    config = small_config(epochs=2, batch_size=5, jitter=0.2)
    one = train(tmp_path / "one", config, network(dropout=0.0))  # which also writes the images
    for split in ("train", "validation"):
        pack(tmp_path / "images" / split)
    (tmp_path / "notes").mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += [fine_tuning_samples.__file__, str(tmp_path / "two"), str(tmp_path / "notes")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert "distributed_backend" not in done.stderr
    progress = load_state(tmp_path / "two" / CHECKPOINT)["progress"]
    for name, values in one.curves.items():
        assert progress[name] == pytest.approx(values, rel=1e-4), name
    best = progress["best"]["weights"]
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(best[name], value, rtol=1e-3, atol=1e-4)
    wrote = [(tmp_path / "notes" / f"rank-{rank}").read_text().splitlines() for rank in (0, 1)]
    inside = [[line for line in lines if str(tmp_path / "two") in line] for lines in wrote]
    assert any(CHECKPOINT in line for line in inside[0])
    assert any("metrics.csv" in line for line in inside[0])
    assert inside[1] == []


def kill_one_after(checkpoint: Path, others: set[int]) -> None:
    """Kill one of the processes once there is a checkpoint."""
    end = time.monotonic() + PATIENCE
    while not checkpoint.exists() and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(max(children() - others), signal.SIGKILL)


def children() -> set[int]:
    """The child processes; other tests may keep some, such as a cluster."""
    return {process.pid for process in multiprocessing.active_children()}


def test_the_death_of_one_process_ends_the_others_and_the_training_is_resumed(tmp_path):
    config = small_config(epochs=500, batch_size=5)
    others = children()
    killer = threading.Thread(target=kill_one_after, args=(tmp_path / "run" / CHECKPOINT, others), daemon=True)
    killer.start()
    with pytest.raises(FineTuningError, match=r"2 processes died \(SIGKILL\).*memory"):
        train(tmp_path / "run", with_training(config, devices=2), network(dropout=0.0), checkpoint_minutes=0.0)
    assert children() <= others
    progress = load_state(tmp_path / "run" / CHECKPOINT)["progress"]
    done = progress["epoch"]
    further = with_training(config, epochs=done + 1)
    resumed = train(tmp_path / "run", further, network(dropout=0.0))
    assert len(resumed.curves["train_loss"]) == done + 1
    assert resumed.curves["train_loss"][:done] == progress["train_loss"][:done]


@pytest.mark.stress  # two processes import everything again
def test_an_error_in_one_of_two_processes_is_raised(tmp_path):
    model = network()
    with torch.no_grad():
        model.classifier.bias[0] = float("inf")
    with pytest.raises(DivergedError, match="nan in step 1"):  # a search goes on with other rates
        train(tmp_path / "run", small_config(devices=2), model)


@pytest.mark.stress
def test_two_processes_of_torchrun_select_and_continue_together(textures, tmp_path):
    """The command in both processes; a single process gets the same record up to rounding."""
    rates = ["--training.learning_rates", "0.0001", "0.001", "--training.search_epochs", "1", "--training.epochs", "3"]
    words = ["train", "vision", "--data", str(textures), "--mode", "end-to-end", "--crops.size", "32", *rates]
    words += ["--crops.count", "1", "--training.crops", "1", "--accelerator", "cpu", "--workers", "0", "--out"]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "powerpool"]
    subprocess.run([*launch, *words, str(tmp_path / "two")], check=True, timeout=PATIENCE)
    assert main([*words, str(tmp_path / "one")]) == 0
    one, two = (RunRecord.read(tmp_path / name / RECORD).results[0] for name in ("one", "two"))
    assert len(one.trials) == len(two.trials) == 2
    assert two.chosen["learning_rate"] == one.chosen["learning_rate"]
    assert len(two.curves["train_loss"]) == 3
