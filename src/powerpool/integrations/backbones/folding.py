"""Folding batch normalization into the preceding convolution, for inference."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from powerpool.integrations.backbones.base import Backbone, hooked

N = TypeVar("N", bound=nn.Module)


def fold_batch_norm(module: N, example: Tensor) -> N:
    r"""Return a frozen copy in eval mode, with batch normalization folded into the preceding convolutions.

    .. math:: \frac{W x + b - \mu}{\sqrt{v + \epsilon}}\, a + c = W' x + b', \qquad
              W' = \frac{a}{\sqrt{v + \epsilon}} W, \quad b' = \frac{a\,(b - \mu)}{\sqrt{v + \epsilon}} + c

    The outputs are equal up to round-off. Pairs of layers are found by running the network on ``example``. If the
    folded copy gives another output for ``example``, because an operation that is not a module uses the output of a
    convolution, the copy keeps its batch normalization.

    The parameters of the copy do not require gradients. Both the body and the head of a :class:`Backbone` are folded.

    Args:
        module: a network, which is not changed.
        example: an input, for instance images (B, 3, H, W).

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
    """Return each convolution whose output only a batch normalization uses, as far as hooks can see."""
    makers: dict[int, nn.Conv2d] = {}  # by the id of the output
    takers: dict[int, list[nn.Module]] = {}
    calls: Counter[nn.Module] = Counter()
    alive: list[Tensor] = []  # ids are unique only among living tensors

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
    with hooked(hooks):
        module(example)
    found = []
    for output, convolution in makers.items():
        norms = [layer for layer in takers.get(output, []) if isinstance(layer, nn.BatchNorm2d)]
        if len(norms) != 1 or calls[convolution] != 1 or calls[norms[0]] != 1:
            continue
        if all(_holds(layer, norms[0]) for layer in takers[output]) and _can_fold(convolution, norms[0]):
            found.append((convolution, norms[0]))
    return found


def _holds(layer: nn.Module, inner: nn.Module) -> bool:
    """Whether a layer is ``inner``, or a container of it that passes its input on."""
    return any(child is inner for child in layer.modules())


def _can_fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> bool:
    # A subclass may also apply an activation, there may be no running statistics, and a weight that is computed in
    # every call, as by weight normalization, is not a parameter.
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
        for name, child in parent._modules.items():  # named_children() skips the second name of a layer
            if child is norm:
                parent._modules[name] = nn.Identity().eval()


def agree(folded: Any, plain: Any) -> bool:
    """Whether all tensors of two outputs are equal up to the round-off of a deep network."""
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
    """Iterate over the tensors in nested tuples, lists and mappings, which transformers returns."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from tensors_in(tuple(values.values()))
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_in(value)
