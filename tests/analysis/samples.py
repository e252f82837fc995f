"""Features, models and run folders that several tests share."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import powerpool as pp
from powerpool.data import load_graphs
from powerpool.runs.folder import open_run, save_model
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.inference import ModelSpec
from powerpool.tasks.graph.model import GraphClassifier
from powerpool.tasks.graph.options import RunConfig
from powerpool.tasks.graph.task import TASK


def make_features(samples: int = 4, channels: int = 6, locations: int = 30, seed: int = 0) -> torch.Tensor:
    """Correlated random features."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.rand(channels, channels, generator=generator)
    return mix @ torch.rand(samples, channels, locations, generator=generator)


def make_network(pool: nn.Module | None = None) -> nn.Sequential:
    """A network with dropout and with batch normalization that is fixed in evaluation mode; the pool is module 4."""
    pool = pp.nn.SecondOrderPool2d(6, pp.MaxExp(eta=5), coordinates=3) if pool is None else pool
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), pool)
    model[1].eval()
    return model


def make_loader(batches: int = 3, size: int = 4) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches of images and labels."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.rand(size, 3, 9, 8, generator=generator), torch.zeros(size)) for _ in range(batches)]


def write_run(folder: Path, method: str) -> Path:
    """A run folder of a graph model that was not trained."""
    graphs = load_graphs("MUTAG")
    config = RunConfig(folds=3, model=ModelConfig(method, hidden=6, layers=1))
    open_run(folder, config, TASK.identity(graphs), task="graph")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = GraphClassifier(config.model, graphs.channels, len(graphs.classes))
    save_model(folder, "graph", ModelSpec(config.model, graphs.features, graphs.classes), network.state_dict())
    return folder
