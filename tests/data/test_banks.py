"""Image banks: pixels as Pillow makes them, batches as torch does, and a cache that survives interruptions."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from powerpool.data import ImageBank, ImageError, ImageSplit, banks, read_bank
from powerpool.data.images import ImageIndexError, mean_image
from powerpool.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from powerpool.files import locked
from tests.data.image_sets import encoded, noise

SIZES = [(12, 10), (7, 20), (9, 9), (30, 8), (8, 8), (11, 16), (10, 12)]


@pytest.fixture
def folder(cache: Path) -> Path:
    """The folder of banks in the cache."""
    return cache / "images" / "banks"


@pytest.fixture
def split(tmp_path: Path) -> ImageSplit:
    """Seven images of different sizes, of three classes."""
    files = []
    for number, (width, height) in enumerate(SIZES):
        files.append(tmp_path / f"{number}.png")
        files[-1].write_bytes(encoded(noise(width, height, number)))
    return ImageSplit(tuple(file.name for file in files), torch.tensor([0, 0, 1, 1, 2, 2, 2]), tuple(map(str, files)))


def bank_of(split: ImageSplit, **options) -> ImageBank:
    return read_bank(split, ("a", "b", "c"), **({"size": 8, "key": "k"} | options))


def as_tensor(image: Image.Image) -> Tensor:  # shape: (channels, height, width)
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1)


# ---- decoding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels, invert, key", [(3, False, "k"), (1, True, "k"), (1, False, None), (3, True, None)])
def test_squeezed_images_are_those_of_pillow(split, channels, invert, key):
    bank = bank_of(split, channels=channels, invert=invert, key=key)
    assert (bank.channels, bank.size, len(bank)) == (channels, 8, 7)
    for number, (width, height) in enumerate(SIZES):
        image = noise(width, height, number).convert("RGB" if channels == 3 else "L")
        expected = as_tensor(image.resize((8, 8), Image.Resampling.BILINEAR))
        assert torch.equal(bank.images[number], 255 - expected if invert else expected)
    assert bank.targets.tolist() == [0, 0, 1, 1, 2, 2, 2]
    assert bank.names == split.names
    assert bank.classes == ("a", "b", "c")
    assert repr(bank) == f"ImageBank(7 images of 3 classes, {channels} x 8 x 8)"
    with pytest.warns(DeprecationWarning, match="images"):
        assert bank.pictures is bank.images


def test_cropped_images_are_the_middle(split):
    bank = bank_of(split, resize="crop")
    expected = noise(30, 8, 3).crop((11, 0, 19, 8))  # its short side is 8 already
    assert torch.equal(bank.images[3], as_tensor(expected))
    expected = noise(11, 16, 5).resize((8, 12), Image.Resampling.BILINEAR).crop((0, 2, 8, 10))
    assert torch.equal(bank.images[5], as_tensor(expected))


def test_invalid_settings(split, folder):
    for options, error in (
        ({"size": 0}, ArgumentError),
        ({"channels": 2}, ArgumentError),
        ({"resize": "stretch"}, UnknownNameError),
        ({"corrupt": "ignore"}, UnknownNameError),
    ):
        with pytest.raises(error, match=next(iter(options))):
            bank_of(split, **options)
    with pytest.raises(ArgumentError):
        bank_of(split.select([]))
    assert not folder.exists()


# ---- batches ---------------------------------------------------------------------------------------------------------


def any_bank(mean: bool = False) -> ImageBank:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (6, 3, 5, 5), dtype=np.uint8))
    bank = ImageBank(images, torch.tensor([0, 0, 0, 1, 1, 1]), ("a", "b"), tuple("uvwxyz"))
    return bank.centred() if mean else bank


@settings(max_examples=30)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6),
    st.sampled_from([(-1,), (1, -1), (-1, 1), (1, -1, 1)]),
    st.booleans(),
    st.none() | st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_a_batch_consists_of_its_images(rows, shape, mean, quarters):
    bank, rows = any_bank(mean), torch.tensor(rows).view(shape)
    turns = None if quarters is None else torch.tensor(quarters)[: rows.numel()].view(rows.shape)
    found = bank.batch(rows, turns)
    assert found.shape == (*rows.shape, 3, 5, 5)
    assert found.dtype == torch.float32
    average = bank.images.double().mean(0) / 255 if mean else 0.0
    for place, row in enumerate(rows.flatten().tolist()):
        expected = bank.images[row].double() / 255 - average
        expected = torch.from_numpy(np.rot90(expected.numpy(), 0 if turns is None else quarters[place], (1, 2)).copy())
        torch.testing.assert_close(found.reshape(-1, 3, 5, 5)[place].double(), expected, rtol=0, atol=1e-6)


def test_groups_have_their_own_means():
    bank, groups = any_bank(), torch.tensor([7, 3, 7, 3, 7, 3])
    pixels, found = bank.images / 255, bank.centred(groups).batch(torch.tensor([[5, 0], [2, 1]]))
    for place, row in ((0, 0), 5), ((0, 1), 0), ((1, 0), 2), ((1, 1), 1):
        torch.testing.assert_close(found[place], pixels[row] - pixels[groups == groups[row]].mean(0))


def test_batches_are_copies_and_may_be_empty():
    bank = any_bank(mean=True)
    before = bank.images.clone()
    bank.batch(torch.tensor([0, 1]), torch.tensor([1, 2])).zero_()
    assert torch.equal(bank.images, before)
    assert bank.batch(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 3, 5, 5)


def test_the_mean_of_many_images():
    """More than are summed at a time; a sum in bytes or half precision would overflow."""
    images = torch.randint(200, 256, (1300, 1, 2, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean = mean_image(images)
    torch.testing.assert_close(mean, (images.double().mean(0) / 255).float(), rtol=0, atol=1e-7)
    assert torch.equal(mean, mean_image(images.flip(0)))


def test_rows_and_banks_that_do_not_fit_are_refused():
    for rows, error in (([0, 6], ImageIndexError), ([-1], ImageIndexError), ([0.5], RuntimeError)):
        with pytest.raises(error):
            any_bank().batch(torch.tensor(rows))
    with pytest.raises(DTypeError, match="float32"):
        replace(any_bank(), images=torch.zeros(6, 3, 5, 5))
    for changes in ({"images": torch.zeros(6, 3, 5, 4, dtype=torch.uint8)}, {"names": ("u",)}):
        with pytest.raises(ShapeError):
            replace(any_bank(), **changes)


# ---- the cache -------------------------------------------------------------------------------------------------------


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The indices of images that are decoded."""
    found: list[int] = []
    read = ImageSplit.read
    monkeypatch.setattr(ImageSplit, "read", lambda split, index: found.append(index) or read(split, index))
    return found


