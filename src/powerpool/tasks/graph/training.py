"""Training of one graph classifier: epochs that can be stopped and resumed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.data import GraphBatch, GraphSet
from powerpool.runs.record import Score
from powerpool.tasks.graph.config import ModelConfig, TrainingConfig
from powerpool.tasks.graph.convolution import is_symmetric
from powerpool.tasks.graph.model import GraphClassifier, make_network, recompute_statistics
from powerpool.tasks.graph.scores import Objective
from powerpool.tasks.training import balanced_weights, require_device


@dataclass
class TrainingCurves:
    """One number per epoch."""

    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    validation_accuracy: list[float] = field(default_factory=list)
    test_loss: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)


@dataclass
class Best:
    """The first epoch with the lowest validation loss, and its weights."""

    epoch: int
    """Counted from 1."""
    score: Score
    weights: dict[str, Tensor]


class Training:
    """A model, its optimizer, and all else that the next epoch depends on.

    The loop is written out because Lightning's overhead exceeds the work of a small model: an epoch of MUTAG with 2
    layers of 16 channels takes 11.1 ms with everything optional switched off in Lightning, and 5.1 ms here.

    Args:
        model: the readout and sizes.
        config: optimiser and schedule.
        graphs: the data set.
        train: indices of the training graphs.
        validation: indices of the graphs that select the epoch; None to select none.
        seed: of initial weights, batches and dropout.
        watched: indices of test graphs, to test every epoch; None to test none. They change neither weights nor
            selection.

    Example:
        >>> from powerpool.data import load_graphs
        >>> graphs = load_graphs("MUTAG")
        >>> config = TrainingConfig(epochs=2)
        >>> training = Training(ModelConfig("GIN0", hidden=8, layers=2), config, graphs, torch.arange(100))
        >>> training.run()
        >>> training.epoch, len(training.curves.train_loss)
        (2, 2)
    """

    def __init__(
        self,
        model: ModelConfig,
        config: TrainingConfig,
        graphs: GraphSet,
        train: Tensor,  # shape: (train,)
        validation: Tensor | None = None,  # shape: (validation,)
        seed: int = 0,
        watched: Tensor | None = None,  # shape: (test,)
    ) -> None:
        self.config, self.graphs, self.train = config, graphs.to(require_device(config.device)), train
        self.validation = None if validation is None else collate(self.graphs, validation, config.batch_size)
        self.watched = None if watched is None else collate(self.graphs, watched, config.batch_size)
        self.order = torch.Generator().manual_seed(seed)
        # Files are often sorted by class: shuffle, so that these batches are mixed as those of the training are.
        shuffled = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(0))]
        self.statistics_batches = shuffled.tensor_split(-(-len(train) // config.batch_size))
        used = self.statistics_batches if config.batch_norm == "recomputed" else ()
        self.statistics_graphs = [self.graphs[part.to(config.device)] for part in used]
        # Initial weights, dropout and neighbours are drawn from the global generator, which belongs to the caller: its
        # state is restored after every epoch, and that of the training is kept here.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            network = make_network(model, graphs.features, graphs.edge_features, len(graphs.classes))
            self.model: GraphClassifier = network.to(config.device)
            self.random = _random_state(config.device)
        self.model.fit_statistics(self.graphs, train)
        is_balanced = config.class_weights == "balanced" and not graphs.is_regression
        weights = balanced_weights(graphs.targets[train], len(graphs.classes)) if is_balanced else None
        self.objective = self.model.objective(weights)
        self.model.symmetric = is_symmetric(self.graphs.edge_index)
        # With fused=True an epoch of NCI1 takes 0.86 (GIN0) to 0.94 (MaxExp(F)) times as long as with foreach=True.
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, config.decay_every, config.decay_factor)
        self.curves = TrainingCurves()
        self.seconds = 0.0
        self.best: Best | None = None

    @property
    def epoch(self) -> int:
        """Finished epochs."""
        return len(self.curves.train_loss)

    def run(self, epochs: int | None = None, after: Callable[[Training], None] = lambda training: None) -> None:
        """Train until ``epochs`` are finished (default: those of the configuration), calling ``after`` after each."""
        while self.epoch < (self.config.epochs if epochs is None else epochs):
            self.step()
            after(self)

    def step(self) -> None:
        """Train and validate one epoch."""
        start = time.perf_counter()
        with torch.random.fork_rng():
            _set_random_state(self.random, self.config.device)
            loss = self._train()
            self.random = _random_state(self.config.device)
        self.schedule.step()
        self.curves.train_loss.append(loss)
        if self.validation is not None or self.watched is not None:
            self.prepare_evaluation()
        if self.watched is not None:
            tested = score(self.model, self.watched)
            self.curves.test_loss.append(tested.loss)
            self.curves.test_accuracy.append(tested.value)
        if self.validation is not None:
            validated = score(self.model, self.validation, self.objective)
            self.curves.validation_loss.append(validated.loss)
            if not self.objective.is_regression:
                self.curves.validation_accuracy.append(validated.value)
            # A loss of NaN is never the lowest.
            lowest = math.inf if self.best is None else self.best.score.loss
            if validated.loss < lowest:
                weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
                self.best = Best(self.epoch, validated, weights)
        self.seconds += time.perf_counter() - start

    def prepare_evaluation(self) -> None:
        """Recompute batch-norm statistics if the configuration asks for it."""
        if self.config.batch_norm == "recomputed":
            recompute_statistics(self.model, self.statistics_graphs)

    def _train(self) -> float:
        self.model.train()
        total = torch.zeros((), device=self.config.device)
        order = torch.randperm(len(self.train), generator=self.order)
        for part in split(self.train[order], self.config.batch_size):
            batch = self.graphs[part.to(self.config.device)]
            loss = self.objective.loss(self.model(batch), batch.y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            total += loss.detach() * len(part)
        return float(total) / len(self.train)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next epoch depends on, as tensors and plain values."""
        best = self.best
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "order": self.order.get_state(),
            "random": self.random,
            "curves": asdict(self.curves),
            "seconds": self.seconds,
            "best": best and {"epoch": best.epoch, "score": asdict(best.score), "weights": best.weights},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from :meth:`state_dict`: what follows is the same bit for bit."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.order.set_state(state["order"])
        self.random = state["random"]
        self.curves, self.seconds = TrainingCurves(**state["curves"]), state["seconds"]
        best = state["best"]
        self.best = best and Best(best["epoch"], Score(**best["score"]), best["weights"])


