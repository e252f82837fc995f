"""Pools: feature maps in, vectors (or their factors) out. Each tells the head its ``out_features``."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from powerpool import curves, functional
from powerpool.checks import require_beta, require_floating, zero_or_nan
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError, require_choice
from powerpool.functional import MODES, REDUCTIONS, Mode
from powerpool.moments.coordinates import spatial_coordinates
from powerpool.solvers import GramFactor, Solver
from powerpool.vectorize import to_vector


def _require_map(features: Tensor, channels: int) -> None:
    require_floating(features, "features")
    if features.ndim < 3 or features.shape[-3] != channels:
        raise ShapeError(
            f"The pool was built for maps of shape (*, {channels}, H, W) (got {tuple(features.shape)}). "
            "Build it with the channels of the layer before it."
        )


class FirstOrderPool2d(nn.Module):
    r"""The mean (or maximum) over locations, then a curve: :func:`powerpool.first_order_pool` of a map.

    Args:
        channels: C of the maps (B, C, H, W).
        curve: a curve, its name, or None for plain average pooling.
        reduce: ``"mean"`` or ``"max"``.

    Example:
        >>> import torch, powerpool as pp
        >>> pool = pp.nn.FirstOrderPool2d(64, pp.AsinhE(gamma=10.0))
        >>> pool(torch.rand(8, 64, 7, 7)).shape, pool.out_features
        (torch.Size([8, 64]), 64)
    """

    def __init__(
        self,
        channels: int,
        curve: Curve | str | None = None,
        *,
        reduce: Literal["mean", "max"] = "mean",
        check: bool | None = None,
    ) -> None:
        super().__init__()
        require_choice(reduce, REDUCTIONS, "reduction")
        if channels < 1:
            raise ArgumentError(f"A pool needs channels >= 1 (got {channels}).")
        self.channels = channels
        self.curve = None if curve is None else curves.resolve(curve)
        self.reduce: Literal["mean", "max"] = reduce
        self.check = check

    @property
    def out_features(self) -> int:
        """The length of the vector that the head sees."""
        return self.channels

    def forward(self, features: Tensor) -> Tensor:  # shape: (*, C, H, W) -> (*, C)
        """See :func:`powerpool.first_order_pool`."""
        _require_map(features, self.channels)
        return functional.first_order_pool(features.flatten(-2), self.curve, reduce=self.reduce, check=self.check)

    def extra_repr(self) -> str:
        """What is not in the curve."""
        return f"{self.channels}, reduce={self.reduce!r}, out_features={self.out_features}"


class _Rectifier(nn.Module):
    """ReLU that does not turn -inf into 0: what is not finite stays so, and is found where values are checked."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + zero_or_nan(x)


class _SecondOrderBase(nn.Module):
    """What the pools of second order share: reduction, coordinates, and the arguments of the functional call."""

    def __init__(
        self,
        channels: int,
        curve: Curve | str | None,
        beta: float,
        coordinates: int,
        reduce_to: int | None,
        sigma: float,
        alpha: float,
        eps: float,
        check: bool | None,
        trace_power: float,
        slope: float,
    ) -> None:
        super().__init__()
        require_beta(beta)
        if channels < 1 or coordinates < 0 or (reduce_to is not None and reduce_to < 1):
            raise ArgumentError(
                f"A pool needs channels >= 1, coordinates >= 0 and reduce_to >= 1 or None "
                f"(got {channels}, {coordinates} and {reduce_to})."
            )
        self.channels, self.reduce_to = channels, reduce_to
        self.curve = None if curve is None else curves.resolve(curve)
        self.beta, self.coordinates, self.sigma, self.alpha = beta, coordinates, sigma, alpha
        self.eps, self.check, self.trace_power, self.slope = eps, check, trace_power, slope
        # Rectified, because curves for co-occurrence (and the paper's features) are non-negative.
        self.reduction = (
            nn.Identity()
            if reduce_to is None
            else nn.Sequential(nn.Conv2d(channels, reduce_to, kernel_size=1, bias=False), _Rectifier())
        )
        if coordinates:
            spatial_coordinates(2, 2, coordinates, sigma, alpha)  # bad values show here, not in the first batch

    @property
    def size(self) -> int:
        """C', the side of the matrix: reduced channels and coordinates."""
        return (self.reduce_to or self.channels) + 2 * self.coordinates

    def _features(self, maps: Tensor) -> tuple[Tensor, Tensor | None]:
        _require_map(maps, self.channels)
        # A convolution takes one leading dimension; the pool takes any.
        batched = maps.flatten(0, -4) if maps.ndim > 4 else maps
        reduced = self.reduction(batched)
        features = (reduced.unflatten(0, maps.shape[:-3]) if maps.ndim > 4 else reduced).flatten(-2)  # (*, C, N)
        if not self.coordinates:
            return features, None
        height, width = reduced.shape[-2:]
        # In float32 also where the features are half precision: they are computed in float32.
        dtype = torch.promote_types(features.dtype, torch.float32)
        grid = spatial_coordinates(
            height, width, self.coordinates, self.sigma, self.alpha, dtype=dtype, device=features.device
        )
        return features, grid

    def extra_repr(self) -> str:
        """What is not in the curve or the reduction."""
        return f"{self.channels}, beta={self.beta}, coordinates={self.coordinates}, eps={self.eps}"


