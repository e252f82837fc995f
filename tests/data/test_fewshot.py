"""Few-shot data sets: the split of every class in each layout, digests, and data that cannot be divided."""

from __future__ import annotations

import shutil
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from powerpool.data import (
    ClassCut,
    DataError,
    EpisodeError,
    FewShotSet,
    ImageError,
    MissingDataError,
    load_fewshot,
    read_image,
)
from powerpool.data.episodes import CUTS, list_fewshot
from powerpool.data.layouts import EXHIBITIONS, OPEN_MIC_PARTS
from powerpool.data.sources import Listing
from powerpool.data.splits import Labelled
from powerpool.errors import ArgumentError, UnknownNameError
from tests.data.image_sets import files, flat, png, write_folder, write_zip
from tests.real_data import require_data

SPLITS = ("train", "validation", "test")


def load(folder: Path, content: Mapping[str, bytes] | None = None, **options) -> FewShotSet:
    if content is not None:
        write_folder(folder, content)
    return load_fewshot(folder, **({"size": 4} | options))


def classes_of(images: FewShotSet) -> dict[str, list[str]]:
    return {name: [images.classes[i] for i in bank.targets.unique()] for name, bank in images.splits.items()}


# ---- folders of classes ----------------------------------------------------------------------------------------------


def test_a_data_set_without_splits(tmp_path):
    content = flat([f"c{number}" for number in (10, 9, 8, 1, 2)], 3)
    images = load(tmp_path / "set", content, cut=ClassCut(2, 1, "names"))
    assert images.classes == ("c1", "c2", "c8", "c9", "c10")
    assert classes_of(images) == {"train": ["c1", "c2"], "validation": ["c8"], "test": ["c9", "c10"]}
    assert images.name == "set"
    test = images["test"]
    assert test.targets.tolist() == [3, 3, 3, 4, 4, 4]
    assert test.names == tuple(f"{label}/{number:02d}.png" for label in ("c9", "c10") for number in range(3))
    for name, pixels in zip(test.names, test.images, strict=True):
        expected = read_image(content[name]).resize((4, 4), 2)  # 2: bilinear
        assert pixels.permute(1, 2, 0).flatten().tolist() == list(expected.tobytes())
    assert test.mean is None
    assert repr(images) == "FewShotSet('set', classes: train 2 (6 images), validation 1 (3 images), test 2 (6 images))"
    with pytest.raises(MissingDataError, match=r"'dev'.*train, validation, test"):
        images["dev"]


def divided_set() -> dict[str, bytes]:
    """A data set with different classes in each split, as miniImageNet."""
    own = {"train": ("n1", "n5", "n9"), "validation": ("n2",), "test": ("n3", "n10")}
    return files(f"{split}/{label}/{label}{n}.png" for split, labels in own.items() for label in labels for n in "ab")


def test_splits_of_different_classes_are_kept_unless_a_cut_is_given(tmp_path):
    images = load(tmp_path / "set", divided_set())
    assert classes_of(images) == {"train": ["n1", "n5", "n9"], "validation": ["n2"], "test": ["n3", "n10"]}
    assert images.classes == ("n1", "n2", "n3", "n5", "n9", "n10")
    assert images["test"].names == tuple(f"test/{name}.png" for name in ("n3/n3a", "n3/n3b", "n10/n10a", "n10/n10b"))
    found = classes_of(load(tmp_path / "set", cut=ClassCut(1, 1, "names")))
    assert found == {"train": ["n1"], "validation": ["n2"], "test": ["n3", "n5", "n9", "n10"]}
    shutil.rmtree(tmp_path / "set" / "validation")
    assert classes_of(load(tmp_path / "set")) == {"train": ["n1", "n5", "n9"], "test": ["n3", "n10"]}


