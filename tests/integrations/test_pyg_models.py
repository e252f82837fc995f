"""Aggregations as a part of PyTorch Geometric: in its layers, trained, and on real graphs."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import grakel
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close
from torch_geometric.nn import GINConv, MessagePassing, SAGEConv
from torch_geometric.nn.aggr import Aggregation, MultiAggregation
from torch_geometric.nn.resolver import aggregation_resolver

import powerpool as pp
from powerpool.integrations.pyg import FirstOrderPowerAggregation, SecondOrderAggregation
from tests import oracles
from tests.integrations.test_pyg import BOTH_LAYOUTS, CHANNELS, LARGE, _batch
from tests.real_data import require_data
from tests.tolerances import tolerance


class TestInPyG:
    @BOTH_LAYOUTS
    def test_in_multi_aggregation(self, sizes: list[int]) -> None:
        x, index = _batch(sizes)
        second, first = SecondOrderAggregation(CHANNELS, "maxexp"), FirstOrderPowerAggregation(CHANNELS, "asinhe")
        many = MultiAggregation([second, "mean", first, "max"])
        result = many(x, index, dim_size=len(sizes))
        assert result.shape == (len(sizes), second.out_features + 3 * CHANNELS)
        assert_close(result[:, : second.out_features], second(x, index, dim_size=len(sizes)), rtol=0, atol=0)
        start = second.out_features + CHANNELS
        assert_close(result[:, start : start + CHANNELS], first(x, index, dim_size=len(sizes)), rtol=0, atol=0)
        many.reset_parameters()
        widths = [second.out_features, CHANNELS]
        projected = MultiAggregation(
            [second, "mean"], mode="proj", mode_kwargs={"in_channels": widths, "out_channels": 8}
        )
        assert projected.double()(x, index).shape == (len(sizes) - 1, 8)

    def test_first_order_in_gin(self) -> None:
        x, _ = _batch([5], torch.float32)
        edges = torch.tensor([[0, 1, 2, 3, 1, 0], [1, 0, 1, 1, 2, 4]])  # node 3 has no neighbour: its sum is 0
        conv = GINConv(nn.Identity(), aggr=FirstOrderPowerAggregation(CHANNELS, "asinhe"))
        means = torch.stack(
            [x[edges[0, edges[1] == node]].mean(0) if node != 3 else torch.zeros(CHANNELS) for node in range(5)]
        )
        assert_close(conv(x, edges), x + torch.asinh(pp.AsinhE().gamma * means), **tolerance(torch.float32))

    def test_second_order_in_gin(self) -> None:
        x, _ = _batch([5])
        edges = torch.tensor([[0, 1, 2, 3, 1, 0], [1, 0, 1, 1, 2, 4]])
        pool = SecondOrderAggregation(CHANNELS, "maxexp")
        conv = GINConv(nn.Linear(pool.out_features, 3).double(), aggr=pool)
        assert isinstance(conv, MessagePassing)
        # None: the node itself has C numbers, which cannot be added to the C(C+1)/2 of its neighbours.
        result = conv((x, None), edges, size=(5, 5))
        neighbours = [x[edges[0, edges[1] == node]].T for node in range(5)]
        rows = [
            pp.to_vector(pp.second_order_pool(some, pp.MaxExp())) if some.numel() else x.new_zeros(pool.out_features)
            for some in neighbours
        ]
        assert_close(result, conv.nn(torch.stack(rows)), **tolerance(torch.float64))

    def test_second_order_in_sage(self) -> None:
        x, _ = _batch([5], torch.float32)
        edges = torch.tensor([[0, 1, 2, 3, 1, 0], [1, 0, 1, 1, 2, 4]])
        pool = SecondOrderAggregation(CHANNELS, pp.MaxExp(eta=nn.Parameter(torch.tensor(20.0))))
        conv = SAGEConv((pool.out_features, CHANNELS), 4, aggr=pool)
        conv(x, edges).square().sum().backward()
        assert pool.curve is not None
        assert pool.curve.eta.grad != 0

    def test_output_projection(self) -> None:
        x, index = _batch(LARGE)
        pool = SecondOrderAggregation(CHANNELS, "maxexp", mean="concat", out_channels=CHANNELS).double()
        plain = SecondOrderAggregation(CHANNELS, "maxexp", mean="concat")
        assert (pool.out_features, pool.out_channels) == (CHANNELS, CHANNELS)
        assert pool.projection is not None
        expected = plain(x, index, dim_size=6) @ pool.projection.weight.T
        assert_close(pool(x, index, dim_size=6), expected, **tolerance(torch.float64))
        assert gradcheck(lambda nodes: pool(nodes, index), (x.clone().requires_grad_(),), fast_mode=True)
        edges = torch.tensor([[0, 1, 2, 3, 1, 0], [1, 0, 1, 1, 2, 4]])
        assert SAGEConv(CHANNELS, 4, aggr=pool).double()(x[:5], edges).shape == (5, 4)
        both = MultiAggregation([pool, "mean"], mode="proj", mode_kwargs={"in_channels": CHANNELS, "out_channels": 8})
        assert both.double()(x, index, dim_size=6).shape == (6, 8)
        before = pool.projection.weight.detach().clone()
        pool.reset_parameters()
        assert not torch.equal(pool.projection.weight, before)

    def test_names_are_resolved(self) -> None:
        x, _ = _batch([5], torch.float32)
        edges = torch.tensor([[0, 1, 2, 3, 1, 0], [1, 0, 1, 1, 2, 4]])
        options = {"channels": CHANNELS, "curve": "maxexp", "out_channels": CHANNELS}
        conv = SAGEConv(CHANNELS, 4, aggr="second_order", aggr_kwargs=options)
        assert isinstance(conv.aggr_module, SecondOrderAggregation)
        assert conv(x, edges).shape == (5, 4)
        for name in ("FirstOrderPowerAggregation", "first_order_power"):
            assert isinstance(aggregation_resolver(name, CHANNELS), FirstOrderPowerAggregation)


class TestLearnableCurve:
    @BOTH_LAYOUTS
    @pytest.mark.parametrize("kind", ["first", "elementwise", "spectral"])
    def test_gradient(self, kind: str, sizes: list[int]) -> None:
        x, index = _batch(sizes, seed=1)

        def pooled(nodes: Tensor, gamma: Tensor) -> Tensor:
            curve = pp.AsinhE(gamma)
            if kind == "first":
                return FirstOrderPowerAggregation(CHANNELS, curve)(nodes, index)
            return SecondOrderAggregation(CHANNELS, curve, kind)(nodes, index)

        leaves = (x.requires_grad_(), torch.tensor(3.0, dtype=x.dtype, requires_grad=True))
        assert gradcheck(pooled, leaves, fast_mode=True)

    @pytest.mark.parametrize("kind", [SecondOrderAggregation, FirstOrderPowerAggregation])
    def test_is_registered_saved_and_reset(self, kind: type[Aggregation]) -> None:
        pool = kind(CHANNELS, pp.AsinhE(nn.Parameter(torch.tensor(3.0))))
        assert [name for name, _ in pool.named_parameters()] == ["curve.gamma"]
        optimizer = torch.optim.SGD(pool.parameters(), lr=1.0)
        pool(*_batch(LARGE, torch.float32)).sum().backward()
        optimizer.step()
        assert pool.curve.gamma != 3.0
        other = kind(CHANNELS, pp.AsinhE(nn.Parameter(torch.tensor(1.0))))
        other.load_state_dict(pool.state_dict())
        assert_close(other.curve.gamma, pool.curve.gamma, rtol=0, atol=0)
        pool.reset_parameters()
        assert_close(pool.curve.gamma.detach(), torch.tensor(3.0), rtol=0, atol=0)


def test_the_package_is_imported_with_the_module_only_and_its_absence_is_explained() -> None:
    lines = [
        "import sys, powerpool.integrations",
        "assert 'torch_geometric' not in sys.modules",
        "class Missing:",
        "    def find_spec(self, name, path=None, target=None):",
        "        if name == 'torch_geometric':",
        "            raise ModuleNotFoundError(name=name)",
        "sys.meta_path.insert(0, Missing())",
        "powerpool.integrations.pyg",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in done.stderr
    assert "pip install 'powerpool[graph]'" in done.stderr


@pytest.fixture(scope="module")
def mutag() -> tuple[Tensor, Tensor]:
    folder = Path(grakel.__file__).parent / "tests" / "data" / "MUTAG"
    index = np.loadtxt(folder / "MUTAG_graph_indicator.txt", dtype=np.int64) - 1
    labels = np.loadtxt(folder / "MUTAG_node_labels.txt", dtype=np.int64)
    return nn.functional.one_hot(torch.from_numpy(labels)).double(), torch.from_numpy(index)


@pytest.fixture(scope="module")
def reddit() -> Tensor:
    with zipfile.ZipFile(require_data("graphs/REDDIT-BINARY.zip")) as files:
        text = files.read("REDDIT-BINARY/REDDIT-BINARY_graph_indicator.txt")
    return torch.from_numpy(np.loadtxt(io.BytesIO(text), dtype=np.int64) - 1)


class TestRealGraphs:
    @pytest.mark.parametrize("channels", [7, 64])
    def test_mutag_equals_the_loop(self, mutag: tuple[Tensor, Tensor], channels: int) -> None:
        labels, index = mutag
        x = torch.relu(
            labels @ torch.randn(7, channels, dtype=labels.dtype, generator=torch.Generator().manual_seed(0))
        )
        curve = pp.MaxExp(eta=50)
        result = SecondOrderAggregation(channels, curve)(x, index)
        assert result.shape == (188, channels * (channels + 1) // 2)
        for graph in range(188):
            nodes = x[index == graph].numpy()
            expected = oracles.spectral(nodes.T @ nodes / len(nodes), oracles.maxexp(50))
            assert_close(pp.from_vector(result[graph]), torch.from_numpy(expected), **tolerance(torch.float64))

    def test_reddit_trains_without_padding(self, reddit: Tensor) -> None:
        channels, graphs = 32, 128
        sizes = torch.bincount(reddit)
        first = int(sizes.argmax()) - graphs // 2
        index = reddit[(reddit >= first) & (reddit < first + graphs)] - first
        assert int(torch.bincount(index).max()) == 3782
        x = torch.rand(len(index), channels, requires_grad=True)
        pool = SecondOrderAggregation(channels, pp.MaxExp(eta=50))
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
            pool(x, index).sum().backward()
        changes = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
        held = np.cumsum([event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns())])
        # Squaring keeps a dozen matrices of each graph; padded, the input alone would take 15 million numbers.
        assert held.max() <= 4 * (4 * x.numel() + 24 * graphs * channels**2)
        assert held.max() < 4 * graphs * 3782 * channels
