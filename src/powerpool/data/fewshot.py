"""Few-shot data sets: splits without common classes, as banks of decoded images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from powerpool.data.archives import open_tree
from powerpool.data.banks import ImageBank, Resize, read_bank
from powerpool.data.images import Corrupt, describe_images, make_split
from powerpool.data.layouts import EXHIBITIONS, arrange, arrange_open_mic, is_open_mic, no_problems
from powerpool.data.sources import Listing, Place, load_hub, locate, names_of
from powerpool.data.splits import CUT_HINT, SPLIT_NAMES, ClassCut, Labelled, natural_key
from powerpool.data.store import DataError, Limits, MissingDataError, hash_text, join_some
from powerpool.errors import ArgumentError

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
    limits = limits or Limits()
    place = locate(data, root, download)
    listing = _list_place(place, limits, problem, download)
    if problem is None:
        listing = replace(listing, images=_divide(listing, cut, _usual_cut(place)))
    elif cut is not None:
        raise ArgumentError(f"{listing.source} is divided by the problem {problem}: pass no cut.")
    classes = listing.classes or tuple(sorted({image.label for image in listing.images}, key=natural_key))
    numbers = {label: number for number, label in enumerate(classes)}
    # Sorted by class and name: episodes depend on the order.
    ordered = sorted(listing.images, key=lambda image: (numbers[image.label], image.file))
    banks, skipped = {}, set()
    for split in SPLIT_NAMES:
        images = make_split(ordered, split, classes, listing.sources, limits)
        if len(images) == 0:
            continue
        bank = read_bank(
            images,
            classes,
            size=size,
            channels=channels,
            key=_hash_lines(listing.hashes[name] for name in images.names),
            resize=resize,
            invert=invert,
            corrupt=corrupt,
            watch=partial(watch, split),
        )
        skipped |= set(images.names) - set(bank.names)
        banks[split] = bank if problem is None else bank.centred(_exhibitions(bank))
    kept = sorted(image for image in listing.images if image.file not in skipped)
    facts = [repr(classes), *([] if problem is None else ["centred by exhibition"])]
    digest = _hash_lines([*facts, *describe_images(kept, listing.hashes)])
    return FewShotSet(place.name, banks, digest, tuple(sorted(skipped)))


def _hash_lines(lines: Iterable[str]) -> str:
    return hash_text(f"{line}\n" for line in lines)


def _list_place(place: Place, limits: Limits, problem: str | None, download: bool) -> Listing:
    if place.path is None:
        assert place.hub is not None
        if problem is not None:
            raise no_problems(place.hub, problem)
        return load_hub(place.hub, download)
    source = str(place.path)
    tree = open_tree(place.path, limits)
    if problem is not None or place.name == "open_mic" or is_open_mic(tree.names):
        images = arrange_open_mic(tree.names, problem, source)
    else:
        images = arrange(tree.names, lambda name: tree.read_text(name, limits), source, nested=True)
    return Listing.of_files(source, tree, images)


def _exhibitions(bank: ImageBank) -> Tensor:  # shape: (n,)
    """Return the exhibition of each image, as a number."""
    numbers = torch.tensor([EXHIBITIONS.index(label.partition("/")[0]) for label in bank.classes])
    return numbers[bank.targets]


# ---- dividing classes ------------------------------------------------------------------------------------------------


def _usual_cut(place: Place) -> ClassCut:
    for name, cut in CUTS.items():
        if place.name in names_of(name):
            return cut
    return ClassCut()


def _divide(listing: Listing, cut: ClassCut | None, usual: ClassCut) -> list[Labelled]:
    """Return the images with the splits of their classes."""
    if cut is None and _is_divided(listing):
        return listing.images
    rank = None if listing.classes is None else listing.classes.index
    divided = (cut or usual).divide({image.label for image in listing.images}, rank)
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
