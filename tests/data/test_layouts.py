"""Classes and splits from file names and lists; damaged lists are errors that name the file and the line."""

from __future__ import annotations

import zipfile
from collections import Counter
from itertools import product
from pathlib import Path

import pytest

from powerpool.data import DataError, MissingDataError, load_images
from powerpool.data.layouts import EXHIBITIONS, OPEN_MIC_PAIRS, OPEN_MIC_PARTS, arrange
from powerpool.data.splits import SPLIT_NAMES, Labelled
from tests.data.image_sets import png, split_set, write_folder
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


def test_what_is_left_out_is_described_or_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", split_set(5, ("train",)) | {"train/rose/notes.txt": b"", "read.me": b""})
    (folder / "train" / "tulip").mkdir()
    (folder / "docs").mkdir()
    (folder / "train" / "loop").symlink_to(folder)
    found = load_images(folder)
    assert "tulip" not in found.classes
    named = ("1 other files in class folders: train/rose/notes.txt", "1 empty class folders: train/tulip", "train/loop")
    assert len(found.remarks) == len(named)
    assert all(name in remark for name, remark in zip(named, found.remarks, strict=True))
    with pytest.raises(DataError, match=r"notes\.txt.*tulip"):
        load_images(folder, strict=True)


# ---- a table ---------------------------------------------------------------------------------------------------------


def test_a_table_of_paths_classes_and_splits(tmp_path: Path) -> None:
    names = [f"photos/{number}.png" for number in range(4)]
    rows = 'split,path,label,note\ntrain,photos/0.png,"oak, red",\nVAL,photos/1.png,ash,x\n\ntest,photos/2.png,ash,\n'
    found = arranged(names, {"splits.csv": rows})
    assert found == [
        Labelled("photos/0.png", "oak, red", "train"),
        Labelled("photos/1.png", "ash", "validation"),
        Labelled("photos/2.png", "ash", "test"),
    ]
    assert {image.split for image in arranged(names, {"splits.csv": "path,label\nphotos/3.png,ash\n"})} == {None}
    content = {name: png(seed) for seed, name in enumerate(names)} | {"mine.csv": rows.encode()}
    images = load_images(write_folder(tmp_path / "set", content) / "mine.csv")
    assert (images.name, images.classes, list(images.splits)) == ("mine", ("ash", "oak, red"), list(SPLIT_NAMES))


