"""Dataclasses from JSON and back, with every field checked: type, finite numbers, bounded sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from powerpool.errors import RecordError, did_you_mean, shown

T = TypeVar("T")
Json = Any
"""What JSON can hold: None, booleans, finite numbers, strings, lists, and dictionaries with string keys."""
MOST_ITEMS = 10_000_000
LONGEST_TEXT = 10_000_000
LARGEST_INT = 2**63
LARGEST_FLOAT = 1e100
"""So that sums and squares of the numbers in a record are finite. A diverged float32 loss is at most 3e38."""


def from_json(kind: type[T], value: Json, name: str = "", **types: Any) -> T:
    """Build a dataclass from a JSON object.

    Args:
        kind: the dataclass. Fields may be numbers, strings, booleans, literals, tuples, lists, dictionaries with string
            keys, other dataclasses, and optional versions of these.
        value: the JSON object.
        name: prefix of field names in errors.
        types: types of fields that are narrower than those of the dataclass.

    Example:
        >>> @dataclasses.dataclass
        ... class Score:
        ...     value: float
        ...     loss: float | None = None
        >>> from_json(Score, {"value": 90})
        Score(value=90.0, loss=None)
        >>> from_json(Score, {"value": "90"}, "validation")
        Traceback (most recent call last):
        powerpool.errors.RecordError: validation.value must be a finite number of at most 1e+100 (got '90').
    """
    return typing.cast("T", _convert_object(kind, value, name, types))


def to_json(value: Any) -> Json:
    """Turn a dataclass into plain JSON values; fields that are None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return {name: to_json(item) for name, item in found if item is not None}
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return str(value) if isinstance(value, Path) else value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _convert(kind: Any, value: Json, name: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        members = typing.get_args(kind)
        if value is None and type(None) in members:
            return None
        *others, last = (member for member in members if member is not type(None))
        for member in others:
            with contextlib.suppress(RecordError):
                return _convert(member, value, name)
        return _convert(last, value, name)
    if dataclasses.is_dataclass(kind):
        return _convert_object(typing.cast("type", kind), value, name)
    if origin is Literal:
        choices = typing.get_args(kind)
        fits = any(type(value) is type(choice) and value == choice for choice in choices)
        return value if fits else _refuse(name, f"one of {', '.join(map(str, choices))}", value)
    if origin in (tuple, list):
        if not isinstance(value, list) or len(value) > MOST_ITEMS:
            _refuse(name, f"a list of at most {MOST_ITEMS:,} items", value)
        item = typing.get_args(kind)[0]
        return origin(_convert(item, part, f"{name}[{place}]") for place, part in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict) or len(value) > MOST_ITEMS:
            _refuse(name, f"an object of at most {MOST_ITEMS:,} fields", value)
        item = typing.get_args(kind)[1]
        return {key: _convert(item, part, f"{name}.{key}") for key, part in value.items()}
    return _convert_plain(kind, value, name)


def _convert_plain(kind: Any, value: Json, name: str) -> Any:
    if kind is bool:
        return value if isinstance(value, bool) else _refuse(name, "true or false", value)
    if kind is int:
        is_whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_INT
        return value if is_whole else _refuse(name, "a whole number", value)
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(value) <= LARGEST_FLOAT:
            _refuse(name, f"a finite number of at most {LARGEST_FLOAT:g}", value)
        return float(value)
    if kind is str:
        fits = isinstance(value, str) and len(value) <= LONGEST_TEXT
        return value if fits else _refuse(name, f"a string of at most {LONGEST_TEXT:,} characters", value)
    raise TypeError(f"{name}: fields of type {kind} cannot be read from JSON.")


def _convert_object(kind: type, value: Json, name: str, types: dict[str, Any] | None = None) -> Any:
    if not isinstance(value, dict):
        _refuse(name or kind.__name__, "an object of named fields", value)
    fields = {field.name: field for field in dataclasses.fields(kind) if field.init}
    prefix = f"{name}." if name else ""
    for key in value:
        if key not in fields:
            raise RecordError(f"{prefix}{shown(key)[1:-1]} is not a known field.{did_you_mean(key, fields, prefix)}")
    hints, found = {**_hints(kind), **(types or {})}, {}
    for key, field in fields.items():
        if key in value:
            found[key] = _convert(hints[key], value[key], prefix + key)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise RecordError(f"{prefix}{key} is missing.")
    return kind(**found)


def _refuse(name: str, needed: str, value: Json) -> typing.NoReturn:
    raise RecordError(f"{name} must be {needed} (got {shown(value)}).")
