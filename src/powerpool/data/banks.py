"""Banks of pictures: all pictures of a split in one tensor, decoded once. Episodes index it."""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from powerpool.data import crops, pictures
from powerpool.data.crops import Crops
from powerpool.data.features import MAPS, FeatureStore, store_key
from powerpool.data.images import Corrupt, ImageIndexError, ImageSplit
from powerpool.data.pictures import ImageError
from powerpool.data.places import cache_folder
from powerpool.errors import ArgumentError, DTypeError, LockedError, ShapeError, require_choice
from powerpool.files import locked, read_json, write_json

Resize = Literal["squeeze", "crop"]
"""How a picture becomes a square: all of it, squeezed; or the square in its middle."""
RESIZES = ("squeeze", "crop")
CHANNELS = (1, 3)
BAD = "bad.json"
"""Pictures of a bank that could not be read, by row: their pixels are zeros."""
CHUNK = 512
"""Pictures after which what is decoded is made safe."""
PATIENCE = 120.0
"""Seconds to wait for another process that decodes the same pictures and makes no headway."""
PAUSE = 0.2
"""Seconds between two looks at what another process has done."""


@dataclass(frozen=True, eq=False, repr=False)  # tensors do not compare to one truth value
class PictureBank:
    """All pictures of a split, decoded and of one size.

    Example:
        >>> import torch
        >>> from powerpool.data import load_fewshot
        >>> bank = load_fewshot("digits", size=16, channels=1)["test"]
        >>> bank
        PictureBank(360 pictures of 2 classes, 1 x 16 x 16)
        >>> bank.batch(torch.tensor([[0, 1, 2], [3, 4, 5]])).shape
        torch.Size([2, 3, 1, 16, 16])
    """

    pictures: Tensor  # shape: (n, channels, size, size), uint8; memory-mapped, where they come from the cache
    targets: Tensor  # shape: (n,), class numbers of the whole set
    classes: tuple[str, ...]
    """The names of all classes of the set, also of those that are in other splits."""
    names: tuple[str, ...]
    """How messages call each picture."""
    mean: Tensor | None = None  # shape: (channels, size, size), or (G, channels, size, size) with groups; float32
    """A picture that is subtracted from all, or one for each group, in units of [0, 1]."""
    groups: Tensor | None = None  # shape: (n,), from 0 to G - 1
    """Which mean is subtracted from each picture, where there are several."""

    def __post_init__(self) -> None:
        if self.pictures.dtype != torch.uint8:
            raise DTypeError(f"pictures must be bytes, torch.uint8 (got {self.pictures.dtype}).")
        if self.pictures.ndim != 4 or self.pictures.shape[2] != self.pictures.shape[3]:
            raise ShapeError(f"pictures must have shape (n, channels, size, size) (got {tuple(self.pictures.shape)}).")
        if self.targets.shape != (len(self.pictures),) or len(self.names) != len(self.pictures):
            raise ShapeError(
                f"pictures, targets and names must be of one length (got {len(self.pictures)}, "
                f"{tuple(self.targets.shape)} and {len(self.names)})."
            )
        own = tuple(self.pictures.shape[1:])
        if self.groups is None:
            if self.mean is not None and self.mean.shape != own:
                raise ShapeError(f"mean must be a picture of shape {own} (got {tuple(self.mean.shape)}).")
            return
        if self.mean is None or self.mean.ndim != 4 or self.mean.shape[1:] != own:
            given = None if self.mean is None else tuple(self.mean.shape)
            raise ShapeError(f"mean must be a picture of shape {own} for each group (got {given}).")
        last = len(self.mean) - 1
        if self.groups.shape != self.targets.shape or bool(((self.groups < 0) | (self.groups > last)).any()):
            raise ShapeError(f"groups must be a number from 0 to {last} for each of {len(self)} pictures.")

    def __len__(self) -> int:
        return len(self.pictures)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.pictures.shape[1:]))
        return f"PictureBank({len(self)} pictures of {len(self.targets.unique())} classes, {shape})"

    @property
    def channels(self) -> int:
        """1 for luminance, 3 for red, green and blue."""
        return self.pictures.shape[1]

    @property
    def size(self) -> int:
        """Width and height in pixels."""
        return self.pictures.shape[2]

    def batch(self, rows: Tensor, turns: Tensor | None = None) -> Tensor:  # shape: (*S) -> (*S, channels, size, size)
        """Pictures as float32 in [0, 1], minus the mean where there is one.

        Args:
            rows: which pictures; of any shape.
            turns: quarter turns of each, counter-clockwise; of a shape that broadcasts to that of ``rows``. An episode
                turns its classes: ``batch(episode.query, episode.turns[:, None])``.
        """
        if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool:
            raise DTypeError(f"rows must be whole numbers, the rows of pictures (got {rows.dtype}).")
        flat = rows.reshape(-1).long()
        if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) < len(self):
            wrong = int(flat.min()) if int(flat.min()) < 0 else int(flat.max())
            raise ImageIndexError(f"The bank has pictures 0 to {len(self) - 1} (asked for {wrong}).")
        pictures = self.pictures.index_select(0, flat).float().div_(255)
        if self.mean is not None:
            pictures -= self.mean if self.groups is None else self.mean[self.groups[flat]]
        if turns is not None:
            _turn(pictures, _as_rows(turns, rows).reshape(-1))
        return pictures.view(*rows.shape, *pictures.shape[1:])

    def centred(self, groups: Tensor | None = None) -> PictureBank:
        """The same pictures, minus their mean.

        Args:
            groups: a number for each picture, (n,): then it is the mean of all that have the same.
        """
        if groups is None:
            return replace(self, mean=mean_picture(self.pictures), groups=None)
        numbers, places = groups.unique(return_inverse=True)
        means = [mean_picture(self.pictures[places == place]) for place in range(len(numbers))]
        return replace(self, mean=torch.stack(means), groups=places)


