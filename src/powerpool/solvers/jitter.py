"""The paper's Algorithm 1: eigendecomposition of a jittered matrix, differentiated through eigenvectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from powerpool.checks import nan_unless_finite
from powerpool.curves.base import Curve
from powerpool.errors import ArgumentError, DomainError
from powerpool.solvers.base import MatrixSolver
from powerpool.solvers.spectrum import from_eigen, require_spectrum_in_domain


@dataclass(frozen=True)
class Jitter(MatrixSolver):
    r"""Generalized Spectral Power Normalization as published (Algorithm 1), for comparison; use ``eigen`` to train.

    .. math:: U \Lambda U^T = M + \operatorname{diag}(k\,\xi), \qquad
              \xi_i \sim \mathcal{U}(\epsilon', \epsilon' + d\epsilon')

    with :math:`k = 1, 2, \dots` until all eigenvalues differ. Backward is that of autograd through the eigenvectors,
    which divides by the gaps and is noisy. The result is that of a slightly different, random matrix: the noise comes
    from torch's global generator, and the result is not exact.
    """

    name: ClassVar[str] = "jitter"
    exact: ClassVar[bool] = False

    gap: float = 1e-6
    """The paper's epsilon', the intended spectral gap."""
    attempts: int = 10

    def __post_init__(self) -> None:
        if not self.gap > 0 or self.attempts < 1:
            raise ArgumentError(f"Jitter needs gap > 0 and attempts >= 1 (got {self.gap} and {self.attempts}).")

    def apply(self, matrix: Tensor, curve: Curve, check: bool, round_off: float) -> Tensor:
        """See :class:`MatrixSolver`."""
        size = matrix.shape[-1]
        mark = nan_unless_finite(matrix)[..., None, None]
        matrix = torch.where(mark == 0, matrix, 0.0)  # LAPACK raises on NaN, for the whole batch
        if check:
            require_spectrum_in_domain(torch.linalg.eigvalsh(matrix.detach()), curve, round_off)
        for attempt in range(1, self.attempts + 1):
            noise = self.gap * (1 + size * torch.rand(matrix.shape[:-1], dtype=matrix.dtype, device=matrix.device))
            eigenvalues, vectors = torch.linalg.eigh(matrix + torch.diag_embed(attempt * noise))
            if bool((eigenvalues.diff(dim=-1) > 0).all()):
                low, high = curve.domain
                return from_eigen(vectors, curve.value(eigenvalues.clamp(min=low, max=high))) + mark
        raise DomainError(
            f"Jitter of gap {self.gap:g} did not separate the eigenvalues of the matrix in {self.attempts} attempts: "
            "the scale of the matrix is too large. Use solver='eigen', which needs no jitter."
        )
