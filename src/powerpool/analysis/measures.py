"""Measures of spectra, matrices and features, each a function of tensors.

Spectra are given as shares, see :func:`powerpool.tasks.pooling.shares`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool.checks import require_square
from powerpool.tasks.pooling import SILENT


def effective_rank(share: Tensor) -> Tensor:  # shape: (*, C) -> (*,)
    r"""Return the number of equal shares with the same entropy, :math:`\exp(-\sum_i p_i \log p_i)`, from 1 to C.

    Example:
        >>> effective_rank(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
        tensor([2., 1.])
    """
    return torch.special.entr(share).sum(-1).exp()


def participation_ratio(share: Tensor) -> Tensor:  # shape: (*, C) -> (*,)
    r"""Return the number of equal shares with the same sum of squares, :math:`1 / \sum_i p_i^2`.

    It is never larger than the effective rank.

    Example:
        >>> participation_ratio(torch.tensor([0.5, 0.5, 0.0]))
        tensor(2.)
    """
    return 1 / share.square().sum(-1)


def leading_share(share: Tensor, count: int) -> Tensor:  # shape: (*, C) -> (*,)
    r"""Return the sum of the first shares, :math:`\sum_{i \le k} p_i`; they must be in descending order.

    Example:
        >>> leading_share(torch.tensor([0.5, 0.25, 0.25]), 2)
        tensor(0.7500)
    """
    return share[..., :count].sum(-1)


def gini(amounts: Tensor) -> Tensor:  # shape: (*, C) -> (*,)
    r"""Return the Gini coefficient: 0 if all amounts are equal, :math:`1 - 1/C` if only one is not zero.

    .. math:: \frac{\sum_k \sum_l |e_k - e_l|}{2 C \sum_k e_k}

    For the diagonal of a moment matrix it measures how much a few features dominate a sample.

    Example:
        >>> gini(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 4.0]]))
        tensor([0.0000, 0.7500])
    """
    count = amounts.shape[-1]
    ascending = amounts.sort(-1).values
    # The double sum from the ranks of the sorted amounts, in C log C instead of C^2.
    weights = 2 * torch.arange(1, count + 1, dtype=amounts.dtype, device=amounts.device) - count - 1
    return (weights * ascending).sum(-1) / (count * ascending.sum(-1))


def correlations(matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    r"""Scale a matrix to a unit diagonal, :math:`M_{kl} / \sqrt{M_{kk} M_{ll}}`; NaN for features without energy.

    For an autocorrelation matrix these are cosines between features, for a covariance matrix (beta = 1) correlations.

    Example:
        >>> correlations(torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]])
    """
    require_square(matrix)
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    silent = diagonal <= SILENT * diagonal.amax(-1, keepdim=True)
    root = torch.where(silent, torch.nan, diagonal).sqrt()
    return matrix / (root.unsqueeze(-1) * root.unsqueeze(-2))


def mean_correlation(correlation: Tensor) -> Tensor:  # shape: (*, C, C) -> (*,)
    """Return the mean magnitude of the off-diagonal entries that are not NaN; 0 if there are none.

    Example:
        >>> mean_correlation(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))
        tensor(0.5000)
    """
    diagonal = torch.eye(correlation.shape[-1], dtype=torch.bool, device=correlation.device)
    magnitudes = correlation.abs().masked_fill(diagonal, torch.nan)
    return magnitudes.nansum((-2, -1)) / (~magnitudes.isnan()).sum((-2, -1)).clamp(min=1)


class Repetition:
    r"""Burstiness: how much more often than by chance a feature that is active in a sample is active there again.

    .. math:: b_k = \frac{\langle |\phi_{kn}| |\phi_{kn'}| \rangle_{n \ne n' \text{ of one sample}}}
                         {\langle |\phi_{kn}| \rangle^2_{\text{all locations of all samples}}}

    For independent, identically distributed locations it is 1. For features that are 0 or 1 it equals
    :math:`P(\text{active again} \mid \text{active once}) / P(\text{active})`. Samples are added one by one, and only
    sums are kept.

    With S samples of the same size :math:`b_k \le S`, and a feature that is active in m of them has at least S/m.
    Numbers from different S can only be compared if they are far below S.

    Example:
        >>> burst = Repetition(channels=2)
        >>> burst.add(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))  # the first feature is active everywhere in this sample
        >>> burst.add(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))  # and nowhere in this one; the second once in each
        >>> burst.value()
        tensor([2., 0.], dtype=torch.float64)
    """

    def __init__(self, channels: int) -> None:
        self._total = torch.zeros(channels, dtype=torch.float64)
        self._products = torch.zeros(channels, dtype=torch.float64)
        self._active = torch.zeros(channels, dtype=torch.int64)
        self._locations = self._pairs = 0

    def add(self, features: Tensor) -> None:  # shape: (C, N)
        """Add a sample."""
        magnitudes, count = features.detach().abs().to("cpu", torch.float64), features.shape[-1]
        total = magnitudes.sum(-1)
        self._total += total
        self._active += total > 0
        # Ordered pairs of different locations: all pairs minus those of a location with itself.
        self._products += total.square() - magnitudes.square().sum(-1)
        self._locations += count
        self._pairs += count * (count - 1)

    def value(self, least: int = 1) -> Tensor:  # shape: (C,)
        """Return b; NaN for features active in fewer than ``least`` samples, or if no sample has two locations."""
        mean = torch.where(self._active >= least, self._total / self._locations, torch.nan)
        # Round-off of the difference above may leave a sum of zero products negative.
        return (self._products.clamp(min=0) / self._pairs if self._pairs else mean * torch.nan) / mean.square()
