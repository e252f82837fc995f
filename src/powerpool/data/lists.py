"""Lists of images with their classes and splits: a table of paths, and the official lists of known data sets.

Known are those of MIT67, Food-101, DTD, CUB-200-2011, FGVC-Aircraft, Stanford Cars and miniImageNet. A line that cannot
be used is an error that names the file, the line and what to do.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from powerpool.data.archives import IMAGE_SUFFIXES
from powerpool.data.splits import SPLIT_NAMES, Labelled, natural_key
from powerpool.data.store import DataError, MissingDataError, require_package
from powerpool.errors import did_you_mean, shorten

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "val", "valid", "dev"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Names of splits, in lower or upper case, in folders and lists."""
IMAGE_FOLDERS = ("", "images", "Images", "image")
"""Folders that the entries of a list may be relative to."""
TABLE = "splits.csv"
"""A table with the columns ``path``, ``label`` and ``split`` in any order; the last may be missing, others are
ignored."""
LIST = re.compile(r"(?:meta/|labels/)?(train|test|val|validation)(?:images|1)?\.txt", re.IGNORECASE)
"""``TrainImages.txt`` of MIT67, ``meta/train.txt`` of Food-101, ``labels/train1.txt`` of the first split of DTD: one
image per line, with or without suffix."""
VARIANTS = re.compile(r"images_variant_(train|val|trainval|test)\.txt")
"""FGVC-Aircraft: lines with the name of an image, without suffix, and its class."""
CSV = re.compile(r"(train|test|val|validation)\.csv", re.IGNORECASE)
"""``train.csv``, ``val.csv`` and ``test.csv`` of miniImageNet: columns ``filename`` and ``label``, and one folder of
images."""
CUB = ("images.txt", "image_class_labels.txt", "train_test_split.txt")
"""CUB-200-2011: lines with a number and a path, a class, or 1 for training and 0 for testing."""
CUB_CLASSES = "classes.txt"
CARS = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
"""Stanford Cars: the folder of the images of each split, and their annotations."""
CARS_META = "cars_meta.mat"
CARS_TOGETHER = ("car_ims", "cars_annos.mat")
"""Stanford Cars with all images in one folder."""

READ_MATLAB = """
import io, json, sys
from scipy.io import loadmat
found = loadmat(io.BytesIO(sys.stdin.buffer.read()), simplify_cells=True, variable_names=["annotations", "class_names"])
json.dump({name: found[name] for name in found if name[0] != "_"}, sys.stdout, default=lambda value: value.tolist())
"""
"""Runs in a process of its own: scipy crashes on some damaged files."""

Entry = tuple[str, str, str | None, str | None]
"""What errors call a line, an image, its class (None: the name of its folder), and its split."""


def has_lists(names: Iterable[str]) -> bool:
    """Whether there are lists next to the images, so that no folder around the data set can be left out."""
    present = set(names)
    return (
        TABLE in present
        or set(CUB) <= present
        or any(LIST.fullmatch(name) or VARIANTS.fullmatch(name) for name in present)
        or bool({*CARS.values(), CARS_TOGETHER[1]} & {name.rpartition("/")[2] for name in present})
    )


