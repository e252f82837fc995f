"""End-to-end training of an image classifier: what can be trained and resumed, in which processes, and the result.

Processes are this one, one for each device, or those that torchrun has started. The first locks the folder, writes and
prints; the others only compute with it.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import pickle
import re
import signal
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from powerpool.data import ImageSplit
from powerpool.data.banks import store_key
from powerpool.errors import ArgumentError, PowerPoolError, RecordError
from powerpool.runs.folder import load_state
from powerpool.runs.record import Score
from powerpool.tasks.base import Watch, ignore_progress
from powerpool.tasks.training import Event, quiet_loggers, stop_on_interrupt
from powerpool.tasks.vision.augmentation import draw_batches
from powerpool.tasks.vision.config import FineTuningConfig, VisionConfig
from powerpool.tasks.vision.extraction import choose_device
from powerpool.tasks.vision.linear import first_near_best
from powerpool.tasks.vision.loop import DivergedError, FineTuningError, Loop, Plan, Progress, Stopped, make_fabric
from powerpool.tasks.vision.model import ImageClassifier

FREE = ("epochs", "patience", "devices", "nodes", "logger", "learning_rates", "head_learning_rates", "search_epochs")
"""Settings of training that may change when it is resumed; they do not change the batches that are done."""
LAUNCHED = "TORCHELASTIC_RUN_ID"
"""The variable that torchrun sets."""
KILLED = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT)
"""Exit codes of processes that were killed; SIGTERM is how the other processes of a training are ended."""


@dataclass(frozen=True, eq=False)
class FineTuned:
    """A trained model, and how its training went."""

    model: ImageClassifier
    """With the weights of the selected epoch."""
    epoch: int
    """The selected one, counted from 1: the best on validation, or the last."""
    curves: dict[str, list[float]]
    """``train_loss`` of every epoch; with validation images ``validation_loss`` and ``validation_value``, in %."""
    seconds: float
    """Of training and validation, in all parts of a training that was stopped."""
    learning_rate: float
    """Of the backbone."""
    head_learning_rate: float
    """Of the pool and the classifier."""
    is_final: bool = True
    """Whether it has all its epochs; otherwise it was trained to select learning rates."""

    @property
    def rates(self) -> tuple[float, float]:
        """The learning rates, of the backbone and of the rest."""
        return self.learning_rate, self.head_learning_rate

    @property
    def converged(self) -> int | None:
        """See :func:`powerpool.tasks.vision.linear.first_near_best`; None without validation images."""
        return first_near_best(self.curves.get("validation_value", []))

    @property
    def validation(self) -> Score | None:
        """The score of the selected epoch; None without validation images."""
        if "validation_value" not in self.curves:
            return None
        return Score(*(self.curves[f"validation_{name}"][self.epoch - 1] for name in ("value", "loss")))


def fine_tune(
    config: VisionConfig,
    model: ImageClassifier,
    train: ImageSplit,
    validation: ImageSplit | None,
    folder: Path,
    *,
    start: Path | None = None,
    watch: Watch = ignore_progress,
    show: bool = True,
    checkpoint_minutes: float = 5.0,
) -> FineTuned:
    """Train backbone, pool and classifier together on the cross-entropy of random crops.

    A step uses ``config.training.batch_size`` images, over all processes. A checkpoint is written after every epoch and
    every few minutes. When the function is called again it resumes, and on a CPU reaches the same weights, bit for bit.
    A finished training is loaded.

    With several ``devices``, this process starts one for each. With several ``nodes``, call the function on each
    machine, with a shared folder and the variables MASTER_ADDR, MASTER_PORT and NODE_RANK. Processes that torchrun has
    started train together. Only the first of all processes writes.

    Args:
        config: crops, optimizer, seed, and number of worker processes (default: 1 for each process that trains).
        model: the initial model; it is trained in place.
        train: images to train on.
        validation: images that select the epoch: the one with the highest accuracy, of equal ones that with the lowest
            loss. None: the last epoch is used.
        folder: for the checkpoint and logs.
        start: checkpoint of a shorter training with the same settings to continue; it is not changed.
        watch: called with the progress, where a single process trains.
        show: print a line for each epoch to stderr.
        checkpoint_minutes: between two checkpoints inside an epoch.

    Raises:
        FineTuningError: the loss is not finite, or the folder contains another training.
        KeyboardInterrupt: Ctrl-C, after the current batch or validation was finished and saved. A second Ctrl-C stops
            at once.
    """
    config = with_launched_sizes(config)
    _require_possible(config, train)
    key = _training_key(config, model, train, validation)
    plan = Plan(config, train, validation, folder, key, show, checkpoint_minutes, start)
    done = _read_progress(plan)
    _require_batches(plan, done.position)
    if not done.is_finished(config.training):
        _train(plan, model, watch)
    state = load_state(plan.source or plan.checkpoint)
    progress = Progress(**state["progress"])
    model.load_state_dict(progress.best["weights"] if progress.best else state["model"])
    epoch = progress.best["epoch"] if progress.best else progress.epoch
    rates = config.training.learning_rate, config.training.head_learning_rate
    return FineTuned(model.eval(), epoch, progress.curves, progress.seconds, *rates)


def _require_possible(config: VisionConfig, train: ImageSplit) -> None:
    training = config.training
    world = training.devices * training.nodes
    if training.batch_size < world:
        raise ArgumentError(
            f"training.batch_size must be at least the number of processes, {world} (got {training.batch_size}): each "
            "gets a share of every batch."
        )
    if len(train) < world or len(train) == 0:
        raise ArgumentError(f"Training needs at least {world} image(s) (got {len(train)}).")
    if training.logger == "tensorboard" and not importlib.util.find_spec("tensorboard"):
        raise FineTuningError(
            "training.logger tensorboard needs the package tensorboard, which is not installed: pip install "
            "tensorboard, or use training.logger csv."
        )
    if choose_device(config.accelerator).type == "cuda" and training.devices > torch.cuda.device_count():
        raise ArgumentError(
            f"training.devices must be at most the number of GPUs, {torch.cuda.device_count()} (got "
            f"{training.devices}). Use fewer, or accelerator cpu."
        )


def _training_key(
    config: VisionConfig, model: ImageClassifier, train: ImageSplit, validation: ImageSplit | None
) -> str:
    """Return a digest of what must not change when a training is resumed."""
    training = {name: value for name, value in asdict(config.training).items() if name not in FREE}
    for name in ("optimizer", "class_weights"):  # checkpoints of earlier versions do not have them
        if training[name] == getattr(FineTuningConfig, name):
            del training[name]
    splits = [(split.names, split.targets.tolist()) for split in (train, validation) if split is not None]
    settings = (training, asdict(model.pool.config), asdict(config.crops), config.seed)
    return store_key({"settings": settings, "backbone": model.backbone.name, "splits": splits})


def _read_progress(plan: Plan) -> Progress:
    """Return the progress of the checkpoint, if there is one; a checkpoint of another training is refused."""
    if plan.source is None:
        return Progress()
    state = load_state(plan.source)
    if not isinstance(state.get("progress"), dict):
        raise RecordError(f"{plan.source} is not a checkpoint of end-to-end training. Use another folder.")
    if state.get("key") != plan.key:
        raise FineTuningError(
            f"{plan.folder} contains a training with other settings or images. Use another folder, or delete that one "
            "to train anew."
        )
    return Progress(**state["progress"])


def _require_batches(plan: Plan, done: int) -> None:
    """Refuse more processes than the last batch of an epoch has images, where all batches before it are done.

    For fewer processes it is a separate batch; for these it is a part of the batch before, which is done already.
    """
    training, count = plan.config.training, len(plan.train)
    world = training.devices * training.nodes
    if done >= len(draw_batches(count, training.batch_size, 0, world)):
        left = count - done * training.batch_size
        raise FineTuningError(
            f"The last batch of the epoch in {plan.checkpoint} has {left} image(s), too few for {world} processes. "
            f"Resume with at most {left} (training.devices x training.nodes)."
        )


# ---- which process this is -------------------------------------------------------------------------------------------


def is_launched() -> bool:
    """Whether torchrun started this process and others."""
    return LAUNCHED in os.environ


def is_first(config: VisionConfig) -> bool:
    """Whether this is the process that writes.

    Example:
        >>> is_first(VisionConfig())
        True
    """
    if is_launched():
        return os.environ["RANK"] == "0"
    return config.training.nodes == 1 or os.environ.get("NODE_RANK", "0") == "0"


def with_launched_sizes(config: VisionConfig) -> VisionConfig:
    """Return the configuration with torchrun's numbers of devices and machines; unchanged without torchrun."""
    if not is_launched():
        return config
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    nodes = int(os.environ["WORLD_SIZE"]) // devices
    for name, typed, has in (("devices", config.training.devices, devices), ("nodes", config.training.nodes, nodes)):
        if typed not in (1, has):
            raise ArgumentError(f"training.{name} is {typed}, but torchrun has started {has}. Leave it out.")
    return replace(config, training=replace(config.training, devices=devices, nodes=nodes))


