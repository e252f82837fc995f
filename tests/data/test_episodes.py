"""Episodes: valid for any bank, the same on every machine, and errors that suggest what is possible."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from powerpool.data import Episode, EpisodeError, Episodes
from powerpool.errors import ArgumentError, DTypeError, ShapeError


def bank_targets(members: list[int], seed: int = 0) -> Tensor:
    """Return classes 3, 6, 9, ... with the given numbers of members, in random order."""
    targets = torch.tensor([3 * (number + 1) for number, count in enumerate(members) for _ in range(count)])
    return targets[torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed))]


def same(first: Episode, second: Episode) -> bool:
    parts = ("classes", "support", "query", "turns")
    return first.number == second.number and all(torch.equal(getattr(first, n), getattr(second, n)) for n in parts)


@st.composite
def settings(draw: st.DrawFn) -> tuple[Tensor, dict[str, int], bool]:
    shot, queries = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    members = draw(st.lists(st.integers(1, 12), min_size=2, max_size=9))
    members += [shot + queries + draw(st.integers(0, 3)) for _ in range(2)]
    turned = draw(st.booleans())
    most = sum(count >= shot + queries for count in members) * (4 if turned else 1)
    way = draw(st.integers(2, most))
    return bank_targets(members, draw(st.integers(0, 9))), {"way": way, "shot": shot, "queries": queries}, turned


def drawn_by_hand(targets: list[int], way: int, shot: int, queries: int, seed: int, number: int, quarters: int):
    """Draw as documented, in plain Python: sort by integers from a hash."""
    of: dict[int, list[int]] = {}
    for row, label in enumerate(targets):
        of.setdefault(label, []).append(row)
    eligible = sorted(label for label, rows in of.items() if len(rows) >= shot + queries)
    most, count = max(len(of[label]) for label in eligible), len(eligible) * quarters
    content = hashlib.shake_256(f"episode {seed} {number}".encode()).digest(8 * (count + way * most))
    keys = [int.from_bytes(content[start : start + 8], "little", signed=True) for start in range(0, len(content), 8)]
    chosen = sorted(range(count), key=keys.__getitem__)[:way]
    found = []
    for place, drawn in enumerate(chosen):
        label, turn = eligible[drawn // quarters], drawn % quarters
        own = keys[count + place * most :][: len(of[label])]
        rows = [of[label][member] for member in sorted(range(len(own)), key=own.__getitem__)]
        found.append((label, turn, rows[:shot], rows[shot : shot + queries]))
    return found


@hypothesis_settings(max_examples=60)
@given(settings(), st.integers(0, 10**9), st.integers(0, 2**40))
def test_every_episode_is_valid_and_drawn_as_documented(setting, seed, number):
    targets, sizes, turned = setting
    episodes = Episodes(targets, **sizes, seed=seed, turns=turned)
    episode = episodes[number]
    way, shot, queries = sizes.values()
    assert (episode.number, episode.way, episode.shot, episode.queries) == (number, way, shot, queries)
    rows = torch.cat([episode.support, episode.query], dim=1)
    assert rows.shape == (way, shot + queries)
    assert bool((targets[rows] == episode.classes[:, None]).all())
    assert all(len(set(own)) == shot + queries for own in rows.tolist())
    pairs = list(zip(episode.classes.tolist(), episode.turns.tolist(), strict=True))
    assert len(set(pairs)) == way
    members = Counter(targets.tolist())
    few = sum(count < shot + queries for count in members.values())
    assert episodes.left_out == few
    assert episodes.classes == (len(members) - few) * (4 if turned else 1)
    parts = (episode.classes, episode.turns, episode.support, episode.query)
    found = list(zip(*(part.tolist() for part in parts), strict=True))
    assert found == drawn_by_hand(targets.tolist(), **sizes, seed=seed, number=number, quarters=4 if turned else 1)


def test_an_episode_is_that_of_version_0_1():
    """Published numbers depend on it."""
    episode = Episodes(torch.arange(20).repeat_interleave(10), way=5, shot=1, queries=2, seed=7)[600]
    assert episode.classes.tolist() == [13, 4, 14, 18, 16]
    assert episode.support.tolist() == [[131], [47], [145], [187], [169]]
    assert episode.query.tolist() == [[130, 135], [42, 44], [141, 148], [186, 181], [161, 165]]


def test_an_episode_depends_on_its_number_only():
    targets = bank_targets([9, 8, 7, 9])
    state = torch.get_rng_state()
    one, other = (Episodes(targets.to(dtype), 3, 2, 2, seed=5) for dtype in (torch.int64, torch.uint8))
    backwards = [one[number] for number in reversed(range(20))][::-1]
    assert all(same(first, second) for first, second in zip(backwards, other, strict=False))
    assert torch.equal(torch.get_rng_state(), state)
    found = [Episodes(bank_targets([20] * 20), 5, 1, 3, seed=seed)[n] for seed in range(9) for n in range(9)]
    assert len({tuple(episode.support.flatten().tolist()) for episode in found}) == len(found)


def test_all_classes_and_images_are_equally_likely():
    """A class is in 600 = 1200 * 3 / 6 of 1200 episodes; 70 are four standard deviations."""
    members = [5, 6, 7, 8, 9, 50, 2]
    targets = bank_targets(members)
    classes, support, query = Counter(), Counter(), Counter()
    for episode in itertools.islice(Episodes(targets, 3, 1, 2), 1200):
        classes.update(episode.classes.tolist())
        support.update(episode.support.flatten().tolist())
        query.update(episode.query.flatten().tolist())
    assert sorted(classes) == [3, 6, 9, 12, 15, 18]  # the class of two images is left out
    assert all(abs(count - 600) < 70 for count in classes.values())
    for drawn, expected in ((support, 600 / 50), (query, 2 * 600 / 50)):
        of_largest = [drawn[row] for row in (targets == 18).nonzero().flatten().tolist()]
        assert sum((count - expected) ** 2 / expected for count in of_largest) < 100  # chi-square of 49: mean 49
    of_smallest = [support[row] for row in (targets == 3).nonzero().flatten().tolist()]
    assert all(abs(count - 120) < 45 for count in of_smallest)


def test_rotated_classes_count_as_classes():
    targets = bank_targets([4, 4, 4])
    pairs, meetings = Counter(), 0
    for episode in itertools.islice(Episodes(targets, 3, 1, 1, turns=True), 800):
        pairs.update(zip(episode.classes.tolist(), episode.turns.tolist(), strict=True))
        meetings += len(episode.classes.unique()) < 3
    assert len(pairs) == 12
    assert all(abs(count - 200) < 55 for count in pairs.values())
    # Of the 220 ways to choose 3 of 12, 4 * 4 * 4 have three different classes.
    assert abs(meetings / 800 - (220 - 64) / 220) < 0.06


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "members, sizes, turned, message",
    [
        ([3, 9, 9, 4], (5, 1, 3), False, "5 classes of at least 4 images, but 3 of 4 .*way at most 3"),
        ([3, 9, 8, 4], (2, 5, 5), False, "but 0 of 4 "),
        ([5, 9, 7], (9, 1, 5), True, "but 8 of 12 .*way at most 8"),
    ],
)
def test_episodes_that_do_not_fit(members, sizes, turned, message):
    with pytest.raises(EpisodeError, match=message):
        Episodes(bank_targets(members), *sizes, turns=turned)


def test_invalid_arguments():
    for targets, error in ((torch.zeros(2, 2).long(), ShapeError), (torch.zeros(4), DTypeError)):
        with pytest.raises(error):
            Episodes(targets, 2, 1, 1)
    with pytest.raises(ArgumentError, match="got -1"):
        Episodes(torch.tensor([0, 0, -1, -1]), 2, 1, 1)
    for sizes, message in (((1, 1, 1), "way .*got 1"), ((2, 0, 1), "shot .*got 0"), ((2, 1, 0), "queries .*got 0")):
        with pytest.raises(ArgumentError, match=message):
            Episodes(bank_targets([4, 4]), *sizes)


@pytest.mark.parametrize("number", [-1, 0.5, "1"])
def test_invalid_numbers(number):
    with pytest.raises(ArgumentError, match=re.escape(repr(number))):
        Episodes(bank_targets([4, 4]), 2, 1, 1)[number]
