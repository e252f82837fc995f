"""Classes and splits from tables and official lists; damaged ones are errors that name the file and the line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from powerpool.data import DataError, MissingDataError, Splits, load_images
from powerpool.data.layouts import arrange
from powerpool.data.splits import SPLIT_NAMES, Labelled
from tests.data.image_sets import CAR_CLASSES, PUBLISHED, files, flat, matlab, png, write_folder, write_zip
from tests.data.test_layouts import arranged

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
        ("file,label\n", "line 1.*path, label"),
        ("path,label,split\n\n", r"splits\.csv lists no images"),
        ("path,label,split\n\nphotos/0.png,ash,trian\n", "line 3.*trian"),
        ("path,label,split\nphotos/0.png,,train\n", "line 2"),
        ("path,label,split\nphotos/9.png,ash,train\n", "photos/9.png"),
        ("path,label,split\nphotos/0.png,ash,train\nphotos/1.png,ash,\n", "line 3.*every row"),
        ("path,label\nphotos/0.png,ash\n./photos/0.png,ash\n", "line 3.*line 2"),
        ("path,label,split\nphotos/0.png,ash,train\nphotos/0.png,ash,test\n", "line 3.*line 2.*train"),
        ("path,label,split\n../photos/0.png,ash,train\n", r"line 2.*'\.\./photos/0.png'.*outside"),
        ("path,label,split\n/etc/0.png,ash,train\n", "line 2.*outside"),
        ("path,label\nphotos/0.png,oak, red\n", "line 2.*3 cells.*2 columns"),
        ('path,label\nphotos/0.png,"ash\n', "line 2"),
        ("path;label\nphotos/0.png;ash\n", "commas.*path;label"),
        ("path,label\nphotos/2.heic,ash\n", "line 2.*photos/2.heic.*png"),
    ],
)
def test_bad_tables_are_refused(rows: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        arranged(["photos/0.png", "photos/1.png", "photos/2.heic"], {"splits.csv": rows})


def test_paths_of_a_table_may_be_written_in_other_ways(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", files(f"photos/{number}.png" for number in range(3)) | {"x.png": b""})
    ways = ("./photos//0.png", "photos\\1.png", str(folder / "photos" / "2.png"))
    (folder / "splits.csv").write_text("path,label\n" + "".join(f"{way},ash\n" for way in ways))
    found = load_images(folder, splits=Splits(validation=0, test=0))
    assert found["train"].names == tuple(f"photos/{number}.png" for number in range(3))
    (remark,) = found.remarks
    assert "x.png" in remark


def test_a_table_in_another_place_lists_images_of_a_folder_or_zip(tmp_path: Path) -> None:
    content = {f"flowers/{name}": data for name, data in flat(count=3).items()}
    rows = "path,label,split\nflowers/iris/00.png,a,train\niris/01.png,b,test\nrose/02.png,b,val\n"
    table = write_folder(tmp_path, {"mine.csv": rows.encode()}) / "mine.csv"
    for data in (write_folder(tmp_path / "set", content), write_zip(tmp_path / "set.zip", content)):
        found = load_images(data, table=table)
        assert {name: split.names for name, split in found.splits.items()} == {
            "train": ("flowers/iris/00.png",),
            "validation": ("flowers/rose/02.png",),
            "test": ("flowers/iris/01.png",),
        }
        assert (found.name, found.classes, found["test"].targets.tolist()) == ("set", ("a", "b"), [1])
    table.write_text(rows + "iris/09.png,a,test\n")
    with pytest.raises(MissingDataError, match=rf"{table}, line 5.*iris/09\.png"):
        load_images(tmp_path / "set", table=table)
    with pytest.raises(MissingDataError, match="nowhere"):
        load_images(tmp_path / "set", table="nowhere.csv")


# ---- lists -----------------------------------------------------------------------------------------------------------

TRAINED = {
    # Classes, and the number of images of each class in each split.
    "dtd": (("banded", "dotted"), (2, 2, 2)),
    "cub200": (("001.Albatross", "002.Wren"), (2, 0, 2)),
    "aircraft": (("707-320", "Dornier 328"), (1, 1, 2)),
    "cars": (CAR_CLASSES, (2, 0, 2)),
    "mit67": (("attic", "bar"), (2, 0, 2)),
    "fmd": (("foliage", "glass"), (4, 0, 0)),
}


@pytest.mark.parametrize("pack", [write_folder, write_zip])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_data_sets_are_read_as_they_are(name: str, pack: Callable[..., Path], tmp_path: Path) -> None:
    content = PUBLISHED[name]()
    root = next(iter(content)).partition("/")[0]
    if pack is write_folder:
        write_folder(tmp_path, content)
    else:
        write_zip(tmp_path / f"{root}.zip", content)
    found = load_images(name, tmp_path, splits=Splits(validation=0, test=0), strict=True)
    classes, counts = TRAINED[name]
    assert found.classes == classes
    expected = {split: [count] * 2 for split, count in zip(SPLIT_NAMES, counts, strict=True) if count}
    assert {split: images.targets.bincount().tolist() for split, images in found.splits.items()} == expected
    assert not any("mask" in image for split in found.splits.values() for image in split.names)


def test_first_split_of_dtd(tmp_path: Path) -> None:
    found = load_images(write_folder(tmp_path, PUBLISHED["dtd"]()))
    for split, images in found.splits.items():
        listed = (tmp_path / "dtd" / "labels" / f"{split[:3] if split[0] == 'v' else split}1.txt").read_text().split()
        assert sorted(images.names) == sorted(f"dtd/images/{name}" for name in listed)


def test_variants_of_aircraft() -> None:
    names, lists = split_off(PUBLISHED["aircraft"](), "fgvc-aircraft-2013b/data/")
    expected = [Labelled(f"images/{n:07d}.jpg", ("707-320", "Dornier 328")[n % 2], "train") for n in range(4)]
    both = {name: text for name, text in lists.items() if not name.endswith(("_train.txt", "_val.txt"))}
    found = arranged(names, both)
    assert found[:4] == expected
    assert {image.split for image in found[4:]} == {"test"}
    assert {image.split for image in arranged(names, lists)[:4]} == {"train", "validation"}
    with pytest.raises(DataError, match=r"images_variant_test\.txt, line 1.*0000003"):
        arranged(names, lists | {"images_variant_test.txt": "0000003\n"})


def split_off(content: dict[str, bytes], base: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of images, and the lists, relative to a folder."""
    own = {name[len(base) :]: data for name, data in content.items() if name.startswith(base)}
    return [name for name in own if name.endswith("jpg")], {
        name: data.decode() for name, data in own.items() if name.endswith("txt")
    }


