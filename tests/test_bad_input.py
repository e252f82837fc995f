"""Bad input raises the right class and names the bad value; with checks off it gives NaN, never a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

import powerpool as pp
from powerpool.checks import values_are_checked
from powerpool.errors import (
    ArgumentError,
    DomainError,
    DTypeError,
    NotFiniteError,
    NotPositiveError,
    NotSymmetricError,
    PowerPoolError,
    ShapeError,
    UnknownNameError,
)
from tests.tolerances import tolerance

Call = Callable[..., Any]
NOT_FINITE = (torch.nan, torch.inf, -torch.inf)

# Every public entry point, by its input. A spectral one names its solver and a curve that the solver accepts.
OF_A_MATRIX: dict[str, Call] = {
    "elementwise": lambda m, **k: pp.elementwise(m, "sigme", **k),
    "elementwise-gamma": lambda m, **k: pp.elementwise(m, pp.Gamma(0.5), **k),
    "elementwise-raw-sigme": lambda m, **k: pp.elementwise(m, pp.SigmE(5.0, trace_normalize=False), **k),
    "eigen": lambda m, **k: pp.spectral(m, pp.HDP(0.1), "eigen", **k),
    "eigen-asinhe": lambda m, **k: pp.spectral(m, "asinhe", "eigen", **k),
    "squaring": lambda m, **k: pp.spectral(m, pp.MaxExp(7), "squaring", **k),
    "newton_schulz": lambda m, **k: pp.spectral(m, pp.Gamma(0.5), "newton_schulz", **k),
    "jitter": lambda m, **k: pp.spectral(m, pp.MaxExp(7), "jitter", **k),
    "ElementwisePowerNorm": lambda m, **k: pp.nn.ElementwisePowerNorm("sigme", **k)(m),
    "SpectralPowerNorm": lambda m, **k: pp.nn.SpectralPowerNorm("maxexp", **k)(m),
}
SPECTRAL = {name: call for name, call in OF_A_MATRIX.items() if not name.lower().startswith("elementwise")}
SECOND_ORDER: dict[str, Call] = {
    "plain": pp.second_order_pool,
    "elementwise": lambda f, **k: pp.second_order_pool(f, "sigme", "elementwise", **k),
    "elementwise-raw-sigme": lambda f, **k: pp.second_order_pool(
        f, pp.SigmE(5.0, trace_normalize=False), "elementwise", **k
    ),
    "eigen": lambda f, **k: pp.second_order_pool(f, pp.HDP(0.1), solver="eigen", **k),
    "squaring": lambda f, **k: pp.second_order_pool(f, pp.MaxExp(7), solver="squaring", **k),
    "gram": lambda f, **k: pp.second_order_pool(f, pp.MaxExp(7), solver="gram", **k),
    "gram-eigh": lambda f, **k: pp.second_order_pool(f, pp.SigmE(5.0), solver="gram", **k),
    "newton_schulz": lambda f, **k: pp.second_order_pool(f, pp.Gamma(0.5), solver="newton_schulz", **k),
    "gram_factor": lambda f, **k: pp.gram_factor(f, pp.MaxExp(7), **k).dense(),
    "gram_factor-plain": lambda f, **k: pp.gram_factor(f, **k).dense(),
}
OF_FEATURES: dict[str, Call] = {"autocorrelation": pp.autocorrelation, **SECOND_ORDER}
FIRST_ORDER: dict[str, Call] = {
    "mean": pp.first_order_pool,
    "max": lambda f, **k: pp.first_order_pool(f, reduce="max", **k),
    "mean-curve": lambda f, **k: pp.first_order_pool(f, "sigme", **k),
    "max-curve": lambda f, **k: pp.first_order_pool(f, "sigme", reduce="max", **k),
}
ANY_FEATURES = {**OF_FEATURES, **FIRST_ORDER}

of_a_matrix = pytest.mark.parametrize("call", OF_A_MATRIX.values(), ids=list(OF_A_MATRIX))
of_any_features = pytest.mark.parametrize("call", ANY_FEATURES.values(), ids=list(ANY_FEATURES))
of_second_order = pytest.mark.parametrize("call", SECOND_ORDER.values(), ids=list(SECOND_ORDER))
both_operators = pytest.mark.parametrize("operator", [pp.elementwise, pp.spectral], ids=["elementwise", "spectral"])

POSITIVE_ONLY = [pp.Gamma(0.5), pp.Gamma(2), pp.MaxExp(7), pp.MaxExp(2.5), pp.HDP(0.1), pp.FAHDP(0.3), pp.FAHDP(2.3)]
NORMALIZED = [pp.MaxExp(7), pp.SignedMaxExp(7), pp.SigmE(5.0), pp.HDP(0.1), pp.FAHDP(0.3)]


def _features(*leading: int) -> Tensor:
    return torch.rand(*leading, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def _matrix(*leading: int) -> Tensor:
    return pp.autocorrelation(_features(*leading))


def _refused(error: type[PowerPoolError], call: Call, *arguments: Any, names: tuple[str, ...] = (), **options: Any):
    """The call raises exactly this class, and the message contains the key values."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert caught.type is error
    for name in names:
        assert name in str(caught.value)


