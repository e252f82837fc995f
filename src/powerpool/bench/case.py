"""What is timed: contenders that answer the same question, side by side in one case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from powerpool.bench.timing import Stopwatch

Origin = Literal["powerpool", "competitor", "floor"]


@dataclass(frozen=True)
class Answer:
    """What a contender computed: the value, and the gradient of its input (None where there is no backward)."""

    value: Tensor
    gradient: Tensor | None = None


@dataclass(frozen=True)
class Contender:
    """One way to answer. ``step`` runs it once, and says to the stopwatch which part is forward, which backward."""

    name: str
    origin: Origin
    answers: str
    """What it computes, such as "spectral MaxExp(50)": contenders with the same label have to agree."""
    step: Callable[[Stopwatch], Answer]
    approximate: bool = False
    """It differs from the reference by design: the difference is measured and shown, not refused."""


@dataclass(frozen=True)
class Skipped:
    """A contender that is left out of a case, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class BenchCase:
    """Contenders on one input, with the float64 reference of every label.

    A label without a reference is compared with its first contender.
    """

    suite: str
    name: str
    sizes: dict[str, int]
    """For instance batch, channels, locations, eta."""
    contenders: list[Contender]
    references: dict[str, Callable[[], Answer]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    """What is no number: for instance the curve."""
