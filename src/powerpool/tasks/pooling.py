"""The input of a pool and its normalization as values, and the spectra of pooled matrices before and after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from powerpool.checks import require_at_least, require_seed
from powerpool.curves import Curve
from powerpool.functional import Mode, second_order_pool
from powerpool.linalg.precision import at_least_float32
from powerpool.linalg.products import self_product
from powerpool.moments.dense import prepare
from powerpool.runs.folder import DataIdentity
from powerpool.runs.record import Spectrum
from powerpool.solvers import Solver

Split = Literal["train", "validation", "test"]
SAMPLES = 200
"""How many samples are analysed by default."""


class FeatureSet(NamedTuple):
    """The features of one image or graph as they enter a pool, and the coordinates that the pool appends."""

    features: Tensor  # shape: (C, N)
    coordinates: Tensor | None = None  # shape: (2Z, N)
    is_centred: bool = False
    """Whether beta was already applied."""


@dataclass(frozen=True, eq=False)
class Normalization:
    """The arguments of :func:`powerpool.second_order_pool` that a pool uses, and the name of the pool.

    A first-order pool has no matrix; its ``moment`` is the one that a second-order pool would have.

    Example:
        >>> import powerpool as pp
        >>> pool = Normalization("mine", pp.MaxExp(eta=2), eps=0.0)
        >>> features = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> pool.moment(features), pool.matrix(features)
        (tensor([[2., 0.],
                [0., 2.]], dtype=torch.float64), tensor([[0.7500, 0.0000],
                [0.0000, 0.7500]], dtype=torch.float64))
    """

    name: str
    curve: Curve | None = None
    mode: Mode = "spectral"
    beta: float = 0.0
    solver: str | Solver = "auto"
    eps: float = 1e-6
    trace_power: float = 0.0
    slope: float = 0.0
    is_first_order: bool = False

    def moment(
        self,
        features: Tensor,  # shape: (C, N)
        coordinates: Tensor | None = None,  # shape: (2Z, N)
        is_centred: bool = False,
    ) -> Tensor:  # shape: (C', C')
        """Return the moment matrix in float64."""
        grid = None if coordinates is None else coordinates.double()
        sets = prepare(features.double(), 0.0 if is_centred else self.beta, grid, None, check=True)
        return self_product(sets.values, sets.number)

    def matrix(
        self,
        features: Tensor,  # shape: (C, N)
        coordinates: Tensor | None = None,  # shape: (2Z, N)
        is_centred: bool = False,
    ) -> Tensor:  # shape: (C', C')
        """Return the normalized matrix, computed by the solver of the pool."""
        found = second_order_pool(
            features,
            self.curve,
            self.mode,
            0.0 if is_centred else self.beta,
            coordinates,
            solver=self.solver,
            eps=self.eps,
            check=True,
            trace_power=self.trace_power,
            slope=self.slope,
        )
        return found.to(torch.float64)

    def describe(self) -> str:
        """Return a text such as ``SOP+SpecMaxExpF: MaxExp(eta=20.0) on the spectrum, beta 1``."""
        if self.is_first_order:
            return f"{self.name}: first order"
        if self.curve is None:
            text = "second order without a curve"
        else:
            text = f"{self.curve} {'on the spectrum' if self.mode == 'spectral' else 'entry by entry'}"
        terms = {"beta": self.beta, "trace power": self.trace_power, "slope": self.slope}
        return f"{self.name}: {text}" + "".join(f", {term} {value:g}" for term, value in terms.items() if value)

    @property
    def parameter(self) -> float | None:
        """The parameter of the curve; None without a curve, or with one parameter per channel."""
        if self.curve is None:
            return None
        value = self.curve.parameter
        if isinstance(value, Tensor):
            return float(value.detach()) if value.numel() == 1 else None
        return float(value)


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Which samples the model of a run is analysed on.

    Args:
        data: data to use instead of that of the run, all of it: a data set, or a folder or zip
        data_root: folder with data sets; default: that of the run
        split: which part of the run's own data to use. A parameter that is chosen on test data has seen the test
        samples: how many images or graphs to draw at random
        seed: of the draw
        download: allow downloads of data and weights that are not on this machine
    """

    data: str | None = None
    data_root: str | None = None
    split: Split = "train"
    samples: int = SAMPLES
    seed: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        require_at_least(1, "", samples=self.samples)
        require_seed(self.seed)

    def draw(self, rows: Tensor) -> Tensor:
        """Draw that many of the rows without replacement; the same ones for the same seed."""
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))
        return rows[order[: self.samples]]


@dataclass(frozen=True, eq=False)
class FeatureSource:
    """The feature sets of drawn samples, as the pool of a trained model gets them."""

    normalization: Normalization
    sets: Iterator[FeatureSet]
    """Computed while they are iterated over."""
    count: int
    """Number of samples."""
    name: str
    """A description of the samples, such as "the train graphs of MUTAG"."""
    data: DataIdentity | None = None
    """The data of the run, if the samples are from it."""


def normalization_of(name: str, pool: Any) -> Normalization:
    """Return the normalization of a second-order module from its attributes."""
    terms = {entry.name for entry in fields(Normalization)} - {"name", "is_first_order"}
    return Normalization(name, **{term: getattr(pool, term) for term in terms if hasattr(pool, term)})


