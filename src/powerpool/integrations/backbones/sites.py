"""Finding where a network pools: it runs once on random images, and names of layers do not matter."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from powerpool.errors import ArgumentError, UnknownNameError, did_you_mean
from powerpool.integrations.backbones.base import PROBE_SIZES, BackboneError, hooked
from powerpool.integrations.backbones.folding import agree, tensors_in

Layout = Literal["BCHW", "BHWC", "BNC", "BCN"]
"""The dimensions of maps or tokens in a network: batch, channels, height and width, or number of tokens."""
BY_HAND = (
    "Name the module whose output (B, C, h, w) or (B, N, C) is to be pooled with where=, such as where='layer4'; or "
    "apply the pool in the model's forward, followed by torch.nn.Linear(pool.out_features, num_classes)."
)
RECENT = 40
"""How many of the last calls of layers are searched for the pooling."""
FAILURES = (RuntimeError, ValueError, TypeError, IndexError, AttributeError, AssertionError)
"""What a network may raise for images that do not suit it."""


@dataclass(frozen=True)
class Site:
    """Where a network pools, in names of its modules; with it, the pooling of an equal network is replaced at once."""

    pooling: str | None
    """The layer that pools; None if the network pools in its forward."""
    source: str | None
    """The layer with the features, if the network pools in its forward."""
    first: str
    """The linear layer that reads the pooled vector."""
    last: str
    """The linear layer that computes the scores; often the same."""
    removed: tuple[str, ...]
    """Normalizations of the old vector."""
    layout: Layout
    channels: int
    prefix_tokens: int
    """Class, distillation and register tokens."""
    grid: tuple[int, int] | None = None
    """Height and width of the grid of patches; None for maps, and where no convolution has this grid."""
    dims_after: int = 0
    """Dimensions of size 1 that the layer that pools leaves after the vector."""

    @property
    def has_tokens(self) -> bool:
        """Whether tokens are pooled, not maps."""
        return self.layout in ("BNC", "BCN")


def arrange(features: Tensor, layout: Layout) -> Tensor:
    """Return maps as (B, C, h, w) and tokens as (B, N, C)."""
    if layout == "BHWC":
        return features.permute(0, 3, 1, 2)
    return features.mT if layout == "BCN" else features


class Replacement:
    """Marks modules that replace_pooling put into a network; layers inside them are not searched."""

    layout: Layout


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer: the first tensors of its positional arguments and of its output, and the latter's shape.

    Only the last calls have their tensors: all activations of a large network would need much memory.
    """

    layer: nn.Module
    input: Tensor | None
    output: Tensor | None
    shape: tuple[int, ...]


class Probe:
    """A copy of a network, in eval mode, and what its layers compute for two random images.

    The copy shares the parameters. Everything else is its own: buffers, modes, hooks, and plain attributes, which some
    networks change in their forward.
    """

    def __init__(self, model: nn.Module) -> None:
        self.kind = type(model).__name__
        try:
            self.model = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()}).eval()
        except (TypeError, RuntimeError) as error:
            raise BackboneError(f"{self.kind} cannot be copied, and so cannot be tried out: {error}") from error
        self.names = {layer: name for name, layer in self.model.named_modules()}
        self.images, self.calls = self._trace()

    def scores(self, images: Tensor) -> list[Tensor]:
        """Return the class scores; a transformers output may also contain maps."""
        with torch.no_grad():
            output = self.model(images)
        return list(tensors_in(getattr(output, "logits", output)))

    def where(self, layer: nn.Module) -> str:
        """Name a layer in a message."""
        return f"model.{self.names[layer]}"

    def is_bottleneck(self, call: Call) -> bool:
        """Whether the scores depend on the images only through the output of a layer."""
        hook = call.layer.register_forward_hook(lambda layer, inputs, output: torch.ones_like(output))
        image = self.images[:1]
        with hooked([hook]):
            pairs = zip(self.scores(image), self.scores(1 - image), strict=True)
            # Equal bit for bit: scores of a random network hardly differ, whatever the images.
            return all(torch.equal(one, other) for one, other in pairs)

    def _trace(self) -> tuple[Tensor, list[Call]]:
        """Run the model on images of the first size that it accepts; calls are in the order in which they finished."""
        weight = next((layer.weight for layer in self.model.modules() if isinstance(layer, nn.Conv2d)), None)
        if weight is None:
            raise BackboneError(f"{self.kind} has no Conv2d, so its maps or tokens cannot be found. {BY_HAND}")
        generator = torch.Generator().manual_seed(0)
        errors: list[str] = []
        # The first convolution in the list of modules is usually the first to run.
        for channels, (height, width) in itertools.product(
            dict.fromkeys((weight.shape[1], 3, 1)), dict.fromkeys(_image_sizes(self.model))
        ):
            images = torch.rand(2, channels, height, width, generator=generator).to(weight.device, weight.dtype)
            calls: list[Call] = []

            def note(layer: nn.Module, inputs: tuple[Any, ...], output: Any, calls: list[Call] = calls) -> None:
                result = next(tensors_in(output), None)
                shape = () if result is None else tuple(result.shape)
                calls.append(Call(layer, next(tensors_in(inputs), None), result, shape))
                if len(calls) > RECENT:
                    calls[-RECENT - 1] = replace(calls[-RECENT - 1], input=None, output=None)

            try:
                with hooked(layer.register_forward_hook(note) for layer in _searched(self.model)):
                    self.scores(images)
            except FAILURES as error:
                errors.append(f"{tuple(images.shape)}: {error}")
            else:
                return images, calls
        raise BackboneError(
            f"{self.kind} fails on images of shape {errors[0]}, and on other sizes and numbers of channels. {BY_HAND}"
        )


