"""Backbones: the part of a network from images to feature maps, with its preprocessing."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from powerpool.errors import ArgumentError, PowerPoolError, ShapeError

BACKBONES_VERSION = 1
"""Part of the key of stored features. Raise it if a backbone of the same name would compute other features."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PROBE_SIZES = (64, 224)  # AlexNet needs at least 63 pixels; networks for a single size mostly take 224

Triple = tuple[float, float, float]


class BackboneError(PowerPoolError, RuntimeError):
    """A network or its weights cannot be loaded or changed; the message says what to install or pass."""


class Backbone(nn.Module):
    r"""A network up to its last convolutional map: normalised images to feature maps.

    .. math:: (B, 3, H, W) \to (B, C, h, w)

    Images in [0, 1] must be normalised as ``(images - mean) / std``. ``head`` computes the input of the network's own
    classifier from the maps: the remaining layers, then average pooling.

    A vision transformer with a class token or other prefix tokens returns all its tokens as a column,
    :math:`(B, C, N, 1)`, the prefix tokens first. ``head`` returns the class token, and
    :func:`patches` the map of the others.

    Args:
        name: the name by which it was loaded.
        body: the module from images to maps.
        channels: the number of channels C of the maps.
        head: the module from maps to vectors; None for average pooling.
        head_channels: the length of these vectors; None for C.
        mean, std: of the training images of the network, for red, green and blue.
        prefix_tokens: number of class, distillation and register tokens; 0 for maps.

    Example:
        >>> import torch
        >>> from powerpool.integrations.backbones import Backbone
        >>> backbone = Backbone("mine", torch.nn.Conv2d(3, 8, kernel_size=3, stride=2), channels=8)
        >>> maps = backbone(torch.rand(2, 3, 15, 15))
        >>> maps.shape, backbone.head(maps).shape
        (torch.Size([2, 8, 7, 7]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        name: str,
        body: nn.Module,
        channels: int,
        *,
        head: nn.Module | None = None,
        head_channels: int | None = None,
        mean: Triple = IMAGENET_MEAN,
        std: Triple = IMAGENET_STD,
        prefix_tokens: int = 0,
    ) -> None:
        super().__init__()
        self.name = name
        self.prefix_tokens = prefix_tokens
        self.channels = channels
        self.mean = mean
        self.std = std
        self.body = body
        self.head = average_pooling() if head is None else head
        self.head_channels = channels if head_channels is None else head_channels

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, C, h, w)
        """Return the last map of each image."""
        return self.body(images)

    def digest(self) -> str:
        """Return a digest of all weights, buffers and layers, the mean and std, as a key for stored features.

        It does not depend on the device, the memory format or the name.
        """
        found = hashlib.blake2b(digest_size=16)
        found.update(f"{self.mean} {self.std}\n{self.body}\n{self.head}\n".encode())
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            values = tensor.detach().cpu().contiguous()
            found.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            # As bytes, because numpy has no bfloat16.
            found.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def extra_repr(self) -> str:
        """Describe what the layers do not show."""
        return f"{self.name!r}, channels={self.channels}, head_channels={self.head_channels}"


def import_or_explain(module: str, name: str, install: str) -> Any:
    """Import an optional package, or raise an error that says how to install what a backbone needs."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise BackboneError(f"{name} needs {package}, which is not installed. Run: pip install {install}.") from error


def patches(features: Tensor, prefix_tokens: int) -> Tensor:  # shape: (..., C, N, 1) -> (..., C, h, w)
    """Return the map of the tokens after the prefix tokens; where there are none, the features are a map already."""
    return as_map(features[..., prefix_tokens:, 0]) if prefix_tokens else features


def as_map(tokens: Tensor) -> Tensor:  # shape: (..., C, N) -> (..., C, h, w)
    """Arrange the tokens of a square as its map, others as a column.

    Example:
        >>> as_map(torch.rand(2, 8, 16)).shape, as_map(torch.rand(2, 8, 15)).shape
        (torch.Size([2, 8, 4, 4]), torch.Size([2, 8, 15, 1]))
    """
    count = tokens.shape[-1]
    side = math.isqrt(count)
    return tokens.unflatten(-1, (side, side) if side**2 == count else (count, 1))


def average_pooling() -> nn.Sequential:
    """Return global average pooling, (B, C, h, w) -> (B, C)."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))


def as_triple(values: Any, otherwise: Triple) -> Triple:
    """Return three numbers, or a default if there are not three."""
    if values is None or len(values) != 3:
        return otherwise
    red, green, blue = (float(value) for value in values)
    return red, green, blue


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluate without gradients; afterwards restore the mode of every layer."""
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        module.eval()
        with torch.no_grad():
            yield
    finally:
        for layer, training in modes:
            layer.training = training  # not train(), which some networks override


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks after the block."""
    kept = list(handles)
    try:
        yield
    finally:
        for handle in kept:
            handle.remove()


def wrap(module: nn.Module, name: str, channels: int | None, mean: Triple, std: Triple) -> Backbone:
    """Wrap a module from images to maps; unless given, its channels are counted in the map of a small image."""
    if channels is not None:
        if channels < 1:
            raise ArgumentError(f"channels must be at least 1 (got {channels}).")
        return Backbone(name, module, channels, mean=mean, std=std)
    return Backbone(name, module, _count_channels(module, name), mean=mean, std=std)


def _count_channels(module: nn.Module, name: str) -> int:
    maps = _probe(module, name)
    shape = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        raise ShapeError(
            f"A backbone must return maps (B, C, h, w) for images (B, 3, H, W) (got {shape} from {name}). Remove the "
            "pooling and the classifier, for instance with torch.nn.Sequential(*list(model.children())[:-2])."
        )
    return maps.shape[1]


def _probe(module: nn.Module, name: str) -> object:
    weight = next((tensor for tensor in module.parameters() if tensor.is_floating_point()), torch.empty(0))
    for size in PROBE_SIZES:
        image = torch.zeros(1, 3, size, size, dtype=weight.dtype, device=weight.device)
        try:
            with evaluating(module):
                return module(image)
        except (RuntimeError, ValueError) as failed:
            error: Exception = failed
    raise ArgumentError(
        f"{name} fails on an image of shape (1, 3, {size}, {size}): {error} If it needs other images, pass channels=, "
        "the number of channels of its maps."
    ) from error


@contextmanager
def weights_only(name: str) -> Iterator[None]:
    """Load only tensors and plain values in other packages: a pickle may contain code."""
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # the only way to reach torch.load in another package
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    except pickle.UnpicklingError as error:
        raise BackboneError(
            f"Refused to load the weights of {name}: the file is damaged, or contains Python objects other than "
            "tensors and plain values. Delete it, and download it again."
        ) from error
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
