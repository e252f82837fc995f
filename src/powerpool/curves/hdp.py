"""HDP: the time-reversed heat diffusion process."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerpool.curves._forms import LOG2_E, safe_divide
from powerpool.curves.base import Curve, Parameter

SMALLEST_T = 1e-18  # (t/p)^2, of which the slope is a multiple, is a normal number of float32 for every p up to 1
_LARGEST_EXPONENT = 1e4  # e^-x is 0 there in every dtype


class HDP(Curve):
    r"""Heat diffusion reversed in time, flat at 0.

    .. math:: g(p) = e^{-t/p}, \qquad g'(p) = \frac{t}{p^2} e^{-t/p}, \qquad
              g(p) = g'(p) = 0 \text{ for } p \le 0, \qquad t > 0

    Matrices are divided by their trace first, so that eigenvalues lie in [0, 1]. On the null space of a matrix the
    spectral form is 0 (the paper's closed form :math:`\exp(-t M^+)` is the identity there). A number ``t`` is at
    least ``1e-18``; a tensor is clamped to at least ``1e-6``.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.HDP(t=0.5).value(torch.tensor([0.0, 0.5, 1.0]))
        tensor([0.0000, 0.3679, 0.6065])
    """

    domain = (0.0, float("inf"))
    parameter_name = "t"
    minimum = 1e-6

    def __init__(self, t: Parameter = 0.01) -> None:
        super().__init__(t, trace_normalize=True)

    def _is_allowed(self, number: float) -> bool:
        return number >= SMALLEST_T

    def _range_message(self, given: float) -> str:
        return (
            f"{type(self).__name__} needs a finite t of at least {SMALLEST_T:g}, or from {self.minimum:g} to "
            f"{self.maximum:g} in a tensor (got {given})."
        )

    def _is_steep(self, number: float) -> bool:
        return number < 1e-4

    def _value(self, p: Tensor, theta: Parameter) -> Tensor:
        return torch.exp(-_exponent(p, theta))

    def _derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        q = _exponent(p, theta)
        root = torch.exp(-q / 2)
        return safe_divide(q * root, p) * root

    def _parameter_derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        return -self._ratio(p, theta)

    def _ratio(self, p: Tensor, theta: Parameter) -> Tensor:
        # e^-q in two halves here and below: it may be subnormal, with few digits, when e^-q / p is not.
        root = torch.exp(-_exponent(p, theta) / 2)
        return safe_divide(root, p) * root

    def _divided_difference(self, a: Tensor, b: Tensor, theta: Parameter) -> Tensor:
        # e^{-t/x} - e^{-t/y} = -e^{-t/x} expm1(-z), z = t (x-y)/(xy), for x >= y: exact down to the last gap, then g'.
        high, low = torch.maximum(a, b), torch.minimum(a, b)
        q = _exponent(high, theta)
        root = torch.exp(-q / 2)
        z = q * safe_divide(high - low, low)
        apart = safe_divide(-root * torch.expm1(-z), high - low) * root
        at_tie = safe_divide(q * root, high) * root
        return torch.where(low > 0, torch.where(high == low, at_tie, apart), self._ratio(high, theta))

    def _unit(self, theta: float) -> float:
        return -1 / (theta * LOG2_E)

    def _write_value(self, p: Tensor, theta: float, out: Tensor, tracked: bool) -> float:
        # 2^x, x = -t/p log2(e), and 0 where that is about to be subnormal, which takes ten times as long.
        tiny = torch.finfo(p.dtype).tiny
        torch.exp2(p.clamp_(max=1 / math.log2(tiny)).reciprocal_(), out=out)
        torch.threshold_(out, 2 * tiny, 0.0)
        if tracked:
            p.square_().mul_(out)
        return 1 / (theta * LOG2_E**2)


def _exponent(p: Tensor, theta: Parameter) -> Tensor:
    """Return t/p, at most 1e4: x e^-x is then 0 for p -> 0 instead of inf * 0."""
    vanishing = _LARGEST_EXPONENT * p <= theta  # not the opposite comparison: NaN must stay NaN
    return torch.where(vanishing, _LARGEST_EXPONENT, theta / torch.where(vanishing, 1.0, p))