class Lists:
    """The lists of a data set, line by line.

    Args:
        base: folders around the data set, such as ``food-101/``.
        read: returns the content of a list.
        source: what errors call the folder that contains ``base``.
        images: all images, relative to ``base``.
        names: all files, relative to ``base``.
    """

    def __init__(
        self, base: str, read: Callable[[str], bytes], source: str, images: list[str], names: list[str]
    ) -> None:
        self._base, self._read, self.source = base, read, source
        self.images, self.names = images, names

    def find(self, table: str | None) -> list[Labelled] | None:
        """Return the listed images, or None if there are no lists.

        Args:
            table: a table of paths, classes and splits; by default ``splits.csv`` if there is one.
        """
        folders = {name.rpartition("/")[0].rpartition("/")[2] for name in self.images}
        if table or TABLE in self.names:
            return self._from_table(table or TABLE)
        if set(CUB) <= set(self.names):
            return self._from_cub()
        if chosen := {name: SPLITS[match[1].lower()] for name in self.names if (match := LIST.fullmatch(name))}:
            return self._from_lists(chosen)
        if chosen := {match[1]: name for name in self.names if (match := VARIANTS.fullmatch(name))}:
            return self._from_variants(chosen)
        if CARS.keys() & folders:
            return self._from_cars()
        if CARS_TOGETHER[0] in folders:
            return self._from_cars_together()
        # Only if all images are in one folder: others have class folders.
        if all(name.rpartition("/")[0] in IMAGE_FOLDERS for name in self.images):
            chosen = {name: SPLITS[match[1].lower()] for name in self.names if (match := CSV.fullmatch(name))}
            return self._from_csv(chosen) if chosen else None
        return None

    # ---- reading ----

    def at(self, name: str, line: int | None = None) -> str:
        """Return what errors call a list, or a line of it."""
        return os.path.join(self.source, self._base, name) + (f", line {line}" if line else "")

    def content(self, name: str) -> bytes:
        """Return the content of a list."""
        try:
            return self._read(os.path.join(self._base, name))  # a table has an absolute path
        except OSError as error:
            raise MissingDataError(f"Cannot read {self.at(name)}: {error.strerror}.") from error

    def lines(self, name: str) -> list[tuple[int, str]]:
        """Return the non-empty lines of a list, with their numbers."""
        try:
            text = self.content(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DataError(f"{self.at(name)} is not UTF-8 text.") from error
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

    def rows(self, name: str, required: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
        """Return the rows of a CSV file by column, with what errors call them; some columns must be filled."""
        header: list[str] = []
        found = []
        for line, text in self.lines(name):
            at = self.at(name, line)
            try:
                cells = [cell.strip() for cell in next(csv.reader([text], strict=True))]
            except csv.Error as error:
                raise DataError(f"{at}: {error} (got {shorten(text)!r}). Correct the row.") from error
            if not header:
                header = [cell.lower() for cell in cells]
                continue
            if len(cells) > len(header):
                raise DataError(
                    f"{at} has {len(cells)} cells for {len(header)} columns (got {shorten(text)!r}). Put cells that "
                    "contain commas into double quotes."
                )
            row = dict(zip(header, cells, strict=False))
            for column in required:
                if not row.get(column) and column in header:
                    raise DataError(f"{at} has no {column} (got {shorten(text)!r}). Fill it in, or delete the row.")
            found.append((at, row))
        if not set(required) <= set(header):
            listed = ", ".join(required)
            raise DataError(
                f"{self.at(name, 1)}: expected a header with {listed}, separated by commas (got "
                f"{shorten(','.join(header))!r})."
            )
        return found

    def matlab(self, name: str) -> dict[str, Any]:
        """Return the variables of a MATLAB file, which may be in any folder."""
        place = next((other for other in self.names if other.rpartition("/")[2] == name), None)
        if place is None:
            raise MissingDataError(
                f"{self.source} has the folders of Stanford Cars, but no {name}. Add that file, or sort the "
                "images into train/CLASS and test/CLASS."
            )
        scipy = require_package("scipy", "Reading Stanford Cars", "train")
        # In the folder of packages, so that no module in the current folder is imported.
        command, folder = [sys.executable, "-c", READ_MATLAB], Path(scipy.__file__).parent.parent
        done = subprocess.run(command, input=self.content(place), capture_output=True, cwd=folder, check=False)
        if done.returncode:
            raise DataError(f"{self.at(place)} is damaged or not a MATLAB file. Copy or download it again.")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def label_all(self, entries: Iterable[Entry], files: dict[str, str]) -> list[Labelled]:
        """Return the images of all entries; without a class, the folder is the class."""
        found: dict[str, tuple[str, Labelled]] = {}
        for at, entry, label, split in entries:
            file = files.get(entry)
            if file is None:
                raise self._no_image(at, entry)
            if file in found:
                first, image = found[file]
                where = "" if image.split == split else f", in the split {image.split}"
                raise DataError(f"{at}: {shorten(entry, 200)!r} is already in {first}{where}. List each image once.")
            if label is None and "/" not in entry:
                raise DataError(f"{at}: expected class/image (got {shorten(entry, 200)!r}).")
            found[file] = (at, Labelled(file, label or PurePosixPath(file).parent.name, split))
        return [image for _, image in found.values()]

    def _no_image(self, at: str, entry: str) -> MissingDataError:
        if entry in self.names or entry in map(self._base.__add__, self.names):
            kinds = ", ".join(suffix[1:] for suffix in IMAGE_SUFFIXES)
            return MissingDataError(
                f"{at}: {shorten(entry, 200)!r} has no supported format. Convert it to one of {kinds}."
            )
        return MissingDataError(
            f"{at}: there is no image {shorten(entry, 200)!r} in {self.source}. Correct the path, or delete the line."
        )

    # ---- a table ----

    def _from_table(self, table: str) -> list[Labelled]:
        files = {self._base + file: file for file in self.images} | {file: file for file in self.images}
        entries: list[Entry] = []
        for at, row in self.rows(table, ("path", "label")):
            path = row["path"] if row["path"] in files else self._relative(at, row["path"])
            given = row.get("split", "")
            if given and given.lower() not in SPLITS:
                raise DataError(
                    f"{at}: unknown split {shorten(given)!r}.{did_you_mean(given, SPLITS)} Choose one of "
                    f"{', '.join(SPLIT_NAMES)}."
                )
            split = SPLITS[given.lower()] if given else None
            if entries and (split is None) != (entries[0][3] is None):
                raise DataError(
                    f"{at} has {'no' if split is None else 'a'} split, unlike the rows before it. Fill the column in "
                    "every row, or in none."
                )
            entries.append((at, path, row["label"], split))
        if not entries:
            raise DataError(f"{self.at(table)} lists no images. Add a row with the path and label of each image.")
        return self.label_all(entries, files)

    def _relative(self, at: str, path: str) -> str:
        """Return a path of a table relative to the folder, with ``/`` as the separator."""
        found = os.path.normpath(path.replace("\\", "/"))
        if os.path.isabs(found):
            found = os.path.relpath(found, os.path.abspath(self.source))
        if found.split("/")[0] == "..":
            raise DataError(
                f"{at}: {shorten(path, 200)!r} is outside of {self.source}. Move the image there, and write its path "
                "relative to that folder."
            )
        return found

    # ---- known data sets ----

    def _from_csv(self, chosen: dict[str, str]) -> list[Labelled]:
        rows = (
            (at, row, split) for name, split in chosen.items() for at, row in self.rows(name, ("filename", "label"))
        )
        entries = [(at, row["filename"], row["label"], split) for at, row, split in rows]
        return self.label_all(entries, {name.rpartition("/")[2]: name for name in self.images})

    def _from_variants(self, chosen: dict[str, str]) -> list[Labelled]:
        both = chosen.pop("trainval", None)
        if both is not None and not {"train", "val"} <= chosen.keys():
            chosen = {"train": both, **{split: name for split, name in chosen.items() if split == "test"}}
        entries: list[Entry] = []
        for split, name in chosen.items():
            for line, text in self.lines(name):
                image, _, label = text.partition(" ")
                if not label.strip():
                    raise DataError(f"{self.at(name, line)}: expected an image and its class (got {shorten(text)!r}).")
                entries.append((self.at(name, line), image, label.strip(), SPLITS[split]))
        return self.label_all(entries, {PurePosixPath(file).stem: file for file in self.images})

    def _from_lists(self, chosen: dict[str, str]) -> list[Labelled]:
        files: dict[str, str] = {}
        for folder in IMAGE_FOLDERS[::-1]:  # entries relative to the data set itself come last and take precedence
            for file in self.images:
                if folder == "" or file.startswith(f"{folder}/"):
                    entry = file[len(folder) + 1 :] if folder else file
                    files[entry] = files[str(PurePosixPath(entry).with_suffix(""))] = file
        listed = (
            (self.at(name, line), entry, split) for name, split in chosen.items() for line, entry in self.lines(name)
        )
        return self.label_all([(at, entry, None, split) for at, entry, split in listed], files)

    def _from_cub(self) -> list[Labelled]:
        paths, labels, flags = (self.pairs(name) for name in CUB)
        classes = self.pairs(CUB_CLASSES) if CUB_CLASSES in self.names else None
        present, found = set(self.images), []
        for name, table in zip(CUB[1:], (labels, flags), strict=True):
            if table.keys() != paths.keys():
                number = min(table.keys() ^ paths.keys(), key=natural_key)
                raise DataError(f"{self.source}: image {shorten(number)} is in only one of {CUB[0]} and {name}.")
        for number, path in paths.items():
            image, label, flag = f"images/{path}", labels[number], flags[number]
            if image not in present:
                raise MissingDataError(f"{self.source} has no image {shorten(path, 200)!r}, which {CUB[0]} lists.")
            if classes is not None and label not in classes:
                raise DataError(f"{self.source}: {CUB[1]} has the class {shorten(label)!r}, which {CUB_CLASSES} lacks.")
            if flag not in ("0", "1"):
                raise DataError(f"{self.source}: {CUB[2]} must contain 0 (test) or 1 (train) (got {shorten(flag)!r}).")
            own = PurePosixPath(path).parent.name if classes is None else classes[label]
            found.append(Labelled(image, own, "train" if flag == "1" else "test"))
        return found

    def _from_cars(self) -> list[Labelled]:
        classes = self.matlab(CARS_META)
        files = {"/".join(file.split("/")[-2:]): file for file in self.images}
        parts = [
            self._read_cars(name, self.matlab(name) | {"class_names": classes.get("class_names")}, folder)
            for folder, name in CARS.items()
        ]
        return self.label_all(chain(*parts), files)

    def _from_cars_together(self) -> list[Labelled]:
        folder, name = CARS_TOGETHER
        files = {"/".join(file.split("/")[-2:]): file for file in self.images}
        return self.label_all(self._read_cars(name, self.matlab(name), folder), files)

    def _read_cars(self, name: str, content: dict[str, Any], folder: str) -> list[Entry]:
        """Return the annotated images of a MATLAB file of Stanford Cars."""
        found: list[Entry] = []
        try:
            rows, names = content["annotations"], content["class_names"]
            classes = dict(enumerate([names] if isinstance(names, str) else names, start=1))
            for number, row in enumerate([rows] if isinstance(rows, dict) else rows, start=1):
                file = PurePosixPath(row["fname"] if "fname" in row else row["relative_im_path"]).name
                split = "test" if row.get("test", folder == "cars_test") else "train"
                label = str(classes[int(row["class"])])
                found.append((f"{self.at(name)}, annotation {number}", f"{folder}/{file}", label, split))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{self.at(name)} has no annotations with fname and class, or a class without a name: {error!r}."
            ) from error
        return found
