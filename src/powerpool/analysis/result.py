"""What was found: numbers of every sample, tables of their means, and files of both."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from powerpool.analysis.measures import effective_rank, leading_share, participation_ratio
from powerpool.analysis.pictures import draw_pictures
from powerpool.analysis.suggestion import CURVES, Suggestion
from powerpool.curves import FAHDP, HDP, Curve
from powerpool.files import write_json, write_text
from powerpool.functional import Mode
from powerpool.report.document import Block, Heading, Items, Picture, Table, Text, markdown
from powerpool.tasks.pooling import Normalization

COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""How many leading eigenvalues have their part of the trace in the table, as far as there are more than that."""
ALL = 0.9995
"""From here on a part of the trace is all of it, and has no row in the table."""
ADVICE = "This is where a search may start, not an optimum: the labels were not looked at."
ENOUGH = 20
"""Samples from which on burstiness is told: it cannot be larger than their number."""
DIGITS = 6
"""Significant digits in files: they are there to be looked at."""


@dataclass(frozen=True, eq=False)
class Side:
    """Matrices of all samples, before or after the curve."""

    spectra: Tensor  # shape: (S, C'), eigenvalues as parts of the sum of their magnitudes, the largest first
    negative: Tensor  # shape: (S,), the part of the negative ones in that sum
    inequality: Tensor  # shape: (S,), Gini coefficient of the diagonal
    correlation: Tensor  # shape: (S,), mean magnitude off the diagonal of the cosines; of beta 1 they are correlations
    correlations: Tensor  # shape: (C', C'), their mean with signs, NaN for features that are silent in all samples

    @property
    def effective_rank(self) -> Tensor:  # shape: (S,)
        """See :func:`powerpool.analysis.measures.effective_rank`."""
        return effective_rank(self.spectra)

    @property
    def participation_ratio(self) -> Tensor:  # shape: (S,)
        """See :func:`powerpool.analysis.measures.participation_ratio`."""
        return participation_ratio(self.spectra)

    def values(self, relation: str = "cosine") -> dict[str, Tensor]:
        """Every number of a sample, by its name in the table.

        Args:
            relation: what the matrix with its diagonal scaled to 1 is called, see :attr:`Inspection.relation`.
        """
        counts = [count for count in COUNTS if count < self.spectra.shape[1]]
        return {
            "effective rank": self.effective_rank,
            "participation ratio": self.participation_ratio,
            **{_first(count): leading_share(self.spectra, count) for count in counts},
            "inequality of features (Gini)": self.inequality,
            f"mean |{relation}| of features": self.correlation,
            "negative part of the spectrum": self.negative,
        }


