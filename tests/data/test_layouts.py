"""Classes and splits from the names of folders and files."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import pytest

from powerpool.data import DataError, load_images
from powerpool.data.layouts import EXHIBITIONS, OPEN_MIC_PAIRS, OPEN_MIC_PARTS, arrange
from powerpool.data.splits import Labelled
from tests.data.image_sets import flat, split_set, write_folder, write_zip
from tests.real_data import require_data


def arranged(names: list[str], lists: dict[str, str] | None = None, nested: bool = False) -> list[Labelled]:
    content = {name: text.encode() for name, text in (lists or {}).items()}
    return arrange([*names, *content], content.__getitem__, "set", nested=nested)


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_folders_of_classes() -> None:
    found = arranged(["rose/b.JPG", "rose/a.jpeg", "iris/a.png", "README.md", "labels.csv"])
    assert found == [("iris/a.png", "iris", None), ("rose/a.jpeg", "rose", None), ("rose/b.JPG", "rose", None)]


@pytest.mark.parametrize(
    "train, validation, test",
    [("train", "validation", "test"), ("training", "val", "testing"), ("Train", "VALID", "Test"), ("TRAIN", "dev", "")],
)
def test_folders_of_splits(train: str, validation: str, test: str) -> None:
    names = [f"{split}/{label}/1.png" for split in (train, validation, test) if split for label in ("b", "a")]
    expected = {train: "train", validation: "validation", test: "test"}
    for file, label, split in arranged(names):
        assert split == expected[file.split("/")[0]]
        assert label == file.split("/")[1]


def test_folders_around_the_data_set() -> None:
    found = arranged([f"data/flowers/{split}/iris/1.png" for split in ("train", "test")])
    assert found == [
        ("data/flowers/test/iris/1.png", "iris", "test"),
        ("data/flowers/train/iris/1.png", "iris", "train"),
    ]
    assert arranged(["all/rose/1.png", "all/iris/1.png"])[0] == ("all/iris/1.png", "iris", None)
    assert arranged(["rose/1.png", "rose/2.png"])[0].label == "rose"  # one class, not a folder around images


def test_a_class_may_be_called_like_a_split() -> None:
    found = arranged(["test/1.png", "exam/1.png"])
    assert [(image.label, image.split) for image in found] == [("exam", None), ("test", None)]


def test_masks_next_to_images_are_ignored() -> None:
    """The Flickr Material Database has image/<class>/ and mask/<class>/."""
    found = arranged([f"FMD/{kind}/{label}/1.jpg" for kind in ("image", "mask") for label in ("wood", "water")])
    assert found == [("FMD/image/water/1.jpg", "water", None), ("FMD/image/wood/1.jpg", "wood", None)]


def test_other_folders_are_refused() -> None:
    for names, message in (
        ([], "no images"),
        (["rose/a.heic"], "no images"),
        (["a.png", "rose/b.png"], "class of a.png"),
        (["train/rose/x/a.png", "test/rose/a.png"], "class of train/rose/x/a.png"),
        (["train/rose/a.png", "iris/b.png"], r"\(train\).*\(iris\)"),
        (["train/a/1.png", "val/a/1.png", "dev/a/1.png"], "dev, train, val"),
        (["x/train/rose/a.png", "x/train/rose/b.heic"], "train/rose/b.heic"),
    ):
        with pytest.raises(DataError, match=message):
            arranged(names)


def test_nested_classes() -> None:
    names = ["Greek/alpha/1.png", "Greek/beta/1.png", "Latin/alpha/1.png", "plain/1.png"]
    assert [image.label for image in arranged(names, nested=True)] == [
        "Greek/alpha",
        "Greek/beta",
        "Latin/alpha",
        "plain",
    ]
    found = arranged([f"{split}/Greek/{split}/1.png" for split in ("train", "test")], nested=True)
    assert [(image.label, image.split) for image in found] == [("Greek/test", "test"), ("Greek/train", "train")]
    for stray, message in (
        ("a.png", "class of a.png"),
        ("Greek/1.png", "Greek and in Greek/alpha"),
        ("Greek/alpha/2.heic", "Greek/alpha/2.heic"),
    ):
        with pytest.raises(DataError, match=message):
            arranged([*names, stray], nested=True)


def test_what_is_skipped_is_described_or_refused(tmp_path: Path) -> None:
    other = {f"train/rose/{name}": b"" for name in ("notes.txt", "README", "clip.mp4", ".DS_Store", "Thumbs.db")}
    other |= {"train/tulip/info/notes.txt": b"", "train/moss/.DS_Store": b"", "read.me": b""}
    folder = write_folder(tmp_path / "set", split_set(5, ("train",)) | other)
    (folder / "train" / "aster").mkdir()
    (folder / "test").mkdir()  # a test split is drawn
    (folder / "docs").mkdir()  # neither a class nor a split
    (folder / "train" / "loop").symlink_to(folder)
    (folder / "train" / "iris" / "up").symlink_to("..")
    found = load_images(folder)
    assert found.classes == ("iris", "rose")
    links, others, empty = found.remarks
    assert "(2): train/iris/up, train/loop" in links
    assert "(3): train/rose/README, train/rose/clip.mp4, train/rose/notes.txt" in others
    assert "(4): test, train/aster, train/moss, train/tulip" in empty
    with pytest.raises(DataError, match=r"clip\.mp4.*aster"):
        load_images(folder, strict=True)


def test_empty_class_folders_of_a_zip_are_described(tmp_path: Path) -> None:
    content = {**flat(), "tulip/": b"", "aster/": b"", "aster/notes.txt": b"", "iris/": b""}
    (remark,) = load_images(write_zip(tmp_path / "set.zip", content)).remarks
    assert "(2): aster, tulip" in remark


def test_images_in_other_formats_are_refused(tmp_path: Path) -> None:
    """They would be missing, and with them a whole class."""
    with pytest.raises(DataError, match=r"tulip/a\.HEIC"):
        load_images(write_folder(tmp_path, flat() | {"tulip/a.HEIC": b""}))


# ---- Open MIC --------------------------------------------------------------------------------------------------------


def test_open_mic_has_twelve_pairs_and_ten_exhibitions() -> None:
    assert len(set(OPEN_MIC_PAIRS)) == 12
    assert all(pair[:2] != pair[4:] for pair in OPEN_MIC_PAIRS)
    assert sorted(name for part in OPEN_MIC_PARTS.values() for name in part) == sorted(EXHIBITIONS)
    assert len(EXHIBITIONS) == 10


# ---- real data sets, by the names in their zips ----------------------------------------------------------------------


def counted(name: str) -> dict[str | None, Counter[str]]:
    """Return the number of images of each class in each split."""
    with zipfile.ZipFile(require_data(f"images/{name}.zip")) as archive:
        found: dict[str | None, Counter[str]] = {}
        for image in arrange(archive.namelist(), archive.read, name, nested=True):
            found.setdefault(image.split, Counter())[image.label] += 1
    return found


def test_real_flower102() -> None:
    found = counted("flower102")
    assert {split: sum(classes.values()) for split, classes in found.items()} == {
        "train": 1020,
        "validation": 1020,
        "test": 6149,
    }
    assert sorted(found["train"]) == [f"{number:03d}" for number in range(1, 103)]
    assert set(found["train"].values()) == {10}


def test_real_miniimagenet_has_splits_of_different_classes() -> None:
    found = counted("miniimagenet100")
    assert {split: len(classes) for split, classes in found.items()} == {"train": 64, "validation": 16, "test": 20}
    assert {count for classes in found.values() for count in classes.values()} == {100}
    assert len(set().union(*found.values())) == 100


def test_real_omniglot_has_nested_classes() -> None:
    (members,) = counted("omniglot28").values()
    assert (len(members), set(members.values())) == (1623, {20})
    assert "Alphabet_of_the_Magi/character01" in members
    with (
        zipfile.ZipFile(require_data("images/omniglot28.zip")) as archive,
        pytest.raises(DataError, match="class/image"),
    ):
        arrange(archive.namelist(), archive.read, "omniglot28")
