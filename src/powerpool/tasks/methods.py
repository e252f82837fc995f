"""The methods of the tables, by name, and the one vocabulary of their parameters.

Every task configures curves with the same words: ``eta`` (MaxExp), ``sigme_eta`` (SigmE), ``gamma`` (Gamma),
``asinhe_gamma`` (AsinhE), ``t`` (HDP, FAHDP), ``iterations`` (Newton-Schulz), ``beta`` (centering), and ``pivots``,
``sigma``, ``alpha`` (spatial coordinates). In names of methods "Spec" means on the spectrum, "F" the fast form without
eigenvalues, "SC" with spatial coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from powerpool.curves import FAHDP, HDP, AsinhE, Curve, Gamma, MaxExp, SigmE
from powerpool.curves.base import LARGEST_POWER
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.functional import Mode
from powerpool.moments import spatial_coordinates
from powerpool.nn.relation import Variant
from powerpool.solvers import NewtonSchulz, Solver

COORDINATES = ("pivots", "sigma", "alpha")


@dataclass(frozen=True)
class PowerNorm:
    """A curve, how it is applied, and the setting that it depends on."""

    parameter: str | None = None
    curve: Callable[[float], Curve] | None = None
    mode: Mode = "spectral"
    solver: str = "auto"
    nonnegative: bool = False
    """Whether the curve needs entries that are not negative: there is no beta, which would make some negative."""


def fast_maxexp(eta: float) -> Curve:
    """Return MaxExp for its fast form, which uses matrix products only and needs an integer eta up to 2^20."""
    curve = MaxExp(eta)
    if curve.integer_power() is None:
        raise ArgumentError(
            f"the fast form needs an integer eta up to {LARGEST_POWER:,} (got {eta:,}). Use the method "
            "without the final F."
        )
    return curve


NORMS: dict[str, PowerNorm] = {
    "": PowerNorm(),
    "AsinhE": PowerNorm("asinhe_gamma", AsinhE, "elementwise"),
    "SigmE": PowerNorm("sigme_eta", SigmE, "elementwise"),
    "MaxExp": PowerNorm("eta", MaxExp, "elementwise", nonnegative=True),
    "Gamma": PowerNorm("gamma", Gamma, "elementwise", nonnegative=True),
    "NewtonSchulz": PowerNorm("iterations", lambda _: Gamma(0.5), solver="newton_schulz"),
    "SpecGamma": PowerNorm("gamma", Gamma),
    "SpecHDP": PowerNorm("t", HDP),
    "SpecFAHDP": PowerNorm("t", FAHDP),
    "SpecMaxExp": PowerNorm("eta", MaxExp, solver="eigen"),
    "SpecMaxExpF": PowerNorm("eta", fast_maxexp),
}
PARAMETERS = (
    "eta",
    "sigme_eta",
    "gamma",
    "asinhe_gamma",
    "t",
    "iterations",
    "beta",
    *COORDINATES,
    "mean",
    "trace_power",
    "temperature",
    "padding",
)
"""All settings that only some methods depend on."""


@dataclass(frozen=True)
class Method:
    """A row of a table: a pooling or comparison of features, given the settings of a configuration."""

    norm: PowerNorm = NORMS[""]
    order: Literal["first", "second", "head"] = "second"
    """"head" is what the network itself has between its features and its classifier."""
    coordinates: bool = False

    @property
    def parameters(self) -> tuple[str, ...]:
        """The settings that the method depends on."""
        own = (self.norm.parameter,) if self.norm.parameter else ()
        centred = ("beta",) if self.order == "second" and not self.norm.nonnegative else ()
        return (*own, *centred, *(COORDINATES if self.coordinates else ()))

    @property
    def mode(self) -> Mode:
        """Whether the curve is applied to entries or to the spectrum."""
        return self.norm.mode

    @property
    def is_spectral(self) -> bool:
        """Whether a curve is applied to eigenvalues."""
        return self.order == "second" and self.norm.curve is not None and self.norm.mode == "spectral"

    def make_curve(self, settings: Any) -> Curve | None:
        """Build the curve with its parameter from the settings."""
        norm = self.norm
        return None if norm.curve is None else norm.curve(getattr(settings, str(norm.parameter)))

    def make_solver(self, settings: Any) -> Solver | str:
        """Build the solver with its parameter from the settings."""
        return NewtonSchulz(settings.iterations) if self.norm.solver == "newton_schulz" else self.norm.solver

    def require_settings(self, name: str, settings: Any, group: str) -> None:
        """Refuse settings that the method cannot be built from.

        Args:
            name: of the method.
            settings: a dataclass with the fields of the vocabulary.
            group: prefix of the fields, as in ``model.eta``.
        """
        if not 0 <= settings.beta <= 1:
            raise ArgumentError(f"{group}.beta must be from 0 to 1 (got {settings.beta}).")
        if self.order == "second" and self.norm.nonnegative and settings.beta:
            raise ArgumentError(
                f"{group}.beta must be 0 for {name} (got {settings.beta}): centred features give negative entries, "
                "where this curve is not defined. Use SigmE or AsinhE, or a spectral method."
            )
        try:
            self.make_curve(settings)
            self.make_solver(settings)
            if self.coordinates:
                # On the meta device, as settings of a hostile file may have a billion pivots.
                spatial_coordinates(2, 2, settings.pivots, settings.sigma, settings.alpha, device="meta")
        except PowerPoolError as error:
            named = ", ".join(f"{group}.{key}={getattr(settings, key)}" for key in self.parameters)
            raise ArgumentError(f"{name} cannot be built from {named}: {error}") from error


def unused_settings(method: Method, settings: Any, default: Any, group: str) -> list[str]:
    """Return the settings that were changed from their defaults although the method does not depend on them."""
    names = [name for name in PARAMETERS if hasattr(settings, name) and name not in method.parameters]
    return [f"{group}.{name}" for name in names if getattr(settings, name) != getattr(default, name)]


def _join(*parts: str) -> str:
    return "+".join(part for part in parts if part)


# ---- graphs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Readout(Method):
    """A readout of a graph network; a first-order one is the mean, sum or maximum over nodes, or Set2Set."""

    reduce: Literal["mean", "sum", "max", "set2set"] = "mean"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The settings that the method depends on."""
        return (*super().parameters, *(("mean", "trace_power") if self.order == "second" else ()))


