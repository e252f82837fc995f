"""Episodes of few-shot learning: which pictures are support and which are queries, drawn by numbers alone."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from powerpool.errors import ArgumentError, DTypeError, ShapeError

QUARTERS = 4
"""Quarter turns of a picture, of which the first is none."""


class EpisodeError(ArgumentError):
    """There are too few classes, or too few pictures in them; the message says how many, and what would fit."""


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth value
class Episode:
    """One problem of L classes, with J support and Q query pictures of each; pictures are rows of a bank."""

    number: int
    classes: Tensor  # shape: (L,), class numbers
    support: Tensor  # shape: (L, J)
    query: Tensor  # shape: (L, Q), none of its class in support
    turns: Tensor  # shape: (L,), quarter turns, 0 to 3, of all pictures of the class

    @property
    def way(self) -> int:
        """L, the classes to choose from."""
        return len(self.classes)

    @property
    def shot(self) -> int:
        """J, the support pictures of a class."""
        return self.support.shape[1]

    @property
    def queries(self) -> int:
        """Q, the query pictures of a class."""
        return self.query.shape[1]

    def __repr__(self) -> str:
        return f"Episode({self.number}: {self.way}-way {self.shot}-shot, {self.queries} queries per class)"


class Episodes:
    """An endless sequence of episodes: each is a function of the settings and its number, whatever was drawn before.

    An episode draws ``way`` classes and ``shot + queries`` pictures of each, all equally likely and none twice. Classes
    with fewer pictures are left out of the draw. The draw comes from a hash of ``seed`` and the number of the episode,
    not from a generator of random numbers: it is the same on every machine and with every version of every package, and
    all methods that are tested with one seed see the same episodes.

    Args:
        targets: the class of each picture, from 0 on.
        way: L, classes of an episode; at least 2.
        shot: J, support pictures of each class.
        queries: Q, query pictures of each class.
        seed: another seed gives other episodes.
        turns: whether a class turned by a quarter is a class of its own, as is usual for Omniglot. All pictures of the
            class are turned alike. Two turns of one class may meet in one episode, and may have pictures in common.

    Example:
        >>> import torch
        >>> targets = torch.arange(20).repeat_interleave(10)  # 20 classes of 10 pictures
        >>> episodes = Episodes(targets, way=5, shot=1, queries=3, seed=0)
        >>> episodes[600]
        Episode(600: 5-way 1-shot, 3 queries per class)
        >>> bool((targets[episodes[600].query] == episodes[600].classes[:, None]).all())
        True
    """

    def __init__(
        self, targets: Tensor, way: int, shot: int, queries: int, *, seed: int = 0, turns: bool = False
    ) -> None:
        _check(targets, way, shot, queries)
        self.way, self.shot, self.queries, self.seed, self.turns = way, shot, queries, seed, turns
        labels, members = targets.cpu().long().unique(return_counts=True)
        enough = members >= shot + queries
        self._left_out = int((~enough).sum())
        quarters = QUARTERS if turns else 1
        if int(enough.sum()) * quarters < way:
            raise EpisodeError(_too_few(members, way, shot, queries, quarters))
        self._labels, self._members, self._quarters = labels[enough], members[enough], quarters
        self._rows = _table(targets.cpu().long(), self._labels, self._members)

    @property
    def classes(self) -> int:
        """How many classes are drawn from; turned ones count."""
        return len(self._labels) * self._quarters

    @property
    def left_out(self) -> int:
        """How many classes have too few pictures, and are in no episode."""
        return self._left_out

    def __repr__(self) -> str:
        return f"Episodes({self.way}-way {self.shot}-shot, {self.queries} queries per class, of {self.classes} classes)"

    def __getitem__(self, number: int) -> Episode:
        if not isinstance(number, int) or number < 0:
            raise ArgumentError(f"Episodes are numbered from 0 on, without an end (asked for {number!r}).")
        most = self._rows.shape[1]
        keys = _keys(f"{self.seed} {number}", self.classes + self.way * most)
        drawn = keys[: self.classes].argsort(stable=True)[: self.way]
        chosen, turns = drawn // self._quarters, drawn % self._quarters
        order = keys[self.classes :].view(self.way, most)
        # What is not there comes last; the chance that a key is the largest there is, is nil, and harmless with a
        # stable order: the places that are not there stand behind all others.
        order = order.masked_fill(torch.arange(most) >= self._members[chosen, None], torch.iinfo(torch.int64).max)
        places = order.argsort(dim=1, stable=True)[:, : self.shot + self.queries]
        rows = self._rows[chosen].gather(1, places)
        return Episode(number, self._labels[chosen], rows[:, : self.shot], rows[:, self.shot :], turns)

    def __iter__(self) -> Iterator[Episode]:
        """All episodes from 0 on, without an end."""
        return (self[number] for number in itertools.count())


def _keys(text: str, count: int) -> Tensor:  # shape: (count,), int64
    """Whole numbers that anyone can compute again: to sort by them is to shuffle."""
    content = hashlib.shake_256(f"episode {text}".encode()).digest(8 * count)
    # A copy in memory that can be written to: bytes cannot.
    return torch.frombuffer(bytearray(content), dtype=torch.int64)


def _table(targets: Tensor, labels: Tensor, members: Tensor) -> Tensor:  # shape: (classes, most members)
    """The rows of each class in ascending order; behind them zeros, which are never drawn."""
    order = targets.argsort(stable=True)
    order = order[torch.isin(targets[order], labels)]
    table = torch.zeros(len(labels), int(members.max()), dtype=torch.long)
    table[torch.arange(table.shape[1]) < members[:, None]] = order
    return table


def _check(targets: Tensor, way: int, shot: int, queries: int) -> None:
    if targets.ndim != 1 or len(targets) == 0:
        raise ShapeError(f"targets must have shape (pictures,), one class for each (got {tuple(targets.shape)}).")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise DTypeError(f"targets must be whole numbers, one for each class (got {targets.dtype}).")
    if int(targets.min()) < 0:
        raise ArgumentError(f"targets must be classes from 0 on (got {int(targets.min())}, of unknown class).")
    for name, value, least in (("way", way, 2), ("shot", shot, 1), ("queries", queries, 1)):
        if not isinstance(value, int) or value < least:
            raise ArgumentError(f"{name} must be a whole number, at least {least} (got {value!r}).")


def _too_few(members: Tensor, way: int, shot: int, queries: int, quarters: int) -> str:
    """What there is, and what would fit."""
    needed, enough = shot + queries, int((members >= shot + queries).sum())
    turned = f", each in {quarters} turns" if quarters > 1 else ""
    fits = []
    if enough * quarters >= 2:
        fits.append(f"way at most {enough * quarters} with {shot} + {queries} pictures of each class")
    if len(members) * quarters >= way:
        most = int(members.sort(descending=True).values[-(-way // quarters) - 1])
        if most >= 2:
            fits.append(f"shot + queries at most {most} with {way} classes")
    pairs = int((members >= 2).sum()) * quarters
    if not fits and pairs >= 2:
        fits.append(f"way at most {pairs} with 1 + 1 pictures of each class")
    remedy = f"What fits: {'; '.join(fits)}." if fits else "No other episode fits: add classes or pictures."
    return (
        f"An episode of {way} classes with {shot} support and {queries} query pictures of each needs {way} classes of "
        f"{needed} pictures. There are {len(members)} classes{turned}, of which {enough} have that many. {remedy}"
    )