def split(numbers: Tensor, size: int) -> list[Tensor]:
    """Split indices into batches of ``size``; a single last graph joins the batch before.

    It may have one node, for which batch normalization has no variance.
    """
    *parts, last = numbers.split(size)
    if parts and len(last) == 1:
        return [*parts[:-1], torch.cat([parts[-1], last])]
    return [*parts, last]


def collate(graphs: GraphSet, chosen: Tensor, size: int) -> list[GraphBatch]:
    """Collate the chosen graphs once, in order, ``size`` to a batch."""
    return [graphs[part.to(graphs.node_ptr.device)] for part in chosen.split(size)]


@torch.no_grad()
def compute_logits(model: nn.Module, parts: list[GraphBatch]) -> Tensor:  # shape: (graphs, classes)
    """Return the logits in evaluation mode."""
    model.eval()
    return torch.cat([model(part) for part in parts])


def score(model: nn.Module, parts: list[GraphBatch], objective: Objective | None = None) -> Score:
    """Return accuracy or mean absolute error, and loss; without an objective, the cross-entropy."""
    return (objective or Objective()).score(compute_logits(model, parts), torch.cat([part.y for part in parts]))


def _random_state(device: str) -> list[Tensor]:
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.startswith("cuda") else states


def _set_random_state(states: list[Tensor], device: str) -> None:
    torch.set_rng_state(states[0])
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(states[1], device)
