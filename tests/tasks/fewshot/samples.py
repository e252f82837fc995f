"""Small configurations and images that the tests of few-shot learning share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

from powerpool.data import FewShotSet, ImageBank
from powerpool.tasks.fewshot.config import EpisodeConfig, FewShotConfig, ModelConfig, TrainingConfig


def small_config(method: str = "SoSN(x)+SigmE", **changes: Any) -> FewShotConfig:
    """Images of 16 pixels, eight channels, two classes in an episode; ``changes`` replace fields, also of groups."""
    model = {"hidden": 8, **changes.pop("model", {})}
    test = {"way": 2, "count": 6, **changes.pop("test", {})}
    training = {
        "episodes": 6,
        "validate_every": 2,
        "validation_episodes": 4,
        "queries": 2,
        "settling_episodes": 3,
        "precision": "32-true",
        **changes.pop("training", {}),
    }
    fields = {"data": "stripes", "size": 16, "channels": 1, **changes}
    return FewShotConfig(
        model=ModelConfig(method, **model), test=EpisodeConfig(**test), training=TrainingConfig(**training), **fields
    )


def stripes(classes: int = 6, each: int = 8, size: int = 16, seed: int = 0) -> ImageBank:
    """Classes are directions of stripes; their images differ by phase and noise."""
    generator = torch.Generator().manual_seed(seed)
    angles = torch.arange(classes) * torch.pi / classes
    place = torch.arange(size, dtype=torch.float32)
    along = angles.cos()[:, None, None] * place + angles.sin()[:, None, None] * place[:, None]  # (classes, size, size)
    phases = torch.rand(classes, each, 1, 1, generator=generator) * 2 * torch.pi
    waves = 0.5 + 0.4 * torch.sin(1.2 * along[:, None] + phases)
    noisy = (waves + 0.05 * torch.randn(waves.shape, generator=generator)).clamp(0, 1)
    pixels = (255 * noisy).to(torch.uint8).flatten(0, 1)[:, None]
    targets = torch.arange(classes).repeat_interleave(each)
    names = tuple(f"{number}.png" for number in range(classes * each))
    return ImageBank(pixels, targets, tuple(f"angle {number}" for number in range(classes)), names)


def stripe_set(seed: int = 0) -> FewShotSet:
    """The same directions in every split, in other images."""
    splits = {name: stripes(seed=3 * seed + number) for number, name in enumerate(("train", "validation", "test"))}
    return FewShotSet("stripes", splits, f"digest {seed}")


def without_validation(data: FewShotSet) -> FewShotSet:
    return replace(data, splits={name: bank for name, bank in data.splits.items() if name != "validation"})


def write_folder(folder: Path, classes: int = 12, each: int = 6, size: int = 20) -> Path:
    """A custom folder of class folders: bars of a direction and place."""
    for label in range(classes):
        place = folder / f"bar{label:02d}"
        place.mkdir(parents=True, exist_ok=True)
        for number in range(each):
            image = Image.new("RGB", (size, size), (10 * number, 0, 0))
            start = 2 + label % 6 * 3
            box = (start, number % 3, start + 2, size - 1) if label < 6 else (number % 3, start, size - 1, start + 2)
            ImageDraw.Draw(image).rectangle(box, fill=(255, 255, 200 + number))
            image.save(place / f"{number}.png")
    return folder


def assert_same_weights(one: torch.nn.Module, two: torch.nn.Module) -> None:
    """Bit for bit."""
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
