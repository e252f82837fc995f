r"""The mean spectrum of the matrices that a pool makes of test samples, before its normalization and after it.

Spectra are compared by their shares :math:`p_i = |\lambda_i| / \sum_j |\lambda_j|`, which know no scale. Magnitudes are
taken because a curve that acts entry by entry may leave a matrix indefinite; for all others they change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from powerpool.linalg.precision import at_least_float32
from powerpool.tasks.pooling import FeatureSet, Normalization

SILENT = 1e-12
"""A diagonal entry below this part of the largest one is taken for 0: a feature that says nothing of the sample."""
ONE_OF, FEWEST, MOST = 250, 16, 256
"""Of so many test samples one is looked at, but no fewer and no more than these. Eigenvalues of 320 channels take seven
times as long as pooling without a curve: of a large set, this stays below 3 % of the test."""
VALUES = 64
"""Eigenvalues of a matrix that a record keeps."""
DIGITS = 4
"""Significant digits of them: they are there to be looked at."""


def shares(values: Tensor) -> Tensor:  # shape: (*, C) -> (*, C)
    r"""Magnitudes as parts of their sum, the largest first: :math:`p_i = |\lambda_i| / \sum_j |\lambda_j|`.

    Example:
        >>> shares(torch.tensor([1.0, -1.0, 6.0]))
        tensor([0.7500, 0.1250, 0.1250])
    """
    magnitudes = values.abs().sort(-1, descending=True).values
    return magnitudes / magnitudes.sum(-1, keepdim=True)


def is_silent(features: Tensor, moment: Tensor) -> bool:  # shape: (C, N), (C', C')
    """Whether nothing but coordinates and round-off is in the moment: centred features may all be alike."""
    energy = features.double().square().sum() / features.shape[1]
    return bool(moment.diagonal()[: len(features)].sum() <= SILENT * energy)


def spread_out(count: int) -> Tensor:  # shape: (samples,)
    """The places of the test samples that are looked at, at even distances: files are often sorted by class.

    Nothing is drawn at random, so that no stream of random numbers is moved.

    Example:
        >>> spread_out(20).tolist()
        [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16, 17, 18]
        >>> len(spread_out(6149)), len(spread_out(50_000))
        (24, 200)
    """
    wanted = min(count, MOST, max(FEWEST, count // ONE_OF))
    return torch.arange(wanted) * count // max(wanted, 1)


def ranks(size: int) -> list[int]:
    """The places of the eigenvalues that are kept, from 1 on: all, or some whose logarithms are about evenly spread.

    Example:
        >>> ranks(3), len(ranks(351)), ranks(351)[-3:]
        ([1, 2, 3], 64, [308, 329, 351])
    """
    if size <= VALUES:
        return list(range(1, size + 1))
    found = [1]
    for left in range(VALUES - 1, 0, -1):
        last = found[-1]
        # By the factor that leads to the end in the steps that are left, and by 1 at least.
        found.append(max(last + 1, round(last * (size / last) ** (1 / left))))
    return found


@torch.no_grad()
def mean_spectrum(normalization: Normalization, sets: Iterable[FeatureSet]) -> dict[str, Any] | None:
    """What a record says of spectra: means over samples of the shares of eigenvalues, the largest first.

    Args:
        normalization: of the pool that the sets go into.
        sets: one for each sample. Those without any energy have no spectrum and are left out.

    Returns:
        ``samples``, how many were looked at; ``size``, the side of their matrices; ``ranks``, at most 64 places among
        their eigenvalues; ``before`` and ``after``, the mean shares at these places, of the moment and of the matrix
        that the pool makes of it. None for a first-order pool, which has no matrix, and where no sample has a spectrum.

    Example:
        >>> import powerpool as pp
        >>> pool = Normalization("mine", pp.MaxExp(eta=2), eps=0.0)
        >>> mean_spectrum(pool, [FeatureSet(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))])
        {'samples': 1, 'size': 2, 'ranks': [1, 2], 'before': [0.9, 0.1], 'after': [0.839, 0.161]}
    """
    if normalization.is_first_order:
        return None
    found = []
    for one in sets:
        features = at_least_float32(one.features.detach()).cpu()
        coordinates = None if one.coordinates is None else one.coordinates.detach().to("cpu", features.dtype)
        given = FeatureSet(features, coordinates, one.is_centred)
        moment = normalization.moment(*given)
        if is_silent(features, moment):
            continue
        matrix = normalization.matrix(*given)
        if bool(matrix.any()):
            in_moment, in_matrix = _noise(features)
            found.append(torch.stack([_spectrum(moment, in_moment), _spectrum(matrix, in_matrix)]))
    if not found:
        return None
    before, after = torch.stack(found).mean(0)
    kept = ranks(len(before))
    return {
        "samples": len(found),
        "size": len(before),
        "ranks": kept,
        **{
            name: [float(f"{float(mean[rank - 1]):.{DIGITS}g}") for rank in kept]
            for name, mean in (("before", before), ("after", after))
        },
    }


def _spectrum(matrix: Tensor, noise: float) -> Tensor:  # shape: (C, C) -> (C,)
    """The shares of the eigenvalues; what is no more than ``noise`` of the largest is 0."""
    values = torch.linalg.eigvalsh(matrix)
    return shares(torch.where(values.abs() > noise * values.abs().max(), values, 0.0))


def _noise(features: Tensor) -> tuple[float, float]:  # shape: (C, N)
    """What round-off makes of eigenvalues that are 0, as a part of the largest: in the moment, and in the matrix.

    A moment in float64 has that of its features, squared as they are. The matrix is computed in their own type.
    """
    size, eps = len(features), torch.finfo(features.dtype).eps
    return size * max(eps**2, torch.finfo(torch.float64).eps), size**0.5 * eps