def require_joint_training(config: VisionConfig, *, overwrite: bool) -> None:
    """Refuse what several commands cannot do in one folder, before anything is written."""
    if not is_launched() and config.training.nodes == 1:
        return
    who = "torchrun" if is_launched() else "training.nodes"
    if config.mode != "end-to-end":
        raise ArgumentError(f"{who} needs mode end-to-end (got {config.mode}). One process trains frozen features.")
    if config.training.warm_start:
        raise ArgumentError(
            f"training.warm_start cannot be used with {who}: one process trains the first classifier. Use "
            "training.devices on one machine."
        )
    if overwrite:
        raise ArgumentError(
            f"--overwrite cannot be used with {who}: another process may read what this one deletes. Delete the "
            "folder, or choose another --out."
        )


# ---- training --------------------------------------------------------------------------------------------------------


def _train(plan: Plan, model: ImageClassifier, watch: Watch) -> None:
    """Train in this process, or start one for each device, unless others were started beside this one."""
    config = plan.config.training
    what = "batch, or the validation that is running"
    if is_launched() or config.devices * config.nodes == 1:
        stop = threading.Event()
        with stop_on_interrupt(what, stop):
            try:
                _run(plan, model, stop, watch)
            except Stopped:  # this process may be told by another
                stop.set()
        if stop.is_set():  # also after the last epoch: another training may follow
            raise KeyboardInterrupt(_describe_stop(plan))
        return
    context = multiprocessing.get_context("spawn")
    stop_all, errors = context.Event(), context.SimpleQueue()
    # Pickled: tensors that are sent as such would lie in shared memory, and all processes train.
    parts = (model.backbone, model.pool.config, model.classifier.out_features, model.state_dict())
    sent = pickle.dumps((plan, parts, multiprocessing.get_start_method(allow_none=True)))
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())} if config.nodes == 1 else {}
    with stop_on_interrupt(what, stop_all):
        started = spawn(_train_in_child, (sent, stop_all, errors, address), nprocs=config.devices, join=False)
        try:
            while not started.join():
                pass
        except (ProcessRaisedException, ProcessExitedException) as error:
            if not errors.empty():
                kind, text = errors.get()
                raise kind(text) from error
            if not stop_all.is_set():
                cause = _describe_death(error, started.processes)
                if cause is None:
                    raise
                raise FineTuningError(f"{cause} {_describe_stop(plan)}") from error
        finally:
            for process in started.processes:
                process.kill()  # those that would wait for one that failed
    if stop_all.is_set():
        raise KeyboardInterrupt(_describe_stop(plan))


