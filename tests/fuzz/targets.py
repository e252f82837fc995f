"""Fuzz targets: each reads bytes as a file of one kind, and may raise only errors of powerpool.

``tests/trust/test_fuzz.py`` runs them with hypothesis, ``python -m tests.fuzz.with_atheris TARGET`` with atheris, which
is guided by coverage.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from powerpool.bench.record import load as load_bench
from powerpool.data import Limits, Splits, load_graphs, load_images, read_image
from powerpool.data.banks import FeatureStore
from powerpool.data.images import check_images
from powerpool.data.layouts import arrange, arrange_open_mic
from powerpool.data.splits import ClassCut, natural_key, split_images
from powerpool.errors import PowerPoolError
from powerpool.runs.config import read_recipe, to_yaml
from powerpool.runs.folder import load_state, save_state
from powerpool.runs.record import RunRecord
from powerpool.tasks.fewshot.config import FewShotConfig
from powerpool.tasks.graph.config import GraphConfig
from powerpool.tasks.vision.config import VisionConfig
from tests.bench.samples import pair
from tests.data.image_sets import png, split_set, write_folder, write_zip
from tests.data.tu_sets import TINY, texts
from tests.data.tu_sets import write_folder as write_graphs
from tests.data.tu_sets import write_zip as write_graph_zip
from tests.report.samples import graph_run

LIMITS = Limits(pixels=100_000, files=100, unpacked=1 << 20, text=1 << 20)
CONFIGS = (GraphConfig, VisionConfig, FewShotConfig)
KINDS = tuple(texts(TINY))


@contextlib.contextmanager
def place(name: str, data: bytes = b"") -> Iterator[Path]:
    """A file in a temporary folder, in memory if the system has such a disk."""
    shm = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        yield path


def graphs(data: bytes) -> None:
    """A text file of a data set of graphs; the first byte chooses which."""
    with place("other") as path:
        folder = write_graphs(path.parent / "set", texts(TINY))
        (folder / f"TINY_{KINDS[data[0] % len(KINDS)] if data else 'A'}.txt").write_bytes(data[1:])
        load_graphs(folder, limits=LIMITS)


def graph_zip(data: bytes) -> None:
    """A zip of graphs."""
    with place("set.zip", data) as path:
        load_graphs(path, limits=LIMITS)


def recipe(data: bytes) -> None:
    """A recipe; the first byte chooses the task."""
    with place("any.yaml", data[1:]) as path:
        to_yaml(read_recipe(path, CONFIGS[data[0] % len(CONFIGS) if data else 0]))


def lists(data: bytes) -> None:
    """Lists of images, separated by NUL: those of Ravi, of MIT67 and of CUB-200-2011."""
    csv, text, *cub = [*data.split(b"\0"), *[b""] * 6][:6]
    flat = [f"images/{number}.jpg" for number in range(4)]
    nested = [f"Images/a/{number}.jpg" for number in range(2)] + ["Images/b/0.jpg"]
    forms = (
        (flat, {"train.csv": csv, "val.csv": text, "test.csv": b"filename,label\n3.jpg,b\n"}),
        (nested, {"TrainImages.txt": text, "TestImages.txt": csv}),
        (
            ["images/a/0.jpg", "images/b/1.jpg"],
            dict(
                zip(("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt"), cub, strict=True)
            ),
        ),
    )
    for images, files in forms:
        with contextlib.suppress(PowerPoolError):
            found = arrange([*images, *files], files.__getitem__, "a set")
            sorted((labelled.label for labelled in found), key=natural_key)
            ClassCut().divide({labelled.label for labelled in found})
            split_images(found, Splits(), "a set")


def names(data: bytes) -> None:
    """File names of a folder, one per line."""
    files = [line.decode("utf-8", "surrogateescape") for line in data.split(b"\n") if line]
    for nested in (False, True):
        with contextlib.suppress(PowerPoolError):
            found = arrange(files, lambda name: b"filename,label\n", "a set", nested=nested)
            split_images(found, Splits(), "a set")
    with contextlib.suppress(PowerPoolError):
        arrange_open_mic(files, "shn", "a set")


@contextlib.contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Use a cache beside the file instead of that of the user."""
    before = os.environ.get("POWERPOOL_CACHE")
    os.environ["POWERPOOL_CACHE"] = str(folder / "cache")
    try:
        yield
    finally:
        if before is None:
            del os.environ["POWERPOOL_CACHE"]
        else:
            os.environ["POWERPOOL_CACHE"] = before


