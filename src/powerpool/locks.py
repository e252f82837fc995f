"""A folder for one process at a time."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from powerpool.checks import PowerPoolError
from powerpool.records import RecordError, cannot_write, make_folder, remove_parts

LOCK = ".lock"
_HELD: set[int] = set()
"""Open files of the locks of this process."""


def _let_go() -> None:
    """In a copy of the process: it would hold the locks for as long as it lives, whatever became of their owner.

    To close its file does not release a lock that another process has open, too.
    """
    while _HELD:
        with contextlib.suppress(OSError):
            os.close(_HELD.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


class LockedError(PowerPoolError, RuntimeError):
    """Another process is at work in the same folder."""


@contextlib.contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """Have the folder to oneself; a second process is refused.

    The system releases the lock when the process ends, however it ends: what stays is a file without a meaning.
    Processes that it forks meanwhile, such as those that read pictures, do not hold the lock. What killed writes have
    left in the folder is removed, see :func:`powerpool.records.remove_parts`.
    """
    import fcntl  # not on every system

    make_folder(folder)
    path = Path(folder) / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise cannot_write(path, error) from error
    owner = os.getpid()
    _HELD.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            other = os.read(handle, 200).decode(errors="replace").strip() or "unknown"
            raise LockedError(
                f"Another process ({other}) is at work in {folder}. Wait until it has ended, or choose another folder."
            ) from error
        except OSError as error:  # some disks of a network have no locks
            raise RecordError(f"Cannot lock {path}: {error.strerror}. Choose a folder on another disk.") from error
        with contextlib.suppress(OSError):  # of a full disk: the lock holds without the name of its owner
            os.ftruncate(handle, 0)
            os.write(handle, f"process {owner} on {socket.gethostname()}\n".encode())
        remove_parts(folder)
        yield
    finally:
        if os.getpid() == owner:  # a copy has let go already
            _HELD.remove(handle)
            os.close(handle)
