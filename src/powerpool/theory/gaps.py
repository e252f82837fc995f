r"""How far the bounds of HDP are from it, in :math:`y = t/\lambda`, where HDP is :math:`e^{-y}` (App. F and P).

The line :math:`(\frac1e - 1)y + 1` is above :math:`e^{-y}` on [0, 1]. MaxExp touches that line from above at
:func:`y_of_eta`, and the scaled MaxExp of FAHDP the line :func:`fahdp_line` at ``y1``.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from powerpool.errors import require_choice
from powerpool.theory._numbers import Number, of_numbers, require_at_least
from powerpool.theory.links import LOG_RATIO, eta_bar_of_t, eta_tilde_of_t, t_of_eta

Touch = Literal["eta_bar", "eta_tilde"]
TOUCHES = ("eta_bar", "eta_tilde")


class Line(NamedTuple):
    """The line a y + b."""

    a: Number
    b: Number


class TouchingPoints(NamedTuple):
    """Where the line of :func:`fahdp_line` meets FAHDP (y0, y1) and HDP (y2, y3), in y = t/lambda."""

    y0: Number
    y1: Number
    y2: Number
    y3: Number


@of_numbers
def auxiliary_line(y: Number) -> Number:
    r"""The line between HDP and MaxExp, :math:`(\frac1e - 1)y + 1 \ge e^{-y}` for y in [0, 1] (App. F).

    Example:
        >>> auxiliary_line(0.0), round(auxiliary_line(1.0), 6)
        (1.0, 0.367879)
    """
    return 1 + (1 / math.e - 1) * y


@of_numbers
def y_of_eta(eta: Number) -> Number:
    r"""Where MaxExp touches the line above HDP, at :math:`\lambda = 1/(\eta+1)` (Eq. yalpha).

    .. math:: y(\eta) = \frac{e}{e-1} \Bigl(\frac{\eta}{\eta+1}\Bigr)^\eta, \qquad \eta > 0

    It falls from e/(e-1) = 1.582 at 0 to 0.791 at 1, and to 1/(e-1) = 0.582 at infinity.

    Example:
        >>> round(y_of_eta(1.0), 4), round(y_of_eta(1e6), 4)
        (0.791, 0.582)
    """
    return t_of_eta(eta) * (eta + 1)


@of_numbers
def alpha_of_eta(eta: Number) -> Number:
    r"""The product of time and exponent, :math:`\alpha = t\eta` (Eq. yalpha).

    .. math:: \alpha(\eta) = \frac{e}{e-1} \Bigl(\frac{\eta}{\eta+1}\Bigr)^{\eta+1}, \qquad \eta > 0

    Example:
        >>> round(alpha_of_eta(1.0), 4), round(alpha_of_eta(1e6), 4)
        (0.3955, 0.582)
    """
    return t_of_eta(eta) * eta


@of_numbers
def eps1(eta: Number) -> Number:
    r"""The gap of MaxExp to HDP at :math:`\lambda = t(\eta)`, where the line touches HDP (Eq. bounds1).

    .. math:: \epsilon_1 = \frac{e-1}{e} - (1 - t(\eta))^\eta, \qquad \eta \ge 1

    Example:
        >>> round(eps1(2.0), 6), round(eps1(1e6), 6)
        (0.045927, 0.073328)
    """
    require_at_least(eta, "eta", 1)
    return (1 - 1 / math.e) - torch.exp(eta * torch.log1p(-t_of_eta(eta)))


@of_numbers
def eps2(eta: Number) -> Number:
    r"""The gap of MaxExp to HDP at :math:`\lambda = 1/(\eta+1)`, where it touches the line (Eq. bounds1).

    .. math:: \epsilon_2 = 1 - \Bigl(\frac{\eta}{\eta+1}\Bigr)^\eta
              - \exp\Bigl(-\frac{e}{e-1} \Bigl(\frac{\eta}{\eta+1}\Bigr)^\eta\Bigr) \ge \epsilon_1, \qquad \eta \ge 1

    Example:
        >>> round(eps2(2.0), 6), round(eps2(1e6), 6)
        (0.060508, 0.073328)
    """
    power = -require_at_least(eta, "eta", 1) * torch.log1p(1 / eta)
    return -torch.expm1(power) - torch.exp(-torch.exp(LOG_RATIO + power))


@of_numbers
def fahdp_line(t: Number, touch: Touch = "eta_bar") -> Line:
    r"""The line between HDP and FAHDP for 0 < t < 1 (Eq. max_exp_final_set2).

    .. math:: a = \frac{e^{-t}}{t} \frac{r}{1-\bar\eta}, \qquad b = e^{-t} \Bigl(1 - \frac{r}{1-\bar\eta}\Bigr), \qquad
              r = \Bigl(\frac{\bar\eta-1}{\bar\eta}\Bigr)^{\tilde\eta}

    It meets FAHDP at y0 = t and :math:`y_1 = t\bar\eta`. With :math:`\bar\eta(t)`, as in the paper, the line crosses
    FAHDP at y1, which is slightly below the line right after it. With ``touch="eta_tilde"`` :math:`\tilde\eta` replaces
    :math:`\bar\eta`: the line is the tangent of FAHDP at y1, and never above FAHDP.

    Example:
        >>> [round(part, 5) for part in fahdp_line(0.1)]
        [-0.60886, 0.96572]
    """
    eta = _touching_eta(t, touch)
    drop = torch.exp(eta_tilde_of_t(t) * torch.log1p(-1 / eta)) / (eta - 1)
    return Line(-torch.exp(-t) * drop / t, torch.exp(-t) * (1 + drop))


@of_numbers
def touching_points(t: Number, touch: Touch = "eta_bar") -> TouchingPoints:
    r"""Where the line of :func:`fahdp_line` meets FAHDP and HDP (Eq. max_exp_lambert2), 0 < t < 1.

    .. math:: y_0 = t, \qquad y_1 = t\bar\eta, \qquad
              y_2 = W_{-1}\Bigl(\frac{e^{b/a}}{a}\Bigr) - \frac ba, \qquad
              y_3 = W_0\Bigl(\frac{e^{b/a}}{a}\Bigr) - \frac ba

    with Lambert's W, which solves :math:`W e^W = z`. Then :math:`y_2 = y_0 \le y_1 \le y_3`, and the line is above HDP
    on :math:`[y_2, y_3]`. Needs SciPy; no gradient flows through y2 and y3.

    Example:
        >>> [round(y, 4) for y in touching_points(0.1)]
        [0.1, 0.596, 0.1, 0.9526]
    """
    a, b = fahdp_line(t, touch)
    argument, shift = torch.exp(b / a) / a, b / a
    y2, y3 = (_lambert(argument, branch) - shift for branch in (-1, 0))
    return TouchingPoints(t, t * _touching_eta(t, touch), y2, y3)


@of_numbers
def eps3(t: Number, touch: Touch = "eta_bar") -> Number:
    r"""The gap of FAHDP to HDP at y1, where the line meets FAHDP (Eq. bounds_new), 0 < t < 1.

    .. math:: \epsilon_3 = e^{-t} - e^{-t} \Bigl(\frac{\bar\eta-1}{\bar\eta}\Bigr)^{\tilde\eta} - e^{-t\bar\eta}

    Example:
        >>> round(eps3(0.1), 6)
        0.051836
    """
    return _gap(t, t * _touching_eta(t, touch))


@of_numbers
def eps4(t: Number, touch: Touch = "eta_bar") -> Number:
    r"""The gap of FAHDP to HDP at y3, where the line meets HDP (Eq. bounds_new), 0 < t < 1. Needs SciPy.

    .. math:: \epsilon_4 = e^{-t} - e^{-t} \Bigl(\frac{y_3-t}{y_3}\Bigr)^{\tilde\eta} - e^{-y_3} \ge \epsilon_3

    Example:
        >>> round(eps4(0.1), 6)
        0.05266
    """
    return _gap(t, touching_points(t, touch).y3)


def _touching_eta(t: Tensor, touch: str) -> Tensor:
    require_choice(touch, TOUCHES, "touch")
    eta_bar = eta_bar_of_t(t)  # also refuses times outside (0, 1)
    return eta_bar if touch == "eta_bar" else eta_tilde_of_t(t)


def _gap(t: Tensor, y: Tensor) -> Tensor:
    fahdp = -torch.exp(-t) * torch.expm1(eta_tilde_of_t(t) * torch.log1p(-t / y))
    return fahdp - torch.exp(-y)


def _lambert(z: Tensor, branch: int) -> Tensor:
    try:
        special = importlib.import_module("scipy.special")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Lambert's W needs {error.name}, which is not installed: pip install 'powerpool[figures]'.",
            name=error.name,
        ) from error
    values: Any = special.lambertw(z.detach().cpu().numpy(), branch).real
    return torch.as_tensor(values, dtype=torch.float64, device=z.device)
