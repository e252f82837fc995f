"""What the pools of maps and of tokens share: sets of features (*, C, N) in, vectors or matrices out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from powerpool import curves, functional
from powerpool.checks import require_beta, zero_or_nan
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, require_choice
from powerpool.functional import MODES, REDUCTIONS, Mode
from powerpool.linalg.precision import at_least_float32
from powerpool.moments.coordinates import spatial_coordinates
from powerpool.moments.dense import count
from powerpool.solvers import GramFactor, Solver

SMALLEST = 1e-12
"""Norms below this count as 0: a map of zeros gives a vector of zeros."""


class Pool(nn.Module):
    """The part that all pools share: the features of an image, or of all its crops, are one set (*, C, N)."""

    def __init__(
        self, channels: int, curve: Curve | str | None, check: bool | None, crops: bool, unit_scale: bool
    ) -> None:
        super().__init__()
        if channels < 1:
            raise ArgumentError(f"A pool needs channels >= 1 (got {channels}).")
        self.channels = channels
        self.curve = None if curve is None else curves.resolve(curve)
        self.check, self.crops, self.unit_scale = check, crops, unit_scale

    def _scale(self, features: Tensor, mask: Tensor | None = None) -> Tensor:  # shape: (*, C, N) -> (*, C, N)
        """Divide features by their root mean square norm if ``unit_scale`` is on."""
        if not self.unit_scale:
            return features
        features = at_least_float32(features)
        squares = features.square().sum(-2)  # (*, N), 0 where masked
        mean = squares.mean(-1) if mask is None else squares.sum(-1) / count(features, mask)
        # The bound is under the root, whose slope at 0 is infinite: a map of zeros then has a gradient of 0.
        return features / mean.clamp_min(SMALLEST**2).sqrt()[..., None, None]

    def _extra(self, **options: object) -> str:
        """Format the options for ``extra_repr``; crops and unit scale are shown if they are on."""
        if self.crops:
            options["crops"] = True
        if self.unit_scale:
            options["unit_scale"] = True
        return ", ".join([str(self.channels), *(f"{name}={value!r}" for name, value in options.items())])


class FirstOrder(Pool):
    """The part that first-order pools share: the mean or maximum over a set, then the curve."""

    def __init__(
        self,
        channels: int,
        curve: Curve | str | None,
        reduce: Literal["mean", "max"],
        check: bool | None,
        crops: bool,
        unit_scale: bool,
        unit_norm: bool,
    ) -> None:
        super().__init__(channels, curve, check, crops, unit_scale)
        require_choice(reduce, REDUCTIONS, "reduction")
        self.reduce: Literal["mean", "max"] = reduce
        self.unit_norm = unit_norm

    @property
    def out_features(self) -> int:
        """The length of the vector."""
        return self.channels

    def _vector(self, sets: Tensor, mask: Tensor | None = None) -> Tensor:  # shape: (*, C, N) -> (*, C)
        vector = functional.first_order_pool(sets, self.curve, reduce=self.reduce, mask=mask, check=self.check)
        return nn.functional.normalize(vector, dim=-1, eps=SMALLEST) if self.unit_norm else vector

    def extra_repr(self) -> str:
        """Show the options beside the curve."""
        norm = {"unit_norm": True} if self.unit_norm else {}
        return self._extra(reduce=self.reduce, **norm, out_features=self.out_features)


class _Rectifier(nn.Module):
    """ReLU that keeps what is not finite, so that checks find it: -inf gives NaN, not 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + zero_or_nan(x)