def image_zip(data: bytes) -> None:
    """A zip of images, which is unpacked and read."""
    with place("set.zip", data) as path, own_cache(path.parent):
        try:
            images = load_images(path, limits=LIMITS)
            for split in images.splits.values():
                split.read(0)
        finally:
            assert not (path.parent.parent / "evil.png").exists()


def image(data: bytes) -> None:
    """One image."""
    read_image(data, LIMITS)


def record(data: bytes) -> None:
    """The record of a run."""
    with place("SOP.json", data) as path:
        RunRecord.read(path)


def checkpoint(data: bytes) -> None:
    """A checkpoint."""
    with place("last.ckpt", data) as path:
        load_state(path)


def image_folder(data: bytes) -> None:
    """A folder with one damaged image, which is skipped; all others are read."""
    with place("other") as path, own_cache(path.parent):
        folder = write_folder(path.parent / "set", split_set())
        (folder / "train" / "iris" / "damaged.png").write_bytes(data)
        images = load_images(folder, limits=LIMITS)
        split, skipped = check_images(images["train"], "skip", threads=1)
        assert len(split) + len(skipped) == 5
        for number in range(len(split)):
            split.read(number)


def bench_record(data: bytes) -> None:
    """A record of bench."""
    with place("pools.json", data) as path:
        load_bench(path)


def stored_features(data: bytes) -> None:
    """The description of stored features."""
    with place("store.json", data) as path:
        (path.parent / "maps.bin").write_bytes(bytes(64))
        store = FeatureStore(path.parent, {"net": "a"}, count=4, shape=(8,), dtype="float16")
        store.maps.float().sum()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        graphs,
        graph_zip,
        recipe,
        lists,
        names,
        image_folder,
        image_zip,
        image,
        record,
        bench_record,
        stored_features,
        checkpoint,
    )
}


def survive(target: str, data: bytes) -> None:
    """Read the bytes; errors of powerpool are expected, others are raised."""
    with contextlib.suppress(PowerPoolError):
        TARGETS[target](data)


def seeds(target: str) -> list[bytes]:
    """Return valid files to start from."""
    with place("a") as path:
        folder = path.parent
        if target == "graph_zip":
            return [write_graph_zip(folder / "set.zip", texts(TINY)).read_bytes()]
        if target == "image_zip":
            return [write_zip(folder / "set.zip", split_set()).read_bytes(), _packed(folder / "b.zip")]
        if target == "record":
            graph_run("SOP", [80.0, 84.5]).write(path)
            return [path.read_bytes()]
        if target == "bench_record":
            pair(2.0).save(path)
            return [path.read_bytes()]
        if target == "stored_features":
            store = FeatureStore(folder, {"net": "a"}, count=4, shape=(8,), dtype="float16")
            store.append(torch.ones(3, 8))
            store.flush()
            return [(folder / "store.json").read_bytes()]
        if target == "checkpoint":
            save_state(path, {"epoch": 1, "weights": {"a": torch.zeros(3), "b": [1.5, None, "x"]}})
            return [path.read_bytes()]
    pairs = b"1 a/0.jpg\n2 b/1.jpg\n"
    return {
        "graphs": [bytes([number]) + text.encode() for number, text in enumerate(texts(TINY).values())],
        "recipe": [bytes([number]) + to_yaml(_example(kind)).encode() for number, kind in enumerate(CONFIGS)],
        "lists": [
            b"\0".join([b"filename,label\n0.jpg,a\n", b"a/0.jpg\na/1\n", pairs, b"1 1\n2 2\n", b"1 0\n2 1\n", pairs])
        ],
        "names": [
            b"train/a/0.png\ntest/a/1.png",
            b"a/0.png\nb/1.jpg\nREADME",
            b"shn/source/a/0.jpg\nshn/target/a/1.jpg",
        ],
        "image": [png()],
        "image_folder": [png()],
    }[target]


def _example(kind: type) -> object:
    return kind(data="MUTAG") if kind is GraphConfig else kind()


def _packed(path: Path) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in split_set().items():
            archive.writestr(name, content)
        archive.writestr("README.txt", "x" * 1000)
    return path.read_bytes()
