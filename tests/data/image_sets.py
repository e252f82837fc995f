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


# ---- data sets as they are published, with few images ----------------------------------------------------------------


def matlab(**variables: object) -> bytes:
    """Return a MATLAB file; lists of texts become cells, lists of mappings become arrays of structures."""
    from scipy.io import savemat

    content = {}
    for name, values in variables.items():
        rows = list(values)  # type: ignore[call-overload]
        if isinstance(rows[0], dict):
            fields = [(field, object) for field in rows[0]]
            content[name] = np.array([[tuple(row.values()) for row in rows]], dtype=fields)
        else:
            content[name] = np.array([rows], dtype=object)
    file = io.BytesIO()
    savemat(file, content)
    return file.getvalue()


def dtd() -> dict[str, bytes]:
    """Return the describable textures, with two of the ten splits."""
    content = files(f"dtd/images/{label}/{label}_{n:04d}.jpg" for label in ("banded", "dotted") for n in range(6))
    for partition, split in ((n, split) for n in (1, 2) for split in range(3)):
        # The two splits share no list of images.
        numbers = [n for n in range(6) if (n + partition) % 3 == split]
        lines = [f"{label}/{label}_{n:04d}.jpg" for label in ("banded", "dotted") for n in numbers]
        name = ("train", "val", "test")[split]
        content[f"dtd/labels/{name}{partition}.txt"] = "\n".join(lines).encode()
    return content | {"dtd/labels/labels_joint_anno.txt": b"banded/banded_0000.jpg banded \n", "dtd/imdb/imdb.mat": b""}


def cub200() -> dict[str, bytes]:
    """Return CUB-200-2011."""
    paths = [f"{label}/{label[4:]}_{n:04d}.jpg" for label in ("001.Albatross", "002.Wren") for n in range(4)]
    content = files(f"images/{path}" for path in paths)
    lines = {
        "images.txt": [f"{n} {path}" for n, path in enumerate(paths, start=1)],
        "image_class_labels.txt": [f"{n} {int(path[:3])}" for n, path in enumerate(paths, start=1)],
        "train_test_split.txt": [f"{n} {n % 2}" for n in range(1, 9)],
        "bounding_boxes.txt": ["1 60.0 27.0 325.0 304.0"],
        "classes.txt": ["1 001.Albatross", "2 002.Wren"],
        "README": ["Caltech-UCSD Birds"],
        "parts/parts.txt": ["1 back"],
    }
    content |= {name: "\n".join(own).encode() for name, own in lines.items()}
    return {f"CUB_200_2011/{name}": data for name, data in content.items()}


def aircraft() -> dict[str, bytes]:
    """Return FGVC-Aircraft."""
    base, variants = "fgvc-aircraft-2013b", ("707-320", "Dornier 328")
    content = files(f"{base}/data/images/{n:07d}.jpg" for n in range(8))
    lines = [f"{n:07d} {variants[n % 2]}" for n in range(8)]
    parts = {"train": lines[:2], "val": lines[2:4], "trainval": lines[:4], "test": lines[4:]}
    for name, own in parts.items():
        content[f"{base}/data/images_variant_{name}.txt"] = "\n".join(own).encode()
        content[f"{base}/data/images_family_{name}.txt"] = b"0000000 Boeing 707\n"
    content |= {f"{base}/data/variants.txt": "\n".join(variants).encode(), f"{base}/README.md": b"", f"{base}/e.m": b""}
    return content


CAR_CLASSES = ("AM General Hummer SUV 2000", "Ram C/V Cargo Van Minivan 2012")


def cars() -> dict[str, bytes]:
    """Return Stanford Cars."""
    content = files(f"stanford_cars/cars_{split}/{n:05d}.jpg" for split in ("train", "test") for n in range(1, 5))
    rows = [{"bbox_x1": 1, "bbox_y1": 1, "class": 1 + n % 2, "fname": f"{n:05d}.jpg"} for n in range(1, 5)]
    hidden = [{name: value for name, value in row.items() if name != "class"} for row in rows]
    return content | {
        "stanford_cars/cars_test_annos_withlabels.mat": matlab(annotations=rows),
        "stanford_cars/devkit/cars_train_annos.mat": matlab(annotations=rows),
        "stanford_cars/devkit/cars_test_annos.mat": matlab(annotations=hidden),
        "stanford_cars/devkit/cars_meta.mat": matlab(class_names=CAR_CLASSES),
        "stanford_cars/devkit/README.txt": b"",
    }


def mit67() -> dict[str, bytes]:
    """Return the indoor scenes of MIT, with an image in no list."""
    content = files(f"indoorCVPR_09/Images/{label}/{n}.jpg" for label in ("attic", "bar") for n in range(5))
    for name, numbers in (("Train", (0, 1)), ("Test", (2, 3))):
        lines = [f"{label}/{n}.jpg" for label in ("attic", "bar") for n in numbers]
        content[f"indoorCVPR_09/{name}Images.txt"] = "\r\n".join(lines).encode()
    return content


def fmd() -> dict[str, bytes]:
    """Return the Flickr materials, with masks."""
    return files(f"FMD/{k}/{m}/{m}_{n}.jpg" for k in ("image", "mask") for m in ("foliage", "glass") for n in range(4))


PUBLISHED = {"dtd": dtd, "cub200": cub200, "aircraft": aircraft, "cars": cars, "mit67": mit67, "fmd": fmd}
