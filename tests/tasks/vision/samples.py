"""Generated images, a tiny network and small configurations."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from powerpool.data import Crops
from powerpool.integrations import hub
from powerpool.integrations.backbones import Backbone
from powerpool.tasks.vision import extraction, frozen, inference, tuned
from powerpool.tasks.vision.config import PoolConfig, VisionConfig

CLASSES = ("across", "along", "[oblique]")
CHANNELS, HEAD_CHANNELS = 6, 9
GROUPS = 4
"""Classes of :func:`parallel_vectors` and :func:`noisy_maps`."""


def texture(kind: int, seed: int, side: int = 40) -> Image.Image:
    """Stripes of an angle that depends on the kind, with noise; no two are alike, and not all are square."""
    generator = torch.Generator().manual_seed(100 * kind + seed)
    height, width = side + seed % 3 * 4, side + seed % 2 * 8
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    angle, shift = math.pi * kind / len(CLASSES), float(6 * torch.rand(1, generator=generator))
    waves = torch.sin(0.8 * (x * math.cos(angle) + y * math.sin(angle)) + shift)
    pixels = 128 + 50 * waves[..., None] + 25 * torch.randn(height, width, 3, generator=generator)
    return Image.fromarray(pixels.clamp(0, 255).byte().numpy())


def write_images(folder: Path, count: int = 10, first: int = 0, classes: tuple[str, ...] = CLASSES) -> Path:
    """Write a folder of class folders with ``count`` images each."""
    for label in classes:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(first, first + count):
            texture(CLASSES.index(label), number).save(folder / label / f"{number:02d}.png")
    return folder


def tiny_backbone(seed: int = 0) -> Backbone:
    """Two convolutions with batch normalization that matters, and a head of its own."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=4, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, CHANNELS, 3), nn.ReLU()
        )
        body(torch.rand(16, 3, 32, 32))  # statistics
        head = nn.Sequential(nn.Conv2d(CHANNELS, HEAD_CHANNELS, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(1))
        return Backbone("tiny", body, CHANNELS, head=head, head_channels=HEAD_CHANNELS).eval()


def use_tiny(patch: pytest.MonkeyPatch, seed: int = 0) -> None:
    """Let every name of a backbone stand for the tiny one."""
    for module in (extraction, frozen, hub, inference, tuned):
        patch.setattr(module, "load_backbone", lambda name, **options: tiny_backbone(seed))
    patch.setattr(tuned, "digest_backbone", inspect.unwrap(tuned.digest_backbone))  # not cached


def small_config(data: Path | str, **changes: Any) -> VisionConfig:
    """32 pixels, an image and its mirror image, a cheap pool, a fixed grid, no worker processes."""
    fields: dict[str, Any] = {
        "backbone": "tiny",
        "crops": Crops(size=32, count=2, resize=32),
        "pool": PoolConfig("SOP+SC+SpecMaxExpF", eta=5, pivots=3),
        "accelerator": "cpu",
        "workers": 0,
        "widen": 0,
    }
    return VisionConfig(data=str(data), **(fields | changes))


def parallel_vectors(count: int, width: int = 300, seed: int = 0, spread: float = 0.05) -> tuple[Tensor, Tensor]:
    """Unit vectors of classes that differ little, as those of images do: their cosines are near 1."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % GROUPS
    classes = torch.randn(GROUPS, width, generator=torch.Generator().manual_seed(7))
    noise = torch.randn(count, width, generator=draw)
    vectors = 1 + spread * classes[targets] + 2 * spread * noise
    return nn.functional.normalize(vectors, dim=-1), targets


def noisy_maps(count: int, channels: int, seed: int = 0) -> tuple[Tensor, Tensor]:  # shapes: (n, 1, C, 2, 2), (n,)
    """Stored maps of classes whose channels have other variances."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % GROUPS
    scales = 0.8 + 0.4 * torch.rand(GROUPS, channels, generator=torch.Generator().manual_seed(7))
    maps = torch.randn(count, 1, channels, 2, 2, generator=draw) * scales[targets][:, None, :, None, None]
    return maps.half(), targets
