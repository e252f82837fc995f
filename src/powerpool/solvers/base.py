"""What every solver is, and what several of them share.

A solver applies a curve to the spectrum of a symmetric matrix. It knows how, not what: of a curve it uses only the
value, the ratio, the divided difference and the form as an integer power.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from powerpool.curves.base import Curve
from powerpool.errors import ArgumentError, NotPositiveError


@dataclass(frozen=True)
class Solver(ABC):
    """One way to compute a curve of a spectrum."""

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    """Whether the answer is the curve's up to round-off."""
    double_backward: ClassVar[bool] = True
    """Whether second derivatives are right; where not, asking for them raises ``DoubleBackwardError``."""

    def refusal(self, curve: Curve) -> str | None:
        """Why this solver cannot take ``curve``, and what can; ``None`` if it can."""
        return None

    def require(self, curve: Curve) -> None:
        """Raise the refusal, if there is one."""
        reason = self.refusal(curve)
        if reason is not None:
            raise ArgumentError(f"solver {self.name!r} cannot take {curve}: {reason}")

    @abstractmethod
    def apply(self, matrix: Tensor, curve: Curve, check: bool, round_off: float) -> Tensor:  # shape: (*, C, C)
        """The curve of the spectrum of ``matrix``: exactly symmetric, float32 or float64, already divided by its trace
        where the curve asks for that. ``check`` says whether values may be read, ``round_off`` how far those of a
        positive matrix may be negative, relative to the largest."""


def require_pairwise_positive(matrix: Tensor, what: str, round_off: float) -> None:
    """Refuse a negative diagonal, or an entry beyond sqrt(M_ii M_jj): all that shows without eigenvalues. Reads values.

    Necessary for a positive matrix, not sufficient: only ``eigen`` is certain.
    """
    diagonal = matrix.detach().diagonal(dim1=-2, dim2=-1)
    slack = round_off * diagonal.abs().amax(-1)
    lowest = diagonal.amin(-1)
    if bool((lowest < -slack).any()):
        raise NotPositiveError(
            f"{what} needs a positive semi-definite matrix (after any division by the trace, got a diagonal entry "
            f"{lowest.min().item():.6g}). For an indefinite symmetric matrix take AsinhE or SigmE."
        )
    root = diagonal.clamp(min=0).sqrt()
    excess = matrix.detach().abs().addcmul_(root.unsqueeze(-1), root.unsqueeze(-2), value=-1).amax((-2, -1))
    if bool((excess > slack).any()):
        raise NotPositiveError(
            f"{what} needs a positive semi-definite matrix (got |M_ij| larger than sqrt(M_ii M_jj) by "
            f"{excess.max().item():.6g}). For an indefinite symmetric matrix take AsinhE or SigmE."
        )
