"""Checkpoints: tensors and plain values in one file, written atomically, and read without running any code."""

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
"""Limit in bytes; a checkpoint is read into memory."""
ZIP = b"PK\3\4"


def save_state(path: str | Path, state: dict[str, Any]) -> None:
    """Write a dictionary of tensors and plain values atomically."""
    with atomic(path) as temporary, temporary.open("wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:  # torch hides the error of the system, for instance of a full disk
            raise _system_error(error) or error from None


def load_state(path: str | Path) -> dict[str, Any]:
    """Read a file of :func:`save_state` to the CPU; anything but tensors and plain values is refused."""
    _require_zip(path)
    content = io.BytesIO(read_bytes(path, LARGEST))
    try:
        _refuse_bomb(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign pickles, which are refused anyway
            state = torch.load(content, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RecordError(
            f"{path} was not loaded: it is damaged, or contains Python objects other than tensors and plain values."
        ) from error
    except Exception as error:  # a damaged pickle fails anywhere: IndexError, OSError, ...
        first = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise RecordError(f"{path} is not a checkpoint, or is damaged: {first}.") from error
    if not isinstance(state, dict):
        raise RecordError(f"{path} is not a powerpool checkpoint: it contains a {type(state).__name__}.")
    return state


def _require_zip(path: str | Path) -> None:
    """Look at both ends before the whole file is read: torch goes by the first bytes, and zipfile by the last."""
    if not Path(path).is_file():
        return  # read_bytes names the reason
    with Path(path).open("rb") as file:
        first = file.read(len(ZIP))
    if first != ZIP or not zipfile.is_zipfile(path):
        raise RecordError(f"{path} is not a powerpool checkpoint: it is not a zip of tensors and plain values.")


def _refuse_bomb(content: io.BytesIO) -> None:
    """Refuse a file that would fill memory: compressed records, or a pickle that allocates with bytearray."""
    with zipfile.ZipFile(content) as archive:
        size = sum(record.file_size for record in archive.infolist())
        if size > content.getbuffer().nbytes:
            raise ValueError(f"its records have {size:,} bytes, more than the file")
        for record in archive.infolist():
            if record.filename.lower().endswith("data.pkl") and _calls_bytearray(archive.read(record)):
                raise ValueError("its pickle calls bytearray, which tensors and plain values do not need")
    content.seek(0)


def _calls_bytearray(data: bytes) -> bool:
    # The word may also be a plain value, so the operations are inspected.
    return b"bytearray" in data and any(
        operation.name in ("GLOBAL", "INST", "STACK_GLOBAL") and "bytearray" in str(argument or "bytearray")
        for operation, argument, _ in pickletools.genops(data)
    )


def _system_error(error: BaseException) -> OSError | None:
    cause = error.__context__
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    return cause
