"""Tensors and plain values in a file that is whole or not there, and that can hold no code."""

from __future__ import annotations

import io
import pickle
import pickletools
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from powerpool.errors import RecordError
from powerpool.files import atomic, read_bytes

LARGEST = 16 << 30
"""Bytes of a checkpoint, which is read into memory: networks that are trained here take a few hundred million."""


def save_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write a dictionary of tensors and plain values atomically."""
    with atomic(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # which torch puts in the place of what the file said: of a full disk
            raise _said_by_system(error) or error from None


def load_state(path: str | Path) -> dict[str, Any]:
    """What :func:`save_state` wrote, on the CPU. A file with anything but tensors and plain values is refused."""
    content = io.BytesIO(read_bytes(path, LARGEST))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that others wrote, which are refused anyway
            _refuse_bomb(content)
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


def _refuse_bomb(content: io.BytesIO) -> None:
    """Refuse what was made to fill memory.

    A checkpoint is a zip of records as they are, never more than the file. Of what torch lets a pickle call, only
    bytearray makes memory out of a number; tensors and plain values do not need it.
    """
    # By its first bytes, as torch tells: to zipfile a pickle with a zip behind it would be a zip.
    first = content.read(4)
    if first[:1] == pickle.PROTO:
        raise pickle.UnpicklingError("a bare pickle, which is not read at all")
    if first != b"PK\3\4":
        raise ValueError("it is not of the kind that powerpool writes, a zip of tensors and plain values")
    with zipfile.ZipFile(content) as archive:
        size = sum(record.file_size for record in archive.infolist())
        if size > content.getbuffer().nbytes:
            raise ValueError(f"its records have {size:,} bytes, more than the file")
        for record in archive.infolist():
            if record.filename.lower().endswith("data.pkl") and _calls_bytearray(archive.read(record)):
                raise ValueError("it asks for empty memory, which tensors and plain values do not need")
    content.seek(0)


def _calls_bytearray(data: bytes) -> bool:
    # Such a text may also be a plain value: of the few that have it, the commands are looked at.
    return b"bytearray" in data and any(
        operation.name in ("GLOBAL", "INST", "STACK_GLOBAL") and "bytearray" in str(argument or "bytearray")
        for operation, argument, _ in pickletools.genops(data)
    )


def _said_by_system(error: BaseException) -> OSError | None:
    cause = error.__context__
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
