"""Backbones of transformers, from a folder, the cache of the Hugging Face hub, or the hub itself."""

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
    """Return the last feature map of a transformers backbone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, C, h, w)
        """Return the map of the last stage."""
        return self.model(images).feature_maps[-1]


def load(name: str, pretrained: bool, download: bool) -> Backbone:
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
