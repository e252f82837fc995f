"""Bad input raises the right class and names the bad value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import powerpool as pp
from powerpool.errors import (
    ArgumentError,
    DomainError,
    DTypeError,
    NotFiniteError,
    NotPositiveError,
    NotSymmetricError,
    ShapeError,
    UnknownNameError,
)
from tests.entry_points import (
    NORMALIZED,
    NOT_FINITE,
    OF_A_MATRIX,
    OF_FEATURES,
    POSITIVE_ONLY,
    SPECTRAL,
    Call,
    both_operators,
    make_features,
    make_matrix,
    of_a_matrix,
    of_any_features,
    of_second_order,
    refused,
)
from tests.tolerances import tolerance

# Shapes and dtypes: no values are read, so `check` cannot switch these off.


@of_a_matrix
def test_matrix_of_a_bad_shape_or_dtype(call: Call) -> None:
    for shape in [(2, 3), (5, 2, 3), (3,), (), (0, 0), (3, 0, 0)]:
        for check in (None, False):
            refused(ShapeError, call, torch.rand(shape), check=check, names=(str(shape),))
    for dtype in (torch.int64, torch.bool, torch.complex64):
        refused(DTypeError, call, torch.ones(4, 4).to(dtype), names=(str(dtype),))
    refused(DTypeError, call, [[1.0, 0.0], [0.0, 1.0]], names=("list",))


@of_any_features
def test_features_of_a_bad_shape_or_dtype(call: Call) -> None:
    for shape in [(0, 6), (4, 0), (2, 4, 0), (4,)]:
        refused(ShapeError, call, torch.rand(shape), names=(str(shape),))
    for dtype in (torch.int64, torch.bool, torch.complex64):
        refused(DTypeError, call, torch.ones(4, 4).to(dtype), names=(str(dtype),))
    refused(DTypeError, call, [[1.0, 0.0], [0.0, 1.0]], names=("list",))


# Values of matrices.


@pytest.mark.parametrize("call", SPECTRAL.values(), ids=list(SPECTRAL))
def test_asymmetry(call: Call) -> None:
    given = make_matrix(3)
    given[1, 0, 2] += 0.25
    refused(NotSymmetricError, call, given, names=("0.25",))
    # A large matrix in the batch does not hide an asymmetric one.
    given = torch.stack([1e9 * torch.eye(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]])])
    refused(NotSymmetricError, call, given, names=("0.5",))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):  # round-off is averaged
        features = make_features(2).to(dtype)
        given = features @ features.mT
        given[:, 0, 1] *= 1 + 2 * torch.finfo(dtype).eps
        symmetric = ((given.double() + given.double().mT) / 2).to(torch.promote_types(dtype, torch.float32))
        torch.manual_seed(0)
        result = call(given)
        torch.manual_seed(0)  # the same jitter
        torch.testing.assert_close(result, call(symmetric).to(dtype), **tolerance(dtype, slack=10))


@pytest.mark.parametrize("curve", POSITIVE_ONLY, ids=str)
def test_negative_spectrum(curve: pp.Curve) -> None:
    vectors = torch.linalg.qr(make_features()[:, :4])[0]
    indefinite = (vectors * torch.tensor([4.0, 3.0, 2.0, -1.0], dtype=torch.float64)) @ vectors.mT
    indefinite = (indefinite + indefinite.mT) / 2
    seen = "-0.125" if curve.trace_normalize else "-1"  # the trace is 8
    refused(NotPositiveError, pp.spectral, indefinite, curve, "eigen", names=(type(curve).__name__, seen))
    batch = torch.stack([1e9 * torch.eye(4), indefinite])
    refused(NotPositiveError, pp.spectral, batch, curve, "eigen", names=(seen,))
    shifted = indefinite + torch.eye(4) * (1 - 1e-9)  # below 0 by round-off only
    assert torch.isfinite(pp.spectral(shifted, curve, "eigen")).all()


def test_indefinite_matrices_of_curves_for_both_signs() -> None:
    given = torch.diag(torch.tensor([3.0, -1.0]))
    refused(NotPositiveError, pp.spectral, given, pp.SignedMaxExp(5), "eigen", names=("1.5",))
    refused(NotPositiveError, pp.spectral, given, pp.MaxExp(5), "eigen", names=("-0.5",))
    values = torch.tensor([3.0, 1.0, -1.5], dtype=torch.float64)
    for curve in (pp.AsinhE(3.0), pp.SigmE(5.0), pp.SigmE(5.0, trace_normalize=False)):
        scale = 2.5 + 1e-6 if curve.trace_normalize else 1.0
        result = pp.spectral(torch.diag(values), curve)
        torch.testing.assert_close(result, torch.diag(curve.value(values / scale)), **tolerance(torch.float64))
    negative = torch.diag(torch.tensor([2.0, -3.0]))  # the trace does not matter to curves that do not divide by it
    for curve in (pp.AsinhE(3.0), pp.SigmE(5.0, trace_normalize=False)):
        torch.testing.assert_close(pp.elementwise(negative, curve), curve.value(negative))
        torch.testing.assert_close(pp.spectral(negative, curve), curve.value(negative))


@pytest.mark.parametrize("curve, solver", [(pp.MaxExp(7), "squaring"), (pp.Gamma(0.5), "newton_schulz")])
def test_products_detect_some_negative_spectra(curve: pp.Curve, solver: str) -> None:
    diagonal = torch.diag(torch.tensor([5.0, -1.0, 4.0]))
    refused(NotPositiveError, pp.spectral, diagonal, curve, solver, names=("diagonal",))
    entry = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    refused(NotPositiveError, pp.spectral, entry, curve, solver, names=("|M_ij|",))


def test_squaring_detects_an_indefinite_matrix_by_its_result() -> None:
    matrix = torch.full((3, 3), -0.9).fill_diagonal_(1.0)  # |M_ij| < sqrt(M_ii M_jj), and an eigenvalue of -0.8
    refused(NotPositiveError, pp.spectral, matrix, pp.MaxExp(50))


@of_a_matrix
def test_matrix_that_is_not_finite(call: Call) -> None:
    for bad in NOT_FINITE:
        for row, column in ((1, 1), (0, 2)):
            given = make_matrix(3)
            given[1, row, column] = given[1, column, row] = bad
            refused(NotFiniteError, call, given, names=(f"{1 + (row != column)} NaN", "48", "check=False"))


@of_any_features
def test_features_that_are_not_finite(call: Call) -> None:
    for bad in NOT_FINITE:
        given = make_features(3)
        given[1, 2, 3] = bad
        for check in (None, True):
            refused(NotFiniteError, call, given, check=check, names=("features", "1 NaN", "72", "check=False"))
    masked = make_features(3)
    expected = call(masked[..., :5])
    masked[..., 5] = torch.nan
    result = call(masked, mask=torch.tensor([True] * 5 + [False]))
    torch.testing.assert_close(result, expected, **tolerance(torch.float64))


@of_second_order
def test_bad_coordinates(call: Call) -> None:
    grid = pp.spatial_coordinates(2, 3, pivots=2)
    grid[0, 0] = torch.nan
    refused(NotFiniteError, call, make_features(2), coordinates=grid, names=("coordinates", "1 NaN"))
    assert call(make_features(2), coordinates=grid, check=False).isnan().all()
    refused(ShapeError, call, make_features(2), coordinates=pp.spatial_coordinates(2, 2), names=("N = 6", "got 4"))
    for shape in [(6,), (2, 4, 6)]:
        refused(ShapeError, call, make_features(2), coordinates=torch.rand(shape), names=(str(shape),))
    refused(DTypeError, call, make_features(2), coordinates=torch.ones(2, 6).long(), names=("torch.int64",))


@of_second_order
def test_features_whose_moment_overflows(call: Call) -> None:
    given = make_features(3).float()
    expected = call(given, check=False)
    given[1] *= 1e25
    refused(NotFiniteError, call, given, names=("torch.float32", "e+24", "float64"))
    result = call(given, check=False)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[::2], expected[::2], **tolerance(torch.float32))
    assert torch.isfinite(call(given.double())).all()


def test_moments_that_overflow() -> None:
    refused(NotFiniteError, pp.autocorrelation, torch.full((2, 3), 1e20), names=("torch.float32", "1e+20"))
    index = torch.tensor([0, 0, 1])
    refused(NotFiniteError, pp.segment_autocorrelation, torch.full((3, 2), 1e20), index, names=("1e+20",))


@pytest.mark.parametrize("name", ["elementwise", "eigen", "squaring"])
def test_matrix_whose_trace_overflows(name: str) -> None:
    given = torch.stack([torch.eye(4), 1.5e38 * torch.eye(4)])
    refused(NotFiniteError, OF_A_MATRIX[name], given, names=("torch.float32", "1.5e+38"))
    result = OF_A_MATRIX[name](given, check=False)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[0], OF_A_MATRIX[name](given[0]), **tolerance(torch.float32))


@both_operators
@pytest.mark.parametrize("curve", NORMALIZED, ids=str)
def test_trace_that_is_not_positive(operator: Call, curve: pp.Curve) -> None:
    for last, trace in [(-3.0, "-1"), (-2.0, "0")]:
        given = torch.stack([torch.eye(2), torch.diag(torch.tensor([2.0, last]))])
        refused(NotPositiveError, operator, given, curve, names=(type(curve).__name__, f"got {trace} "))
        result = operator(given, curve, check=False)
        assert result[1].isnan().all()
        torch.testing.assert_close(result[0], operator(given[0], curve), **tolerance(torch.float32))
    hollow = torch.stack([torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.eye(2)])
    assert operator(hollow, curve, check=False)[0].isnan().all()
    zero = torch.zeros(2, 3, 3)
    for check in (True, False):
        torch.testing.assert_close(operator(zero, curve, check=check), zero, rtol=0, atol=0)


@both_operators
def test_power_of_a_negative_trace(operator: Call) -> None:
    given = torch.diag(torch.tensor([-1.0, 0.5]))
    refused(NotPositiveError, operator, given, pp.AsinhE(10.0), trace_power=0.5, names=("trace_power", "-0.5"))


@pytest.mark.parametrize("curve", POSITIVE_ONLY, ids=str)
def test_negative_entries_elementwise(curve: pp.Curve) -> None:
    given = torch.tensor([[2.0, -1.0], [-1.0, 2.0]], dtype=torch.float64)
    seen = "-0.25 to 0.5" if curve.trace_normalize else "-1 to 2"
    refused(DomainError, pp.elementwise, given, curve, names=(type(curve).__name__, seen))
    refused(DomainError, pp.second_order_pool, make_features(2), curve, "elementwise", beta=1.0, names=("-0.", "beta"))
    batch = torch.stack([1e9 * torch.eye(2), given])  # a large matrix in the batch hides nothing
    refused(DomainError, pp.elementwise, batch, curve)
    unchecked = pp.elementwise(torch.stack([given, given.abs()]), curve, check=False)
    assert torch.equal(torch.isnan(unchecked[0]), torch.tensor([[False, True], [True, False]]))
    torch.testing.assert_close(unchecked[1], pp.elementwise(given.abs(), curve))
    by_round_off = torch.tensor([[2.0, -1e-9], [-1e-9, 2.0]], dtype=torch.float64)
    checked, unchecked = (pp.elementwise(by_round_off, curve, eps=0.0, check=check) for check in (True, False))
    assert torch.isfinite(checked).all()
    assert torch.equal(checked, unchecked)


def test_entries_beyond_the_trace_elementwise() -> None:
    given = torch.tensor([[1.0, 9.0], [9.0, 1.0]])
    for curve in (pp.MaxExp(5), pp.SignedMaxExp(5), pp.FAHDP(0.3)):
        refused(DomainError, pp.elementwise, given, curve, names=("0.5 to 4.5", "SigmE or AsinhE"))


def test_pooled_features_outside_the_domain() -> None:
    given = torch.tensor([[1.0, 3.0], [-4.0, -2.0]])
    refused(DomainError, pp.first_order_pool, given, pp.MaxExp(5), names=("[0, 1]", "-3 to 2"))
    refused(DomainError, pp.first_order_pool, given, pp.Gamma(0.5), names=("[0, inf]", "-3 to 2"))
    torch.testing.assert_close(pp.first_order_pool(given, pp.AsinhE(2.0)), torch.tensor([4.0, -6.0]).asinh())
    unchecked = pp.first_order_pool(torch.tensor([[-0.5, -0.4], [0.2, 0.3]]), pp.MaxExp(5), check=False)
    assert torch.equal(torch.isnan(unchecked), torch.tensor([True, False]))


@of_any_features
def test_bad_masks(call: Call) -> None:
    given, mask = make_features(3), torch.tensor([[True] * 6, [False] * 6, [False] * 6])
    refused(DomainError, call, given, mask=mask, names=("2 set",))
    result = call(given, mask=mask, check=False)
    assert result[1:].isnan().all()
    torch.testing.assert_close(result[:1], call(given[:1]), **tolerance(torch.float64))
    refused(DTypeError, call, given, mask=torch.ones(6), names=("torch.float32",))
    refused(DTypeError, call, given, mask=[True] * 6, names=("list",))
    for shape in [(5,), (2, 6), (3, 1, 6)]:
        refused(ShapeError, call, given, mask=torch.ones(shape).bool(), names=(str(shape), "(3, 6)"))


# Arguments.


@pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan"), float("inf")])
def test_beta_outside_its_range(beta: float) -> None:
    for call in OF_FEATURES.values():
        refused(ArgumentError, call, make_features(2), beta=beta, names=(str(beta), "[0, 1]"))
    for build in (pp.nn.SecondOrderPool2d, pp.nn.SecondOrderFactor2d):
        refused(ArgumentError, build, 4, beta=beta, names=(str(beta),))


def test_eps_and_residual_terms_outside_their_range() -> None:
    for eps in (-1e-6, float("nan"), float("inf")):
        refused(ArgumentError, pp.elementwise, make_matrix(), "sigme", eps, names=(str(eps),))
        refused(ArgumentError, pp.spectral, make_matrix(), "maxexp", "eigen", eps, names=(str(eps),))
        refused(ArgumentError, pp.second_order_pool, make_features(), "maxexp", eps=eps, names=(str(eps),))
        refused(ArgumentError, pp.gram_factor, make_features(), "maxexp", eps=eps, names=(str(eps),))
    for operator in (pp.elementwise, pp.spectral):
        refused(ArgumentError, operator, make_matrix(), "maxexp", slope=float("nan"), names=("slope", "nan"))
        refused(
            ArgumentError, operator, make_matrix(), "maxexp", trace_power=float("inf"), names=("trace_power", "inf")
        )


@pytest.mark.parametrize(
    "curve, bad",
    [
        (pp.MaxExp, [0.99, 0, -3]),
        (pp.SignedMaxExp, [0.5]),
        (pp.Gamma, [0, -0.5]),
        (pp.AsinhE, [0.0, -2.0]),
        (pp.SigmE, [0.0, -2.0]),
        (pp.HDP, [0.0, -0.1]),
        (pp.FAHDP, [0.0, -0.1]),
    ],
)
def test_curve_parameters_outside_their_range(curve: Call, bad: list[float]) -> None:
    for number in (*bad, float("nan"), float("inf"), -float("inf")):
        refused(ArgumentError, curve, number, names=(curve.__name__, f"(got {number})"))
        for tensor in (torch.tensor(float(number)), nn.Parameter(torch.tensor([5.0, number]))):
            refused(ArgumentError, curve, tensor, names=(f"(got {torch.tensor(float(number)).item()})",))
    for thing in (True, "2", None, [2.0], 2j):
        refused(ArgumentError, curve, thing, names=(f"got {type(thing).__name__}",))
    for dtype in (torch.int64, torch.bool, torch.complex64):
        refused(DTypeError, curve, torch.ones(1, dtype=dtype), names=(str(dtype),))


def _with_solver(curve: pp.Curve | str, solver: str) -> list[Callable[[], Any]]:
    return [
        lambda: pp.spectral(make_matrix(), curve, solver),
        lambda: pp.nn.SpectralPowerNorm(curve, solver),
        lambda: pp.second_order_pool(make_features(), curve, solver=solver),
        lambda: pp.nn.SecondOrderPool2d(4, curve, solver=solver),
        lambda: pp.nn.RelationDescriptor(curve, "spectral", solver=solver),
    ]


def test_solvers_that_cannot_apply_the_curve() -> None:
    other = {
        "squaring": [pp.MaxExp(2.5), pp.Gamma(0.5), pp.SigmE(5.0), pp.FAHDP(0.3, "identity"), pp.SignedMaxExp(5)],
        "newton_schulz": [pp.Gamma(0.3), pp.Gamma(1), pp.MaxExp(5), pp.SigmE(5.0)],
        "minimax": [pp.Gamma(0.3), pp.MaxExp(5)],
    }
    for solver, curves in other.items():
        for curve in curves:
            for call in _with_solver(curve, solver):
                refused(ArgumentError, call, names=(repr(solver), str(curve), "'eigen'"))
    pp.nn.RelationDescriptor("sigme", mode="elementwise", solver="squaring")  # not used, so not refused


def test_gram_needs_features() -> None:
    for call in _with_solver("maxexp", "gram")[:2]:
        refused(ArgumentError, call, names=("'gram'", "second_order_pool", "'eigen'"))
    refused(ArgumentError, pp.spectral, make_matrix(), "maxexp", pp.solvers.Gram(), names=("second_order_pool",))


def test_unknown_names_list_the_choices() -> None:
    solvers = [
        *_with_solver("maxexp", "svd"),
        lambda: pp.second_order_pool(make_features(), None, solver="svd"),
        lambda: pp.second_order_pool(make_features(), "sigme", "elementwise", solver="svd"),
        lambda: pp.nn.SecondOrderPool2d(4, solver="svd"),
        lambda: pp.solvers.resolve("svd"),
    ]
    curves = [
        *_with_solver("maxepx", "auto"),
        lambda: pp.elementwise(make_matrix(), "maxepx"),
        lambda: pp.first_order_pool(make_features(), "maxepx"),
        lambda: pp.gram_factor(make_features(), "maxepx"),
        lambda: pp.nn.ElementwisePowerNorm("maxepx"),
        lambda: pp.nn.FirstOrderPool2d(4, "maxepx"),
        lambda: pp.nn.SecondOrderFactor2d(4, "maxepx"),
    ]
    modes = [
        lambda: pp.second_order_pool(make_features(), "sigme", "entrywise"),
        lambda: pp.nn.SecondOrderPool2d(4, "sigme", "entrywise"),
        lambda: pp.nn.RelationDescriptor("sigme", "entrywise"),
    ]
    reductions = [
        lambda: pp.first_order_pool(make_features(), reduce="median"),
        lambda: pp.nn.FirstOrderPool2d(4, reduce="median"),
    ]
    for calls, given, choices in (
        (solvers, "svd", ("auto", *pp.solvers.SOLVERS)),
        (curves, "maxepx", tuple(pp.curves.CURVES)),
        (modes, "entrywise", ("elementwise", "spectral")),
        (reductions, "median", ("mean", "max")),
        ([lambda: pp.FAHDP(0.3, "floor")], "floor", ("identity", "round", "ceil")),
    ):
        for call in calls:
            refused(UnknownNameError, call, names=(repr(given), *map(repr, choices)))
    refused(DTypeError, pp.elementwise, make_matrix(), 3.0, names=("float",))


def test_index_on_another_device() -> None:
    index = torch.zeros(3, dtype=torch.int64, device="meta")
    refused(ArgumentError, pp.segment_autocorrelation, torch.rand(3, 2), index, names=("cpu", "meta"))