def split_rows(x: Tensor, index: Tensor | None, ptr: Tensor | None = None) -> list[Tensor]:
    """Split rows by graph, in the order of the graphs; empty graphs are left out.

    Example:
        >>> [rows.flatten().tolist() for rows in split_rows(torch.arange(3.0)[:, None], torch.tensor([0, 1, 0]))]
        [[0.0, 2.0], [1.0]]
    """
    if index is None:
        sizes = torch.tensor([len(x)]) if ptr is None else ptr.diff()
        ordered = x
    else:
        sizes = index.bincount()
        ordered = x[index.argsort(stable=True)]
    return [rows for rows in ordered.split(sizes.tolist()) if len(rows)]


# ---- spectra ---------------------------------------------------------------------------------------------------------

SILENT = 1e-12
"""A moment below this share of the energy of the features is treated as zero."""
ONE_OF, FEWEST, MOST = 250, 16, 256
"""One in 250 test samples is analysed, but at least 16 and at most 256. Eigenvalues of 320 channels take seven times as
long as pooling without a curve: on a large set this stays below 3 % of the test."""
VALUES = 64
"""Number of eigenvalues that a record keeps."""
DIGITS = 4
"""Significant digits in records."""


def shares(values: Tensor) -> Tensor:  # shape: (*, C) -> (*, C)
    r"""Return magnitudes divided by their sum, the largest first: :math:`p_i = |\lambda_i| / \sum_j |\lambda_j|`.

    Example:
        >>> shares(torch.tensor([1.0, -1.0, 6.0]))
        tensor([0.7500, 0.1250, 0.1250])
    """
    magnitudes = values.abs().sort(-1, descending=True).values
    return magnitudes / magnitudes.sum(-1, keepdim=True)


def is_silent(features: Tensor, moment: Tensor) -> bool:  # shape: (C, N), (C', C')
    """Whether the moment holds only coordinates and round-off, as when all centred features are alike."""
    energy = features.double().square().sum() / features.shape[1]
    return bool(moment.diagonal()[: len(features)].sum() <= SILENT * energy)


def spread_out(count: int) -> Tensor:  # shape: (samples,)
    """Return the indices of the test samples to analyse, evenly spaced, because files are often sorted by class.

    Nothing is drawn at random, so no random state changes.

    Example:
        >>> spread_out(20).tolist()
        [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16, 17, 18]
        >>> len(spread_out(6149)), len(spread_out(50_000))
        (24, 200)
    """
    wanted = min(count, MOST, max(FEWEST, count // ONE_OF))
    return torch.arange(wanted) * count // max(wanted, 1)


def ranks(size: int) -> list[int]:
    """Return the ranks of the eigenvalues to keep, from 1: all, or a subset that is evenly spaced in the logarithm.

    Example:
        >>> ranks(3), len(ranks(351)), ranks(351)[-3:]
        ([1, 2, 3], 64, [308, 329, 351])
    """
    if size <= VALUES:
        return list(range(1, size + 1))
    found = [1]
    for left in range(VALUES - 1, 0, -1):
        last = found[-1]
        # The factor that reaches the end in the remaining steps, but at least the next rank.
        found.append(max(last + 1, round(last * (size / last) ** (1 / left))))
    return found


@torch.no_grad()
def mean_spectrum(normalization: Normalization, sets: Iterable[FeatureSet]) -> Spectrum | None:
    """Average the eigenvalue shares of pooled matrices over samples.

    Args:
        normalization: of the pool.
        sets: the features of each sample. Samples without energy have no spectrum and are skipped.

    Returns:
        The mean shares before and after normalization; None for a first-order pool, or if no sample has a spectrum.

    Example:
        >>> import powerpool as pp
        >>> pool = Normalization("mine", pp.MaxExp(eta=2), eps=0.0)
        >>> mean_spectrum(pool, [FeatureSet(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))])
        Spectrum(samples=1, size=2, ranks=(1, 2), before=(0.9, 0.1), after=(0.839, 0.161))
    """
    if normalization.is_first_order:
        return None
    found = []
    for one in sets:
        features = at_least_float32(one.features.detach()).cpu()
        coordinates = None if one.coordinates is None else one.coordinates.detach().to("cpu", features.dtype)
        given = FeatureSet(features, coordinates, one.is_centred)
        moment = normalization.moment(*given)
        if is_silent(features, moment):
            continue
        matrix = normalization.matrix(*given)
        if bool(matrix.any()):
            in_moment, in_matrix = _noise(features)
            found.append(torch.stack([_spectrum(moment, in_moment), _spectrum(matrix, in_matrix)]))
    if not found:
        return None
    before, after = torch.stack(found).mean(0)
    kept = ranks(len(before))
    first, second = (tuple(float(f"{float(mean[rank - 1]):.{DIGITS}g}") for rank in kept) for mean in (before, after))
    return Spectrum(len(found), len(before), tuple(kept), first, second)


def _spectrum(matrix: Tensor, noise: float) -> Tensor:  # shape: (C, C) -> (C,)
    """Return the shares of the eigenvalues; those up to ``noise`` times the largest count as 0."""
    values = torch.linalg.eigvalsh(matrix)
    return shares(torch.where(values.abs() > noise * values.abs().max(), values, 0.0))


def _noise(features: Tensor) -> tuple[float, float]:  # shape: (C, N)
    """Return the round-off of zero eigenvalues relative to the largest: in the moment, and in the matrix.

    The moment is computed in float64 from squared features, the matrix in the dtype of the features.
    """
    size, eps = len(features), torch.finfo(features.dtype).eps
    return size * max(eps**2, torch.finfo(torch.float64).eps), size**0.5 * eps