def test_stanford_cars_in_one_folder(tmp_path: Path) -> None:
    rows = [
        {"relative_im_path": f"car_ims/{n:06d}.jpg", "bbox_x1": 5, "class": 1 + n % 2, "test": n // 4}
        for n in range(1, 7)
    ]
    content = files(f"cars196/{row['relative_im_path']}" for row in rows)
    content["cars196/cars_annos.mat"] = matlab(annotations=rows, class_names=CAR_CLASSES)
    found = load_images(write_folder(tmp_path, content), splits=Splits(validation=0, test=0))
    assert found.classes == CAR_CLASSES
    assert [split.targets.tolist() for split in found.splits.values()] == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"cars_test_annos_withlabels.mat": None}, "cars_test_annos_withlabels.mat"),
        ({"devkit/cars_meta.mat": None}, "cars_meta.mat"),
        ({"devkit/cars_meta.mat": b"MATLAB 5.0 MAT-file, truncated"}, "cars_meta.mat"),
        ({"devkit/cars_meta.mat": matlab(class_names=CAR_CLASSES[:1])}, "cars_train_annos.mat.*2"),
        ({"cars_test_annos_withlabels.mat": matlab(annotations=[{"fname": "1.jpg"}, {"fname": "2.jpg"}])}, "'class'"),
        ({"cars_test/00003.jpg": None}, "cars_test_annos_withlabels.mat, annotation 3: .*cars_test/00003.jpg"),
    ],
)
def test_incomplete_stanford_cars(changes: dict[str, bytes | None], message: str, tmp_path: Path) -> None:
    content: dict[str, bytes | None] = PUBLISHED["cars"]() | {f"stanford_cars/{n}": d for n, d in changes.items()}
    folder = write_folder(tmp_path, {name: data for name, data in content.items() if data is not None})
    with pytest.raises(DataError, match=message):
        load_images(folder)


MIT67 = ["Images/attic/a.jpg", "Images/attic/b.jpg", "Images/bar/c.jpg", "Images/bar/unused.jpg"]


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


def test_cub200_without_names_of_classes() -> None:
    lists = {name: text for name, text in CUB_LISTS.items() if name != "classes.txt"}
    assert arranged(CUB_FILES, lists) == arranged(CUB_FILES, CUB_LISTS)


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
        ("n01a.jpg,n01", "train.csv, line 1: .*filename, label"),
    ):
        with pytest.raises(DataError, match=message):
            arranged(MINI_FILES, MINI | {"mini/train.csv": text})
