"""What is timed: contenders that answer the same question, side by side in one case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from powerpool.bench import competitors, reference
from powerpool.bench.measure import Stopwatch
from powerpool.bench.record import Skipped
from powerpool.bench.reference import Answer

Origin = Literal["powerpool", "competitor", "floor"]
Reference: TypeAlias = Callable[[Tensor, Tensor], Answer]
"""A function of features and of the gradient of the result."""
MOMENT = "M"
"""The label of contenders that only form the moment."""


@dataclass(frozen=True)
class Contender:
    """One way to answer. ``step`` runs it once, its forward and backward pass inside those of the stopwatch."""

    name: str
    origin: Origin
    answers: str
    """What it computes, such as "spectral MaxExp(50)": contenders with the same label have to agree."""
    step: Callable[[Stopwatch], Answer]
    approximate: bool = False
    """It differs from the reference by design: the difference is recorded, not refused."""


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
    """What is not a number: for instance the curve."""


@dataclass(frozen=True)
class Inputs:
    """Features as after a ReLU, and a gradient from above; float32, the same for all contenders."""

    batch: int
    channels: int
    locations: int
    device: str = "cpu"
    seed: int = 0

    @property
    def name(self) -> str:
        """The sizes as text."""
        return f"B{self.batch} C{self.channels} N{self.locations}"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name."""
        return {"batch": self.batch, "channels": self.channels, "locations": self.locations}

    @cached_property
    def features(self) -> Tensor:  # shape: (B, C, N)
        """Non-negative; drawn on the CPU, so that every device sees the same numbers."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randn(self.batch, self.channels, self.locations, generator=generator)
        return drawn.relu().to(self.device).requires_grad_()

    @cached_property
    def upstream(self) -> Tensor:  # shape: (B, C, C)
        """Not symmetric: the gradient from a layer above need not be."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        return torch.randn(self.batch, self.channels, self.channels, generator=generator).to(self.device)

    def contender(
        self,
        name: str,
        origin: Origin,
        answers: str,
        function: Callable[[Tensor], Tensor],
        approximate: bool = False,
    ) -> Contender:
        """Make a contender from a function of the features, run forward and backward."""

        def step(watch: Stopwatch) -> Answer:
            features, upstream = self.features, self.upstream
            with watch.forward:
                value = function(features)
            with watch.backward:
                (gradient,) = torch.autograd.grad(value, features, upstream)
            return Answer(value.detach(), gradient)

        return Contender(name, origin, answers, step, approximate)

    def floor(self) -> Contender:
        """The contender that only forms M."""
        return self.contender("form M", "floor", MOMENT, competitors.form_moment)

    def references(self, others: Mapping[str, Reference]) -> dict[str, Callable[[], Answer]]:
        """References of :data:`MOMENT` and of other labels, computed on demand."""
        every = {MOMENT: reference.moment, **others}
        return {label: partial(self._answer, function) for label, function in every.items()}

    def _answer(self, function: Reference) -> Answer:
        return function(self.features, self.upstream)