@dataclass(frozen=True, eq=False)
class Inspection:
    """Feature sets of samples before and after the normalization of a pool; see ``docs/inspect.md``."""

    source: str
    """Where the samples are from, in words."""
    normalization: Normalization
    channels: int
    """C', with coordinates."""
    locations: tuple[int, ...]
    """N of every sample."""
    skipped: int
    """Samples that were left out: all their features are 0, or the curve leaves a matrix of zeros."""
    before: Side
    after: Side | None
    """None where the pool is of first order."""
    burstiness: Tensor  # shape: (C,), of every feature, see powerpool.analysis.measures.Repetition
    suggestions: dict[Mode, Suggestion]
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """S, how many samples there are."""
        return len(self.locations)

    @property
    def has_few_samples(self) -> bool:
        """Whether there are too few for burstiness, which the number of samples bounds."""
        return self.samples < ENOUGH

    @property
    def suggestion(self) -> Suggestion:
        """The one for the way in which the pool applies its curve; for eigenvalues where there is none for it."""
        return self.suggestions["spectral" if self._known_curve is None else self.normalization.mode]

    @property
    def _known_curve(self) -> Curve | None:
        """The curve of the pool, if it is of second order and a parameter can be suggested for it."""
        own = self.normalization
        return None if own.is_first_order or own.curve is None or not Suggestion.knows(own.curve) else own.curve

    @property
    def relation(self) -> str:
        """What two features have over the locations of a sample: a correlation once their means are gone, as with
        beta 1, and a cosine otherwise."""
        return "correlation" if self.normalization.beta == 1 else "cosine"

    def table(self) -> list[tuple[str, str, str]]:
        """Rows of a measure, what it is before and what it is after: mean and standard deviation over samples."""
        after = {} if self.after is None else self.after.values(self.relation)
        rows = []
        for name, values in self.before.values(self.relation).items():
            other = after.get(name)
            both = [values] if other is None else [values, other]
            if name.startswith("negative") and not any(bool((one > 0).any()) for one in both):
                continue
            if name.startswith("trace") and all(float(one.mean()) > ALL for one in both):
                continue
            rows.append((name, _mean(values, name), "-" if other is None else _mean(other, name)))
        return [*rows, ("burstiness of features (median)", *self._burstiness())]

    def parameters(self) -> list[tuple[str, str, str, str]]:
        """Rows of a curve, its parameter, what is suggested on the spectrum, and entry by entry."""
        example: dict[type[Curve], Curve] = {kind: kind(1.0) for kind in CURVES}  # type: ignore[call-arg]
        spectral, elementwise = (self.suggestions[mode] for mode in COLUMNS)
        return [
            (kind.__name__, curve.parameter_name, _suggested(spectral, curve), _suggested(elementwise, curve))
            for kind, curve in example.items()
        ]

    def advice(self) -> str:
        """What is suggested for the curve of the pool, beside what it has, and why, in a few sentences."""
        own, found, curve = self.normalization, self.suggestion, self._known_curve
        if curve is None:
            said = f"MaxExp with eta {found.eta:g} on the spectrum, or what stands for it in the table of parameters"
        else:
            given = "" if own.parameter is None else f" instead of {own.parameter:g}"
            low, high = found.range_of(curve)
            value, ends = _printed(found.of(curve), curve), f"{_printed(low, curve)} to {_printed(high, curve)}"
            said = f"{type(curve).__name__} with {curve.parameter_name} {value}{given}"
            if own.parameter is not None and low <= own.parameter <= high:
                said = f"{curve.parameter_name} {own.parameter:g}, as it is, or {value}"
            said += f"; search {ends}"
            if _has_none(found, curve):
                said = f"no {curve.parameter_name}, since {type(curve).__name__} with any changes the spectrum"
        return f"Suggestion: {said}. {found.reason} {ADVICE}"

    def to_dict(self) -> dict[str, Any]:
        """Means and deviations, the measures of every sample, and mean spectra, as JSON can hold them."""
        sides = {"before": self.before, **({} if self.after is None else {"after": self.after})}
        own = self.normalization
        return {
            "source": self.source,
            "pool": own.describe(),
            "curve": None if own.curve is None else type(own.curve).__name__,
            "parameter": own.parameter,
            "mode": None if own.curve is None else own.mode,
            "beta": own.beta,
            "eps": own.eps,
            "trace_power": own.trace_power,
            "slope": own.slope,
            "order": 1 if own.is_first_order else 2,
            "samples": self.samples,
            "skipped": self.skipped,
            "channels": self.channels,
            "locations": list(self.locations),
            **{name: _side(side, self.relation) for name, side in sides.items()},
            "burstiness": _plain(self.burstiness),
            "suggestions": {
                mode: {
                    name: round_off(value) if isinstance(value, float) else value
                    for name, value in found.to_dict().items()
                }
                for mode, found in self.suggestions.items()
            },
            "advice": self.advice(),
            "notes": list(self.notes),
        }

    def markdown(self, pictures: Sequence[Path] = ()) -> str:
        """The tables and the advice as a page."""
        blocks: list[Block] = [
            Heading("What the pooling sees", 1),
            Text(self.headline()),
            *([Items(self.notes)] if self.notes else []),
            Table(("measure", "before", "after"), self.table()),
            Text(self.advice()),
            Table(("curve", "parameter", "on the spectrum", "entry by entry"), self.parameters()),
            *(Picture(path.stem, path) for path in pictures),
        ]
        return markdown(blocks)

    def headline(self) -> str:
        """Which samples, which pool, how large."""
        low, high = min(self.locations), max(self.locations)
        sizes = f"{low}" if low == high else f"{low} to {high}"
        return (
            f"{self.normalization.describe()}. {self.samples} samples of {self.source}, {self.channels} channels, "
            f"{sizes} locations."
        )

    def write(self, folder: str | Path, *, pictures: bool = True) -> list[Path]:
        """Write ``inspection.json``, ``inspection.md``, ``samples.csv``, ``spectra.csv`` and the pictures.

        Args:
            folder: is made where it is missing.
            pictures: whether to draw, which needs matplotlib.

        Returns:
            The files.
        """
        folder = Path(folder)
        drawn = draw_pictures(self, folder) if pictures else []
        texts = {
            "inspection.md": self.markdown([path for path in drawn if path.suffix == ".png"]),
            "samples.csv": self._samples_csv(),
            "spectra.csv": self._spectra_csv(),
        }
        for name, text in texts.items():
            write_text(folder / name, text)
        write_json(folder / "inspection.json", self.to_dict())
        return [folder / "inspection.json", *(folder / name for name in texts), *drawn]

    def _burstiness(self) -> tuple[str, str]:
        known = self.burstiness[~self.burstiness.isnan()]
        if not len(known) or self.has_few_samples:
            return "-", "-"
        low, middle, high = (float(known.quantile(at)) for at in (0.1, 0.5, 0.9))
        return f"{middle:.2f} ({low:.2f} to {high:.2f})", "-"

    def _samples_csv(self) -> str:
        sides = {
            "before": self.before.values(self.relation),
            "after": {} if self.after is None else self.after.values(self.relation),
        }
        columns = {f"{name}, {side}": values for side, found in sides.items() for name, values in found.items()}
        rows = zip(self.locations, *(_plain(values) for values in columns.values()), strict=True)
        return _csv(["sample", "locations", *columns], [(number, *row) for number, row in enumerate(rows)])

    def _spectra_csv(self) -> str:
        sides = {"before": self.before, **({} if self.after is None else {"after": self.after})}
        columns = {
            f"{side}, {name}": values
            for side, found in sides.items()
            for name, values in (("mean", found.spectra.mean(0)), ("std", found.spectra.std(0, correction=0)))
        }
        rows = zip(*(_plain(values) for values in columns.values()), strict=True)
        return _csv(["eigenvalue", *columns], [(number, *row) for number, row in enumerate(rows, 1)])


