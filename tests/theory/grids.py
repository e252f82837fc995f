"""Points at which the claims are tested: the whole range of each parameter, ends included."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

F64 = torch.float64
E = math.e

ETAS = torch.tensor([1.0, 1.0 + 1e-9, 1.1, 1.5, 2.0, 3.0, 5.0, 10.0, 40.0, 200.0, 3e3, 1e5, 1e6], dtype=F64)
TIMES = torch.logspace(-8, 3, 23, dtype=F64)
"""From 1e-8 to 1e3, with 1."""
SHORT_TIMES = torch.tensor([1e-8, 1e-6, 1e-4, 1e-3, 0.01, 0.1, 0.15, 0.3, 0.45, 0.6, 0.8, 0.9, 0.999999], dtype=F64)

few_examples = settings(max_examples=20, deadline=None, derandomize=True)


def log_floats(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers of all magnitudes between the two."""
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(max(math.exp(x), low), high))


def unit_points(*around: float, count: int = 400) -> Tensor:
    """Points of [0, 1]: both ends, all magnitudes, and dense around the given ones."""
    points = [np.linspace(0, 1, count), np.logspace(-12, 0, count), 1 - np.logspace(-12, -0.1, count // 4)]
    points += [np.clip(centre * np.linspace(0.8, 1.2, 81), 0, 1) for centre in around]
    return torch.from_numpy(np.unique(np.concatenate(points)))


def covariance(size: int, rank: int | None = None, seed: int = 0) -> Tensor:
    """A covariance of trace 1, by default of full rank."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, 3 * size if rank is None else rank, generator=generator, dtype=F64)
    matrix = features @ features.mT
    return matrix / matrix.trace()


def symmetric(size: int, seed: int = 0) -> Tensor:
    noise = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return noise + noise.mT
