r"""The matrix square root of a positive definite matrix by minimax polynomials: products only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from powerpool.curves.base import Curve
from powerpool.curves.gamma import Gamma
from powerpool.errors import NotPositiveError
from powerpool.linalg.products import MatrixFunction, symmetrize, twice_symmetric
from powerpool.linalg.trace import trace_of
from powerpool.solvers import replay
from powerpool.solvers.base import MatrixSolver

# Every row holds the coefficients of x, x^3, x^5, ... of the odd polynomial that is closest to 1 on the interval that
# the rows above it map [SMALLEST, 1] to (Polar Express, arXiv 2505.16932). Composed, they are 1 up to 8e-7 on it.
SMALLEST = 7e-4
ROOT = (
    (8.4834753, -25.159995, 18.670581),
    (4.2047926, -3.1239476, 0.58234561),
    (4.0448871, -3.0124332, 0.56962938),
    (3.509802, -2.6297486, 0.52607086),
    (3.3103262, -6.0083733, 5.5789283, -2.2738355, 0.33186679),
    (2.4672578, -3.3007126, 2.9735474, -1.4140159, 0.27392323),
)
# The same for [1/25, 1] by cubics, 1 up to 1e-5: for the Lyapunov equation of the gradient a cubic needs two products,
# a polynomial of degree 5 needs four.
LYAPUNOV = (
    (4.6214663, -4.4368916),
    (2.1745963, -0.59335462),
    (1.8436951, -0.54825664),
    (1.5810226, -0.5115247),
    (1.5042733, -0.50061033),
    (1.5000117, -0.50000168),
)
# Close to 1 these converge to third and second order. Float64 needs them to use its digits.
LAST_ROOT = (1.875, -1.25, 0.375)
LAST_LYAPUNOV = (1.5, -0.5)
UNCONVERGED = 1e-2
"""Largest sum of 1 - r over the eigenvalues r of Z Y, which are 1 where the iteration has converged."""


@dataclass(frozen=True)
class Minimax(MatrixSolver):
    r"""Coupled iteration with minimax polynomials for Gamma(1/2) of a positive definite matrix.

    .. math:: Y_0 = M/\nu,\ Z_0 = I, \qquad W_k = q_k(Z_k Y_k),\quad Y_{k+1} = Y_k W_k,\ Z_{k+1} = W_k Z_k, \qquad
              M^{1/2} \approx \sqrt\nu\; Y_6,\quad \nu = \lVert M^2 \rVert_F^{1/2} \ge \lambda_{\max}

    The fixed polynomials :math:`q_k` have degree 2 and 4. Forward takes 24 products, backward 24: it solves
    :math:`SX + XS = G` by one Newton step with :math:`Z \approx S^{-1}` and six cubic iterations.

    The error of the approximation is at most 8e-7 of the root of every eigenvalue :math:`\ge 5\cdot10^{-7}\nu`; in
    float64 one more step makes it negligible. In float32 round-off dominates, which grows with
    :math:`\lVert S\rVert\lVert S^{-1}\rVert`. For eigenvalues that decay geometrically the value is off by 5e-6 of
    its norm at condition 1e4 and by about 1e-5 at 1e6, the gradient by 2e-5 and 2e-3. At worst, with one large
    eigenvalue and all others 1e6 times smaller, the value is off by 1e-4. Errors of the gradient are spread over all
    eigenvalues, those of ``eigen`` are not: multiplied by features, which have little in the direction of small
    eigenvalues, they are mostly within ten times those of ``eigen``, and 40 times at condition 1e6 and 16 channels.

    A matrix of larger condition, a singular or an indefinite one has eigenvalues that do not converge. This is
    detected: the matrix is refused, or NaN with checks off. The zero matrix has value and gradient 0. Double backward
    is supported.
    """

    name: ClassVar[str] = "minimax"
    exact: ClassVar[bool] = False

    def refusal(self, curve: Curve) -> str | None:
        """Refuse everything but the square root."""
        if isinstance(curve, Gamma) and not curve.is_learnable and curve.gamma == 0.5:
            return None
        return "it computes the square root only, Gamma(gamma=0.5). Use solver='eigen' for any other curve."

    def apply(self, matrix: Tensor, curve: Curve, check: bool, round_off: float) -> Tensor:
        """See :class:`MatrixSolver`."""
        root = replay.run(_Root(), matrix)
        if check and bool(torch.isnan(root.detach()[..., :1, :1]).any()):
            raise NotPositiveError(
                "solver 'minimax' needs a positive definite matrix of condition below about 1e6 (got one with an "
                "eigenvalue whose root did not converge). Use solver='eigen', or 'gram' for features with fewer "
                "locations than channels."
            )
        return root


class _Root(MatrixFunction):
    """The scalings are constants to autograd: the square root does not depend on them."""

    def forward(self, matrix: Tensor) -> tuple[Tensor, list[Tensor]]:
        steps = (*ROOT, LAST_ROOT) if matrix.dtype == torch.float64 else ROOT
        trace = trace_of(matrix.detach())[..., None, None]
        divided = matrix / torch.where(trace > 0, trace, 1.0)
        square = torch.bmm(divided, divided)
        bound = _bound(square)
        is_zero = (trace == 0) & (bound == 0)
        bound = torch.where(is_zero, 1.0, bound)
        constant, linear, quadratic = steps[0]
        y = divided / bound
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        z = torch.addcmul(torch.add(constant * identity, y, alpha=linear), square, quadratic / bound.square())
        y = torch.bmm(y, z)
        for step in steps[1:]:
            # Not symmetrised: that breaks Y = M Z, and the iteration diverges.
            w = _even_part(torch.bmm(z, y), step, identity)
            y, z = torch.bmm(y, w), torch.bmm(w, z)
        rest = matrix.shape[-1] - (z.detach() * y.detach().mT).sum((-2, -1), keepdim=True)
        known = is_zero | (rest.abs() <= UNCONVERGED)
        scale = torch.where(known, (trace * bound).sqrt(), torch.nan)
        y = symmetrize(y)
        return y * scale, [y, z, scale]

    def backward(self, matrix: Tensor, grad: Tensor, kept: list[Tensor]) -> Tensor:
        r"""Solve S X + X S = G: 2X is the upper right block of the sign of [[S, G], [0, -S]]."""
        s, inverse, scale = kept
        steps = (*LYAPUNOV, LAST_LYAPUNOV, LAST_LYAPUNOV) if s.dtype == torch.float64 else LYAPUNOV
        size, size_of_inverse = (torch.linalg.vector_norm(m.detach(), dim=(-2, -1), keepdim=True) for m in (s, inverse))
        balance = torch.where(size > 0, size_of_inverse / size, 1.0)
        # The Newton step B -> (B + B^-1)/2, which maps a condition of 1000 to 16; the sign does not depend on factors.
        a = torch.addcmul(inverse, s, balance)
        x = torch.baddbmm(grad * balance, torch.bmm(inverse, grad), inverse.mT)
        square = torch.bmm(a, a)
        bound = _bound(square)
        a, square = a / bound, square / bound.square()
        for number, (linear, cubic) in enumerate(steps):
            ax = torch.bmm(a, x)
            half = torch.baddbmm(x, a, torch.sub(ax, ax.mT, alpha=0.5), beta=linear / 2, alpha=cubic)
            x = twice_symmetric(half)
            if number < len(steps) - 1:
                square = square if number == 0 else torch.bmm(a, a)
                a = torch.baddbmm(a, a, square, beta=linear, alpha=cubic)
        return x * torch.where(scale == 0, 0.0, 0.5 / (scale * bound))


def _bound(square: Tensor) -> Tensor:  # shape: (B, C, C) -> (B, 1, 1)
    """Return a bound of the largest eigenvalue of a symmetric matrix from its square, as a constant."""
    # Two percent more, because at the end of its interval every polynomial amplifies round-off tenfold.
    return 1.02 * torch.linalg.vector_norm(square.detach(), dim=(-2, -1), keepdim=True).sqrt()


def _even_part(r: Tensor, step: tuple[float, ...], identity: Tensor) -> Tensor:
    """Compute q(R) for an odd polynomial x q(x^2), in one product for degree 5 and two for degree 9."""
    base = torch.add(step[0] * identity, r, alpha=step[1])
    if len(step) == 3:
        return torch.baddbmm(base, r, r, alpha=step[2])
    square = torch.bmm(r, r)
    factor = torch.add(torch.add(step[2] * identity, r, alpha=step[3]), square, alpha=step[4])
    return torch.baddbmm(base, square, factor)
