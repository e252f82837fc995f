r"""Which parameter of one curve makes it bound, or resemble, another.

========================  ==========================================  =====================
link                      meaning                                     where
========================  ==========================================  =====================
:func:`t_of_eta`          the HDP that MaxExp is above                Eq. eta_par
:func:`eta_of_t`          its inverse, nearly; still a bound          Eq. t_par
:func:`gamma_of_t`        the Gamma that touches HDP from above       Theorem gamma_bounds
:func:`t_of_gamma`        its inverse                                 Theorem gamma_bounds
:func:`t_of_eta_bar`      the scaled MaxExp on the line above HDP     Eq. yalpha_scaled
:func:`eta_tilde_of_t`    its inverse, nearly: FAHDP's exponent       Eq. eta_hat_approx
:func:`eta_bar_of_t`      its inverse, more closely                   App. P
:func:`eta_prime_of_eta`  the SigmE that meets MaxExp                 Remark maxexp_sigmoid
:func:`eta_of_eta_prime`  its inverse                                 Remark maxexp_sigmoid
========================  ==========================================  =====================

Every function takes a number, a NumPy array or a tensor and gives back the same kind, computed in float64 and in
logarithms: nothing overflows.
"""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor

from powerpool.theory._numbers import evaluate, require, require_positive, require_unit

T = TypeVar("T")

LOG_RATIO = 1 - math.log(math.e - 1)
"""log(e/(e-1)), the logarithm of the factor that the line above HDP brings in."""
LARGEST_SCALED_TIME = math.e / (2 * (math.e - 1))
"""0.791, the limit of :func:`t_of_eta_bar` at 1: no scaled MaxExp touches the line at later times."""
ALIGNMENT = math.log(math.sqrt(3) + 2)
"""1.317, where eta' p is when SigmE bends most; eta' has to be larger for that to be inside [0, 1]."""
LOG_COMPLEMENT = math.log1p(-1 / math.sqrt(3))
"""log(1 - 1/sqrt 3) = log((4 - 2 sqrt 3)/3)/2: what (1-p)^eta is in logarithms where SigmE and MaxExp meet."""


def t_of_eta(eta: T) -> T:
    r"""The time at which HDP stays below MaxExp (Eq. eta_par, Theorem param_bounds).

    .. math:: t(\eta) = \frac{e}{e-1} \frac{\eta^\eta}{(\eta+1)^{\eta+1}}, \qquad
              1-(1-\lambda)^\eta \ge e^{-t(\eta)/\lambda} \text{ on } [0, 1] \text{ for } \eta \ge 1

    Below :math:`\eta = 1` the formula has a value, but no longer gives a bound.

    Example:
        >>> round(t_of_eta(50.0), 6), round(t_of_eta(1e6), 12)
        (0.011524, 5.81976e-07)
    """
    return evaluate(_t_of_eta, eta=eta)


def eta_of_t(t: T) -> T:
    r"""The exponent with which MaxExp stays above HDP (Eq. t_par), by Stirling's formula.

    .. math:: \eta(t) \approx \tfrac12 \sqrt{1 + \frac{4}{t^2 (e-1)^2}} - \tfrac12

    It is never below the inverse of :func:`t_of_eta`, so that MaxExp stays a bound; it falls below 1, where the curve
    ``MaxExp`` ends, for t above 0.4115.

    Example:
        >>> round(eta_of_t(0.01), 4), round(eta_of_t(1e3), 12)
        (57.6998, 3.38697e-07)
    """
    return evaluate(_eta_of_t, t=t)


def eta_slope(t: T) -> T:
    r"""The derivative of :func:`eta_of_t`, which the heat equation of MaxExp needs (Eq. heat_maxexp).

    .. math:: \frac{d\eta}{dt} = \frac{-2}{t^2 (e-1) \sqrt{t^2 (e-1)^2 + 4}}

    Example:
        >>> round(eta_slope(0.1), 4)
        -57.9841
    """
    return evaluate(_eta_slope, t=t)


def gamma_of_t(t: T) -> T:
    r"""The exponent with which Gamma touches HDP from above, at :math:`\lambda = 1/e` (Theorem gamma_bounds).

    .. math:: \gamma(t) = e t, \qquad \lambda^{\gamma(t)} \ge e^{-t/\lambda} \text{ for } \lambda \ge 0

    Example:
        >>> round(gamma_of_t(0.1), 6)
        0.271828
    """
    return evaluate(lambda x: math.e * _positive(x, "t"), t=t)


