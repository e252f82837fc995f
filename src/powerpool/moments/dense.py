r"""The autocorrelation of sets of feature vectors ``(*, C, N)``, with centering, coordinates and masks.

Half precision is computed in float32 and cast back, and ``torch.autocast`` does not lower the precision of products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from powerpool.checks import (
    require_beta,
    require_features,
    require_finite,
    require_mask,
    values_are_checked,
    zero_or_nan,
)
from powerpool.errors import NotFiniteError
from powerpool.linalg.precision import at_least_float32, without_autocast
from powerpool.linalg.products import self_product
from powerpool.moments.coordinates import append_coordinates


def autocorrelation(
    features: Tensor,
    beta: float = 0.0,
    mask: Tensor | None = None,
    *,
    check: bool | None = None,
) -> Tensor:
    r"""Second-order moment of a set of feature vectors.

    .. math::
        M = \frac{1}{N} \sum_{n=1}^{N} \bar\phi_n \bar\phi_n^\top,
        \qquad \bar\phi_n = \phi_n - \beta \, \frac{1}{N} \sum_{n'=1}^{N} \phi_{n'}

    ``beta=0``, the default, is the autocorrelation without centering, ``beta=1`` the (biased) covariance.

    Args:
        features: channels by locations, ``(*, C, N)``.
        beta: strength of the centering, in ``[0, 1]``.
        mask: boolean, broadcastable to ``(*, N)``; ``False`` removes a location from its set. Masked values, NaN
            included, change neither the result nor its gradient, and their own gradient is exactly 0.
        check: whether values are checked; see :mod:`powerpool.functional`. With checks off, a set with NaN or infinity
            gives a matrix of NaN.

    Returns:
        ``(*, C, C)``, symmetric, in the dtype of the features.

    Examples:
        >>> features = torch.tensor([[1.0, 3.0], [2.0, -2.0]])  # C = 2, N = 2
        >>> autocorrelation(features)
        tensor([[ 5., -2.],
                [-2.,  4.]])
        >>> autocorrelation(features, beta=1.0)
        tensor([[ 1., -2.],
                [-2.,  4.]])
        >>> autocorrelation(features, mask=torch.tensor([True, False]))
        tensor([[1., 2.],
                [2., 4.]])
    """
    require_features(features)
    with without_autocast(features):
        sets = prepare(features, beta, None, mask, check)
        result = self_product(sets.values, sets.number).to(features.dtype)
    if sets.checked and result.dtype.itemsize < 4 and not bool(torch.isfinite(result).all()):
        raise overflow_error(features, features.dtype)
    return result


@dataclass(frozen=True)
class Sets:
    """Features as they enter the moment: centred, with coordinates, zero if masked, float32 or float64."""

    values: Tensor  # shape: (*, C', N)
    energy: Tensor  # shape: (*, 1, 1), the sum of squares, without a gradient
    number: int | Tensor  # of locations; a tensor has shape (*, 1, 1), with NaN for a set without a finite moment
    checked: bool


def prepare(features: Tensor, beta: float, coordinates: Tensor | None, mask: Tensor | None, check: bool | None) -> Sets:
    """Check features (*, C, N), centre them and append coordinates; with checks off, mark bad sets."""
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
    if checked and energy.numel() and not energy.amax().item() < torch.inf:  # also false for NaN
        _refuse_features(features, coordinates, mask, values.dtype)
    number = count(values, mask)
    if isinstance(number, Tensor):
        number = number[..., None, None]
    if not checked:
        # Division by NaN makes the value and its gradient NaN; 0/N is NaN for an empty set.
        number = number + zero_or_nan(energy) + (0 / number if isinstance(number, Tensor) else 0)
    return Sets(values, energy, number, checked)


def _refuse_features(
    features: Tensor, coordinates: Tensor | None, mask: Tensor | None, computed: torch.dtype
) -> NoReturn:
    require_finite(kept(features, mask), "features")
    if coordinates is not None:
        require_finite(coordinates, "coordinates")
    raise overflow_error(features, computed)


def overflow_error(features: Tensor, computed: torch.dtype) -> NotFiniteError:
    """Return the error for finite features whose moment is not finite."""
    return NotFiniteError(
        f"features are too large: their second-order moment overflows {computed} "
        f"(got features up to {features.detach().abs().max().item():.6g}). Scale them down, or use float64."
    )


def kept(features: Tensor, mask: Tensor | None) -> Tensor:  # shape: (*, C, N) -> (*, C, N)
    """Set masked locations to zero."""
    # where, not a product: 0 * NaN is NaN, in the value and in the gradient.
    return features if mask is None else torch.where(mask.unsqueeze(-2), features, 0.0)


def center(features: Tensor, beta: float, mask: Tensor | None = None) -> Tensor:
    r"""Subtract a part of the mean: :math:`\phi_n - \beta \frac{1}{N} \sum_{n'} \phi_{n'}`.

    Args:
        features: ``(*, C, N)``, float32 or float64.
        beta: strength of the centering, in ``[0, 1]``.
        mask: boolean, broadcastable to ``(*, N)``; masked locations become zero columns.

    Examples:
        >>> center(torch.tensor([[1.0, 3.0, 9.0]]), beta=0.5, mask=torch.tensor([True, True, False]))
        tensor([[0., 2., 0.]])
    """
    features = kept(features, mask)
    if beta == 0:
        return features
    locations = count(features, mask)  # int, or (*,)
    if isinstance(locations, Tensor):
        locations = locations[..., None, None]
    mean = features.sum(-1, keepdim=True) / locations  # (*, C, 1)
    return kept(features - beta * mean, mask)


def count(features: Tensor, mask: Tensor | None = None) -> int | Tensor:
    """Return the number of locations of each set: ``N``, or with a mask a tensor ``(*,)`` of at least float32.

    Examples:
        >>> count(torch.zeros(2, 5, 3))
        3
        >>> count(torch.zeros(2, 5, 3), torch.tensor([[True, False, False], [True, True, True]]))
        tensor([1., 3.])
    """
    if mask is None:
        return features.shape[-1]
    flags = mask.expand(*features.shape[:-2], features.shape[-1])  # (*, N)
    return flags.sum(-1).to(torch.promote_types(features.dtype, torch.float32))
