"""Replacing the pooling and the classifier of an existing network."""

from __future__ import annotations

import copy
import logging
import threading
import warnings
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from powerpool.errors import ArgumentError, PowerPoolError, StateError
from powerpool.integrations.backbones.base import BackboneError
from powerpool.integrations.backbones.folding import tensors_in
from powerpool.integrations.backbones.sites import (
    BY_HAND,
    FAILURES,
    Layout,
    Probe,
    Replacement,
    Site,
    arrange,
    find_site,
)
from powerpool.nn.pools import Maps
from powerpool.nn.tokens import SecondOrderTokens, Tokens

LARGE = 2**15
"""Vectors longer than this get a warning: a head of that length is rarely wanted."""
logger = logging.getLogger(__name__)


class Pooling(nn.Module, Replacement):
    """A pool in the place of a layer that pools; ``dims_after`` dimensions of size 1 follow the vector."""

    def __init__(self, pool: nn.Module, layout: Layout, dims_after: int) -> None:
        super().__init__()
        self.pool = pool
        self.layout, self.dims_after = layout, dims_after

    def forward(self, features: Tensor) -> Tensor:  # shape: maps or tokens -> (B, F), (B, F, 1) or (B, F, 1, 1)
        """Return the output of the pool in the shape that the next layers expect."""
        vectors: Tensor = self.pool(arrange(features, self.layout)).to(features.dtype)
        return vectors[(..., *[None] * self.dims_after)]

    def extra_repr(self) -> str:
        """Describe what the pool does not show."""
        return f"layout={self.layout!r}"


class Kept(threading.local):
    """Features, for each thread its own."""

    features: Tensor | None = None


class Tap:
    """A forward hook that keeps the features of the running forward pass until the head takes them.

    Each thread that shares a model, as those of DataParallel do, has its own features. A copy of the model has its own
    tap. A copy of the head alone, as PEFT makes it, shares the tap, because it stays in the same model.
    """

    def __init__(self, source: nn.Module | None = None) -> None:
        self.kept = Kept()
        self.source = None if source is None else weakref.ref(source)

    def __call__(self, layer: nn.Module, inputs: Any, output: Any) -> None:
        """Keep the first tensor of an output."""
        self.kept.features = next(tensors_in(output), None)

    def take(self) -> Tensor | None:
        """Return the features and forget them."""
        features, self.kept.features = self.kept.features, None
        return features

    def __deepcopy__(self, memo: dict[int, Any]) -> Tap:
        source = None if self.source is None else self.source()
        return Tap(memo[id(source)]) if id(source) in memo else self

    def __reduce__(self) -> tuple[type[Tap], tuple[()]]:
        return Tap, ()


class PooledHead(nn.Linear, Replacement):
    """A linear layer for the vectors of a pool, where a network pools in its forward, and not by a layer.

    The vector that the network computes is ignored. The features come from the layer that the tap is a hook of.
    """

    def __init__(self, pool: nn.Module, layout: Layout, tap: Tap, like: nn.Linear, sizes: tuple[int, int]) -> None:
        super().__init__(*sizes, bias=like.bias is not None, device=like.weight.device, dtype=like.weight.dtype)
        self.pool = pool
        self.layout, self.tap = layout, tap

    def forward(self, vector: Tensor) -> Tensor:  # shape: (B, any) -> (B, out_features)
        """Pool the features of this forward pass, and return the scores."""
        features = self.tap.take()
        if features is None:
            raise StateError(
                "The head of a replaced pooling reads the features of a layer of its model, which has not run. Call "
                "the whole model."
            )
        if features.shape[0] != vector.shape[0]:  # len() would make the size a constant in torch.export
            raise StateError(
                f"The head of a replaced pooling got a batch of {vector.shape[0]}, but the features of its model are a "
                f"batch of {features.shape[0]}, of an earlier call of a part of the model. Call the whole model."
            )
        if vector.requires_grad and not features.requires_grad:
            raise StateError(
                "The features of the replaced pooling have no gradient, because the layer that computes them runs "
                "inside of reentrant checkpointing. Use gradient_checkpointing_kwargs={'use_reentrant': False}."
            )
        # The layers of a large model may be on several devices; only the vector was moved to that of the head.
        features = arrange(features.to(vector.device), self.layout)
        return super().forward(self.pool(features).to(self.weight.dtype))