def find_site(probe: Probe, where: str | None, channels: int | None) -> Site:
    """Find where a network pools.

    Args:
        probe: of the network.
        where: the module whose output is pooled; None to search.
        channels: those of the new pool, which tell the layout of the features of ``where``; None if unknown.
    """
    if where is not None:
        return _find_named(probe, where, channels)
    pooling = next((call for call in reversed(probe.calls) if _is_pooling(call, probe)), None)
    if pooling is not None and probe.is_bottleneck(pooling):
        return _site_of_layer(probe, pooling)
    found = _find_functional(probe)
    if found is not None:
        return found
    if pooling is None:
        raise BackboneError(
            f"{probe.kind} has no global pooling that can be found: no AdaptiveAvgPool2d, no layer with 'pool' in its "
            f"name that leaves one location, and no linear layer whose input is a mean, a maximum or a class token of "
            f"the output of a layer. {BY_HAND}"
        )
    raise BackboneError(
        f"The classifier of {probe.kind} does not depend on the images only through its last pooling layer, "
        f"{probe.where(pooling.layer)}. {BY_HAND}"
    )


# ---- a layer that pools ----------------------------------------------------------------------------------------------

ADAPTIVE = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)


def _is_pooling(call: Call, probe: Probe) -> bool:
    if call.input is None or call.output is None or call.input.ndim not in (3, 4) or call.output.ndim < 2:
        return False
    if isinstance(call.layer, (*ADAPTIVE, Replacement)):
        return not isinstance(call.layer, nn.Linear)
    if any(isinstance(layer, (nn.Conv2d, nn.Linear)) for layer in call.layer.modules()):
        return False  # a network, not a pooling layer
    one_location = call.output.ndim in (2, call.input.ndim) and call.output[0].numel() == call.output.shape[1]
    name = probe.names[call.layer].rpartition(".")[2]
    return one_location and "pool" in f"{name} {type(call.layer).__name__}".lower()


def _site_of_layer(probe: Probe, pooling: Call) -> Site:
    assert pooling.input is not None
    assert pooling.output is not None
    after = probe.calls[probe.calls.index(pooling) + 1 :]
    linears = [call for call in after if isinstance(call.layer, nn.Linear)]
    if not linears:
        raise BackboneError(
            f"{probe.kind} has no torch.nn.Linear after its pooling, {probe.where(pooling.layer)}. {BY_HAND}"
        )
    removed = []
    for call in after[: after.index(linears[0])]:
        if _is_normalization(call):
            removed.append(probe.names[call.layer])
        elif next(call.layer.parameters(recurse=False), None) is not None:
            raise BackboneError(
                f"{probe.where(call.layer)} between the pooling and the classifier of {probe.kind} has weights for the "
                f"old vectors: {call.layer}. Replace it by torch.nn.Identity() first."
            )
    if isinstance(pooling.layer, Replacement):
        layout = pooling.layer.layout
    else:
        layout = _layout(pooling.input, pooling.output.flatten(1))
    return _make_site(
        probe,
        tuple(pooling.input.shape),
        layout,
        linears[0],
        pooling=probe.names[pooling.layer],
        removed=tuple(removed),
        dims_after=pooling.output.ndim - 2,
    )


