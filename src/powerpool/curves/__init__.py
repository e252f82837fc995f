"""Scalar power normalizations of an entry or an eigenvalue, one file per curve."""

from __future__ import annotations

import inspect
from typing import Any

from powerpool.curves.asinhe import AsinhE
from powerpool.curves.base import Curve, IntegerPower
from powerpool.curves.fahdp import FAHDP
from powerpool.curves.gamma import Gamma
from powerpool.curves.hdp import HDP
from powerpool.curves.maxexp import MaxExp
from powerpool.curves.sigme import SigmE
from powerpool.curves.signed_maxexp import SignedMaxExp
from powerpool.errors import ArgumentError, DTypeError, require_choice

CURVES: dict[str, type[Curve]] = {
    "gamma": Gamma,
    "maxexp": MaxExp,
    "signed_maxexp": SignedMaxExp,
    "asinhe": AsinhE,
    "sigme": SigmE,
    "hdp": HDP,
    "fahdp": FAHDP,
}

__all__ = [
    "CURVES",
    "FAHDP",
    "HDP",
    "AsinhE",
    "Curve",
    "Gamma",
    "IntegerPower",
    "MaxExp",
    "SigmE",
    "SignedMaxExp",
    "resolve",
]


def resolve(curve: str | Curve, **options: Any) -> Curve:
    """Build the curve of that name with ``options``; an existing curve is returned unchanged.

    Names are the keys of :data:`CURVES`; case, ``-`` and ``_`` are ignored.

    Example:
        >>> from powerpool import curves
        >>> curves.resolve("MaxExp", eta=20)
        MaxExp(eta=20)
        >>> curves.resolve("maxepx")
        Traceback (most recent call last):
        ...
        powerpool.errors.UnknownNameError: Unknown curve 'maxepx': choose one of 'gamma', 'maxexp', 'signed_maxexp', \
'asinhe', 'sigme', 'hdp', 'fahdp'.
    """
    if isinstance(curve, Curve):
        if options:
            raise ArgumentError(f"Options {sorted(options)} need the name of a curve (got the curve {curve}).")
        return curve
    if not isinstance(curve, str):
        raise DTypeError(f"curve must be a powerpool curve or its name (got {type(curve).__name__}).")
    key = curve.lower().replace("-", "").replace("_", "")
    by_key = {name.replace("_", ""): name for name in CURVES}
    if key not in by_key:
        require_choice(curve, CURVES, "curve")
    factory: Any = CURVES[by_key[key]]
    known = list(inspect.signature(factory).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ArgumentError(f"{factory.__name__} does not take the options {unknown}: its options are {known}.")
    built: Curve = factory(**options)
    return built
