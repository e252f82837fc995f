"""The result of an analysis: measures of every sample, tables of their means, and files of both."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from powerpool.analysis.measures import effective_rank, leading_share, participation_ratio
from powerpool.analysis.plots import draw_plots
from powerpool.analysis.suggestion import CURVES, Suggestion
from powerpool.curves import FAHDP, HDP, Curve, MaxExp
from powerpool.files import csv_text, write_json, write_text
from powerpool.functional import Mode
from powerpool.report.tables import Table, escaped
from powerpool.tasks.pooling import Normalization

COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Numbers of leading eigenvalues whose share of the trace is measured."""
ALL = 0.9995
"""Shares of the trace from here on are left out of the table."""
FEWEST_SAMPLES = 20
"""Burstiness is shown from this number of samples on, because it cannot exceed that number."""
DIGITS = 6
"""Significant digits in files."""
FIRST_ORDER = (
    "A first-order pool has no matrix. The table describes the matrix that second-order pooling of the same features "
    "would normalize."
)


@dataclass(frozen=True, eq=False)
class Side:
    """The matrices of all samples, before or after the curve."""

    spectra: Tensor  # shape: (S, C'), eigenvalues divided by the sum of their magnitudes, the largest first
    negative: Tensor  # shape: (S,), the share of negative eigenvalues in that sum
    inequality: Tensor  # shape: (S,), Gini coefficient of the diagonal
    correlation: Tensor  # shape: (S,), mean magnitude of the cosines (beta = 1: correlations) of pairs of features
    correlations: Tensor  # shape: (C', C'), their signed mean over samples; NaN for features without energy

    @property
    def effective_rank(self) -> Tensor:  # shape: (S,)
        """See :func:`powerpool.analysis.measures.effective_rank`."""
        return effective_rank(self.spectra)

    @property
    def participation_ratio(self) -> Tensor:  # shape: (S,)
        """See :func:`powerpool.analysis.measures.participation_ratio`."""
        return participation_ratio(self.spectra)

    def values(self, relation: str = "cosine") -> dict[str, Tensor]:
        """Return every measure of a sample by its name in the table.

        Args:
            relation: see :attr:`Inspection.relation`.
        """
        counts = [count for count in COUNTS if count < self.spectra.shape[1]]
        return {
            "effective rank": self.effective_rank,
            "participation ratio": self.participation_ratio,
            **{
                f"trace in the first {'eigenvalue' if count == 1 else count}": leading_share(self.spectra, count)
                for count in counts
            },
            "inequality of features (Gini)": self.inequality,
            f"mean |{relation}| of features": self.correlation,
            "negative part of the spectrum": self.negative,
        }


