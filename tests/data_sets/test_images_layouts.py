"""What names and lists of files say of classes and splits; what is damaged is told with its file and line."""

from __future__ import annotations

import zipfile
from collections import Counter

import pytest

from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.image_layouts import Labelled, arrange
from tests.data import require_data


def arranged(names: list[str], lists: dict[str, str] | None = None) -> list[Labelled]:
    content = {name: text.encode() for name, text in (lists or {}).items()}
    return arrange([*names, *content], content.__getitem__, "set")


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


def test_folders_around_all_of_it() -> None:
    found = arranged([f"data/flowers/{split}/iris/1.png" for split in ("train", "test")])
    assert {(file, split) for file, _, split in found} == {
        ("data/flowers/train/iris/1.png", "train"),
        ("data/flowers/test/iris/1.png", "test"),
    }
    assert arranged(["all/rose/1.png", "all/iris/1.png"])[0] == ("all/iris/1.png", "iris", None)
    assert arranged(["rose/1.png", "rose/2.png"])[0].label == "rose"  # one class, not a folder around pictures


def test_one_split_alone_is_that_split() -> None:
    assert {labelled.split for labelled in arranged(["train/a/1.png", "train/b/1.png"])} == {"train"}


def test_a_class_may_be_called_like_a_split() -> None:
    found = arranged(["test/1.png", "exam/1.png"])
    assert [(labelled.label, labelled.split) for labelled in found] == [("exam", None), ("test", None)]


def test_pictures_beside_masks() -> None:
    """The Flickr Material Database: image/<class>/ and mask/<class>/."""
    found = arranged([f"FMD/{kind}/{label}/1.jpg" for kind in ("image", "mask") for label in ("wood", "water")])
    assert found == [("FMD/image/water/1.jpg", "water", None), ("FMD/image/wood/1.jpg", "wood", None)]


@pytest.mark.parametrize(
    "names, message",
    [
        ([], r"set has no pictures \(jpg, jpeg, png"),
        (["rose/a.heic"], "set has no pictures"),
        (["a.png", "rose/b.png"], "has the picture a.png, needed is class/picture"),
        (["rose/x/y.png", "iris/a.png"], "has the picture rose/x/y.png, needed is class/picture"),
        (["train/rose/a.png", "train/b.png", "test/rose/a.png"], "needed is|beside them"),
        (["train/rose/x/a.png", "test/rose/a.png"], "train/rose/x/a.png, needed is split/class/picture"),
        (["train/rose/a.png", "iris/b.png"], r"folders of splits \(train\) and others beside them \(iris\)"),
        (["train/a/1.png", "val/a/1.png", "dev/a/1.png"], "two folders for one split, among dev, train, val"),
        (["rose/a.png", "rose/b.heic"], r"1 file\(s\) in folders of classes that are no pictures.*: rose/b.heic"),
        (["x/train/rose/a.png", "x/train/rose/notes.txt"], "no pictures by their names: train/rose/notes.txt"),
    ],
)
def test_other_folders_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        arrange(names, lambda _: b"", "set")


# ---- lists -----------------------------------------------------------------------------------------------------------

MIT67 = ["Images/attic/a.jpg", "Images/attic/b.jpg", "Images/bar/c.jpg", "Images/bar/left_out.jpg"]


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
    assert arranged(names, lists) == [
        ("food-101/images/pie/1.jpg", "pie", "test"),
        ("food-101/images/pie/2.jpg", "pie", "train"),
        ("food-101/images/tea/1.jpg", "tea", "train"),
        ("food-101/images/tea/2.jpg", "tea", "test"),
    ]


def test_names_with_spaces_and_other_letters_in_lists() -> None:
    found = arranged(["Images/bär/a b.jpg", "Images/x/y.z.jpg"], {"train.txt": "\ufeffbär/a b.jpg\nx/y.z"})
    assert [labelled.file for labelled in found] == ["Images/bär/a b.jpg", "Images/x/y.z.jpg"]