def replace_pooling(model: nn.Module, pool: nn.Module, num_classes: int, where: str | None = None) -> nn.Module:
    """Replace the global pooling and the classifier of a network.

    The model is changed **in place** and returned. Its forward stays the same, including dropout; a transformers model
    still returns its output object, computes the loss from labels, and knows its number of labels. The new linear layer
    is random and must be trained. If anything fails, the model is unchanged: it is a copy that is searched and tested.

    The pooling is found by running the copy on random images of the size in the model's configuration, so names do not
    matter. It is the last layer that pools, as in most CNNs; or, as in most transformers, a mean, a maximum or a class
    token in the forward, of the output of a layer. Networks of transformers, torchvision, timm and
    ``efficientnet_lite_pytorch`` work, and so do custom ones. If several linear layers follow, as in AlexNet, the first
    one is rebuilt for the new vectors and the last one for the new classes. A normalization of the old vector, as in
    ConvNeXt, is removed.

    A vector of more than 32,768 entries gives a warning with the size of the new classifier: the 768 channels of a base
    ViT give 295,296. Use ``reduce_to``.

    To load a saved state, build the model, replace its pooling in the same way, and then load the state;
    ``from_pretrained`` of transformers would build the old layers.

    Args:
        model: a network from images to class scores.
        pool: a module from maps (B, C, h, w) or tokens (B, N, C) to vectors (B, F) with an attribute ``out_features``,
            F, such as :class:`powerpool.nn.SecondOrderPool2d` or :class:`powerpool.nn.SecondOrderPool1d`, built for the
            C of the model. The ``prefix_tokens`` of the latter are set to the number of class, distillation and
            register tokens of the model, unless they are given. If it has coordinates, its ``grid`` is set to that of
            the model's patches if that is not a square.
        num_classes: the number of classes of the new classifier.
        where: the name of the module whose output is pooled, or the end of its name, such as ``"layers.11"`` for
            ``vit.layers.11``; None to find it. Layers after it are not used any more, except for the classifier.

    Example:
        >>> import torch, powerpool as pp
        >>> from torch import nn
        >>> model = nn.Sequential(
        ...     nn.Conv2d(3, 8, kernel_size=3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
        ... )
        >>> pool = pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=20))
        >>> model = pp.integrations.replace_pooling(model, pool, num_classes=5)
        >>> model[-1], model(torch.rand(2, 3, 16, 16)).shape
        (Linear(in_features=36, out_features=5, bias=True), torch.Size([2, 5]))

        The same for a vision transformer:

        >>> from transformers import ViTConfig, ViTForImageClassification
        >>> config = ViTConfig(
        ...     hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=32, patch_size=8
        ... )
        >>> pool = pp.nn.SecondOrderPool1d(32, pp.MaxExp(eta=20), reduce_to=8)
        >>> model = pp.integrations.replace_pooling(ViTForImageClassification(config), pool, num_classes=5)
        >>> output = model(torch.rand(2, 3, 32, 32), labels=torch.tensor([0, 4]))
        >>> output.logits.shape, output.loss.ndim, model.config.num_labels, pool.prefix_tokens
        (torch.Size([2, 5]), 0, 5, 1)
    """
    site = find_and_replace(model, pool, num_classes, where)
    report_size(model, site, pool)
    return model


def find_and_replace(model: nn.Module, pool: nn.Module, num_classes: int, where: str | None) -> Site:
    """Replace the pooling as :func:`replace_pooling` does, and return where it was."""
    _require_pool(pool, num_classes)
    devices = {weight.device for weight in model.parameters() if weight.device.type == "cuda"}
    with torch.random.fork_rng(devices=[device.index for device in devices]):
        probe = Probe(model)
        site = find_site(probe, where, getattr(pool, "channels", None))
        _require_fit(probe, pool, site)
        _try_out(probe, site, pool, num_classes)
    _set_tokens(pool, site)
    apply_site(model, site, pool, num_classes)
    _tell_classes(model, num_classes)
    return site


def apply_site(model: nn.Module, site: Site, pool: nn.Module, num_classes: int) -> None:
    """Replace the pooling of a network in place where a :class:`Site` says, without running the network."""
    first, last = model.get_submodule(site.first), model.get_submodule(site.last)
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    pool.to(first.weight.device, first.weight.dtype)
    sizes = _length(pool), num_classes if first is last else first.out_features
    replaced: dict[nn.Module, nn.Module] = {model.get_submodule(name): nn.Identity() for name in site.removed}
    if last is not first:
        replaced[last] = _linear_like(last, last.in_features, num_classes)
    if site.pooling is not None:
        replaced[model.get_submodule(site.pooling)] = Pooling(pool, site.layout, site.dims_after)
        replaced[first] = _linear_like(first, *sizes)
    else:
        assert site.source is not None
        source = model.get_submodule(site.source)
        tap = Tap(source)
        replaced[first] = PooledHead(pool, site.layout, tap, first, sizes)
        _remove_taps(model)
        source.register_forward_hook(tap)
    for old, new in replaced.items():
        new.train(old.training)
    _swap(model, replaced)


def _length(pool: nn.Module) -> int:
    """Return the length of the vectors of a pool."""
    return int(pool.out_features)  # type: ignore[arg-type]


def _require_pool(pool: nn.Module, num_classes: int) -> None:
    if not isinstance(pool, nn.Module) or not isinstance(getattr(pool, "out_features", None), int):
        raise ArgumentError(
            "pool must be a torch.nn.Module from maps (B, C, h, w) or tokens (B, N, C) to vectors (B, F) with an "
            f"integer out_features (got {type(pool).__name__}). Use, for instance, powerpool.nn.SecondOrderPool2d(512)."
        )
    if num_classes < 1:
        raise ArgumentError(f"num_classes must be at least 1 (got {num_classes}).")