def _layout(features: Tensor, vector: Tensor) -> Layout:
    """Return the layout of features whose pooling gives a vector."""
    layouts: tuple[Layout, Layout] = ("BCHW", "BHWC") if features.ndim == 4 else ("BNC", "BCN")
    first, second = layouts
    explained = next((one for one in layouts if _is_pooled(arrange(features, one), vector, 0)), None)
    if explained is not None:
        return explained
    fits = [vector.shape[1] == features.shape[layout.index("C")] for layout in layouts]
    return second if fits == [False, True] else first


def _is_normalization(call: Call) -> bool:
    """Whether a layer without children has weights for each feature of a vector, and keeps its shape."""
    if call.input is None or tuple(call.input.shape) != call.shape or next(call.layer.children(), None) is not None:
        return False
    weights = [tuple(weight.shape) for weight in call.layer.parameters()]
    return len(call.shape) > 1 and bool(weights) and set(weights) == {(call.shape[1],)}


# ---- pooling in the forward of the network ---------------------------------------------------------------------------


def _find_functional(probe: Probe) -> Site | None:
    """Find a linear layer whose input is a mean, a maximum or a token of the output of an earlier layer."""
    for index, linear in enumerate(probe.calls):
        if not isinstance(linear.layer, nn.Linear) or linear.input is None or linear.input.ndim != 2:
            continue
        found = _find_source(probe, probe.calls[:index], linear.input)
        if found is not None and probe.is_bottleneck(linear):
            source, layout, removed = found
            name = probe.names[source.layer]
            return _make_site(probe, source.shape, layout, linear, source=name, removed=tuple(removed))
    return None


def _find_source(probe: Probe, before: list[Call], vector: Tensor) -> tuple[Call, Layout, list[str]] | None:
    """Return the call whose output is pooled to a vector, its layout, and a normalization between the two."""
    vectors: list[tuple[Tensor, list[str]]] = [(vector, [])]
    vectors += [
        (norm.input, [probe.names[norm.layer]])
        for norm in before
        if norm.input is not None and _is_normalization(norm) and agree(norm.output, vector)
    ]
    # The last one is the outermost module that returns the features, outside of any checkpointing.
    for call in reversed(before):
        features = call.output
        if features is None or features.ndim not in (3, 4) or len(features) != len(vector):
            continue
        layouts: tuple[Layout, ...] = ("BCHW", "BHWC") if features.ndim == 4 else ("BNC", "BCN")
        for layout, (pooled, removed) in itertools.product(layouts, vectors):
            if _is_pooled(arrange(features, layout), pooled, _count_prefix(probe, call.shape, layout)):
                return call, layout, removed
    return None


def _is_pooled(features: Tensor, vector: Tensor, prefix: int) -> bool:  # shape: (B, C, h, w) or (B, N, C); (B, F)
    """Whether a vector is the mean, the maximum or the first token of features, or the first token and the mean."""
    if features.ndim == 4:
        features = features.flatten(2).mT
    if features.shape[1] < 2 or vector.shape[1] not in (features.shape[2], 2 * features.shape[2]):
        return False
    token = features[:, 0]
    parts = [features[:, start:] for start in sorted({0, min(1, prefix), prefix})]
    pooled = [token, *(part.mean(1) for part in parts), *(part.amax(1) for part in parts)]
    if vector.shape[1] == 2 * features.shape[2]:
        pooled = [torch.cat([token, other], dim=1) for other in pooled]
    return any(agree(one, vector) for one in pooled)


