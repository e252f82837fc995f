"""Pools: the battery, the reduction, coordinates, and sets of crops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

import powerpool as pp
from powerpool.errors import ArgumentError, NotFiniteError, ShapeError
from tests import oracles
from tests.contracts.pool import BATTERY, CHANNELS, PoolCase, first_order, maps, second_order
from tests.oracles import Reference
from tests.tolerances import tolerance


def _first(name: str, reduce: str, curve: pp.Curve | None = None, reference: Reference | None = None) -> PoolCase:
    return PoolCase(
        name,
        lambda **options: pp.nn.FirstOrderPool2d(CHANNELS, curve, reduce=reduce, **options),
        lambda one: first_order(one, reduce, reference),
        out_features=CHANNELS,
    )


def _second(
    name: str,
    curve: pp.Curve | None,
    reference: Reference | None,
    mode: str = "spectral",
    solver: str | pp.solvers.Solver = "auto",
    beta: float = 0.0,
    pivots: int = 0,
    **residual: float,
) -> PoolCase:
    size = CHANNELS + 2 * pivots
    return PoolCase(
        name,
        lambda **options: pp.nn.SecondOrderPool2d(
            CHANNELS, curve, mode, beta, pivots, solver=solver, **residual, **options
        ),
        lambda one: second_order(one, pivots, mode=mode, reference=reference, beta=beta, **residual),
        out_features=size * (size + 1) // 2,
    )


POOLS = [
    _first("mean", "mean"),
    _first("max", "max"),
    _first("mean-asinhe", "mean", pp.AsinhE(3.0), oracles.asinhe(3.0)),
    _first("max-gamma", "max", pp.Gamma(0.5), oracles.gamma(0.5)),
    _second("plain", None, None),
    _second("plain-covariance-coordinates", None, None, beta=1.0, pivots=2),
    _second("elementwise-sigme", pp.SigmE(5.0), oracles.sigme(5.0), "elementwise", beta=0.5, pivots=2),
    _second("elementwise-maxexp", pp.MaxExp(7), oracles.maxexp(7), "elementwise"),
    _second("elementwise-residual", pp.HDP(0.1), oracles.hdp(0.1), "elementwise", trace_power=0.5, slope=0.1),
    _second("auto-maxexp", pp.MaxExp(50), oracles.maxexp(50)),
    _second("squaring-maxexp", pp.MaxExp(7), oracles.maxexp(7), solver="squaring", beta=0.5, pivots=2),
    _second("gram-maxexp", pp.MaxExp(7), oracles.maxexp(7), solver="gram", beta=0.5, pivots=2),
    _second("gram-asinhe", pp.AsinhE(3.0), oracles.asinhe(3.0), solver="gram", trace_power=0.5, slope=0.1),
    _second("eigen-hdp", pp.HDP(0.1), oracles.hdp(0.1), solver="eigen", slope=0.1),
    _second("eigen-fahdp", pp.FAHDP(0.3, "identity"), oracles.fahdp(0.3, "identity"), solver="eigen", trace_power=0.5),
    _second("newton_schulz", pp.Gamma(0.5), oracles.gamma(0.5), solver=pp.solvers.NewtonSchulz(30)),
]


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("check", BATTERY, ids=lambda check: check.__name__.removeprefix("check_"))
def test_battery(case: PoolCase, check: Callable[[PoolCase], None]) -> None:
    check(case)


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)], ids=str)
def test_reduction_is_a_rectified_convolution_for_any_leading_dimensions(leading: tuple[int, ...]) -> None:
    pool = pp.nn.SecondOrderPool2d(CHANNELS, pp.MaxExp(7), reduce_to=3, coordinates=2, beta=0.5).double()
    given = maps(*leading)
    weight = pool.reduction[0].weight[:, :, 0, 0]  # (3, C)
    reduced = torch.einsum("kc,...chw->...khw", weight, given).relu()
    expected = pp.nn.SecondOrderPool2d(3, pp.MaxExp(7), coordinates=2, beta=0.5)(reduced)
    result = pool(given)
    assert pool.size == 3 + 4
    assert result.shape == (*leading, pool.out_features) == (*leading, 28)
    torch.testing.assert_close(result, expected, **tolerance(torch.float64))


def test_reduction_trains_and_is_saved() -> None:
    pool = pp.nn.SecondOrderPool2d(CHANNELS, pp.MaxExp(7), reduce_to=3).double()
    assert [tuple(weight.shape) for weight in pool.parameters()] == [(3, CHANNELS, 1, 1)]
    assert list(pool.state_dict()) == ["curve._extra_state", "reduction.0.weight"]
    weight = pool.reduction[0].weight.detach().abs()
    pool.reduction[0].weight = nn.Parameter(weight)  # away from the kink of ReLU

    def with_weight(value: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(pool, {"reduction.0.weight": value}, maps(2))

    assert gradcheck(with_weight, (weight.clone().requires_grad_(),), fast_mode=True, check_forward_ad=True)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_reduction_hides_nothing(bad: float, sign: float) -> None:
    pool = pp.nn.SecondOrderPool2d(CHANNELS, pp.MaxExp(7), reduce_to=2)
    nn.init.constant_(pool.reduction[0].weight, sign)  # a plain ReLU would turn -inf into 0
    given = maps(3, dtype=torch.float32)
    expected = pool(given)
    given[1, 0, 0, 0] = bad
    with pytest.raises(NotFiniteError, match="2 NaN"):
        pool(given)
    pool.check = False
    assert pool(given)[1].isnan().all()
    torch.testing.assert_close(pool(given)[::2], expected[::2], **tolerance(torch.float32))


def test_coordinates_have_their_width_weight_and_precision() -> None:
    pool = pp.nn.SecondOrderPool2d(CHANNELS, coordinates=3, sigma=0.3, alpha=0.7)
    grid = pp.spatial_coordinates(2, 3, pivots=3, sigma=0.3, alpha=0.7, dtype=torch.float64)
    expected = pp.to_vector(pp.second_order_pool(maps(2).flatten(-2), coordinates=grid))
    torch.testing.assert_close(pool(maps(2)), expected, **tolerance(torch.float64))


def test_coordinates_follow_the_size_of_the_map() -> None:
    pool = pp.nn.SecondOrderPool2d(CHANNELS, pp.MaxExp(7), coordinates=2)
    for height, width in [(1, 1), (1, 5), (4, 2)]:
        assert pool(torch.rand(2, CHANNELS, height, width)).shape == (2, pool.out_features)


# Sets of crops, unit scale and unit norm.


def _crops(*leading: int, crops: int = 3, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return maps(*leading, crops, dtype=dtype)


def test_crops_are_pooled_as_one_set() -> None:
    """The crops side by side are one wide map, but coordinates start anew in each crop."""
    given = _crops(2)
    features = torch.cat([given[:, crop].flatten(-2) for crop in range(3)], dim=-1)  # (2, C, 3 H W)
    grid = pp.spatial_coordinates(2, 3, pivots=2, dtype=torch.float64).repeat(1, 3)
    for curve, mode in ((pp.MaxExp(7), "spectral"), (pp.SigmE(5.0), "elementwise")):
        pool = pp.nn.SecondOrderPool2d(CHANNELS, curve, mode, beta=0.5, coordinates=2, crops=True)
        expected = pp.to_vector(pp.second_order_pool(features, curve, mode, 0.5, grid))
        torch.testing.assert_close(pool(given), expected, **tolerance(torch.float64))
        torch.testing.assert_close(pool(given[:, [2, 0, 1]]), expected, **tolerance(torch.float64))
        torch.testing.assert_close(pool(given[0]), expected[0], **tolerance(torch.float64))
        assert pool(given[:0]).shape == (0, pool.out_features)
    factor = pp.nn.SecondOrderFactor2d(CHANNELS, pp.MaxExp(7), coordinates=2, crops=True)(given)
    dense = pp.second_order_pool(features, pp.MaxExp(7), coordinates=grid)
    torch.testing.assert_close(factor.dense(), dense, **tolerance(torch.float64))
    first = pp.nn.FirstOrderPool2d(CHANNELS, crops=True)
    torch.testing.assert_close(first(given), given.mean((1, 3, 4)))
    reduced = pp.nn.SecondOrderPool2d(CHANNELS, pp.MaxExp(7), reduce_to=2, crops=True).double()
    weight = reduced.reduction[0].weight[:, :, 0, 0]
    expected = pp.to_vector(pp.second_order_pool((weight @ features).relu(), pp.MaxExp(7)))
    torch.testing.assert_close(reduced(given), expected, **tolerance(torch.float64))


@pytest.mark.parametrize("crops", [False, True], ids=["map", "crops"])
def test_unit_scale_and_unit_norm(crops: bool) -> None:
    given = _crops(2) if crops else maps(2)
    norms = given.square().sum(-3).flatten(1).mean(-1).sqrt()  # (2,), root mean square over locations
    scaled = given / norms.view(2, *[1] * (given.ndim - 1))
    pools = [
        lambda **options: pp.nn.SecondOrderPool2d(CHANNELS, pp.AsinhE(3.0), coordinates=2, crops=crops, **options),
        lambda **options: pp.nn.FirstOrderPool2d(CHANNELS, pp.AsinhE(3.0), crops=crops, **options),
    ]
    for make in pools:
        expected = make()(scaled)
        for scale in (1e-3, 1.0, 1e3):
            found = make(unit_scale=True)(scale * given)
            torch.testing.assert_close(found, expected, **tolerance(torch.float64))
        unit = make(unit_scale=True, unit_norm=True)(given)
        torch.testing.assert_close(unit, expected / expected.norm(dim=-1, keepdim=True), **tolerance(torch.float64))
        leaf = given.clone().requires_grad_()
        assert gradcheck(make(unit_scale=True, unit_norm=True), (leaf,), fast_mode=True, check_forward_ad=True)
        for shown in ("unit_scale=True", "unit_norm=True"):
            assert shown in repr(make(unit_scale=True, unit_norm=True))
            assert shown not in repr(make())


def test_a_map_of_zeros_has_a_vector_and_a_gradient_of_zeros() -> None:
    given = _crops(2)
    given[1] = 0
    for pool in (
        pp.nn.SecondOrderPool2d(CHANNELS, pp.MaxExp(7), crops=True, unit_scale=True, unit_norm=True),
        pp.nn.FirstOrderPool2d(CHANNELS, pp.AsinhE(3.0), crops=True, unit_scale=True, unit_norm=True),
    ):
        leaf = given.clone().requires_grad_()
        result = pool(leaf)
        (grad,) = torch.autograd.grad(result.square().sum() + result.sum(), leaf)
        assert torch.equal(result[1], torch.zeros_like(result[1]))
        assert torch.isfinite(grad).all()
        assert grad[0].abs().max() > 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pools_of_crops_return_float32_for_half_precision(dtype: torch.dtype) -> None:
    given = _crops(2, dtype=dtype)
    for options in ({"crops": True}, {"crops": True, "unit_scale": True}):
        for pool in (
            pp.nn.SecondOrderPool2d(CHANNELS, pp.MaxExp(7), coordinates=2, **options),
            pp.nn.FirstOrderPool2d(CHANNELS, **options),
        ):
            assert pool(given).dtype == torch.float32
            torch.testing.assert_close(pool(given), pool(given.float()), rtol=0, atol=0)


def test_maps_without_crops_are_refused_by_a_pool_of_crops() -> None:
    for pool in (pp.nn.SecondOrderPool2d(CHANNELS, crops=True), pp.nn.FirstOrderPool2d(CHANNELS, crops=True)):
        with pytest.raises(ShapeError, match=r"crops, 4.*\(4, 2, 3\)"):
            pool(maps())


@pytest.mark.parametrize("curve", [None, pp.MaxExp(7), pp.AsinhE(3.0)], ids=str)
def test_factor_of_a_map_is_that_of_the_pool(curve: pp.Curve | None) -> None:
    options = {"beta": 0.5, "coordinates": 2, "trace_power": 0.5, "slope": 0.1}
    factor = pp.nn.SecondOrderFactor2d(CHANNELS, curve, **options)
    pool = pp.nn.SecondOrderPool2d(CHANNELS, curve, solver="gram", **options)
    assert factor.size == CHANNELS + 4
    torch.testing.assert_close(pp.to_vector(factor(maps(2, 3)).dense()), pool(maps(2, 3)), **tolerance(torch.float64))


@pytest.mark.parametrize(
    "build, key",
    [
        (lambda: pp.nn.SecondOrderPool2d(0), "channels.*got 0"),
        (lambda: pp.nn.FirstOrderPool2d(0), "channels.*got 0"),
        (lambda: pp.nn.SecondOrderPool2d(4, reduce_to=0), "reduce_to.*got 0 and 0"),
        (lambda: pp.nn.SecondOrderPool2d(4, coordinates=-1), "coordinates.*got -1"),
        (lambda: pp.nn.SecondOrderPool2d(4, coordinates=1), "pivots.*got 1"),
        (lambda: pp.nn.SecondOrderPool2d(4, coordinates=3, sigma=0.0), "sigma.*got 0.0"),
    ],
)
def test_bad_arguments_are_refused_when_the_pool_is_built(build: Callable[[], nn.Module], key: str) -> None:
    with pytest.raises(ArgumentError, match=key):
        build()


def test_pool_inside_an_autocast_network_trains() -> None:
    torch.manual_seed(0)
    images, labels = torch.rand(16, 1, 6, 6), torch.arange(16) % 2
    images[labels == 1, :, ::2] *= 0.2  # one class has stripes
    pool = pp.nn.SecondOrderPool2d(8, pp.MaxExp(20), reduce_to=6, coordinates=2)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), pool, nn.Linear(pool.out_features, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    assert losses[-1] < 0.2 < losses[0]
