r"""Parameters of curves to start a search from, suggested by the spectrum.

MaxExp with :math:`\eta` is the probability that at least one of :math:`\eta` draws hits a direction of the features,
if the probability of a hit is the share :math:`p_i` of that direction in the trace. Let
:math:`r = \exp(-\sum_i p_i \log p_i)` be the effective rank: by entropy, the trace is spread over r equal directions.
With

.. math:: \eta = r

draws, such a direction is hit once on average, and MaxExp maps its share to :math:`1 - (1 - 1/r)^r \approx 1 - 1/e`.
Larger eigenvalues (bursts) are flattened towards 1, smaller ones (mostly noise) remain proportional. The r of several
samples is the geometric mean. For element-wise curves the shares are those of the diagonal of M.

The other curves follow from that :math:`\eta`:

- HDP: :math:`t(\eta)` of :func:`powerpool.theory.t_of_eta`. No t is the identity, as :math:`\eta = 1` is
- FAHDP: a t of few digits whose rounded exponent :math:`\tilde\eta(t)` is :math:`\eta`
- SigmE: :math:`\eta'(\eta)` of :func:`powerpool.theory.eta_prime_of_eta`, divided by :math:`\operatorname{tr} M` for a
  SigmE without trace normalization
- AsinhE: :math:`\gamma' = \eta / \operatorname{tr} M`, as it never divides by the trace
- Gamma: the power nearest to MaxExp, which is the slope of :math:`\log g(p_i)` against :math:`\log p_i` by least
  squares with the weights :math:`p_i`, at most 1. The link :math:`\gamma(t) = e t` of the paper is a bound that touches
  at 1/e, far above the eigenvalues, and gives much smaller values

No labels are used, so this is a starting point and not an optimum: validation may prefer an eta ten times as large.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, fields
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
    SigmE: "sigme_eta",
    Gamma: "gamma",
    AsinhE: "asinhe_gamma",
    HDP: "t",
    FAHDP: "t_fahdp",
}
"""The field of a suggestion for each kind of curve."""
JSON_KEYS = {"sigme_eta": "eta_prime", "asinhe_gamma": "gamma_prime"}
"""Keys in JSON files that differ from the names of fields, as in version 0.1."""
FEWEST_DIGITS, MOST_DIGITS = 3, 17
ROUNDED: tuple[Literal["ceil", "round"], ...] = ("ceil", "round")
QUANTILES = (0.1, 0.9)
SEARCHED = (0.5, 10.0)
"""The range to search, as multiples of the suggestion; it is extended to the quantiles of single samples. It is wide
upwards, because validation preferred ten times the suggestion and more on two of six data sets (docs/inspect.md)."""


@dataclass(frozen=True)
class Suggestion:
    """Parameters to start a search from; see the module."""

    mode: Mode
    eta: float
    """Of MaxExp; an integer, so that repeated squaring can be used."""
    low: float
    high: float
    """Range of eta to search."""
    sigme_eta: float
    gamma: float
    asinhe_gamma: float
    t: float
    t_fahdp: float
    spread_before: float
    spread_after: float
    """Standard deviation of the leading eta eigenvalues (or diagonal entries) divided by their mean, before and after
    MaxExp."""
    reason: str
    trace: float = 1.0
    """The mean trace, by which the parameter of a curve without trace normalization is divided."""

    @staticmethod
    def knows(curve: Curve) -> bool:
        """Whether a parameter can be suggested for a curve; not for custom curves."""
        return isinstance(curve, tuple(CURVES))

    def of(self, curve: Curve) -> float:
        """Return the parameter for a kind of curve."""
        for kind, name in CURVES.items():
            if isinstance(curve, kind):
                return float(getattr(self, name)) / self._scale(curve)
        names = ", ".join(kind.__name__ for kind in CURVES)
        raise ArgumentError(f"There is no suggestion for {type(curve).__name__}: choose one of {names}.")

    def range_of(self, curve: Curve) -> tuple[float, float]:
        """Return the range to search: that of eta, translated; for Gamma, from the link of the paper to ``gamma``."""
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
        """Return plain values by the names that JSON files use."""
        return {JSON_KEYS.get(entry.name, entry.name): getattr(self, entry.name) for entry in fields(self)}

    @property
    def eta_prime(self) -> float:
        """Deprecated: use ``sigme_eta``."""
        warnings.warn("Suggestion.eta_prime is now sigme_eta.", DeprecationWarning, stacklevel=2)
        return self.sigme_eta

    @property
    def gamma_prime(self) -> float:
        """Deprecated: use ``asinhe_gamma``."""
        warnings.warn("Suggestion.gamma_prime is now asinhe_gamma.", DeprecationWarning, stacklevel=2)
        return self.asinhe_gamma

    def _scale(self, curve: Curve) -> float:
        """Return the divisor for SigmE without trace normalization; that of AsinhE is already divided."""
        return self.trace if isinstance(curve, SigmE) and not curve.trace_normalize else 1.0


def suggest(share: Tensor, trace: Tensor, mode: Mode = "spectral") -> Suggestion:  # shapes: (S, C), (S,)
    """Suggest parameters from the spectra of samples.

    Args:
        share: eigenvalues as shares of the trace, one row for each sample; diagonal entries for ``"elementwise"``.
        trace: of the matrices.
        mode: how the curve will be applied.

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
    curve, leading = MaxExp(eta), min(int(eta), share.shape[1])
    before, after = (_relative_spread(share, one, leading) for one in (MaxExp(1.0), curve))
    return Suggestion(
        mode=mode,
        eta=eta,
        low=float(max(1, math.floor(min(low, SEARCHED[0] * eta)))),
        high=float(math.ceil(max(high, SEARCHED[1] * eta))),
        sigme_eta=eta_prime_of_eta(eta),
        gamma=min(1.0, _nearest_power(share, curve)),
        asinhe_gamma=eta / float(trace.mean()),
        t=t_of_eta(eta),
        t_fahdp=fahdp_time(eta),
        spread_before=before,
        spread_after=after,
        reason=_explain(mode, typical, leading, before, after),
        trace=float(trace.mean()),
    )


