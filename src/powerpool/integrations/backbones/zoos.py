"""Backbones of timm and torchvision, if they are installed, and of transformers."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import urllib.request
from collections import OrderedDict
from collections.abc import Iterable, Iterator
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
    Triple,
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


# ---- transformers ----------------------------------------------------------------------------------------------------


class LastMap(nn.Module):
    """Return the last feature map of a transformers backbone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, C, h, w)
        """Return the map of the last stage."""
        return self.model(images).feature_maps[-1]


def load_transformers(name: str, pretrained: bool, download: bool) -> Backbone:
    """Load ``hf:<name or path>``: the last stage of a transformers backbone."""
    source = name.removeprefix("hf:")
    if not source:
        raise ArgumentError("hf: must be followed by a name or a path, for instance hf:microsoft/resnet-50.")
    transformers = import_or_explain("transformers", name, "'powerpool[vision]'")
    folder = _folder(source)
    with _quiet(transformers):
        try:
            if folder is not None:
                return _load(transformers, name, folder, pretrained, local=True)
        except OSError as error:
            if folder == source or not may_fetch(download):
                raise BackboneError(
                    f"Cannot load {name} from {folder}, which must contain config.json and, unless pretrained=False, "
                    f"model.safetensors: {error}"
                ) from error
        if not may_fetch(download):
            remedy = how_to_fetch("Pass download=True, or the path of a folder written by save_pretrained.")
            raise BackboneError(f"{name} is neither a folder nor in the cache of the Hugging Face hub. {remedy}")
        _require_network(name)
        try:
            return _load(transformers, name, source, pretrained, local=False)
        except OSError as error:
            raise BackboneError(f"Cannot download {name}: {error}") from error


def _folder(source: str) -> str | None:
    """Return the local folder of a network.

    transformers itself would send a request even if it may only read the cache.
    """
    if os.path.isdir(source):
        return source
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(source, "config.json")
    except ValueError:  # not a possible name on the hub
        return None
    return os.path.dirname(found) if isinstance(found, str) else None


def _load(transformers: Any, name: str, source: str, pretrained: bool, local: bool) -> Backbone:
    try:
        # Explicitly False: the default asks at the terminal whether to run code of the repository.
        config = transformers.AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=False)
    except ValueError as error:  # unknown to transformers, or with its own code
        raise BackboneError(f"Refused to load {name}: {str(error).partition(chr(10))[0]}") from error
    try:
        with torch.device("meta"):  # only for the class: AutoBackbone.from_pretrained would use the network
            kind = type(transformers.AutoBackbone.from_config(config, trust_remote_code=False))
    except ValueError as error:
        raise ArgumentError(
            f"{name} is a {type(config).__name__}, for which transformers has no backbone. Choose another network, or "
            "pass a torch.nn.Module that returns maps (B, C, h, w)."
        ) from error
    config.out_features = config.stage_names[-1:]
    model = _weights(kind, config, name, source, local) if pretrained else kind(config)
    mean, std = _normalization(transformers, source, local)
    return Backbone(name, LastMap(model), model.channels[-1], mean=mean, std=std)


def _weights(kind: Any, config: Any, name: str, source: str, local: bool) -> Any:
    model, report = kind.from_pretrained(
        source, config=config, local_files_only=local, use_safetensors=True, output_loading_info=True
    )
    # As backbones, ConvNeXt and Swin have norms that their classifiers lack, with weights 1 and 0.
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("hidden_states_norms"))
    if missing:
        raise BackboneError(
            f"The file of {name} lacks {len(missing)} weights of the backbone, such as {missing[0]}. Use a complete "
            "file, or pass pretrained=False."
        )
    return model


def _normalization(transformers: Any, source: str, local: bool) -> tuple[Triple, Triple]:
    """Return the mean and std of the network's preprocessor, or those of ImageNet if it has none."""
    try:
        found, _ = transformers.ImageProcessingMixin.get_image_processor_dict(source, local_files_only=local)
    except OSError:
        found = {}
    return as_triple(found.get("image_mean"), IMAGENET_MEAN), as_triple(found.get("image_std"), IMAGENET_STD)


def _require_network(name: str) -> None:
    """Fail at once if the hub cannot be reached: its own client would retry for half a minute."""
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT).hostname or ""
    if urllib.request.getproxies():  # then the proxy resolves the host
        return
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        raise BackboneError(
            f"{name} is not in the cache, and {host} cannot be reached ({error}). Pass the path of a folder written by "
            "save_pretrained, or run once with a network."
        ) from error


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence the report on the unused classifier weights, and the progress bar."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
