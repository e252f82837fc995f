"""Stored maps are those of the network on the crops, for any number of processes and after any stop."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from powerpool.data import Crops, ImageSet, load_images
from powerpool.data.store import ImageError
from powerpool.errors import LockedError, RecordError
from powerpool.tasks.vision import extraction
from powerpool.tasks.vision.config import VisionConfig
from powerpool.tasks.vision.extraction import SPLITS, extract, open_features, read_images
from powerpool.tasks.vision.model import normalize_images
from tests.tasks.vision.samples import CHANNELS, CLASSES, small_config, tiny_backbone, use_tiny, write_images

pytestmark = pytest.mark.usefixtures("tiny")
SHAPE = (2, CHANNELS, 6, 6)


def stored(folder: Path) -> dict[str, bytes]:
    """What a folder of stores holds."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def images(textures) -> ImageSet:
    return load_images(textures)


@pytest.fixture
def config(textures) -> VisionConfig:
    return small_config(textures)


@pytest.mark.parametrize("precision, bound", [("float16", 2e-3), ("float32", 1e-5)])
def test_stored_maps_are_those_of_the_network(images, config, tmp_path, precision, bound):
    features = extract(replace(config, stored=precision), images, folder=tmp_path)
    backbone = tiny_backbone()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    assert features.classes == images.classes == tuple(sorted(CLASSES))
    assert features.channels == CHANNELS
    for name in SPLITS:
        split = images[name]
        crops = torch.stack([config.crops(split.read(number)) for number in range(len(split))])
        with torch.no_grad():
            expected = torch.stack([backbone(normalize_images(own, mean, std)) for own in crops])
        assert features.maps(name).dtype == getattr(torch, precision)
        assert tuple(features.maps(name).shape) == (len(split), *SHAPE)
        torch.testing.assert_close(features.maps(name).float(), expected, rtol=bound, atol=bound)
        assert torch.equal(features.targets[name], split.targets)
        assert features.names[name] == split.names
    assert torch.equal(features.labels("test", "train"), torch.cat([images["test"].targets, images["train"].targets]))


def test_processes_give_the_same_files(images, config, tmp_path):
    folders = [
        extract(replace(config, workers=count), images, folder=tmp_path / str(count)).folder for count in (0, 1, 2)
    ]
    first, *others = map(stored, folders)
    assert set(first) == {"items.json", *(f"{name}/{file}" for name in SPLITS for file in ("maps.bin", "store.json"))}
    assert all(other == first for other in others)
    assert len({folder.name for folder in folders}) == 1


def test_stored_maps_are_not_computed_again(images, config, tmp_path, monkeypatch):
    first = extract(config, images, folder=tmp_path)
    before, told = stored(first.folder), []
    monkeypatch.setattr(extraction, "stream_maps", None)
    again = extract(config, images, folder=tmp_path, watch=lambda *said: told.append(said))
    assert again.folder == first.folder
    assert stored(again.folder) == before
    assert told == [(f"features of {name}", len(images[name]), len(images[name])) for name in SPLITS]


def test_a_stopped_extraction_is_resumed(images, config, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "FLUSH_EVERY", 4)
    monkeypatch.setattr(extraction, "GPU_BATCH", 4)  # two images at a time
    whole = extract(config, images, folder=tmp_path / "whole")
    counts = [len(images[name]) for name in SPLITS]
    seen: list[tuple[str, int]] = []

    def stop(split: str, done: int, count: int) -> None:
        seen.append((split, done))
        if (split, done) == ("features of train", 10):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(config, images, folder=tmp_path / "parts", watch=stop)
    with pytest.raises(RecordError):
        open_features(tmp_path / "parts" / whole.folder.name)
    told: list[tuple[str, int, int]] = []
    parts = extract(config, images, folder=tmp_path / "parts", watch=lambda *said: told.append(said))
    assert told[0] == ("features of train", 8, counts[0])  # the last flush
    assert told[-1] == ("features of test", counts[2], counts[2])
    assert stored(parts.folder) == stored(whole.folder)


