"""Image files and image data sets for tests."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an RGB image of random pixels."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    """Return the bytes of an image in a file format."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png(seed: int = 0, width: int = 12, height: int = 10) -> bytes:
    """Return the bytes of a small PNG."""
    return encoded(noise(width, height, seed))


def png_of_size(width: int, height: int) -> bytes:
    """Return a tiny PNG whose header claims any size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = zlib.compress(b"\0" * 100)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")


def files(names: Iterable[str]) -> dict[str, bytes]:
    """Return a different image for each name."""
    return {name: png(seed) for seed, name in enumerate(names)}


def flat(classes: Iterable[str] = ("iris", "rose"), count: int = 10) -> dict[str, bytes]:
    """Return a data set without splits."""
    return files(f"{label}/{number:02d}.png" for label in classes for number in range(count))


def split_set(count: int = 2, splits: Iterable[str] = ("train", "validation", "test")) -> dict[str, bytes]:
    """Return a data set with splits, of two classes."""
    return files(f"{s}/{label}/{n}.png" for s in splits for label in ("iris", "rose") for n in range(count))


def write_folder(folder: Path, content: Mapping[str, bytes]) -> Path:
    """Write files into a folder."""
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_zip(path: Path, content: Mapping[str | zipfile.ZipInfo, bytes]) -> Path:
    """Write files into a zip."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path
