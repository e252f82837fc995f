"""Pools: feature maps in, vectors or their factors out; ``out_features`` is the length of a vector."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from powerpool import curves, functional
from powerpool.checks import require_beta, require_floating, zero_or_nan
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError, require_choice
from powerpool.functional import MODES, REDUCTIONS, Mode
from powerpool.linalg.precision import at_least_float32
from powerpool.moments.coordinates import spatial_coordinates
from powerpool.solvers import GramFactor, Solver
from powerpool.vectorize import to_vector

SMALLEST = 1e-12
"""Norms below this count as 0: a map of zeros gives a vector of zeros."""


class _Pool2d(nn.Module):
    """The part that all pools share: maps of an image, or of all its crops, become one set of features."""

    def __init__(
        self, channels: int, curve: Curve | str | None, check: bool | None, crops: bool, unit_scale: bool
    ) -> None:
        super().__init__()
        if channels < 1:
            raise ArgumentError(f"A pool needs channels >= 1 (got {channels}).")
        self.channels = channels
        self.curve = None if curve is None else curves.resolve(curve)
        self.check, self.crops, self.unit_scale = check, crops, unit_scale

    def _require_maps(self, maps: Tensor) -> None:
        require_floating(maps, "features")
        if maps.ndim < 3 + self.crops or maps.shape[-3] != self.channels:
            crops = "crops, " if self.crops else ""
            raise ShapeError(
                f"The pool was built for maps of shape (*, {crops}{self.channels}, H, W) (got {tuple(maps.shape)}). "
                "Build it with the channels of the layer before it."
            )

    def _to_sets(self, maps: Tensor) -> Tensor:  # shape: (*, C, H, W), or (*, K, C, H, W) with crops -> (*, C, N)
        if self.crops or self.unit_scale:
            maps = at_least_float32(maps)
        features = maps.transpose(-4, -3).flatten(-3) if self.crops else maps.flatten(-2)
        if self.unit_scale:
            # The bound is under the root, whose slope at 0 is infinite: a map of zeros then has a gradient of 0.
            scale = features.square().sum(-2).mean(-1).clamp_min(SMALLEST**2).sqrt()
            features = features / scale[..., None, None]
        return features

    def _extra(self, **options: object) -> str:
        """Format the options for ``extra_repr``; crops and unit scale are shown if they are on."""
        if self.crops:
            options["crops"] = True
        if self.unit_scale:
            options["unit_scale"] = True
        return ", ".join([str(self.channels), *(f"{name}={value!r}" for name, value in options.items())])


class FirstOrderPool2d(_Pool2d):
    r"""First-order pooling of a map: :func:`powerpool.first_order_pool` over its locations.

    Args:
        channels: C of the maps (B, C, H, W).
        curve: a curve, its name, or None for plain average pooling.
        reduce: ``"mean"`` or ``"max"``.
        check: see :mod:`powerpool.functional`.
        crops, unit_scale, unit_norm: see :class:`SecondOrderPool2d`.

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
        crops: bool = False,
        unit_scale: bool = False,
        unit_norm: bool = False,
    ) -> None:
        super().__init__(channels, curve, check, crops, unit_scale)
        require_choice(reduce, REDUCTIONS, "reduction")
        self.reduce: Literal["mean", "max"] = reduce
        self.unit_norm = unit_norm

    @property
    def out_features(self) -> int:
        """The length of the vector."""
        return self.channels

    def feature_sets(self, maps: Tensor) -> tuple[Tensor, None]:  # shape: (*, C, H, W) -> (*, C, N)
        """Return the features that are pooled, and None for their coordinates."""
        self._require_maps(maps)
        return self._to_sets(maps), None

    def forward(self, features: Tensor) -> Tensor:  # shape: (*, C, H, W) -> (*, C)
        """See :func:`powerpool.first_order_pool`."""
        sets, _ = self.feature_sets(features)
        vector = functional.first_order_pool(sets, self.curve, reduce=self.reduce, check=self.check)
        return nn.functional.normalize(vector, dim=-1, eps=SMALLEST) if self.unit_norm else vector

    def extra_repr(self) -> str:
        """Show the options beside the curve."""
        norm = {"unit_norm": True} if self.unit_norm else {}
        return self._extra(reduce=self.reduce, **norm, out_features=self.out_features)


class _Rectifier(nn.Module):
    """ReLU that keeps what is not finite, so that checks find it: -inf gives NaN, not 0."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) + zero_or_nan(x)


class _SecondOrderBase(_Pool2d):
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
            else nn.Sequential(nn.Conv2d(channels, reduce_to, kernel_size=1, bias=False), _Rectifier())
        )
        if coordinates:
            spatial_coordinates(2, 2, coordinates, sigma, alpha)  # refuse bad values here, not in the first batch

    @property
    def size(self) -> int:
        """C', the side of the matrix: reduced channels and coordinates."""
        return (self.reduce_to or self.channels) + 2 * self.coordinates

    def feature_sets(self, maps: Tensor) -> tuple[Tensor, Tensor | None]:  # shape: (*, C, H, W) -> (*, C, N), (2Z, N)
        """Return the features that are pooled, reduced and scaled but not centred, and their coordinates."""
        self._require_maps(maps)
        # A convolution accepts one leading dimension; the pool accepts any.
        reduced = self.reduction(maps.flatten(0, -4) if maps.ndim > 4 else maps)
        features = self._to_sets(reduced.unflatten(0, maps.shape[:-3]) if maps.ndim > 4 else reduced)
        if not self.coordinates:
            return features, None
        height, width = maps.shape[-2:]
        # At least float32, like the computation: the features may be half precision.
        dtype = torch.promote_types(features.dtype, torch.float32)
        grid = spatial_coordinates(
            height, width, self.coordinates, self.sigma, self.alpha, dtype=dtype, device=features.device
        )
        return features, grid.repeat(1, maps.shape[-4]) if self.crops else grid

    def extra_repr(self) -> str:
        """Show the options beside the curve and the reduction."""
        return self._extra(beta=self.beta, coordinates=self.coordinates, eps=self.eps)


