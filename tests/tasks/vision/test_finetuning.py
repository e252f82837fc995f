"""End-to-end training: what it learns, that a stop does not change it, and what it writes."""

from __future__ import annotations

import csv
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from powerpool.errors import ArgumentError, RecordError
from powerpool.integrations.backbones import Backbone
from powerpool.runs.folder import load_state, save_state
from powerpool.tasks.vision import loop
from powerpool.tasks.vision.augmentation import RandomCrops, mix_seed
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.finetuning import FineTuned, fine_tune
from powerpool.tasks.vision.loop import CHECKPOINT, FineTuningError, Loop, Progress
from powerpool.tasks.vision.model import ImageClassifier
from tests.tasks.vision import fine_tuning_samples
from tests.tasks.vision.fine_tuning_samples import images, network, small_config, train, with_training

CONFIG = small_config(jitter=0.2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> FineTuned:
    """A training that was not stopped."""
    return train(tmp_path_factory.mktemp("whole") / "run", CONFIG)


def assert_same(one: FineTuned, two: FineTuned) -> None:
    assert one.curves == two.curves
    assert one.epoch == two.epoch
    ours, theirs = one.model.state_dict(), two.model.state_dict()
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


def progress(folder: Path) -> Progress:
    return Progress(**load_state(folder / CHECKPOINT)["progress"])


def act_in(monkeypatch, epoch: int, position: int, act) -> None:
    """Call ``act`` in a step, before it is done."""
    original = Loop.train_batch

    def step(self, batch):
        if (self.progress.epoch, self.progress.position) == (epoch, position):
            act()
        original(self, batch)

    monkeypatch.setattr(Loop, "train_batch", step)


class Killed(BaseException):
    pass


def kill() -> None:
    raise Killed


def stop_at(folder: Path, monkeypatch, epoch: int, position: int) -> None:
    """Train up to a batch, with a checkpoint after every batch."""
    with monkeypatch.context() as patched:
        act_in(patched, epoch, position, kill)
        with pytest.raises(Killed):
            train(folder, CONFIG, checkpoint_minutes=0.0)


# ---- a stopped training is resumed -----------------------------------------------------------------------------------


def test_the_seed_determines_the_training(tmp_path, whole):
    torch.manual_seed(random.randrange(1000))  # the random state of the process has no effect
    state = torch.get_rng_state(), random.getstate()
    assert_same(whole, train(tmp_path / "run", CONFIG))
    assert torch.equal(torch.get_rng_state(), state[0])  # and does not change
    assert random.getstate() == state[1]
    other = train(tmp_path / "other", small_config(seed=1, jitter=0.2, epochs=1))
    assert other.curves["train_loss"][0] != whole.curves["train_loss"][0]


@pytest.mark.parametrize("epoch, position", [(0, 2), (1, 0), (2, 1)])
def test_a_training_that_was_stopped_anywhere_reaches_the_same_weights(tmp_path, monkeypatch, whole, epoch, position):
    stop_at(tmp_path / "run", monkeypatch, epoch, position)
    done = []
    original = Loop.train_batch
    monkeypatch.setattr(
        Loop, "train_batch", lambda self, batch: (done.append(self.progress.step), original(self, batch))[0]
    )
    assert_same(whole, train(tmp_path / "run", CONFIG, network()))
    assert done == list(range(4 * epoch + position, 12))  # no batch is done twice


def test_a_training_that_was_killed_reaches_the_same_weights(tmp_path, whole):
    folder = tmp_path / "run"
    command = [sys.executable, fine_tuning_samples.__file__, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as child:
        deadline = time.monotonic() + 300
        while not (folder / CHECKPOINT).exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.SystemRandom().uniform(0, 0.1))
        child.send_signal(signal.SIGKILL)
        printed = child.stderr.read().decode()
    assert progress(folder).step > 0, printed
    assert_same(whole, train(folder, CONFIG))


def test_more_epochs_continue_a_finished_training(tmp_path, whole):
    short = train(tmp_path / "run", with_training(CONFIG, epochs=2))
    assert short.curves["train_loss"] == whole.curves["train_loss"][:2]
    assert_same(whole, train(tmp_path / "run", CONFIG))


def test_a_finished_training_is_loaded(tmp_path, monkeypatch, whole):
    train(tmp_path / "run", CONFIG)
    monkeypatch.setattr(Loop, "run", None)
    again = train(tmp_path / "run", CONFIG)
    assert_same(whole, again)
    assert again.seconds > 0


def test_an_interrupt_finishes_the_batch_and_saves_it(tmp_path, monkeypatch, whole, capsys):
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        act_in(patched, 1, 1, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt, match=r"1 of 3 epochs and 2 batches"):
            train(tmp_path / "run", CONFIG)
    assert signal.getsignal(signal.SIGINT) is handler
    assert "Stopping after this batch" in capsys.readouterr().err
    assert progress(tmp_path / "run").step == 6
    assert_same(whole, train(tmp_path / "run", CONFIG))


def test_a_second_interrupt_stops_at_once(tmp_path, monkeypatch):
    handler = signal.getsignal(signal.SIGINT)

    def interrupt_twice() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    act_in(monkeypatch, 0, 1, interrupt_twice)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", CONFIG)
    assert signal.getsignal(signal.SIGINT) is handler
    assert not (tmp_path / "run" / CHECKPOINT).exists()


def test_an_interrupt_in_validation_finishes_the_epoch(tmp_path, monkeypatch):
    original = Loop.validate

    def interrupted(self, split):
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, split)

    monkeypatch.setattr(Loop, "validate", interrupted)
    with pytest.raises(KeyboardInterrupt, match="1 of 3 epochs"):
        train(tmp_path / "run", CONFIG)
    assert (progress(tmp_path / "run").epoch, progress(tmp_path / "run").position) == (1, 0)


