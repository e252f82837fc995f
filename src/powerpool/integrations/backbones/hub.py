"""Backbones of transformers: from a local folder, the cache of the Hugging Face hub, or the hub itself."""

from __future__ import annotations

import contextlib
import os
import socket
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor, nn

from powerpool.data.store import how_to_fetch, may_fetch
from powerpool.errors import ArgumentError
from powerpool.integrations.backbones.base import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Backbone,
    BackboneError,
    Triple,
    as_triple,
    import_or_explain,
)


class LastMap(nn.Module):
    """The last feature map of a backbone of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, C, h, w)
        """The map of the last stage."""
        return self.model(images).feature_maps[-1]


def load(name: str, pretrained: bool, download: bool) -> Backbone:
    """``hf:<name or path>``: the last stage of a network that transformers knows as a backbone."""
    source = name.removeprefix("hf:")
    if not source:
        raise ArgumentError("hf: needs a name or a path after it, for instance hf:microsoft/resnet-50.")
    transformers = import_or_explain("transformers", name, "'powerpool[vision]'")
    folder = _folder(source)
    with _quiet(transformers):
        try:
            if folder is not None:
                return _load(transformers, name, folder, pretrained, local=True)
        except OSError as error:
            if folder == source or not may_fetch(download):
                raise BackboneError(
                    f"{name} could not be loaded from {folder}, which needs config.json and, unless pretrained=False, "
                    f"model.safetensors: {error}"
                ) from error
        if not may_fetch(download):
            remedy = "Pass download=True to fetch it (this needs a network), or the path of a folder that "
            raise BackboneError(
                f"{name} is neither a folder nor in the cache of the Hugging Face hub. "
                f"{how_to_fetch(remedy + 'save_pretrained wrote.')}"
            )
        _require_network(name)
        try:
            return _load(transformers, name, source, pretrained, local=False)
        except OSError as error:
            raise BackboneError(f"{name} could not be downloaded: {error}") from error


def _folder(source: str) -> str | None:
    """Where the network lies on this machine.

    Looked up here, because transformers sends a request even where it may only read the cache.
    """
    if os.path.isdir(source):
        return source
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(source, "config.json")
    except ValueError:  # no name that the hub could have
        return None
    return os.path.dirname(found) if isinstance(found, str) else None


def _load(transformers: Any, name: str, source: str, pretrained: bool, local: bool) -> Backbone:
    try:
        # False and not nothing: that would ask whoever sits at the terminal whether to run the code of a stranger.
        config = transformers.AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=False)
    except ValueError as error:  # no kind of network that transformers knows, or one that comes with its own code
        raise BackboneError(f"{name} was not loaded: {str(error).partition(chr(10))[0]}") from error
    try:
        with torch.device("meta"):  # for its class alone: AutoBackbone.from_pretrained would ask the network
            kind = type(transformers.AutoBackbone.from_config(config, trust_remote_code=False))
    except ValueError as error:
        raise ArgumentError(
            f"{name} is a {type(config).__name__}, which transformers has no backbone for. Take another network, or "
            "pass a module of your own that gives maps (B, C, h, w)."
        ) from error
    config.out_features = config.stage_names[-1:]
    model = _weights(kind, config, name, source, local) if pretrained else kind(config)
    mean, std = _normalization(transformers, source, local)
    return Backbone(name, LastMap(model), model.channels[-1], mean=mean, std=std)


def _weights(kind: Any, config: Any, name: str, source: str, local: bool) -> Any:
    model, report = kind.from_pretrained(
        source, config=config, local_files_only=local, use_safetensors=True, output_loading_info=True
    )
    # ConvNeXt and Swin have norms as backbones that they lack as classifiers; those start with weights 1 and 0.
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("hidden_states_norms"))
    if missing:
        raise BackboneError(
            f"{name} lacks weights of its backbone, {len(missing)} in all, such as {missing[0]}: they would be random. "
            "Take a complete file of weights, or pass pretrained=False."
        )
    return model


def _normalization(transformers: Any, source: str, local: bool) -> tuple[Triple, Triple]:
    """The mean and std that the network's own preprocessor has; those of ImageNet where it has none."""
    try:
        found, _ = transformers.ImageProcessingMixin.get_image_processor_dict(source, local_files_only=local)
    except OSError:
        found = {}
    return as_triple(found.get("image_mean"), IMAGENET_MEAN), as_triple(found.get("image_std"), IMAGENET_STD)


def _require_network(name: str) -> None:
    """Fail at once where the hub cannot be reached: its own client tries again for half a minute."""
    from huggingface_hub import constants

    host = urlsplit(constants.ENDPOINT).hostname or ""
    if urllib.request.getproxies():  # then it is for the proxy to know the host
        return
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        raise BackboneError(
            f"{name} is not in the cache and {host} cannot be reached ({error}): there is no network. "
            "Pass the path of a folder that save_pretrained wrote, or run once where there is a network."
        ) from error


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No report on the classifier's weights, which a backbone leaves out, and no bar for a second's work."""
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
