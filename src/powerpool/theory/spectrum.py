r"""The effect of a curve on a whole spectrum, as in two figures of the paper."""

from __future__ import annotations

from torch import Tensor

from powerpool import curves
from powerpool.checks import require_floating
from powerpool.curves import Curve
from powerpool.errors import ArgumentError
from powerpool.theory._numbers import require_whole


def leading_variance(eigenvalues: Tensor, curve: Curve | str, leading: int) -> Tensor:  # shape: (*, C) -> (*,)
    r"""The variance of the largest j eigenvalues after a curve (Fig. var1).

    .. math:: \frac1j \sum_{i \le j} \Bigl(g(\lambda_i) - \frac1j \sum_{i' \le j} g(\lambda_{i'})\Bigr)^2

    With MaxExp it falls to 0 as eta grows, but may rise first. Eigenvalues may be in any order.

    Example:
        >>> import torch, powerpool as pp
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
        >>> import torch, powerpool as pp
        >>> points = torch.tensor([0.1, 0.5])
        >>> push_forward(points, torch.ones(2), pp.MaxExp(2))
        (tensor([0.1900, 0.7500]), tensor([0.5556, 1.0000]))
    """
    require_floating(points, "points")
    require_floating(density, "density")
    resolved = curves.resolve(curve)
    return resolved.value(points), density / resolved.derivative(points)