def _find_named(probe: Probe, where: str, channels: int | None) -> Site:
    names = [name for name in probe.names.values() if name]
    ends = [name for name in names if name.endswith(f".{where}")]
    if where not in names and len(ends) == 1:  # without the name of the base model, as "layers.11"
        where = ends[0]
    if where not in names:
        shown = ", ".join(repr(name) for name in names[-5:])
        raise UnknownNameError(
            f"{probe.kind} has no module {where!r}.{did_you_mean(where, names)} The last of its modules are {shown}."
        )
    layer = probe.model.get_submodule(where)
    places = [index for index, call in enumerate(probe.calls) if call.layer is layer]
    if not places:
        raise ArgumentError(f"{probe.kind} does not run its module {where!r}, or searches no layers inside of a pool.")
    shape = probe.calls[places[-1]].shape
    if len(shape) not in (3, 4):
        raise ArgumentError(
            f"where={where!r} returns a tensor of shape {shape}, but maps (B, C, h, w) or tokens (B, N, C) are pooled. "
            "Choose a module before the pooling."
        )
    layouts: tuple[Layout, Layout] = ("BCHW", "BHWC") if len(shape) == 4 else ("BNC", "BCN")
    fitting = [layout for layout in layouts if channels in (None, shape[layout.index("C")])]
    for linear in probe.calls[places[-1] + 1 :]:
        is_linear = isinstance(linear.layer, nn.Linear) and linear.input is not None and linear.input.ndim == 2
        if is_linear and probe.is_bottleneck(linear):
            return _make_site(probe, shape, fitting[0] if fitting else layouts[0], linear, source=where)
    raise BackboneError(
        f"{probe.kind} has no torch.nn.Linear after {where!r} through which all of its scores depend on the images."
    )


# ---- both ------------------------------------------------------------------------------------------------------------


def _make_site(
    probe: Probe,
    shape: tuple[int, ...],
    layout: Layout,
    first: Call,
    *,
    pooling: str | None = None,
    source: str | None = None,
    removed: tuple[str, ...] = (),
    dims_after: int = 0,
) -> Site:
    after = probe.calls[probe.calls.index(first) :]
    last = [call for call in after if isinstance(call.layer, nn.Linear)][-1]
    return Site(
        pooling=pooling,
        source=source,
        first=probe.names[first.layer],
        last=probe.names[last.layer],
        removed=removed,
        layout=layout,
        channels=shape[layout.index("C")],
        prefix_tokens=_count_prefix(probe, shape, layout),
        grid=_patch_grid(probe, shape, layout),
        dims_after=dims_after,
    )


def _count_prefix(probe: Probe, shape: tuple[int, ...], layout: Layout) -> int:
    """Return how many tokens there are beyond the grid of the convolution that makes patches."""
    grid = _patch_grid(probe, shape, layout)
    return 0 if grid is None else shape[layout.index("N")] - math.prod(grid)


def _patch_grid(probe: Probe, shape: tuple[int, ...], layout: Layout) -> tuple[int, int] | None:
    """Return the largest grid of a convolution that has no more places than there are tokens."""
    if len(shape) != 3:
        return None
    grids = [(call.shape[2], call.shape[3]) for call in probe.calls if isinstance(call.layer, nn.Conv2d)]
    fitting = (grid for grid in grids if math.prod(grid) <= shape[layout.index("N")])
    return max(fitting, key=math.prod, default=None)


def _searched(module: nn.Module) -> Iterator[nn.Module]:
    """Iterate over a module and the modules inside of it, except for those inside of replaced poolings."""
    found: dict[nn.Module, None] = {module: None}
    if not isinstance(module, Replacement):
        for child in module.children():
            found.update(dict.fromkeys(_searched(child)))
    yield from found


def _image_sizes(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Iterate over sizes of images: that of the configuration of the model, then those that most networks accept."""
    config = getattr(model, "config", None)
    timm: Any = getattr(model, "pretrained_cfg", None)
    input_size = timm.get("input_size") if isinstance(timm, Mapping) else None
    stated = [getattr(holder, "image_size", None) for holder in (config, getattr(config, "vision_config", None), model)]
    for size in [*stated, input_size[1:] if input_size else None, *PROBE_SIZES]:
        if isinstance(size, int):
            yield size, size
        elif isinstance(size, (tuple, list)) and len(size) == 2:
            yield size[0], size[1]
