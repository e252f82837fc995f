r"""The spectral form from features, in the space of locations: exact, and cheap where there are few of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from powerpool.checks import round_off
from powerpool.curves._forms import safe_divide
from powerpool.curves.base import Curve, IntegerPower, Parameter
from powerpool.errors import ArgumentError
from powerpool.linalg.products import inner_product, sandwich
from powerpool.solvers.base import Solver
from powerpool.solvers.geometric import geometric_sum
from powerpool.solvers.spectrum import SpectralForm, spectral_function
from powerpool.solvers.squaring import integer_power


@dataclass(frozen=True, eq=False)
class GramFactor:
    r"""The matrix :math:`X T X^T`, kept as its factors: ``features`` X (*, C, N) and symmetric ``core`` T (*, N, N)."""

    features: Tensor
    core: Tensor

    def dense(self) -> Tensor:  # shape: (*, C, C)
        """The matrix itself."""
        return sandwich(self.features, self.core)


# So that vmap and export can see through it.
torch.export.register_dataclass(GramFactor)


@dataclass(frozen=True)
class Gram(Solver):
    r"""Never works in C x C: every curve has :math:`g(0) = 0`, so with :math:`K = X^T X` (N x N)

    .. math:: \hat g(X X^T) = X\, h(K)\, X^T, \qquad h(\lambda) = g(\lambda)/\lambda

    MaxExp with integer eta needs no eigenvalues: :math:`h(K) = \sum_{k<\eta} (I-K)^k` by doubling. Other curves take
    the eigendecomposition of the small K, with the Daleckii-Krein backward of h. Where the slope at 0 is infinite the
    null space is dropped. Double backward is right for integer powers, and raises for the others.
    """

    name: ClassVar[str] = "gram"
    double_backward: ClassVar[bool] = False  # of the general case; integer powers have it

    NEEDS_FEATURES: ClassVar[str] = (
        "solver 'gram' needs features, not a matrix: call second_order_pool(features, curve, solver='gram'), or pick "
        "'eigen' or 'squaring' for a matrix."
    )

    def apply(self, matrix: Tensor, curve: Curve, check: bool, round_off: float) -> Tensor:
        """Not from a matrix: always an error that says so."""
        raise ArgumentError(self.NEEDS_FEATURES)

    def factor(self, features: Tensor, curve: Curve) -> GramFactor:  # shape: (*, C, N)
        """The curve of the spectrum of ``features @ features.mT``, as factors."""
        gram = inner_product(features)  # (*, N, N)
        power = None if curve.is_learnable else curve.integer_power()
        if power is None:
            null = max(0, features.shape[-1] - features.shape[-2])
            core, _ = spectral_function(gram, _Ratio(curve, round_off(gram.dtype), null))
        else:
            core = _integer_ratio(gram, power)
        return GramFactor(features, core)


def whole_power(curve: Curve) -> int | None:
    """n where the curve is 1 - (1-p)^n of a matrix divided by its trace, for a fixed integer n >= 2; else ``None``."""
    power = None if curve.is_learnable or not curve.trace_normalize else curve.integer_power()
    if power is None or not power.complement or power.exponent == 1 or power.scale != 1:
        return None
    return power.exponent


def _integer_ratio(gram: Tensor, power: IntegerPower) -> Tensor:  # shape: (*, N, N) -> (*, N, N)
    """h(K) of an integer power: (1 - (1-K)^n)/K, or K^(n-1)."""
    if power.exponent == 1:
        identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return power.scale * identity.expand(gram.shape)
    if not power.complement:
        return integer_power(gram, IntegerPower(power.exponent - 1, complement=False, scale=power.scale))
    core = geometric_sum(gram, power.exponent)
    return core if power.scale == 1 else power.scale * core


@dataclass(frozen=True)
class _Ratio(SpectralForm):
    """h = g/l, and 0 on what is null by the shape of X."""

    solver: ClassVar[str] = Gram.name

    null: int
    """N - C, where positive: so many eigenvalues of K, the smallest, are 0 whatever round-off makes of them. h(0) need
    not be, and would let the round-off of X v in: features of 1e6 and AsinhE gave 40 for 30."""

    def points(self, eigenvalues: Tensor) -> Tensor:
        """Eigenvalues inside the domain and not below round-off: there |X v|^2 is noise, and h(0) may be large."""
        floor = self.noise(eigenvalues)
        inside = super().points(eigenvalues)
        return inside if self.curve.has_infinite_slope else torch.where(inside < floor, floor, inside)

    def value(self, points: Tensor, theta: Parameter) -> Tensor:
        return self._without_null(self.curve._ratio(points, theta))

    def loewner_product(self, rotated: Tensor, points: Tensor, theta: Parameter) -> Tensor:
        """``rotated`` times h[a,b] = (g[a,b] - h(low)) / high.

        The subtraction loses digits where both eigenvalues are small, but there the gradient that it multiplies is
        small with them (it carries X on both sides): against the whole gradient the loss is round-off. For the same
        reason the division comes last: h[a,b] alone overflows, of Gamma(1/2) in float32 from eigenvalues of 1e-26.
        """
        a, b = torch.broadcast_tensors(points.unsqueeze(-1), points.unsqueeze(-2))
        high, low = torch.maximum(a, b), torch.minimum(a, b)
        difference = self.curve._divided_difference(high, low, theta) - self.curve._ratio(low, theta)
        # A pair with a dropped vector has h = 0 by convention, not by continuity; X v = 0 makes its share 0.
        if self.curve.has_infinite_slope:
            difference = torch.where(low > 0, difference, 0.0)
        if self.null:
            is_null = self._is_null(points)
            difference = torch.where(is_null.unsqueeze(-1) | is_null.unsqueeze(-2), 0.0, difference)
        return safe_divide(difference * rotated, high)

    def parameter_slope(self, points: Tensor, theta: Parameter) -> Tensor:
        return self._without_null(safe_divide(self.curve._parameter_derivative(points, theta), points))

    def _without_null(self, values: Tensor) -> Tensor:  # shape: (*, N) -> (*, N)
        return torch.where(self._is_null(values), 0.0, values) if self.null else values

    def _is_null(self, points: Tensor) -> Tensor:  # shape: (N,); eigenvalues come in ascending order
        return torch.arange(points.shape[-1], device=points.device) < self.null
