r"""The alternatives to powerpool, from features ``(B, C, N)`` to a matrix ``(B, C, C)``, and the floor.

Written from their formulas, for comparison only: the library does not use them. All start from
:math:`M = X X^T / N`, and those of MaxExp divide it by its trace.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def form_moment(features: Tensor) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """The floor: M alone, as a user would write it. All other contenders have this cost, too."""
    return features @ features.mT / features.shape[-1]


def divided_moment(features: Tensor) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """M divided by its trace."""
    moment = form_moment(features)
    return moment / moment.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


def eigh_autograd(features: Tensor, eta: int) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """MaxExp of the eigenvalues, with autograd through eigenvectors, which divides by the gaps of eigenvalues."""
    eigenvalues, vectors = torch.linalg.eigh(divided_moment(features))
    return (vectors * (1 - (1 - eigenvalues) ** eta).unsqueeze(-2)) @ vectors.mT


def svd_autograd(features: Tensor, eta: int) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """MaxExp of the singular values, with autograd through singular vectors."""
    vectors, values, _ = torch.linalg.svd(divided_moment(features))
    return (vectors * (1 - (1 - values) ** eta).unsqueeze(-2)) @ vectors.mT


def gspn_autograd(features: Tensor, eta: int, gap: float = 1e-6) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """Algorithm 1 of the paper: noise on the diagonal until all eigenvalues differ, then autograd."""
    divided = divided_moment(features)
    size = divided.shape[-1]
    for attempt in range(1, 11):
        noise = gap * (1 + size * torch.rand(divided.shape[:-1], dtype=divided.dtype, device=divided.device))
        eigenvalues, vectors = torch.linalg.eigh(divided + torch.diag_embed(attempt * noise))
        if bool((eigenvalues.diff(dim=-1) > 0).all()):
            break
    return (vectors * (1 - (1 - eigenvalues.clamp(0, 1)) ** eta).unsqueeze(-2)) @ vectors.mT


def matrix_power_autograd(features: Tensor, eta: int) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """I - (I - P)^eta by ``torch.linalg.matrix_power``, with autograd through its products."""
    divided = divided_moment(features)
    identity = torch.eye(divided.shape[-1], dtype=divided.dtype, device=divided.device)
    return identity - torch.linalg.matrix_power(identity - divided, eta)


def eigh_loewner(features: Tensor, eta: int) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """MaxExp of the eigenvalues with :class:`EighLoewner`, as in libraries for SPD matrices."""
    result: Tensor = EighLoewner.apply(divided_moment(features), eta)
    return result


def newton_schulz(features: Tensor, iterations: int) -> Tensor:  # shape: (B, C, N) -> (B, C, C)
    """The square root of M by :class:`NewtonSchulzRoot`."""
    result: Tensor = NewtonSchulzRoot.apply(form_moment(features), iterations)
    return result


class EighLoewner(torch.autograd.Function):
    r"""A function of eigenvalues with the Loewner matrix in its backward.

    .. math:: \frac{\partial L}{\partial P} = U \bigl((U^T \operatorname{sym}(G) U) \odot K\bigr) U^T, \qquad
              K_{ij} = \frac{g(\lambda_i) - g(\lambda_j)}{\lambda_i - \lambda_j}

    or the derivative for two eigenvalues closer than a tolerance.
    """

    TIE = 1e-5
    """Below this gap, relative to the largest eigenvalue, the quotient has no digits left in float32."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, eta: int) -> Tensor:
        """Save eigenvalues and vectors."""
        eigenvalues, vectors = torch.linalg.eigh(matrix)
        ctx.save_for_backward(eigenvalues, vectors)
        ctx.eta = eta
        return (vectors * (1 - (1 - eigenvalues) ** eta).unsqueeze(-2)) @ vectors.mT

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Compute the gradient with four products."""
        eigenvalues, vectors = ctx.saved_tensors
        eta = ctx.eta
        values = 1 - (1 - eigenvalues) ** eta
        gap = eigenvalues.unsqueeze(-1) - eigenvalues.unsqueeze(-2)
        middle = (eigenvalues.unsqueeze(-1) + eigenvalues.unsqueeze(-2)) / 2
        tie = gap.abs() <= EighLoewner.TIE * eigenvalues.abs().amax(-1)[..., None, None]
        quotient = (values.unsqueeze(-1) - values.unsqueeze(-2)) / torch.where(tie, 1.0, gap)
        loewner = torch.where(tie, eta * (1 - middle) ** (eta - 1), quotient)
        symmetric = (grads[0] + grads[0].mT) / 2
        return vectors @ (loewner * (vectors.mT @ symmetric @ vectors)) @ vectors.mT, None


class NewtonSchulzRoot(torch.autograd.Function):
    r"""The iteration of iSQRT-COV (Li et al., CVPR 2018), with division by the trace.

    .. math:: Y_0 = M/\operatorname{tr} M,\ Z_0 = I, \qquad Y_k = \tfrac12 Y_{k-1}(3I - Z_{k-1}Y_{k-1}), \qquad
              Z_k = \tfrac12 (3I - Z_{k-1}Y_{k-1}) Z_{k-1}, \qquad C = \sqrt{\operatorname{tr} M}\, Y_K

    The backward is that of their paper, product by product; every Y and Z is saved.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, iterations: int) -> Tensor:
        """Iterate, with three products an iteration; one in the first, two in the last."""
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        trace = matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]
        divided = matrix / trace
        step = (3 * identity - divided) / 2
        y, z = divided @ step, step
        kept = []
        for _ in range(iterations - 1):
            kept += [y, z]
            step = (3 * identity - z @ y) / 2
            y = y @ step
            if len(kept) < 2 * (iterations - 1):  # the last Z is not used
                z = step @ z
        ctx.save_for_backward(matrix, trace, divided, y, *kept)
        return y * trace.sqrt()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Run backwards, with ten products an iteration; six in the last, two in the first."""
        matrix, trace, divided, root, *kept = ctx.saved_tensors
        identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        grad = (grads[0] + grads[0].mT) / 2
        grad_y, grad_z = grad * trace.sqrt(), None
        while kept:
            z, y = kept.pop(), kept.pop()
            yz, zy = 3 * identity - y @ z, z @ y
            before_y = grad_y @ yz - zy @ grad_y
            before_z = -(y @ grad_y @ y)
            if grad_z is not None:
                before_y = before_y - z @ grad_z @ z
                before_z = before_z + yz @ grad_z - grad_z @ zy
            grad_y, grad_z = before_y / 2, before_z / 2
        grad_divided = grad_y @ (3 * identity - divided) - divided @ grad_y
        if grad_z is not None:
            grad_divided = grad_divided - grad_z
        grad_divided = grad_divided / 2
        grad_trace = (grad * root).sum((-2, -1), keepdim=True) / (2 * trace.sqrt()) - (grad_divided * matrix).sum(
            (-2, -1), keepdim=True
        ) / trace.square()
        grad_matrix = grad_divided / trace + grad_trace * identity
        return (grad_matrix + grad_matrix.mT) / 2, None
