"""The compositions: element-wise curves, the gradient through the trace, residual terms, first order, edge cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import powerpool as pp
from tests.cases import CURVES, FEATURES, PATHS, CurveCase
from tests.tolerances import tolerance

EPS = 1e-6


def _rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _moment(features: Tensor) -> Tensor:
    return features @ features.mT / features.shape[-1]


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None]


# Element-wise, against the formulas of the paper in mpmath.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CURVES, ids=str)
def test_elementwise_value(case: CurveCase, dtype: torch.dtype) -> None:
    curve = case.make()
    shift = mpf(EPS) if isinstance(curve, pp.Gamma) else mpf(0)
    for features in FEATURES.values():
        given = _moment(features).to(dtype)
        scale = sum(mpf(entry) for entry in given.diagonal().tolist()) + mpf(EPS) if curve.trace_normalize else mpf(1)
        expected = [[float(case.reference.value(mpf(x) / scale + shift)) for x in row] for row in given.tolist()]
        result = pp.elementwise(given, curve)
        assert result.dtype == dtype
        # Relative: entries of 1e-12 must be accurate too.
        near = tolerance(dtype) | {"atol": 0.0}
        torch.testing.assert_close(result.double(), torch.tensor(expected, dtype=torch.float64), **near)


# "orthogonal" has entries of 0, at the end of the domain: see test_elementwise_gradient_at_the_edge.
@pytest.mark.parametrize("case", CURVES, ids=str)
def test_elementwise_gradient(case: CurveCase) -> None:
    curve = case.make()
    for name in ("random", "one-location", "one-channel", "one-by-one", "twins"):
        leaf = FEATURES[name].clone().requires_grad_()
        assert gradcheck(
            lambda f: pp.second_order_pool(f, curve, "elementwise"), (leaf,), fast_mode=True, check_forward_ad=True
        )
        assert gradgradcheck(
            lambda f: pp.second_order_pool(f, curve, "elementwise"), (leaf,), fast_mode=True, check_fwd_over_rev=True
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["zero", "tiny", "huge", "rank-deficient", "orthogonal"])
@pytest.mark.parametrize("case", CURVES, ids=str)
def test_elementwise_gradient_at_the_edge(case: CurveCase, name: str, dtype: torch.dtype) -> None:
    """Against a one-sided difference in 50 digits, along a direction that adds to every entry."""
    moment = _moment(FEATURES[name]).to(dtype).double()
    size = len(moment)
    direction = torch.ones_like(moment) * max(float(_trace(moment)), 1.0 if name == "zero" else 0.0)
    leaf = moment.to(dtype, copy=True).requires_grad_()
    result = pp.elementwise(leaf, case.make())
    weight = _rand(size, size).to(dtype).double()
    (gradient,) = torch.autograd.grad((result * weight).sum(), leaf)
    assert torch.isfinite(gradient).all()

    def loss(step: mpf) -> mpf:
        matrix = [
            [mpf(float(moment[i, j])) + step * mpf(float(direction[i, j])) for j in range(size)] for i in range(size)
        ]
        trace = sum(matrix[i][i] for i in range(size)) + mpf(EPS)
        scale = trace if case.reference.trace_normalize else mpf(1)
        shift = mpf(EPS) if case.name.startswith("gamma") else mpf(0)
        return sum(
            mpf(float(weight[i, j])) * case.reference.value(matrix[i][j] / scale + shift)
            for i in range(size)
            for j in range(size)
        )

    with mpmath.workdps(120):
        step = mpf("1e-50")
        expected = float((loss(step) - loss(mpf(0))) / step)
    found = float((gradient * direction).sum())
    size_of_terms = float((gradient * direction).abs().sum())
    near = 1e-10 if dtype == torch.float64 else 2e-4
    assert abs(found - expected) <= near * max(size_of_terms, abs(expected)) + 1e-30  # the error of the step


def test_elementwise_gamma_without_eps_has_no_gradient_at_zero_by_convention() -> None:
    matrix = torch.tensor([[4.0, 0.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    pp.elementwise(matrix, pp.Gamma(0.5), eps=0.0).sum().backward()
    torch.testing.assert_close(matrix.grad, torch.tensor([[0.25, 0.0], [0.0, 0.5]], dtype=torch.float64))


# The gradient through the trace. App. B of the paper (docs/errata.md) drops the coupling of entries with the trace.


def _gradient_of_appendix_b(moment: Tensor, weight: Tensor, curve: pp.Curve) -> Tensor:
    """D of the paper: G_ij g'(p_ij) T_ij with T = 1/(tr + eps) - M.I/(tr + eps)^2."""
    scale = _trace(moment) + EPS
    eye = torch.eye(moment.shape[-1], dtype=moment.dtype)
    return weight * curve.derivative(moment / scale) * (1 / scale - moment * eye / scale**2)


