"""Pools, curves and solvers as plain values, which a JSON file can hold, and back."""

from __future__ import annotations

import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from powerpool import curves
from powerpool.curves import CURVES, Curve
from powerpool.errors import ArgumentError, PowerPoolError, RecordError, did_you_mean, require_choice, shown
from powerpool.nn import FirstOrderPool1d, FirstOrderPool2d, SecondOrderPool1d, SecondOrderPool2d
from powerpool.solvers import SOLVERS, Solver

T = TypeVar("T")
Spec = dict[str, Any]
"""What JSON can hold."""
POOLS: dict[str, type[nn.Module]] = {
    pool.__name__: pool for pool in (FirstOrderPool1d, FirstOrderPool2d, SecondOrderPool1d, SecondOrderPool2d)
}
LARGEST_INT = 1 << 20
"""Of channels, coordinates and iterations: no file makes a constructor allocate or compute without bounds."""

MOST_LABELS = 1_000_000


def describe_pool(pool: nn.Module) -> Spec:
    """Return the class of a pool and its arguments; those that have their defaults are left out.

    Example:
        >>> import powerpool as pp
        >>> describe_pool(pp.nn.SecondOrderPool1d(64, pp.MaxExp(eta=20), reduce_to=16))
        {'class': 'SecondOrderPool1d', 'channels': 64, 'curve': {'name': 'maxexp', 'eta': 20}, 'reduce_to': 16}
    """
    if POOLS.get(type(pool).__name__) is not type(pool):
        raise ArgumentError(
            f"Only pools of powerpool can be described in a file: {', '.join(POOLS)} (got {type(pool).__name__})."
        )
    found: Spec = {"class": type(pool).__name__}
    for name, parameter in inspect.signature(type(pool)).parameters.items():
        value = getattr(pool, name)
        if value == parameter.default and type(value) is type(parameter.default):
            continue
        if isinstance(value, Curve):
            value = describe_curve(value)
        elif isinstance(value, Solver):
            value = {"name": value.name, **describe_fields(value)}
        found[name] = list(value) if isinstance(value, tuple) else value
    return found


def build_pool(spec: Any) -> nn.Module:
    """Build a pool from its description; whatever is wrong with it is a :class:`RecordError`.

    Example:
        >>> build_pool({"class": "FirstOrderPool2d", "channels": 8, "curve": {"name": "asinhe", "gamma": 3.0}})
        FirstOrderPool2d(
          8, reduce='mean', out_features=8
          (curve): AsinhE(gamma=3.0)
        )
    """
    options = _read_object(spec, "pool")
    try:
        name = _take_name(options, "class", "pool")
        require_choice(name, POOLS, "pool.class")
        hints = typing.get_type_hints(POOLS[name].__init__)
        _require_names(options, hints.keys() - {"return"}, "pool")
        if "channels" not in options:
            raise RecordError("pool.channels is missing.")
        for key, value in options.items():
            if key == "curve" and isinstance(value, dict):
                options[key] = build_curve(value)
            elif key == "solver" and isinstance(value, dict):
                options[key] = _build_solver(value)
            else:
                options[key] = _convert(value, hints[key], f"pool.{key}")
        return POOLS[name](**options)
    except RecordError:
        raise
    except (PowerPoolError, RuntimeError, OverflowError) as error:  # also sizes that no tensor can have
        raise RecordError(f"No pool can be built from the stored settings: {error}") from error


def describe_curve(curve: Curve) -> Spec:
    """Return the name of a curve, its parameter and its options; of a tensor only the shape: its values are weights."""
    name = next((name for name, kind in CURVES.items() if kind is type(curve)), None)
    if name is None:
        raise ArgumentError(
            f"Only curves of powerpool can be described in a file: {', '.join(CURVES)} (got {type(curve).__name__})."
        )
    value = getattr(curve, curve.parameter_name)
    if isinstance(value, Tensor):
        value = {"shape": list(value.shape), "learnable": isinstance(value, nn.Parameter)}
    return {"name": name, curve.parameter_name: value, **{key: getattr(curve, key) for key in curve.option_names}}


def build_curve(spec: Any) -> Curve:
    """Build a curve from its description; a tensor parameter has the default value until weights are loaded."""
    options = _read_object(spec, "curve")
    name = _take_name(options, "name", "curve")
    require_choice(name, CURVES, "curve")
    kind = CURVES[name]
    own = kind.parameter_name
    if own not in options:
        raise RecordError(f"curve.{own} is missing.")
    if isinstance(options[own], dict):
        options[own] = _build_parameter(options[own], inspect.signature(kind).parameters[own].default, own)
    return curves.resolve(name, **options)


