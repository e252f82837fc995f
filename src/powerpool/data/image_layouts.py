"""What the names of files say: which picture is of which class and split.

Only names and lists are read here, no pictures: so a layout can be found in a folder and in the index of a zip alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath
from typing import NamedTuple

from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.pictures import SUFFIXES

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "val", "valid", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Folders of splits, in small or capital letters, and what the split is called here."""
PICTURES = ("", "images", "Images", "image")
"""Folders that the entries of a list are relative to: that of the set itself, or one inside."""
LIST = re.compile(r"(?:meta/)?(train|test|val|validation)(?:images)?\.txt", re.IGNORECASE)
"""``TrainImages.txt`` of MIT67, ``meta/train.txt`` of Food-101: one picture per line, with or without its suffix."""
CSV = re.compile(r"(train|test|val|validation)\.csv", re.IGNORECASE)
"""``train.csv``, ``val.csv`` and ``test.csv`` of miniImageNet: lines ``filename,label``, and one folder of pictures."""
CSV_HEADER = ("filename", "label")
CUB = ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
"""CUB-200-2011: lines of a number and a path, a class, a flag of training, or a name."""


class Labelled(NamedTuple):
    """A picture: its file, relative to the folder of the set, its class, and its split where it has one."""

    file: str
    label: str
    split: str | None


def arrange(files: Iterable[str], read: Callable[[str], bytes], source: str, *, nested: bool = False) -> list[Labelled]:
    """The class and split of every picture, in the order of the files' names.

    Args:
        files: all files of a set, relative to its folder, with ``/`` between folders.
        read: the content of a list.
        source: how errors call the set.
        nested: whether classes may lie in folders of classes, as ``Greek/character01`` of Omniglot, and are called so.
    """
    base, names = _without_wrappers(sorted(files))
    pictures = [name for name in names if name.lower().endswith(SUFFIXES)]
    if not pictures:
        raise MissingDataError(
            f"{source} has no pictures ({', '.join(suffix[1:] for suffix in SUFFIXES)}). Needed are folders of "
            "classes, with or without folders train, validation and test around them."
        )
    lists = Lists(base, read, source)
    if set(CUB) <= set(names):
        found = _from_cub(pictures, lists)
    elif chosen := {name: SPLITS[match[1].lower()] for name in names if (match := LIST.fullmatch(name))}:
        found = _from_lists(pictures, chosen, lists)
    elif tables := _csv_lists(pictures, names):
        found = _from_csv(pictures, tables, lists)
    else:
        found = _from_folders(pictures, source, nested)
        _refuse_strays(found, names, source)
    return [labelled._replace(file=base + labelled.file) for labelled in sorted(found)]


def _without_wrappers(names: list[str]) -> tuple[str, list[str]]:
    """Names without the folders around all pictures, such as the ``food-101/`` of an archive, and those folders."""
    base = ""
    while not set(CUB) <= set(names) and not any(LIST.fullmatch(name) for name in names):
        pictures = [name for name in names if name.lower().endswith(SUFFIXES)]
        first = pictures[0].partition("/")[0] if pictures else ""
        inside = all(name.startswith(f"{first}/") and name.count("/") >= 2 for name in pictures)
        if not pictures or not inside or first.lower() in SPLITS:
            break
        base, names = f"{base}{first}/", [name[len(first) + 1 :] for name in names if name.startswith(f"{first}/")]
    return base, names


# ---- folders ---------------------------------------------------------------------------------------------------------


def _from_folders(pictures: list[str], source: str, nested: bool) -> list[Labelled]:
    """``split/class/picture`` or ``class/picture``; below ``images``, if that holds folders and not pictures."""
    for folder in PICTURES[1:]:
        inside = [name[len(folder) + 1 :] for name in pictures if name.startswith(f"{folder}/")]
        if inside and all("/" in name for name in inside):  # beside them may lie masks, as in FMD
            found = _from_folders(inside, source, nested)
            return [labelled._replace(file=f"{folder}/{labelled.file}") for labelled in found]
    splits = _split_folders(pictures, source)
    needed = "split/class/picture" if splits else "class/picture"
    found = []
    for name in pictures:
        parts = name.split("/")
        missing = needed.count("/") + 1 - len(parts)
        if missing > 0 or (missing < 0 and not nested):
            raise DataError(f"{source} has the picture {name}, needed is {needed}.")
        label = "/".join(parts[1 if splits else 0 : -1])
        found.append(Labelled(name, label, splits[parts[0]] if splits else None))
    _refuse_classes_in_classes({labelled.label for labelled in found}, source)
    return found


