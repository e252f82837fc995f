"""A run folder of image classification: the configuration, the model that came out, and the record.

``config.yaml`` is the merged configuration, ``data.json`` says which pictures it is for, ``model.pt`` is the model with
all that is needed to read other pictures as those that it was trained on, ``record.json`` is what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.data import Crops, ImageDataset, ImageSplit
from powerpool.errors import PowerPoolError, RecordError
from powerpool.integrations.backbones import Backbone, fold_batch_norm, load_backbone
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.runs.folder import MODEL, missing_model
from powerpool.tasks.spectra import mean_spectrum, spread_out
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.extraction import Frozen, choose_device, stream_maps
from powerpool.tasks.vision.model import ImageClassifier

FORMAT = 1
FEW = 16
FROZEN_PARTS = ("backbone.", "pool.head.")
"""Weights that are not written where the backbone was not trained: its name stands for them."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, and how pictures are to be read for it.

    Example:
        >>> from powerpool.integrations.backbones import load_backbone
        >>> network = ImageClassifier(load_backbone("efficientnet-lite0"), PoolConfig("SOP"), classes=2)
        >>> model = TrainedModel(network, ("cat", "dog"), Crops(size=64, count=1))
        >>> model.network(torch.zeros(1, 1, 3, 64, 64)).shape
        torch.Size([1, 2])
    """

    network: ImageClassifier
    classes: tuple[str, ...]
    crops: Crops
    is_trained: bool = False
    """Whether the weights of the backbone were trained, too; else they are those that its name stands for."""

    @property
    def backbone(self) -> Backbone:
        """The part before the pool."""
        return self.network.backbone

    def logits(
        self,
        pictures: ImageSplit,
        workers: int | None = None,
        watch: Callable[[int], None] = lambda done: None,
        accelerator: str = "auto",
    ) -> Tensor:  # shape: (n, classes)
        """Of pictures in their order; workers as for :func:`powerpool.tasks.vision.extraction.extract`."""
        network, parts = self.network.eval().cpu(), []
        seen = self._maps(pictures, workers, accelerator)
        with torch.inference_mode():
            for maps in seen:
                parts.append(network.classify(network.pool(maps)))
                watch(sum(map(len, parts)))
        return torch.cat(parts)

    def spectrum(self, pictures: ImageSplit, accelerator: str = "auto") -> dict[str, Any] | None:
        """Of a part of the pictures, see :func:`powerpool.tasks.spectra.mean_spectrum`."""
        pool = self.network.eval().cpu().pool
        with torch.random.fork_rng(devices=[]):  # afterwards the stream of random numbers is as it was
            seen = self._maps(pictures.select(spread_out(len(pictures)).tolist()), 0, accelerator)
            with torch.inference_mode():
                return mean_spectrum(pool.normalization, (pool.feature_set(maps) for part in seen for maps in part))

    def _maps(self, pictures: ImageSplit, workers: int | None, accelerator: str) -> Iterator[Tensor]:
        """What the pool sees, in parts."""
        example = torch.rand(1, 3, self.crops.size, self.crops.size)
        frozen = Frozen(fold_batch_norm(self.backbone, example), choose_device(accelerator))
        # Few pictures are not worth the time that processes take to start.
        return stream_maps(ImageDataset(pictures, self.crops), frozen, 0 if len(pictures) < FEW else workers)

    def save(self, path: str | Path) -> None:
        """Write the model atomically. A backbone that was not trained is written as its name and digest."""
        weights = self.network.state_dict()
        if not self.is_trained:
            weights = {name: value for name, value in weights.items() if not name.startswith(FROZEN_PARTS)}
        state = {
            "format": FORMAT,
            "pipeline": "vision",
            "pool": asdict(self.network.pool.config),
            "crops": asdict(self.crops),
            "classes": list(self.classes),
            "backbone": {"name": self.backbone.name, "digest": self.backbone.digest(), "is_trained": self.is_trained},
            "weights": weights,
        }
        save_state(path, state)

    @classmethod
    def load(cls, path: str | Path, *, backbone: Backbone | None = None, download: bool = False) -> TrainedModel:
        """Read a model that :meth:`save` wrote.

        Args:
            path: the file.
            backbone: the network before the pool, where it is none that a name stands for.
            download: whether its weights may be fetched from the network.
        """
        state = load_state(path)
        if (state.get("pipeline"), state.get("format")) != ("vision", FORMAT):
            found = f"pipeline {state.get('pipeline')!r}, format {state.get('format')!r}"
            raise RecordError(f"{path} is no model of image classification: it has {found}, needed is format {FORMAT}.")
        try:
            facts, weights = state["backbone"], state["weights"]
            backbone = backbone or load_backbone(facts["name"], pretrained=not facts["is_trained"], download=download)
            network = ImageClassifier(backbone, PoolConfig(**state["pool"]), len(state["classes"]))
            missing, unexpected = network.load_state_dict(weights, strict=False)
            absent = [name for name in missing if facts["is_trained"] or not name.startswith(FROZEN_PARTS)]
            if absent or unexpected:
                raise RecordError(f"its weights do not fit: {', '.join([*absent, *unexpected][:3])}")
            if backbone.digest() != facts["digest"]:
                raise RecordError(
                    f"the weights that {facts['name']} stands for are others than those it was trained with. Install "
                    "the version of the backbone that the run had, or train again"
                )
            crops = Crops(**state["crops"])
            return cls(network.eval(), tuple(state["classes"]), crops, facts["is_trained"])
        except (KeyError, IndexError, TypeError, RuntimeError, PowerPoolError) as error:
            first = (str(error).splitlines() or [""])[0].rstrip(".")
            raise RecordError(f"{path} was not loaded: {first}.") from error


def load_run(folder: str | Path, *, download: bool = False) -> TrainedModel:
    """The model of a run folder."""
    folder = Path(folder)
    file = folder / MODEL
    if file.is_file():
        return TrainedModel.load(file, download=download)
    raise missing_model(folder, "vision", "image classification")
