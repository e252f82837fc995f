"""The battery of every exact solver: a value and a gradient, each against a reference that shares no code with it.

A new solver runs :func:`check_value`, :func:`check_gradient` and :func:`check_gradient_along` over the curves and
inputs of ``tests/cases.py``. Allowed errors are what the input's own round-off does to the exact answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import torch
from mpmath import mpf
from torch import Tensor

from tests import oracles
from tests.oracles import Reference

SAFETY = 8.0
"""How many times the unavoidable error is allowed."""


def round_off(matrix: Tensor, dtype: torch.dtype) -> float:
    """Relative size of the error that an eigenvalue of ``matrix`` carries in ``dtype``.

    Also what counts as null space where the slope at 0 is infinite.
    """
    return max(8.0, math.sqrt(matrix.shape[-1])) * torch.finfo(dtype).eps


def modulus(reference: Reference, eigenvalues: list[float], change: float) -> float:
    """How much g moves at any of these eigenvalues when they move by ``change``."""
    low = mpf("-inf") if reference.signed else mpf(0)
    top = mpf(1) if reference.trace_normalize else mpf("inf")

    def moved(p: mpf, by: float) -> mpf:
        return abs(reference.value(max(min(p + by, top), low)) - reference.value(max(min(p, top), low)))

    return max(float(moved(mpf(p), by)) for p in eigenvalues for by in (change, -change))


def check_value(apply: Callable[[Tensor], Tensor], moment: Tensor, given: Tensor, reference: Reference) -> None:
    """``apply(given)`` is the reference's curve of the spectrum of the float64 ``moment``."""
    null = round_off(moment, given.dtype)
    expected = oracles.spectral(moment.numpy(), reference, null=null)
    scale = float(moment.trace()) + 1e-6 if reference.trace_normalize else 1.0
    eigenvalues = (torch.linalg.eigvalsh(moment) / scale).tolist()
    size = float(np.abs(expected).max())
    allowed = 4 * (modulus(reference, eigenvalues, null * max(map(abs, eigenvalues))) + null * size)
    torch.testing.assert_close(apply(given).double(), torch.from_numpy(expected), rtol=0, atol=allowed)


def check_gradient(
    apply: Callable[[Tensor], Tensor],
    moment: Tensor,
    given: Tensor,
    reference: Reference,
    *,
    seed: int = 0,
    by_products: bool = False,
) -> None:
    """The gradient of ``apply`` at the matrix ``given`` is the reference's at the float64 ``moment``.

    The allowed error is how far the reference's own gradient moves when the matrix moves by its round-off. A solver
    ``by_products`` alone never sees single eigenvalues: its error is relative to the steepest slope, the one at 0.
    """
    grad = _random_symmetric(moment.shape[-1], seed)
    null = round_off(moment, given.dtype)
    expected = oracles.spectral_gradient(moment.numpy(), grad.numpy(), reference, null=null)
    allowed = SAFETY * gradient_sensitivity(moment, grad, reference, given.dtype)
    if by_products:
        scale = float(moment.trace()) + 1e-6 if reference.trace_normalize else 1.0
        steepest = oracles.divided_difference(reference, 0.0, 0.0)
        allowed += SAFETY * null * steepest * float(grad.abs().max()) / scale
    leaf = given.clone().requires_grad_()
    (found,) = torch.autograd.grad(apply(leaf), leaf, grad.to(given.dtype))
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found.double(), torch.from_numpy(expected), rtol=0, atol=allowed)


def gradient_sensitivity(moment: Tensor, grad: Tensor, reference: Reference, dtype: torch.dtype) -> float:
    """How far the reference's gradient moves under round-off of the matrix and of its normalised eigenvalues.

    At least round-off of the gradient before the share of the trace is taken off: on a 1 x 1 matrix the two cancel.
    """
    null = round_off(moment, dtype)

    def gradient(matrix: Tensor, **options: Any) -> np.ndarray:
        return oracles.spectral_gradient(matrix.numpy(), grad.numpy(), reference, null=null, **options)

    base = gradient(moment)
    values, vectors = torch.linalg.eigh(moment)
    # Where the slope at 0 is infinite the null space is dropped by definition: only the range can move.
    keep = values > null * values.abs().max() if reference.infinite_slope else torch.ones_like(values, dtype=torch.bool)
    noises = [_random_symmetric(int(keep.sum()), 100 + seed) for seed in range(3)]
    shifts = [vectors[:, keep] @ noise @ vectors[:, keep].mT * null * float(values.abs().max()) for noise in noises]
    moved = [gradient(moment + shift) for shift in shifts]
    moved += [gradient(moment, shift=-null), gradient(moment, shift=null), gradient(moment, snap=null)]
    floor = null * float(np.abs(gradient(moment, through_trace=False)).max()) + 1e-30
    return max(floor, *(float(np.abs(other - base).max()) for other in moved))


def check_gradient_along(
    gradient: Callable[[Tensor], Tensor],
    moment: Tensor,
    path: Callable[[mpmath.matrix, mpf], mpmath.matrix],
    tangent: Tensor,
    reference: Reference,
    rtol: float,
) -> None:
    """<dL/dM, tangent> is the one-sided difference of L along a path of positive matrices, taken in 50 digits.

    ``tangent`` is the path's derivative at 0. The error is relative to |dL/dM| |tangent|; the step of the difference
    leaves 1e-15 of |dL/dPsi|.
    """
    grad = _random_symmetric(moment.shape[-1], seed=3)
    found = gradient(grad)
    assert torch.isfinite(found).all()
    expected = oracles.mp_directional(moment.numpy(), path, grad.numpy(), reference, eps=1e-6)
    allowed = rtol * max(float(found.double().norm() * tangent.norm()), abs(expected)) + 1e-15 * float(grad.norm())
    assert abs(float((found.double() * tangent).sum()) - expected) <= allowed


def _random_symmetric(size: int, seed: int) -> Tensor:
    noise = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (noise + noise.mT) / 2
