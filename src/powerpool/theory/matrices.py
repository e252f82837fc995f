r"""Curves of matrices: derivatives of matrix powers as the paper writes them out, and the effect on a whole spectrum.

The derivatives are linear in the exponent (App. N and O). The backward of the library (``powerpool.solvers.Squaring``)
needs far fewer products; these are for comparison.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool import curves
from powerpool.checks import require_floating, require_square
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError
from powerpool.linalg.products import symmetrize, twice_symmetric
from powerpool.theory._numbers import require_whole


def maxexp_gradient(
    matrix: Tensor,  # shape: (*, C, C), symmetric
    grad: Tensor,  # shape: (*, C, C), of the loss with respect to the result
    eta: int,
    halved: bool = True,
) -> Tensor:  # shape: (*, C, C)
    r"""The gradient of a loss through :math:`I - (I-M)^\eta`, for whole :math:`\eta` (Eq. der_maxexp0, der_maxexp).

    .. math:: \frac{d\ell}{dM} = +\sum_{n=0}^{\eta-1} (I-M)^n G (I-M)^{\eta-1-n}

    The paper prints a minus. Only the symmetric part of G has an effect, so it is taken first. With ``halved`` the
    second half of the sum is not computed, because it is the transpose of the first.

    Example:
        >>> matrix, grad = torch.tensor([[0.5, 0.0], [0.0, 0.25]]), torch.eye(2)
        >>> maxexp_gradient(matrix, grad, eta=2)  # of the trace: 2 (I - M)
        tensor([[1.0000, 0.0000],
                [0.0000, 1.5000]])
    """
    require_square(matrix)
    count = require_whole(eta, "eta", 1)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return _power_gradient(identity - matrix, grad, count, halved)


def gamma_gradient(
    matrix: Tensor,  # shape: (*, C, C), symmetric
    grad: Tensor,  # shape: (*, C, C), of the loss with respect to the result
    gamma: int,
    halved: bool = True,
) -> Tensor:  # shape: (*, C, C)
    r"""The gradient of a loss through :math:`M^\gamma`, for whole :math:`\gamma \ge 1` (Eq. der_gamma).

    .. math:: \frac{d\ell}{dM} = \sum_{n=0}^{\gamma-1} M^n G M^{\gamma-1-n}

    Example:
        >>> matrix, grad = torch.tensor([[0.5, 0.0], [0.0, 0.25]]), torch.eye(2)
        >>> gamma_gradient(matrix, grad, gamma=2)  # of the trace: 2 M
        tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]])
    """
    require_square(matrix)
    return _power_gradient(matrix, grad, require_whole(gamma, "gamma", 1), halved)


def _power_gradient(base: Tensor, grad: Tensor, exponent: int, halved: bool) -> Tensor:
    require_square(grad, "grad")
    if grad.shape[-1] != base.shape[-1]:
        raise ShapeError(f"grad must have the shape of matrix, {tuple(base.shape)} (got {tuple(grad.shape)}).")
    given = symmetrize(grad)
    powers = [torch.eye(base.shape[-1], dtype=base.dtype, device=base.device).expand_as(base)]
    for _ in range(exponent - 1):
        powers.append(powers[-1] @ base)

    def term(n: int) -> Tensor:
        return powers[n] @ given @ powers[exponent - 1 - n]

    if not halved:
        return torch.stack([term(n) for n in range(exponent)]).sum(0)
    middle = exponent // 2
    result = torch.zeros_like(base) if exponent % 2 == 0 else term(middle)
    for n in range(middle):
        result = result + twice_symmetric(term(n))
    return result


def leading_variance(eigenvalues: Tensor, curve: Curve | str, leading: int) -> Tensor:  # shape: (*, C) -> (*,)
    r"""The variance of the largest j eigenvalues after a curve (Fig. var1).

    .. math:: \frac1j \sum_{i \le j} \Bigl(g(\lambda_i) - \frac1j \sum_{i' \le j} g(\lambda_{i'})\Bigr)^2

    With MaxExp it falls to 0 as eta grows, but may rise first. Eigenvalues may be in any order.

    Example:
        >>> import powerpool as pp
        >>> values = torch.tensor([0.5, 0.3, 0.2])
        >>> [round(leading_variance(values, pp.MaxExp(eta), 2).item(), 4) for eta in (1, 2, 20)]
        [0.01, 0.0144, 0.0]
    """
    require_floating(eigenvalues, "eigenvalues")
    if eigenvalues.ndim == 0 or eigenvalues.shape[-1] < 1:
        raise ArgumentError(f"eigenvalues must have shape (*, C) with C >= 1 (got {tuple(eigenvalues.shape)}).")
    count = require_whole(leading, "leading", 1, eigenvalues.shape[-1], " It counts eigenvalues.")
    largest = eigenvalues.topk(count, dim=-1).values
    return curves.resolve(curve).value(largest).var(-1, correction=0)


def push_forward(points: Tensor, density: Tensor, curve: Curve | str) -> tuple[Tensor, Tensor]:  # shape: (*) each
    r"""The distribution of eigenvalues after a curve (Fig. epn-dist), as points and the density at them.

    .. math:: p \mapsto g(p), \qquad f(p) \mapsto f(p)/g'(p)

    for any increasing curve. If the slope is 0, the density is infinite, or NaN if it was 0: leave such points out.

    Example:
        >>> import powerpool as pp
        >>> points = torch.tensor([0.1, 0.5])
        >>> push_forward(points, torch.ones(2), pp.MaxExp(2))
        (tensor([0.1900, 0.7500]), tensor([0.5556, 1.0000]))
    """
    require_floating(points, "points")
    require_floating(density, "density")
    resolved = curves.resolve(curve)
    return resolved.value(points), density / resolved.derivative(points)
