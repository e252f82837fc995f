"""Many channels: float32 against float64 of the same features."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import powerpool as pp
from tests.cases import exact_solvers

# Allowed error of value and gradient, relative in norm. Eigenvalues of a moment have an error of about 1e-6 of the
# largest in float32, which the slope of a square root multiplies at the small ones.
CURVES = [
    pytest.param(pp.Gamma(0.5), 2e-3, 5e-2, id="gamma-0.5"),
    pytest.param(pp.MaxExp(50), 1e-4, 1e-4, id="maxexp-50"),
    pytest.param(pp.HDP(0.01), 1e-4, 1e-4, id="hdp-0.01"),
    pytest.param(pp.AsinhE(10.0), 2e-4, 2e-4, id="asinhe-10"),
    pytest.param(pp.SigmE(50.0), 1e-4, 1e-4, id="sigme-50"),
]


def _features(channels: int, locations: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(channels, locations, generator=generator, dtype=torch.float64) + 0.5).relu()


def _run(features: Tensor, curve: pp.Curve, solver: str) -> tuple[Tensor, Tensor]:
    leaf = features.clone().requires_grad_()
    value = pp.second_order_pool(leaf, curve, solver=solver)
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.dtype)
    return value.detach(), torch.autograd.grad(value, leaf, weight)[0]


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("locations", [49, 300])
@pytest.mark.parametrize("curve, near_value, near_gradient", CURVES)
def test_float32_is_float64(curve: pp.Curve, near_value: float, near_gradient: float, locations: int) -> None:
    features = _features(192, locations)
    for solver in [*exact_solvers(curve), "gram"]:
        exact_value, exact_gradient = _run(features, curve, solver)
        value, gradient = _run(features.float(), curve, solver)
        assert _error(value, exact_value) < near_value
        assert _error(gradient, exact_gradient) < near_gradient


def test_small_eigenvalues_of_a_square_root_matter() -> None:
    """At 512 channels, dropping all eigenvalues below C ulp of the largest would cost 2 %."""
    features = _features(512, 512)
    exact, _ = _run(features, pp.Gamma(0.5), "eigen")
    for solver in ("eigen", "gram"):
        assert _error(_run(features.float(), pp.Gamma(0.5), solver)[0], exact) < 5e-3


@pytest.mark.parametrize("scale", [1.0, 1e6])
@pytest.mark.parametrize("locations", [4, 49, 60, 200])
def test_steep_curves_of_large_features(locations: int, scale: float) -> None:
    """AsinhE(10) of features of 1e6 has a slope of 1e13 at 0, which must not amplify the null space."""
    features = scale * _features(64, locations)
    curve = pp.AsinhE(10.0)
    exact = pp.second_order_pool(features, curve, solver="gram" if locations < 64 else "eigen")
    for solver in ("auto", "gram"):
        assert _error(pp.second_order_pool(features.float(), curve, solver=solver), exact) < 2e-4


@pytest.mark.parametrize("scale", [1.0, 1e6])
@pytest.mark.parametrize("make", [pp.AsinhE, lambda eta: pp.SigmE(eta, trace_normalize=False)], ids=["asinhe", "sigme"])
def test_parameter_gradient_with_more_locations_than_channels(make: Any, scale: float) -> None:
    features = scale * torch.rand(8, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    noise = torch.randn(8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def gradient(dtype: torch.dtype, solver: str) -> float:
        theta = torch.nn.Parameter(torch.tensor(10.0, dtype=dtype))
        value = pp.second_order_pool(features.to(dtype), make(theta), solver=solver)
        return torch.autograd.grad((value * (noise + noise.mT).to(dtype)).sum(), theta)[0].item()

    exact = gradient(torch.float64, "eigen")
    assert gradient(torch.float64, "gram") == pytest.approx(exact, rel=1e-6, abs=1e-8)
    assert gradient(torch.float32, "gram") == pytest.approx(exact, rel=1e-3, abs=1e-5)