def _build_parameter(spec: Spec, default: float, name: str) -> Tensor:
    _require_names(spec, ("shape", "learnable"), f"curve.{name}")
    shape, learnable = spec.get("shape"), spec.get("learnable")
    sizes = [_convert(size, int, f"curve.{name}.shape") for size in shape] if isinstance(shape, list) else None
    if sizes is None or not isinstance(learnable, bool) or math.prod(sizes) > LARGEST_INT or min(sizes, default=1) < 1:
        raise RecordError(f"curve.{name} must be a number, or the shape of a tensor and whether it is learnable.")
    # On the CPU, where the curve checks its range, also while a model is built without memory.
    values = torch.full(sizes, float(default), device="cpu")
    return nn.Parameter(values) if learnable else values


def _build_solver(spec: Spec) -> Solver:
    options = _read_object(spec, "solver")
    name = _take_name(options, "name", "solver")
    require_choice(name, SOLVERS, "solver")
    return build_fields(SOLVERS[name], options, "solver")


def describe_fields(value: Any) -> Spec:
    """Return the fields of a flat dataclass; those that have their defaults are left out."""
    found = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    kept = {field.name for field in dataclasses.fields(value) if found[field.name] != field.default}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in found.items() if name in kept}


def build_fields(kind: type[T], spec: Any, group: str) -> T:
    """Build a flat dataclass from its fields; ``group`` is their prefix in errors."""
    options, hints = _read_object(spec, group), typing.get_type_hints(kind)
    fields: tuple[Any, ...] = dataclasses.fields(kind)  # type: ignore[arg-type]
    _require_names(options, {field.name for field in fields}, group)
    missing = [field.name for field in fields if field.default is dataclasses.MISSING and field.name not in options]
    if missing:
        raise RecordError(f"{group}.{missing[0]} is missing.")
    return kind(**{key: _convert(value, hints[key], f"{group}.{key}") for key, value in options.items()})


def require_labels(names: Any, number: Any) -> None:
    """Refuse labels before transformers makes a list of as many as a file says."""
    if number is not None and (not isinstance(number, int) or not 1 <= number <= MOST_LABELS):
        raise RecordError(f"num_labels must be a whole number from 1 to {MOST_LABELS:,} (got {shown(number)}).")
    if names is None:
        return
    if not isinstance(names, Mapping) or {str(key) for key in names} != {str(key) for key in range(len(names))}:
        raise RecordError(f"id2label must have a name for each number from 0 (got {shown(names)}).")
    if not names or not all(isinstance(name, str) for name in names.values()):
        raise RecordError(f"id2label must have names of labels, at least one (got {shown(names)}).")


def _read_object(spec: Any, name: str) -> Spec:
    if not isinstance(spec, dict):
        raise RecordError(f"{name} must be an object of named fields (got {shown(spec)}).")
    return dict(spec)


def _take_name(options: Spec, key: str, group: str) -> str:
    name = options.pop(key, None)
    if not isinstance(name, str):
        raise RecordError(f"{group}.{key} must be a name (got {shown(name)}).")
    return name


def _require_names(options: Spec, known: typing.Iterable[str], group: str) -> None:
    known = sorted(known)
    for key in options:
        if key not in known:
            raise RecordError(f"{group}.{shown(key)[1:-1]} is not a known field.{did_you_mean(key, known)}")


def _convert(value: Any, hint: Any, name: str) -> Any:
    """Return a value of JSON as the type of an argument, or refuse it."""
    for kind in typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,):
        origin = typing.get_origin(kind)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if origin is Literal and isinstance(value, str) and value in typing.get_args(kind):
            return value
        if origin is tuple and isinstance(value, list):
            first, *others = typing.get_args(kind)
            if others == [...] or len(value) == 1 + len(others):
                return tuple(_convert(item, first, name) for item in value)  # all of one type
        if (kind is type(None) and value is None) or (kind is bool and isinstance(value, bool)):
            return value
        if kind is int and is_number and isinstance(value, int) and abs(value) <= LARGEST_INT:
            return value
        if (kind is float and is_number and math.isfinite(value)) or (kind is str and isinstance(value, str)):
            return value
    raise RecordError(f"{name} has a value that it cannot have: {shown(value)}.")