DRIVER = """
import sys, time
from dataclasses import replace
from pathlib import Path
from powerpool.data import load_images
from powerpool.tasks.vision import extraction
from tests.tasks.vision.samples import small_config, tiny_backbone

extraction.load_backbone = lambda name, **options: tiny_backbone()
extraction.FLUSH_EVERY, extraction.GPU_BATCH = 4, 4

def watch(split, done, count):
    if (split, done) == ("features of train", 10):
        print("ten", flush=True)
        time.sleep(600)

data, folder = sys.argv[1], Path(sys.argv[2])
config = replace(small_config(data), workers=1)
extraction.extract(config, load_images(data), folder=folder, watch=watch)
"""


def test_a_second_process_is_refused_and_a_killed_one_is_resumed(images, config, textures, tmp_path, monkeypatch):
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(textures), str(tmp_path / "killed")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline().strip() == b"ten"
        with pytest.raises(LockedError, match="killed"):
            extract(config, images, folder=tmp_path / "killed")
        first.send_signal(signal.SIGKILL)
    told: list[tuple[str, int, int]] = []
    found = None
    for _ in range(100):  # its worker process holds the lock until it notices the death
        try:
            found = extract(config, images, folder=tmp_path / "killed", watch=lambda *said: told.append(said))
            break
        except LockedError:
            time.sleep(0.3)
    assert found is not None
    assert told[0] == ("features of train", 8, len(images["train"]))
    monkeypatch.setattr(extraction, "GPU_BATCH", 4)
    assert stored(found.folder) == stored(extract(config, images, folder=tmp_path / "whole").folder)


def test_the_key_depends_on_everything_that_changes_the_maps(images, config, tmp_path, monkeypatch):
    def place(config: VisionConfig = config, images: ImageSet = images) -> str:
        return extract(config, images, folder=tmp_path).folder.name

    first = place()
    assert first.startswith("stripes-")
    assert place(replace(config, pool=replace(config.pool, eta=9), seed=0, data="elsewhere")) == first
    other_splits = {**images.splits, "test": images["validation"], "validation": images["test"]}
    names = [
        place(replace(config, crops=Crops(size=32, count=1, resize=32))),
        place(replace(config, crops=Crops(size=32, count=2, resize=34))),
        place(replace(config, stored="float32")),
        place(images=replace(images, digest="other images")),
        place(images=replace(images, splits={**images.splits, "test": images["test"].select([0, 1])})),
        place(images=replace(images, splits=other_splits)),
    ]
    use_tiny(monkeypatch, seed=1)
    names.append(place())
    assert len({first, *names}) == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_image_is_named(config, tmp_path, workers):
    folder = write_images(tmp_path / "own", 5)
    (folder / "along" / "03.png").write_bytes(b"no picture")
    images, skipped = read_images(replace(config, data=str(folder)))
    assert skipped == {}
    with pytest.raises(ImageError, match=r"along/03\.png") as caught:
        extract(replace(config, workers=workers), images, folder=tmp_path / "features")
    assert "Traceback" not in str(caught.value)


def test_unreadable_images_are_skipped_and_counted(config, tmp_path):
    folder = write_images(tmp_path / "own", 5)
    whole = read_images(replace(config, data=str(folder)))[0]
    bad = whole["train"].names[1], whole["test"].names[0]
    for name in bad:
        (folder / name).write_bytes(b"no picture")
    images, skipped = read_images(replace(config, data=str(folder), corrupt="skip"))
    assert skipped == {"train": [bad[0]], "test": [bad[1]]}
    features = extract(config, images, folder=tmp_path / "features")
    assert [len(features.targets[name]) for name in SPLITS] == [
        len(whole[name]) - (name != "validation") for name in SPLITS
    ]
    assert bad[0] not in features.names["train"]


@pytest.mark.parametrize("damage", ["maps", "items", "half"])
def test_damaged_stores_are_not_opened(images, config, tmp_path, damage):
    features = extract(config, images, folder=tmp_path)
    before = stored(features.folder)
    if damage == "maps":
        os.truncate(features.folder / "validation" / "maps.bin", 8)
    elif damage == "items":
        (features.folder / "items.json").write_text("{")
    else:
        file = features.folder / "validation" / "store.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "done": 1}))
    with pytest.raises(RecordError, match="JSON" if damage == "items" else "validation"):
        open_features(features.folder).maps("validation")
    extract(config, images, folder=tmp_path)
    assert stored(features.folder) == before