def test_more_processes_than_images_in_the_last_batch_are_refused(tmp_path, monkeypatch):
    stop_at(tmp_path / "run", monkeypatch, 0, 3)  # for one process 13 images are batches of 4, 4, 4 and 1
    with pytest.raises(FineTuningError, match=r"1 image\(s\), too few for 2 processes"):
        train(tmp_path / "run", with_training(CONFIG, devices=2))


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_checkpoints_of_another_training_are_refused(tmp_path):
    train(tmp_path / "run", with_training(CONFIG, epochs=1))
    others = (with_training(CONFIG, learning_rate=0.01), None), (small_config(seed=5, jitter=0.2), None)
    for config, model in (*others, (CONFIG, network("FOP"))):
        with pytest.raises(FineTuningError, match="other settings"):
            train(tmp_path / "run", config, model)
    save_state(tmp_path / "run" / CHECKPOINT, {"weights": torch.zeros(2)})
    with pytest.raises(RecordError, match=CHECKPOINT):
        train(tmp_path / "run", CONFIG)


# ---- what is learned -------------------------------------------------------------------------------------------------


def test_a_separable_data_set_is_learned(tmp_path):
    config = small_config(epochs=12, decay_every=100, smallest_crop=0.7)
    found = train(tmp_path / "run", config, network("SOP+AsinhE", dropout=0.0))
    losses = found.curves["train_loss"]
    assert losses[0] == pytest.approx(1.0986, abs=0.35)
    assert losses[-1] < losses[0] / 2
    assert found.curves["validation_value"][found.epoch - 1] == 100.0
    assert found.curves["validation_value"][found.converged - 1] >= 99.5


