"""Analysis of any model with any loader: a hook on the pool collects its input while the model runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from powerpool import curves
from powerpool.analysis.gather import Gathering
from powerpool.analysis.result import Inspection
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError, require_choice
from powerpool.functional import MODES, Mode
from powerpool.moments.dense import center
from powerpool.nn import (
    FirstOrderPool1d,
    FirstOrderPool2d,
    RelationDescriptor,
    SecondOrderFactor1d,
    SecondOrderFactor2d,
    SecondOrderPool1d,
    SecondOrderPool2d,
)
from powerpool.tasks.pooling import SAMPLES, FeatureSet, Normalization, normalization_of, split_rows

Call = Callable[[nn.Module, Any], Any]
"""Passes a batch to a model."""
POOLS_OF_MAPS = (SecondOrderPool2d, SecondOrderFactor2d, FirstOrderPool2d)
POOLS_OF_TOKENS = (SecondOrderPool1d, SecondOrderFactor1d, FirstOrderPool1d)


def inspect_model(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    pool: str | nn.Module | None = None,
    samples: int = SAMPLES,
    call: Call | None = None,
    curve: Curve | str | None = None,
    mode: Mode | None = None,
) -> Inspection:
    """Analyse the input of a model's pool, before and after its normalization.

    Args:
        model: any module. It runs in evaluation mode without gradients; afterwards its state is as before.
        loader: yields batches; its first samples are used.
        pool: the module whose input is analysed, or its name in the model; default: the only powerpool pool of the
            model. Any module works that takes maps ``(B, C, H, W)`` or sets ``(B, C, N)``, such as average pooling.
        samples: how many images or graphs to use.
        call: passes a batch to the model. By default a mapping is passed as keyword arguments, a list or tuple by its
            first item (the others are labels), and anything else as it is.
        curve: a curve to use instead of that of the pool; all other settings remain.
        mode: how that curve is applied; default: as in the pool, or on the spectrum for a first-order pool.

    Example:
        >>> import torch, powerpool as pp
        >>> pooled = pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=20))
        >>> head = torch.nn.Linear(pooled.out_features, 2)
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), pooled, head)
        >>> loader = [(torch.rand(4, 3, 10, 10), torch.zeros(4)) for _ in range(3)]
        >>> found = inspect_model(model, loader, samples=10)
        >>> found.samples, found.channels, found.normalization.describe()
        (10, 8, '2: MaxExp(eta=20) on the spectrum')
    """
    if mode is not None:
        require_choice(mode, MODES, "mode")
        if curve is None:
            raise ArgumentError(f"mode={mode!r} needs a curve: give curve= as well.")
    name, module = find_pool(model, pool)
    normalization = _read_normalization(name, module)
    if curve is not None:
        normalization = replace(
            normalization, curve=curves.resolve(curve), mode=mode or normalization.mode, is_first_order=False
        )
    gathering = Gathering(normalization, samples)

    def collect(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        gathering.extend(sets_of(module, arguments, options))

    with _evaluation_mode(model), torch.no_grad():
        handle = module.register_forward_pre_hook(collect, with_kwargs=True)
        try:
            device = next((parameter.device for parameter in model.parameters()), None)
            for batch in loader:
                (call or _call)(model, batch if device is None else _move(batch, device))
                if gathering.is_full:
                    break
        finally:
            handle.remove()
    if not gathering.seen:
        raise ArgumentError(
            f"The pool {name!r} was never called: the loader is empty, or the model does not call the pool itself. "
            "Name another module with pool=, or use inspect_features."
        )
    return gathering.result("the loader")


def find_pool(model: nn.Module, pool: str | nn.Module | None = None) -> tuple[str, nn.Module]:
    """Return the name and the module of a pool: the given one, or the only powerpool pool of the model."""
    named = {name or type(module).__name__: module for name, module in model.named_modules()}
    if isinstance(pool, nn.Module):
        names = [name for name, module in named.items() if module is pool]
        if not names:
            raise ArgumentError(f"The given pool, {type(pool).__name__}, is not a module of the model.")
        return names[0], pool
    if pool is not None:
        if pool not in named:
            listed = ", ".join(repr(name) for name in list(named)[1:11]) or "none"
            raise ArgumentError(f"The model has no module {pool!r}. Its first modules are: {listed}.")
        return pool, named[pool]
    kinds = (*_second_order_kinds(), *_first_order_kinds())
    found = {name: module for name, module in named.items() if isinstance(module, kinds)}
    if not found:
        raise ArgumentError(
            f"The model has no powerpool pool ({', '.join(kind.__name__ for kind in kinds)}). Name the module whose "
            "input to analyse, such as pool='avgpool'."
        )
    if len(found) > 1:
        raise ArgumentError(f"The model has {len(found)} pools: {', '.join(map(repr, found))}. Name one with pool=.")
    return next(iter(found.items()))


def sets_of(module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Iterator[FeatureSet]:
    """Iterate over the feature sets in the arguments of a pool."""

    def argument(place: int, name: str) -> Any:
        return arguments[place] if place < len(arguments) else options.get(name)

    if isinstance(module, POOLS_OF_MAPS):
        features, grid = module.feature_sets(argument(0, "maps"))
        yield from (FeatureSet(one, grid) for one in _flatten_batch(features))
    elif isinstance(module, POOLS_OF_TOKENS):
        if argument(1, "mask") is not None:
            raise ArgumentError("Tokens with a mask cannot be analysed. Run the model on a loader without padding.")
        features, grid = module.feature_sets(argument(0, "tokens"))
        yield from (FeatureSet(one, grid) for one in _flatten_batch(features))
    elif isinstance(module, RelationDescriptor):
        yield from _relation_sets(module, argument(0, "support"), argument(1, "query"), argument(2, "coordinates"))
    elif isinstance(module, _graph_kinds()):
        rows_by_graph = split_rows(argument(0, "x"), argument(1, "index"), argument(2, "ptr"))
        yield from (FeatureSet(rows.T) for rows in rows_by_graph)
    else:
        yield from _plain_sets(module, arguments[0] if arguments else next(iter(options.values()), None))


def _relation_sets(
    module: RelationDescriptor, support: Tensor, query: Tensor, grid: Tensor | None
) -> Iterator[FeatureSet]:
    """Iterate over the sets that a descriptor makes one matrix of: each query, then the support by its variant."""
    yield from (FeatureSet(one, grid) for one in _flatten_batch(query))
    if module.variant == "outer+P":
        # All shots of a class are one set, each centred by its own mean.
        centred = center(support, module.beta).transpose(-3, -2).flatten(-2)
        tiled = None if grid is None else grid.repeat(1, support.shape[-3])
        yield from (FeatureSet(one, tiled, is_centred=True) for one in _flatten_batch(centred))
    else:
        sets = support.mean(-3) if module.variant == "outer" else support
        yield from (FeatureSet(one, grid) for one in _flatten_batch(sets))


def _plain_sets(module: nn.Module, given: Any) -> Iterator[FeatureSet]:
    if not isinstance(given, Tensor) or not given.is_floating_point() or not 3 <= given.ndim <= 4:
        what = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise ShapeError(
            f"{type(module).__name__} got {what} instead of floating-point maps (B, C, H, W) or sets (B, C, N). Name "
            "another module with pool=."
        )
    yield from (FeatureSet(one) for one in given.flatten(2))


def _flatten_batch(sets: Tensor) -> Tensor:  # shape: (*, C, N) -> (S, C, N)
    return sets[None].flatten(0, -3)


def _read_normalization(name: str, module: nn.Module) -> Normalization:
    """Return the normalization of a pool; a module of another package counts as first order."""
    if not isinstance(module, _second_order_kinds()):
        curve = getattr(module, "curve", None) if isinstance(module, _first_order_kinds()) else None
        return Normalization(name, curve, is_first_order=True)
    found = normalization_of(name, module)
    return replace(found, solver="gram") if isinstance(module, (SecondOrderFactor1d, SecondOrderFactor2d)) else found


def _graph_kinds() -> tuple[type[nn.Module], ...]:
    # A model with an aggregation has imported its module, so PyTorch Geometric is not imported here.
    graphs = sys.modules.get("powerpool.integrations.pyg")
    return () if graphs is None else (graphs.SecondOrderAggregation, graphs.FirstOrderPowerAggregation)


def _second_order_kinds() -> tuple[type[nn.Module], ...]:
    pools = (SecondOrderPool2d, SecondOrderFactor2d, SecondOrderPool1d, SecondOrderFactor1d)
    return (*pools, RelationDescriptor, *_graph_kinds()[:1])


def _first_order_kinds() -> tuple[type[nn.Module], ...]:
    return (FirstOrderPool2d, FirstOrderPool1d, *_graph_kinds()[1:])


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if _is_list(batch) else batch)


def _move(batch: Any, device: torch.device) -> Any:
    """Move the tensors of a batch to a device."""
    if isinstance(batch, Mapping):
        return {name: _move(value, device) for name, value in batch.items()}
    if hasattr(batch, "to"):
        return batch.to(device)
    return type(batch)(_move(value, device) for value in batch) if _is_list(batch) else batch


def _is_list(batch: Any) -> bool:
    """Whether a batch is a list of inputs and labels; a named tuple is a batch of its own kind."""
    return isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields")


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, and restore the mode of every module afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
