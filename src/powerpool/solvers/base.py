"""What every solver is, and what several of them share.

A solver applies a curve to the spectrum of a symmetric matrix. It knows how, not what: of a curve it uses only the
value, the ratio, the divided difference and the form as an integer power.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from powerpool.checks import ArgumentError, NotPositiveError, PowerPoolError, has_values
from powerpool.curves.base import Curve, Parameter

ROUND_OFF = 1e-5
"""How far below 0, relative to the largest eigenvalue, round-off may push an eigenvalue of a positive matrix.

The same bound serves float64: matrices often come from float32 features, and are float64 only in name.
"""


class DoubleBackwardError(PowerPoolError, RuntimeError, ValueError):
    """A second derivative was asked of an operator that has none; better than a wrong one."""


@dataclass(frozen=True)
class Solver(ABC):
    """One way to compute a curve of a spectrum."""

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    """Whether the answer is the curve's up to round-off."""
    double_backward: ClassVar[bool] = True
    """Whether second derivatives are right; where not, asking for them raises :class:`DoubleBackwardError`."""

    def refusal(self, curve: Curve) -> str | None:
        """Why this solver cannot take ``curve``, and what can; ``None`` if it can."""
        return None

    def require(self, curve: Curve) -> None:
        """Raise the refusal, if there is one."""
        reason = self.refusal(curve)
        if reason is not None:
            raise ArgumentError(f"solver {self.name!r} cannot take {curve}: {reason}")

    @abstractmethod
    def apply(self, matrix: Tensor, curve: Curve, check: bool) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
        """The curve of the spectrum of ``matrix``: exactly symmetric, float32 or float64, already divided by its trace
        where the curve asks for that. ``check`` says whether values may be read."""


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:  # shape: (*, C, C) -> (*, C), (*, C, C)
    """Eigenvalues and vectors, with a second try where LAPACK fails.

    In float32, matrices of very low rank sometimes come back with NaN vectors (one in a thousand constant 12 x 12
    matrices, with MKL) or raise. In float64 and at another scale the same matrices pass. While tracing there are no
    values to look at, and no second try.
    """
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # public, but missing from the stubs
        return _eigh_again(matrix)
    if has_values(matrix):  # reading one does not slow CUDA down: eigh has synchronised already
        failed = torch.isnan(vectors).flatten(-2).any(-1)
        if bool(failed.any()):
            values[failed], vectors[failed] = _eigh_again(matrix[failed])
    return values, vectors


def _eigh_again(matrix: Tensor) -> tuple[Tensor, Tensor]:
    scale = 0.7
    values, vectors = torch.linalg.eigh(scale * matrix.double())
    return (values / scale).to(matrix.dtype), vectors.to(matrix.dtype)


def from_eigen(vectors: Tensor, values: Tensor) -> Tensor:  # shape: (*, C, C), (*, C) -> (*, C, C)
    """U diag(v) U^T."""
    return (vectors * values.unsqueeze(-2)) @ vectors.mT


def into_domain(eigenvalues: Tensor, curve: Curve) -> Tensor:  # shape: (*, C) -> (*, C)
    """Eigenvalues as the curve may see them.

    Those outside the domain by round-off are moved to its end; those further outside become NaN, so that they cannot
    pass for an answer where checks are off. Where the slope at 0 is infinite, eigenvalues that are 0 up to round-off
    are 0: they span the null space, which the curve drops.
    """
    low, high = curve.domain
    size = eigenvalues.shape[-1]
    largest = eigenvalues.abs().amax(-1, keepdim=True)
    slack = ROUND_OFF * largest
    inside = eigenvalues.clamp(min=low, max=high)
    if curve.has_infinite_slope:
        null = size * torch.finfo(eigenvalues.dtype).eps * largest
        inside = torch.where(inside <= null, 0.0, inside)
    outside = (eigenvalues < low - slack) | (eigenvalues > high + slack)
    return torch.where(outside, torch.nan, inside)


def require_spectrum_in_domain(eigenvalues: Tensor, curve: Curve) -> None:
    """Refuse a spectrum that leaves the curve's domain by more than round-off. Reads values."""
    low, high = curve.domain
    slack = ROUND_OFF * eigenvalues.abs().amax(-1, keepdim=True)
    if bool((eigenvalues < low - slack).any()):
        raise NotPositiveError(
            f"{type(curve).__name__} needs a matrix with eigenvalues >= {low:g} "
            f"(got {eigenvalues.min().item():.6g}, beside {eigenvalues.max().item():.6g}). "
            "For an indefinite symmetric matrix take AsinhE or SigmE."
        )
    if bool((eigenvalues > high + slack).any()):
        raise NotPositiveError(
            f"{type(curve).__name__} needs eigenvalues <= {high:g} after division by the trace "
            f"(got {eigenvalues.max().item():.6g}): the matrix is indefinite. Take AsinhE or SigmE."
        )


def require_pairwise_positive(matrix: Tensor, what: str) -> None:
    """Refuse a negative diagonal, or an entry beyond sqrt(M_ii M_jj): all that shows without eigenvalues. Reads values.

    Necessary for a positive matrix, not sufficient: only ``eigen`` is certain.
    """
    diagonal = matrix.detach().diagonal(dim1=-2, dim2=-1)
    slack = ROUND_OFF * diagonal.abs().amax(-1)
    lowest = diagonal.amin(-1)
    if bool((lowest < -slack).any()):
        raise NotPositiveError(
            f"{what} needs a positive semi-definite matrix (got a diagonal entry {lowest.min().item():.6g}). "
            "For an indefinite symmetric matrix take AsinhE or SigmE."
        )
    root = diagonal.clamp(min=0).sqrt()
    excess = matrix.detach().abs().addcmul_(root.unsqueeze(-1), root.unsqueeze(-2), value=-1).amax((-2, -1))
    if bool((excess > slack).any()):
        raise NotPositiveError(
            f"{what} needs a positive semi-definite matrix (got |M_ij| larger than sqrt(M_ii M_jj) by "
            f"{excess.max().item():.6g}). For an indefinite symmetric matrix take AsinhE or SigmE."
        )


def one_parameter(curve: Curve, like: Tensor) -> Parameter:
    """The curve's parameter; a tensor must have one element, because a spectrum shares one curve."""
    theta = curve.parameter_like(like)
    if isinstance(theta, Tensor):
        if theta.numel() != 1:
            raise ArgumentError(
                f"A spectral curve needs one {curve.parameter_name} for all eigenvalues "
                f"(got a tensor of shape {tuple(theta.shape)}). Use a tensor of one element, or mode='elementwise'."
            )
        return theta.reshape(())
    return theta


class _OnceOnly(torch.autograd.Function):
    """The identity on a gradient; its own backward raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, solver: str, *inputs: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.solver = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        raise DoubleBackwardError(
            f"Second derivatives through solver {ctx.solver!r} are not available. MaxExp, Gamma and FAHDP with an "
            "integer exponent have them with solver='squaring' or 'gram'; mode='elementwise' has them for every curve."
        )


def once_only(gradient: Tensor, solver: str, *inputs: Tensor) -> Tensor:
    """``gradient``, which raises if it is differentiated again with respect to any of ``inputs``."""
    return _OnceOnly.apply(gradient, solver, *inputs) if torch.is_grad_enabled() else gradient
