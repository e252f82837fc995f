"""How far an end-to-end training is, what its processes have to know, and how it can end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from powerpool.data import ImageSplit
from powerpool.errors import PowerPoolError
from powerpool.tasks.vision.config import VisionConfig

STATE = "powerpool"
"""The key of :class:`Progress` in a checkpoint of Lightning."""


class FineTuningError(PowerPoolError, RuntimeError):
    """Training end to end cannot start or go on; the message says what to change."""


class Stopped(BaseException):
    """The user wants the training to stop; not an error, so that nothing takes it for one."""


class Flag(Protocol):
    """Whether the user wants the training to stop: an event of threads or of processes."""

    def is_set(self) -> bool:
        """Whether it is so."""
        ...


@dataclass
class Progress:
    """How far a training is: with the weights and the optimiser, all that what follows depends on."""

    epoch: int = 0
    """Epochs done."""
    position: int = 0
    """Batches done of the next one."""
    step: int = 0
    total: float = 0.0
    """Sum of the losses of this epoch's pictures so far."""
    seconds: float = 0.0
    train_loss: list[float] = field(default_factory=list)
    validation_loss: list[float] = field(default_factory=list)
    validation_value: list[float] = field(default_factory=list)
    rows: list[dict[str, float]] = field(default_factory=list)
    """What was logged."""
    best: dict[str, Any] | None = None
    """The chosen epoch so far, counted from 1, its value, loss and weights."""

    def curves(self) -> dict[str, list[float]]:
        """One number for every epoch."""
        named = {name: getattr(self, name) for name in ("train_loss", "validation_loss", "validation_value")}
        return {name: list(values) for name, values in named.items() if values}


@dataclass
class Plan:
    """All that the processes of a training have to know."""

    config: VisionConfig
    train: ImageSplit
    validation: ImageSplit | None
    checkpoint: Path
    facts: dict[str, Any]
    """What a checkpoint must have been made with."""
    workers: int
    show: bool
    minutes: float
    """Between two checkpoints inside an epoch."""