def _refuse_classes_in_classes(labels: set[str], source: str) -> None:
    for label in sorted(labels):
        above = label.rpartition("/")[0]
        while above:
            if above in labels:
                raise DataError(f"{source} has pictures in {above} and in {label} inside of it: one must be the class.")
            above = above.rpartition("/")[0]


def _split_folders(pictures: list[str], source: str) -> dict[str, str]:
    """The folders of splits, and the split of each; none where the folders are classes."""
    tops = sorted({name.partition("/")[0] for name in pictures if "/" in name})
    found = {top: SPLITS[top.lower()] for top in tops if top.lower() in SPLITS}
    # A class may be called "test": its folder holds pictures, and a folder of a split holds folders.
    found = {top: split for top, split in found.items() if not _holds_pictures(top, pictures)}
    if found and len(found) < len(tops):
        raise DataError(
            f"{source} has folders of splits ({', '.join(found)}) and others beside them "
            f"({some([top for top in tops if top not in found])}). Put all classes into folders of splits, or none."
        )
    if len(set(found.values())) < len(found):
        raise DataError(f"{source} has two folders for one split, among {', '.join(found)}. Put them together.")
    return found


def _holds_pictures(folder: str, pictures: list[str]) -> bool:
    return any(name.startswith(f"{folder}/") and name.count("/") == 1 for name in pictures)


def _refuse_strays(found: list[Labelled], names: list[str], source: str) -> None:
    """In a folder of a class every file should be a picture: one in a format that is not read would go unnoticed."""
    folders = {labelled.file.rpartition("/")[0] for labelled in found}
    pictures = {labelled.file for labelled in found}
    strays = [name for name in names if name.rpartition("/")[0] in folders and name not in pictures]
    if strays:
        raise DataError(
            f"{source} has {len(strays)} file(s) in folders of classes that are no pictures by their names: "
            f"{some(strays)}. Read are {', '.join(suffix[1:] for suffix in SUFFIXES)}: convert them, or move them away."
        )


# ---- lists -----------------------------------------------------------------------------------------------------------


class Lists:
    """The lists of a set, by line."""

    def __init__(self, base: str, read: Callable[[str], bytes], source: str) -> None:
        self._base, self._read, self.source = base, read, source

    def place(self, name: str, line: int) -> str:
        """A line as errors call it."""
        return f"{self.source}/{self._base}{name}, line {line}"

    def lines(self, name: str) -> list[tuple[int, str]]:
        """The lines of a list that are not empty, with their numbers."""
        try:
            text = self._read(self._base + name).decode("utf-8-sig")
        except OSError as error:  # of a zip, only pictures and lists are unpacked
            raise MissingDataError(
                f"Cannot read {self.source}/{self._base}{name}: {error.strerror}. Unpack a zip, and pass the folder."
            ) from error
        except UnicodeDecodeError as error:
            raise DataError(f"{self.source}/{self._base}{name} is not text in UTF-8.") from error
        # By "\n" alone: splitlines() would also cut at characters that may stand in the name of a file.
        found = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1)]
        return [(number, line) for number, line in found if line]

    def pairs(self, name: str) -> dict[str, tuple[int, str]]:
        """The lines ``number value`` of a list, by number."""
        found: dict[str, tuple[int, str]] = {}
        for line, text in self.lines(name):
            number, _, value = text.partition(" ")
            if not number.isdecimal() or not value.strip():
                raise DataError(f"{self.place(name, line)}: needed are a number and a value (got {text[:60]!r}).")
            if number in found:
                raise DataError(f"{self.place(name, line)}: {number} was on line {found[number][0]} already.")
            found[number] = (line, value.strip())
        return found