# Shapes and dtypes: no values are read, so `check` cannot switch these off.


@of_a_matrix
def test_matrix_of_a_bad_shape_or_dtype(call: Call) -> None:
    for shape in [(2, 3), (5, 2, 3), (3,), (), (0, 0), (3, 0, 0)]:
        for check in (None, False):
            _refused(ShapeError, call, torch.rand(shape), check=check, names=(str(shape),))
    for dtype in (torch.int64, torch.bool, torch.complex64):
        _refused(DTypeError, call, torch.ones(4, 4).to(dtype), names=(str(dtype),))
    _refused(DTypeError, call, [[1.0, 0.0], [0.0, 1.0]], names=("list",))


@of_any_features
def test_features_of_a_bad_shape_or_dtype(call: Call) -> None:
    for shape in [(0, 6), (4, 0), (2, 4, 0), (4,)]:
        _refused(ShapeError, call, torch.rand(shape), names=(str(shape),))
    for dtype in (torch.int64, torch.bool, torch.complex64):
        _refused(DTypeError, call, torch.ones(4, 4).to(dtype), names=(str(dtype),))
    _refused(DTypeError, call, [[1.0, 0.0], [0.0, 1.0]], names=("list",))


# Values of matrices.


@pytest.mark.parametrize("call", SPECTRAL.values(), ids=list(SPECTRAL))
def test_asymmetry(call: Call) -> None:
    given = _matrix(3)
    given[1, 0, 2] += 0.25
    _refused(NotSymmetricError, call, given, names=("0.25",))
    # A large matrix in the batch does not hide an asymmetric one.
    given = torch.stack([1e9 * torch.eye(2), torch.tensor([[1.0, 0.5], [0.0, 1.0]])])
    _refused(NotSymmetricError, call, given, names=("0.5",))
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):  # round-off is averaged
        features = _features(2).to(dtype)
        given = features @ features.mT
        given[:, 0, 1] *= 1 + 2 * torch.finfo(dtype).eps
        symmetric = ((given.double() + given.double().mT) / 2).to(torch.promote_types(dtype, torch.float32))
        torch.manual_seed(0)
        result = call(given)
        torch.manual_seed(0)  # the same jitter
        torch.testing.assert_close(result, call(symmetric).to(dtype), **tolerance(dtype, slack=10))


