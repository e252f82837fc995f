"""Evaluate scalar formulas of numbers, NumPy arrays or tensors in float64, and check their arguments.

A number gives a number, an array an array, and a tensor a float64 tensor through which gradients flow.
"""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch import Tensor

from powerpool.errors import ArgumentError

Number: TypeAlias = Any
"""A number, a NumPy array or a tensor."""
F = TypeVar("F", bound=Callable[..., Any])


def of_numbers(formula: F) -> F:
    """Let a formula of float64 tensors take arguments of any kind, and return the same kind.

    Parameters annotated as :data:`Number` are converted; the result may be a tensor or a named tuple of tensors.

    Example:
        >>> @of_numbers
        ... def add(x: Number, y: Number) -> Number:
        ...     return x + y
        >>> add(1, 0.5)
        1.5
        >>> add(torch.tensor([1.0, 2.0]), 1)
        tensor([2., 3.], dtype=torch.float64)
    """
    signature = inspect.signature(formula)
    converted = [name for name, one in signature.parameters.items() if one.annotation in (Number, "Number")]

    @functools.wraps(formula)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        given = [arguments[name] for name in converted]
        result = formula(**arguments | {name: _tensor(arguments[name], name) for name in converted})
        if any(isinstance(value, Tensor) for value in given):
            return result
        back = _to_array if any(_is_array(value) for value in given) else Tensor.item
        return type(result)(*map(back, result)) if isinstance(result, tuple) else back(result)

    return cast("F", evaluate)


def require(x: Tensor, name: str, need: str, inside: Tensor) -> Tensor:
    """Return ``x``; refuse values that are not finite or not ``inside``.

    Example:
        >>> x = torch.tensor(-1.0)
        >>> require(x, "t", "> 0", x > 0)
        Traceback (most recent call last):
        powerpool.errors.ArgumentError: t must be finite and > 0 (got -1).
    """
    bad = ~(inside & torch.isfinite(x))
    if bool(bad.any()):
        first = torch.broadcast_to(x, bad.shape)[bad][0].item()
        raise ArgumentError(f"{name} must be finite and {need} (got {first:.6g}).")
    return x


def require_positive(x: Tensor, name: str) -> Tensor:
    """Return ``x``; refuse everything but finite numbers above 0."""
    return require(x, name, "> 0", x > 0)


def require_at_least(x: Tensor, name: str, least: int) -> Tensor:
    """Return ``x``; refuse everything but finite numbers from ``least`` on."""
    return require(x, name, f">= {least}", x >= least)


def require_unit(x: Tensor, name: str) -> Tensor:
    """Return ``x``; refuse everything but numbers in [0, 1]."""
    return require(x, name, "in [0, 1]", (x >= 0) & (x <= 1))


def require_whole(value: object, name: str, least: int, most: float = math.inf, why: str = "") -> int:
    """Return ``value`` as an int; refuse everything but whole numbers between ``least`` and ``most``.

    Example:
        >>> require_whole(2.5, "eta", 1)
        Traceback (most recent call last):
        powerpool.errors.ArgumentError: eta must be a whole number >= 1 (got 2.5).
    """
    number: Any = value
    if not _is_number(value) or not math.isfinite(number) or number != int(number) or not least <= number <= most:
        upper = "" if most == math.inf else f" and <= {most:g}"
        raise ArgumentError(f"{name} must be a whole number >= {least}{upper} (got {value!r}).{why}")
    return int(number)


def _tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.is_complex() or value.dtype == torch.bool:
            raise ArgumentError(f"{name} must be real numbers (got a tensor of {value.dtype}).")
        return value.to(torch.float64)
    if _is_number(value):
        return torch.tensor(float(value), dtype=torch.float64)
    if _is_array(value) and getattr(getattr(value, "dtype", None), "kind", "") in ("i", "u", "f"):
        # A copy: as_tensor would share memory with the caller, and warn if it is read-only.
        return torch.tensor(value, dtype=torch.float64)
    kind = type(value).__name__
    raise ArgumentError(
        f"{name} must be a number, a NumPy array of numbers or a tensor (got {kind}). Wrap a list in torch.tensor."
    )


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)  # bool is a subclass of int


def _is_array(value: Any) -> bool:
    # By its protocol, because NumPy is optional. NumPy scalars have it too, but are numbers.
    return hasattr(value, "__array__") and not isinstance(value, (Tensor, numbers.Real))


def _to_array(result: Tensor) -> Any:
    return result.detach().numpy()
