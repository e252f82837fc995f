"""End-to-end training: what it learns, that a stop does not change it, and what it writes."""

from __future__ import annotations

import csv
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from powerpool.data import Crops, ImageSplit
from powerpool.errors import ArgumentError, RecordError
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.tasks.vision import learner as module
from powerpool.tasks.vision.augmentation import RandomCrops, draw_batches, jitter, mixed, random_box
from powerpool.tasks.vision.finetuning import CHECKPOINT, FineTuned, fine_tune
from powerpool.tasks.vision.learner import Learner
from powerpool.tasks.vision.progress import FineTuningError, Plan
from tests.pipelines.vision import fine_tuning_samples
from tests.pipelines.vision.fine_tuning_samples import network, pictures, small_config, train, with_training

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


def stop_at(monkeypatch, epoch: int, position: int, act) -> None:
    """Call ``act`` in a step, before it is done."""
    original = Learner.training_step

    def step(self, batch, number):
        if (self.progress.epoch, self.progress.position) == (epoch, position):
            act()
        return original(self, batch, number)

    monkeypatch.setattr(Learner, "training_step", step)


# ---- it goes on as if it had not been stopped ------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_training_and_another_one_another(tmp_path, whole):
    torch.manual_seed(random.randrange(1000))  # what else the process draws does not matter
    state = torch.get_rng_state(), random.getstate()
    again = train(tmp_path / "run", CONFIG)
    assert_same(whole, again)
    assert torch.equal(torch.get_rng_state(), state[0])  # and is not touched
    assert random.getstate() == state[1]
    other = train(tmp_path / "other", small_config(seed=1, jitter=0.2))
    assert other.curves["train_loss"] != whole.curves["train_loss"]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("epoch, position", [(0, 2), (1, 0), (2, 1)])
def test_a_training_that_was_stopped_anywhere_comes_to_the_same_weights(tmp_path, monkeypatch, whole, epoch, position):
    def kill():
        raise Killed

    with monkeypatch.context() as patched:
        stop_at(patched, epoch, position, kill)
        with pytest.raises(Killed):
            train(tmp_path / "run", CONFIG, checkpoint_minutes=0.0)
    seen = []
    original = Learner.on_train_batch_end
    monkeypatch.setattr(
        Learner, "on_train_batch_end", lambda self, *_: (seen.append(self.progress.step), original(self))[0]
    )
    resumed = train(tmp_path / "run", CONFIG, network())
    assert_same(whole, resumed)
    # Batches that were done are not done again.
    assert seen == list(range(4 * epoch + position, 12))


