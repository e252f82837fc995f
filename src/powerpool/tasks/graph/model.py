"""GIN0 of PyTorch Geometric with a readout of the tables, and its head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from powerpool.data import GraphBatch
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.convolution import Adjacency, gin_convolution
from powerpool.tasks.methods import GRAPH_METHODS
from powerpool.tasks.pooling import FeatureSet, Normalization, normalization_of, split_rows
from powerpool.tasks.training import recompute_batch_norm

if TYPE_CHECKING:
    from torch_geometric.nn.aggr import Aggregation


class GraphClassifier(nn.Module):
    r"""Graph convolutions, one vector for each graph, two linear layers.

    .. math:: h_v \leftarrow \operatorname{MLP}\Bigl(h_v + \sum_{u \in N(v)} h_u\Bigr), \qquad
              z = W_2\, \operatorname{drop}(\operatorname{relu}(W_1\, \operatorname{readout}\{h_v\}))

    This is GIN0 as in PyTorch Geometric's benchmarks, whose readout is the mean: an MLP is linear, ReLU, linear, ReLU,
    batch normalization. With the same seed, all readouts start with the same convolution weights.

    Args:
        config: readout, layers, channels.
        channels: of the node features.
        classes: length of the vector of logits.

    Example:
        >>> from powerpool.data import load_graphs
        >>> graphs = load_graphs("MUTAG")
        >>> model = GraphClassifier(ModelConfig("SOP+SpecMaxExpF", hidden=16, layers=2), graphs.channels, classes=2)
        >>> model(graphs[:8]).shape, model.pooled(graphs[:8]).shape
        (torch.Size([8, 2]), torch.Size([8, 136]))
    """

    def __init__(self, config: ModelConfig, channels: int, classes: int) -> None:
        from torch_geometric.nn import GINConv

        super().__init__()
        hidden = config.hidden
        self.method = config.method
        self.neighbours = config.neighbours
        self.symmetric = False
        """Whether no batch has an edge in one direction only, which saves the backward pass a sort of the edges."""
        self.rectified = GRAPH_METHODS[config.method].norm.nonnegative
        self.convolutions = nn.ModuleList(
            GINConv(_mlp(before, hidden), train_eps=False) for before in [channels, *[hidden] * (config.layers - 1)]
        )
        self.readout = make_readout(config)
        self.features: int = getattr(self.readout, "out_features", hidden)  # those of PyG have none
        self.head: nn.Module = nn.Sequential(
            nn.Linear(self.features, hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, batch: GraphBatch) -> Tensor:  # shape: (graphs, classes)
        """Return the logits of each graph."""
        logits: Tensor = self.head(self.pooled(batch))
        return logits

    def pooled(self, batch: GraphBatch) -> Tensor:  # shape: (graphs, features)
        """Return the pooled vector of each graph."""
        vectors: Tensor = self.readout(self.nodes(batch), batch.batch, dim_size=batch.num_graphs)
        return vectors

    def nodes(self, batch: GraphBatch) -> Tensor:  # shape: (nodes, hidden)
        """Return the node features that the readout pools."""
        x = batch.x
        if self.training and self.neighbours is not None:
            edges = sample_neighbours(batch.edge_index, self.neighbours)
            for convolution in self.convolutions:
                x = convolution(x, edges)
        else:
            adjacency = Adjacency(batch.edge_index, batch.num_nodes, symmetric=self.symmetric)
            for convolution in self.convolutions:
                x = gin_convolution(cast("nn.Sequential", convolution.nn), x, adjacency)
        return x.relu() if self.rectified else x

    def feature_sets(self, batch: GraphBatch) -> list[FeatureSet]:
        """Return the features that the readout pools, for each graph with nodes."""
        return [FeatureSet(rows.T) for rows in split_rows(self.nodes(batch), batch.batch)]

    @property
    def normalization(self) -> Normalization:
        """The normalization of the readout."""
        if GRAPH_METHODS[self.method].order == "first":
            return Normalization(self.method, is_first_order=True)
        return normalization_of(self.method, self.readout)


@torch.no_grad()
def recompute_statistics(model: GraphClassifier, batches: Iterable[GraphBatch]) -> None:
    """Recompute the batch-norm statistics from these graphs with the current weights.

    Running statistics average about the last ten steps. In a small data set these are several epochs, during which a
    learning rate of 0.01 has moved the weights far. The batches must be as mixed and as large as those of the training.
    """
    with recompute_batch_norm(model):
        for batch in batches:
            model.nodes(batch)


def make_readout(config: ModelConfig) -> Aggregation:
    """Build the readout of a method."""
    from torch_geometric.nn.aggr import MeanAggregation, SumAggregation

    from powerpool.integrations.pyg import SecondOrderAggregation

    method = GRAPH_METHODS[config.method]
    if method.order == "first":
        return MeanAggregation() if method.reduce == "mean" else SumAggregation()
    return SecondOrderAggregation(
        config.hidden,
        method.make_curve(config),
        method.mode,
        config.beta,
        method.make_solver(config),
        mean=config.mean,
        trace_power=config.trace_power,
    )


def sample_neighbours(edge_index: Tensor, most: int) -> Tensor:  # shape: (2, edges) -> (2, at most edges)
    """Keep at most ``most`` random edges into each node; the order of the edges is kept.

    Example:
        >>> edges = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 1]])  # three end in node 0, one in node 1
        >>> sample_neighbours(edges, 2)[1]
        tensor([0, 0, 1])
    """
    target = edge_index[1]
    if len(target) == 0:
        return edge_index
    # Sort by target, at random within each target: the first edges of every target are the sample.
    shuffled = torch.randperm(len(target), device=target.device)
    order = shuffled[target[shuffled].argsort(stable=True)]
    degree = target.bincount()
    rank = torch.arange(len(target), device=target.device) - (degree.cumsum(0) - degree)[target[order]]
    return edge_index[:, order[rank < most].sort().values]


def _mlp(before: int, after: int) -> nn.Module:
    return nn.Sequential(nn.Linear(before, after), nn.ReLU(), nn.Linear(after, after), nn.ReLU(), nn.BatchNorm1d(after))
