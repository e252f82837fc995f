"""Any model and any loader: the pool in the model is found, and what goes into it is looked at on the way.

The model is left as it was found: every part in its own mode of training or evaluation, no hook, no gradient.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from powerpool import curves
from powerpool.analysis.gathering import SAMPLES, Gathering
from powerpool.analysis.result import Inspection
from powerpool.curves import Curve
from powerpool.errors import ArgumentError, ShapeError, require_choice
from powerpool.functional import MODES, Mode
from powerpool.moments.dense import center
from powerpool.nn import FirstOrderPool2d, RelationDescriptor, SecondOrderFactor2d, SecondOrderPool2d
from powerpool.tasks.pooling import FeatureSet, Normalization, normalization_of, split_rows

POOLS: tuple[type[nn.Module], ...] = (SecondOrderPool2d, SecondOrderFactor2d, RelationDescriptor, FirstOrderPool2d)
"""Those that are found by themselves, beside the aggregations for PyTorch Geometric."""

Call = Callable[[nn.Module, Any], Any]
"""Gives a batch to a model."""


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
    """What the pool of a model sees, and what its normalization does to it.

    Args:
        model: any module. It runs in evaluation mode and without gradients, and is left as it was found.
        loader: gives batches; the first samples of it are looked at.
        pool: the module whose input is looked at, or its name in the model; without it the one pool of powerpool that
            the model has. Any module will do that takes maps ``(B, C, H, W)`` or sets ``(B, C, N)``, such as an average
            pooling.
        samples: how many pictures or graphs.
        call: how a batch goes to the model. Without it the model gets a tensor or an object as it is, the first part
            of a list or tuple (the others are labels), and the fields of a mapping by their names.
        curve: another one to look at than that of the pool. All else stays as the pool has it.
        mode: how that curve is applied: as in the pool without it, on the spectrum where the pool is of first order.

    Example:
        >>> import torch, powerpool as pp
        >>> pooled = pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=20))
        >>> head = torch.nn.Linear(pooled.out_features, 2)
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), pooled, head)
        >>> pictures = [(torch.rand(4, 3, 10, 10), torch.zeros(4)) for _ in range(3)]  # as a loader gives them
        >>> found = inspect_model(model, pictures, samples=10)
        >>> found.samples, found.channels, found.normalization.describe()
        (10, 8, '2: MaxExp(eta=20) on the spectrum')
    """
    if mode is not None:
        require_choice(mode, MODES, "mode")
        if curve is None:
            raise ArgumentError(
                f"mode needs a curve that it is the mode of (got mode={mode!r} alone): give curve= as well. Without "
                "both, the pool is looked at as it is."
            )
    name, module = find_pool(model, pool)
    normalization = _normalization(name, module)
    if curve is not None:
        normalization = replace(
            normalization, curve=curves.resolve(curve), mode=mode or normalization.mode, is_first_order=False
        )
    gathering = Gathering(normalization, samples)

    def look(_: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        gathering.extend(sets_of(module, arguments, options))

    with _as_found(model), torch.no_grad():
        handle = module.register_forward_pre_hook(look, with_kwargs=True)
        try:
            for batch in loader:
                (call or _call)(model, _moved(batch, _device(model)))
                if gathering.is_full:
                    break
        finally:
            handle.remove()
    if not gathering.seen:
        raise ArgumentError(
            f"The pool {name!r} was never called: the loader gave no batch, or the model calls parts of the pool and "
            "not the pool itself. Say how a batch goes to the model with call=, name another module with pool=, or "
            "give the features themselves to inspect_features."
        )
    return gathering.result("the loader")


def find_pool(model: nn.Module, pool: str | nn.Module | None = None) -> tuple[str, nn.Module]:
    """The pool of a model and its name: the one that is asked for, or the only one of powerpool."""
    named = dict(model.named_modules())
    if isinstance(pool, nn.Module):
        for name, module in named.items():
            if module is pool:
                return name or type(module).__name__, module
        raise ArgumentError(f"The pool that was given, {type(pool).__name__}, is no part of the model.")
    if pool is not None:
        if pool not in named:
            listed = ", ".join(repr(name) for name in list(named)[1:11]) or "none"
            raise ArgumentError(f"The model has no module {pool!r}. Its first ones are: {listed}.")
        return pool, named[pool]
    kinds = _kinds()
    found = [(name or type(module).__name__, module) for name, module in named.items() if isinstance(module, kinds)]
    if not found:
        raise ArgumentError(
            f"The model has no pool of powerpool ({', '.join(kind.__name__ for kind in kinds)}). Name the module whose "
            "input is to be looked at, such as its average pooling: pool='avgpool'."
        )
    if len(found) > 1:
        listed = ", ".join(repr(name) for name, _ in found)
        raise ArgumentError(f"The model has {len(found)} pools: {listed}. Name one of them with pool=.")
    return found[0]


def sets_of(module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Iterator[FeatureSet]:
    """The feature sets in what a pool is called with."""
    if isinstance(module, (SecondOrderPool2d, SecondOrderFactor2d, FirstOrderPool2d)):
        maps = arguments[0] if arguments else next(iter(options.values()))
        features, grid = module.feature_sets(maps)
        yield from (FeatureSet(one, grid) for one in _each(features))
    elif isinstance(module, RelationDescriptor):
        yield from _relation_sets(module, arguments, options)
    elif isinstance(module, _aggregations()):
        x, index = _argument(arguments, options, 0, "x"), _argument(arguments, options, 1, "index")
        ptr = _argument(arguments, options, 2, "ptr")
        yield from (FeatureSet(rows.T) for rows in split_rows(x, index, ptr))
    else:
        yield from _plain_sets(module, arguments, options)


def _relation_sets(
    module: RelationDescriptor, arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> Iterator[FeatureSet]:
    """What a descriptor makes one matrix of: each query, and of the support what its variant pools together."""
    support, query = _argument(arguments, options, 0, "support"), _argument(arguments, options, 1, "query")
    grid = _argument(arguments, options, 2, "coordinates")
    yield from (FeatureSet(one, grid) for one in _each(query))
    if module.variant == "outer":
        yield from (FeatureSet(one, grid) for one in _each(support.mean(-3)))
    elif module.variant == "outer+L":
        yield from (FeatureSet(one, grid) for one in _each(support))
    else:
        # All shots of a class are one set, each centred by its own mean.
        centred = center(support, module.beta).transpose(-3, -2).flatten(-2)
        tiled = None if grid is None else grid.repeat(1, support.shape[-3])
        yield from (FeatureSet(one, tiled, is_centred=True) for one in _each(centred))


def _plain_sets(module: nn.Module, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Iterator[FeatureSet]:
    given = arguments[0] if arguments else next(iter(options.values()), None)
    if not isinstance(given, Tensor) or not given.is_floating_point() or not 3 <= given.ndim <= 4:
        what = f"{given.dtype} of shape {tuple(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
        raise ShapeError(
            f"{type(module).__name__} was given {what}; what can be looked at are maps (B, C, H, W) or sets (B, C, N) "
            "of numbers. Name another module with pool=."
        )
    yield from (FeatureSet(one) for one in given.flatten(2))


def _each(sets: Tensor) -> Tensor:  # shape: (*, C, N) -> (S, C, N)
    """All sets one after the other; one alone is the first."""
    return sets[None].flatten(0, -3)


def _normalization(name: str, module: nn.Module) -> Normalization:
    """What a pool does; a module that is none of powerpool is taken for one of first order."""
    second = isinstance(module, (SecondOrderPool2d, SecondOrderFactor2d, RelationDescriptor))
    graphs = sys.modules.get("powerpool.integrations.pyg")
    if not second and not (graphs is not None and isinstance(module, graphs.SecondOrderAggregation)):
        return Normalization(
            name, getattr(module, "curve", None) if isinstance(module, _kinds()) else None, is_first_order=True
        )
    found = normalization_of(name, module)
    return replace(found, solver="gram") if isinstance(module, SecondOrderFactor2d) else found


def _aggregations() -> tuple[type[nn.Module], ...]:
    # A model that has one has imported it: nobody else needs PyTorch Geometric here.
    graphs = sys.modules.get("powerpool.integrations.pyg")
    return () if graphs is None else (graphs.SecondOrderAggregation, graphs.FirstOrderPowerAggregation)


def _kinds() -> tuple[type[nn.Module], ...]:
    return (*POOLS, *_aggregations())


def _argument(arguments: tuple[Any, ...], options: Mapping[str, Any], place: int, name: str) -> Any:
    return arguments[place] if place < len(arguments) else options.get(name)


def _call(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    # A tuple with names is a batch of its own kind, not inputs and labels.
    is_pair = isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields")
    return model(batch[0] if is_pair else batch)


def _device(model: nn.Module) -> torch.device | None:
    first = next(model.parameters(), None)
    return None if first is None else first.device


def _moved(batch: Any, device: torch.device | None) -> Any:
    """The tensors of a batch where the model is."""
    if device is None:
        return batch
    if isinstance(batch, Mapping):
        return {name: _moved(value, device) for name, value in batch.items()}
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(_moved(value, device) for value in batch)
    return batch


@contextmanager
def _as_found(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every part has its own mode back, also if something went wrong."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
