"""How long a step takes: forward and backward apart, all contenders taking turns in one process."""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

LEAST_REPETITIONS = 3


class Stopwatch:
    """Adds up the seconds spent in ``with watch.forward`` and ``with watch.backward``.

    Both may be entered many times: a step may be one call of a layer, or an epoch.

    Example:
        >>> seconds = iter([0.0, 2.0, 5.0, 6.0])
        >>> watch = Stopwatch(clock=lambda: next(seconds))
        >>> with watch.forward:
        ...     pass
        >>> with watch.backward:
        ...     pass
        >>> watch.lap()
        Lap(forward=2.0, backward=1.0)
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, synchronize: Callable[[], None] | None = None
    ) -> None:
        self._clock = clock
        # On a device that works on its own the clock is read when the work is done, not when it is queued.
        self._synchronize = synchronize or (lambda: None)
        self._forward = 0.0
        self._backward = 0.0

    @property
    def forward(self) -> contextlib.AbstractContextManager[None]:
        """Where the forward pass is."""
        return self._running("_forward")

    @property
    def backward(self) -> contextlib.AbstractContextManager[None]:
        """Where the backward pass is."""
        return self._running("_backward")

    @contextlib.contextmanager
    def _running(self, phase: str) -> Iterator[None]:
        self._synchronize()
        start = self._clock()
        yield
        self._synchronize()
        setattr(self, phase, getattr(self, phase) + self._clock() - start)

    def lap(self) -> Lap:
        """The seconds since the last lap, and back to zero."""
        lap = Lap(self._forward, self._backward)
        self._forward = self._backward = 0.0
        return lap


@dataclass(frozen=True)
class Lap:
    """Seconds of one step."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        """Both."""
        return self.forward + self.backward


@dataclass(frozen=True)
class Spread:
    """Median and quartiles, in seconds."""

    median: float
    lower: float
    upper: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Spread:
        """Of at least one value; the quartiles interpolate between the values.

        Example:
            >>> Spread.of([1.0, 2.0, 3.0, 4.0, 100.0])
            Spread(median=3.0, lower=2.0, upper=4.0)
        """
        if len(seconds) == 1:
            return Spread(seconds[0], seconds[0], seconds[0])
        lower, median, upper = statistics.quantiles(seconds, n=4, method="inclusive")
        return Spread(median, lower, upper)


@dataclass(frozen=True)
class Timing:
    """What was measured of one contender."""

    repetitions: int
    forward: Spread
    backward: Spread
    total: Spread

    @staticmethod
    def of(laps: Sequence[Lap]) -> Timing:
        """The statistics of the laps."""
        return Timing(
            len(laps),
            Spread.of([lap.forward for lap in laps]),
            Spread.of([lap.backward for lap in laps]),
            Spread.of([lap.total for lap in laps]),
        )


def measure(
    steps: Mapping[str, Callable[[Stopwatch], object]],
    repetitions: int,
    budget: float,
    warm_up: int = 1,
    watch: Stopwatch | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing]:
    """Every step, ``repetitions`` times or as often as fits into ``budget`` seconds, but at least three times.

    Rounds are interleaved: in a round each step runs at most once, in an order drawn anew, so that a machine that
    slows down for a while slows everyone. A step with fewer repetitions is spread over the rounds. Garbage is
    collected between rounds, never inside.
    """
    watch = watch or Stopwatch()
    counts = {}
    for name, step in steps.items():
        for _ in range(warm_up + 1):
            watch.lap()
            step(watch)
            seconds = watch.lap().total  # the last one tells how long a step takes
            if seconds > budget:  # nothing that starts once is worth waiting for any more
                break
        affordable = repetitions if seconds * repetitions <= budget else int(budget / seconds)
        counts[name] = min(repetitions, max(LEAST_REPETITIONS, affordable))
        progress(name)
    laps: dict[str, list[Lap]] = {name: [] for name in steps}
    order = random.Random(seed)
    rounds = max(counts.values(), default=0)
    with _no_garbage_collection():
        for turn in range(rounds):
            gc.collect()
            present = [name for name, count in counts.items() if _takes_part(turn, count, rounds)]
            order.shuffle(present)
            for name in present:
                watch.lap()
                steps[name](watch)
                laps[name].append(watch.lap())
                progress(name)
    return {name: Timing.of(taken) for name, taken in laps.items()}


def _takes_part(turn: int, count: int, rounds: int) -> bool:
    """Whether a step with ``count`` repetitions runs in this round: evenly spread, ``count`` times in all."""
    return (turn + 1) * count // rounds > turn * count // rounds


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Off, but for what is asked for; what is there already is set aside, so that asking is quick."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()
