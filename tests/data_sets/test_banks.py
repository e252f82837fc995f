"""Banks: pixels as Pillow makes them, batches as tensors do, and a cache that survives what can happen to it."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from powerpool.data import ImageError, ImageSplit, PictureBank, banks, read_bank
from powerpool.data.images import ImageIndexError
from powerpool.errors import ArgumentError, DTypeError, LockedError, RecordError, ShapeError, UnknownNameError
from powerpool.files import locked
from tests.data_sets.picture_sets import encoded, noise

SIZES = [(12, 10), (7, 20), (9, 9), (30, 8), (8, 8), (11, 16), (10, 12)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of banks in an empty cache."""
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "images" / "banks"


@pytest.fixture
def split(tmp_path: Path) -> ImageSplit:
    """Seven pictures of different sizes, and of three classes."""
    files = []
    for number, (width, height) in enumerate(SIZES):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(encoded(noise(width, height, number)))
    return ImageSplit(tuple(file.name for file in files), torch.tensor([0, 0, 1, 1, 2, 2, 2]), tuple(map(str, files)))


def bank_of(split: ImageSplit, **options) -> PictureBank:
    return read_bank(split, ("a", "b", "c"), **({"size": 8, "key": "k"} | options))


def as_tensor(image: Image.Image) -> Tensor:  # shape: (channels, height, width)
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


# ---- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("channels, invert", [(3, False), (1, False), (1, True), (3, True)])
def test_squeezed_pictures_are_those_of_pillow(split, channels, invert, key):
    bank = bank_of(split, channels=channels, invert=invert, key=key)
    assert bank.pictures.shape == (7, channels, 8, 8)
    assert (bank.channels, bank.size, len(bank)) == (channels, 8, 7)
    for number, (width, height) in enumerate(SIZES):
        image = noise(width, height, number).convert("RGB" if channels == 3 else "L")
        expected = as_tensor(image.resize((8, 8), Image.Resampling.BILINEAR))
        assert torch.equal(bank.pictures[number], 255 - expected if invert else expected)
    assert bank.targets.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert bank.names == split.names
    assert bank.classes == ("a", "b", "c")
    assert bank.mean is None
    assert repr(bank) == f"PictureBank(7 pictures of 3 classes, {channels} x 8 x 8)"


def test_cropped_pictures_are_the_middle(split):
    bank = bank_of(split, resize="crop")
    expected = noise(30, 8, 3).crop((11, 0, 19, 8))  # its short side is 8 already
    assert torch.equal(bank.pictures[3], as_tensor(expected))
    expected = noise(11, 16, 5).resize((8, 12), Image.Resampling.BILINEAR).crop((0, 2, 8, 10))
    assert torch.equal(bank.pictures[5], as_tensor(expected))


def test_grey_pictures_keep_their_levels(tmp_path):
    levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
    (tmp_path / "g.png").write_bytes(encoded(Image.fromarray(levels)))
    split = ImageSplit(("g",), torch.tensor([0]), (str(tmp_path / "g.png"),))
    assert torch.equal(bank_of(split, size=16, channels=1).pictures[0, 0], torch.from_numpy(levels))


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"size": 0}, ArgumentError, "size must be at least 1 pixel"),
        ({"channels": 2}, ArgumentError, r"channels must be 1 \(luminance\) or 3 .*got 2"),
        ({"resize": "stretch"}, UnknownNameError, "Unknown way to resize pictures 'stretch'"),
        ({"corrupt": "ignore"}, UnknownNameError, "Unknown choice for corrupt pictures 'ignore'"),
        ({"threads": 0}, ArgumentError, "threads must be at least 1"),
    ],
)
def test_settings_that_cannot_be(split, folder, options, error, message):
    with pytest.raises(error, match=message):
        bank_of(split, **options)
    assert not folder.exists()


def test_no_pictures(split):
    with pytest.raises(ArgumentError, match="at least one picture"):
        bank_of(split.select([]))


# ---- batches ---------------------------------------------------------------------------------------------------------


def any_bank(mean: bool = False, channels: int = 3) -> PictureBank:
    pictures = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, channels, 5, 5), dtype=np.uint8))
    bank = PictureBank(pictures, torch.tensor([0, 0, 0, 1, 1, 1]), ("a", "b"), tuple("uvwxyz"))
    return bank.centred() if mean else bank


