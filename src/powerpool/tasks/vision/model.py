"""Backbone, pool and linear classifier: crops of images in, one row of logits for each image out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError
from powerpool.integrations.backbones import Backbone, patches
from powerpool.nn import FirstOrderPool2d, SecondOrderPool2d
from powerpool.nn.pools import SMALLEST
from powerpool.solvers import Solver
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.pooling import FeatureSet, Normalization
from powerpool.tasks.vision.config import PoolConfig


class SetPool(nn.Module):
    r"""The pool of a method: all crops of an image are one set of features, pooled into one vector.

    A :class:`powerpool.nn.SecondOrderPool2d` or :class:`powerpool.nn.FirstOrderPool2d` of crops, or the layers of the
    network itself (``head``), averaged over crops. Of a vision transformer the tokens of the patches are pooled, and
    ``head`` is the class token.

    Example:
        >>> import torch
        >>> from powerpool.tasks.vision.config import PoolConfig
        >>> pool = SetPool(PoolConfig("SOP+SC+SpecMaxExpF", eta=20, pivots=5), channels=16)
        >>> pool(torch.rand(2, 12, 16, 7, 7)).shape, pool.out_features
        (torch.Size([2, 351]), 351)
    """

    def __init__(
        self,
        config: PoolConfig,
        channels: int,
        head: nn.Module | None = None,
        head_channels: int = 0,
        prefix_tokens: int = 0,
    ) -> None:
        super().__init__()
        self.config, self.method, self.channels = config, VISION_METHODS[config.method], channels
        self.head = head if self.method.order == "head" else None
        self.head_channels, self.prefix_tokens = head_channels, prefix_tokens
        self.pool = self._make_pool()

    def _make_pool(self) -> SecondOrderPool2d | FirstOrderPool2d | None:
        config, method = self.config, self.method
        options: dict[str, Any] = {"crops": True, "unit_scale": config.unit_scale, "unit_norm": config.unit_norm}
        if method.order == "head":
            return None
        if method.order == "first":
            return FirstOrderPool2d(self.channels, method.make_curve(config), **options)
        return SecondOrderPool2d(
            self.channels,
            method.make_curve(config),
            method.mode,
            config.beta,
            config.pivots if method.coordinates else 0,
            config.reduce_to,
            method.make_solver(config),
            sigma=config.sigma,
            alpha=config.alpha,
            **options,
        )

    @property
    def out_features(self) -> int:
        """The length of the vector."""
        return self.head_channels if self.pool is None else self.pool.out_features

    @property
    def curve(self) -> Curve | None:
        """The curve of the pool."""
        return None if self.pool is None else self.pool.curve

    @property
    def solver(self) -> str | Solver:
        """The solver of a second-order pool."""
        return self.pool.solver if isinstance(self.pool, SecondOrderPool2d) else "auto"

    @solver.setter
    def solver(self, solver: str | Solver) -> None:
        if isinstance(self.pool, SecondOrderPool2d):
            self.pool.solver = solver

    def forward(self, maps: Tensor) -> Tensor:  # shape: (B, K, C, h, w) -> (B, out_features)
        """Return the vectors, of length 1 if the configuration asks for that."""
        if maps.ndim != 5 or maps.shape[2] != self.channels:
            raise ShapeError(
                f"The pool was built for maps of shape (B, crops, {self.channels}, h, w) (got {tuple(maps.shape)})."
            )
        if self.pool is not None:
            pooled: Tensor = self.pool(patches(maps, self.prefix_tokens))
            return pooled
        assert self.head is not None  # by the method
        vector = self.head(maps.flatten(0, 1)).unflatten(0, maps.shape[:2]).mean(1)
        return nn.functional.normalize(vector, dim=-1, eps=SMALLEST) if self.config.unit_norm else vector

    def feature_set(self, maps: Tensor) -> FeatureSet:  # shape: (K, C, h, w)
        """Return the features of one image that are pooled; for the layers of the network, the maps they are given."""
        if self.pool is None:
            return FeatureSet(maps.float().transpose(0, 1).flatten(1))
        features, coordinates = self.pool.feature_sets(patches(maps.float(), self.prefix_tokens))
        return FeatureSet(features, coordinates)

    @property
    def normalization(self) -> Normalization:
        """The power normalization of the pool."""
        if self.method.order != "second":
            return Normalization(self.config.method, self.curve, is_first_order=True)
        return Normalization(self.config.method, self.curve, self.method.mode, self.config.beta, self.solver)


EXAMPLES = 8
"""Images, at least, whose maps are looked at for negative entries."""


def require_rectified(method: str, maps: Tensor, backbone: str) -> None:
    """Refuse maps with negative entries where the curve of a method is not defined for them.

    A few images of all are looked at, evenly spaced, because files are often sorted by class.
    """
    if VISION_METHODS[method].norm.nonnegative and float(maps[:: max(1, len(maps) // EXAMPLES)].min()) < 0:
        raise ArgumentError(
            f"pool.method {method} needs maps without negative entries, as after a ReLU (got {backbone}). Use a "
            "spectral method or SOP+SigmE, or a backbone such as efficientnet-lite0/head."
        )


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
        self.pool = SetPool(
            pool, backbone.channels, backbone.head, backbone.head_channels, prefix_tokens=backbone.prefix_tokens
        )
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
