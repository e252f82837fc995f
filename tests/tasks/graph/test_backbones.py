"""Backbones by name: shapes, edge features where the layer takes them, statistics of the training graphs only."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch_geometric.nn import PNAConv

from powerpool.tasks.graph.backbones import BACKBONES, WITH_EDGES, Convolution, Standardize, fit_degrees

EDGES = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])


@pytest.mark.parametrize("backbone", BACKBONES[1:])
@pytest.mark.parametrize("hidden", [8, 6])
def test_every_backbone_uses_edge_features_where_it_can(backbone: str, hidden: int) -> None:
    torch.manual_seed(0)
    layer = Convolution(backbone, 5, hidden, edge_channels=2).eval()
    x = torch.randn(3, 5, requires_grad=True)
    results = [layer(x, EDGES, attributes) for attributes in (torch.zeros(4, 2), torch.ones(4, 2))]
    assert results[0].shape == (3, hidden)
    assert torch.equal(*results) == (backbone not in WITH_EDGES)
    results[1].sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    if backbone != "GINE":  # which is GIN with edge features
        assert Convolution(backbone, 5, hidden)(x, EDGES).shape == (3, hidden)


def test_degrees_of_pna_are_those_of_a_histogram() -> None:
    degrees = torch.tensor([1, 2, 2, 3, 0])
    layers = nn.ModuleList([Convolution("PNA", 4, 8)])
    fit_degrees(layers, degrees)
    expected = PNAConv(4, 8, ["mean"], ["identity"], degrees.bincount()).aggr_module
    assert_close(layers[0].conv.aggr_module.avg_deg_lin, expected.avg_deg_lin)
    assert_close(layers[0].conv.aggr_module.avg_deg_log, expected.avg_deg_log)


def test_attributes_are_standardised_and_others_pass() -> None:
    rows = torch.tensor([[0.0, 10.0, 5.0, 1e6], [1.0, 20.0, 5.0, 1e6 + 1], [1.0, 30.0, 5.0, 1e6 + 2]])
    layer = Standardize(4)
    layer.fit(rows)
    found = layer(torch.cat([torch.full((3, 2), 7.0), rows], dim=1))
    assert_close(found[:, :2], torch.full((3, 2), 7.0))
    assert_close(found[:, 2], rows[:, 0])  # 0 and 1 only
    assert_close(found[:, 3], torch.tensor([-1.0, 0.0, 1.0]) * 1.5**0.5)
    assert_close(found[:, 4], torch.zeros(3))  # constant
    assert found[:, 5].abs().max() < 2
    assert set(layer.state_dict()) == {"mean", "scale"}
