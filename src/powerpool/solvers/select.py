"""The table behind ``solver="auto"``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from powerpool import curves
from powerpool.curves.base import Curve
from powerpool.errors import ArgumentError

# Ratios of locations to channels below which the Gram form is chosen: the ones with the smallest worst-case loss on the
# measured table in results/bench/solvers.json, and the one at which floating-point operations are equal.
GRAM_BELOW_SQUARING = 0.8
GRAM_BELOW_SQUARING_SMALL = 0.35
GRAM_BELOW_SQUARING_BY_COUNT = 0.8
GRAM_BELOW_EIGEN = 0.8
SMALL = 32
"""Below this number of channels the number of calls dominates, not the size of the matrices."""


@dataclass(frozen=True)
class SolverChoice:
    """The name of a solver and why it was chosen."""

    name: str
    reason: str


def select_solver(
    curve: Curve | str,
    channels: int,
    locations: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> SolverChoice:
    """Choose the solver for ``solver="auto"``: the first row that applies.

    ====  ==========================================================================  =============
    row   condition                                                                   solver
    ====  ==========================================================================  =============
    1     integer power with a Python number, locations < 0.8 * channels              ``gram``
          (0.35 below 32 channels)
    2     integer power with a Python number                                          ``squaring``
    3     locations < 0.8 * channels                                                  ``gram``
    4     locations < channels, and no division by the trace                          ``gram``
    5     otherwise                                                                   ``eigen``
    ====  ==========================================================================  =============

    Only exact solvers are chosen. ``locations`` is ``None`` if only a matrix is given: rows 2 and 5.

    The ratios are measured on the CPU, forward and backward, for 16 to 512 channels: on the stored table of
    ``powerpool bench solvers`` no choice takes more than 1.5 times the best. On other devices operation counts decide:
    floating-point operations in products for row 1, and every N < C in row 3, because a batched eigendecomposition
    dominates on CUDA and the smaller one is faster. Row 4 is for accuracy: a curve that is steep at 0, such as AsinhE
    of large features, amplifies round-off in the null space of M, and K has none. ``dtype`` is reserved for rows that
    depend on it.

    Example:
        >>> import powerpool as pp
        >>> pp.select_solver(pp.MaxExp(eta=50), channels=512, locations=49).name
        'gram'
        >>> pp.select_solver(pp.MaxExp(eta=50), channels=64, locations=196).name
        'squaring'
        >>> pp.select_solver(pp.HDP(t=0.01), channels=64).name
        'eigen'
    """
    if not isinstance(curve, Curve):
        curve = curves.resolve(curve)
    if channels < 1 or (locations is not None and locations < 1):
        raise ArgumentError(f"select_solver needs channels, locations >= 1 (got {channels} and {locations}).")
    if torch.device(device).type != "cpu":
        below_squaring, below_eigen = GRAM_BELOW_SQUARING_BY_COUNT, 1.0
    else:
        below_squaring = GRAM_BELOW_SQUARING if channels >= SMALL else GRAM_BELOW_SQUARING_SMALL
        below_eigen = GRAM_BELOW_EIGEN
    power = curve.integer_power()
    if power is not None:
        if locations is not None and locations < below_squaring * channels:
            return SolverChoice("gram", _few(locations, below_squaring, channels) + "the small K, by products")
        return SolverChoice("squaring", f"integer power {power.exponent}: products only, no eigenvalues")
    if locations is not None and locations < below_eigen * channels:
        return SolverChoice("gram", _few(locations, below_eigen, channels) + "the small K, by its eigenvalues")
    if locations is not None and locations < channels and not curve.trace_normalize:
        return SolverChoice(
            "gram", f"{locations} locations < {channels} channels: K has no null space for a steep curve"
        )
    why = "its parameter is a tensor" if curve.is_learnable else "the curve is not an integer power"
    return SolverChoice("eigen", f"{why}: eigenvalues of the {channels} x {channels} matrix")


def _few(locations: int, ratio: float, channels: int) -> str:
    return f"{locations} locations < {ratio:g} * {channels} channels: "
