"""The training loop of an image classifier, with Lightning Fabric: devices, precision and processes are Fabric's.

All random numbers are functions of the seed, the epoch and the batch, and a checkpoint contains the number of finished
batches. A resumed training is therefore the same as one that was not stopped, bit for bit on a CPU.
"""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from powerpool.console import print_note
from powerpool.data import ImageDataset, ImageSplit
from powerpool.errors import PowerPoolError
from powerpool.runs.folder import load_state, save_state
from powerpool.tasks.base import Watch
from powerpool.tasks.training import Event, balanced_weights, choose_precision
from powerpool.tasks.vision.augmentation import RandomCrops, draw_batches, jitter, mix_seed
from powerpool.tasks.vision.config import FineTuningConfig, VisionConfig
from powerpool.tasks.vision.extraction import CPU_BATCH, GPU_BATCH, choose_device
from powerpool.tasks.vision.model import ImageClassifier

if TYPE_CHECKING:
    from lightning.fabric import Fabric

CHECKPOINT = "last.pt"
LOGS = "logs"
LOG_EVERY = 10
"""Steps between two rows of the log."""
PIXELS_ON_CPU = 12 * 128 * 128
"""Pixels whose gradients are computed at once on a CPU, at least those of the crops of one image; the gradients of a
step are their sum. Memory then does not depend on the batch size. EfficientNet-Lite0 processes 73 crops of 112 px a
second on one core in parts of 4, and 113 in parts of 16."""


class FineTuningError(PowerPoolError, RuntimeError):
    """End-to-end training cannot start or continue; the message says what to change."""


class DivergedError(FineTuningError):
    """The loss is not finite."""


class Stopped(BaseException):
    """The user has stopped the training; not an Exception, so that nothing handles it as an error."""


@dataclass
class Progress:
    """How far a training is: with weights and optimizer, all that the next batch depends on."""

    epoch: int = 0
    """Finished epochs."""
    position: int = 0
    """Finished batches of the next epoch."""
    step: int = 0
    total: float = 0.0
    """Sum of the losses of the images of this epoch so far."""
    seconds: float = 0.0
    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    validation_value: list[float] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)
    """The log."""
    best: dict[str, Any] | None = None
    """The selected epoch so far, counted from 1, its value, loss and weights."""

    @property
    def curves(self) -> dict[str, list[float]]:
        """One number for every epoch."""
        named = {name: getattr(self, name) for name in ("train_loss", "validation_loss", "validation_value")}
        return {name: list(values) for name, values in named.items() if values}

    def has_stalled(self, training: FineTuningConfig) -> bool:
        """Whether the last epochs have not improved the validation score, as many as ``patience`` allows."""
        best, patience = self.best, training.patience
        return patience is not None and best is not None and self.epoch - int(best["epoch"]) >= patience

    def is_finished(self, training: FineTuningConfig) -> bool:
        """Whether all epochs are done, or the training has stopped early."""
        return self.epoch >= training.epochs or self.has_stalled(training)


@dataclass(frozen=True)
class Plan:
    """What every process of a training needs."""

    config: VisionConfig
    train: ImageSplit
    validation: ImageSplit | None
    folder: Path
    key: str
    """Digest of what must not change when the training is resumed."""
    show: bool
    minutes: float
    """Between two checkpoints inside an epoch."""
    start: Path | None = None
    """The checkpoint to begin with, if there is none in the folder."""

    @property
    def source(self) -> Path | None:
        """The checkpoint to continue from, if there is one."""
        return self.checkpoint if self.checkpoint.exists() else self.start

    @property
    def checkpoint(self) -> Path:
        """The checkpoint file."""
        return self.folder / CHECKPOINT


