r"""SigmE and MaxExp: where they meet, and their distance (Remark maxexp_sigmoid, App. K)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from powerpool.theory._numbers import evaluate, require_positive
from powerpool.theory.links import ALIGNMENT

T = TypeVar("T")

_FIFTH = math.log(math.sqrt(26 * math.sqrt(105) + 270) / 2 + math.sqrt(105) / 2 + 13 / 2)
_STEPS = 80  # of a bisection of [0, 1]: more than the bits of a float64


def alignment_point(eta_prime: T) -> T:
    r"""Where SigmE bends most: :math:`p'' = \log(\sqrt3+2)/\eta'`, a zero of its third derivative (App. K).

    SigmE is :math:`1/\sqrt3` there, and so is MaxExp with :func:`~powerpool.theory.eta_of_eta_prime`. It lies in [0, 1]
    for :math:`\eta' \ge 1.317`.

    Example:
        >>> round(alignment_point(50.0), 6)
        0.026339
    """
    return evaluate(lambda x: ALIGNMENT / require_positive(x, "eta_prime"), eta_prime=eta_prime)


def error_point(eta_prime: T) -> T:
    r"""Where App. K measures the difference of SigmE and MaxExp: the outer zero of SigmE's fifth derivative.

    .. math:: p''' = \log\Bigl(\tfrac12\sqrt{26\sqrt{105}+270} + \tfrac12\sqrt{105} + \tfrac{13}2\Bigr)/\eta'
              = 3.144/\eta'

    For :math:`\eta \ge 20` the difference there is within 3 % of the largest; for small :math:`\eta` it is not.

    Example:
        >>> round(error_point(50.0), 6)
        0.062886
    """
    return evaluate(lambda x: _FIFTH / require_positive(x, "eta_prime"), eta_prime=eta_prime)


def sigme_maxexp_distance(eta_prime: T, eta: T) -> T:
    r"""The distance between SigmE and MaxExp on [0, 1] (Remark maxexp_sigmoid).

    .. math:: \int_0^1 \Bigl|\frac{2}{1+e^{-\eta' p}} - 1 - \bigl(1-(1-p)^\eta\bigr)\Bigr| dp
              \le \frac{2\log 2}{\eta'} + \frac{1}{\eta+1}

    so that it vanishes in the limit, however the two parameters grow. The integral is exact: the curves cross at most
    twice inside (0, 1), and between crossings the difference has the antiderivative

    .. math:: \frac{2}{\eta'} \log\frac{1+e^{-\eta' x}}{2} + \frac{1-(1-x)^{\eta+1}}{\eta+1}

    Example:
        >>> from powerpool.theory import eta_prime_of_eta
        >>> round(sigme_maxexp_distance(eta_prime_of_eta(50.0), 50.0), 6)
        0.002346
        >>> round(sigme_maxexp_distance(eta_prime_of_eta(1e6), 1e6), 9)
        1.31e-07
    """
    return evaluate(_distance, eta_prime=eta_prime, eta=eta)


def _distance(eta_prime: Tensor, eta: Tensor) -> Tensor:
    require_positive(eta_prime, "eta_prime")
    require_positive(eta, "eta")
    eta_prime, eta = torch.broadcast_tensors(eta_prime, eta)
    zero, one = torch.zeros_like(eta), torch.ones_like(eta)
    first, second = _crossings(eta_prime.detach(), eta.detach())
    values = [_antiderivative(x, eta_prime, eta) for x in (zero, first, second, one)]
    return sum((values[i + 1] - values[i]).abs() for i in range(3))  # type: ignore[return-value]


def _antiderivative(x: Tensor, eta_prime: Tensor, eta: Tensor) -> Tensor:
    sigme = 2 / eta_prime * (torch.log1p(torch.exp(-eta_prime * x)) - math.log(2))
    return sigme - torch.expm1((eta + 1) * torch.log1p(-x)) / (eta + 1)


def _crossings(eta_prime: Tensor, eta: Tensor) -> tuple[Tensor, Tensor]:
    """The two points of (0, 1) where the curves cross; both are 0 if they do not cross, the first if they cross once.

    log(1 - SigmE) - log(1 - MaxExp) is 0 at 0 and infinite at 1. Its slope has the sign of a convex function, so it
    rises, falls and rises again, or starts to fall, or never does.
    """
    zero, one = torch.zeros_like(eta), torch.ones_like(eta)

    def slope(p: Tensor) -> Tensor:
        return eta * (1 + torch.exp(-eta_prime * p)) - eta_prime * (1 - p)

    def level(p: Tensor) -> Tensor:
        # Not softplus, which torch rounds to its asymptote.
        return math.log(2) - torch.logaddexp(eta_prime * p, zero) - eta * torch.log1p(-p)

    lowest = (torch.log(eta) / eta_prime).clamp(0.0, 1.0)  # of the slope
    top = _bisect(lambda p: slope(p) > 0, zero, lowest)
    bottom = _bisect(lambda p: slope(p) < 0, lowest, one)
    cross = (slope(lowest) < 0) & (level(bottom) < 0)
    first = _bisect(lambda p: level(p) > 0, top, bottom)
    second = _bisect(lambda p: level(p) < 0, bottom, one)
    return torch.where(cross, first, zero), torch.where(cross, second, zero)


def _bisect(holds: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The point up to which a condition holds; ``low`` if it never does."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        inside = holds(middle)
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return low
