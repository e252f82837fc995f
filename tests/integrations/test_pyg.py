"""Aggregations for PyTorch Geometric: against the formulas graph by graph, and as a part of PyG."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from mpmath import mpf
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close
from torch_geometric.nn.aggr import Aggregation

import powerpool as pp
from powerpool.errors import ArgumentError, DomainError, DTypeError, NotFiniteError, ShapeError
from powerpool.integrations.pyg import FirstOrderPowerAggregation, SecondOrderAggregation
from tests import oracles
from tests.oracles import Reference
from tests.tolerances import tolerance

CHANNELS = 6
# With fewer nodes than channels in every graph the batch is padded. Graph 2 is empty, and so is the last.
SMALL = [3, 1, 0, 5, 2, 0]
LARGE = [3, 1, 0, 9, 2, 0]
LAYOUTS = {"padded": SMALL, "segments": LARGE}


@dataclass(frozen=True)
class Case:
    """An aggregation of :data:`CHANNELS` channels, and its vector for the nodes of one graph."""

    name: str
    make: Callable[..., Aggregation]  # accepts check=
    reference: Callable[[np.ndarray], np.ndarray]  # (nodes, C) -> (out_features,), float64, at least one node

    def __str__(self) -> str:
        return self.name


def _second(
    name: str,
    curve: pp.Curve | None,
    reference: Reference | None,
    mode: str = "spectral",
    solver: str | pp.solvers.Solver = "auto",
    beta: float = 0.0,
    trace_power: float = 0.0,
    slope: float = 0.0,
    added: float = 0.0,
    mean: str | None = None,
) -> Case:
    def expected(nodes: np.ndarray) -> np.ndarray:
        options = {"trace_power": trace_power, "slope": slope, "added": added}
        vector = oracles.second_order(nodes.T, reference, mode, beta, **options)
        if mean is None:
            return vector
        return np.concatenate([part / np.hypot(1, np.linalg.norm(part)) for part in (vector, nodes.mean(0))])

    return Case(
        name,
        lambda **options: SecondOrderAggregation(
            CHANNELS,
            curve,
            mode,
            beta,
            solver,
            trace_power=trace_power,
            slope=slope,
            mean=mean,
            **options,
        ),
        expected,
    )


def _first(name: str, curve: pp.Curve | None, reference: Reference | None) -> Case:
    def expected(nodes: np.ndarray) -> np.ndarray:
        mean = sum(nodes) / len(nodes)
        return mean if reference is None else np.array([float(reference.value(mpf(p))) for p in mean])

    return Case(name, lambda **options: FirstOrderPowerAggregation(CHANNELS, curve, **options), expected)


CASES = [
    _first("mean", None, None),
    _first("mean-asinhe", pp.AsinhE(3.0), oracles.asinhe(3.0)),
    _first("mean-maxexp", pp.MaxExp(7), oracles.maxexp(7)),
    _second("plain", None, None),
    _second("plain-covariance-residual", None, None, beta=1.0, trace_power=0.5, slope=0.1),
    _second("elementwise-sigme", pp.SigmE(5.0), oracles.sigme(5.0), "elementwise", beta=0.5),
    _second("elementwise-maxexp", pp.MaxExp(7), oracles.maxexp(7), "elementwise", trace_power=0.5, slope=0.1),
    _second("elementwise-gamma", pp.Gamma(0.5), oracles.gamma(0.5), "elementwise", added=1e-6),
    _second("auto-maxexp", pp.MaxExp(50), oracles.maxexp(50)),
    _second("auto-gamma", pp.Gamma(0.5), oracles.gamma(0.5)),
    _second("auto-asinhe", pp.AsinhE(3.0), oracles.asinhe(3.0), beta=0.5, trace_power=0.5, slope=0.1),
    _second("squaring-maxexp", pp.MaxExp(7), oracles.maxexp(7), solver="squaring", slope=0.1),
    _second("eigen-hdp", pp.HDP(0.1), oracles.hdp(0.1), solver="eigen", trace_power=0.5),
    _second("mean-concat-maxexp", pp.MaxExp(7), oracles.maxexp(7), beta=1.0, mean="concat"),
    _second("mean-concat-plain", None, None, mean="concat"),
    _second("gram-maxexp", pp.MaxExp(7), oracles.maxexp(7), solver="gram", beta=0.5),
    _second("gram-hdp", pp.HDP(0.1), oracles.hdp(0.1), solver=pp.solvers.Gram()),
]
EVERYWHERE = pytest.mark.parametrize("case", CASES, ids=str)
BOTH_LAYOUTS = pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS)
# The Gram solver needs fewer nodes than channels: see TestGram.
PAIRS = [
    pytest.param(case, sizes, id=f"{case}-{layout}")
    for case in CASES
    for layout, sizes in LAYOUTS.items()
    if layout == "padded" or not case.name.startswith("gram")
]
IN_BOTH_LAYOUTS = pytest.mark.parametrize("case, sizes", PAIRS)


def _batch(sizes: list[int], dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positive node features with few digits, equal in every precision, and the graph of each node."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(sum(sizes), CHANNELS, generator=generator, dtype=torch.float64)
    index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return ((values * 64).round() / 64 + 1 / 64).to(dtype) / 2, index


def _expected(case: Case, x: Tensor, index: Tensor, graphs: int) -> Tensor:
    """Graph by graph; zero for a graph without nodes."""
    rows = [x.double()[index == graph].numpy() for graph in range(graphs)]
    length = case.make().out_features
    return torch.stack([torch.from_numpy(case.reference(nodes) if len(nodes) else np.zeros(length)) for nodes in rows])


@IN_BOTH_LAYOUTS
class TestValue:
    def test_equals_the_formulas_graph_by_graph(self, case: Case, sizes: list[int]) -> None:
        x, index = _batch(sizes)
        expected = _expected(case, x, index, len(sizes))
        pool = case.make()
        result = pool(x, index, dim_size=len(sizes))
        assert result.shape == (len(sizes), pool.out_features)
        assert_close(result, expected, **tolerance(torch.float64))
        assert_close(pool(x.float(), index, dim_size=len(sizes)).double(), expected, **tolerance(torch.float32))

    def test_ptr_and_order_of_nodes_do_not_matter(self, case: Case, sizes: list[int]) -> None:
        x, index = _batch(sizes)
        pool, ptr = case.make(), torch.tensor([0, *np.cumsum(sizes)])
        by_index = pool(x, index, dim_size=len(sizes))
        assert_close(pool(x, ptr=ptr), by_index, rtol=0, atol=0)
        assert_close(pool(x, ptr=ptr, dim_size=len(sizes), dim=0), by_index, rtol=0, atol=0)
        shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
        found = pool(x[shuffled], index[shuffled], dim_size=len(sizes))
        assert_close(found, by_index, **tolerance(torch.float64))

    def test_gradient(self, case: Case, sizes: list[int]) -> None:
        x, index = _batch(sizes, seed=1)
        pool = case.make()
        call = lambda nodes: pool(nodes, index, dim_size=len(sizes))  # noqa: E731
        assert gradcheck(call, (x.requires_grad_(),), fast_mode=True, check_forward_ad=True)

    def test_half_precision_is_computed_in_float32(self, case: Case, sizes: list[int]) -> None:
        pool = case.make()
        for dtype in (torch.float16, torch.bfloat16):
            x, index = _batch(sizes, dtype)
            x.requires_grad_()
            result = pool(x, index, dim_size=len(sizes))
            assert result.dtype == dtype
            # Rounded once, from the float32 result.
            assert_close(result, pool(x.float(), index, dim_size=len(sizes)).to(dtype), rtol=0, atol=0)
            result.float().sum().backward()
            assert x.grad is not None
            assert x.grad.dtype == dtype
            assert torch.isfinite(x.grad).all()

    def test_autocast_does_not_matter(self, case: Case, sizes: list[int]) -> None:
        x, index = _batch(sizes, torch.float32)
        pool, gradients = case.make(), []
        for enabled in (False, True):
            leaf = x.clone().requires_grad_()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                result = pool(leaf, index, dim_size=len(sizes))
                result.square().sum().backward()
            assert result.dtype == torch.float32
            gradients.append(leaf.grad)
        assert_close(gradients[1], gradients[0], rtol=0, atol=0)

    def test_not_finite_stays_in_its_own_graph(self, case: Case, sizes: list[int]) -> None:
        pool = case.make(check=False)
        x, index = _batch(sizes)
        expected = pool(x, index, dim_size=len(sizes))
        others = torch.tensor([0, 1, 2, 4, 5])
        for bad in (torch.nan, torch.inf, -torch.inf):
            broken = x.clone()
            broken[5, :] = bad  # of graph 3
            result = pool(broken, index, dim_size=len(sizes))
            assert result[3].isnan().all()
            assert_close(result[others], expected[others], **tolerance(torch.float64))


@EVERYWHERE
class TestEveryAggregation:
    def test_without_index_all_nodes_are_one_graph(self, case: Case) -> None:
        x, _ = _batch([4])
        assert_close(case.make()(x), _expected(case, x, torch.zeros(4), 1), **tolerance(torch.float64))

    def test_no_nodes_at_all(self, case: Case) -> None:
        pool = case.make()
        x, index = torch.zeros(0, CHANNELS, requires_grad=True), torch.zeros(0, dtype=torch.int64)
        result = pool(x, index, dim_size=3)
        assert_close(result, torch.zeros(3, pool.out_features), rtol=0, atol=0)
        result.sum().backward()
        assert x.grad is not None
        assert pool(x, index).shape == (0, pool.out_features)
        assert pool(x, ptr=torch.zeros(3, dtype=torch.int64)).shape == (2, pool.out_features)

    def test_gradient_with_empty_graphs_and_of_zeros_is_finite(self, case: Case) -> None:
        x, index = _batch(SMALL)
        for given in (x, torch.zeros_like(x)):
            leaf = given.clone().requires_grad_()
            version = leaf._version
            result = case.make()(leaf, index, dim_size=20)
            (grad,) = torch.autograd.grad(result.sum(), leaf)
            assert torch.isfinite(result).all()
            assert torch.isfinite(grad).all()
            assert leaf._version == version
            assert_close(leaf.detach(), given, rtol=0, atol=0)

    def test_memory_layout_does_not_matter(self, case: Case) -> None:
        x, index = _batch(SMALL)
        strided = torch.stack([x, x], dim=-1).flatten(-2)[:, ::2]
        pool = case.make()
        assert not strided.is_contiguous()
        for other in (strided, x.T.contiguous().T):
            assert_close(pool(other, index), pool(x, index), **tolerance(torch.float64))

    def test_copies_and_repr(self, case: Case) -> None:
        pool = case.make()
        x, index = _batch(SMALL)
        for copied in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
            assert repr(copied) == repr(pool)
            assert_close(copied(x, index), pool(x, index), rtol=0, atol=0)
        assert repr(pool).startswith(f"{type(pool).__name__}(\n  {CHANNELS}," if pool.curve else type(pool).__name__)
        assert f"out_features={pool.out_features}" in repr(pool)
        assert pool.curve is None or f"(curve): {pool.curve}" in repr(pool)
        assert pool.out_channels == pool.out_features


class TestSecondDerivative:
    @pytest.mark.parametrize("case, sizes", [pair for pair in PAIRS if "maxexp" in str(pair.id)])
    def test_is_correct_for_integer_powers(self, case: Case, sizes: list[int]) -> None:
        x, index = _batch(sizes, seed=2)
        pool = case.make()
        assert gradgradcheck(
            lambda nodes: pool(nodes, index), (x.requires_grad_(),), fast_mode=True, check_fwd_over_rev=True
        )

    def test_raises_if_the_solver_has_none(self) -> None:
        x, index = _batch(LARGE)
        pool = SecondOrderAggregation(CHANNELS, "hdp")
        (grad,) = torch.autograd.grad(pool(x.requires_grad_(), index).sum(), x, create_graph=True)
        with pytest.raises(pp.solvers.DoubleBackwardError, match="'eigen'"):
            grad.sum().backward()


class TestGram:
    """Batches are padded only if every graph has fewer nodes than channels."""

    def test_auto_follows_select_solver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = []
        original = pp.functional.select_solver
        monkeypatch.setattr(
            pp.functional, "select_solver", lambda *args: asked.append(original(*args).name) or original(*args)
        )
        pool = SecondOrderAggregation(40, pp.MaxExp(50))
        for largest in (24, 36, 44):
            pool(torch.rand(largest + 2, 40), torch.tensor([0] * largest + [1] * 2))
        assert asked == ["gram", "squaring", "squaring"]

    def test_gram_refuses_large_graphs(self) -> None:
        with pytest.raises(ArgumentError, match=r"9 nodes.*6 channels"):
            SecondOrderAggregation(CHANNELS, "maxexp", solver="gram")(*_batch(LARGE))

    def test_gram_needs_the_largest_size_if_values_cannot_be_read(self) -> None:
        x, index = _batch(SMALL)
        pool = SecondOrderAggregation(CHANNELS, "maxexp", solver="gram")
        with pytest.raises(ArgumentError, match="max_num_elements"):
            pool(x.to("meta"), index.to("meta"), dim_size=6)
        assert pool(x.to("meta"), index.to("meta"), dim_size=6, max_num_elements=5).shape == (6, 21)

    @pytest.mark.parametrize("largest", [None, 5])
    def test_under_a_transform_that_hides_values(self, largest: int | None) -> None:
        x, index = _batch(SMALL)
        pool = SecondOrderAggregation(CHANNELS, "maxexp", mode="elementwise")
        many = torch.stack([x, x / 2])
        result = torch.func.vmap(lambda nodes: pool(nodes, index, dim_size=6, max_num_elements=largest))(many)
        assert_close(result[1], pool(x / 2, index, dim_size=6), **tolerance(torch.float64))

    def test_a_largest_size_that_is_too_small_gives_nan(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x, index = _batch(SMALL)
        pool = SecondOrderAggregation(CHANNELS, "maxexp", check=False)
        expected = pool(x, index, dim_size=6)
        # As on a device other than the CPU.
        monkeypatch.setattr("powerpool.integrations.pyg.values_are_checked", lambda tensor, check: bool(check))
        result = pool(x, index, dim_size=6, max_num_elements=3)
        assert result[3].isnan().all()  # five nodes
        others = torch.tensor([0, 1, 2, 4, 5])
        assert_close(result[others], expected[others], **tolerance(torch.float64))
        assert_close(pool(x, index, dim_size=6), expected, **tolerance(torch.float64))


ZEROS = torch.zeros(4, dtype=torch.int64)
NODES = torch.rand(4, CHANNELS)


@pytest.mark.parametrize("kind", [SecondOrderAggregation, FirstOrderPowerAggregation])
class TestErrors:
    def test_bad_input(self, kind: type[Aggregation]) -> None:
        for given, options, error, key in (
            ((torch.rand(4), ZEROS), {}, ShapeError, r"\(4,\)"),
            ((torch.rand(4, 5), ZEROS), {}, ShapeError, r"\(4, 5\)"),
            ((NODES, ZEROS), {"dim": 1}, ShapeError, "dim=1"),
            ((torch.ones(4, CHANNELS, dtype=torch.int64), ZEROS), {}, DTypeError, "int64"),
            ((NODES, ZEROS.float()), {}, DTypeError, "index.*float32"),
            ((NODES, [0, 0, 0, 0]), {}, DTypeError, "index.*list"),
            ((NODES,), {"ptr": torch.tensor([0, 4], dtype=torch.int32)}, DTypeError, "ptr.*int32"),
            ((NODES, ZEROS[:3]), {}, ShapeError, r"index.*\(3,\)"),
            ((NODES, torch.tensor([0, 1, 1, 5])), {"dim_size": 3}, DomainError, "0 to 5"),
            ((NODES, torch.tensor([0, 1, 1, -1])), {}, DomainError, "-1 to 1"),
            ((NODES,), {"ptr": torch.tensor([0, 3])}, DomainError, r"ptr.*\[0, 3\]"),
            ((NODES,), {"ptr": torch.tensor([0, 3, 2, 4])}, DomainError, "ptr"),
            ((NODES,), {"ptr": ZEROS[:0]}, ShapeError, r"ptr.*\(0,\)"),
        ):
            with pytest.raises(error, match=key):
                kind(CHANNELS)(*given, **options)

    def test_index_out_of_range_is_an_error_without_checks(self, kind: type[Aggregation]) -> None:
        with pytest.raises((ValueError, IndexError, RuntimeError)):
            kind(CHANNELS, check=False)(torch.rand(3, CHANNELS), torch.tensor([0, 1, 5]), dim_size=3)

    def test_bad_values(self, kind: type[Aggregation]) -> None:
        for bad in (torch.nan, torch.inf, -torch.inf):
            for sizes in LAYOUTS.values():
                x, index = _batch(sizes)
                x[4, 1] = bad
                with pytest.raises(NotFiniteError, match=f"1 NaN.* {x.numel()} "):
                    kind(CHANNELS)(x, index)
        with pytest.raises(ArgumentError, match=r"channels.*0"):
            kind(0)


class TestErrorsOfSecondOrder:
    def test_bad_arguments_are_refused_when_it_is_built(self) -> None:
        for options, key in (
            ({"mode": "both"}, "'both'"),
            ({"beta": 2}, "beta.*2"),
            ({"solver": "squaring"}, "'squaring'.*HDP"),
            ({"eps": -1.0}, "eps.*-1.0"),
            ({"mean": "add"}, "'add'"),
            ({"out_channels": 0}, "out_channels.*0"),
        ):
            with pytest.raises(ValueError, match=key):
                SecondOrderAggregation(CHANNELS, "hdp", **options)

    @BOTH_LAYOUTS
    def test_bad_values(self, sizes: list[int]) -> None:
        with pytest.raises(DomainError, match=r"MaxExp.*-0"):
            SecondOrderAggregation(CHANNELS, "maxexp", "elementwise", beta=1.0)(*_batch(sizes))
        x, index = _batch(sizes, torch.float32)
        with pytest.raises(NotFiniteError, match="float32"):
            SecondOrderAggregation(CHANNELS, "maxexp")(x * 1e25, index)


@BOTH_LAYOUTS
def test_steep_curves_of_singular_graphs(sizes: list[int]) -> None:
    """Large nodes of two directions: round-off must not pass for a third."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randint(-3, 4, (2, CHANNELS), generator=generator, dtype=torch.float64)
    x, index = _batch(sizes)
    x = 1000 * torch.randint(-3, 4, (len(x), 2), generator=generator, dtype=torch.float64) @ directions
    for curve in (pp.AsinhE(10.0), pp.SigmE(5.0, trace_normalize=False)):
        results = []
        for leaf in (x.clone().requires_grad_(), x.float().requires_grad_()):
            value = SecondOrderAggregation(CHANNELS, curve)(leaf, index, dim_size=len(sizes))
            weights = torch.arange(value.numel(), dtype=value.dtype).view(value.shape).cos()
            results.append((value.detach(), torch.autograd.grad(value, leaf, weights)[0]))
        for exact, found in zip(*results, strict=True):
            assert float((found.double() - exact).norm()) < 1e-5 * float(exact.norm())


def test_mean_keeps_what_the_covariance_of_equal_nodes_loses() -> None:
    """The round-off of a covariance of zero stays small beside the mean, and so does its gradient."""
    rows = torch.randn(2, CHANNELS, generator=torch.Generator().manual_seed(0)) / 3
    x, index = rows.repeat_interleave(7, dim=0).requires_grad_(), torch.tensor([0] * 7 + [1] * 7)
    pool = SecondOrderAggregation(CHANNELS, pp.MaxExp(20), beta=1.0, mean="concat")
    covariance, mean = pool(x, index).split([CHANNELS * (CHANNELS + 1) // 2, CHANNELS], dim=-1)
    assert float(covariance.detach().norm()) < 1e-5
    assert_close(mean, rows / (1 + rows.square().sum(-1, keepdim=True)).sqrt(), **tolerance(torch.float32))
    (grad,) = torch.autograd.grad(covariance.sum() + mean.sum(), x)
    assert float(grad.abs().max()) < 10
