"""Shards of WebDataset: what is listed, what is read, what is kept in the cache, and what is refused."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from powerpool.data import DataError, ImageError, Limits, MissingDataError, load_fewshot, load_images, shards
from powerpool.data.decoding import read_image
from tests.data.image_sets import png, write_folder


def write_shard(path: Path, content: dict[str, bytes]) -> Path:
    """Write files into a tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in content.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def samples(numbers: range, classes: int = 11, suffix: str = "png") -> dict[str, bytes]:
    """Return pairs of an image and its class."""
    pairs = [{f"{n:04d}.{suffix}": png(n), f"{n:04d}.cls": str(n % classes).encode()} for n in numbers]
    return {name: data for pair in pairs for name, data in pair.items()}


@pytest.fixture
def folder(tmp_path):
    """44 training images in two shards, 11 for validation and 11 for testing."""
    write_shard(tmp_path / "set" / "some-train-00.tar", samples(range(22)))
    write_shard(tmp_path / "set" / "some-train-01.tar", samples(range(22, 44)))
    write_shard(tmp_path / "set" / "val" / "0.tar", samples(range(44, 55)))
    write_shard(tmp_path / "set" / "test" / "0.tar", samples(range(55, 66)))
    return tmp_path / "set"


def test_a_folder_of_shards_has_the_splits_of_their_names_and_the_classes_of_their_samples(folder):
    found = load_images(folder)
    assert found.name == "set"
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 44, "validation": 11, "test": 11}
    assert found.classes == tuple(map(str, range(11)))  # numbers in their order, not 0, 1, 10, 2
    assert found["train"].targets.tolist() == [number % 11 for number in range(44)]
    assert found["train"].names[22] == "some-train-01.tar/0022.png"
    for split, first in (("train", 0), ("validation", 44), ("test", 55)):
        for number in (0, 7, 10):
            pixels = np.asarray(found[split].read(number))
            np.testing.assert_array_equal(pixels, np.asarray(read_image(png(first + number))))


def test_a_path_with_braces_and_a_single_shard(folder):
    first = load_images(f"{folder}/some-train-{{00..01}}.tar")
    assert {name: len(split) for name, split in first.splits.items()} == {"train": 22, "validation": 11, "test": 11}
    every = load_images(f"{folder}/{{some-train-{{00..01}},val/0,test/0}}.tar")
    assert (every.name, every.digest) == ("set", load_images(folder).digest)
    with pytest.raises(MissingDataError, match=r"2 of 4 .*some-train-02\.tar"):
        load_images(f"{folder}/some-train-{{00..03}}.tar")
    assert load_images(f"{folder}/some-train-{{01..00}}.tar").digest == first.digest
    with pytest.raises(MissingDataError, match=r"2 of 2 .*/10\.tar.*/9\.tar"):
        load_images(f"{folder}/{{10..9}}.tar")
    one = write_shard(folder.parent / "one.tar", samples(range(12), classes=2))
    assert (load_images(one).name, sum(map(len, load_images(one).splits.values()))) == ("one", 12)


def test_the_split_folder_of_a_shard_counts_also_if_it_is_the_only_one(folder):
    write_shard(folder / "val" / "1.tar", samples(range(66, 77)))
    for path, count in (("val/0.tar", 11), ("val/{0..1}.tar", 22)):
        found = load_images(folder / path)
        assert {name: len(split) for name, split in found.splits.items()} == {"validation": count}
    assert load_images(folder / "val" / "{0..1}.tar").name == "set"


def test_a_shard_without_a_split_next_to_shards_with_one_is_refused(folder):
    write_shard(folder / "more-02.tar", samples(range(66, 77)))
    with pytest.raises(DataError, match=r"more-02\.tar.*some-train-00\.tar"):
        load_images(folder)


def test_imagenet_by_name_is_tested_on_its_validation_shards(tmp_path):
    write_shard(tmp_path / "imagenet" / "imagenet1k-train-0000.tar", samples(range(44)))
    write_shard(tmp_path / "imagenet" / "imagenet1k-validation-00.tar", samples(range(44, 55)))
    found = load_images("imagenet", tmp_path)
    assert {name: len(split) for name, split in found.splits.items()} == {"train": 33, "validation": 11, "test": 11}


def test_few_shot_learning_reads_shards(folder):
    assert len(load_fewshot(f"{folder}/some-train-{{00..01}}.tar", size=16, channels=1).classes) == 11


