"""Where measured figures take numbers from: records of ``bench``, ``sweep`` and ``reproduce``, stored features."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from powerpool.bench.record import SCHEMA as BENCH
from powerpool.bench.record import BenchRecord, load
from powerpool.data.places import cache_folder
from powerpool.errors import RecordError
from powerpool.files import read_json
from powerpool.runs.quick import FLAG, is_quick
from powerpool.runs.record import SCHEMA as RUN
from powerpool.runs.record import RunRecord

if TYPE_CHECKING:  # curves and bounds are drawn where nothing of the pipeline of pictures is installed
    from powerpool.tasks.vision.extraction import Features

PLACES = (Path("results"), Path("runs"))
"""Folders in which records are looked for where none are named: those of a checkout, and those of runs."""
QUICK = "-quick"
"""The end of the name of a folder with figures that mean nothing. Elsewhere the records say it."""
PICTURES = 64
"""Of which the spectra are taken, evenly from all that are stored."""


class MissingRecordError(RecordError):
    """No record of the kind that a figure shows; the message says how to make one."""

    exit_code = 1


@dataclass(frozen=True, eq=False)
class Spectra:
    """Eigenvalues of matrices divided by their traces, and what they are of."""

    name: str
    eigenvalues: Tensor  # shape: (n, C)
    origin: str = ""


@dataclass(frozen=True)
class Sources:
    """The places that figures may read.

    Args:
        records: files and folders; :data:`PLACES` without any.
        features: a folder of stored features, or the name of a data set of which there are some in the cache.
    """

    records: tuple[Path, ...] = ()
    features: str | None = None

    def __post_init__(self) -> None:
        for place in self.records:
            if not place.exists():
                raise RecordError(f"There is no {place}: --records needs files or folders with records.")

    def bench(self, suite: str, make: str) -> BenchRecord:
        """The first finished record of a suite of ``bench``; a quick one, which means little, only of a named place."""
        for path in self._files(f"{suite}.json", BENCH):
            record = load(path)
            if record.suite == suite and record.complete and (self.records or not record.options.get("quick")):
                return record
        raise MissingRecordError(self._missing(f"finished record of `powerpool bench {suite}`", make))

    def sweeps(self, setting: str, make: str) -> list[dict[str, Any]]:
        """The records of all sweeps over a setting, one for each method and data set; no quick ones, unless a place is
        named."""
        from powerpool.tasks.vision.studies import SCHEMA as SWEEP

        found: dict[tuple[str, str], dict[str, Any]] = {}
        for path in self._files(f"*-{setting}.json", SWEEP):
            record = read_json(path)
            if not isinstance(record, dict) or record.get("schema") != SWEEP:
                raise RecordError(f"{path} is not a record of `powerpool sweep`: needed is the schema {SWEEP!r}.")
            if record.get("setting") == setting and (self.records or not _is_quick(record)):
                found.setdefault((_text(record, "data", path), _text(record, "method", path)), _whole(record, path))
        if not found:
            raise MissingRecordError(self._missing(f"record of a sweep over {setting}", make))
        return [found[key] for key in sorted(found)]

    def runs(self, data: Collection[str], what: str, make: str) -> list[RunRecord]:
        """The records of ``reproduce`` for data sets, by their names in records; of equal ones the first. Quick ones,
        whose figures mean nothing, only of a named place."""
        found: dict[tuple[Any, ...], RunRecord] = {}
        for path in self._files("*.json", RUN, folders=data):
            record = RunRecord.read(path)
            if is_quick(record) and not self.records:
                continue
            found.setdefault((record.data, record.method, record.protocol, record.config.get("size")), record)
        if not found:
            raise MissingRecordError(self._missing(what, make))
        return [found[key] for key in sorted(found, key=str)]

    def spectra(self) -> Spectra | None:
        """Of stored features, where some are named."""
        if self.features is None:
            return None
        from powerpool.tasks.vision.extraction import open_features

        features = open_features(self._feature_folder(self.features))
        maps = features.maps("train")
        chosen = torch.linspace(0, len(maps) - 1, min(PICTURES, len(maps))).round().long().unique()
        eigenvalues = torch.stack([spectrum(maps[number]) for number in chosen.tolist()])
        facts = features.facts
        name = f"features of {facts['data']}, {facts['backbone']}, C = {features.channels}"
        return Spectra(
            name, eigenvalues, f"Mean over {len(chosen)} of {len(maps)} training pictures. {_crops(features)}"
        )

    def _feature_folder(self, named: str) -> Path:
        from powerpool.tasks.vision.extraction import ITEMS

        folder = Path(named)
        if (folder / ITEMS).is_file():
            return folder
        stored = sorted(path.parent for path in cache_folder("features").glob(f"*/{ITEMS}"))
        for path in stored:
            if path.name.rpartition("-")[0] == named:
                return path
        others = ", ".join(sorted({path.name.rpartition("-")[0] for path in stored})) or "none"
        raise RecordError(
            f"No stored features at {named}, nor of a data set of that name in the cache (there: {others}). "
            f"Make some with `powerpool reproduce vision --data {named}`."
        )

    def _files(self, pattern: str, schema: str | int, folders: Collection[str] | None = None) -> Iterator[Path]:
        """Files whose name fits the pattern, in the order of the places.

        A file of another schema that merely lies in a folder is none of ours, and passed over. One that was named
        itself is given to the caller, who says what is wrong with it.
        """
        for place in self.records or PLACES:
            if place.is_file():
                found = [place] if place.match(pattern) else []
            else:
                found = [path for path in sorted(place.rglob(pattern)) if not _is_passed_over(path, place)]
            for path in found:
                if (folders is None or path.parent.name in folders) and (path is place or _schema(path) == schema):
                    yield path

    def _missing(self, what: str, make: str) -> str:
        looked = " or ".join(str(place) for place in self.records or PLACES)
        return f"no {what} in {looked}. Make it: {make}"


def spectrum(maps: Tensor) -> Tensor:  # shape: (K, C, h, w) -> (min(C, K h w),)
    """The eigenvalues of the autocorrelation of all locations of all crops of a picture, divided by their sum."""
    features = maps.to(torch.float64).transpose(0, 1).flatten(1)  # (C, K h w)
    # The squares of singular values, from whichever of two matrices is smaller: other eigenvalues are 0.
    channels, locations = features.shape
    gram = features @ features.T if channels <= locations else features.T @ features
    eigenvalues = torch.linalg.eigvalsh(gram).clamp(min=0)
    return eigenvalues / eigenvalues.sum()


def _is_passed_over(path: Path, place: Path) -> bool:
    parts = path.relative_to(place).parts
    return any(part.startswith(".") or part.endswith(QUICK) for part in parts[:-1])


def _is_quick(sweep: dict[str, Any]) -> bool:
    environment = sweep.get("environment")
    return isinstance(environment, dict) and environment.get(FLAG) is True


def _schema(path: Path) -> Any:
    record = read_json(path)
    return record.get("schema") if isinstance(record, dict) else None


def _text(record: dict[str, Any], name: str, path: Path) -> str:
    if not isinstance(record.get(name), str):
        raise RecordError(f"{path} is a damaged record of a sweep: it has no {name}. Make it again.")
    return str(record[name])


def _whole(record: dict[str, Any], path: Path) -> dict[str, Any]:
    """The record, once all its values are known to have what is drawn."""
    rows, setting = record.get("values"), record["setting"]
    needed = (setting, "accuracy")
    fits = isinstance(rows, list) and rows and all(_has_numbers(row, needed) for row in rows)
    if not fits:
        raise RecordError(f"{path} is a damaged record of a sweep: its values lack {setting} or accuracy.")
    return record


def _has_numbers(row: Any, names: tuple[str, ...]) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(name), int | float) for name in names)


def _crops(features: Features) -> str:
    crops = features.stores["train"].shape[0]
    return "" if crops == 1 else f"All {crops} crops of a picture are one set."