def test_groups_are_centred_each_by_itself():
    bank, groups = any_bank(), torch.tensor([7, 3, 7, 3, 7, 3])
    pixels, found = bank.pictures / 255, bank.centred(groups).batch(torch.tensor([[5, 0], [2, 1]]))
    for place, row in ((0, 0), 5), ((0, 1), 0), ((1, 0), 2), ((1, 1), 1):
        torch.testing.assert_close(found[place], pixels[row] - pixels[groups == groups[row]].mean(0))


@pytest.mark.parametrize(
    "mean, groups, said",
    [
        (torch.zeros(2, 3, 5, 5), None, r"mean must be a picture of shape \(3, 5, 5\) \(got \(2, 3, 5, 5\)\)"),
        (torch.zeros(3, 5, 5), torch.zeros(6, dtype=torch.long), "for each group"),
        (None, torch.zeros(6, dtype=torch.long), "for each group"),
        (
            torch.zeros(2, 3, 5, 5),
            torch.zeros(5, dtype=torch.long),
            "from 0 to 1 for each of 6 pictures",
        ),
        (torch.zeros(2, 3, 5, 5), torch.full((6,), 2), "from 0 to 1 for each of 6 pictures"),
    ],
)
def test_means_belong_to_groups(mean, groups, said):
    with pytest.raises(ShapeError, match=said):
        replace(any_bank(), mean=mean, groups=groups)


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6).flatmap(
        lambda rows: st.sampled_from([(len(rows),), (1, len(rows)), (len(rows), 1), (1, len(rows), 1)]).map(
            lambda shape: torch.tensor(rows).view(shape)
        )
    ),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_a_batch_is_its_pictures_one_by_one(rows, mean, turned, quarters):
    bank = any_bank(mean)
    turns = torch.tensor(quarters)[: rows.numel()].view(rows.shape) if turned else None
    found = bank.batch(rows, turns)
    assert found.shape == (*rows.shape, 3, 5, 5)
    assert found.dtype == torch.float32
    average = bank.pictures.double().mean(0) / 255 if mean else 0.0
    for place, row in enumerate(rows.flatten().tolist()):
        expected = bank.pictures[row].double() / 255 - average
        quarter = quarters[place] if turned else 0
        expected = torch.from_numpy(np.rot90(expected.numpy(), quarter, (1, 2)).copy())
        torch.testing.assert_close(found.reshape(-1, 3, 5, 5)[place].double(), expected, rtol=0, atol=1e-6)


def test_turns_are_those_of_pillow():
    bank = any_bank()
    for quarter, turn in enumerate(["ROTATE_90", "ROTATE_180", "ROTATE_270"], start=1):
        image = Image.fromarray(bank.pictures[2].permute(1, 2, 0).numpy()).transpose(Image.Transpose[turn])
        expected = as_tensor(image).float() / 255
        assert torch.equal(bank.batch(torch.tensor([2]), torch.tensor([quarter]))[0], expected)


def test_classes_of_an_episode_are_turned_as_one():
    bank, rows = any_bank(), torch.tensor([[0, 1, 2], [3, 4, 5]])
    found = bank.batch(rows, torch.tensor([3, 0])[:, None])
    assert torch.equal(found[0], bank.batch(rows[0]).rot90(3, (-2, -1)))
    assert torch.equal(found[1], bank.batch(rows[1]))


def test_a_batch_leaves_the_bank_as_it_was():
    bank = any_bank(mean=True)
    before = bank.pictures.clone()
    bank.batch(torch.tensor([0, 1]), torch.tensor([1, 2])).zero_()
    assert torch.equal(bank.pictures, before)


def test_a_batch_of_nothing():
    assert any_bank().batch(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 3, 5, 5)


def test_white_is_one_and_black_is_zero():
    pictures = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    bank = PictureBank(pictures, torch.tensor([0, 1]), ("a", "b"), ("u", "v"))
    assert bank.batch(torch.tensor([0, 1])).flatten().tolist() == [0.0, 1.0]


