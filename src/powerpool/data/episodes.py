"""Episodes of few-shot learning: which images of a bank are support and which are queries."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from powerpool.errors import ArgumentError, DTypeError, ShapeError

QUARTERS = 4
"""The number of quarter turns of an image, including none."""


class EpisodeError(ArgumentError):
    """There are too few classes, or too few images per class; the message suggests a smaller episode."""


@dataclass(frozen=True, eq=False)  # tensors have no single truth value
class Episode:
    """One problem with L classes, and J support and Q query images of each; images are rows of a bank."""

    number: int
    classes: Tensor  # shape: (L,), class numbers
    support: Tensor  # shape: (L, J)
    query: Tensor  # shape: (L, Q), disjoint from the support
    turns: Tensor  # shape: (L,), quarter turns, 0 to 3, of all images of the class

    @property
    def way(self) -> int:
        """L, the number of classes."""
        return len(self.classes)

    @property
    def shot(self) -> int:
        """J, the number of support images of each class."""
        return self.support.shape[1]

    @property
    def queries(self) -> int:
        """Q, the number of query images of each class."""
        return self.query.shape[1]

    def __repr__(self) -> str:
        return f"Episode({self.number}: {self.way}-way {self.shot}-shot, {self.queries} queries per class)"


class Episodes:
    """An infinite sequence of episodes, each a function of the settings and its number.

    An episode draws ``way`` classes and ``shot + queries`` images of each, uniformly and without replacement. Classes
    with fewer images are left out. The draw sorts by a hash of ``seed`` and the episode number instead of using a
    random number generator: it is the same on every machine and with every version of every package, so all methods
    that are tested with one seed see the same episodes.

    Args:
        targets: the class of each image.
        way: L, the number of classes of an episode, at least 2.
        shot: J, the number of support images of each class.
        queries: Q, the number of query images of each class.
        seed: another seed gives other episodes.
        turns: whether classes rotated by quarter turns count as classes, as is usual for Omniglot. All images of a
            class are rotated alike. An episode may contain a class in two rotations, with common images.

    Example:
        >>> import torch
        >>> targets = torch.arange(20).repeat_interleave(10)  # 20 classes of 10 images
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
        """The number of classes to draw from, including rotated ones."""
        return len(self._labels) * self._quarters

    @property
    def left_out(self) -> int:
        """The number of classes that have too few images."""
        return self._left_out

    def __repr__(self) -> str:
        return f"Episodes({self.way}-way {self.shot}-shot, {self.queries} queries per class, of {self.classes} classes)"

    def __getitem__(self, number: int) -> Episode:
        if not isinstance(number, int) or number < 0:
            raise ArgumentError(f"The number of an episode must be an integer >= 0 (got {number!r}).")
        most = self._rows.shape[1]
        keys = _keys(f"{self.seed} {number}", self.classes + self.way * most)
        drawn = keys[: self.classes].argsort(stable=True)[: self.way]
        chosen, turns = drawn // self._quarters, drawn % self._quarters
        order = keys[self.classes :].view(self.way, most)
        # Padding comes last: the sort is stable, so even an equal key of an image would come before it.
        order = order.masked_fill(torch.arange(most) >= self._members[chosen, None], torch.iinfo(torch.int64).max)
        places = order.argsort(dim=1, stable=True)[:, : self.shot + self.queries]
        rows = self._rows[chosen].gather(1, places)
        return Episode(number, self._labels[chosen], rows[:, : self.shot], rows[:, self.shot :], turns)

    def __iter__(self) -> Iterator[Episode]:
        """Iterate over all episodes from 0 on, without end."""
        return (self[number] for number in itertools.count())


def _keys(text: str, count: int) -> Tensor:  # shape: (count,), int64
    """Return reproducible integers to sort by in order to shuffle."""
    content = hashlib.shake_256(f"episode {text}".encode()).digest(8 * count)
    # A bytearray, because a tensor on immutable bytes would warn.
    return torch.frombuffer(bytearray(content), dtype=torch.int64)


def _table(targets: Tensor, labels: Tensor, members: Tensor) -> Tensor:  # shape: (classes, most members)
    """Return the rows of each class in ascending order, padded with zeros, which are never drawn."""
    order = targets.argsort(stable=True)
    order = order[torch.isin(targets[order], labels)]
    table = torch.zeros(len(labels), int(members.max()), dtype=torch.long)
    table[torch.arange(table.shape[1]) < members[:, None]] = order
    return table


def _check(targets: Tensor, way: int, shot: int, queries: int) -> None:
    if targets.ndim != 1 or len(targets) == 0:
        raise ShapeError(f"targets must have shape (images,) (got {tuple(targets.shape)}).")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise DTypeError(f"targets must be integers (got {targets.dtype}).")
    if int(targets.min()) < 0:
        raise ArgumentError(f"targets must be at least 0 (got {int(targets.min())}).")
    for name, value, least in (("way", way, 2), ("shot", shot, 1), ("queries", queries, 1)):
        if not isinstance(value, int) or value < least:
            raise ArgumentError(f"{name} must be an integer >= {least} (got {value!r}).")


def _too_few(members: Tensor, way: int, shot: int, queries: int, quarters: int) -> str:
    """Say what is missing, and the largest way, or shot + queries, that would be possible."""
    needed = shot + queries
    enough = int((members >= needed).sum()) * quarters
    possible = []
    if enough >= 2:
        possible.append(f"way at most {enough}")
    if len(members) * quarters >= way:
        most = int(members.sort(descending=True).values[-(-way // quarters) - 1])
        if most >= 2:
            possible.append(f"shot + queries at most {most}")
    remedy = f"Use {' or '.join(possible)}." if possible else "Add classes or images."
    return (
        f"{way}-way episodes with {shot} support and {queries} query images need {way} classes of at least {needed} "
        f"images, but {enough} of {len(members) * quarters} classes have that many. {remedy}"
    )
