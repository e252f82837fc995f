"""Graph convolutions of PyTorch Geometric with a readout of the tables, and a head."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from powerpool.data import GraphBatch, GraphSet, NodeFeatures
from powerpool.tasks.graph.backbones import Convolution, Standardize, fit_degrees, make_mlp, rows_of
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.convolution import Adjacency, gin_convolution
from powerpool.tasks.graph.scores import Objective
from powerpool.tasks.methods import GRAPH_METHODS
from powerpool.tasks.pooling import FeatureSet, Normalization, normalization_of, split_rows
from powerpool.tasks.training import recompute_batch_norm

if TYPE_CHECKING:
    from torch_geometric.nn.aggr import Aggregation

SET2SET_STEPS = 3
"""Processing steps of Set2Set, as in PyTorch Geometric's benchmarks."""


class GraphClassifier(nn.Module):
    r"""Graph convolutions, one vector for each graph, two linear layers.

    .. math:: h_v \leftarrow \operatorname{MLP}\Bigl(h_v + \sum_{u \in N(v)} h_u\Bigr), \qquad
              z = W_2\, \operatorname{drop}(\operatorname{relu}(W_1\, \operatorname{readout}\{h_v\}))

    This is GIN0 as in PyTorch Geometric's benchmarks, whose readout is the mean: an MLP is linear, ReLU, linear, ReLU,
    batch normalization. Other backbones have other convolutions. With the same seed, all readouts start with the same
    convolution weights. Attributes are standardised, and so are the targets of a regression, by
    :meth:`fit_statistics`.

    Args:
        config: backbone, readout, layers, channels.
        channels: of the node features.
        classes: length of the vector of logits; 0 for regression, with one output in the units of the targets.
        attributes: how many of the channels, the last ones, are attributes.
        edge_features: columns of the edge features; None if there are none.

    Example:
        >>> from powerpool.data import load_graphs
        >>> graphs = load_graphs("MUTAG")
        >>> model = GraphClassifier(ModelConfig("SOP+SpecMaxExpF", hidden=16, layers=2), graphs.channels, classes=2)
        >>> model(graphs[:8]).shape, model.pooled(graphs[:8]).shape
        (torch.Size([8, 2]), torch.Size([8, 136]))
    """

    target_mean: Tensor
    target_scale: Tensor

    def __init__(
        self,
        config: ModelConfig,
        channels: int,
        classes: int,
        attributes: int = 0,
        edge_features: NodeFeatures | None = None,
    ) -> None:
        from torch_geometric.nn import GINConv

        super().__init__()
        hidden = config.hidden
        self.method = config.method
        self.neighbours = config.neighbours
        self.symmetric = False
        """Whether no batch has an edge in one direction only, which saves the backward pass a sort of the edges."""
        self.rectified = GRAPH_METHODS[config.method].norm.nonnegative
        self.is_regression = classes == 0
        self.backbone = config.backbone
        edge_channels = 0 if edge_features is None else edge_features.channels
        widths = [channels, *[hidden] * (config.layers - 1)]
        if config.backbone == "GIN0":
            self.convolutions = nn.ModuleList(GINConv(make_mlp(before, hidden), train_eps=False) for before in widths)
        else:
            self.convolutions = nn.ModuleList(
                Convolution(config.backbone, before, hidden, edge_channels) for before in widths
            )
        self.readout = make_readout(config)
        self.features: int = getattr(self.readout, "out_channels", hidden)  # mean, sum and max of PyG have none
        self.head: nn.Module = nn.Sequential(
            nn.Linear(self.features, hidden),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(hidden, classes or 1),
        )
        self.scale_nodes = Standardize(attributes) if attributes else None
        scaled = 0 if edge_features is None else edge_features.attributes
        self.scale_edges = Standardize(scaled) if scaled else None
        if self.is_regression:
            self.register_buffer("target_mean", torch.zeros(()))
            self.register_buffer("target_scale", torch.ones(()))

    @torch.no_grad()
    def fit_statistics(self, graphs: GraphSet, train: Tensor) -> None:  # shape: (train,)
        """Take the statistics by which inputs and targets are scaled from the training graphs."""
        nodes, edges = rows_of(graphs, train)
        if self.scale_nodes is not None and graphs.attributes is not None:
            self.scale_nodes.fit(graphs.attributes[nodes])
        if self.scale_edges is not None and graphs.edge_attr is not None:
            self.scale_edges.fit(graphs.edge_attr[edges][:, -len(self.scale_edges.mean) :])
        if self.backbone == "PNA":
            fit_degrees(self.convolutions, graphs.edge_index[1].bincount(minlength=graphs.num_nodes)[nodes])
        if self.is_regression:
            deviation, mean = torch.std_mean(graphs.targets[train.to(graphs.targets.device)].double(), correction=0)
            self.target_mean.copy_(mean)
            self.target_scale.copy_(torch.where(deviation > 0, deviation, 1.0))

    def objective(self, class_weights: Tensor | None = None) -> Objective:
        """Return what the model is trained and scored by."""
        if self.is_regression:
            return Objective(is_regression=True, scale=float(self.target_scale))
        return Objective(weights=class_weights)

    def forward(self, batch: GraphBatch) -> Tensor:  # shape: (graphs, classes), or (graphs, 1) for regression
        """Return the logits of each graph, or its predicted target."""
        outputs: Tensor = self.head(self.pooled(batch))
        return outputs * self.target_scale + self.target_mean if self.is_regression else outputs

    def pooled(self, batch: GraphBatch) -> Tensor:  # shape: (graphs, features)
        """Return the pooled vector of each graph."""
        vectors: Tensor = self.readout(self.nodes(batch), batch.batch, dim_size=batch.num_graphs)
        return vectors

    def nodes(self, batch: GraphBatch) -> Tensor:  # shape: (nodes, hidden)
        """Return the node features that the readout pools."""
        x = batch.x if self.scale_nodes is None else self.scale_nodes(batch.x)
        edges, edge_attr = batch.edge_index, batch.edge_attr
        if self.scale_edges is not None:
            edge_attr = self.scale_edges(edge_attr)
        most = self.neighbours if self.training else None
        if most is not None:
            kept = sample_neighbours(edges, most)
            edges, edge_attr = edges[:, kept], None if edge_attr is None else edge_attr[kept]
        if self.backbone != "GIN0":
            for convolution in self.convolutions:
                x = convolution(x, edges, edge_attr)
        elif most is not None:
            for convolution in self.convolutions:
                x = convolution(x, edges)
        else:
            adjacency = Adjacency(edges, batch.num_nodes, symmetric=self.symmetric)
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


