"""Which solver ``auto`` means: a table that can be read and asked."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from powerpool import curves
from powerpool.checks import ArgumentError
from powerpool.curves.base import Curve

GRAM_RATIO = 0.7
"""Below this ratio of locations to channels the Gram form wins."""


@dataclass(frozen=True)
class SolverChoice:
    """A solver's name and why it was chosen."""

    name: str
    reason: str


def select_solver(
    curve: Curve | str,
    channels: int,
    locations: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> SolverChoice:
    """The solver that ``solver="auto"`` takes; the first row that applies:

    ====  ==========================================================  =============
    row   condition                                                   solver
    ====  ==========================================================  =============
    1     features given, and locations < 0.7 * channels              ``gram``
    2     the curve is an integer power with a Python number          ``squaring``
    3     features given, locations < channels, no trace division     ``gram``
    4     otherwise                                                   ``eigen``
    ====  ==========================================================  =============

    Only exact solvers are chosen. ``locations`` is ``None`` where only a matrix is at hand.

    Row 2 holds on every device and dtype: on the CPU products take 0.4 to 1 times the time of eigenvalues for 32 to 512
    channels (forward and backward, eta = 50), and on CUDA batched ``eigh`` is the slow one. Row 3 is for accuracy: a
    curve that is steep at 0, such as AsinhE of large features, makes much of what round-off leaves of the null space
    of M, and K has none. ``dtype`` and ``device`` are there so that the table can grow rows that depend on them.

    Example:
        >>> import powerpool as pp
        >>> pp.select_solver(pp.MaxExp(eta=50), channels=512, locations=49).name
        'gram'
        >>> pp.select_solver(pp.MaxExp(eta=50), channels=64, locations=196).name
        'squaring'
        >>> pp.select_solver(pp.HDP(t=0.01), channels=64).name
        'eigen'
    """
    curve = curves.resolve(curve)
    if channels < 1 or (locations is not None and locations < 1):
        raise ArgumentError(f"select_solver needs channels, locations >= 1 (got {channels} and {locations}).")
    if locations is not None and locations < GRAM_RATIO * channels:
        how = "by products" if curve.integer_power() is not None else "by its eigenvalues"
        return SolverChoice("gram", f"{locations} locations < {GRAM_RATIO} * {channels} channels: the small K, {how}")
    power = curve.integer_power()
    if power is not None:
        return SolverChoice("squaring", f"integer power {power.exponent}: products only, no eigenvalues")
    if locations is not None and locations < channels and not curve.trace_normalize:
        return SolverChoice(
            "gram", f"{locations} locations < {channels} channels: K has no null space for a steep curve"
        )
    why = "its parameter is a tensor" if curve.is_learnable else "the curve is no integer power"
    return SolverChoice("eigen", f"{why}: eigenvalues of the {channels} x {channels} matrix")
