"""Few-shot learning: data sets whose splits have no common classes, and episodes drawn from them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from powerpool.data.banks import Resize, read_bank
from powerpool.data.images import Corrupt, ImageBank, ImageSplit, describe_images, make_split
from powerpool.data.layouts import EXHIBITIONS
from powerpool.data.sources import Listing, Place, list_place, locate, names_of
from powerpool.data.splits import CUT_HINT, SPLIT_NAMES, ClassCut, EpisodeError, Labelled, default_cut, natural_key
from powerpool.data.store import DataError, Limits, MissingDataError, hash_text, join_some
from powerpool.errors import ArgumentError, DTypeError, ShapeError

QUARTERS = 4
"""The number of quarter turns of an image, including none."""


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
    """Say what is missing, and the largest way that would be possible."""
    needed = shot + queries
    enough = int((members >= needed).sum()) * quarters
    remedy = f"Use way at most {enough}." if enough >= 2 else "Use fewer images per class, or add some."
    return (
        f"{way}-way episodes with {shot} support and {queries} query images need {way} classes of at least {needed} "
        f"images, but {enough} of {len(members) * quarters} classes have that many. {remedy}"
    )


# ---- data sets -------------------------------------------------------------------------------------------------------

CUTS = {
    "flower102": ClassCut(64, 16, "names"),
    "food101": ClassCut(64, 16, "names"),
    "omniglot": ClassCut(1100, 100, "drawn"),
    "glyphs": ClassCut(150, 40, "drawn"),
}
"""The usual class splits. Flower102 and Food-101: the first 80 classes for training and validation, the other 22 and 21
for testing. Omniglot: 1100, 100 and 423 of its 1623 characters. Glyphs: 150, 40 and 50 of 240."""

Watcher = Callable[[str, int, int], None]
"""Called with a split, the number of its decoded images, and the number of all its images."""


@dataclass(frozen=True, eq=False, repr=False)
class FewShotSet:
    """The splits of a few-shot data set: some or all of "train", "validation" and "test"."""

    name: str
    splits: dict[str, ImageBank]
    digest: str
    """A digest of the images, their names, classes and splits, but not of their size after decoding."""
    skipped: tuple[str, ...] = ()
    """The names of images that could not be read and were left out."""
    remarks: tuple[str, ...] = ()
    """Which other files and folders were left out."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes."""
        return next(iter(self.splits.values())).classes

    def __repr__(self) -> str:
        sizes = (f"{name} {len(bank.targets.unique())} ({len(bank)} images)" for name, bank in self.splits.items())
        return f"FewShotSet({self.name!r}, classes: {', '.join(sizes)})"

    def __getitem__(self, split: str) -> ImageBank:
        if split not in self.splits:
            raise MissingDataError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}.")
        return self.splits[split]


def load_fewshot(
    data: str | Path,
    root: str | Path | None = None,
    *,
    size: int = 84,
    channels: int = 3,
    cut: ClassCut | None = None,
    problem: str | None = None,
    invert: bool = False,
    resize: Resize = "squeeze",
    download: bool = False,
    limits: Limits | None = None,
    corrupt: Corrupt = "error",
    watch: Watcher = lambda split, done, count: None,
) -> FewShotSet:
    """Find an image data set, divide its classes into splits, and decode it unless it is in the cache.

    Existing splits are used if they have no common classes: miniImageNet as ``train|validation|test/<wnid>/``, or with
    ``train.csv``, ``val.csv`` and ``test.csv`` next to ``images/``. If all splits have the same classes, as those of
    Flower102 and Food-101, they are merged and the classes are divided, as for a data set without splits. Class names
    may have several parts, as ``Greek/character01`` of Omniglot.

    Open MIC has the folders ``<exhibition>/<source or target>/<class>/``. Its splits are given by ``problem``, without
    a validation split, and the mean image of each exhibition and split is subtracted from its images.

    Args:
        data: a folder, a zip or a name, as for :func:`powerpool.data.load_images`, and also ``miniimagenet``,
            ``omniglot`` and ``open_mic``; ``glyphs``, invented alphabets drawn on this machine, needs no files.
        root, download, limits: as for :func:`powerpool.data.load_images`.
        size, channels, resize, invert, corrupt: as for :func:`powerpool.data.read_bank`.
        cut: how to divide the classes; by default as usual for the data set (see ``CUTS``), or else ``ClassCut()``. If
            it is given, existing splits are merged first.
        problem: a problem of Open MIC: "p1->p2" and so on for protocol I (train on one part, test on another), or the
            name of an exhibition for protocol II (train on its source photos, test on its target photos).
        watch: called with a split, the number of its decoded images, and the number of all its images.

    Example:
        >>> digits = load_fewshot("digits", size=16, channels=1, cut=ClassCut(5, 2, "names"))
        >>> digits
        FewShotSet('digits', classes: train 5 (901 images), validation 2 (363 images), test 3 (533 images))
        >>> digits["test"].targets.unique().tolist()
        [7, 8, 9]
    """
    found = list_fewshot(data, root, cut=cut, problem=problem, download=download, limits=limits)
    banks, skipped = {}, set[str]()
    for split, images in found.splits.items():
        bank = read_bank(
            images,
            found.classes,
            size=size,
            channels=channels,
            key=_hash_lines(found.listing.hashes[name] for name in images.names),
            resize=resize,
            invert=invert,
            corrupt=corrupt,
            watch=partial(watch, split),
        )
        skipped |= set(images.names) - set(bank.names)
        banks[split] = bank if problem is None else bank.centred(_exhibitions(bank))
    return FewShotSet(found.name, banks, found.digest(skipped), tuple(sorted(skipped)), found.listing.remarks)