def test_a_training_that_was_killed_comes_to_the_same_weights(tmp_path, whole):
    folder = tmp_path / "run"
    command = [sys.executable, fine_tuning_samples.__file__, str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as child:
        deadline = time.monotonic() + 300
        while not (folder / CHECKPOINT).exists() and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(random.SystemRandom().uniform(0, 0.1))
        child.send_signal(signal.SIGKILL)
        said = child.stderr.read().decode()
    progress = load_state(folder / CHECKPOINT)["powerpool"]["progress"]
    assert progress["step"] > 0, said
    assert_same(whole, train(folder, CONFIG))


def test_more_epochs_are_added_to_a_training_that_is_done(tmp_path, whole):
    short = train(tmp_path / "run", with_training(CONFIG, epochs=2))
    assert short.curves["train_loss"] == whole.curves["train_loss"][:2]
    assert_same(whole, train(tmp_path / "run", CONFIG))


def test_a_training_that_is_done_is_read(tmp_path, monkeypatch, whole):
    train(tmp_path / "run", CONFIG)
    monkeypatch.setattr(Learner, "training_step", None)
    again = train(tmp_path / "run", CONFIG)
    assert_same(whole, again)
    assert again.seconds > 0


def test_an_interrupt_leaves_a_checkpoint_and_says_how_to_go_on(tmp_path, monkeypatch, whole, capsys):
    handler = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        stop_at(patched, 1, 1, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt, match=r"Stopped after 1 of 3 epochs and 2 batches.*goes on from there"):
            train(tmp_path / "run", CONFIG)
    assert signal.getsignal(signal.SIGINT) is handler
    assert "Stopping after this batch, or the validation that runs" in capsys.readouterr().err
    assert load_state(tmp_path / "run" / CHECKPOINT)["powerpool"]["progress"]["step"] == 6
    assert_same(whole, train(tmp_path / "run", CONFIG))


def test_a_second_interrupt_does_not_wait(tmp_path, monkeypatch):
    handler = signal.getsignal(signal.SIGINT)
    stop_at(monkeypatch, 0, 1, lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt, match="There is no checkpoint yet: the same command begins anew"):
        train(tmp_path / "run", CONFIG)
    assert signal.getsignal(signal.SIGINT) is handler
    assert not (tmp_path / "run" / CHECKPOINT).exists()


def test_an_interrupt_in_validation_leaves_the_whole_epoch(tmp_path, monkeypatch):
    original = Learner.validation_step

    def step(self, batch, number):
        if number == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, batch, number)

    monkeypatch.setattr(Learner, "validation_step", step)
    with pytest.raises(KeyboardInterrupt, match=r"Stopped after 1 of 3 epochs, which are in.*goes on from there"):
        train(tmp_path / "run", CONFIG)


def test_a_termination_says_how_to_go_on(tmp_path, monkeypatch):
    # In the last batch of an epoch: it is Lightning that ends, in the validation.
    stop_at(monkeypatch, 0, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt, match=r"Stopped after 0 of 3 epochs and 3 batches.*goes on from there"):
        train(tmp_path / "run", CONFIG, checkpoint_minutes=0.0)


@pytest.mark.parametrize("others", [0, 1])
def test_a_process_stops_where_another_was_asked_to(tmp_path, others):
    split = pictures(tmp_path, 3)
    plan = Plan(CONFIG, split, None, tmp_path / "last.ckpt", {}, workers=0, show=False, minutes=1.0)
    learner = Learner(plan, network(), threading.Event())
    together = SimpleNamespace(reduce=lambda own, reduce_op: own + others)
    learner._trainer = SimpleNamespace(strategy=together, received_sigterm=False)
    assert learner._is_to_stop() is bool(others)


