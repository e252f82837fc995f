r"""Two kernels: the polynomial kernel of Prop. 1, and the RBF kernel of the spatial coordinates (App. L)."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

from powerpool.checks import require_features
from powerpool.errors import ArgumentError, ShapeError
from powerpool.moments.dense import autocorrelation
from powerpool.theory._numbers import evaluate, require_positive, require_whole

T = TypeVar("T")

LOW, HIGH = -0.2, 1.2
"""Positions of the first and the last pivot."""


def polynomial_kernel(a: Tensor, b: Tensor) -> Tensor:  # shape: (*, C, N), (*, C, N*) -> (*,)
    r"""The mean of squared dot products over pairs of locations: the left side of Prop. linearize.

    .. math:: K(\Phi_A, \Phi_B) = \frac{1}{N N^*} \sum_n \sum_{n'} \langle \phi_n, \phi^*_{n'} \rangle^2

    Example:
        >>> a, b = torch.tensor([[1.0, 2.0], [0.0, 1.0]]), torch.tensor([[1.0], [3.0]])
        >>> polynomial_kernel(a, b).item(), moment_kernel(a, b).item()
        (13.0, 13.0)
    """
    _require_same_channels(a, b)
    return (a.mT @ b).square().mean((-2, -1))


def moment_kernel(a: Tensor, b: Tensor) -> Tensor:  # shape: (*, C, N), (*, C, N*) -> (*,)
    r"""The dot product of two autocorrelation matrices: the right side of Prop. linearize.

    .. math:: \langle \operatorname{Vec} M(\Phi_A), \operatorname{Vec} M(\Phi_B) \rangle = K(\Phi_A, \Phi_B)

    Example:
        >>> moment_kernel(torch.eye(2), torch.eye(2)).item()
        0.5
    """
    _require_same_channels(a, b)
    return (autocorrelation(a) * autocorrelation(b)).sum((-2, -1))


def rbf_kernel(x: T, y: T, sigma: T) -> T:
    r"""The Gaussian kernel :math:`G_\sigma(x-y) = e^{-(x-y)^2/(2\sigma^2)}`, which is an integral (Eq. gauss_integral).

    .. math:: G_\sigma(x-y) = \sqrt{\frac{2}{\pi\sigma^2}} \int_{-\infty}^{\infty}
              G_{\sigma/\sqrt2}(x-\zeta)\, G_{\sigma/\sqrt2}(y-\zeta)\, d\zeta

    Example:
        >>> round(rbf_kernel(0.0, 0.5, 0.5), 4)
        0.6065
    """

    def formula(x: Tensor, y: Tensor, sigma: Tensor) -> Tensor:
        require_positive(sigma, "sigma")
        return torch.exp(-((x - y) / sigma).square() / 2)

    return evaluate(formula, x=x, y=y, sigma=sigma)


def rbf_riemann_sum(x: T, y: T, sigma: T, pivots: int) -> T:
    r"""The integral of :func:`rbf_kernel` as a sum over Z pivots between -0.2 and 1.2 (Eq. gauss_sumint).

    .. math:: c \sum_{i=1}^{Z} \varphi_i(x) \varphi_i(y), \qquad \varphi_i(x) = G_{\sigma/\sqrt2}(x-\zeta_i), \qquad
              c = \sqrt{\frac{2}{\pi\sigma^2}}\, \frac{1.4}{Z-1}

    :func:`powerpool.spatial_coordinates` uses the same features, with c = 1 as in the paper.

    Example:
        >>> round(rbf_riemann_sum(0.4, 0.6, 0.3, pivots=10), 4), round(rbf_kernel(0.4, 0.6, 0.3), 4)
        (0.8007, 0.8007)
    """
    step, places = _pivots(pivots)

    def formula(x: Tensor, y: Tensor, sigma: Tensor) -> Tensor:
        require_positive(sigma, "sigma")
        codes = [torch.exp(-((z[..., None] - places.to(z.device)) / sigma[..., None]).square()) for z in (x, y)]
        return math.sqrt(2 / math.pi) * step / sigma * (codes[0] * codes[1]).sum(-1)

    return evaluate(formula, x=x, y=y, sigma=sigma)


def rbf_riemann_bound(x: T, y: T, sigma: T, pivots: int) -> T:
    r"""A bound of the error of :func:`rbf_riemann_sum` for x, y in [0, 1]; it is not in the paper.

    .. math:: G_\sigma(x-y) \Bigl(2 \sum_{k \ge 1} e^{-\pi^2\sigma^2 k^2/(2\Delta^2)}
              + \tfrac12 \operatorname{erfc} \frac{\sqrt2 (m+0.2)}{\sigma}
              + \tfrac12 \operatorname{erfc} \frac{\sqrt2 (1.2-m)}{\sigma}\Bigr),
              \qquad m = \frac{x+y}2, \quad \Delta = \frac{1.4}{Z-1}

    The first term bounds the effect of the gaps between pivots, by Poisson summation; the others that of the missing
    pivots outside of [-0.2, 1.2]. More pivots reduce only the first.

    Example:
        >>> round(rbf_riemann_bound(0.4, 0.6, 0.3, pivots=5), 4)
        0.0438
        >>> round(abs(rbf_riemann_sum(0.4, 0.6, 0.3, pivots=5) - rbf_kernel(0.4, 0.6, 0.3)), 4)
        0.0427
    """
    step, _ = _pivots(pivots)

    def formula(x: Tensor, y: Tensor, sigma: Tensor) -> Tensor:
        require_positive(sigma, "sigma")
        for name, place in (("x", x), ("y", y)):
            if not bool(((place >= 0) & (place <= 1)).all()):
                raise ArgumentError(f"{name} must be in [0, 1], where coordinates are (got {place.tolist()}).")
        decay = torch.exp(-(math.pi * sigma / step).square() / 2)
        # The smaller of a geometric series and an integral, which is tighter for a narrow kernel.
        gaps = 2 * torch.minimum(decay / (1 - decay), step / (math.sqrt(2 * math.pi) * sigma))
        middle = (x + y) / 2
        outside = sum(torch.erfc(math.sqrt(2) * away / sigma) for away in (middle - LOW, HIGH - middle))
        return torch.exp(-((x - y) / sigma).square() / 2) * (gaps + outside / 2)

    return evaluate(formula, x=x, y=y, sigma=sigma)


def _pivots(count: int) -> tuple[float, Tensor]:
    whole = require_whole(count, "pivots", 2)
    return (HIGH - LOW) / (whole - 1), torch.linspace(LOW, HIGH, whole, dtype=torch.float64)


def _require_same_channels(a: Tensor, b: Tensor) -> None:
    require_features(a, "a")
    require_features(b, "b")
    if a.shape[-2] != b.shape[-2]:
        raise ShapeError(
            f"a and b must have the same channels, (*, C, N) and (*, C, N*) (got {tuple(a.shape)} and "
            f"{tuple(b.shape)})."
        )
