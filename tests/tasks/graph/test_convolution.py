"""Sums over neighbours by sparse products against the layer of PyTorch Geometric and dense matrices, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_geometric.nn import GINConv

from powerpool.data import load_graphs
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.convolution import Adjacency, gin_convolution, is_symmetric, neighbour_sum
from powerpool.tasks.graph.model import GraphClassifier


def random_edges(nodes: int, *, directed: bool, seed: int = 0) -> Tensor:
    """Edges sorted by target, then source; the last node has none."""
    dense = torch.rand(nodes, nodes, generator=torch.Generator().manual_seed(seed)) < 0.3
    dense[-1], dense[:, -1] = False, False
    dense = dense if directed else dense | dense.T
    return dense.nonzero().T.flip(0)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("channels", [3, 8], ids=["sum first", "linear layer first"])
def test_a_convolution_and_its_gradients_are_those_of_pyg(directed, channels):
    torch.manual_seed(0)
    edges = random_edges(12, directed=directed)
    mlp = nn.Sequential(nn.Linear(channels, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.BatchNorm1d(5)).double()
    x, weights = torch.randn(12, channels, dtype=torch.double, requires_grad=True), torch.randn(12, 5).double()
    adjacency = Adjacency(edges, 12, symmetric=not directed)
    layer, found = GINConv(mlp), {}  # first, as it draws new weights
    for name, nodes in (("ours", gin_convolution(mlp, x, adjacency)), ("pyg", layer(x, edges))):
        found[name] = (nodes, *torch.autograd.grad((nodes * weights).sum(), [x, *mlp.parameters()]))
    assert_close(found["ours"], found["pyg"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("directed", [False, True])
def test_first_and_second_derivatives(directed):
    edges = random_edges(6, directed=directed)
    adjacency = Adjacency(edges, 6, symmetric=not directed)
    x = torch.randn(6, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: neighbour_sum(x, adjacency), x)
    assert torch.autograd.gradgradcheck(lambda x: neighbour_sum(x, adjacency) ** 2, x)


def test_edges_in_any_order_and_no_edges():
    edges = random_edges(9, directed=True)
    x = torch.randn(9, 4, dtype=torch.double)
    dense = torch.zeros(9, 9, dtype=torch.double)
    dense[edges[1], edges[0]] = 1
    mixed = edges[:, torch.randperm(edges.shape[1])]
    assert_close(neighbour_sum(x, Adjacency(mixed, 9)), x + dense @ x)
    assert_close(neighbour_sum(x, Adjacency(edges[:, :0], 9)), x)


def test_symmetry_of_edges():
    assert is_symmetric(random_edges(9, directed=False))
    assert not is_symmetric(random_edges(9, directed=True))
    assert is_symmetric(torch.zeros(2, 0, dtype=torch.long))
    assert is_symmetric(load_graphs("MUTAG", download=False).edge_index)
    cycle = torch.tensor([[2, 0, 1], [0, 1, 2]])  # every node has as many edges in as out
    assert not is_symmetric(cycle)


def test_a_network_equals_one_of_pyg_layers():
    graphs = load_graphs("MUTAG", download=False)
    batch = graphs[:40]
    batch = batch._replace(x=batch.x.double())
    model = GraphClassifier(ModelConfig("GIN0", hidden=16, layers=4), graphs.channels, 2).double()
    x = batch.x
    for convolution in model.convolutions:
        x = convolution(x, batch.edge_index)
    assert_close(model.nodes(batch), x, rtol=1e-11, atol=1e-12)
