"""The input of a case, made when it is first needed, and contenders on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from powerpool.bench import competitors, reference
from powerpool.bench.case import Answer, Contender, Origin
from powerpool.bench.timing import Stopwatch

FLOOR = "form M"
FLOOR_ANSWERS = "M"
GRAM_RATIO = 2
GRAM_REASON = f"left out above {GRAM_RATIO} locations a channel: it works in N x N, and is of use where N < C"


@dataclass(frozen=True)
class Inputs:
    """Features as after a ReLU, and the gradient that arrives from above; float32, the same for everyone."""

    batch: int
    channels: int
    locations: int
    device: str = "cpu"
    seed: int = 0

    @property
    def name(self) -> str:
        """The sizes as one word."""
        return f"B{self.batch} C{self.channels} N{self.locations}"

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name."""
        return {"batch": self.batch, "channels": self.channels, "locations": self.locations}

    @cached_property
    def features(self) -> Tensor:  # shape: (B, C, N)
        """Non-negative; drawn on the CPU, so that every device sees the same."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = torch.randn(self.batch, self.channels, self.locations, generator=generator)
        return drawn.relu().to(self.device).requires_grad_()

    @cached_property
    def upstream(self) -> Tensor:  # shape: (B, C, C)
        """Not symmetric: what a layer above sends down need not be."""
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
        """``function`` of the features, forward and backward."""

        def step(watch: Stopwatch) -> Answer:
            features, upstream = self.features, self.upstream
            with watch.forward:
                value = function(features)
            with watch.backward:
                (gradient,) = torch.autograd.grad(value, features, upstream)
            return Answer(value.detach(), gradient)

        return Contender(name, origin, answers, step, approximate)

    def floor(self) -> Contender:
        """M alone."""
        return self.contender(FLOOR, "floor", FLOOR_ANSWERS, competitors.form_moment)

    def floor_reference(self) -> Answer:
        """M in float64."""
        return reference.moment(self.features, self.upstream)
