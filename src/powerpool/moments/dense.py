r"""Features become a symmetric matrix: the autocorrelation of a set of feature vectors.

Three forms of one formula, :math:`M = \frac{1}{N} \sum_n \bar\phi_n \bar\phi_n^\top`: dense sets ``(*, C, N)``, dense
sets with a mask, and ragged sets given by a segment index. Half precision is computed in float32 and cast back, and
``torch.autocast`` does not lower the precision of the products.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool.checks import (
    require_beta,
    require_features,
    require_finite,
    require_floating,
    require_mask,
    values_are_checked,
    zero_or_nan,
)
from powerpool.errors import ArgumentError, DomainError, DTypeError, NotFiniteError, ShapeError
from powerpool.linalg.precision import at_least_float32, without_autocast
from powerpool.linalg.products import self_product
from powerpool.moments.segments import plan_segments, segment_moment


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

    No mean is removed unless asked for: ``beta=0`` is the autocorrelation, ``beta=1`` the (biased) covariance.

    Args:
        features: channels by locations, ``(*, C, N)``.
        beta: strength of the centering, in ``[0, 1]``.
        mask: boolean, broadcastable to ``(*, N)``; ``False`` takes a location out of its set. What stands there, NaN
            included, changes neither the result nor its gradient, and its own gradient is exactly 0.
        check: whether values are checked; ``None`` is on for the CPU, off for CUDA and while tracing. Where it is off,
            a set with NaN or infinity gives a matrix of NaN.

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
    require_beta(beta)
    if mask is not None:
        require_mask(mask, features, check)
    checked = values_are_checked(features, check)
    if checked:
        require_finite(kept(features.detach(), mask), "features")
    with without_autocast(features):
        computed = at_least_float32(features)
        total = self_product(center(computed, beta, mask))  # (*, C, C)
        if checked:
            _require_no_overflow(total, features)
        # A NaN divisor makes the whole matrix NaN, and so its gradient.
        poison = zero_or_nan(total.diagonal(dim1=-2, dim2=-1)).sum(-1)  # (*,)
        matrix = total / (count(computed, mask) + poison)[..., None, None]
    return matrix.to(features.dtype)


def kept(features: Tensor, mask: Tensor | None) -> Tensor:  # shape: (*, C, N) -> (*, C, N)
    """Features with zeros where the mask takes a location out."""
    # where, not a product: 0 * NaN is NaN, in the value and in the gradient.
    return features if mask is None else torch.where(mask.unsqueeze(-2), features, 0.0)


def center(features: Tensor, beta: float, mask: Tensor | None = None) -> Tensor:
    r"""Features less a part of their mean, :math:`\phi_n - \beta \frac{1}{N} \sum_{n'} \phi_{n'}`.

    Args:
        features: ``(*, C, N)``, float32 or float64.
        beta: strength of the centering, in ``[0, 1]``.
        mask: boolean, broadcastable to ``(*, N)``; locations that it takes out become zero columns.

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
    """Number of locations in each set: ``N``, or with a mask a tensor ``(*,)`` of at least float32.

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


def segment_autocorrelation(
    features: Tensor,
    index: Tensor,
    num_segments: int | None = None,
    beta: float = 0.0,
    *,
    check: bool | None = None,
) -> Tensor:
    r"""Second-order moment of ragged sets, for instance of the nodes of each graph of a batch.

    .. math::
        M_s = \frac{1}{N_s} \sum_{n : i_n = s} \bar\phi_n \bar\phi_n^\top,
        \qquad \bar\phi_n = \phi_n - \beta \, \frac{1}{N_s} \sum_{n' : i_{n'} = s} \phi_{n'}

    Forward and backward hold at most four times the memory of input and output together, however uneven the sets are,
    plus about 64 bytes a row for the layout; half precision counts as its float32 copy.

    Args:
        features: rows first as in PyTorch Geometric, ``(N, C)``.
        index: segment of each row, ``(N,)`` int64, sorted or not.
        num_segments: ``S``; the largest index plus one if not given, which reads a value and so synchronises a device.
        beta: strength of the centering, in ``[0, 1]``.
        check: as in :func:`autocorrelation`.

    Returns:
        ``(S, C, C)``, in the dtype of the features. A segment without rows gives the zero matrix.

    Examples:
        >>> features = torch.tensor([[1.0, 2.0], [3.0, -2.0], [0.0, 1.0]])  # N = 3, C = 2
        >>> segment_autocorrelation(features, torch.tensor([0, 0, 1]), num_segments=3)
        tensor([[[ 5., -2.],
                 [-2.,  4.]],
        <BLANKLINE>
                [[ 0.,  0.],
                 [ 0.,  1.]],
        <BLANKLINE>
                [[ 0.,  0.],
                 [ 0.,  0.]]])
    """
    require_beta(beta)
    num_segments = _validate_segments(features, index, num_segments, check)
    with without_autocast(features):
        rows = at_least_float32(features)
        if beta != 0:
            means = _segment_means(rows, index, num_segments)  # (S, C)
            rows = rows - (beta * means).index_select(0, index)
        matrix = segment_moment(rows, plan_segments(index, num_segments, rows.shape[1]))
        if values_are_checked(features, check):
            _require_no_overflow(matrix, features)
    return matrix.to(features.dtype)


def segment_mean(
    features: Tensor,
    index: Tensor,
    num_segments: int | None = None,
    *,
    check: bool | None = None,
) -> Tensor:
    r"""First-order moment of ragged sets, :math:`\frac{1}{N_s} \sum_{n : i_n = s} \phi_n`.

    Args:
        features: ``(N, C)``.
        index: segment of each row, ``(N,)`` int64, sorted or not.
        num_segments: ``S``; the largest index plus one if not given.
        check: as in :func:`autocorrelation`.

    Returns:
        ``(S, C)``, in the dtype of the features. A segment without rows gives zeros.

    Examples:
        >>> segment_mean(torch.tensor([[1.0, 2.0], [3.0, -2.0], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
        tensor([[2., 0.],
                [0., 1.]])
    """
    num_segments = _validate_segments(features, index, num_segments, check)
    return _segment_means(at_least_float32(features), index, num_segments).to(features.dtype)


def _require_no_overflow(moment: Tensor, features: Tensor) -> None:
    """Refuse finite features whose squares are not. Reads the diagonal."""
    if not bool(torch.isfinite(moment.detach().diagonal(dim1=-2, dim2=-1)).all()):
        raise overflow(features, moment.dtype)


def overflow(features: Tensor, computed: torch.dtype) -> NotFiniteError:
    """What to say of finite features whose moment is not."""
    return NotFiniteError(
        f"features are too large: their second-order moment overflows {computed} "
        f"(got features up to {features.detach().abs().max().item():.6g}). Scale them down, or use float64."
    )


def _segment_means(rows: Tensor, index: Tensor, num_segments: int) -> Tensor:
    totals = rows.new_zeros(num_segments, rows.shape[1]).index_add(0, index, rows)  # (S, C)
    sizes = rows.new_zeros(num_segments).index_add(0, index, rows.new_ones(index.shape))  # (S,)
    poison = zero_or_nan(totals)
    return totals / (sizes.clamp(min=1).unsqueeze(-1) + poison)


def _validate_segments(features: Tensor, index: Tensor, num_segments: int | None, check: bool | None) -> int:
    require_floating(features, "features")
    if features.ndim != 2 or 0 in features.shape:
        raise ShapeError(
            f"features must have shape (N, C): rows, then channels, N >= 1 and C >= 1 (got {tuple(features.shape)}). "
            "A dense batch of shape (*, C, N) goes to autocorrelation; a batch without rows has no moment."
        )
    if not isinstance(index, Tensor) or index.dtype != torch.int64:
        given = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise DTypeError(f"index must be an int64 tensor, the segment of each row (got {given}). Use index.long().")
    if index.shape != features.shape[:1]:
        raise ShapeError(
            f"index must have shape (N,) = ({features.shape[0]},), one segment per row of features "
            f"(got {tuple(index.shape)} for features of shape {tuple(features.shape)})."
        )
    if index.device != features.device:
        raise ArgumentError(
            f"index must be on the device of features, {features.device} (got {index.device}). Use index.to(...)."
        )
    if num_segments is None:
        if torch.compiler.is_compiling():
            raise ArgumentError("num_segments must be given while torch.compile or torch.export traces (got None).")
        num_segments = int(index.max()) + 1
    elif isinstance(num_segments, bool) or not isinstance(num_segments, (int, torch.SymInt)) or num_segments < 1:
        raise ArgumentError(
            f"num_segments must be an integer >= 1, or None to take max(index) + 1 (got {num_segments!r})."
        )
    if values_are_checked(features, check):
        low, high = (int(bound) for bound in torch.aminmax(index))
        if low < 0 or high >= num_segments:
            raise DomainError(
                f"index must lie in [0, num_segments) = [0, {num_segments}) (got {low} to {high}). "
                "Raise num_segments, or renumber the segments."
            )
        require_finite(features, "features")
    return num_segments