def mean_picture(pictures: Tensor) -> Tensor:  # shape: (n, channels, size, size) uint8 -> (channels, size, size)
    """The mean of all pictures in [0, 1]; summed in whole numbers, so that it is the same in any order."""
    if len(pictures) == 0:
        raise ShapeError("The mean of no pictures was asked for.")
    total = torch.zeros(pictures.shape[1:], dtype=torch.int64)
    for part in pictures.split(CHUNK):
        total += part.sum(0, dtype=torch.int64)
    return (total.double() / (255 * len(pictures))).float()


def _as_rows(turns: Tensor, rows: Tensor) -> Tensor:
    try:
        return turns.expand(rows.shape)
    except RuntimeError as error:
        raise ShapeError(
            f"turns must broadcast to the shape of rows, {tuple(rows.shape)} (got {tuple(turns.shape)})."
        ) from error


def _turn(pictures: Tensor, turns: Tensor) -> None:  # shapes: (n, channels, size, size), (n,)
    """Turn pictures where they are."""
    for quarter in (1, 2, 3):
        chosen = (turns % 4 == quarter).nonzero().flatten()
        if len(chosen):
            pictures[chosen] = pictures[chosen].rot90(quarter, (-2, -1))


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
    watch: Callable[[int, int], None] = lambda done, count: None,
    threads: int | None = None,
) -> PictureBank:
    """Decode all pictures of a split, or find them in the cache.

    Pictures are resized with Pillow's bilinear filter, in which every pixel counts that becomes one. They lie in
    ``images/banks`` of the cache, in a folder named after all that they depend on: ``key``, the settings, the version
    of Pillow and the code that decodes. A process that is stopped costs at most the last 512 pictures; two processes
    that want the same do not decode it twice.

    Args:
        split: the pictures.
        classes: the names of all classes.
        size: width and height, in pixels.
        channels: 3, or 1 for luminance.
        key: stands for the bytes of the pictures, in their order; None to decode into memory, and store nothing.
        resize: "squeeze" brings all of a picture to a square; "crop" brings its short side to ``size`` and takes the
            middle.
        invert: whether black becomes white: for strokes of ink, which should be bright on dark.
        corrupt: "error" or "skip", for pictures that cannot be read.
        watch: is told how many pictures are decoded, of how many.
        threads: how many pictures are decoded at a time; by default one for each processor, at most 8.
    """
    require_choice(corrupt, ("error", "skip"), "choice for corrupt pictures")
    decoder = _Decoder(split, size, channels, resize, invert, threads)
    if len(split) == 0:
        raise ArgumentError("A bank needs at least one picture.")
    if key is None:
        bad: dict[int, str] = {}
        pixels = torch.cat(list(decoder.parts(range(len(split)), bad, watch)))
    else:
        facts = {"pictures": key, "count": len(split), **decoder.facts, "made_by": _made_by()}
        folder = cache_folder("images") / "banks" / store_key(facts)
        pixels, bad = _stored(folder, facts, decoder, watch)
    names, targets = split.names, split.targets
    if bad:
        _refuse_unless_skipped(bad, len(split), corrupt)
        kept = [row for row in range(len(split)) if row not in bad]
        pixels, targets, names = pixels[kept], targets[kept], tuple(names[row] for row in kept)
    return PictureBank(pixels, targets, tuple(classes), names)