def stop_before_the_last_batch(folder: Path, monkeypatch) -> None:
    """13 pictures are batches of 4, 4, 4 and 1 to one process."""
    with monkeypatch.context() as patched:
        stop_at(patched, 0, 3, lambda: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train(folder, CONFIG, checkpoint_minutes=0.0)


def test_more_processes_than_the_batch_that_is_left_has_pictures_are_refused(tmp_path, monkeypatch, whole):
    stop_before_the_last_batch(tmp_path / "run", monkeypatch)
    with pytest.raises(FineTuningError, match=r"1 picture\(s\): too few for 2 processes. Go on with at most 1"):
        train(tmp_path / "run", with_training(CONFIG, devices=2))
    assert_same(whole, train(tmp_path / "run", CONFIG))


@pytest.mark.filterwarnings("ignore:Total length of .* across ranks is zero")  # all that Lightning says
def test_a_training_that_ends_before_its_last_epoch_has_no_result(tmp_path, monkeypatch):
    stop_before_the_last_batch(tmp_path / "run", monkeypatch)
    monkeypatch.setattr(module, "draw_batches", lambda *args: draw_batches(*args)[:-1])  # nothing is left
    with pytest.raises(FineTuningError, match=r"ended after 0 of 3 epochs, though nobody stopped it.*same command"):
        train(tmp_path / "run", CONFIG)


def test_a_training_beyond_the_epochs_that_are_asked_for_is_refused(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        stop_at(patched, 1, 1, lambda: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train(tmp_path / "run", CONFIG, checkpoint_minutes=0.0)
    with pytest.raises(FineTuningError, match=r"a training of 1 epochs and 1 batches, and training.epochs is 1"):
        train(tmp_path / "run", with_training(CONFIG, epochs=1))


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_with_code_in_it_is_refused(tmp_path):
    train(tmp_path / "run", with_training(CONFIG, epochs=1))
    file = tmp_path / "run" / CHECKPOINT
    state = torch.load(file, weights_only=True)  # plain values and tensors
    torch.save(state | {"more": Trap(tmp_path / "ran")}, file)
    with pytest.raises(RecordError, match="holds more than tensors and plain values"):
        train(tmp_path / "run", CONFIG)
    assert not (tmp_path / "ran").exists()


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_the_checkpoint_of_another_training_is_refused(tmp_path):
    train(tmp_path / "run", with_training(CONFIG, epochs=1))
    with pytest.raises(FineTuningError, match=r"another training: training.learning_rate is 0.001 there and 0.01 here"):
        train(tmp_path / "run", with_training(CONFIG, learning_rate=0.01))
    with pytest.raises(FineTuningError, match="seed is 0 there and 5 here"):
        train(tmp_path / "run", small_config(seed=5, jitter=0.2))
    with pytest.raises(FineTuningError, match=r"pool.method is 'SOP\+SigmE' there and 'FOP' here"):
        train(tmp_path / "run", CONFIG, network("FOP"))
    save_state(tmp_path / "run" / CHECKPOINT, {"weights": torch.zeros(2)})
    with pytest.raises(RecordError, match="no checkpoint of training end to end"):
        train(tmp_path / "run", CONFIG)


# ---- what is learnt --------------------------------------------------------------------------------------------------


def test_a_separable_set_is_learnt(tmp_path):
    config = small_config(epochs=12, decay_every=100, smallest_crop=0.7)
    found = train(tmp_path / "run", config, network("SOP+AsinhE", dropout=0.0))
    losses = found.curves["train_loss"]
    assert losses[0] == pytest.approx(1.0986, abs=0.35)
    assert losses[-1] < losses[0] / 2
    assert found.curves["validation_value"][found.epoch - 1] == 100.0
    assert found.curves["validation_value"][found.converged - 1] >= 99.5
    assert all(value < 99.5 for value in found.curves["validation_value"][: found.converged - 1])


@pytest.mark.parametrize("method", ["Baseline", "FOP", "SOP+SC+SpecMaxExpF"])
def test_gradients_reach_all_that_is_used(tmp_path, method):
    model = network(method)
    before = {name: value.clone() for name, value in model.named_parameters()}
    found = train(tmp_path / "run", small_config(epochs=1), model)
    assert found.model is model
    for name, value in model.named_parameters():
        assert not torch.equal(value, before[name]), name


def test_a_head_of_the_network_is_trained_once_where_it_is_the_pool_and_not_at_all_elsewhere(tmp_path):
    from powerpool.integrations.backbones import Backbone
    from powerpool.tasks.vision.config import PoolConfig
    from powerpool.tasks.vision.model import ImageClassifier

    def model(method):
        body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.ReLU())
        head = nn.Sequential(nn.Conv2d(4, 7, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return ImageClassifier(Backbone("mine", body, 4, head=head, head_channels=7), PoolConfig(method), 3)

    used, unused = model("Baseline"), model("SOP")
    before = used.backbone.head[0].weight.clone(), unused.backbone.head[0].weight.clone()
    for number, one in enumerate((used, unused)):
        train(tmp_path / f"run{number}", small_config(epochs=1), one)
    assert not torch.equal(used.backbone.head[0].weight, before[0])
    assert torch.equal(unused.backbone.head[0].weight, before[1])


def test_the_optimiser_is_rmsprop_on_the_mean_loss_of_a_batch_with_two_rates_that_fall(tmp_path):
    """Two epochs by hand, from the crops that the data set gives."""
    config = small_config(
        epochs=2, batch_size=5, decay_every=1, decay_factor=0.5, smoothing=0.9, weight_decay=0.01, flip=False
    )
    found = train(tmp_path / "run", config, network(dropout=0.0))
    model, split = (
        network(dropout=0.0).eval(),
        pictures(tmp_path / "pictures" / "train", 13),
    )  # no dropout: as in training
    head = [*model.classifier.parameters()]
    groups = [{"params": [*model.backbone.parameters()], "lr": 1e-3}, {"params": head, "lr": 1e-2}]
    optimizer = torch.optim.RMSprop(groups, alpha=0.9, weight_decay=0.01)
    losses = []
    for epoch in range(2):
        data, total = RandomCrops(split, config, epoch), 0.0
        order = torch.randperm(13, generator=torch.Generator().manual_seed(mixed(0, epoch)))
        for part in (order[:5], order[5:10], order[10:]):
            items = [data[int(number)] for number in part]
            crops = torch.stack([item["images"] for item in items]).permute(0, 1, 4, 2, 3)
            log_odds = model(crops).log_softmax(1)
            loss = -log_odds[torch.arange(len(part)), split.targets[part]].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(part)
        losses.append(total / 13)
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    assert found.curves["train_loss"] == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("trained", [False, True])
def test_statistics_of_batch_normalization_are_trained_only_if_asked(tmp_path, trained):
    model = network()
    norm = model.backbone.body[1]
    mean, weight = norm.running_mean.clone(), norm.weight.detach().clone()
    train(tmp_path / "run", small_config(epochs=1, batch_norm=trained), model)
    assert torch.equal(norm.running_mean, mean) is not trained
    assert not torch.equal(norm.weight, weight)  # it is a weight as others


@pytest.mark.parametrize(
    "values, losses, expected",
    [
        ([0.5, 0.75, 0.5], [1.0, 1.0, 0.5], 2),
        ([0.5, 0.5, 0.5], [1.0, 0.5, 0.7], 2),  # of equal ones the lower loss
        ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], 1),  # of equal ones the first
        ([0.1, 0.2, 0.3], [1.0, 2.0, 3.0], 3),
    ],
)
def test_the_epoch_with_the_best_validation_is_chosen(tmp_path, values, losses, expected):
    split, model = pictures(tmp_path, 3), network()
    plan = Plan(CONFIG, split, split, tmp_path / "last.ckpt", {}, workers=0, show=False, minutes=1.0)
    learner = Learner(plan, model, threading.Event())
    for epoch, (value, loss) in enumerate(zip(values, losses, strict=True), 1):
        nn.init.constant_(model.classifier.bias, epoch)
        learner.progress.epoch = epoch
        learner._choose(value, loss)
    best = learner.progress.best
    assert (best["epoch"], best["value"], best["loss"]) == (expected, values[expected - 1], losses[expected - 1])
    assert best["weights"]["classifier.bias"].tolist() == [expected] * 3  # a copy, which later epochs do not change


def test_the_validation_is_that_of_the_model_on_fixed_crops(whole, tmp_path):
    split = pictures(tmp_path / "validation", 7, seed=1)
    crops = torch.stack([CONFIG.crops(split.read(number)) for number in range(7)])
    with torch.no_grad():
        logits = whole.model(crops)
    right = float((logits.argmax(1) == split.targets).double().mean())
    loss = float(-logits.log_softmax(1)[torch.arange(7), split.targets].mean())
    assert whole.curves["validation_value"][whole.epoch - 1] == pytest.approx(100 * right)
    assert whole.curves["validation_loss"][whole.epoch - 1] == pytest.approx(loss, rel=1e-4)
    assert not whole.model.training


def test_without_validation_the_last_epoch_is_taken(tmp_path, whole):
    split = pictures(tmp_path / "pictures", 13)
    found = fine_tune(CONFIG, network(), split, None, tmp_path / "run", workers=0, show=False)
    assert found.epoch == 3
    assert found.converged is None
    assert found.validation is None
    assert found.curves == {"train_loss": whole.curves["train_loss"]}


def test_a_loss_that_is_not_finite_is_an_error(tmp_path):
    model = network()
    with torch.no_grad():
        model.classifier.bias[0] = float("inf")
    with pytest.raises(FineTuningError, match=r"loss is nan in step 1 of epoch 1. Take lower rates"):
        train(tmp_path / "run", CONFIG, model)
    assert not (tmp_path / "run" / CHECKPOINT).exists()


def test_training_in_bfloat16_comes_near(tmp_path, whole):
    found = train(tmp_path / "run", with_training(CONFIG, precision="bf16-mixed"))
    ours, theirs = found.curves["train_loss"], whole.curves["train_loss"]
    assert ours[0] == pytest.approx(theirs[0], rel=0.02)
    assert ours[0] != theirs[0]
    assert ours[2] < ours[0]


# ---- what is written and said ----------------------------------------------------------------------------------------


def test_all_files_are_in_the_folder_and_the_log_is_whole_after_a_stop(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "LOG_EVERY", 3)
    config = with_training(CONFIG, epochs=2)
    train(tmp_path / "one" / "run", config, show=True)
    said = capfd.readouterr()
    assert said.out == ""
    assert [line.split(":")[0] for line in said.err.splitlines()] == ["epoch 1 of 2", "epoch 2 of 2"]
    with monkeypatch.context() as patched:
        stop_at(patched, 1, 2, lambda: (_ for _ in ()).throw(Killed))
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
    assert files == {"checkpoints/last.ckpt", "logs/metrics.csv"}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"logger": "tensorboard"}, "pip install tensorboard, or take training.logger csv"),
        ({"devices": 5}, "batch_size must be at least the number of processes, 5"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises((FineTuningError, ArgumentError), match=message):
        train(tmp_path / "run", with_training(CONFIG, **changes))
    assert not (tmp_path / "run").exists()


def test_a_gpu_that_is_not_there_is_refused(tmp_path, monkeypatch):
    from dataclasses import replace

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ArgumentError, match="take auto or cpu"):
        train(tmp_path / "run", replace(CONFIG, accelerator="gpu"))


