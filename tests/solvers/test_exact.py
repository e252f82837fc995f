"""Every curve with every exact solver: value and gradient, on friendly and unfriendly input, in both precisions."""

from __future__ import annotations

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
    check_gradient,
    check_gradient_along,
    check_value,
    gradient_sensitivity,
    round_off,
)

DTYPES = [torch.float32, torch.float64]
WITH_MATRIX = [
    pytest.param(case, solver, id=f"{case}-{solver}") for case in CURVES for solver in exact_solvers(case.make())
]
WITH_FEATURES = [
    pytest.param(case, solver, id=f"{case}-{solver}")
    for case in CURVES
    for solver in [*exact_solvers(case.make()), "gram"]
]
FRIENDLY = ["random", "one-location", "one-channel", "one-by-one", "orthogonal", "twins"]
UNFRIENDLY = ["rank-deficient", "zero", "tiny", "huge"]


def _moment(features: Tensor) -> Tensor:
    return features @ features.mT / features.shape[-1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case, solver", WITH_MATRIX)
def test_value_of_a_matrix(case: CurveCase, solver: str, dtype: torch.dtype) -> None:
    for matrix in MATRICES.values():
        given = matrix.to(dtype)
        check_value(lambda m: pp.spectral(m, case.make(), solver), given.double(), given, case.reference)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case, solver", WITH_FEATURES)
def test_value_of_features(case: CurveCase, solver: str, dtype: torch.dtype) -> None:
    for features in FEATURES.values():
        check_value(
            lambda f: pp.second_order_pool(f, case.make(), solver=solver),
            _moment(features),
            features.to(dtype),
            case.reference,
        )


@pytest.mark.parametrize("case, solver", WITH_MATRIX)
def test_gradcheck_of_a_matrix(case: CurveCase, solver: str) -> None:
    for matrix in MATRICES.values():
        leaf = matrix.clone().requires_grad_()
        assert gradcheck(lambda m: pp.spectral(m, case.make(), solver), (leaf,))


@pytest.mark.parametrize("case, solver", WITH_FEATURES)
def test_gradcheck_of_features(case: CurveCase, solver: str) -> None:
    for name in FRIENDLY:
        if name == "twins" and case.reference.infinite_slope:
            continue  # a step off twins raises the rank, where the slope is infinite: no derivative to compare with
        leaf = FEATURES[name].clone().requires_grad_()
        assert gradcheck(lambda f: pp.second_order_pool(f, case.make(), solver=solver), (leaf,))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case, solver", WITH_MATRIX)
def test_gradient_of_a_matrix(case: CurveCase, solver: str, dtype: torch.dtype) -> None:
    unfriendly = {name: _moment(FEATURES[name]) for name in UNFRIENDLY}
    for matrix in [*MATRICES.values(), *unfriendly.values()]:
        given = matrix.to(dtype)
        check_gradient(
            lambda m: pp.spectral(m, case.make(), solver),
            given.double(),
            given,
            case.reference,
            by_products=solver == "squaring",
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case, solver", WITH_FEATURES)
def test_gradient_of_features(case: CurveCase, solver: str, dtype: torch.dtype) -> None:
    """By the chain rule, 2 dL/dM X / N, also where an absolute step means nothing."""
    for name in [*FRIENDLY, *UNFRIENDLY]:
        features = FEATURES[name]
        channels, locations = features.shape
        leaf = features.to(dtype, copy=True).requires_grad_()
        moment = _moment(features)
        noise = torch.randn(channels, channels, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        grad = noise + noise.mT
        null = round_off(moment, dtype)
        outer = torch.from_numpy(oracles.spectral_gradient(moment.numpy(), grad.numpy(), case.reference, null=null))
        expected = 2 * outer @ features / locations
        (found,) = torch.autograd.grad(pp.second_order_pool(leaf, case.make(), solver=solver), leaf, grad.to(dtype))
        unavoidable = gradient_sensitivity(moment, grad, case.reference, dtype)
        if solver != "eigen" and not case.reference.infinite_slope:  # products: relative to the steepest slope
            scale = float(moment.trace()) + 1e-6 if case.reference.trace_normalize else 1.0
            steepest = oracles.divided_difference(case.reference, 0.0, 0.0)
            unavoidable += null * steepest * float(grad.abs().max()) / scale
        if solver == "gram":  # round-off of K, N x N
            unavoidable *= max(1.0, locations / channels)
        allowed = SAFETY * unavoidable * 2 * channels * float(features.abs().max()) / locations
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=allowed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UNFRIENDLY)
@pytest.mark.parametrize("case, solver", WITH_MATRIX)
def test_gradient_along_positive_paths(case: CurveCase, solver: str, name: str, dtype: torch.dtype) -> None:
    """Where an absolute step means nothing: rank-deficient, zero, and scales of 1e-12 and 1e+12."""
    moment = _moment(FEATURES[name]).to(dtype).double()
    if name in ("tiny", "huge"):  # squares of 2**-20 and 2**20: about 1e-12 and 1e+12
        assert not 1e-10 < float(moment.trace()) < 1e10
    curve = case.make()

    def gradient(grad: Tensor) -> Tensor:
        leaf = moment.to(dtype, copy=True).requires_grad_()
        return torch.autograd.grad(pp.spectral(leaf, curve, solver), leaf, grad.to(dtype))[0]

    # Relative accuracy of the float32 gradient of a curve with slope ~ eta is a few hundred ulp; see the sensitivity
    # test above for the sharp bound.
    rtol = 2e-3 if dtype == torch.float32 else 1e-7
    size = moment.shape[-1]
    mix = torch.randn(size, size, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    if name != "zero":
        # (I + hB) M (I + hB)^T stays positive and keeps the rank.
        step = mpmath.matrix(mix.tolist())

        def congruence(m: mpmath.matrix, h: mpf) -> mpmath.matrix:
            left = mpmath.eye(size) + h * step
            return left * m * left.T

        check_gradient_along(gradient, moment, congruence, mix @ moment + moment @ mix.mT, case.reference, rtol)
    if not curve.has_infinite_slope:
        # M + h Y Y^T stays positive and raises the rank: the slope at 0 counts.
        scale = max(float(moment.trace()), 1e-6)
        added = scale * mix[:, :1] @ mix[:, :1].mT
        step_up = mpmath.matrix(added.tolist())
        check_gradient_along(gradient, moment, lambda m, h: m + h * step_up, added, case.reference, rtol)
    elif name == "zero":
        assert torch.equal(gradient(torch.eye(size, dtype=torch.float64)), torch.zeros(size, size, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CURVES, ids=str)
def test_solvers_agree(case: CurveCase, dtype: torch.dtype) -> None:
    """gram equals squaring equals eigen, in value and gradient."""
    features = FEATURES["random"].to(dtype)
    curve = case.make()
    answers = []
    for solver in [*exact_solvers(curve), "gram"]:
        leaf = features.clone().requires_grad_()
        value = pp.second_order_pool(leaf, curve, solver=solver, beta=0.3)
        answers.append((value.detach(), torch.autograd.grad(value.square().sum(), leaf)[0]))
    rtol = 1e-3 if dtype == torch.float32 else 1e-9
    for value, grad in answers[1:]:
        torch.testing.assert_close(value, answers[0][0], rtol=rtol, atol=rtol * float(answers[0][0].abs().max()))
        torch.testing.assert_close(grad, answers[0][1], rtol=rtol, atol=rtol * float(answers[0][1].abs().max()))


@pytest.mark.parametrize("case", CURVES, ids=str)
def test_leading_dimensions(case: CurveCase) -> None:
    """A batch is its matrices one by one."""
    features = torch.rand(2, 3, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for solver in [*exact_solvers(case.make()), "gram"]:
        batch = pp.second_order_pool(features, case.make(), solver=solver)
        single = pp.second_order_pool(features[1, 2], case.make(), solver=solver)
        torch.testing.assert_close(batch[1, 2], single)


def test_null_space_of_gamma_is_dropped() -> None:
    """The documented convention: with gamma < 1 the gradient between null vectors is 0, and finite elsewhere."""
    matrix = torch.diag(torch.tensor([4.0, 0.0, 0.0], dtype=torch.float64)).requires_grad_()
    pp.spectral(matrix, pp.Gamma(0.5)).backward(torch.ones(3, 3, dtype=torch.float64))
    expected = torch.tensor([[0.25, 0.5, 0.5], [0.5, 0.0, 0.0], [0.5, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(matrix.grad, expected)
