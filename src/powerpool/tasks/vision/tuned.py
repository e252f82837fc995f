"""Training end to end as a task sees it: a training for each learning rate, of which validation selects one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch

from powerpool.console import is_quiet, print_note
from powerpool.data import ImageSet, check_images
from powerpool.integrations.backbones import load_backbone
from powerpool.runs.record import Score, Trial
from powerpool.tasks.base import Watch
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.vision import frozen
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.extraction import extract
from powerpool.tasks.vision.finetuning import FineTuned, fine_tune
from powerpool.tasks.vision.inference import TrainedModel
from powerpool.tasks.vision.loop import CHECKPOINT, DivergedError
from powerpool.tasks.vision.model import ImageClassifier, require_rectified


@dataclass(frozen=True, eq=False)
class TunedModel:
    """A model that was trained end to end."""

    trained: TrainedModel
    fit: FineTuned


def list_trainings(config: VisionConfig) -> list[VisionConfig]:
    """Return the settings of the trainings: one for each learning rate.

    Example:
        >>> from powerpool.tasks.vision.config import FineTuningConfig
        >>> rates = FineTuningConfig(learning_rate=0.001, head_learning_rate=0.01, learning_rates=[0.001, 0.004])
        >>> [one.training.head_learning_rate for one in list_trainings(VisionConfig(training=rates))]
        [0.01, 0.04]
    """
    training, found = config.training, []
    for rate in training.learning_rates or [training.learning_rate]:
        head = training.head_learning_rate * (rate / training.learning_rate)  # unchanged for the same rate
        found.append(replace(config, training=replace(training, learning_rate=rate, head_learning_rate=head)))
    return found


def train(
    config: VisionConfig, images: ImageSet, point: int, checkpoint: Path | None, watch: Watch
) -> FineTuned | None:
    """Train with one of the learning rates; None if the loss diverges and there are others."""
    configs = list_trainings(config)
    config = configs[point]
    if checkpoint is None:
        raise ValueError("End-to-end training needs a folder for its checkpoint.")
    if not (checkpoint / CHECKPOINT).exists():  # an unreadable image fails now, not after hours
        for name, split in images.splits.items():
            check_images(split, "error", progress=partial(watch, f"checked images of {name}"))
    torch.manual_seed(config.seed)
    if config.training.warm_start:
        features = extract(config, images, watch=watch)
        network = frozen.train_network(config, features, checkpoint.with_name("warm-start"), watch)
    else:
        backbone = load_backbone(config.backbone, pretrained=config.pretrained, download=config.download)
        if VISION_METHODS[config.pool.method].norm.nonnegative:
            own = torch.Generator().manual_seed(0)  # the global one would change what the seed means
            with torch.no_grad():
                example = backbone(torch.randn(1, 3, config.crops.size, config.crops.size, generator=own))
            require_rectified(config.pool.method, example, config.backbone)
        network = ImageClassifier(backbone, config.pool, len(images.classes))
    on_all = config.training.validation == "train"
    chosen = images["train"] + images["validation"] if on_all else images["train"]
    validation = None if on_all else images["validation"]
    try:
        return fine_tune(config, network, chosen, validation, checkpoint, watch=watch, show=not is_quiet())
    except DivergedError as error:
        if len(configs) == 1:
            raise
        print_note(f"learning rate {config.training.learning_rate:g}: {error}")
        return None


def select(fits: Sequence[FineTuned]) -> FineTuned:
    """Return the training with the highest validation accuracy; of equal ones, the one with the lowest loss."""
    if not fits:
        raise DivergedError("The loss is not finite with any of training.learning_rates. Add lower ones.")
    return fits[0] if len(fits) == 1 else min(fits, key=lambda fit: frozen.rank(_validation(fit)))


def list_trials(fits: Sequence[FineTuned]) -> Iterator[Trial]:
    """Iterate over the learning rates and their validation scores."""
    for fit in fits:
        found = _validation(fit)
        yield Trial({"learning_rate": fit.learning_rate}, found.value, found.loss, fit.epoch)


def _validation(fit: FineTuned) -> Score:
    assert fit.validation is not None  # several learning rates need validation images
    return fit.validation


@cache
def digest_backbone(name: str, download: bool, seed: int | None) -> str:
    """Return the digest of a backbone, with random weights where there is a seed.

    It is cached, because settings are compared for every unit.
    """
    if seed is None:
        return load_backbone(name, download=download).digest()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return load_backbone(name, pretrained=False, download=download).digest()