def test_csv_lists_and_folders_are_the_same_data_set(tmp_path):
    folders = divided_set()
    lists = dict.fromkeys(SPLITS, "filename,label\n")
    flat_files = {}
    for name, data in folders.items():
        split, label, file = name.split("/")
        lists[split] += f"{file},{label}\r\n"
        flat_files[f"images/{file}"] = data
    flat_files |= {f"{split}.csv".replace("validation", "val"): text.encode() for split, text in lists.items()}
    by_folder = load(tmp_path / "folders", folders)
    write_zip(tmp_path / "zip" / "miniimagenet.zip", {f"mini/{name}": data for name, data in flat_files.items()})
    for by_list in (load(tmp_path / "list", flat_files), load_fewshot("miniimagenet", tmp_path / "zip", size=4)):
        assert classes_of(by_list) == classes_of(by_folder)
        for split in SPLITS:
            assert torch.equal(by_list[split].images, by_folder[split].images)
            assert torch.equal(by_list[split].targets, by_folder[split].targets)


def test_splits_with_the_same_classes_are_merged(tmp_path):
    """As the official splits of Flower102, which all contain images of every class."""
    content = files(f"{split}/{label}/{split}.png" for split in SPLITS for label in "abcde")
    images = load(tmp_path / "set", content)
    assert [len(own) for own in classes_of(images).values()] == [3, 2]
    assert all(count == 3 for bank in images.splits.values() for count in Counter(bank.targets.tolist()).values())
    only_train = load(tmp_path / "train", files(f"train/{label}/1.png" for label in "abcde"))
    assert [len(own) for own in classes_of(only_train).values()] == [3, 2]


def test_splits_that_cannot_be_used(tmp_path):
    folder = write_folder(tmp_path / "set", divided_set() | {"test/n5/x.png": png(99)})
    with pytest.raises(DataError, match=r"1 class.*train and in test: n5"):
        load(folder)
    assert "n5" in classes_of(load(folder, cut=ClassCut(4, 1, "names")))["train"]
    shutil.rmtree(folder / "test")
    with pytest.raises(DataError, match="train, validation, but no split test"):
        load(folder)


def test_nested_classes(tmp_path):
    content = files(f"{a}/character{c}/{n}.png" for a in ("Greek", "Latin") for c in (1, 2, 10) for n in (1, 2))
    images = load(tmp_path / "letters", content, cut=ClassCut(3, 1, "names"))
    assert images.classes == tuple(f"{a}/character{c}" for a in ("Greek", "Latin") for c in (1, 2, 10))
    assert classes_of(images)["test"] == ["Latin/character2", "Latin/character10"]


# ---- known data sets -------------------------------------------------------------------------------------------------


def test_flower102_has_80_classes_for_training_and_validation(tmp_path):
    image = png()
    names = [f"{number:03d}" for number in range(1, 103)]
    content = {f"{split}/{n}/{split}.png": image for n in names for split in SPLITS[:: 2 if int(n) % 2 else 1]}
    write_zip(tmp_path / "images" / "flower102.zip", content)
    found = classes_of(load_fewshot("flower102", tmp_path, size=4))
    assert found == {"train": names[:64], "validation": names[64:80], "test": names[80:]}


def test_a_data_set_of_the_hub(tmp_path, monkeypatch):
    names = [f"{split}/{n}" for split in ("train", "test") for n in range(5)]
    folder = write_folder(tmp_path / "rows", files(names))
    labels, asked = ("tulip", "rose", "iris", "lily", "aster"), []
    images = [Labelled(name, labels[int(name[-1])], name.split("/")[0]) for name in names]
    sources, hashes = {name: str(folder / name) for name in names}, {name: name for name in names}
    listing = Listing("owner/flowers", images, sources, hashes, labels)
    monkeypatch.setattr(
        "powerpool.data.sources.load_hub", lambda name, download: asked.append((name, download)) or listing
    )
    found = load_fewshot("hf:owner/flowers", size=4, download=True, cut=ClassCut(2, 1, "names"))
    assert asked == [("owner/flowers", True)]
    assert found.name == "flowers"
    assert found.classes == labels  # in the order of the hub
    assert classes_of(found) == {"train": ["tulip", "rose"], "validation": ["iris"], "test": ["lily", "aster"]}
    assert found["test"].names == ("test/3", "train/3", "test/4", "train/4")
    with pytest.raises(ArgumentError, match="owner/flowers has no problem 'shn'"):
        load_fewshot("hf:owner/flowers", problem="shn")


