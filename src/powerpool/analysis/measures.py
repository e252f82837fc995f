r"""What is measured of a spectrum, of a matrix and of features: formulas, each a function of tensors.

A spectrum is compared by its shares, see :func:`powerpool.tasks.spectra.shares`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from powerpool.checks import require_square
from powerpool.tasks.spectra import SILENT


def effective_rank(share: Tensor) -> Tensor:  # shape: (*, C) -> (*,)
    r"""How many equal shares would have the same entropy, :math:`\exp(-\sum_i p_i \log p_i)`: 1 to C.

    Example:
        >>> effective_rank(torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]))
        tensor([2., 1.])
    """
    return torch.special.entr(share).sum(-1).exp()


def participation_ratio(share: Tensor) -> Tensor:  # shape: (*, C) -> (*,)
    r"""How many equal shares would have the same sum of squares, :math:`1 / \sum_i p_i^2`: at most the effective rank.

    Example:
        >>> participation_ratio(torch.tensor([0.5, 0.5, 0.0]))
        tensor(2.)
    """
    return 1 / share.square().sum(-1)


def leading_share(share: Tensor, count: int) -> Tensor:  # shape: (*, C) -> (*,)
    r"""The part of the trace in the largest k eigenvalues, :math:`\sum_{i \le k} p_i`, for shares in falling order.

    Example:
        >>> leading_share(torch.tensor([0.5, 0.25, 0.25]), 2)
        tensor(0.7500)
    """
    return share[..., :count].sum(-1)


def gini(amounts: Tensor) -> Tensor:  # shape: (*, C) -> (*,)
    r"""How unequal amounts are: 0 where all are equal, :math:`1 - 1/C` where one has everything.

    .. math:: \frac{\sum_k \sum_l |e_k - e_l|}{2 C \sum_k e_k}

    Of the diagonal of a matrix it says how much a few features outweigh the others in one sample.

    Example:
        >>> gini(torch.tensor([[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 4.0]]))
        tensor([0.0000, 0.7500])
    """
    count = amounts.shape[-1]
    rising = amounts.sort(-1).values
    # The double sum, by the place of each amount in the order: C log C and not C^2.
    places = 2 * torch.arange(1, count + 1, dtype=amounts.dtype, device=amounts.device) - count - 1
    return (places * rising).sum(-1) / (count * rising.sum(-1))


def correlations(matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    r"""A matrix with its diagonal scaled to 1: :math:`M_{kl} / \sqrt{M_{kk} M_{ll}}`, NaN for features that are silent.

    Of an autocorrelation it is the cosine between two features over the locations of a sample, of a covariance
    (beta = 1) their correlation.

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
    """The mean magnitude off the diagonal, over pairs of features that are not silent; 0 where there is no pair.

    Example:
        >>> mean_correlation(torch.tensor([[1.0, -0.5], [-0.5, 1.0]]))
        tensor(0.5000)
    """
    off_diagonal = correlation.masked_fill(
        torch.eye(correlation.shape[-1], dtype=torch.bool, device=correlation.device), torch.nan
    )
    known = ~off_diagonal.isnan()
    total = torch.where(known, off_diagonal.abs(), 0.0).sum((-2, -1))
    return total / known.sum((-2, -1)).clamp(min=1)


class Repetition:
    r"""Burstiness: how much more a feature that fired in a sample fires at other locations of it than chance has it.

    .. math:: b_k = \frac{\langle |\phi_{kn}| |\phi_{kn'}| \rangle_{n \ne n' \text{ of one sample}}}
                         {\langle |\phi_{kn}| \rangle^2_{\text{all locations of all samples}}}

    If locations were independent and alike, it would be 1. For features that are 0 or 1 it is exactly
    :math:`P(\text{fires again} \mid \text{fired once}) / P(\text{fires})`; others count by their magnitude. Samples are
    added one after the other, and only sums are kept.

    S samples of the same size bound it: :math:`b_k \le S`, with equality for a feature that fires evenly in a single
    sample. One that fires evenly in m of them has S/m or more. So numbers from different S compare only while b is far
    below S, and those of features that fired in few samples say little.

    Example:
        >>> burst = Repetition(channels=2)
        >>> burst.add(torch.tensor([[1.0, 1.0], [1.0, 0.0]]))  # the first feature fires everywhere in this sample
        >>> burst.add(torch.tensor([[0.0, 0.0], [0.0, 1.0]]))  # and nowhere in that one; the second once in each
        >>> burst.value()
        tensor([2., 0.], dtype=torch.float64)
    """

    def __init__(self, channels: int) -> None:
        self._total = torch.zeros(channels, dtype=torch.float64)
        self._products = torch.zeros(channels, dtype=torch.float64)
        self._fired = torch.zeros(channels, dtype=torch.int64)
        self._locations = self._pairs = 0

    def add(self, features: Tensor) -> None:  # shape: (C, N)
        """One more sample."""
        magnitudes, count = features.detach().abs().to("cpu", torch.float64), features.shape[-1]
        total = magnitudes.sum(-1)
        self._total += total
        self._fired += total > 0
        # Over ordered pairs of different locations: all pairs less those of a location with itself.
        self._products += total.square() - magnitudes.square().sum(-1)
        self._locations += count
        self._pairs += count * (count - 1)

    def value(self, least: int = 1) -> Tensor:  # shape: (C,)
        """NaN for features that fired in fewer than ``least`` samples; for all where no sample has two locations."""
        mean = torch.where(self._fired >= least, self._total / self._locations, torch.nan)
        # A feature without pairs has a sum of 0 up to round-off, which the difference above may leave negative.
        return (self._products.clamp(min=0) / self._pairs if self._pairs else mean * torch.nan) / mean.square()
