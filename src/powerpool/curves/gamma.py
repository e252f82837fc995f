"""Gamma: the classical power normalization."""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool.curves._forms import safe_divide
from powerpool.curves.base import Curve, IntegerPower, Parameter, whole_number


class Gamma(Curve):
    r"""A power; the matrix square root for :math:`\gamma = 1/2` (Eq. my_gamma1 of the paper).

    .. math:: g(p) = p^{\gamma}, \qquad g'(p) = \gamma p^{\gamma-1}, \qquad p \ge 0,\ \gamma > 0

    Matrices are not divided by their trace. The element-wise form is :math:`(p+\varepsilon)^\gamma`. For
    :math:`\gamma < 1` the slope at 0 is infinite, and the gradient there is *defined* as 0: for entries that are
    exactly 0, and for the null space of a matrix. A tensor ``gamma`` is clamped to ``1e-6`` and 64, beyond
    which powers overflow.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.Gamma(gamma=0.5).value(torch.tensor([0.0, 0.25, 1.0]))
        tensor([0.0000, 0.5000, 1.0000])
    """

    domain = (0.0, float("inf"))
    parameter_name = "gamma"
    adds_eps = True
    minimum = 1e-6
    maximum = 64.0
    gamma: Parameter

    def __init__(self, gamma: Parameter = 0.5) -> None:
        super().__init__(gamma, trace_normalize=False)

    @property
    def has_infinite_slope(self) -> bool:
        """True for gamma < 1, and for a tensor gamma, which training may push below 1."""
        return isinstance(self.gamma, Tensor) or self.gamma < 1

    @property
    def keeps_value(self) -> bool:  # type: ignore[override]
        """True for the square root, whose slope is 1/(2 g)."""
        return not isinstance(self.gamma, Tensor) and self.gamma == 0.5

    def integer_power(self) -> IntegerPower | None:
        """Return the curve itself if gamma is a whole number."""
        exponent = whole_number(self.gamma)
        return None if exponent is None or exponent < 1 else IntegerPower(exponent, complement=False)

    @property
    def needs_float64(self) -> bool:
        """True for gamma < 1/2, and for a tensor gamma: the scale of a matrix does not matter to a power."""
        return isinstance(self.gamma, Tensor) or self.gamma < 0.5

    def _value(self, p: Tensor, theta: Parameter) -> Tensor:
        return torch.pow(p, theta)

    def _derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        return theta * torch.pow(p, theta - 1)

    def _parameter_derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        # p^gamma log(p), and 0 at p = 0; xlogy gives the same value, but its derivative there is NaN.
        positive = torch.where(p == 0, 1.0, p)
        return torch.pow(positive, theta) * torch.log(positive)

    def _slope(self, p: Tensor, theta: Parameter) -> Tensor:
        return theta * self._ratio(p, theta)

    def _ratio(self, p: Tensor, theta: Parameter) -> Tensor:
        # 0**(gamma-1) is defined as 0 if it is infinite (gamma < 1), and so is its derivative if that is infinite
        # (1 < gamma < 2); 0**0 = 1.
        singular = (p == 0) & ((theta < 2) & (theta != 1))
        return torch.where(singular, 0.0, torch.pow(torch.where(singular, 1.0, p), theta - 1))

    def _write_value(self, p: Tensor, theta: float, out: Tensor, tracked: bool) -> float:
        # Points are positive, since eps has been added.
        if self.keeps_value:
            p.mul_(p.rsqrt())
        else:
            torch.pow(p, theta, out=out)
            if tracked:
                torch.div(out, p, out=p)
        return theta

    def _divided_difference(self, a: Tensor, b: Tensor, theta: Parameter) -> Tensor:
        # high^gamma - low^gamma = high^gamma (1 - r^gamma), r = low/high. Near a tie 1 - r is accurate and r is not;
        # far apart r is accurate and 1 - r is not, which a small gamma needs: (1e-20)^0.1 is 0.01.
        high, low = torch.maximum(a, b), torch.minimum(a, b)
        gap = safe_divide(high - low, high)
        log_ratio = torch.where(gap < 0.5, torch.log1p(-gap), torch.log(safe_divide(low, high)))
        tie = gap == 0
        quotient = torch.where(tie, theta, -torch.expm1(theta * log_ratio) / torch.where(tie, 1.0, gap))
        return self._ratio(high, theta) * quotient
