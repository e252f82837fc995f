r"""Numerical forms that several curves share: powers of :math:`1-d`, and divided differences of odd curves."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from powerpool.curves.base import Parameter

# Below this bound a quotient such as expm1(x)/x equals its limit in float64, and its parts may be subnormal.
TINY = 1e-30

LOG2_E = 1 / math.log(2)


def complement_power(d: Tensor, exponent: Parameter) -> Tensor:
    r"""Compute :math:`(1-d)^e` for :math:`0 \le d \le 1` to an ulp or two, however small the result."""
    # exp(e log1p(-d)) has an error of e log(1-d) ulps, and its derivative is NaN at d = 1. The part that 1 - d rounds
    # away is known exactly and is restored as a factor. It is finite: where it would overflow, the power is 0.
    rest = 1 - d
    lost = (1 - rest) - d
    largest = math.log(torch.finfo(d.dtype).max) - 1
    return torch.pow(rest, exponent) * torch.exp((exponent * safe_divide(lost, rest)).clamp(max=largest))


def write_complement_power(d: Tensor, exponent: float, out: Tensor, tracked: bool, scale: float = 1.0) -> float:
    r"""Write :math:`s (1 - (1+d)^e)`, :math:`-1 \le d \le 0`, into ``out``.

    If ``tracked``, write its slope up to a factor into ``d``. Return the factor, for the derivative with respect to -d.
    """
    torch.mul(d.log1p_(), exponent, out=out).expm1_().mul_(-scale)
    if tracked and exponent == 1:  # 0 * log(0) is NaN
        d.fill_(1.0)
    elif tracked:
        write_exp(d, exponent - 1)
    return scale * exponent


def write_exp(x: Tensor, factor: float) -> None:
    """Write :math:`e^{fx}` into x. Intel's vector library computes ``torch.exp``, and takes four times as long here."""
    x.mul_(factor * LOG2_E).exp2_()


def complement_quotient(d: Tensor, exponent: Parameter) -> Tensor:
    r"""Compute :math:`(1-(1-d)^e)/d` for :math:`0 \le d \le 1`, with its limit :math:`e` at 0."""
    small = d < TINY
    safe = torch.where(small, 0.5, d)
    return torch.where(small, exponent, -torch.expm1(exponent * torch.log1p(-safe)) / safe)


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return the quotient, and 0 where the denominator is 0."""
    zero = denominator == 0
    return torch.where(zero, 0.0, numerator / torch.where(zero, 1.0, denominator))


def odd_divided_difference(
    a: Tensor, b: Tensor, magnitude: Callable[[Tensor], Tensor], same_sign: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Compute the divided difference of an odd curve from its values and its divided difference on p >= 0.

    For points of opposite sign there is no cancellation: ``(g(|a|) + g(|b|)) / (|a| + |b|)``.
    """
    opposite = ((a > 0) & (b < 0)) | ((a < 0) & (b > 0))
    x, y = a.abs(), b.abs()
    across = (magnitude(x) + magnitude(y)) / torch.where(opposite, x + y, 1.0)
    return torch.where(opposite, across, same_sign(torch.maximum(x, y), torch.minimum(x, y)))
