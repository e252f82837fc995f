"""Networks of few-shot learning: the pictures of an episode in, one score for each query and class out."""

from __future__ import annotations

import contextlib
from abc import abstractmethod

import torch
from torch import Tensor, nn

from powerpool.errors import ShapeError
from powerpool.linalg.precision import at_least_float32
from powerpool.moments.coordinates import spatial_coordinates
from powerpool.nn.relation import RelationDescriptor
from powerpool.tasks.fewshot.config import ModelConfig
from powerpool.tasks.fewshot.methods import METHODS
from powerpool.tasks.fewshot.pairs import PairBlock, initialized
from powerpool.tasks.pooling import FeatureSet, Normalization, normalization_of
from powerpool.vectorize import to_vector

UNITS = 8
"""Hidden units behind the convolutions of a similarity network."""
PAIRS, PICTURES = 256, 256
"""How many pairs are compared, and pictures encoded, at once outside of training: all those of 90 classes are too many
for memory."""
UNPADDED = 12
"""Maps from this side on are compared without a margin, as Relation Net does with the 19 x 19 of 84 pixels; smaller
ones, such as the 5 x 5 of 28 pixels, would vanish."""


def conv_block(inputs: int, outputs: int, *, padding: int = 1, pool: bool = False) -> nn.Sequential:
    """Convolution, batch normalization, ReLU, and max-pooling if wanted.

    Pooling stands before ReLU: the result is the same, with a quarter of the work for ReLU.
    """
    halved = [nn.MaxPool2d(2)] if pool else []
    convolution = initialized(nn.Conv2d(inputs, outputs, 3, padding=padding, bias=False))
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *halved, nn.ReLU(inplace=True))


def relation_encoder(channels: int, hidden: int) -> nn.Sequential:
    """Four convolutions with batch normalization and ReLU, the first two without a margin and with pooling.

    A picture of 84 pixels becomes a map of 19 x 19 locations, one of 28 pixels 5 x 5, one of 224 pixels 54 x 54.

    Example:
        >>> import torch
        >>> relation_encoder(3, 64)(torch.rand(2, 3, 84, 84)).shape
        torch.Size([2, 64, 19, 19])
    """
    return nn.Sequential(
        conv_block(channels, hidden, padding=0, pool=True),
        conv_block(hidden, hidden, padding=0, pool=True),
        conv_block(hidden, hidden),
        conv_block(hidden, hidden),
    )


def prototypical_encoder(channels: int, hidden: int) -> nn.Sequential:
    """Four convolutions with a margin, batch normalization, ReLU and pooling: 84 pixels become 5 x 5 locations."""
    return nn.Sequential(*(conv_block(inputs, hidden, pool=True) for inputs in (channels, hidden, hidden, hidden)))