@pytest.mark.parametrize("curve", POSITIVE_ONLY, ids=str)
def test_negative_spectrum(curve: pp.Curve) -> None:
    vectors = torch.linalg.qr(_features()[:, :4])[0]
    indefinite = (vectors * torch.tensor([4.0, 3.0, 2.0, -1.0], dtype=torch.float64)) @ vectors.mT
    indefinite = (indefinite + indefinite.mT) / 2
    seen = "-0.125" if curve.trace_normalize else "-1"  # the trace is 8
    _refused(NotPositiveError, pp.spectral, indefinite, curve, "eigen", names=(type(curve).__name__, seen))
    batch = torch.stack([1e9 * torch.eye(4), indefinite])
    _refused(NotPositiveError, pp.spectral, batch, curve, "eigen", names=(seen,))
    shifted = indefinite + torch.eye(4) * (1 - 1e-9)  # below 0 by round-off only
    assert torch.isfinite(pp.spectral(shifted, curve, "eigen")).all()


def test_indefinite_matrices_of_curves_for_both_signs() -> None:
    given = torch.diag(torch.tensor([3.0, -1.0]))
    _refused(NotPositiveError, pp.spectral, given, pp.SignedMaxExp(5), "eigen", names=("1.5",))
    _refused(NotPositiveError, pp.spectral, given, pp.MaxExp(5), "eigen", names=("-0.5",))
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
    _refused(NotPositiveError, pp.spectral, diagonal, curve, solver, names=("diagonal",))
    entry = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    _refused(NotPositiveError, pp.spectral, entry, curve, solver, names=("|M_ij|",))


def test_squaring_detects_an_indefinite_matrix_by_its_result() -> None:
    matrix = torch.full((3, 3), -0.9).fill_diagonal_(1.0)  # |M_ij| < sqrt(M_ii M_jj), and an eigenvalue of -0.8
    _refused(NotPositiveError, pp.spectral, matrix, pp.MaxExp(50))


@of_a_matrix
def test_matrix_that_is_not_finite(call: Call) -> None:
    for bad in NOT_FINITE:
        for row, column in ((1, 1), (0, 2)):
            given = _matrix(3)
            given[1, row, column] = given[1, column, row] = bad
            _refused(NotFiniteError, call, given, names=(f"{1 + (row != column)} NaN", "48", "check=False"))


@of_any_features
def test_features_that_are_not_finite(call: Call) -> None:
    for bad in NOT_FINITE:
        given = _features(3)
        given[1, 2, 3] = bad
        for check in (None, True):
            _refused(NotFiniteError, call, given, check=check, names=("features", "1 NaN", "72", "check=False"))
    masked = _features(3)
    expected = call(masked[..., :5])
    masked[..., 5] = torch.nan
    result = call(masked, mask=torch.tensor([True] * 5 + [False]))
    torch.testing.assert_close(result, expected, **tolerance(torch.float64))


@of_second_order
def test_bad_coordinates(call: Call) -> None:
    grid = pp.spatial_coordinates(2, 3, pivots=2)
    grid[0, 0] = torch.nan
    _refused(NotFiniteError, call, _features(2), coordinates=grid, names=("coordinates", "1 NaN"))
    assert call(_features(2), coordinates=grid, check=False).isnan().all()
    _refused(ShapeError, call, _features(2), coordinates=pp.spatial_coordinates(2, 2), names=("N = 6", "got 4"))
    for shape in [(6,), (2, 4, 6)]:
        _refused(ShapeError, call, _features(2), coordinates=torch.rand(shape), names=(str(shape),))
    _refused(DTypeError, call, _features(2), coordinates=torch.ones(2, 6).long(), names=("torch.int64",))


@of_second_order
def test_features_whose_moment_overflows(call: Call) -> None:
    given = _features(3).float()
    expected = call(given, check=False)
    given[1] *= 1e25
    _refused(NotFiniteError, call, given, names=("torch.float32", "e+24", "float64"))
    result = call(given, check=False)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[::2], expected[::2], **tolerance(torch.float32))
    assert torch.isfinite(call(given.double())).all()