def _exact_gradient(moment: Tensor, weight: Tensor, curve: pp.Curve) -> Tensor:
    """docs/errata.md: from each diagonal entry the sum of G_ij g'(p_ij) M_ij / (tr + eps)^2 is subtracted."""
    scale = _trace(moment) + EPS
    slope = weight * curve.derivative(moment / scale)
    coupling = (slope * moment).sum((-2, -1), keepdim=True) / scale**2
    return slope / scale - coupling * torch.eye(moment.shape[-1], dtype=moment.dtype)


@pytest.mark.parametrize("curve", [pp.MaxExp(7), pp.SignedMaxExp(7), pp.SigmE(5.0), pp.HDP(0.1)], ids=str)
def test_gradient_through_the_trace_is_exact_and_that_of_appendix_b_is_not(curve: pp.Curve) -> None:
    moment, weight = _moment(_rand(2, 4, 9)), _rand(2, 4, 4, seed=1)
    leaf = moment.clone().requires_grad_()
    (pp.elementwise(leaf, curve) * weight).sum().backward()
    torch.testing.assert_close(leaf.grad, _exact_gradient(moment, weight, curve), **tolerance(torch.float64))

    step = 1e-6
    difference = torch.zeros_like(moment)
    for index in torch.cartesian_prod(*(torch.arange(n) for n in moment.shape)):
        shift = torch.zeros_like(moment)
        shift[tuple(index)] = step
        up, down = (float((pp.elementwise(moment + s * shift, curve) * weight).sum()) for s in (1, -1))
        difference[tuple(index)] = (up - down) / (2 * step)
    torch.testing.assert_close(leaf.grad, difference, rtol=1e-6, atol=1e-8)
    published = _gradient_of_appendix_b(moment, weight, curve)
    off_diagonal = ~torch.eye(4, dtype=torch.bool).expand_as(moment)
    torch.testing.assert_close(published[off_diagonal], difference[off_diagonal], rtol=1e-6, atol=1e-8)
    assert ((published - difference).abs() > 0.01 * difference.abs()).sum() == 2 * 4  # every diagonal entry is wrong


@pytest.mark.parametrize("solver", ["eigen", "squaring"])
def test_spectral_gradient_through_the_trace_is_exact(solver: str) -> None:
    """MaxExp(1) is M/(tr + eps), whose gradient is known."""
    moment, weight = _moment(_rand(4, 9)), _rand(4, 4, seed=1)
    weight = weight + weight.mT
    leaf = moment.clone().requires_grad_()
    (pp.spectral(leaf, pp.MaxExp(1), solver) * weight).sum().backward()
    scale = _trace(moment) + EPS
    expected = weight / scale - (weight * moment).sum() / scale**2 * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(leaf.grad, expected, **tolerance(torch.float64))


# Residual variants: G* = G (tr + eps)^gamma, G-double-dagger = G + kappa M, and both.

RESIDUALS = [
    {"trace_power": 0.5},
    {"slope": 0.1},
    {"trace_power": 0.3, "slope": 0.2},
    {"trace_power": 0.5, "eps": 0.1},
]
every_path = pytest.mark.parametrize("path", PATHS.values(), ids=list(PATHS))


@pytest.mark.parametrize("residual", RESIDUALS, ids=str)
@every_path
def test_residual_variants_are_their_formulas(path: dict[str, Any], residual: dict[str, float]) -> None:
    features = _rand(2, 4, 9)
    moment = _moment(features)
    eps = residual.get("eps", EPS)
    plain = pp.second_order_pool(features, eps=eps, **path)
    expected = plain * (_trace(moment) + eps) ** residual.get("trace_power", 0.0) + residual.get("slope", 0.0) * moment
    result = pp.second_order_pool(features, **path, **residual)
    torch.testing.assert_close(result, expected, **tolerance(torch.float64))
    assert (result - plain).abs().max() > 1e-3
    curve, solver = path["curve"], path.get("solver", "auto")
    if path.get("mode") == "elementwise":
        torch.testing.assert_close(pp.elementwise(moment, curve, **residual), expected, **tolerance(torch.float64))
    elif curve is not None and solver != "gram":
        torch.testing.assert_close(pp.spectral(moment, curve, solver, **residual), expected, **tolerance(torch.float64))
    if path.get("mode") != "elementwise" and solver in ("auto", "gram"):
        factor = pp.gram_factor(features, curve, **residual)
        torch.testing.assert_close(factor.dense(), expected, **tolerance(torch.float64))


@pytest.mark.parametrize("residual", RESIDUALS, ids=str)
@every_path
def test_residual_variants_have_exact_gradients(path: dict[str, Any], residual: dict[str, float]) -> None:
    leaf = _rand(2, 3, 5).requires_grad_()
    assert gradcheck(
        lambda f: pp.second_order_pool(f, **path, **residual), (leaf,), fast_mode=True, check_forward_ad=True
    )


