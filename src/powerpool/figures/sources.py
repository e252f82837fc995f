"""Where measured figures take numbers from: records of ``bench``, ``sweep`` and ``reproduce``, stored features."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from powerpool.bench.record import SCHEMA as BENCH
from powerpool.bench.record import BenchRecord, load
from powerpool.data.store import cache_folder
from powerpool.errors import RecordError
from powerpool.files import read_json
from powerpool.runs.record import OLD_SCHEMA, SCHEMA, RunRecord
from powerpool.runs.typed import Json

if TYPE_CHECKING:  # figures that are computed need nothing of the vision task
    from powerpool.tasks.vision.options import SweepRecord

PLACES = (Path("results"), Path("runs"))
"""Default folders of records: those of a checkout, and those of runs."""
QUICK = "-quick"
"""The end of the name of a folder with quick records. Records elsewhere have a mark."""
IMAGES = 64
"""Number of images whose spectra are taken, evenly spaced among those stored."""


class MissingRecordError(RecordError):
    """A figure has no record; the message has the command that makes one."""

    exit_code = 1


@dataclass(frozen=True, eq=False)
class Spectra:
    """Eigenvalues of matrices divided by their traces, and their source."""

    name: str
    eigenvalues: Tensor  # shape: (n, C)
    origin: str = ""


@dataclass(frozen=True)
class Sources:
    """Files and folders that figures read. Quick records are read only if a place is named.

    Args:
        records: files and folders; default: :data:`PLACES`.
        features: a folder of stored features, or the name of a data set with stored features in the cache.
    """

    records: tuple[Path, ...] = ()
    features: str | None = None

    def __post_init__(self) -> None:
        for place in self.records:
            if not place.exists():
                raise RecordError(f"There is no {place}: --records needs files or folders with records.")

    def bench(self, suite: str, make: str) -> BenchRecord:
        """The first finished record of a suite of ``bench``."""
        for path in self._files(f"{suite}.json", (BENCH,)):
            record = load(path)
            if record.suite == suite and record.complete and self._counts(record.options.quick):
                return record
        raise self._missing(f"finished record of `powerpool bench {suite}`", make)

    def sweeps(self, setting: str, make: str) -> list[SweepRecord]:
        """The records of all sweeps over a setting, one for each method and data set."""
        from powerpool.tasks.vision.config import RENAMED_PARAMETERS
        from powerpool.tasks.vision.options import SCHEMA as SWEEP
        from powerpool.tasks.vision.options import read_sweep

        names = [setting, *(old for old, new in RENAMED_PARAMETERS.items() if new == setting)]
        found: dict[tuple[str, str], SweepRecord] = {}
        for name in names:
            for path in self._files(f"*-{name}.json", (SWEEP,)):
                record = read_sweep(path)
                if record.setting == setting and self._counts(record.quick):
                    found.setdefault((record.data, record.method), record)
        if not found:
            raise self._missing(f"record of a sweep over {setting}", make)
        return [found[key] for key in sorted(found)]

    def runs(self, data: Collection[str], what: str, make: str) -> list[RunRecord]:
        """The records of ``reproduce`` for data sets, by their names in records; the first of equal ones."""
        found: dict[tuple[str, str, str, Json], RunRecord] = {}
        for path in self._files("*.json", (SCHEMA, OLD_SCHEMA), folders=data):
            record = RunRecord.read(path)
            if self._counts(record.environment.quick):
                found.setdefault((record.data, record.method, record.protocol, record.config.get("size")), record)
        if not found:
            raise self._missing(what, make)
        return [found[key] for key in sorted(found, key=str)]

    def spectra(self) -> Spectra | None:
        """The spectra of stored features, if some are named."""
        if self.features is None:
            return None
        from powerpool.tasks.vision.extraction import open_features

        features = open_features(self._feature_folder(self.features))
        maps = features.maps("train")
        chosen = torch.linspace(0, len(maps) - 1, min(IMAGES, len(maps))).round().long().unique()
        eigenvalues = torch.stack([spectrum(maps[number]) for number in chosen.tolist()])
        facts, crops = features.facts, features.stores["train"].shape[0]
        origin = f"Mean over {len(chosen)} of {len(maps)} training images."
        if crops > 1:
            origin += f" All {crops} crops of an image are one set."
        name = f"features of {facts['data']}, {facts['backbone']}, C = {features.channels}"
        return Spectra(name, eigenvalues, origin)

    def _feature_folder(self, named: str) -> Path:
        from powerpool.tasks.vision.extraction import ITEMS

        if (Path(named) / ITEMS).is_file():
            return Path(named)
        stored = {
            path.parent.name.rpartition("-")[0]: path.parent
            for path in sorted(cache_folder("features").glob(f"*/{ITEMS}"), reverse=True)
        }
        if named in stored:
            return stored[named]
        raise RecordError(
            f"There are no stored features at {named}, and none of a data set of that name in the cache (there: "
            f"{', '.join(sorted(stored)) or 'none'}). Make them with `powerpool reproduce vision --data {named}`."
        )

    def _counts(self, is_quick: bool) -> bool:
        return bool(self.records) or not is_quick

    def _files(self, pattern: str, schemas: Collection[Json], folders: Collection[str] | None = None) -> Iterator[Path]:
        """Files whose name fits the pattern, in the order of the places.

        Files with another schema are ignored, except for a file that was named itself: reading it is an error.
        """
        for place in self.records or PLACES:
            if place.is_file():
                found = [place] if place.match(pattern) else []
            else:
                found = [path for path in sorted(place.rglob(pattern)) if not _is_ignored(path, place)]
            for path in found:
                is_wanted = folders is None or path.parent.name in folders
                if is_wanted and (path is place or _schema(path) in schemas):
                    yield path

    def _missing(self, what: str, make: str) -> MissingRecordError:
        looked = " or ".join(str(place) for place in self.records or PLACES)
        return MissingRecordError(f"no {what} in {looked}. Make it: {make}")


def spectrum(maps: Tensor) -> Tensor:  # shape: (K, C, h, w) -> (min(C, K h w),)
    """The eigenvalues of the autocorrelation of all locations of all crops of an image, divided by their sum."""
    features = maps.to(torch.float64).transpose(0, 1).flatten(1)  # (C, K h w)
    # Squares of the singular values, from the smaller of two matrices: all other eigenvalues are 0.
    channels, locations = features.shape
    gram = features @ features.T if channels <= locations else features.T @ features
    eigenvalues = torch.linalg.eigvalsh(gram).clamp(min=0)
    return eigenvalues / eigenvalues.sum()


def _is_ignored(path: Path, place: Path) -> bool:
    parts = path.relative_to(place).parts
    return any(part.startswith(".") or part.endswith(QUICK) for part in parts[:-1])


def _schema(path: Path) -> Json:
    record = read_json(path)
    return record.get("schema") if isinstance(record, dict) else None
