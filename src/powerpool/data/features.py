"""A store for features: computed once into one memory-mapped file, piece by piece, and read many times.

A store is a folder with ``maps.bin``, the values of all items one after the other, and ``store.json``: what the values
depend on, their shape, and how many items are complete. The count is written after the values have reached the disk,
so a killed process loses only the items since the last ``flush()``, and the next one continues from there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.data.store import hash_text
from powerpool.errors import DiskError, DTypeError, NotFiniteError, RecordError, ShapeError
from powerpool.files import DISK, cannot_write, make_folder, read_json, write_json

STORE, MAPS = "store.json", "maps.bin"
DTYPES = {"float16": torch.float16, "float32": torch.float32, "uint8": torch.uint8}


def store_key(facts: Mapping[str, Any]) -> str:
    """Return a short key of everything that features depend on; it changes if anything differs."""
    return hash_text([json.dumps(facts, sort_keys=True)])


class FeatureStore:
    """Items of one shape and dtype in a memory-mapped file.

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
        if tuple(items.shape[1:]) != self.shape:
            raise ShapeError(f"Items must have shape {self.shape} (got {tuple(items.shape[1:])}).")
        if self.done + len(items) > self.count:
            raise ShapeError(f"Cannot add {len(items)} items to a store that has {self.done} of {self.count}.")
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
