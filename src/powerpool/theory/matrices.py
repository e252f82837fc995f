r"""Functions of matrices: derivatives of matrix powers, curves of a whole spectrum, and two kernels.

The derivatives are linear in the exponent (App. N and O). The backward of the library (``powerpool.solvers.Squaring``)
needs far fewer products; these are for comparison. The kernels are the polynomial kernel of Prop. 1 and the RBF kernel
of the spatial coordinates (App. L).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerpool import curves
from powerpool.checks import require_features, require_floating, require_square
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError
from powerpool.linalg.products import symmetrize, twice_symmetric
from powerpool.moments.dense import autocorrelation
from powerpool.theory._numbers import Number, of_numbers, require_positive, require_whole


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


# ---- kernels ---------------------------------------------------------------------------------------------------------


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


@of_numbers
def rbf_kernel(x: Number, y: Number, sigma: Number) -> Number:
    r"""The Gaussian kernel :math:`G_\sigma(x-y) = e^{-(x-y)^2/(2\sigma^2)}`, which is an integral (Eq. gauss_integral).

    .. math:: G_\sigma(x-y) = \sqrt{\frac{2}{\pi\sigma^2}} \int_{-\infty}^{\infty}
              G_{\sigma/\sqrt2}(x-\zeta)\, G_{\sigma/\sqrt2}(y-\zeta)\, d\zeta

    Example:
        >>> round(rbf_kernel(0.0, 0.5, 0.5), 4)
        0.6065
    """
    require_positive(sigma, "sigma")
    return torch.exp(-((x - y) / sigma).square() / 2)


@of_numbers
def rbf_riemann_sum(x: Number, y: Number, sigma: Number, pivots: int) -> Number:
    r"""The integral of :func:`rbf_kernel` as a sum over Z pivots between -0.2 and 1.2 (Eq. gauss_sumint).

    .. math:: c \sum_{i=1}^{Z} \varphi_i(x) \varphi_i(y), \qquad \varphi_i(x) = G_{\sigma/\sqrt2}(x-\zeta_i), \qquad
              c = \sqrt{\frac{2}{\pi\sigma^2}}\, \frac{1.4}{Z-1}

    :func:`powerpool.spatial_coordinates` uses the same features, with c = 1 as in the paper.

    Example:
        >>> round(rbf_riemann_sum(0.4, 0.6, 0.3, pivots=10), 4), round(rbf_kernel(0.4, 0.6, 0.3), 4)
        (0.8007, 0.8007)
    """
    step, places = _pivots(pivots)
    require_positive(sigma, "sigma")
    codes = [torch.exp(-((z[..., None] - places.to(z.device)) / sigma[..., None]).square()) for z in (x, y)]
    return math.sqrt(2 / math.pi) * step / sigma * (codes[0] * codes[1]).sum(-1)


@of_numbers
def rbf_riemann_bound(x: Number, y: Number, sigma: Number, pivots: int) -> Number:
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