def _csv_lists(pictures: list[str], names: list[str]) -> dict[str, str]:
    """The CSV lists, and the split of each, of pictures that lie in one folder; pictures in folders need none."""
    if any(name.rpartition("/")[0] not in PICTURES for name in pictures):
        return {}
    return {name: SPLITS[match[1].lower()] for name in names if (match := CSV.fullmatch(name))}


def _from_csv(pictures: list[str], chosen: dict[str, str], lists: Lists) -> list[Labelled]:
    by_name = {name.rpartition("/")[2]: name for name in pictures}
    found: dict[str, tuple[str, Labelled]] = {}
    for name, split in chosen.items():
        rows = [(line, tuple(cell.strip() for cell in text.split(","))) for line, text in lists.lines(name)]
        if not rows or rows[0][1] != CSV_HEADER:
            first = ",".join(rows[0][1])[:60] if rows else ""
            raise DataError(f"{lists.place(name, 1)}: needed is {','.join(CSV_HEADER)} (got {first!r}).")
        for line, cells in rows[1:]:
            place = lists.place(name, line)
            if len(cells) != 2 or not all(cells):
                raise DataError(f"{place}: needed are a picture and its class (got {','.join(cells)[:60]!r}).")
            entry, label = cells
            if entry not in by_name:
                raise MissingDataError(f"{place}: there is no picture {entry[:200]!r} in {lists.source}.")
            if entry in found:
                raise DataError(f"{place}: {entry[:200]!r} was in {found[entry][0]} already.")
            found[entry] = (place, Labelled(by_name[entry], label, split))
    return [labelled for _, labelled in found.values()]


def _from_lists(pictures: list[str], chosen: dict[str, str], lists: Lists) -> list[Labelled]:
    by_entry: dict[str, str] = {}
    for folder in PICTURES[::-1]:  # an entry that is relative to the set itself counts before others
        for file in pictures:
            if folder == "" or file.startswith(f"{folder}/"):
                entry = file[len(folder) + 1 :] if folder else file
                by_entry[entry] = by_entry[str(PurePosixPath(entry).with_suffix(""))] = file
    found: dict[str, tuple[str, Labelled]] = {}
    for name, split in chosen.items():
        for line, entry in lists.lines(name):
            place, picture = lists.place(name, line), by_entry.get(entry)
            if picture is None:
                raise MissingDataError(f"{place}: there is no picture {entry[:200]!r} in {lists.source}.")
            if picture in found:
                raise DataError(f"{place}: {entry[:200]!r} was in {found[picture][0]} already.")
            if "/" not in entry:
                raise DataError(f"{place}: needed is class/picture (got {entry[:200]!r}).")
            found[picture] = (place, Labelled(picture, PurePosixPath(picture).parent.name, split))
    return [labelled for _, labelled in found.values()]


def _from_cub(pictures: list[str], lists: Lists) -> list[Labelled]:
    paths, labels, flags, classes = (lists.pairs(name) for name in CUB)
    present, found = set(pictures), []
    for name, table in zip(CUB[1:3], (labels, flags), strict=True):
        if table.keys() != paths.keys():
            number = min(table.keys() ^ paths.keys(), key=lambda own: (len(own), own))
            raise DataError(f"{lists.source}: picture {number} is in only one of {CUB[0]} and {name}.")
    for number, (line, path) in paths.items():
        picture, (label_line, label), (flag_line, flag) = f"images/{path}", labels[number], flags[number]
        if picture not in present:
            raise MissingDataError(f"{lists.place(CUB[0], line)}: there is no picture {path[:200]!r}.")
        if label not in classes:
            raise DataError(f"{lists.place(CUB[1], label_line)}: there is no class {label[:60]!r} in {CUB[3]}.")
        if flag not in ("0", "1"):
            raise DataError(f"{lists.place(CUB[2], flag_line)}: needed is 0 (test) or 1 (train) (got {flag[:60]!r}).")
        found.append(Labelled(picture, classes[label][1], "train" if flag == "1" else "test"))
    return found


def some(names: list[str], most: int = 5) -> str:
    """The first names of many."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
