"""Classes and splits of images from the names of their folders; :mod:`powerpool.data.lists` reads lists of images.

Only names and lists are read, no images, so a layout is recognised in a folder and in the index of a zip alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import permutations
from pathlib import PurePosixPath

from powerpool.data.archives import IMAGE_SUFFIXES, FileTree
from powerpool.data.lists import IMAGE_FOLDERS, SPLITS, TABLE, Lists, has_lists
from powerpool.data.shards import is_shard
from powerpool.data.splits import Labelled
from powerpool.data.store import DataError, MissingDataError, join_some
from powerpool.errors import ArgumentError, UnknownNameError, did_you_mean

OTHER_IMAGES = (
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".j2k", ".jpe", ".jfif", ".svg", ".psd", ".tga", ".exr"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".raw", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2"),
)
"""Suffixes of images in formats that are not read: to skip them like a text file would lose images."""


def is_image(name: str) -> bool:
    """Whether a file has the suffix of an image."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def are_shards(names: Iterable[str]) -> bool:
    """Whether the images of a data set are in shards: there are some, and no image outside of them."""
    return any(map(is_shard, names)) and not any(map(is_image, names))


def no_images(source: object) -> MissingDataError:
    """Return the error for a folder without images."""
    return MissingDataError(
        f"{source} contains no images ({', '.join(suffix[1:] for suffix in IMAGE_SUFFIXES)}). Expected one folder per "
        "class, optionally within folders train, validation and test."
    )


def arrange(
    files: Iterable[str],
    read: Callable[[str], bytes],
    source: str,
    *,
    nested: bool = False,
    table: str | None = None,
) -> list[Labelled]:
    """Return the class and split of every image, sorted by file name.

    Args:
        files: all files of a data set, relative to its folder, with ``/`` as the separator.
        read: returns the content of a list.
        source: what error messages call the data set.
        nested: whether class names may have several parts, as ``Greek/character01`` of Omniglot.
        table: absolute path of a table of paths, classes and splits; by default ``splits.csv`` if there is one.
    """
    base, names = _strip_wrappers(sorted(files))
    images = [name for name in names if is_image(name)]
    if not images:
        raise no_images(source)
    found = Lists(base, read, source, images, names).find(table)
    if found is None:
        found = _from_folders(images, source, nested)
        _refuse_other_images(found, names, source)
    return [image._replace(file=base + image.file) for image in sorted(found)]


def _strip_wrappers(names: list[str]) -> tuple[str, list[str]]:
    """Return the folders around all images, such as the ``food-101/`` of an archive, and the names inside them."""
    base = ""
    while not has_lists(names):
        images = [name for name in names if is_image(name)]
        first = images[0].partition("/")[0] if images else ""
        inside = all(name.startswith(f"{first}/") and name.count("/") >= 2 for name in images)
        if not images or not inside or first.lower() in SPLITS:
            break
        base, names = f"{base}{first}/", [name[len(first) + 1 :] for name in names if name.startswith(f"{first}/")]
    return base, names


# ---- folders ---------------------------------------------------------------------------------------------------------


def _from_folders(images: list[str], source: str, nested: bool) -> list[Labelled]:
    """Read ``split/class/image`` or ``class/image``, within ``images`` if that contains folders."""
    for folder in IMAGE_FOLDERS[1:]:
        inside = [name[len(folder) + 1 :] for name in images if name.startswith(f"{folder}/")]
        if inside and all("/" in name for name in inside):  # next to it there may be masks, as in FMD
            found = _from_folders(inside, source, nested)
            return [image._replace(file=f"{folder}/{image.file}") for image in found]
    splits = _split_folders(images, source)
    expected = "split/class/image" if splits else "class/image"
    found = []
    for name in images:
        parts = name.split("/")
        missing = expected.count("/") + 1 - len(parts)
        if missing > 0 or (missing < 0 and not nested):
            raise DataError(f"{source}: cannot find the class of {name}, expected {expected}.")
        label = "/".join(parts[1 if splits else 0 : -1])
        found.append(Labelled(name, label, splits[parts[0]] if splits else None))
    labels = {image.label for image in found}
    for label in sorted(labels):
        for above in map(str, PurePosixPath(label).parents):
            if above in labels:
                raise DataError(f"{source} has images both in {above} and in {label}. Only one can be a class.")
    return found


