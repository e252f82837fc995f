"""Statistics of batch normalization: other ones than those that were gathered while the weights changed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextlib.contextmanager
def settling(model: nn.Module) -> Iterator[None]:
    """Inside, the statistics that are kept become the means over the batches that the model sees; no weight changes.

    The model is in evaluation mode but for batch normalization, and all of it afterwards.

    Example:
        >>> import torch
        >>> model = nn.BatchNorm1d(1)
        >>> with settling(model):
        ...     _ = model(torch.tensor([[1.0], [3.0]])), model(torch.tensor([[5.0], [7.0]]))
        >>> model.running_mean.item(), model.momentum
        (4.0, 0.1)
    """
    layers = _layers(model)
    momenta = [layer.momentum for layer in layers]
    model.eval()
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches since then
            layer.train()
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.eval()


@contextlib.contextmanager
def statistics_of_batches(model: nn.Module) -> Iterator[None]:
    """Inside, batch normalization takes the statistics of what it sees, as in training, and keeps none of them."""
    layers = _layers(model)
    kept = [(layer.momentum, layer.num_batches_tracked) for layer in layers]
    model.eval()
    try:
        for layer in layers:
            layer.train()
            layer.momentum, layer.num_batches_tracked = 0.0, None
        yield
    finally:
        for layer, (momentum, count) in zip(layers, kept, strict=True):
            layer.momentum, layer.num_batches_tracked = momentum, count
        model.eval()


def _layers(model: nn.Module) -> list[_BatchNorm]:
    return [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
