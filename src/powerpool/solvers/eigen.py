r"""Eigendecomposition with the Daleckii-Krein backward: any curve, always exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from powerpool.curves.base import Curve, Parameter
from powerpool.solvers.base import MatrixSolver
from powerpool.solvers.spectrum import SpectralForm, require_spectrum_in_domain, spectral_function


@dataclass(frozen=True)
class Eigen(MatrixSolver):
    r"""Eigendecomposition, for every curve.

    .. math:: \hat g(M) = U \operatorname{diag}(g(\lambda)) U^T, \qquad
              \frac{\partial L}{\partial M} = U \bigl((U^T \operatorname{sym}(G)\, U) \odot K\bigr) U^T, \qquad
              K_{ij} = \frac{g(\lambda_i)-g(\lambda_j)}{\lambda_i-\lambda_j}

    with :math:`g'(\lambda_i)` on ties (Daleckii-Krein). The gradient does not divide by eigenvalue gaps, so equal
    eigenvalues, rank-deficient matrices and the zero matrix need no jitter. Eigenvalues below the noise floor count
    as 0. If :math:`g'(0)` is infinite (Gamma below 1), or the curve is steep at the floor, the block of K between null
    vectors is 0. Double backward raises.
    """

    name: ClassVar[str] = "eigen"
    double_backward: ClassVar[bool] = False

    def apply(self, matrix: Tensor, curve: Curve, check: bool, round_off: float) -> Tensor:
        """See :class:`MatrixSolver`."""
        result, eigenvalues = spectral_function(matrix, _Value(curve, round_off))
        if check:
            require_spectrum_in_domain(eigenvalues, curve, round_off)
        return result


@dataclass(frozen=True)
class _Value(SpectralForm):
    """The function g."""

    solver: ClassVar[str] = Eigen.name

    def value(self, points: Tensor, dropped: Tensor, theta: Parameter) -> Tensor:
        return self.curve._value(points, theta)

    def loewner_product(self, rotated: Tensor, points: Tensor, dropped: Tensor, theta: Parameter) -> Tensor:
        product = rotated * self.curve._divided_difference(points.unsqueeze(-1), points.unsqueeze(-2), theta)
        return torch.where(dropped.unsqueeze(-1) & dropped.unsqueeze(-2), 0.0, product)

    def parameter_slope(self, points: Tensor, dropped: Tensor, theta: Parameter) -> Tensor:
        return self.curve._parameter_derivative(points, theta)
