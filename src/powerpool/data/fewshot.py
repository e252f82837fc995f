"""Sets for few-shot learning: splits that have no class in common, as banks of pictures."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, permutations
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from powerpool.data.banks import PictureBank, Resize, read_bank
from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.image_hub import PictureSource, load_hub
from powerpool.data.image_layouts import Labelled, arrange, some
from powerpool.data.image_sources import KNOWN, Place, hash_files, locate, names_of, read_list
from powerpool.data.images import NAMES, Corrupt, ImageSplit, files_of
from powerpool.data.limits import Limits
from powerpool.data.pictures import SUFFIXES
from powerpool.errors import ArgumentError, UnknownNameError, did_you_mean, require_choice

ORDERS = ("names", "drawn")

EXHIBITIONS = ("shn", "hon", "clv", "clk", "gls", "scl", "sci", "nat", "shx", "rlc")
"""The sub-problems of Open MIC: each has photos of a museum's exhibits, taken with a phone and with worn cameras."""
OPEN_MIC_PARTS = {
    "p1": ("shn", "hon", "clv"),
    "p2": ("clk", "gls", "scl"),
    "p3": ("sci", "nat"),
    "p4": ("shx", "rlc"),
}
"""The exhibitions that protocol I puts together."""
OPEN_MIC_PAIRS = tuple(f"{train}->{test}" for train, test in permutations(OPEN_MIC_PARTS, 2))
"""The problems of protocol I: train on the target photos of one part, test on those of another."""
OPEN_MIC = re.compile(rf"(?:.*/)?(?P<exhibition>{'|'.join(EXHIBITIONS)})/(?P<domain>source|target)/(?P<label>.+)/[^/]+")

Watcher = Callable[[str, int, int], None]
"""Is told the split, and how many of its pictures are decoded, of how many."""


