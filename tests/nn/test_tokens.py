"""Pools of tokens: the battery of pools, prefix tokens, masks, the grid, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import powerpool as pp
from powerpool.errors import ArgumentError, DTypeError, NotFiniteError, ShapeError, UnknownNameError
from tests import oracles
from tests.contracts.pool import BATTERY, CHANNELS, PoolCase, first_order, maps, second_order
from tests.tolerances import tolerance


class OfMaps(nn.Module):
    """A pool of tokens behind the face of a pool of maps, for the battery; prefix tokens are arbitrary."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool, self.curve, self.out_features = pool, pool.curve, pool.out_features

    def forward(self, given: Tensor) -> Tensor:
        tokens = given.flatten(-2).mT
        prefix = torch.full_like(tokens[..., :1, :], -7.0).expand(*tokens.shape[:-2], self.pool.prefix_tokens, -1)
        grid = () if isinstance(self.pool, pp.nn.FirstOrderPool1d) else (given.shape[-2:],)
        return self.pool(torch.cat([prefix, tokens], dim=-2), None, *grid)


def _first(name: str, reduce: str, curve: pp.Curve | None, reference: Any, **options: Any) -> PoolCase:
    return PoolCase(
        name,
        lambda **more: OfMaps(pp.nn.FirstOrderPool1d(CHANNELS, curve, reduce=reduce, **options, **more)),
        lambda one: first_order(one, reduce, reference),
        out_features=CHANNELS,
    )


def _second(name: str, curve: pp.Curve | None, reference: Any, pivots: int = 0, **options: Any) -> PoolCase:
    size = CHANNELS + 2 * pivots
    own = {key: options[key] for key in ("mode", "beta") if key in options}
    return PoolCase(
        name,
        lambda **more: OfMaps(pp.nn.SecondOrderPool1d(CHANNELS, curve, coordinates=pivots, **options, **more)),
        lambda one: second_order(one, pivots, reference=reference, **{"mode": "spectral", "beta": 0.0, **own}),
        out_features=size * (size + 1) // 2,
    )


POOLS = [
    _first("mean", "mean", None, None, prefix_tokens=2),
    _first("max-gamma", "max", pp.Gamma(0.5), oracles.gamma(0.5)),
    _second("plain", None, None, pivots=2, beta=1.0, prefix_tokens=1),
    _second("elementwise", pp.SigmE(5.0), oracles.sigme(5.0), mode="elementwise", beta=0.5, pivots=2, prefix_tokens=5),
    _second("spectral", pp.MaxExp(7), oracles.maxexp(7), prefix_tokens=1),
    _second("gram", pp.MaxExp(7), oracles.maxexp(7), solver="gram", beta=0.5, prefix_tokens=1),
]
CHECKS = [check for check in BATTERY if check.__name__ != "check_bad_input_is_refused"]  # its shapes are those of maps


@pytest.mark.parametrize("case", POOLS, ids=str)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_battery(case: PoolCase, check: Callable[[PoolCase], None]) -> None:
    check(case)