@dataclass(frozen=True, eq=False)
class FewShotListing:
    """The images of a few-shot data set by split, not yet decoded."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, ImageSplit]
    listing: Listing
    problem: str | None
    has_usual_splits: bool
    """Whether the classes are divided as usual for the data set, not by default shares."""

    def digest(self, skipped: Iterable[str] = ()) -> str:
        """Return a digest of all images but the skipped ones, their names, classes and splits."""
        kept = sorted(image for image in self.listing.images if image.file not in skipped)
        facts = [repr(self.classes), *([] if self.problem is None else ["centred by exhibition"])]
        return _hash_lines([*facts, *describe_images(kept, self.listing.hashes)])


def list_fewshot(
    data: str | Path,
    root: str | Path | None = None,
    *,
    cut: ClassCut | None = None,
    problem: str | None = None,
    download: bool = False,
    limits: Limits | None = None,
    whole: bool = False,
) -> FewShotListing:
    """Find an image data set and divide its classes into splits; see :func:`load_fewshot`.

    With ``whole``, all classes of a data set without a usual division are for testing.
    """
    limits = limits or Limits()
    place = locate(data, root, download)
    listing = list_place(place, limits, download, nested=True, problem=problem)
    usual = _usual_cut(place)
    has_usual_splits = problem is not None or usual is not None or (cut is None and _is_divided(listing))
    if problem is None:
        if whole and not has_usual_splits:
            images = [image._replace(split="test") for image in listing.images]
        else:
            images = _divide(listing, cut, usual)
        listing = replace(listing, images=images)
    elif cut is not None:
        raise ArgumentError(f"{listing.source} is divided by the problem {problem}: pass no cut.")
    classes = listing.classes or tuple(sorted({image.label for image in listing.images}, key=natural_key))
    numbers = {label: number for number, label in enumerate(classes)}
    # Sorted by class and name: episodes depend on the order.
    ordered = sorted(listing.images, key=lambda image: (numbers[image.label], image.file))
    splits = {split: make_split(ordered, split, classes, listing.sources, limits) for split in SPLIT_NAMES}
    return FewShotListing(
        place.name,
        classes,
        {name: split for name, split in splits.items() if len(split)},
        listing,
        problem,
        has_usual_splits,
    )


def _hash_lines(lines: Iterable[str]) -> str:
    return hash_text(f"{line}\n" for line in lines)


def _exhibitions(bank: ImageBank) -> Tensor:  # shape: (n,)
    """Return the exhibition of each image, as a number."""
    numbers = torch.tensor([EXHIBITIONS.index(label.partition("/")[0]) for label in bank.classes])
    return numbers[bank.targets]


# ---- dividing classes ------------------------------------------------------------------------------------------------


def _usual_cut(place: Place) -> ClassCut | None:
    return next((cut for name, cut in CUTS.items() if place.name in names_of(name)), None)


def _divide(listing: Listing, cut: ClassCut | None, usual: ClassCut | None) -> list[Labelled]:
    """Return the images with the splits of their classes."""
    if cut is None and _is_divided(listing):
        return listing.images
    rank = None if listing.classes is None else listing.classes.index
    classes = {image.label for image in listing.images}
    divided = (cut or usual or default_cut(len(classes))).divide(classes, rank)
    splits = {label: split for split, labels in divided.items() for label in labels}
    return [image._replace(split=splits[image.label]) for image in listing.images]


def _is_divided(listing: Listing) -> bool:
    """Whether existing splits have no common classes; False if there are none, or all have the same classes."""
    members: dict[str, set[str]] = {}
    for image in listing.images:
        if image.split is not None:
            members.setdefault(image.split, set()).add(image.label)
    if len(members) < 2:
        return False
    all_classes = set().union(*members.values())
    if sum(map(len, members.values())) == len(all_classes):
        if missing := {"train", "test"} - members.keys():
            raise DataError(
                f"{listing.source} has the splits {', '.join(members)}, but no split {' or '.join(sorted(missing))}. "
                f"Rename the folders, or divide all classes again: {CUT_HINT}"
            )
        return True
    if "train" in members and members["train"] == all_classes:
        return False
    names = [name for name in SPLIT_NAMES if name in members]
    first, second = next(pair for pair in combinations(names, 2) if members[pair[0]] & members[pair[1]])
    shared = sorted(members[first] & members[second], key=natural_key)
    raise DataError(
        f"{listing.source} has {len(shared)} class(es) both in {first} and in {second}: {join_some(shared)}. Move each "
        f"class into one split, or divide all classes again: {CUT_HINT}"
    )
