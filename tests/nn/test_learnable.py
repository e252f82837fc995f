"""Learnable parameters: registered with the pool, exact gradient, and training recovers the value of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import powerpool as pp
from powerpool.errors import ArgumentError
from tests.tolerances import tolerance

CHANNELS = 4


@dataclass(frozen=True)
class Learnable:
    name: str
    make: Callable[[pp.curves.base.Parameter], pp.Curve]
    start: float
    truth: float

    def __str__(self) -> str:
        return self.name

    def pool(self, value: float | Tensor, way: str, dtype: torch.dtype = torch.float64) -> pp.nn.SecondOrderPool2d:
        parameter = nn.Parameter(torch.as_tensor(value, dtype=dtype))
        mode, solver = ("elementwise", "auto") if way == "elementwise" else ("spectral", way)
        return pp.nn.SecondOrderPool2d(CHANNELS, self.make(parameter), mode, solver=solver)


LEARNABLE = [
    Learnable("gamma", pp.Gamma, 0.8, 0.5),
    Learnable("maxexp", pp.MaxExp, 3.0, 8.0),
    Learnable("signed_maxexp", pp.SignedMaxExp, 3.0, 8.0),
    Learnable("asinhe", pp.AsinhE, 2.0, 5.0),
    Learnable("sigme", pp.SigmE, 2.0, 5.0),
    Learnable("hdp", pp.HDP, 0.3, 0.1),
    Learnable("fahdp", lambda t: pp.FAHDP(t, "identity"), 0.3, 0.15),
    Learnable("fahdp-long", lambda t: pp.FAHDP(t, "identity"), 1.3, 2.0),
]
WAYS = ["elementwise", "eigen", "gram"]


def _maps(dtype: torch.dtype = torch.float64) -> Tensor:
    return 0.1 + torch.rand(3, CHANNELS, 3, 3, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", LEARNABLE, ids=str)
def test_value_and_gradient(case: Learnable, way: str) -> None:
    pool = case.pool(case.start, way)
    name = f"curve.{pool.curve.parameter_name}"
    assert [key for key, _ in pool.named_parameters()] == [name]
    assert list(pool.state_dict()) == [name, "curve._extra_state"]
    assert "learnable" in repr(pool)
    mode, solver = ("elementwise", "auto") if way == "elementwise" else ("spectral", way)
    fixed = pp.nn.SecondOrderPool2d(CHANNELS, case.make(case.start), mode, solver=solver)
    torch.testing.assert_close(pool(_maps()), fixed(_maps()), **tolerance(torch.float64))
    parameter = torch.tensor(case.start, dtype=torch.float64, requires_grad=True)
    call = lambda p, m: torch.func.functional_call(pool, {name: p}, m)  # noqa: E731
    assert gradcheck(call, (parameter, _maps()[:2].requires_grad_()), fast_mode=True, check_forward_ad=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", LEARNABLE, ids=str)
def test_training_finds_the_parameter(case: Learnable, way: str) -> None:
    given = _maps()
    target = case.pool(case.truth, way)(given).detach()
    pool = case.pool(case.start, way)
    (parameter,) = pool.parameters()
    optimizer = torch.optim.LBFGS(pool.parameters(), max_iter=50, line_search_fn="strong_wolfe", tolerance_change=1e-14)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (pool(given) - target).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert abs(parameter.item() - case.truth) < 1e-4 * case.truth
    assert abs(parameter.item() - case.start) > 0.1


@pytest.mark.parametrize("case", LEARNABLE, ids=str)
def test_squaring_refuses_a_tensor(case: Learnable) -> None:
    with pytest.raises(ArgumentError, match=r"tensor.*'eigen'.*'gram'"):
        case.pool(case.start, "squaring")
    with pytest.raises(ArgumentError, match="tensor"):
        pp.spectral(torch.eye(3), case.make(torch.tensor(case.start)), "squaring")


@pytest.mark.parametrize("locations, name", [(3, "gram"), (64, "eigen")])
def test_auto_chooses_a_solver_with_a_parameter_gradient(locations: int, name: str) -> None:
    curve = pp.MaxExp(nn.Parameter(torch.tensor(5.0, dtype=torch.float64)))
    assert pp.select_solver(curve, channels=8, locations=locations).name == name
    given = torch.rand(8, locations, dtype=torch.float64)
    pp.second_order_pool(given, curve).sum().backward()
    assert curve.eta.grad is not None
    assert curve.eta.grad.abs() > 0


@pytest.mark.parametrize("way", WAYS)
def test_rounded_exponent_warns_and_has_no_gradient(way: str) -> None:
    with pytest.warns(UserWarning, match="identity"):
        pool = Learnable("fahdp-ceil", lambda t: pp.FAHDP(t, "ceil"), 0.3, 0.3).pool(0.3, way)
    result = pool(_maps())
    weight = torch.rand_like(result)
    (result * weight).sum().backward()
    # Through exp(-t) only: d/dt e^-t (...) = -e^-t (...).
    expected = -(result.detach() * weight).sum()
    torch.testing.assert_close(pool.curve.t.grad, expected, **tolerance(torch.float64))


@pytest.mark.parametrize("way", WAYS)
def test_value_below_its_bound_is_clamped_and_can_return(way: str) -> None:
    pool = Learnable("maxexp", pp.MaxExp, 2.0, 2.0).pool(2.0, way)
    with torch.no_grad():
        pool.curve.eta.fill_(0.3)
    plain = pp.nn.SecondOrderPool2d(CHANNELS, pp.MaxExp(1), solver="eigen")(_maps())
    torch.testing.assert_close(pool(_maps()), plain, **tolerance(torch.float64))
    for sign, moves in [(1.0, False), (-1.0, True)]:  # descent on the trace goes below the bound, ascent returns
        pool.zero_grad()
        trace = pp.from_vector(pool(_maps())).diagonal(dim1=-2, dim2=-1).sum()
        (sign * trace).backward()
        assert (pool.curve.eta.grad != 0) == moves


def test_parameter_of_another_precision_than_the_features() -> None:
    for way in WAYS:
        pool = Learnable("sigme", pp.SigmE, 2.0, 2.0).pool(2.0, way, dtype=torch.float32)
        result = pool(_maps())
        assert result.dtype == torch.float64
        result.sum().backward()
        assert pool.curve.eta.grad.dtype == torch.float32


def test_one_parameter_per_entry_is_elementwise_only() -> None:
    eta = nn.Parameter(torch.linspace(2.0, 9.0, CHANNELS * CHANNELS, dtype=torch.float64).reshape(CHANNELS, CHANNELS))
    features = _maps().flatten(-2)
    result = pp.second_order_pool(features, pp.SigmE(eta), "elementwise")
    single = pp.second_order_pool(features, pp.SigmE(eta[1, 2].item()), "elementwise")
    torch.testing.assert_close(result[:, 1, 2], single[:, 1, 2], **tolerance(torch.float64))
    result.sum().backward()
    assert eta.grad.shape == eta.shape
    for solver in ("eigen", "gram"):
        with pytest.raises(ArgumentError, match=r"\(4, 4\)"):
            pp.second_order_pool(features, pp.SigmE(eta), solver=solver)
