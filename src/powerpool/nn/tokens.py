"""Pools of tokens, as transformers compute them: (B, N, C) in, vectors or their factors out."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from powerpool.checks import require_finite, require_floating, require_mask, values_are_checked
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError, require_choice
from powerpool.functional import Mode
from powerpool.linalg.precision import at_least_float32
from powerpool.nn.base import SMALLEST, FirstOrder, Pool, SecondOrder, SecondOrderVector
from powerpool.solvers import GramFactor, Solver

ClassToken = Literal["drop", "concat"]
CLASS_TOKENS = ("drop", "concat")
GridSize = tuple[int, int]


class Tokens(Pool):
    """Pools of tokens (*, N, C): prefix tokens are set apart, the others are one set of features (*, C, N)."""

    pool_of_maps: ClassVar[str]
    """The same pool for maps, which errors name."""
    prefix_tokens: int
    cls: ClassToken

    def _set_tokens(self, prefix_tokens: int, cls: ClassToken) -> None:
        if prefix_tokens < 0:
            raise ArgumentError(f"prefix_tokens must be at least 0 (got {prefix_tokens}).")
        require_choice(cls, CLASS_TOKENS, "cls")
        self.prefix_tokens, self.cls = prefix_tokens, cls

    def _require_input(self, tokens: Tensor) -> None:
        require_floating(tokens, "features")
        crops = "crops, " if self.crops else ""
        least = 2 + self.crops
        # With C at the place of a map's channels a map cannot be told from tokens with more leading dimensions.
        is_map = tokens.ndim >= least + 2 and tokens.shape[-3] == self.channels
        if tokens.ndim < least or tokens.shape[-1] != self.channels or is_map:
            remedy = "Build it with the channels of the layer before it."
            if tokens.ndim >= 3 and tokens.shape[-3] == self.channels:
                remedy = f"For maps (B, {self.channels}, H, W) use {self.pool_of_maps}."
            if is_map and tokens.shape[-1] == self.channels:
                remedy = f"{remedy[:-1]}; for tokens, join the leading dimensions by tokens.flatten(0, -3)."
            raise ShapeError(
                f"The pool was built for tokens of shape (*, {crops}N, {self.channels}) (got {tuple(tokens.shape)}). "
                f"{remedy}"
            )
        if tokens.shape[-2] <= self.prefix_tokens:
            raise ShapeError(
                f"A pool with prefix_tokens={self.prefix_tokens} needs more tokens than that (got {tokens.shape[-2]} "
                f"in {tuple(tokens.shape)})."
            )
        if self.cls == "concat" and self.prefix_tokens == 0:
            raise ArgumentError(
                "cls='concat' needs prefix_tokens >= 1 (got 0): the class token is the first of them. For tokens "
                "without a class token use cls='drop'."
            )

    def _select(
        self, tokens: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:  # shape: (*, N, C), (*, N) -> (*, N', C), (*, N')
        """Return the tokens that are pooled and their mask; masked tokens become 0."""
        patches = tokens[..., self.prefix_tokens :, :]
        if mask is not None:
            require_mask(mask, tokens.mT, check=False)
            mask = mask.expand(tokens.shape[:-1])[..., self.prefix_tokens :]
            # Before the reduction: with NaN in a masked token the gradient of its weights would be NaN.
            patches = torch.where(mask.unsqueeze(-1), patches, 0.0)
        if self.crops:
            patches = at_least_float32(patches).flatten(-3, -2)
            mask = None if mask is None else mask.flatten(-2)
        return patches, mask

    def _append_class_token(self, vector: Tensor, tokens: Tensor, unit_norm: bool) -> Tensor:
        if self.cls == "drop":
            return vector
        token = tokens[..., 0, :]
        if values_are_checked(token, self.check):
            require_finite(token, "the class token")
        if self.crops:
            token = at_least_float32(token).mean(-2)
        both = torch.cat([normalize(part, dim=-1, eps=SMALLEST) for part in (vector, token)], dim=-1)
        return normalize(both, dim=-1, eps=SMALLEST) if unit_norm else both

    def _extra(self, **options: object) -> str:
        if self.cls != "drop":
            options["cls"] = self.cls
        return super()._extra(prefix_tokens=self.prefix_tokens, **options)


class FirstOrderPool1d(Tokens, FirstOrder):
    r"""First-order pooling of tokens: :func:`powerpool.first_order_pool` over all but the prefix tokens.

    Args:
        channels: C of the tokens (B, N, C).
        curve: a curve, its name, or None for the mean of the tokens.
        reduce: ``"mean"`` or ``"max"``.
        check: see :mod:`powerpool.functional`.
        prefix_tokens, cls, crops, unit_scale, unit_norm: see :class:`SecondOrderPool1d`.

    Example:
        >>> import torch, powerpool as pp
        >>> pool = pp.nn.FirstOrderPool1d(64, prefix_tokens=1)
        >>> pool(torch.rand(8, 197, 64)).shape, pool.out_features
        (torch.Size([8, 64]), 64)
    """

    pool_of_maps = "FirstOrderPool2d"

    def __init__(
        self,
        channels: int,
        curve: Curve | str | None = None,
        *,
        prefix_tokens: int = 0,
        cls: ClassToken = "drop",
        reduce: Literal["mean", "max"] = "mean",
        check: bool | None = None,
        crops: bool = False,
        unit_scale: bool = False,
        unit_norm: bool = False,
    ) -> None:
        super().__init__(channels, curve, reduce, check, crops, unit_scale, unit_norm)
        self._set_tokens(prefix_tokens, cls)

    @property
    def out_features(self) -> int:
        """The length of the vector."""
        return self.channels * (2 if self.cls == "concat" else 1)

    def feature_sets(
        self, tokens: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, None]:  # shape: (*, N, C), (*, N) -> (*, C, N')
        """Return the features that are pooled, and None for their coordinates."""
        self._require_input(tokens)
        patches, kept = self._select(tokens, mask)
        return self._scale(patches.mT, kept), None

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None
    ) -> Tensor:  # shape: (*, N, C), (*, N) -> (*, out_features)
        """See :func:`powerpool.first_order_pool`."""
        self._require_input(tokens)
        patches, kept = self._select(tokens, mask)
        vector = self._vector(self._scale(patches.mT, kept), kept)
        return self._append_class_token(vector, tokens, self.unit_norm)


class SecondOrderTokens(Tokens, SecondOrder):
    """Second-order pools of tokens."""

    grid: GridSize | None

    def _make_projection(self, channels: int, reduced: int) -> nn.Module:
        return nn.Linear(channels, reduced, bias=False)

    def _to_sets(
        self, tokens: Tensor, mask: Tensor | None, grid: GridSize | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # shape: (*, C, N'), (2Z, N'), (*, N')
        self._require_input(tokens)
        patches, kept = self._select(tokens, mask)
        features = self._scale(self.reduction(patches).mT, kept)
        if not self.coordinates:
            return features, None, kept
        number = tokens.shape[-2] - self.prefix_tokens
        codes = self._make_grid(*self._grid_size(number, grid or self.grid), features)
        return features, codes.repeat(1, tokens.shape[-3]) if self.crops else codes, kept

    def _grid_size(self, number: int, grid: GridSize | None) -> GridSize:
        side = math.isqrt(number)
        height, width = (side, side) if grid is None else grid
        if height * width != number:
            raise ShapeError(
                f"Coordinates need the height and width of the grid of {number} tokens (got {height} x {width}). "
                "Pass grid=(height, width) to the pool, or to its call."
            )
        return height, width

    def feature_sets(
        self, tokens: Tensor, mask: Tensor | None = None, grid: GridSize | None = None
    ) -> tuple[Tensor, Tensor | None]:  # shape: (*, N, C), (*, N) -> (*, C, N'), (2Z, N')
        """Return the features that are pooled, reduced and scaled but not centred, and their coordinates."""
        return self._to_sets(tokens, mask, grid)[:2]


class SecondOrderPool1d(SecondOrderTokens, SecondOrderVector):
    r"""Power-normalized second-order pooling of tokens, as a vision transformer computes them.

    .. math:: (B, N, C) \to \operatorname{vec}\, g\Bigl(\frac1N \bar\Phi \bar\Phi^T\Bigr)
              \in \mathbb{R}^{C'(C'+1)/2}, \qquad C' = C + 2Z

    The vector is the upper triangle with off-diagonal entries times sqrt 2. C = 768 channels give 295,296 entries:
    ``reduce_to=64`` gives 2,080.

    With ``cls="concat"`` the class token is appended, and each of the two parts is divided by its Euclidean norm. A
    linear classifier then weighs both equally: the dot product of two vectors is the sum of two cosines. Without this,
    a normalized token of 768 channels with a norm near 28 drowns a MaxExp matrix, whose eigenvalues are at most 1.

    Args:
        channels: C of the tokens (B, N, C).
        curve: a curve, its name, or None for plain second-order pooling.
        mode: ``"spectral"`` or ``"elementwise"``.
        beta: the share of the mean that is removed, 0 (autocorrelation) to 1 (covariance).
        reduce_to: channels after a linear layer (no bias) and ReLU; None for no reduction.
        solver: see :mod:`powerpool.functional`; also ``"gram"``.
        prefix_tokens: the number of tokens before those of the patches: class, distillation and register tokens.
        cls: ``"drop"`` to leave out all prefix tokens, ``"concat"`` to append the first of them, the class token.
        coordinates: pivots Z of the spatial coordinates, 0 for none; they add 2Z channels.
        grid: height and width of the grid of patches, for coordinates. None assumes a square: 2 x 8 patches without
            ``grid`` get the coordinates of 4 x 4, because only a number that is no square can be refused.
        sigma, alpha: width and weight of the coordinates.
        eps, check, trace_power, slope: see :mod:`powerpool.functional`.
        crops: whether tokens have shape (B, K, N, C) and the K crops of an image are pooled as one set. Coordinates are
            relative to each crop, and the class token is the mean over crops.
        unit_scale: whether the features of a set are divided by their root mean square norm first.
        unit_norm: whether the vector is divided by its Euclidean norm.

    Example:
        >>> import torch, powerpool as pp
        >>> pool = pp.nn.SecondOrderPool1d(768, pp.MaxExp(eta=50), reduce_to=64, prefix_tokens=1)
        >>> tokens = torch.rand(2, 197, 768)  # a class token and 14 x 14 patches
        >>> pool(tokens).shape, pool.out_features
        (torch.Size([2, 2080]), 2080)
        >>> counts = torch.arange(197) < torch.tensor([[197], [100]])  # the second image is padded
        >>> pool(tokens, mask=counts).shape
        torch.Size([2, 2080])
    """

    pool_of_maps = "SecondOrderPool2d"

    def __init__(
        self,
        channels: int,
        curve: Curve | str | None = None,
        mode: Mode = "spectral",
        beta: float = 0.0,
        reduce_to: int | None = None,
        solver: str | Solver = "auto",
        prefix_tokens: int = 0,
        cls: ClassToken = "drop",
        *,
        coordinates: int = 0,
        grid: GridSize | None = None,
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
        self._set_tokens(prefix_tokens, cls)
        self._set_vector(mode, solver, unit_norm)
        self.grid = grid

    @property
    def out_features(self) -> int:
        """The length of the vector: C'(C'+1)/2, and C more with the class token."""
        return super().out_features + (self.channels if self.cls == "concat" else 0)

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, grid: GridSize | None = None
    ) -> Tensor:  # shape: (*, N, C), (*, N) -> (*, out_features)
        """Return the vector of :func:`powerpool.second_order_pool`.

        Args:
            tokens: (B, N, C), prefix tokens first.
            mask: boolean, broadcastable to (B, N); False removes a token from its set. Its entries for prefix tokens
                are not used.
            grid: height and width of the grid of patches, where they differ from those of the pool.
        """
        features, codes, kept = self._to_sets(tokens, mask, grid)
        return self._append_class_token(self._vector(features, codes, kept), tokens, self.unit_norm)


class SecondOrderFactor1d(SecondOrderTokens):
    r"""Spectral second-order pooling of tokens as factors, without any C x C matrix: :func:`powerpool.gram_factor`.

    For large C, with :class:`powerpool.nn.FactoredHead`. Prefix tokens are left out. Arguments as in
    :class:`SecondOrderPool1d`.

    Example:
        >>> import torch, powerpool as pp
        >>> pool = pp.nn.SecondOrderFactor1d(768, pp.MaxExp(eta=50), prefix_tokens=1)
        >>> head = pp.nn.FactoredHead(pool.size, classes=10, rank=4)
        >>> head(pool(torch.rand(2, 197, 768))).shape
        torch.Size([2, 10])
    """

    pool_of_maps = "SecondOrderFactor2d"

    def __init__(
        self,
        channels: int,
        curve: Curve | str | None = None,
        beta: float = 0.0,
        reduce_to: int | None = None,
        prefix_tokens: int = 0,
        *,
        coordinates: int = 0,
        grid: GridSize | None = None,
        sigma: float = 0.5,
        alpha: float = 1.0,
        eps: float = 1e-6,
        check: bool | None = None,
        trace_power: float = 0.0,
        slope: float = 0.0,
        crops: bool = False,
        unit_scale: bool = False,
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
        self._set_tokens(prefix_tokens, "drop")
        self.grid = grid

    def forward(
        self, tokens: Tensor, mask: Tensor | None = None, grid: GridSize | None = None
    ) -> GramFactor:  # shape: (*, N, C), (*, N) -> (*, C', N'), (*, N', N')
        """See :func:`powerpool.gram_factor`, and :meth:`SecondOrderPool1d.forward` for the arguments."""
        return self._factor(*self._to_sets(tokens, mask, grid))
