"""The methods of the tables, by name: how the maps of all crops of a picture become one vector."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from powerpool.curves import HDP, AsinhE, Gamma, MaxExp, SigmE
from powerpool.solvers import NewtonSchulz
from powerpool.tasks.methods import Method as PlainMethod
from powerpool.tasks.methods import fast_maxexp

Order = Literal["head", "first", "second"]


@dataclass(frozen=True)
class Method(PlainMethod[Any]):
    """A pool, given a ``PoolConfig``; ``head`` is what the network itself has between its maps and its classifier."""

    order: Order = "second"
    coordinates: bool = False

    @property
    def is_spectral(self) -> bool:
        """Whether the curve is one of eigenvalues."""
        return self.order == "second" and self.curve is not None and self.mode == "spectral"


def _second(parameters: str = "", **fields: object) -> Method:
    return replace(Method((*parameters.split(), "beta")), **fields)  # type: ignore[arg-type]


def _with_coordinates(method: Method) -> Method:
    return replace(method, coordinates=True, parameters=(*method.parameters, "pivots", "sigma", "alpha"))


_SOP = _second()
_ASINHE = _second("gamma_prime", curve=lambda pool: AsinhE(pool.gamma_prime), mode="elementwise")
_SIGME = _second("eta_prime", curve=lambda pool: SigmE(pool.eta_prime), mode="elementwise")
_GAMMA = _second("gamma", curve=lambda pool: Gamma(pool.gamma))
_HDP = _second("t", curve=lambda pool: HDP(pool.t))
_MAXEXP = _second("eta", curve=lambda pool: MaxExp(pool.eta), solver="eigen")
_MAXEXP_F = _second("eta", curve=lambda pool: fast_maxexp(pool.eta))
_NEWTON_SCHULZ = _second("iterations", curve=lambda pool: Gamma(0.5), solver=lambda pool: NewtonSchulz(pool.iterations))

METHODS: dict[str, Method] = {
    "Baseline": Method(order="head"),
    "FOP": Method(order="first"),
    "FOP+AsinhE": Method(("gamma_prime",), lambda pool: AsinhE(pool.gamma_prime), order="first"),
    "SOP": _SOP,
    "SOP+AsinhE": _ASINHE,
    "SOP+SigmE": _SIGME,
    "SOP+NewtonSchulz": _NEWTON_SCHULZ,
    "SOP+SpecMaxExpF": _MAXEXP_F,
    "SOP+SC": _with_coordinates(_SOP),
    "SOP+SC+AsinhE": _with_coordinates(_ASINHE),
    "SOP+SC+SigmE": _with_coordinates(_SIGME),
    "SOP+SC+NewtonSchulz": _with_coordinates(_NEWTON_SCHULZ),
    "SOP+SC+SpecGamma": _with_coordinates(_GAMMA),
    "SOP+SC+SpecHDP": _with_coordinates(_HDP),
    "SOP+SC+SpecMaxExp": _with_coordinates(_MAXEXP),
    "SOP+SC+SpecMaxExpF": _with_coordinates(_MAXEXP_F),
}
"""By the names of the paper's tables: "SC" is with spatial coordinates, "Spec" on the spectrum, "F" the fast form.

Baseline is the network's own layers after the maps, FOP the average of the maps that all other methods have, too.
SOP+SC, SOP+SpecMaxExpF and the Newton-Schulz rows are not in the paper's tables of images: they tell apart what
coordinates and curves do.
"""
