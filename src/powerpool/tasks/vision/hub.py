"""Image classifiers in the format of transformers, which ``evaluate`` and ``predict`` read beside run folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from powerpool.data import ImageSplit
from powerpool.errors import PowerPoolError, RecordError, shown
from powerpool.files import read_json
from powerpool.integrations.backbones.hf import quiet_transformers
from powerpool.runs.engines import usable_cores
from powerpool.runs.folder import LARGEST_SPEC, MODEL, OLD_MODEL
from powerpool.tasks.vision.extraction import choose_device

CONFIG = "config.json"
BATCH = 16
"""Crops that are read at once."""


class _Processed(Dataset[Tensor]):
    """What an image processor makes of images."""

    def __init__(self, images: ImageSplit, processor: Any) -> None:
        self.images, self.processor = images, processor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        pixels: Tensor = self.processor(images=self.images.read(index), return_tensors="pt")["pixel_values"][0]
        return pixels


@dataclass(frozen=True, eq=False)
class HubModel:
    """A model in the format of transformers and its image processor."""

    model: Any
    """A :class:`powerpool.integrations.hub.PowerPoolForImageClassification`."""
    processor: Any

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        names = self.model.config.id2label
        return tuple(names[number] for number in range(len(names)))

    @property
    def method(self) -> str:
        """The class of the pool, and its curve."""
        pool = self.model.config.pool
        curve = pool.get("curve")
        return pool["class"] if curve is None else f"{pool['class']} with {curve['name']}"

    def logits(
        self, images: ImageSplit, workers: int | None = None, watch: Callable[[int], None] = lambda done: None
    ) -> Tensor:  # shape: (n, classes)
        """Return the logits of images; ``workers`` processes read them."""
        count = usable_cores() if workers is None else workers
        first = _Processed(images, self.processor)[0]
        size = max(1, BATCH // (first.shape[0] if first.ndim == 4 else 1))
        device, parts = choose_device("auto"), []
        model = self.model.eval().to(device)
        loader = DataLoader(_Processed(images, self.processor), size, num_workers=0 if len(images) <= BATCH else count)
        with torch.inference_mode():
            for pixels in loader:
                parts.append(model(pixels.to(device)).logits.cpu())
                watch(sum(map(len, parts)))
        return torch.cat(parts)


def is_hub_folder(folder: str | Path) -> bool:
    """Whether a folder has a model in the format of transformers, and no model of a run."""
    folder = Path(folder)
    return (folder / CONFIG).is_file() and not any((folder / name).exists() for name in (MODEL, OLD_MODEL))


def load_hub(folder: str | Path) -> HubModel:
    """Load a model and its image processor from a folder; nothing is downloaded, and no code of the folder is run."""
    from transformers import AutoImageProcessor

    from powerpool.integrations.hub import PowerPoolConfig, PowerPoolForImageClassification

    found = read_json(Path(folder, CONFIG), limit=LARGEST_SPEC)
    kind = found.get("model_type") if isinstance(found, dict) else None
    if kind != PowerPoolConfig.model_type:
        raise RecordError(f"{folder} has no model of powerpool: its model_type is {shown(kind)}, not powerpool.")
    try:
        with quiet_transformers():
            model = PowerPoolForImageClassification.from_pretrained(folder, local_files_only=True, use_safetensors=True)
            processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except PowerPoolError as error:
        raise RecordError(f"{folder} has a damaged model: {error}") from error
    except Exception as error:  # transformers and safetensors raise errors of many kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise RecordError(f"{folder} has no complete model of powerpool: {reason}.") from error
    return HubModel(model, processor)
