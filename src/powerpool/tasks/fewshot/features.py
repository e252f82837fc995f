"""Vectors of images from a frozen backbone: maps of crops, pooled as one set, and the dot products of all images."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from powerpool.data import ImageDataset, ImageSplit
from powerpool.data.banks import DTYPES, FeatureStore, store_key
from powerpool.data.decoding import DECODER_VERSION
from powerpool.data.store import cache_folder
from powerpool.files import locked
from powerpool.integrations.backbones import BACKBONES_VERSION, Backbone, fold_batch_norm, load_backbone
from powerpool.tasks.base import Watch, ignore_progress
from powerpool.tasks.fewshot.feature_config import FeatureConfig

BATCH = 4
"""Crops that pass through the backbone at once: on a CPU their maps fit into its cache."""
POOLED = 8
"""Images that are pooled at once."""
BLOCK = 2048
"""Images whose vectors are in memory at once, 0.4 GB of 320 channels; more images are pooled again, block by block."""
STORED: Literal["float16"] = "float16"
FLUSH_EVERY = 64


class FrozenBackbone:
    """A folded backbone that turns the crops of an image into maps.

    Args:
        config: which backbone, and the crops.
        download: whether weights that are not on this machine may be downloaded.
    """

    def __init__(self, config: FeatureConfig, *, download: bool = False) -> None:
        name = f"hf:{config.backbone}" if Path(config.backbone).is_dir() else config.backbone
        backbone = load_backbone(name, download=download)
        self.name, self.crops, self.digest = config.backbone, config.layout, backbone.digest()
        self.mean, self.std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.mean, backbone.std))
        folded: Backbone = fold_batch_norm(backbone, torch.rand(1, 3, config.size, config.size))
        self.network: nn.Module = folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.channels = backbone.channels

    @torch.inference_mode()
    def __call__(self, crops: Tensor) -> Tensor:  # shape: (K, 3, H, W) uint8 -> (K, C, h, w)
        """Return the maps of crops."""
        parts = []
        for part in crops.split(BATCH):
            images = (part.float() / 255 - self.mean) / self.std
            parts.append(self.network(images.contiguous(memory_format=torch.channels_last)))
        return torch.cat(parts).contiguous()

    def stream(self, split: ImageSplit, start: int = 0) -> Iterator[Tensor]:  # shapes: (K, C, h, w)
        """Compute the maps of images one after the other, from a place on."""
        images = ImageDataset(split, self.crops)
        return (self(images[place]["images"]) for place in range(start, len(split)))


def pool_images(
    config: FeatureConfig, backbone: FrozenBackbone, split: ImageSplit, what: str, watch: Watch
) -> Tensor:  # shape: (n, D)
    """Return the vectors of images, without storing anything."""
    pool, found = config.make_pool(backbone.channels), []
    with torch.inference_mode():
        for number, maps in enumerate(backbone.stream(split), 1):
            found.append(pool(maps[None]))
            watch(what, number, len(split))
    return torch.cat(found)


def store_maps(
    backbone: FrozenBackbone, split: ImageSplit, data_digest: str, name: str, watch: Watch = ignore_progress
) -> Tensor:  # shape: (n, K, C, h, w), float16, memory-mapped
    """Return the maps of a split, computing those that are not in the cache yet; a stopped extraction is resumed."""
    versions = [f"{package} {metadata.version(package)}" for package in ("torch", "pillow")]
    facts = {
        "data_digest": data_digest,
        "images": store_key({"names": split.names}),
        "backbone_digest": backbone.digest,
        "crops": backbone.crops.config,
        "made_by": store_key({"decoder": DECODER_VERSION, "backbones": BACKBONES_VERSION, "versions": versions}),
    }
    folder = cache_folder("features") / f"fewshot-{store_key(facts)}"
    example = torch.zeros(1, 3, backbone.crops.size, backbone.crops.size, dtype=torch.uint8)
    shape = (backbone.crops.count, *backbone(example).shape[1:])
    show = partial(watch, f"features of {name}")
    with locked(folder):
        store = FeatureStore(folder, facts, count=len(split), shape=shape, dtype=STORED)
        for maps in () if store.is_complete else backbone.stream(split, store.done):
            store.append(maps[None].to(DTYPES[STORED]))
            if store.done % FLUSH_EVERY == 0 or store.is_complete:
                store.flush()
            show(store.done, store.count)
        return store.open_maps(shared=False)


def dot_products(config: FeatureConfig, maps: Tensor, watch: Watch = ignore_progress) -> Tensor:  # shape: -> (n, n)
    """Pool stored maps, and return the dot products of all images, in float64.

    Sums are over vectors minus their common mean direction, because those of unpowered matrices are nearly parallel and
    float32 would not tell them apart. Nearest means, and regression on centred vectors, do not depend on the origin.
    """
    pool = config.make_pool(maps.shape[2])
    starts = range(0, len(maps), BLOCK)
    origin = _pool(pool, maps[:: max(1, len(maps) // 64)]).mean(0)
    found = torch.empty(len(maps), len(maps), dtype=torch.float64)
    done, total = 0, sum(len(starts) - number for number in range(len(starts)))
    for number, start in enumerate(starts):
        rows = slice(start, min(start + BLOCK, len(maps)))
        own = _pool(pool, maps[rows]) - origin
        for other in starts[number:]:
            columns = slice(other, min(other + BLOCK, len(maps)))
            theirs = own if other == start else _pool(pool, maps[columns]) - origin
            product = (own @ theirs.T).double()
            found[rows, columns], found[columns, rows] = product, product.T
            done += 1
            watch(f"blocks of {config.method}", done, total)
    return found


@torch.inference_mode()
def _pool(pool: nn.Module, maps: Tensor) -> Tensor:  # shape: (n, K, C, h, w) -> (n, D)
    return torch.cat([pool(part.float()) for part in maps.split(POOLED)])
