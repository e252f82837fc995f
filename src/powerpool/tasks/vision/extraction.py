"""The frozen backbone runs once over all pictures; its maps are stored, with a key of all that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.data import Crops, ImageDataset, ImageSet, ImageSplit
from powerpool.data.decoding import DECODER_VERSION
from powerpool.data.features import DTYPES, FeatureStore, store_key
from powerpool.data.store import cache_folder
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import locked, read_json, write_json
from powerpool.integrations.backbones import BACKBONES_VERSION, Backbone, fold_batch_norm, load_backbone
from powerpool.runs.processes import usable_cores
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.model import normalize_pictures

ITEMS = "items.json"
SPLITS = ("train", "validation", "test")
CPU_BATCH = 4
"""Crops that go through the backbone at once on a CPU: their maps still fit into its cache. Batches of 24 take twice
as long for each crop."""
GPU_BATCH = 96
FLUSH_EVERY = 64
"""Pictures after which what is done is made safe."""

Watcher = Callable[[str, int, int], None]
"""Is told the split, and how many of its pictures are done, of how many."""


@dataclass(frozen=True, eq=False)
class Features:
    """The stored maps of a data set: what methods are trained and tested on."""

    folder: Path
    facts: dict[str, Any]
    classes: tuple[str, ...]
    names: dict[str, tuple[str, ...]]
    targets: dict[str, Tensor]
    stores: dict[str, FeatureStore]

    @property
    def channels(self) -> int:
        """C of the maps."""
        return self.stores[SPLITS[0]].shape[1]

    def maps(self, *splits: str) -> Tensor:  # shape: (n, K, C, h, w)
        """The maps of one or several splits; of one, they are not copied into memory."""
        found = [self.stores[split].maps for split in splits]
        return found[0] if len(found) == 1 else torch.cat(found)

    def labels(self, *splits: str) -> Tensor:
        """The classes of one or several splits."""
        return torch.cat([self.targets[split] for split in splits])


def extract(
    config: VisionConfig,
    images: ImageSet,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    watch: Watcher = lambda split, done, count: None,
) -> Features:
    """The maps of all splits, computed where they are not stored yet.

    A run that was stopped goes on where it was; two processes that want the same maps do not write them twice.

    Args:
        config: backbone, crops, precision of what is stored.
        images: the pictures.
        folder: where stores lie; features in the cache folder without it.
        workers: processes that read and crop pictures, and on a CPU run the backbone on them, too, each on one thread;
            0 for none; as many as there are usable cores without it.
        watch: called as pictures are done.
    """
    usable_workers(workers)  # a wrong number shows before anything is read
    backbone = load_backbone(config.backbone, download=config.download)
    facts = {
        "data": images.name,
        "data_digest": images.digest,
        "backbone": config.backbone,
        "backbone_digest": backbone.digest(),
        "crops": config.crops.config,
        "stored": config.stored,
        "made_by": _made_by(),
    }
    splits = {name: images[name] for name in SPLITS}
    facts["pictures"] = store_key({name: split.names for name, split in splits.items()})
    place = (folder or cache_folder("features")) / f"{images.name}-{store_key(facts)}"
    with locked(place):
        example = torch.rand(1, 3, config.crops.size, config.crops.size)
        network = Frozen(fold_batch_norm(backbone, example), choose_device(config.accelerator))
        shape = (config.crops.count, *network(torch.zeros(1, 3, *example.shape[2:], dtype=torch.uint8)).shape[1:])
        for name, split in splits.items():
            store = FeatureStore(place / name, facts, count=len(split), shape=shape, dtype=config.stored)
            _fill(store, split, config.crops, network, workers, partial(_tell, watch, name, len(split)))
        items = {name: {"names": split.names, "targets": split.targets.tolist()} for name, split in splits.items()}
        write_json(place / ITEMS, {"facts": facts, "classes": images.classes, "shape": shape, "splits": items})
    return open_features(place)


@cache
def _made_by() -> str:
    """A digest of the versions that crops and features depend on."""
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "pillow")]
    return store_key({"decoder": DECODER_VERSION, "backbones": BACKBONES_VERSION, "versions": versions})


def choose_device(accelerator: str) -> torch.device:
    """Where networks run: on a GPU where there is one, unless the CPU is asked for."""
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise ArgumentError("accelerator must be cpu or auto on this machine (got gpu): torch sees no CUDA device.")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def usable_workers(workers: int | None) -> int:
    """How many processes read pictures: as many as there are usable cores where it is not said."""
    if workers is not None and workers < 0:
        raise ArgumentError(f"workers must be at least 0 (got {workers}).")
    return usable_cores() if workers is None else workers


def _tell(watch: Watcher, split: str, count: int, done: int) -> None:
    watch(split, done, count)


def open_features(folder: str | Path) -> Features:
    """Stored maps by their folder, without the pictures and the backbone."""
    folder = Path(folder)
    found = read_json(folder / ITEMS)
    facts, splits = found["facts"], found["splits"]
    stores = {
        name: FeatureStore(folder / name, facts, count=len(split["names"]), shape=found["shape"], dtype=facts["stored"])
        for name, split in splits.items()
    }
    for name, store in stores.items():
        if not store.is_complete:
            raise RecordError(
                f"{store.folder} holds {store.done} of the {store.count} pictures of {name}: extract again."
            )
    return Features(
        folder,
        facts,
        tuple(found["classes"]),
        {name: tuple(split["names"]) for name, split in splits.items()},
        {name: torch.tensor(split["targets"]) for name, split in splits.items()},
        stores,
    )


class Frozen:
    """A folded backbone on a device: bytes of crops in, maps out, a few crops at a time."""

    def __init__(self, backbone: nn.Module, device: torch.device) -> None:
        if not isinstance(backbone, Backbone):
            raise TypeError(f"Frozen takes a Backbone (got {type(backbone).__name__}).")
        self.backbone = backbone.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device
        self.batch = CPU_BATCH if device.type == "cpu" else GPU_BATCH
        self._mean, self._std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (backbone.mean, backbone.std))

    def __call__(self, crops: Tensor) -> Tensor:  # shape: (n, 3, H, W) uint8 -> (n, C, h, w)
        """The maps, on the CPU."""
        parts = []
        with torch.inference_mode():
            for part in crops.split(self.batch):
                pictures = normalize_pictures(part.to(self.device), self._mean, self._std)
                parts.append(self.backbone(pictures.contiguous(memory_format=torch.channels_last)).cpu())
        return torch.cat(parts).contiguous()


class _Maps(torch.utils.data.Dataset[Tensor]):
    """The maps of pictures, computed where they are asked for: in the worker processes of a loader.

    A network on a CPU is faster in several processes of one thread each than in one process with as many threads,
    which wait for one another after every layer.
    """

    def __init__(self, pictures: ImageDataset, network: Frozen, dtype: torch.dtype) -> None:
        self.pictures, self.network, self.dtype = pictures, network, dtype

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Tensor:
        return self.network(self.pictures[index]["images"]).to(self.dtype)


def _fill(
    store: FeatureStore,
    split: ImageSplit,
    crops: Crops,
    network: Frozen,
    workers: int | None,
    watch: Callable[[int], None],
) -> None:
    """Compute what a store lacks."""
    watch(store.done)
    if store.is_complete:
        return
    rest = ImageDataset(split.select(range(store.done, len(split))), crops)
    since = 0
    for maps in stream_maps(rest, network, workers, DTYPES[store.dtype]):
        store.append(maps)
        since += len(maps)
        if since >= FLUSH_EVERY:
            store.flush()
            since = 0
        watch(store.done)
    store.flush()


def stream_maps(
    pictures: ImageDataset, network: Frozen, workers: int | None, dtype: torch.dtype = torch.float32
) -> Iterator[Tensor]:  # shape: (n, K, C, h, w)
    """The maps of pictures in their order, a few pictures at a time; workers as for :func:`extract`."""
    count = usable_workers(workers)
    size = max(1, GPU_BATCH // pictures.crops.count)
    ahead = 2 if count else None
    if network.device.type == "cpu" and count:
        dataset = _Maps(pictures, network, dtype)
        yield from torch.utils.data.DataLoader(dataset, size, num_workers=count, prefetch_factor=ahead)
        return
    for batch in torch.utils.data.DataLoader(pictures, size, num_workers=count, prefetch_factor=ahead):
        crops = batch["images"]
        yield network(crops.flatten(0, 1)).unflatten(0, crops.shape[:2])
