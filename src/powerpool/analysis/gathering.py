"""Feature sets go in one after the other; what is kept of them is small."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from powerpool import curves
from powerpool.analysis.measures import Repetition, correlations, gini, mean_correlation
from powerpool.analysis.result import Inspection, Side
from powerpool.analysis.suggestion import Suggestion, suggest
from powerpool.checks import require_at_least, require_features
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError, require_choice
from powerpool.functional import MODES, Mode
from powerpool.linalg.precision import at_least_float32
from powerpool.solvers import Solver
from powerpool.tasks.pooling import FeatureSet, Normalization
from powerpool.tasks.spectra import is_silent, shares

SAMPLES = 200
"""How many samples are looked at where nobody says."""
FIRED = 5
"""In how many samples a feature has to fire for its burstiness to be told."""


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
    """What second-order pooling sees in features, and what a normalization does to it.

    Args:
        features: ``(S, C, N)``, maps ``(S, C, H, W)``, or a list of ``(C, N_s)``; one set for each sample.
        curve: a curve, its name, or None for plain second-order pooling.
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
    gathering = Gathering(
        Normalization(name, own, mode, beta, solver, eps, trace_power, slope), max(1, len(_sets(features)))
    )
    gathering.extend(FeatureSet(one, coordinates) for one in _sets(features))
    return gathering.result("the features given")


class Gathering:
    """Takes feature sets until it has as many as it wants.

    Args:
        normalization: of the pool that they go into.
        samples: how many to take; further ones are left out.
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
        """Whether there are enough."""
        return self.seen >= self.samples

    def extend(self, sets: Iterable[FeatureSet]) -> None:
        """Add sets until there are enough."""
        for one in sets:
            if self.is_full:
                return
            self.add(one)

    @torch.no_grad()
    def add(self, one: FeatureSet) -> None:
        """Add a set. One without any energy is counted and left out: it has no spectrum."""
        features = at_least_float32(one.features.detach()).cpu()
        coordinates = None if one.coordinates is None else one.coordinates.detach().to("cpu", features.dtype)
        require_features(features)
        if features.ndim != 2:
            raise ShapeError(f"A set of features has the shape (C, N) (got {tuple(features.shape)}).")
        if self._repetition is None:
            self._repetition, self._channels = Repetition(len(features)), len(features)
        if len(features) != self._channels:
            raise ShapeError(
                f"All sets must have the same channels (got {len(features)} after {self._channels}). Look at the pools "
                "of a model one after the other."
            )
        self.seen += 1
        prepared, own = FeatureSet(features, coordinates, one.is_centred), self.normalization
        moment = own.moment(*prepared)
        matrix = None if own.is_first_order else own.matrix(*prepared)
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
        """What was found.

        Args:
            source: where the samples are from, in words.
            notes: what a reader has to know beside.
        """
        if not self._locations or self._repetition is None:
            raise ArgumentError(
                f"There is nothing to look at: of {self.seen} samples of {source}, none has features with any energy "
                "before and after the curve. Give the model data as it was trained on."
            )
        before, trace = self._before.side(), torch.stack(self._traces)
        skipped = self.seen - len(self._locations)
        said, curve = list(notes), self.normalization.curve
        if skipped:
            said.append(f"{skipped} samples were left out: they have no features, or none that the curve keeps.")
        if curve is not None and not Suggestion.knows(curve):
            said.append(f"{type(curve).__name__} is a curve of your own, for which no parameter can be suggested.")
        return Inspection(
            source=source,
            normalization=self.normalization,
            channels=before.spectra.shape[1],
            locations=tuple(self._locations),
            skipped=skipped,
            before=before,
            after=None if self.normalization.is_first_order else self._after.side(),
            burstiness=self._repetition.value(FIRED),
            suggestions={
                "spectral": suggest(before.spectra, trace, "spectral"),
                "elementwise": suggest(torch.stack(self._diagonals), trace, "elementwise"),
            },
            notes=tuple(said),
        )


class _Matrices:
    """What is kept of one matrix after the other."""

    def __init__(self) -> None:
        self._spectra: list[Tensor] = []
        self._numbers: list[Tensor] = []
        self._total: Tensor | None = None
        self._known: Tensor | None = None

    def add(self, matrix: Tensor) -> None:  # shape: (C', C')
        eigenvalues, correlation = torch.linalg.eigvalsh(matrix), correlations(matrix)
        # A moment is positive: what is below 0 is round-off there, and tiny. A curve of entries may leave more.
        size = eigenvalues.abs().sum()
        noise = len(matrix) * torch.finfo(torch.float32).eps * eigenvalues.abs().max()
        negative = -eigenvalues[eigenvalues < -noise].sum() / size
        self._spectra.append(shares(eigenvalues))
        self._numbers.append(
            torch.stack([negative, gini(matrix.diagonal().clamp(min=0)), mean_correlation(correlation)])
        )
        known = ~correlation.isnan()
        filled = torch.where(known, correlation, 0.0)
        self._total = filled if self._total is None else self._total + filled
        self._known = known.double() if self._known is None else self._known + known

    def side(self) -> Side:
        assert self._total is not None
        assert self._known is not None
        negative, inequality, correlation = torch.stack(self._numbers).unbind(1)
        return Side(torch.stack(self._spectra), negative, inequality, correlation, self._total / self._known)


def _sets(features: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """One (C, N) tensor for each sample."""
    if not isinstance(features, Tensor):
        return features
    if features.ndim not in (3, 4):
        raise ShapeError(
            "features must have the shape (S, C, N) or (S, C, H, W), or be a list of (C, N) tensors "
            f"(got {tuple(features.shape)})."
        )
    return list(features.flatten(2) if features.ndim == 4 else features)
