"""Folds: a partition, balanced, and the same everywhere."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from powerpool.data import Fold, stratified_folds


@st.composite
def problems(draw: st.DrawFn) -> tuple[Tensor, int, int]:
    """Targets in any order with any labels, a number of parts that fits, and a seed."""
    count = draw(st.integers(3, 7))
    labels = draw(st.lists(st.integers(-5, 50), min_size=1, max_size=4, unique=True))
    targets = [label for label in labels for _ in range(draw(st.integers(count, 25)))]
    return torch.tensor(draw(st.permutations(targets))), count, draw(st.integers(-(2**70), 2**70))


@given(problems())
def test_every_fold_is_a_partition_and_every_item_is_tested_on_once(problem: tuple[Tensor, int, int]) -> None:
    targets, count, seed = problem
    folds = stratified_folds(targets, count, seed)
    everything = list(range(len(targets)))
    assert len(folds) == count
    for fold in folds:
        parts = [fold.train.tolist(), fold.validation.tolist(), fold.test.tolist()]
        assert sorted([*parts[0], *parts[1], *parts[2]]) == everything
        assert all(part and part == sorted(part) for part in parts)
        assert fold.train_and_validation.tolist() == sorted(parts[0] + parts[1])
    assert sorted(torch.cat([fold.test for fold in folds]).tolist()) == everything
    for fold, following in zip(folds, [*folds[1:], folds[0]], strict=True):
        assert_close(fold.validation, following.test, rtol=0, atol=0)


@given(problems())
def test_classes_and_totals_are_balanced_to_within_one(problem: tuple[Tensor, int, int]) -> None:
    targets, count, seed = problem
    folds = stratified_folds(targets, count, seed)
    totals = [len(fold.test) for fold in folds]
    assert max(totals) - min(totals) <= 1
    for label in targets.unique():
        members = [int((targets[fold.test] == label).sum()) for fold in folds]
        assert max(members) - min(members) <= 1
        assert min(members) >= 1


@given(problems())
def test_the_same_seed_gives_the_same_folds_whatever_else_is_drawn(problem: tuple[Tensor, int, int]) -> None:
    targets, count, seed = problem
    first = stratified_folds(targets, count, seed)
    torch.rand(3)
    for one, two in zip(first, stratified_folds(targets.tolist(), count, seed), strict=True):
        for part in ("train", "validation", "test"):
            assert_close(getattr(one, part), getattr(two, part), rtol=0, atol=0)


def test_the_folds_of_a_seed_are_known() -> None:
    """Fixed for all machines and versions: whoever changes them makes all published folds unreproducible."""
    targets = torch.arange(188) % 3 % 2
    folds = stratified_folds(targets, count=10, seed=0)
    text = ";".join(",".join(str(item) for item in fold.test.tolist()) for fold in folds)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "9b78c8bc3c407ca1"


def test_other_seeds_give_other_folds() -> None:
    targets = torch.arange(200) % 2
    tests = {tuple(stratified_folds(targets, 10, seed)[0].test.tolist()) for seed in range(20)}
    assert len(tests) == 20


def test_members_of_a_class_are_spread_without_regard_to_their_place() -> None:
    """Each of 100 items should land in part 0 about equally often over seeds: 10 % of 400 draws, give or take 6."""
    targets = torch.zeros(100, dtype=torch.long)
    hits = torch.zeros(100)
    for seed in range(400):
        hits[stratified_folds(targets, 10, seed)[0].test] += 1
    assert hits.min() >= 40 - 5 * 6
    assert hits.max() <= 40 + 5 * 6


def test_fold_keeps_what_it_is_given() -> None:
    fold = Fold(torch.tensor([0, 3]), torch.tensor([1]), torch.tensor([2]))
    assert fold.train_and_validation.tolist() == [0, 1, 3]
    with pytest.raises(AttributeError):
        fold.test = torch.tensor([0])  # type: ignore[misc]


@pytest.mark.parametrize("count", [-1, 0, 1, 2])
def test_fewer_than_three_parts_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=rf"count must be at least 3 \(got {count}\)"):
        stratified_folds([0, 1] * 10, count)


def test_a_class_with_too_few_members_is_named() -> None:
    with pytest.raises(ValueError, match=r"class 7 has only 4\. Cut into 4 parts, or merge or leave out the class"):
        stratified_folds([3] * 20 + [7] * 4, count=5)
    with pytest.raises(ValueError, match=r"class 7 has only 2\. Merge or leave out the class"):
        stratified_folds([3] * 20 + [7] * 2, count=5)


@pytest.mark.parametrize("targets", [[], torch.zeros(3, 2, dtype=torch.long), torch.tensor(1)])
def test_targets_are_a_column(targets: object) -> None:
    with pytest.raises(ValueError, match=r"one class for each item"):
        stratified_folds(targets)  # type: ignore[arg-type]


def test_targets_are_whole_numbers() -> None:
    with pytest.raises(TypeError, match=r"whole numbers.*float32"):
        stratified_folds(torch.rand(30))
