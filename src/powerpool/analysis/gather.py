"""Analysis of given features, and of those that the model of a run pools.

Feature sets are added one by one; only their spectra, a few numbers, and sums of matrices are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from powerpool import curves
from powerpool.analysis.measures import Repetition, correlations, gini, mean_correlation
from powerpool.analysis.result import Inspection, Side
from powerpool.analysis.suggestion import Suggestion, suggest
from powerpool.checks import require_at_least, require_features
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, RecordError, ShapeError, require_choice
from powerpool.functional import MODES, Mode
from powerpool.linalg.precision import at_least_float32
from powerpool.runs.folder import CONFIG, is_data_of, read_task
from powerpool.solvers import Solver
from powerpool.tasks.base import TASKS, get_task
from powerpool.tasks.pooling import SAMPLES, FeatureSet, FeatureSource, Normalization, Samples, is_silent, shares

FEWEST_ACTIVE = 5
"""Burstiness is reported for features that are active in at least this many samples."""
DEFAULT = Samples()


def inspect_features(
    features: Tensor | Sequence[Tensor],
    curve: Curve | str | None = None,
    mode: Mode = "spectral",
    *,
    beta: float = 0.0,
    coordinates: Tensor | None = None,  # shape: (2Z, N)
    solver: str | Solver = "auto",
    eps: float = 1e-6,
    trace_power: float = 0.0,
    slope: float = 0.0,
) -> Inspection:
    """Analyse features before and after second-order pooling with a normalization.

    Args:
        features: ``(S, C, N)``, maps ``(S, C, H, W)``, or a list of ``(C, N_s)``; one set for each sample.
        curve: a curve, its name, or None for second-order pooling without a curve.
        mode, beta, coordinates, solver, eps, trace_power, slope: see :func:`powerpool.second_order_pool`.

    Example:
        >>> import torch, powerpool as pp
        >>> found = inspect_features(torch.eye(4).expand(3, 4, 4), pp.MaxExp(eta=4))  # four equal eigenvalues
        >>> found.before.effective_rank, found.suggestion.eta
        (tensor([4., 4., 4.], dtype=torch.float64), 4.0)
    """
    require_choice(mode, MODES, "mode")
    own = None if curve is None else curves.resolve(curve)
    name = "SOP" if own is None else f"SOP+{'Spec' if mode == 'spectral' else ''}{type(own).__name__}"
    sets = _split_samples(features)
    normalization = Normalization(name, own, mode, beta, solver, eps, trace_power, slope)
    gathering = Gathering(normalization, max(1, len(sets)))
    gathering.extend(FeatureSet(one, coordinates) for one in sets)
    return gathering.result("the given features")


def inspect_run(
    folder: str | Path, which: Samples = DEFAULT, watch: Callable[[int], None] = lambda done: None
) -> Inspection:
    """Analyse the features that the model of a run pools, before and after its normalization.

    Args:
        folder: the run folder of ``powerpool train``, of any task.
        which: the samples to use.
        watch: called with the number of samples that are done.
    """
    return inspect_source(folder, open_source(folder, which), watch)


def open_source(folder: str | Path, which: Samples = DEFAULT) -> FeatureSource:
    """Load the model of a run and draw the samples; features are computed later."""
    task = read_task(folder, TASKS)
    if which.data is None and not Path(folder, CONFIG).is_file():
        raise RecordError(f"{folder} contains no {CONFIG}, which names the data of the run. Name data with --data.")
    return get_task(task).feature_source(Path(folder), which)


def inspect_source(folder: str | Path, source: FeatureSource, watch: Callable[[int], None]) -> Inspection:
    """Compute and analyse the features of a source."""
    gathering = Gathering(source.normalization, max(1, source.count))
    with torch.no_grad():
        for one in source.sets:
            gathering.add(one)
            watch(gathering.seen)
    notes = []
    if source.data is not None and not is_data_of(folder, source.data.digest):
        notes.append(
            f"{source.data.name} has changed since the run was trained, so the splits may contain other samples."
        )
    return gathering.result(source.name, notes)


class Gathering:
    """Collects feature sets up to a number of samples.

    Args:
        normalization: of the pool that the features are for.
        samples: how many to take; further ones are ignored.
    """

    def __init__(self, normalization: Normalization, samples: int = SAMPLES) -> None:
        require_at_least(1, "", samples=samples)
        self.normalization, self.samples = normalization, samples
        self._before, self._after = _Matrices(), _Matrices()
        self._diagonals: list[Tensor] = []
        self._traces: list[Tensor] = []
        self._locations: list[int] = []
        self._repetition: Repetition | None = None
        self._channels = 0
        self.seen = 0

    @property
    def is_full(self) -> bool:
        """Whether there are enough samples."""
        return self.seen >= self.samples

    def extend(self, sets: Iterable[FeatureSet]) -> None:
        """Add sets until there are enough."""
        for one in sets:
            if self.is_full:
                return
            self.add(one)

    @torch.no_grad()
    def add(self, one: FeatureSet) -> None:
        """Add a set. A set without energy has no spectrum: it is counted and skipped."""
        features = at_least_float32(one.features.detach()).cpu()
        coordinates = None if one.coordinates is None else one.coordinates.detach().to("cpu", features.dtype)
        require_features(features)
        if features.ndim != 2:
            raise ShapeError(f"A feature set must have the shape (C, N) (got {tuple(features.shape)}).")
        if self._repetition is None:
            self._repetition, self._channels = Repetition(len(features)), len(features)
        if len(features) != self._channels:
            raise ShapeError(
                f"All feature sets must have the same number of channels (got {len(features)} after {self._channels})."
            )
        self.seen += 1
        prepared, pool = FeatureSet(features, coordinates, one.is_centred), self.normalization
        moment = pool.moment(*prepared)
        matrix = None if pool.is_first_order else pool.matrix(*prepared)
        if is_silent(features, moment) or (matrix is not None and not bool(matrix.any())):
            return
        self._repetition.add(features)
        self._before.add(moment)
        if matrix is not None:
            self._after.add(matrix)
        diagonal = moment.diagonal()
        self._diagonals.append(shares(diagonal))
        self._traces.append(diagonal.sum())
        self._locations.append(features.shape[1])

    def result(self, source: str, notes: Sequence[str] = ()) -> Inspection:
        """Return the measures and suggestions.

        Args:
            source: a description of the samples.
            notes: remarks for the reader.
        """
        centred = self.normalization.beta == 1
        cause = " With beta 1 that is every set of one location, or of locations that are alike." if centred else ""
        if not self._locations or self._repetition is None:
            remedy = "Use a smaller beta." if centred else "Give the model data such as it was trained on."
            raise ArgumentError(
                f"None of the {self.seen} samples of {source} has features with energy before and after the curve: "
                f"all are zero.{cause} {remedy}"
            )
        before, trace = self._before.side(), torch.stack(self._traces)
        skipped, remarks, curve = self.seen - len(self._locations), list(notes), self.normalization.curve
        if skipped:
            remarks.append(
                f"{skipped} of {self.seen} samples were skipped: their features or matrices are all zero.{cause}"
            )
        if curve is not None and not Suggestion.knows(curve):
            remarks.append(f"No parameter can be suggested for {type(curve).__name__}, which is a custom curve.")
        return Inspection(
            source=source,
            normalization=self.normalization,
            channels=before.spectra.shape[1],
            locations=tuple(self._locations),
            skipped=skipped,
            before=before,
            after=None if self.normalization.is_first_order else self._after.side(),
            burstiness=self._repetition.value(FEWEST_ACTIVE),
            suggestions={
                "spectral": suggest(before.spectra, trace, "spectral"),
                "elementwise": suggest(torch.stack(self._diagonals), trace, "elementwise"),
            },
            notes=tuple(remarks),
        )


class _Matrices:
    """Spectra and numbers of matrices, and the sum of their correlations."""

    def __init__(self) -> None:
        self._spectra: list[Tensor] = []
        self._numbers: list[Tensor] = []
        self._total = self._known = torch.zeros(())

    def add(self, matrix: Tensor) -> None:  # shape: (C', C')
        eigenvalues, correlation = torch.linalg.eigvalsh(matrix), correlations(matrix)
        # Negative eigenvalues of a moment are round-off. Element-wise curves can leave larger ones.
        size = eigenvalues.abs().sum()
        noise = len(matrix) * torch.finfo(torch.float32).eps * eigenvalues.abs().max()
        negative = -eigenvalues[eigenvalues < -noise].sum() / size
        inequality = gini(matrix.diagonal().clamp(min=0))
        self._spectra.append(shares(eigenvalues))
        self._numbers.append(torch.stack([negative, inequality, mean_correlation(correlation)]))
        known = ~correlation.isnan()
        self._total = self._total + torch.where(known, correlation, 0.0)
        self._known = self._known + known

    def side(self) -> Side:
        negative, inequality, correlation = torch.stack(self._numbers).unbind(1)
        return Side(torch.stack(self._spectra), negative, inequality, correlation, self._total / self._known)


def _split_samples(features: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """Return one (C, N) tensor for each sample."""
    if not isinstance(features, Tensor):
        return features
    if features.ndim not in (3, 4):
        raise ShapeError(
            "features must have the shape (S, C, N) or (S, C, H, W), or be a list of (C, N) tensors "
            f"(got {tuple(features.shape)})."
        )
    return list(features.flatten(2) if features.ndim == 4 else features)
