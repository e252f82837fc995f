"""Training end to end as a task sees it: a training for each learning rate, of which validation selects one.

With ``search_epochs`` these trainings are short, and one more unit continues the selected one to the last epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from powerpool.console import is_quiet, print_note
from powerpool.data import ImageSet, check_images
from powerpool.integrations.backbones import load_backbone
from powerpool.runs.record import Chosen, Score, Trial
from powerpool.tasks.base import Unit, Watch
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.vision import frozen
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.extraction import SELECTION, extract
from powerpool.tasks.vision.finetuning import FineTuned, fine_tune
from powerpool.tasks.vision.inference import TrainedModel
from powerpool.tasks.vision.loop import CHECKPOINT, DivergedError
from powerpool.tasks.vision.model import ImageClassifier, require_rectified


@dataclass(frozen=True, eq=False)
class TunedModel:
    """A model that was trained end to end."""

    trained: TrainedModel
    fit: FineTuned


def list_units(config: VisionConfig, chain: int) -> list[Unit]:
    """Return a unit for each pair of learning rates."""
    return [Unit(chain, point) for point in range(len(config.training.rates))]


def further_unit(config: VisionConfig, chain: int, fits: Sequence[FineTuned], protocol: str) -> Unit | None:
    """Return the unit that continues the selected training to the last epoch; None if that is done."""
    training = config.training
    if not training.is_searched or any(fit.is_final for fit in fits):
        return None
    return Unit(chain, training.rates.index(select(fits).rates), protocol)


def train(
    config: VisionConfig, images: ImageSet, unit: Unit, checkpoint: Path | None, watch: Watch
) -> FineTuned | None:
    """Train with one of the pairs of learning rates; None if the loss diverges and there are others."""
    if checkpoint is None:
        raise ValueError("End-to-end training needs a folder for its checkpoint.")
    training, start = config.training, None
    rate, head = training.rates[unit.point]
    is_final = not training.is_searched or unit.protocol is not None
    epochs = training.search_epochs if training.search_epochs and not is_final else training.epochs
    if unit.protocol is not None:  # what the selection depends on stays as it was
        start = checkpoint.with_name(Unit(unit.chain, unit.point).name) / CHECKPOINT
    elif unit.point == 0 and not (checkpoint / CHECKPOINT).exists():
        for name, split in images.splits.items():  # an unreadable image fails now, not after hours
            check_images(split, "error", progress=partial(watch, f"checked images of {name}"))
    if len(training.rates) > 1:
        print_note(f"learning rates {rate:g} and {head:g}, {epochs} epochs")
    own = replace(training, learning_rate=rate, head_learning_rate=head, epochs=epochs)
    try:
        found = _train(replace(config, training=own), images, checkpoint, start, watch)
    except DivergedError as error:
        if unit.protocol is not None:
            raise DivergedError(
                f"{error} These rates were selected after {training.search_epochs} epochs: remove them from the lists, "
                "or raise training.search_epochs."
            ) from error
        if len(training.rates) == 1:
            raise
        print_note(str(error))
        return None
    return replace(found, is_final=is_final)


def _train(config: VisionConfig, images: ImageSet, checkpoint: Path, start: Path | None, watch: Watch) -> FineTuned:
    torch.manual_seed(config.seed)
    if config.training.warm_start:
        features = extract(config, images, needed=SELECTION, watch=watch)
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
    return fine_tune(config, network, chosen, validation, checkpoint, start=start, watch=watch, show=not is_quiet())


def select(fits: Sequence[FineTuned]) -> FineTuned:
    """Return the training with the highest validation accuracy; of equal ones, the one with the lowest loss.

    Where one was continued to the last epoch, it is the one that was selected.
    """
    if not fits:
        raise DivergedError(
            "The loss is not finite with any of the learning rates. Add lower ones to training.learning_rates or "
            "training.head_learning_rates."
        )
    final = [fit for fit in fits if fit.is_final] or fits
    return final[0] if len(final) == 1 else min(final, key=lambda fit: frozen.rank(_validation(fit)))


def list_trials(config: VisionConfig, fits: Sequence[FineTuned]) -> Iterator[Trial]:
    """Iterate over the learning rates, if values are listed, and the validation scores that a pair is selected by."""
    for fit in fits:
        rates, found = listed_rates(config, fit), fit.validation
        if rates and found is not None and not (config.training.is_searched and fit.is_final):
            yield Trial(rates, found.value, found.loss, fit.epoch)


def listed_rates(config: VisionConfig, fit: FineTuned) -> dict[str, Chosen]:
    """Return those of the learning rates of a training that the settings list values for."""
    return {name: getattr(fit, name) for name in config.training.listed_rates}


def describe_edges(config: VisionConfig, chosen: Mapping[str, Any]) -> str:
    """Return which selected learning rates are at an end of a list of at least three; empty if none."""
    edges = []
    for name in config.training.listed_rates:
        values = getattr(config.training, f"{name}s")
        if len(values) > 2 and chosen[name] in (min(values), max(values)):
            edges.append(f"{name} {chosen[name]:g}")
    return f"{' and '.join(edges)} at the edge of the range; a wider one may be better." if edges else ""


def count_seconds(fits: Sequence[FineTuned]) -> float:
    """Return the time of the trainings that have not diverged; that of a continued one contains its first epochs."""
    return sum({fit.rates: fit.seconds for fit in fits}.values())


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