def fahdp_time(eta: float) -> float:
    r"""Return a time of FAHDP, with as few digits as possible, whose exponent is the integer ``eta``.

    FAHDP rounds :math:`\tilde\eta(t)`, upwards by default. A t with :math:`\tilde\eta(t) = \eta` lies on the edge,
    where a missing digit changes the exponent; so the target is :math:`\eta - 1/4`, which both roundings map to eta.
    For eta = 1, t = 1 changes only the scale.

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
    """Return the slope of log g against log p, weighted with p; 1 if the p of every sample are equal."""
    known = share > 0
    x = torch.where(known, share, 1.0).log()
    y = torch.where(known, curve.value(share), 1.0).log()
    x_centred, y_centred = (value - (share * value).sum(-1, keepdim=True) for value in (x, y))
    variance = (share * x_centred.square()).sum()
    if float(variance) < torch.finfo(share.dtype).eps:
        return 1.0
    return float((share * x_centred * y_centred).sum() / variance)


def _relative_spread(share: Tensor, curve: Curve, leading: int) -> float:
    largest = curve.value(share.topk(leading, dim=-1).values)
    return float((leading_variance(share, curve, leading).sqrt() / largest.mean(-1)).mean())


def _explain(mode: Mode, rank: float, leading: int, before: float, after: float) -> str:
    whole, parts = ("spectrum", "eigenvalues") if mode == "spectral" else ("diagonal", "entries")
    if leading == 1:
        return f"The effective rank of the {whole} is {rank:.1f}, so there is nothing to flatten."
    return (
        f"The effective rank of the {whole} is {rank:.1f}; with eta {leading} the spread of the {leading} leading "
        f"{parts} changes from {before:.2f} to {after:.2f} of their mean."
    )
