"""Relation descriptors for few-shot learning, the input of a similarity network."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from powerpool import curves, functional
from powerpool.checks import require_beta, require_floating
from powerpool.curves import Curve
from powerpool.errors import ShapeError, require_choice
from powerpool.functional import MODES, Mode
from powerpool.linalg.precision import at_least_float32
from powerpool.moments.dense import center
from powerpool.solvers import Solver

Variant = Literal["outer", "outer+L", "outer+P"]
VARIANTS = ("outer", "outer+L", "outer+P")


class RelationDescriptor(nn.Module):
    r"""Stack power-normalized second-order matrices of support and query (Eq. concat_best, concat_new).

    For J support sets :math:`\Phi_j` and a query :math:`\Phi^*`, the first channel is

    - ``"outer"``:   :math:`G\bigl(\frac1N \bar\Phi\bar\Phi^T\bigr)`, :math:`\bar\Phi` the mean of the :math:`\Phi_j`
    - ``"outer+L"``: :math:`\frac1J \sum_j G\bigl(\frac1N \Phi_j\Phi_j^T\bigr)`
    - ``"outer+P"``: :math:`G\bigl(\frac1J \sum_j \frac1N \Phi_j\Phi_j^T\bigr)`

    and the second :math:`G(\frac1N \Phi^*\Phi^{*T})`. With one support set the three are equal.

    Example:
        >>> import torch, powerpool as pp
        >>> descriptor = pp.nn.RelationDescriptor(pp.SigmE(eta=50.0))
        >>> descriptor(torch.rand(3, 5, 64, 361), torch.rand(3, 64, 361)).shape
        torch.Size([3, 2, 64, 64])
    """

    def __init__(
        self,
        curve: Curve | str | None,
        mode: Mode = "elementwise",
        variant: Variant = "outer+L",
        *,
        beta: float = 0.0,
        solver: str | Solver = "auto",
        eps: float = 1e-6,
        check: bool | None = None,
    ) -> None:
        super().__init__()
        require_choice(mode, MODES, "mode")
        require_choice(variant, VARIANTS, "variant")
        require_beta(beta)
        self.curve = None if curve is None else curves.resolve(curve)
        functional.require_pool_solver(solver, self.curve, mode)
        self.mode: Mode = mode
        self.variant: Variant = variant
        self.beta, self.solver, self.eps, self.check = beta, solver, eps, check

    def forward(
        self,
        support: Tensor,  # shape: (*, J, K, N)
        query: Tensor,  # shape: (*, K, N)
        coordinates: Tensor | None = None,  # shape: (2Z, N)
    ) -> Tensor:  # shape: (*, 2, K', K'), K' = K + 2Z
        """Return the two matrices, stacked; leading dimensions of support and query broadcast."""
        require_floating(support, "support")
        require_floating(query, "query")
        if support.ndim < 3 or query.ndim < 2 or support.shape[-2:] != query.shape[-2:]:
            raise ShapeError(
                "RelationDescriptor needs support (*, J, K, N) and query (*, K, N) with the same K and N "
                f"(got {tuple(support.shape)} and {tuple(query.shape)})."
            )
        if support.shape[-3] == 0:
            raise ShapeError(f"RelationDescriptor needs J >= 1 support sets (got shape {tuple(support.shape)}).")
        first, second = self.support_matrix(support, coordinates), self.query_matrix(query, coordinates)
        return torch.stack(torch.broadcast_tensors(first, second), dim=-3)

    def support_matrix(
        self,
        support: Tensor,  # shape: (*, J, K, N)
        coordinates: Tensor | None = None,  # shape: (2Z, N)
    ) -> Tensor:  # shape: (*, K', K')
        """Return the first channel alone, to compare it with many queries."""
        # Half precision is cast up once, before any mean, and back once.
        return self._support(at_least_float32(support), coordinates).to(support.dtype)

    def query_matrix(
        self,
        query: Tensor,  # shape: (*, K, N)
        coordinates: Tensor | None = None,  # shape: (2Z, N)
    ) -> Tensor:  # shape: (*, K', K')
        """Return the second channel alone."""
        return self._pool(at_least_float32(query), coordinates).to(query.dtype)

    def _support(self, support: Tensor, coordinates: Tensor | None) -> Tensor:
        if self.variant == "outer":
            return self._pool(support.mean(-3), coordinates)
        if self.variant == "outer+L":
            return self._pool(support, coordinates).mean(-3)
        # The mean of J moments of N locations is the moment of the J N locations, centred set by set.
        shots = support.shape[-3]
        centred = center(support, self.beta).transpose(-3, -2).flatten(-2)  # (*, K, J N)
        tiled = None if coordinates is None else coordinates.repeat(1, shots)
        return self._pool(centred, tiled, beta=0.0)

    def _pool(self, features: Tensor, coordinates: Tensor | None, beta: float | None = None) -> Tensor:
        return functional.second_order_pool(
            features,
            self.curve,
            self.mode,
            self.beta if beta is None else beta,
            coordinates,
            solver=self.solver,
            eps=self.eps,
            check=self.check,
        )

    def extra_repr(self) -> str:
        """Show the options beside the curve."""
        return f"mode={self.mode!r}, variant={self.variant!r}, beta={self.beta}, solver={self.solver!r}, eps={self.eps}"
