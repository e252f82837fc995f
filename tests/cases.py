"""The curves and matrices of the batteries, each curve with its reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import powerpool as pp
from tests import oracles
from tests.oracles import Reference


@dataclass(frozen=True)
class CurveCase:
    name: str
    make: Callable[[], pp.Curve]
    reference: Reference

    def __str__(self) -> str:
        return self.name


CURVES = [
    CurveCase("gamma-0.5", lambda: pp.Gamma(0.5), oracles.gamma(0.5)),
    CurveCase("gamma-1", lambda: pp.Gamma(1), oracles.gamma(1)),
    CurveCase("gamma-3", lambda: pp.Gamma(3), oracles.gamma(3)),
    CurveCase("maxexp-1", lambda: pp.MaxExp(1), oracles.maxexp(1)),
    CurveCase("maxexp-7", lambda: pp.MaxExp(7), oracles.maxexp(7)),
    CurveCase("maxexp-50", lambda: pp.MaxExp(50), oracles.maxexp(50)),
    CurveCase("maxexp-2.5", lambda: pp.MaxExp(2.5), oracles.maxexp(2.5)),
    CurveCase("signed_maxexp-20", lambda: pp.SignedMaxExp(20), oracles.signed_maxexp(20)),
    CurveCase("asinhe-10", lambda: pp.AsinhE(10.0), oracles.asinhe(10.0)),
    CurveCase("sigme-50", lambda: pp.SigmE(50.0), oracles.sigme(50.0)),
    CurveCase("sigme-5-raw", lambda: pp.SigmE(5.0, trace_normalize=False), oracles.sigme(5.0, False)),
    CurveCase("hdp-0.1", lambda: pp.HDP(0.1), oracles.hdp(0.1)),
    CurveCase("fahdp-0.05-ceil", lambda: pp.FAHDP(0.05), oracles.fahdp(0.05, "ceil")),
    CurveCase("fahdp-0.3-identity", lambda: pp.FAHDP(0.3, "identity"), oracles.fahdp(0.3, "identity")),
    CurveCase("fahdp-2.3-ceil", lambda: pp.FAHDP(2.3), oracles.fahdp(2.3, "ceil")),
]


PATHS: dict[str, dict[str, Any]] = {
    "plain": {"curve": None},
    "elementwise": {"curve": pp.SigmE(5.0), "mode": "elementwise"},
    "elementwise-raw": {"curve": pp.AsinhE(3.0), "mode": "elementwise"},
    "eigen": {"curve": pp.HDP(0.1), "solver": "eigen"},
    "eigen-raw": {"curve": pp.Gamma(0.5), "solver": "eigen"},
    "squaring": {"curve": pp.MaxExp(7), "solver": "squaring"},
    "newton_schulz": {"curve": pp.Gamma(0.5), "solver": "newton_schulz"},
    "gram": {"curve": pp.MaxExp(7), "solver": "gram"},
    "gram-eigh": {"curve": pp.SigmE(5.0), "solver": "gram"},
    "gram-raw": {"curve": pp.Gamma(0.8), "solver": "gram"},
}
"""Arguments of ``second_order_pool`` that lead through every implementation."""


def exact_solvers(curve: pp.Curve) -> list[str]:
    """The exact solvers of a matrix that can apply the curve."""
    squaring = pp.solvers.resolve("squaring")
    return ["eigen"] if squaring.refusal(curve) else ["eigen", "squaring"]


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _orthogonal(size: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(size, size, generator=_generator(seed), dtype=torch.float64))[0]


def _with_spectrum(values: list[float], seed: int = 0) -> Tensor:
    vectors = _orthogonal(len(values), seed)
    matrix = (vectors * torch.tensor(values, dtype=torch.float64)) @ vectors.mT
    return (matrix + matrix.mT) / 2


def _features(channels: int, locations: int, seed: int = 0) -> Tensor:
    return torch.rand(channels, locations, generator=_generator(seed), dtype=torch.float64)


# Features (C, N) with few digits, so that both precisions have the same input; with N a power of 2 the moment has few
# digits as well, and is rank-deficient exactly, not up to round-off.
FEATURES: dict[str, Tensor] = {
    "random": _features(5, 9).mul(64).round() / 64,
    "rank-deficient": _features(6, 4).mul(64).round() / 64,
    "one-location": _features(4, 1).mul(64).round() / 64,
    "one-channel": _features(1, 5).mul(64).round() / 64,
    "one-by-one": torch.tensor([[0.75]], dtype=torch.float64),
    "orthogonal": 2 * torch.eye(4, dtype=torch.float64),
    "twins": torch.cat([_features(5, 4), _features(5, 4)], dim=-1).mul(64).round() / 64,
    "zero": torch.zeros(4, 3, dtype=torch.float64),
    "tiny": (_features(4, 8).mul(64).round() / 64) * 2.0**-20,
    "huge": (_features(4, 8).mul(64).round() / 64) * 2.0**20,
}

# Symmetric positive semi-definite (C, C).
MATRICES: dict[str, Tensor] = {
    "random": _with_spectrum([0.1, 0.4, 0.9, 1.7, 3.0]),
    "repeated": _with_spectrum([0.5, 0.5, 0.5, 2.0, 2.0], seed=1),
    "near-ties": _with_spectrum([0.5, 0.5 + 1e-9, 0.5 + 2e-9, 2.0, 2.0 + 1e-12], seed=2),
    "identity": torch.eye(4, dtype=torch.float64),
    "one-by-one": torch.tensor([[0.7]], dtype=torch.float64),
}
