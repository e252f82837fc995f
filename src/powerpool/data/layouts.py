"""Classes and splits of images from file names and lists.

The layouts are folders, a table of paths, and the lists of MIT67, Food-101, CUB-200-2011, DTD, FGVC-Aircraft,
miniImageNet and Open MIC. Only names and lists
are read, no images, so a layout is recognised in a folder and in the index of a zip alike.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from itertools import permutations
from pathlib import PurePosixPath

from powerpool.data.archives import IMAGE_SUFFIXES, FileTree
from powerpool.data.splits import Labelled, natural_key
from powerpool.data.store import DataError, MissingDataError, join_some
from powerpool.errors import ArgumentError, UnknownNameError, did_you_mean, shorten

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "val", "valid", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Names of split folders, in lower or upper case, and the split that each contains."""
IMAGE_FOLDERS = ("", "images", "Images", "image")
"""Folders that the entries of a list may be relative to."""
LIST = re.compile(r"(?:meta/|labels/)?(train|test|val|validation)(?:images|1)?\.txt", re.IGNORECASE)
"""``TrainImages.txt`` of MIT67, ``meta/train.txt`` of Food-101, ``labels/train1.txt`` of the first split of DTD: one
image per line, with or without suffix."""
VARIANTS = re.compile(r"images_variant_(train|test|val)\.txt")
"""FGVC-Aircraft: lines with the name of an image, without suffix, and its class."""
TABLE = "splits.csv"
"""A table with the columns of ``TABLE_COLUMNS`` in any order; the last may be missing, others are ignored."""
TABLE_COLUMNS = ("path", "label", "split")
CSV = re.compile(r"(train|test|val|validation)\.csv", re.IGNORECASE)
"""``train.csv``, ``val.csv`` and ``test.csv`` of miniImageNet: lines ``filename,label``, and one folder of images."""
CSV_HEADER = ("filename", "label")
OTHER_SUFFIXES = (
    *(".txt", ".md", ".rst", ".pdf", ".html", ".htm", ".log", ".doc", ".docx"),
    *(".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".ini", ".xls", ".xlsx"),
    *(".mat", ".npy", ".npz", ".pkl", ".pt", ".h5", ".db", ".py", ".m", ".sh", ".ipynb"),
)
"""Suffixes of files that are certainly no images: in class folders they are counted and skipped."""
CUB = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
"""CUB-200-2011: lines with a number and a path, a class, 1 for training or 0 for testing, or a class name."""


def is_image(name: str) -> bool:
    """Whether a file has the suffix of an image."""
    return name.lower().endswith(IMAGE_SUFFIXES)


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
        table: name of a table of paths, classes and splits; by default ``splits.csv`` if there is one.
    """
    base, names = ("", sorted(files)) if table else _strip_wrappers(sorted(files))
    images = [name for name in names if is_image(name)]
    if not images:
        raise no_images(source)
    lists = Lists(base, read, source)
    if table or TABLE in names:
        found = _from_table(images, table or TABLE, lists)
    elif set(CUB) <= set(names):
        found = _from_cub(images, lists)
    elif chosen := {name: SPLITS[match[1].lower()] for name in names if (match := LIST.fullmatch(name))}:
        found = _from_lists(images, chosen, lists)
    elif chosen := {name: SPLITS[match[1]] for name in names if (match := VARIANTS.fullmatch(name))}:
        found = _from_variants(images, chosen, lists)
    elif tables := _find_csv(images, names):
        found = _from_csv(images, tables, lists)
    else:
        found = _from_folders(images, source, nested)
        _refuse_strays(found, names, source)
    return [image._replace(file=base + image.file) for image in sorted(found)]


def _strip_wrappers(names: list[str]) -> tuple[str, list[str]]:
    """Return the folders around all images, such as the ``food-101/`` of an archive, and the names inside them."""
    base = ""
    while not (TABLE in names or set(CUB) <= set(names) or any(LIST.fullmatch(name) for name in names)):
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


def _refuse_strays(found: list[Labelled], names: list[str], source: str) -> None:
    """Refuse files of unknown kind in class folders: images in an unsupported format would go unnoticed."""
    strays = [name for name in _others(found, names) if not name.lower().endswith(OTHER_SUFFIXES)]
    if strays:
        raise DataError(
            f"{source} has {len(strays)} file(s) in class folders that are not images: {join_some(strays)}. Convert "
            f"them to one of {', '.join(suffix[1:] for suffix in IMAGE_SUFFIXES)}, or move them away."
        )


def _others(found: list[Labelled], names: list[str]) -> list[str]:
    """Return the files in class folders that are not images."""
    folders = {image.file.rpartition("/")[0] for image in found}
    return [name for name in names if name.rpartition("/")[0] in folders and not is_image(name)]


def describe_left_out(found: list[Labelled], tree: FileTree) -> tuple[str, ...]:
    """Describe the files and folders of a data set that have no part in it although a user may think so."""
    above = {image.file.rpartition("/")[0].rpartition("/")[0] for image in found}
    left_out = {
        "other files in class folders": _others(found, tree.names),
        "empty class folders": [name for name in tree.empty if name.rpartition("/")[0] in above],
        "links to folders that are listed already": tree.repeated,
    }
    return tuple(f"Left out {len(names)} {what}: {join_some(names)}." for what, names in left_out.items() if names)


# ---- lists -----------------------------------------------------------------------------------------------------------


class Lists:
    """The lists of a data set, line by line."""

    def __init__(self, base: str, read: Callable[[str], bytes], source: str) -> None:
        self._base, self._read, self.source = base, read, source

    def at(self, name: str, line: int) -> str:
        """Return what errors call a line."""
        return f"{self.source}/{self._base}{name}, line {line}"

    def lines(self, name: str) -> list[tuple[int, str]]:
        """Return the non-empty lines of a list, with their numbers."""
        try:
            text = self._read(self._base + name).decode("utf-8-sig")
        except OSError as error:
            raise MissingDataError(f"Cannot read {self.source}/{self._base}{name}: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self.source}/{self._base}{name} is not UTF-8 text.") from error
        # Not splitlines(), which also splits at characters that may be part of a file name.
        found = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1)]
        return [(number, line) for number, line in found if line]

    def pairs(self, name: str) -> dict[str, str]:
        """Return the lines ``number value`` of a list as a mapping."""
        found: dict[str, str] = {}
        for line, text in self.lines(name):
            number, _, value = text.partition(" ")
            if not number.isdecimal() or not value.strip() or number in found:
                raise DataError(f"{self.at(name, line)}: expected a new number and a value (got {shorten(text)!r}).")
            found[number] = value.strip()
        return found

    def label_all(
        self, entries: Iterable[tuple[str, int, str, str | None]], files: dict[str, str], split: dict[str, str]
    ) -> list[Labelled]:
        """Return the images of all entries ``(list, line, entry, class)``; without a class, the folder is the class."""
        found: dict[str, tuple[str, Labelled]] = {}
        for name, line, entry, label in entries:
            at, file = self.at(name, line), files.get(entry)
            if file is None:
                raise MissingDataError(f"{at}: there is no image {shorten(entry, 200)!r} in {self.source}.")
            if file in found:
                raise DataError(f"{at}: {shorten(entry, 200)!r} is already in {found[file][0]}.")
            if label is None and "/" not in entry:
                raise DataError(f"{at}: expected class/image (got {shorten(entry, 200)!r}).")
            found[file] = (at, Labelled(file, label or PurePosixPath(file).parent.name, split[name]))
        return [image for _, image in found.values()]


def _find_csv(images: list[str], names: list[str]) -> dict[str, str]:
    """Return the CSV lists and their splits if all images are in one folder; other images have class folders."""
    if any(name.rpartition("/")[0] not in IMAGE_FOLDERS for name in images):
        return {}
    return {name: SPLITS[match[1].lower()] for name in names if (match := CSV.fullmatch(name))}


def _from_csv(images: list[str], chosen: dict[str, str], lists: Lists) -> list[Labelled]:
    entries: list[tuple[str, int, str, str | None]] = []
    for name in chosen:
        rows = [(line, tuple(cell.strip() for cell in text.split(","))) for line, text in lists.lines(name)]
        if not rows or rows[0][1] != CSV_HEADER:
            raise DataError(f"{lists.at(name, 1)}: expected the header {','.join(CSV_HEADER)}.")
        for line, cells in rows[1:]:
            if len(cells) != 2 or not all(cells):
                raise DataError(f"{lists.at(name, line)}: expected an image and its class.")
            entries.append((name, line, cells[0], cells[1]))
    return lists.label_all(entries, {name.rpartition("/")[2]: name for name in images}, chosen)


def _from_table(images: list[str], table: str, lists: Lists) -> list[Labelled]:
    """Read the images that a table lists, with their classes and splits."""
    rows = [(line, next(csv.reader([text]))) for line, text in lists.lines(table)]
    header = [cell.strip().lower() for cell in rows[0][1]] if rows else []
    if not {"path", "label"} <= set(header):
        raise DataError(f"{lists.at(table, 1)}: expected a header with {', '.join(TABLE_COLUMNS)}.")
    entries: list[tuple[str, int, str, str | None]] = []
    splits: dict[str, str | None] = {}
    for line, cells in rows[1:]:
        row = dict(zip(header, (cell.strip() for cell in cells), strict=False))
        path, label, split = (row.get(name, "") for name in TABLE_COLUMNS)
        if not path or not label or (split and split.lower() not in SPLITS):
            raise DataError(
                f"{lists.at(table, line)}: expected a path, a class, and one of the splits {', '.join(SPLITS)} (got "
                f"{shorten(','.join(cells))!r})."
            )
        entries.append((table, line, path, label))
        splits[path] = SPLITS[split.lower()] if split else None
    if None in splits.values() and set(splits.values()) != {None}:
        raise DataError(f"{lists.at(table, 1)}: the column split must be filled in every row, or in none.")
    found = lists.label_all(entries, {file: file for file in images}, {table: "train"})
    return [image._replace(split=splits[image.file]) for image in found]


def _from_variants(images: list[str], chosen: dict[str, str], lists: Lists) -> list[Labelled]:
    entries: list[tuple[str, int, str, str | None]] = []
    for name in chosen:
        for line, text in lists.lines(name):
            image, _, label = text.partition(" ")
            if not label.strip():
                raise DataError(f"{lists.at(name, line)}: expected an image and its class (got {shorten(text)!r}).")
            entries.append((name, line, image, label.strip()))
    return lists.label_all(entries, {PurePosixPath(file).stem: file for file in images}, chosen)


def _from_lists(images: list[str], chosen: dict[str, str], lists: Lists) -> list[Labelled]:
    files: dict[str, str] = {}
    for folder in IMAGE_FOLDERS[::-1]:  # entries relative to the data set itself come last and take precedence
        for file in images:
            if folder == "" or file.startswith(f"{folder}/"):
                entry = file[len(folder) + 1 :] if folder else file
                files[entry] = files[str(PurePosixPath(entry).with_suffix(""))] = file
    entries = [(name, line, entry, None) for name in chosen for line, entry in lists.lines(name)]
    return lists.label_all(entries, files, chosen)


def _from_cub(images: list[str], lists: Lists) -> list[Labelled]:
    paths, labels, flags, classes = (lists.pairs(name) for name in CUB)
    present, found = set(images), []
    for name, table in zip(CUB[1:3], (labels, flags), strict=True):
        if table.keys() != paths.keys():
            number = min(table.keys() ^ paths.keys(), key=natural_key)
            raise DataError(f"{lists.source}: image {shorten(number)} is in only one of {CUB[0]} and {name}.")
    for number, path in paths.items():
        image, label, flag = f"images/{path}", labels[number], flags[number]
        if image not in present:
            raise MissingDataError(f"{lists.source} has no image {shorten(path, 200)!r}, which {CUB[0]} lists.")
        if label not in classes:
            raise DataError(f"{lists.source}: {CUB[1]} has the class {shorten(label)!r}, which {CUB[3]} lacks.")
        if flag not in ("0", "1"):
            raise DataError(f"{lists.source}: {CUB[2]} must contain 0 (test) or 1 (train) (got {shorten(flag)!r}).")
        found.append(Labelled(image, classes[label], "train" if flag == "1" else "test"))
    return found


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
        raise ArgumentError(f"{source} is Open MIC, which needs a problem. Choose one of {', '.join(known)}.")
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