@pytest.mark.parametrize(
    "lists, message",
    [
        ({"TrainImages.txt": "attic/a.jpg\nattic/x.jpg"}, r"set/TrainImages.txt, line 2: there is no picture 'attic/x"),
        ({"TrainImages.txt": "attic/a.jpg\n\nattic/a.jpg"}, "line 3: 'attic/a.jpg' was in set/TrainImages.txt, line 1"),
        (
            {"TrainImages.txt": "attic/a.jpg", "TestImages.txt": "attic/a.jpg"},
            "was in set/T.*Images.txt, line 1 already",
        ),
    ],
)
def test_damaged_lists(lists: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        arranged(MIT67, lists)


def test_a_list_that_is_no_text() -> None:
    with pytest.raises(DataError, match=r"set/train\.txt is not text in UTF-8"):
        arrange([*MIT67, "train.txt"], lambda _: b"\xff\xfe", "set")


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


@pytest.mark.parametrize(
    "name, text, message",
    [
        (
            "images.txt",
            "1 001.Albatross/a.jpg\n2 x.jpg\n3 002.Wren/c d.jpg",
            r"set/images.txt, line 2: there is no picture",
        ),
        (
            "images.txt",
            "1 001.Albatross/a.jpg\nwords",
            r"images.txt, line 2: needed are a number and a value \(got 'words'",
        ),
        ("images.txt", "1 001.Albatross/a.jpg\n1 y", "images.txt, line 2: 1 was on line 1 already"),
        ("image_class_labels.txt", "1 1\n2 1\n", "picture 3 is in only one of images.txt and image_class_labels.txt"),
        ("image_class_labels.txt", "1 1\n2 1\n3 7\n", "image_class_labels.txt, line 3: there is no class '7'"),
        ("train_test_split.txt", "1 0\n2 2\n3 1", r"train_test_split.txt, line 2: needed is 0 \(test\) or 1 .*got '2'"),
        ("train_test_split.txt", "1 0\n2 1\n3 1\n4 1", "picture 4 is in only one of images.txt and train_test_split"),
        ("classes.txt", "1\n", "classes.txt, line 1: needed are a number and a value"),
    ],
)
def test_damaged_cub200(name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        arranged(CUB_FILES, CUB_LISTS | {name: text})


def test_a_missing_picture_is_missing_data() -> None:
    with pytest.raises(MissingDataError):
        arranged(CUB_FILES[1:], CUB_LISTS)


# ---- CSV lists -------------------------------------------------------------------------------------------------------

RAVI = {
    "mini/train.csv": "filename,label\nn01a.jpg,n01\nn02b.jpg,n02\n",
    "mini/val.csv": "\ufefffilename,label\r\nn03c.jpg,n03\r\n",
    "mini/test.csv": "filename, label\n\n n04d.jpg , n04 ",
}
RAVI_FILES = [f"mini/images/{name}.jpg" for name in ("n01a", "n02b", "n03c", "n04d", "left_out")]


def test_miniimagenet_with_the_lists_of_ravi() -> None:
    assert arranged(RAVI_FILES, RAVI) == [
        ("mini/images/n01a.jpg", "n01", "train"),
        ("mini/images/n02b.jpg", "n02", "train"),
        ("mini/images/n03c.jpg", "n03", "validation"),
        ("mini/images/n04d.jpg", "n04", "test"),
    ]
    beside = [name.split("/")[-1] for name in RAVI_FILES]
    assert [one.label for one in arranged(beside, {name[5:]: text for name, text in RAVI.items()})] == [
        "n01",
        "n02",
        "n03",
        "n04",
    ]


def test_tables_beside_folders_of_classes_do_not_count() -> None:
    expected = arranged(["rose/a.png", "iris/a.png"])
    assert arranged(["rose/a.png", "iris/a.png"], {"train.csv": "id;price\n1;2"}) == expected
    assert arranged(["set/rose/a.png", "set/iris/a.png"], {"train.csv": "id"})[0].label == "iris"
    found = arranged(["images/a.png", "rose/a.png"], {"train.csv": "id"})  # one class is called images
    assert [one.label for one in found] == ["images", "rose"]


def test_tables_in_capital_letters() -> None:
    found = arranged(
        ["a.png", "b.png"], {"Train.csv": "filename,label\na.png,n1", "TEST.CSV": "filename,label\nb.png,n2"}
    )
    assert found == [("a.png", "n1", "train"), ("b.png", "n2", "test")]


@pytest.mark.parametrize(
    "text, message",
    [
        ("filename,label\nn01a.jpg,n01\nx.jpg,n01", r"set/mini/train.csv, line 3: there is no picture 'x.jpg' in set"),
        ("filename,label\nn01a.jpg,n01\n\nn01a.jpg,n02", r"line 4: 'n01a.jpg' was in set/mini/train.csv, line 2"),
        ("filename,label\nn03c.jpg,n01", r"val.csv, line 2: 'n03c.jpg' was in set/mini/train.csv, line 2"),
        ("filename,label\nn01a.jpg", r"train.csv, line 2: needed are a picture and its class \(got 'n01a.jpg'"),
        ("filename,label\nn01a.jpg,", "line 2: needed are a picture and its class"),
        ("filename,label\nn01a.jpg,n01,x", "line 2: needed are a picture and its class"),
        ("n01a.jpg,n01", r"train.csv, line 1: needed is filename,label \(got 'n01a.jpg,n01'\)"),
        ("", r"train.csv, line 1: needed is filename,label \(got ''\)"),
    ],
)
def test_damaged_tables(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        arranged(RAVI_FILES, RAVI | {"mini/train.csv": text})


def test_a_table_that_cannot_be_read() -> None:
    def read(name: str) -> bytes:
        raise FileNotFoundError(2, "No such file")

    with pytest.raises(MissingDataError, match=r"Cannot read set/mini/test.csv: No such file. Unpack a zip"):
        arrange([*RAVI_FILES, "mini/test.csv"], read, "set")


# ---- classes in folders of classes -----------------------------------------------------------------------------------


def test_classes_in_folders_of_classes_where_they_are_allowed() -> None:
    names = ["Greek/alpha/1.png", "Greek/beta/1.png", "Latin/alpha/1.png", "plain/1.png"]
    found = arrange(names, lambda _: b"", "set", nested=True)
    assert [labelled.label for labelled in found] == ["Greek/alpha", "Greek/beta", "Latin/alpha", "plain"]
    found = arrange([f"{split}/Greek/{split}/1.png" for split in ("train", "test")], lambda _: b"", "set", nested=True)
    assert [(labelled.label, labelled.split) for labelled in found] == [
        ("Greek/test", "test"),
        ("Greek/train", "train"),
    ]
    with pytest.raises(DataError, match=r"has the picture a.png, needed is class/picture"):
        arrange([*names, "a.png"], lambda _: b"", "set", nested=True)
    with pytest.raises(DataError, match="pictures in Greek and in Greek/alpha inside of it: one must be the class"):
        arrange([*names, "Greek/1.png"], lambda _: b"", "set", nested=True)
    with pytest.raises(DataError, match="pictures in Greek and in Greek/old/alpha inside of it"):
        arrange(["Greek/1.png", "Greek/old/alpha/1.png"], lambda _: b"", "set", nested=True)
    with pytest.raises(DataError, match=r"no pictures by their names: Greek/alpha/notes.txt"):
        arrange([*names, "Greek/alpha/notes.txt"], lambda _: b"", "set", nested=True)


# ---- real sets -------------------------------------------------------------------------------------------------------


def test_flower102_by_the_names_in_its_zip() -> None:
    with zipfile.ZipFile(require_data("images/flower102.zip")) as archive:
        found = arrange(archive.namelist(), archive.read, "flower102")
    assert Counter(labelled.split for labelled in found) == {"train": 1020, "validation": 1020, "test": 6149}
    assert sorted({labelled.label for labelled in found}) == [f"{number:03d}" for number in range(1, 103)]
    of_train = Counter(labelled.label for labelled in found if labelled.split == "train")
    assert set(of_train.values()) == {10}


def test_omniglot_is_refused_with_the_reason() -> None:
    with (
        zipfile.ZipFile(require_data("images/omniglot28.zip")) as archive,
        pytest.raises(DataError, match=r"/0709_01.png, needed is class/picture"),
    ):
        arrange(archive.namelist(), archive.read, "omniglot28")
