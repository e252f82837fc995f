r"""The spectral form from features: the precision and the scale in which a solver computes.

Two things are decided here, before a solver sees anything:

- A curve that amplifies the round-off of a float32 moment is computed in float64; see ``Curve.needs_float64``.
- Gamma is homogeneous, :math:`(s^2 M)^\gamma = s^{2\gamma} M^\gamma`, so sets that are very small or very large are
  divided by their scale s: the moment of features of 1e-30 is 0 in float32, but its square root is not.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from powerpool.curves.asinhe import AsinhE
from powerpool.curves.base import Curve
from powerpool.curves.gamma import Gamma
from powerpool.errors import NotFiniteError
from powerpool.linalg.precision import as_float64
from powerpool.linalg.trace import Terms
from powerpool.moments.dense import Sets
from powerpool.solvers.base import FeatureSolver, MatrixSolver, Solver
from powerpool.solvers.spectrum import one_parameter


def spectral_pool(sets: Sets, curve: Curve, solver: Solver, terms: Terms) -> Tensor:  # shape: (*, C, N) -> (*, C, C)
    """Apply a curve to the spectrum of the moment of each set, with residual terms."""
    if curve.needs_float64 and solver.exact:
        sets = replace(sets, values=as_float64(sets.values))
    sets, unit = split_unit(sets, curve, terms)
    if isinstance(solver, FeatureSolver):
        result = solver.apply(sets, curve, terms)
    else:
        divided = terms.divide_product(sets.values, sets.number, curve)
        value = _apply_to_moment(divided.p, curve, cast("MatrixSolver", solver), terms, sets.checked)
        result = terms.add_residual(value, divided)
    return result if unit is None else unit * result


def spectral_moment(
    moment: Tensor,  # shape: (*, C, C)
    curve: Curve,
    solver: MatrixSolver,
    terms: Terms,
    checked: bool,
    *,
    is_positive: bool,
) -> Tensor:  # shape: (*, C, C)
    """Apply a curve to the spectrum of a symmetric matrix, with residual terms.

    ``is_positive`` says that it is positive semi-definite by construction.
    """
    divided = terms.divide_matrix(moment, curve, checked)
    if is_positive:
        value = _apply_to_moment(divided.p, curve, solver, terms, checked)
    else:
        value = solver.apply(divided.p, curve, checked, terms.round_off)
    return terms.add_residual(value, divided)


def _apply_to_moment(p: Tensor, curve: Curve, solver: MatrixSolver, terms: Terms, checked: bool) -> Tensor:
    """Apply a curve to what is positive and symmetric by construction: only a solver that may diverge is checked.

    Round-off is no reason to refuse it. Sums of many equal products, as of the equal leaves of a star graph, round in
    one direction: for 100,000 rows in float32, entries exceed sqrt(M_ii M_jj) by up to 1e-5 of the largest.
    """
    if solver.exact:
        return solver.apply(p, curve, False, terms.round_off)
    return solver.apply(p, curve, checked, math.inf)


def split_unit(sets: Sets, curve: Curve | None, terms: Terms) -> tuple[Sets, Tensor | None]:
    """Divide extreme sets by their scale s; also return :math:`s^{2\\gamma}`, (*, 1, 1), or None if nothing changes.

    For Gamma with an infinite slope only: any other power of a moment that underflows, underflows as well. Residual
    terms are not homogeneous.
    """
    if not isinstance(curve, Gamma) or not curve.has_infinite_slope or terms.has_residual:
        return sets, None
    largest = torch.linalg.vector_norm(sets.values.detach(), torch.inf, dim=(-2, -1), keepdim=True)
    # Between these bounds squares and their products with eps are normal numbers, and the set is not touched.
    extreme = (largest > 0) & ((largest < 2.0**-40) | (largest > 2.0**40)) & (largest < torch.inf)
    if sets.checked and not bool(extreme.any()):
        return sets, None
    scale = torch.where(extreme, largest, 1.0)
    unit = torch.pow(scale, 2 * one_parameter(curve, scale))
    return replace(sets, values=sets.values / scale), unit


def require_representable(result: Tensor, curve: Curve | None, terms: Terms, given: Tensor, what: str) -> None:
    """Refuse a result that overflows its dtype; ``given`` is the argument of the user and ``what`` its name.

    Only powers above 1, the argument of AsinhE, residual terms and half precision can exceed the moment, which is
    finite. Reads values.
    """
    grows = isinstance(curve, AsinhE) or (
        isinstance(curve, Gamma) and (isinstance(curve.gamma, Tensor) or curve.gamma > 1)
    )
    if not (grows or terms.has_residual or result.dtype.itemsize < 4) or result.numel() == 0:
        return
    low, high = torch.aminmax(result.detach())
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise NotFiniteError(
            f"{what} of up to {given.detach().abs().max().item():.6g} are too large: the result overflows "
            f"{result.dtype}. Scale them down, use float64, or a smaller power."
        )
