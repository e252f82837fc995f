"""Replacing the pooling and the classifier of an existing network."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.errors import ArgumentError
from powerpool.integrations.backbones.base import PROBE_SIZES, BackboneError, evaluating, hooked
from powerpool.integrations.backbones.folding import agree, tensors_in

BY_HAND = (
    "Instead, apply the pool to the last map (B, C, h, w) in the model's forward, followed by "
    "torch.nn.Linear(pool.out_features, num_classes)."
)


class MapPooling(nn.Module):
    """A pool in place of another pooling; ``keep_dims`` returns its vectors as maps of one location (B, F, 1, 1)."""

    def __init__(self, pool: nn.Module, keep_dims: bool) -> None:
        super().__init__()
        self.pool = pool
        self.keep_dims = keep_dims

    def forward(self, maps: Tensor) -> Tensor:  # shape: (B, C, h, w) -> (B, F) or (B, F, 1, 1)
        """Return the output of the pool in the shape that the next layers expect."""
        vectors = self.pool(maps)
        return vectors[:, :, None, None] if self.keep_dims else vectors

    def extra_repr(self) -> str:
        """Describe what the pool does not show."""
        return f"keep_dims={self.keep_dims}"


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer."""

    layer: nn.Module
    input: Tensor
    output: Tensor


def replace_pooling(model: nn.Module, pool: nn.Module, num_classes: int) -> nn.Module:
    """Replace the global pooling and the classifier of a network.

    The model is changed **in place** and returned. Its forward stays the same, including dropout; a transformers model
    still returns its output object, computes the loss from labels, and knows its number of labels. The new linear layer
    is random and must be trained. If anything fails, the model is unchanged.

    The pooling is the last global pooling before the last linear layer. It is found by running the model on a random
    image, so names do not matter: networks of torchvision, timm, transformers and ``efficientnet_lite_pytorch`` work,
    and so do custom ones. The classifier must depend on the images only through this pooling. If several linear layers
    follow, as in AlexNet, the first one is rebuilt for the new vectors and the last one for the new classes.

    To load a saved state, build the model, replace its pooling in the same way, and then load the state;
    ``from_pretrained`` of transformers would build the old layers.

    Args:
        model: a network from images to class scores.
        pool: a module from maps (B, C, h, w) to vectors (B, F) with an attribute ``out_features``, F, such as
            :class:`powerpool.nn.SecondOrderPool2d`, built for the C of the last map.
        num_classes: the number of classes of the new classifier.

    Example:
        >>> import torch, powerpool as pp
        >>> from torch import nn
        >>> from powerpool.integrations.backbones import replace_pooling
        >>> model = nn.Sequential(
        ...     nn.Conv2d(3, 8, kernel_size=3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
        ... )
        >>> model = replace_pooling(model, pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=20)), num_classes=5)
        >>> model[-1], model(torch.rand(2, 3, 16, 16)).shape
        (Linear(in_features=36, out_features=5, bias=True), torch.Size([2, 5]))

        The same for a transformers network:

        >>> from transformers import ResNetConfig, ResNetForImageClassification
        >>> config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        >>> model = replace_pooling(ResNetForImageClassification(config), pp.nn.SecondOrderPool2d(16), num_classes=5)
        >>> output = model(torch.rand(2, 3, 32, 32), labels=torch.tensor([0, 4]))
        >>> output.logits.shape, output.loss.ndim, model.config.num_labels
        (torch.Size([2, 5]), 0, 5)
    """
    features = _require_pool(pool, num_classes)
    images = _images(model)
    calls = _trace(model, images)
    pooling = _find_pooling(model, images, calls)
    first, last = _find_linears(model, calls, pooling)
    _require_channels(model, pool, pooling)
    replaced = {
        pooling.layer: MapPooling(pool, keep_dims=pooling.output.ndim == 4).train(pooling.layer.training),
        first: _linear_like(first, features, num_classes if first is last else first.out_features),
    }
    if last is not first:
        replaced[last] = _linear_like(last, last.in_features, num_classes)
    pool.to(first.weight.device, first.weight.dtype)
    _swap(model, replaced)
    try:
        _require_scores(model, images, num_classes)
    except Exception:
        _swap(model, {new: old for old, new in replaced.items()})  # restore the model
        raise
    _tell_classes(model, num_classes)
    return model


def _require_pool(pool: nn.Module, num_classes: int) -> int:
    """Return the length of the vectors of the pool."""
    features = getattr(pool, "out_features", None)
    if not isinstance(pool, nn.Module) or not isinstance(features, int):
        raise ArgumentError(
            "pool must be a torch.nn.Module from maps (B, C, h, w) to vectors (B, F) with an integer out_features "
            f"(got {type(pool).__name__}). Use, for instance, powerpool.nn.SecondOrderPool2d(512)."
        )
    if num_classes < 1:
        raise ArgumentError(f"num_classes must be at least 1 (got {num_classes}).")
    return features


def _images(model: nn.Module) -> Tensor:  # shape: (2, channels, size, size)
    """Return two random images of the smallest size that the model accepts."""
    convolution = next((layer for layer in model.modules() if isinstance(layer, nn.Conv2d)), None)
    if convolution is None:
        raise BackboneError(f"{_named(model)} has no Conv2d, so its maps cannot be found. {BY_HAND}")
    weight = convolution.weight
    generator = torch.Generator().manual_seed(0)  # the global random state must not change
    errors = []
    # The first convolution in the list of modules is usually the first to run.
    for channels, size in itertools.product(dict.fromkeys((convolution.in_channels, 3, 1)), PROBE_SIZES):
        images = torch.rand(2, channels, size, size, generator=generator).to(weight.device, weight.dtype)
        try:
            with evaluating(model):
                model(images)
        except (RuntimeError, ValueError) as error:
            errors.append(f"{tuple(images.shape)}: {error}")
        else:
            return images
    raise BackboneError(
        f"{_named(model)} fails on images of shape {errors[0]}, and on other sizes and numbers of channels. {BY_HAND}"
    )


