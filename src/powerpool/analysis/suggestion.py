r"""A first guess of a curve's parameter from the spectrum, with its reason.

The guess is for MaxExp and is its meaning turned round. MaxExp with :math:`\eta` is the probability that at least one
of :math:`\eta` draws hits, where a direction of the features is hit with probability :math:`p_i`, its share of the
trace. By entropy the trace is spread as over :math:`r = \exp(-\sum_i p_i \log p_i)` equal directions, the effective
rank. With

.. math:: \eta = r

draws such a direction is hit once on average: :math:`1 - (1 - 1/r)^r \approx 1 - 1/e`. Larger eigenvalues, the bursts,
are flattened towards 1; smaller ones, mostly noise, stay proportional to what they were. The r of a set of samples is
the geometric mean of theirs. Curves that act entry by entry see the diagonal of M, whose shares of the trace take the
place of the eigenvalues; it bounds all other entries.

The other curves follow from that :math:`\eta`:

- HDP: :math:`t(\eta)` of :func:`powerpool.theory.t_of_eta`. No t of it changes nothing, as :math:`\eta = 1` does
- FAHDP: a t of few digits for which its own exponent, :math:`\tilde\eta(t)` rounded, is :math:`\eta`
- SigmE: :math:`\eta'(\eta)` of :func:`powerpool.theory.eta_prime_of_eta`; without division by the trace
  :math:`\eta' / \operatorname{tr} M`
- AsinhE: :math:`\gamma' = \eta / \operatorname{tr} M`, which bends where MaxExp does; it knows no trace
- Gamma: a straight line where both axes are logarithmic, and so the line that is nearest to MaxExp where the trace is:
  the slope of :math:`\log g(p_i)` against :math:`\log p_i` by least squares, weighted with :math:`p_i`, and at most
  1. The link :math:`\gamma(t) = e t` of the paper is a bound that touches at 1/e, far above the eigenvalues, and comes
  out small.

It is where a search may start, and no optimum: no label was looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from powerpool.analysis.measures import effective_rank
from powerpool.checks import require_floating
from powerpool.curves import FAHDP, HDP, AsinhE, Curve, Gamma, MaxExp, SigmE, SignedMaxExp
from powerpool.errors import ArgumentError, ShapeError
from powerpool.functional import Mode
from powerpool.theory import eta_prime_of_eta, gamma_of_t, leading_variance, t_of_eta, t_tilde_of_eta_bar

CURVES: dict[type[Curve], str] = {
    MaxExp: "eta",
    SignedMaxExp: "eta",
    SigmE: "eta_prime",
    Gamma: "gamma",
    AsinhE: "gamma_prime",
    HDP: "t",
    FAHDP: "t_fahdp",
}
"""The field of a suggestion that belongs to a curve."""
FEWEST_DIGITS, MOST_DIGITS = 3, 17
ROUNDED: tuple[Literal["ceil", "round"], ...] = ("ceil", "round")
QUANTILES = (0.1, 0.9)
"""A search goes from half to double the guess, and further where more of the samples would, each for itself."""


@dataclass(frozen=True)
class Suggestion:
    """Parameters to start a search from; see the module."""

    mode: Mode
    eta: float
    """Of MaxExp, a whole number, so that the fast form can take it."""
    low: float
    high: float
    """A range of eta to search: half to double, and further where samples differ by more."""
    eta_prime: float
    gamma: float
    gamma_prime: float
    t: float
    t_fahdp: float
    spread_before: float
    spread_after: float
    """Standard deviation of the leading eigenvalues (or diagonal entries) relative to their mean, before and after
    MaxExp with eta; there are as many of them as eta."""
    reason: str
    trace: float = 1.0
    """The mean trace, by which the parameter of a curve is divided that is not given M / tr M."""

    @staticmethod
    def knows(curve: Curve) -> bool:
        """Whether there is a parameter for a kind of curve: for one of your own there is none."""
        return isinstance(curve, tuple(CURVES))

    def of(self, curve: Curve) -> float:
        """The parameter for a kind of curve."""
        for kind, name in CURVES.items():
            if isinstance(curve, kind):
                return float(getattr(self, name)) / self._scale(curve)
        raise ArgumentError(
            f"There is no suggestion for {type(curve).__name__}: choose one of "
            f"{', '.join(kind.__name__ for kind in CURVES)}."
        )

    def range_of(self, curve: Curve) -> tuple[float, float]:
        """From where to where a search is worth while: the range of eta, translated; for Gamma from the paper's link,
        which comes out small, to the nearest line, which comes out large."""
        own, bounds = self.of(curve), (self.low, self.high)
        if isinstance(curve, Gamma):
            found = [min(1.0, gamma_of_t(self.t)), own]
        elif isinstance(curve, HDP):
            found = [t_of_eta(bound) for bound in bounds]
        elif isinstance(curve, FAHDP):
            found = [fahdp_time(bound) for bound in bounds]
        elif isinstance(curve, SigmE):
            found = [eta_prime_of_eta(bound) / self._scale(curve) for bound in bounds]
        else:
            found = [bound * own / self.eta for bound in bounds]
        return min(found), max(found)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def _scale(self, curve: Curve) -> float:
        """SigmE may be told to leave the trace alone. AsinhE always does: its parameter is divided already."""
        return self.trace if isinstance(curve, SigmE) and not curve.trace_normalize else 1.0


def suggest(share: Tensor, trace: Tensor, mode: Mode = "spectral") -> Suggestion:  # shapes: (S, C), (S,)
    """A first guess from the spectra of samples.

    Args:
        share: eigenvalues as parts of the trace, one row for each sample; the diagonal entries for ``"elementwise"``.
        trace: of the matrices.
        mode: how the curve is to be applied, for the words.

    Example:
        >>> even = torch.full((3, 40), 1 / 8)  # eight equal eigenvalues, and 32 that are 0
        >>> even[:, 8:] = 0.0
        >>> guess = suggest(even, torch.ones(3))
        >>> guess.eta, round(guess.t, 3)
        (8.0, 0.069)
    """
    require_floating(share, "share")
    if share.ndim != 2 or share.shape[0] == 0 or trace.shape != share.shape[:1]:
        raise ShapeError(
            "suggest needs shares of shape (S, C) with S >= 1 and traces of shape (S,) "
            f"(got {tuple(share.shape)} and {tuple(trace.shape)})."
        )
    share, trace = share.double().clamp(0, 1), trace.double()
    rank = effective_rank(share)  # (S,)
    typical = float(rank.log().mean().exp())
    eta = float(max(1, round(typical)))
    low, high = (float(rank.quantile(at)) for at in QUANTILES)
    curve = MaxExp(eta)
    leading = min(int(eta), share.shape[1])
    before, after = (_spread(share, one, leading) for one in (MaxExp(1.0), curve))
    return Suggestion(
        mode=mode,
        eta=eta,
        low=float(max(1, math.floor(min(low, eta / 2)))),
        high=float(math.ceil(max(high, 2 * eta))),
        eta_prime=eta_prime_of_eta(eta),
        gamma=min(1.0, _nearest_power(share, curve)),
        gamma_prime=eta / float(trace.mean()),
        t=t_of_eta(eta),
        t_fahdp=fahdp_time(eta),
        spread_before=before,
        spread_after=after,
        reason=_reason(mode, typical, eta, leading, before, after),
        trace=float(trace.mean()),
    )


def fahdp_time(eta: float) -> float:
    r"""A time of FAHDP, of as few digits as will do, for which its exponent is the whole number ``eta``.

    FAHDP rounds :math:`\tilde\eta(t)`, upwards unless it is told otherwise. A t that has :math:`\tilde\eta(t) = \eta`
    lies on the edge, and a digit that is not printed moves it over; so :math:`\eta - 1/4` is aimed at, which is
    rounded to eta upwards and to the nearest. Where eta is 1, nothing is to change but the scale: that is t = 1.

    Example:
        >>> fahdp_time(20.0), FAHDP(fahdp_time(20.0)).exponent(fahdp_time(20.0))
        (0.0297, 20.0)
    """
    if eta <= 1:
        return 1.0
    exact = t_tilde_of_eta_bar(eta - 0.25)
    for digits in range(FEWEST_DIGITS, MOST_DIGITS):
        t = float(f"{exact:.{digits}g}")
        if all(FAHDP(t, rounding=rounding).exponent(t) == eta for rounding in ROUNDED):
            return t
    return exact


def _nearest_power(share: Tensor, curve: Curve) -> float:
    """The slope of log g against log p, weighted with p: 1 where all p of every sample are one number."""
    known = share > 0
    x = torch.where(known, share, 1.0).log()
    y = torch.where(known, curve.value(share), 1.0).log()
    x_centred, y_centred = (value - (share * value).sum(-1, keepdim=True) for value in (x, y))
    variance = (share * x_centred.square()).sum()
    if float(variance) < torch.finfo(share.dtype).eps:
        return 1.0
    return float((share * x_centred * y_centred).sum() / variance)


def _spread(share: Tensor, curve: Curve, leading: int) -> float:
    largest = curve.value(share.topk(leading, dim=-1).values)
    return float((leading_variance(share, curve, leading).sqrt() / largest.mean(-1)).mean())


def _reason(mode: Mode, typical: float, eta: float, leading: int, before: float, after: float) -> str:
    whole, parts = ("The spectrum", "eigenvalues") if mode == "spectral" else ("The diagonal of M", "features")
    if leading == 1:
        return (
            f"{whole} spreads the trace as over {typical:.1f} equal {parts}, as good as one: there is next to nothing "
            "to even out, and eta = 1 changes nothing."
        )
    hit = 1 - (1 - 1 / typical) ** eta
    return (
        f"{whole} spreads the trace as over {typical:.1f} equal {parts}, so that {eta:.0f} draws hit such a one about "
        f"once: MaxExp brings it to {hit:.2f}, flattens the larger ones (the leading {leading} vary by {after:.2f} of "
        f"their mean instead of {before:.2f}) and keeps the smaller ones small."
    )
