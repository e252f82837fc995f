"""A run folder of graph classification: the configuration, the model that came out, and the record.

``config.yaml`` is the merged configuration, ``data.json`` says which graphs it is for, ``model.pt`` is the model with
all that is needed to read other graphs as those that it was trained on, ``record.json`` is what was measured, and
``trials`` is what is needed to go on after a stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from powerpool.data import GraphSet, NodeFeatures, load_graphs
from powerpool.errors import PowerPoolError, RecordError
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.runs.folder import MODEL, missing_model
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.model import GraphClassifier
from powerpool.tasks.graph.training import batches, logits

TRIALS = "trials"
FORMAT = 1


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, and how graphs are to be read for it.

    Example:
        >>> from powerpool.data import load_graphs
        >>> graphs = load_graphs("MUTAG")
        >>> config = ModelConfig("SOP", hidden=16, layers=2)
        >>> network = GraphClassifier(config, graphs.channels, classes=2)
        >>> model = TrainedModel(config, network, graphs.features, graphs.classes)
        >>> model.probabilities(graphs).shape
        torch.Size([188, 2])
    """

    config: ModelConfig
    network: GraphClassifier
    features: NodeFeatures
    classes: tuple[int, ...]

    def read(
        self, data: str | Path, root: str | Path | None = None, *, labelled: bool = True, **kwargs: Any
    ) -> GraphSet:
        """Graphs with the node features and classes that the model knows; see :func:`powerpool.data.load_graphs`."""
        return load_graphs(data, root, features=self.features, classes=self.classes, labelled=labelled, **kwargs)

    def probabilities(
        self, graphs: GraphSet, chosen: Tensor | Sequence[int] | None = None, batch_size: int = 128
    ) -> Tensor:  # shape: (graphs, classes)
        """How probable each class is, for all graphs or those of the given numbers."""
        return self.logits(graphs, chosen, batch_size).softmax(-1)

    def logits(
        self, graphs: GraphSet, chosen: Tensor | Sequence[int] | None = None, batch_size: int = 128
    ) -> Tensor:  # shape: (graphs, classes)
        """The same before softmax, for losses: a probability may be 0 in float32."""
        numbers = torch.arange(len(graphs)) if chosen is None else torch.as_tensor(chosen)
        return logits(self.network, batches(graphs, numbers, batch_size))

    def save(self, path: str | Path) -> None:
        """Write the model atomically."""
        state = {
            "format": FORMAT,
            "pipeline": "graph",
            "config": asdict(self.config),
            "features": asdict(self.features),
            "classes": list(self.classes),
            "weights": self.network.state_dict(),
        }
        save_state(path, state)

    @classmethod
    def load(cls, path: str | Path) -> TrainedModel:
        """Read a model that :meth:`save` wrote."""
        state = load_state(path)
        if (state.get("pipeline"), state.get("format")) != ("graph", FORMAT):
            found = f"pipeline {state.get('pipeline')!r}, format {state.get('format')!r}"
            raise RecordError(f"{path} is no model of graph classification: it has {found}, needed is format {FORMAT}.")
        try:
            config = ModelConfig(**state["config"])
            features = NodeFeatures(state["features"]["kind"], tuple(state["features"]["values"]))
            classes = tuple(state["classes"])
            network = GraphClassifier(config, features.channels, len(classes))
            network.load_state_dict(state["weights"])
        except (KeyError, IndexError, TypeError, RuntimeError, PowerPoolError) as error:
            first = (str(error).splitlines() or [""])[0]
            raise RecordError(f"{path} is a damaged model: {type(error).__name__}: {first}") from error
        return cls(config, network.eval(), features, classes)


def load_run(folder: str | Path) -> TrainedModel:
    """The model of a run folder."""
    folder = Path(folder)
    file = folder / MODEL
    if file.is_file():
        return TrainedModel.load(file)
    raise missing_model(folder, "graph", "graph classification")