def test_images_are_decoded_once(split, reads, folder):
    told: list[tuple[int, int]] = []
    first = bank_of(split, watch=lambda done, count: told.append((done, count)))
    assert sorted(reads) == list(range(7))
    assert told[-1] == (7, 7)
    before = first.images.clone()
    first.images.zero_()  # changes a copy, not the cache
    assert torch.equal(bank_of(split).images, before)
    assert len(reads) == 7
    assert len(list(folder.iterdir())) == 1


def test_other_images_settings_and_versions_are_decoded_again(split, folder, monkeypatch):
    bank_of(split, key=None)
    assert not folder.exists()
    bank_of(split)
    changes = [{"key": "other"}, {"size": 9}, {"channels": 1}, {"resize": "crop"}, {"invert": True}]
    for change in changes:
        bank_of(split, **change)
    bank_of(split.select(range(3)))
    monkeypatch.setattr(banks, "DECODER_VERSION", "another version")
    bank_of(split)
    assert len(list(folder.iterdir())) == len(changes) + 3


def test_a_stopped_process_loses_one_chunk(split, reads, monkeypatch):
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
    assert torch.equal(bank.images, bank_of(split, key=None).images)


def test_two_processes_do_not_decode_the_same_images(split, reads, folder, monkeypatch):
    monkeypatch.setattr(banks, "PAUSE", 0.01)
    whole = bank_of(split).images.clone()
    (own,) = folder.iterdir()
    (own / "store.json").unlink()
    (own / "maps.bin").unlink()
    reads.clear()
    found: list[Tensor] = []
    waiting = threading.Thread(target=lambda: found.append(bank_of(split).images))
    with locked(own):
        waiting.start()
        time.sleep(0.2)
        assert reads == []  # the other process holds the folder
    waiting.join(timeout=60)
    assert torch.equal(found[0], whole)
    assert sorted(reads) == list(range(7))


# ---- images that cannot be read --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["k", None])
def test_corrupt_images_are_named_or_skipped(split, key, monkeypatch):
    monkeypatch.setattr(banks, "CHUNK", 3)
    expected = bank_of(split, key=None).images[[0, 2, 4, 5, 6]]
    for number in (1, 3):
        Path(split.sources[number]).write_bytes(b"words")
    for _ in range(2):
        bank = bank_of(split, key=key, corrupt="skip")
        assert torch.equal(bank.images, expected)
        assert bank.names == ("0.png", "2.png", "4.png", "5.png", "6.png")
        assert bank.targets.tolist() == [0, 1, 2, 2, 2]
        with pytest.raises(ImageError, match=r"2 of 7 .*1\.png .*3\.png"):
            bank_of(split, key=key)
    for source in split.sources:
        Path(source).write_bytes(b"words")
    with pytest.raises(ImageError, match="7 of 7"):
        bank_of(split, key=key and "other", corrupt="skip")


def test_images_that_could_not_be_read_are_tried_again(split, reads, monkeypatch):
    """A disk may have been unavailable."""
    monkeypatch.setattr(banks, "CHUNK", 2)
    whole = bank_of(split, key=None).images
    file = Path(split.sources[3])
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(ImageError, match=r"1 of 7 .*3\.png: No such file"):
        bank_of(split)
    file.write_bytes(content)
    for expected in ([3], []):
        reads.clear()
        assert torch.equal(bank_of(split).images, whole)
        assert reads == expected
