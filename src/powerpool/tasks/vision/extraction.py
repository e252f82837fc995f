"""Features of a frozen backbone: computed once for all images, and stored under a key of all that they depend on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.data import Crops, ImageDataset, ImageSet, ImageSplit, Splits, check_images, load_images
from powerpool.data.banks import DTYPES, FeatureStore, store_key
from powerpool.data.decoding import DECODER_VERSION
from powerpool.data.store import cache_folder
from powerpool.errors import ArgumentError, RecordError
from powerpool.files import locked, read_json, write_json
from powerpool.integrations.backbones import BACKBONES_VERSION, Backbone, fold_batch_norm, load_backbone
from powerpool.runs.engines import usable_cores
from powerpool.tasks.base import Watch, ignore_progress
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.model import normalize_images

VERSION = 1
"""Raised whenever the same image, crops and weights give other features: stored ones are then computed again."""
ITEMS = "items.json"
SPLITS = ("train", "validation", "test")
SELECTION = ("train", "validation")
"""The splits that settings are selected with."""
CPU_BATCH = 4
"""Crops that pass through the backbone at once on a CPU: their maps fit into its cache. Batches of 24 take twice as
long per crop."""
GPU_BATCH = 96
FLUSH_EVERY = 64
"""Images between two flushes of a store."""


@dataclass(eq=False)
class Latest:
    """What was computed last from the features, for the case that the same is needed next."""

    key: object = None
    value: object = None


@dataclass(frozen=True, eq=False)
class Features:
    """The stored feature maps of a data set, on which methods are trained and tested."""

    folder: Path
    facts: dict[str, Any]
    """What the features depend on: data, backbone, crops, precision, versions."""
    classes: tuple[str, ...]
    names: dict[str, tuple[str, ...]]
    targets: dict[str, Tensor]
    stores: dict[str, FeatureStore]
    prefix_tokens: int = 0
    """Of a vision transformer, see :class:`powerpool.integrations.backbones.Backbone`."""
    latest: Latest = field(default_factory=Latest, init=False, repr=False)

    @property
    def channels(self) -> int:
        """C of the maps."""
        return self.stores[SPLITS[0]].shape[1]

    def maps(self, split: str) -> Tensor:  # shape: (n, K, C, h, w)
        """Return the maps of a split, which are not copied into memory; an incomplete split is an error."""
        store = self.stores[split]
        if not store.is_complete:
            raise RecordError(
                f"{store.folder} contains features of {store.done} of {store.count} {split} images. Repeat the command "
                "that computed them, or one that needs them, such as powerpool reproduce vision."
            )
        return store.maps

    def labels(self, *splits: str) -> Tensor:
        """Return the classes of one or several splits."""
        return torch.cat([self.targets[split] for split in splits])


def read_images(config: VisionConfig) -> tuple[ImageSet, dict[str, list[str]]]:
    """Read the splits of a configuration, and the names of images that cannot be read and are skipped, by split."""
    seed = config.seed if config.split_seed is None else config.split_seed
    splits = Splits(validation=config.validation_share, test=config.test_share, seed=seed)
    images = load_images(
        config.data,
        config.data_root,
        download=config.download,
        splits=splits,
        strict=config.strict,
        table=config.split_file,
    )
    missing = [name for name in SPLITS if name not in images.splits]
    if missing:
        raise ArgumentError(
            f"{images.name} has no {' and no '.join(missing)} images, only {', '.join(images.splits)}. Add a folder "
            f"{missing[0]!r}, or put all classes into one folder without splits, which are then drawn."
        )
    if len(images.classes) < 2:
        raise ArgumentError(f"{images.name} has only one class, {images.classes[0]!r}. Training needs at least two.")
    if config.corrupt == "error":  # an image that cannot be read is an error where it is read
        return images, {}
    checked = {name: check_images(split, config.corrupt) for name, split in images.splits.items()}
    kept = {name: split for name, (split, _) in checked.items()}
    return replace(images, splits=kept), {name: skipped for name, (_, skipped) in checked.items() if skipped}


def extract(
    config: VisionConfig,
    images: ImageSet,
    *,
    needed: Sequence[str] = SPLITS,
    folder: Path | None = None,
    watch: Watch = ignore_progress,
) -> Features:
    """Return the feature maps of the needed splits, computing those that are not stored yet.

    A stopped extraction is resumed. A second process that wants the same maps is refused while one computes them.

    Args:
        config: backbone, crops, precision and number of workers.
        images: the images of all splits.
        needed: the splits to compute; the others may be computed later, into the same folder.
        folder: where the features are stored; default: the folder ``features`` of the cache.
        watch: called with the progress of each split.
    """
    backbone = load_backbone(config.backbone, download=config.download)
    splits = {name: images[name] for name in SPLITS}
    facts = {
        "data": images.name,
        "data_digest": images.digest,
        "backbone": config.backbone,
        "backbone_digest": backbone.digest(),
        "crops": config.crops.config,
        "stored": config.stored,
        "made_by": _made_by(),
        "pictures": store_key({name: split.names for name, split in splits.items()}),
    }
    place = (folder or cache_folder("features")) / f"{images.name}-{store_key(facts)}"
    with locked(place):
        size = config.crops.size
        network = freeze(backbone, size, config.accelerator)
        shape = (config.crops.count, *network(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1:])
        for name, split in splits.items():
            if name not in needed:
                continue
            store = FeatureStore(place / name, facts, count=len(split), shape=shape, dtype=config.stored)
            _fill(store, split, config.crops, network, config.workers, partial(watch, f"features of {name}"))
        items = {name: {"names": split.names, "targets": split.targets.tolist()} for name, split in splits.items()}
        own = {"shape": shape, "prefix_tokens": backbone.prefix_tokens}
        write_json(place / ITEMS, {"facts": facts, "classes": images.classes, **own, "splits": items})
    return open_features(place)


def _made_by() -> str:
    """Return a digest of the versions that crops and features depend on."""
    versions = [f"{name} {metadata.version(name)}" for name in ("torch", "pillow")]
    return store_key({"decoder": DECODER_VERSION, "backbones": BACKBONES_VERSION, "versions": versions})


def choose_device(accelerator: str) -> torch.device:
    """Return the device for networks: a GPU if there is one, unless the CPU was requested."""
    if accelerator == "gpu" and not torch.cuda.is_available():
        raise ArgumentError("accelerator must be cpu or auto on this machine (got gpu): torch finds no CUDA device.")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def open_features(folder: str | Path) -> Features:
    """Open stored features by their folder; neither images nor backbone are needed."""
    folder = Path(folder)
    found = read_json(folder / ITEMS)
    facts, splits = found["facts"], found["splits"]
    stores = {
        name: FeatureStore(folder / name, facts, count=len(split["names"]), shape=found["shape"], dtype=facts["stored"])
        for name, split in splits.items()
    }
    return Features(
        folder,
        facts,
        tuple(found["classes"]),
        {name: tuple(split["names"]) for name, split in splits.items()},
        {name: torch.tensor(split["targets"]) for name, split in splits.items()},
        stores,
        found.get("prefix_tokens", 0),  # version 0.1 had maps alone
    )


def find_features(data_digest: str, backbone_digest: str, crops: Crops, split: str) -> Features | None:
    """Return the newest features in the cache that have this split of the images; None if there are none."""
    wanted = {"data_digest": data_digest, "backbone_digest": backbone_digest, "crops": crops.config}
    for file in sorted(cache_folder("features").glob(f"*/{ITEMS}"), key=lambda path: -path.stat().st_mtime):
        with contextlib.suppress(RecordError, KeyError, TypeError):  # of another version, or incomplete
            facts = read_json(file)["facts"]
            if {name: facts[name] for name in wanted} == wanted:
                found = open_features(file.parent)
                found.maps(split)
                return found
    return None


class Frozen:
    """A folded backbone on a device, which turns bytes of crops into maps, a few crops at a time."""

    def __init__(self, backbone: Backbone, device: torch.device) -> None:
        self.backbone = backbone.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device
        self.batch = CPU_BATCH if device.type == "cpu" else GPU_BATCH
        self._mean, self._std = (torch.tensor(v, device=device).view(3, 1, 1) for v in (backbone.mean, backbone.std))

    def __call__(self, crops: Tensor) -> Tensor:  # shape: (n, 3, H, W) uint8 -> (n, C, h, w)
        """Return the maps, on the CPU."""
        parts = []
        with torch.inference_mode():
            for part in crops.split(self.batch):
                images = normalize_images(part.to(self.device), self._mean, self._std)
                parts.append(self.backbone(images.contiguous(memory_format=torch.channels_last)).cpu())
        return torch.cat(parts).contiguous()


def freeze(backbone: Backbone, size: int, accelerator: str) -> Frozen:
    """Return a folded copy of a backbone for crops of ``size`` pixels."""
    return Frozen(fold_batch_norm(backbone, torch.rand(1, 3, size, size)), choose_device(accelerator))


class _Maps(torch.utils.data.Dataset[Tensor]):
    """The maps of images, computed in the worker processes of a loader.

    Several processes with one thread each run a network on a CPU faster than one process with as many threads, which
    wait for one another after every layer.
    """

    def __init__(self, images: ImageDataset, network: Frozen, dtype: torch.dtype) -> None:
        self.images, self.network, self.dtype = images, network, dtype

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.network(self.images[index]["images"]).to(self.dtype)


def _fill(
    store: FeatureStore, split: ImageSplit, crops: Crops, network: Frozen, workers: int | None, watch: Any
) -> None:
    """Compute the maps that a store lacks."""
    watch(store.done, len(split))
    if store.is_complete:
        return
    rest = ImageDataset(split.select(range(store.done, len(split))), crops)
    flushed = store.done
    for maps in stream_maps(rest, network, workers, DTYPES[store.dtype]):
        store.append(maps)
        if store.done - flushed >= FLUSH_EVERY:
            store.flush()
            flushed = store.done
        watch(store.done, len(split))
    store.flush()


def stream_maps(
    images: ImageDataset, network: Frozen, workers: int | None, dtype: torch.dtype = torch.float32
) -> Iterator[Tensor]:  # shape: (n, K, C, h, w)
    """Compute the maps of images in their order, a few images at a time.

    Args:
        images: the images and their crops.
        network: the backbone.
        workers: processes that read images, and run the network on a CPU; 0 for none, None for the number of cores.
        dtype: of the maps.
    """
    count = usable_cores() if workers is None else workers
    size, ahead = max(1, GPU_BATCH // images.crops.count), 2 if count else None
    if network.device.type == "cpu" and count:
        computed = _Maps(images, network, dtype)
        yield from torch.utils.data.DataLoader(computed, size, num_workers=count, prefetch_factor=ahead)
        return
    for batch in torch.utils.data.DataLoader(images, size, num_workers=count, prefetch_factor=ahead):
        crops = batch["images"]
        yield network(crops.flatten(0, 1)).unflatten(0, crops.shape[:2])
