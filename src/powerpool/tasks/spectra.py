r"""The mean spectrum of pooled matrices over test samples, before and after power normalization.

Spectra are compared by shares :math:`p_i = |\lambda_i| / \sum_j |\lambda_j|`, which do not depend on scale. Magnitudes
matter only for element-wise curves, which may leave a matrix indefinite.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from powerpool.linalg.precision import at_least_float32
from powerpool.runs.record import Spectrum
from powerpool.tasks.pooling import FeatureSet, Normalization

SILENT = 1e-12
"""A moment below this share of the energy of the features is treated as zero."""
ONE_OF, FEWEST, MOST = 250, 16, 256
"""One in 250 test samples is analysed, but at least 16 and at most 256. Eigenvalues of 320 channels take seven times as
long as pooling without a curve: on a large set this stays below 3 % of the test."""
VALUES = 64
"""Number of eigenvalues that a record keeps."""
DIGITS = 4
"""Significant digits in records."""


def shares(values: Tensor) -> Tensor:  # shape: (*, C) -> (*, C)
    r"""Return magnitudes divided by their sum, the largest first: :math:`p_i = |\lambda_i| / \sum_j |\lambda_j|`.

    Example:
        >>> shares(torch.tensor([1.0, -1.0, 6.0]))
        tensor([0.7500, 0.1250, 0.1250])
    """
    magnitudes = values.abs().sort(-1, descending=True).values
    return magnitudes / magnitudes.sum(-1, keepdim=True)


def is_silent(features: Tensor, moment: Tensor) -> bool:  # shape: (C, N), (C', C')
    """Whether the moment holds only coordinates and round-off, as when all centred features are alike."""
    energy = features.double().square().sum() / features.shape[1]
    return bool(moment.diagonal()[: len(features)].sum() <= SILENT * energy)


def spread_out(count: int) -> Tensor:  # shape: (samples,)
    """Return the indices of the test samples to analyse, evenly spaced, because files are often sorted by class.

    Nothing is drawn at random, so no random state changes.

    Example:
        >>> spread_out(20).tolist()
        [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16, 17, 18]
        >>> len(spread_out(6149)), len(spread_out(50_000))
        (24, 200)
    """
    wanted = min(count, MOST, max(FEWEST, count // ONE_OF))
    return torch.arange(wanted) * count // max(wanted, 1)


def ranks(size: int) -> list[int]:
    """Return the ranks of the eigenvalues to keep, from 1: all, or a subset that is evenly spaced in the logarithm.

    Example:
        >>> ranks(3), len(ranks(351)), ranks(351)[-3:]
        ([1, 2, 3], 64, [308, 329, 351])
    """
    if size <= VALUES:
        return list(range(1, size + 1))
    found = [1]
    for left in range(VALUES - 1, 0, -1):
        last = found[-1]
        # The factor that reaches the end in the remaining steps, but at least the next rank.
        found.append(max(last + 1, round(last * (size / last) ** (1 / left))))
    return found


@torch.no_grad()
def mean_spectrum(normalization: Normalization, sets: Iterable[FeatureSet]) -> Spectrum | None:
    """Average the eigenvalue shares of pooled matrices over samples.

    Args:
        normalization: of the pool.
        sets: the features of each sample. Samples without energy have no spectrum and are skipped.

    Returns:
        The mean shares before and after normalization; None for a first-order pool, or if no sample has a spectrum.

    Example:
        >>> import powerpool as pp
        >>> pool = Normalization("mine", pp.MaxExp(eta=2), eps=0.0)
        >>> mean_spectrum(pool, [FeatureSet(torch.tensor([[3.0, 0.0], [0.0, 1.0]]))])
        Spectrum(samples=1, size=2, ranks=(1, 2), before=(0.9, 0.1), after=(0.839, 0.161))
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
    first, second = (tuple(float(f"{float(mean[rank - 1]):.{DIGITS}g}") for rank in kept) for mean in (before, after))
    return Spectrum(len(found), len(before), tuple(kept), first, second)


def _spectrum(matrix: Tensor, noise: float) -> Tensor:  # shape: (C, C) -> (C,)
    """Return the shares of the eigenvalues; those up to ``noise`` times the largest count as 0."""
    values = torch.linalg.eigvalsh(matrix)
    return shares(torch.where(values.abs() > noise * values.abs().max(), values, 0.0))


def _noise(features: Tensor) -> tuple[float, float]:  # shape: (C, N)
    """Return the round-off of zero eigenvalues relative to the largest: in the moment, and in the matrix.

    The moment is computed in float64 from squared features, the matrix in the dtype of the features.
    """
    size, eps = len(features), torch.finfo(features.dtype).eps
    return size * max(eps**2, torch.finfo(torch.float64).eps), size**0.5 * eps
