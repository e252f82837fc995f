"""Peak memory of steps whose allocations are known to the byte, and products that can be counted by hand."""

import pytest
import torch

from powerpool.bench import competitors
from powerpool.bench.case import Answer, BenchCase, Contender
from powerpool.bench.counts import count
from powerpool.bench.memory import peak_bytes
from powerpool.bench.runner import Effort, run_case

MEGABYTE = 2**20


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
def test_peak_is_exact(step, expected):
    assert peak_bytes(step) == expected * MEGABYTE


def test_what_was_there_before_does_not_count():
    before = [megabytes(9)]

    def step():
        before.clear()  # a release of what the step did not allocate
        return megabytes(2)

    assert peak_bytes(step) <= 2 * MEGABYTE
    held = megabytes(9)
    assert peak_bytes(one) == 3 * MEGABYTE
    assert len(held)


def test_backward_counts_too():
    features = torch.rand(2, 256, 64, requires_grad=True)
    upstream = torch.rand(2, 256, 256)

    def forward():
        return competitors.form_moment(features)

    def both():
        return torch.autograd.grad(competitors.form_moment(features), features, upstream)

    matrix = 2 * 256 * 256 * 4
    assert 2 * matrix <= peak_bytes(forward) < 2.1 * matrix  # X X^T, and its quotient by N
    assert peak_bytes(both) >= 2 * matrix + 2 * 256 * 64 * 4


def test_products_of_forward_and_backward_are_counted():
    features = torch.rand(2, 8, 5, requires_grad=True)

    def step():
        torch.autograd.grad(competitors.form_moment(features), features, torch.rand(2, 8, 8))

    counts = count(step)
    assert counts.products == 3  # X X^T, and its two gradients
    assert counts.product_flops == 3 * 2 * (2 * 8 * 8 * 5)
    assert counts.decompositions == 0


@pytest.mark.parametrize(
    "function, argument, products, decompositions",
    [
        (competitors.newton_schulz, 5, 12 + 38, 0),  # as the docstrings say: 1 + 3*3 + 2, and 6 + 3*10 + 2
        (competitors.eigh_loewner, 50, 1 + 4, 1),
        (competitors.svd_autograd, 50, None, 1),
    ],
)
def test_competitors_do_the_work_that_is_said(function, argument, products, decompositions):
    features = torch.rand(2, 6, 9, requires_grad=True)

    def step():
        torch.autograd.grad(function(features, argument), features, torch.rand(2, 6, 6))

    counts = count(step)
    if products is not None:
        assert counts.products == products + 3  # those of forming M
    assert counts.decompositions == decompositions


def test_what_is_made_once_for_all_steps_does_not_count():
    kept = {}

    def step(watch):
        if "network" not in kept:
            kept["network"] = torch.ones(2**20)
        with watch.forward:
            value = torch.ones(2**10)
        return Answer(value)

    case = BenchCase("training", "lazy", {"channels": 1}, [Contender("powerpool", "powerpool", "powerpool", step)])
    measured = run_case(case, Effort(repetitions=3, budget=1.0, warm_up=0))
    assert measured.results[0].peak_bytes == 4 * 2**10