@dataclass(frozen=True)
class ClassCut:
    """How the classes of a set are divided, where it does not come in splits of different classes.

    Args:
        train: a share of the classes in (0, 1), or how many
        validation: a share of the classes, or how many; 0 for no such split; what is left is tested on
        order: "names" takes the first classes for training and the last for testing: in the order of the set where it
            has one, as those of the hub, or else by name, with 2 before 10; "drawn" draws them, by ``seed`` and their
            names alone
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
        require_choice(self.order, ORDERS, "order of classes")
        for name in ("train", "validation"):
            value = getattr(self, name)
            wrong = value < 0 if isinstance(value, int) else not 0.0 <= value < 1.0
            if wrong or isinstance(value, bool) or (name == "train" and value == 0):
                raise ArgumentError(f"{name} must be a share of the classes in (0, 1), or how many (got {value!r}).")
        shares = [value for value in (self.train, self.validation) if isinstance(value, float)]
        if sum(shares) >= 1.0:
            raise ArgumentError(
                f"train and validation must leave classes to test on (got {self.train} and {self.validation})."
            )

    def divide(self, classes: Iterable[str], rank: Callable[[str], Any] | None = None) -> dict[str, list[str]]:
        """The classes of each split, in the order in which they were taken; a split without classes is not there.

        Args:
            classes: their names, in any order.
            rank: a key for the order "names", where the set has an order of its own.
        """
        own = sorted(classes, key=(rank or natural) if self.order == "names" else self._draw)
        train, validation = (_count(share, len(own)) for share in (self.train, self.validation))
        if train + validation >= len(own):
            raise ArgumentError(
                f"A cut with {train} classes to train on and {validation} to validate on leaves none of {len(own)} "
                "classes to test on. Take fewer: with the settings train_classes, validation_classes and class_order, "
                "or cut=ClassCut(...)."
            )
        found = (own[:train], own[train : train + validation], own[train + validation :])
        return {name: part for name, part in zip(NAMES, found, strict=True) if part}

    def _draw(self, name: str) -> bytes:
        return hashlib.blake2b(f"{self.seed} {name}".encode(errors="surrogatepass"), digest_size=16).digest()


def _count(share: float, count: int) -> int:
    """A share of classes is rounded, but is at least one class."""
    if isinstance(share, int):
        return share
    return max(1, math.floor(share * count + 0.5)) if share else 0


CUTS = {
    "flower102": ClassCut(64, 16, "names"),
    "food101": ClassCut(64, 16, "names"),
    "omniglot": ClassCut(1100, 100, "drawn"),
    "glyphs": ClassCut(150, 40, "drawn"),
}
"""The usual cuts. Flower102 and Food-101: the first 80 classes to train and validate on, the other 22 and 21 to test.
Omniglot: 1100, 100 and 423 of its 1623 characters; the glyphs that are made on this machine: 150, 40 and 50 of 240."""


def natural(name: str) -> tuple[list[str | tuple[int, str]], str]:
    """A key that sorts names as people do: 2 before 10."""
    parts = re.split(r"([0-9]+)", name)
    return [_number(part) if place % 2 else part for place, part in enumerate(parts)], name


def _number(digits: str) -> tuple[int, str]:
    """Sorts as the number does, and takes any number of digits: that of int is limited."""
    significant = digits.lstrip("0")
    return len(significant), significant


@dataclass(frozen=True, eq=False, repr=False)
class FewShotSet:
    """The splits of a set as banks, whichever there are of "train", "validation" and "test"."""

    name: str
    splits: dict[str, PictureBank]
    digest: str
    """A name for the content: other pictures, names, classes or splits have another one. Sizes do not count."""
    skipped: tuple[str, ...] = ()
    """Pictures that could not be read, and were left out."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of all classes."""
        return next(iter(self.splits.values())).classes

    def __repr__(self) -> str:
        sizes = (f"{name} {len(bank.targets.unique())} ({len(bank)} pictures)" for name, bank in self.splits.items())
        return f"FewShotSet({self.name!r}, classes: {', '.join(sizes)})"

    def __getitem__(self, split: str) -> PictureBank:
        if split not in self.splits:
            raise MissingDataError(f"{self.name} has no split {split!r}: it has {', '.join(self.splits)}.")
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
    """Find a set of pictures, divide its classes into splits, and decode it unless the cache has it.

    A set that comes in splits without common classes is taken so: miniImageNet as ``train|validation|test/<wnid>/``, or
    with ``train.csv``, ``val.csv`` and ``test.csv`` beside ``images/``. One whose splits all have the same classes, as
    the official ones of Flower102 and Food-101, is put together, and its classes are divided; so is one without splits.
    Classes may lie in folders of classes: those of Omniglot are called ``Greek/character01``.

    Open MIC lies in folders ``<exhibition>/<source or target>/<class>/``. It is divided by ``problem`` and has no split
    for validation. From its pictures the mean of all that are of the same exhibition and split is subtracted.

    Args:
        data: a folder, a zip or a name, as for :func:`powerpool.data.load_images`, and besides ``miniimagenet``,
            ``omniglot`` and ``open_mic``; ``glyphs``, invented alphabets that are drawn on this machine, needs no data.
        root: the folder that names are looked for in.
        size: width and height of pictures, in pixels.
        channels: 3, or 1 for luminance.
        cut: how to divide classes; by default what is usual for the set, see ``CUTS``, or else ``ClassCut()``. A set
            that comes in splits is put together first, where a cut is given.
        problem: of Open MIC, "p1->p2" and such for protocol I (train on one part, test on another), or the name of an
            exhibition for protocol II (train on its source photos, test on its target photos of the same classes).
        invert: whether black becomes white, for Omniglot and the glyphs, whose strokes are black on white.
        resize: "squeeze" brings all of a picture to a square, "crop" the square in its middle.
        download: whether sets of the hub may come over the network.
        limits: how large pictures and zips may be.
        corrupt: "error" or "skip", for pictures that cannot be read.
        watch: is told of each split how many pictures are decoded, of how many.

    Example:
        >>> digits = load_fewshot("digits", size=16, channels=1, cut=ClassCut(5, 2, "names"))
        >>> digits
        FewShotSet('digits', classes: train 5 (901 pictures), validation 2 (363 pictures), test 3 (533 pictures))
        >>> digits["test"].targets.unique().tolist()
        [7, 8, 9]
    """
    limits = limits or Limits()
    place = locate(data, root, download)
    found = _find(place, limits, problem, download)
    if problem is None:
        found = replace(found, labelled=_divide(found, cut, _usual_cut(place)))
    elif cut is not None:
        raise ArgumentError(f"{found.source} is divided by the problem {problem}, and takes no cut.")
    classes = found.classes or tuple(sorted({picture.label for picture in found.labelled}, key=natural))
    banks, skipped = {}, set()
    for split in NAMES:
        own = [picture for picture in found.labelled if picture.split == split]
        if own:
            pictures = _in_order(own, found, classes, limits)
            bank = read_bank(
                pictures,
                classes,
                size=size,
                channels=channels,
                key=_hash(found.hashes[name] for name in pictures.names),
                resize=resize,
                invert=invert,
                corrupt=corrupt,
                watch=partial(watch, split),
            )
            skipped |= set(pictures.names) - set(bank.names)
            banks[split] = bank if problem is None else bank.centred(_exhibitions(bank))
    return FewShotSet(place.name, banks, _digest(found, classes, skipped, problem), tuple(sorted(skipped)))


