r"""The matrix square root by Newton-Schulz iteration: approximate, and products only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from powerpool.curves.base import Curve
from powerpool.curves.gamma import Gamma
from powerpool.errors import ArgumentError, NotPositiveError
from powerpool.linalg.products import MatrixFunction, symmetrize
from powerpool.linalg.trace import trace_of
from powerpool.solvers import replay
from powerpool.solvers.base import MatrixSolver, require_pairwise_positive


@dataclass(frozen=True)
class NewtonSchulz(MatrixSolver):
    r"""Coupled Newton-Schulz iteration for Gamma(1/2), as in iSQRT-COV (Li et al., CVPR 2018).

    .. math:: Y_0 = M/\operatorname{tr} M,\ Z_0 = I, \qquad W_k = \tfrac12 (3I - Z_k Y_k),\quad
              Y_{k+1} = Y_k W_k,\ Z_{k+1} = W_k Z_k, \qquad M^{1/2} \approx \sqrt{\operatorname{tr} M}\; Y_K

    Approximate: small eigenvalues converge last, and on ill-conditioned input the relative error is about 0.5 after 5
    iterations. More iterations are not always better: round-off in the null space of a singular matrix grows by 1.5
    with each, and in float32 the iteration diverges from about 25 on. The backward is that of the iteration; the zero
    matrix has value and gradient 0. Double backward is supported. Positivity is checked as in ``squaring``, and a
    result that is not finite is refused.
    """

    name: ClassVar[str] = "newton_schulz"
    exact: ClassVar[bool] = False

    iterations: int = 15

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ArgumentError(f"NewtonSchulz needs iterations >= 1 (got {self.iterations}); iSQRT-COV uses 5.")

    def refusal(self, curve: Curve) -> str | None:
        """Refuse everything but the square root."""
        if isinstance(curve, Gamma) and not curve.is_learnable and curve.gamma == 0.5:
            return None
        return "it computes the square root only, Gamma(gamma=0.5). Use solver='eigen' for any other curve."

    def apply(self, matrix: Tensor, curve: Curve, check: bool, round_off: float) -> Tensor:
        """See :class:`MatrixSolver`."""
        if check:
            require_pairwise_positive(matrix, type(curve).__name__, round_off)
        trace = trace_of(matrix)[..., None, None]
        # The zero matrix is divided by 1 and multiplied by 0: its gradient is 0, by the convention of Gamma at 0.
        positive = trace > 0
        divisor = torch.where(positive, trace, 1.0)
        root = replay.run(_Iteration(self.iterations), matrix / divisor)
        # The iterates rise to sqrt(lambda), whose squares sum to 1: more means divergence, even if it is finite.
        diverged = root.detach().square().sum((-2, -1), keepdim=True) > 1.01
        if check and not bool((~diverged & torch.isfinite(root.detach()).all(-1, True).all(-2, True)).all()):
            raise NotPositiveError(
                f"Newton-Schulz diverged in {self.iterations} iterations: the matrix is indefinite, too small for its "
                "dtype, or singular up to round-off, which grows by 1.5 in each iteration. Use fewer iterations, or "
                "solver='eigen'."
            )
        return root * torch.where(diverged, torch.nan, torch.where(positive, divisor.sqrt(), trace))


@dataclass(frozen=True)
class _Iteration(MatrixFunction):
    iterations: int

    def forward(self, matrix: Tensor) -> tuple[Tensor, list[Tensor]]:
        return _forward(matrix, self.iterations)

    def backward(self, matrix: Tensor, grad: Tensor, kept: list[Tensor]) -> Tensor:
        return _backward(matrix, grad, kept)


def _step(y: Tensor, z: Tensor | None) -> Tensor:
    """Compute W = (3I - ZY)/2; Z = I in the first step."""
    identity = torch.eye(y.shape[-1], dtype=y.dtype, device=y.device)
    return 1.5 * identity - 0.5 * (y if z is None else torch.bmm(z, y))


def _forward(matrix: Tensor, iterations: int) -> tuple[Tensor, list[Tensor]]:
    """Compute Y_K, and the iterates Y_k, Z_k before every step but the first."""
    y, z, kept = matrix, None, []
    for k in range(iterations):
        w = _step(y, z)
        y = torch.bmm(y, w)
        if k < iterations - 1:  # the last Z is never used
            z = w if z is None else torch.bmm(w, z)
            kept += [y, z]
    return y, kept


def _backward(matrix: Tensor, grad_y: Tensor, kept: list[Tensor]) -> Tensor:
    """Compute the gradient of the input; iterates are symmetric and commute, gradients need not."""
    grad_z: Tensor | None = None
    while kept:
        z, y = kept.pop(), kept.pop()
        w = _step(y, z)
        grad_w = torch.bmm(y, grad_y)
        if grad_z is not None:
            grad_w = torch.baddbmm(grad_w, grad_z, z)
        grad_y, grad_z = (
            torch.baddbmm(torch.bmm(grad_y, w), z, grad_w, alpha=-0.5),
            torch.baddbmm(torch.zeros_like(w) if grad_z is None else torch.bmm(w, grad_z), grad_w, y, alpha=-0.5),
        )
    # The first step: W = (3I - Y)/2 with Z = I, so Z_1 = W.
    grad_w = torch.bmm(matrix, grad_y) if grad_z is None else torch.baddbmm(grad_z, matrix, grad_y)
    return symmetrize(torch.bmm(grad_y, _step(matrix, None)) - 0.5 * grad_w)
