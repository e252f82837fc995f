"""A backbone: the part of a network that turns images into maps, and what one needs to know to use it."""

from __future__ import annotations

import hashlib
import importlib
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.errors import ArgumentError, PowerPoolError, ShapeError

BACKBONES_VERSION = 1
"""Part of the key of stored features. Raise it if a backbone of the same name would compute other features."""
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
PROBE_SIZES = (64, 224)  # AlexNet has no map left below 63 pixels; a network for one size alone takes 224 most often

Triple = tuple[float, float, float]


class BackboneError(PowerPoolError, RuntimeError):
    """A network or its weights could not be had; the message says what to install or to pass."""


class Backbone(nn.Module):
    r"""A network up to its last convolutional map: normalised images to maps.

    .. math:: (B, 3, H, W) \to (B, C, h, w)

    Images in [0, 1] are normalised as ``(images - mean) / std`` before they come in. ``head`` turns the maps into what
    the network's own classifier saw: its layers after the map, then average pooling.

    Args:
        name: the name that it was loaded by.
        body: the module from images to maps.
        channels: C of the maps.
        head: the module from maps to vectors; None for average pooling alone.
        head_channels: the length of those vectors; None for C.
        mean, std: of the images that the network was trained with, for red, green and blue.

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
    ) -> None:
        super().__init__()
        self.name = name
        self.channels = channels
        self.mean = mean
        self.std = std
        self.body = body
        self.head = average_pooling() if head is None else head
        self.head_channels = channels if head_channels is None else head_channels

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, C, h, w)
        """The last map of each image."""
        return self.body(images)

    def digest(self) -> str:
        """A key for features that were computed once: of every weight and buffer, the layers, the mean and std.

        It does not change with the device, the memory format or the name.
        """
        found = hashlib.blake2b(digest_size=16)
        found.update(f"{self.mean} {self.std}\n{self.body}\n{self.head}\n".encode())
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):
            values = tensor.detach().cpu().contiguous()
            found.update(f"{name} {values.dtype} {tuple(values.shape)}\n".encode())
            # Read as bytes: numpy has no bfloat16.
            found.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def extra_repr(self) -> str:
        """What is not in the layers."""
        return f"{self.name!r}, channels={self.channels}, head_channels={self.head_channels}"


def import_or_explain(module: str, name: str, install: str) -> Any:
    """A module of an optional package, or an error that says how to install what the backbone of that name needs."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise BackboneError(f"{name} needs {package}, which is not installed: pip install {install}.") from error


def average_pooling() -> nn.Sequential:
    """Maps (B, C, h, w) to their means (B, C)."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1))


def as_triple(values: Any, otherwise: Triple) -> Triple:
    """Three numbers, or others if there are not three."""
    if values is None or len(values) != 3:
        return otherwise
    red, green, blue = (float(value) for value in values)
    return red, green, blue


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards every layer is back in its own mode."""
    modes = [(layer, layer.training) for layer in module.modules()]
    try:
        module.eval()
        with torch.no_grad():
            yield
    finally:
        for layer, training in modes:
            layer.training = training  # not train(), which some networks override


def wrap(module: nn.Module, name: str, channels: int | None, mean: Triple, std: Triple) -> Backbone:
    """A module from images to maps as a backbone; its channels are counted in the map of a small image."""
    if channels is not None:
        if channels < 1:
            raise ArgumentError(f"A backbone needs channels >= 1 (got {channels}).")
        return Backbone(name, module, channels, mean=mean, std=std)
    return Backbone(name, module, _count_channels(module, name), mean=mean, std=std)


def _count_channels(module: nn.Module, name: str) -> int:
    maps = _probe(module, name)
    shape = tuple(maps.shape) if isinstance(maps, Tensor) else type(maps).__name__
    if not isinstance(maps, Tensor) or maps.ndim != 4:
        raise ShapeError(
            f"A backbone turns images (B, 3, H, W) into maps (B, C, h, w) (got {shape} from {name} for one image). "
            "Leave the pooling and the classifier out, for instance torch.nn.Sequential(*list(model.children())[:-2])."
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
        f"{name} gave no map for an image of shape (1, 3, {size}, {size}): {error} "
        "If it takes other images, pass channels=, the number of channels of its maps."
    ) from error


@contextmanager
def weights_only(name: str) -> Iterator[None]:
    """Files of weights are read as such: a pickle may hold code, and other packages would run it."""
    variable = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"  # the one way to tell torch.load that is called by others
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        yield
    except pickle.UnpicklingError as error:
        raise BackboneError(
            f"The file of the weights of {name} was not loaded: it is damaged, or holds more than tensors and plain "
            "values, which could run code. Delete it, and fetch it again."
        ) from error
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