# ---- finding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """The pictures of a set, before they are divided."""

    source: str
    labelled: list[Labelled]
    sources: Mapping[str, PictureSource]
    hashes: Mapping[str, str]
    classes: tuple[str, ...] | None = None
    """In the order of the set, where it has one."""


def _find(place: Place, limits: Limits, problem: str | None, download: bool) -> _Found:
    if place.path is None:
        assert place.hub is not None
        if problem is not None:
            raise ArgumentError(_no_problems(place.hub, problem))
        table = load_hub(place.hub, download)
        return _Found(place.hub, table.labelled, table.sources, table.hashes, table.classes)
    source = str(place.path)
    folder, files, hashes = files_of(place.path, limits)
    if problem is not None or place.name == "open_mic" or is_open_mic(files):
        labelled = open_mic(files, problem, source)
        names = [name for name in files if _is_picture(name)]  # of all problems, so that none is hashed twice
    else:
        labelled = arrange(files, lambda name: read_list(folder / name, limits), source, nested=True)
        names = [picture.file for picture in labelled]
    sources: dict[str, PictureSource] = {name: str(folder / name) for name in names}
    return _Found(source, labelled, sources, hashes or hash_files(folder, names))


def _in_order(own: list[Labelled], found: _Found, classes: tuple[str, ...], limits: Limits) -> ImageSplit:
    """The pictures class by class, and in a class by name: episodes depend on it."""
    numbers = {label: number for number, label in enumerate(classes)}
    own = sorted(own, key=lambda picture: (numbers[picture.label], picture.file))
    return ImageSplit(
        names=tuple(picture.file for picture in own),
        targets=torch.tensor([numbers[picture.label] for picture in own]),
        sources=tuple(found.sources[picture.file] for picture in own),
        limits=limits,
    )


