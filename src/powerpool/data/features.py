"""Features that were computed once and are read many times: one memory-mapped file, filled piece by piece.

A store is a folder with ``maps.bin``, the numbers of all items one after the other, and ``store.json``: what the
numbers depend on, their shape, and how many items are there. The count is written after the numbers are on
the disk, so that a process that is killed costs the items since then, and the next one goes on with the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.errors import DiskError, DTypeError, NotFiniteError, RecordError, ShapeError
from powerpool.files import DISK, cannot_write, make_folder, read_json, write_json

STORE, MAPS = "store.json", "maps.bin"
DTYPES = {"float16": torch.float16, "float32": torch.float32, "uint8": torch.uint8}


def store_key(facts: Mapping[str, Any]) -> str:
    """A short name for everything that features depend on: another one as soon as anything differs."""
    return hashlib.blake2b(json.dumps(facts, sort_keys=True).encode(), digest_size=8).hexdigest()


class FeatureStore:
    """Items of one shape and type in a memory-mapped file; see the module.

    Args:
        folder: is made where it is missing.
        facts: what the features depend on, as JSON can hold it.
        count: items in all.
        shape: of an item.
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
        self.done = self._found()
        self._maps: Tensor | None = None

    @property
    def is_complete(self) -> bool:
        """Whether all items are there."""
        return self.done == self.count

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return self.count * _numbers(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def maps(self) -> Tensor:  # shape: (count, *shape)
        """All items, read from the disk as they are looked at; those beyond ``done`` are zeros."""
        if self._maps is None:
            file = self.folder / MAPS
            if not file.exists() or file.stat().st_size != self.bytes:
                self._make(file)
            flat = torch.from_file(
                str(file), shared=True, size=self.count * _numbers(self.shape), dtype=DTYPES[self.dtype]
            )
            self._maps = flat.view(self.count, *self.shape)
        return self._maps

    def append(self, items: Tensor) -> None:  # shape: (n, *shape)
        """Add items after those that are there."""
        if tuple(items.shape[1:]) != self.shape:
            raise ShapeError(f"A store of items of shape {self.shape} got items of shape {tuple(items.shape[1:])}.")
        if self.done + len(items) > self.count:
            raise ShapeError(f"A store of {self.count} items has {self.done} and got {len(items)} more.")
        if self.dtype == "uint8" and items.dtype != torch.uint8:
            raise DTypeError(f"A store of uint8 got items of {items.dtype}: pixels are stored as they are.")
        rounded = items.to(DTYPES[self.dtype])
        if not torch.isfinite(rounded).all():
            beyond = "that are not finite" if not torch.isfinite(items).all() else f"beyond the range of {self.dtype}"
            raise NotFiniteError(f"Features {beyond} cannot be stored. Store them as float32 (--stored float32).")
        self.maps[self.done : self.done + len(items)] = rounded
        self.done += len(items)

    def flush(self) -> None:
        """Put what was added on the disk, and only then say so."""
        try:
            with (self.folder / MAPS).open("rb") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise cannot_write(self.folder / MAPS, error) from error
        write_json(self.folder / STORE, {**self._head(), "done": self.done})

    def _head(self) -> dict[str, Any]:
        return {"facts": self.facts, "count": self.count, "shape": list(self.shape), "dtype": self.dtype}

    def _found(self) -> int:
        """How many items the folder holds; those of another store are refused."""
        file, maps = self.folder / STORE, self.folder / MAPS
        if not file.exists():
            return 0
        found = read_json(file)
        if not isinstance(found, dict) or {name: found.get(name) for name in self._head()} != self._head():
            raise RecordError(
                f"{self.folder} holds other features than those asked for. Delete it to compute them anew."
            )
        done = found.get("done")
        if not isinstance(done, int) or not 0 <= done <= self.count:
            raise RecordError(f"{file} is damaged: done is {done!r}, of {self.count}. Delete the folder to start anew.")
        if not maps.exists() or maps.stat().st_size != self.bytes:
            return 0  # the numbers are gone, or a disk was full: they are computed again
        return done

    def _make(self, file: Path) -> None:
        """A file of zeros of the whole size: a disk that is too small shows now, not after an hour."""
        # What it says of a file that is gone would be taken for this one's by whoever comes after a kill.
        (self.folder / STORE).unlink(missing_ok=True)
        try:
            with file.open("wb") as handle:
                if hasattr(os, "posix_fallocate"):  # not on every system
                    os.posix_fallocate(handle.fileno(), 0, max(self.bytes, 1))
                handle.truncate(self.bytes)
        except OSError as error:
            file.unlink(missing_ok=True)
            raise (DiskError if error.errno in DISK else RecordError)(
                f"Cannot make {file} of {self.bytes / 1e9:.1f} GB: {error.strerror}. Choose another folder with "
                "$POWERPOOL_CACHE, or fewer or smaller crops or pictures."
            ) from error
        self.done = 0


def _numbers(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
