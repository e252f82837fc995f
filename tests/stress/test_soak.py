"""Memory stays flat over 2000 steps of training, and a leak of one small tensor a step would show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scipy.stats import theilslopes

from tests.stress.soak import LEAK

ROOT = Path(__file__).parents[2]
STEPS, LEAKY_STEPS, WARM_UP = 2000, 800, 0.25
KB_PER_STEP = 0.25
"""What memory may grow by: half a megabyte in 2000 steps."""


def growth(series: list[list[int]]) -> tuple[float, float]:
    """KB for each step after the warm-up: the interval of 95 % of the median of the slopes of all pairs.

    Pages come in steps, and a few large ones must not count for more than they are: a mean would be led by them.
    """
    steps, sizes = zip(*series[int(WARM_UP * len(series)) :], strict=True)
    _, _, low, high = theilslopes(sizes, steps, 0.95)
    return low, high


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    command = [sys.executable, "-m", "tests.stress.soak", tmp_path_factory.mktemp("soak"), STEPS, LEAKY_STEPS]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run([*map(str, command)], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.stress
def test_memory_is_flat_over_2000_steps_of_training(measured):
    assert measured["usual"][-1][0] == STEPS
    assert growth(measured["usual"])[1] < KB_PER_STEP


@pytest.mark.stress
def test_a_tensor_that_is_kept_in_every_step_shows(measured):
    low, high = growth(measured["leaky"])
    assert low > KB_PER_STEP
    assert 0.5 * 4 * LEAK / 1024 < high < 2 * (4 * LEAK / 1024 + 0.5)  # what is kept, and what keeps it