def test_moments_that_overflow() -> None:
    _refused(NotFiniteError, pp.autocorrelation, torch.full((2, 3), 1e20), names=("torch.float32", "1e+20"))
    index = torch.tensor([0, 0, 1])
    _refused(NotFiniteError, pp.segment_autocorrelation, torch.full((3, 2), 1e20), index, names=("1e+20",))


@pytest.mark.parametrize("name", ["elementwise", "eigen", "squaring"])
def test_matrix_whose_trace_overflows(name: str) -> None:
    given = torch.stack([torch.eye(4), 1.5e38 * torch.eye(4)])
    _refused(NotFiniteError, OF_A_MATRIX[name], given, names=("torch.float32", "1.5e+38"))
    result = OF_A_MATRIX[name](given, check=False)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[0], OF_A_MATRIX[name](given[0]), **tolerance(torch.float32))


@both_operators
@pytest.mark.parametrize("curve", NORMALIZED, ids=str)
def test_trace_that_is_not_positive(operator: Call, curve: pp.Curve) -> None:
    for last, trace in [(-3.0, "-1"), (-2.0, "0")]:
        given = torch.stack([torch.eye(2), torch.diag(torch.tensor([2.0, last]))])
        _refused(NotPositiveError, operator, given, curve, names=(type(curve).__name__, f"got {trace} "))
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
    _refused(NotPositiveError, operator, given, pp.AsinhE(10.0), trace_power=0.5, names=("trace_power", "-0.5"))


@pytest.mark.parametrize("curve", POSITIVE_ONLY, ids=str)
def test_negative_entries_elementwise(curve: pp.Curve) -> None:
    given = torch.tensor([[2.0, -1.0], [-1.0, 2.0]], dtype=torch.float64)
    seen = "-0.25 to 0.5" if curve.trace_normalize else "-1 to 2"
    _refused(DomainError, pp.elementwise, given, curve, names=(type(curve).__name__, seen))
    _refused(DomainError, pp.second_order_pool, _features(2), curve, "elementwise", beta=1.0, names=("-0.", "beta"))
    batch = torch.stack([1e9 * torch.eye(2), given])  # a large matrix in the batch hides nothing
    _refused(DomainError, pp.elementwise, batch, curve)
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
        _refused(DomainError, pp.elementwise, given, curve, names=("0.5 to 4.5", "SigmE or AsinhE"))


def test_pooled_features_outside_the_domain() -> None:
    given = torch.tensor([[1.0, 3.0], [-4.0, -2.0]])
    _refused(DomainError, pp.first_order_pool, given, pp.MaxExp(5), names=("[0, 1]", "-3 to 2"))
    _refused(DomainError, pp.first_order_pool, given, pp.Gamma(0.5), names=("[0, inf]", "-3 to 2"))
    torch.testing.assert_close(pp.first_order_pool(given, pp.AsinhE(2.0)), torch.tensor([4.0, -6.0]).asinh())
    unchecked = pp.first_order_pool(torch.tensor([[-0.5, -0.4], [0.2, 0.3]]), pp.MaxExp(5), check=False)
    assert torch.equal(torch.isnan(unchecked), torch.tensor([True, False]))


@of_any_features
def test_bad_masks(call: Call) -> None:
    given, mask = _features(3), torch.tensor([[True] * 6, [False] * 6, [False] * 6])
    _refused(DomainError, call, given, mask=mask, names=("2 set",))
    result = call(given, mask=mask, check=False)
    assert result[1:].isnan().all()
    torch.testing.assert_close(result[:1], call(given[:1]), **tolerance(torch.float64))
    _refused(DTypeError, call, given, mask=torch.ones(6), names=("torch.float32",))
    _refused(DTypeError, call, given, mask=[True] * 6, names=("list",))
    for shape in [(5,), (2, 6), (3, 1, 6)]:
        _refused(ShapeError, call, given, mask=torch.ones(shape).bool(), names=(str(shape), "(3, 6)"))


# Arguments.


@pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan"), float("inf")])
def test_beta_outside_its_range(beta: float) -> None:
    for call in OF_FEATURES.values():
        _refused(ArgumentError, call, _features(2), beta=beta, names=(str(beta), "[0, 1]"))
    for build in (pp.nn.SecondOrderPool2d, pp.nn.SecondOrderFactor2d):
        _refused(ArgumentError, build, 4, beta=beta, names=(str(beta),))


def test_eps_and_residual_terms_outside_their_range() -> None:
    for eps in (-1e-6, float("nan"), float("inf")):
        _refused(ArgumentError, pp.elementwise, _matrix(), "sigme", eps, names=(str(eps),))
        _refused(ArgumentError, pp.spectral, _matrix(), "maxexp", "eigen", eps, names=(str(eps),))
        _refused(ArgumentError, pp.second_order_pool, _features(), "maxexp", eps=eps, names=(str(eps),))
        _refused(ArgumentError, pp.gram_factor, _features(), "maxexp", eps=eps, names=(str(eps),))
    for operator in (pp.elementwise, pp.spectral):
        _refused(ArgumentError, operator, _matrix(), "maxexp", slope=float("nan"), names=("slope", "nan"))
        _refused(ArgumentError, operator, _matrix(), "maxexp", trace_power=float("inf"), names=("trace_power", "inf"))


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
        _refused(ArgumentError, curve, number, names=(curve.__name__, f"(got {number})"))
        for tensor in (torch.tensor(float(number)), nn.Parameter(torch.tensor([5.0, number]))):
            _refused(ArgumentError, curve, tensor, names=(f"(got {torch.tensor(float(number)).item()})",))
    for thing in (True, "2", None, [2.0], 2j):
        _refused(ArgumentError, curve, thing, names=(f"got {type(thing).__name__}",))
    for dtype in (torch.int64, torch.bool, torch.complex64):
        _refused(DTypeError, curve, torch.ones(1, dtype=dtype), names=(str(dtype),))


def _with_solver(curve: pp.Curve | str, solver: str) -> list[Callable[[], Any]]:
    return [
        lambda: pp.spectral(_matrix(), curve, solver),
        lambda: pp.nn.SpectralPowerNorm(curve, solver),
        lambda: pp.second_order_pool(_features(), curve, solver=solver),
        lambda: pp.nn.SecondOrderPool2d(4, curve, solver=solver),
        lambda: pp.nn.RelationDescriptor(curve, "spectral", solver=solver),
    ]


def test_solvers_that_cannot_apply_the_curve() -> None:
    other = {
        "squaring": [pp.MaxExp(2.5), pp.Gamma(0.5), pp.SigmE(5.0), pp.FAHDP(0.3, "identity"), pp.SignedMaxExp(5)],
        "newton_schulz": [pp.Gamma(0.3), pp.Gamma(1), pp.MaxExp(5), pp.SigmE(5.0)],
    }
    for solver, curves in other.items():
        for curve in curves:
            for call in _with_solver(curve, solver):
                _refused(ArgumentError, call, names=(repr(solver), str(curve), "'eigen'"))
    pp.nn.RelationDescriptor("sigme", mode="elementwise", solver="squaring")  # not used, so not refused


def test_gram_needs_features() -> None:
    for call in _with_solver("maxexp", "gram")[:2]:
        _refused(ArgumentError, call, names=("'gram'", "second_order_pool", "'eigen'"))
    _refused(ArgumentError, pp.spectral, _matrix(), "maxexp", pp.solvers.Gram(), names=("second_order_pool",))


