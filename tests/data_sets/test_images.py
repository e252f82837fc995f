"""Splits of pictures: how they are cut, read, checked, and sent to the workers of a loader."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from powerpool.data import (
    Crops,
    ImageDataset,
    ImageError,
    ImageSplit,
    Limits,
    MissingDataError,
    Splits,
    list_pictures,
    load_images,
    readable,
)
from powerpool.data.image_layouts import Labelled
from powerpool.data.images import cut
from powerpool.errors import ArgumentError, ShapeError, UnknownNameError
from tests.data_sets.picture_sets import claims, encoded, flat, noise, picture, split_set, write_folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)


def labelled(counts: dict[str, int], split: str | None = None) -> list[Labelled]:
    return [Labelled(f"{name}/{number}", name, split) for name, count in counts.items() for number in range(count)]


# ---- cutting ---------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.lists(st.integers(3, 60), min_size=1, max_size=5),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 5),
)
def test_every_class_is_cut_by_its_share(counts: list[int], validation: int, test: int, seed: int) -> None:
    shares = {"validation": validation / 100, "test": test / 100}
    pictures = labelled({f"class{number}": count for number, count in enumerate(counts)})
    found = cut(pictures, Splits(**shares, seed=seed), "set")
    assert [(picture.file, picture.label) for picture in found] == [(p.file, p.label) for p in pictures]
    assert {picture.split for picture in found} <= {"train", "validation", "test"}
    sizes = Counter((picture.label, picture.split) for picture in found)
    for number, count in enumerate(counts):
        for split, share in shares.items():
            size = sizes[f"class{number}", split]
            assert abs(size - share * count) <= 0.5 + 1e-9 or (size == 1 and 0 < share * count < 1)
            assert (size == 0) == (share == 0)
        assert sizes[f"class{number}", "train"] >= 1


def test_a_seed_cuts_the_same_and_another_otherwise() -> None:
    pictures = labelled({"rose": 30, "iris": 30})
    first = cut(pictures, Splits(seed=3), "set")
    assert cut(pictures, Splits(seed=3), "set") == first
    assert cut(pictures, Splits(seed=4), "set") != first
    assert {p.file: p.split for p in cut(pictures[::-1], Splits(seed=3), "set")} == {p.file: p.split for p in first}
    # The cut must not change with a version: it names the pictures that published numbers were tested on.
    assert [p.file for p in cut(labelled({"rose": 10}), Splits(), "set") if p.split == "test"] == KNOWN_CUT


KNOWN_CUT = ["rose/0", "rose/9"]


def test_only_what_is_missing_is_cut() -> None:
    train, test = labelled({"rose": 10}, "train"), [Labelled("t", "rose", "test")]
    validation = [Labelled("v", "rose", "validation")]

    def sizes(pictures: list[Labelled], splits: Splits | None = None) -> dict[str | None, int]:
        return dict(Counter(picture.split for picture in cut(pictures, splits or Splits(), "set")))

    assert sizes(train) == {"train": 6, "validation": 2, "test": 2}
    assert sizes(train + test) == {"train": 8, "validation": 2, "test": 1}
    assert sizes(train + validation) == {"train": 10, "validation": 1}
    assert sizes(train + validation + test) == {"train": 10, "validation": 1, "test": 1}
    assert sizes(train + test, Splits(validation=0)) == {"train": 10, "test": 1}
    assert sizes(test) == {"test": 1}
    assert all(p.split == "test" for p in cut(train + test, Splits(), "set") if p.file == "t")


@pytest.mark.parametrize("count", [1, 2])
def test_classes_with_too_few_pictures(count: int) -> None:
    with pytest.raises(
        ArgumentError, match=rf"set: class 'iris' has only {count} picture\(s\), too few for 0.2 of them"
    ):
        cut(labelled({"rose": 9, "iris": count}), Splits(), "set")
    assert len(cut(labelled({"rose": 9, "iris": 3}), Splits(), "set")) == 12


@pytest.mark.parametrize("arguments", [{"test": -0.1}, {"validation": 1.0}, {"test": 0.5, "validation": 0.5}])
def test_shares_check_themselves(arguments: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        Splits(**arguments)


# ---- splits ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "set", split_set(3))


def test_reading_selecting_and_adding(folder: Path) -> None:
    images = load_images(folder)
    train, validation = images["train"], images["validation"]
    assert len(train) == 6
    assert repr(images) == "ImageSet('set', 2 classes, train 6, validation 6, test 6)"
    assert repr(train) == "ImageSplit(6 pictures, 2 classes)"
    assert encoded(train.read(4)) == encoded(noise(12, 10, 4))
    assert encoded(train.read(-1)) == encoded(noise(12, 10, 5))
    some = train.select([5, 0, 0])
    assert some.names == ("train/rose/2.png", "train/iris/0.png", "train/iris/0.png")
    assert some.targets.tolist() == [1, 0, 0]
    assert encoded(some.read(0)) == encoded(noise(12, 10, 5))
    assert len(train.select([])) == 0
    both = train.select(torch.tensor([1])) + validation
    assert both.names == ("train/iris/1.png", *validation.names)
    assert both.targets.tolist() == [0, *validation.targets.tolist()]
    assert encoded(both.read(1)) == encoded(noise(12, 10, 6))


def test_bad_indices_splits_and_lengths(folder: Path) -> None:
    images = load_images(folder)
    for index in (6, -7):
        with pytest.raises(IndexError, match=rf"pictures 0 to 5 \(asked for {index}\)"):
            images["train"].read(index)
        with pytest.raises(ArgumentError, match=rf"pictures 0 to 5 \(asked for {index}\)"):
            images["train"].select([0, index])
    with pytest.raises(MissingDataError, match="set has no split 'dev': it has train, validation, test"):
        images["dev"]
    with pytest.raises(ShapeError, match="must be of one length"):
        ImageSplit(("a", "b"), torch.zeros(1, dtype=torch.long), ("a", "b"))


def test_a_split_is_cheap_to_send(folder: Path) -> None:
    split = load_images(folder, limits=Limits(pixels=100))["train"]
    sent = pickle.dumps(split)
    assert len(sent) < 3000
    again = pickle.loads(sent)
    assert again.names == split.names
    with pytest.raises(ImageError, match=r"train/iris/0\.png is too large: it has 12 x 10 pixels, at most 100"):
        again.read(0)


def test_classes_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    images = load_images(write_folder(tmp_path / "set", flat(("b", "10", "a", "9"))))
    assert images.classes == ("10", "9", "a", "b")
    for split in images.splits.values():
        for name, target in zip(split.names, split.targets, strict=True):
            assert images.classes[target] == name.split("/")[0]


# ---- lists of pictures -----------------------------------------------------------------------------------------------


def test_pictures_to_predict(tmp_path: Path) -> None:
    write_folder(tmp_path / "in", {"b/2.PNG": picture(2), "a.jpg": picture(0), "b/notes.txt": b"", ".x.png": b""})
    write_folder(tmp_path, {"odd.name": picture(7)})
    found = list_pictures([tmp_path / "odd.name", str(tmp_path / "in"), tmp_path / "in" / "a.jpg"])
    assert found.names == (f"{tmp_path}/odd.name", f"{tmp_path}/in/a.jpg", f"{tmp_path}/in/b/2.PNG")
    assert found.targets.tolist() == [-1, -1, -1]
    assert encoded(found.read(2)) == encoded(noise(12, 10, 2))
    assert list_pictures(tmp_path / "odd.name").names == (f"{tmp_path}/odd.name",)


def test_nothing_to_predict(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"There is no file or folder .*nowhere"):
        list_pictures([tmp_path / "nowhere"])
    with pytest.raises(MissingDataError, match=r"The folder .* has no pictures \(jpg"):
        list_pictures([write_folder(tmp_path / "empty", {"notes.txt": b""})])
    with pytest.raises(ArgumentError, match="No picture was named"):
        list_pictures([])


# ---- corrupt pictures ------------------------------------------------------------------------------------------------


def damaged(folder: Path) -> ImageSplit:
    (folder / "train/iris/1.png").write_bytes(picture(1)[:60])
    (folder / "train/rose/0.png").write_text("words")
    (folder / "train/rose/2.png").write_bytes(claims(60_000, 60_000))
    return load_images(folder)["train"]


def test_corrupt_pictures_are_an_error(folder: Path) -> None:
    with pytest.raises(ImageError) as raised:
        readable(damaged(folder))
    for text in (
        "3 of 6 pictures cannot be read",
        "train/iris/1.png is",
        "train/rose/0.png is no",
        "2.png is too large",
    ):
        assert text in str(raised.value)
    (folder / "train/rose/1.png").write_text("words")
    with pytest.raises(ImageError, match=r"4 of 6 .* So are 1 more\..*corrupt=\"skip\""):
        readable(load_images(folder)["train"])


def test_corrupt_pictures_can_be_skipped(folder: Path) -> None:
    split, skipped = readable(damaged(folder), "skip")
    assert skipped == ["train/iris/1.png", "train/rose/0.png", "train/rose/2.png"]
    assert split.names == ("train/iris/0.png", "train/iris/2.png", "train/rose/1.png")
    assert split.targets.tolist() == [0, 0, 1]


def test_all_corrupt_is_an_error_in_any_case(tmp_path: Path) -> None:
    split = list_pictures(write_folder(tmp_path / "in", {"a.png": b"", "b.png": b""}))
    with pytest.raises(ImageError, match=r"2 of 2 pictures cannot be read: .*a\.png is no picture"):
        readable(split, "skip")


def test_good_pictures_pass_with_progress(folder: Path) -> None:
    calls: list[tuple[int, int]] = []
    split = load_images(folder)["train"]
    found, skipped = readable(split, threads=2, progress=lambda done, count: calls.append((done, count)))
    assert found is split
    assert skipped == []
    assert calls == [(number, 6) for number in range(1, 7)]
    with pytest.raises(UnknownNameError, match="choice for corrupt pictures 'ignore'"):
        readable(split, "ignore")


# ---- loaders ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders(folder: Path, workers: int) -> None:
    split, crops = load_images(folder)["train"], Crops(size=8, count=6)
    loader = DataLoader(ImageDataset(split, crops), batch_size=4, num_workers=workers)
    batches = list(loader)
    assert [batch["index"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5]]
    assert torch.cat([batch["target"] for batch in batches]).tolist() == split.targets.tolist()
    images = torch.cat([batch["images"] for batch in batches])
    torch.testing.assert_close(images, torch.stack([crops(split.read(index)) for index in range(6)]))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_worker_reads_as_ours(folder: Path, workers: int) -> None:
    loader = DataLoader(ImageDataset(damaged(folder), Crops(size=8)), batch_size=4, num_workers=workers)
    with pytest.raises(ImageError) as raised:
        list(loader)
    assert str(raised.value).startswith("train/iris/1.png is ")
    assert "\n" not in str(raised.value)


def test_a_picture_that_is_too_long_for_crops_is_named(tmp_path: Path) -> None:
    split = list_pictures(write_folder(tmp_path, {"line.png": picture(width=10_000, height=1)}) / "line.png")
    with pytest.raises(ImageError, match=r"line\.png: a picture of 10,000 x 1 pixels is too long for crops"):
        ImageDataset(split, Crops())[0]
