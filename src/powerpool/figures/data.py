"""The content of a figure: axes, lines, marks; and the records and features that measured figures are made from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from powerpool.bench.record import SCHEMA as BENCH
from powerpool.bench.record import BenchRecord, load
from powerpool.data.store import cache_folder
from powerpool.errors import RecordError
from powerpool.files import read_json
from powerpool.runs.record import OLD_SCHEMA, SCHEMA, RunRecord
from powerpool.runs.typed import Json

if TYPE_CHECKING:
    from powerpool.tasks.vision.options import SweepRecord

POINTS = 401
"""Points of a line that is a formula; odd, so that the middle of a range is one of them."""


@dataclass(frozen=True)
class Axis:
    """The label of an axis, its unit and its scale.

    Example:
        >>> Axis("time", "ms").text, Axis("eigenvalue").text
        ('time (ms)', 'eigenvalue')
    """

    label: str
    unit: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    """The range that is shown; default: all points."""

    @property
    def text(self) -> str:
        """Label and unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label


@dataclass(frozen=True, eq=False)
class Line:
    """One line of the legend: points, each with an interval if there are any."""

    name: str
    x: Tensor  # shape: (n,)
    y: Tensor  # shape: (n,)
    interval: tuple[Tensor, Tensor] | None = None
    """Lower and upper end at each point, NaN for a point without an interval."""
    measured: bool = False
    """Whether each point is a measurement, and gets a marker."""
    joined: bool = True
    """Whether points are joined; the few points of the paper are not."""
    like: str | None = None
    """The name of an earlier line with the same colour."""
    dash: int | None = None
    """The number of its dash; default: the next one."""


@dataclass(frozen=True)
class Mark:
    """A named position on an axis, "x" or "y"."""

    name: str
    at: float
    axis: str = "x"


@dataclass(frozen=True, eq=False)
class Panel:
    """One pair of axes with lines and marks."""

    title: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, eq=False)
class FigureData:
    """The content of a figure."""

    title: str
    panels: tuple[Panel, ...]
    note: str = ""
    """The source of measured numbers."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every point as a row of a table."""
        for panel in self.panels:
            axes = {"panel": panel.title, "x_axis": panel.x.text, "y_axis": panel.y.text}
            for line in panel.lines:
                low, high = line.interval or (None, None)
                for number in range(len(line.x)):
                    yield {
                        **axes,
                        "line": line.name,
                        "x": line.x[number].item(),
                        "y": line.y[number].item(),
                        "lower": _end(low, number),
                        "upper": _end(high, number),
                    }
            for mark in panel.marks:
                at = {"x": "", "y": "", mark.axis: mark.at}
                yield {**axes, "line": mark.name, **at, "lower": "", "upper": ""}


def _end(ends: Tensor | None, number: int) -> float | str:
    """The end of an interval as a cell of a table; empty if there is none."""
    return "" if ends is None or bool(ends[number].isnan()) else float(ends[number])


def linear(low: float, high: float, points: int = POINTS) -> Tensor:
    """Evenly spaced points."""
    return torch.linspace(low, high, points, dtype=torch.float64)


def logarithmic(low: float, high: float, points: int = POINTS) -> Tensor:
    """Points evenly spaced on a logarithmic scale; the ends are exact."""
    exponents = torch.log10(torch.tensor([low, high], dtype=torch.float64))
    found = torch.logspace(exponents[0].item(), exponents[1].item(), points, dtype=torch.float64)
    found[0], found[-1] = low, high
    return found


def formula(name: str, x: Tensor, function: Callable[[Tensor], Tensor]) -> Line:
    """A line of y = function(x)."""
    return Line(name, x, function(x))


# ---- sources ---------------------------------------------------------------------------------------------------------


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
