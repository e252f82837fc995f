"""All tolerances of the tests."""

from __future__ import annotations

import torch

TOLERANCES = {
    torch.float16: {"rtol": 1e-3, "atol": 1e-3},
    torch.bfloat16: {"rtol": 8e-3, "atol": 8e-3},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
}

ULPS = 8
"""Allowed error of the formulas of a curve in units in the last place, at any point of its domain."""


def tolerance(dtype: torch.dtype, slack: float = 1.0) -> dict[str, float]:
    """``rtol`` and ``atol`` for :func:`torch.testing.assert_close`.

    ``slack`` multiplies both for long computations, such as two different solvers.
    """
    return {name: slack * bound for name, bound in TOLERANCES[dtype].items()}