def test_unknown_names_list_the_choices() -> None:
    solvers = [
        *_with_solver("maxexp", "svd"),
        lambda: pp.second_order_pool(_features(), None, solver="svd"),
        lambda: pp.second_order_pool(_features(), "sigme", "elementwise", solver="svd"),
        lambda: pp.nn.SecondOrderPool2d(4, solver="svd"),
        lambda: pp.solvers.resolve("svd"),
    ]
    curves = [
        *_with_solver("maxepx", "auto"),
        lambda: pp.elementwise(_matrix(), "maxepx"),
        lambda: pp.first_order_pool(_features(), "maxepx"),
        lambda: pp.gram_factor(_features(), "maxepx"),
        lambda: pp.nn.ElementwisePowerNorm("maxepx"),
        lambda: pp.nn.FirstOrderPool2d(4, "maxepx"),
        lambda: pp.nn.SecondOrderFactor2d(4, "maxepx"),
    ]
    modes = [
        lambda: pp.second_order_pool(_features(), "sigme", "entrywise"),
        lambda: pp.nn.SecondOrderPool2d(4, "sigme", "entrywise"),
        lambda: pp.nn.RelationDescriptor("sigme", "entrywise"),
    ]
    reductions = [
        lambda: pp.first_order_pool(_features(), reduce="median"),
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
            _refused(UnknownNameError, call, names=(repr(given), *map(repr, choices)))
    _refused(DTypeError, pp.elementwise, _matrix(), 3.0, names=("float",))


def test_index_on_another_device() -> None:
    index = torch.zeros(3, dtype=torch.int64, device="meta")
    _refused(ArgumentError, pp.segment_autocorrelation, torch.rand(3, 2), index, names=("cpu", "meta"))


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
        *(pytest.param(call, _matrix(5), True, id=f"matrix-{name}") for name, call in OF_A_MATRIX.items()),
        *(pytest.param(call, _features(5), False, id=name) for name, call in OF_FEATURES.items()),
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
        for calls, given, symmetric in ((matrices, _matrix(5), True), (features, _features(5), False)):
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
        given = _features(2)
        expected = call(given)
        given[0, 1, 2] = given[1, 3, 0] = bad
        result = call(given, check=False)
        assert result.isnan().nonzero().tolist() == [[0, 1], [1, 3]]
        good = ~result.isnan()
        torch.testing.assert_close(result[good], expected[good], **tolerance(torch.float64))


@pytest.mark.parametrize("curve", POSITIVE_ONLY, ids=str)
def test_negative_spectrum_gives_nan_with_checks_off(curve: pp.Curve) -> None:
    vectors = torch.linalg.qr(_features()[:3, :3])[0]
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
        _refused(ArgumentError, values_are_checked, tensor, True, names=("check=None",))


@pytest.mark.parametrize("name", [name for name in OF_A_MATRIX if name != "jitter"])  # jitter reads eigenvalues
def test_matrices_without_values(name: str) -> None:
    call = OF_A_MATRIX[name]
    assert call(torch.empty(2, 4, 4, device="meta")).shape == (2, 4, 4)
    with FakeTensorMode():
        assert call(torch.empty(2, 4, 4)).shape == (2, 4, 4)
    _refused(ArgumentError, call, torch.empty(2, 4, 4, device="meta"), check=True, names=("check=None",))


@of_any_features
def test_features_without_values(call: Call) -> None:
    assert call(torch.empty(2, 4, 6, device="meta")).shape[:2] == (2, 4)
    with FakeTensorMode():
        mask = torch.ones(6, dtype=torch.bool)
        assert call(torch.empty(2, 4, 6), mask=mask).shape[:2] == (2, 4)
    _refused(ArgumentError, call, torch.empty(2, 4, 6, device="meta"), check=True, names=("check=None",))


@of_any_features
def test_no_values_are_read_under_a_transform(call: Call) -> None:
    given = _features(2)
    given[1, 0, 0] = torch.nan
    for transform in (torch.func.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())):
        transform(call)(given)  # check=None: no error
        _refused(ArgumentError, transform(lambda f: call(f, check=True)), given, names=("torch.func", "check=None"))


def test_nan_stays_in_its_own_set_under_vmap() -> None:
    given = _features(3)
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
