"""The suite ``curves``: every curve, entry by entry against the plain formula, and on the spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import powerpool as pp
from powerpool.bench import competitors, reference
from powerpool.bench.case import BenchCase
from powerpool.bench.inputs import FLOOR_ANSWERS, Inputs
from powerpool.bench.reference import Scalar
from powerpool.curves import Curve

EPS = 1e-6


@dataclass(frozen=True)
class Row:
    """A curve, its float64 formulas, and the formula of M or M/tr M as a user types it."""

    curve: Curve
    scalar: Scalar
    plain: Callable[[Tensor], Tensor]


ROWS: dict[str, Row] = {
    "Gamma(0.5)": Row(pp.Gamma(0.5), reference.gamma(0.5), lambda m: (m + EPS) ** 0.5),
    "MaxExp(50)": Row(pp.MaxExp(50), reference.maxexp(50), lambda p: 1 - (1 - p) ** 50),
    "SignedMaxExp(50)": Row(
        pp.SignedMaxExp(50), reference.signed_maxexp(50), lambda p: p.sign() * (1 - (1 - p.abs()) ** 50)
    ),
    "AsinhE(10)": Row(pp.AsinhE(10.0), reference.asinhe(10.0), lambda m: torch.asinh(10.0 * m)),
    "SigmE(50)": Row(pp.SigmE(50.0), reference.sigme(50.0), lambda p: 2 / (1 + torch.exp(-50.0 * p)) - 1),
    "HDP(0.01)": Row(pp.HDP(0.01), reference.hdp(0.01), lambda p: torch.exp(-0.01 / p)),
    "FAHDP(0.01)": Row(
        pp.FAHDP(0.01),
        reference.fahdp(0.01),
        lambda p: math.exp(-0.01) * (1 - (1 - p) ** reference.fahdp_exponent(0.01)),
    ),
}


def cases(quick: bool, device: str = "cpu") -> list[BenchCase]:
    """Every curve on one size, or on three."""
    sizes = [(8, 32, 49)] if quick else [(8, 64, 196), (8, 256, 196), (8, 512, 49)]
    return [curve_case(Inputs(*size, device), name) for size in sizes for name in ROWS]


def curve_case(inputs: Inputs, name: str) -> BenchCase:
    """One curve: element-wise by the library and by the plain formula, spectral by the library."""
    row = ROWS[name]
    entries, spectrum = f"element-wise {name}", f"spectral {name}"
    moment = competitors.divided_moment if row.curve.trace_normalize else competitors.form_moment
    contenders = [
        inputs.floor(),
        inputs.contender(
            "powerpool element-wise",
            "powerpool",
            entries,
            partial(pp.second_order_pool, curve=row.curve, mode="elementwise"),
        ),
        inputs.contender("plain torch formula", "competitor", entries, lambda x: row.plain(moment(x))),
        inputs.contender(
            "powerpool eigen", "powerpool", spectrum, partial(pp.second_order_pool, curve=row.curve, solver="eigen")
        ),
        inputs.contender("powerpool auto", "powerpool", spectrum, partial(pp.second_order_pool, curve=row.curve)),
    ]
    references = {
        FLOOR_ANSWERS: inputs.floor_reference,
        entries: lambda: reference.elementwise(inputs.features, inputs.upstream, row.scalar),
        spectrum: lambda: reference.spectral(inputs.features, inputs.upstream, row.scalar),
    }
    labels = {"curve": name}
    return BenchCase("curves", f"{name} {inputs.name}", inputs.sizes, contenders, references, labels=labels)
