"""How far units of work are, and how long the rest will take."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from powerpool.console import columns, notes, write_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID


@dataclass
class Display:
    """A bar on a terminal; elsewhere a line at each quarter, so that a log stays short."""

    console: Console | None
    description: str
    total: int
    jobs: int
    done: int = 0
    start: float = field(default_factory=time.monotonic)
    durations: list[float] = field(default_factory=list)
    last: str = ""
    _bar: Progress | None = None
    _task: TaskID | None = None
    _lines: int = 0

    @property
    def shown_on(self) -> Console:
        """The console, which is stderr unless another one was given."""
        return notes() if self.console is None else self.console

    def say(self, text: str) -> None:
        """One line that stays."""
        write_line(f"{self.description}: {text}", self.shown_on)

    def resumed(self, count: int) -> None:
        """Units that need not run; they do not count for the estimate."""
        self.done = count
        if count:
            self.say(f"resumed {count} of {self.total}")

    def __enter__(self) -> None:
        from rich.progress import Progress, TextColumn

        if self.shown_on.is_interactive and not self.shown_on.quiet:
            # Titles may contain brackets, which are no markup.
            tail = TextColumn("{task.fields[tail]}", markup=False)
            self._bar = Progress(
                *columns(),
                tail,
                console=self.shown_on,
                transient=True,
                refresh_per_second=2,
                redirect_stdout=False,
            )
            self._task = self._bar.add_task(self.description, total=self.total, completed=self.done, tail="")
            self._bar.start()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def finished(self, title: str, seconds: float) -> None:
        """A unit is done, after so many seconds."""
        self.done += 1
        self.durations.append(seconds)
        self.last = title

    def update(self, running: Sequence[float], waiting: int) -> None:
        """Show how far it is: for how many seconds each unit has been running, and how many wait."""
        left = remaining_seconds(self.durations, running, waiting, self.jobs)
        parts = [] if left is None else [f"about {_clock(left)} left"]
        parts += [f"last: {self.last}"] if self.last else []
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self.done, tail=", ".join(parts))
            return
        quarters = 4 * self.done // self.total
        if self.durations and quarters > self._lines:
            self.say(
                ", ".join(
                    [f"{self.done} of {self.total} done", f"{_clock(time.monotonic() - self.start)} elapsed", *parts]
                )
            )
        self._lines = max(quarters, self._lines)


def remaining_seconds(durations: Sequence[float], running: Sequence[float], waiting: int, jobs: int) -> float | None:
    """An estimate from the units that ended: all others take as long as those did on average.

    Args:
        durations: seconds that each unit took that ended in this run.
        running: for how many seconds each unit has been running.
        waiting: how many have not started.
        jobs: how many run at a time.
    """
    if not durations:
        return None
    mean = sum(durations) / len(durations)
    work = mean * waiting + sum(max(mean - seconds, 0.0) for seconds in running)
    return work / max(1, min(jobs, waiting + len(running)))


def _clock(seconds: float) -> str:
    return str(dt.timedelta(seconds=round(seconds)))