def _run(plan: Plan, model: ImageClassifier, stop: Event, watch: Watch) -> None:
    import lightning.fabric  # noqa: F401  # importing it sets the levels of its loggers

    # Logs exist when a training is resumed. Strides differ for convolutions of one pixel, which costs a copy.
    expected = "Experiment logs directory .* exists and is not empty|Grad strides do not match bucket view strides"
    with quiet_loggers("lightning.fabric", "lightning.pytorch", warning=expected):
        Loop(plan, model, make_fabric(plan, launched=is_launched()), stop, watch).run()


def _train_in_child(rank: int, sent: bytes, stop: Event, errors: Any, address: dict[str, str]) -> None:
    if hasattr(os, "setpgrp"):
        os.setpgrp()  # Ctrl-C of a terminal reaches the parent only, which tells all children to stop
    os.environ.update(address, LOCAL_RANK=str(rank))
    plan, (backbone, pool, classes, weights), method = pickle.loads(sent)
    # Loader processes start as those of the parent do: spawned ones would import everything again.
    multiprocessing.set_start_method(method, force=True)
    model = ImageClassifier(backbone, pool, classes)
    model.load_state_dict(weights)
    try:
        _run(plan, model, stop, ignore_progress)
    except Stopped:
        return
    except PowerPoolError as error:
        errors.put((DivergedError if isinstance(error, DivergedError) else FineTuningError, str(error)))
        raise


def _describe_death(error: Exception, processes: Sequence[Any]) -> str | None:
    """Return how a process was killed from outside; None where one failed by itself."""
    if isinstance(error, ProcessExitedException):
        how = error.signal_name or f"exit code {error.exit_code}"
    else:
        killed = [signal.Signals(-process.exitcode).name for process in processes if process.exitcode in KILLED]
        # A process that lost its peer may fail before the death of the peer is noticed.
        if not killed or not re.search("connection (closed|reset)", str(error), re.IGNORECASE):
            return None
        how = killed[0]
    return (
        f"One of the {len(processes)} processes died ({how}), and the others were stopped. The memory was probably "
        "exhausted: use fewer training.devices or a smaller training.batch_size."
    )


def _describe_stop(plan: Plan) -> str:
    if not plan.checkpoint.exists():
        return "There is no checkpoint yet, so the same command starts anew."
    done = _read_progress(plan)
    batches = f" and {done.position} {'batch' if done.position == 1 else 'batches'}" if done.position else ""
    return (
        f"Stopped after {done.epoch} of {plan.config.training.epochs} epochs{batches}. The same command resumes from "
        f"{plan.checkpoint}."
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
