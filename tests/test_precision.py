"""Half precision and autocast: computed in float32, cast back once, in forward and in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import powerpool as pp
from powerpool.errors import NotFiniteError
from tests.tolerances import tolerance

OF_FEATURES: dict[str, Callable[..., Any]] = {
    "autocorrelation": lambda f, **k: pp.autocorrelation(f, beta=0.3, **k),
    "first-order": lambda f, **k: pp.first_order_pool(f, pp.AsinhE(3.0), **k),
    "first-order-max": lambda f, **k: pp.first_order_pool(f, pp.AsinhE(3.0), reduce="max", **k),
    "plain": lambda f, **k: pp.second_order_pool(f, beta=0.3, **k),
    "elementwise": lambda f, **k: pp.second_order_pool(f, pp.SigmE(5.0), "elementwise", beta=0.3, **k),
    "eigen": lambda f, **k: pp.second_order_pool(f, pp.HDP(0.1), solver="eigen", beta=0.3, **k),
    "squaring": lambda f, **k: pp.second_order_pool(f, pp.MaxExp(50), solver="squaring", beta=0.3, **k),
    "gram": lambda f, **k: pp.second_order_pool(f, pp.MaxExp(50), solver="gram", beta=0.3, **k),
    "gram-eigh": lambda f, **k: pp.second_order_pool(f, pp.SigmE(5.0), solver="gram", beta=0.3, **k),
    "newton_schulz": lambda f, **k: pp.second_order_pool(f, pp.Gamma(0.5), solver="newton_schulz", **k),
    "minimax": lambda f, **k: pp.second_order_pool(f, pp.Gamma(0.5), solver="minimax", **k),
    "residual": lambda f, **k: pp.second_order_pool(f, pp.MaxExp(7), trace_power=0.5, slope=0.1, **k),
    "coordinates": lambda f, **k: pp.second_order_pool(
        f, pp.MaxExp(7), beta=1.0, coordinates=pp.spatial_coordinates(3, 3, pivots=2), **k
    ),
}
OF_A_MATRIX: dict[str, Callable[..., Any]] = {
    "elementwise": lambda m, **k: pp.elementwise(m, pp.SigmE(5.0), **k),
    "eigen": lambda m, **k: pp.spectral(m, pp.HDP(0.1), "eigen", **k),
    "squaring": lambda m, **k: pp.spectral(m, pp.MaxExp(50), "squaring", **k),
    "newton_schulz": lambda m, **k: pp.spectral(m, pp.Gamma(0.5), "newton_schulz", **k),
}
half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
operators = pytest.mark.parametrize(
    "call, of_a_matrix",
    [
        *(pytest.param(call, False, id=name) for name, call in OF_FEATURES.items()),
        *(pytest.param(call, True, id=f"matrix-{name}") for name, call in OF_A_MATRIX.items()),
    ],
)


def _given(of_a_matrix: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    features = torch.rand(2, 4, 9, generator=torch.Generator().manual_seed(0))
    matrix = features @ features.mT / 9
    return ((matrix + matrix.mT) / 2 if of_a_matrix else features).to(dtype)


def _run(call: Callable[..., Any], given: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    leaf = given.clone().requires_grad_()
    result = call(leaf, **options)
    weight = torch.linspace(-1, 1, result.numel()).reshape(result.shape)
    (result.float() * weight).sum().backward()
    assert leaf.grad is not None
    return result.detach(), leaf.grad


@half
@operators
def test_half_precision_is_float32_rounded_once(
    call: Callable[..., Any], of_a_matrix: bool, dtype: torch.dtype
) -> None:
    given = _given(of_a_matrix, dtype)
    for check in (None, False):
        result, gradient = _run(call, given, check=check)
        expected, expected_gradient = _run(call, given.float(), check=check)
        assert result.dtype == gradient.dtype == dtype
        torch.testing.assert_close(result, expected.to(dtype), rtol=0, atol=0)
        # The incoming gradient is rounded to half precision by the cast.
        torch.testing.assert_close(gradient, expected_gradient.to(dtype), **tolerance(dtype, slack=4))


@half
@operators
def test_autocast_does_not_matter(call: Callable[..., Any], of_a_matrix: bool, dtype: torch.dtype) -> None:
    given = _given(of_a_matrix)
    expected, expected_gradient = _run(call, given)
    half_expected, _ = _run(call, given.to(dtype))
    with torch.autocast("cpu", dtype=dtype):
        assert torch.mm(torch.eye(2), torch.eye(2)).dtype == dtype  # autocast is on
        result, gradient = _run(call, given)  # backward inside the region
        half_result, half_gradient = _run(call, given.to(dtype))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=0)
    assert half_result.dtype == half_gradient.dtype == dtype
    torch.testing.assert_close(half_result, half_expected, rtol=0, atol=0)


@operators
def test_float64_stays_float64(call: Callable[..., Any], of_a_matrix: bool) -> None:
    given = _given(of_a_matrix, torch.float64)
    result, gradient = _run(call, given)
    assert result.dtype == gradient.dtype == torch.float64
    torch.testing.assert_close(result.float(), _run(call, given.float())[0], **tolerance(torch.float32, slack=10))


@half
def test_factors_stay_in_float32(dtype: torch.dtype) -> None:
    factor = pp.gram_factor(_given(False, dtype), pp.MaxExp(7))
    assert factor.features.dtype == factor.core.dtype == torch.float32


def test_a_tensor_parameter_in_half_precision_is_computed_in_float32() -> None:
    given = _given(False, torch.bfloat16)
    for mode in ("elementwise", "spectral"):
        eta = torch.nn.Parameter(torch.tensor(5.0, dtype=torch.bfloat16))
        result = pp.second_order_pool(given, pp.SigmE(eta), mode)
        expected = pp.second_order_pool(given, pp.SigmE(5.0), mode, solver="eigen")
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
        result.float().sum().backward()
        assert eta.grad is not None
        assert eta.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("curve", [None, pp.Gamma(1)], ids=["plain", "gamma-1"])
def test_a_vector_that_overflows_half_precision_is_refused(curve: pp.Curve | None) -> None:
    pool = pp.nn.SecondOrderPool1d(4, curve, check=True)
    tokens = torch.ones(1, 8, 4, dtype=torch.float16)
    assert pool(200 * tokens).isfinite().all()
    with pytest.raises(NotFiniteError, match=r"220.*float16"):  # 220^2 is representable, its product with sqrt 2 is not
        pool(220 * tokens)
