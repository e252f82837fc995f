"""Between the moment and the curve: division by the trace, and what is refused or marked before a curve is applied."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from powerpool.checks import nan_unless_finite, require_eps, require_finite, round_off
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, DomainError, NotFiniteError, NotPositiveError, NotSymmetricError
from powerpool.linalg.products import self_product
from powerpool.linalg.trace import energy_of, features_by_trace, matrix_by_trace, product_by_trace, trace_of
from powerpool.moments.sets import Sets


class Divided(NamedTuple):
    """A moment as the curve sees it: ``p`` times ``divisor`` is M, and ``scale`` is tr M + eps."""

    p: Tensor  # shape: (*, C, C), or features X with X X^T = p, or their place in the core of a Gram factor
    scale: Tensor | None  # shape: (*, 1, 1); None where no residual term asks for it
    divisor: Tensor | None  # shape: (*, 1, 1); None where the curve does not divide by the trace


class Terms(NamedTuple):
    """eps, the terms of G* and G-double-dagger, and the round-off of the matrix as it was given."""

    eps: float
    trace_power: float
    slope: float
    round_off: float

    @property
    def residual(self) -> bool:
        """Whether there is a residual term."""
        return self.trace_power != 0 or self.slope != 0

    def divided(self, moment: Tensor, trace: Tensor, curve: Curve, checked: bool) -> Divided:
        """M/(tr M + eps) where the curve asks for it.

        With checks off a bad matrix is divided by NaN, so that its value and its gradient are NaN.
        """
        scale = trace_scale(trace[..., None, None], self.eps)
        mark = None if checked else mark_of_bad(moment, curve)
        if curve.trace_normalize:
            total = scale.detach()
            return Divided(matrix_by_trace(moment, total if mark is None else total + mark), scale, divisor=scale)
        return Divided(moment if mark is None else moment / (1 + mark), scale, divisor=None)

    def divided_features(self, sets: Sets, curve: Curve | None) -> Divided:
        """Features X with X X^T = M/(tr M + eps), or M."""
        if curve is not None and curve.trace_normalize:
            p = features_by_trace(sets.values, self.shift(sets))
        else:
            p = sets.values / sets.number**0.5
        return self._divided(p, sets, curve)

    def divided_sets(self, sets: Sets, curve: Curve | None) -> Divided:
        """M/(tr M + eps), or M, from features; what is divided is the smaller of features and product."""
        channels, locations = sets.values.shape[-2:]
        if locations <= channels:
            divided = self.divided_features(sets, curve)
            return divided._replace(p=self_product(divided.p))
        if curve is not None and curve.trace_normalize:
            p = product_by_trace(sets.values, self.shift(sets))
        else:
            p = self_product(sets.values) / sets.number
        return self._divided(p, sets, curve)

    def shift(self, sets: Sets) -> float | Tensor:
        """N eps, which is added to the sum of the squares of each set; NaN for a set that is to become NaN."""
        return sets.number * self.eps

    def _divided(self, p: Tensor, sets: Sets, curve: Curve | None) -> Divided:
        if not self.residual:
            return Divided(p, scale=None, divisor=None)
        scale = trace_scale(energy_of(sets.values) / sets.number, self.eps)
        return Divided(p, scale, divisor=scale if curve is not None and curve.trace_normalize else None)

    def added(self, result: Tensor, divided: Divided) -> Tensor:
        """The result with its residual terms."""
        if self.trace_power:
            assert divided.scale is not None  # by _divided
            result = result * divided.scale**self.trace_power
        if self.slope:
            moment = divided.p if divided.divisor is None else divided.divisor * divided.p
            result = result + self.slope * moment
        return result


def make_terms(eps: float, trace_power: float, slope: float, dtype: torch.dtype) -> Terms:
    """The terms, after a look at their values; ``dtype`` is that of the matrix as it was given."""
    require_eps(eps)
    if not (abs(trace_power) < math.inf and abs(slope) < math.inf):  # Dynamo does not trace math.isfinite
        raise ArgumentError(f"trace_power and slope must be finite (got {trace_power} and {slope}); 0 leaves them out.")
    return Terms(eps, trace_power, slope, round_off(dtype))


def trace_scale(trace: Tensor, eps: float) -> Tensor:
    """tr + eps; NaN for a trace that is negative or overflows; 1 for the zero matrix with eps = 0, which stays zero."""
    scale = torch.where((trace >= 0) & (trace < torch.inf), trace + eps, torch.nan)
    return scale if eps > 0 else torch.where(scale == 0, 1.0, scale)


def require_trace(moment: Tensor, trace: Tensor, what: str) -> None:
    """Refuse a trace that cannot divide the matrix: negative, infinite, or 0 though the matrix is not. Reads values."""
    if bool(((trace > 0) & (trace < torch.inf)).all()):
        return
    moment, trace = moment.detach(), trace.detach()
    require_finite(moment, "matrix")
    if bool((trace == torch.inf).any()):
        raise NotFiniteError(
            f"matrix is too large: its trace overflows {moment.dtype} (got entries up to "
            f"{moment.abs().max().item():.6g}). Scale it down, or use float64."
        )
    refused = (trace <= 0) & (moment != 0).flatten(-2).any(-1)
    if bool(refused.any()):
        raise NotPositiveError(
            f"{what}, which must be > 0 "
            f"(got {trace[refused].min().item():.6g} for a matrix that is not zero). "
            "Take AsinhE, or SigmE with trace_normalize=False, for such a matrix."
        )


def inside_domain(p: Tensor, curve: Curve, given: Tensor, what: str, precision: float) -> Tensor:
    """``p`` moved into the domain where round-off put it outside, after one pass that refuses anything worse.

    ``given`` is what the user passed, ``what`` its name: ``p`` is a matrix, or features pooled over locations.
    ``precision`` is the round-off of its dtype.
    """
    if p.numel() == 0:
        return p
    bounds = torch.stack(torch.aminmax(p.detach()))
    low, high = bounds.tolist()
    if not bool(torch.isfinite(bounds).all()):
        require_finite(given, what)
    lower, upper = curve.domain
    if low >= lower and high <= upper:
        return p
    inside = curve.into_domain(p, (-2, -1) if what == "matrix" else (-1,), precision)
    if bool(torch.isnan(inside).any()):
        raise DomainError(_domain_message(curve, low, high, what))
    return inside


def _domain_message(curve: Curve, low: float, high: float, what: str) -> str:
    lower, upper = curve.domain
    kinds = "SigmE or AsinhE" if high > upper else "SignedMaxExp, SigmE or AsinhE"
    if what == "matrix":
        seen = "entries of the matrix after division by its trace" if curve.trace_normalize else "entries of the matrix"
        advice = (
            f"Beta-centred features give negative entries: for those take {kinds}; "
            "mode='spectral' takes a positive semi-definite matrix with every curve."
        )
    else:
        seen = "features pooled over locations"
        advice = f"Take {kinds}, or bring the features into the domain first."
    return f"{type(curve).__name__} needs {seen} in [{lower:g}, {upper:g}] (got {low:.6g} to {high:.6g}). {advice}"


def require_symmetric(given: Tensor, symmetric: Tensor, dtype: torch.dtype) -> None:
    """Each matrix beside its own largest entry, so that a large one in the batch hides nothing."""
    if given.numel() == 0:
        return
    difference = given.detach() - symmetric.detach()
    low, high = torch.aminmax(difference)  # NaN and infinity carry through
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        require_finite(given, "matrix")
    if bool(low == 0) and bool(high == 0):  # a product of a matrix with itself: no second pass
        return
    gap, largest = difference.abs().amax((-2, -1)), given.detach().abs().amax((-2, -1))
    refused = gap > 4 * round_off(dtype) * largest
    if bool(refused.any()):
        raise NotSymmetricError(
            "matrix must be symmetric up to round-off (got entries that differ from their mirror by "
            f"{2 * gap[refused].max().item():.6g}, beside a largest entry of {largest[refused].max().item():.6g}). "
            "Symmetrise it: (matrix + matrix.mT) / 2."
        )


def mark_of_bad(moment: Tensor, curve: Curve) -> Tensor:  # shape: (*, C, C) -> (*, 1, 1)
    """NaN for a matrix that is not finite, or whose trace cannot normalise it; else 0."""
    mark = nan_unless_finite(moment)
    if curve.trace_normalize:
        values = moment.detach()
        trace = trace_of(values)
        is_zero = (values.amax((-2, -1)) == 0) & (values.amin((-2, -1)) == 0)
        mark = torch.where(((trace > 0) & (trace < torch.inf)) | is_zero, mark, torch.nan)
    return mark[..., None, None]