# ---- Open MIC --------------------------------------------------------------------------------------------------------


def museum(exhibitions: tuple[str, ...] = EXHIBITIONS) -> dict[str, bytes]:
    """Two exhibits of each exhibition."""
    return files(
        f"{exhibition}/{domain}/{label}/{number}.png"
        for exhibition in exhibitions
        for domain in ("source", "target")
        for label in ("1", "2")
        for number in range(3)
    )


@pytest.fixture
def open_mic(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "museum", museum())


@pytest.mark.parametrize("problem", ["p1->p2", "p4->p3"])
def test_protocol_one(open_mic, problem):
    images = load(open_mic, problem=problem)
    assert list(images.splits) == ["train", "test"]
    for split, part in zip(images.splits, problem.split("->"), strict=True):
        expected = [f"{exhibition}/{label}" for exhibition in OPEN_MIC_PARTS[part] for label in ("1", "2")]
        assert sorted(classes_of(images)[split]) == sorted(expected)
        assert all("/target/" in name for name in images[split].names)
        assert len(images[split]) == 3 * len(expected)


def test_protocol_two(open_mic, tmp_path):
    images = load(open_mic, problem="shn")
    assert images.classes == ("shn/1", "shn/2")
    for split, domain in (("train", "source"), ("test", "target")):
        expected = [f"shn/{domain}/{label}/{number}.png" for label in "12" for number in range(3)]
        assert list(images[split].names) == expected
        assert images[split].targets.tolist() == [0, 0, 0, 1, 1, 1]
    write_zip(tmp_path / "data" / "open_mic.zip", {f"Open_MIC/{name}": data for name, data in museum().items()})
    zipped = load_fewshot("open_mic", tmp_path / "data", size=4, problem="shn")
    assert torch.equal(zipped["test"].images, images["test"].images)


@pytest.mark.parametrize("problem, exhibitions", [("p1->p3", [3, 2]), ("shn", [1, 1])])
def test_each_exhibition_has_its_own_mean(open_mic, problem, exhibitions):
    images = load(open_mic, problem=problem)
    for bank, count in zip(images.splits.values(), exhibitions, strict=True):
        pixels, found = bank.images.double() / 255, bank.batch(torch.arange(len(bank))).double()
        own = [name.split("/")[0] for name in bank.names]
        assert len(set(own)) == count
        for exhibition in set(own):
            rows = [row for row, name in enumerate(own) if name == exhibition]
            torch.testing.assert_close(found[rows], pixels[rows] - pixels[rows].mean(0), rtol=0, atol=1e-6)


def test_invalid_problems(open_mic, tmp_path):
    for options, error, message in (
        ({}, ArgumentError, "p1->p2.*rlc"),
        ({"problem": "p1->p1"}, UnknownNameError, "'p1->p1'"),
        ({"problem": "shn", "cut": ClassCut()}, ArgumentError, "shn.*cut"),
    ):
        with pytest.raises(error, match=message):
            load(open_mic, **options)
    with pytest.raises(ArgumentError, match="set has no problem 'p1->p2'"):
        load(tmp_path / "set", flat(), problem="p1->p2")
    folder = write_folder(tmp_path / "part", museum(("shn", "clk")))
    with pytest.raises(MissingDataError, match="clv/target, gls/target"):
        load(folder, problem="p1->p2")
    with pytest.raises(DataError, match=r"shn/target/stray.png, expected <exhibition>/"):
        load(folder, {"shn/target/stray.png": png()}, problem="shn")


# ---- digests, corrupt images, options --------------------------------------------------------------------------------


