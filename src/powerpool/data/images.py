"""Labelled pictures, split by split, and what is made of them: lists to predict, checks, data sets for loaders."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from powerpool.data import image_sources
from powerpool.data.archives import unpack
from powerpool.data.crops import Crops
from powerpool.data.errors import MissingDataError
from powerpool.data.image_hub import PictureSource, load_hub
from powerpool.data.image_layouts import Labelled, arrange
from powerpool.data.limits import Limits
from powerpool.data.pictures import SUFFIXES, ImageError, read_image
from powerpool.errors import ArgumentError, ShapeError, require_choice

if TYPE_CHECKING:
    from PIL import Image

Corrupt = Literal["error", "skip"]
"""What becomes of pictures that cannot be read: nothing goes on, or they are left out."""
NAMES = ("train", "validation", "test")


class ImageIndexError(ArgumentError, IndexError):
    """There is no picture of that number in the split."""


@dataclass(frozen=True)
class Splits:
    """How a set that does not come in splits is cut, class by class.

    Of every class, ``validation`` and ``test`` are the shares that go to those splits, rounded to the nearest number
    but at least one picture; the rest is trained on. Which pictures they are depends on ``seed`` and their names alone.
    """

    validation: float = 0.2
    """0: there will be no such split."""
    test: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ArgumentError(f"{name} must be a share in [0, 1) (got {getattr(self, name)}).")
        if self.validation + self.test >= 1.0:
            raise ArgumentError(
                f"validation and test must leave pictures to train on (got {self.validation} and {self.test})."
            )


@dataclass(frozen=True, eq=False, repr=False)  # tensors do not compare to one truth value
class ImageSplit:
    """A sequence of labelled pictures, which are read one by one when asked for.

    It holds names and no pixels, so that it is cheap to send to the worker processes of a DataLoader.
    """

    names: tuple[str, ...]
    """How an error or a prediction calls each picture: ``test/rose/image_00012.jpg``."""
    targets: Tensor  # shape: (n,), class of each picture from 0 on; -1 where it is not known
    sources: tuple[PictureSource, ...]
    """Where each picture is read from: the path of a file, or a row of a table."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.targets.shape != (len(self.names),) or len(self.sources) != len(self.names):
            raise ShapeError(
                f"names, targets and sources must be of one length (got {len(self.names)}, "
                f"{tuple(self.targets.shape)} and {len(self.sources)})."
            )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"ImageSplit({len(self)} pictures, {len(self.targets.unique())} classes)"

    def read(self, index: int) -> Image.Image:
        """One picture in RGB, upright."""
        if not -len(self) <= index < len(self):
            raise ImageIndexError(f"The split has pictures 0 to {len(self) - 1} (asked for {index}).")
        source = self.sources[index]
        return read_image(source if isinstance(source, str) else source.read(), self.limits, self.names[index])

    def select(self, indices: Tensor | Sequence[int]) -> ImageSplit:
        """These pictures, in this order."""
        chosen = torch.as_tensor(indices, dtype=torch.long).tolist()
        if wrong := [index for index in chosen if not -len(self) <= index < len(self)]:
            raise ImageIndexError(f"The split has pictures 0 to {len(self) - 1} (asked for {wrong[0]}).")
        names, sources = ([whole[index] for index in chosen] for whole in (self.names, self.sources))
        return replace(self, names=tuple(names), targets=self.targets[chosen], sources=tuple(sources))

    def __add__(self, other: ImageSplit) -> ImageSplit:
        """The pictures of both, as in ``train + validation``."""
        return replace(
            self,
            names=self.names + other.names,
            targets=torch.cat([self.targets, other.targets]),
            sources=self.sources + other.sources,
        )


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """The splits of a set of pictures, whichever there are of "train", "validation" and "test"."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, ImageSplit]
    digest: str
    """A name for the content: other pictures, names, classes or splits have another one."""

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(split)}" for name, split in self.splits.items())
        return f"ImageSet({self.name!r}, {len(self.classes)} classes, {sizes})"

    def __getitem__(self, split: str) -> ImageSplit:
        if split not in self.splits:
            raise MissingDataError(f"{self.name} has no split {split!r}: it has {', '.join(self.splits)}.")
        return self.splits[split]


def load_images(
    data: str | Path,
    root: str | Path | None = None,
    *,
    download: bool = False,
    splits: Splits | None = None,
    limits: Limits | None = None,
    nested: bool = False,
) -> ImageSet:
    """Find a set of pictures, its classes and its splits. No picture is decoded; :func:`readable` checks them.

    A folder or zip holds a folder for each class, or folders of splits with folders of classes: ``train`` or
    ``training``; ``validation``, ``val``, ``valid`` or ``dev``; ``test`` or ``testing``. The lists of splits that come
    with MIT67, Food-101 and CUB-200-2011 are read too. Classes are called after their folders, in the order of their
    names. Hidden files and those that systems leave are passed over; any other file in the folder of a class that is no
    picture by its name is an error.

    Args:
        data: the path of a folder or zip; a name, ``flower102``, ``mit67``, ``fmd``, ``food101``, ``imagenet``,
            ``cub200`` or any other that is found below ``root``; ``digits``, which comes with scikit-learn; ``glyphs``,
            which is drawn by the library; or a set of the Hugging Face hub, ``hf:owner/name``.
        root: a folder with ``NAME/`` or ``NAME.zip``, in itself or in its folder ``images``; by default the one that
            the environment variable POWERPOOL_DATA names.
        download: whether sets of the hub may come over the network; those that are on this machine always load.
        splits: how to cut what comes without splits. A set with a test split, but none for validation, gives up a share
            of its training split; one that has both is left as it is.
        limits: how large pictures and zips may be.
        nested: whether classes may lie in folders of classes, as those of Omniglot, ``Greek/character01``.

    A zip is unpacked once, into ``images/unpacked`` of the cache (``$POWERPOOL_CACHE``, or ``~/.cache/powerpool``).

    Example:
        >>> images = load_images("digits", splits=Splits(validation=0.1, test=0.2))
        >>> images
        ImageSet('digits', 10 classes, train 1259, validation 179, test 359)
        >>> images["test"].names[0], images.classes[images["test"].targets[0]]
        ('0/0000.png', '0')
    """
    limits = limits or Limits()
    place = image_sources.locate(data, root, download)
    if place.path is None:
        assert place.hub is not None
        found = load_hub(place.hub, download)
        labelled, sources, hashes = found.labelled, found.sources, found.hashes
        classes, source = found.classes, place.hub
    else:
        source = str(place.path)
        folder, files, hashes = files_of(place.path, limits)
        labelled = arrange(files, lambda name: image_sources.read_list(folder / name, limits), source, nested=nested)
        classes = tuple(sorted({picture.label for picture in labelled}))
        names = [picture.file for picture in labelled]
        sources = {name: str(folder / name) for name in names}
        hashes = hashes or image_sources.hash_files(folder, names)
    if place.known is not None and place.known.tests_on_validation:
        labelled = _test_on_validation(labelled)
    if splits is None:
        own_test = place.known.test if place.known is not None else None
        splits = Splits() if own_test is None else Splits(test=own_test)
    labelled = cut(labelled, splits, source)
    return ImageSet(
        place.name, classes, _by_split(labelled, classes, sources, limits), _digest(labelled, classes, hashes)
    )


def files_of(path: Path, limits: Limits) -> tuple[Path, list[str], dict[str, str]]:
    """The folder that holds the files, their names, and the hashes that are known already."""
    if path.is_dir():
        return path, image_sources.scan(path), {}
    copy = unpack(path, limits)
    return copy.folder, sorted([*copy.hashes, *copy.others]), copy.hashes


def _test_on_validation(labelled: list[Labelled]) -> list[Labelled]:
    if any(picture.split == "test" for picture in labelled):
        return labelled
    return [picture._replace(split="test") if picture.split == "validation" else picture for picture in labelled]


def _by_split(
    labelled: list[Labelled], classes: tuple[str, ...], sources: Mapping[str, PictureSource], limits: Limits
) -> dict[str, ImageSplit]:
    numbers = {label: number for number, label in enumerate(classes)}
    found = {}
    for split in NAMES:
        own = [picture for picture in labelled if picture.split == split]
        if own:
            found[split] = ImageSplit(
                names=tuple(picture.file for picture in own),
                targets=torch.tensor([numbers[picture.label] for picture in own]),
                sources=tuple(sources[picture.file] for picture in own),
                limits=limits,
            )
    return found


def _digest(labelled: list[Labelled], classes: tuple[str, ...], hashes: Mapping[str, str]) -> str:
    found = hashlib.blake2b(repr(classes).encode(errors="surrogatepass"), digest_size=8)
    for picture in labelled:
        line = f"{picture.split}\0{picture.label}\0{picture.file}\0{hashes[picture.file]}\n"
        found.update(line.encode(errors="surrogatepass"))
    return found.hexdigest()


def list_pictures(paths: Iterable[str | Path], limits: Limits | None = None) -> ImageSplit:
    """Pictures of unknown class, to predict: files as they are named, and all pictures below folders, in order.

    What lies in a folder and is no picture by its name is passed over, as are hidden files; a file that is named itself
    is read, whatever its name. The targets are all -1.
    """
    found: list[str] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        place = Path(path).expanduser()
        if not place.exists():
            raise MissingDataError(f"There is no file or folder {path}.")
        if not place.is_dir():
            found.append(str(place))
            continue
        inside = [str(place / name) for name in image_sources.scan(place) if name.lower().endswith(SUFFIXES)]
        if not inside:
            suffixes = ", ".join(suffix[1:] for suffix in SUFFIXES)
            raise MissingDataError(f"The folder {path} has no pictures ({suffixes}).")
        found += inside
    if not found:
        raise ArgumentError("No picture was named: pass files or folders.")
    found = list(dict.fromkeys(found))
    return ImageSplit(tuple(found), torch.full((len(found),), -1), tuple(found), limits or Limits())


def readable(
    split: ImageSplit,
    corrupt: Corrupt = "error",
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[ImageSplit, list[str]]:
    """Read every picture once, and keep those that can be read.

    Args:
        split: what to check.
        corrupt: "error": pictures that cannot be read are an :class:`ImageError`, which names the first of them and
            says how many there are. "skip": they are left out.
        threads: how many pictures are read at a time; by default one for each processor, at most 8.
        progress: called with the number of pictures that were checked, and of all, after each.

    Returns:
        The pictures that can be read, and the names of those that cannot.
    """
    require_choice(corrupt, ("error", "skip"), "choice for corrupt pictures")
    bad: dict[int, str] = {}
    with ThreadPoolExecutor(threads or min(8, os.cpu_count() or 1)) as pool:
        # In slices: all at once, a set of a million pictures would be a million waiting tasks.
        for start in range(0, len(split), 256):
            numbers = range(start, min(start + 256, len(split)))
            for number, problem in zip(numbers, pool.map(lambda number: _problem(split, number), numbers), strict=True):
                if problem is not None:
                    bad[number] = problem
                if progress is not None:
                    progress(number + 1, len(split))
    if bad and (corrupt == "error" or len(bad) == len(split)):
        first = " ".join(list(bad.values())[:3])
        rest = f" So are {len(bad) - 3} more." if len(bad) > 3 else ""
        remedy = "" if len(bad) == len(split) else ' Replace or delete them, or skip them with corrupt="skip".'
        raise ImageError(f"{len(bad)} of {len(split)} pictures cannot be read: {first}{rest}{remedy}")
    kept = [number for number in range(len(split)) if number not in bad]
    return (split.select(kept) if bad else split), [split.names[number] for number in bad]


def _problem(split: ImageSplit, number: int) -> str | None:
    try:
        split.read(number)
    except ImageError as error:
        return str(error)
    return None


# ---- cutting into splits ---------------------------------------------------------------------------------------------


def cut(labelled: list[Labelled], splits: Splits, source: str) -> list[Labelled]:
    """Cut what is missing: all splits where there are none, validation (from train) where only that is missing."""
    present = {picture.split for picture in labelled}
    shares = {}
    if present <= {None, "train"}:
        shares = {"test": splits.test, "validation": splits.validation}
    elif "train" in present and "validation" not in present:
        shares = {"validation": splits.validation}
    members: dict[str, list[Labelled]] = {}
    for picture in labelled:
        if picture.split in (None, "train"):
            members.setdefault(picture.label, []).append(picture)
    moved: dict[str, str] = {}
    for label, pictures in members.items():
        counts = {split: max(1, math.floor(share * len(pictures) + 0.5)) for split, share in shares.items() if share}
        if sum(counts.values()) >= len(pictures):
            raise ArgumentError(
                f"{source}: class {label!r} has only {len(pictures)} picture(s), too few for "
                f"{' and '.join(f'{share:g} of them for {split}' for split, share in shares.items() if share)} and at "
                "least one to train on. Add pictures, or leave out the class."
            )
        drawn = iter(sorted(pictures, key=lambda picture: _draw(splits.seed, picture.file)))
        for split, count in counts.items():
            moved.update({next(drawn).file: split for _ in range(count)})
    return [picture._replace(split=moved.get(picture.file, picture.split or "train")) for picture in labelled]


def _draw(seed: int, name: str) -> bytes:
    return hashlib.blake2b(f"{seed} {name}".encode(errors="surrogatepass"), digest_size=16).digest()


# ---- for loaders -----------------------------------------------------------------------------------------------------


class ImageDataset(Dataset[dict[str, Any]]):
    """A split as a data set for a DataLoader: each item holds the crops of one picture.

    ``images`` of shape (crops, 3, size, size) and dtype uint8, its class ``target`` and its number ``index``. A picture
    that cannot be read is an :class:`ImageError` that names it, from a worker process too.

    Example:
        >>> from torch.utils.data import DataLoader
        >>> split = load_images("digits")["train"]
        >>> batch = next(iter(DataLoader(ImageDataset(split, Crops(size=48, count=2)), batch_size=4)))
        >>> batch["images"].shape, batch["target"].tolist(), batch["index"].tolist()
        (torch.Size([4, 2, 3, 48, 48]), [0, 0, 0, 0], [0, 1, 2, 3])
    """

    def __init__(self, split: ImageSplit, crops: Crops) -> None:
        self.split, self.crops = split, crops

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = self.split.read(index)
        try:
            images = self.crops(image)
        except ImageError as error:
            raise ImageError(f"{self.split.names[index]}: {error}") from error
        return {"images": images, "target": self.split.targets[index], "index": index}
