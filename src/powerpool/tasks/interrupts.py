"""Ctrl-C during long work: what runs comes to its end and is saved."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, Protocol


class Settable(Protocol):
    """An event of threads or of processes."""

    def set(self) -> None:
        """Make it so."""
        ...


@contextlib.contextmanager
def stopping_after(what: str, stop: Settable) -> Iterator[None]:
    """Inside, the first Ctrl-C sets ``stop`` and says that ``what`` will be ended first; a second one is as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread hears of it
        return

    def ask(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, before)
        sys.stderr.write(f"Stopping after this {what}. Press Ctrl-C again to stop at once.\n")
        stop.set()

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
