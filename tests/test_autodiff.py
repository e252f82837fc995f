"""Forward mode: dual numbers and torch.func, over and under reverse mode. Batteries check every curve and solver."""

from __future__ import annotations

import importlib.util
import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import powerpool as pp
from powerpool import autodiff
from powerpool.errors import DoubleBackwardError
from powerpool.linalg import products
from tests.cases import PATHS
from tests.tolerances import tolerance

TWICE = ["plain", "elementwise", "elementwise-raw", "squaring", "newton_schulz", "gram"]
ONCE = sorted(set(PATHS) - set(TWICE))


def _features(*leading: int, locations: int = 6) -> Tensor:
    return torch.rand(*leading, 4, locations, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _loss(options: dict[str, Any], features: Tensor) -> Tensor:
    return pp.second_order_pool(features, **options).square().sum()


@pytest.mark.parametrize("name", PATHS)
def test_jacobian_of_forward_mode(name: str) -> None:
    call = lambda f: pp.second_order_pool(f, **PATHS[name], beta=0.5 if name == "eigen" else 0.0)  # noqa: E731
    for locations in (6,) if name == "newton_schulz" else (3, 6):  # which diverges on singular matrices
        features = _features(2, locations=locations)
        found, expected = torch.func.jacfwd(call)(features), torch.func.jacrev(call)(features)
        torch.testing.assert_close(found, expected, **tolerance(torch.float64))


@pytest.mark.parametrize("name", TWICE)
def test_hessian(name: str) -> None:
    loss = lambda f: _loss(PATHS[name], f)  # noqa: E731
    # Central differences of the gradient, in the direction E.
    features, step = _features(), 1e-5
    direction = torch.randn(features.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    change = torch.func.grad(loss)(features + step * direction) - torch.func.grad(loss)(features - step * direction)
    for hessian in (torch.func.hessian(loss), torch.func.jacrev(torch.func.jacfwd(loss))):
        found = (hessian(features) * direction).sum((-2, -1))
        torch.testing.assert_close(found, change / (2 * step), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("locations", [3, 6])
def test_hessian_of_a_sum(locations: int) -> None:
    """The gradient of the result is then the same for all directions; the curve is p/e."""
    features = _features(locations=locations)
    found = torch.func.hessian(lambda f: pp.second_order_pool(f, pp.FAHDP(1.0), "elementwise").sum())(features)
    expected = torch.func.hessian(lambda f: (f @ f.mT).sum() / (f.square().sum() + locations * 1e-6) / math.e)(features)
    torch.testing.assert_close(found, expected, **tolerance(torch.float64))


@pytest.mark.parametrize("name", ONCE)
def test_second_derivatives_through_eigenvalues_raise(name: str) -> None:
    loss = lambda f: _loss(PATHS[name], f)  # noqa: E731
    for hessian in (torch.func.hessian(loss), torch.func.jacrev(torch.func.jacfwd(loss))):
        with pytest.raises(DoubleBackwardError, match=r"eigen|gram"):
            hessian(_features())
    with forward_ad.dual_level():
        leaf = _features().requires_grad_()
        with pytest.raises(DoubleBackwardError):
            torch.autograd.grad(loss(forward_ad.make_dual(leaf, torch.ones_like(leaf))), leaf)


@pytest.mark.parametrize("name", TWICE)
def test_gradient_of_dual_numbers(name: str) -> None:
    """Without create_graph, backward must not use results that forward saved without their tangents."""
    features, direction = _features(2), _features(2).flip(0)
    loss = lambda f: _loss(PATHS[name], f)  # noqa: E731
    with forward_ad.dual_level():
        leaf = features.clone().requires_grad_()
        (grad,) = torch.autograd.grad(loss(forward_ad.make_dual(leaf, direction)), leaf)
        found = forward_ad.unpack_dual(grad).tangent
    expected = torch.func.vjp(torch.func.grad(loss), features)[1](direction)[0]
    torch.testing.assert_close(found, expected, **tolerance(torch.float64))


def test_forward_mode_of_segments() -> None:
    index = torch.tensor([2, 0, 2, 2])  # one row per channel of the features above
    call = lambda x: pp.segment_autocorrelation(x, index, 3, beta=0.5)  # noqa: E731
    rows = _features()
    torch.testing.assert_close(torch.func.jacfwd(call)(rows), torch.func.jacrev(call)(rows))
    loss = lambda x: call(x).square().sum()  # noqa: E731
    expected = torch.func.jacrev(torch.func.jacrev(loss))(rows)
    torch.testing.assert_close(torch.func.hessian(loss)(rows), expected)


def test_a_clamped_parameter_has_no_tangent() -> None:
    curve, p = pp.MaxExp(torch.nn.Parameter(torch.tensor(2.0))), torch.tensor(0.5)

    def value(eta: Tensor) -> Tensor:
        return torch.func.functional_call(curve, {"eta": eta}, p)

    assert torch.func.jvp(value, (torch.tensor(0.5),), (torch.tensor(1.0),))[1] == 0
    _, tangent = torch.func.jvp(value, (torch.tensor(2.0),), (torch.tensor(1.0),))
    torch.testing.assert_close(tangent, -(0.5**2) * torch.tensor(0.5).log())


def test_what_torch_would_get_wrong_raises() -> None:
    """Forward over forward mode, whose outer derivative is 0, and Dynamo, which drops the jvp (torch 2.13)."""
    loss = lambda f: _loss(PATHS["squaring"], f)  # noqa: E731
    with pytest.raises(DoubleBackwardError, match="hessian"):
        torch.func.jacfwd(torch.func.jacfwd(loss))(_features())

    def tangent(features: Tensor) -> Tensor:
        return torch.func.jvp(loss, (features,), (features,))[1]

    torch._dynamo.reset()
    with pytest.raises(Exception, match="forward-mode"):  # dynamo wraps our error
        torch.compile(tangent, fullgraph=True, backend="eager")(_features())


def test_private_functions_of_torch_are_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are applied in a faster way if torch has what that needs, and otherwise as torch documents."""
    monkeypatch.setitem(sys.modules, "torch._functorch.utils", None)  # as if torch had moved it
    spec = importlib.util.spec_from_file_location("autodiff_without", autodiff.__file__)
    assert spec is not None
    assert spec.loader is not None
    without = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(without)
    assert without.unwrap_dead_wrappers is None
    assert autodiff.unwrap_dead_wrappers is not None
    results = []
    for module in (without, autodiff):
        features = _features(2).requires_grad_()
        value = module.call(products._SelfProduct, features, 3)
        results.append([value, *torch.autograd.grad(value.square().sum(), features)])
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_forward_mode_outside_leaves_no_trace() -> None:
    """Reverse mode after forward mode uses functions without a jvp again."""
    call = torch.compile(lambda f: _loss(PATHS["squaring"], f), fullgraph=True, backend="aot_eager")
    torch.func.jvp(lambda f: _loss(PATHS["squaring"], f), (_features(),), (_features(),))
    assert torch.isfinite(call(_features().requires_grad_()))
