"""The suites of whole jobs: ``training``, ``episodes`` and ``extraction``, on the CPU.

They show what a user pays for second-order pooling: the same job with average pooling, with Relation Net, or with the
backbone alone, side by side. Names of cases and contenders are those of stored records.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import powerpool as pp
from powerpool.bench.cases import BenchCase, Contender, Origin
from powerpool.bench.measure import Stopwatch
from powerpool.bench.record import Skipped
from powerpool.bench.reference import Answer
from powerpool.data import Crops, ImageDataset, ImageSplit, list_images, load_graphs
from powerpool.integrations.backbones import fold_batch_norm, load_backbone
from powerpool.tasks.fewshot.config import ModelConfig as EpisodeConfig
from powerpool.tasks.fewshot.model import EpisodeNetwork, RelationNet, SoSN, make_network, map_side
from powerpool.tasks.graph.config import ModelConfig as GraphConfig
from powerpool.tasks.graph.model import GraphClassifier
from powerpool.tasks.vision.extraction import Frozen, stream_maps

SEED = 0


def _gradient_step(network: nn.Module, loss: Callable[[], Tensor], watch: Stopwatch) -> Answer:
    with watch.forward:
        value = loss()
    with watch.backward:
        value.backward()
    # At the end, so that a step releases only what it allocated: its memory is measured.
    network.zero_grad(set_to_none=True)
    return Answer(value.detach())


# ---- training: networks in which only the pooling is exchanged -------------------------------------------------------

ETA = 50
RESNET, GIN = "ResNet-50 step", "GIN0 epoch on MUTAG"
AVERAGE, SECOND_ORDER = "average pooling + Linear", "second-order pooling, MaxExp(F)"


def training(quick: bool) -> list[BenchCase]:
    """A step of a ResNet-50 on images, and an epoch of a graph network; ``quick`` takes a small ResNet."""
    return [resnet_case(SMALL_RESNET if quick else RESNET_50), gin_case()]


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
        """Channels of the last feature maps."""
        return self.widths[-1]

    @property
    def locations(self) -> int:
        """Locations of the last feature maps: the network halves height and width five times."""
        return (self.pixels // 32) ** 2


RESNET_50 = ResnetSizes(batch=8, pixels=224, stem=64, widths=(256, 512, 1024, 2048), depths=(3, 4, 6, 3))
SMALL_RESNET = ResnetSizes(batch=2, pixels=96, stem=16, widths=(32, 64, 128, 256), depths=(1, 1, 1, 1))


def resnet_case(sizes: ResnetSizes) -> BenchCase:
    """Forward and backward of one batch, with average pooling and with second-order pooling of all channels."""
    numbers = {"batch": sizes.batch, "channels": sizes.channels, "locations": sizes.locations, "eta": ETA}
    name = RESNET if sizes == RESNET_50 else f"small {RESNET}"
    missing = _find_missing(transformers="vision")
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

    def contender(name: str, origin: Origin, readout: Callable[[int, int], nn.Module]) -> Contender:
        @cache
        def network() -> nn.Module:
            torch.manual_seed(SEED)
            return ImageClassifier(backbone(), readout(sizes.channels, sizes.classes))

        def loss() -> Tensor:
            images, labels = batch()
            return nn.functional.cross_entropy(network()(images), labels)

        return Contender(name, origin, name, lambda watch: _gradient_step(network(), loss, watch))

    contenders = [
        contender(AVERAGE, "floor", average_readout),
        contender(SECOND_ORDER, "powerpool", second_order_readout),
    ]
    return BenchCase("training", name, numbers, contenders, labels={"curve": f"MaxExp({ETA})"})


def make_resnet(sizes: ResnetSizes) -> nn.Module:
    """The convolutions of a ResNet, with random weights; the output has ``feature_maps``."""
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
    """A backbone and a readout of its last feature maps."""

    def __init__(self, backbone: nn.Module, readout: nn.Module) -> None:
        super().__init__()
        self.backbone, self.readout = backbone, readout

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, classes)
        """The logits."""
        logits: Tensor = self.readout(self.backbone(images).feature_maps[-1])
        return logits


HIDDEN, LAYERS, GRAPHS = 64, 4, 128


def gin_case() -> BenchCase:
    """All batches of MUTAG once: forward, backward and optimizer. Batches are collated beforehand."""
    numbers = {"batch": GRAPHS, "channels": HIDDEN, "layers": LAYERS, "eta": ETA}
    missing = _find_missing(torch_geometric="graph", grakel="graph")
    if missing:
        return _left_out(GIN, numbers, missing)

    @cache
    def batches() -> list[Any]:
        return mutag_batches(GRAPHS)

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

    contenders = [contender(AVERAGE, second_order=False), contender(SECOND_ORDER, second_order=True)]
    return BenchCase("training", GIN, numbers, contenders, labels={"curve": f"MaxExp({ETA})", "data": "MUTAG"})


def make_gin(channels: int, second_order: bool, classes: int = 2) -> nn.Module:
    """The network of the graph task with either readout and one linear layer; the layers before have equal weights."""
    torch.manual_seed(SEED)
    method = "SOP+SpecMaxExpF" if second_order else "GIN0"
    network = GraphClassifier(GraphConfig(method, HIDDEN, LAYERS, eta=ETA), channels, classes)
    network.head = nn.Linear(network.features, classes)
    return network


def mutag_batches(size: int) -> list[Any]:
    """MUTAG in batches of PyG, shuffled once; node labels are one-hot features."""
    from torch_geometric.loader import DataLoader

    graphs = load_graphs("MUTAG", download=False)
    generator = torch.Generator().manual_seed(SEED)
    return list(DataLoader(graphs.to_pyg(), size, shuffle=True, generator=generator))


def _find_missing(**extras: str) -> str | None:
    """Why a case cannot run: the first package that is not installed, and its extra."""
    for package, extra in extras.items():
        if importlib.util.find_spec(package) is None:
            return f"needs {package}, which is not installed: pip install 'powerpool[{extra}]'"
    return None


def _left_out(name: str, sizes: dict[str, int], reason: str) -> BenchCase:
    return BenchCase("training", name, sizes, [], skipped=[Skipped(AVERAGE, reason), Skipped(SECOND_ORDER, reason)])


# ---- episodes: one training episode of few-shot learning -------------------------------------------------------------

QUERIES = 5
RELATION_NET, STACKED_RELATION = "Relation Net", "Relation Net, every pair put together"
SOSN, STACKED = "SoSN+SigmE", "SoSN+SigmE, every pair put together"


def episodes(quick: bool) -> list[BenchCase]:
    """SoSN and Relation Net with the same encoder and five queries a class; ``quick`` takes small images.

    They differ in the comparison: Relation Net has two convolutions on 19 x 19 maps, SoSN four on 64 x 64 matrices.
    Both are also measured with the first convolution on every pair.
    """
    if quick:
        return [_episode_case("2-way 1-shot, 28 px", way=2, shot=1, pixels=28, hidden=8)]
    return [
        _episode_case("5-way 1-shot, 84 px", way=5, shot=1, pixels=84),
        _episode_case("5-way 5-shot, 84 px", way=5, shot=5, pixels=84),
        _episode_case("5-way 1-shot, 28 px", way=5, shot=1, pixels=28),
    ]


class StackedPairs(nn.Module):
    """The first block of SoSN on the stacked matrices of every pair, which its own block never forms."""

    def __init__(self, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.convolution, self.norm = convolution, norm

    def forward(self, support: Tensor, query: Tensor) -> Tensor:  # shape: (L, H, W), (n, H, W) -> (n L, F, H/2, W/2)
        """The pairs of the first query come first."""
        shape = (len(query), len(support), *query.shape[1:])
        pairs = torch.stack([support.expand(shape), query[:, None].expand(shape)], 2).flatten(0, 1)
        normed = self.norm(self.convolution(pairs.contiguous(memory_format=torch.channels_last)))
        return nn.functional.max_pool2d(normed, 2).relu()


def stacked_sosn(config: EpisodeConfig, channels: int, pixels: int) -> EpisodeNetwork:
    """SoSN with :class:`StackedPairs`."""
    network = make_network(config, channels, pixels)
    assert isinstance(network, SoSN)
    network.pairs = StackedPairs(network.pairs.convolution, network.pairs.norm)  # type: ignore[assignment]
    return network


class StackedRelationNet(RelationNet):
    """Relation Net with the first block on the concatenated maps of every pair, as its authors describe it."""

    def match(self, classes: Tensor, query: Tensor) -> Tensor:
        shape = (len(query), len(classes), *query.shape[1:])
        pairs = torch.cat([classes.expand(shape), query[:, None].expand(shape)], 2).flatten(0, 1)
        found: Tensor = self.score(self.relation(pairs.contiguous(memory_format=torch.channels_last)))
        return found.view(len(query), len(classes))


def stacked_relation(config: EpisodeConfig, channels: int, pixels: int) -> EpisodeNetwork:
    """Build a :class:`StackedRelationNet`."""
    network = StackedRelationNet(config, channels, map_side(pixels))
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _episode_case(name: str, *, way: int, shot: int, pixels: int, hidden: int = 64) -> BenchCase:
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
            return make(EpisodeConfig(method, hidden=hidden), channels, pixels)

        def loss() -> Tensor:
            support, query, targets = episode()
            return network().loss(network().logits(support, query), targets)

        return Contender(name, origin, method, lambda watch: _gradient_step(network(), loss, watch))

    sosn = "SoSN(x)+SigmE"
    contenders = [
        contender(RELATION_NET, "floor", "RelationNet"),
        contender(STACKED_RELATION, "competitor", "RelationNet", stacked_relation),
        contender(STACKED, "competitor", sosn, stacked_sosn),
        contender(SOSN, "powerpool", sosn),
    ]
    sizes = {"way": way, "shot": shot, "queries": way * QUERIES, "pixels": pixels, "channels": hidden}
    return BenchCase("episodes", name, sizes, contenders, labels={"curve": "SigmE"})


# ---- extraction: features from image files ---------------------------------------------------------------------------

NETWORK = "efficientnet-lite0"
BARE, FOLDED, FROM_FILES = "backbone alone, as it was loaded", "backbone alone, folded", "features from picture files"


def extraction(quick: bool) -> list[BenchCase]:
    """Sets of twelve crops of 224 px, and single crops; ``quick`` takes a few small ones.

    The difference to the backbone alone, on crops in memory, is the cost of decoding, cropping and worker processes.
    """
    if quick:
        return [_extraction_case("12 crops a picture", Crops(size=64, count=12, resize=80), images=2)]
    many, one = Crops(size=224, count=12, resize=320), Crops(size=224, count=1, resize=256)
    return [
        _extraction_case("12 crops a picture", many, images=24),
        _extraction_case("1 crop a picture", one, images=192),
    ]


def _extraction_case(name: str, crops: Crops, images: int) -> BenchCase:
    @cache
    def dataset() -> ImageDataset:
        return ImageDataset(make_images(images), crops)

    @cache
    def in_memory() -> Tensor:
        data = dataset()
        return torch.stack([data[number]["images"] for number in range(len(data))]).flatten(0, 1)

    @cache
    def network(folded: bool) -> Frozen:
        backbone = load_backbone(NETWORK).eval()
        example = torch.rand(1, 3, crops.size, crops.size)
        return Frozen(fold_batch_norm(backbone, example) if folded else backbone, torch.device("cpu"))

    def alone(folded: bool, watch: Stopwatch) -> Answer:
        with watch.forward:
            maps = network(folded)(in_memory())
        return Answer(maps)

    def from_files(watch: Stopwatch) -> Answer:
        with watch.forward:
            maps = torch.cat(list(stream_maps(dataset(), network(True), torch.get_num_threads())))
        return Answer(maps.flatten(0, 1))

    contenders = [
        Contender(BARE, "floor", "maps", lambda watch: alone(False, watch)),
        Contender(FOLDED, "floor", "maps", lambda watch: alone(True, watch)),
        Contender(FROM_FILES, "powerpool", "maps", from_files),
    ]
    sizes = {"images": images, "crops": crops.count, "pixels": crops.size}
    return BenchCase("extraction", name, sizes, contenders, labels={"network": NETWORK})


@cache
def make_images(count: int) -> ImageSplit:
    """JPEG files of 500 x 375 pixels, a usual size on the web: smooth noise, which decodes as fast as photographs."""
    from PIL import Image

    folder = Path(tempfile.mkdtemp(prefix="powerpool-bench-"))
    generator = torch.Generator().manual_seed(SEED)
    for number in range(count):
        coarse = torch.randint(256, (47, 63, 3), generator=generator, dtype=torch.uint8)
        image = Image.frombytes("RGB", (63, 47), bytes(coarse.flatten().tolist()))
        image.resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{number:04d}.jpg", quality=90)
    return list_images([folder])
