"""With checks off bad input gives NaN, never a number; where values cannot be read nothing is checked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import powerpool as pp
from powerpool.checks import values_are_checked
from powerpool.errors import (
    ArgumentError,
)
from tests.entry_points import (
    FIRST_ORDER,
    NOT_FINITE,
    OF_A_MATRIX,
    OF_FEATURES,
    POSITIVE_ONLY,
    Call,
    make_features,
    make_matrix,
    of_any_features,
    refused,
)
from tests.tolerances import tolerance

# Checks off: NaN for exactly the bad matrices, in value and gradient, and nothing else changes.


def _spoil(batch: Tensor, bad: float, symmetric: bool) -> Tensor:
    """A copy with a bad entry on the diagonal of the second matrix, and one off the diagonal of the fourth."""
    spoiled = batch.clone()
    spoiled[1, 1, 1] = spoiled[3, 0, 2] = bad
    if symmetric:
        spoiled[3, 2, 0] = bad
    return spoiled


@pytest.mark.parametrize(
    "call, given, symmetric",
    [
        *(pytest.param(call, make_matrix(5), True, id=f"matrix-{name}") for name, call in OF_A_MATRIX.items()),
        *(pytest.param(call, make_features(5), False, id=name) for name, call in OF_FEATURES.items()),
    ],
)
def test_not_finite_gives_nan_for_its_own_matrix_alone(call: Call, given: Tensor, symmetric: bool) -> None:
    for bad in NOT_FINITE:
        leaves = [leaf.requires_grad_() for leaf in (given.clone(), _spoil(given, bad, symmetric))]
        results = []
        for leaf in leaves:
            torch.manual_seed(0)  # the noise of jitter
            result = call(leaf, check=False)
            result[::2].square().sum().backward()
            results.append(result.detach())
        assert results[1][1::2].isnan().all()
        torch.testing.assert_close(results[1][::2], results[0][::2], **tolerance(torch.float64))
        torch.testing.assert_close(leaves[1].grad[::2], leaves[0].grad[::2], **tolerance(torch.float64))


@pytest.mark.parametrize("curve", pp.curves.CURVES.values(), ids=list(pp.curves.CURVES))
def test_nan_stays_nan_with_every_curve(curve: Call) -> None:
    """In the value and in the gradient, by every operator."""
    matrices = {
        "elementwise": lambda m: pp.elementwise(m, curve(), check=False),
        "eigen": lambda m: pp.spectral(m, curve(), "eigen", check=False),
    }
    features = {
        "elementwise": lambda f: pp.second_order_pool(f, curve(), "elementwise", check=False),
        "eigen": lambda f: pp.second_order_pool(f, curve(), solver="eigen", check=False),
        "gram": lambda f: pp.second_order_pool(f, curve(), solver="gram", check=False),
    }
    for bad in NOT_FINITE:
        for calls, given, symmetric in ((matrices, make_matrix(5), True), (features, make_features(5), False)):
            for call in calls.values():
                leaf = _spoil(given, bad, symmetric).requires_grad_()
                result = call(leaf)
                (grad,) = torch.autograd.grad(result.sum(), leaf)
                for found in (result, grad):
                    assert found[1::2].isnan().all()
                    assert torch.isfinite(found[::2]).all()


@pytest.mark.parametrize("call", FIRST_ORDER.values(), ids=list(FIRST_ORDER))
def test_first_order_gives_nan_for_its_own_channel_alone(call: Call) -> None:
    for bad in NOT_FINITE:
        given = make_features(2)
        expected = call(given)
        given[0, 1, 2] = given[1, 3, 0] = bad
        result = call(given, check=False)
        assert result.isnan().nonzero().tolist() == [[0, 1], [1, 3]]
        good = ~result.isnan()
        torch.testing.assert_close(result[good], expected[good], **tolerance(torch.float64))


@pytest.mark.parametrize("curve", POSITIVE_ONLY, ids=str)
def test_negative_spectrum_gives_nan_with_checks_off(curve: pp.Curve) -> None:
    vectors = torch.linalg.qr(make_features()[:3, :3])[0]
    for values in ((2.0, 3.0, -1.0), (-1.0, -2.0, -3.0)):
        bad = (vectors * torch.tensor(values, dtype=torch.float64)) @ vectors.mT
        given = torch.stack([torch.eye(3, dtype=torch.float64), (bad + bad.mT) / 2])
        result = pp.spectral(given, curve, "eigen", check=False)
        assert result[1].isnan().all()
        torch.testing.assert_close(result[0], pp.spectral(given[0], curve, "eigen"), **tolerance(torch.float64))


# When values are read.


def test_values_are_read_on_the_cpu_only() -> None:
    cpu, elsewhere = torch.ones(1), torch.ones(1, device="meta")
    assert [values_are_checked(cpu, check) for check in (True, False, None)] == [True, False, True]
    with FakeTensorMode():
        fake = torch.ones(1)
        assert [values_are_checked(fake, check) for check in (False, None)] == [False, False]
    assert [values_are_checked(elsewhere, check) for check in (False, None)] == [False, False]
    for tensor in (elsewhere, fake):
        refused(ArgumentError, values_are_checked, tensor, True, names=("check=None",))


@pytest.mark.parametrize("name", [name for name in OF_A_MATRIX if name != "jitter"])  # jitter reads eigenvalues
def test_matrices_without_values(name: str) -> None:
    call = OF_A_MATRIX[name]
    assert call(torch.empty(2, 4, 4, device="meta")).shape == (2, 4, 4)
    with FakeTensorMode():
        assert call(torch.empty(2, 4, 4)).shape == (2, 4, 4)
    refused(ArgumentError, call, torch.empty(2, 4, 4, device="meta"), check=True, names=("check=None",))


@of_any_features
def test_features_without_values(call: Call) -> None:
    assert call(torch.empty(2, 4, 6, device="meta")).shape[:2] == (2, 4)
    with FakeTensorMode():
        mask = torch.ones(6, dtype=torch.bool)
        assert call(torch.empty(2, 4, 6), mask=mask).shape[:2] == (2, 4)
    refused(ArgumentError, call, torch.empty(2, 4, 6, device="meta"), check=True, names=("check=None",))


@of_any_features
def test_no_values_are_read_under_a_transform(call: Call) -> None:
    given = make_features(2)
    given[1, 0, 0] = torch.nan
    for transform in (torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())):
        transform(call)(given)  # check=None: no error
        refused(ArgumentError, transform(lambda f: call(f, check=True)), given, names=("torch.func", "check=None"))


def test_nan_stays_in_its_own_set_under_vmap() -> None:
    given = make_features(3)
    given[1, 0, 0] = torch.nan
    for name, call in OF_FEATURES.items():
        result = torch.func.vmap(call)(given)
        assert result[1].isnan().all(), name
        torch.testing.assert_close(result[::2], call(given[::2]), **tolerance(torch.float64))


# Round-off and extreme scales are not errors.


@pytest.mark.parametrize("solver", ["eigen", "squaring"])
def test_round_off_of_half_precision_matrices(solver: str) -> None:
    """A singular moment rounded to half precision has eigenvalues of -1e-3 of the largest."""
    features = torch.rand(2, 64, 16, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16):
        matrix = pp.autocorrelation(features).to(dtype)
        values = torch.linalg.eigvalsh(matrix.float())
        assert values.min() < -1e-5 * values.max()
        exact = pp.spectral(matrix.double().clamp(min=0) + 1e-2 * torch.eye(64), pp.MaxExp(10), "eigen")
        for check in (True, False):
            result = pp.spectral(matrix, pp.MaxExp(10), solver, check=check)
            assert torch.isfinite(result).all()
            assert (result.double() - exact).norm() / exact.norm() < 0.2
        for curve in (pp.Gamma(0.5), pp.HDP(0.1), pp.FAHDP(0.1)) if solver == "eigen" else ():
            assert torch.isfinite(pp.spectral(matrix, curve, solver)).all()


def test_rank_one_matrices_of_bfloat16() -> None:
    for eta in (50, 1000):
        for seed in range(20):
            features = torch.rand(4, 1, generator=torch.Generator().manual_seed(seed))
            pp.spectral(pp.autocorrelation(features).bfloat16(), pp.MaxExp(eta))


@pytest.mark.parametrize("scale", [1e-22, 1e-30])
def test_subnormal_moments_are_finite(scale: float) -> None:
    features = (scale * torch.rand(5, 4, generator=torch.Generator().manual_seed(0))).requires_grad_()
    for curve in (pp.Gamma(0.5), pp.HDP(0.1), pp.MaxExp(50), pp.AsinhE(10.0)):
        for solver in ("eigen", "gram"):
            result = pp.second_order_pool(features, curve, solver=solver)
            assert torch.isfinite(result).all()
            assert torch.isfinite(torch.autograd.grad(result.sum(), features)[0]).all()


def test_symmetrising_does_not_overflow() -> None:
    torch.testing.assert_close(pp.spectral(torch.eye(2) * 1.96e38, pp.Gamma(0.5)), torch.eye(2) * 1.4e19)