def _hash(lines: Iterable[str]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for line in lines:
        found.update(f"{line}\n".encode(errors="surrogatepass"))
    return found.hexdigest()


def _digest(found: _Found, classes: tuple[str, ...], skipped: set[str], problem: str | None) -> str:
    kept = sorted(picture for picture in found.labelled if picture.file not in skipped)
    lines = (f"{picture.split}\0{picture.label}\0{picture.file}\0{found.hashes[picture.file]}" for picture in kept)
    return _hash([repr(classes), *([] if problem is None else ["centred by exhibition"]), *lines])


# ---- dividing classes ------------------------------------------------------------------------------------------------


def _usual_cut(place: Place) -> ClassCut:
    for name, cut in CUTS.items():
        if place.name in names_of(name):
            return cut
    return ClassCut()


def _divide(found: _Found, cut: ClassCut | None, usual: ClassCut) -> list[Labelled]:
    """Pictures with the split of their class."""
    if cut is None and _comes_divided(found):
        return found.labelled
    rank = None if found.classes is None else found.classes.index
    divided = (cut or usual).divide({picture.label for picture in found.labelled}, rank)
    splits = {label: split for split, labels in divided.items() for label in labels}
    return [picture._replace(split=splits[picture.label]) for picture in found.labelled]


def _comes_divided(found: _Found) -> bool:
    """Whether the splits of a set have no class in common; False where all have the same, or there are none."""
    members: dict[str, set[str]] = {}
    for picture in found.labelled:
        if picture.split is not None:
            members.setdefault(picture.split, set()).add(picture.label)
    if len(members) < 2:
        return False
    everything = set().union(*members.values())
    if sum(map(len, members.values())) == len(everything):
        if missing := {"train", "test"} - members.keys():
            raise DataError(
                f"{found.source} comes in splits of different classes, {', '.join(members)}, and has no split "
                f"{' and '.join(sorted(missing))}. Name the folders otherwise, or divide all classes anew: with the "
                "settings train_classes, validation_classes and class_order, or cut=ClassCut(...)."
            )
        return True
    if "train" in members and members["train"] == everything:
        return False
    names = [name for name in NAMES if name in members]
    first, second = next(pair for pair in combinations(names, 2) if members[pair[0]] & members[pair[1]])
    shared = sorted(members[first] & members[second], key=natural)
    raise DataError(
        f"{found.source} has {len(shared)} class(es) both in {first} and in {second}: {some(shared)}; others are in "
        "one only. Move them into one split, or divide all classes anew: with the settings train_classes, "
        "validation_classes and class_order, or cut=ClassCut(...)."
    )


# ---- Open MIC --------------------------------------------------------------------------------------------------------


def _is_picture(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def is_open_mic(files: Iterable[str]) -> bool:
    """Whether all pictures among the files lie as those of Open MIC do."""
    pictures = [name for name in files if _is_picture(name)]
    return bool(pictures) and all(OPEN_MIC.fullmatch(name) for name in pictures)


def open_mic(files: Iterable[str], problem: str | None, source: str) -> list[Labelled]:
    """The pictures of one problem of Open MIC, from the names of its files; a class is ``exhibition/class``.

    Example:
        >>> files = [f"shn/{domain}/vase/{number}.jpg" for domain in ("source", "target") for number in (1, 2)]
        >>> [(picture.label, picture.split) for picture in open_mic(files, "shn", "a folder")]
        [('shn/vase', 'train'), ('shn/vase', 'train'), ('shn/vase', 'test'), ('shn/vase', 'test')]
    """
    known = (*OPEN_MIC_PAIRS, *EXHIBITIONS)
    if problem is None:
        raise ArgumentError(f"{source} is Open MIC, which is divided by its problems: pass one of {', '.join(known)}.")
    pictures = {name: OPEN_MIC.fullmatch(name) for name in sorted(files) if _is_picture(name)}
    if not any(pictures.values()):
        raise ArgumentError(_no_problems(source, problem))
    if problem not in known:
        raise UnknownNameError(
            f"Unknown problem {problem!r} of Open MIC.{did_you_mean(problem, known)} There are {', '.join(known)}."
        )
    splits = _open_mic_splits(problem)
    found, there = [], set()
    for name, match in pictures.items():
        if match is None:
            raise DataError(f"{source} has the picture {name}, needed is {KNOWN['open_mic'].official}.")
        folder = (match["exhibition"], match["domain"])
        there.add(folder)
        if folder in splits:
            found.append(Labelled(name, f"{folder[0]}/{match['label']}", splits[folder]))
    if missing := sorted("/".join(folder) for folder in splits.keys() - there):
        raise MissingDataError(
            f"{source} has no pictures in {', '.join(missing)}, which {problem} needs. There are "
            f"{', '.join(sorted('/'.join(folder) for folder in there))}."
        )
    return found


def _open_mic_splits(problem: str) -> dict[tuple[str, str], str]:
    """The folders of a problem, and the split that each belongs to."""
    if problem in EXHIBITIONS:
        return {(problem, "source"): "train", (problem, "target"): "test"}
    parts = zip(problem.split("->"), ("train", "test"), strict=True)
    return {(exhibition, "target"): split for part, split in parts for exhibition in OPEN_MIC_PARTS[part]}


def _exhibitions(bank: PictureBank) -> Tensor:  # shape: (n,)
    """The exhibition of each picture, as a number."""
    numbers = torch.tensor([EXHIBITIONS.index(label.partition("/")[0]) for label in bank.classes])
    return numbers[bank.targets]


def _no_problems(source: str, problem: str) -> str:
    return (
        f"{source} has no problem {problem!r}: only Open MIC is divided by problems, with pictures in "
        f"{KNOWN['open_mic'].official}."
    )
