"""Round-off in the null space of a moment: singular features of every rank and scale, against 50 digits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from mpmath import mpf
from torch import Tensor

import powerpool as pp
from powerpool.errors import NotFiniteError
from powerpool.selfcheck import oracle
from powerpool.solvers.spectrum import eigh, noise_floor
from tests import oracles
from tests.cases import CURVES, CurveCase, exact_solvers

CHANNELS = 6
SHAPES = [(1, 4), (4, 4), (3, 6), (6, 6), (2, 16), (6, 16)]
"""Ranks and numbers of locations: below, at and above the number of channels, up to full rank."""
SCALES = [2.0**-20, 2.0**7, 2.0**20]

STEEP = [
    CurveCase("asinhe-1000", lambda: pp.AsinhE(1000.0), oracles.asinhe(1000.0)),
    CurveCase("gamma-0.1", lambda: pp.Gamma(0.1), oracles.gamma(0.1)),
    CurveCase("gamma-0.3", lambda: pp.Gamma(0.3), oracles.gamma(0.3)),
]
every_curve = pytest.mark.parametrize("case", [*CURVES, *STEEP], ids=str)
TINY = 1e-35
"""Below this float32 underflows."""
steep_curves = pytest.mark.parametrize(
    "make",
    [lambda: pp.AsinhE(10.0), lambda: pp.SigmE(5.0, trace_normalize=False), lambda: pp.Gamma(0.2)],
    ids=["asinhe-10", "sigme-5-raw", "gamma-0.2"],
)


def _integers(rank: int, locations: int) -> Tensor:  # shape: (C, N)
    """Features of exactly this rank, which float32 and their moment in 50 digits hold without rounding."""
    generator = torch.Generator().manual_seed(100 * rank + locations)

    def draw(*shape: int) -> Tensor:
        return torch.randint(-3, 4, shape, generator=generator, dtype=torch.float64)

    while True:
        features = draw(CHANNELS, rank) @ draw(rank, locations)
        values = torch.linalg.svdvals(features)
        # Float32 cannot resolve worse conditions with any solver; they are compared with float64 below.
        if values[rank - 1] > 0.05 * values[0]:
            return features


@cache
def _spectrum(rank: int, locations: int) -> oracle.Spectrum:
    return oracle.spectrum(oracle.moment(oracle.exact(_integers(rank, locations).tolist())))


def _scaled_spectrum(rank: int, locations: int, scale: float) -> oracle.Spectrum:
    """The decomposition of a multiple, without computing it again."""
    found, factor = _spectrum(rank, locations), mpf(scale) ** 2
    with oracle.exactly():
        values = tuple(factor * value for value in found.eigenvalues)
        return oracle.Spectrum(found.matrix * factor, values, found.vectors)


def _upstream(size: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(-4, 4, (size, size), generator=generator, dtype=torch.float64) / 4 + 0.125


def _tensor(matrix: oracle.Matrix) -> Tensor:
    return torch.tensor(oracle.floats(matrix), dtype=torch.float64)


def _run(apply: Callable[[Tensor], Tensor], given: Tensor, upstream: Tensor) -> tuple[Tensor, Tensor]:
    leaf = given.clone().requires_grad_()
    value = apply(leaf)
    return value.detach(), torch.autograd.grad(value, leaf, upstream.to(value.dtype))[0]


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@every_curve
def test_singular_features_against_fifty_digits(case: CurveCase) -> None:
    """Value and gradient, for every rank, number of locations and scale, by every solver, without any rule for 0."""
    curve, upstream = case.make(), _upstream(CHANNELS)
    for rank, locations in SHAPES:
        features = _integers(rank, locations)
        for scale in SCALES:
            given = scale * features
            spectrum = _scaled_spectrum(rank, locations, scale)
            scalar, rows = case.reference.scalar, oracle.exact(given.tolist())
            answer = oracle.pool(rows, spectrum, oracle.exact(upstream.tolist()), scalar)
            value, gradient = _tensor(answer.value), _tensor(answer.gradient)
            for solver in ["auto", "gram", *exact_solvers(curve)]:
                for dtype in (torch.float32, torch.float64):
                    apply = partial(pp.second_order_pool, curve=curve, solver=solver)
                    if value.abs().max() > torch.finfo(dtype).max:
                        with pytest.raises(NotFiniteError, match=str(dtype)):
                            apply(given.to(dtype))
                        continue
                    found = _run(apply, given.to(dtype), upstream)
                    where = f"rank {rank}, N {locations}, scale {scale:g}, {solver}, {dtype}"
                    assert float((found[0].double() - value).norm()) < 2e-5 * float(value.norm()) + TINY, where
                    # The gradient of a saturated curve, or through the trace, may be smaller than its round-off.
                    round_off = (1e-14 if curve.needs_float64 else 1e-6) * float(answer.gradient_size)
                    allowed = 1e-4 * float(gradient.norm()) + round_off + TINY
                    assert float((found[1].double() - gradient).norm()) < allowed, where


LARGE = {
    "rank-8": lambda: _normal(32, 8) @ _normal(8, 64),
    "rank-8-few-locations": lambda: _normal(32, 8) @ _normal(8, 24),
    "rank-8-almost-square": lambda: _normal(32, 8) @ _normal(8, 30),
    "duplicated-channels": lambda: _normal(16, 64).repeat(2, 1),
    "duplicated-locations": lambda: _normal(32, 16).repeat(1, 4),
    "constant": lambda: torch.full((32, 64), 0.7312),
    "square": lambda: torch.relu(_normal(96, 96) + 0.5),
}


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("name", LARGE)
@steep_curves
def test_float32_is_float64(make: Callable[[], pp.Curve], name: str) -> None:
    """Of features that are singular exactly or up to round-off, and of a square matrix with small eigenvalues."""
    curve = make()
    for scale in (1e-6, 1.0, 100.0, 1000.0, 1e6):
        features = scale * LARGE[name]()
        upstream = _upstream(features.shape[0])
        for solver in ("auto", "eigen", "gram"):
            apply = partial(pp.second_order_pool, curve=curve, solver=solver)
            value, gradient = _run(apply, features, upstream)
            exact_value, exact_gradient = _run(apply, features.double(), upstream)
            assert value.dtype == torch.float32
            assert _error(value, exact_value) < 1e-6, (scale, solver)
            allowed = 1e-3 * float(exact_gradient.norm()) + TINY
            assert float((gradient.double() - exact_gradient).norm()) < allowed, (scale, solver)


@pytest.mark.parametrize("name", [name for name in LARGE if name != "square"])
@steep_curves
def test_null_space_of_a_float32_moment(make: Callable[[], pp.Curve], name: str) -> None:
    """A matrix or factors in float32: the null space is dropped, in the value and in the gradient."""
    curve = make()
    for scale in (1.0, 100.0, 1000.0):
        features = scale * LARGE[name]()
        exact = pp.second_order_pool(features.double(), curve)
        assert _error(pp.gram_factor(features, curve).dense(), exact) < 2e-4, scale
        moment = pp.autocorrelation(features)
        value, gradient = _run(partial(pp.spectral, curve=curve), moment, _upstream(len(moment)))
        assert _error(value, exact) < 2e-4, scale
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("case", [c for c in CURVES if c.name in ("asinhe-10", "sigme-5-raw")], ids=str)
def test_gradient_between_null_vectors_of_a_steep_curve(case: CurveCase) -> None:
    """Of a singular matrix: the slope at 0, or 0 where the curve at the noise floor is above a hundredth."""
    upstream = oracle.exact(_upstream(CHANNELS).tolist())
    scalar = case.reference.scalar
    for scale, expected in ((1.0, scalar), (1000.0, replace(scalar, infinite_slope=True))):
        scaled = _scaled_spectrum(3, 4, scale)
        right = _tensor(oracle.spectral(scaled, upstream, expected).gradient)
        matrix = _tensor(scaled.matrix).float()
        assert torch.equal(matrix.double(), _tensor(scaled.matrix))
        _, found = _run(partial(pp.spectral, curve=case.make()), matrix, _upstream(CHANNELS))
        assert _error(found, right) < 1e-4
        assert scaled.eigenvalues.count(0) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("channels, locations", [(8, 64), (32, 2000), (64, 49), (256, 300)])
def test_noise_floor_is_above_the_noise(channels: int, locations: int, dtype: torch.dtype) -> None:
    """For moments in both spaces, from rank 1 to just below full rank."""
    for rank in {1, 2, min(channels, locations) // 2, min(channels, locations) - 1}:
        copies = torch.arange(channels) % rank
        for features in (
            _normal(channels, rank).double() @ _normal(rank, locations).double(),
            (_normal(rank, locations) + 0.5).relu()[copies],
        ):
            x = features.to(dtype)
            for matrix in (x @ x.mT / locations, x.mT @ x):
                if len(matrix) > 512:
                    continue
                values, _ = eigh(matrix)
                null = values.abs().sort().values[: len(values) - rank]
                assert null.max() <= noise_floor(values), (rank, len(matrix))
                # ... and not far above: it must not drop small eigenvalues.
                assert noise_floor(values) <= 40 * torch.finfo(dtype).eps * values.max()


@pytest.mark.parametrize("locations", [3, 9])
@pytest.mark.parametrize("gamma", [0.2, 0.5, 0.75])
def test_scale_of_a_power(gamma: float, locations: int) -> None:
    """Features whose moment underflows have a root, and a gradient, and so have their neighbours in the batch."""
    features = _normal(5, locations)
    upstream = _upstream(5)
    scales = [1e-25, 1e-20, 1.0, 1e15, 1e18]
    for solver in ("auto", "eigen", "gram"):
        apply = partial(pp.second_order_pool, curve=pp.Gamma(gamma), solver=solver)
        value, gradient = _run(apply, features.double(), upstream)
        values, gradients = _run(apply, torch.stack([scale * features for scale in scales]), upstream.expand(5, 5, 5))
        for index, scale in enumerate(scales):
            assert _error(values[index], value * scale ** (2 * gamma)) < 1e-4
            assert _error(gradients[index], gradient * scale ** (2 * gamma - 1)) < 1e-3
        torch.testing.assert_close(values[2], apply(features), rtol=1e-6, atol=1e-6)
        for scale in (1e-25, 1e18):
            dense = pp.gram_factor(scale * features, pp.Gamma(gamma)).dense()
            assert _error(dense, value * scale ** (2 * gamma)) < 1e-4


def test_learnable_power_of_tiny_features() -> None:
    """d/dgamma of s^(2 gamma) F is s^(2 gamma) (F' + 2 log(s) F)."""
    upstream, scale = _upstream(5), 1e-25
    results = []
    for features in (_normal(5, 9).double(), scale * _normal(5, 9)):
        gamma = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
        value = pp.second_order_pool(features, pp.Gamma(gamma))
        (slope,) = torch.autograd.grad((value.double() * upstream).sum(), gamma)
        results.append(((value.detach().double() * upstream).sum(), slope))
    (inner, slope), (_, found) = results
    expected = scale * (slope + 2 * torch.log(torch.tensor(scale, dtype=torch.float64)) * inner)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


def test_power_of_a_set_of_zeros() -> None:
    features = torch.stack([torch.zeros(4, 6), 1e-30 * _normal(4, 6)])
    value, gradient = _run(partial(pp.second_order_pool, curve=pp.Gamma(0.5)), features, _upstream(4).expand(2, 4, 4))
    assert (value[0] == 0).all()
    assert (gradient[0] == 0).all()
    assert (value[1] != 0).all()
    assert (gradient[1] != 0).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: pp.second_order_pool(1e15 * _normal(4, 9), pp.Gamma(2)),
        lambda: pp.second_order_pool(1e15 * _normal(9, 4), pp.Gamma(2)),
        lambda: pp.second_order_pool(1e15 * _normal(4, 9), pp.Gamma(2.5), solver="eigen"),
        lambda: pp.second_order_pool(1e15 * _normal(4, 9).abs(), pp.Gamma(2), mode="elementwise"),
        lambda: pp.second_order_pool(1e15 * _normal(4, 9), pp.Gamma(1), slope=1e10),
        lambda: pp.spectral(1e30 * torch.eye(3), pp.Gamma(2)),
        lambda: pp.elementwise(1e30 * torch.eye(3), pp.Gamma(2)),
    ],
)
def test_overflow_of_a_power_is_an_error(call: Callable[[], Tensor]) -> None:
    with pytest.raises(NotFiniteError, match=r"e\+.*float32"):
        call()


@pytest.mark.parametrize("pool", [pp.autocorrelation, pp.second_order_pool], ids=["autocorrelation", "pool"])
def test_a_half_precision_result_that_overflows_is_refused(pool: Callable[..., Tensor]) -> None:
    with pytest.raises(NotFiniteError, match="float16"):
        pool(torch.full((2, 8, 20), 999.0, dtype=torch.float16), check=True)


@pytest.mark.parametrize("curve", [pp.HDP(1e-6), pp.SigmE(5e4), pp.MaxExp(20000.5)], ids=str)
def test_steep_curves_that_divide_by_the_trace_are_computed_in_float64(curve: pp.curves.Curve) -> None:
    torch.manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(24, 24, dtype=torch.float64)).Q for _ in range(2))
    features = ((left * torch.logspace(0, -3, 24, dtype=torch.float64)) @ right).float()
    found, expected = (pp.second_order_pool(given, curve, solver="eigen") for given in (features, features.double()))
    assert (found - expected).norm() < 1e-6 * expected.norm()
