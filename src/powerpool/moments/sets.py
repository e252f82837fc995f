"""Sets of features as they enter the moment: checked, centred, with coordinates, zero where masked out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from powerpool.checks import require_beta, require_finite, require_mask, values_are_checked, zero_or_nan
from powerpool.linalg.precision import at_least_float32
from powerpool.moments.coordinates import append_coordinates
from powerpool.moments.dense import center, count, kept, overflow


@dataclass(frozen=True)
class Sets:
    """Features as they enter the moment: centred, with coordinates, zero where masked out, float32 or more."""

    values: Tensor  # shape: (*, C', N)
    number: int | Tensor  # of locations; a tensor has shape (*, 1, 1), NaN for a set that has no finite moment
    checked: bool


def prepare(features: Tensor, beta: float, coordinates: Tensor | None, mask: Tensor | None, check: bool | None) -> Sets:
    """Check features (*, C, N), centre them and append coordinates; with checks off, mark the sets that are bad."""
    require_beta(beta)
    if mask is not None:
        require_mask(mask, features, check)
    checked = values_are_checked(features, check)
    values = center(at_least_float32(features), beta, mask)
    if coordinates is not None:
        values = append_coordinates(values, coordinates)
        values = kept(values, mask)
    # One pass finds NaN, infinity and a moment that would overflow: |M_ij| is at most the sum of squares.
    energy = torch.linalg.vector_norm(values.detach(), dim=(-2, -1), keepdim=True).square()
    if checked and not bool((energy < torch.inf).all()):  # false for NaN too
        _refuse_features(features, coordinates, mask, values.dtype)
    number = count(values, mask)
    if isinstance(number, Tensor):
        number = number[..., None, None]
    if not checked:
        # What is divided by NaN is NaN, and so is its gradient; 0/N is NaN for an empty set.
        number = number + zero_or_nan(energy) + (0 / number if isinstance(number, Tensor) else 0)
    return Sets(values, number, checked)


def _refuse_features(
    features: Tensor, coordinates: Tensor | None, mask: Tensor | None, computed: torch.dtype
) -> NoReturn:
    require_finite(kept(features, mask), "features")
    if coordinates is not None:
        require_finite(coordinates, "coordinates")
    raise overflow(features, computed)
