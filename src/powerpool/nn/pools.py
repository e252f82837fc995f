"""Pools: feature maps in, vectors or their factors out; ``out_features`` is the length of a vector."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn

from powerpool.checks import require_floating
from powerpool.curves import Curve
from powerpool.errors import ShapeError
from powerpool.functional import Mode
from powerpool.linalg.precision import at_least_float32
from powerpool.nn.base import SMALLEST, FirstOrder, Pool, SecondOrder, SecondOrderVector
from powerpool.solvers import GramFactor, Solver

__all__ = ["SMALLEST", "FirstOrderPool2d", "SecondOrderFactor2d", "SecondOrderPool2d"]


class Maps(Pool):
    """Pools of maps (*, C, H, W)."""

    pool_of_tokens: ClassVar[str]
    """The same pool for tokens, which errors name."""

    def _require_input(self, maps: Tensor) -> None:
        require_floating(maps, "features")
        if maps.ndim >= 3 + self.crops and maps.shape[-3] == self.channels:
            return
        crops = "crops, " if self.crops else ""
        remedy = "Build it with the channels of the layer before it."
        if maps.ndim >= 3 and maps.shape[-1] == self.channels:
            remedy = f"For tokens (B, N, {self.channels}) use {self.pool_of_tokens}."
        raise ShapeError(
            f"The pool was built for maps of shape (*, {crops}{self.channels}, H, W) (got {tuple(maps.shape)}). "
            f"{remedy}"
        )

    def _to_sets(self, maps: Tensor) -> Tensor:  # shape: (*, C, H, W), or (*, K, C, H, W) with crops -> (*, C, N)
        if self.crops:
            return self._scale(at_least_float32(maps).transpose(-4, -3).flatten(-3))
        return self._scale(maps.flatten(-2))


class FirstOrderPool2d(Maps, FirstOrder):
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

    pool_of_tokens = "FirstOrderPool1d"

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
        super().__init__(channels, curve, reduce, check, crops, unit_scale, unit_norm)

    def feature_sets(self, maps: Tensor) -> tuple[Tensor, None]:  # shape: (*, C, H, W) -> (*, C, N)
        """Return the features that are pooled, and None for their coordinates."""
        self._require_input(maps)
        return self._to_sets(maps), None

    def forward(self, features: Tensor) -> Tensor:  # shape: (*, C, H, W) -> (*, C)
        """See :func:`powerpool.first_order_pool`."""
        sets, _ = self.feature_sets(features)
        return self._vector(sets)


class SecondOrderMaps(Maps, SecondOrder):
    """Second-order pools of maps."""

    def _make_projection(self, channels: int, reduced: int) -> nn.Module:
        return nn.Conv2d(channels, reduced, kernel_size=1, bias=False)

    def feature_sets(self, maps: Tensor) -> tuple[Tensor, Tensor | None]:  # shape: (*, C, H, W) -> (*, C, N), (2Z, N)
        """Return the features that are pooled, reduced and scaled but not centred, and their coordinates."""
        self._require_input(maps)
        # A convolution accepts one leading dimension; the pool accepts any.
        reduced = self.reduction(maps.flatten(0, -4) if maps.ndim > 4 else maps)
        features = self._to_sets(reduced.unflatten(0, maps.shape[:-3]) if maps.ndim > 4 else reduced)
        if not self.coordinates:
            return features, None
        height, width = maps.shape[-2:]
        grid = self._make_grid(height, width, features)
        return features, grid.repeat(1, maps.shape[-4]) if self.crops else grid


class SecondOrderPool2d(SecondOrderMaps, SecondOrderVector):
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

    pool_of_tokens = "SecondOrderPool1d"

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
        self._set_vector(mode, solver, unit_norm)

    def forward(self, maps: Tensor) -> Tensor:  # shape: (*, C, H, W) -> (*, out_features)
        """Return the vector of :func:`powerpool.second_order_pool`."""
        features, grid = self.feature_sets(maps)
        return self._vector(features, grid)


class SecondOrderFactor2d(SecondOrderMaps):
    r"""Spectral second-order pooling of a map as factors, without any C x C matrix: :func:`powerpool.gram_factor`.

    For large C, with :class:`powerpool.nn.FactoredHead`. Arguments as in :class:`SecondOrderPool2d`.

    Example:
        >>> import torch, powerpool as pp
        >>> pool = pp.nn.SecondOrderFactor2d(2048, pp.MaxExp(eta=50))
        >>> head = pp.nn.FactoredHead(pool.size, classes=10, rank=4)
        >>> head(pool(torch.rand(2, 2048, 7, 7))).shape
        torch.Size([2, 10])
    """

    pool_of_tokens = "SecondOrderFactor1d"

    def forward(self, maps: Tensor) -> GramFactor:  # shape: (*, C, H, W) -> (*, C', N), (*, N, N)
        """See :func:`powerpool.gram_factor`."""
        features, grid = self.feature_sets(maps)
        return self._factor(features, grid)