# ---- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.stress  # test_ranks.py has the same under torchrun
def test_two_processes_train_as_one(tmp_path):
    config = small_config(epochs=2, batch_size=5, jitter=0.2)
    one = train(tmp_path / "one", config, network(dropout=0.0))
    two = train(tmp_path / "two", with_training(config, devices=2), network(dropout=0.0), workers=1)
    # 13 pictures are batches of 5, 5 and 3: the shares of the processes are not equal.
    for name, values in one.curves.items():
        assert two.curves[name] == pytest.approx(values, rel=1e-4), name
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(two.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    files = {str(path.relative_to(tmp_path / "two")) for path in (tmp_path / "two").rglob("*.*")}
    assert files == {"checkpoints/last.ckpt", "logs/metrics.csv"}


@pytest.mark.stress  # two processes import Lightning again
def test_an_error_in_one_of_two_processes_is_the_error(tmp_path):
    model = network()
    with torch.no_grad():
        model.classifier.bias[0] = float("inf")
    with pytest.raises(FineTuningError, match="loss is nan in step 1"):
        train(tmp_path / "run", with_training(CONFIG, devices=2), model)


# ---- random crops ----------------------------------------------------------------------------------------------------

share = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 2000), st.integers(1, 2000), st.floats(0.05, 1), st.tuples(share, share, share, share))
def test_a_random_box_lies_in_the_picture_and_has_its_share_of_it(width, height, smallest, draws):
    left, top, right, bottom = random_box(width, height, smallest, *draws)
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    area = (right - left) * (bottom - top) / (width * height)
    assert smallest - 1e-9 <= area <= 1 + 1e-9
    aspect = (right - left) / (bottom - top)
    possible = area * height * width
    low, high = possible / height**2, width**2 / possible
    assert min(max(0.75, low), high) - 1e-6 <= aspect * (1 + 1e-6)
    assert aspect <= (max(min(4 / 3, high), low) + 1e-6) * (1 + 1e-6)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 4), st.integers(0, 1000))
