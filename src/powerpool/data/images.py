"""Labelled images by split: loading a data set, listing images to predict, checking files, and loaders."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from powerpool.data.archives import list_folder
from powerpool.data.decoding import Crops, read_image
from powerpool.data.layouts import is_image, no_images
from powerpool.data.sources import ImageSource, list_place, locate
from powerpool.data.splits import SPLIT_NAMES, Labelled, Splits, split_images
from powerpool.data.store import ImageError, Limits, MissingDataError, default_threads, hash_text
from powerpool.errors import ArgumentError, DTypeError, ShapeError, require_choice

if TYPE_CHECKING:
    from PIL import Image

Corrupt = Literal["error", "skip"]
"""What to do about images that cannot be read: raise an error, or leave them out."""


class ImageIndexError(ArgumentError, IndexError):
    """There is no image with that index."""


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value
class ImageSplit:
    """A sequence of labelled images, each of which is decoded when it is read.

    It holds names and no pixels, so it is cheap to send to the worker processes of a DataLoader.
    """

    names: tuple[str, ...]
    """What errors and predictions call each image, for instance ``test/rose/image_00012.jpg``."""
    targets: Tensor  # shape: (n,), class of each image; -1 if unknown
    sources: tuple[ImageSource, ...]
    """Where each image is read from: the path of a file, or a row of a table."""
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if self.targets.shape != (len(self.names),) or len(self.sources) != len(self.names):
            raise ShapeError(
                f"names, targets and sources must have the same length (got {len(self.names)}, "
                f"{tuple(self.targets.shape)} and {len(self.sources)})."
            )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        return f"ImageSplit({len(self)} images, {len(self.targets.unique())} classes)"

    def read(self, index: int) -> Image.Image:
        """Read one image as upright RGB."""
        source = self.sources[index]
        return read_image(source if isinstance(source, str) else source.read(), self.limits, self.names[index])

    def select(self, indices: Tensor | Sequence[int]) -> ImageSplit:
        """Return the images with the given indices, in that order."""
        chosen = torch.as_tensor(indices, dtype=torch.long).tolist()
        names, sources = ([whole[index] for index in chosen] for whole in (self.names, self.sources))
        return replace(self, names=tuple(names), targets=self.targets[chosen], sources=tuple(sources))

    def __add__(self, other: ImageSplit) -> ImageSplit:
        """Concatenate two splits, as in ``train + validation``."""
        return replace(
            self,
            names=self.names + other.names,
            targets=torch.cat([self.targets, other.targets]),
            sources=self.sources + other.sources,
        )


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """The splits of an image data set: some or all of "train", "validation" and "test"."""

    name: str
    classes: tuple[str, ...]
    splits: dict[str, ImageSplit]
    digest: str
    """A digest of the images, their names, classes and splits."""
    remarks: tuple[str, ...] = ()
    """What was skipped: files that are no images, folders without images, links to folders that are listed already."""

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {len(split)}" for name, split in self.splits.items())
        return f"ImageSet({self.name!r}, {len(self.classes)} classes, {sizes})"

    def __getitem__(self, split: str) -> ImageSplit:
        if split not in self.splits:
            raise MissingDataError(f"{self.name} has no split {split!r}; it has {', '.join(self.splits)}.")
        return self.splits[split]


@dataclass(frozen=True, eq=False, repr=False)  # tensors have no single truth value
class ImageBank:
    """All images of a split, decoded to one size.

    Example:
        >>> import torch
        >>> from powerpool.data import load_fewshot
        >>> bank = load_fewshot("digits", size=16, channels=1)["test"]
        >>> bank
        ImageBank(360 images of 2 classes, 1 x 16 x 16)
        >>> bank.batch(torch.tensor([[0, 1, 2], [3, 4, 5]])).shape
        torch.Size([2, 3, 1, 16, 16])
    """

    images: Tensor  # shape: (n, channels, size, size), uint8; memory-mapped if they come from the cache
    targets: Tensor  # shape: (n,), class numbers in the whole data set
    classes: tuple[str, ...]
    """The names of all classes of the data set, including those of other splits."""
    names: tuple[str, ...]
    """The name of each image."""
    mean: Tensor | None = None  # shape: (channels, size, size), or (G, channels, size, size) with groups; float32
    """The mean image to subtract, or one for each group, with values in [0, 1]."""
    groups: Tensor | None = None  # shape: (n,), from 0 to G - 1
    """The group of each image, if there are several means."""

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8:
            raise DTypeError(f"images must be torch.uint8 (got {self.images.dtype}).")
        if self.images.ndim != 4 or self.images.shape[2] != self.images.shape[3]:
            raise ShapeError(f"images must have shape (n, channels, size, size) (got {tuple(self.images.shape)}).")
        if not len(self.images) == len(self.targets) == len(self.names):
            raise ShapeError(
                f"images, targets and names must have the same length (got {len(self.images)}, {len(self.targets)} and "
                f"{len(self.names)})."
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.images.shape[1:]))
        return f"ImageBank({len(self)} images of {len(self.targets.unique())} classes, {shape})"

    @property
    def pictures(self) -> Tensor:
        """The old name of ``images``."""
        warnings.warn("ImageBank.pictures is now ImageBank.images.", DeprecationWarning, stacklevel=2)
        return self.images

    @property
    def channels(self) -> int:
        """1 for luminance, 3 for RGB."""
        return self.images.shape[1]

    @property
    def size(self) -> int:
        """Width and height in pixels."""
        return self.images.shape[2]

    def batch(self, rows: Tensor, turns: Tensor | None = None) -> Tensor:  # shape: (*S) -> (*S, channels, size, size)
        """Return images as float32 in [0, 1], minus the mean if there is one.

        Args:
            rows: the rows of the images, of any shape.
            turns: counter-clockwise quarter turns, of a shape that broadcasts to that of ``rows``, for instance
                ``batch(episode.query, episode.turns[:, None])``.
        """
        flat = rows.reshape(-1)
        if len(flat) and not 0 <= int(flat.min()) <= int(flat.max()) < len(self):
            raise ImageIndexError(f"The bank has images 0 to {len(self) - 1} (got {flat.min()} to {flat.max()}).")
        images = self.images.index_select(0, flat).float().div_(255)
        if self.mean is not None:
            images -= self.mean if self.groups is None else self.mean[self.groups[flat]]
        if turns is not None:
            quarters = turns.expand(rows.shape).reshape(-1) % 4
            for quarter in (1, 2, 3):
                chosen = (quarters == quarter).nonzero().flatten()
                images[chosen] = images[chosen].rot90(quarter, (-2, -1))
        return images.view(*rows.shape, *images.shape[1:])

    def centred(self, groups: Tensor | None = None) -> ImageBank:
        """Return a bank that subtracts the mean image.

        Args:
            groups: a number for each image, (n,), to subtract the mean of each group instead.
        """
        if groups is None:
            return replace(self, mean=mean_image(self.images), groups=None)
        numbers, places = groups.unique(return_inverse=True)
        means = [mean_image(self.images[places == place]) for place in range(len(numbers))]
        return replace(self, mean=torch.stack(means), groups=places)


def mean_image(images: Tensor) -> Tensor:  # shape: (n, channels, size, size) uint8 -> (channels, size, size)
    """Return the mean image in [0, 1]; integer sums make it independent of the order."""
    total = torch.zeros(images.shape[1:], dtype=torch.int64)
    for part in images.split(512):
        total += part.sum(0, dtype=torch.int64)
    return (total.double() / (255 * len(images))).float()


def load_images(
    data: str | Path,
    root: str | Path | None = None,
    *,
    download: bool = False,
    splits: Splits | None = None,
    limits: Limits | None = None,
    nested: bool = False,
    strict: bool = False,
    table: str | Path | None = None,
) -> ImageSet:
    """Find an image data set, its classes and its splits. No image is decoded; :func:`check_images` does that.

    A folder or zip contains one folder per class, or split folders with one folder per class: ``train`` or
    ``training``; ``validation``, ``val``, ``valid`` or ``dev``; ``test`` or ``testing``. A table ``splits.csv`` with
    the columns ``path``, ``label`` and ``split`` may list the images instead, and the lists of MIT67, Food-101,
    CUB-200-2011, DTD, FGVC-Aircraft, Stanford Cars and miniImageNet are read, too. Classes are named after their
    folders and sorted by name. Hidden files and system files are ignored. Other files that are no images, folders
    without images and links in a circle are skipped, and described by ``remarks``; an image in an unsupported format is
    an error. A folder of tar files contains WebDataset shards, with ``KEY.jpg`` and ``KEY.cls``; a word such as
    ``train`` or ``val`` in the path of a shard is its split.

    Args:
        data: the path of a folder or zip, of a table like ``splits.csv``, or of shards, ``train-{0000..0099}.tar``;
            ``flower102``, ``mit67``, ``fmd``, ``food101``, ``imagenet``, ``cub200``, ``dtd``, ``aircraft``, ``cars`` or
            any other name that is found in ``root``; ``digits``, which comes with scikit-learn; ``glyphs``, which is
            drawn by this package; or a data set on the Hugging Face hub, ``hf:owner/name``.
        root: a folder with ``NAME/`` or ``NAME.zip``, directly or in a subfolder ``images``; by default that of the
            environment variable POWERPOOL_DATA.
        download: whether data sets of the hub may be downloaded; those on this machine can always be loaded.
        splits: how to split a data set that has no splits. If only the validation or the test split is missing, it is
            taken from the training split; existing splits do not change.
        limits: maximum sizes of images and zips.
        nested: whether class names may have several parts, as ``Greek/character01`` of Omniglot.
        strict: refuse what is otherwise skipped and described by ``remarks``.
        table: a table like ``splits.csv`` in any place, with paths relative to the folder or zip.

    A zip is unpacked once, into ``images/unpacked`` in the cache (``$POWERPOOL_CACHE``, or ``~/.cache/powerpool``).

    Example:
        >>> images = load_images("digits", splits=Splits(validation=0.1, test=0.2))
        >>> images
        ImageSet('digits', 10 classes, train 1259, validation 179, test 359)
        >>> images["test"].names[0], images.classes[images["test"].targets[0]]
        ('0/0000.png', '0')
    """
    limits = limits or Limits()
    place = locate(data, root, download)
    if table is not None:
        place = replace(place, table=str(Path(table).expanduser().absolute()))
    listing = list_place(place, limits, download, nested=nested, strict=strict)
    images = listing.images
    classes = listing.classes or tuple(sorted({image.label for image in images}))
    known = place.known
    if known is not None and known.tests_on_validation and all(image.split != "test" for image in images):
        images = [image._replace(split="test") if image.split == "validation" else image for image in images]
    if splits is None:
        splits = Splits() if known is None or known.test is None else Splits(test=known.test)
    images = split_images(images, splits, listing.source)
    found = {name: make_split(images, name, classes, listing.sources, limits) for name in SPLIT_NAMES}
    digest = hash_text([repr(classes), *(f"{line}\n" for line in describe_images(images, listing.hashes))])
    filled = {name: split for name, split in found.items() if len(split)}
    return ImageSet(place.name, classes, filled, digest, listing.remarks)


def make_split(
    images: Iterable[Labelled], split: str, classes: Sequence[str], sources: Mapping[str, ImageSource], limits: Limits
) -> ImageSplit:
    """Return the images of one split, in the given order."""
    numbers = {label: number for number, label in enumerate(classes)}
    own = [image for image in images if image.split == split]
    return ImageSplit(
        names=tuple(image.file for image in own),
        targets=torch.tensor([numbers[image.label] for image in own], dtype=torch.long),
        sources=tuple(sources[image.file] for image in own),
        limits=limits,
    )


def describe_images(images: Iterable[Labelled], hashes: Mapping[str, str]) -> list[str]:
    """Return what the digest of a data set depends on: split, class, name and content hash of each image."""
    return [f"{image.split}\0{image.label}\0{image.file}\0{hashes[image.file]}" for image in images]


def list_images(paths: Iterable[str | Path], limits: Limits | None = None) -> ImageSplit:
    """List images of unknown class, to predict: files as given, and all images in folders and their subfolders.

    In folders, hidden files and files without the suffix of an image are skipped; a file that is passed itself is read
    whatever its suffix. All targets are -1.
    """
    found: list[str] = []
    for path in [paths] if isinstance(paths, str | Path) else paths:
        place = Path(path).expanduser()
        if not place.exists():
            raise MissingDataError(f"There is no file or folder {path}.")
        if not place.is_dir():
            found.append(str(place))
            continue
        inside = [str(place / name) for name in list_folder(place).names if is_image(name)]
        if not inside:
            raise no_images(path)
        found += inside
    if not found:
        raise ArgumentError("No images were given. Pass files or folders.")
    found = list(dict.fromkeys(found))
    return ImageSplit(tuple(found), torch.full((len(found),), -1), tuple(found), limits or Limits())


# ---- images that cannot be read --------------------------------------------------------------------------------------


def check_images(
    split: ImageSplit,
    corrupt: Corrupt = "error",
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[ImageSplit, list[str]]:
    """Decode every image once, and return those that can be read.

    Args:
        split: the images.
        corrupt: "error" raises an :class:`ImageError` that lists the first images that cannot be read; "skip" leaves
            them out.
        threads: the number of images that are read at a time; by default one per processor, at most 8.
        progress: called after each image with the number of checked images and of all.

    Returns:
        The images that can be read, and the names of the others.
    """
    require_choice(corrupt, ("error", "skip"), "choice for corrupt images")
    bad: dict[int, str] = {}
    with ThreadPoolExecutor(threads or default_threads()) as pool:
        # In slices: a data set of a million images would otherwise be a million waiting tasks.
        for start in range(0, len(split), 256):
            numbers = range(start, min(start + 256, len(split)))
            for number, problem in zip(numbers, pool.map(lambda number: _problem(split, number), numbers), strict=True):
                if problem is not None:
                    bad[number] = problem
                if progress is not None:
                    progress(number + 1, len(split))
    if not bad:
        return split, []
    refuse_corrupt(bad, len(split), corrupt)
    kept = [number for number in range(len(split)) if number not in bad]
    return split.select(kept), [split.names[number] for number in bad]


def _problem(split: ImageSplit, number: int) -> str | None:
    try:
        split.read(number)
    except ImageError as error:
        return str(error)
    return None


def refuse_corrupt(bad: Mapping[int, str], count: int, corrupt: Corrupt) -> None:
    """Raise an error for images that cannot be read, unless they are skipped and others remain."""
    if corrupt == "skip" and len(bad) < count:
        return
    listed = " ".join([*bad.values()][:3]) + (f" ({len(bad) - 3} more)" if len(bad) > 3 else "")
    remedy = "" if len(bad) == count else ' Replace or delete them, or pass corrupt="skip".'
    raise ImageError(f"{len(bad)} of {count} images cannot be read: {listed}{remedy}")


# ---- loaders ---------------------------------------------------------------------------------------------------------


class ImageDataset(Dataset[dict[str, Any]]):
    """A split as a data set for a DataLoader, whose items are the crops of one image.

    An item has ``images`` of shape (crops, 3, size, size) and dtype uint8, the class ``target``, and the ``index``. An
    image that cannot be read raises an :class:`ImageError` that names it, also in worker processes.

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
