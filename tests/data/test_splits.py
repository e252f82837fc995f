"""Folds, splits of images and splits of classes: partitions, balanced, and the same on every machine."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from powerpool.data import ClassCut, Splits, stratified_folds
from powerpool.data.splits import Labelled, natural_key, split_images
from powerpool.errors import ArgumentError, PowerPoolError

SPLITS = ("train", "validation", "test")

# ---- folds -----------------------------------------------------------------------------------------------------------


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, int, int]:
    """Targets in any order with any labels, a possible number of folds, and a seed."""
    count = draw(st.integers(3, 7))
    labels = draw(st.lists(st.integers(-5, 50), min_size=1, max_size=4, unique=True))
    targets = [label for label in labels for _ in range(draw(st.integers(count, 25)))]
    return torch.tensor(draw(st.permutations(targets))), count, draw(st.integers(-(2**70), 2**70))


@settings(max_examples=40)
@given(problems())
def test_folds_are_balanced_partitions(problem: tuple[Tensor, int, int]) -> None:
    targets, count, seed = problem
    folds = stratified_folds(targets, count, seed)
    everything = list(range(len(targets)))
    assert len(folds) == count
    for fold, following in zip(folds, [*folds[1:], folds[0]], strict=True):
        parts = [fold.train.tolist(), fold.validation.tolist(), fold.test.tolist()]
        assert sorted([*parts[0], *parts[1], *parts[2]]) == everything
        assert all(part and part == sorted(part) for part in parts)
        assert fold.train_and_validation.tolist() == sorted(parts[0] + parts[1])
        assert torch.equal(fold.validation, following.test)
    assert sorted(torch.cat([fold.test for fold in folds]).tolist()) == everything
    for label in (None, *targets.unique().tolist()):
        sizes = [len(fold.test) if label is None else int((targets[fold.test] == label).sum()) for fold in folds]
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 1
    for fold, same in zip(folds, stratified_folds(targets.tolist(), count, seed), strict=True):
        assert torch.equal(fold.test, same.test)


def test_the_folds_of_a_seed_are_those_of_version_0_1() -> None:
    targets = torch.arange(188) % 3 % 2
    folds = stratified_folds(targets, count=10, seed=0)
    text = ";".join(",".join(str(item) for item in fold.test.tolist()) for fold in folds)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "9b78c8bc3c407ca1"
    assert len({tuple(stratified_folds(targets, 10, seed)[0].test.tolist()) for seed in range(20)}) == 20


def test_samples_are_spread_without_regard_to_their_position() -> None:
    """Each of 100 samples is in the first test set of about 10 % of 400 seeds, with a standard deviation of 6."""
    targets = torch.zeros(100, dtype=torch.long)
    hits = torch.zeros(100)
    for seed in range(400):
        hits[stratified_folds(targets, 10, seed)[0].test] += 1
    assert hits.min() >= 40 - 5 * 6
    assert hits.max() <= 40 + 5 * 6


def test_invalid_folds() -> None:
    for targets, count, error, message in (
        ([0, 1] * 10, 2, ValueError, "got 2"),
        ([3] * 20 + [7] * 4, 5, ValueError, "Class 7 has only 4.*4 folds"),
        (torch.zeros(3, 2, dtype=torch.long), 3, ValueError, r"\(3, 2\)"),
        (torch.rand(30), 3, TypeError, "float32"),
    ):
        with pytest.raises(error, match=message):
            stratified_folds(targets, count)  # type: ignore[arg-type]


# ---- splits of images ------------------------------------------------------------------------------------------------


def labelled(counts: dict[str, int], split: str | None = None) -> list[Labelled]:
    return [Labelled(f"{name}/{number}", name, split) for name, count in counts.items() for number in range(count)]


@settings(max_examples=40)
@given(
    st.lists(st.integers(3, 60), min_size=1, max_size=5),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 5),
)
def test_every_class_is_split_by_its_shares(counts: list[int], validation: int, test: int, seed: int) -> None:
    shares = {"validation": validation / 100, "test": test / 100}
    images = labelled({f"class{number}": count for number, count in enumerate(counts)})
    found = split_images(images, Splits(**shares, seed=seed), "set")
    assert [(image.file, image.label) for image in found] == [(image.file, image.label) for image in images]
    sizes = Counter((image.label, image.split) for image in found)
    for number, count in enumerate(counts):
        for split, share in shares.items():
            size = sizes[f"class{number}", split]
            assert abs(size - share * count) <= 0.5 + 1e-9 or (size == 1 and 0 < share * count < 1)
            assert (size == 0) == (share == 0)
        assert sizes[f"class{number}", "train"] >= 1


def test_a_split_depends_on_the_seed_and_the_names_only() -> None:
    images = labelled({"rose": 30, "iris": 30})
    first = split_images(images, Splits(seed=3), "set")
    assert split_images(images, Splits(seed=4), "set") != first
    assert sorted(split_images(images[::-1], Splits(seed=3), "set")) == sorted(first)
    # As in version 0.1: these are the images that published numbers were tested on.
    assert [i.file for i in split_images(labelled({"rose": 10}), Splits(), "set") if i.split == "test"] == [
        "rose/0",
        "rose/9",
    ]


def test_only_missing_splits_are_added() -> None:
    train, test = labelled({"rose": 10}, "train"), [Labelled("t", "rose", "test")]
    validation = [Labelled("v", "rose", "validation")]

    def sizes(images: list[Labelled], splits: Splits | None = None) -> dict[str | None, int]:
        return dict(Counter(image.split for image in split_images(images, splits or Splits(), "set")))

    assert sizes(train) == {"train": 6, "validation": 2, "test": 2}
    assert sizes(train + test) == {"train": 8, "validation": 2, "test": 1}
    assert sizes(train + validation) == {"train": 8, "validation": 1, "test": 2}
    assert sizes(train + validation, Splits(test=0)) == {"train": 10, "validation": 1}
    assert sizes(train + validation + test) == {"train": 10, "validation": 1, "test": 1}
    assert sizes(train + test, Splits(validation=0)) == {"train": 10, "test": 1}
    assert sizes(test) == {"test": 1}


def test_classes_with_too_few_images() -> None:
    with pytest.raises(ArgumentError, match="set: class 'iris' has only 2"):
        split_images(labelled({"rose": 9, "iris": 2}), Splits(), "set")
    assert len(split_images(labelled({"rose": 9, "iris": 3}), Splits(), "set")) == 12


@pytest.mark.parametrize("arguments", [{"test": -0.1}, {"validation": 1.0}, {"test": 0.5, "validation": 0.5}])
def test_invalid_shares(arguments: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        Splits(**arguments)


# ---- splits of classes -----------------------------------------------------------------------------------------------


@settings(max_examples=30)
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
        assert sorted(names, key=natural_key) == [name for part in found.values() for name in part]


@pytest.mark.parametrize(
    "cut, counts",
    [
        (ClassCut(), (64, 16, 20)),
        (ClassCut(30, 20), (30, 20, 50)),
        (ClassCut(0.5, 10), (50, 10, 40)),
        (ClassCut(0.5, 0), (50, 50)),
        (ClassCut(98, 0.001), (98, 1, 1)),
    ],
)
def test_shares_and_numbers_of_classes(cut, counts):
    assert tuple(map(len, cut.divide(str(number) for number in range(100)).values())) == counts


def test_drawn_classes_are_those_of_version_0_1():
    names = [f"c{number}" for number in range(50)]
    assert ClassCut(seed=3).divide(names)["validation"] == ["c44", "c23", "c1", "c17", "c13", "c33", "c10", "c41"]
    assert len({tuple(ClassCut(seed=seed).divide(names)["test"]) for seed in range(5)}) == 5
    # One more class moves at most the classes next to the borders.
    more = ClassCut(32, 8).divide([*names, "new"])
    assert len(set(more["train"]) & set(ClassCut(32, 8).divide(names)["train"])) >= 31


def test_natural_order_of_names():
    for names in (["1", "2", "10", "100"], ["a", "a1", "a1b2", "a1b10", "a2", "b"], ["1.rose", "2.iris", "a", "b2"]):
        assert sorted(set(names), key=natural_key) == names


def test_invalid_cuts():
    for arguments, message in (
        ({"train": 0}, "got 0"),
        ({"train": 1.0}, "got 1.0"),
        ({"validation": float("nan")}, "nan"),
        ({"train": 0.8, "validation": 0.2}, "0.8 and 0.2"),
        ({"order": "random"}, "random"),
    ):
        with pytest.raises(PowerPoolError, match=message):
            ClassCut(**arguments)
    for cut in (ClassCut(2, 1), ClassCut(0.6, 0.39)):
        with pytest.raises(ArgumentError, match="none of 3 classes"):
            cut.divide(["a", "b", "c"])
