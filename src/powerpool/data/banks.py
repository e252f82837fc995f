"""What is computed once into memory-mapped files and read many times: decoded images and features."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from powerpool.data.decoding import DECODER_VERSION, Crops
from powerpool.data.images import Corrupt, ImageBank, ImageSplit, refuse_corrupt
from powerpool.data.store import ImageError, cache_folder, default_threads, hash_text
from powerpool.errors import (
    ArgumentError,
    DiskError,
    DTypeError,
    LockedError,
    NotFiniteError,
    RecordError,
    ShapeError,
    require_choice,
)
from powerpool.files import DISK, cannot_write, locked, make_folder, read_json, write_json

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
        layout: Literal["whole", "centre"] = "whole" if resize == "squeeze" else "centre"
        self.crops = Crops(size=size, count=1, resize=size, layout=layout)
        self.split, self.channels, self.invert = split, channels, invert
        self.threads = threads or default_threads()
        self.shape = (channels, size, size)
        versions = {"decoder": DECODER_VERSION, "pillow": metadata.version("pillow")}
        # What the pixels depend on, besides the files.
        self.facts = {"crops": self.crops.config, "channels": channels, "invert": invert, **versions}

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
            pixels = self.crops(image if self.channels == 3 else image.convert("L").convert("RGB"))[0, : self.channels]
        except ImageError as error:
            name = self.split.names[row]
            return str(error) if name in str(error) else f"{name}: {error}"
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


# ---- feature stores --------------------------------------------------------------------------------------------------

STORE, MAPS = "store.json", "maps.bin"
DTYPES = {"float16": torch.float16, "float32": torch.float32, "uint8": torch.uint8}


def store_key(facts: Mapping[str, Any]) -> str:
    """Return a short key of everything that features depend on; it changes if anything differs."""
    return hash_text([json.dumps(facts, sort_keys=True)])


class FeatureStore:
    """Items of one shape and dtype in a memory-mapped file, computed once, piece by piece.

    The folder has ``maps.bin``, the values of all items one after the other, and ``store.json``: what the values depend
    on, their shape, and how many items are complete. The count is written after the values have reached the disk, so a
    killed process loses only the items since the last ``flush()``, and the next one continues from there.

    Args:
        folder: created if it does not exist.
        facts: what the features depend on; must be serialisable as JSON.
        count: the total number of items.
        shape: the shape of one item.
        dtype: ``"float16"``, ``"float32"``, or ``"uint8"`` for pixels, which are never converted.

    Example:
        >>> import tempfile, torch
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = FeatureStore(folder, {"net": "a"}, count=3, shape=(2, 2), dtype="float32")
        ...     store.append(torch.ones(2, 2, 2))
        ...     store.flush()
        ...     again = FeatureStore(folder, {"net": "a"}, count=3, shape=(2, 2), dtype="float32")
        ...     again.done
        2
    """

    def __init__(
        self,
        folder: str | Path,
        facts: Mapping[str, Any],
        *,
        count: int,
        shape: Iterable[int],
        dtype: str = "float16",
    ) -> None:
        self.folder, self.facts = Path(folder), json.loads(json.dumps(dict(facts)))
        self.count, self.shape, self.dtype = count, tuple(shape), dtype
        make_folder(self.folder)
        self.done = self._count_stored()
        self._maps: Tensor | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all items are stored."""
        return self.done == self.count

    @property
    def bytes(self) -> int:
        """The size of the file with the values."""
        return self._numel * DTYPES[self.dtype].itemsize

    @property
    def _numel(self) -> int:
        return self.count * torch.Size(self.shape).numel()

    @property
    def maps(self) -> Tensor:  # shape: (count, *shape)
        """All items, loaded from the disk on access; those from ``done`` on are zero."""
        if self._maps is None:
            file = self.folder / MAPS
            if not file.exists() or file.stat().st_size != self.bytes:
                self._allocate(file)
            self._maps = self.open_maps(shared=True)
        return self._maps

    def open_maps(self, shared: bool) -> Tensor:  # shape: (count, *shape)
        """Map the file into memory; without ``shared``, writing changes a private copy."""
        flat = torch.from_file(str(self.folder / MAPS), shared=shared, size=self._numel, dtype=DTYPES[self.dtype])
        return flat.view(self.count, *self.shape)

    def append(self, items: Tensor) -> None:  # shape: (n, *shape)
        """Add items after those that are stored."""
        if tuple(items.shape[1:]) != self.shape or self.done + len(items) > self.count:
            raise ShapeError(
                f"A store that has {self.done} of {self.count} items of shape {self.shape} cannot add items of shape "
                f"{tuple(items.shape)}."
            )
        if self.dtype == "uint8" and items.dtype != torch.uint8:
            raise DTypeError(f"A store of uint8 needs items of uint8 (got {items.dtype}).")
        rounded = items.to(DTYPES[self.dtype])
        if not torch.isfinite(rounded).all():
            what = "are not finite" if not torch.isfinite(items).all() else f"exceed the range of {self.dtype}"
            raise NotFiniteError(f"Some features {what}. Store them as float32 (--stored float32).")
        self.maps[self.done : self.done + len(items)] = rounded
        self.done += len(items)

    def flush(self) -> None:
        """Write added items to the disk, then record their number."""
        try:
            with (self.folder / MAPS).open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.folder / MAPS, error) from error
        write_json(self.folder / STORE, {**self._head(), "done": self.done})

    def _head(self) -> dict[str, Any]:
        return {"facts": self.facts, "count": self.count, "shape": list(self.shape), "dtype": self.dtype}

    def _count_stored(self) -> int:
        """Return the number of items in the folder; refuse a store of other features."""
        file, maps = self.folder / STORE, self.folder / MAPS
        if not file.exists():
            return 0
        found = read_json(file)
        if not isinstance(found, dict) or {name: found.get(name) for name in self._head()} != self._head():
            raise RecordError(f"{self.folder} contains other features. Delete it to compute them again.")
        done = found.get("done")
        if not isinstance(done, int) or not 0 <= done <= self.count:
            raise RecordError(f"{file} is damaged: done is {done!r} of {self.count}. Delete the folder to start again.")
        if not maps.exists() or maps.stat().st_size != self.bytes:
            return 0  # the values are lost: they are computed again
        return done

    def _allocate(self, file: Path) -> None:
        """Create the file with its full size, so that a full disk is noticed now and not after an hour."""
        # A stale count would be taken for that of the new file if this process is killed.
        (self.folder / STORE).unlink(missing_ok=True)
        try:
            with file.open("wb") as handle:
                if hasattr(os, "posix_fallocate"):  # not available on every system
                    os.posix_fallocate(handle.fileno(), 0, max(self.bytes, 1))
                handle.truncate(self.bytes)
        except OSError as error:
            file.unlink(missing_ok=True)
            raise (DiskError if error.errno in DISK else RecordError)(
                f"Cannot create {file} of {self.bytes / 1e9:.1f} GB: {error.strerror}. Choose another folder with "
                "POWERPOOL_CACHE, or fewer or smaller images or crops."
            ) from error
        self.done = 0