def test_the_digest_depends_on_the_content_and_the_cut(tmp_path):
    content = flat([f"c{number}" for number in range(6)], 2)
    first = load(tmp_path / "a", content).digest
    assert load_fewshot(write_zip(tmp_path / "set.zip", content), size=4).digest == first
    assert load(tmp_path / "a", size=5, channels=1, invert=True, resize="crop").digest == first
    others = [
        load(tmp_path / "a", cut=ClassCut(3, 1, "names")).digest,
        load(tmp_path / "a", cut=ClassCut(3, 1)).digest,
        load(tmp_path / "c", content | {"c0/00.png": png(99)}).digest,
        load(tmp_path / "d", content | {"c0/02.png": png(99)}).digest,
        load(tmp_path / "e", {name.replace("c0", "c7"): data for name, data in content.items()}).digest,
    ]
    assert len({first, *others}) == 6


@pytest.mark.parametrize(
    "classes, split", [("abcd", (2, 0, 2)), ("abcde", (3, 0, 2)), ("abcdef", (2, 2, 2)), ("abcdefghij", (6, 2, 2))]
)
def test_few_classes_leave_two_to_test(tmp_path, classes, split):
    found = classes_of(load(tmp_path / "set", flat(classes, 1)))
    assert tuple(len(found.get(name, ())) for name in SPLITS) == split


def test_three_classes_cannot_be_divided_but_tested_as_a_whole(tmp_path):
    folder = write_folder(tmp_path / "set", flat("abc", 2))
    with pytest.raises(EpisodeError, match="3 classes"):
        load(folder)
    found = list_fewshot(folder, whole=True)
    assert (list(found.splits), len(found.splits["test"]), found.has_usual_splits) == (["test"], 6, False)


def test_corrupt_images(tmp_path):
    content = flat("abcde", 3)
    whole = load(tmp_path / "whole", content)
    folder = write_folder(tmp_path / "set", content | {"a/01.png": b"words"})
    with pytest.raises(ImageError, match=r"1 of [69] .*a/01\.png"):
        load(folder)
    images = load(folder, corrupt="skip")
    assert images.skipped == ("a/01.png",)
    assert sum(map(len, images.splits.values())) == 14
    (folder / "a/01.png").unlink()
    assert images.digest == load(folder).digest != whole.digest


def test_options_of_decoding(tmp_path):
    folder = write_folder(tmp_path / "set", flat("abcde", 2))
    told: list[tuple[str, int, int]] = []
    gray = load(folder, channels=1, watch=lambda *what: told.append(what))
    assert {what for what in told if what[1] == what[2]} == {("train", 6, 6), ("test", 4, 4)}
    assert gray["test"].images.shape == (4, 1, 4, 4)
    inverted = load(folder, channels=1, invert=True)
    assert torch.equal(inverted["test"].images, 255 - gray["test"].images)
    assert not torch.equal(load(folder, resize="crop")["test"].images, load(folder)["test"].images)


# ---- real data -------------------------------------------------------------------------------------------------------


def test_usual_cuts_of_real_data_sets():
    with zipfile.ZipFile(require_data("images/omniglot28.zip")) as archive:
        characters = {name.rpartition("/")[0] for name in archive.namelist() if name.endswith(".png")}
    found = CUTS["omniglot"].divide(characters)
    assert [len(part) for part in found.values()] == [1100, 100, 423]
    assert [len({name.split("/")[0] for name in part}) for part in found.values()][::2] == [50, 50]  # of all alphabets
    divided = CUTS["flower102"].divide(f"{number:03d}" for number in range(1, 103))
    assert (divided["train"][0], divided["validation"][0], divided["test"][0]) == ("001", "065", "081")


def test_a_part_of_real_omniglot(tmp_path):
    """Strokes are few, and bright if they are inverted."""
    with zipfile.ZipFile(require_data("images/omniglot28.zip")) as archive:
        chosen = [name for name in archive.namelist() if name.startswith("Greek/character0") and name.endswith(".png")]
        write_folder(tmp_path / "omniglot28", {name: archive.read(name) for name in chosen})
    images = load_fewshot(tmp_path / "omniglot28", size=28, channels=1, invert=True, cut=ClassCut(4, 1))
    pixels = torch.cat([bank.images for bank in images.splits.values()])
    assert pixels.shape == (180, 1, 28, 28)
    share = (pixels > 127).float().mean((1, 2, 3))
    assert 0.0 < float(share.min()) < float(share.max()) < 0.4