def tokens(*leading: int, number: int = 7, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(*leading, number, CHANNELS, generator=generator, dtype=torch.float64).to(dtype) + 0.1


def make(**options: Any) -> list[nn.Module]:
    """Return one pool of each kind; factors have no class token."""
    vectors = [
        pp.nn.FirstOrderPool1d(CHANNELS, pp.AsinhE(3.0), **options),
        pp.nn.SecondOrderPool1d(CHANNELS, pp.MaxExp(7), **options),
    ]
    return vectors if "cls" in options else [*vectors, pp.nn.SecondOrderFactor1d(CHANNELS, pp.MaxExp(7), **options)]


def dense(result: Any) -> Tensor:
    return result.dense() if isinstance(result, pp.GramFactor) else result


# ---- masks -----------------------------------------------------------------------------------------------------------


def test_masked_tokens_do_not_count() -> None:
    given = tokens(2).requires_grad_()
    mask = torch.tensor([[True] * 7, [True, False, True, False, True, True, False]])
    for pool in make(prefix_tokens=1):
        result = dense(pool(given, mask))
        torch.testing.assert_close(result[0], dense(pool(given[:1]))[0], **tolerance(torch.float64))
        kept = given[1:, mask[1]]
        torch.testing.assert_close(result[1], dense(pool(kept))[0], **tolerance(torch.float64))
        (grad,) = torch.autograd.grad(result.square().sum(), given)
        assert not grad[1, [1, 3, 6]].any()
        assert grad[1, 2].any()


def test_the_mask_of_prefix_tokens_is_not_used_and_masks_broadcast() -> None:
    given, mask = tokens(3), torch.ones(7, dtype=torch.bool)
    mask[0] = False
    for pool in make(prefix_tokens=1):
        assert torch.equal(dense(pool(given, mask)), dense(pool(given)))


def test_nan_in_a_masked_token_reaches_neither_values_nor_gradients() -> None:
    given = tokens(2)
    clean = given.clone()
    given[0, 3], clean[0, 3] = torch.nan, 1.0
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, 3] = False
    pool = pp.nn.SecondOrderPool1d(CHANNELS, pp.MaxExp(7), reduce_to=3, unit_scale=True, prefix_tokens=1).double()
    results = []
    for one in (given, clean):
        pool.zero_grad()
        result = pool(one, mask)
        result.square().sum().backward()
        results.append((result.detach(), pool.reduction[0].weight.grad.clone()))
    assert torch.isfinite(results[0][1]).all()
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_unit_scale_counts_the_tokens_that_are_not_masked() -> None:
    given, mask = tokens(2), torch.arange(7) < torch.tensor([[7], [4]])
    pool = pp.nn.SecondOrderPool1d(CHANNELS, pp.AsinhE(3.0), unit_scale=True, prefix_tokens=1)
    norm = given[1, 1:4].square().sum(-1).mean().sqrt()
    expected = pp.nn.SecondOrderPool1d(CHANNELS, pp.AsinhE(3.0))(given[1, 1:4] / norm)
    torch.testing.assert_close(pool(given, mask)[1], expected, **tolerance(torch.float64))


# ---- the class token -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_the_class_token_and_the_pooled_vector_both_have_unit_norm(scale: float) -> None:
    given = tokens(2)
    given[:, 0] *= scale
    for alone, pool in zip(make(prefix_tokens=3), make(prefix_tokens=3, cls="concat"), strict=False):
        result = pool(given)
        assert pool.out_features == result.shape[-1] == alone.out_features + CHANNELS
        vector, token = alone(given), given[:, 0]
        expected = torch.cat([part / part.norm(dim=-1, keepdim=True) for part in (vector, token)], dim=-1)
        torch.testing.assert_close(result, expected, **tolerance(torch.float64))
        torch.testing.assert_close(result.norm(dim=-1), torch.full((2,), 2.0, dtype=torch.float64).sqrt())
        assert "cls='concat'" in repr(pool)


def test_unit_norm_is_that_of_the_whole_vector() -> None:
    for pool in make(prefix_tokens=1, cls="concat", unit_norm=True):
        torch.testing.assert_close(pool(tokens(2)).norm(dim=-1), torch.ones(2, dtype=torch.float64))


def test_gradients_of_both_parts() -> None:
    for pool in make(prefix_tokens=1, cls="concat"):
        assert gradcheck(pool, (tokens(2).requires_grad_(),), fast_mode=True, check_forward_ad=True)


def test_nan_in_the_class_token_is_refused_only_where_it_is_used() -> None:
    given = tokens(2)
    given[1, 0, 0] = torch.nan
    for pool in make(prefix_tokens=1):
        assert torch.isfinite(dense(pool(given))).all()
    for pool in make(prefix_tokens=1, cls="concat"):
        with pytest.raises(NotFiniteError, match="class token"):
            pool(given)
        pool.check = False
        assert pool(given)[1].isnan().any()