GRAPH_METHODS: dict[str, Readout] = {
    "GIN0": Readout(order="first"),
    "GIN0+Sum": Readout(order="first", reduce="sum"),
    "GIN0+Max": Readout(order="first", reduce="max"),
    "GIN0+Set2Set": Readout(order="first", reduce="set2set"),
    **{_join("SOP", name): Readout(norm) for name, norm in NORMS.items()},
}
"""Batch normalization leaves negative features, so that entries have both signs: MaxExp and Gamma, which are defined
for co-occurrences, pool the positive part of the features when they are applied entry by entry."""
MORE_READOUTS = ("GIN0+Max", "GIN0+Set2Set")
"""Readouts that are not in the tables of the paper, and that ``reproduce`` runs only if they are named."""


# ---- images ----------------------------------------------------------------------------------------------------------

_WITHOUT_COORDINATES = ("", "AsinhE", "SigmE", "NewtonSchulz", "SpecMaxExpF")
_WITH_COORDINATES = ("", "AsinhE", "SigmE", "NewtonSchulz", "SpecGamma", "SpecHDP", "SpecMaxExp", "SpecMaxExpF")

VISION_METHODS: dict[str, Method] = {
    "Baseline": Method(order="head"),
    "FOP": Method(order="first"),
    "FOP+AsinhE": Method(NORMS["AsinhE"], order="first"),
    **{_join("SOP", name): Method(NORMS[name]) for name in _WITHOUT_COORDINATES},
    **{_join("SOP+SC", name): Method(NORMS[name], coordinates=True) for name in _WITH_COORDINATES},
    "SOP+MaxExp": Method(NORMS["MaxExp"]),
}
"""Baseline is the network's own layers after the maps; FOP is the average of the maps that all other methods pool."""
RECTIFIED_POOLS = ("SOP+MaxExp",)
"""Methods for maps that come out of a ReLU, which ``reproduce`` runs only if they are named."""


# ---- few-shot learning -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison(Method):
    """How the support and query images of an episode are compared.

    - ``relation``: Relation Net, which compares feature maps by a small network.
    - ``prototype``: Prototypical Net, distances to the mean support features.
    - ``similarity``: SoSN, which compares second-order matrices by a small network.
    - ``nearest-mean``: distances to the mean second-order matrix of the support images.
    """

    kind: Literal["relation", "prototype", "similarity", "nearest-mean"] = "similarity"
    variant: Variant = "outer+L"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The settings that the method depends on."""
        own = {"nearest-mean": ("temperature",), "similarity": ("padding",), "relation": ("padding",)}
        return (*super().parameters, *own.get(self.kind, ()))


VARIANTS: dict[str, Variant] = {"x": "outer", "x+L": "outer+L", "x+P": "outer+P"}
"""Relation descriptors by their names in the tables, where x stands for the outer product."""
_EPISODE_NORMS = (
    *("", "AsinhE", "SigmE", "MaxExp", "Gamma"),
    *("SpecGamma", "SpecHDP", "SpecFAHDP", "SpecMaxExp", "SpecMaxExpF"),
)

FEWSHOT_METHODS: dict[str, Comparison] = {
    "RelationNet": Comparison(order="first", kind="relation"),
    "PrototypicalNet": Comparison(order="first", kind="prototype"),
    **{
        _join("NCM(x+L)", "SC" if coordinates else "", name): Comparison(
            NORMS[name], coordinates=coordinates, kind="nearest-mean"
        )
        for coordinates, name in product((False, True), _EPISODE_NORMS)
    },
    **{
        _join(f"SoSN({variant})", "SC" if coordinates else "", name): Comparison(
            NORMS[name], coordinates=coordinates, variant=VARIANTS[variant]
        )
        for variant, coordinates, name in product(VARIANTS, (False, True), _EPISODE_NORMS)
    },
}
"""With one support image x, x+L and x+P are the same method."""

FEATURE_METHODS: dict[str, Method] = {
    "FOP": Method(order="first"),
    "FOP+AsinhE": Method(NORMS["AsinhE"], order="first"),
    **{
        _join("SOP", name): Method(NORMS[name])
        for name in ("", "AsinhE", "SigmE", "SpecGamma", "SpecHDP", "SpecMaxExpF")
    },
}
"""How the maps of a frozen backbone are pooled for few-shot learning without training. The last maps of many networks
have both signs, for which element-wise MaxExp and Gamma are not defined."""

METHODS: Mapping[str, Mapping[str, Method]] = {
    "graph": GRAPH_METHODS,
    "vision": VISION_METHODS,
    "fewshot": FEWSHOT_METHODS,
}
"""The methods of each task, in the order of the tables."""
