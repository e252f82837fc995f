"""Loading backbones by name."""

from __future__ import annotations

import torch
from torch import nn

from powerpool.errors import ArgumentError, UnknownNameError, did_you_mean
from powerpool.integrations.backbones import hub, lite, zoos
from powerpool.integrations.backbones.base import IMAGENET_MEAN, IMAGENET_STD, Backbone, wrap

FORMS = (*lite.NAMES, "hf:<name or path>", "timm:<name>", "torchvision:<name>")


def load_backbone(
    name: str | nn.Module, *, pretrained: bool = True, download: bool = False, channels: int | None = None
) -> Backbone:
    """Load a network up to its last convolutional map.

    =========================== ==================================================================================
    ``efficientnet-lite0``      320 channels, stride 32; the weights come with ``powerpool[vision]``
    ``efficientnet-lite0/head`` the same after its head convolution, 1280 channels
    ``hf:<name or path>``       the last stage of a transformers backbone, from a folder, the cache or the hub
    ``timm:<name>``             the last map of a timm network
    ``torchvision:<name>``      the last map of a torchvision classifier, such as ``torchvision:alexnet``
    a module                    images (B, 3, H, W) to maps (B, C, h, w)
    =========================== ==================================================================================

    EfficientNet-Lite0 has the padding of images of 224 pixels. Image sizes that are multiples of 32 have the same
    padding; others may lose a row and a column of the map: 336 pixels give 10 x 10, not 11 x 11.

    A network that is loaded by name is in eval mode; call ``train()`` to train it. A module keeps its mode.

    Args:
        name: one of the above.
        pretrained: whether to load weights, which does not change the random state, or to initialise randomly.
        download: whether weights that are not on this machine may be downloaded.
        channels: the number of channels of a module's maps; None to count them in the map of a small image.

    Example:
        >>> import torch
        >>> from powerpool.integrations.backbones import load_backbone
        >>> backbone = load_backbone("efficientnet-lite0")
        >>> maps = backbone(torch.zeros(1, 3, 64, 64))
        >>> maps.shape, backbone.head(maps).shape
        (torch.Size([1, 320, 2, 2]), torch.Size([1, 1280]))
        >>> load_backbone(torch.nn.Conv2d(3, 16, kernel_size=3)).channels
        16
    """
    if isinstance(name, nn.Module):
        backbone = _from_module(name, channels)
    elif not isinstance(name, str):
        raise ArgumentError(f"A backbone must be a name or a torch.nn.Module (got {type(name).__name__}).")
    elif pretrained:
        # Layers are initialised randomly before weights are loaded, which must not change what a seed means.
        with torch.random.fork_rng(devices=[]):
            backbone = _from_name(name, True, download).eval()
    else:
        backbone = _from_name(name, False, download).eval()
    if channels is not None and channels != backbone.channels:
        raise ArgumentError(
            f"{backbone.name} has maps of {backbone.channels} channels (got channels={channels}). Leave channels out."
        )
    return backbone


def _from_module(module: nn.Module, channels: int | None) -> Backbone:
    if isinstance(module, Backbone):
        return module
    return wrap(module, type(module).__name__, channels, IMAGENET_MEAN, IMAGENET_STD)


def _from_name(name: str, pretrained: bool, download: bool) -> Backbone:
    if name in lite.NAMES:
        return lite.load(name, pretrained)
    if name.startswith("hf:"):
        return hub.load(name, pretrained, download)
    if name.startswith("timm:"):
        return zoos.load_timm(name, pretrained, download)
    if name.startswith("torchvision:"):
        return zoos.load_torchvision(name, pretrained, download)
    raise UnknownNameError(
        f"Unknown backbone {name!r}.{did_you_mean(name, lite.NAMES)} Choose one of {', '.join(FORMS)}, or pass a "
        "torch.nn.Module from images to maps."
    )