# ---- reduction, coordinates, crops -----------------------------------------------------------------------------------


def test_reduction_is_a_rectified_linear_layer_with_the_weights_of_a_convolution() -> None:
    pool = pp.nn.SecondOrderPool1d(CHANNELS, pp.MaxExp(7), reduce_to=3, coordinates=2, beta=0.5, grid=(2, 3)).double()
    other = pp.nn.SecondOrderPool2d(CHANNELS, pp.MaxExp(7), reduce_to=3, coordinates=2, beta=0.5).double()
    with torch.no_grad():
        other.reduction[0].weight.copy_(pool.reduction[0].weight[:, :, None, None])
    given = maps(2)  # H, W = 2, 3
    torch.testing.assert_close(pool(given.flatten(2).mT), other(given), **tolerance(torch.float64))
    assert list(pool.state_dict()) == ["curve._extra_state", "reduction.0.weight"]


def test_coordinates_need_the_grid_unless_it_is_a_square() -> None:
    given = maps(2)
    pool = pp.nn.SecondOrderPool1d(CHANNELS, coordinates=2, prefix_tokens=1)
    patches = torch.cat([given.new_zeros(2, 1, CHANNELS), given.flatten(2).mT], dim=1)
    expected = pp.nn.SecondOrderPool2d(CHANNELS, coordinates=2)(given)
    with pytest.raises(ShapeError, match=r"6 tokens \(got 2 x 2\).*grid="):
        pool(patches)
    torch.testing.assert_close(pool(patches, grid=(2, 3)), expected, **tolerance(torch.float64))
    pool.grid = (2, 3)
    torch.testing.assert_close(pool(patches), expected, **tolerance(torch.float64))
    with pytest.raises(ShapeError, match="3 x 3"):
        pool(patches, grid=(3, 3))
    square = maps(2)[..., :2]
    squared = pp.nn.SecondOrderPool1d(CHANNELS, coordinates=2)(square.flatten(2).mT)
    expected = pp.nn.SecondOrderPool2d(CHANNELS, coordinates=2)(square)
    torch.testing.assert_close(squared, expected, **tolerance(torch.float64))


def test_crops_are_pooled_as_one_set() -> None:
    given = tokens(2, 3, number=5)
    together = torch.cat([given[:, :, :1].mean(1), given[:, :, 1:].flatten(1, 2)], dim=1)  # (2, 1 + 3 * 4, C)
    mask = torch.ones(2, 3, 5, dtype=torch.bool)
    mask[1, 2, 3:] = False
    flat_mask = torch.cat([mask[:, 0, :1], mask[:, :, 1:].flatten(1)], dim=1)
    for options in ({"prefix_tokens": 1}, {"prefix_tokens": 1, "cls": "concat"}):
        for pool, plain in zip(make(crops=True, **options), make(**options), strict=True):
            result, expected = dense(pool(given, mask)), dense(plain(together, flat_mask))
            torch.testing.assert_close(result, expected, **tolerance(torch.float64))
    grid = pp.spatial_coordinates(2, 2, pivots=2, dtype=torch.float64).repeat(1, 3)
    features, codes = pp.nn.SecondOrderPool1d(CHANNELS, coordinates=2, crops=True, prefix_tokens=1).feature_sets(given)
    assert torch.equal(codes, grid)
    assert torch.equal(features, together[:, 1:].mT)


