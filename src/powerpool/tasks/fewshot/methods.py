"""The methods of the tables, by name: how support and query pictures of an episode are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

from powerpool.curves import HDP, AsinhE, Gamma, MaxExp, SigmE
from powerpool.nn.relation import Variant
from powerpool.tasks.methods import Method as PlainMethod
from powerpool.tasks.methods import fast_maxexp

Kind = Literal["relation", "prototype", "similarity", "nearest-mean"]


@dataclass(frozen=True)
class Method(PlainMethod[Any]):
    """How an episode becomes one score for each query and class, given a ``ModelConfig``.

    - ``relation``: Relation Net, which compares maps of features by a small network.
    - ``prototype``: Prototypical Net, distances to the mean of the support features.
    - ``similarity``: SoSN, which compares second-order matrices by a small network.
    - ``nearest-mean``: distances to the mean of the second-order matrices of the support pictures.
    """

    kind: Kind = "similarity"
    variant: Variant = "outer+L"
    coordinates: bool = False

    @property
    def is_second_order(self) -> bool:
        return self.kind in ("similarity", "nearest-mean")

    @property
    def is_spectral(self) -> bool:
        """Whether the curve is one of eigenvalues."""
        return self.curve is not None and self.mode == "spectral"


VARIANTS: dict[str, Variant] = {"x": "outer", "x+L": "outer+L", "x+P": "outer+P"}
"""The relation descriptors by the names of the tables, where x stands for the outer product."""

_CURVES: dict[str, Method] = {
    "": Method(("beta",)),
    "+AsinhE": Method(("gamma_prime", "beta"), lambda model: AsinhE(model.gamma_prime), "elementwise"),
    "+SigmE": Method(("eta_prime", "beta"), lambda model: SigmE(model.eta_prime), "elementwise"),
    "+MaxExp": Method(("eta",), lambda model: MaxExp(model.eta), "elementwise"),
    "+Gamma": Method(("gamma",), lambda model: Gamma(model.gamma), "elementwise"),
    "+SpecGamma": Method(("gamma", "beta"), lambda model: Gamma(model.gamma)),
    "+SpecHDP": Method(("t", "beta"), lambda model: HDP(model.t)),
    "+SpecMaxExp": Method(("eta", "beta"), lambda model: MaxExp(model.eta), solver="eigen"),
    "+SpecMaxExpF": Method(("eta", "beta"), lambda model: fast_maxexp(model.eta)),
}


def _with_coordinates(method: Method) -> Method:
    return replace(method, coordinates=True, parameters=(*method.parameters, "pivots", "sigma", "alpha"))


def _sosn(variant: Variant, coordinates: bool, method: Method) -> Method:
    own = replace(method, variant=variant)
    return _with_coordinates(own) if coordinates else own


METHODS: dict[str, Method] = {
    "RelationNet": Method(kind="relation"),
    "PrototypicalNet": Method(kind="prototype"),
    **{f"NCM(x+L){name}": replace(method, kind="nearest-mean") for name, method in _CURVES.items()},
    **{
        f"SoSN({name}){'+SC' if coordinates else ''}{curve}": _sosn(variant, coordinates, method)
        for (name, variant), coordinates, (curve, method) in product(VARIANTS.items(), (False, True), _CURVES.items())
    },
}
"""By the names of the paper's tables: "SC" is with spatial coordinates, "Spec" on the spectrum, "F" the fast form.

With one support picture x, x+L and x+P are one method. NCM(x+L), nearest class mean, is not in the paper's tables, and
neither are Gamma and MaxExp entry by entry, which know no beta: centred features give negative entries.
"""
