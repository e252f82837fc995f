"""Train, validation and test splits: stratified folds of samples, splits of images, splits of classes.

All draws sort by a hash of the seed and an index or name instead of using a random number generator: they are the same
on every machine and with every version of every package.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from powerpool.errors import ArgumentError, DTypeError, ShapeError, require_choice

SPLIT_NAMES = ("train", "validation", "test")


class EpisodeError(ArgumentError):
    """There are too few classes, or too few images per class; the message suggests a smaller episode."""


class Labelled(NamedTuple):
    """An image: its file relative to the folder of the data set, its class, and its split if it has one."""

    file: str
    label: str
    split: str | None


def draw_key(seed: int, name: object) -> bytes:
    """Return the key to sort by in order to shuffle."""
    return hashlib.blake2b(f"{seed} {name}".encode(errors="surrogatepass"), digest_size=16).digest()


# ---- folds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)  # tensors have no single truth value
class Fold:
    """The indices of three disjoint sets of samples, each in ascending order."""

    train: Tensor  # shape: (train,)
    validation: Tensor  # shape: (validation,)
    test: Tensor  # shape: (test,)

    @property
    def train_and_validation(self) -> Tensor:  # shape: (train + validation,)
        """All samples but the test set, for training again with the selected settings."""
        return torch.cat([self.train, self.validation]).sort().values


def stratified_folds(targets: Tensor | Sequence[int], count: int = 10, seed: int = 0) -> list[Fold]:
    r"""Split samples into ``count`` parts; fold :math:`i` tests on part :math:`i` and validates on part :math:`i + 1`.

    The part after the last one is the first; all other parts are for training. Each sample is in one test set, in one
    validation set, and in ``count - 2`` training sets. The sizes of two parts differ by at most one, in total and
    within each class.

    Args:
        targets: the class of each sample, as integers of any value.
        count: the number of parts and folds, at least 3.
        seed: another seed gives other folds.

    Example:
        >>> folds = stratified_folds([0, 0, 0, 0, 1, 1, 1, 1, 1, 1], count=3)
        >>> [len(fold.test) for fold in folds]
        [4, 3, 3]
        >>> bool((folds[0].validation == folds[1].test).all())
        True
    """
    targets = torch.as_tensor(targets)
    if targets.ndim != 1 or len(targets) == 0:
        raise ShapeError(f"targets must have shape (samples,) (got {tuple(targets.shape)}).")
    if targets.is_floating_point() or targets.is_complex():
        raise DTypeError(f"targets must be integers (got {targets.dtype}). Use targets.long().")
    if count < 3:
        raise ArgumentError(f"count must be at least 3, for training, validation and test (got {count}).")
    classes, members = targets.cpu().unique(return_counts=True)
    fewest = int(members.min())
    if fewest < count:
        raise ArgumentError(
            f"Class {int(classes[members.argmin()])} has only {fewest} samples, too few for {count} folds. Merge or "
            f"remove the class{f', or use {fewest} folds' if fewest >= 3 else ''}."
        )
    dealt = sorted(range(len(targets)), key=lambda index: draw_key(seed, index))
    # Class after class, each continuing at the part where the last one stopped: so the totals differ by one, too.
    by_class = torch.tensor(dealt)[targets.cpu()[dealt].argsort(stable=True)]
    part = torch.empty(len(targets), dtype=torch.long)
    part[by_class] = torch.arange(len(targets)) % count
    folds = []
    for number in range(count):
        test, validation = part == number, part == (number + 1) % count
        masks = (~(test | validation), validation, test)
        folds.append(Fold(*(mask.nonzero().flatten() for mask in masks)))
    return folds


# ---- splits of images ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Splits:
    """How to split the images of each class if a data set has no splits.

    ``validation`` and ``test`` are the shares of these splits, rounded to the nearest number of images, but at least
    one; the other images are for training. The split depends only on ``seed`` and the names of the images.
    """

    validation: float = 0.2
    """0 for no validation split."""
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ArgumentError(f"{name} must be a share in [0, 1) (got {getattr(self, name)}).")
        if self.validation + self.test >= 1.0:
            raise ArgumentError(
                f"validation and test must leave images for training (got {self.validation} and {self.test})."
            )


def split_images(images: list[Labelled], splits: Splits, source: str) -> list[Labelled]:
    """Add the missing splits, with images taken from the training split."""
    present = {image.split for image in images}
    shares = {}
    if present <= {None, "train"} or "train" in present:
        wanted = {"test": splits.test, "validation": splits.validation}
        shares = {split: share for split, share in wanted.items() if split not in present}
    members: dict[str, list[Labelled]] = {}
    for image in images:
        if image.split in (None, "train"):
            members.setdefault(image.label, []).append(image)
    moved: dict[str, str] = {}
    for label, own in members.items():
        counts = {split: max(1, _round(share * len(own))) for split, share in shares.items() if share}
        if sum(counts.values()) >= len(own):
            raise ArgumentError(
                f"{source}: class {label!r} has only {len(own)} image(s), too few for the splits train, "
                f"{' and '.join(sorted(counts))}. Add images, or remove the class."
            )
        drawn = iter(sorted(own, key=lambda image: draw_key(splits.seed, image.file)))
        for split, count in counts.items():
            moved.update({next(drawn).file: split for _ in range(count)})
    return [image._replace(split=moved.get(image.file, image.split or "train")) for image in images]


def _round(value: float) -> int:
    return math.floor(value + 0.5)


# ---- splits of classes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassCut:
    """How to divide the classes of a few-shot data set that has no splits with different classes.

    Args:
        train: share of the classes in (0, 1), or their number
        validation: share of the classes, or their number; 0 for no validation split; all other classes are for testing
        order: "names" takes the first classes for training and the last for testing, in the order of the data set or
            else by name, with 2 before 10; "drawn" shuffles the classes by ``seed`` and their names
        seed: another seed draws other classes

    Example:
        >>> ClassCut(train=2, validation=1, order="names").divide(["c10", "c2", "c1", "c3"])
        {'train': ['c1', 'c2'], 'validation': ['c3'], 'test': ['c10']}
    """

    train: float | int = 0.64
    validation: float | int = 0.16
    order: Literal["names", "drawn"] = "drawn"
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice(self.order, ("names", "drawn"), "order of classes")
        for name in ("train", "validation"):
            value = getattr(self, name)
            wrong = value < 0 if isinstance(value, int) else not 0.0 <= value < 1.0
            if wrong or isinstance(value, bool) or (name == "train" and value == 0):
                raise ArgumentError(
                    f"{name} must be a share of the classes in (0, 1), or their number (got {value!r})."
                )
        if sum(value for value in (self.train, self.validation) if isinstance(value, float)) >= 1.0:
            raise ArgumentError(
                f"train and validation must leave classes for testing (got {self.train} and {self.validation})."
            )

    def divide(self, classes: Iterable[str], rank: Callable[[str], Any] | None = None) -> dict[str, list[str]]:
        """Return the classes of each split, in the order in which they were taken; empty splits are left out.

        Args:
            classes: the names of the classes, in any order.
            rank: sort key for the order "names", if the data set has its own order.
        """
        key = (rank or natural_key) if self.order == "names" else (lambda name: draw_key(self.seed, name))
        ordered = sorted(classes, key=key)
        train, validation = (_count_classes(share, len(ordered)) for share in (self.train, self.validation))
        if train + validation >= len(ordered):
            raise ArgumentError(
                f"{train} training and {validation} validation classes leave none of {len(ordered)} classes for "
                f"testing. {CUT_HINT}"
            )
        found = (ordered[:train], ordered[train : train + validation], ordered[train + validation :])
        return {name: part for name, part in zip(SPLIT_NAMES, found, strict=True) if part}


def default_cut(classes: int) -> ClassCut:
    """Return the division of a data set without a usual one: 64, 16 and 20 %, but at least two classes to test.

    With four or five classes there is no validation split, with six to nine it has two classes: an episode needs two.

    Example:
        >>> [default_cut(count).train for count in (4, 5, 6, 9, 10)], default_cut(5).validation
        ([2, 3, 2, 5, 0.64], 0)
    """
    if classes < 4:
        raise EpisodeError(
            f"{classes} classes are too few for training by episodes: it needs two to train on and two others to test."
        )
    if classes >= 10:
        return ClassCut()
    validation = 2 if classes >= 6 else 0
    return ClassCut(classes - 2 - validation, validation)


CUT_HINT = "Change train_classes, validation_classes and class_order, or cut=ClassCut(...)."
"""The command line leaves out what follows the settings."""


def _count_classes(share: float, count: int) -> int:
    if isinstance(share, int):
        return share
    return max(1, _round(share * count)) if share else 0


def natural_key(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """Return a key that sorts names with numbers in natural order: 2 before 10."""
    parts = re.split(r"([0-9]+)", name)
    return [_number_key(part) if place % 2 else part for place, part in enumerate(parts)], name


def _number_key(digits: str) -> tuple[int, str]:
    """Sort like int(digits), which refuses very long numbers."""
    significant = digits.lstrip("0")
    return len(significant), significant
