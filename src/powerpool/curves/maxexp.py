"""MaxExp: the probability of at least one hit in eta draws."""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool.curves._forms import complement_power, complement_quotient, safe_divide, write_complement_power
from powerpool.curves.base import Curve, IntegerPower, Parameter, whole_number


class MaxExp(Curve):
    r"""Probability that at least one of :math:`\eta` draws hits (Eq. my_maxexp4 of the paper).

    .. math:: g(p) = 1 - (1-p)^{\eta}, \qquad g'(p) = \eta (1-p)^{\eta-1}, \qquad p \in [0, 1],\ \eta \ge 1

    Matrices are divided by their trace first. With an integer ``eta`` the spectral form needs only matrix products
    ("MaxExp(F)"). A tensor ``eta`` is clamped to at least 1.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.MaxExp(eta=2).value(torch.tensor([0.0, 0.5, 1.0]))
        tensor([0.0000, 0.7500, 1.0000])
    """

    domain = (0.0, 1.0)
    parameter_name = "eta"
    minimum = 1.0
    eta: Parameter

    def __init__(self, eta: Parameter = 50) -> None:
        super().__init__(eta, trace_normalize=True)

    def integer_power(self) -> IntegerPower | None:
        """Return the curve itself if eta is a whole number."""
        exponent = whole_number(self.eta)
        return None if exponent is None else IntegerPower(exponent, complement=True)

    def _value(self, p: Tensor, theta: Parameter) -> Tensor:
        return -torch.expm1(theta * torch.log1p(-p))

    def _derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        return theta * complement_power(p, theta - 1)

    def _parameter_derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        # -(1-p)^eta log(1-p) is 0 at p = 1, where 0 * -inf is NaN.
        log_complement = torch.log1p(-torch.where(p < 1, p, 0.0))
        return -complement_power(p, theta) * log_complement

    def _ratio(self, p: Tensor, theta: Parameter) -> Tensor:
        return complement_quotient(p, theta)

    def _divided_difference(self, a: Tensor, b: Tensor, theta: Parameter) -> Tensor:
        # With u = 1 - min(a, b) and d = |a - b| / u the difference of powers is u^eta (1 - (1-d)^eta): no cancellation.
        low = torch.minimum(a, b)
        gap = safe_divide((a - b).abs(), 1 - low)
        return complement_power(low, theta - 1) * complement_quotient(gap, theta)

    def _unit(self, theta: float) -> float:
        return -1.0

    def _write_value(self, p: Tensor, theta: float, out: Tensor, tracked: bool) -> float:
        return write_complement_power(p, theta, out, tracked)

    def _is_allowed(self, number: float) -> bool:
        return number >= 1

    def _range_message(self, given: float) -> str:
        return (
            f"{type(self).__name__} needs a finite eta >= 1 (got {given}): eta counts draws, eta = 1 is the identity. "
            "For a convex curve use Gamma with gamma > 1."
        )
