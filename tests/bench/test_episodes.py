"""The suite of training episodes: SoSN gives the same loss both ways, and the case that has a limit is there."""

from __future__ import annotations

import pytest
import torch

from powerpool.bench import episodes
from powerpool.bench.case import BenchCase
from powerpool.bench.runner import Effort, run_case
from powerpool.bench.timing import Stopwatch
from powerpool.tasks.fewshot.config import ModelConfig
from powerpool.tasks.fewshot.model import make_network


@pytest.fixture(scope="module")
def case() -> BenchCase:
    (found,) = episodes.cases(quick=True)
    return found


def test_the_case_with_a_limit_is_there() -> None:
    names = [case.name for case in episodes.cases(quick=False)]
    assert set(episodes.LIMITS) <= set(names)


def test_both_ways_of_sosn_are_one_network(case: BenchCase) -> None:
    _, stacked, ours = (contender.step(Stopwatch()).value for contender in case.contenders)
    torch.testing.assert_close(ours, stacked)
    support, query = torch.rand(3, 2, 1, 28, 28), torch.rand(4, 1, 28, 28)
    found = []
    for make in (make_network, episodes.stacked_sosn):
        torch.manual_seed(0)
        network = make(ModelConfig("SoSN(x)+SigmE", hidden=8), 1, 28).double()
        network(support.double(), query.double()).sum().backward()
        found.append([parameter.grad for parameter in network.encoder.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_runs_in_the_harness(case: BenchCase) -> None:
    record = run_case(case, Effort(repetitions=1, budget=0.1, warm_up=0))
    assert not record.error
    assert [result.name for result in record.results] == [episodes.RELATION_NET, episodes.STACKED, episodes.OURS]