@dataclass(frozen=True, eq=False)
class Inspection:
    """Features of samples before and after the normalization of a pool; see ``docs/inspect.md``."""

    source: str
    """A description of the samples."""
    normalization: Normalization
    channels: int
    """C', including coordinates."""
    locations: tuple[int, ...]
    """N of every sample."""
    skipped: int
    """Number of skipped samples, whose features or normalized matrices are all zero."""
    before: Side
    after: Side | None
    """None for a first-order pool."""
    burstiness: Tensor  # shape: (C,), of every feature, see powerpool.analysis.measures.Repetition
    suggestions: dict[Mode, Suggestion]
    notes: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """S, the number of samples."""
        return len(self.locations)

    @property
    def sides(self) -> dict[str, Side]:
        """``before``, and ``after`` for a second-order pool."""
        return {"before": self.before} if self.after is None else {"before": self.before, "after": self.after}

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and an explanation of the tables of a first-order pool."""
        return self.notes if self.after is not None else (FIRST_ORDER, *self.notes)

    @property
    def has_few_samples(self) -> bool:
        """Whether there are too few samples for burstiness."""
        return self.samples < FEWEST_SAMPLES

    @property
    def suggestion(self) -> Suggestion:
        """The suggestion for the mode of the pool; for eigenvalues if it has no curve that is known."""
        return self.suggestions["spectral" if self._known_curve is None else self.normalization.mode]

    @property
    def _known_curve(self) -> Curve | None:
        own = self.normalization
        return None if own.is_first_order or own.curve is None or not Suggestion.knows(own.curve) else own.curve

    @property
    def relation(self) -> str:
        """The name of the scaled off-diagonal entries: "correlation" for beta = 1, otherwise "cosine"."""
        return "correlation" if self.normalization.beta == 1 else "cosine"

    def table(self) -> list[tuple[str, str, str]]:
        """Return rows of a measure, its value before and its value after: mean and standard deviation over samples."""
        values = {side: found.values(self.relation) for side, found in self.sides.items()}
        rows = []
        for name in values["before"]:
            found = [measures[name] for measures in values.values()]
            is_trivial = (name.startswith("negative") and not any(bool((one > 0).any()) for one in found)) or (
                name.startswith("trace") and all(float(one.mean()) > ALL for one in found)
            )
            if not is_trivial:
                texts = [_mean_text(one, name) for one in found]
                rows.append((name, texts[0], "-" if self.after is None else texts[1]))
        return [*rows, ("burstiness of features (median)", self._burstiness_text(), "-")]

    def parameters(self) -> list[tuple[str, str, str, str]]:
        """Return rows of a curve, its parameter, the value for the spectrum, and the value for entries."""
        rows = []
        for kind in CURVES:
            curve = kind(1.0)  # type: ignore[call-arg]
            values = [_range_text(self.suggestions[mode], curve) for mode in ("spectral", "elementwise")]
            rows.append((kind.__name__, curve.parameter_name, values[0], values[1]))
        return rows

    def advice(self) -> str:
        """Return the suggestion for the curve of the pool, the reason, and a caveat: three sentences."""
        found, curve, current = self.suggestion, self._known_curve, self.normalization.parameter
        known = MaxExp(1.0) if curve is None else curve
        low, high = found.range_of(known)
        value, low_text, high_text = (_number_text(one, known) for one in (found.of(known), low, high))
        search = f", search {low_text} to {high_text}"
        if curve is None:
            text = f"MaxExp with eta {value} on the spectrum{search}"
        elif _has_no_identity(found, curve):
            text = f"no curve, as every {curve.parameter_name} of {type(curve).__name__} changes the spectrum"
        elif current is not None and low <= current <= high:
            text = f"keep {curve.parameter_name} {current:g} or try {value}{search}"
        else:
            instead = "" if current is None else f" instead of {current:g}"
            text = f"{type(curve).__name__} with {curve.parameter_name} {value}{instead}{search}"
        caveat = "This is a starting point for a search, not an optimum: no labels are used."
        return f"Suggestion: {text}. {found.reason} {caveat}"

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain values: measures of every sample with their means, and mean spectra."""
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
            **{name: _side_to_dict(side, self.relation) for name, side in self.sides.items()},
            "burstiness": _plain(self.burstiness),
            "suggestions": {
                mode: {
                    name: _round(value) if isinstance(value, float) else value
                    for name, value in found.to_dict().items()
                }
                for mode, found in self.suggestions.items()
            },
            "advice": self.advice(),
            "notes": list(self.notes),
        }

    def markdown(self, plots: Sequence[Path] = ()) -> str:
        """Return the tables and the advice as a Markdown page, with these plots."""
        parts = [
            "# Features before and after pooling",
            escaped(self.headline()),
            "\n".join(f"- {escaped(note)}" for note in self.remarks),
            Table(("measure", "before", "after"), self.table()).as_markdown(),
            escaped(self.advice()),
            Table(("curve", "parameter", "on the spectrum", "entry by entry"), self.parameters()).as_markdown(),
            *(f"![{path.stem}]({path.name})" for path in plots),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    def headline(self) -> str:
        """Return the pool, the samples and the sizes as one line."""
        low, high = min(self.locations), max(self.locations)
        sizes = f"{low}" if low == high else f"{low} to {high}"
        return (
            f"{self.normalization.describe()}. {self.samples} samples of {self.source}, {self.channels} channels, "
            f"{sizes} locations."
        )

    def write(self, folder: str | Path, *, plots: bool = True, pictures: bool | None = None) -> list[Path]:
        """Write ``inspection.json``, ``inspection.md``, ``samples.csv``, ``spectra.csv`` and the plots.

        Args:
            folder: created if it is missing.
            plots: whether to draw plots, which needs matplotlib.
            pictures: the old name of ``plots``.

        Returns:
            The files.
        """
        if pictures is not None:
            warnings.warn("pictures is now plots.", DeprecationWarning, stacklevel=2)
            plots = pictures
        folder = Path(folder)
        drawn = draw_plots(self, folder) if plots else []
        texts = {
            "inspection.md": self.markdown([path for path in drawn if path.suffix == ".png"]),
            "samples.csv": self._samples_csv(),
            "spectra.csv": self._spectra_csv(),
        }
        for name, text in texts.items():
            write_text(folder / name, text)
        write_json(folder / "inspection.json", self.to_dict())
        return [folder / "inspection.json", *(folder / name for name in texts), *drawn]

    def _burstiness_text(self) -> str:
        known = self.burstiness[~self.burstiness.isnan()]
        if not len(known) or self.has_few_samples:
            return "-"
        low, middle, high = (float(known.quantile(at)) for at in (0.1, 0.5, 0.9))
        return f"{middle:.2f} ({low:.2f} to {high:.2f})"

    def _samples_csv(self) -> str:
        columns: dict[str, Sequence[Any]] = {"sample": range(self.samples), "locations": self.locations}
        for side, found in self.sides.items():
            for name, values in found.values(self.relation).items():
                columns[f"{name}, {side}"] = _plain(values)
        return _columns_text(columns)

    def _spectra_csv(self) -> str:
        columns: dict[str, Sequence[Any]] = {"eigenvalue": range(1, self.channels + 1)}
        for side, found in self.sides.items():
            columns[f"{side}, mean"] = _plain(found.spectra.mean(0))
            columns[f"{side}, std"] = _plain(found.spectra.std(0, correction=0))
        return _columns_text(columns)


def _mean_text(values: Tensor, name: str) -> str:
    factor, digits, unit = (100, 1, " %") if name.startswith(("trace in", "negative")) else (1, 2, "")
    mean, deviation = float(values.mean()) * factor, float(values.std(correction=0)) * factor
    return f"{mean:.{digits}f} ± {deviation:.{digits}f}{unit}"


def _range_text(found: Suggestion, curve: Curve) -> str:
    if _has_no_identity(found, curve):
        return "-"
    low, high = found.range_of(curve)
    return f"{_number_text(found.of(curve), curve)} ({_number_text(low, curve)} to {_number_text(high, curve)})"


def _number_text(value: float, curve: Curve) -> str:
    """Format a parameter with three digits; the t of FAHDP with all of its few digits, which decide its exponent."""
    return f"{value:.{DIGITS if isinstance(curve, FAHDP) else 3}g}"


def _has_no_identity(found: Suggestion, curve: Curve) -> bool:
    """Whether nothing should change (eta = 1), which no t of HDP can do."""
    return isinstance(curve, HDP) and found.eta == 1


def _side_to_dict(side: Side, relation: str) -> dict[str, Any]:
    measures: dict[str, Any] = {}
    for name, values in side.values(relation).items():
        mean, deviation = float(values.mean()), float(values.std(correction=0))
        measures[name] = {"mean": _round(mean), "std": _round(deviation), "values": _plain(values)}
    return {**measures, "mean spectrum": _plain(side.spectra.mean(0))}


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _plain(values: Tensor) -> list[float | None]:
    """Return rounded numbers; None for NaN, which JSON does not have."""
    return [None if value != value else _round(value) for value in values.tolist()]


def _columns_text(columns: dict[str, Sequence[Any]]) -> str:
    return csv_text([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])
