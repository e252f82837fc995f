"""What the tables of all pipelines call a method: a curve, how it is applied, and the settings that it depends on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from powerpool.curves import Curve, MaxExp
from powerpool.errors import ArgumentError
from powerpool.functional import Mode
from powerpool.solvers import Solver

C = TypeVar("C")


@dataclass(frozen=True)
class Method(Generic[C]):
    """How features become one descriptor, given a configuration of the type ``C``."""

    parameters: tuple[str, ...] = ()
    """Fields of the configuration that the method depends on."""
    curve: Callable[[C], Curve] | None = None
    mode: Mode = "spectral"
    solver: Callable[[C], Solver] | str = "auto"

    def make_curve(self, config: C) -> Curve | None:
        """The curve with the parameters of the configuration."""
        return None if self.curve is None else self.curve(config)

    def make_solver(self, config: C) -> Solver | str:
        """The solver with the parameters of the configuration."""
        return self.solver if isinstance(self.solver, str) else self.solver(config)


def fast_maxexp(eta: float) -> Curve:
    """MaxExp in the form that needs products of matrices only, and therefore a whole eta."""
    curve = MaxExp(eta)
    if curve.integer_power() is None:
        raise ArgumentError(
            f"the fast form needs a whole eta (got {eta}). Take the method without the F, which has eigenvalues, "
            "for others."
        )
    return curve
