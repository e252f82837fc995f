"""Power normalizations of matrices as layers."""

from __future__ import annotations

from torch import Tensor, nn

from powerpool import curves, functional, solvers
from powerpool.curves import Curve
from powerpool.solvers import Solver


class ElementwisePowerNorm(nn.Module):
    """A curve applied to every entry: :func:`powerpool.elementwise` as a layer.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.nn.ElementwisePowerNorm(pp.SigmE(eta=50.0))(torch.eye(4)).shape
        torch.Size([4, 4])
    """

    def __init__(
        self,
        curve: Curve | str,
        eps: float = 1e-6,
        check: bool | None = None,
        *,
        trace_power: float = 0.0,
        slope: float = 0.0,
    ) -> None:
        super().__init__()
        self.curve = curves.resolve(curve)
        self.eps, self.check = eps, check
        self.trace_power, self.slope = trace_power, slope

    def forward(self, matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
        """See :func:`powerpool.elementwise`."""
        return functional.elementwise(
            matrix, self.curve, self.eps, self.check, trace_power=self.trace_power, slope=self.slope
        )

    def extra_repr(self) -> str:
        """Show the options beside the curve."""
        return f"eps={self.eps}"


class SpectralPowerNorm(nn.Module):
    """A curve applied to the spectrum: :func:`powerpool.spectral` as a layer.

    Example:
        >>> import torch, powerpool as pp
        >>> pp.nn.SpectralPowerNorm(pp.Gamma(gamma=0.5), solver="newton_schulz")(4 * torch.eye(2))
        tensor([[2.0000, 0.0000],
                [0.0000, 2.0000]])
    """

    def __init__(
        self,
        curve: Curve | str,
        solver: str | Solver = "auto",
        eps: float = 1e-6,
        check: bool | None = None,
        *,
        trace_power: float = 0.0,
        slope: float = 0.0,
    ) -> None:
        super().__init__()
        self.curve = curves.resolve(curve)
        if solver != "auto":  # refuse a solver that cannot apply the curve here, not in the first batch
            functional.require_matrix_solver(solvers.resolve(solver), self.curve)
        self.solver = solver
        self.eps, self.check = eps, check
        self.trace_power, self.slope = trace_power, slope

    def forward(self, matrix: Tensor) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
        """See :func:`powerpool.spectral`."""
        return functional.spectral(
            matrix, self.curve, self.solver, self.eps, self.check, trace_power=self.trace_power, slope=self.slope
        )

    def extra_repr(self) -> str:
        """Show the options beside the curve."""
        return f"solver={self.solver!r}, eps={self.eps}"