@pytest.mark.parametrize(
    "rows, message",
    [
        ("", "line 1"),
        ("file,label\n", "path, label, split"),
        ("path,label,split\n\nphotos/0.png,ash,trian\n", "line 3.*trian"),
        ("path,label,split\nphotos/0.png,,train\n", "line 2"),
        ("path,label,split\nphotos/9.png,ash,train\n", "photos/9.png"),
        ("path,label,split\nphotos/0.png,ash,train\nphotos/1.png,ash,\n", "every row"),
        ("path,label\nphotos/0.png,ash\nphotos/0.png,ash\n", "line 3"),
    ],
)
def test_bad_tables_are_refused(rows: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        arranged(["photos/0.png", "photos/1.png"], {"splits.csv": rows})


# ---- lists -----------------------------------------------------------------------------------------------------------

MIT67 = ["Images/attic/a.jpg", "Images/attic/b.jpg", "Images/bar/c.jpg", "Images/bar/unused.jpg"]


def test_first_split_of_dtd() -> None:
    names = [f"dtd/images/{label}/{label}_{number}.jpg" for label in ("banded", "dotted") for number in range(3)]
    lists = {
        f"dtd/labels/{name}{split}.txt": f"banded/banded_{number}.jpg\ndotted/dotted_{number}.jpg\n"
        for number, name in enumerate(("train", "val", "test"))
        for split in (1, 2)
    }
    found = arranged(names, lists | {"dtd/labels/labels_joint_anno.txt": "banded/banded_0.jpg banded\n"})
    assert Counter((image.label, image.split) for image in found) == Counter(product(("banded", "dotted"), SPLIT_NAMES))


def test_variants_of_aircraft() -> None:
    names = [f"fgvc-aircraft-2013b/data/images/{number:07d}.jpg" for number in range(4)]
    lists = {"train": "0000000 707-320\n0000001 DH-82\n", "val": "0000002 707-320\n", "test": "0000003 Dornier 328\n"}
    content = {f"fgvc-aircraft-2013b/data/images_variant_{name}.txt": text for name, text in lists.items()}
    found = arranged(names, content)
    assert [image.label for image in found] == ["707-320", "DH-82", "707-320", "Dornier 328"]
    assert [image.split for image in found] == ["train", "train", "validation", "test"]
    with pytest.raises(DataError, match=r"line 1.*0000003"):
        arranged(names, content | {"fgvc-aircraft-2013b/data/images_variant_test.txt": "0000003\n"})


def test_mit67() -> None:
    lists = {"TrainImages.txt": "attic/a.jpg\nbar/c.jpg\n", "TestImages.txt": "attic/b.jpg\r\n\n"}
    assert arranged(MIT67, lists) == [
        ("Images/attic/a.jpg", "attic", "train"),
        ("Images/attic/b.jpg", "attic", "test"),
        ("Images/bar/c.jpg", "bar", "train"),
    ]


def test_food101() -> None:
    names = [f"food-101/images/{label}/{number}.jpg" for label in ("pie", "tea") for number in (1, 2)]
    lists = {"food-101/meta/train.txt": "tea/1\npie/2", "food-101/meta/test.txt": "pie/1\ntea/2\n"}
    lists |= {"food-101/meta/classes.txt": "pie\ntea", "food-101/README.txt": "words"}
    assert [image[1:] for image in arranged(names, lists)] == [
        ("pie", "test"),
        ("pie", "train"),
        ("tea", "train"),
        ("tea", "test"),
    ]


def test_damaged_lists() -> None:
    for lists, message in (
        ({"TrainImages.txt": "attic/a.jpg\nattic/x.jpg"}, "set/TrainImages.txt, line 2: .*'attic/x.jpg'"),
        ({"TrainImages.txt": "attic/a.jpg\n\nattic/a.jpg"}, "line 3: 'attic/a.jpg'.*line 1"),
    ):
        with pytest.raises(DataError, match=message):
            arranged(MIT67, lists)


def test_lists_that_cannot_be_read() -> None:
    def missing(name: str) -> bytes:
        raise FileNotFoundError(2, "No such file")

    with pytest.raises(DataError, match=r"set/train\.txt"):
        arrange([*MIT67, "train.txt"], lambda _: b"\xff\xfe", "set")
    with pytest.raises(MissingDataError, match=r"set/train\.txt: No such file"):
        arrange([*MIT67, "train.txt"], missing, "set")


CUB_LISTS = {
    "images.txt": "1 001.Albatross/a.jpg\n2 001.Albatross/b.jpg\n3 002.Wren/c d.jpg\n",
    "image_class_labels.txt": "1 1\n2 1\n3 2\n",
    "train_test_split.txt": "1 0\n2 1\n3 1\n",
    "classes.txt": "1 001.Albatross\n2 002.Wren\n",
}
CUB_FILES = [f"images/{line.split(' ', 1)[1]}" for line in CUB_LISTS["images.txt"].splitlines()]


def test_cub200() -> None:
    base = "CUB_200_2011/"
    lists = {base + name: text for name, text in CUB_LISTS.items()} | {base + "README": "", "attributes.txt": ""}
    assert arranged([base + name for name in CUB_FILES], lists) == [
        (base + "images/001.Albatross/a.jpg", "001.Albatross", "test"),
        (base + "images/001.Albatross/b.jpg", "001.Albatross", "train"),
        (base + "images/002.Wren/c d.jpg", "002.Wren", "train"),
    ]


def test_damaged_cub200() -> None:
    for name, text, message in (
        ("images.txt", "1 001.Albatross/a.jpg\n2 x.jpg\n3 002.Wren/c d.jpg", "'x.jpg'.*images.txt"),
        ("images.txt", "1 001.Albatross/a.jpg\nwords", "images.txt, line 2: .*'words'"),
        ("image_class_labels.txt", "1 1\n2 1\n", "image 3 .* images.txt and image_class_labels.txt"),
        ("image_class_labels.txt", "1 1\n2 1\n3 7\n", "image_class_labels.txt .*'7'"),
        ("train_test_split.txt", "1 0\n2 2\n3 1", "train_test_split.txt .*'2'"),
    ):
        with pytest.raises(DataError, match=message):
            arranged(CUB_FILES, CUB_LISTS | {name: text})


MINI = {
    "mini/train.csv": "filename,label\nn01a.jpg,n01\nn02b.jpg,n02\n",
    "mini/val.csv": "\ufefffilename,label\r\nn03c.jpg,n03\r\n",
    "mini/test.csv": "filename, label\n\n n04d.jpg , n04 ",
}
MINI_FILES = [f"mini/images/{name}.jpg" for name in ("n01a", "n02b", "n03c", "n04d", "unused")]


def test_miniimagenet_with_csv_lists() -> None:
    expected = [
        ("mini/images/n01a.jpg", "n01", "train"),
        ("mini/images/n02b.jpg", "n02", "train"),
        ("mini/images/n03c.jpg", "n03", "validation"),
        ("mini/images/n04d.jpg", "n04", "test"),
    ]
    assert arranged(MINI_FILES, MINI) == expected
    beside = [name.split("/")[-1] for name in MINI_FILES]
    found = arranged(beside, {name[5:].upper(): text for name, text in MINI.items()})
    assert [image[1:] for image in found] == [image[1:] for image in expected]


def test_tables_next_to_class_folders_are_ignored() -> None:
    expected = arranged(["rose/a.png", "iris/a.png"])
    assert arranged(["rose/a.png", "iris/a.png"], {"train.csv": "id;price\n1;2"}) == expected
    found = arranged(["images/a.png", "rose/a.png"], {"train.csv": "id"})  # one class is called images
    assert [image.label for image in found] == ["images", "rose"]


def test_damaged_csv_lists() -> None:
    for text, message in (
        ("filename,label\nn01a.jpg,n01\nx.jpg,n01", "set/mini/train.csv, line 3: .*'x.jpg'"),
        ("filename,label\nn03c.jpg,n01", "val.csv, line 2: 'n03c.jpg'.*train.csv, line 2"),
        ("filename,label\nn01a.jpg,n01,x", "train.csv, line 2"),
        ("n01a.jpg,n01", "train.csv, line 1: .*filename,label"),
    ):
        with pytest.raises(DataError, match=message):
            arranged(MINI_FILES, MINI | {"mini/train.csv": text})


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
