"""Networks of few-shot learning: from the images of an episode to a score for each query and class."""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod

import torch
from torch import Tensor, nn

from powerpool.errors import ShapeError
from powerpool.linalg.precision import at_least_float32, without_autocast
from powerpool.moments.coordinates import spatial_coordinates
from powerpool.nn.relation import RelationDescriptor
from powerpool.tasks.fewshot.config import Loss, ModelConfig
from powerpool.tasks.fewshot.pairs import PairBlock, compare_maps, init_for_relu
from powerpool.tasks.methods import FEWSHOT_METHODS
from powerpool.tasks.pooling import FeatureSet, Normalization, normalization_of
from powerpool.vectorize import to_vector

MEAN_DISTANCE = 5.0
"""Mean squared distance of queries and classes, divided by the temperature, at the start of a training. The softmax is
then neither flat nor near 0 and 1."""
UNITS = 8
"""Hidden units after the convolutions of a similarity network."""
PAIRS, IMAGES = 256, 256
"""Pairs compared and images encoded at once in evaluation: those of 90 classes would not fit into memory."""
UNPADDED = 12
"""Smallest side of maps that are compared without padding, as Relation Net does with the 19 x 19 maps of 84 pixels. The
5 x 5 maps of 28 pixels would vanish."""


def conv_block(inputs: int, outputs: int, *, padding: int = 1, pool: bool = False) -> nn.Sequential:
    """Build a convolution with batch normalization, optional max-pooling, and ReLU.

    Pooling precedes ReLU: the result is the same, and ReLU has a quarter of the work.
    """
    halved = [nn.MaxPool2d(2)] if pool else []
    convolution = init_for_relu(nn.Conv2d(inputs, outputs, 3, padding=padding, bias=False))
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), *halved, nn.ReLU(inplace=True))


def relation_encoder(channels: int, hidden: int) -> nn.Sequential:
    """Build four convolutions with batch normalization and ReLU, the first two without padding and with pooling.

    An image of 84 pixels becomes a map of 19 x 19 locations, 28 pixels become 5 x 5, and 224 pixels 54 x 54.

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
    """Build four padded convolutions with batch normalization, ReLU and pooling: 84 pixels become 5 x 5 locations."""
    return nn.Sequential(*(conv_block(inputs, hidden, pool=True) for inputs in (channels, hidden, hidden, hidden)))


class EpisodeNetwork(nn.Module):
    """An encoder and a comparison. Subclasses define the comparison, and what its logits mean.

    A logit is higher for a more similar class; it has no bounds, so that equal ones are rare.
    """

    trains_in_bfloat16 = False
    """Whether convolutions and linear layers are trained in bfloat16; matrices and the loss are float32."""
    loss_name: Loss = "cross-entropy"
    """The training loss; a subclass has that of its authors."""
    clip = 0.5
    """The largest gradient norm unless settings name another; 0 for no limit."""

    def __init__(self, config: ModelConfig, channels: int) -> None:
        super().__init__()
        self.config, self.method = config, FEWSHOT_METHODS[config.method]
        # The first layers that are made: with the same seed, all methods start with the same encoder weights.
        self.encoder = self.make_encoder(channels, config.hidden)

    @staticmethod
    def make_encoder(channels: int, hidden: int) -> nn.Module:
        """Build the encoder."""
        return relation_encoder(channels, hidden)

    def forward(self, support: Tensor, query: Tensor) -> Tensor:  # shape: (L, J, C, H, W), (n, C, H, W) -> (n, L)
        """Return the scores of the queries, higher for more similar classes."""
        return self.scores(self.logits(support, query))

    def logits(self, support: Tensor, query: Tensor) -> Tensor:  # shape: (L, J, C, H, W), (n, C, H, W) -> (n, L)
        """Return what the loss is computed from."""
        if support.ndim != 5 or query.ndim != 4 or support.shape[2:] != query.shape[1:]:
            raise ShapeError(
                "An episode needs support (L, J, C, H, W) and query (n, C, H, W) of one size "
                f"(got {tuple(support.shape)} and {tuple(query.shape)})."
            )
        images = torch.cat([support.flatten(0, 1), query])
        half = self.trains_in_bfloat16 and self.training
        # A new context for each pass: autocast caches the cast weights until its context ends.
        with torch.autocast(images.device.type, torch.bfloat16) if half else contextlib.nullcontext():
            maps = torch.cat([self.encode(part) for part in images.split(self._batch_size(IMAGES, len(images)))])
            first = support.shape[0] * support.shape[1]
            return self.compare(maps[:first].unflatten(0, support.shape[:2]), maps[first:])

    def compare(self, support: Tensor, query: Tensor) -> Tensor:  # shape: (L, J, K, h, w), (n, K, h, w) -> (n, L)
        """Return the logits of encoded images."""
        return at_least_float32(self.match_in_parts(self.represent(support), query))

    def encode(self, images: Tensor) -> Tensor:  # shape: (B, C, H, W) -> (B, K, h, w)
        """Return the feature maps of images in [0, 1]."""
        # Convolutions on a CPU are fastest with this layout.
        maps: Tensor = self.encoder(images.contiguous(memory_format=torch.channels_last))
        return at_least_float32(maps)

    def match_in_parts(self, classes: Tensor, query: Tensor) -> Tensor:  # shape: (L, *D), (n, K, h, w) -> (n, L)
        """Return the logits of encoded queries, computed in parts that fit into memory."""
        step = self._batch_size(max(1, PAIRS // len(classes)), len(query))
        return torch.cat([self.match(classes, part) for part in query.split(step)])

    def _batch_size(self, most: int, count: int) -> int:
        # Where batch normalization uses the statistics of the batch, the batch must be whole.
        return max(1, count) if any(layer.training for layer in self.modules()) else most

    @abstractmethod
    def represent(self, support: Tensor) -> Tensor:  # shape: (L, J, K, h, w) -> (L, *D)
        """Return one representation of the support maps of each class."""

    @abstractmethod
    def match(self, classes: Tensor, query: Tensor) -> Tensor:  # shape: (L, *D), (n, K, h, w) -> (n, L)
        """Return the logits of encoded queries."""

    @abstractmethod
    def probabilities(self, logits: Tensor) -> Tensor:  # shape: (n, L) -> (n, L)
        """Return numbers between 0 and 1, which the mean squared error compares with 1 and 0."""

    def scores(self, logits: Tensor) -> Tensor:  # shape: (n, L) -> (n, L)
        """Return what predictions show."""
        return logits

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:  # shape: (n, L), (n,) -> ()
        """Return the training loss."""
        if self.loss_name == "cross-entropy":
            return nn.functional.cross_entropy(logits, targets)
        wanted = nn.functional.one_hot(targets, logits.shape[1]).to(logits.dtype)
        return nn.functional.mse_loss(self.probabilities(logits), wanted)


class PairNetwork(EpisodeNetwork):
    """Scores between 0 and 1 from a network that sees a pair of images."""

    loss_name = "mse"

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def scores(self, logits: Tensor) -> Tensor:
        return self.probabilities(logits)


class RelationNet(PairNetwork):
    """Relation Net: the concatenated maps of support and query, compared by two convolutions.

    This is the first-order baseline as its authors describe it, except that they sum over the shots. The mean differs
    by a factor that the weights can absorb, and a trained network can be used with another number of shots.
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
        self.score = score_head(config.hidden * side**2, published=not config.padding)

    def represent(self, support: Tensor) -> Tensor:
        return support.mean(1)

    def match(self, classes: Tensor, query: Tensor) -> Tensor:
        first, second = self.relation
        found: Tensor = self.score(second(compare_maps(first, classes, query)))
        return found.view(len(query), len(classes))


