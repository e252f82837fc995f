"""The suite of features from picture files: the same maps by every way, and a limit for each case."""

from __future__ import annotations

import pytest
import torch

from powerpool.bench import extraction
from powerpool.bench.case import BenchCase
from powerpool.bench.runner import Effort, run_case
from powerpool.bench.timing import Stopwatch


@pytest.fixture(scope="module")
def case() -> BenchCase:
    (found,) = extraction.cases(quick=True)
    return found


def test_every_case_has_a_limit() -> None:
    found = extraction.cases(quick=False)
    assert [case.name for case in found] == list(extraction.LIMITS)
    for case in found:
        assert [contender.origin for contender in case.contenders] == ["floor", "floor", "powerpool"]


def test_maps_from_files_are_those_of_the_backbone(case: BenchCase) -> None:
    bare, folded, files = (contender.step(Stopwatch()).value for contender in case.contenders)
    assert files.shape == (2 * 12, 320, 2, 2)
    torch.testing.assert_close(folded, bare, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(files, folded, rtol=1e-5, atol=1e-5)


def test_runs_in_the_harness(case: BenchCase) -> None:
    record = run_case(case, Effort(repetitions=1, budget=0.1, warm_up=0))
    assert not record.error
    assert [result.name for result in record.results] == [extraction.BARE, extraction.FOLDED, extraction.OURS]