def test_a_factor_is_that_of_the_pool() -> None:
    options = {"beta": 0.5, "prefix_tokens": 1, "trace_power": 0.5, "slope": 0.1}
    factor = pp.nn.SecondOrderFactor1d(CHANNELS, pp.MaxExp(7), **options)
    pool = pp.nn.SecondOrderPool1d(CHANNELS, pp.MaxExp(7), solver="gram", **options)
    torch.testing.assert_close(pp.to_vector(factor(tokens(2)).dense()), pool(tokens(2)), **tolerance(torch.float64))
    assert pp.nn.FactoredHead(factor.size, classes=3)(factor(tokens(2, dtype=torch.float32))).shape == (2, 3)


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_maps_and_tokens_are_told_apart_by_name() -> None:
    for flat, deep in (
        (pp.nn.SecondOrderPool1d(8), pp.nn.SecondOrderPool2d(8)),
        (pp.nn.FirstOrderPool1d(8), pp.nn.FirstOrderPool2d(8)),
        (pp.nn.SecondOrderFactor1d(8), pp.nn.SecondOrderFactor2d(8)),
    ):
        for shape in ((2, 8, 7, 7), (2, 8, 7, 8)):  # the second could be tokens with two leading dimensions
            with pytest.raises(ShapeError, match=type(deep).__name__):
                flat(torch.rand(shape))
        with pytest.raises(ShapeError, match=type(flat).__name__):
            deep(torch.rand(2, 50, 8))
        video = torch.rand(5, 8, 10, 8)  # 5 videos of 8 frames, as many as channels
        with pytest.raises(ShapeError, match=r"flatten\(0, -3\)"):
            flat(video)
        flat(video.flatten(0, -3))


@pytest.mark.parametrize(
    "call, error, key",
    [
        (lambda: pp.nn.SecondOrderPool1d(0), ArgumentError, "got 0"),
        (lambda: pp.nn.SecondOrderPool1d(4, prefix_tokens=-1), ArgumentError, "got -1"),
        (lambda: pp.nn.SecondOrderPool1d(4, cls="keep"), UnknownNameError, "'drop', 'concat'"),
        (lambda: pp.nn.SecondOrderPool1d(4, reduce_to=0), ArgumentError, "reduce_to"),
        (lambda: pp.nn.SecondOrderPool1d(4)(torch.rand(2, 3, 5)), ShapeError, r"N, 4\).*\(2, 3, 5\)"),
        (lambda: pp.nn.SecondOrderPool1d(4)(torch.rand(4)), ShapeError, r"\(4,\)"),
        (lambda: pp.nn.SecondOrderPool1d(4, crops=True)(torch.rand(3, 4)), ShapeError, r"crops, N, 4"),
        (lambda: pp.nn.SecondOrderPool1d(4, prefix_tokens=3)(torch.rand(2, 3, 4)), ShapeError, "prefix_tokens=3"),
        (lambda: pp.nn.SecondOrderPool1d(4, cls="concat")(torch.rand(2, 3, 4)), ArgumentError, "prefix_tokens"),
        (lambda: pp.nn.SecondOrderPool1d(4)(torch.ones(2, 3, 4, dtype=torch.int64)), DTypeError, "int64"),
        (lambda: pp.nn.SecondOrderPool1d(4)(torch.rand(2, 3, 4), torch.ones(2, 3)), DTypeError, "float32"),
        (lambda: pp.nn.SecondOrderPool1d(4)(torch.rand(2, 3, 4), torch.ones(2, 4) > 0), ShapeError, r"\(2, 4\)"),
        (lambda: pp.nn.SecondOrderPool1d(4)(torch.rand(2, 3, 4), torch.zeros(2, 3) > 0), ValueError, "2 set"),
    ],
)
def test_bad_arguments(call: Callable[[], Any], error: type[Exception], key: str) -> None:
    with pytest.raises(error, match=key):
        call()


def test_compiled_and_exported_pools_are_equal() -> None:
    pool = pp.nn.SecondOrderPool1d(CHANNELS, pp.MaxExp(7), reduce_to=3, prefix_tokens=1, cls="concat")
    given = tokens(2, dtype=torch.float32)
    expected = pool(given)
    compiled = torch.compile(pool, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(given), expected, **tolerance(torch.float32))
    exported = torch.export.export(pool, (given,)).module()
    torch.testing.assert_close(exported(given), expected, **tolerance(torch.float32))