def test_residual_of_zero_features_is_zero_with_a_finite_gradient() -> None:
    for path in PATHS.values():
        leaf = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
        result = pp.second_order_pool(leaf, trace_power=0.5, slope=0.1, **path)
        assert (result == 0).all()
        result.sum().backward()
        assert torch.isfinite(leaf.grad).all()


def test_slope_keeps_a_gradient_if_the_curve_has_none() -> None:
    moment = torch.diag(torch.tensor([1.0, 1e-4], dtype=torch.float64))
    gradients = []
    for slope in (0.0, 0.1):
        leaf = moment.clone().requires_grad_()
        pp.spectral(leaf, pp.HDP(0.5), slope=slope)[1, 1].backward()
        gradients.append(float(leaf.grad[1, 1]))
    assert abs(gradients[0]) < 1e-100
    assert gradients[1] == pytest.approx(0.1)


# First order.


@pytest.mark.parametrize("case", CURVES, ids=str)
@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_first_order_pool(case: CurveCase, reduce: str) -> None:
    features = _rand(2, 4, 9)
    pooled = getattr(torch, f"a{reduce}" if reduce == "max" else reduce)(features, -1)
    expected = pooled.clone().apply_(lambda p: float(case.reference.value(mpf(p))))
    result = pp.first_order_pool(features, case.make(), reduce=reduce)
    torch.testing.assert_close(result, expected, **tolerance(torch.float64))
    call = lambda f: pp.first_order_pool(f, case.make(), reduce=reduce)  # noqa: E731
    assert gradcheck(call, (features.requires_grad_(),), fast_mode=True, check_forward_ad=True)


# Edge cases.


@every_path
def test_one_channel_and_one_location(path: dict[str, Any]) -> None:
    for shape in [(1, 1), (1, 7), (5, 1), (2, 3, 1, 1)]:
        features = _rand(*shape).requires_grad_()
        result = pp.second_order_pool(features, **path)
        assert result.shape == (*shape[:-1], shape[-2])
        result.sum().backward()
        assert torch.isfinite(result).all()
        assert torch.isfinite(features.grad).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda m: pp.elementwise(m, "maxexp"),
        lambda m: pp.elementwise(m, "gamma"),
        lambda m: pp.spectral(m, "hdp", "eigen"),
        lambda m: pp.spectral(m, "maxexp", "squaring"),
        lambda m: pp.spectral(m, pp.Gamma(0.5), "newton_schulz"),
        lambda m: pp.spectral(m, pp.Gamma(0.5), "minimax"),
    ],
)
def test_batch_of_no_matrices(call: Callable[[Tensor], Tensor]) -> None:
    assert call(torch.rand(0, 4, 4)).shape == (0, 4, 4)
    assert call(torch.rand(2, 0, 4, 4)).shape == (2, 0, 4, 4)


@every_path
def test_input_is_unchanged(path: dict[str, Any]) -> None:
    features, mask = _rand(2, 4, 6).requires_grad_(), torch.ones(2, 6, dtype=torch.bool)
    mask[1, 3:] = False
    grid = pp.spatial_coordinates(2, 3, pivots=2)
    given = (features, mask, grid)
    copies = [tensor.detach().clone() for tensor in given]
    versions = [tensor._version for tensor in given]
    for check in (None, False):
        pp.second_order_pool(
            features, beta=0.5, coordinates=grid, mask=mask, check=check, trace_power=0.5, slope=0.1, **path
        ).sum().backward()
    assert [tensor._version for tensor in given] == versions
    for tensor, copied in zip(given, copies, strict=True):
        torch.testing.assert_close(tensor.detach(), copied, rtol=0, atol=0)


def test_result_is_symmetric() -> None:
    for path in PATHS.values():
        result = (
            pp.second_order_pool(_rand(3, 6, 4), beta=0.5, trace_power=0.5, slope=0.1, **path)
            if (path.get("mode") != "elementwise")
            else pp.second_order_pool(_rand(3, 6, 4), **path)
        )
        torch.testing.assert_close(result, result.mT, **tolerance(torch.float64))


def test_second_derivatives_of_residual_terms() -> None:
    for name in ("plain", "elementwise", "squaring", "newton_schulz", "gram"):
        leaf = _rand(3, 4).requires_grad_()
        call = lambda f, path=PATHS[name]: pp.second_order_pool(f, trace_power=0.5, slope=0.1, **path)  # noqa: E731
        assert gradgradcheck(call, (leaf,), fast_mode=True, check_fwd_over_rev=True)


def test_names_of_curves_are_their_defaults() -> None:
    features = _rand(4, 9)
    for name, curve in pp.curves.CURVES.items():
        for mode in ("elementwise", "spectral"):
            results = [pp.second_order_pool(features, given, mode) for given in (name, name.upper(), curve())]
            torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
            torch.testing.assert_close(results[0], results[2], rtol=0, atol=0)
