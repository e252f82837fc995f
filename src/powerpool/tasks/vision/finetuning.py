"""End-to-end training of an image classifier: backbone, pool and classifier together, with Lightning."""

from __future__ import annotations

import importlib.util
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from powerpool.data import ImageSplit
from powerpool.data.features import store_key
from powerpool.errors import ArgumentError, RecordError
from powerpool.runs.checkpoint import load_state
from powerpool.tasks.vision import processes
from powerpool.tasks.vision.augmentation import draw_batches
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.frozen import first_near_best
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.tasks.vision.progress import STATE, FineTuningError, Plan, Progress
from powerpool.tasks.vision.ranks import as_launched

CHECKPOINT = Path("checkpoints") / "last.ckpt"
FREE = ("epochs", "devices", "nodes", "logger")
"""Settings of training that may differ between the parts of one: what was done before is right with others, too, but
for a last batch that is too small for more processes."""


@dataclass
class FineTuned:
    """A trained model, and how its training went."""

    model: ImageClassifier
    """With the weights of the chosen epoch."""
    epoch: int
    """The chosen one, counted from 1: the best on validation, or the last."""
    curves: dict[str, list[float]]
    """``train_loss`` of every epoch; with validation pictures ``validation_loss`` and ``validation_value``, in %."""
    seconds: float
    """Of training and validation, in all parts of a training that was stopped."""

    @property
    def converged(self) -> int | None:
        """See :func:`powerpool.tasks.vision.frozen.first_near_best`; None without validation pictures."""
        return first_near_best(self.curves.get("validation_value", []))

    @property
    def validation(self) -> dict[str, float] | None:
        """Accuracy in % and loss of the chosen epoch; None without validation pictures."""
        if "validation_value" not in self.curves:
            return None
        return {name: self.curves[f"validation_{name}"][self.epoch - 1] for name in ("value", "loss")}


def fine_tune(
    config: VisionConfig,
    model: ImageClassifier,
    train: ImageSplit,
    validation: ImageSplit | None,
    folder: Path,
    *,
    workers: int | None = None,
    show: bool = True,
    checkpoint_minutes: float = 5.0,
) -> FineTuned:
    """Train backbone, pool and classifier together by RMSprop on the cross-entropy of random crops.

    A step sees ``config.training.batch_size`` pictures, in all processes together. After every epoch, and every few
    minutes inside one, ``checkpoints/last.ckpt`` in the folder says where the training is; called again, it goes on
    from there, and on a CPU comes to the same weights, bit for bit. A training that is done is read, not repeated.

    With several ``devices``, this process starts one for each. With several ``nodes``, call it on each machine, with
    the same folder on all, and the variables MASTER_ADDR, MASTER_PORT and NODE_RANK. Where torchrun has started this
    process and others, they train together. Only the first of all processes writes.

    Args:
        config: size of the crops, optimiser, seed.
        model: what to begin with. It is trained itself, and is in the result.
        train: pictures to train on.
        validation: pictures that the epoch is chosen on: the one with the best accuracy, of equal ones with the lower
            loss. None: the last epoch is taken.
        folder: where checkpoints and logs go; nothing is written elsewhere.
        workers: processes that read pictures, for each that trains; 1 without a number, 0 for none.
        show: whether a bar and a line for each epoch are written to stderr.
        checkpoint_minutes: between two checkpoints inside an epoch.

    Raises:
        FineTuningError: the loss is not finite, the folder holds another training, or it ended before its last epoch.
        KeyboardInterrupt: Ctrl-C. The batch or the validation that runs is ended and saved first; a second one does not
            wait for that.
    """
    config = as_launched(config)
    _require(config, train)
    facts = _facts(config, model, train, validation)
    plan = Plan(
        config,
        train,
        validation,
        folder / CHECKPOINT,
        facts,
        1 if workers is None else workers,
        show,
        checkpoint_minutes,
    )
    state = _resumable(plan)
    if state is None or state[STATE]["progress"]["epoch"] < config.training.epochs:
        processes.train(plan, model)
        state = load_state(plan.checkpoint)
    progress = Progress(**state[STATE]["progress"])
    if progress.epoch < config.training.epochs:
        # Lightning returns without an error where an epoch has no batches: what there is must not pass for a result.
        raise FineTuningError(
            f"The training ended after {progress.epoch} of {config.training.epochs} epochs, though nobody stopped it. "
            f"{plan.checkpoint} is as it was left: run the same command again, with the devices that it began with."
        )
    prefix = "model."
    last = {name[len(prefix) :]: value for name, value in state["state_dict"].items() if name.startswith(prefix)}
    best = progress.best or {"weights": last, "epoch": progress.epoch}
    model.load_state_dict(best["weights"])
    return FineTuned(model.eval(), best["epoch"], progress.curves(), progress.seconds)


