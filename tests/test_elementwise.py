"""Element-wise pools from features in one node, against the matrix form ``pp.elementwise(pp.autocorrelation(x))``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import powerpool as pp
from powerpool.bench.measure import peak_bytes
from powerpool.errors import DomainError
from powerpool.linalg import elementwise
from tests.cases import CURVES, CurveCase

NEAR = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Largest difference in the Frobenius norm, relative to the norm."""
SHAPES = [(6, 4), (3, 4, 9), (2, 3, 5, 5), (1, 5, 2)]
"""Not one channel: divided by its own trace it is constant, and its gradient is round-off."""

every_curve = pytest.mark.parametrize("case", CURVES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def _features(curve: pp.Curve, shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    """Of both signs if the curve accepts negative entries; some entries of the product are 0."""
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (features if curve.domain[0] < 0 else features.relu()).to(dtype).requires_grad_()


def _from_matrix(features: Tensor, curve: pp.Curve) -> Tensor:
    return pp.elementwise(pp.autocorrelation(features), curve)


def _from_features(features: Tensor, curve: pp.Curve) -> Tensor:
    return pp.second_order_pool(features, curve, "elementwise")


def _value_and_gradient(
    function: Callable[[Tensor, pp.Curve], Tensor], features: Tensor, curve: pp.Curve
) -> tuple[Tensor, Tensor]:
    value = function(features, curve)
    upstream = torch.randn(value.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)  # no symmetry
    return value.detach(), torch.autograd.grad(value, features, upstream.to(value.dtype))[0]


def _assert_near(found: Tensor, expected: Tensor, near: float) -> None:
    assert found.shape == expected.shape
    difference = torch.linalg.vector_norm(found.double() - expected.double())
    assert difference <= near * torch.linalg.vector_norm(expected.double()) + torch.finfo(torch.float32).tiny


def _is_one_node(value: Tensor) -> bool:
    node = value.grad_fn
    if node is not None and "View" in node.name():
        node = node.next_functions[0][0]
    return node is not None and "CurveOfProduct" in node.name()


@every_dtype
@every_curve
def test_value_and_gradient_are_those_of_the_matrix(case: CurveCase, dtype: torch.dtype) -> None:
    curve = case.make()
    for shape in SHAPES:
        features = _features(curve, shape, dtype)
        assert _is_one_node(_from_features(features, curve))
        found = _value_and_gradient(_from_features, features, curve)
        expected = _value_and_gradient(_from_matrix, features, curve)
        for one, other in zip(found, expected, strict=True):
            _assert_near(one, other, NEAR[dtype])
        with torch.no_grad():
            torch.testing.assert_close(_from_features(features, curve), found[0], rtol=0, atol=0)


@pytest.mark.parametrize("entries", [1, 12, 70])  # one row, two rows or one matrix, and two matrices at a time
@every_curve
def test_blocks_change_nothing(case: CurveCase, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = case.make()
    features = _features(curve, (5, 5, 3))
    expected = _value_and_gradient(_from_features, features, curve)
    monkeypatch.setattr(elementwise, "_BLOCK", entries)
    for found, other in zip(_value_and_gradient(_from_features, features, curve), expected, strict=True):
        torch.testing.assert_close(found, other)


@every_curve
def test_second_derivative_is_that_of_the_matrix(case: CurveCase) -> None:
    """gradgradcheck is in test_functional; it would not see a total that is wrongly held constant."""
    curve = case.make()
    features = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    results = []
    for function in (_from_features, _from_matrix):
        value = function(features, curve)
        (gradient,) = torch.autograd.grad(value, features, torch.ones_like(value), create_graph=True)
        results.append(torch.autograd.grad(gradient.square().sum(), features)[0])
    _assert_near(results[0], results[1], 1e-11)


@pytest.mark.parametrize("scale", [1e-19, 1e-9, 1e9, 1e18])
@every_curve
def test_scales_of_float32(case: CurveCase, scale: float) -> None:
    curve = case.make()
    if isinstance(curve, pp.Gamma) and curve.gamma == 3:
        pytest.skip("the cube of 1e36 overflows")
    features = (_features(curve, (2, 6, 4), torch.float32).detach() * scale).requires_grad_()
    exact = features.detach().double().requires_grad_()
    found = _value_and_gradient(_from_features, features, curve)
    expected = _value_and_gradient(_from_matrix, exact, curve)
    for one, other in zip(found, expected, strict=True):
        assert torch.isfinite(one).all()
        _assert_near(one, other, 1e-5)


@every_curve
def test_zero_features(case: CurveCase) -> None:
    curve = case.make()
    for eps in (0.0, 1e-6):
        features = torch.zeros(2, 3, 4, requires_grad=True)
        value = pp.second_order_pool(features, curve, "elementwise", eps=eps)
        value.sum().backward()
        torch.testing.assert_close(value, pp.elementwise(torch.zeros(2, 3, 3), curve, eps=eps))
        assert (features.grad == 0).all()


def test_gamma_without_eps_has_no_gradient_at_zero_by_convention() -> None:
    features = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    pp.second_order_pool(features, pp.Gamma(0.5), "elementwise", eps=0.0).sum().backward()
    # sqrt(x^2/2) on the diagonal, and entries of exactly 0 elsewhere.
    torch.testing.assert_close(features.grad, torch.eye(2, dtype=torch.float64) * 0.5**0.5)


@pytest.mark.parametrize("name", ["gamma", "maxexp", "hdp", "fahdp"])
def test_negative_entries_are_refused_or_nan(name: str) -> None:
    features = torch.rand(3, 4, 5)
    features[1, 0] *= -1
    with pytest.raises(DomainError, match="needs entries of the matrix"):
        pp.second_order_pool(features, name, "elementwise")
    features.requires_grad_()
    value = pp.second_order_pool(features, name, "elementwise", check=False)
    assert _is_one_node(value)
    assert value.isnan().any((-2, -1)).tolist() == [False, True, False]
    value.sum().backward()
    assert features.grad is not None
    assert features.grad.isnan().any((-2, -1)).tolist() == [False, True, False]
    torch.testing.assert_close(value[::2], pp.second_order_pool(features[::2], name, "elementwise"))
    # Two signs, but a product without negative entries.
    features = -torch.rand(4, 5)
    torch.testing.assert_close(_from_features(features, pp.curves.resolve(name)), _from_features(-features, name))


@every_curve
def test_bad_sets_are_nan_without_checks(case: CurveCase) -> None:
    curve = case.make()
    features = _features(curve, (3, 4, 5), torch.float32).detach()
    features[1, 2, 3] = torch.inf
    features.requires_grad_()
    value = pp.second_order_pool(features, curve, "elementwise", check=False)
    value.sum().backward()
    for found in (value, features.grad):
        assert found is not None
        assert found[1].isnan().all()
        assert torch.isfinite(found[::2]).all()


def test_gradients_of_a_batch_of_directions() -> None:
    features = torch.rand(4, 6, requires_grad=True)
    value = _from_features(features, pp.MaxExp(7))
    directions = torch.randn(3, 4, 4)
    (found,) = torch.autograd.grad(value, features, directions, retain_graph=True, is_grads_batched=True)
    expected = [torch.autograd.grad(value, features, one, retain_graph=True)[0] for one in directions]
    torch.testing.assert_close(found, torch.stack(expected))


def test_a_tensor_parameter_and_residual_terms_use_the_matrix_form() -> None:
    features = torch.rand(4, 6, requires_grad=True)
    assert not _is_one_node(_from_features(features, pp.MaxExp(nn.Parameter(torch.tensor(7.0)))))
    assert not _is_one_node(pp.second_order_pool(features, pp.MaxExp(7), "elementwise", slope=0.1))


@pytest.mark.parametrize("name", sorted(pp.curves.CURVES))
def test_memory_is_at_most_two_matrices_above_the_moment(name: str) -> None:
    features = torch.rand(1, 1024, 8, requires_grad=True)
    upstream = torch.rand(1, 1024, 1024)
    curve = pp.curves.resolve(name)

    def step() -> Tensor:
        return torch.autograd.grad(_from_features(features, curve), features, upstream)[0]

    step()
    assert peak_bytes(step) <= 4 * (3 * upstream.numel() + 8 * features.numel())


def test_results_can_be_changed_in_place() -> None:
    features = torch.rand(3, 4, 6, requires_grad=True)
    result = _from_features(features, pp.MaxExp(5))
    result.mul_(2).sum().backward()
    assert features.grad is not None
    doubled = torch.autograd.grad(2 * _from_features(features, pp.MaxExp(5)).sum(), features)[0]
    torch.testing.assert_close(features.grad, doubled)


def test_a_subclass_with_another_formula_is_used() -> None:
    class Halved(pp.MaxExp):
        def _value(self, p: Tensor, theta: float | Tensor) -> Tensor:
            return super()._value(p, theta) / 2

        def _derivative(self, p: Tensor, theta: float | Tensor) -> Tensor:
            return super()._derivative(p, theta) / 2

    features = torch.rand(4, 6, dtype=torch.float64, requires_grad=True)
    own, whole = _from_features(features, Halved(5)), _from_features(features, pp.MaxExp(5))
    torch.testing.assert_close(own, whole / 2)
    for _ in range(2):  # the same gradient twice: nothing that is kept is overwritten
        halved = torch.autograd.grad(own.sum(), features, retain_graph=True)[0]
        torch.testing.assert_close(halved, torch.autograd.grad(whole.sum(), features, retain_graph=True)[0] / 2)


@every_curve
def test_without_gradient_the_value_is_the_same(case: CurveCase) -> None:
    features = _features(case.make(), (3, 4, 9))
    assert torch.equal(_from_features(features.detach(), case.make()), _from_features(features, case.make()))


def test_without_gradient_there_is_no_slope() -> None:
    class Flat(pp.MaxExp):
        def _derivative(self, p: Tensor, theta: float | Tensor) -> Tensor:
            raise AssertionError("the slope is not needed")

    features = torch.rand(4, 6)
    torch.testing.assert_close(_from_features(features, Flat(5)), _from_features(features, pp.MaxExp(5)))
    with pytest.raises(AssertionError, match="slope"):
        _from_features(features.requires_grad_(), Flat(5))


@pytest.mark.parametrize("eta", [40.0, 70.0, 140.0])  # at 1/4, the entries of the matrix below
def test_the_slope_of_sigme_does_not_vanish_where_its_value_is_one(eta: float) -> None:
    features = torch.eye(4).requires_grad_()
    expected = features.detach().double().requires_grad_()
    curve = pp.SigmE(eta)
    upstream = torch.arange(16.0).reshape(4, 4)
    found = torch.autograd.grad(_from_features(features, curve), features, upstream)[0]
    exact = torch.autograd.grad(_from_features(expected, curve), expected, upstream.double())[0]
    assert found.diagonal().abs().max() > 0
    torch.testing.assert_close(found.double(), exact, rtol=1e-4, atol=0)


def _vector(features: Tensor, curve: pp.Curve, check: bool | None = None) -> Tensor:
    pool = pp.nn.SecondOrderPool1d(features.shape[-2], curve, mode="elementwise", check=check)
    return pool(features.mT)


def _vector_of_matrix(features: Tensor, curve: pp.Curve) -> Tensor:
    return pp.to_vector(_from_matrix(features, curve))


@pytest.mark.parametrize("entries", [2**20, 30])  # 30: one matrix at a time
@every_curve
def test_the_vector_is_that_of_the_matrix(case: CurveCase, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = case.make()
    monkeypatch.setattr(elementwise, "_BLOCK", entries)
    for shape in SHAPES:
        features = _features(curve, shape)
        assert _is_one_node(_vector(features, curve))
        found = _value_and_gradient(_vector, features, curve)
        expected = _value_and_gradient(_vector_of_matrix, features, curve)
        for one, other in zip(found, expected, strict=True):
            _assert_near(one, other, 1e-12)


@every_curve
def test_the_second_derivative_of_the_vector_is_that_of_the_matrix(case: CurveCase) -> None:
    curve = case.make()
    features = torch.rand(2, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    results = []
    for function in (_vector, _vector_of_matrix):
        value = function(features, curve)
        (gradient,) = torch.autograd.grad(value, features, torch.ones_like(value), create_graph=True)
        results.append(torch.autograd.grad(gradient.square().sum(), features)[0])
    _assert_near(results[0], results[1], 1e-11)


def test_the_vector_of_bad_sets_and_of_a_batch_of_directions() -> None:
    features = torch.rand(3, 4, 5)
    features[1, 0] *= -1
    value = _vector(features, pp.MaxExp(5), check=False)
    assert value.isnan().any(-1).tolist() == [False, True, False]
    features = torch.rand(4, 6, requires_grad=True)
    value = _vector(features, pp.MaxExp(7))
    directions = torch.randn(3, 10)
    (found,) = torch.autograd.grad(value, features, directions, retain_graph=True, is_grads_batched=True)
    expected = [torch.autograd.grad(value, features, one, retain_graph=True)[0] for one in directions]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_the_vector_is_traced() -> None:
    pool = pp.nn.SecondOrderPool2d(8, pp.SigmE(50.0), mode="elementwise")
    traced = torch.jit.trace(pool, torch.rand(2, 8, 3, 3))
    maps = torch.rand(2, 8, 3, 3)
    torch.testing.assert_close(traced(maps), pool(maps))