class Loop:
    """One process of a training: epochs of batches, each followed by a validation."""

    def __init__(self, plan: Plan, model: ImageClassifier, fabric: Fabric, stop: Event, watch: Watch) -> None:
        self.plan, self.config, self.model = plan, plan.config.training, model
        self.fabric, self.stop, self.watch = fabric, stop, watch
        self.progress = Progress()
        model.backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if model.pool.head is None:  # the layers of the network after the maps are not used, and get no gradient
            model.backbone.head.requires_grad_(False)
        if self.config.batch_norm and fabric.world_size > 1 and fabric.device.type == "cuda":
            nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.module, self.optimizer = fabric.setup(model, make_optimizer(model, plan.config))
        self.class_weights: Tensor | None = None
        if self.config.class_weights == "balanced":
            weights = balanced_weights(plan.train.targets, model.classifier.out_features)
            self.class_weights = weights.to(fabric.device)
        self.batches: list[Tensor] = []
        self.saved = self.started = time.monotonic()

    def run(self) -> None:
        """Train to the end, from the checkpoint if there is one."""
        if self.plan.source is not None:
            self.load(self.plan.source)
        while not self.progress.is_finished(self.config):
            self.train_epoch()
            self.finish_epoch()

    # ---- training ----------------------------------------------------------------------------------------------------

    def train_epoch(self) -> None:
        """Train on the batches of this epoch that are not done yet, on the share of this process."""
        progress, rank, world = self.progress, self.fabric.global_rank, self.fabric.world_size
        self.module.train()
        if not self.config.batch_norm:
            for layer in self.model.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.eval()
        factor = self.config.decay_factor ** (progress.epoch // self.config.decay_every)
        for group in self.optimizer.param_groups:
            group["lr"] = group["first_lr"] * factor
        seed = mix_seed(self.plan.config.seed, progress.epoch)
        self.batches = draw_batches(len(self.plan.train), self.config.batch_size, seed, world)
        mine = [batch[rank::world].tolist() for batch in self.batches[progress.position :]]
        for batch in self._load(RandomCrops(self.plan.train, self.plan.config, progress.epoch), mine):
            self.train_batch(self.fabric.to_device(batch))
            count = len(self.batches)
            self.watch("batches", progress.epoch * count + progress.position, self.config.epochs * count)

    def train_batch(self, batch: dict[str, Tensor]) -> None:
        """Do one step on the mean loss of all images of the batch, over all processes; save if it is time."""
        progress, fabric = self.progress, self.fabric
        count = len(self.batches[progress.position])
        total = torch.zeros((), device=fabric.device)
        self.optimizer.zero_grad()
        with self._seeded(progress.epoch, progress.position, fabric.global_rank):
            parts = self._parts(batch)
            for number, (images, targets) in enumerate(parts, 1):
                with fabric.no_backward_sync(self.module, enabled=number < len(parts)):
                    logits = self.module(images).float()
                    loss = nn.functional.cross_entropy(logits, targets, self.class_weights, reduction="sum") / count
                    fabric.backward(loss * fabric.world_size)  # gradients are averaged over processes
                total += loss.detach()
        due = time.monotonic() - self.saved >= 60 * self.plan.minutes
        # Processes that disagree when to save or stop would wait for each other forever.
        value, must_save, must_stop = self._sum(total, due, self.stop.is_set())
        if not math.isfinite(value):
            raise DivergedError(
                f"The loss is {value} in step {progress.position + 1} of epoch {progress.epoch + 1}. Lower "
                f"training.learning_rate ({self.config.learning_rate}) or training.head_learning_rate "
                f"({self.config.head_learning_rate})."
            )
        self.optimizer.step()
        progress.total += value * count
        progress.position += 1
        progress.step += 1
        if progress.step % LOG_EVERY == 0:
            self._log(progress.step - 1, loss=value)
        if progress.position < len(self.batches) and (must_save or must_stop):
            self.save()
        if progress.position < len(self.batches) and must_stop:
            raise Stopped

    def _parts(self, batch: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Split a batch into images (b, K, 3, H, W) and targets that pass through the network at once.

        Where the statistics of batch normalization are trained, they are those of the whole batch.
        """
        on_cpu = self.fabric.device.type == "cpu"
        at_once = max(1, PIXELS_ON_CPU // batch["images"][0, ..., 0].numel())  # of (B, K, H, W, 3)
        size = at_once if on_cpu and not self.config.batch_norm else len(batch["target"])
        parts = []
        for images, factors, targets in zip(
            *(batch[name].split(size) for name in ("images", "factors", "target")), strict=True
        ):
            # In memory the colours of a pixel stay side by side, the fastest order for convolutions.
            crops = images.permute(0, 1, 4, 2, 3).flatten(0, 1)
            if self.config.jitter > 0:
                crops = jitter(crops.float() / 255, factors.flatten(0, 1))
            parts.append((crops.unflatten(0, images.shape[:2]), targets))
        return parts

    @contextlib.contextmanager
    def _seeded(self, *where: int) -> Iterator[None]:
        """Seed the random numbers of the network itself, such as dropout."""
        with torch.random.fork_rng([self.fabric.device] if self.fabric.device.type == "cuda" else []):
            torch.manual_seed(mix_seed(self.plan.config.seed, *where))
            yield

    def _sum(self, *values: Tensor | float) -> list[float]:
        """Add numbers up over all processes."""
        own = torch.stack([torch.as_tensor(value, device=self.fabric.device).double() for value in values])
        total: list[float] = self.fabric.all_reduce(own, reduce_op="sum").tolist()  # type: ignore[union-attr]
        return total

    def _load(self, dataset: Any, batches: list[list[int]]) -> DataLoader[Any]:
        workers = self.plan.config.workers
        return DataLoader(
            dataset,
            batch_sampler=batches,
            num_workers=1 if workers is None else workers,
            worker_init_fn=_ignore_interrupts,
            generator=torch.Generator(),  # otherwise the loader draws from the global generator
            pin_memory=self.fabric.device.type == "cuda",
        )

    # ---- validation and the end of an epoch --------------------------------------------------------------------------

    def finish_epoch(self) -> None:
        """Validate, record the epoch, keep its weights if it is the best, and save."""
        progress = self.progress
        found = {"train_loss": progress.total / len(self.plan.train)}
        if self.plan.validation is not None:
            found["validation_loss"], found["validation_value"] = self.validate(self.plan.validation)
            self.keep_best(progress.epoch + 1, found["validation_value"], found["validation_loss"])
        for name, value in found.items():
            getattr(progress, name).append(value)
        progress.epoch, progress.position, progress.total = progress.epoch + 1, 0, 0.0
        self._log(progress.step, **found)
        self.save()
        if self.plan.show and self.fabric.is_global_zero:
            text = f"epoch {progress.epoch} of {self.config.epochs}: loss {found['train_loss']:.4f}"
            if self.plan.validation is not None:
                text += f", validation {found['validation_value']:.2f} %, loss {found['validation_loss']:.4f}"
            print_note(text)
            if progress.best is not None and progress.has_stalled(self.config):
                print_note(f"Stopped early: no epoch since {progress.best['epoch']} was better on validation images.")
        if self._sum(self.stop.is_set())[0] and not progress.is_finished(self.config):
            raise Stopped

    @torch.no_grad()
    def validate(self, split: ImageSplit) -> tuple[float, float]:
        """Return the mean loss and the accuracy in % on fixed crops."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        self.module.eval()
        size = max(1, (CPU_BATCH if self.fabric.device.type == "cpu" else GPU_BATCH) // self.plan.config.crops.count)
        parts = [part.tolist() for part in torch.arange(rank, len(split), world).split(size)]
        loss = right = torch.zeros((), dtype=torch.float64, device=self.fabric.device)
        for batch in self._load(ImageDataset(split, self.plan.config.crops), parts if len(split) > rank else []):
            images, targets = (self.fabric.to_device(batch[name]) for name in ("images", "target"))
            with self.fabric.autocast():
                logits = self._logits(images).float()
            loss = loss + nn.functional.cross_entropy(logits, targets, reduction="sum")
            right = right + (logits.argmax(-1) == targets).sum()
        loss_sum, right_sum = self._sum(loss, right)
        return loss_sum / len(split), 100 * right_sum / len(split)

    def _logits(self, crops: Tensor) -> Tensor:  # shape: (B, K, 3, H, W) -> (B, classes)
        """Return the logits; on a CPU a few crops at a time, whose maps fit into its cache."""
        size = CPU_BATCH if crops.device.type == "cpu" else crops.shape[1]
        maps = torch.cat([self.model.maps(part) for part in crops.split(size, dim=1)], dim=1)
        return self.model.classify(self.model.pool(maps))

    def keep_best(self, epoch: int, value: float, loss: float) -> None:
        """Keep the weights if they are the best so far: by accuracy, then by loss; of equal ones the first."""
        best = self.progress.best
        if best is None or (value, -loss) > (best["value"], -best["loss"]):
            weights = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
            self.progress.best = {"epoch": epoch, "value": value, "loss": loss, "weights": weights}

    # ---- logs and checkpoints ----------------------------------------------------------------------------------------

    def _log(self, step: int, **values: float) -> None:
        self.progress.rows.append({"step": step, "epoch": self.progress.epoch, **values})
        self.fabric.log_dict({"epoch": self.progress.epoch, **values}, step)

    def save(self) -> None:
        """Write the checkpoint; the first process does."""
        now = time.monotonic()
        self.progress.seconds += now - self.started
        self.saved = self.started = now
        if self.fabric.is_global_zero:
            state = {
                "key": self.plan.key,
                "progress": vars(self.progress),
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "precision": self.fabric.strategy.precision.state_dict(),
            }
            save_state(self.plan.checkpoint, state)
            self.fabric.logger.save()
        self.fabric.barrier()

    def load(self, checkpoint: Path) -> None:
        """Resume from a checkpoint."""
        state = load_state(checkpoint)
        self.progress = Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        if self.config.logger == "csv":  # Fabric starts the file anew
            for row in self.progress.rows:
                self.fabric.log_dict({key: value for key, value in row.items() if key != "step"}, int(row["step"]))


def make_optimizer(model: ImageClassifier, config: VisionConfig) -> torch.optim.Optimizer:
    """RMSprop or AdamW, with one learning rate for the backbone and one for the rest."""
    training = config.training
    backbone = {id(parameter) for parameter in model.backbone.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in trained if id(one) in backbone], "first_lr": training.learning_rate},
        {"params": [one for one in trained if id(one) not in backbone], "first_lr": training.head_learning_rate},
    ]
    used, decay = [group for group in groups if group["params"]], training.weight_decay
    if training.optimizer == "adamw":
        return torch.optim.AdamW(used, weight_decay=decay)
    return torch.optim.RMSprop(used, alpha=training.smoothing, weight_decay=decay)


def make_fabric(plan: Plan, *, launched: bool) -> Fabric:
    """Build Fabric for a process that torchrun or this package has started; Fabric itself starts none."""
    from lightning.fabric import Fabric
    from lightning.fabric.loggers.csv_logs import CSVLogger
    from lightning.fabric.loggers.tensorboard import TensorBoardLogger
    from lightning.fabric.plugins.environments.lightning import LightningEnvironment
    from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning.fabric.strategies.ddp import DDPStrategy

    training, device = plan.config.training, choose_device(plan.config.accelerator)
    kind = TensorBoardLogger if training.logger == "tensorboard" else CSVLogger
    backend = "nccl" if device.type == "cuda" else "gloo"
    many = training.devices * training.nodes > 1
    fabric = Fabric(
        accelerator=device.type,
        strategy=DDPStrategy(process_group_backend=backend) if many else "auto",
        devices=training.devices,
        num_nodes=training.nodes,
        precision=choose_precision(str(device)) if training.precision == "auto" else training.precision,
        plugins=[TorchElasticEnvironment() if launched else LightningEnvironment()],
        loggers=[kind(plan.folder, name=LOGS, version="")],
    )
    fabric.launch()
    return fabric


def _ignore_interrupts(_: int = 0) -> None:
    """Ignore Ctrl-C in loader processes, which end with the process that started them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
