"""Tensors and plain values in a file that is whole or not there, and that can hold no code."""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from powerpool.records import RecordError, atomic


def save_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write a dictionary of tensors and plain values atomically."""
    with atomic(path) as temporary:
        torch.save(state, temporary)


def load_state(path: str | Path) -> dict[str, Any]:
    """What :func:`save_state` wrote, on the CPU. A file with anything but tensors and plain values is refused."""
    try:
        content = io.BytesIO(Path(path).read_bytes())
    except OSError as error:
        raise RecordError(f"Cannot read {path}: {error.strerror or error}.") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that others wrote, which are refused anyway
            state = torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RecordError(
            f"{path} was not loaded: it is damaged, or holds more than tensors and plain values, which could run code."
        ) from error
    except Exception as error:  # a damaged pickle makes the reader stumble anywhere: IndexError, OSError, ...
        raise RecordError(f"{path} is no checkpoint, or a damaged one: {_first_line(error)}.") from error
    if not isinstance(state, dict):
        raise RecordError(f"{path} is no checkpoint of powerpool: it holds {type(state).__name__}, not a dictionary.")
    return state


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