class SoSN(PairNetwork):
    """Second-order similarity network: power-normalized matrices of support and query, compared by four convolutions.

    The convolutions of its authors have no padding: 64 x 64 matrices become maps of side 31, 14, 6 and 2. Where a map
    is too small for that, and everywhere with ``padding``, they are padded.

    Example:
        >>> import torch
        >>> network = SoSN(ModelConfig("SoSN(x)+SigmE", hidden=16), channels=3, side=19)
        >>> network(torch.rand(5, 1, 3, 84, 84), torch.rand(15, 3, 84, 84)).shape
        torch.Size([15, 5])
    """

    clip = 0.0

    def __init__(self, config: ModelConfig, channels: int, side: int) -> None:
        super().__init__(config, channels)
        self.descriptor = make_descriptor(config)
        self.grid = Grid(config, side)
        hidden, size = config.hidden, config.hidden + self.grid.channels
        padding = _padding(size, config)
        self.pairs = PairBlock(hidden, padding)
        size = (size + 2 * padding - 2) // 2
        blocks = []
        for _ in range(3):
            padding = _padding(size, config)
            size += 2 * padding - 2
            blocks.append(conv_block(hidden, hidden, padding=padding, pool=size > 1))
            size = max(size // 2, 1)
        self.similarity = nn.Sequential(*blocks)
        self.score = score_head(hidden * size**2, published=not config.padding)

    def represent(self, support: Tensor) -> Tensor:
        return self.descriptor.support_matrix(support.flatten(3), self.grid(support))

    def match(self, classes: Tensor, query: Tensor) -> Tensor:
        queries = self.descriptor.query_matrix(query.flatten(2), self.grid(query))
        found: Tensor = self.score(self.similarity(self.pairs(classes, queries)))
        return found.view(len(queries), len(classes))


class DistanceNetwork(EpisodeNetwork):
    r"""Scores :math:`-\lVert z_q - \bar z_c \rVert^2`, where :math:`\bar z_c` is the mean of the shots."""

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(1)

    def represent(self, support: Tensor) -> Tensor:
        return self.vectors(support.flatten(0, 1)).unflatten(0, support.shape[:2]).mean(1)

    def match(self, classes: Tensor, query: Tensor) -> Tensor:
        # Products, not differences of all pairs: a step on Omniglot takes a seventh less time. Distances do not depend
        # on the origin, and with one near the vectors little is lost by cancellation.
        origin = classes.detach().mean(0)
        queries, classes = self.vectors(query) - origin, classes - origin
        with without_autocast(queries):  # rounded products would not cancel
            products = queries @ classes.T
        return 2 * products - queries.square().sum(1, keepdim=True) - classes.square().sum(1)

    @abstractmethod
    def vectors(self, maps: Tensor) -> Tensor:  # shape: (B, K, h, w) -> (B, D)
        """Return the vectors whose means and distances are computed."""


class PrototypicalNet(DistanceNetwork):
    """Prototypical Net with the encoder of its authors; the flattened maps are the vector."""

    @staticmethod
    def make_encoder(channels: int, hidden: int) -> nn.Module:
        return prototypical_encoder(channels, hidden)

    def vectors(self, maps: Tensor) -> Tensor:
        return maps.flatten(1)


class NearestMean(DistanceNetwork):
    r"""Second-order prototypes: the nearest class mean of power-normalized matrices.

    .. math:: s_{qc} = -\frac1\tau \lVert u(M_q) - \frac1J \textstyle\sum_j u(M_{cj}) \rVert^2

    where :math:`u` vectorizes a matrix so that distances are Frobenius norms. The temperature :math:`\tau` is learnt.
    """

    def __init__(self, config: ModelConfig, channels: int, side: int) -> None:
        super().__init__(config, channels)
        self.descriptor = make_descriptor(config)
        self.grid = Grid(config, side)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(config.temperature or 1.0)))

    def vectors(self, maps: Tensor) -> Tensor:
        return to_vector(self.descriptor.query_matrix(maps.flatten(2), self.grid(maps)))

    def match(self, classes: Tensor, query: Tensor) -> Tensor:
        return super().match(classes, query) * self.log_scale.exp()

    @torch.no_grad()
    def set_temperature(self, logits: Tensor) -> None:
        """Fit the temperature to the logits of an episode: mean distances range from 2 to 8000 between curves."""
        mean = -float(logits.mean())
        if mean > 0:
            self.log_scale.add_(math.log(MEAN_DISTANCE / mean))


