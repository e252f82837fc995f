"""Batch normalization folded into the convolution before it, for a network that is not trained any more."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from powerpool.integrations.backbones.base import Backbone


def fold_batch_norm(module: nn.Module, example: Tensor) -> nn.Module:
    r"""A frozen copy, in eval mode, without the batch normalizations that follow a convolution.

    .. math:: \frac{W x + b - \mu}{\sqrt{v + \epsilon}}\, a + c = W' x + b', \qquad
              W' = \frac{a}{\sqrt{v + \epsilon}} W, \quad b' = \frac{a\,(b - \mu)}{\sqrt{v + \epsilon}} + c

    The values are the same up to round-off, and come faster. What follows what is seen by running the network once on
    ``example``. If the values of the folded copy should differ on ``example`` (a network may use the output of a
    convolution in ways that are not modules), the copy comes back with its batch normalizations.

    The parameters of the copy do not require gradients. Of a :class:`Backbone`, both body and head are folded.

    Args:
        module: a network; it is not changed.
        example: an input of it, for instance images (B, 3, H, W).

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from powerpool.integrations.backbones import fold_batch_norm
        >>> fold_batch_norm(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), torch.rand(2, 3, 9, 9))
        Sequential(
          (0): Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
          (1): Identity()
          (2): ReLU()
        )
    """
    plain = copy.deepcopy(module).eval().requires_grad_(False)
    if isinstance(plain, Backbone):
        with torch.no_grad():
            maps = plain(example)
        plain.body, plain.head = fold_batch_norm(plain.body, example), fold_batch_norm(plain.head, maps)
        return plain
    folded = copy.deepcopy(plain)
    with torch.no_grad():
        pairs = _pairs(folded, example)
        for convolution, norm in pairs:
            _fold(folded, convolution, norm)
        return folded if pairs and agree(folded(example), plain(example)) else plain


def _pairs(module: nn.Module, example: Tensor) -> list[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Each convolution whose output goes into a batch normalization and, as far as modules see it, nowhere else."""
    makers: dict[int, nn.Conv2d] = {}  # by the identity of the output
    takers: dict[int, list[nn.Module]] = {}
    calls: Counter[nn.Module] = Counter()
    alive: list[Tensor] = []  # an identity is unique only among tensors that live

    def before(layer: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls[layer] += 1
        for tensor in tensors_in((inputs, named)):
            alive.append(tensor)
            takers.setdefault(id(tensor), []).append(layer)

    def after(layer: nn.Module, _: tuple[Any, ...], output: Any) -> None:
        if isinstance(layer, nn.Conv2d) and isinstance(output, Tensor):
            alive.append(output)
            makers[id(output)] = layer

    hooks = [layer.register_forward_pre_hook(before, with_kwargs=True) for layer in module.modules()]
    hooks += [layer.register_forward_hook(after) for layer in module.modules()]
    try:
        module(example)
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for output, convolution in makers.items():
        norms = [layer for layer in takers.get(output, []) if isinstance(layer, nn.BatchNorm2d)]
        if len(norms) != 1 or calls[convolution] != 1 or calls[norms[0]] != 1:
            continue
        if all(_holds(layer, norms[0]) for layer in takers[output]) and _can_fold(convolution, norms[0]):
            found.append((convolution, norms[0]))
    return found


def _holds(layer: nn.Module, inner: nn.Module) -> bool:
    """Whether a layer is another one, or a module around it that hands its input on."""
    return any(child is inner for child in layer.modules())


def _can_fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> bool:
    # A subclass of BatchNorm2d may do more in its forward, such as the activation; running statistics may be off; and a
    # weight that is computed anew in every call, as by weight normalization, is no parameter.
    plain = type(norm).forward is nn.BatchNorm2d.forward
    return plain and norm.running_mean is not None and "weight" in convolution._parameters


def _fold(module: nn.Module, convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    convolution.weight, convolution.bias = fuse_conv_bn_weights(
        convolution.weight, convolution.bias, norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
    )
    convolution.requires_grad_(False)
    for parent in module.modules():
        for name, child in parent._modules.items():  # named_children() leaves the second name of a layer out
            if child is norm:
                parent._modules[name] = nn.Identity().eval()


def agree(folded: Any, plain: Any) -> bool:
    """Whether all tensors of two outputs are the same up to the round-off of a deep network."""
    pairs = list(zip(tensors_in(folded), tensors_in(plain), strict=True))
    return bool(pairs) and all(_close(one, other) for one, other in pairs)


def _close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or not other.is_floating_point():
        return torch.equal(one, other)
    if not other.numel():
        return True
    bound = torch.finfo(other.dtype).eps ** 0.5 * other.abs().max()
    return bool((one - other).abs().max() <= bound)  # False for NaN


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors inside tuples, lists and mappings, as transformers returns them."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from tensors_in(tuple(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_in(value)
