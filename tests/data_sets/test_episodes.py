"""Episodes: what they promise for any bank, that they are the same everywhere, and what is refused."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from powerpool.data import Episode, EpisodeError, Episodes
from powerpool.errors import ArgumentError, DTypeError, PowerPoolError, ShapeError


def bank_targets(members: list[int], seed: int = 0) -> Tensor:
    """Classes 3, 6, 9, ... with so many members each, in any order."""
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


@given(settings(), st.integers(0, 10**9), st.integers(0, 2**40))
def test_what_every_episode_is(setting, seed, number):
    targets, sizes, turned = setting
    episodes = Episodes(targets, **sizes, seed=seed, turns=turned)
    episode = episodes[number]
    way, shot, queries = sizes.values()
    assert (episode.number, episode.way, episode.shot, episode.queries) == (number, way, shot, queries)
    assert episode.classes.shape == episode.turns.shape == (way,)
    assert episode.support.shape == (way, shot)
    assert episode.query.shape == (way, queries)
    rows = torch.cat([episode.support, episode.query], dim=1)
    assert bool((targets[rows] == episode.classes[:, None]).all())
    assert all(len(set(own)) == shot + queries for own in rows.tolist())  # no picture twice, none in both
    pairs = list(zip(episode.classes.tolist(), episode.turns.tolist(), strict=True))
    assert len(set(pairs)) == way
    assert {turn for _, turn in pairs} <= ({0, 1, 2, 3} if turned else {0})
    if not turned:
        assert len(rows.unique()) == rows.numel()
    members = Counter(targets.tolist())
    assert min(members[label] for label, _ in pairs) >= shot + queries
    few = sum(count < shot + queries for count in members.values())
    assert episodes.left_out == few
    assert episodes.classes == (len(members) - few) * (4 if turned else 1)


def drawn_by_hand(targets: list[int], way: int, shot: int, queries: int, seed: int, number: int, quarters: int):
    """The draw as documented, in plain Python: sort by whole numbers from a hash."""
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


@given(settings(), st.integers(0, 10**6), st.integers(0, 10**6))
def test_the_draw_can_be_done_by_hand(setting, seed, number):
    targets, sizes, turned = setting
    episode = Episodes(targets, **sizes, seed=seed, turns=turned)[number]
    parts = (episode.classes, episode.turns, episode.support, episode.query)
    found = list(zip(*(part.tolist() for part in parts), strict=True))
    assert found == drawn_by_hand(targets.tolist(), **sizes, seed=seed, number=number, quarters=4 if turned else 1)


GOLDEN = {
    "classes": [13, 4, 14, 18, 16],
    "support": [[131], [47], [145], [187], [169]],
    "query": [[130, 135], [42, 44], [141, 148], [186, 181], [161, 165]],
}


def test_an_episode_stays_what_it_was():
    """Numbers in published records depend on it."""
    episode = Episodes(torch.arange(20).repeat_interleave(10), way=5, shot=1, queries=2, seed=7)[600]
    assert episode.classes.tolist() == GOLDEN["classes"]
    assert episode.support.tolist() == GOLDEN["support"]
    assert episode.query.tolist() == GOLDEN["query"]


def test_an_episode_depends_on_its_number_and_on_nothing_before():
    targets = bank_targets([9, 8, 7, 9])
    state = torch.get_rng_state()
    one, other = (Episodes(targets, 3, 2, 2, seed=5) for _ in range(2))
    backwards = [one[number] for number in reversed(range(20))][::-1]
    assert all(same(first, second) for first, second in zip(backwards, other, strict=False))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_the_type_of_targets_does_not_count(dtype):
    targets = bank_targets([9, 8, 7, 9])
    assert same(Episodes(targets.to(dtype), 3, 2, 2)[4], Episodes(targets, 3, 2, 2)[4])


def test_other_seeds_and_numbers_give_other_episodes():
    targets = bank_targets([20] * 20)
    found = [Episodes(targets, 5, 1, 3, seed=seed)[number] for seed in range(12) for number in range(12)]
    assert len({tuple(episode.support.flatten().tolist()) for episode in found}) == len(found)


def test_all_classes_and_pictures_are_equally_likely():
    """Of 1200 episodes, a class is in 1200 * 3 / 6 = 600; a spread of four standard deviations is 70."""
    members = [5, 6, 7, 8, 9, 50, 2]
    targets = bank_targets(members)
    classes, support, query = Counter(), Counter(), Counter()
    for episode in itertools.islice(Episodes(targets, 3, 1, 2), 1200):
        classes.update(episode.classes.tolist())
        support.update(episode.support.flatten().tolist())
        query.update(episode.query.flatten().tolist())
    assert sorted(classes) == [3, 6, 9, 12, 15, 18]  # the class of two pictures is left out
    assert all(abs(count - 600) < 70 for count in classes.values())
    for drawn, expected in ((support, 600 / 50), (query, 2 * 600 / 50)):
        of_largest = [drawn[row] for row in (targets == 18).nonzero().flatten().tolist()]
        assert sum((count - expected) ** 2 / expected for count in of_largest) < 100  # chi-square of 49: mean 49
    of_smallest = [support[row] for row in (targets == 3).nonzero().flatten().tolist()]
    assert all(abs(count - 120) < 45 for count in of_smallest)


def test_turned_classes_are_classes_of_their_own():
    targets = bank_targets([4, 4, 4])
    pairs, meetings = Counter(), 0
    for episode in itertools.islice(Episodes(targets, 3, 1, 1, turns=True), 800):
        pairs.update(zip(episode.classes.tolist(), episode.turns.tolist(), strict=True))
        meetings += len(episode.classes.unique()) < 3
    assert len(pairs) == 12
    assert all(abs(count - 200) < 55 for count in pairs.values())
    # Of 220 threes out of 12, 4 * 4 * 4 have three classes.
    assert abs(meetings / 800 - (220 - 64) / 220) < 0.06


def test_many_ways():
    """90 classes, as for Open MIC: 1 to 20 pictures of each of 866 classes."""
    targets = bank_targets([1 + number % 20 for number in range(866)])
    episodes = Episodes(targets, 90, 1, 2)
    assert (episodes.left_out, episodes.classes) == (88, 778)
    assert episodes[0].query.shape == (90, 2)
    assert repr(episodes) == "Episodes(90-way 1-shot, 2 queries per class, of 778 classes)"


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "members, sizes, turned, message",
    [
        (
            [3, 9, 9, 4],
            (5, 1, 3),
            False,
            "needs 5 classes of 4 pictures. There are 4 classes, of which 3 have that many. What fits: way at most 3",
        ),
        (
            [3, 9, 8, 4],
            (3, 5, 3),
            False,
            "What fits: way at most 2 with 5 + 3 pictures of each class; shot + queries at most 4",
        ),
        (
            [3, 9, 8, 4],
            (2, 5, 5),
            False,
            "There are 4 classes, of which 0 have that many. What fits: shot + queries at most 8 with 2 classes.",
        ),
        ([3, 9, 1], (7, 9, 9), False, "of which 0 have that many. What fits: way at most 2 with 1 + 1 pictures"),
        ([1, 9, 1], (5, 9, 9), False, "of which 0 have that many. No other episode fits: add classes or pictures."),
        (
            [5, 9, 7],
            (9, 1, 5),
            True,
            "each in 4 turns, of which 2 have that many. What fits: way at most 8 with 1 + 5 pictures of each",
        ),
    ],
)
def test_episodes_that_do_not_fit(members, sizes, turned, message):
    with pytest.raises(EpisodeError) as caught:
        Episodes(bank_targets(members), *sizes, turns=turned)
    assert message in str(caught.value)


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=6),
    st.integers(2, 30),
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
)
def test_what_is_said_to_fit_fits_and_no_more(members, way, shot, queries, turned):
    targets = bank_targets(members)
    try:
        Episodes(targets, way, shot, queries, turns=turned)
    except EpisodeError as error:
        words = str(error).replace(";", " ").split()
        numbers = {
            " ".join(words[place - 3 : place - 2]): int(words[place])
            for place, word in enumerate(words)
            if words[place - 1] == "most" and word.isdecimal()
        }
        if "way" in numbers and f"with {shot} + {queries} pictures" in str(error):
            Episodes(targets, numbers["way"], shot, queries, turns=turned)
            with pytest.raises(EpisodeError):
                Episodes(targets, numbers["way"] + 1, shot, queries, turns=turned)
        if "queries" in numbers:
            Episodes(targets, way, 1, numbers["queries"] - 1, turns=turned)
            with pytest.raises(EpisodeError):
                Episodes(targets, way, 1, numbers["queries"], turns=turned)
        assert numbers or max(members) < 2 or sum(count >= 2 for count in members) * (4 if turned else 1) < 2


@pytest.mark.parametrize(
    "targets, sizes, error, message",
    [
        (torch.zeros(2, 2, dtype=torch.long), (2, 1, 1), ShapeError, r"shape \(pictures,\).*got \(2, 2\)"),
        (torch.zeros(0, dtype=torch.long), (2, 1, 1), ShapeError, r"got \(0,\)"),
        (torch.zeros(4), (2, 1, 1), DTypeError, "whole numbers.*got torch.float32"),
        (torch.tensor([0, 0, -1, -1]), (2, 1, 1), ArgumentError, "classes from 0 on .*got -1"),
        (bank_targets([4, 4]), (1, 1, 1), ArgumentError, r"way must be a whole number, at least 2 \(got 1\)"),
        (bank_targets([4, 4]), (2, 0, 1), ArgumentError, r"shot must be a whole number, at least 1 \(got 0\)"),
        (bank_targets([4, 4]), (2, 1, 0), ArgumentError, r"queries must be a whole number, at least 1 \(got 0\)"),
        (bank_targets([4, 4]), (2.0, 1, 1), ArgumentError, r"way must be a whole number, at least 2 \(got 2.0\)"),
    ],
)
def test_what_cannot_be_asked_for(targets, sizes, error, message):
    with pytest.raises(error, match=message):
        Episodes(targets, *sizes)


@pytest.mark.parametrize("number", [-1, 0.5, "1"])
def test_numbers_that_no_episode_has(number):
    with pytest.raises(PowerPoolError, match="numbered from 0 on, without an end"):
        Episodes(bank_targets([4, 4]), 2, 1, 1)[number]
