"""The two contracts of solvers, and checks that several solvers share.

A solver applies a curve to the spectrum of a symmetric matrix. Of a curve it uses only the value, the ratio, the
divided difference and the form as an integer power. A :class:`MatrixSolver` starts from the matrix, a
:class:`FeatureSolver` from the features whose moment it is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from powerpool.curves.base import Curve
from powerpool.errors import ArgumentError, NotPositiveError
from powerpool.linalg.trace import Terms
from powerpool.moments.dense import Sets


@dataclass(frozen=True)
class Solver(ABC):
    """One way to apply a curve to a spectrum; the base of both contracts."""

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    """Whether the result is exact up to round-off."""
    double_backward: ClassVar[bool] = True
    """Whether second derivatives are available; if not, taking one raises ``DoubleBackwardError``."""

    def refusal(self, curve: Curve) -> str | None:
        """Return why this solver cannot apply ``curve``, and what to use instead; ``None`` if it can."""
        return None

    def require(self, curve: Curve) -> None:
        """Raise an error if this solver cannot apply ``curve``."""
        reason = self.refusal(curve)
        if reason is not None:
            raise ArgumentError(f"solver {self.name!r} cannot apply {curve}: {reason}")


class MatrixSolver(Solver):
    """A solver that takes the matrix."""

    @abstractmethod
    def apply(self, matrix: Tensor, curve: Curve, check: bool, round_off: float) -> Tensor:  # shape: (*, C, C)
        """Apply the curve to the spectrum of a matrix.

        Args:
            matrix: symmetric up to round-off, float32 or float64, already divided by its trace if the curve needs that.
            curve: the curve.
            check: whether values may be read, and bad ones refused.
            round_off: how far eigenvalues of a positive matrix may be negative, relative to the largest; infinite for a
                moment, which is positive by construction, so that only divergence is refused.
        """


class FeatureSolver(Solver):
    """A solver that takes features, and never forms their moment."""

    @abstractmethod
    def apply(self, features: Sets, curve: Curve, terms: Terms) -> Tensor:  # shape: (*, C, N) -> (*, C, C)
        """Apply the curve to the spectrum of the moment of features, with division by the trace and residual terms."""


def require_pairwise_positive(matrix: Tensor, what: str, round_off: float) -> None:
    """Refuse a negative diagonal, or an entry beyond sqrt(M_ii M_jj). Reads values.

    This is all that can be seen without eigenvalues: necessary for a positive matrix, not sufficient.
    """
    if round_off == math.inf:
        return
    diagonal = matrix.detach().diagonal(dim1=-2, dim2=-1)
    slack = round_off * diagonal.abs().amax(-1)
    lowest = diagonal.amin(-1)
    if bool((lowest < -slack).any()):
        raise NotPositiveError(
            f"{what} needs a positive semi-definite matrix (after any division by the trace, got a diagonal entry "
            f"{lowest.min().item():.6g}). For an indefinite symmetric matrix use AsinhE or SigmE."
        )
    root = diagonal.clamp(min=0).sqrt()
    excess = matrix.detach().abs().addcmul_(root.unsqueeze(-1), root.unsqueeze(-2), value=-1).amax((-2, -1))
    if bool((excess > slack).any()):
        raise NotPositiveError(
            f"{what} needs a positive semi-definite matrix (got |M_ij| larger than sqrt(M_ii M_jj) by "
            f"{excess.max().item():.6g}). For an indefinite symmetric matrix use AsinhE or SigmE."
        )
