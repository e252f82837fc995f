"""Identities for every input: of curves and moments, and between solvers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import powerpool as pp
from tests.cases import PATHS
from tests.tolerances import tolerance

CURVES: dict[str, pp.Curve] = {
    "gamma": pp.Gamma(0.5),
    "gamma-3": pp.Gamma(3),
    "maxexp": pp.MaxExp(7),
    "signed_maxexp": pp.SignedMaxExp(7),
    "asinhe": pp.AsinhE(3.0),
    "sigme": pp.SigmE(5.0),
    "sigme-raw": pp.SigmE(5.0, trace_normalize=False),
    "hdp": pp.HDP(0.1),
    "fahdp": pp.FAHDP(0.3, "identity"),
}
INTEGER_POWERS = [pp.MaxExp(1), pp.MaxExp(50), pp.Gamma(1), pp.Gamma(4), pp.FAHDP(0.05)]
every_curve = pytest.mark.parametrize("curve", CURVES.values(), ids=list(CURVES))
few = settings(max_examples=10, deadline=None, derandomize=True)

# Channels and locations: fewer, as many and more locations than channels.
shapes = st.tuples(st.integers(1, 6), st.integers(1, 9))
seeds = st.integers(0, 2**16)


def _rand(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _orthogonal(size: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(_randn(size, size, seed=seed))[0]


def _positive(*leading: int, size: int = 5, seed: int = 0) -> Tensor:
    features = _randn(*leading, size, 3 * size, seed=seed)
    return pp.autocorrelation(features)


@few
@given(shapes, seeds)
def test_gamma_one_half_squared_is_the_input(shape: tuple[int, int], seed: int) -> None:
    moment = pp.autocorrelation(_randn(2, *shape, seed=seed))
    root = pp.spectral(moment, pp.Gamma(0.5))
    torch.testing.assert_close(root @ root, moment, **tolerance(torch.float64))


@pytest.mark.parametrize("gamma", [0.3, 0.5, 2.0])
def test_powers_are_inverse(gamma: float) -> None:
    moment = _positive(2)
    there = pp.spectral(moment, pp.Gamma(gamma))
    back = pp.spectral(there, pp.Gamma(1 / gamma), "eigen")
    torch.testing.assert_close(back, moment, **tolerance(torch.float64))


@few
@given(shapes, seeds)
def test_maxexp_one_is_the_input_over_its_trace(shape: tuple[int, int], seed: int) -> None:
    features = _rand(2, *shape, seed=seed)
    moment = pp.autocorrelation(features)
    expected = moment / (moment.diagonal(dim1=-2, dim2=-1).sum(-1) + 1e-6)[:, None, None]
    results = [
        pp.elementwise(moment, pp.MaxExp(1)),
        *(pp.spectral(moment, pp.MaxExp(1), solver) for solver in ("eigen", "squaring")),
        *(pp.second_order_pool(features, pp.MaxExp(1), solver=solver) for solver in ("eigen", "squaring", "gram")),
    ]
    for result in results:
        torch.testing.assert_close(result, expected, **tolerance(torch.float64))


@every_curve
def test_elementwise_is_spectral_on_a_diagonal_matrix(curve: pp.Curve) -> None:
    diagonal = torch.diag_embed(_rand(3, 6))
    diagonal[1, 2, 2] = 0.0
    expected = pp.elementwise(diagonal, curve, eps=0.0)
    for solver in ("eigen", "squaring") if curve.integer_power() else ("eigen",):
        result = pp.spectral(diagonal, curve, solver, eps=0.0)
        torch.testing.assert_close(result, expected, **tolerance(torch.float64))
    assert (
        pp.elementwise(diagonal + 0.1, curve, eps=0.0) - pp.spectral(diagonal + 0.1, curve, eps=0.0)
    ).abs().max() > 0


@every_curve
@pytest.mark.parametrize("mode, solver", [("elementwise", "auto"), ("spectral", "eigen"), ("spectral", "gram")])
def test_order_of_locations_does_not_matter(curve: pp.Curve, mode: str, solver: str) -> None:
    features = _rand(2, 5, 8)
    shuffled = features[..., torch.randperm(8, generator=torch.Generator().manual_seed(1))]
    results = [pp.second_order_pool(f, curve, mode, solver=solver) for f in (features, shuffled)]
    torch.testing.assert_close(results[0], results[1], **tolerance(torch.float64))
    for reduce in ("mean", "max"):
        pooled = [pp.first_order_pool(f, curve, reduce=reduce) for f in (features, shuffled)]
        torch.testing.assert_close(pooled[0], pooled[1], **tolerance(torch.float64))


@every_curve
def test_rotated_matrix_rotates_the_spectral_result_and_not_the_elementwise_one(curve: pp.Curve) -> None:
    moment, rotation = _positive(2), _orthogonal(5)
    turned = rotation @ moment @ rotation.mT
    result = pp.spectral(turned, curve)
    torch.testing.assert_close(result, rotation @ pp.spectral(moment, curve) @ rotation.mT, **tolerance(torch.float64))
    positive = turned.abs()
    assert (pp.elementwise(positive, curve) - pp.spectral(turned, curve)).abs().max() > 1e-3


@every_curve
@pytest.mark.parametrize("mode", ["elementwise", "spectral"])
def test_scale_does_not_matter_after_division_by_the_trace(curve: pp.Curve, mode: str) -> None:
    features = _rand(2, 5, 12)
    results = [pp.second_order_pool(scale * features, curve, mode, eps=0.0) for scale in (1.0, 32.0)]
    if curve.trace_normalize:
        torch.testing.assert_close(results[0], results[1], **tolerance(torch.float64))
    else:
        assert (results[0] - results[1]).abs().max() > 0.1


# Solvers, with all options at once.
OPTIONS: dict[str, Any] = {
    "beta": 0.4,
    "coordinates": pp.spatial_coordinates(3, 4, pivots=2, dtype=torch.float64),
    "mask": torch.tensor([[True] * 12, [True] * 7 + [False] * 5]),
    "trace_power": 0.5,
    "slope": 0.1,
    "eps": 1e-3,
}


def _value_and_gradient(call: Callable[[Tensor], Tensor], features: Tensor) -> tuple[Tensor, Tensor]:
    leaf = features.clone().requires_grad_()
    result = call(leaf)
    weight = _randn(*result.shape, seed=5, dtype=features.dtype)
    (gradient,) = torch.autograd.grad((result * weight).sum(), leaf)
    return result.detach(), gradient


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("curve", [*INTEGER_POWERS, *CURVES.values()], ids=str)
def test_exact_solvers_agree_in_value_and_gradient(curve: pp.Curve, dtype: torch.dtype) -> None:
    for channels in (4, 20):  # less and more than the 12 locations
        features = _rand(2, channels, 12, dtype=dtype)
        names = ["eigen", "gram", "squaring"] if curve.integer_power() else ["eigen", "gram"]
        outcomes = {
            name: _value_and_gradient(
                lambda f, name=name: pp.second_order_pool(f, curve, solver=name, **OPTIONS), features
            )
            for name in names
        }
        expected, gradient = outcomes.pop("eigen")
        near = tolerance(dtype, slack=10)
        for value, other in outcomes.values():
            torch.testing.assert_close(value / expected.abs().max(), expected / expected.abs().max(), **near)
            torch.testing.assert_close(other / gradient.abs().max(), gradient / gradient.abs().max(), **near)


@pytest.mark.parametrize("beta, coordinates", [(0.0, False), (0.7, True)], ids=["plain", "centred-coordinates"])
@pytest.mark.parametrize("way", PATHS.values(), ids=list(PATHS))
def test_mask_is_the_same_as_dropping_locations(way: dict[str, Any], beta: float, coordinates: bool) -> None:
    features = _rand(3, 4, 10)
    grid = pp.spatial_coordinates(2, 5, pivots=2, dtype=torch.float64) if coordinates else None
    masks = torch.tensor([[True] * 10, [True, False] * 5, [False] * 9 + [True]])
    value, gradient = _value_and_gradient(
        lambda f: pp.second_order_pool(f, beta=beta, coordinates=grid, mask=masks, **way), features
    )
    weight = _randn(*value.shape, seed=5)
    # Newton-Schulz amplifies round-off on the rank-deficient moment of a single location.
    near = tolerance(torch.float64, slack=1000 if way.get("solver") == "newton_schulz" else 1)
    for index, mask in enumerate(masks):
        kept = features[index, :, mask].requires_grad_()
        kept_grid = None if grid is None else grid[:, mask]
        expected = pp.second_order_pool(kept, beta=beta, coordinates=kept_grid, **way)
        (expected * weight[index]).sum().backward()
        torch.testing.assert_close(value[index], expected.detach(), **near)
        torch.testing.assert_close(gradient[index][:, mask], kept.grad, **near)
        assert (gradient[index][:, ~mask] == 0).all()


@pytest.mark.parametrize("reduce", ["mean", "max"])
def test_mask_is_the_same_as_dropping_locations_in_first_order(reduce: str) -> None:
    features = _randn(3, 4, 10)
    masks = torch.tensor([[True] * 10, [True, False] * 5, [False] * 9 + [True]])
    result = pp.first_order_pool(features, pp.AsinhE(3.0), reduce=reduce, mask=masks)
    for index, mask in enumerate(masks):
        expected = pp.first_order_pool(features[index][:, mask], pp.AsinhE(3.0), reduce=reduce)
        torch.testing.assert_close(result[index], expected, **tolerance(torch.float64))


def test_coordinates_are_not_centred() -> None:
    features, grid = _rand(2, 4, 6), pp.spatial_coordinates(2, 3, pivots=2, dtype=torch.float64)
    result = pp.second_order_pool(features, beta=1.0, coordinates=grid)
    torch.testing.assert_close(result[0, 4:, 4:], grid @ grid.mT / 6, **tolerance(torch.float64))
    centred = features - features.mean(-1, keepdim=True)
    torch.testing.assert_close(result[:, :4, 4:], centred @ grid.mT / 6, **tolerance(torch.float64))
