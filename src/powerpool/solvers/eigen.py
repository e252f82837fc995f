r"""The spectral form by eigendecomposition, with the Daleckii-Krein backward. Any curve, always exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from powerpool.curves.base import Curve, Parameter
from powerpool.precision import without_autocast
from powerpool.products import symmetrize
from powerpool.solvers.base import (
    Solver,
    eigh,
    from_eigen,
    into_domain,
    once_only,
    one_parameter,
    require_spectrum_in_domain,
)


@dataclass(frozen=True)
class Eigen(Solver):
    r"""Eigendecomposition, for every curve.

    .. math:: \hat g(M) = U \operatorname{diag}(g(\lambda)) U^T, \qquad
              \frac{\partial L}{\partial M} = U \bigl((U^T \operatorname{sym}(G)\, U) \odot K\bigr) U^T, \qquad
              K_{ij} = \frac{g(\lambda_i)-g(\lambda_j)}{\lambda_i-\lambda_j}

    with :math:`g'(\lambda_i)` on ties (Daleckii-Krein). The gradient divides by no eigenvalue gap, so equal
    eigenvalues, rank-deficient matrices and the zero matrix need no jitter. Where :math:`g'(0)` is infinite (Gamma
    below 1) the block of K between null vectors is 0. Double backward raises.
    """

    name: ClassVar[str] = "eigen"
    double_backward: ClassVar[bool] = False

    def apply(self, matrix: Tensor, curve: Curve, check: bool) -> Tensor:
        """See :class:`Solver`."""
        result, eigenvalues, _ = _SpectralValue.apply(matrix, one_parameter(curve, matrix), curve)
        if check:
            require_spectrum_in_domain(eigenvalues, curve)
        return result


class _SpectralValue(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor, theta: Parameter, curve: Curve) -> tuple[Tensor, Tensor, Tensor]:
        eigenvalues, vectors = eigh(matrix)
        return from_eigen(vectors, curve._value(into_domain(eigenvalues, curve), theta)), eigenvalues, vectors

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Parameter, Curve], output: tuple[Tensor, Tensor, Tensor]) -> None:
        matrix, theta, curve = inputs
        _, eigenvalues, vectors = output
        ctx.mark_non_differentiable(eigenvalues, vectors)
        ctx.curve = curve
        ctx.number = None if isinstance(theta, Tensor) else theta
        ctx.save_for_backward(matrix, theta if isinstance(theta, Tensor) else None, eigenvalues, vectors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor | None, None]:
        matrix, theta, eigenvalues, vectors = ctx.saved_tensors
        curve: Curve = ctx.curve
        parameter = ctx.number if theta is None else theta
        with torch.no_grad(), without_autocast(matrix):
            points = into_domain(eigenvalues, curve)
            rotated = vectors.mT @ symmetrize(grad) @ vectors
            loewner = curve._divided_difference(points.unsqueeze(-1), points.unsqueeze(-2), parameter)
            grad_matrix = vectors @ (rotated * loewner) @ vectors.mT
            if theta is not None:
                slope = curve._parameter_derivative(points, parameter)
                grad_theta = (rotated.diagonal(dim1=-2, dim2=-1) * slope).sum()
        if theta is None:
            return once_only(grad_matrix, Eigen.name, matrix, grad), None, None
        inputs = (matrix, grad, theta)
        return once_only(grad_matrix, Eigen.name, *inputs), once_only(grad_theta, Eigen.name, *inputs), None
