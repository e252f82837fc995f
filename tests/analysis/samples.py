"""Features and models that several tests share."""

from __future__ import annotations

import torch
from torch import nn

import powerpool as pp


def make_features(samples: int = 4, channels: int = 6, locations: int = 30, seed: int = 0) -> torch.Tensor:
    """Correlated random features."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.rand(channels, channels, generator=generator)
    return mix @ torch.rand(samples, channels, locations, generator=generator)


def make_network(pool: nn.Module | None = None) -> nn.Sequential:
    """A network with dropout and with batch normalization that is fixed in evaluation mode; the pool is module 4."""
    pool = pp.nn.SecondOrderPool2d(6, pp.MaxExp(eta=5), coordinates=3) if pool is None else pool
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), pool)
    model[1].eval()
    return model


def make_loader(batches: int = 3, size: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of images and labels."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(size, 3, 9, 8, generator=generator), torch.zeros(size)) for _ in range(batches)]
