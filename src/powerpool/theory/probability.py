r"""Element-wise curves as probabilities: MaxExp detects co-occurrences, SigmE compares two hypotheses.

Multinomial sums are computed term by term, as in the proofs: slow, but independent of the closed forms.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from powerpool.theory._numbers import (
    Number,
    of_numbers,
    require,
    require_at_least,
    require_positive,
    require_unit,
    require_whole,
)

LARGEST_SUM = 200
"""Most trials of a multinomial sum: the number of terms grows with the cube, to 1.4 million for 200 trials."""
_TOO_MANY = " The closed form has no such limit."


class Posterior(NamedTuple):
    """Probabilities that a value is an anti-occurrence (``minus``) or an occurrence (``plus``)."""

    minus: Number
    plus: Number


@of_numbers
def at_least_one(p: Number, trials: Number) -> Number:
    r"""Probability of at least one event of probability p in N trials: MaxExp (Prop. maxexp, Theorem cooc).

    .. math:: \psi = 1 - (1-p)^N

    It holds for single features and for co-occurrences; :func:`at_least_one_sum` is the latter, term by term.

    Example:
        >>> round(at_least_one(0.1, 7), 6)
        0.521703
    """
    require_unit(p, "p")
    require_positive(trials, "trials")
    return -torch.expm1(trials * torch.log1p(-p))


@of_numbers
def at_least_one_sum(p: Number, q: Number, s: Number, trials: int) -> Number:
    r"""Probability of at least one co-occurrence in N trials, by the multinomial distribution (Eq. my_maxexppr2).

    .. math:: \sum_{n=1}^{N} \sum_{n'=0}^{N-n} \sum_{n''=0}^{N-n-n'} \binom{N}{n, n', n'', N-n-n'-n''}
              p^n q^{n'} s^{n''} (1-p-q-s)^{N-n-n'-n''} = 1 - (1-p)^N

    Both features occur with probability p, only the first with q, only the second with s.

    Example:
        >>> round(at_least_one_sum(0.1, 0.3, 0.2, trials=7), 6)
        0.521703
    """
    count = require_whole(trials, "trials", 1, LARGEST_SUM, _TOO_MANY)
    grid = torch.arange(count + 1)
    powers = torch.cartesian_prod(grid[1:], grid, grid).T
    return _multinomial(powers, (p, q, s), count).sum(-1)


@of_numbers
def signed_difference(p: Number, q: Number, trials: Number) -> Number:
    r"""Probability of a co-occurrence minus that of an anti-occurrence: MaxExp(+-) (Prop. cooc_anti).

    .. math:: \psi = (1-q)^N - (1-p)^N, \qquad p + q \le 1

    Example:
        >>> round(signed_difference(0.3, 0.1, 5), 5)
        0.42242
    """
    _require_shares(p, q)
    require_positive(trials, "trials")
    return torch.expm1(trials * torch.log1p(-q)) - torch.expm1(trials * torch.log1p(-p))


@of_numbers
def signed_difference_sum(p: Number, q: Number, trials: int) -> Number:
    r""":func:`signed_difference` by the multinomial distribution (Eq. my_maxexppr22).

    .. math:: \sum_{n=1}^{N} \sum_{n'=0}^{N-n} \binom{N}{n, n', N-n-n'} (p^n q^{n'} - p^{n'} q^n) (1-p-q)^{N-n-n'}

    Example:
        >>> round(signed_difference_sum(0.3, 0.1, trials=5), 5)
        0.42242
    """
    count = require_whole(trials, "trials", 1, LARGEST_SUM, _TOO_MANY)
    grid = torch.arange(count + 1)
    powers = torch.cartesian_prod(grid[1:], grid).T
    return (_multinomial(powers, (p, q), count) - _multinomial(powers, (q, p), count)).sum(-1)


@of_numbers
def mixture_posterior(x: Number, sigma: Number) -> Posterior:
    r"""Posterior probabilities of N(-1, sigma^2) and N(1, sigma^2), equally likely, given a value (Theorem sigmoids).

    .. math:: \psi^{(\pm)}(x) = \frac{G_\sigma(x \mp 1)}{G_\sigma(x-1) + G_\sigma(x+1)}, \qquad
              \psi^{(+)} - \psi^{(-)} = \frac{2}{1+e^{-\eta' x}} - 1, \qquad \eta' = 2/\sigma^2

    Example:
        >>> minus, plus = mixture_posterior(0.5, 1.0)
        >>> round(minus, 4), round(plus, 4)
        (0.2689, 0.7311)
    """
    require(x, "x", "real", torch.isfinite(x))
    log_odds = sigme_eta_of_sigma(sigma) * x
    return Posterior(torch.sigmoid(-log_odds), torch.sigmoid(log_odds))


@of_numbers
def sigme_eta_of_sigma(sigma: Number) -> Number:
    r"""The parameter of SigmE for the width of the two Gaussians, :math:`\eta' = 2/\sigma^2` (Theorem sigmoids).

    Example:
        >>> sigme_eta_of_sigma(0.5)
        8.0
    """
    return 2 / require_positive(sigma, "sigma").square()


def likelihood_of_any(confidences: Tensor) -> Tensor:  # shape: (*, N) -> (*,)
    r"""Probability of at least one detection, given the confidence of each: the left side of Eq. adj1.

    .. math:: 1 - \prod_n (1 - x_n) \ge 1 - (1 - \bar x)^N, \qquad x_n \in [0, 1]

    MaxExp of the mean, :func:`maxexp_of_mean`, is a lower bound, with equality for equal confidences.

    Example:
        >>> x = torch.tensor([0.1, 0.5], dtype=torch.float64)
        >>> likelihood_of_any(x).item(), round(maxexp_of_mean(x).item(), 4)
        (0.55, 0.51)
    """
    require_unit(confidences, "confidences")
    return -torch.expm1(torch.log1p(-confidences).sum(-1))


def maxexp_of_mean(confidences: Tensor) -> Tensor:  # shape: (*, N) -> (*,)
    """MaxExp of the mean confidence with eta = N: the right side of Eq. adj1; see :func:`likelihood_of_any`.

    Example:
        >>> round(maxexp_of_mean(torch.tensor([0.5, 0.5, 0.5])).item(), 4)
        0.875
    """
    require_unit(confidences, "confidences")
    return -torch.expm1(confidences.shape[-1] * torch.log1p(-confidences.mean(-1)))


@of_numbers
def kappa(shots: Number, locations: Number) -> Number:
    r"""How many times more configurations of a co-occurrence there are without MaxExp (Eq. support).

    .. math:: \kappa = \frac{(J+1)N+1}{J+2} = N - \frac{N-1}{J+2}

    J + 1 counts from 0 to N have (J+1)N+1 different sums, J + 1 detections have J+2. The ratio grows with N, and for
    N > 1 with J, up to N. J = 0 is classification.

    Example:
        >>> kappa(0, 9), kappa(5, 361)
        (5.0, 309.57142857142856)
    """
    require_at_least(shots, "shots", 0)
    require_at_least(locations, "locations", 1)
    return ((shots + 1) * locations + 1) / (shots + 2)


@of_numbers
def kappa_prime(locations: Number) -> Number:
    r"""The ratio of variances if a detection is as likely as one co-occurrence: :math:`\kappa' = 1/N` (App. M).

    It does not depend on J. :func:`detection_variance_ratio` uses the probability that MaxExp gives a detection.

    Example:
        >>> kappa_prime(25)
        0.04
    """
    return 1 / require_at_least(locations, "locations", 1)


@of_numbers
def detection_variance_ratio(p: Number, locations: Number) -> Number:
    r"""The variance of a detection divided by that of a count, both in N trials of probability p.

    .. math:: \frac{\psi(1-\psi)}{Np(1-p)} = (1-p)^{N-1} \frac{1-(1-p)^N}{Np}, \qquad \psi = 1-(1-p)^N

    It falls from 1 for rare events to 0 for frequent ones, whereas :func:`kappa_prime` is always 1/N.

    Example:
        >>> round(detection_variance_ratio(0.1, 10), 4), round(detection_variance_ratio(1e-6, 10), 4)
        (0.2523, 1.0)
    """
    require(p, "p", "in (0, 1)", (p > 0) & (p < 1))
    require_at_least(locations, "locations", 1)
    log_miss = torch.log1p(-p)
    return -torch.exp((locations - 1) * log_miss) * torch.expm1(locations * log_miss) / (locations * p)


def _require_shares(*shares: Tensor) -> Tensor:
    """Check probabilities, and return 1 minus their sum."""
    for name, share in zip("pqs", shares, strict=False):
        require_unit(share, name)
    rest = torch.ones((), dtype=torch.float64)
    for share in shares:
        rest = rest - share
    require(rest, "1 - " + " - ".join("pqs"[: len(shares)]), ">= 0", rest >= -1e-12)
    return rest.clamp(min=0.0)


def _multinomial(powers: Tensor, shares: tuple[Tensor, ...], trials: int) -> Tensor:  # -> (*, terms)
    """The terms with these powers of the shares, one row per share, that leave a power >= 0 for the rest."""
    powers = powers.to(shares[0].device)
    left = trials - powers.sum(0)
    powers = torch.cat([powers, left[None]])[:, left >= 0].double()
    ways = math.lgamma(trials + 1) - torch.lgamma(powers + 1).sum(0)
    parts = (*shares, _require_shares(*shares))
    logs = sum(torch.xlogy(power, part[..., None]) for power, part in zip(powers, parts, strict=True))
    return torch.exp(ways + logs)
