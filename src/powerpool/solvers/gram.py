r"""The spectral form from features, in the space of locations: exact, and cheap if there are few of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from powerpool.checks import round_off
from powerpool.curves._forms import safe_divide
from powerpool.curves.base import Curve, IntegerPower, Parameter
from powerpool.linalg.products import inner_product, sandwich
from powerpool.linalg.trace import Terms
from powerpool.moments.dense import Sets
from powerpool.solvers.base import FeatureSolver
from powerpool.solvers.geometric import geometric_pool, geometric_sum
from powerpool.solvers.spectrum import SpectralForm, noise_floor, spectral_function
from powerpool.solvers.squaring import integer_power


@dataclass(frozen=True, eq=False)
class GramFactor:
    r"""The matrix :math:`X T X^T` as its factors: ``features`` X (*, C, N) and symmetric ``core`` T (*, N, N)."""

    features: Tensor
    core: Tensor

    def dense(self) -> Tensor:  # shape: (*, C, C)
        """Compute the matrix."""
        return sandwich(self.features, self.core)


# Lets vmap and export treat the two tensors as outputs.
torch.export.register_dataclass(GramFactor)


@dataclass(frozen=True)
class Gram(FeatureSolver):
    r"""Computes with N x N matrices: every curve has :math:`g(0) = 0`, so with :math:`K = X^T X`

    .. math:: \hat g(X X^T) = X\, h(K)\, X^T, \qquad h(\lambda) = g(\lambda)/\lambda

    MaxExp with integer eta needs no eigenvalues: :math:`h(K) = \sum_{k<\eta} (I-K)^k` is a chain of products. Other
    curves need the eigendecomposition of the small K, with the Daleckii-Krein backward of h. If the curve is steep at
    the noise floor, the null space is dropped. Double backward is supported for integer powers, and raises for other
    curves.
    """

    name: ClassVar[str] = "gram"
    double_backward: ClassVar[bool] = False  # in general; integer powers support it

    def apply(self, features: Sets, curve: Curve, terms: Terms) -> Tensor:
        """See :class:`FeatureSolver`."""
        exponent = None if terms.has_residual else _whole_power(curve)
        if exponent is None:
            return factorize(features, curve, terms).dense()
        return geometric_pool(features.values, features.number * terms.eps, exponent)

    def factor(self, features: Tensor, curve: Curve) -> GramFactor:  # shape: (*, C, N)
        """Apply the curve to the spectrum of ``features @ features.mT``, and return the factors."""
        gram = inner_product(features)  # (*, N, N)
        power = None if curve.is_learnable else curve.integer_power()
        if power is None:
            null = max(0, features.shape[-1] - features.shape[-2])
            core, _ = spectral_function(gram, _Ratio(curve, round_off(gram.dtype), null))
        else:
            core = _integer_ratio(gram, power)
        return GramFactor(features, core)


def factorize(features: Sets, curve: Curve | None, terms: Terms) -> GramFactor:
    """Return the factors of the power-normalized moment of features, with its residual terms."""
    scaled = terms.divide_features(features.values, features.number, curve)
    locations = scaled.p.shape[-1]
    identity = torch.eye(locations, dtype=scaled.p.dtype, device=scaled.p.device)
    if curve is None:
        core = identity.expand(*scaled.p.shape[:-2], locations, locations)
    else:
        core = Gram().factor(scaled.p, curve).core
    # The residual terms act on the small core: X X^T is X I X^T.
    return GramFactor(scaled.p, terms.add_residual(core, scaled._replace(p=identity)))


def _whole_power(curve: Curve) -> int | None:
    """Return n if the curve divides by the trace and is 1 - (1-p)^n for a fixed integer n >= 2; else ``None``."""
    power = None if curve.is_learnable or not curve.trace_normalize else curve.integer_power()
    if power is None or not power.complement or power.exponent == 1 or power.scale != 1:
        return None
    return power.exponent


def _integer_ratio(gram: Tensor, power: IntegerPower) -> Tensor:  # shape: (*, N, N) -> (*, N, N)
    """Compute h(K) of an integer power: (1 - (1-K)^n)/K, or K^(n-1)."""
    if power.exponent == 1:
        identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return power.scale * identity.expand(gram.shape)
    if not power.complement:
        return integer_power(gram, IntegerPower(power.exponent - 1, complement=False, scale=power.scale))
    core = geometric_sum(gram, power.exponent)
    return core if power.scale == 1 else power.scale * core


@dataclass(frozen=True)
class _Ratio(SpectralForm):
    """The function h = g/l, and 0 on a null space that is dropped."""

    solver: ClassVar[str] = Gram.name

    null: int
    """N - C if positive: the number of eigenvalues of K, the smallest, that are 0 whatever the features are."""

    def dropped(self, eigenvalues: Tensor, theta: Parameter) -> Tensor:
        """Drop the null space that follows from the shape of X as well: h(0) would multiply the round-off of X v."""
        found = super().dropped(eigenvalues.clamp(min=0.0), theta)  # K is positive: below 0 there is noise alone
        if not self.null:
            return found
        return found | (torch.arange(eigenvalues.shape[-1], device=eigenvalues.device) < self.null)  # ascending order

    def points(self, eigenvalues: Tensor, dropped: Tensor) -> Tensor:
        """Move the eigenvalues up to the noise floor: below it they are noise, but |X v|^2 is not, and h is flat."""
        inside = self.curve.into_domain(eigenvalues, (-1,), self.round_off)
        floor = noise_floor(eigenvalues)
        return torch.where(inside < floor, floor, inside)

    def value(self, points: Tensor, dropped: Tensor, theta: Parameter) -> Tensor:
        return torch.where(dropped, 0.0, self.curve._ratio(points, theta))

    def loewner_product(self, rotated: Tensor, points: Tensor, dropped: Tensor, theta: Parameter) -> Tensor:
        """Multiply ``rotated`` by h[a,b] = (g[a,b] - h(low)) / high.

        The subtraction loses digits if both eigenvalues are small, but then ``rotated`` is small too (it contains X on
        both sides): relative to the whole gradient the loss is round-off. For the same reason the division comes last:
        h[a,b] alone overflows, for Gamma(1/2) in float32 at eigenvalues of 1e-26.
        """
        a, b = torch.broadcast_tensors(points.unsqueeze(-1), points.unsqueeze(-2))
        high, low = torch.maximum(a, b), torch.minimum(a, b)
        difference = self.curve._divided_difference(high, low, theta) - self.curve._ratio(low, theta)
        # A pair with a dropped vector has h = 0 by convention, not by continuity; its share is 0 because X v = 0.
        difference = torch.where(dropped.unsqueeze(-1) | dropped.unsqueeze(-2), 0.0, difference)
        return safe_divide(difference * rotated, high)

    def parameter_slope(self, points: Tensor, dropped: Tensor, theta: Parameter) -> Tensor:
        slopes = safe_divide(self.curve._parameter_derivative(points, theta), points)
        return torch.where(dropped, 0.0, slopes)