def t_of_gamma(gamma: T) -> T:
    r"""The time at which HDP touches Gamma from below: :math:`t(\gamma) = \gamma/e` (Theorem gamma_bounds).

    Example:
        >>> round(t_of_gamma(0.5), 6)
        0.18394
    """
    return evaluate(lambda x: _positive(x, "gamma") / math.e, gamma=gamma)


def combined_bound(p: T, t: T) -> T:
    r"""The tighter of the two bounds of HDP, :math:`\min(1-(1-p)^{\eta(t)},\ p^{\gamma(t)}) \ge e^{-t/p}`, p in [0, 1].

    Below Theorem gamma_bounds in the paper. The exponent of MaxExp is :func:`eta_of_t`, below 1 for late times.

    Example:
        >>> round(combined_bound(0.5, 0.1), 4), round(combined_bound(0.01, 0.1), 4)
        (0.8283, 0.0523)
    """
    return evaluate(_combined_bound, p=p, t=t)


def t_of_eta_bar(eta_bar: T) -> T:
    r"""The time at which a scaled MaxExp touches the line above HDP (Eq. yalpha_scaled).

    .. math:: t(\bar\eta) = \frac{e}{e-1} \frac{r}{r + \bar\eta - 1}, \qquad
              r = \Bigl(\frac{\bar\eta-1}{\bar\eta}\Bigr)^{\bar\eta}, \qquad \bar\eta \ge 1

    At 1 it is its limit, :math:`\frac{e}{2(e-1)} = 0.791`, and its largest value.

    Example:
        >>> round(t_of_eta_bar(1.0), 6), round(t_of_eta_bar(50.0), 6)
        (0.790988, 0.011671)
    """
    return evaluate(_t_of_eta_bar, eta_bar=eta_bar)


def t_tilde_of_eta_bar(eta_bar: T) -> T:
    r""":func:`t_of_eta_bar` by Stirling's formula, which can be inverted (Eq. t_hat_approx).

    .. math:: \tilde t(\bar\eta) = \frac{e}{e-1} \frac{1}{1 + e\sqrt{\bar\eta(\bar\eta-1)}}, \qquad \bar\eta \ge 1

    Example:
        >>> round(t_tilde_of_eta_bar(5.0), 5), round(t_of_eta_bar(5.0), 5)
        (0.12024, 0.11978)
    """
    return evaluate(_t_tilde_of_eta_bar, eta_bar=eta_bar)


def eta_tilde_of_t(t: T) -> T:
    r"""The exponent of FAHDP for t < 1: the inverse of :func:`t_tilde_of_eta_bar` (Eq. eta_hat_approx).

    .. math:: \tilde\eta(t) = \tfrac12 + \sqrt{\tfrac14 + \Bigl(\frac{1}{t(e-1)} - \frac1e\Bigr)^2}

    It falls to 1 at t = e/(e-1) and rises again beyond; FAHDP uses it up to t = 1.

    Example:
        >>> round(eta_tilde_of_t(0.01), 4)
        58.332
    """
    return evaluate(_eta_tilde_of_t, t=t)


def eta_bar_of_t(t: T) -> T:
    r"""The inverse of :func:`t_of_eta_bar` with the error of Stirling's formula taken out once (App. P), 0 < t < 1.

    .. math:: \bar\eta(t) = \tilde\eta\bigl(2t - t(\tilde\eta(t))\bigr)

    Beyond t = 0.791 there is nothing to invert; the formula goes on, and App. P uses it up to t = 1.

    Example:
        >>> round(eta_bar_of_t(0.1), 4), round(t_of_eta_bar(eta_bar_of_t(0.1)), 4)
        (5.9597, 0.1)
    """
    return evaluate(_eta_bar_of_t, t=t)