def make_network(
    config: ModelConfig, features: NodeFeatures, edge_features: NodeFeatures | None, classes: int
) -> GraphClassifier:
    """Build the network for graphs with these features."""
    return GraphClassifier(config, features.channels, classes, features.attributes, edge_features)


def make_readout(config: ModelConfig) -> Aggregation:
    """Build the readout of a method."""
    from torch_geometric.nn.aggr import MaxAggregation, MeanAggregation, Set2Set, SumAggregation

    from powerpool.integrations.pyg import SecondOrderAggregation

    method = GRAPH_METHODS[config.method]
    if method.order == "first":
        if method.reduce == "set2set":
            return Set2Set(config.hidden, processing_steps=SET2SET_STEPS)
        return {"mean": MeanAggregation, "sum": SumAggregation, "max": MaxAggregation}[method.reduce]()
    return SecondOrderAggregation(
        config.hidden,
        method.make_curve(config),
        method.mode,
        config.beta,
        method.make_solver(config),
        mean=config.mean,
        trace_power=config.trace_power,
    )


def sample_neighbours(edge_index: Tensor, most: int) -> Tensor:  # shape: (2, edges) -> (at most edges,)
    """Return at most ``most`` random edges into each node, by their columns in ascending order.

    Example:
        >>> edges = torch.tensor([[1, 2, 3, 0], [0, 0, 0, 1]])  # three end in node 0, one in node 1
        >>> edges[:, sample_neighbours(edges, 2)][1]
        tensor([0, 0, 1])
    """
    target = edge_index[1]
    if len(target) == 0:
        return target
    # Sort by target, at random within each target: the first edges of every target are the sample.
    shuffled = torch.randperm(len(target), device=target.device)
    order = shuffled[target[shuffled].argsort(stable=True)]
    degree = target.bincount()
    rank = torch.arange(len(target), device=target.device) - (degree.cumsum(0) - degree)[target[order]]
    return order[rank < most].sort().values