COLUMNS: tuple[Mode, Mode] = ("spectral", "elementwise")
"""Of the table of parameters."""


def round_off(value: float) -> float:
    """A number with the digits of a file."""
    return float(f"{value:.{DIGITS}g}")


def _first(count: int) -> str:
    return "trace in the first eigenvalue" if count == 1 else f"trace in the first {count}"


def _is_part(name: str) -> bool:
    return name.startswith(("trace in", "negative"))


def _mean(values: Tensor, name: str) -> str:
    factor, digits, unit = (100, 1, " %") if _is_part(name) else (1, 2, "")
    mean, deviation = float(values.mean()) * factor, float(values.std(correction=0)) * factor
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}{unit}"


def _suggested(found: Suggestion, curve: Curve) -> str:
    if _has_none(found, curve):
        return "-"
    low, high = found.range_of(curve)
    return f"{_printed(found.of(curve), curve)} ({_printed(low, curve)} to {_printed(high, curve)})"


def _printed(value: float, curve: Curve) -> str:
    """Three digits; of FAHDP all that its t has, which are few: they decide on the exponent."""
    return f"{value:.{DIGITS if isinstance(curve, FAHDP) else 3}g}"


def _has_none(found: Suggestion, curve: Curve) -> bool:
    """Where nothing is to be changed, HDP has no t that does so."""
    return isinstance(curve, HDP) and found.eta == 1


def _side(side: Side, relation: str) -> dict[str, Any]:
    return {
        **{
            name: {
                "mean": round_off(float(values.mean())),
                "std": round_off(float(values.std(correction=0))),
                "values": _plain(values),
            }
            for name, values in side.values(relation).items()
        },
        "mean spectrum": _plain(side.spectra.mean(0)),
    }


def _plain(values: Tensor) -> list[float | None]:
    return [None if value != value else round_off(value) for value in values.tolist()]


def _csv(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue()