@pytest.mark.parametrize("method", ["Baseline", "FOP", "SOP+SC+SpecMaxExpF"])
def test_all_weights_that_are_used_are_trained(tmp_path, method):
    body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.ReLU())
    head = nn.Sequential(nn.Conv2d(4, 7, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = ImageClassifier(Backbone("mine", body, 4, head=head, head_channels=7), PoolConfig(method), 3)
    before = {name: value.clone() for name, value in model.named_parameters()}
    assert train(tmp_path / "run", small_config(epochs=1), model).model is model
    for name, value in model.named_parameters():
        is_unused = name.startswith("backbone.head.") and method != "Baseline"
        assert torch.equal(value, before[name]) is is_unused, name


@pytest.mark.parametrize("name, class_weights", [("rmsprop", "equal"), ("adamw", "balanced")])
def test_the_optimizer_uses_the_mean_loss_of_a_batch_with_two_rates_that_fall(
    tmp_path, name, class_weights, monkeypatch
):
    """Two epochs by hand, from the crops of the data set; the network gets two images of a batch at a time."""
    monkeypatch.setattr(loop, "PIXELS_ON_CPU", 2 * 2 * 16 * 16)
    rates = {"decay_every": 1, "decay_factor": 0.5, "smoothing": 0.9, "weight_decay": 0.01}
    config = small_config(epochs=2, batch_size=5, flip=False, optimizer=name, class_weights=class_weights, **rates)
    found = train(tmp_path / "run", config, network(dropout=0.0))
    model, split = network(dropout=0.0).eval(), images(tmp_path / "images" / "train", 13)
    groups = [
        {"params": [*model.backbone.parameters()], "lr": 1e-3},
        {"params": [*model.classifier.parameters()], "lr": 1e-2},
    ]
    weights = torch.ones(3) if class_weights == "equal" else torch.tensor([13 / 15, 13 / 12, 13 / 12])
    adamw, rmsprop = torch.optim.AdamW(groups, weight_decay=0.01), torch.optim.RMSprop(groups, 0.01, 0.9, 1e-8, 0.01)
    optimizer, losses = adamw if name == "adamw" else rmsprop, []
    for epoch in range(2):
        data, total = RandomCrops(split, config, epoch), 0.0
        order = torch.randperm(13, generator=torch.Generator().manual_seed(mix_seed(0, epoch)))
        for part in (order[:5], order[5:10], order[10:]):
            crops = torch.stack([data[int(number)]["images"] for number in part]).permute(0, 1, 4, 2, 3)
            own = -model(crops).log_softmax(1)[torch.arange(len(part)), split.targets[part]]
            loss = (weights[split.targets[part]] * own).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(part)
        losses.append(total / 13)
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    assert found.curves["train_loss"] == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("trained", [False, True])
def test_batch_norm_statistics_are_trained_only_on_request(tmp_path, trained):
    model = network()
    norm = model.backbone.body[1]
    mean, weight = norm.running_mean.clone(), norm.weight.detach().clone()
    train(tmp_path / "run", small_config(epochs=1, batch_norm=trained), model)
    assert torch.equal(norm.running_mean, mean) is not trained
    assert not torch.equal(norm.weight, weight)


@pytest.mark.parametrize(
    "values, losses, expected",
    [
        ([0.5, 0.75, 0.5], [1.0, 1.0, 0.5], 2),
        ([0.5, 0.5, 0.5], [1.0, 0.5, 0.7], 2),  # of equal ones the lowest loss
        ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], 1),  # of equal ones the first
    ],
)
def test_the_epoch_with_the_best_validation_is_selected(tmp_path, monkeypatch, values, losses, expected):
    found = iter(zip(losses, values, strict=True))
    monkeypatch.setattr(Loop, "validate", lambda self, split: next(found))
    result = train(tmp_path / "run", CONFIG)
    assert result.epoch == expected
    assert (result.validation.value, result.validation.loss) == (values[expected - 1], losses[expected - 1])
    last = load_state(tmp_path / "run" / CHECKPOINT)["model"]
    assert torch.equal(result.model.classifier.bias, last["classifier.bias"]) is (expected == 3)


def test_a_training_that_no_longer_improves_stops_early(tmp_path, monkeypatch, capfd):
    values = [50.0, 75.0, 50.0, 75.0, 80.0, 90.0, 10.0, 10.0]
    monkeypatch.setattr(Loop, "validate", lambda self, split: (1.0, values[self.progress.epoch]))
    config = with_training(CONFIG, epochs=8, patience=2)
    with monkeypatch.context() as patched:
        act_in(patched, 3, 1, kill)  # in the last epoch
        with pytest.raises(Killed):
            train(tmp_path / "run", config)
    found = train(tmp_path / "run", config, show=True)
    assert (found.epoch, found.curves["validation_value"]) == (2, values[:4])
    assert "Stopped early: no epoch since 2" in capfd.readouterr().err
    monkeypatch.setattr(Loop, "run", None)
    assert_same(found, train(tmp_path / "run", config))  # it is finished


