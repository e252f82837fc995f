"""SigmE: the logistic curve, a smooth approximation of SignedMaxExp."""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool.curves._forms import TINY, odd_divided_difference
from powerpool.curves.base import Curve, Parameter


def _sech_squared(x: Tensor) -> Tensor:
    decay = torch.exp(-2 * x.abs())  # cosh would overflow; this underflows to 0, the correct value
    return 4 * decay / (1 + decay).square()


class SigmE(Curve):
    r"""Zero-centred logistic function, odd and bounded by 1.

    .. math:: g(p) = \frac{2}{1+e^{-\eta' p}} - 1 = \tanh(\eta' p/2), \qquad
              g'(p) = \frac{\eta'}{2} \operatorname{sech}^2(\eta' p/2), \qquad p \in \mathbb{R},\ \eta' > 0

    Matrices are divided by their trace first, unless ``trace_normalize=False``. The spectral form also accepts
    indefinite symmetric matrices. A tensor ``eta`` is clamped to at least ``1e-6``.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.SigmE(eta=2.0).value(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-0.7616,  0.0000,  0.7616])
    """

    domain = (-float("inf"), float("inf"))
    parameter_name = "eta"
    option_names = ("trace_normalize",)
    minimum = 1e-6

    def __init__(self, eta: Parameter = 50.0, trace_normalize: bool = True) -> None:
        super().__init__(eta, trace_normalize=trace_normalize)

    def extra_repr(self) -> str:
        """Show the parameter and whether matrices are divided by their trace."""
        return f"{super().extra_repr()}, trace_normalize={self.trace_normalize}"

    def _value(self, p: Tensor, theta: Parameter) -> Tensor:
        return torch.tanh(theta * p / 2)

    def _derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        return theta / 2 * _sech_squared(theta * p / 2)

    def _parameter_derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        return p / 2 * _sech_squared(theta * p / 2)

    def _ratio(self, p: Tensor, theta: Parameter) -> Tensor:
        x = theta * p / 2
        small = x.abs() < TINY
        safe = torch.where(small, 1.0, x)
        return theta / 2 * torch.where(small, 1.0, torch.tanh(safe) / safe)

    def _divided_difference(self, a: Tensor, b: Tensor, theta: Parameter) -> Tensor:
        half = theta / 2
        return half * odd_divided_difference(half * a, half * b, torch.tanh, self._same_sign)

    @staticmethod
    def _same_sign(high: Tensor, low: Tensor) -> Tensor:
        # (tanh x - tanh y)/(x - y) = sinh(x-y) / ((x-y) cosh x cosh y), in decaying exponentials only.
        gap = 2 * (high - low)
        small = gap < TINY
        safe = torch.where(small, 1.0, gap)
        quotient = torch.where(small, 1.0, -torch.expm1(-safe) / safe)
        decay_high, decay_low = torch.exp(-2 * high), torch.exp(-2 * low)
        return 4 * quotient * decay_low / ((1 + decay_high) * (1 + decay_low))

    def _unit(self, theta: float) -> float:
        return theta

    def _write_value(self, p: Tensor, theta: float, out: Tensor, tracked: bool) -> float:
        # tanh(x/2) = e/(e+2), e = expm1(x): torch.tanh takes twice as long. Beyond 80 the value is 1, and e overflows.
        torch.clamp(p, max=80.0, out=out).expm1_()
        out.div_(out + 2)
        if tracked:
            # From the point, not from the value, which is 1 in float32 long before its slope vanishes.
            p.abs_().neg_().sigmoid_()  # g' = 2 theta s (1 - s)
            p.addcmul_(p, p, value=-1)
        return 2 * theta