class _Decoder:
    """Pictures of a split as pixels of one size."""

    def __init__(
        self, split: ImageSplit, size: int, channels: int, resize: str, invert: bool, threads: int | None
    ) -> None:
        require_choice(resize, RESIZES, "way to resize pictures")
        if channels not in CHANNELS:
            raise ArgumentError(f"channels must be 1 (luminance) or 3 (red, green and blue) (got {channels}).")
        if threads is not None and threads < 1:
            raise ArgumentError(f"threads must be at least 1 (got {threads}).")
        layout: Literal["whole", "centre"] = "whole" if resize == "squeeze" else "centre"
        self.crops = Crops(size=size, count=1, resize=size, layout=layout)
        self.split, self.channels, self.invert = split, channels, invert
        self.threads = threads or min(8, os.cpu_count() or 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.channels, self.crops.size, self.crops.size

    @property
    def facts(self) -> dict[str, Any]:
        return {"crops": self.crops.config, "channels": self.channels, "invert": self.invert}

    def parts(
        self, rows: Sequence[int], bad: dict[int, str], watch: Callable[[int, int], None]
    ) -> Iterable[Tensor]:  # shapes: (at most CHUNK, channels, size, size)
        """Pictures in the order of rows; one that cannot be read is zeros, and its row and the reason go to ``bad``."""
        with ThreadPoolExecutor(self.threads) as pool:
            for start in range(0, len(rows), CHUNK):
                chunk = rows[start : start + CHUNK]
                found = []
                for row, picture in zip(chunk, pool.map(self._try, chunk), strict=True):
                    if isinstance(picture, str):
                        bad[row] = picture
                        picture = torch.zeros(self.shape, dtype=torch.uint8)
                    found.append(picture)
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


def _stored(
    folder: Path, facts: dict[str, Any], decoder: _Decoder, watch: Callable[[int, int], None]
) -> tuple[Tensor, dict[int, str]]:
    """The pictures in the cache, decoded now where they are not there; and those that cannot be read."""
    count, shape = len(decoder.split), decoder.shape

    def look() -> FeatureStore:
        return FeatureStore(folder, facts, count=count, shape=shape, dtype="uint8")

    headway = _Headway()
    while not (store := look()).is_complete or (folder / BAD).exists():
        with contextlib.suppress(LockedError), locked(folder):
            if bad := _fill(look(), decoder, watch):
                return _mapped(store), bad
            continue
        headway.wait(store.done, folder)
    watch(count, count)
    return _mapped(store), {}


class _Headway:
    """Waiting for another process, as long as it gets on."""

    def __init__(self) -> None:
        self.done, self.since = -1, time.monotonic()

    def wait(self, done: int, folder: Path) -> None:
        if done != self.done:
            self.done, self.since = done, time.monotonic()
        if time.monotonic() - self.since > PATIENCE:
            raise LockedError(f"Another process has {folder} to itself, and decoded nothing for {PATIENCE:g} seconds.")
        time.sleep(PAUSE)


def _fill(store: FeatureStore, decoder: _Decoder, watch: Callable[[int, int], None]) -> dict[int, str]:
    """Decode what a store lacks, and try again what could not be read: the reason may be gone."""
    file = store.folder / BAD
    bad: dict[int, str] = {}
    before = [row for row in map(int, read_json(file)) if row < store.done] if file.exists() else []
    for row in before:
        (again,) = decoder.parts([row], bad, lambda done, count: None)
        store.maps[row] = again[0]
    for part in decoder.parts(range(store.done, store.count), bad, watch):
        if bad:  # before the store says that these rows are there
            write_json(file, {str(row): reason for row, reason in bad.items()})
        store.append(part)
        store.flush()
    if before:
        store.flush()
        write_json(file, {str(row): reason for row, reason in bad.items()})
    if not bad:
        file.unlink(missing_ok=True)
    return bad


def _mapped(store: FeatureStore) -> Tensor:  # shape: (count, channels, size, size)
    """The pictures, read from the disk as they are looked at. Who writes into them changes a copy, not the cache."""
    numbers = store.count * torch.Size(store.shape).numel()
    flat = torch.from_file(str(store.folder / MAPS), shared=False, size=numbers, dtype=torch.uint8)
    return flat.view(store.count, *store.shape)


def _refuse_unless_skipped(bad: dict[int, str], count: int, corrupt: Corrupt) -> None:
    if corrupt == "skip" and len(bad) < count:
        return
    first = " ".join(list(bad.values())[:3])
    rest = f" So are {len(bad) - 3} more." if len(bad) > 3 else ""
    remedy = "" if len(bad) == count else ' Replace or delete them, or skip them with corrupt="skip".'
    raise ImageError(f"{len(bad)} of {count} pictures cannot be read: {first}{rest}{remedy}")


@cache
def _made_by() -> str:
    """A digest of what decodes and resizes: the code for it, and Pillow."""
    code = [inspect.getsource(part) for part in (_Decoder, crops, pictures)]
    return store_key({"code": code, "pillow": metadata.version("pillow")})
