"""What a pool is given and what it does to it, as values: features, the moment before its curve, the matrix after.

Tests of the pipelines and the inspection of trained models look at pools through it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor

from powerpool.curves import Curve
from powerpool.functional import Mode, second_order_pool
from powerpool.linalg.products import self_product
from powerpool.moments.dense import prepare
from powerpool.solvers import Solver


class FeatureSet(NamedTuple):
    """The features of one picture or graph as they enter a pool, and the coordinates that it appends."""

    features: Tensor  # shape: (C, N)
    coordinates: Tensor | None = None  # shape: (2Z, N)
    is_centred: bool = False
    """Whether the part of the mean that beta removes is gone already."""


@dataclass(frozen=True, eq=False)
class Normalization:
    """The arguments of :func:`powerpool.second_order_pool` that belong to a pool, and what the pool is called.

    A first-order pool has no matrix: what is looked at is the moment that a second-order pool would have of the same
    features.

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
        """M in float64: of centred features, with coordinates. Those that are centred already are not centred again."""
        grid = None if coordinates is None else coordinates.double()
        sets = prepare(features.double(), 0.0 if is_centred else self.beta, grid, None, check=True)
        return self_product(sets.values) / sets.number

    def matrix(
        self,
        features: Tensor,  # shape: (C, N)
        coordinates: Tensor | None = None,  # shape: (2Z, N)
        is_centred: bool = False,
    ) -> Tensor:  # shape: (C', C')
        """What the pool makes of it, computed as the pool does, by the solver of the pool."""
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
        """``SOP+SpecMaxExpF: MaxExp(eta=20.0) on the spectrum, beta 1``; what is 0 is left out."""
        if self.is_first_order:
            return f"{self.name}: first order"
        if self.curve is None:
            said = "second order without a curve"
        else:
            said = f"{self.curve} {'on the spectrum' if self.mode == 'spectral' else 'entry by entry'}"
        terms = {"beta": self.beta, "trace power": self.trace_power, "slope": self.slope}
        return f"{self.name}: {said}" + "".join(f", {term} {value:g}" for term, value in terms.items() if value)

    @property
    def parameter(self) -> float | None:
        """The one number of the curve; None where there is no curve, or a number for each channel."""
        if self.curve is None:
            return None
        value = self.curve.parameter
        if isinstance(value, Tensor):
            return float(value.detach()) if value.numel() == 1 else None
        return float(value)


def normalization_of(name: str, pool: Any) -> Normalization:
    """What a module of second order does, from its own settings."""
    terms = {entry.name for entry in fields(Normalization)} - {"name", "is_first_order"}
    return Normalization(name, **{term: getattr(pool, term) for term in terms if hasattr(pool, term)})


def split_rows(x: Tensor, index: Tensor | None, ptr: Tensor | None = None) -> list[Tensor]:
    """The rows of every graph, in the order of the graphs; those without rows are left out.

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
