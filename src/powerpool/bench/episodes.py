"""The suite ``episodes``: one training episode of few-shot learning, SoSN beside Relation Net.

The encoder is the same in both. What differs is the comparison: 19 x 19 maps of 128 channels for each pair there,
64 x 64 matrices of two channels here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn

from powerpool.bench.case import Answer, BenchCase, Contender, Origin
from powerpool.bench.timing import Stopwatch
from powerpool.tasks.fewshot.config import ModelConfig
from powerpool.tasks.fewshot.model import EpisodeNetwork, SoSN, make_network

SEED, QUERIES = 0, 5
RELATION_NET, STACKED, OURS = "Relation Net", "SoSN+SigmE, every pair put together", "SoSN+SigmE"
LIMITS = {"5-way 1-shot, 84 px": 2.2}
"""Most time that an episode of SoSN may take, in episodes of Relation Net."""


def cases(quick: bool) -> list[BenchCase]:
    """Episodes with five queries for each class; ``quick`` takes small pictures."""
    if quick:
        return [_case("2-way 1-shot, 28 px", way=2, shot=1, pixels=28, hidden=8)]
    return [
        _case("5-way 1-shot, 84 px", way=5, shot=1, pixels=84),
        _case("5-way 5-shot, 84 px", way=5, shot=5, pixels=84),
        _case("5-way 1-shot, 28 px", way=5, shot=1, pixels=28),
    ]


class StackedPairs(nn.Module):
    """The first block of SoSN on the stacked matrices of every pair: what its block on pairs does not do."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.convolution, self.norm = convolution, norm

    def forward(self, support: Tensor, query: Tensor) -> Tensor:  # shape: (L, H, W), (n, H, W) -> (n L, F, H/2, W/2)
        """The pairs of the first query come first."""
        shape = (len(query), len(support), *query.shape[1:])
        pairs = torch.stack([support.expand(shape), query[:, None].expand(shape)], 2).flatten(0, 1)
        normed = self.norm(self.convolution(pairs.contiguous(memory_format=torch.channels_last)))
        return nn.functional.max_pool2d(normed, 2).relu()


def stacked_sosn(config: ModelConfig, channels: int, pixels: int) -> EpisodeNetwork:
    """SoSN with that block."""
    network = make_network(config, channels, pixels)
    assert isinstance(network, SoSN)
    network.pairs = StackedPairs(network.pairs.convolution, network.pairs.norm)  # type: ignore[assignment]
    return network


def _case(name: str, *, way: int, shot: int, pixels: int, hidden: int = 64) -> BenchCase:
    channels = 1 if pixels < 84 else 3

    @cache
    def episode() -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        support = torch.rand(way, shot, channels, pixels, pixels, generator=generator)
        query = torch.rand(way * QUERIES, channels, pixels, pixels, generator=generator)
        return support, query, torch.arange(way).repeat_interleave(QUERIES)

    def contender(
        name: str, origin: Origin, method: str, make: Callable[..., EpisodeNetwork] = make_network
    ) -> Contender:
        @cache
        def network() -> EpisodeNetwork:
            torch.manual_seed(SEED)
            return make(ModelConfig(method, hidden=hidden), channels, pixels)

        def step(watch: Stopwatch) -> Answer:
            support, query, targets = episode()
            with watch.forward:
                loss = network().loss(network()(support, query), targets)
            with watch.backward:
                loss.backward()
            # At the end, so that a step releases only what it made itself: its memory is counted.
            network().zero_grad(set_to_none=True)
            return Answer(loss.detach())

        return Contender(name, origin, method, step)

    sosn = "SoSN(x)+SigmE"
    contenders = [
        contender(RELATION_NET, "floor", "RelationNet"),
        contender(STACKED, "competitor", sosn, stacked_sosn),
        contender(OURS, "powerpool", sosn),
    ]
    sizes = {"way": way, "shot": shot, "queries": way * QUERIES, "pixels": pixels, "channels": hidden}
    return BenchCase("episodes", name, sizes, contenders, labels={"curve": "SigmE"})