def _split_folders(images: list[str], source: str) -> dict[str, str]:
    """Return the split of each split folder; empty if the folders are classes."""
    tops = sorted({name.partition("/")[0] for name in images if "/" in name})
    # A class may be called "test": its folder contains images, and the folder of a split contains folders.
    with_images = {name.partition("/")[0] for name in images if name.count("/") == 1}
    found = {top: SPLITS[top.lower()] for top in tops if top.lower() in SPLITS and top not in with_images}
    if found and len(found) < len(tops):
        others = join_some(top for top in tops if top not in found)
        raise DataError(
            f"{source} has split folders ({', '.join(found)}) next to other folders ({others}). Move all classes into "
            "split folders, or none."
        )
    if len(set(found.values())) < len(found):
        raise DataError(f"{source} has two folders for the same split among {', '.join(found)}. Merge them.")
    return found


def _refuse_other_images(found: list[Labelled], names: list[str], source: str) -> None:
    """Refuse images in unsupported formats next to the others, also if they are all images of a class."""
    above = {_parent(_parent(image.file)) for image in found}
    others = [name for name in names if name.lower().endswith(OTHER_IMAGES) and _parent(_parent(name)) in above]
    if others:
        raise DataError(
            f"{source} has {len(others)} image(s) in a format that is not supported: {join_some(others)}. Convert them "
            f"to one of {', '.join(suffix[1:] for suffix in IMAGE_SUFFIXES)}, or move them away."
        )


def describe_left_out(found: list[Labelled], tree: FileTree, table: str | None) -> tuple[str, ...]:
    """Describe the files and folders of a data set that have no part in it although a user may think so.

    Args:
        found: the images of the data set.
        tree: its files.
        table: the table that was named, if any.
    """
    files, folders = {image.file for image in found}, {_parent(image.file) for image in found}
    left_out = {"links to folders that are listed already": [*tree.repeated]}
    if are_shards(tree.names):
        left_out["files that are not shards"] = [name for name in tree.names if not is_shard(name)]
        return _describe_skipped(left_out)
    left_out["tar files, which are not read if there are images beside them"] = [*filter(is_shard, tree.names)]
    if table or any(name.rpartition("/")[2] == TABLE for name in tree.names):
        left_out["images that the table does not list"] = [
            name for name in tree.names if is_image(name) and name not in files
        ]
    elif all(f"/{_parent(image.file)}".endswith(f"/{image.label}") for image in found):
        others = [name for name in tree.names if not is_image(name) and not is_shard(name)]
        left_out["files in class folders that are not images"] = [name for name in others if _parent(name) in folders]
        left_out["folders without images"] = _without_images(folders, [*others, *(f"{name}/" for name in tree.empty)])
    return _describe_skipped(left_out)


def _describe_skipped(left_out: dict[str, list[str]]) -> tuple[str, ...]:
    return tuple(f"Skipped {what} ({len(names)}): {join_some(names)}." for what, names in left_out.items() if names)


def _without_images(folders: set[str], names: list[str]) -> list[str]:
    """Return the folders of names that are where the class folders are, or are split folders, without images."""
    used = {str(above) for folder in folders for above in (folder, *PurePosixPath(folder).parents)}
    beside = {_parent(folder) for folder in folders}
    splits = {_parent(above) for above in beside if above.rpartition("/")[2].lower() in SPLITS}
    found = set()
    for name in names:
        while name := _parent(name):
            is_split = _parent(name) in splits and name.rpartition("/")[2].lower() in SPLITS
            if name not in used and (_parent(name) in beside or is_split):
                found.add(name)
    return sorted(found)


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