def test_the_mean_of_many_pictures():
    """More than are summed at a time; in bytes or halves the sum would be lost."""
    pictures = torch.randint(200, 256, (1300, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean = banks.mean_picture(pictures)
    assert mean.dtype == torch.float32
    torch.testing.assert_close(mean.double(), pictures.double().mean(0) / 255, rtol=0, atol=1e-7)
    assert torch.equal(mean, banks.mean_picture(pictures.flip(0)))
    bank = PictureBank(pictures, torch.zeros(1300), ("a",), ("u",) * 1300).centred()
    assert float(bank.batch(torch.arange(1300)).mean().abs()) < 1e-6


@pytest.mark.parametrize(
    "rows, turns, error, message",
    [
        (torch.tensor([0, 6]), None, ImageIndexError, r"The bank has pictures 0 to 5 \(asked for 6\)"),
        (torch.tensor([[-1]]), None, ImageIndexError, r"asked for -1"),
        (torch.tensor([0.0]), None, DTypeError, "rows must be whole numbers"),
        (torch.tensor([True]), None, DTypeError, "rows must be whole numbers"),
        (torch.tensor([[0, 1]]), torch.tensor([1, 2, 3]), ShapeError, r"broadcast .* \(1, 2\) \(got \(3,\)\)"),
    ],
)
def test_batches_that_cannot_be(rows, turns, error, message):
    with pytest.raises(error, match=message):
        any_bank().batch(rows, turns)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"pictures": torch.zeros(6, 3, 5, 5)}, DTypeError, r"bytes, torch.uint8 \(got torch.float32\)"),
        ({"pictures": torch.zeros(6, 3, 5, 4, dtype=torch.uint8)}, ShapeError, r"got \(6, 3, 5, 4\)"),
        ({"targets": torch.zeros(5)}, ShapeError, r"of one length \(got 6, \(5,\) and 6\)"),
        ({"names": ("u",)}, ShapeError, r"of one length \(got 6, \(6,\) and 1\)"),
        ({"mean": torch.zeros(3, 4, 4)}, ShapeError, r"shape \(3, 5, 5\) \(got \(3, 4, 4\)\)"),
    ],
)
def test_banks_that_cannot_be(changes, error, message):
    bank = any_bank()
    parts = {name: getattr(bank, name) for name in ("pictures", "targets", "classes", "names", "mean")}
    with pytest.raises(error, match=message):
        PictureBank(**parts | changes)


# ---- the cache -------------------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of pictures that are decoded."""
    found: list[int] = []
    read = ImageSplit.read
    monkeypatch.setattr(ImageSplit, "read", lambda split, index: found.append(index) or read(split, index))
    return found


def test_pictures_are_decoded_once(split, reads, folder):
    told: list[tuple[int, int]] = []
    first = bank_of(split, watch=lambda done, count: told.append((done, count)))
    assert sorted(reads) == list(range(7))
    assert told[-1] == (7, 7)
    again = bank_of(split)
    assert len(reads) == 7
    assert torch.equal(first.pictures, again.pictures)
    assert len(list(folder.iterdir())) == 1


def test_without_a_key_nothing_is_stored(split, folder):
    bank_of(split, key=None)
    assert not folder.exists()


def test_other_pictures_and_settings_are_decoded_anew(split, folder, monkeypatch):
    bank_of(split)
    changes = [{"key": "other"}, {"size": 9}, {"channels": 1}, {"resize": "crop"}, {"invert": True}]
    for change in changes:
        bank_of(split, **change)
    bank_of(split.select(range(3)))
    monkeypatch.setattr(banks, "_made_by", lambda: "another version")
    bank_of(split)
    assert len(list(folder.iterdir())) == len(changes) + 3


def test_writing_into_a_bank_does_not_change_the_cache(split):
    bank = bank_of(split)
    before = bank.pictures.clone()
    bank.pictures.zero_()
    assert torch.equal(bank_of(split).pictures, before)


def test_a_stopped_process_costs_a_part(split, reads, monkeypatch):
    monkeypatch.setattr(banks, "CHUNK", 2)

    def stop(done: int, count: int) -> None:
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bank_of(split, watch=stop)
    assert sorted(reads) == [0, 1, 2, 3]
    reads.clear()
    bank = bank_of(split)
    assert sorted(reads) == [4, 5, 6]
    assert torch.equal(bank.pictures, bank_of(split, key=None).pictures)


