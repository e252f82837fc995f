"""The suite ``training``: whole networks in which the pooling is exchanged, and nothing else.

What a user pays who replaces average pooling: the same layers, weights and batches under both, side by side.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

import powerpool as pp
from powerpool.bench.case import Answer, BenchCase, Contender, Skipped
from powerpool.bench.timing import Stopwatch
from powerpool.data import load_graphs
from powerpool.tasks.graph.config import ModelConfig
from powerpool.tasks.graph.model import GraphClassifier

ETA = 50
SEED = 0
RESNET, GIN = "ResNet-50 step", "GIN0 epoch on MUTAG"
AVERAGE, OURS = "average pooling + Linear", "second-order pooling, MaxExp(F)"
LIMITS = {RESNET: 1.15, GIN: 1.5}
"""Most that a step of the network with second-order pooling may take, in steps of the one with average pooling."""


def cases(quick: bool) -> list[BenchCase]:
    """A step of a ResNet-50 on images, and an epoch of a graph network; ``quick`` takes a small ResNet."""
    return [resnet_case(SMALL_RESNET if quick else RESNET_50), gin_case()]


# ---- images ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ResnetSizes:
    """A ResNet with bottlenecks, and the images that it sees."""

    batch: int
    pixels: int
    stem: int
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    classes: int = 102

    @property
    def channels(self) -> int:
        """C of the last maps."""
        return self.widths[-1]

    @property
    def locations(self) -> int:
        """N of the last maps: the network halves height and width five times."""
        return (self.pixels // 32) ** 2


RESNET_50 = ResnetSizes(batch=8, pixels=224, stem=64, widths=(256, 512, 1024, 2048), depths=(3, 4, 6, 3))
SMALL_RESNET = ResnetSizes(batch=2, pixels=96, stem=16, widths=(32, 64, 128, 256), depths=(1, 1, 1, 1))


def resnet_case(sizes: ResnetSizes) -> BenchCase:
    """Forward and backward of one batch, with pooling by average and by second order without reduction of channels."""
    numbers = {"batch": sizes.batch, "channels": sizes.channels, "locations": sizes.locations, "eta": ETA}
    name = RESNET if sizes == RESNET_50 else f"small {RESNET}"
    missing = _missing("transformers", "vision")
    if missing:
        return _left_out(name, numbers, missing)

    @cache
    def backbone() -> nn.Module:
        return make_resnet(sizes)

    @cache
    def batch() -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        images = torch.randn(sizes.batch, 3, sizes.pixels, sizes.pixels, generator=generator)
        return images, torch.randint(sizes.classes, (sizes.batch,), generator=generator)

    def contender(name: str, readout: Callable[[], nn.Module]) -> Contender:
        @cache
        def network() -> nn.Module:
            torch.manual_seed(SEED)
            return ImageClassifier(backbone(), readout())

        def step(watch: Stopwatch) -> Answer:
            images, labels = batch()
            with watch.forward:
                loss = nn.functional.cross_entropy(network()(images), labels)
            with watch.backward:
                loss.backward()
            # At the end, so that a step releases only what it made itself: its memory is counted.
            network().zero_grad(set_to_none=True)
            return Answer(loss.detach())

        return Contender(name, "floor" if name == AVERAGE else "powerpool", name, step)

    contenders = [
        contender(AVERAGE, lambda: average_readout(sizes.channels, sizes.classes)),
        contender(OURS, lambda: second_order_readout(sizes.channels, sizes.classes)),
    ]
    return BenchCase("training", name, numbers, contenders, labels={"curve": f"MaxExp({ETA})"})


def make_resnet(sizes: ResnetSizes) -> nn.Module:
    """The convolutions, with random weights; ``feature_maps[-1]`` of what it returns are the last maps."""
    from transformers import ResNetBackbone, ResNetConfig

    torch.manual_seed(SEED)
    config = ResNetConfig(embedding_size=sizes.stem, hidden_sizes=list(sizes.widths), depths=list(sizes.depths))
    resnet: nn.Module = ResNetBackbone(config)
    return resnet.train()


def average_readout(channels: int, classes: int) -> nn.Module:
    """The usual head of a ResNet."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def second_order_readout(channels: int, classes: int) -> nn.Module:
    """Factors instead of matrices: C x C is never formed."""
    pool = pp.nn.SecondOrderFactor2d(channels, pp.MaxExp(ETA))
    return nn.Sequential(pool, pp.nn.FactoredHead(pool.size, classes))