def test_other_members_are_ignored_and_a_key_ends_at_the_first_dot_of_the_name(tmp_path):
    others = {"a/__MACOSX/0.png": b"", "a/.hidden.png": b"", "a/0.json": b"{}", "a/0.seg.png": png(5), "README": b""}
    whole = {f"a.b/{name}": data for name, data in samples(range(9), 3).items()}
    path = write_shard(tmp_path / "x.tar", {**others, **whole})
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("a/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    found = load_images(path)
    assert sorted(name for split in found.splits.values() for name in split.names) == [
        f"x.tar/a.b/{number:04d}.png" for number in range(9)
    ]


def test_the_index_is_made_once_and_again_if_a_shard_changes(folder, monkeypatch):
    scanned = []
    scan = shards._scan
    monkeypatch.setattr(shards, "_scan", lambda path, limits: scanned.append(path.name) or scan(path, limits))
    first = load_images(folder)
    assert len(scanned) == 4
    again = load_images(folder)
    assert len(scanned) == 4
    assert (again.digest, again["train"].sources) == (first.digest, first["train"].sources)
    changed = write_shard(folder / "some-train-01.tar", samples(range(122, 144)))
    os.utime(changed, ns=(1, 1))  # of the same size
    assert load_images(folder).digest != first.digest
    assert scanned[4:] == ["some-train-01.tar"]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda whole: whole[:3000], "damaged"),
        (lambda whole: whole.rstrip(b"\0").ljust(-len(whole.rstrip(b"\0")) // 512 * -512, b"\0"), "damaged.*zeros"),
        (lambda whole: whole.replace(b"0007.png", b"0007.pnx", 1), "damaged.*zeros"),  # a header with a wrong checksum
        (gzip.compress, "uncompressed"),
        (lambda whole: b"no tar", "not an uncompressed tar"),
        (lambda whole: b"", "damaged"),
    ],
)
def test_a_damaged_shard_is_refused(tmp_path, change, words):
    path = write_shard(tmp_path / "train-0.tar", samples(range(20)))
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=rf"train-0\.tar.*{words}"):
        load_images(path)


@pytest.mark.parametrize(
    "content, words",
    [
        ({"rose/0.png": png(0), "iris/0.png": png(1)}, r"rose/0\.cls.*class.*unpack"),
        ({"0.png": png(0), "0.json": b'{"label": 1}'}, r"0\.cls .*number or a name.*json"),
        ({"0.png": png(0), "0.cls": b" \n"}, r"0\.cls .*empty"),
        ({"0.png": png(0), "0.jpg": png(1), "0.cls": b"1"}, r"two images .*0\.png and 0\.jpg"),
        ({"0.png": png(0), "0.cls": b"\xff\xfe"}, r"^0\.cls in .*train-0\.tar is not UTF-8 text.*number or a name"),
        ({"0.cls": b"1"}, "no images"),
    ],
)
def test_samples_that_are_not_whole_are_refused(tmp_path, content, words):
    path = write_shard(tmp_path / "train-0.tar", content)
    with pytest.raises(DataError, match=words):
        load_images(path)


def test_a_member_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = write_shard(tmp_path / "train-0.tar", samples(range(2)))
    with pytest.raises(DataError, match=r"0000\.png in .*limit is 10"):
        load_images(path, limits=Limits(text=10))


def test_a_shard_that_vanishes_is_named_where_it_is_read(folder):
    split = load_images(folder)["test"]
    (folder / "test" / "0.tar").unlink()
    with pytest.raises(ImageError, match=r"test/0\.tar"):
        split.read(0)


def test_images_next_to_a_tar_are_class_folders(tmp_path):
    write_folder(tmp_path, {f"{label}/{number}.png": png(number) for label in "ab" for number in range(5)})
    write_shard(tmp_path / "copy.tar", samples(range(3)))
    found = load_images(tmp_path)
    assert found.classes == ("a", "b")
    assert [remark for remark in found.remarks if "(1): copy.tar" in remark] == [*found.remarks]
    with pytest.raises(DataError, match=r"\(1\): copy\.tar"):
        load_images(tmp_path, strict=True)


def test_files_beside_shards_are_counted(folder):
    assert load_images(folder, strict=True).remarks == ()
    write_folder(folder, {"train-09.tar.gz": b"", "notes/sizes.txt": b""})
    (remark,) = load_images(folder).remarks
    assert "(2): notes/sizes.txt, train-09.tar.gz" in remark
    with pytest.raises(DataError, match=r"\(2\): notes/sizes\.txt"):
        load_images(folder, strict=True)


def test_a_table_does_not_list_shards(folder):
    table = folder.parent / "mine.csv"
    table.write_text("path,label\nsome-train-00.tar,1\n")
    for path in (folder, folder / "some-train-00.tar"):
        with pytest.raises(DataError, match=r"mine\.csv.*shards"):
            load_images(path, table=table)
    table.rename(folder / "splits.csv")
    with pytest.raises(DataError, match=r"splits\.csv.*shards"):
        load_images(folder)
