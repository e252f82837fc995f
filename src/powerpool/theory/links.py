r"""Links between the parameters of curves, such that one bounds or resembles another; SigmE against MaxExp.

========================  ==========================================  =====================
link                      meaning                                     where
========================  ==========================================  =====================
:func:`t_of_eta`          the HDP that MaxExp bounds from above       Eq. eta_par
:func:`eta_of_t`          its approximate inverse; still a bound      Eq. t_par
:func:`gamma_of_t`        the Gamma that touches HDP from above       Theorem gamma_bounds
:func:`t_of_gamma`        its inverse                                 Theorem gamma_bounds
:func:`t_of_eta_bar`      the scaled MaxExp on the line above HDP     Eq. yalpha_scaled
:func:`eta_tilde_of_t`    its approximate inverse, used by FAHDP      Eq. eta_hat_approx
:func:`eta_bar_of_t`      a closer approximation of its inverse       App. P
:func:`eta_prime_of_eta`  the SigmE that meets MaxExp                 Remark maxexp_sigmoid
:func:`eta_of_eta_prime`  its inverse                                 Remark maxexp_sigmoid
========================  ==========================================  =====================

Every function takes a number, a NumPy array or a tensor and returns the same kind. It computes in float64 and in
logarithms, so that nothing overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from powerpool.theory._numbers import Number, of_numbers, require, require_at_least, require_positive, require_unit

LOG_RATIO = 1 - math.log(math.e - 1)
"""log(e/(e-1)), the logarithm of the factor that comes from the line above HDP."""
ALIGNMENT = math.log(math.sqrt(3) + 2)
"""1.317, the value of eta' p at which SigmE bends most; it is inside [0, 1] for larger eta'."""
LOG_COMPLEMENT = math.log1p(-1 / math.sqrt(3))
"""log(1 - 1/sqrt 3) = log((4 - 2 sqrt 3)/3)/2, the logarithm of (1-p)^eta where SigmE and MaxExp meet."""


_FIFTH = math.log(math.sqrt(26 * math.sqrt(105) + 270) / 2 + math.sqrt(105) / 2 + 13 / 2)
_STEPS = 80  # of a bisection of [0, 1]: more than the bits of a float64


@of_numbers
def t_of_eta(eta: Number) -> Number:
    r"""The time at which HDP stays below MaxExp (Eq. eta_par, Theorem param_bounds).

    .. math:: t(\eta) = \frac{e}{e-1} \frac{\eta^\eta}{(\eta+1)^{\eta+1}}, \qquad
              1-(1-\lambda)^\eta \ge e^{-t(\eta)/\lambda} \text{ on } [0, 1] \text{ for } \eta \ge 1

    For :math:`0 < \eta < 1` the formula has a value, but MaxExp is not a bound.

    Example:
        >>> round(t_of_eta(50.0), 6), round(t_of_eta(1e6), 12)
        (0.011524, 5.81976e-07)
    """
    require_positive(eta, "eta")
    return torch.exp(LOG_RATIO - eta * torch.log1p(1 / eta) - torch.log1p(eta))


@of_numbers
def eta_of_t(t: Number) -> Number:
    r"""The exponent with which MaxExp stays above HDP (Eq. t_par), by Stirling's formula.

    .. math:: \eta(t) \approx \tfrac12 \sqrt{1 + \frac{4}{t^2 (e-1)^2}} - \tfrac12

    It is never below the inverse of :func:`t_of_eta`, so that MaxExp stays a bound. For t above 0.4115 it is below 1,
    where the curve ``MaxExp`` is not defined.

    Example:
        >>> round(eta_of_t(0.01), 4), round(eta_of_t(1e3), 12)
        (57.6998, 3.38697e-07)
    """
    require_positive(t, "t")
    # (sqrt(1 + x^2) - 1)/2 without cancellation at late times, where x is small.
    x = 2 / (t * (math.e - 1))
    return x / 2 * (x / (torch.hypot(x, torch.ones_like(x)) + 1))


@of_numbers
def eta_slope(t: Number) -> Number:
    r"""The derivative of :func:`eta_of_t`, used by the heat equation of MaxExp (Eq. heat_maxexp).

    .. math:: \frac{d\eta}{dt} = \frac{-2}{t^2 (e-1) \sqrt{t^2 (e-1)^2 + 4}}

    Example:
        >>> round(eta_slope(0.1), 4)
        -57.9841
    """
    scaled = require_positive(t, "t") * (math.e - 1)
    return -2 / (t * scaled * torch.hypot(scaled, torch.full_like(scaled, 2.0)))


@of_numbers
def gamma_of_t(t: Number) -> Number:
    r"""The exponent with which Gamma touches HDP from above, at :math:`\lambda = 1/e` (Theorem gamma_bounds).

    .. math:: \gamma(t) = e t, \qquad \lambda^{\gamma(t)} \ge e^{-t/\lambda} \text{ for } \lambda \ge 0

    Example:
        >>> round(gamma_of_t(0.1), 6)
        0.271828
    """
    return math.e * require_positive(t, "t")


@of_numbers
def t_of_gamma(gamma: Number) -> Number:
    r"""The time at which HDP touches Gamma from below: :math:`t(\gamma) = \gamma/e` (Theorem gamma_bounds).

    Example:
        >>> round(t_of_gamma(0.5), 6)
        0.18394
    """
    return require_positive(gamma, "gamma") / math.e


@of_numbers
def combined_bound(p: Number, t: Number) -> Number:
    r"""The tighter of the two bounds of HDP, :math:`\min(1-(1-p)^{\eta(t)},\ p^{\gamma(t)}) \ge e^{-t/p}`, p in [0, 1].

    Below Theorem gamma_bounds in the paper. The exponent of MaxExp is :func:`eta_of_t`, below 1 for late times.

    Example:
        >>> round(combined_bound(0.5, 0.1), 4), round(combined_bound(0.01, 0.1), 4)
        (0.8283, 0.0523)
    """
    maxexp = -torch.expm1(eta_of_t(t) * torch.log1p(-require_unit(p, "p")))
    return torch.minimum(maxexp, torch.pow(p, math.e * t))


@of_numbers
def t_of_eta_bar(eta_bar: Number) -> Number:
    r"""The time at which a scaled MaxExp touches the line above HDP (Eq. yalpha_scaled).

    .. math:: t(\bar\eta) = \frac{e}{e-1} \frac{r}{r + \bar\eta - 1}, \qquad
              r = \Bigl(\frac{\bar\eta-1}{\bar\eta}\Bigr)^{\bar\eta}, \qquad \bar\eta \ge 1

    At 1 the value is the limit :math:`\frac{e}{2(e-1)} = 0.791`, the largest.

    Example:
        >>> round(t_of_eta_bar(1.0), 6), round(t_of_eta_bar(50.0), 6)
        (0.790988, 0.011671)
    """
    require_at_least(eta_bar, "eta_bar", 1)
    # log((eta_bar - 1)/r) in two forms, each where it loses no digits. xlogy is 0 at eta_bar = 1.
    near, far = eta_bar.clamp(max=2.0), eta_bar.clamp(min=2.0)
    odds = torch.where(
        eta_bar < 2,
        torch.xlogy(1 - near, near - 1) + near * torch.log(near),
        torch.log(far - 1) - far * torch.log1p(-1 / far),
    )
    return math.exp(LOG_RATIO) * torch.sigmoid(-odds)


@of_numbers
def t_tilde_of_eta_bar(eta_bar: Number) -> Number:
    r""":func:`t_of_eta_bar` by Stirling's formula, which can be inverted (Eq. t_hat_approx).

    .. math:: \tilde t(\bar\eta) = \frac{e}{e-1} \frac{1}{1 + e\sqrt{\bar\eta(\bar\eta-1)}}, \qquad \bar\eta \ge 1

    Example:
        >>> round(t_tilde_of_eta_bar(5.0), 5), round(t_of_eta_bar(5.0), 5)
        (0.12024, 0.11978)
    """
    require_at_least(eta_bar, "eta_bar", 1)
    return math.exp(LOG_RATIO) / (1 + math.e * torch.sqrt(eta_bar) * torch.sqrt(eta_bar - 1))


@of_numbers
def eta_tilde_of_t(t: Number) -> Number:
    r"""The exponent of FAHDP for t < 1: the inverse of :func:`t_tilde_of_eta_bar` (Eq. eta_hat_approx).

    .. math:: \tilde\eta(t) = \tfrac12 + \sqrt{\tfrac14 + \Bigl(\frac{1}{t(e-1)} - \frac1e\Bigr)^2}

    It falls to 1 at t = e/(e-1) and rises again beyond; FAHDP uses it up to t = 1.

    Example:
        >>> round(eta_tilde_of_t(0.01), 4)
        58.332
    """
    inner = 1 / (require_positive(t, "t") * (math.e - 1)) - 1 / math.e
    return 0.5 + torch.hypot(inner, torch.full_like(inner, 0.5))


@of_numbers
def eta_bar_of_t(t: Number) -> Number:
    r"""The inverse of :func:`t_of_eta_bar`, with one correction of the error of Stirling's formula (App. P), 0 < t < 1.

    .. math:: \bar\eta(t) = \tilde\eta\bigl(2t - t(\tilde\eta(t))\bigr)

    Beyond t = 0.791 there is no inverse; App. P uses the formula up to t = 1.

    Example:
        >>> round(eta_bar_of_t(0.1), 4), round(t_of_eta_bar(eta_bar_of_t(0.1)), 4)
        (5.9597, 0.1)
    """
    require(t, "t", "in (0, 1)", (t > 0) & (t < 1))
    return eta_tilde_of_t(2 * t - t_of_eta_bar(eta_tilde_of_t(t)))


@of_numbers
def eta_prime_of_eta(eta: Number) -> Number:
    r"""The SigmE that meets MaxExp where SigmE bends most, with value :math:`1/\sqrt3` (Remark maxexp_sigmoid).

    .. math:: \eta'(\eta) = \frac{\log(\sqrt3+2)}{1-\bigl((4-2\sqrt3)/3\bigr)^{1/(2\eta)}}, \qquad \eta > 0

    Example:
        >>> round(eta_prime_of_eta(50.0), 4), round(eta_of_eta_prime(eta_prime_of_eta(50.0)), 4)
        (77.12, 50.0)
    """
    return -ALIGNMENT / torch.expm1(LOG_COMPLEMENT / require_positive(eta, "eta"))


@of_numbers
def eta_of_eta_prime(eta_prime: Number) -> Number:
    r"""The MaxExp that meets SigmE where SigmE bends most: the inverse of :func:`eta_prime_of_eta`.

    .. math:: \eta(\eta') = \frac{\log((4-2\sqrt3)/3)}{2\log(1-\log(\sqrt3+2)/\eta')}, \qquad
              \eta' > \log(\sqrt3+2) = 1.317

    A smaller :math:`\eta'` bends most beyond p = 1, where MaxExp is not defined.

    Example:
        >>> round(eta_of_eta_prime(50.0), 4)
        32.2645
    """
    require(eta_prime, "eta_prime", f"> log(sqrt(3) + 2) = {ALIGNMENT:.6f}", eta_prime > ALIGNMENT)
    return LOG_COMPLEMENT / torch.log1p(-ALIGNMENT / eta_prime)


# ---- SigmE and MaxExp: where they meet, and their distance (Remark maxexp_sigmoid, App. K) ---------------------------


@of_numbers
def alignment_point(eta_prime: Number) -> Number:
    r"""Where SigmE bends most: :math:`p'' = \log(\sqrt3+2)/\eta'`, a zero of its third derivative (App. K).

    SigmE is :math:`1/\sqrt3` there, and so is MaxExp with :func:`eta_of_eta_prime`. It lies in [0, 1]
    for :math:`\eta' \ge 1.317`.

    Example:
        >>> round(alignment_point(50.0), 6)
        0.026339
    """
    return ALIGNMENT / require_positive(eta_prime, "eta_prime")


@of_numbers
def error_point(eta_prime: Number) -> Number:
    r"""Where App. K measures the difference of SigmE and MaxExp: the outer zero of SigmE's fifth derivative.

    .. math:: p''' = \log\Bigl(\tfrac12\sqrt{26\sqrt{105}+270} + \tfrac12\sqrt{105} + \tfrac{13}2\Bigr)/\eta'
              = 3.144/\eta'

    For :math:`\eta \ge 20` the difference there is within 3 % of the largest; for small :math:`\eta` it is not.

    Example:
        >>> round(error_point(50.0), 6)
        0.062886
    """
    return _FIFTH / require_positive(eta_prime, "eta_prime")


@of_numbers
def sigme_maxexp_distance(eta_prime: Number, eta: Number) -> Number:
    r"""The distance between SigmE and MaxExp on [0, 1] (Remark maxexp_sigmoid).

    .. math:: \int_0^1 \Bigl|\frac{2}{1+e^{-\eta' p}} - 1 - \bigl(1-(1-p)^\eta\bigr)\Bigr| dp
              \le \frac{2\log 2}{\eta'} + \frac{1}{\eta+1}

    so that it vanishes in the limit, however the two parameters grow. The integral is exact: the curves cross at most
    twice inside (0, 1), and between crossings the difference has the antiderivative

    .. math:: \frac{2}{\eta'} \log\frac{1+e^{-\eta' x}}{2} + \frac{1-(1-x)^{\eta+1}}{\eta+1}

    Example:
        >>> round(sigme_maxexp_distance(eta_prime_of_eta(50.0), 50.0), 6)
        0.002346
        >>> round(sigme_maxexp_distance(eta_prime_of_eta(1e6), 1e6), 9)
        1.31e-07
    """
    require_positive(eta_prime, "eta_prime")
    require_positive(eta, "eta")
    eta_prime, eta = torch.broadcast_tensors(eta_prime, eta)
    zero, one = torch.zeros_like(eta), torch.ones_like(eta)
    first, second = _crossings(eta_prime.detach(), eta.detach())
    values = [_antiderivative(x, eta_prime, eta) for x in (zero, first, second, one)]
    return sum((values[i + 1] - values[i]).abs() for i in range(3))


def _antiderivative(x: Tensor, eta_prime: Tensor, eta: Tensor) -> Tensor:
    sigme = 2 / eta_prime * (torch.log1p(torch.exp(-eta_prime * x)) - math.log(2))
    return sigme - torch.expm1((eta + 1) * torch.log1p(-x)) / (eta + 1)


def _crossings(eta_prime: Tensor, eta: Tensor) -> tuple[Tensor, Tensor]:
    """The two points of (0, 1) where the curves cross; both are 0 if they do not cross, the first if they cross once.

    log(1 - SigmE) - log(1 - MaxExp) is 0 at 0 and infinite at 1. Its slope has the sign of a convex function, so it
    rises, falls and rises again, or starts to fall, or never does.
    """
    zero, one = torch.zeros_like(eta), torch.ones_like(eta)

    def slope(p: Tensor) -> Tensor:
        return eta * (1 + torch.exp(-eta_prime * p)) - eta_prime * (1 - p)

    def level(p: Tensor) -> Tensor:
        # Not softplus, which torch rounds to its asymptote.
        return math.log(2) - torch.logaddexp(eta_prime * p, zero) - eta * torch.log1p(-p)

    lowest = (torch.log(eta) / eta_prime).clamp(0.0, 1.0)  # of the slope
    top = _bisect(lambda p: slope(p) > 0, zero, lowest)
    bottom = _bisect(lambda p: slope(p) < 0, lowest, one)
    cross = (slope(lowest) < 0) & (level(bottom) < 0)
    first = _bisect(lambda p: level(p) > 0, top, bottom)
    second = _bisect(lambda p: level(p) < 0, bottom, one)
    return torch.where(cross, first, zero), torch.where(cross, second, zero)


def _bisect(holds: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """The point up to which a condition holds; ``low`` if it never does."""
    for _ in range(_STEPS):
        middle = (low + high) / 2
        inside = holds(middle)
        low, high = torch.where(inside, middle, low), torch.where(inside, high, middle)
    return low
