"""Second derivatives are correct or raise, for every solver."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradgradcheck

import powerpool as pp
from powerpool.solvers import DoubleBackwardError
from tests.cases import CURVES, CurveCase

INTEGER = [case for case in CURVES if case.make().integer_power() is not None]
OTHER = [case for case in CURVES if case.make().integer_power() is None]


def _matrix() -> Tensor:
    features = torch.rand(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (features @ features.mT / 6).requires_grad_()


def _features(locations: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(4, locations, generator=generator, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("case", CURVES, ids=str)
def test_elementwise_is_correct(case: CurveCase) -> None:
    assert gradgradcheck(
        lambda m: pp.elementwise(m, case.make()), (_matrix(),), fast_mode=True, check_fwd_over_rev=True
    )


@pytest.mark.parametrize("case", INTEGER, ids=str)
def test_integer_powers_are_correct(case: CurveCase) -> None:
    assert gradgradcheck(
        lambda m: pp.spectral(m, case.make(), "squaring"), (_matrix(),), fast_mode=True, check_fwd_over_rev=True
    )
    pool = lambda f: pp.second_order_pool(f, case.make(), solver="gram")  # noqa: E731
    assert gradgradcheck(pool, (_features(3),), fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.parametrize("case", CURVES, ids=str)
def test_eigenvalues_raise(case: CurveCase) -> None:
    leaf = _matrix()
    (grad,) = torch.autograd.grad(pp.spectral(leaf, case.make(), "eigen").square().sum(), leaf, create_graph=True)
    with pytest.raises(DoubleBackwardError, match="'eigen'"):
        grad.square().sum().backward()
    if case in OTHER:
        leaf = _features(3)
        value = pp.second_order_pool(leaf, case.make(), solver="gram").square().sum()
        (grad,) = torch.autograd.grad(value, leaf, create_graph=True)
        with pytest.raises(DoubleBackwardError, match="'gram'"):
            grad.square().sum().backward()


@pytest.mark.parametrize("solver", ["eigen", "gram"])
def test_a_learnable_parameter_raises(solver: str) -> None:
    eta = torch.nn.Parameter(torch.tensor(5.0, dtype=torch.float64))
    value = pp.second_order_pool(_features(3), pp.MaxExp(eta), solver=solver).square().sum()
    (grad,) = torch.autograd.grad(value, eta, create_graph=True)
    with pytest.raises(DoubleBackwardError):
        grad.backward()


def test_first_derivatives_with_create_graph_are_unchanged() -> None:
    leaf = _matrix()
    value = pp.spectral(leaf, pp.HDP(0.1), "eigen").square().sum()
    (plain,) = torch.autograd.grad(value, leaf, retain_graph=True)
    (kept,) = torch.autograd.grad(value, leaf, create_graph=True)
    torch.testing.assert_close(kept, plain)


def test_torch_func_is_correct_or_raises() -> None:
    def norm_of_gradient(solver: str) -> Tensor:
        def loss(m: Tensor) -> Tensor:
            return pp.spectral(m, pp.MaxExp(7), solver).square().sum()

        return torch.func.grad(lambda m: torch.func.grad(loss)(m).square().sum())(_matrix().detach())

    identity = torch.eye(4, dtype=torch.float64)

    def plain(m: Tensor) -> Tensor:
        p = m / (m.trace() + 1e-6)
        return (identity - torch.linalg.matrix_power(identity - (p + p.mT) / 2, 7)).square().sum()

    leaf = _matrix()
    (first,) = torch.autograd.grad(plain(leaf), leaf, create_graph=True)
    (expected,) = torch.autograd.grad(first.square().sum(), leaf)
    torch.testing.assert_close(norm_of_gradient("squaring"), expected)
    with pytest.raises(DoubleBackwardError):
        norm_of_gradient("eigen")