def eta_prime_of_eta(eta: T) -> T:
    r"""The SigmE that meets MaxExp where SigmE bends most, with value :math:`1/\sqrt3` (Remark maxexp_sigmoid).

    .. math:: \eta'(\eta) = \frac{\log(\sqrt3+2)}{1-\bigl((4-2\sqrt3)/3\bigr)^{1/(2\eta)}}, \qquad \eta > 0

    Example:
        >>> round(eta_prime_of_eta(50.0), 4), round(eta_of_eta_prime(eta_prime_of_eta(50.0)), 4)
        (77.12, 50.0)
    """
    return evaluate(_eta_prime_of_eta, eta=eta)


def eta_of_eta_prime(eta_prime: T) -> T:
    r"""The MaxExp that meets SigmE where SigmE bends most: the inverse of :func:`eta_prime_of_eta`.

    .. math:: \eta(\eta') = \frac{\log((4-2\sqrt3)/3)}{2\log(1-\log(\sqrt3+2)/\eta')}, \qquad
              \eta' > \log(\sqrt3+2) = 1.317

    A smaller :math:`\eta'` bends most beyond p = 1, where there is no MaxExp to meet.

    Example:
        >>> round(eta_of_eta_prime(50.0), 4)
        32.2645
    """
    return evaluate(_eta_of_eta_prime, eta_prime=eta_prime)


def _positive(x: Tensor, name: str) -> Tensor:
    require_positive(x, name)
    return x


def _t_of_eta(eta: Tensor) -> Tensor:
    require_positive(eta, "eta")
    return torch.exp(LOG_RATIO - eta * torch.log1p(1 / eta) - torch.log1p(eta))


def _eta_of_t(t: Tensor) -> Tensor:
    require_positive(t, "t")
    # (sqrt(1 + x^2) - 1)/2 without its cancellation at late times, where x is small.
    x = 2 / (t * (math.e - 1))
    return x / 2 * (x / (torch.hypot(x, torch.ones_like(x)) + 1))


def _eta_slope(t: Tensor) -> Tensor:
    require_positive(t, "t")
    scaled = t * (math.e - 1)
    return -2 / (t * scaled * torch.hypot(scaled, torch.full_like(scaled, 2.0)))


def _combined_bound(p: Tensor, t: Tensor) -> Tensor:
    require_unit(p, "p")
    maxexp = -torch.expm1(_eta_of_t(t) * torch.log1p(-p))
    return torch.minimum(maxexp, torch.pow(p, math.e * t))


def _t_of_eta_bar(eta_bar: Tensor) -> Tensor:
    require(eta_bar, "eta_bar", ">= 1", eta_bar >= 1)
    # log((x-1)/r): of two forms, each where it loses no digits. xlogy is 0 at x = 1.
    x = eta_bar
    near, far = x.clamp(max=2.0), x.clamp(min=2.0)
    odds = torch.where(
        x < 2,
        torch.xlogy(1 - near, near - 1) + near * torch.log(near),
        torch.log(far - 1) - far * torch.log1p(-1 / far),
    )
    return math.exp(LOG_RATIO) * torch.sigmoid(-odds)


def _t_tilde_of_eta_bar(eta_bar: Tensor) -> Tensor:
    require(eta_bar, "eta_bar", ">= 1", eta_bar >= 1)
    return math.exp(LOG_RATIO) / (1 + math.e * torch.sqrt(eta_bar) * torch.sqrt(eta_bar - 1))


def _eta_tilde_of_t(t: Tensor) -> Tensor:
    require_positive(t, "t")
    inner = 1 / (t * (math.e - 1)) - 1 / math.e
    return 0.5 + torch.hypot(inner, torch.full_like(inner, 0.5))


def _eta_bar_of_t(t: Tensor) -> Tensor:
    require(t, "t", "in (0, 1)", (t > 0) & (t < 1))
    return _eta_tilde_of_t(2 * t - _t_of_eta_bar(_eta_tilde_of_t(t)))


def _eta_prime_of_eta(eta: Tensor) -> Tensor:
    require_positive(eta, "eta")
    return -ALIGNMENT / torch.expm1(LOG_COMPLEMENT / eta)


def _eta_of_eta_prime(eta_prime: Tensor) -> Tensor:
    require(eta_prime, "eta_prime", f"> log(sqrt(3) + 2) = {ALIGNMENT:.6f}", eta_prime > ALIGNMENT)
    return LOG_COMPLEMENT / torch.log1p(-ALIGNMENT / eta_prime)