def test_batches_are_all_pictures_once_and_every_process_has_some(count, size, world, seed):
    size = max(size, world)
    batches = draw_batches(count, size, seed, world)
    assert torch.cat(batches).sort().values.tolist() == list(range(count))
    assert all(len(batch) == size for batch in batches[:-1][:-1])
    if count >= world:
        assert all(len(batch) >= world for batch in batches)
    assert all(len(batch) < size + world for batch in batches)


def test_crops_depend_on_the_seed_the_epoch_and_the_picture_alone(tmp_path):
    split = pictures(tmp_path / "pictures", 3)
    data = RandomCrops(split, CONFIG, epoch=1)
    item = data[2]
    assert item["images"].shape == (2, 16, 16, 3)
    assert item["factors"].shape == (2, 3)
    torch.manual_seed(5)
    data[0]
    for name, value in data[2].items():
        assert torch.equal(value, item[name])
    others = RandomCrops(split, CONFIG, 2)[2], RandomCrops(split, small_config(seed=1, jitter=0.2), 1)[2], data[1]
    for other in others:
        assert not torch.equal(other["images"], item["images"])
        assert not torch.equal(other["factors"], item["factors"])
    assert not torch.equal(item["images"][0], item["images"][1])


def test_crops_are_what_they_are_called(tmp_path):
    from PIL import Image

    gradient = torch.linspace(0, 255, 64).to(torch.uint8)[None, :, None].expand(64, 64, 3)
    Image.fromarray(gradient.contiguous().numpy()).save(tmp_path / "one.png")
    split = ImageSplit(("one",), torch.tensor([0]), (str(tmp_path / "one.png"),))
    config = small_config(crops=Crops(size=32, count=1), smallest_crop=1.0, jitter=0.0)
    config = with_training(config, crops=40)
    item = RandomCrops(split, config, 0)[0]
    assert torch.equal(item["factors"], torch.ones(40, 3))
    rising = (item["images"][:, 16, -1, 0].int() > item["images"][:, 16, 0, 0].int()).tolist()
    assert 8 < sum(rising) < 32  # about half are mirrored
    straight = item["images"][rising.index(True)]
    expected = torch.from_numpy(np.asarray(Image.open(tmp_path / "one.png").resize((32, 32), 2)).copy())
    assert torch.equal(straight, expected)  # all of it, as the smallest share is 1
    assert torch.equal(item["images"][rising.index(False)].flip(1), expected)
    assert all(
        torch.equal(RandomCrops(split, with_training(config, flip=False), 0)[0]["images"][i], expected)
        for i in range(3)
    )


def test_jitter_is_brightness_contrast_and_saturation():
    images = torch.rand(3, 3, 5, 4) * 0.5 + 0.2
    torch.testing.assert_close(jitter(images, torch.ones(3, 3)), images)
    gray = (images * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    torch.testing.assert_close(jitter(images, torch.tensor([[0.5, 1, 1]] * 3)), images * 0.5)
    mean = gray.mean((2, 3), keepdim=True)
    torch.testing.assert_close(jitter(images, torch.tensor([[1, 0.5, 1]] * 3)), (images + mean) / 2)
    torch.testing.assert_close(jitter(images, torch.tensor([[1, 1, 0.0]] * 3)), gray.expand_as(images))


def test_a_split_can_be_sent_to_processes(tmp_path):
    split = pictures(tmp_path / "pictures", 3)
    assert pickle.loads(pickle.dumps(split)).names == split.names
