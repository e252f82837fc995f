"""Images and a tiny network for tests of end-to-end training; as a script, a training to kill, or for torchrun."""

from __future__ import annotations

import io
import os
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from powerpool.data import Crops, ImageSplit, Limits
from powerpool.data.archives import FileTree
from powerpool.data.shards import list_shards
from powerpool.integrations.backbones import load_backbone
from powerpool.tasks.vision.config import FineTuningConfig, PoolConfig, VisionConfig
from powerpool.tasks.vision.finetuning import FineTuned, fine_tune
from powerpool.tasks.vision.model import ImageClassifier

CLASSES = 3


def images(folder: Path, count: int, seed: int = 0) -> ImageSplit:
    """Noise of a different colour for each class, in images of different shapes."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(count):
        shape = (40 + number % 3 * 8, 48 - number % 2 * 12, 3)
        pixels = torch.randint(0, 100, shape, generator=generator, dtype=torch.uint8)
        pixels[..., number % CLASSES] += 80
        file = folder / f"{number}.png"
        Image.fromarray(pixels.numpy()).save(file)
        names.append(str(file))
    return ImageSplit(tuple(names), torch.arange(count) % CLASSES, tuple(names))


def network(method: str = "SOP+SigmE", dropout: float = 0.1) -> ImageClassifier:
    """Two convolutions with batch normalization and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = (nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(dropout))
        body = nn.Sequential(*layers, nn.Conv2d(6, 5, 3, stride=2), nn.ReLU())
        return ImageClassifier(load_backbone(body), PoolConfig(method), CLASSES)


def small_config(seed: int = 0, crops: Crops | None = None, **changes: Any) -> VisionConfig:
    """16 pixels, two crops, three epochs of batches of four; ``changes`` are of the training."""
    fields = {"epochs": 3, "batch_size": 4, "crops": 2, "learning_rate": 1e-3, "head_learning_rate": 1e-2, **changes}
    return VisionConfig(
        mode="end-to-end",
        crops=crops or Crops(size=16, count=2),
        training=FineTuningConfig(**fields),
        accelerator="cpu",
        workers=0,
        seed=seed,
    )


def with_training(config: VisionConfig, **changes: Any) -> VisionConfig:
    return replace(config, training=replace(config.training, **changes))


def train(folder: Path, config: VisionConfig, model: ImageClassifier | None = None, **options: Any) -> FineTuned:
    """Train on 13 images and validate on 7."""
    data = folder.parent / "images"
    options = {"show": False, "checkpoint_minutes": 60.0, **options}
    model = network() if model is None else model
    return fine_tune(
        config, model, images(data / "train", 13), images(data / "validation", 7, seed=1), folder, **options
    )


def note_writes(file: Path) -> None:
    """Record the paths that this process writes to."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        flags = arguments[2] if event == "open" else 0
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes or event in ("os.rename", "os.mkdir", "os.remove"):
            os.write(handle, f"{event} {arguments[0]} {arguments[1]}\n".encode())

    sys.addaudithook(note)


def pack(folder: Path) -> None:
    """Write the images of a folder into a shard beside it."""
    with tarfile.open(folder.with_suffix(".tar"), "w") as shard:
        for number in range(len(list(folder.iterdir()))):
            shard.add(folder / f"{number}.png", f"{number}.png")
            label = tarfile.TarInfo(f"{number}.cls")
            label.size = 1
            shard.addfile(label, io.BytesIO(str(number % CLASSES).encode()))


def packed(shard: Path) -> ImageSplit:
    """Return the images of a shard."""
    found = list_shards(FileTree(shard.parent, [shard.name]), Limits())
    targets = [int(image.label) for image in found.images]
    return ImageSplit(tuple(found.sources), torch.tensor(targets), tuple(found.sources.values()))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if "RANK" in os.environ:
        note_writes(Path(sys.argv[2], f"rank-{os.environ['RANK']}"))
        splits = [packed(folder.parent / "images" / name) for name in ("train.tar", "validation.tar")]
        config = small_config(epochs=2, batch_size=5, jitter=0.2)
        fine_tune(config, network(dropout=0.0), *splits, folder, show=False)
    else:
        train(folder, replace(small_config(jitter=0.2), workers=1), checkpoint_minutes=0.0)