def _require(config: VisionConfig, train: ImageSplit) -> None:
    training = config.training
    world = training.devices * training.nodes
    if training.batch_size < world:
        raise ArgumentError(
            f"training.batch_size must be at least the number of processes, {world} (got {training.batch_size}): each "
            "takes a share of every batch."
        )
    if len(train) < world or len(train) == 0:
        raise ArgumentError(f"Training needs at least {world} picture(s) (got {len(train)}).")
    if training.logger == "tensorboard" and not importlib.util.find_spec("tensorboard"):
        raise FineTuningError(
            "training.logger tensorboard needs the package tensorboard, which is not installed: pip install "
            "tensorboard, or take training.logger csv."
        )
    if config.accelerator == "gpu" and not torch.cuda.is_available():
        raise ArgumentError("accelerator gpu needs a GPU that torch can use, and there is none: take auto or cpu.")


def _facts(
    config: VisionConfig, model: ImageClassifier, train: ImageSplit, validation: ImageSplit | None
) -> dict[str, Any]:
    """What the parts of one training have in common, by name."""
    training = {name: value for name, value in asdict(config.training).items() if name not in FREE}
    return {
        **{f"training.{name}": value for name, value in training.items()},
        **{f"pool.{name}": value for name, value in asdict(model.pool.config).items()},
        **{f"crops.{name}": value for name, value in asdict(config.crops).items()},
        "backbone": model.backbone.name,
        "classes": model.classifier.out_features,
        "seed": config.seed,
        "train": _key(train),
        "validation": None if validation is None else _key(validation),
    }


def _key(split: ImageSplit) -> str:
    return store_key({"names": split.names, "targets": split.targets.tolist()})


def _resumable(plan: Plan) -> dict[str, Any] | None:
    """The checkpoint to go on from, if there is one; one of another training is refused."""
    if not plan.checkpoint.exists():
        return None
    state = load_state(plan.checkpoint)
    if not isinstance(state.get(STATE), dict):
        raise RecordError(f"{plan.checkpoint} is no checkpoint of training end to end: take another folder.")
    theirs = state[STATE]["facts"]
    other = [name for name in plan.facts | theirs if plan.facts.get(name) != theirs.get(name)]
    if other:
        name = other[0]
        raise FineTuningError(
            f"{plan.checkpoint.parent.parent} holds another training: {name} is {theirs.get(name)!r} there and "
            f"{plan.facts.get(name)!r} here. Take another folder, or delete that one to train anew."
        )
    done, position = (state[STATE]["progress"][name] for name in ("epoch", "position"))
    if (done, position) > (plan.config.training.epochs, 0):
        more = f" and {position} batches" if position else ""
        raise FineTuningError(
            f"{plan.checkpoint.parent.parent} holds a training of {done} epochs{more}, and training.epochs is "
            f"{plan.config.training.epochs}. Take another folder, or more epochs."
        )
    _require_batches(plan, position)
    return state


def _require_batches(plan: Plan, done: int) -> None:
    """Refuse more processes where they have no batch left of the epoch: its last one has too few pictures for them.

    To fewer processes it is a batch of its own; to these it is a part of the one before, which is done already.
    """
    training, count = plan.config.training, len(plan.train)
    world = training.devices * training.nodes
    if done >= len(draw_batches(count, training.batch_size, 0, world)):
        left = count - done * training.batch_size
        raise FineTuningError(
            f"{plan.checkpoint} is before the last batch of an epoch, which has {left} picture(s): too few for {world} "
            f"processes. Go on with at most {left} (training.devices x training.nodes)."
        )
