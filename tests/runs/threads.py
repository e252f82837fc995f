"""An executor of threads, for tests that are not about processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor


class Threads(ThreadPoolExecutor):
    """A thread in the place of a process: the units are the same, and start at once."""

    def __init__(self) -> None:
        super().__init__(1)

    def shutdown(self, wait: bool = True, kill_workers: bool = False) -> None:
        super().shutdown(wait)
