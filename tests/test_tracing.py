"""torch.compile, torch.func and torch.export equal eager mode, forward and backward, and read no values."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import powerpool as pp
from powerpool.errors import ArgumentError, NotFiniteError
from tests.tolerances import tolerance

# Dynamo instantiates every autograd.Function it traces, and torch warns about that.
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")

CHANNELS = 4
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "elementwise": {"curve": pp.SigmE(5.0), "mode": "elementwise"},
    "elementwise-gamma": {"curve": pp.Gamma(0.5), "mode": "elementwise"},
    "squaring": {"curve": pp.MaxExp(7), "solver": "squaring"},
    "gram": {"curve": pp.MaxExp(7), "solver": "gram"},
    "newton_schulz": {"curve": pp.Gamma(0.5), "solver": pp.solvers.NewtonSchulz(iterations=3)},
    "minimax": {"curve": pp.Gamma(0.5), "solver": "minimax"},
    "everything": {
        "curve": pp.MaxExp(5),
        "beta": 0.5,
        "coordinates": 2,
        "reduce_to": 3,
        "trace_power": 0.5,
        "slope": 0.1,
        "unit_scale": True,
        "unit_norm": True,
    },
}
# torch.compile(fullgraph=True) is supported without eigenvalues; transforms and export with them, too.
WITH_EIGENVALUES: dict[str, dict[str, Any]] = {
    "eigen": {"curve": pp.HDP(0.1), "solver": "eigen"},
    "gram-eigh": {"curve": pp.SigmE(5.0), "solver": "gram"},
}
COMPILED = ["squaring", "gram", "newton_schulz", "minimax", "everything"]
every_case_and_eigen = pytest.mark.parametrize(
    "options", [*CASES.values(), *WITH_EIGENVALUES.values()], ids=[*CASES, *WITH_EIGENVALUES]
)


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _pool(options: dict[str, Any], **more: Any) -> pp.nn.SecondOrderPool2d:
    torch.manual_seed(0)
    return pp.nn.SecondOrderPool2d(CHANNELS, **options, **more)


def _maps(*leading: int) -> Tensor:
    return torch.rand(*leading, CHANNELS, 3, 3, generator=torch.Generator().manual_seed(0))


def _run(module: Callable[[Tensor], Tensor], maps: Tensor) -> tuple[Tensor, Tensor]:
    leaf = maps.clone().requires_grad_()
    result = module(leaf)
    (result * torch.linspace(-1, 1, result.numel()).reshape(result.shape)).sum().backward()
    assert leaf.grad is not None
    return result.detach(), leaf.grad


def _assert_same(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **tolerance(torch.float32))


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_pool_is_the_eager_pool(name: str) -> None:
    pool = _pool(CASES[name])
    compiled = torch.compile(pool, fullgraph=True, backend="aot_eager")
    _assert_same(_run(compiled, _maps(2)), _run(pool, _maps(2)))


class _Curves(nn.Module):
    """Every curve with a number and with a learnable parameter."""

    def __init__(self) -> None:
        super().__init__()
        parameters = {pp.Gamma: 0.5, pp.MaxExp: 5.0, pp.SignedMaxExp: 5.0, pp.AsinhE: 3.0, pp.SigmE: 5.0, pp.HDP: 0.1}
        exact = lambda t: pp.FAHDP(t, "identity")  # noqa: E731
        kinds = [*parameters.items(), (exact, 0.3), (exact, 2.3)]
        learnt = [make(nn.Parameter(torch.tensor(value))) for make, value in kinds]
        self.curves = nn.ModuleList([*(make(value) for make, value in kinds), pp.FAHDP(0.3), *learnt])

    def forward(self, p: Tensor) -> Tensor:
        return torch.stack([curve(p) for curve in self.curves])


def test_compiled_and_exported_curves() -> None:
    p, gradients = torch.tensor([0.04, 0.35, 0.8]), []
    module = _Curves()
    for call in (module, torch.compile(module, fullgraph=True, backend="aot_eager")):
        module.zero_grad()
        result, grad = _run(call, p)
        gradients.append((result, grad, *(parameter.grad.clone() for parameter in module.parameters())))
    _assert_same(gradients[1], gradients[0])
    exported = torch.export.export(module, (p.flip(0),)).module()
    _assert_same((exported(p),), (module(p),))


def test_compiled_operators() -> None:
    mask, eta = torch.tensor([True] * 7 + [False] * 2), nn.Parameter(torch.tensor(5.0))
    sigme, maxexp, gamma, asinhe = pp.SigmE(eta), pp.MaxExp(7), pp.Gamma(2), pp.AsinhE(3.0)

    def call(maps: Tensor) -> Tensor:
        features = maps.flatten(-2)
        matrix = pp.second_order_pool(features, maxexp, mask=mask, beta=0.5)
        matrix = pp.elementwise(matrix, sigme) + pp.spectral(matrix, gamma, trace_power=0.5, slope=0.1)
        return pp.first_order_pool(features, asinhe, mask=mask).sum() + matrix.sum((-2, -1))

    gradients = []
    for run in (call, torch.compile(call, fullgraph=True, backend="aot_eager")):
        eta.grad = None
        gradients.append((*_run(run, _maps(2)), eta.grad))
    _assert_same(gradients[1], gradients[0])


def test_compiled_factored_head() -> None:
    pool = pp.nn.SecondOrderFactor2d(CHANNELS, pp.MaxExp(7))
    model = nn.Sequential(pool, pp.nn.FactoredHead(pool.size, classes=3, rank=2))
    _assert_same(_run(torch.compile(model, fullgraph=True, backend="aot_eager"), _maps(2)), _run(model, _maps(2)))


def test_one_compiled_graph_serves_every_batch_size() -> None:
    pool = _pool(CASES["squaring"] | {"beta": 0.5})
    backend = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(pool, fullgraph=True, backend=backend, dynamic=True)
    counts = []
    for batch in (2, 3, 7):
        _assert_same(_run(compiled, _maps(batch)), _run(pool, _maps(batch)))
        counts.append(backend.frame_count)
    assert counts == counts[:1] * 3


@pytest.mark.filterwarnings("ignore")  # of inductor itself
def test_inductor() -> None:
    if not any(shutil.which(name) for name in ("g++", "clang++", "c++")):
        pytest.skip("inductor, the default backend of torch.compile, needs a C++ compiler")
    # Without division by the trace tanh(inf) = 1: only the mark of bad input, which a compiler might fold, is NaN.
    pool = _pool({"curve": pp.SigmE(5.0, trace_normalize=False), "mode": "elementwise"})
    compiled = torch.compile(pool, fullgraph=True)
    _assert_same(_run(compiled, _maps(3)), _run(pool, _maps(3)))
    maps = _maps(3)
    maps[1, 0, 0, 0] = torch.inf
    result, _ = _run(compiled, maps)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[::2], pool(_maps(3))[::2], **tolerance(torch.float32))


def test_checks_are_off_while_compiling_and_cannot_be_forced() -> None:
    maps = _maps(3)
    maps[1, 0, 0, 0] = torch.nan
    pool = _pool(CASES["squaring"])
    with pytest.raises(NotFiniteError, match="1 NaN"):
        pool(maps)
    result = torch.compile(pool, fullgraph=True, backend="aot_eager")(maps)
    assert result[1].isnan().all()
    torch.testing.assert_close(result[::2], pool(maps[::2]), **tolerance(torch.float32))
    forced = torch.compile(_pool(CASES["squaring"], check=True), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="check=True"):  # dynamo wraps our error
        forced(maps)
    with pytest.raises(ArgumentError, match="check=True"):
        torch.export.export(_pool(CASES["squaring"], check=True), (maps,), strict=False)


@every_case_and_eigen
def test_vmap_is_a_batch(options: dict[str, Any]) -> None:
    if "reduce_to" in options:
        options = options | {"reduce_to": None}  # vmap of a convolution is part of torch
    pool = _pool(options)
    maps = _maps(3, 2)
    _assert_same((torch.func.vmap(pool)(maps),), (pool(maps),))
    _assert_same((torch.func.vmap(torch.func.vmap(pool))(maps),), (pool(maps),))
    _assert_same((torch.func.vmap(pool, in_dims=1, out_dims=1)(maps),), (pool(maps),))

    def loss(one: Tensor) -> Tensor:
        return pool(one).square().sum()

    leaf = maps.clone().requires_grad_()
    loss(leaf).backward()
    _assert_same((torch.func.vmap(torch.func.grad(loss))(maps),), (leaf.grad,))
    _assert_same((torch.func.grad(loss)(maps),), (leaf.grad,))


def test_vmap_over_the_parameter() -> None:
    """Several values of eta at once, each with its gradient."""
    features = _maps(2).flatten(-2).double()
    etas = torch.tensor([2.0, 5.0, 9.0], dtype=torch.float64)
    for mode, solver in [("elementwise", "auto"), ("spectral", "eigen"), ("spectral", "gram")]:
        module = pp.nn.SecondOrderPool2d(CHANNELS, pp.SigmE(nn.Parameter(etas[0].clone())), mode, solver=solver)
        maps = features.unflatten(-1, (3, 3))

        def loss(eta: Tensor, module: nn.Module = module, maps: Tensor = maps) -> Tensor:
            return torch.func.functional_call(module, {"curve.eta": eta}, maps).square().sum()

        found = torch.func.vmap(torch.func.grad(loss))(etas)
        expected = torch.stack([torch.func.grad(loss)(eta) for eta in etas])
        torch.testing.assert_close(found, expected, **tolerance(torch.float64))


@every_case_and_eigen
def test_export_with_a_dynamic_batch(options: dict[str, Any]) -> None:
    pool = _pool(options).eval()
    batch = torch.export.Dim("batch")
    for strict in (False, True) if "reduce_to" in options else (False,):
        program = torch.export.export(pool, (_maps(2),), dynamic_shapes=({0: batch},), strict=strict)
        for size in (2, 5):
            _assert_same((program.module()(_maps(size)),), (pool(_maps(size)),))


def test_crops_are_compiled_and_exported() -> None:
    pool = _pool({"curve": pp.MaxExp(5), "coordinates": 2, "crops": True, "unit_scale": True})
    _assert_same(_run(torch.compile(pool, fullgraph=True, backend="aot_eager"), _maps(2, 3)), _run(pool, _maps(2, 3)))
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(pool, (_maps(2, 3),), dynamic_shapes=shapes, strict=False)
    _assert_same((program.module()(_maps(5, 3)),), (pool(_maps(5, 3)),))


@pytest.mark.parametrize("pooled", [False, True], ids=["moment", "pool"])
def test_export_with_a_dynamic_number_of_locations(pooled: bool) -> None:
    """At sizes for which products are computed in panels: the choice must not fix N."""

    class Pool(torch.nn.Module):
        def forward(self, features: Tensor) -> Tensor:
            return pp.second_order_pool(features, pp.MaxExp(3)) if pooled else pp.autocorrelation(features)

    locations = torch.export.Dim("locations", min=300, max=4000)
    program = torch.export.export(Pool(), (torch.rand(1, 256, 600),), dynamic_shapes=({2: locations},), strict=False)
    for number in (310, 700):
        features = torch.rand(1, 256, number)
        torch.testing.assert_close(program.module()(features), Pool()(features), rtol=1e-4, atol=1e-6)


def test_exported_pool_gives_nan_for_bad_input() -> None:
    program = torch.export.export(_pool(CASES["squaring"]), (_maps(3),), strict=False)
    maps = _maps(3)
    maps[1, 0, 0, 0] = torch.inf
    result = program.module()(maps)
    assert result[1].isnan().all()
    assert torch.isfinite(result[::2]).all()