class Grid(nn.Module):
    """Spatial coordinates, for the methods that use them."""

    coordinates: Tensor | None

    def __init__(self, config: ModelConfig, side: int) -> None:
        super().__init__()
        self.channels = 2 * config.pivots if FEWSHOT_METHODS[config.method].coordinates else 0
        found = spatial_coordinates(side, side, config.pivots, config.sigma, config.alpha) if self.channels else None
        self.register_buffer("coordinates", found, persistent=False)

    def forward(self, like: Tensor) -> Tensor | None:  # shape: (2Z, side side)
        """Return the coordinates in the dtype of a tensor; None without coordinates."""
        return None if self.coordinates is None else self.coordinates.to(like.dtype)


def _padding(side: int, config: ModelConfig) -> int:
    """Return the padding of a convolution before pooling: none, if the map is large enough."""
    return 1 if config.padding or side < 4 else 0


def score_head(features: int, published: bool) -> nn.Sequential:
    """Build the layers from maps to a logit, with the published initial weights or those of PyTorch."""
    layers = nn.Sequential(nn.Flatten(), nn.Linear(features, UNITS), nn.ReLU(), nn.Linear(UNITS, 1))
    for layer in layers.children() if published else ():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.ones_(layer.bias)
    return layers


def make_descriptor(config: ModelConfig) -> RelationDescriptor:
    """Build the module that turns support and query features into matrices."""
    method = FEWSHOT_METHODS[config.method]
    return RelationDescriptor(
        method.make_curve(config), method.mode, method.variant, beta=config.beta, solver=method.make_solver(config)
    )


def feature_sets(network: EpisodeNetwork, maps: Tensor) -> list[FeatureSet]:  # shape: (B, K, h, w)
    """Return the features that the network pools, for each encoded image."""
    grid = network.grid(maps) if isinstance(network, SoSN | NearestMean) else None
    return [FeatureSet(one, grid) for one in maps.flatten(2)]


def normalization(network: EpisodeNetwork) -> Normalization:
    """Return the normalization of the pooled matrices."""
    name = network.config.method
    if isinstance(network, SoSN | NearestMean):
        return normalization_of(name, network.descriptor)
    return Normalization(name, is_first_order=True)


def make_network(config: ModelConfig, channels: int, size: int) -> EpisodeNetwork:
    """Build the network of a method for images of a size in pixels.

    With the same random seed, networks with the same kind of encoder have the same encoder weights.

    Example:
        >>> import torch
        >>> network = make_network(ModelConfig("RelationNet"), channels=1, size=28)
        >>> network(torch.rand(5, 1, 1, 28, 28), torch.rand(15, 1, 28, 28)).shape
        torch.Size([15, 5])
    """
    kind, side = FEWSHOT_METHODS[config.method].kind, map_side(size)
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
    """Return the side of the encoder's maps.

    Example:
        >>> map_side(84), map_side(28), map_side(224)
        (19, 5, 54)
    """
    for _ in range(2):
        size = (size - 2) // 2
    return size
