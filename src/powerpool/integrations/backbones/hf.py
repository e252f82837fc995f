"""Backbones of transformers: feature maps, or tokens that become maps, with the preprocessing of their images."""

from __future__ import annotations

import contextlib
import inspect
import math
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
    PROBE_SIZES,
    Backbone,
    BackboneError,
    Triple,
    as_map,
    average_pooling,
    evaluating,
    hooked,
    import_or_explain,
)
from powerpool.integrations.backbones.preprocessing import FILE, Preprocessing, parse_preprocessing

PREFIX = "hf:"


class LastMap(nn.Module):
    """Return the last feature map of a transformers backbone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, C, h, w)
        """Return the map of the last stage."""
        return self.model(images).feature_maps[-1]


class HiddenState(nn.Module):
    """Return the last hidden state of a transformers model, whose tokens become a map.

    Tokens are the map of their grid where they are those of a square. With prefix tokens before them they stay a column
    (B, C, N, 1), see :class:`powerpool.integrations.backbones.Backbone`.
    """

    def __init__(self, model: Any, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.model, self.prefix_tokens, self.size = model, prefix_tokens, _image_size(model.config)

    def forward(self, images: Tensor) -> Tensor:  # shape: (B, 3, H, W) -> (B, C, h, w) or (B, C, N, 1)
        """Return the hidden state after the last layer; for images of another size, positions are interpolated."""
        size = images.shape[-1]
        resized = {} if self.size in (None, size) else {"interpolate_pos_encoding": True}
        found: Tensor = self.model(pixel_values=images, **resized).last_hidden_state
        if found.ndim == 4:
            return found
        return found.mT.unsqueeze(-1) if self.prefix_tokens else as_map(found.mT)


class FirstToken(nn.Module):
    """Return the class token."""

    def forward(self, tokens: Tensor) -> Tensor:  # shape: (B, C, N, 1) -> (B, C)
        """Return the first of the tokens."""
        return tokens[..., 0, 0]


class TokenPool(nn.Module):
    """Apply a pooling of tokens, such as the attention pooling of SigLIP, to a map."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, maps: Tensor) -> Tensor:  # shape: (B, C, h, w) -> (B, C)
        """Return the pooled vector."""
        return self.pool(maps.flatten(2).mT)


# ---- loading ---------------------------------------------------------------------------------------------------------


