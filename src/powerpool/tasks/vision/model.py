"""Backbone, pool and linear classifier: crops of images in, one row of logits for each image out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from powerpool.errors import ShapeError
from powerpool.functional import first_order_pool, second_order_pool
from powerpool.integrations.backbones import Backbone
from powerpool.linalg.precision import at_least_float32
from powerpool.moments.coordinates import spatial_coordinates
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.pooling import FeatureSet, Normalization
from powerpool.tasks.vision.config import PoolConfig
from powerpool.vectorize import to_vector

SMALLEST = 1e-12
"""Below this a norm is taken for 0: a picture without features has a vector of zeros."""


class SetPool(nn.Module):
    r"""The maps of all crops of a picture as one set of features, pooled into one vector.

    .. math:: (B, K, C, h, w) \to \bar\Phi \in \mathbb{R}^{C' \times K h w} \to g(\bar\Phi\bar\Phi^T / K h w)
              \to \mathbb{R}^{D}

    Features are divided by their root mean square norm first (``unit_scale``): the weight alpha of the coordinates and
    the curves that do not divide by the trace then mean the same for every backbone. Coordinates are relative to the
    crop that a location is in.

    Example:
        >>> import torch
        >>> from powerpool.tasks.vision.config import PoolConfig
        >>> pool = SetPool(PoolConfig("SOP+SC+SpecMaxExpF", eta=20, pivots=5), channels=16)
        >>> pool(torch.rand(2, 12, 16, 7, 7)).shape, pool.out_features
        (torch.Size([2, 351]), 351)
    """

    def __init__(
        self, config: PoolConfig, channels: int, head: nn.Module | None = None, head_channels: int = 0
    ) -> None:
        super().__init__()
        method = VISION_METHODS[config.method]
        self.config, self.method, self.channels = config, method, channels
        self.curve, self.solver = method.make_curve(config), method.make_solver(config)
        self.reduction = (
            nn.Identity()
            if config.reduce_to is None or method.order != "second"
            else nn.Sequential(nn.Conv2d(channels, config.reduce_to, 1, bias=False), nn.ReLU())
        )
        self.head = head if method.order == "head" else None
        self.head_channels = head_channels

    @property
    def out_features(self) -> int:
        """D, the length of the vector."""
        if self.method.order == "head":
            return self.head_channels
        if self.method.order == "first":
            return self.channels
        side = (self.config.reduce_to or self.channels) + (2 * self.config.pivots if self.method.coordinates else 0)
        return side * (side + 1) // 2

    def forward(self, maps: Tensor) -> Tensor:  # shape: (B, K, C, h, w) -> (B, D)
        """The vectors, of length 1 if the configuration says so."""
        if maps.ndim != 5 or maps.shape[2] != self.channels:
            raise ShapeError(
                f"The pool was built for maps of shape (B, crops, {self.channels}, h, w) (got {tuple(maps.shape)})."
            )
        vector = self._pooled(maps)
        return nn.functional.normalize(vector, dim=-1, eps=SMALLEST) if self.config.unit_norm else vector

    def _pooled(self, maps: Tensor) -> Tensor:
        batch, crops, _, height, width = maps.shape
        if self.head is not None:
            own: Tensor = self.head(maps.flatten(0, 1))
            return own.unflatten(0, (batch, crops)).mean(1)
        features = self._features(maps)
        if self.method.order == "first":
            return first_order_pool(features, self.curve)
        matrix = second_order_pool(
            features,
            self.curve,
            self.method.mode,
            self.config.beta,
            self._coordinates(features, crops, height, width),
            solver=self.solver,
        )
        return to_vector(matrix)

    def _features(self, maps: Tensor) -> Tensor:  # shape: (B, K, C, h, w) -> (B, C, K h w)
        """What is pooled, but for the coordinates."""
        reduced: Tensor = self.reduction(maps.flatten(0, 1)).unflatten(0, maps.shape[:2])
        # In float32 also where the network runs in half precision: small entries of the matrix decide.
        features = at_least_float32(reduced).transpose(1, 2).flatten(2)  # (B, C, K h w)
        if self.config.unit_scale:
            # The bound is under the root, whose slope at 0 is infinite: a picture without features has a gradient of 0.
            scale = features.square().sum(1).mean(-1).clamp_min(SMALLEST**2).sqrt()
            features = features / scale[:, None, None]
        return features

    def _coordinates(self, features: Tensor, crops: int, height: int, width: int) -> Tensor | None:
        if not self.method.coordinates:
            return None
        config = self.config
        grid = spatial_coordinates(
            height, width, config.pivots, config.sigma, config.alpha, dtype=torch.float32, device=features.device
        )
        return grid.repeat(1, crops)  # locations run through the crops one after the other, as the features do

    def feature_set(self, maps: Tensor) -> FeatureSet:  # shape: (K, C, h, w)
        """What is pooled of one picture; of the network's own layers, the maps that go into them."""
        crops, _, height, width = maps.shape
        if self.method.order == "head":
            return FeatureSet(maps.float().transpose(0, 1).flatten(1))
        features = self._features(maps.float()[None])[0]
        return FeatureSet(features, self._coordinates(features, crops, height, width))

    @property
    def normalization(self) -> Normalization:
        """What is done to it."""
        if self.method.order != "second":
            return Normalization(self.config.method, self.curve, is_first_order=True)
        return Normalization(self.config.method, self.curve, self.method.mode, self.config.beta, self.solver)


class ImageClassifier(nn.Module):
    """A backbone, a pool and a linear classifier.

    Takes crops as bytes, or as numbers from 0 to 1, and normalizes them as in the training of the backbone.

    Example:
        >>> import torch
        >>> from powerpool.integrations.backbones import load_backbone
        >>> backbone = load_backbone(torch.nn.Conv2d(3, 8, 3, stride=4))
        >>> model = ImageClassifier(backbone, PoolConfig("SOP"), classes=5)
        >>> model(torch.randint(256, (2, 12, 3, 32, 32), dtype=torch.uint8)).shape
        torch.Size([2, 5])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, pool: PoolConfig, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.pool = SetPool(pool, backbone.channels, backbone.head, backbone.head_channels)
        self.classifier = nn.Linear(self.pool.out_features, classes)
        # Gradient descent on frozen features starts from zeros, too.
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.register_buffer("mean", torch.tensor(backbone.mean).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(backbone.std).view(3, 1, 1), persistent=False)

    def forward(self, crops: Tensor) -> Tensor:  # shape: (B, K, 3, H, W) -> (B, classes)
        """Return the logits."""
        return self.classify(self.pool(self.maps(crops)))

    def maps(self, crops: Tensor) -> Tensor:  # shape: (B, K, 3, H, W) -> (B, K, C, h, w)
        """Return the feature maps that are pooled."""
        maps: Tensor = self.backbone(normalize_images(crops.flatten(0, 1), self.mean, self.std))
        return maps.unflatten(0, crops.shape[:2])

    def classify(self, vectors: Tensor) -> Tensor:  # shape: (B, D) -> (B, classes)
        """Return the logits of pooled vectors."""
        logits: Tensor = self.classifier(vectors)
        return logits


def normalize_images(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:  # shape: (B, 3, H, W)
    """Normalize images for a backbone, from bytes or from numbers from 0 to 1."""
    numbers = images if images.is_floating_point() else images.to(mean.dtype) / 255
    return (numbers - mean) / std
