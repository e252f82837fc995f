"""Every public operator as a function of its input, for tests of bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import powerpool as pp
from powerpool.errors import (
    PowerPoolError,
)

Call = Callable[..., Any]
NOT_FINITE = (torch.nan, torch.inf, -torch.inf)

# Every public entry point, by its input. A spectral one names its solver and a curve that the solver accepts.
OF_A_MATRIX: dict[str, Call] = {
    "elementwise": lambda m, **k: pp.elementwise(m, "sigme", **k),
    "elementwise-gamma": lambda m, **k: pp.elementwise(m, pp.Gamma(0.5), **k),
    "elementwise-raw-sigme": lambda m, **k: pp.elementwise(m, pp.SigmE(5.0, trace_normalize=False), **k),
    "eigen": lambda m, **k: pp.spectral(m, pp.HDP(0.1), "eigen", **k),
    "eigen-asinhe": lambda m, **k: pp.spectral(m, "asinhe", "eigen", **k),
    "squaring": lambda m, **k: pp.spectral(m, pp.MaxExp(7), "squaring", **k),
    "newton_schulz": lambda m, **k: pp.spectral(m, pp.Gamma(0.5), "newton_schulz", **k),
    "minimax": lambda m, **k: pp.spectral(m, pp.Gamma(0.5), "minimax", **k),
    "jitter": lambda m, **k: pp.spectral(m, pp.MaxExp(7), "jitter", **k),
    "ElementwisePowerNorm": lambda m, **k: pp.nn.ElementwisePowerNorm("sigme", **k)(m),
    "SpectralPowerNorm": lambda m, **k: pp.nn.SpectralPowerNorm("maxexp", **k)(m),
}
SPECTRAL = {name: call for name, call in OF_A_MATRIX.items() if not name.lower().startswith("elementwise")}
SECOND_ORDER: dict[str, Call] = {
    "plain": pp.second_order_pool,
    "elementwise": lambda f, **k: pp.second_order_pool(f, "sigme", "elementwise", **k),
    "elementwise-raw-sigme": lambda f, **k: pp.second_order_pool(
        f, pp.SigmE(5.0, trace_normalize=False), "elementwise", **k
    ),
    "eigen": lambda f, **k: pp.second_order_pool(f, pp.HDP(0.1), solver="eigen", **k),
    "squaring": lambda f, **k: pp.second_order_pool(f, pp.MaxExp(7), solver="squaring", **k),
    "gram": lambda f, **k: pp.second_order_pool(f, pp.MaxExp(7), solver="gram", **k),
    "gram-eigh": lambda f, **k: pp.second_order_pool(f, pp.SigmE(5.0), solver="gram", **k),
    "newton_schulz": lambda f, **k: pp.second_order_pool(f, pp.Gamma(0.5), solver="newton_schulz", **k),
    "minimax": lambda f, **k: pp.second_order_pool(f, pp.Gamma(0.5), solver="minimax", **k),
    "gram_factor": lambda f, **k: pp.gram_factor(f, pp.MaxExp(7), **k).dense(),
    "gram_factor-plain": lambda f, **k: pp.gram_factor(f, **k).dense(),
}
OF_FEATURES: dict[str, Call] = {"autocorrelation": pp.autocorrelation, **SECOND_ORDER}
FIRST_ORDER: dict[str, Call] = {
    "mean": pp.first_order_pool,
    "max": lambda f, **k: pp.first_order_pool(f, reduce="max", **k),
    "mean-curve": lambda f, **k: pp.first_order_pool(f, "sigme", **k),
    "max-curve": lambda f, **k: pp.first_order_pool(f, "sigme", reduce="max", **k),
}
ANY_FEATURES = {**OF_FEATURES, **FIRST_ORDER}

of_a_matrix = pytest.mark.parametrize("call", OF_A_MATRIX.values(), ids=list(OF_A_MATRIX))
of_any_features = pytest.mark.parametrize("call", ANY_FEATURES.values(), ids=list(ANY_FEATURES))
of_second_order = pytest.mark.parametrize("call", SECOND_ORDER.values(), ids=list(SECOND_ORDER))
both_operators = pytest.mark.parametrize("operator", [pp.elementwise, pp.spectral], ids=["elementwise", "spectral"])

POSITIVE_ONLY = [pp.Gamma(0.5), pp.Gamma(2), pp.MaxExp(7), pp.MaxExp(2.5), pp.HDP(0.1), pp.FAHDP(0.3), pp.FAHDP(2.3)]
NORMALIZED = [pp.MaxExp(7), pp.SignedMaxExp(7), pp.SigmE(5.0), pp.HDP(0.1), pp.FAHDP(0.3)]


def make_features(*leading: int) -> Tensor:
    return torch.rand(*leading, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def make_matrix(*leading: int) -> Tensor:
    return pp.autocorrelation(make_features(*leading))


def refused(error: type[PowerPoolError], call: Call, *arguments: Any, names: tuple[str, ...] = (), **options: Any):
    """The call raises exactly this class, and the message contains the key values."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert caught.type is error
    for name in names:
        assert name in str(caught.value)