class SecondOrderPool2d(_SecondOrderBase):
    r"""Power-normalized second-order pooling of a map, a replacement for average pooling.

    .. math:: (B, C, H, W) \to \operatorname{vec}\, g\Bigl(\frac1N \bar\Phi \bar\Phi^T\Bigr)
              \in \mathbb{R}^{C'(C'+1)/2}, \qquad C' = C + 2Z

    The vector is the upper triangle with off-diagonal entries times sqrt 2, so that dot products of vectors are those
    of matrices.

    Args:
        channels: C of the maps (B, C, H, W).
        curve: a curve, its name, or None for plain second-order pooling.
        mode: ``"spectral"`` or ``"elementwise"``.
        beta: the share of the mean that is removed, 0 (autocorrelation) to 1 (covariance).
        coordinates: pivots Z of the spatial coordinates, 0 for none; they add 2Z channels.
        reduce_to: channels after a 1 x 1 convolution (no bias) and ReLU; None for no reduction.
        solver: see :mod:`powerpool.functional`; also ``"gram"``.
        sigma, alpha: width and weight of the coordinates.
        eps, check, trace_power, slope: see :mod:`powerpool.functional`.
        crops: whether maps have shape (B, K, C, H, W) and the K crops of an image are pooled as one set. Coordinates
            are relative to each crop.
        unit_scale: whether the features of a set are divided by their root mean square norm first. The weight alpha of
            coordinates, and curves that do not divide by the trace, then depend less on the network. With ``crops`` or
            ``unit_scale`` the vector is at least float32.
        unit_norm: whether the vector is divided by its Euclidean norm.

    Example:
        >>> import torch, powerpool as pp
        >>> pool = pp.nn.SecondOrderPool2d(512, pp.MaxExp(eta=50), reduce_to=64, coordinates=5)
        >>> pool(torch.rand(2, 512, 7, 7)).shape, pool.out_features
        (torch.Size([2, 2775]), 2775)
        >>> pool = pp.nn.SecondOrderPool2d(16, pp.MaxExp(eta=20), crops=True, unit_scale=True, unit_norm=True)
        >>> pool(torch.rand(2, 12, 16, 7, 7)).shape  # 12 crops of each image
        torch.Size([2, 136])
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
        crops: bool = False,
        unit_scale: bool = False,
        unit_norm: bool = False,
    ) -> None:
        super().__init__(
            channels,
            curve,
            beta,
            coordinates,
            reduce_to,
            sigma=sigma,
            alpha=alpha,
            eps=eps,
            check=check,
            trace_power=trace_power,
            slope=slope,
            crops=crops,
            unit_scale=unit_scale,
        )
        require_choice(mode, MODES, "mode")
        functional.require_pool_solver(solver, self.curve, mode)
        self.mode: Mode = mode
        self.solver = solver
        self.unit_norm = unit_norm

    @property
    def out_features(self) -> int:
        """The length of the vector, C'(C'+1)/2."""
        return self.size * (self.size + 1) // 2

    def forward(self, maps: Tensor) -> Tensor:  # shape: (*, C, H, W) -> (*, out_features)
        """Return the vector of :func:`powerpool.second_order_pool`."""
        features, grid = self.feature_sets(maps)
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
        vector = to_vector(matrix)
        return nn.functional.normalize(vector, dim=-1, eps=SMALLEST) if self.unit_norm else vector

    def extra_repr(self) -> str:
        """Show the options beside the curve and the reduction."""
        norm = ", unit_norm=True" if self.unit_norm else ""
        return (
            f"{super().extra_repr()}{norm}, mode={self.mode!r}, solver={self.solver!r}, "
            f"out_features={self.out_features}"
        )


class SecondOrderFactor2d(_SecondOrderBase):
    r"""Spectral second-order pooling of a map as factors, without any C x C matrix: :func:`powerpool.gram_factor`.

    For large C, with :class:`powerpool.nn.FactoredHead`. Arguments as in :class:`SecondOrderPool2d`.

    Example:
        >>> import torch, powerpool as pp
        >>> pool = pp.nn.SecondOrderFactor2d(2048, pp.MaxExp(eta=50))
        >>> head = pp.nn.FactoredHead(pool.size, classes=10, rank=4)
        >>> head(pool(torch.rand(2, 2048, 7, 7))).shape
        torch.Size([2, 10])
    """

    def forward(self, maps: Tensor) -> GramFactor:  # shape: (*, C, H, W) -> (*, C', N), (*, N, N)
        """See :func:`powerpool.gram_factor`."""
        features, grid = self.feature_sets(maps)
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
