"""Solvers apply a curve to a spectrum; one file per solver, and the table that chooses among them."""

from __future__ import annotations

from powerpool.errors import ArgumentError, DoubleBackwardError, require_choice
from powerpool.solvers.base import FeatureSolver, MatrixSolver, Solver
from powerpool.solvers.eigen import Eigen
from powerpool.solvers.gram import Gram, GramFactor
from powerpool.solvers.jitter import Jitter
from powerpool.solvers.minimax import Minimax
from powerpool.solvers.newton_schulz import NewtonSchulz
from powerpool.solvers.select import SolverChoice, select_solver
from powerpool.solvers.squaring import Squaring

SOLVERS: dict[str, type[Solver]] = {
    solver.name: solver for solver in (Eigen, Squaring, Gram, NewtonSchulz, Minimax, Jitter)
}

__all__ = [
    "SOLVERS",
    "DoubleBackwardError",
    "Eigen",
    "FeatureSolver",
    "Gram",
    "GramFactor",
    "Jitter",
    "MatrixSolver",
    "Minimax",
    "NewtonSchulz",
    "Solver",
    "SolverChoice",
    "Squaring",
    "resolve",
    "select_solver",
]


def resolve(solver: str | Solver) -> Solver:
    """Return the solver of that name with its defaults; a solver is returned unchanged.

    Example:
        >>> from powerpool import solvers
        >>> solvers.resolve("newton_schulz")
        NewtonSchulz(iterations=15)
    """
    if isinstance(solver, Solver):
        return solver
    require_choice(solver, ("auto", *SOLVERS), "solver")
    if solver == "auto":
        raise ArgumentError("'auto' depends on the curve and the sizes: call select_solver to see what it chooses.")
    return SOLVERS[solver]()