class EpisodeNetwork(nn.Module):
    """An encoder, and a way to compare. Subclasses say how, and which loss they are trained with."""

    trains_in_bfloat16 = False
    """Whether convolutions and linear layers compute in bfloat16 while they are trained; matrices and the loss are
    float32."""

    def __init__(self, config: ModelConfig, channels: int) -> None:
        super().__init__()
        self.config, self.method = config, METHODS[config.method]
        # First of all layers: after the same seed all methods start with the same weights.
        self.encoder = self.make_encoder(channels, config.hidden)

    @staticmethod
    def make_encoder(channels: int, hidden: int) -> nn.Module:
        """That of Relation Net, but where a method has its own."""
        return relation_encoder(channels, hidden)

    def forward(self, support: Tensor, query: Tensor) -> Tensor:  # shape: (L, J, C, H, W), (n, C, H, W) -> (n, L)
        """Scores, the higher the more alike; all pictures go through the encoder at once."""
        if support.ndim != 5 or query.ndim != 4 or support.shape[2:] != query.shape[1:]:
            raise ShapeError(
                "An episode needs support (L, J, C, H, W) and query (n, C, H, W) of one size "
                f"(got {tuple(support.shape)} and {tuple(query.shape)})."
            )
        pictures = torch.cat([support.flatten(0, 1), query])
        half = self.trains_in_bfloat16 and self.training
        # One context for each pass: inside of one, autocast keeps the weights as they were when it first saw them.
        with torch.autocast(pictures.device.type, torch.bfloat16) if half else contextlib.nullcontext():
            maps = torch.cat([self.encode(part) for part in pictures.split(self._at_once(PICTURES, len(pictures)))])
            shown = support.shape[0] * support.shape[1]
            scores = self.compare(maps[:shown].unflatten(0, support.shape[:2]), maps[shown:])
        return at_least_float32(scores)

    def encode(self, pictures: Tensor) -> Tensor:  # shape: (B, C, H, W) -> (B, K, h, w)
        """The maps of pictures in [0, 1]."""
        # A pixel's channels side by side in memory is the fastest order for convolutions on a CPU.
        maps: Tensor = self.encoder(pictures.contiguous(memory_format=torch.channels_last))
        return at_least_float32(maps)

    def compare(self, support: Tensor, query: Tensor) -> Tensor:  # shape: (L, J, K, h, w), (n, K, h, w) -> (n, L)
        """Scores of encoded pictures."""
        return self.match_in_parts(self.represent(support), query)

    def match_in_parts(self, classes: Tensor, query: Tensor) -> Tensor:  # shape: (L, *D), (n, K, h, w) -> (n, L)
        """Scores of encoded queries, of so many at once as memory has room for."""
        step = self._at_once(max(1, PAIRS // len(classes)), len(query))
        return torch.cat([self.match(classes, part) for part in query.split(step)])

    def _at_once(self, few: int, count: int) -> int:
        """All of them where statistics are taken from the batch, in training and in transductive tests."""
        return max(1, count) if any(layer.training for layer in self.modules()) else few

    @abstractmethod
    def represent(self, support: Tensor) -> Tensor:  # shape: (L, J, K, h, w) -> (L, *D)
        """What is kept of the support pictures of each class."""

    @abstractmethod
    def match(self, classes: Tensor, query: Tensor) -> Tensor:  # shape: (L, *D), (n, K, h, w) -> (n, L)
        """Scores of encoded queries."""

    @abstractmethod
    def loss(self, scores: Tensor, targets: Tensor) -> Tensor:  # shape: (n, L), (n,) -> ()
        """What training makes small."""


class PairNetwork(EpisodeNetwork):
    """Scores between 0 and 1 from a network that sees a pair, and their squared distance to 1 or 0."""

    def loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The mean over all pairs."""
        wanted = nn.functional.one_hot(targets, scores.shape[1]).to(scores.dtype)
        return nn.functional.mse_loss(scores, wanted)


class RelationNet(PairNetwork):
    """Relation Net: the mean maps of the support and the query side by side, compared by two convolutions.

    It is the first-order baseline, as its authors describe it: every pair is put together and goes through the network.
    They sum over the shots. A mean differs by a factor that the weights can take up, and lets a trained network compare
    with another number of shots.
    """

    def __init__(self, config: ModelConfig, channels: int, side: int) -> None:
        super().__init__(config, channels)
        padding = 0 if side >= UNPADDED else 1
        blocks = []
        for inputs in (2 * config.hidden, config.hidden):
            side += 2 * padding - 2
            blocks.append(conv_block(inputs, config.hidden, padding=padding, pool=side > 1))
            side = max(side // 2, 1)
        self.relation = nn.Sequential(*blocks)
        self.score = score_head(config.hidden * side**2)

    def represent(self, support: Tensor) -> Tensor:
        """The mean map."""
        return support.mean(1)

    def match(self, classes: Tensor, query: Tensor) -> Tensor:
        """All pairs in one batch."""
        shape = (len(query), len(classes), *query.shape[1:])
        pairs = torch.cat([classes.expand(shape), query[:, None].expand(shape)], 2).flatten(0, 1)
        found: Tensor = self.score(self.relation(pairs.contiguous(memory_format=torch.channels_last)))
        return found.view(len(query), len(classes))


class SoSN(PairNetwork):
    """Second-order similarity network: power-normalized matrices of support and query, compared by four convolutions.

    Example:
        >>> import torch
        >>> network = SoSN(ModelConfig("SoSN(x)+SigmE", hidden=16), channels=3, side=19)
        >>> network(torch.rand(5, 1, 3, 84, 84), torch.rand(15, 3, 84, 84)).shape
        torch.Size([15, 5])
    """

    def __init__(self, config: ModelConfig, channels: int, side: int) -> None:
        super().__init__(config, channels)
        self.descriptor = make_descriptor(config)
        self.grid = Grid(config, side)
        hidden, size = config.hidden, config.hidden + self.grid.channels
        self.pairs = PairBlock(hidden)
        blocks = []
        size //= 2
        for _ in range(3):
            blocks.append(conv_block(hidden, hidden, pool=size > 1))
            size = max(size // 2, 1)
        self.similarity = nn.Sequential(*blocks)
        self.score = score_head(hidden * size**2)

    def represent(self, support: Tensor) -> Tensor:
        """One matrix for each class."""
        return self.descriptor.support_matrix(support.flatten(3), self.grid(support))

    def match(self, classes: Tensor, query: Tensor) -> Tensor:
        """One matrix for each query; pairs are made after the first convolution."""
        queries = self.descriptor.query_matrix(query.flatten(2), self.grid(query))
        found: Tensor = self.score(self.similarity(self.pairs(classes, queries)))
        return found.view(len(queries), len(classes))


class DistanceNetwork(EpisodeNetwork):
    r"""Scores :math:`-\lVert z_q - \bar z_c \rVert^2` and cross-entropy; :math:`\bar z_c` is the mean of the shots."""

    def loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The mean over queries."""
        return nn.functional.cross_entropy(scores, targets)

    def represent(self, support: Tensor) -> Tensor:
        """The mean vector."""
        return self.vectors(support.flatten(0, 1)).unflatten(0, support.shape[:2]).mean(1)

    def match(self, classes: Tensor, query: Tensor) -> Tensor:
        """Distances between vectors."""
        return -(self.vectors(query)[:, None] - classes).square().sum(-1)

    @abstractmethod
    def vectors(self, maps: Tensor) -> Tensor:  # shape: (B, K, h, w) -> (B, D)
        """The vectors whose means and distances are taken."""


class PrototypicalNet(DistanceNetwork):
    """Prototypical Net, with the encoder of its authors, whose maps are one vector."""

    @staticmethod
    def make_encoder(channels: int, hidden: int) -> nn.Module:
        """With pooling in every block."""
        return prototypical_encoder(channels, hidden)

    def vectors(self, maps: Tensor) -> Tensor:
        """The maps, one after the other."""
        return maps.flatten(1)


class NearestMean(DistanceNetwork):
    """Nearest class mean of power-normalized second-order matrices, with a trained scale for the distances."""

    def __init__(self, config: ModelConfig, channels: int, side: int) -> None:
        super().__init__(config, channels)
        self.descriptor = make_descriptor(config)
        self.grid = Grid(config, side)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def vectors(self, maps: Tensor) -> Tensor:
        """The matrices, each entry off the diagonal once and times the square root of two."""
        matrices = self.descriptor.query_matrix(maps.flatten(2), self.grid(maps))
        return to_vector(matrices)

    def match(self, classes: Tensor, query: Tensor) -> Tensor:
        """Distances, times a scale."""
        return super().match(classes, query) * self.log_scale.exp()


class Grid(nn.Module):
    """The spatial coordinates of a method that has them, and nothing for others."""

    coordinates: Tensor | None

    def __init__(self, config: ModelConfig, side: int) -> None:
        super().__init__()
        self.channels = 2 * config.pivots if METHODS[config.method].coordinates else 0
        found = spatial_coordinates(side, side, config.pivots, config.sigma, config.alpha) if self.channels else None
        self.register_buffer("coordinates", found, persistent=False)

    def forward(self, like: Tensor) -> Tensor | None:  # shape: (2Z, side side)
        """In the type of a tensor."""
        return None if self.coordinates is None else self.coordinates.to(like.dtype)


def score_head(features: int) -> nn.Sequential:
    """From maps to one number between 0 and 1."""
    return nn.Sequential(nn.Flatten(), nn.Linear(features, UNITS), nn.ReLU(), nn.Linear(UNITS, 1), nn.Sigmoid())


def make_descriptor(config: ModelConfig) -> RelationDescriptor:
    """How support and query features become matrices."""
    method = METHODS[config.method]
    return RelationDescriptor(
        method.make_curve(config), method.mode, method.variant, beta=config.beta, solver=method.make_solver(config)
    )


def feature_sets(network: EpisodeNetwork, maps: Tensor) -> list[FeatureSet]:  # shape: (B, K, h, w)
    """What the matrix of each encoded picture is made of; the maps themselves where a network has no matrices."""
    grid = network.grid(maps) if isinstance(network, SoSN | NearestMean) else None
    return [FeatureSet(one, grid) for one in maps.flatten(2)]


def normalization(network: EpisodeNetwork) -> Normalization:
    """What is done to it."""
    name = network.config.method
    if isinstance(network, SoSN | NearestMean):
        return normalization_of(name, network.descriptor)
    return Normalization(name, is_first_order=True)


def make_network(config: ModelConfig, channels: int, size: int) -> EpisodeNetwork:
    """The network of a method, for pictures of a size in pixels.

    Networks that are made after the same seed have encoders with the same weights, where they have the same encoder.

    Example:
        >>> import torch
        >>> network = make_network(ModelConfig("RelationNet"), channels=1, size=28)
        >>> network(torch.rand(5, 1, 1, 28, 28), torch.rand(15, 1, 28, 28)).shape
        torch.Size([15, 5])
    """
    kind, side = METHODS[config.method].kind, map_side(size)
    network: EpisodeNetwork
    if kind == "relation":
        network = RelationNet(config, channels, side)
    elif kind == "prototype":
        network = PrototypicalNet(config, channels)
    elif kind == "similarity":
        network = SoSN(config, channels, side)
    else:
        network = NearestMean(config, channels, side)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def map_side(size: int) -> int:
    """The side of the encoder's map.

    Example:
        >>> map_side(84), map_side(28), map_side(224)
        (19, 5, 54)
    """
    for _ in range(2):
        size = (size - 2) // 2
    return size
