"""Many steps of the graph pipeline in a process of its own, and the memory that it has after each epoch.

    python -m tests.stress.soak FOLDER STEPS LEAKY_STEPS

First as users train: every epoch is validated and is in a checkpoint. Then, to show that a leak would show, with a
tensor of 1024 numbers that is kept in every step. Prints JSON: for both, pairs of steps and KB.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch

from powerpool.data import load_graphs
from powerpool.tasks.base import Unit
from powerpool.tasks.graph import task
from powerpool.tasks.graph.config import GraphConfig, ModelConfig, TrainingConfig
from tests.tasks.graph.samples import rings_and_stars, write_own_set

STEPS_OF_EPOCH = 8
LEAK = 1024
PAGE = os.sysconf("SC_PAGE_SIZE") // 1024


def memory() -> int:
    """KB of this process that are in memory."""
    return PAGE * int(Path("/proc/self/statm").read_text().split()[1])


def soak(folder: Path, steps: int, leak: int = 0) -> list[tuple[int, int]]:
    """Train for so many steps, with ``leak`` numbers kept in each; steps done and KB after every epoch."""
    data = write_own_set(folder / "OWN", rings_and_stars(48))
    training = TrainingConfig(epochs=steps // STEPS_OF_EPOCH, batch_size=2)
    model = ModelConfig("SOP+SpecMaxExpF", hidden=4, layers=1)
    config = GraphConfig(str(data), model=model, training=training, folds=3, download=False)
    graphs = load_graphs(data)
    per_epoch = -(-len(task.make_fold(config, graphs, 0).train) // training.batch_size)
    if per_epoch != STEPS_OF_EPOCH:
        raise ValueError(f"An epoch has {per_epoch} steps, not {STEPS_OF_EPOCH}.")
    found: list[tuple[int, int]] = []
    kept: list[torch.Tensor] = []

    def watch(what: str, done: int, total: int, remark: str = "") -> None:
        kept.extend(torch.ones(leak) for _ in range(STEPS_OF_EPOCH if leak else 0))
        found.append((STEPS_OF_EPOCH * done, memory()))

    task.TASK.fit(config, graphs, Unit(0), ["validation-only"], folder / f"checkpoint-{leak}", watch)
    return found


if __name__ == "__main__":
    task.CHECKPOINT_SECONDS = 0.2
    place, steps, leaky = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    print(json.dumps({"usual": soak(place, steps), "leaky": soak(place, leaky, LEAK)}))
