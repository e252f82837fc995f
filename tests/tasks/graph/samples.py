"""Small configurations and sets of graphs that the tests of graph classification share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.tasks.graph.config import GraphConfig, ModelConfig, TrainingConfig
from tests.data.tu_sets import Graph, texts, write_folder


def small_config(method: str = "SOP+SpecMaxExpF", **changes: Any) -> GraphConfig:
    """MUTAG, two layers of eight channels, three folds, four epochs; ``changes`` replace fields, also of groups."""
    model = {"hidden": 8, "layers": 2, **changes.pop("model", {})}
    training = {"epochs": 4, **changes.pop("training", {})}
    fields = {"folds": 3, "download": False, **changes}
    return GraphConfig(model=ModelConfig(method, **model), training=TrainingConfig(**training), **fields)


def rings_and_stars(count: int = 24, first: int = 0) -> list[Graph]:
    """Rings are of class 7, stars of class 3; node labels 2, 5 and 9 do not depend on the class."""
    graphs = []
    for number in range(first, first + count):
        size = 4 + number % 3
        labels = [(2, 5, 9)[(number + node) % 3] for node in range(size)]
        ring = [(node, node + 1) for node in range(size - 1)] + [(0, size - 1)]
        star = [(0, node) for node in range(1, size)]
        graphs.append(Graph(labels, ring, 7) if number % 2 else Graph(labels, star, 3))
    return graphs


def write_own_set(folder: Path, graphs: list[Graph] | None = None, without: str = "", name: str = "OWN") -> Path:
    """A custom folder in the TU format; ``without`` is the kind of file that is left out."""
    content = texts(rings_and_stars() if graphs is None else graphs)
    return write_folder(folder, {kind: text for kind, text in content.items() if kind != without}, name)


def assert_equal_states(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert list(one) == list(two)
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


def states_differ(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return any(not torch.equal(value, two[name]) for name, value in one.items())
