"""SignedMaxExp, the paper's MaxExp(+-): MaxExp for correlations and anti-correlations."""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool.curves._forms import odd_divided_difference, write_complement_power
from powerpool.curves.base import IntegerPower, Parameter
from powerpool.curves.maxexp import MaxExp


class SignedMaxExp(MaxExp):
    r"""MaxExp mirrored to negative entries: detects co-occurrence and its opposite.

    .. math:: g(p) = (1-\max(0,-p))^{\eta} - (1-\max(0,p))^{\eta}, \qquad
              g'(p) = \eta (1-|p|)^{\eta-1}, \qquad p \in [-1, 1],\ \eta \ge 1

    Matrices are divided by their trace first.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.SignedMaxExp(eta=2).value(torch.tensor([-0.5, 0.0, 0.5]))
        tensor([-0.7500,  0.0000,  0.7500])
    """

    domain = (-1.0, 1.0)

    def integer_power(self) -> IntegerPower | None:
        """Return None: the mirrored curve is not a polynomial on a spectrum with both signs."""
        return None

    def _value(self, p: Tensor, theta: Parameter) -> Tensor:
        return torch.copysign(super()._value(p.abs(), theta), p)

    def _derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        return super()._derivative(p.abs(), theta)

    def _parameter_derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        # Not copysign(..., p) of abs(p): the derivative of that at 0 is 0, and the correct one is 1.
        mirror = super()._parameter_derivative
        return torch.where(p < 0, -mirror(-p, theta), mirror(p, theta))

    def _ratio(self, p: Tensor, theta: Parameter) -> Tensor:
        return super()._ratio(p.abs(), theta)

    def _divided_difference(self, a: Tensor, b: Tensor, theta: Parameter) -> Tensor:
        magnitude, same_sign = super()._value, super()._divided_difference
        return odd_divided_difference(a, b, lambda p: magnitude(p, theta), lambda x, y: same_sign(x, y, theta))

    def _unit(self, theta: float) -> float:
        return 1.0

    def _write_value(self, p: Tensor, theta: float, out: Tensor, tracked: bool) -> float:
        magnitude = torch.copysign(p, -1.0)
        factor = write_complement_power(magnitude, theta, out, tracked)
        out.copysign_(p)
        if tracked:
            p.copy_(magnitude)
        return factor
