"""The readouts of the tables, by name: how the nodes of a graph become one vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from powerpool.curves import FAHDP, HDP, AsinhE, Curve, Gamma, MaxExp, SigmE
from powerpool.functional import Mode
from powerpool.solvers import NewtonSchulz, Solver
from powerpool.tasks.methods import Method as PlainMethod
from powerpool.tasks.methods import fast_maxexp

if TYPE_CHECKING:
    from powerpool.tasks.graph.config import ModelConfig


@dataclass(frozen=True)
class Method(PlainMethod["ModelConfig"]):
    """A readout.

    A first-order one has ``first_order``, the name of a PyG aggregation, and nothing else. A second-order one has a
    curve, entry by entry or on the spectrum, or none.
    """

    first_order: str | None = None
    rectified: bool = False
    """Whether negative features become 0 first, for a curve that has no value at negative entries of the matrix."""


def _second_order(
    parameter: str | None,
    curve: Callable[[ModelConfig], Curve] | None,
    mode: Mode = "spectral",
    solver: Callable[[ModelConfig], Solver] | str = "auto",
) -> Method:
    return Method((*([parameter] if parameter else []), "beta"), curve, mode, solver)


def _rectified(parameter: str, curve: Callable[[ModelConfig], Curve]) -> Method:
    return Method((parameter,), curve, "elementwise", rectified=True)


METHODS: dict[str, Method] = {
    "GIN0": Method(first_order="mean"),
    "GIN0+Sum": Method(first_order="sum"),
    "SOP": _second_order(None, None),
    "SOP+AsinhE": _second_order("asinhe_gamma", lambda model: AsinhE(model.asinhe_gamma), "elementwise"),
    "SOP+SigmE": _second_order("eta", lambda model: SigmE(model.eta), "elementwise"),
    "SOP+MaxExp": _rectified("eta", lambda model: MaxExp(model.eta)),
    "SOP+Gamma": _rectified("gamma", lambda model: Gamma(model.gamma)),
    "SOP+NewtonSchulz": _second_order(
        "iterations", lambda model: Gamma(0.5), solver=lambda model: NewtonSchulz(model.iterations)
    ),
    "SOP+SpecGamma": _second_order("gamma", lambda model: Gamma(model.gamma)),
    "SOP+SpecHDP": _second_order("t", lambda model: HDP(model.t)),
    "SOP+SpecFAHDP": _second_order("t", lambda model: FAHDP(model.t)),
    "SOP+SpecMaxExp": _second_order("eta", lambda model: MaxExp(model.eta), solver="eigen"),
    "SOP+SpecMaxExpF": _second_order("eta", lambda model: fast_maxexp(model.eta)),
}
"""By the names of the paper's tables; "Spec" is on the spectrum, "F" the fast form without eigenvalues.

GIN0+Sum, SOP+MaxExp, SOP+Gamma and SOP+SpecFAHDP are not in those tables. Batch normalization leaves negative features,
so the entries of the matrix have both signs: MaxExp and Gamma, which are for co-occurrences, take the positive part of
the features when they act entry by entry, and know no beta.
"""