def test_more_patience_continues_a_training_that_stopped_early(tmp_path, monkeypatch):
    values = [50.0, 75.0, 50.0, 75.0, 80.0, 90.0]
    monkeypatch.setattr(Loop, "validate", lambda self, split: (1.0, values[self.progress.epoch]))
    short = train(tmp_path / "run", with_training(CONFIG, epochs=6, patience=1))
    assert (short.epoch, len(short.curves["train_loss"])) == (2, 3)
    longer = train(tmp_path / "run", with_training(CONFIG, epochs=6, patience=3))
    assert (longer.epoch, longer.curves["validation_value"]) == (6, values)
    assert_same(longer, train(tmp_path / "other", with_training(CONFIG, epochs=6)))


def test_validation_is_that_of_the_model_on_fixed_crops(whole, tmp_path):
    split = images(tmp_path / "validation", 7, seed=1)
    crops = torch.stack([CONFIG.crops(split.read(number)) for number in range(7)])
    with torch.no_grad():
        logits = whole.model(crops)
    right = float((logits.argmax(1) == split.targets).double().mean())
    loss = float(-logits.log_softmax(1)[torch.arange(7), split.targets].mean())
    assert whole.validation.value == pytest.approx(100 * right)
    assert whole.validation.loss == pytest.approx(loss, rel=1e-4)
    assert not whole.model.training


def test_without_validation_the_last_epoch_is_used(tmp_path, whole):
    split = images(tmp_path / "images", 13)
    found = fine_tune(CONFIG, network(), split, None, tmp_path / "run", show=False)
    assert (found.epoch, found.converged, found.validation) == (3, None, None)
    assert found.curves == {"train_loss": whole.curves["train_loss"]}


def test_a_loss_that_is_not_finite_is_an_error(tmp_path):
    model = network()
    with torch.no_grad():
        model.classifier.bias[0] = float("inf")
    with pytest.raises(FineTuningError, match=r"nan in step 1 of epoch 1.*0\.001"):
        train(tmp_path / "run", CONFIG, model)
    assert not (tmp_path / "run" / CHECKPOINT).exists()


def test_training_in_bfloat16_is_close(tmp_path, whole):
    found = train(tmp_path / "run", with_training(CONFIG, precision="bf16-mixed"))
    ours, theirs = found.curves["train_loss"], whole.curves["train_loss"]
    assert ours[0] == pytest.approx(theirs[0], rel=0.02)
    assert ours[0] != theirs[0]
    assert ours[2] < ours[0]


# ---- what is written and printed -------------------------------------------------------------------------------------


def test_all_files_are_in_the_folder_and_the_log_is_complete_after_a_stop(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loop, "LOG_EVERY", 3)
    config = with_training(CONFIG, epochs=2)
    train(tmp_path / "one" / "run", config, show=True)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert [line.split(":")[0] for line in printed.err.splitlines()] == ["epoch 1 of 2", "epoch 2 of 2"]
    with monkeypatch.context() as patched:
        act_in(patched, 1, 2, kill)
        with pytest.raises(Killed):
            train(tmp_path / "two" / "run", config, checkpoint_minutes=0.0)
    train(tmp_path / "two" / "run", config)
    assert capfd.readouterr() == ("", "")
    logs = [
        list(csv.DictReader((tmp_path / name / "run/logs/metrics.csv").read_text().splitlines()))
        for name in ("one", "two")
    ]
    assert logs[0] == logs[1]
    assert [row["step"] for row in logs[0] if row["loss"]] == ["2", "5"]
    assert [row["epoch"] for row in logs[0] if row["validation_value"]] == ["1", "2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]
    files = {str(path.relative_to(tmp_path / "two" / "run")) for path in (tmp_path / "two" / "run").rglob("*.*")}
    assert files == {CHECKPOINT, "logs/metrics.csv"}


@pytest.mark.parametrize(
    "config, message",
    [
        (with_training(CONFIG, logger="tensorboard"), "tensorboard"),
        (with_training(CONFIG, devices=5), "batch_size must be at least the number of processes, 5"),
        (replace(CONFIG, accelerator="gpu"), "got gpu"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_written(tmp_path, monkeypatch, config, message):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises((FineTuningError, ArgumentError), match=message):
        train(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_more_devices_than_gpus_are_refused(tmp_path, monkeypatch):
    model, split = network(), images(tmp_path / "images", 3)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config = replace(with_training(CONFIG, devices=2), accelerator="gpu")
    with pytest.raises(ArgumentError, match=r"number of GPUs, 1 \(got 2\)"):
        fine_tune(config, model, split, None, tmp_path / "run")
