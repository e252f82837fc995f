"""FAHDP: an approximation of HDP at the cost of MaxExp."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from powerpool.curves._forms import write_complement_power
from powerpool.curves.base import Curve, IntegerPower, Parameter, evaluate, whole_number
from powerpool.curves.gamma import Gamma
from powerpool.curves.maxexp import MaxExp
from powerpool.errors import require_choice

Rounding = Literal["identity", "round", "ceil"]
ROUNDINGS = ("identity", "round", "ceil")

# Provide the formulas, which are evaluated at the exponent of FAHDP.
_MAXEXP, _GAMMA = MaxExp(1), Gamma(1)


class FAHDP(Curve):
    r"""Fast approximate HDP: MaxExp for short times, Gamma for long ones, scaled to HDP's end point (App. P).

    .. math:: g(p) = e^{-t}\bigl(1 - (1-p)^{h(\tilde\eta(t))}\bigr)\ (t < 1), \qquad e^{-t} p^{h(t)}\ (t \ge 1),
              \qquad p \in [0, 1]
    .. math:: \tilde\eta(t) = \tfrac12 + \sqrt{\tfrac14 + \Bigl(\frac{1}{t(e-1)} - \frac1e\Bigr)^2}

    The rounding :math:`h` is ``"identity"``, ``"round"``, or ``"ceil"`` (upwards for t < 1, downwards for t >= 1). A
    rounded exponent makes the spectral form a chain of matrix products. It is also piecewise constant, so a tensor
    ``t`` then receives a gradient through :math:`e^{-t}` only, and a learnable ``t`` gives a warning. Matrices are
    divided by their trace first. A tensor ``t`` is clamped to at least ``1e-6``.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.FAHDP(t=0.5, rounding="ceil").value(torch.tensor([0.0, 0.5, 1.0]))
        tensor([0.0000, 0.4549, 0.6065])
    """

    domain = (0.0, 1.0)
    parameter_name = "t"
    option_names = ("rounding",)
    minimum = 1e-6
    t: Parameter

    def __init__(self, t: Parameter = 0.01, rounding: Rounding = "ceil") -> None:
        require_choice(rounding, ROUNDINGS, "rounding")
        super().__init__(t, trace_normalize=True)
        self.rounding = rounding
        if rounding != "identity" and isinstance(t, Tensor) and t.requires_grad:
            warnings.warn(
                f"FAHDP with rounding={rounding!r} has zero gradient through its exponent: t is learnt through exp(-t) "
                'only. Pass rounding="identity" for the exact gradient.',
                UserWarning,
                stacklevel=2,
            )

    def extra_repr(self) -> str:
        """Show the parameter, the rounding and the resulting exponent."""
        shown = f"{super().extra_repr()}, rounding={self.rounding!r}"
        return shown if self.is_learnable else f"{shown}, exponent={self.exponent(self.t):.6g}"

    def integer_power(self) -> IntegerPower | None:
        """Return the scaled MaxExp or Gamma if the exponent is a whole number."""
        if isinstance(self.t, Tensor):
            return None
        exponent = whole_number(self.exponent(self.t))
        return None if exponent is None else IntegerPower(exponent, self.t < 1, scale=math.exp(-self.t))

    def exponent(self, t: Parameter) -> Parameter:
        r"""Return the exponent :math:`h(\tilde\eta(t))`, or :math:`h(t)` for :math:`t \ge 1`."""
        if isinstance(t, Tensor):
            return torch.where(t < 1, self._round(_eta(t), torch.ceil), self._round(t.clamp(min=1.0), torch.floor))
        return self._round(_eta(t), _ceil) if t < 1 else self._round(t, _floor)

    def _is_allowed(self, number: float) -> bool:
        return number >= 1e-18  # below this the exponent, about 0.6/t, exceeds 64 bits

    def _range_message(self, given: float) -> str:
        return f"FAHDP needs a finite t >= 1e-18, or >= {self.minimum:g} in a tensor (got {given})."

    def _round(self, exponent: Any, towards_hdp: Callable[[Any], Any]) -> Any:
        if self.rounding == "identity":
            return exponent
        if self.rounding == "ceil":
            return towards_hdp(exponent)
        return torch.round(exponent) if isinstance(exponent, Tensor) else float(round(exponent))

    def _is_steep(self, number: float) -> bool:
        return number < 1e-4

    def _value(self, p: Tensor, theta: Parameter) -> Tensor:
        return self._select("_value", theta, p)

    def _derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        return self._select("_derivative", theta, p)

    def _slope(self, p: Tensor, theta: Parameter) -> Tensor:
        return self._select("_slope", theta, p)

    def _ratio(self, p: Tensor, theta: Parameter) -> Tensor:
        return self._select("_ratio", theta, p)

    def _divided_difference(self, a: Tensor, b: Tensor, theta: Parameter) -> Tensor:
        return self._select("_divided_difference", theta, a, b)

    def _unit(self, theta: float) -> float:
        return -1.0 if theta < 1 else 1.0

    def _write_value(self, p: Tensor, theta: float, out: Tensor, tracked: bool) -> float:
        exponent, scale = float(self.exponent(theta)), math.exp(-theta)
        if theta < 1:
            return write_complement_power(p, exponent, out, tracked, scale)
        torch.pow(p, exponent, out=out).mul_(scale)
        if tracked:
            p.pow_(exponent - 1)
        return scale * exponent

    def _parameter_derivative(self, p: Tensor, theta: Parameter) -> Tensor:
        # Not _value: autograd through its formula gives NaN at p = 1.
        through_scale = -evaluate(p, theta, self)
        if self.rounding != "identity":
            return through_scale
        t = torch.as_tensor(theta, dtype=p.dtype, device=p.device)
        return through_scale + self._select("_parameter_derivative", theta, p) * _exponent_slope(t)

    def _select(self, formula: str, theta: Parameter, *points: Tensor) -> Tensor:
        """Scale the formula of MaxExp (t < 1) or Gamma (t >= 1); a tensor t evaluates both, so no value is read."""
        exponent = self.exponent(theta)
        maxexp, gamma = getattr(_MAXEXP, formula), getattr(_GAMMA, formula)
        if not isinstance(theta, Tensor):
            scaled: Tensor = math.exp(-theta) * (maxexp if theta < 1 else gamma)(*points, exponent)
            return scaled
        short = theta < 1
        # The formula that is not selected gets a harmless point: its slope may be infinite at the given one.
        at_short = (torch.where(short, p, 0.5) for p in points)
        at_long = (torch.where(short, 0.5, p) for p in points)
        return torch.exp(-theta) * torch.where(short, maxexp(*at_short, exponent), gamma(*at_long, exponent))


def _ceil(number: float) -> float:
    return float(math.ceil(number))  # a float: torch accepts no integer beyond 64 bits


def _floor(number: float) -> float:
    return float(math.floor(number))


def _eta(t: Any) -> Any:
    inner = 1 / (t * (math.e - 1)) - 1 / math.e
    if isinstance(t, Tensor):
        return 0.5 + torch.sqrt(0.25 + inner.square())
    return 0.5 + math.hypot(0.5, inner)


def _exponent_slope(t: Tensor) -> Tensor:
    """Return the derivative of the unrounded exponent with respect to t: of eta~(t) below 1, of t above."""
    inner = 1 / (t * (math.e - 1)) - 1 / math.e
    slow = -inner / (torch.sqrt(0.25 + inner.square()) * t.square() * (math.e - 1))
    return torch.where(t < 1, slow, 1.0)
