"""The graphs of a configuration: how they are read, what of them is used, and their folds."""

from __future__ import annotations

from dataclasses import replace

import torch

from powerpool.data import DataError, Fold, GraphSet, load_graphs, stratified_folds
from powerpool.data.tu_format import GRAPHS
from powerpool.errors import ArgumentError
from powerpool.tasks.graph.backbones import WITH_EDGES
from powerpool.tasks.graph.config import GraphConfig

PERMUTED = " (permuted labels)"


def load_data(config: GraphConfig) -> GraphSet:
    """Read the graphs, with edge features if the backbone uses them."""
    graphs = load_graphs(
        config.data,
        config.data_root,
        features=config.features,
        degree_cap=config.degree_cap,
        edges=config.edges,
        edge_features=config.model.backbone in WITH_EDGES,
        download=config.download,
    )
    if config.model.backbone == "GINE" and graphs.edge_features is None:
        raise ArgumentError(f"model.backbone GINE needs edge features, which {graphs.name} does not have. Use GIN0.")
    return permute_labels(graphs, config.seed) if config.permute_labels else graphs


def permute_labels(graphs: GraphSet, seed: int) -> GraphSet:
    """Return the graphs with shuffled labels, and a name that says so."""
    order = torch.randperm(len(graphs), generator=torch.Generator().manual_seed(seed))
    return replace(graphs, name=f"{graphs.name}{PERMUTED}", targets=graphs.targets[order])


def describe_data(graphs: GraphSet) -> list[str]:
    """Return a remark on what is used of a data set and what is not; none for a known one of which all is used."""
    parts = [f"node features are {graphs.features.kind} ({graphs.channels} channels)"]
    if graphs.edge_features:
        parts[0] += f", edge features are {graphs.edge_features.kind} ({graphs.edge_channels} channels)"
    if graphs.ignored:
        parts.append(f"not used: {', '.join(graphs.ignored)}")
    if graphs.dropped:
        parts.append(f"dropped: {graphs.dropped} self-loops and repeated edges")
    is_known = graphs.name.removesuffix(PERMUTED) in GRAPHS and graphs.features.kind == "labels"
    if is_known and len(parts) == 1 and not graphs.edge_features:
        return []
    remark = f"{graphs.name}: {'; '.join(parts)}."
    if any(kind.startswith("edge") for kind in graphs.ignored):
        remark += f" Edge features are used by the backbones {', '.join(WITH_EDGES)}."
    if graphs.is_regression:
        remark += " This is regression: y is floating-point; use integer y for classes."
    return [remark]


def make_fold(config: GraphConfig, graphs: GraphSet, number: int) -> Fold:
    """Return a fold of a configuration, the same for all methods."""
    if not 0 <= number < config.folds:
        raise ArgumentError(f"fold must be 0 to {config.folds - 1} with folds={config.folds} (got {number}).")
    if len(graphs.classes) == 1:
        raise DataError(
            f"{graphs.name} has one class only, {graphs.classes[0]}, so there is nothing to classify. Check the graph "
            "labels, or give numbers as targets."
        )
    # The targets of a regression are not stratified.
    targets = torch.zeros(len(graphs), dtype=torch.long) if graphs.is_regression else graphs.targets
    return stratified_folds(targets, config.folds, config.seed)[number]
