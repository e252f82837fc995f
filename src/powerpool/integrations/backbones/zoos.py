"""Backbones of timm and torchvision, if they are installed."""

from __future__ import annotations

import importlib
import os
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from powerpool.data.store import how_to_fetch, may_fetch
from powerpool.errors import ArgumentError, UnknownNameError, did_you_mean
from powerpool.integrations.backbones.base import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Backbone,
    BackboneError,
    as_triple,
    evaluating,
    hooked,
    import_or_explain,
    weights_only,
    wrap,
)


class TimmBody(nn.Module):
    """Return the last map of a timm network."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.channels_last = getattr(model, "output_fmt", "NCHW") == "NHWC"  # as in Swin

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, C, h, w)
        """Return the map before the pooling."""
        found = self.model(images)
        maps = found[-1] if isinstance(found, (list, tuple)) else found
        return maps.permute(0, 3, 1, 2) if self.channels_last else maps


class Named(nn.Module):
    """Return the maps of a module that returns ``{"maps": ...}``."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, C, h, w)
        """Return the maps."""
        return self.model(images)["maps"]


def load_timm(name: str, pretrained: bool, download: bool) -> Backbone:
    """Load ``timm:<name>``: the last map of ``features_only``."""
    timm = import_or_explain("timm", name, "timm")
    own = name.removeprefix("timm:")
    if not timm.is_model(own):
        raise _unknown(name, own, "timm", timm.list_models())
    weights: dict[str, Any] = {"pretrained": pretrained}
    if pretrained and not may_fetch(download):
        # By its path: for a name, timm would look for a newer file on the network.
        weights["pretrained_cfg_overlay"] = {"file": _timm_file(timm, name, own)}
    with weights_only(name):
        try:
            model = timm.create_model(own, features_only=True, **weights)
        except (RuntimeError, AttributeError, NotImplementedError):  # a network without maps of several stages
            model = timm.create_model(own, num_classes=0, global_pool="", **weights)
    config = getattr(model, "pretrained_cfg", None) or {}
    mean, std = as_triple(config.get("mean"), IMAGENET_MEAN), as_triple(config.get("std"), IMAGENET_STD)
    return wrap(TimmBody(model), name, None, mean, std)


def _timm_file(timm: Any, name: str, own: str) -> str:
    config = timm.get_pretrained_cfg(own)
    if config is not None and config.hf_hub_id:
        from huggingface_hub import try_to_load_from_cache

        files = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
        for file in files:
            path = try_to_load_from_cache(config.hf_hub_id, file)
            if isinstance(path, str):
                return path
    if config is not None and isinstance(config.url, str) and config.url:
        path = _downloaded(config.url)
        if os.path.exists(path):
            return path
    raise _not_here(name)


def load_torchvision(name: str, pretrained: bool, download: bool) -> Backbone:
    """Load ``torchvision:<name>``: its ``features``, or the layers up to ``layer4``, or those before the pooling."""
    models = import_or_explain("torchvision.models", name, "torchvision")
    own = name.removeprefix("torchvision:")
    if own not in models.list_models(module=models):  # only classifiers
        raise _unknown(name, own, "torchvision", models.list_models(module=models))
    mean, std, weights = IMAGENET_MEAN, IMAGENET_STD, None
    if pretrained:
        weights = models.get_model_weights(own).DEFAULT
        if not may_fetch(download) and not os.path.exists(_downloaded(weights.url)):
            raise _not_here(name)
        preset = weights.transforms()
        mean = as_triple(getattr(preset, "mean", None), mean)
        std = as_triple(getattr(preset, "std", None), std)
    with weights_only(name):
        model = models.get_model(own, weights=weights)
    return wrap(_torchvision_body(model, name), name, None, mean, std)


def _torchvision_body(model: nn.Module, name: str) -> nn.Module:
    features = getattr(model, "features", None)
    if isinstance(features, nn.Module):  # AlexNet, VGG, DenseNet, MobileNet, EfficientNet, ConvNeXt
        if type(model).__name__ == "DenseNet":  # its last ReLU is not a layer
            return nn.Sequential(features, nn.ReLU())
        return features
    children = OrderedDict(model.named_children())
    if "layer4" in children:  # ResNet and its relatives
        last = list(children).index("layer4")
        return nn.Sequential(OrderedDict(list(children.items())[: last + 1]))
    extraction = importlib.import_module("torchvision.models.feature_extraction")
    return Named(extraction.create_feature_extractor(model, return_nodes={_last_map(model, name): "maps"}))


def _last_map(model: nn.Module, name: str) -> str:
    """Return the layer whose output is the last map with more than one location."""
    found = ""

    def note(layer_name: str, output: Any) -> None:
        nonlocal found
        if isinstance(output, Tensor) and output.ndim == 4 and output.shape[2] * output.shape[3] > 1:
            found = layer_name

    hooks = [
        layer.register_forward_hook(lambda _, __, output, layer_name=layer_name: note(layer_name, output))
        for layer_name, layer in model.named_modules()
        if layer_name
    ]
    with hooked(hooks), evaluating(model):
        model(torch.zeros(1, 3, 224, 224))
    if not found:
        raise ArgumentError(f"No layer of {name} returns a map (B, C, h, w). Choose a convolutional network.")
    return found


def _downloaded(url: str) -> str:
    """Return where torch.hub stores the file of a URL."""
    return os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(urlsplit(url).path))


def _not_here(name: str) -> BackboneError:
    remedy = how_to_fetch("Pass download=True, or pretrained=False for random weights.")
    return BackboneError(f"The weights of {name} are not on this machine. {remedy}")


def _unknown(name: str, own: str, package: str, names: Iterable[str]) -> UnknownNameError:
    near = did_you_mean(own, names, f"{package}:")
    return UnknownNameError(f"Unknown backbone {name!r}.{near} See {package}'s list_models().")
