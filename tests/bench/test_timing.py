"""The stopwatch and the order of the laps, with a clock that the test moves."""

import gc

import pytest

from powerpool.bench.timing import Lap, Spread, Stopwatch, Timing, measure


class Clock:
    """Time passes only when ``spend`` is called."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def step_of(clock: Clock, name: str, forward: float, backward: float, calls: list[str]):
    def step(watch: Stopwatch) -> None:
        calls.append(name)
        clock.spend(7.0)  # outside both: not counted
        with watch.forward:
            clock.spend(forward)
        with watch.backward:
            clock.spend(backward)

    return step


def test_stopwatch_adds_up_what_is_inside_and_nothing_else():
    clock = Clock()
    watch = Stopwatch(clock)
    for _ in range(3):
        with watch.forward:
            clock.spend(1.0)
        clock.spend(10.0)
        with watch.backward:
            clock.spend(2.0)
    assert watch.lap() == Lap(3.0, 6.0)
    assert watch.lap() == Lap(0.0, 0.0)


def test_stopwatch_waits_for_the_device_before_it_reads_the_clock():
    clock = Clock()
    watch = Stopwatch(clock, synchronize=lambda: clock.spend(0.5))
    with watch.forward:  # 0.5 of work that was queued before, 0.5 that this block queued
        pass
    assert watch.lap() == Lap(0.5, 0.0)


def test_median_and_quartiles_are_not_moved_by_one_outlier():
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 1000.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0)
    laps = [Lap(1.0, 10.0), Lap(2.0, 20.0), Lap(3.0, 0.0)]
    timing = Timing.of(laps)
    assert (timing.forward.median, timing.backward.median, timing.total.median) == (2.0, 10.0, 11.0)


def test_every_round_runs_everyone_once_in_an_order_that_changes():
    clock, calls = Clock(), []
    steps = {name: step_of(clock, name, 0.1, 0.2, calls) for name in "abc"}
    timings = measure(steps, repetitions=8, budget=1e9, warm_up=2, watch=Stopwatch(clock))
    assert calls[:9] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3  # two to warm up, one to see how long it takes
    rounds = [tuple(calls[9 + 3 * k : 12 + 3 * k]) for k in range(8)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len(set(rounds)) > 1
    assert len(calls) == 9 + 24
    for timing in timings.values():
        assert timing.repetitions == 8
        assert timing.forward.median == pytest.approx(0.1)
        assert timing.backward.median == pytest.approx(0.2)
        assert timing.total.median == pytest.approx(0.3)


def test_warm_up_is_not_measured():
    clock = Clock()
    costs = iter([50.0, 1.0, 1.0, 1.0, 1.0])

    def step(watch: Stopwatch) -> None:
        with watch.forward:
            clock.spend(next(costs))

    timings = measure({"a": step}, repetitions=3, budget=1e9, warm_up=1, watch=Stopwatch(clock))
    assert timings["a"].forward == Spread(1.0, 1.0, 1.0)


def test_a_slow_step_gets_fewer_repetitions_spread_over_the_rounds_but_at_least_three():
    clock, calls = Clock(), []
    steps = {
        "fast": step_of(clock, "fast", 0.05, 0.05, calls),
        "slow": step_of(clock, "slow", 1.0, 1.0, calls),
        "slowest": step_of(clock, "slowest", 50.0, 50.0, calls),
    }
    timings = measure(steps, repetitions=20, budget=10.0, warm_up=0, watch=Stopwatch(clock))
    assert {name: timing.repetitions for name, timing in timings.items()} == {"fast": 20, "slow": 5, "slowest": 3}
    where = [index for index, name in enumerate(calls[3:]) if name == "slowest"]
    assert where[0] < 15 < where[-1]  # not all at one end


def test_garbage_is_not_collected_while_the_clock_runs():
    seen = []

    def step(watch: Stopwatch) -> None:
        seen.append(gc.isenabled())

    assert gc.isenabled()
    measure({"a": step}, repetitions=3, budget=1.0, warm_up=0)
    assert seen == [True, False, False, False]
    assert gc.isenabled()