def test_a_disk_that_is_full(split, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RecordError, match=r"Cannot make .*maps.bin of .*: No space left.*POWERPOOL_CACHE"):
        bank_of(split)


def test_a_cache_that_cannot_be_written_to(split, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "file"))
    with pytest.raises(RecordError, match="Cannot make the folder"):
        bank_of(split)


def test_two_that_want_the_same_wait_for_one_another(split, reads, folder, monkeypatch):
    monkeypatch.setattr(banks, "PAUSE", 0.01)
    whole = bank_of(split).pictures.clone()
    (own,) = folder.iterdir()
    (own / "store.json").unlink()
    (own / "maps.bin").unlink()
    reads.clear()
    found: list[Tensor] = []
    waiting = threading.Thread(target=lambda: found.append(bank_of(split).pictures))
    with locked(own):
        waiting.start()
        time.sleep(0.2)
        assert reads == []  # the other process has the folder
    waiting.join(timeout=60)
    assert torch.equal(found[0], whole)
    assert sorted(reads) == list(range(7))


def test_one_that_makes_no_headway_is_told(split, folder, monkeypatch):
    monkeypatch.setattr(banks, "PAUSE", 0.01)
    monkeypatch.setattr(banks, "PATIENCE", 0.1)
    bank_of(split)
    (own,) = folder.iterdir()
    (own / "store.json").unlink()
    with locked(own), pytest.raises(LockedError, match=r"decoded nothing for 0.1 seconds"):
        bank_of(split)


# ---- pictures that cannot be read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k", None])
def test_damaged_pictures_are_named(split, key):
    for number in (1, 3, 4, 6):
        Path(split.sources[number]).write_bytes(b"words")
    for _ in range(2):
        with pytest.raises(ImageError, match=r"4 of 7 pictures cannot be read: 1.png is no picture.* 4.png.* So are 1"):
            bank_of(split, key=key)


@pytest.mark.parametrize("key", ["k", None])
def test_damaged_pictures_are_skipped(split, key, monkeypatch):
    monkeypatch.setattr(banks, "CHUNK", 3)
    expected = bank_of(split, key=None).pictures[[0, 2, 4, 5, 6]]
    for number in (1, 3):
        Path(split.sources[number]).write_bytes(b"words")
    for _ in range(2):
        bank = bank_of(split, key=key, corrupt="skip")
        assert torch.equal(bank.pictures, expected)
        assert bank.names == ("0.png", "2.png", "4.png", "5.png", "6.png")
        assert bank.targets.tolist() == [0, 1, 2, 2, 2]
    with pytest.raises(ImageError, match=r'2 of 7 pictures .* skip them with corrupt="skip"'):
        bank_of(split, key=key)


def test_nothing_left_to_skip(split):
    for source in split.sources:
        Path(source).write_bytes(b"words")
    with pytest.raises(ImageError, match=r"7 of 7 pictures cannot be read"):
        bank_of(split, corrupt="skip")


def test_what_could_not_be_read_is_tried_again(split, reads, monkeypatch):
    """A disk that was away is no damaged picture: what was missing is added to the rest."""
    monkeypatch.setattr(banks, "CHUNK", 2)
    whole = bank_of(split, key=None).pictures
    file = Path(split.sources[3])
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(ImageError, match=r"1 of 7 pictures cannot be read: Cannot read 3.png: No such file"):
        bank_of(split)
    file.write_bytes(content)
    reads.clear()
    assert torch.equal(bank_of(split).pictures, whole)
    assert reads == [3]
    reads.clear()
    assert torch.equal(bank_of(split).pictures, whole)
    assert reads == []


def test_a_picture_that_is_too_long_is_named(tmp_path):
    (tmp_path / "line.png").write_bytes(encoded(Image.new("RGB", (20_000, 1))))
    split = ImageSplit(("line.png",), torch.tensor([0]), (str(tmp_path / "line.png"),))
    with pytest.raises(ImageError, match=r"line.png: a picture of 20,000 x 1 pixels is too long"):
        bank_of(split, size=84)
