"""What Lightning runs: one epoch after the other of the training of an image classifier.

All that is random is a function of the seed, the epoch and the step, and a checkpoint says how many batches of the
epoch are done. So a training that goes on from a checkpoint is the one that was not stopped, bit for bit on a CPU.
"""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from powerpool.data import ImageDataset
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.tasks.vision.augmentation import RandomCrops, draw_batches, jitter, mixed
from powerpool.tasks.vision.extraction import CPU_BATCH, GPU_BATCH
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.tasks.vision.progress import STATE, FineTuningError, Flag, Plan, Progress, Stopped

try:
    # At module level because of the classes below; only who trains end to end imports this module.
    from lightning.pytorch import LightningModule
    from lightning.pytorch.plugins.io import CheckpointIO
    from torchmetrics import MeanMetric
    from torchmetrics.classification import MulticlassAccuracy
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] not in ("lightning", "torchmetrics"):
        raise
    raise ModuleNotFoundError(
        f"Training end to end needs {error.name}, which is not installed: pip install 'powerpool[train]'.",
        name=error.name,
    ) from error

LOG_EVERY = 10
"""Steps between two rows of the log."""
PICTURES_ON_CPU = 1
"""Pictures whose gradients are computed at once on a CPU; the gradients of a step are their sum. Memory is then that of
the crops of one picture, however many pictures a step has."""


