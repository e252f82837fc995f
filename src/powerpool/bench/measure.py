"""Time, memory and operations of a step: forward and backward separately, all contenders taking turns."""

from __future__ import annotations

import contextlib
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

LEAST_REPETITIONS = 3
PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::baddbmm_": 1}
"""Products of matrices, and the position of the left factor among their arguments."""
DECOMPOSITIONS = ("aten::_linalg_eigh", "aten::_linalg_svd", "aten::linalg_eig", "aten::linalg_qr")


# ---- time ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lap:
    """Seconds of one step."""

    forward: float
    backward: float

    @property
    def total(self) -> float:
        """Forward and backward."""
        return self.forward + self.backward


class Stopwatch:
    """Add up the seconds spent inside ``with watch.forward`` and ``with watch.backward``.

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
        self, clock: Callable[[], float] = time.perf_counter, synchronize: Callable[[], None] = lambda: None
    ) -> None:
        self._clock = clock
        # Work on a GPU is queued: the clock is read when it is done.
        self._synchronize = synchronize
        self._seconds = {"forward": 0.0, "backward": 0.0}

    @property
    def forward(self) -> contextlib.AbstractContextManager[None]:
        """A context manager for the forward pass."""
        return self._running("forward")

    @property
    def backward(self) -> contextlib.AbstractContextManager[None]:
        """A context manager for the backward pass."""
        return self._running("backward")

    @contextlib.contextmanager
    def _running(self, phase: str) -> Iterator[None]:
        self._synchronize()
        start = self._clock()
        yield
        self._synchronize()
        self._seconds[phase] += self._clock() - start

    def lap(self) -> Lap:
        """Return the seconds since the last lap, and start again at zero."""
        lap = Lap(**self._seconds)
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return lap


@dataclass(frozen=True)
class Spread:
    """Median and quartiles, in seconds."""

    median: float
    lower: float
    upper: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Spread:
        """The spread of at least one value, with interpolated quartiles.

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
    """The times of one contender."""

    repetitions: int
    forward: Spread
    backward: Spread
    total: Spread

    @staticmethod
    def of(laps: Sequence[Lap]) -> Timing:
        """The statistics of the laps."""
        parts = ([getattr(lap, part) for lap in laps] for part in ("forward", "backward", "total"))
        return Timing(len(laps), *map(Spread.of, parts))


def measure_time(
    steps: Mapping[str, Callable[[Stopwatch], object]],
    repetitions: int,
    budget: float,
    warm_up: int = 1,
    watch: Stopwatch | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing]:
    """Run every step ``repetitions`` times, or as often as ``budget`` seconds allow, but at least three times.

    Rounds are interleaved: in a round each step runs at most once, in a new random order, so that a busy machine slows
    down all of them. A step with fewer repetitions is spread over the rounds. Garbage is collected between rounds only.
    """
    watch = watch or Stopwatch()
    counts = {}
    for name, step in steps.items():
        for _ in range(warm_up + 1):
            watch.lap()
            step(watch)
            seconds = watch.lap().total  # the last one estimates the time of a step
            if seconds > budget:  # no further warm-up: the cost of the first run no longer matters
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
            # Evenly spread over the rounds, count times in all.
            present = [name for name, count in counts.items() if (turn + 1) * count // rounds > turn * count // rounds]
            order.shuffle(present)
            for name in present:
                watch.lap()
                steps[name](watch)
                laps[name].append(watch.lap())
                progress(name)
    return {name: Timing.of(taken) for name, taken in laps.items()}


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Switch automatic collection off; freeze what exists, so that explicit collections are quick."""
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


# ---- memory and operations -------------------------------------------------------------------------------------------


def peak_bytes(step: Callable[[], object], device: str = "cpu") -> int:
    """The largest total size of tensors that are alive at one time during ``step``, its result included.

    On CUDA from the statistics of the allocator; on the CPU from every allocation and release that the profiler sees.
    Memory that a library such as LAPACK allocates by itself is not seen.
    """
    if torch.device(device).type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = step()
    del result
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    # No public call lists single allocations: prof.events() adds them up by operator.
    changes = [(event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]"]
    alive = peak = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        alive += change
        peak = max(peak, alive)
    return peak


@dataclass
class Counts:
    """Matrix products, the floating-point operations in them, and decompositions; the same on every machine."""

    products: int = 0
    product_flops: int = 0
    decompositions: int = 0


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name  # without the overload: out= variants count too
        if name in PRODUCTS:
            left: Tensor = args[PRODUCTS[name]]
            right: Tensor = args[PRODUCTS[name] + 1]
            self.counts.products += 1
            self.counts.product_flops += 2 * math.prod(left.shape) * right.shape[-1]
        elif name in DECOMPOSITIONS:
            self.counts.decompositions += 1
        return func(*args, **(kwargs or {}))


def count(step: Callable[[], object]) -> Counts:
    """Count the operations of ``step``, backward passes included; a product of a whole batch counts once."""
    counter = _Counter()
    with counter:
        step()
    return counter.counts
