"""End-to-end training of an image classifier: what can be trained, what can be resumed, and the result."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from powerpool.data import ImageSplit
from powerpool.data.features import store_key
from powerpool.errors import ArgumentError, RecordError
from powerpool.runs.checkpoint import load_state
from powerpool.runs.record import Score
from powerpool.tasks.base import Watch, ignore_progress
from powerpool.tasks.vision import processes
from powerpool.tasks.vision.augmentation import draw_batches
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.linear import first_near_best
from powerpool.tasks.vision.loop import CHECKPOINT, FineTuningError, Plan, Progress
from powerpool.tasks.vision.model import ImageClassifier

FREE = ("epochs", "devices", "nodes", "logger")
"""Settings of training that may change when it is resumed; they do not change the batches that are done."""


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
    watch: Watch = ignore_progress,
    show: bool = True,
    checkpoint_minutes: float = 5.0,
) -> FineTuned:
    """Train backbone, pool and classifier together by RMSprop on the cross-entropy of random crops.

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
        watch: called with the progress, where a single process trains.
        show: print a line for each epoch to stderr.
        checkpoint_minutes: between two checkpoints inside an epoch.

    Raises:
        FineTuningError: the loss is not finite, or the folder contains another training.
        KeyboardInterrupt: Ctrl-C, after the current batch or validation was finished and saved. A second Ctrl-C stops
            at once.
    """
    config = processes.with_launched_sizes(config)
    _require_possible(config, train)
    key = _training_key(config, model, train, validation)
    plan = Plan(config, train, validation, folder, key, show, checkpoint_minutes)
    done = _read_progress(plan)
    if done is None or done.epoch < config.training.epochs:
        processes.train(plan, model, watch)
    state = load_state(plan.checkpoint)
    progress = Progress(**state["progress"])
    model.load_state_dict(progress.best["weights"] if progress.best else state["model"])
    epoch = progress.best["epoch"] if progress.best else progress.epoch
    return FineTuned(model.eval(), epoch, progress.curves, progress.seconds)


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
    if config.accelerator == "gpu" and not torch.cuda.is_available():
        raise ArgumentError("accelerator must be cpu or auto on this machine (got gpu): torch finds no CUDA device.")
    if config.accelerator != "cpu" and torch.cuda.is_available() and training.devices > torch.cuda.device_count():
        raise ArgumentError(
            f"training.devices must be at most the number of GPUs, {torch.cuda.device_count()} (got "
            f"{training.devices}). Use fewer, or accelerator cpu."
        )


def _training_key(
    config: VisionConfig, model: ImageClassifier, train: ImageSplit, validation: ImageSplit | None
) -> str:
    """Return a digest of what must not change when a training is resumed."""
    training = {name: value for name, value in asdict(config.training).items() if name not in FREE}
    splits = [(split.names, split.targets.tolist()) for split in (train, validation) if split is not None]
    settings = (training, asdict(model.pool.config), asdict(config.crops), config.seed)
    return store_key({"settings": settings, "backbone": model.backbone.name, "splits": splits})


def _read_progress(plan: Plan) -> Progress | None:
    """Return the progress of the checkpoint, if there is one; a checkpoint of another training is refused."""
    if not plan.checkpoint.exists():
        return None
    state = load_state(plan.checkpoint)
    if not isinstance(state.get("progress"), dict):
        raise RecordError(f"{plan.checkpoint} is not a checkpoint of end-to-end training. Use another folder.")
    if state.get("key") != plan.key:
        raise FineTuningError(
            f"{plan.folder} contains a training with other settings or images. Use another folder, or delete that one "
            "to train anew."
        )
    progress = Progress(**state["progress"])
    _require_batches(plan, progress.position)
    return progress


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


__all__ = ["CHECKPOINT", "FineTuned", "FineTuningError", "fine_tune"]
