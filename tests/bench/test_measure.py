"""Time with a clock that the test moves, memory of known allocations, operations counted by hand."""

import gc

import pytest
import torch

from powerpool.bench import competitors
from powerpool.bench.measure import Lap, Spread, Stopwatch, Timing, count, measure_time, peak_bytes

MEGABYTE = 2**20


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
        clock.spend(7.0)  # outside of both passes: not counted
        with watch.forward:
            clock.spend(forward)
        with watch.backward:
            clock.spend(backward)

    return step


def test_stopwatch_synchronizes_before_it_reads_the_clock():
    clock = Clock()
    watch = Stopwatch(clock, synchronize=lambda: clock.spend(0.5))
    with watch.forward:  # 0.5 s of work that was queued before, 0.5 s queued here
        pass
    assert watch.lap() == Lap(0.5, 0.0)


def test_median_and_quartiles_ignore_one_outlier():
    assert Spread.of([1.0, 2.0, 3.0, 4.0, 1000.0]) == Spread(3.0, 2.0, 4.0)
    assert Spread.of([5.0]) == Spread(5.0, 5.0, 5.0)
    timing = Timing.of([Lap(1.0, 10.0), Lap(2.0, 20.0), Lap(3.0, 0.0)])
    assert (timing.forward.median, timing.backward.median, timing.total.median) == (2.0, 10.0, 11.0)


def test_every_round_runs_all_steps_once_in_changing_order():
    clock, calls = Clock(), []
    steps = {name: step_of(clock, name, 0.1, 0.2, calls) for name in "abc"}
    timings = measure_time(steps, repetitions=8, budget=1e9, warm_up=2, watch=Stopwatch(clock))
    assert calls[:9] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3  # two to warm up, one to estimate the time
    rounds = [tuple(calls[9 + 3 * k : 12 + 3 * k]) for k in range(8)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len(set(rounds)) > 1
    assert len(calls) == 9 + 24
    for timing in timings.values():
        assert timing.repetitions == 8
        assert timing.forward.median == pytest.approx(0.1)
        assert timing.total.median == pytest.approx(0.3)


def test_a_slow_step_gets_fewer_repetitions_spread_over_the_rounds_but_at_least_three():
    clock, calls = Clock(), []
    costs = {"fast": 0.05, "slow": 1.0, "slowest": 50.0}
    steps = {name: step_of(clock, name, cost, cost, calls) for name, cost in costs.items()}
    timings = measure_time(steps, repetitions=20, budget=10.0, warm_up=0, watch=Stopwatch(clock))
    assert {name: timing.repetitions for name, timing in timings.items()} == {"fast": 20, "slow": 5, "slowest": 3}
    where = [index for index, name in enumerate(calls[3:]) if name == "slowest"]
    assert where[0] < 15 < where[-1]  # not all at one end


def test_garbage_is_not_collected_while_the_clock_runs():
    seen = []
    measure_time({"a": lambda watch: seen.append(gc.isenabled())}, repetitions=3, budget=1.0, warm_up=0)
    assert seen == [True, False, False, False]
    assert gc.isenabled()


def megabytes(number: int) -> torch.Tensor:
    return torch.empty(number * MEGABYTE, dtype=torch.uint8)


def one():
    return megabytes(3)


def released_before_the_next():
    for size in (5, 2, 4):
        tensor = megabytes(size)
        del tensor


def together():
    first, second = megabytes(5), megabytes(2)
    del first
    third = megabytes(4)
    del second, third


def after_the_peak():
    tensor = megabytes(6)
    del tensor
    return megabytes(1)


@pytest.mark.parametrize(
    "step, expected", [(one, 3), (released_before_the_next, 5), (together, 7), (after_the_peak, 6), (lambda: None, 0)]
)
def test_peak_memory_is_exact(step, expected):
    held = megabytes(9)  # allocated before: does not count
    assert peak_bytes(step) == expected * MEGABYTE
    assert len(held)


def test_backward_memory_counts():
    features = torch.rand(2, 256, 64, requires_grad=True)
    upstream = torch.rand(2, 256, 256)

    def both():
        return torch.autograd.grad(competitors.form_moment(features), features, upstream)

    matrix = 2 * 256 * 256 * 4
    assert 2 * matrix <= peak_bytes(lambda: competitors.form_moment(features)) < 2.1 * matrix  # X X^T and X X^T / N
    assert peak_bytes(both) >= 2 * matrix + 2 * 256 * 64 * 4


@pytest.mark.parametrize(
    "function, argument, products, decompositions",
    [
        (lambda x, _: competitors.form_moment(x), 0, 0, 0),
        (competitors.newton_schulz, 5, 12 + 38, 0),  # as its docstring says: 1 + 3*3 + 2, and 6 + 3*10 + 2
        (competitors.eigh_loewner, 50, 1 + 4, 1),
        (competitors.svd_autograd, 50, None, 1),
    ],
)
def test_operations_of_forward_and_backward_are_counted(function, argument, products, decompositions):
    features = torch.rand(2, 6, 9, requires_grad=True)
    counts = count(lambda: torch.autograd.grad(function(features, argument), features, torch.rand(2, 6, 6)))
    if products is not None:
        assert counts.products == products + 3  # X X^T and its two gradients
    if products == 0:
        assert counts.product_flops == 3 * 2 * (2 * 6 * 6 * 9)
    assert counts.decompositions == decompositions
