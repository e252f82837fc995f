r"""Spatial coordinates as features: soft codes of the positions in a map."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from powerpool.checks import require_features, require_floating
from powerpool.errors import ArgumentError, DTypeError, ShapeError


def spatial_coordinates(
    height: int,
    width: int,
    pivots: int = 5,
    sigma: float = 0.5,
    alpha: float = 1.0,
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    r"""Encode the locations of a feature map by soft assignment to pivots.

    .. math::
        c_n = \alpha \begin{bmatrix} \varphi(x_n) \\ \varphi(y_n) \end{bmatrix}, \qquad
        \varphi(x) = \left[ e^{-(x - z_1)^2 / \sigma^2}, \dots, e^{-(x - z_Z)^2 / \sigma^2} \right], \qquad
        z = \mathrm{linspace}(-0.2, 1.2, Z)

    with :math:`x = x' / (W - 1)` and :math:`y = y' / (H - 1)` in ``[0, 1]``; a map of width (height) 1 has
    :math:`x = 0` (:math:`y = 0`). The inner product of two codes approximates a Gaussian of the distance of their
    locations.

    Args:
        height: ``H``, rows of the map.
        width: ``W``, columns of the map.
        pivots: ``Z >= 2``; the paper uses 3 to 10.
        sigma: width of the Gaussian, > 0.
        alpha: weight of the coordinates relative to the features, >= 0.
        dtype: floating-point dtype of the result; None for the default dtype.
        device: device of the result.

    Returns:
        ``(2 Z, H W)``: the ``Z`` codes of x, then those of y; locations row by row, as in ``flatten(-2)``.

    Examples:
        >>> spatial_coordinates(height=1, width=3, pivots=2, sigma=1.0)
        tensor([[0.9608, 0.6126, 0.2369],
                [0.2369, 0.6126, 0.9608],
                [0.9608, 0.9608, 0.9608],
                [0.2369, 0.2369, 0.2369]])
    """
    _require_count("height", height, least=1)
    _require_count("width", width, least=1)
    _require_count("pivots", pivots, least=2)
    if not 0 < sigma < math.inf:
        raise ArgumentError(f"sigma must be > 0 and finite, the width of the Gaussian in map widths (got {sigma}).")
    if not 0 <= alpha < math.inf:
        raise ArgumentError(f"alpha must be >= 0 and finite, the weight of the coordinates (got {alpha}).")
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not dtype.is_floating_point:
        raise DTypeError(f"dtype must be a floating-point dtype (got {dtype}).")
    along_x = _encode(width, pivots, sigma, alpha, device)  # (Z, W)
    along_y = _encode(height, pivots, sigma, alpha, device)  # (Z, H)
    x_block = along_x.unsqueeze(-2).expand(pivots, height, width)
    y_block = along_y.unsqueeze(-1).expand(pivots, height, width)
    return torch.cat([x_block, y_block]).flatten(-2).to(dtype)  # (2 Z, H W)


def append_coordinates(features: Tensor, coordinates: Tensor) -> Tensor:
    r"""Append the code of each location to its feature vector, :math:`[\phi_n; c_n]`.

    Args:
        features: ``(*, C, N)``.
        coordinates: ``(2 Z, N)``, shared by all sets; cast to the dtype and device of the features.

    Returns:
        ``(*, C + 2 Z, N)``.

    Examples:
        >>> maps = torch.zeros(8, 32, 7, 7)
        >>> append_coordinates(maps.flatten(-2), spatial_coordinates(7, 7, pivots=5)).shape
        torch.Size([8, 42, 49])
    """
    require_features(features)
    require_floating(coordinates, "coordinates")
    if coordinates.ndim != 2:
        raise ShapeError(
            f"coordinates must have shape (2 Z, N), shared by all sets (got {tuple(coordinates.shape)}). "
            "Create them with spatial_coordinates(height, width)."
        )
    if coordinates.shape[-1] != features.shape[-1]:
        raise ShapeError(
            f"coordinates must have one column per location, N = {features.shape[-1]} for features of shape "
            f"{tuple(features.shape)} (got {coordinates.shape[-1]} in {tuple(coordinates.shape)}). "
            "Create them with spatial_coordinates(height, width) for the same map, repeated for each crop of the set."
        )
    shared = coordinates.to(features).expand(*features.shape[:-2], *coordinates.shape)  # a view, no copy
    return torch.cat([features, shared], dim=-2)


def _encode(
    length: int, pivots: int, sigma: float, alpha: float, device: torch.device | str | None
) -> Tensor:  # -> (Z, length)
    # Created on the device: a copy from the host would synchronise. Metal has no float64.
    dtype = torch.float32 if device is not None and torch.device(device).type == "mps" else torch.float64
    places = torch.arange(length, dtype=dtype, device=device) / max(length - 1, 1)
    centres = torch.linspace(-0.2, 1.2, pivots, dtype=dtype, device=device).unsqueeze(-1)  # (Z, 1)
    return alpha * torch.exp(-((places - centres) ** 2) / sigma**2)


def _require_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)) or value < least:
        raise ArgumentError(f"{name} must be an integer >= {least} (got {value!r}).")
