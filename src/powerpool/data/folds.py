"""Stratified folds: which graphs or images to train on, to choose on, and to test on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from powerpool.errors import ArgumentError, DTypeError, ShapeError


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth value
class Fold:
    """Three sets of indices, without overlap, each in ascending order."""

    train: Tensor  # shape: (train,)
    validation: Tensor  # shape: (validation,)
    test: Tensor  # shape: (test,)

    @property
    def train_and_validation(self) -> Tensor:  # shape: (train + validation,)
        """All but the test set: for a model that is trained again once its configuration is chosen."""
        return torch.cat([self.train, self.validation]).sort().values


def stratified_folds(targets: Tensor | Sequence[int], count: int = 10, seed: int = 0) -> list[Fold]:
    r"""Cut the data into ``count`` parts; fold :math:`i` tests on part :math:`i` and validates on part :math:`i + 1`.

    The part after the last is the first; all other parts are trained on. So each item is tested on once, validated on
    once, and trained on ``count - 2`` times. Of every class, and of all classes together, two parts have the same
    number of members or differ by one.

    The order in which members are dealt to the parts comes from a hash of ``seed`` and their index, not from a
    generator of random numbers: it is the same on every machine and with every version of every package.

    Args:
        targets: the class of each item, as whole numbers; any values.
        count: how many parts, and folds; at least 3.
        seed: another seed gives other parts.

    Example:
        >>> folds = stratified_folds([0, 0, 0, 0, 1, 1, 1, 1, 1, 1], count=3)
        >>> [len(fold.test) for fold in folds]
        [4, 3, 3]
        >>> bool((folds[0].validation == folds[1].test).all())
        True
    """
    targets = torch.as_tensor(targets)
    if targets.ndim != 1 or len(targets) == 0:
        raise ShapeError(f"targets must have shape (items,), one class for each item (got {tuple(targets.shape)}).")
    if targets.is_floating_point() or targets.is_complex():
        raise DTypeError(
            f"targets must be whole numbers, one for each class (got {targets.dtype}). Use targets.long()."
        )
    if count < 3:
        raise ArgumentError(
            f"count must be at least 3 (got {count}): one part is tested on, one validated on, the rest trained on."
        )
    classes, members = targets.cpu().unique(return_counts=True)
    fewest = int(members.min())
    if fewest < count:
        remedy = f"Cut into {fewest} parts, or merge" if fewest >= 3 else "Merge"
        raise ArgumentError(
            f"Each of the {count} parts needs a member of every class, and class {int(classes[members.argmin()])} has "
            f"only {fewest}. {remedy} or leave out the class."
        )
    dealt = sorted(range(len(targets)), key=lambda item: _draw(seed, item))
    # Classes one after another, and the dealing goes on where it stopped, so that the totals stay within one too.
    by_class = torch.tensor(dealt)[targets.cpu()[dealt].argsort(stable=True)]
    part = torch.empty(len(targets), dtype=torch.long)
    part[by_class] = torch.arange(len(targets)) % count
    return [_fold(part, test=turn, validation=(turn + 1) % count) for turn in range(count)]


def _fold(part: Tensor, test: int, validation: int) -> Fold:
    tested, validated = part == test, part == validation
    train, chosen, held_out = (flags.nonzero().flatten() for flags in (~(tested | validated), validated, tested))
    return Fold(train, chosen, held_out)


def _draw(seed: int, item: int) -> bytes:
    return hashlib.blake2b(f"{seed} {item}".encode(), digest_size=16).digest()
