"""Image banks: all images of a split, decoded once into one tensor, from which episodes take rows."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from powerpool.data.decoding import DECODER_VERSION, Crops
from powerpool.data.features import FeatureStore, store_key
from powerpool.data.images import Corrupt, ImageIndexError, ImageSplit, refuse_corrupt
from powerpool.data.store import ImageError, cache_folder, default_threads
from powerpool.errors import ArgumentError, DTypeError, LockedError, ShapeError, require_choice
from powerpool.files import locked, read_json, write_json

Resize = Literal["squeeze", "crop"]
"""How an image becomes a square: squeezed as a whole, or cropped in the middle."""
BAD = "bad.json"
"""The rows of a bank that could not be decoded; their pixels are zeros."""
CHUNK = 512
"""Number of images after which decoded images are written to the disk."""
PAUSE = 0.2
"""Seconds between two looks at the progress of another process."""

Progress = Callable[[int, int], None]
"""Called with the number of decoded images and of all."""


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value
class ImageBank:
    """All images of a split, decoded to one size.

    Example:
        >>> import torch
        >>> from powerpool.data import load_fewshot
        >>> bank = load_fewshot("digits", size=16, channels=1)["test"]
        >>> bank
        ImageBank(360 images of 2 classes, 1 x 16 x 16)
        >>> bank.batch(torch.tensor([[0, 1, 2], [3, 4, 5]])).shape
        torch.Size([2, 3, 1, 16, 16])
    """

    images: Tensor  # shape: (n, channels, size, size), uint8; memory-mapped if they come from the cache
    targets: Tensor  # shape: (n,), class numbers in the whole data set
    classes: tuple[str, ...]
    """The names of all classes of the data set, including those of other splits."""
    names: tuple[str, ...]
    """The name of each image."""
    mean: Tensor | None = None  # shape: (channels, size, size), or (G, channels, size, size) with groups; float32
    """The mean image to subtract, or one for each group, with values in [0, 1]."""
    groups: Tensor | None = None  # shape: (n,), from 0 to G - 1
    """The group of each image, if there are several means."""

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8:
            raise DTypeError(f"images must be torch.uint8 (got {self.images.dtype}).")
        if self.images.ndim != 4 or self.images.shape[2] != self.images.shape[3]:
            raise ShapeError(f"images must have shape (n, channels, size, size) (got {tuple(self.images.shape)}).")
        if self.targets.shape != (len(self.images),) or len(self.names) != len(self.images):
            raise ShapeError(
                f"images, targets and names must have the same length (got {len(self.images)}, "
                f"{tuple(self.targets.shape)} and {len(self.names)})."
            )
        if self.mean is not None and self.mean.shape[-3:] != self.images.shape[1:]:
            raise ShapeError(f"mean must have shape {tuple(self.images.shape[1:])} (got {tuple(self.mean.shape)}).")

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.images.shape[1:]))
        return f"ImageBank({len(self)} images of {len(self.targets.unique())} classes, {shape})"

    @property
    def pictures(self) -> Tensor:
        """The old name of ``images``."""
        warnings.warn("ImageBank.pictures is now ImageBank.images.", DeprecationWarning, stacklevel=2)
        return self.images

    @property
    def channels(self) -> int:
        """1 for luminance, 3 for RGB."""
        return self.images.shape[1]

    @property
    def size(self) -> int:
        """Width and height in pixels."""
        return self.images.shape[2]

    def batch(self, rows: Tensor, turns: Tensor | None = None) -> Tensor:  # shape: (*S) -> (*S, channels, size, size)
        """Return images as float32 in [0, 1], minus the mean if there is one.

        Args:
            rows: the rows of the images, of any shape.
            turns: counter-clockwise quarter turns, of a shape that broadcasts to that of ``rows``, for instance
                ``batch(episode.query, episode.turns[:, None])``.
        """
        if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
            raise DTypeError(f"rows must be integers (got {rows.dtype}).")
        flat = rows.reshape(-1).long()
        if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) < len(self):
            wrong = int(flat.min()) if int(flat.min()) < 0 else int(flat.max())
            raise ImageIndexError(f"The bank has images 0 to {len(self) - 1} (got {wrong}).")
        images = self.images.index_select(0, flat).float().div_(255)
        if self.mean is not None:
            images -= self.mean if self.groups is None else self.mean[self.groups[flat]]
        if turns is not None:
            _turn(images, turns.expand(rows.shape).reshape(-1))
        return images.view(*rows.shape, *images.shape[1:])

    def centred(self, groups: Tensor | None = None) -> ImageBank:
        """Return a bank that subtracts the mean image.

        Args:
            groups: a number for each image, (n,), to subtract the mean of each group instead.
        """
        if groups is None:
            return replace(self, mean=mean_image(self.images), groups=None)
        numbers, places = groups.unique(return_inverse=True)
        means = [mean_image(self.images[places == place]) for place in range(len(numbers))]
        return replace(self, mean=torch.stack(means), groups=places)


def mean_image(images: Tensor) -> Tensor:  # shape: (n, channels, size, size) uint8 -> (channels, size, size)
    """Return the mean image in [0, 1]; integer sums make it independent of the order."""
    if len(images) == 0:
        raise ShapeError("The mean image needs at least one image (got none).")
    total = torch.zeros(images.shape[1:], dtype=torch.int64)
    for part in images.split(CHUNK):
        total += part.sum(0, dtype=torch.int64)
    return (total.double() / (255 * len(images))).float()


def _turn(images: Tensor, turns: Tensor) -> None:  # shapes: (n, channels, size, size), (n,)
    """Rotate images in place."""
    for quarter in (1, 2, 3):
        chosen = (turns % 4 == quarter).nonzero().flatten()
        if len(chosen):
            images[chosen] = images[chosen].rot90(quarter, (-2, -1))


# ---- decoding --------------------------------------------------------------------------------------------------------


def read_bank(
    split: ImageSplit,
    classes: Iterable[str],
    *,
    size: int,
    channels: int = 3,
    key: str | None = None,
    resize: Resize = "squeeze",
    invert: bool = False,
    corrupt: Corrupt = "error",
    watch: Progress = lambda done, count: None,
    threads: int | None = None,
) -> ImageBank:
    """Decode all images of a split, or load them from the cache.

    Images are resized with Pillow's antialiased bilinear filter. They are stored in ``images/banks`` in the cache; the
    name depends on ``key``, the settings, and the versions of Pillow and of the decoder. A process that is stopped
    loses at most the last 512 images; two processes that need the same images do not decode them twice.

    Args:
        split: the images.
        classes: the names of all classes.
        size: width and height, in pixels.
        channels: 3 for RGB, or 1 for luminance.
        key: identifies the bytes of the images and their order; None to decode into memory and store nothing.
        resize: "squeeze" resizes the whole image to a square; "crop" resizes its short side to ``size`` and takes the
            middle.
        invert: whether to invert images, for Omniglot and glyphs, which have black strokes on white.
        corrupt: "error" or "skip", for images that cannot be read.
        watch: called with the number of decoded images and of all.
        threads: the number of images that are decoded at a time; by default one per processor, at most 8.
    """
    require_choice(corrupt, ("error", "skip"), "choice for corrupt images")
    decoder = _Decoder(split, size, channels, resize, invert, threads)
    if len(split) == 0:
        raise ArgumentError("A bank needs at least one image (got none).")
    if key is None:
        bad: dict[int, str] = {}
        pixels = torch.cat(list(decoder.decode(range(len(split)), bad, watch)))
    else:
        facts = {"images": key, "count": len(split), **decoder.facts}
        pixels, bad = _read_stored(cache_folder("images") / "banks" / store_key(facts), facts, decoder, watch)
    names, targets = split.names, split.targets
    if bad:
        refuse_corrupt(bad, len(split), corrupt)
        kept = [row for row in range(len(split)) if row not in bad]
        pixels, targets, names = pixels[kept], targets[kept], tuple(names[row] for row in kept)
    return ImageBank(pixels, targets, tuple(classes), names)


class _Decoder:
    """Decodes images of a split to pixels of one size."""

    def __init__(
        self, split: ImageSplit, size: int, channels: int, resize: str, invert: bool, threads: int | None
    ) -> None:
        require_choice(resize, ("squeeze", "crop"), "way to resize images")
        if channels not in (1, 3):
            raise ArgumentError(f"channels must be 1 (luminance) or 3 (RGB) (got {channels}).")
        if threads is not None and threads < 1:
            raise ArgumentError(f"threads must be at least 1 (got {threads}).")
        layout: Literal["whole", "centre"] = "whole" if resize == "squeeze" else "centre"
        self.crops = Crops(size=size, count=1, resize=size, layout=layout)
        self.split, self.channels, self.invert = split, channels, invert
        self.threads = threads or default_threads()
        self.shape = (channels, size, size)

    @property
    def facts(self) -> dict[str, Any]:
        """What the pixels depend on, besides the files."""
        versions = {"decoder": DECODER_VERSION, "pillow": metadata.version("pillow")}
        return {"crops": self.crops.config, "channels": self.channels, "invert": self.invert, **versions}

    def decode(
        self, rows: Sequence[int], bad: dict[int, str], watch: Progress
    ) -> Iterable[Tensor]:  # shapes: (at most CHUNK, channels, size, size)
        """Decode rows in order; those that cannot be read are zeros, and ``bad`` gets the reason."""
        with ThreadPoolExecutor(self.threads) as pool:
            for start in range(0, len(rows), CHUNK):
                chunk = rows[start : start + CHUNK]
                found = []
                for row, pixels in zip(chunk, pool.map(self._try, chunk), strict=True):
                    if isinstance(pixels, str):
                        bad[row] = pixels
                        pixels = torch.zeros(self.shape, dtype=torch.uint8)
                    found.append(pixels)
                yield torch.stack(found)
                watch(chunk[-1] + 1, len(self.split))

    def _try(self, row: int) -> Tensor | str:
        try:
            image = self.split.read(row)
        except ImageError as error:
            return str(error)
        try:
            pixels = self.crops(image if self.channels == 3 else image.convert("L").convert("RGB"))[0, : self.channels]
        except ImageError as error:
            return f"{self.split.names[row]}: {error}"
        return 255 - pixels if self.invert else pixels


def _read_stored(
    folder: Path, facts: dict[str, Any], decoder: _Decoder, watch: Progress
) -> tuple[Tensor, dict[int, str]]:
    """Return the images in the cache, decoding those that are missing, and the reasons of those that cannot be read."""
    count = len(decoder.split)

    def open_store() -> FeatureStore:
        return FeatureStore(folder, facts, count=count, shape=decoder.shape, dtype="uint8")

    while not (store := open_store()).is_complete or (folder / BAD).exists():
        with contextlib.suppress(LockedError), locked(folder):
            if bad := _fill(open_store(), decoder, watch):
                return store.open_maps(shared=False), bad
            continue
        watch(store.done, count)  # another process is decoding: show its progress
        time.sleep(PAUSE)
    watch(count, count)
    return store.open_maps(shared=False), {}


def _fill(store: FeatureStore, decoder: _Decoder, watch: Progress) -> dict[int, str]:
    """Decode what a store lacks, and what could not be read before, because the reason may be gone."""
    file = store.folder / BAD
    bad: dict[int, str] = {}
    before = [row for row in map(int, read_json(file)) if row < store.done] if file.exists() else []
    for row in before:
        (again,) = decoder.decode([row], bad, lambda done, count: None)
        store.maps[row] = again[0]
    for part in decoder.decode(range(store.done, store.count), bad, watch):
        if bad:  # before the store counts these rows
            write_json(file, {str(row): reason for row, reason in bad.items()})
        store.append(part)
        store.flush()
    if before:
        store.flush()
        write_json(file, {str(row): reason for row, reason in bad.items()})
    if not bad:
        file.unlink(missing_ok=True)
    return bad
