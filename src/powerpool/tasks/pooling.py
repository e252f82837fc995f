"""The input of a pool and its normalization as values, for tests of trained models and their analysis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from powerpool.checks import require_at_least, require_seed
from powerpool.curves import Curve
from powerpool.functional import Mode, second_order_pool
from powerpool.linalg.products import self_product
from powerpool.moments.dense import prepare
from powerpool.runs.folder import DataIdentity
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
        return self_product(sets.values) / sets.number

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
