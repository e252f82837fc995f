"""AsinhE: a logarithm-like curve for entries of both signs."""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool.curves._forms import TINY, odd_divided_difference, safe_divide
from powerpool.curves.base import Curve, Parameter


def _hypot1(x: Tensor) -> Tensor:
    return torch.hypot(x, torch.ones_like(x))  # sqrt(1 + x^2) without overflow


def _asinh_quotient(x: Tensor) -> Tensor:
    """Compute asinh(x)/x, with 1 at 0."""
    small = x.abs() < TINY
    safe = torch.where(small, 1.0, x)
    return torch.where(small, 1.0, torch.asinh(safe) / safe)


class AsinhE(Curve):
    r"""Inverse hyperbolic sine: linear near 0, logarithmic far from it, odd.

    .. math:: g(p) = \operatorname{asinh}(\gamma' p), \qquad
              g'(p) = \frac{\gamma'}{\sqrt{1+\gamma'^2 p^2}}, \qquad p \in \mathbb{R},\ \gamma' > 0

    The slope at 0 is :math:`\gamma'` (the paper's Table 1 prints the slope at 1). Matrices are not divided by their
    trace. The spectral form also accepts indefinite symmetric matrices. A tensor ``gamma`` is clamped to at least
    ``1e-6``.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.AsinhE(gamma=10.0).value(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([-2.9982,  0.0000,  2.9982])
    """

    domain = (-float("inf"), float("inf"))
    parameter_name = "gamma"
    minimum = 1e-6

    def __init__(self, gamma: Parameter = 10.0) -> None:
        super().__init__(gamma, trace_normalize=False)

    def _value(self, p: Tensor, theta: Parameter) -> Tensor:
        return torch.asinh(theta * p)

    def _derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        return theta / _hypot1(theta * p)

    def _parameter_derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        return p / _hypot1(theta * p)

    def _ratio(self, p: Tensor, theta: Parameter) -> Tensor:
        return theta * _asinh_quotient(theta * p)

    def _divided_difference(self, a: Tensor, b: Tensor, theta: Parameter) -> Tensor:
        return theta * odd_divided_difference(theta * a, theta * b, torch.asinh, self._same_sign)

    @staticmethod
    def _same_sign(high: Tensor, low: Tensor) -> Tensor:
        # asinh x - asinh y = asinh(x sqrt(1+y^2) - y sqrt(1+x^2)) = asinh((x-y) w), w = (1+r) / (sqrt(1+y^2) +
        # r sqrt(1+x^2)) with r = y/x <= 1: every term is positive, and nothing overflows.
        r = safe_divide(low, high)
        w = (1 + r) / (_hypot1(low) + r * _hypot1(high))
        return w * _asinh_quotient((high - low) * w)

    def _unit(self, theta: float) -> float:
        return theta

    def _write_value(self, p: Tensor, theta: float, out: Tensor, tracked: bool) -> float:
        # log1p(x + x^2/(1 + sqrt(1+x^2))), x = |theta p|: torch.asinh is not vectorised, and takes three times as long.
        root = torch.hypot(p, p.new_ones(()))
        torch.abs(p, out=out)
        quotient = root + 1
        torch.div(out, quotient, out=quotient)
        out.addcmul_(out, quotient).log1p_().copysign_(p)
        if tracked:
            torch.reciprocal(root, out=p)
        return theta