def _require_fit(probe: Probe, pool: nn.Module, site: Site) -> None:
    """Refuse a pool that does not fit the features."""
    kind = probe.kind
    what = "tokens (B, N, C)" if site.has_tokens else "maps (B, C, h, w)"
    other = None
    if isinstance(pool, Maps) and site.has_tokens:
        other = pool.pool_of_tokens
    elif isinstance(pool, Tokens) and not site.has_tokens:
        other = pool.pool_of_maps
    if other is not None:
        raise ArgumentError(
            f"{kind} gives {what}, which {type(pool).__name__} does not pool. Use "
            f"powerpool.nn.{other}({site.channels})."
        )
    given = getattr(pool, "channels", site.channels)
    if given != site.channels:
        example = "SecondOrderPool1d" if site.has_tokens else "SecondOrderPool2d"
        raise ArgumentError(
            f"The last {what} of {kind} have {site.channels} channels, but the pool was built for {given}. Use, for "
            f"instance, powerpool.nn.{example}({site.channels})."
        )
    if not isinstance(pool, Tokens):
        return
    if pool.prefix_tokens not in (0, site.prefix_tokens):
        raise ArgumentError(
            f"{kind} has {site.prefix_tokens} prefix tokens, but the pool was built for {pool.prefix_tokens}. Leave "
            "prefix_tokens out."
        )
    if pool.cls == "concat" and site.prefix_tokens == 0:
        raise ArgumentError(f"{kind} has no class token that cls='concat' could append. Use cls='drop'.")
    height, width = probe.images.shape[-2:]
    if _lacks_grid(pool) and site.grid is None and height != width:
        raise ArgumentError(
            f"{kind} takes images of {height} x {width} pixels, and the grid of its tokens, which coordinates need, is "
            "not known. Pass grid=(height, width) to the pool."
        )


def _lacks_grid(pool: nn.Module) -> bool:
    return isinstance(pool, SecondOrderTokens) and pool.coordinates > 0 and pool.grid is None


def _set_tokens(pool: nn.Module, site: Site) -> None:
    """Set what a pool of tokens must know of the model."""
    if isinstance(pool, Tokens):
        pool.prefix_tokens = site.prefix_tokens
    # None stands for a square of any size, and images of other sizes still work.
    if isinstance(pool, SecondOrderTokens) and _lacks_grid(pool) and site.grid and site.grid[0] != site.grid[1]:
        pool.grid = site.grid


def _try_out(probe: Probe, site: Site, pool: nn.Module, num_classes: int) -> None:
    """Replace the pooling of the copy, and refuse it if that fails."""
    tried = copy.deepcopy(pool).eval()
    _set_tokens(tried, site)
    classes = min(num_classes, 8)  # only shapes are compared, and the weights of a large head need much memory
    try:
        apply_site(probe.model, site, tried, classes)
        shapes = [tuple(scores.shape) for scores in probe.scores(probe.images)]
    except (PowerPoolError, *FAILURES) as error:
        raise BackboneError(f"{probe.kind} fails with the new pooling and is unchanged: {error} {BY_HAND}") from error
    if (len(probe.images), classes) not in shapes:
        raise BackboneError(
            f"With the new pooling, {probe.kind} returns {shapes} instead of ({len(probe.images)}, {classes}); it is "
            f"unchanged. {BY_HAND}"
        )


def _linear_like(layer: nn.Linear, in_features: int, out_features: int) -> nn.Linear:
    return nn.Linear(
        in_features, out_features, layer.bias is not None, device=layer.weight.device, dtype=layer.weight.dtype
    )


def _swap(model: nn.Module, replaced: dict[nn.Module, nn.Module]) -> None:
    for parent in list(model.modules()):
        for name, child in parent._modules.items():  # named_children() skips the second name of a layer
            if child in replaced:
                parent._modules[name] = replaced[child]


def _remove_taps(model: nn.Module) -> None:
    """Remove the hooks of a pooling that was replaced before."""
    for layer in model.modules():
        for key in [key for key, hook in layer._forward_hooks.items() if isinstance(hook, Tap)]:
            del layer._forward_hooks[key]


def _tell_classes(model: nn.Module, num_classes: int) -> None:
    """Update the number of classes wherever the model stores it."""
    config = getattr(model, "config", None)
    for holder, name in ((config, "num_labels"), (model, "num_labels"), (model, "num_classes")):
        if isinstance(getattr(holder, name, None), int):
            setattr(holder, name, num_classes)  # for a config, this also updates id2label and label2id


def report_size(model: nn.Module, site: Site, pool: nn.Module) -> None:
    """Log the size of the new head; warn of a large one, as from the caller of the caller."""
    layers = {model.get_submodule(name) for name in (site.first, site.last)}
    weights = sum(weight.numel() for layer in layers for weight in layer.parameters())
    size = (
        f"{type(pool).__name__} gives vectors of {_length(pool):,} entries, and the new classifier of "
        f"{type(model).__name__} has {weights:,} weights."
    )
    if _length(pool) > LARGE:
        warnings.warn(f"{size} Use reduce_to=64 for vectors of about 2,080 entries.", stacklevel=3)
    else:
        logger.info(size)