def load_transformers(name: str, pretrained: bool, download: bool) -> Backbone:
    """Load ``hf:<name or path>``: the last stage of a transformers backbone, or the last hidden state of a model."""
    source = name.removeprefix(PREFIX)
    if not source:
        raise ArgumentError("hf: must be followed by a name or a path, for instance hf:microsoft/resnet-50.")
    transformers = import_or_explain("transformers", name, "'powerpool[vision]'")
    folder = _folder(source)
    with quiet_transformers():
        try:
            if folder is not None:
                return _load(transformers, name, folder, pretrained, local=True)
        except OSError as error:
            if folder == source or not may_fetch(download):
                raise BackboneError(
                    f"Cannot load {name} from {folder}, which must contain config.json and, unless weights are random, "
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
    config = _read_config(transformers, name, source, local)
    preprocessing = _read_preprocessing(transformers, config, source, local)
    mean, std = preprocessing.mean, preprocessing.std
    kind = _map_backbone(transformers, config)
    if kind is not None:
        config.out_features = config.stage_names[-1:]
        model = _weights(kind, config, name, source, local) if pretrained else kind(config)
        return Backbone(name, LastMap(model), model.channels[-1], mean=mean, std=std)
    kind, options = _base_model(transformers, config, name)
    model = _weights(kind, config, name, source, local, **options) if pretrained else kind(config, **options)
    for own, parameter in model.named_parameters():
        if own.endswith("mask_token"):  # of pre-training alone; processes would wait for its gradient
            parameter.requires_grad_(False)
    return _wrap(model, name, mean, std)


def _read_config(transformers: Any, name: str, source: str, local: bool) -> Any:
    try:
        # Explicitly False: the default asks at the terminal whether to run code of the repository.
        config = transformers.AutoConfig.from_pretrained(source, local_files_only=local, trust_remote_code=False)
    except ValueError as error:  # unknown to transformers, or with its own code
        raise BackboneError(f"Refused to load {name}: {str(error).partition(chr(10))[0]}") from error
    return getattr(config, "vision_config", config)  # of CLIP and other models of images and text


def _map_backbone(transformers: Any, config: Any) -> Any:
    """Return the backbone class of a network whose last map its classifier pools as it is; None if there is none.

    As backbones, transformers lose their class token or their last norm, and ConvNeXt has norms that no weights fit.
    """
    if hasattr(config, "num_attention_heads"):
        return None
    try:
        with torch.device("meta"):  # only for the class: AutoBackbone.from_pretrained would use the network
            model = transformers.AutoBackbone.from_config(config, trust_remote_code=False)
    except ValueError:
        return None
    return None if hasattr(model, "hidden_states_norms") else type(model)


def _base_model(transformers: Any, config: Any, name: str) -> tuple[Any, dict[str, bool]]:
    """Return the class of a model from images to hidden states, and the options to build it without its pooling."""
    kind = transformers.MODEL_MAPPING.get(type(config), None)
    kind = kind[0] if isinstance(kind, tuple) else kind
    if getattr(kind, "main_input_name", None) != "pixel_values":
        raise ArgumentError(
            f"{name} is a {type(config).__name__}, for which transformers has no model of images. Choose another "
            "network, or pass a torch.nn.Module that returns maps (B, C, h, w)."
        )
    options = inspect.signature(kind.__init__).parameters
    return kind, {"add_pooling_layer": False} if "add_pooling_layer" in options else {}


def _weights(kind: Any, config: Any, name: str, source: str, local: bool, **options: Any) -> Any:
    model, report = kind.from_pretrained(
        source, config=config, local_files_only=local, use_safetensors=True, output_loading_info=True, **options
    )
    missing = sorted(report["missing_keys"])
    if missing:
        raise BackboneError(
            f"The file of {name} lacks {len(missing)} weights of the backbone, such as {missing[0]}. Use a complete "
            "file, or random weights."
        )
    return model


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _wrap(model: Any, name: str, mean: Triple, std: Triple) -> Backbone:
    """Run a model once, to count its prefix tokens and find how it pools; its weights may be on the meta device."""
    size = _image_size(model.config) or PROBE_SIZES[-1]
    image = torch.zeros(1, 3, size, size, dtype=model.dtype, device=model.device)
    calls: list[tuple[nn.Module, Any, Any]] = []
    hooks = [
        layer.register_forward_hook(lambda layer, inputs, output: calls.append((layer, inputs, output)))
        for layer in model.modules()
        if layer is not model
    ]
    try:
        with hooked(hooks), evaluating(model):
            output = model(pixel_values=image)
        hidden: Tensor = output.last_hidden_state
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        raise ArgumentError(
            f"{name} is a {type(model).__name__}, which has no hidden state for an image (1, 3, {size}, {size}): "
            f"{error} Choose another network."
        ) from error
    if hidden.ndim not in (3, 4):
        raise ArgumentError(
            f"{name} is a {type(model).__name__}, whose last hidden state is {tuple(hidden.shape)} instead of maps (B, "
            "C, h, w) or tokens (B, N, C). Choose another network."
        )
    grids = [math.prod(found.shape[2:]) for layer, _, found in calls if isinstance(layer, nn.Conv2d)]
    # The patches are those of the largest grid that the tokens can hold; Swin has fewer tokens than patches.
    tokens = hidden.shape[1] if hidden.ndim == 3 else 0
    prefix = tokens - max((count for count in grids if count <= tokens), default=tokens)
    body = HiddenState(model, prefix)
    with evaluating(model):
        features = body(image)
        head = _find_head(hidden, getattr(output, "pooler_output", None), prefix, calls)
        width = head(features).shape[1]
    return Backbone(
        name, body, features.shape[1], head=head, head_channels=width, mean=mean, std=std, prefix_tokens=prefix
    )


def _find_head(
    hidden: Tensor, pooled: Tensor | None, prefix: int, calls: list[tuple[nn.Module, Any, Any]]
) -> nn.Module:
    """Return the class token where there is one, otherwise the pooling of the model, otherwise the mean.

    A norm of this vector follows where the model has one, as CLIP and ConvNeXt.
    """
    head = FirstToken() if prefix else average_pooling()
    for layer, inputs, output in calls:
        if pooled is None or output is not pooled:
            continue
        if isinstance(layer, nn.LayerNorm) and inputs[0].ndim == 2:
            return nn.Sequential(head, layer)
        if not prefix and hidden.ndim == 3 and inputs[0] is hidden:
            return TokenPool(layer)
    return head


def _image_size(config: Any) -> int | None:
    """Return the width of the images that a model was built for; None if it has no such size."""
    size = getattr(config, "image_size", None)
    size = size[-1] if isinstance(size, (list, tuple)) and size else size
    return size if isinstance(size, int) else None


# ---- preprocessing ---------------------------------------------------------------------------------------------------


def read_preprocessing(name: str, *, download: bool = False) -> Preprocessing | None:
    """Return the preprocessing of ``hf:<name or path>``, without loading the network; None for other backbones.

    It is that of the image processor (``preprocessor_config.json``), or else the size in the configuration.
    """
    if not name.startswith(PREFIX):
        return None
    transformers = import_or_explain("transformers", name, "'powerpool[vision]'")
    source = name.removeprefix(PREFIX)
    folder = _folder(source)
    if folder is None and not may_fetch(download):
        return None  # loading it will say what is missing
    with quiet_transformers():
        if folder is None:
            _require_network(name)
        try:
            config = _read_config(transformers, name, folder or source, folder is not None)
        except OSError:
            return None
        return _read_preprocessing(transformers, config, folder or source, folder is not None)


def _read_preprocessing(transformers: Any, config: Any, source: str, local: bool) -> Preprocessing:
    try:
        found, _ = transformers.ImageProcessingMixin.get_image_processor_dict(source, local_files_only=local)
    except OSError as error:
        if local and os.path.exists(os.path.join(source, FILE)):
            raise BackboneError(f"Cannot read {FILE} in {source}: {error}") from error
        found = {}
    return parse_preprocessing(found, source, _image_size(config))


# ---- access ----------------------------------------------------------------------------------------------------------


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
def quiet_transformers() -> Iterator[None]:
    """Show only errors of transformers, and no progress bars of it."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    try:
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