def _trace(model: nn.Module, images: Tensor) -> list[Call]:
    """Return the input and output of each layer, in the order in which they finished."""
    calls = []

    def note(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if len(inputs) == 1 and isinstance(inputs[0], Tensor) and isinstance(output, Tensor):
            calls.append(Call(layer, inputs[0], output))

    with hooked(layer.register_forward_hook(note) for layer in model.modules()), evaluating(model):
        model(images)
    return calls


def _find_pooling(model: nn.Module, images: Tensor, calls: list[Call]) -> Call:
    names = {layer: name.rpartition(".")[2] for name, layer in model.named_modules()}
    found = next((call for call in reversed(calls) if _is_pooling(call, names[call.layer])), None)
    if found is None:
        raise BackboneError(
            f"{_named(model)} has no global pooling layer: no AdaptiveAvgPool2d, AdaptiveMaxPool2d, or layer with "
            f"'pool' in its name or class that leaves one location. {BY_HAND}"
        )
    if not _is_bottleneck(model, found, images):
        raise BackboneError(
            f"The classifier of {_named(model)} does not depend on the images only through its last pooling layer, "
            f"{_where(model, found.layer)}. {BY_HAND}"
        )
    return found


def _is_pooling(call: Call, name: str) -> bool:
    if call.input.ndim != 4 or call.output.ndim not in (2, 4):
        return False
    if isinstance(call.layer, (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, MapPooling)):
        return True
    if any(isinstance(layer, (nn.Conv2d, nn.Linear)) for layer in call.layer.modules()):
        return False  # a network, not a pooling layer
    one_location = call.output.ndim == 2 or tuple(call.output.shape[2:]) == (1, 1)
    several = call.input.shape[2] * call.input.shape[3] > 1
    return one_location and several and "pool" in f"{name} {type(call.layer).__name__}".lower()


def _is_bottleneck(model: nn.Module, pooling: Call, images: Tensor) -> bool:
    """Whether the scores depend on the images only through the output of the pooling."""
    # A new tensor for each run, because later layers may work in place.
    hook = pooling.layer.register_forward_hook(lambda *_: torch.ones_like(pooling.output))
    with hooked([hook]), evaluating(model):
        scores, others = model(images), model(1 - images)
    return agree(list(_scores(scores)), list(_scores(others)))


def _find_linears(model: nn.Module, calls: list[Call], pooling: Call) -> tuple[nn.Linear, nn.Linear]:
    """Return the linear layer after the pooling, and the last one, which computes the scores."""
    after = calls[calls.index(pooling) + 1 :]
    linears = [call for call in after if isinstance(call.layer, nn.Linear)]
    if not linears:
        raise BackboneError(
            f"{_named(model)} has no torch.nn.Linear after its pooling, {_where(model, pooling.layer)}. {BY_HAND}"
        )
    for call in after[: after.index(linears[0])]:
        if next(call.layer.parameters(recurse=False), None) is not None:
            raise BackboneError(
                f"{_where(model, call.layer)} between the pooling and the classifier of {_named(model)} has weights "
                f"for the old vectors: {call.layer}. Replace it by torch.nn.Identity() first."
            )
    first, last = linears[0].layer, linears[-1].layer
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    return first, last


def _require_channels(model: nn.Module, pool: nn.Module, pooling: Call) -> None:
    channels = pooling.input.shape[1]
    given = getattr(pool, "channels", channels)
    if given != channels:
        raise ArgumentError(
            f"The last map of {_named(model)} has {channels} channels, but the pool was built for {given}. Use, for "
            f"instance, powerpool.nn.SecondOrderPool2d({channels})."
        )


def _require_scores(model: nn.Module, images: Tensor, num_classes: int) -> None:
    try:
        with evaluating(model):
            output = model(images)
    except (RuntimeError, ValueError, IndexError) as error:
        raise BackboneError(
            f"{_named(model)} fails with the new pooling and was restored: {error} {BY_HAND}"
        ) from error
    shapes = [tuple(scores.shape) for scores in _scores(output)]
    if (len(images), num_classes) not in shapes:
        raise BackboneError(
            f"With the new pooling, {_named(model)} returned {shapes} instead of ({len(images)}, {num_classes}) and "
            f"was restored. {BY_HAND}"
        )


def _scores(output: Any) -> Iterator[Tensor]:
    """Return the class scores; a transformers output may also contain maps."""
    yield from tensors_in(getattr(output, "logits", output))


def _linear_like(layer: nn.Linear, in_features: int, out_features: int) -> nn.Linear:
    made = nn.Linear(
        in_features, out_features, layer.bias is not None, device=layer.weight.device, dtype=layer.weight.dtype
    )
    return made.train(layer.training)


def _swap(model: nn.Module, replaced: dict[nn.Module, nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children() skips the second name of a layer
            if child in replaced:
                parent._modules[name] = replaced[child]


def _tell_classes(model: nn.Module, num_classes: int) -> None:
    """Update the number of classes wherever the model stores it."""
    config = getattr(model, "config", None)
    for holder, name in ((config, "num_labels"), (model, "num_labels"), (model, "num_classes")):
        if isinstance(getattr(holder, name, None), int):
            setattr(holder, name, num_classes)  # for a config, this also updates id2label and label2id


def _named(model: nn.Module) -> str:
    return type(model).__name__


def _where(model: nn.Module, wanted: nn.Module) -> str:
    return next(f"model.{name}" for name, layer in model.named_modules() if layer is wanted)
