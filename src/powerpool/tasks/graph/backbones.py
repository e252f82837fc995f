"""Graph convolutions by name, and what they take from the training graphs: scales of attributes, degrees."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from powerpool.data import GraphSet

BACKBONES = ("GIN0", "GIN-eps", "GINE", "GCN", "GraphSAGE", "GATv2", "PNA")
WITH_EDGES = ("GINE", "GATv2", "PNA")
"""The backbones that use edge features."""
HEADS = 4
"""Attention heads of GATv2, where the channels can be divided among them."""


class Convolution(nn.Module):
    """A graph convolution of PyTorch Geometric; all but those of GIN are followed by ReLU and batch normalization.

    GIN has both in its MLP. PNA gets its scale of degrees by :func:`fit_degrees`.

    Args:
        backbone: one of :data:`BACKBONES`.
        before: input channels.
        after: output channels.
        edge_channels: of the edge features, 0 for none.
    """

    def __init__(self, backbone: str, before: int, after: int, edge_channels: int = 0) -> None:
        from torch_geometric import nn as pyg

        super().__init__()
        self.takes_edges = backbone in WITH_EDGES and edge_channels > 0
        edges = edge_channels or None
        heads = HEADS if after % HEADS == 0 else 1
        self.conv: nn.Module
        if backbone == "GINE":
            self.conv = pyg.GINEConv(make_mlp(before, after), edge_dim=edges)
        elif backbone == "GIN-eps":
            self.conv = pyg.GINConv(make_mlp(before, after), train_eps=True)
        elif backbone == "GCN":
            self.conv = pyg.GCNConv(before, after)
        elif backbone == "GraphSAGE":
            self.conv = pyg.SAGEConv(before, after)
        elif backbone == "GATv2":
            self.conv = pyg.GATv2Conv(before, after // heads, heads, edge_dim=edges)
        else:
            scalers = ["identity", "amplification", "attenuation"]
            self.conv = pyg.PNAConv(
                before, after, ["mean", "min", "max", "std"], scalers, torch.ones(2, device="cpu"), edge_dim=edges
            )
        is_gin = backbone.startswith("GIN")
        self.finish = nn.Identity() if is_gin else nn.Sequential(nn.ReLU(), nn.BatchNorm1d(after))

    def forward(
        self, x: Tensor, edge_index: Tensor, edge_attr: Tensor | None = None
    ) -> Tensor:  # shape: (nodes, before), (2, edges), (edges, edge channels) -> (nodes, after)
        """Return the features of the next layer."""
        options = {"edge_attr": edge_attr} if self.takes_edges else {}
        found: Tensor = self.finish(self.conv(x, edge_index, **options))
        return found


def make_mlp(before: int, after: int) -> nn.Sequential:
    """Return the MLP of a GIN convolution, as in PyTorch Geometric's benchmarks."""
    return nn.Sequential(nn.Linear(before, after), nn.ReLU(), nn.Linear(after, after), nn.ReLU(), nn.BatchNorm1d(after))


class Standardize(nn.Module):
    """Attributes minus their mean, divided by their standard deviation, both of the training graphs.

    Columns with values 0 and 1 only are left as they are, and constant ones are not divided. One-hot columns before the
    attributes pass unchanged.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, attributes: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(attributes))
        self.register_buffer("scale", torch.ones(attributes))

    def fit(self, rows: Tensor) -> None:  # shape: (rows, attributes)
        """Take mean and standard deviation of rows."""
        rows = rows.double()
        deviation, mean = torch.std_mean(rows, dim=0, correction=0)
        is_binary = ((rows == 0) | (rows == 1)).all(0)
        # Deviations of round-off size are those of a constant column.
        is_constant = deviation <= 1e-6 * mean.abs()
        self.mean.copy_(torch.where(is_binary, 0.0, mean))
        self.scale.copy_(torch.where(is_binary | is_constant, 1.0, deviation))

    def forward(self, x: Tensor) -> Tensor:  # shape: (rows, channels)
        """Return the standardised features."""
        plain, attributes = x.tensor_split([x.shape[1] - len(self.mean)], dim=1)
        return torch.cat([plain, (attributes - self.mean) / self.scale], dim=1)


def fit_degrees(layers: nn.ModuleList, degrees: Tensor) -> None:  # shape: (nodes,)
    """Set the mean degrees of PNA, by which it scales, to those of the training graphs."""
    from torch_geometric.nn.aggr import DegreeScalerAggregation

    for module in layers.modules():
        if isinstance(module, DegreeScalerAggregation):
            module.avg_deg_lin.fill_(degrees.double().mean().clamp(min=1e-6))
            module.avg_deg_log.fill_(degrees.double().log1p().mean().clamp(min=1e-6))


def rows_of(graphs: GraphSet, chosen: Tensor) -> tuple[Tensor, Tensor]:  # shape: (nodes,), (edges,)
    """Return masks of the nodes and edges of the chosen graphs."""
    is_chosen = torch.zeros(len(graphs), dtype=torch.bool, device=graphs.node_ptr.device)
    is_chosen[chosen.to(is_chosen.device)] = True
    return is_chosen[graphs.graph], is_chosen.repeat_interleave(graphs.edge_ptr.diff())