class SecondOrderPool2d(_SecondOrderBase):
    r"""Power-normalized second-order pooling of a map: the one line that replaces average pooling.

    .. math:: (B, C, H, W) \to \operatorname{vec}\, g\Bigl(\frac1N \bar\Phi \bar\Phi^T\Bigr)
              \in \mathbb{R}^{C'(C'+1)/2}, \qquad C' = C + 2Z

    The vector is the upper triangle with off-diagonal entries times sqrt 2, so that dot products of vectors are those
    of matrices.

    Args:
        channels: C of the maps (B, C, H, W).
        curve: a curve, its name, or None for plain second-order pooling.
        mode: ``"spectral"`` or ``"elementwise"``.
        beta: how much of the mean is removed, 0 (autocorrelation) to 1 (covariance).
        coordinates: pivots Z of the spatial coordinates, 0 for none; they add 2Z channels.
        reduce_to: channels after a 1 x 1 convolution (no bias) and ReLU; None for none.
        solver: see :func:`powerpool.spectral`; also ``"gram"``.
        sigma, alpha: width and weight of the coordinates.
        eps, check, trace_power, slope: see :func:`powerpool.second_order_pool`.

    Example:
        >>> import torch, powerpool as pp
        >>> pool = pp.nn.SecondOrderPool2d(512, pp.MaxExp(eta=50), reduce_to=64, coordinates=5)
        >>> pool(torch.rand(2, 512, 7, 7)).shape, pool.out_features
        (torch.Size([2, 2775]), 2775)
    """

    def __init__(
        self,
        channels: int,
        curve: Curve | str | None = None,
        mode: Mode = "spectral",
        beta: float = 0.0,
        coordinates: int = 0,
        reduce_to: int | None = None,
        solver: str | Solver = "auto",
        *,
        sigma: float = 0.5,
        alpha: float = 1.0,
        eps: float = 1e-6,
        check: bool | None = None,
        trace_power: float = 0.0,
        slope: float = 0.0,
    ) -> None:
        super().__init__(channels, curve, beta, coordinates, reduce_to, sigma, alpha, eps, check, trace_power, slope)
        require_choice(mode, MODES, "mode")
        functional.require_pool_solver(solver, self.curve, mode)
        self.mode: Mode = mode
        self.solver = solver

    @property
    def out_features(self) -> int:
        """The length of the vector that the head sees, C'(C'+1)/2."""
        return self.size * (self.size + 1) // 2

    def forward(self, maps: Tensor) -> Tensor:  # shape: (*, C, H, W) -> (*, out_features)
        """The vector of :func:`powerpool.second_order_pool`."""
        features, grid = self._features(maps)
        matrix = functional.second_order_pool(
            features,
            self.curve,
            self.mode,
            self.beta,
            grid,
            solver=self.solver,
            eps=self.eps,
            check=self.check,
            trace_power=self.trace_power,
            slope=self.slope,
        )
        return to_vector(matrix)

    def extra_repr(self) -> str:
        """What is not in the curve or the reduction."""
        return f"{super().extra_repr()}, mode={self.mode!r}, solver={self.solver!r}, out_features={self.out_features}"


class SecondOrderFactor2d(_SecondOrderBase):
    r"""Spectral second-order pooling of a map that never forms C x C: the factors of :func:`powerpool.gram_factor`.

    For large C, with :class:`powerpool.nn.FactoredHead`. Arguments as in :class:`SecondOrderPool2d`.

    Example:
        >>> import torch, powerpool as pp
        >>> pool = pp.nn.SecondOrderFactor2d(2048, pp.MaxExp(eta=50))
        >>> head = pp.nn.FactoredHead(pool.size, classes=10, rank=4)
        >>> head(pool(torch.rand(2, 2048, 7, 7))).shape
        torch.Size([2, 10])
    """

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
    ) -> None:
        super().__init__(channels, curve, beta, coordinates, reduce_to, sigma, alpha, eps, check, trace_power, slope)

    def forward(self, maps: Tensor) -> GramFactor:  # shape: (*, C, H, W) -> (*, C', N), (*, N, N)
        """See :func:`powerpool.gram_factor`."""
        features, grid = self._features(maps)
        return functional.gram_factor(
            features,
            self.curve,
            self.beta,
            grid,
            eps=self.eps,
            check=self.check,
            trace_power=self.trace_power,
            slope=self.slope,
        )
