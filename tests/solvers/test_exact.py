"""Every curve with every exact solver: value and gradient, on regular and degenerate input, in both precisions."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.autograd import gradcheck

import powerpool as pp
from tests import oracles
from tests.cases import CURVES, FEATURES, MATRICES, CurveCase, exact_solvers
from tests.contracts.solver import (
    SAFETY,
    check_gradient_along,
    check_gradients,
    check_tangents,
    check_values,
    error_of_products,
    gradient_sensitivity,
    random_symmetric,
    round_off,
)

Solvers = dict[str, Callable[[Tensor], Tensor]]

every_curve = pytest.mark.parametrize("case", CURVES, ids=str)
both_precisions = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
REGULAR = ["random", "one-location", "one-channel", "one-by-one", "orthogonal", "twins"]
DEGENERATE = ["rank-deficient", "zero", "tiny", "huge"]  # an absolute step is meaningless


def _moment(features: Tensor) -> Tensor:
    return features @ features.mT / features.shape[-1]


def _of_a_matrix(case: CurveCase) -> Solvers:
    curve = case.make()
    return {name: lambda m, name=name: pp.spectral(m, curve, name) for name in exact_solvers(curve)}


def _of_features(case: CurveCase) -> Solvers:
    curve = case.make()
    return {
        name: lambda f, name=name: pp.second_order_pool(f, curve, solver=name)
        for name in [*exact_solvers(curve), "gram"]
    }


@both_precisions
@every_curve
def test_value(case: CurveCase, dtype: torch.dtype) -> None:
    for matrix in MATRICES.values():
        given = matrix.to(dtype)
        check_values(_of_a_matrix(case).values(), given.double(), given, case.reference)
    for features in FEATURES.values():
        check_values(_of_features(case).values(), _moment(features), features.to(dtype), case.reference)


@every_curve
def test_gradcheck(case: CurveCase) -> None:
    for apply in _of_a_matrix(case).values():
        for matrix in MATRICES.values():
            assert gradcheck(apply, (matrix.clone().requires_grad_(),), fast_mode=True, check_forward_ad=True)
    for apply in _of_features(case).values():
        for name in REGULAR:
            # A step away from twins raises the rank: with an infinite slope at 0 there is no derivative.
            if name != "twins" or not case.reference.infinite_slope:
                leaf = FEATURES[name].clone().requires_grad_()
                assert gradcheck(apply, (leaf,), fast_mode=True, check_forward_ad=True)


@both_precisions
@every_curve
def test_forward_mode(case: CurveCase, dtype: torch.dtype) -> None:
    """In a single channel the share of the trace cancels all but round-off: that is left to gradcheck."""
    for matrix in [*MATRICES.values(), *(_moment(FEATURES[name]) for name in DEGENERATE)]:
        if len(matrix) > 1:
            check_tangents(_of_a_matrix(case).values(), matrix.to(dtype))
    for features in FEATURES.values():
        if len(features) > 1:
            check_tangents(_of_features(case).values(), features.to(dtype))


@both_precisions
@every_curve
def test_gradient_of_a_matrix(case: CurveCase, dtype: torch.dtype) -> None:
    for matrix in [*MATRICES.values(), *(_moment(FEATURES[name]) for name in DEGENERATE)]:
        given = matrix.to(dtype)
        check_gradients(_of_a_matrix(case), given.double(), given, case.reference)


@both_precisions
@every_curve
def test_gradient_of_features(case: CurveCase, dtype: torch.dtype) -> None:
    """By the chain rule, 2 dL/dM X / N."""
    for name in [*REGULAR, *DEGENERATE]:
        features = FEATURES[name]
        channels, locations = features.shape
        moment, grad = _moment(features), 2 * random_symmetric(channels, seed=2)
        null = round_off(moment, dtype)
        outer = torch.from_numpy(oracles.spectral_gradient(moment.numpy(), grad.numpy(), case.reference, null=null))
        expected = 2 * outer @ features / locations
        sensitivity = gradient_sensitivity(moment, grad, case.reference, dtype)
        for solver, apply in _of_features(case).items():
            leaf = features.to(dtype, copy=True).requires_grad_()
            (found,) = torch.autograd.grad(apply(leaf), leaf, grad.to(dtype))
            unavoidable = sensitivity
            if solver != "eigen" and not case.reference.infinite_slope:
                unavoidable += error_of_products(moment, grad, case.reference, dtype)
            if solver == "gram":  # round-off of K, N x N
                unavoidable *= max(1.0, locations / channels)
            allowed = SAFETY * unavoidable * 2 * channels * float(features.abs().max()) / locations
            torch.testing.assert_close(found.double(), expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("name", DEGENERATE)
@every_curve
def test_gradient_along_positive_paths(case: CurveCase, name: str) -> None:
    """For rank-deficient and zero matrices, and scales of 1e-12 and 1e+12."""
    moment = _moment(FEATURES[name])
    assert torch.equal(moment.float().double(), moment)  # equal in both precisions
    curve = case.make()

    def gradient_by(solver: str, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        def gradient(grad: Tensor) -> Tensor:
            leaf = moment.to(dtype, copy=True).requires_grad_()
            return torch.autograd.grad(pp.spectral(leaf, curve, solver), leaf, grad.to(dtype))[0]

        return gradient

    # In float32 the gradient of a curve with slope ~ eta has a relative error of a few hundred ulp; the tests above
    # have the sharp bound.
    precisions = ((torch.float32, 2e-3), (torch.float64, 1e-7))
    gradients = [(gradient_by(solver, dtype), rtol) for solver in exact_solvers(curve) for dtype, rtol in precisions]
    size = moment.shape[-1]
    mix = torch.randn(size, size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    if name != "zero":
        # (I + hB) M (I + hB)^T stays positive and keeps the rank.
        step = mpmath.matrix(mix.tolist())

        def congruence(m: mpmath.matrix, h: mpf) -> mpmath.matrix:
            left = mpmath.eye(size) + h * step
            return left * m * left.T

        check_gradient_along(gradients, moment, congruence, mix @ moment + moment @ mix.mT, case.reference)
    if not curve.has_infinite_slope:
        # M + h Y Y^T stays positive and raises the rank, so the slope at 0 matters.
        added = max(float(moment.trace()), 1e-6) * mix[:, :1] @ mix[:, :1].mT
        step_up = mpmath.matrix(added.tolist())
        check_gradient_along(gradients, moment, lambda m, h: m + h * step_up, added, case.reference)
    elif name == "zero":
        for gradient, _ in gradients:
            assert (gradient(torch.eye(size, dtype=torch.float64)) == 0).all()


@every_curve
def test_solvers_agree_on_centred_batches(case: CurveCase) -> None:
    """In value and gradient, and a batch equals its sets one by one."""
    features = torch.rand(2, 3, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    curve = case.make()
    results = []
    for solver in [*exact_solvers(curve), "gram"]:
        leaf = features.clone().requires_grad_()
        value = pp.second_order_pool(leaf, curve, solver=solver, beta=0.3)
        torch.testing.assert_close(value[1, 2], pp.second_order_pool(leaf[1, 2], curve, solver=solver, beta=0.3))
        results.append((value.detach(), torch.autograd.grad(value.square().sum(), leaf)[0]))
    for result in results[1:]:
        for found, expected in zip(result, results[0], strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def test_null_space_of_gamma_is_dropped() -> None:
    """With gamma < 1 the gradient between null vectors is 0 by convention, and finite elsewhere."""
    matrix = torch.diag(torch.tensor([4.0, 0.0, 0.0], dtype=torch.float64)).requires_grad_()
    pp.spectral(matrix, pp.Gamma(0.5)).backward(torch.ones(3, 3, dtype=torch.float64))
    expected = torch.tensor([[0.25, 0.5, 0.5], [0.5, 0.0, 0.0], [0.5, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(matrix.grad, expected)


def test_the_battery_detects_an_error_of_a_tenth_of_a_percent() -> None:
    identity = torch.eye(4, dtype=torch.float64)
    with pytest.raises(AssertionError):
        check_values([lambda m: 1.001 * pp.spectral(m, pp.Gamma(0.5))], identity, identity.float(), oracles.gamma(0.5))
