"""A folder for one process at a time."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from powerpool.checks import PowerPoolError
from powerpool.records import RecordError, cannot_write, make_folder

LOCK = ".lock"


class LockedError(PowerPoolError, RuntimeError):
    """Another process is at work in the same folder."""


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Have the folder to oneself; a second process is refused.

    The system releases the lock when the process ends, however it ends: what stays is a file without a meaning.
    """
    import fcntl  # not on every system

    make_folder(folder)
    path = Path(folder) / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(handle, 200).decode(errors="replace").strip() or "unknown"
            raise LockedError(
                f"Another process ({owner}) is at work in {folder}. Wait until it has ended, or choose another folder."
            ) from error
        except OSError as error:  # some disks of a network have no locks
            raise RecordError(f"Cannot lock {path}: {error.strerror}. Choose a folder on another disk.") from error
        with contextlib.suppress(OSError):  # of a full disk: the lock holds without the name of its owner
            os.ftruncate(handle, 0)
            os.write(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        yield
    finally:
        os.close(handle)