# ---- Open MIC --------------------------------------------------------------------------------------------------------

EXHIBITIONS = ("shn", "hon", "clv", "clk", "gls", "scl", "sci", "nat", "shx", "rlc")
"""The exhibitions of Open MIC, each with photos of a museum's exhibits by phones and by wearable cameras."""
OPEN_MIC_PARTS = {
    "p1": ("shn", "hon", "clv"),
    "p2": ("clk", "gls", "scl"),
    "p3": ("sci", "nat"),
    "p4": ("shx", "rlc"),
}
"""The groups of exhibitions of protocol I."""
OPEN_MIC_PAIRS = tuple(f"{train}->{test}" for train, test in permutations(OPEN_MIC_PARTS, 2))
"""The problems of protocol I: train on the target photos of one part, test on those of another."""
OPEN_MIC_LAYOUT = "<exhibition>/<source or target>/<class>/<image>"
OPEN_MIC = re.compile(rf"(?:.*/)?(?P<exhibition>{'|'.join(EXHIBITIONS)})/(?P<domain>source|target)/(?P<label>.+)/[^/]+")


def is_open_mic(files: Iterable[str]) -> bool:
    """Whether all images have the folders of Open MIC."""
    images = [name for name in files if is_image(name)]
    return bool(images) and all(OPEN_MIC.fullmatch(name) for name in images)


def arrange_open_mic(files: Iterable[str], problem: str | None, source: str) -> list[Labelled]:
    """Return the images of one problem of Open MIC; a class is ``exhibition/class``.

    Example:
        >>> files = [f"shn/{domain}/vase/{number}.jpg" for domain in ("source", "target") for number in (1, 2)]
        >>> [(image.label, image.split) for image in arrange_open_mic(files, "shn", "a folder")]
        [('shn/vase', 'train'), ('shn/vase', 'train'), ('shn/vase', 'test'), ('shn/vase', 'test')]
    """
    known = (*OPEN_MIC_PAIRS, *EXHIBITIONS)
    if problem is None:
        raise ArgumentError(
            f"{source} is Open MIC, which has a division for each of its problems. Name one when you train, by "
            f"problem='shn' or --problem shn, and use that run afterwards. The problems are {', '.join(known)}."
        )
    images = {name: OPEN_MIC.fullmatch(name) for name in sorted(files) if is_image(name)}
    if not any(images.values()):
        raise no_problems(source, problem)
    if problem not in known:
        raise UnknownNameError(
            f"Unknown Open MIC problem {problem!r}.{did_you_mean(problem, known)} Choose one of {', '.join(known)}."
        )
    if problem in EXHIBITIONS:
        splits = {(problem, "source"): "train", (problem, "target"): "test"}
    else:
        parts = zip(problem.split("->"), ("train", "test"), strict=True)
        splits = {(exhibition, "target"): split for part, split in parts for exhibition in OPEN_MIC_PARTS[part]}
    found, present = [], set()
    for name, match in images.items():
        if match is None:
            raise DataError(f"{source}: cannot find the class of {name}, expected {OPEN_MIC_LAYOUT}.")
        folder = (match["exhibition"], match["domain"])
        present.add(folder)
        if folder in splits:
            found.append(Labelled(name, f"{folder[0]}/{match['label']}", splits[folder]))
    if missing := sorted("/".join(folder) for folder in splits.keys() - present):
        raise MissingDataError(f"{source} has no images in {', '.join(missing)}, which problem {problem} needs.")
    return found


def no_problems(source: str, problem: str) -> ArgumentError:
    """Return the error for a problem of a data set other than Open MIC."""
    return ArgumentError(
        f"{source} has no problem {problem!r}: only Open MIC has problems, with images in {OPEN_MIC_LAYOUT}."
    )