class Learner(LightningModule):
    """The steps of training and validation, and what is kept of them."""

    def __init__(self, plan: Plan, model: ImageClassifier, stop: Flag) -> None:
        super().__init__()
        # A step of the optimiser is made of several small forward and backward passes.
        self.automatic_optimization = False
        self.plan, self.config, self.model, self.stop = plan, plan.config.training, model, stop
        self.progress = Progress()
        self.accuracy = MulticlassAccuracy(model.classifier.out_features, average="micro")
        self.mean_loss = MeanMetric()
        self.saved = self.started = time.monotonic()
        self.must_save = self.must_stop = False
        self.batches: list[Tensor] = []
        freeze_unused(model)

    # ---- data --------------------------------------------------------------------------------------------------------

    def train_dataloader(self) -> DataLoader[Any]:
        """The batches of this epoch that are not done yet, of each the share of this process."""
        progress, rank, world = self.progress, self.trainer.global_rank, self.trainer.world_size
        seed = mixed(self.plan.config.seed, progress.epoch)
        self.batches = draw_batches(len(self.plan.train), self.config.batch_size, seed, world)
        mine = [batch[rank::world].tolist() for batch in self.batches[progress.position :]]
        return self._loader(RandomCrops(self.plan.train, self.plan.config, progress.epoch), batch_sampler=mine)

    def val_dataloader(self) -> DataLoader[Any] | list[Any]:
        """Fixed crops of the share of this process, each process as many."""
        split, rank, world = self.plan.validation, self.trainer.global_rank, self.trainer.world_size
        if split is None:
            return []
        share = torch.arange(-(-len(split) // world)) * world + rank
        crops = self.plan.config.crops
        chosen = share.clamp_max(len(split) - 1).split(self._pictures_at_once())
        return self._loader(ImageDataset(split, crops), batch_sampler=[part.tolist() for part in chosen])

    def _pictures_at_once(self) -> int:
        """In validation."""
        return max(1, (CPU_BATCH if self.device.type == "cpu" else GPU_BATCH) // self.plan.config.crops.count)

    def _loader(self, dataset: Any, **options: Any) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            num_workers=self.plan.workers,
            worker_init_fn=ignore_interrupts,
            generator=torch.Generator(),  # without one, the loader takes a number from the caller's
            pin_memory=self.device.type == "cuda",
            **options,
        )

    # ---- training ----------------------------------------------------------------------------------------------------

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """RMSprop, with a rate for the backbone and one for all else."""
        config = self.config
        own = {id(parameter) for parameter in self.model.backbone.parameters()}
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups = [
            {"params": [one for one in trained if id(one) in own], "lr": config.learning_rate},
            {"params": [one for one in trained if id(one) not in own], "lr": config.head_learning_rate},
        ]
        return torch.optim.RMSprop(
            [group for group in groups if group["params"]], alpha=config.smoothing, weight_decay=config.weight_decay
        )

    def on_train_epoch_start(self) -> None:
        """Rates of the epoch; statistics of batch normalization stay as they are, unless they are trained."""
        self.model.train()
        if not self.config.batch_norm:
            for layer in self.model.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.eval()
        factor = self.config.decay_factor ** (self.progress.epoch // self.config.decay_every)
        rates = (self.config.learning_rate, self.config.head_learning_rate)
        groups = self.trainer.optimizers[0].param_groups
        for group, rate in zip(groups, rates[-len(groups) :], strict=True):
            group["lr"] = rate * factor

    def training_step(self, batch: dict[str, Tensor], _: int) -> None:
        """One step: the mean loss of all pictures of the batch, in all processes together."""
        progress, optimizer = self.progress, cast("Any", self.optimizers())  # there is one
        count, world = len(self.batches[progress.position]), self.trainer.world_size
        total = torch.zeros((), device=self.device)
        optimizer.zero_grad()
        with self._random(progress.epoch, progress.position):
            parts = self._parts(batch)
            for number, (images, targets) in enumerate(parts, 1):
                loss = nn.functional.cross_entropy(self.model(images).float(), targets, reduction="sum") / count
                with contextlib.nullcontext() if number == len(parts) else self._alone():
                    self.manual_backward(loss * world)  # processes are averaged
                total += loss.detach()
        due = time.monotonic() - self.saved >= 60 * self.plan.minutes
        stop = self.stop.is_set() or self.trainer.received_sigterm
        told = torch.stack([total, total.new_tensor(due), total.new_tensor(stop)])
        # One message for all: processes that do not agree when to save or to stop would wait for each other forever.
        value, *flags = self.trainer.strategy.reduce(told, reduce_op="sum").tolist()
        self.must_save, self.must_stop = (flag > 0 for flag in flags)
        if not math.isfinite(value):
            raise FineTuningError(
                f"The loss is {value} in step {progress.position + 1} of epoch {progress.epoch + 1}. Take lower rates: "
                f"training.learning_rate is {self.config.learning_rate}, training.head_learning_rate "
                f"{self.config.head_learning_rate}."
            )
        optimizer.step()
        progress.total += value * count
        self.log("loss", value, prog_bar=True, logger=False, batch_size=count)
        if (progress.step + 1) % LOG_EVERY == 0:
            self._row(loss=value)

    def _parts(self, batch: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Pictures (b, K, 3, H, W) and targets that go through the network at once.

        The statistics of batch normalization are those of what is seen at once: where they are trained, it is all.
        """
        size = PICTURES_ON_CPU if self.device.type == "cpu" and not self.config.batch_norm else len(batch["target"])
        parts = []
        for images, factors, targets in zip(
            *(batch[name].split(size) for name in ("images", "factors", "target")), strict=True
        ):
            # As they lie in memory, a pixel's colours side by side, which is the fastest order for convolutions.
            crops = images.permute(0, 1, 4, 2, 3).flatten(0, 1)
            if self.config.jitter > 0:
                crops = jitter(crops.float() / 255, factors.flatten(0, 1))
            parts.append((crops.unflatten(0, images.shape[:2]), targets))
        return parts

    @contextlib.contextmanager
    def _random(self, *where: int) -> Iterator[None]:
        """Draws of the network itself, such as dropout: the same wherever the training was stopped."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(mixed(self.plan.config.seed, *where, self.trainer.global_rank))
            yield

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """Gradients are not sent to other processes: they are once, with the last part."""
        if self.trainer.world_size == 1:
            return contextlib.nullcontext()
        return self.trainer.strategy.block_backward_sync()  # type: ignore[attr-defined]

    def on_train_batch_end(self, *_: Any) -> None:
        """Count the batch; save if it is time."""
        self.progress.position += 1
        self.progress.step += 1
        if self.progress.position == len(self.batches):
            return  # the end of the epoch is saved with its validation
        if self.must_save or self.must_stop:
            self.save()
        if self.must_stop:
            raise Stopped

    # ---- validation and the end of an epoch --------------------------------------------------------------------------

    def on_validation_epoch_start(self) -> None:
        """Forget the last one."""
        self.accuracy.reset()
        self.mean_loss.reset()

    def validation_step(self, batch: dict[str, Tensor], number: int) -> None:
        """Count what is right."""
        # Past the end of the split the last picture comes again: it does not count.
        share = len(range(self.trainer.global_rank, len(self.plan.validation or ()), self.trainer.world_size))
        kept = share - number * self._pictures_at_once()
        images, targets = batch["images"][:kept], batch["target"][:kept]
        if kept > 0:
            logits = self._logits(images).float()
            self.accuracy.update(logits, targets)
            self.mean_loss.update(nn.functional.cross_entropy(logits, targets, reduction="none"))

    def _logits(self, crops: Tensor) -> Tensor:  # shape: (B, K, 3, H, W) -> (B, classes)
        """On a CPU a few crops at a time, whose maps fit into its cache."""
        size = CPU_BATCH if crops.device.type == "cpu" else crops.shape[1]
        maps = torch.cat([self.model.maps(part) for part in crops.split(size, dim=1)], dim=1)
        return self.model.classify(self.model.pool(maps))

    def on_train_epoch_end(self) -> None:
        """Write down the epoch, choose it if it is the best, and save. Validation is done by now."""
        progress = self.progress
        progress.train_loss.append(progress.total / len(self.plan.train))
        found = {"train_loss": progress.train_loss[-1]}
        progress.epoch, progress.position, progress.total = progress.epoch + 1, 0, 0.0
        if self.plan.validation is not None:
            found["validation_loss"] = float(self.mean_loss.compute())
            found["validation_value"] = 100 * float(self.accuracy.compute())
            progress.validation_loss.append(found["validation_loss"])
            progress.validation_value.append(found["validation_value"])
            self._choose(found["validation_value"], found["validation_loss"])
        self._row(**found)
        self.save()
        if self.plan.show and self.trainer.is_global_zero:
            sys.stderr.write(f"{self._line(found)}\n")
        if self._is_to_stop() and progress.epoch < self.config.epochs:
            raise Stopped

    def _is_to_stop(self) -> bool:
        """Whether any process was asked to: all get the same answer."""
        asked = torch.tensor(float(self.stop.is_set() or self.trainer.received_sigterm), device=self.device)
        return float(self.trainer.strategy.reduce(asked, reduce_op="sum")) > 0

    def _choose(self, value: float, loss: float) -> None:
        best = self.progress.best
        # The higher value, of equal ones the lower loss, of equal ones the first.
        if best is None or (value, -loss) > (best["value"], -best["loss"]):
            weights = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
            self.progress.best = {"epoch": self.progress.epoch, "value": value, "loss": loss, "weights": weights}

    def _line(self, found: dict[str, float]) -> str:
        text = f"epoch {self.progress.epoch} of {self.config.epochs}: loss {found['train_loss']:.4f}"
        if "validation_value" not in found:
            return text
        return f"{text}, validation {found['validation_value']:.2f} %, loss {found['validation_loss']:.4f}"

    # ---- logs and checkpoints ----------------------------------------------------------------------------------------

    def on_train_start(self) -> None:
        """The file of a log begins anew: what was in it is written again."""
        if self.config.logger == "csv":
            for row in self.progress.rows:
                self._log(row)

    def _row(self, **values: float) -> None:
        row = {"step": self.progress.step, "epoch": self.progress.epoch, **values}
        self.progress.rows.append(row)
        self._log(row)

    def _log(self, row: dict[str, float]) -> None:
        if self.logger is not None:
            self.logger.log_metrics({key: value for key, value in row.items() if key != "step"}, step=int(row["step"]))

    def save(self) -> None:
        """Write the checkpoint; of several processes, the first does."""
        now = time.monotonic()
        self.progress.seconds += now - self.started
        self.saved = self.started = now
        self.trainer.save_checkpoint(self.plan.checkpoint, weights_only=False)
        if self.logger is not None:
            self.logger.save()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Put the progress in the place of Lightning's own, which does not know of batches that are skipped."""
        checkpoint.pop("loops")
        checkpoint[STATE] = {"facts": self.plan.facts, "progress": vars(self.progress)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on where it was saved."""
        self.progress = Progress(**checkpoint[STATE]["progress"])
        epochs: Any = self.trainer.fit_loop.epoch_progress.current
        epochs.ready = epochs.started = epochs.processed = epochs.completed = self.progress.epoch


class StateFiles(CheckpointIO):
    """Checkpoints that are whole or not there, and that can hold no code."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """Write atomically."""
        del storage_options
        save_state(path, checkpoint)

    def load_checkpoint(
        self, path: str | Path, map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read tensors and plain values, on the CPU."""
        del map_location, weights_only
        return load_state(path)

    def remove_checkpoint(self, path: str | Path) -> None:
        """Delete it."""
        Path(path).unlink(missing_ok=True)


def freeze_unused(model: ImageClassifier) -> None:
    """The network's own layers after the map get no gradient where the pool is another; no process waits for one."""
    if model.pool.head is None:
        model.backbone.head.requires_grad_(False)


def ignore_interrupts(_: int = 0) -> None:
    """For processes that end when the one that started them tells them to: Ctrl-C on a terminal goes to all."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