class ImageClassifier(nn.Module):
    """A backbone and what follows its last maps."""

    def __init__(self, backbone: nn.Module, readout: nn.Module) -> None:
        super().__init__()
        self.backbone, self.readout = backbone, readout

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, classes)
        """The logits."""
        logits: Tensor = self.readout(self.backbone(images).feature_maps[-1])
        return logits


# ---- graphs ----------------------------------------------------------------------------------------------------------

HIDDEN, LAYERS, BATCH = 64, 4, 128


def gin_case() -> BenchCase:
    """All batches of MUTAG once, forward, backward and optimiser; batches are collated before the clock starts."""
    numbers = {"batch": BATCH, "channels": HIDDEN, "layers": LAYERS, "eta": ETA}
    missing = _missing("torch_geometric", "graph") or _missing("grakel", "graph")
    if missing:
        return _left_out(GIN, numbers, missing)

    @cache
    def batches() -> list[Any]:
        return mutag_batches(BATCH)

    def contender(name: str, second_order: bool) -> Contender:
        @cache
        def training() -> tuple[nn.Module, torch.optim.Optimizer]:
            network = make_gin(batches()[0].num_node_features, second_order)
            return network, torch.optim.Adam(network.parameters(), lr=0.01)

        def step(watch: Stopwatch) -> Answer:
            network, optimizer = training()
            losses = []
            for batch in batches():
                with watch.forward:
                    loss = nn.functional.cross_entropy(network(batch), batch.y)
                with watch.backward:
                    loss.backward()
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.detach())
            return Answer(torch.stack(losses))

        return Contender(name, "powerpool" if second_order else "floor", name, step)

    contenders = [contender(AVERAGE, second_order=False), contender(OURS, second_order=True)]
    return BenchCase("training", GIN, numbers, contenders, labels={"curve": f"MaxExp({ETA})", "data": "MUTAG"})


def make_gin(channels: int, second_order: bool, classes: int = 2) -> nn.Module:
    """The network of the graph pipeline with one of two readouts, and one linear layer after both.

    The layers before it have the same weights in both.
    """
    torch.manual_seed(SEED)
    method = "SOP+SpecMaxExpF" if second_order else "GIN0"
    network = GraphClassifier(ModelConfig(method, HIDDEN, LAYERS, eta=ETA), channels, classes)
    network.head = nn.Linear(network.features, classes)
    return network


def mutag_batches(size: int) -> list[Any]:
    """MUTAG in PyG's batches, shuffled once; node labels as one-hot features."""
    from torch_geometric.loader import DataLoader

    graphs = load_graphs("MUTAG", download=False)
    generator = torch.Generator().manual_seed(SEED)
    return list(DataLoader(graphs.to_pyg(), size, shuffle=True, generator=generator))


# ---- both ------------------------------------------------------------------------------------------------------------


def _missing(package: str, extra: str) -> str | None:
    """Why a case cannot run, if the package is not there."""
    if importlib.util.find_spec(package) is not None:
        return None
    return f"needs {package}, which is not installed: pip install 'powerpool[{extra}]'"


def _left_out(name: str, sizes: dict[str, int], reason: str) -> BenchCase:
    return BenchCase("training", name, sizes, [], skipped=[Skipped(AVERAGE, reason), Skipped(OURS, reason)])