class SecondOrder(Pool, ABC):
    """The part that second-order pools share: reduction and coordinates."""

    def __init__(
        self,
        channels: int,
        curve: Curve | str | None = None,
        beta: float = 0.0,
        coordinates: int = 0,
        reduce_to: int | None = None,
        *,
        sigma: float = 0.5,
        alpha: float = 1.0,
        eps: float = 1e-6,
        check: bool | None = None,
        trace_power: float = 0.0,
        slope: float = 0.0,
        crops: bool = False,
        unit_scale: bool = False,
    ) -> None:
        super().__init__(channels, curve, check, crops, unit_scale)
        require_beta(beta)
        if coordinates < 0 or (reduce_to is not None and reduce_to < 1):
            raise ArgumentError(
                f"A pool needs coordinates >= 0 and reduce_to >= 1 or None (got {coordinates} and {reduce_to})."
            )
        self.reduce_to = reduce_to
        self.beta, self.coordinates, self.sigma, self.alpha = beta, coordinates, sigma, alpha
        self.eps, self.trace_power, self.slope = eps, trace_power, slope
        # Rectified, because curves for co-occurrence (and the paper's features) are non-negative.
        self.reduction = (
            nn.Identity()
            if reduce_to is None
            else nn.Sequential(self._make_projection(channels, reduce_to), _Rectifier())
        )
        if coordinates:
            # Refuse bad values here, not in the first batch; without memory, as a file may ask for a billion pivots.
            spatial_coordinates(2, 2, coordinates, sigma, alpha, device="meta")

    @abstractmethod
    def _make_projection(self, channels: int, reduced: int) -> nn.Module:
        """Return the linear layer of the reduction, without bias."""

    @property
    def size(self) -> int:
        """C', the side of the matrix: reduced channels and coordinates."""
        return (self.reduce_to or self.channels) + 2 * self.coordinates

    def _make_grid(self, height: int, width: int, features: Tensor) -> Tensor:  # shape: (2Z, H W)
        # At least float32, like the computation: the features may be half precision.
        dtype = torch.promote_types(features.dtype, torch.float32)
        return spatial_coordinates(
            height, width, self.coordinates, self.sigma, self.alpha, dtype=dtype, device=features.device
        )

    def _factor(
        self, features: Tensor, grid: Tensor | None, mask: Tensor | None = None
    ) -> GramFactor:  # shape: (*, C, N), (2Z, N), (*, N) -> (*, C', N), (*, N, N)
        return functional.gram_factor(
            features,
            self.curve,
            self.beta,
            grid,
            mask,
            eps=self.eps,
            check=self.check,
            trace_power=self.trace_power,
            slope=self.slope,
        )

    def extra_repr(self) -> str:
        """Show the options beside the curve and the reduction."""
        return self._extra(beta=self.beta, coordinates=self.coordinates, eps=self.eps)


class SecondOrderVector(SecondOrder):
    """The part that second-order pools with vectors share: mode, solver and unit norm."""

    def _set_vector(self, mode: Mode, solver: str | Solver, unit_norm: bool) -> None:
        require_choice(mode, MODES, "mode")
        functional.require_pool_solver(solver, self.curve, mode)
        self.mode: Mode = mode
        self.solver = solver
        self.unit_norm = unit_norm

    @property
    def out_features(self) -> int:
        """The length of the vector, C'(C'+1)/2."""
        return self.size * (self.size + 1) // 2

    def _vector(
        self, features: Tensor, grid: Tensor | None, mask: Tensor | None = None
    ) -> Tensor:  # shape: (*, C, N), (2Z, N), (*, N) -> (*, out_features)
        vector = functional._pool(
            features,
            self.curve,
            mode=self.mode,
            beta=self.beta,
            coordinates=grid,
            mask=mask,
            solver=self.solver,
            eps=self.eps,
            check=self.check,
            trace_power=self.trace_power,
            slope=self.slope,
            as_vector=True,
        )
        return nn.functional.normalize(vector, dim=-1, eps=SMALLEST) if self.unit_norm else vector

    def extra_repr(self) -> str:
        """Show the options beside the curve and the reduction."""
        norm = ", unit_norm=True" if self.unit_norm else ""
        return (
            f"{super().extra_repr()}{norm}, mode={self.mode!r}, solver={self.solver!r}, "
            f"out_features={self.out_features}"
        )
