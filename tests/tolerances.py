"""How close is close: every tolerance of the tests, in one place."""

from __future__ import annotations

import torch

TOLERANCES = {
    torch.float16: {"rtol": 1e-3, "atol": 1e-3},
    torch.bfloat16: {"rtol": 8e-3, "atol": 8e-3},
    torch.float32: {"rtol": 1e-5, "atol": 1e-6},
    torch.float64: {"rtol": 1e-12, "atol": 1e-13},
}

ULPS = 8
"""Units in the last place that a curve's own formulas may be off, at any point of its domain."""


def tolerance(dtype: torch.dtype, slack: float = 1.0) -> dict[str, float]:
    """``rtol`` and ``atol`` for :func:`torch.testing.assert_close`.

    ``slack`` is how much a long computation, such as two different solvers, may add up; say where it is used why.
    """
    return {name: slack * bound for name, bound in TOLERANCES[dtype].items()}
