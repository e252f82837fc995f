"""Sets for few-shot learning: which class is in which split, in every layout; and what cannot be divided."""

from __future__ import annotations

import shutil
import zipfile
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from powerpool.data import (
    ClassCut,
    DataError,
    Episodes,
    FewShotSet,
    ImageError,
    MissingDataError,
    fewshot,
    load_fewshot,
)
from powerpool.data.fewshot import CUTS, EXHIBITIONS, OPEN_MIC_PAIRS, OPEN_MIC_PARTS, natural
from powerpool.data.image_hub import HubSet
from powerpool.data.image_layouts import Labelled, arrange
from powerpool.data.pictures import read_image
from powerpool.errors import ArgumentError, PowerPoolError, UnknownNameError
from tests.data import require_data
from tests.data_sets.picture_sets import files, flat, picture, write_folder, write_zip

SPLITS = ("train", "validation", "test")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no data folder."""
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    return tmp_path / "cache"


def load(folder: Path, content: Mapping[str, bytes] | None = None, **options) -> FewShotSet:
    if content is not None:
        write_folder(folder, content)
    return load_fewshot(folder, **({"size": 4} | options))


def classes_of(images: FewShotSet) -> dict[str, list[str]]:
    return {name: [images.classes[i] for i in bank.targets.unique()] for name, bank in images.splits.items()}


# ---- cuts ------------------------------------------------------------------------------------------------------------


@given(
    st.sets(
        st.text(st.characters(codec="utf-8", exclude_characters="/"), min_size=1, max_size=4), min_size=5, max_size=30
    ),
    st.sampled_from(["names", "drawn"]),
    st.integers(0, 99),
    st.randoms(use_true_random=False),
)
def test_a_cut_divides_all_classes_whatever_their_order(names, order, seed, random):
    cut = ClassCut(order=order, seed=seed)
    shuffled = list(names)
    random.shuffle(shuffled)
    found = cut.divide(shuffled)
    assert list(found) == list(SPLITS)
    assert sorted(name for part in found.values() for name in part) == sorted(names)
    assert found == cut.divide(sorted(names))
    for split, share in (("train", 0.64), ("validation", 0.16)):
        assert abs(len(found[split]) - share * len(names)) <= 0.5 or len(found[split]) == 1
    if order == "names":
        assert sorted(names, key=natural) == [name for part in found.values() for name in part]


@pytest.mark.parametrize(
    "cut, counts",
    [
        (ClassCut(), (64, 16, 20)),
        (ClassCut(30, 20), (30, 20, 50)),
        (ClassCut(0.5, 10), (50, 10, 40)),
        (ClassCut(0.5, 0), (50, 50)),
        (ClassCut(0.5, 0.0), (50, 50)),
        (ClassCut(98, 0.001), (98, 1, 1)),
        (ClassCut(1, 1), (1, 1, 98)),
    ],
)
def test_shares_and_numbers(cut, counts):
    assert tuple(map(len, cut.divide(str(number) for number in range(100)).values())) == counts


def test_a_draw_depends_on_the_seed_and_on_the_names():
    names = [f"c{number}" for number in range(50)]
    drawn = [tuple(ClassCut(seed=seed).divide(names)["test"]) for seed in range(5)]
    assert len(set(drawn)) == 5
    # Another class moves at most those at the edges.
    more = ClassCut(32, 8).divide([*names, "new"])
    assert len(set(more["train"]) & set(ClassCut(32, 8).divide(names)["train"])) >= 31


@pytest.mark.parametrize(
    "names",
    [
        ["1", "2", "10", "11", "100"],
        ["character2", "character10", "character10b", "character11"],
        ["a", "a1", "a1b2", "a1b10", "a2", "b"],
        ["001", "002", "010", "102"],
        ["1.rose", "2.iris", "a", "b2"],
    ],
)
def test_names_in_the_order_of_people(names):
    assert sorted(set(names), key=natural) == names


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"train": 0}, r"train must be a share of the classes in \(0, 1\), or how many \(got 0\)"),
        ({"train": 1.0}, r"train must be .*got 1.0"),
        ({"train": -3}, r"train must be .*got -3"),
        ({"validation": -0.1}, r"validation must be .*got -0.1"),
        ({"validation": float("nan")}, "validation must be"),
        ({"train": True}, "train must be"),
        ({"train": 0.8, "validation": 0.2}, r"must leave classes to test on \(got 0.8 and 0.2\)"),
        ({"order": "random"}, "Unknown order of classes 'random'"),
    ],
)
def test_cuts_that_cannot_be(settings, message):
    with pytest.raises(PowerPoolError, match=message):
        ClassCut(**settings)


@pytest.mark.parametrize("cut", [ClassCut(2, 1), ClassCut(0.6, 0.39), ClassCut(3, 0), ClassCut(100, 10)])
def test_cuts_that_leave_nothing_to_test_on(tmp_path, cut):
    with pytest.raises(ArgumentError, match=r"leaves none of 3 classes to test on\. Take fewer: with the settings"):
        load(tmp_path / "set", flat(("a", "b", "c"), 2), cut=cut)


# ---- folders of classes ----------------------------------------------------------------------------------------------


def test_a_set_without_splits(tmp_path):
    content = flat([f"c{number}" for number in (10, 9, 8, 1, 2)], 3)
    images = load(tmp_path / "set", content, cut=ClassCut(2, 1, "names"))
    assert images.classes == ("c1", "c2", "c8", "c9", "c10")
    assert classes_of(images) == {"train": ["c1", "c2"], "validation": ["c8"], "test": ["c9", "c10"]}
    assert images.name == "set"
    test = images["test"]
    assert test.targets.tolist() == [3, 3, 3, 4, 4, 4]
    assert test.names == tuple(f"{label}/{number:02d}.png" for label in ("c9", "c10") for number in range(3))
    for name, pixels in zip(test.names, test.pictures, strict=True):
        expected = read_image(content[name]).resize((4, 4), 2)  # 2: bilinear
        assert pixels.permute(1, 2, 0).flatten().tolist() == list(expected.tobytes())
    assert repr(images) == (
        "FewShotSet('set', classes: train 2 (6 pictures), validation 1 (3 pictures), test 2 (6 pictures))"
    )
    with pytest.raises(MissingDataError, match="set has no split 'dev': it has train, validation, test"):
        images["dev"]


def test_a_set_without_splits_or_a_cut_is_drawn(tmp_path):
    names = [f"c{number}" for number in range(25)]
    found = classes_of(load(tmp_path / "set", flat(names, 1)))
    assert {split: sorted(own) for split, own in found.items()} == {
        split: sorted(own) for split, own in ClassCut().divide(names).items()
    }
    assert [len(own) for own in found.values()] == [16, 4, 5]


def divided_set() -> dict[str, bytes]:
    """Classes of their own in every split, as miniImageNet has."""
    own = {"train": ("n1", "n5", "n9"), "validation": ("n2",), "test": ("n3", "n10")}
    return files(f"{split}/{label}/{label}{n}.png" for split, labels in own.items() for label in labels for n in "ab")


def test_splits_of_different_classes_are_taken_as_they_are(tmp_path):
    images = load(tmp_path / "set", divided_set())
    assert classes_of(images) == {"train": ["n1", "n5", "n9"], "validation": ["n2"], "test": ["n3", "n10"]}
    assert images.classes == ("n1", "n2", "n3", "n5", "n9", "n10")
    assert images["test"].names == tuple(f"test/{name}.png" for name in ("n3/n3a", "n3/n3b", "n10/n10a", "n10/n10b"))


def test_a_cut_puts_splits_together(tmp_path):
    found = classes_of(load(tmp_path / "set", divided_set(), cut=ClassCut(1, 1, "names")))
    assert found == {"train": ["n1"], "validation": ["n2"], "test": ["n3", "n5", "n9", "n10"]}


def test_train_and_test_are_enough(tmp_path):
    content = {name: data for name, data in divided_set().items() if not name.startswith("validation")}
    assert classes_of(load(tmp_path / "set", content)) == {"train": ["n1", "n5", "n9"], "test": ["n3", "n10"]}


def test_the_lists_of_ravi_are_the_same_set(tmp_path):
    folders = divided_set()
    lists = dict.fromkeys(SPLITS, "filename,label\n")
    flat_files = {}
    for name, data in folders.items():
        split, label, file = name.split("/")
        lists[split] += f"{file},{label}\r\n"
        flat_files[f"images/{file}"] = data
    flat_files |= {f"{split}.csv".replace("validation", "val"): text.encode() for split, text in lists.items()}
    by_folder = load(tmp_path / "folders", folders)
    zipped = write_zip(
        tmp_path / "zip" / "miniimagenet.zip", {f"mini/{name}": data for name, data in flat_files.items()}
    )
    for by_list in (load(tmp_path / "list", flat_files), load_fewshot(zipped, size=4)):
        assert classes_of(by_list) == classes_of(by_folder)
        for split in SPLITS:
            assert torch.equal(by_list[split].pictures, by_folder[split].pictures)
            assert torch.equal(by_list[split].targets, by_folder[split].targets)
    assert classes_of(load_fewshot("miniimagenet", tmp_path / "zip", size=4)) == classes_of(by_folder)


def test_splits_with_the_same_classes_are_put_together(tmp_path):
    """As the official splits of Flower102: pictures of a class are in all of them."""
    content = files(f"{split}/{label}/{split}.png" for split in SPLITS for label in "abcde")
    images = load(tmp_path / "set", content, cut=None)
    assert [len(own) for own in classes_of(images).values()] == [3, 1, 1]
    assert all(count == 3 for bank in images.splits.values() for count in Counter(bank.targets.tolist()).values())


def test_one_split_alone_is_divided(tmp_path):
    content = files(f"train/{label}/1.png" for label in "abcde")
    assert [len(own) for own in classes_of(load(tmp_path / "set", content)).values()] == [3, 1, 1]


def test_a_class_in_two_splits_by_mistake(tmp_path):
    content = divided_set() | {"test/n5/x.png": picture(99)}
    with pytest.raises(DataError, match=r"set has 1 class\(es\) both in train and in test: n5; others are in one only"):
        load(tmp_path / "set", content)
    assert "n5" in classes_of(load(tmp_path / "set", cut=ClassCut(4, 1, "names")))["train"]


def test_splits_without_a_test(tmp_path):
    content = {name: data for name, data in divided_set().items() if not name.startswith("test")}
    with pytest.raises(DataError, match=r"splits of different classes, train, validation, and has no split test"):
        load(tmp_path / "set", content)


def test_classes_in_folders_of_classes(tmp_path):
    content = files(f"{a}/character{c}/{n}.png" for a in ("Greek", "Latin") for c in (1, 2, 10) for n in (1, 2))
    images = load(tmp_path / "letters", content, cut=ClassCut(3, 1, "names"))
    assert images.classes == tuple(f"{a}/character{c}" for a in ("Greek", "Latin") for c in (1, 2, 10))
    assert classes_of(images)["test"] == ["Latin/character2", "Latin/character10"]
    with pytest.raises(DataError, match=r"pictures in Greek and in Greek/character1 inside of it"):
        load(tmp_path / "letters", {"Greek/stray.png": picture()})


def test_one_folder_that_is_called_as_in_open_mic_makes_no_open_mic(tmp_path):
    content = flat(("sci/target/a", "sci/target/b", "art/target/a"), 1)
    images = load(tmp_path / "set", content, cut=ClassCut(1, 1, "names"))
    assert images.classes == ("art/target/a", "sci/target/a", "sci/target/b")


# ---- known sets ------------------------------------------------------------------------------------------------------


def test_flower102_has_its_first_80_classes_to_train_and_validate(tmp_path):
    content = files(f"{split}/{n:03d}/{split}.png" for n in range(1, 103) for split in SPLITS[:: 2 if n % 2 else 1])
    write_zip(tmp_path / "images" / "flower102.zip", content)
    found = classes_of(load_fewshot("flower102", tmp_path, size=4))
    names = [f"{number:03d}" for number in range(1, 103)]
    assert found == {"train": names[:64], "validation": names[64:80], "test": names[80:]}


def test_food101_has_21_classes_to_test(tmp_path):
    names = [f"food{number:03d}" for number in range(101)]
    content = files(f"food-101/images/{name}/{n}.jpg" for name in names for n in "12")
    content["food-101/meta/train.txt"] = "\n".join(f"{name}/1" for name in names).encode()
    content["food-101/meta/test.txt"] = "\n".join(f"{name}/2" for name in names).encode()
    write_folder(tmp_path, content)
    found = classes_of(load_fewshot("food101", tmp_path, size=4))
    assert found == {"train": names[:64], "validation": names[64:80], "test": names[80:]}
    assert classes_of(load_fewshot(tmp_path / "food-101", size=4)) == found  # known by the name of its folder


def test_a_part_of_omniglot_needs_a_cut(tmp_path):
    write_folder(tmp_path / "omniglot", flat(("Greek/a", "Greek/b", "Latin/a"), 1))
    with pytest.raises(ArgumentError, match="1100 classes to train on and 100 to validate on leaves none of 3 classes"):
        load_fewshot("omniglot", tmp_path, size=4)
    assert len(load_fewshot("omniglot", tmp_path, size=4, cut=ClassCut(1, 1)).splits) == 3


@pytest.mark.parametrize("name", ["miniimagenet", "omniglot", "open_mic"])
def test_sets_that_are_not_there_say_how_they_have_to_lie(name, tmp_path):
    with pytest.raises(MissingDataError, match=rf"{name} is not on this machine .*{name}.zip with .*<picture>"):
        load_fewshot(name, tmp_path)


def test_a_set_of_the_hub(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "rows", files(f"{split}/{n}" for split in ("train", "test") for n in range(5)))
    labels, asked = ("tulip", "rose", "iris", "lily", "aster"), []
    names = [f"{split}/{n}" for split in ("train", "test") for n in range(5)]
    labelled = [Labelled(name, labels[int(name[-1])], name.split("/")[0]) for name in names]
    table = HubSet(labelled, labels, {name: str(folder / name) for name in names}, {name: name for name in names})
    monkeypatch.setattr(fewshot, "load_hub", lambda name, download: asked.append((name, download)) or table)
    images = load_fewshot("hf:owner/flowers", size=4, download=True, cut=ClassCut(2, 1, "names"))
    assert asked == [("owner/flowers", True)]
    assert images.name == "flowers"
    assert images.classes == labels  # in the order of their numbers there
    assert {split: set(own) for split, own in classes_of(images).items()} == {
        "train": {"tulip", "rose"},  # the first ones there
        "validation": {"iris"},
        "test": {"lily", "aster"},
    }
    assert images["test"].names == ("test/3", "train/3", "test/4", "train/4")  # in order, though the table is not
    with pytest.raises(ArgumentError, match=r"owner/flowers has no problem 'shn': only Open MIC"):
        load_fewshot("hf:owner/flowers", problem="shn")


# ---- Open MIC --------------------------------------------------------------------------------------------------------


def museum(exhibitions: tuple[str, ...] = EXHIBITIONS, count: int = 3) -> dict[str, bytes]:
    """Two exhibits of each exhibition."""
    return files(
        f"{exhibition}/{domain}/{label}/{number}.png"
        for exhibition in exhibitions
        for domain in ("source", "target")
        for label in ("1", "2")
        for number in range(count)
    )


@pytest.fixture
def open_mic(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "museum", museum())


def test_there_are_twelve_pairs_and_ten_exhibitions():
    assert len(OPEN_MIC_PAIRS) == len(set(OPEN_MIC_PAIRS)) == 12
    assert all(pair[:2] != pair[4:] for pair in OPEN_MIC_PAIRS)
    assert sorted(name for part in OPEN_MIC_PARTS.values() for name in part) == sorted(EXHIBITIONS)
    assert len(EXHIBITIONS) == 10


@pytest.mark.parametrize("problem", ["p1->p2", "p4->p3", "p3->p1"])
def test_protocol_one(open_mic, problem):
    images = load(open_mic, problem=problem)
    assert list(images.splits) == ["train", "test"]
    for split, part in zip(images.splits, problem.split("->"), strict=True):
        expected = [f"{exhibition}/{label}" for exhibition in OPEN_MIC_PARTS[part] for label in ("1", "2")]
        assert sorted(classes_of(images)[split]) == sorted(expected)
        assert all("/target/" in name for name in images[split].names)
        assert len(images[split]) == 3 * len(expected)


@pytest.mark.parametrize("problem", ["shn", "rlc"])
def test_protocol_two(open_mic, problem):
    images = load(open_mic, problem=problem)
    assert images.classes == (f"{problem}/1", f"{problem}/2")
    for split, domain in (("train", "source"), ("test", "target")):
        expected = [f"{problem}/{domain}/{label}/{number}.png" for label in "12" for number in range(3)]
        assert list(images[split].names) == expected
        assert images[split].targets.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("problem, exhibitions", [("p1->p3", [3, 2]), ("shn", [1, 1])])
def test_each_exhibition_of_a_part_is_centred_on_its_own(open_mic, problem, exhibitions):
    images = load(open_mic, problem=problem)
    for bank, count in zip(images.splits.values(), exhibitions, strict=True):
        pixels, found = bank.pictures.double() / 255, bank.batch(torch.arange(len(bank))).double()
        own = [name.split("/")[0] for name in bank.names]
        assert len(set(own)) == count
        for exhibition in set(own):
            rows = [row for row, name in enumerate(own) if name == exhibition]
            torch.testing.assert_close(found[rows], pixels[rows] - pixels[rows].mean(0), rtol=0, atol=1e-6)


def test_pictures_of_other_sets_are_not_centred(tmp_path):
    images = load(tmp_path / "set", flat("abcde", 2))
    assert all(bank.mean is None for bank in images.splits.values())


def test_open_mic_in_a_folder_around_it_and_in_a_zip(tmp_path, open_mic):
    content = {f"Open_MIC/{name}": data for name, data in museum().items()}
    write_zip(tmp_path / "data" / "open_mic.zip", content)
    images = load_fewshot("open_mic", tmp_path / "data", size=4, problem="clk")
    assert images.classes == ("clk/1", "clk/2")
    assert torch.equal(images["test"].pictures, load(open_mic, problem="clk")["test"].pictures)


def test_every_problem_of_open_mic_has_a_digest_of_its_own(open_mic):
    digests = {load(open_mic, problem=problem).digest for problem in ("p1->p2", "p2->p1", "p1->p3", "shn", "hon")}
    assert len(digests) == 5


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({}, ArgumentError, r"is Open MIC, which is divided by its problems: pass one of p1->p2, .*p4->p3, shn, hon"),
        (
            {"problem": "p1->p1"},
            UnknownNameError,
            r"Unknown problem 'p1->p1' of Open MIC.* There are p1->p2, .*, rlc\.",
        ),
        ({"problem": "train"}, UnknownNameError, "Unknown problem 'train'"),
        ({"problem": "shn", "cut": ClassCut()}, ArgumentError, "is divided by the problem shn, and takes no cut"),
    ],
)
def test_problems_that_cannot_be(open_mic, options, error, message):
    with pytest.raises(error, match=message):
        load(open_mic, **options)


def test_problems_of_other_sets(tmp_path):
    with pytest.raises(ArgumentError, match=r"set has no problem 'p1->p2': only Open MIC is divided by problems, with"):
        load(tmp_path / "set", flat(), problem="p1->p2")
    write_folder(tmp_path / "open_mic", flat())
    with pytest.raises(ArgumentError, match=r"is Open MIC, which is divided"):
        load_fewshot("open_mic", tmp_path)


def test_exhibitions_that_are_missing(tmp_path):
    folder = write_folder(tmp_path / "museum", museum(("shn", "clk")))
    with pytest.raises(
        MissingDataError, match=r"no pictures in clv/target, gls/target, .*There are clk/source, clk/ta"
    ):
        load(folder, problem="p1->p2")
    assert load(folder, problem="shn").classes == ("shn/1", "shn/2")
    with pytest.raises(DataError, match=r"has the picture shn/target/stray.png, needed is <exhibition>/"):
        load(folder, {"shn/target/stray.png": picture()}, problem="shn")


def test_exhibits_with_few_photos_are_left_out_of_episodes(tmp_path):
    content = museum(("shn",)) | files(f"shn/target/3/{number}.png" for number in range(2))
    bank = load(tmp_path / "museum", content, problem="shn")["test"]
    episodes = Episodes(bank.targets, way=2, shot=1, queries=2)
    assert (episodes.classes, episodes.left_out) == (2, 1)


# ---- digests, damage, options ----------------------------------------------------------------------------------------


def test_the_digest_is_of_the_content_and_the_cut(tmp_path):
    content = flat([f"c{number}" for number in range(6)], 2)
    first = load(tmp_path / "a", content).digest
    assert load(tmp_path / "elsewhere" / "b", content).digest == first
    assert load_fewshot(write_zip(tmp_path / "set.zip", content), size=4).digest == first
    assert load(tmp_path / "a", size=5, channels=1, invert=True, resize="crop").digest == first
    others = [
        load(tmp_path / "a", cut=ClassCut(3, 1, "names")).digest,
        load(tmp_path / "a", cut=ClassCut(3, 1)).digest,
        load(tmp_path / "c", content | {"c0/00.png": picture(99)}).digest,
        load(tmp_path / "d", content | {"c0/02.png": picture(99)}).digest,
        load(tmp_path / "e", {name.replace("c0", "c7"): data for name, data in content.items()}).digest,
    ]
    assert len({first, *others}) == 6


def test_a_moved_set_is_not_decoded_again(tmp_path, cache):
    content = flat("abcde", 2)
    load(tmp_path / "one", content)
    before = sorted((cache / "images" / "banks").iterdir())
    shutil.move(tmp_path / "one", tmp_path / "two")
    load(tmp_path / "two")
    assert sorted((cache / "images" / "banks").iterdir()) == before


def test_damaged_pictures(tmp_path):
    content = flat("abcde", 3)
    whole = load(tmp_path / "whole", content)
    folder = write_folder(tmp_path / "set", content | {"a/01.png": b"words"})
    with pytest.raises(ImageError, match=r"1 of [39] pictures cannot be read: a/01.png is no picture"):
        load(folder)
    images = load(folder, corrupt="skip")
    assert images.skipped == ("a/01.png",)
    assert whole.skipped == ()
    assert sum(map(len, images.splits.values())) == 14
    assert images.digest != whole.digest
    assert (
        images.digest
        == load(write_folder(tmp_path / "less", {n: d for n, d in content.items() if n != "a/01.png"})).digest
    )


def test_options_reach_the_pictures(tmp_path):
    folder = write_folder(tmp_path / "set", flat("abcde", 2))
    told: list[tuple[str, int, int]] = []
    grey = load(folder, channels=1, watch=lambda *what: told.append(what))
    assert {what for what in told if what[1] == what[2]} == {("train", 6, 6), ("validation", 2, 2), ("test", 2, 2)}
    assert grey["test"].pictures.shape == (2, 1, 4, 4)
    inverted = load(folder, channels=1, invert=True)
    assert torch.equal(inverted["test"].pictures, 255 - grey["test"].pictures)
    assert not torch.equal(load(folder, resize="crop")["test"].pictures, load(folder)["test"].pictures)
    with pytest.raises(PowerPoolError, match="Unknown way to resize"):
        load(folder, resize="fill")


# ---- real sets, by the names in their zips ---------------------------------------------------------------------------


def named(zipped: str, nested: bool = True) -> dict[str | None, Counter[str]]:
    """How many pictures of each class are in each split."""
    with zipfile.ZipFile(require_data(f"images/{zipped}.zip")) as archive:
        labelled = arrange(archive.namelist(), archive.read, zipped, nested=nested)
    found: dict[str | None, Counter[str]] = {}
    for one in labelled:
        found.setdefault(one.split, Counter())[one.label] += 1
    return found


def test_miniimagenet_comes_divided():
    found = named("miniimagenet100")
    assert {split: len(labels) for split, labels in found.items()} == {"train": 64, "validation": 16, "test": 20}
    assert {count for labels in found.values() for count in labels.values()} == {100}
    assert all(not first & second for first, second in pairwise(found.values()))


def test_omniglot_by_its_characters():
    (members,) = named("omniglot28").values()
    assert (len(members), set(members.values())) == (1623, {20})
    assert "Alphabet_of_the_Magi/character01" in members
    found = CUTS["omniglot"].divide(members)
    assert [len(part) for part in found.values()] == [1100, 100, 423]
    alphabets = [{name.split("/")[0] for name in part} for part in found.values()]
    assert [len(part) for part in alphabets][::2] == [50, 50]  # drawn: of all alphabets


def test_flower102_by_its_numbers():
    found = named("flower102")
    divided = CUTS["flower102"].divide(found["train"])
    assert (divided["train"][0], divided["validation"][0], divided["test"][0]) == ("001", "065", "081")
    assert len(divided["test"]) == 22


def test_a_part_of_real_omniglot(tmp_path):
    """Strokes are few, and bright where they are inverted."""
    with zipfile.ZipFile(require_data("images/omniglot28.zip")) as archive:
        chosen = [name for name in archive.namelist() if name.startswith("Greek/character0") and name.endswith(".png")]
        write_folder(tmp_path / "omniglot28", {name: archive.read(name) for name in chosen})
    images = load_fewshot(tmp_path / "omniglot28", size=28, channels=1, invert=True, cut=ClassCut(4, 1))
    pictures = torch.cat([bank.pictures for bank in images.splits.values()])
    assert pictures.shape == (180, 1, 28, 28)
    share = (pictures > 127).float().mean((1, 2, 3))
    assert 0.0 < float(share.min()) < float(share.max()) < 0.4
