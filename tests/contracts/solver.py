"""The battery of exact solvers: values and gradients, each against a reference that shares no code with the library.

A new solver runs :func:`check_values`, :func:`check_gradients`, :func:`check_gradient_along` and :func:`check_tangents`
over the curves and inputs of ``tests/cases.py``. The reference is computed once for all solvers. Allowed errors are
the effect of the round-off of the input on the exact result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import mpmath
import numpy as np
import torch
from mpmath import mpf
from torch import Tensor

from tests import oracles
from tests.oracles import Reference

SAFETY = 8.0
"""Allowed multiple of the unavoidable error."""

Apply = Callable[[Tensor], Tensor]


def round_off(matrix: Tensor, dtype: torch.dtype) -> float:
    """Relative error of an eigenvalue of ``matrix`` in ``dtype``; also the null space if the slope at 0 is infinite."""
    return max(8.0, 2 * math.sqrt(matrix.shape[-1])) * torch.finfo(dtype).eps


def scale_of(moment: Tensor, reference: Reference) -> float:
    return float(moment.trace()) + 1e-6 if reference.trace_normalize else 1.0


def modulus(reference: Reference, eigenvalues: list[float], change: float) -> float:
    """How much g changes at any of these eigenvalues when they change by ``change``."""
    low = mpf("-inf") if reference.signed else mpf(0)
    top = mpf(1) if reference.trace_normalize else mpf("inf")

    def moved(p: mpf, by: float) -> mpf:
        return abs(reference.value(max(min(p + by, top), low)) - reference.value(max(min(p, top), low)))

    return max(float(moved(mpf(p), by)) for p in eigenvalues for by in (change, -change))


def check_values(solvers: Iterable[Apply], moment: Tensor, given: Tensor, reference: Reference) -> None:
    """Every solver applies the curve of the reference to the spectrum of the float64 ``moment``."""
    null = round_off(moment, given.dtype)
    expected = oracles.spectral(moment.numpy(), reference, null=null)
    eigenvalues = (torch.linalg.eigvalsh(moment) / scale_of(moment, reference)).tolist()
    size = float(np.abs(expected).max())
    allowed = 4 * (modulus(reference, eigenvalues, null * max(map(abs, eigenvalues))) + null * size)
    for apply in solvers:
        torch.testing.assert_close(apply(given).double(), torch.from_numpy(expected), rtol=0, atol=allowed)


def check_gradients(
    solvers: Mapping[str, Apply], moment: Tensor, given: Tensor, reference: Reference, *, seed: int = 0
) -> None:
    """The gradient at the matrix ``given`` is that of the reference at the float64 ``moment``.

    The allowed error is the change of the reference gradient when the matrix changes by its round-off.
    """
    grad = random_symmetric(moment.shape[-1], seed)
    null = round_off(moment, given.dtype)
    expected = torch.from_numpy(oracles.spectral_gradient(moment.numpy(), grad.numpy(), reference, null=null))
    sensitivity = gradient_sensitivity(moment, grad, reference, given.dtype)
    for name, apply in solvers.items():
        allowed = SAFETY * sensitivity
        if name == "squaring":
            allowed += SAFETY * error_of_products(moment, grad, reference, given.dtype)
        leaf = given.clone().requires_grad_()
        (found,) = torch.autograd.grad(apply(leaf), leaf, grad.to(given.dtype))
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=allowed, msg=lambda m, n=name: f"{n}: {m}")


def error_of_products(moment: Tensor, grad: Tensor, reference: Reference, dtype: torch.dtype) -> float:
    """The error of a solver without eigenvalues, which is relative to the steepest slope, the one at 0."""
    steepest = oracles.divided_difference(reference, 0.0, 0.0)
    return round_off(moment, dtype) * steepest * float(grad.abs().max()) / scale_of(moment, reference)


def gradient_sensitivity(moment: Tensor, grad: Tensor, reference: Reference, dtype: torch.dtype) -> float:
    """How far the reference gradient changes under round-off of the matrix and of its normalised eigenvalues.

    At least the round-off of the gradient before the share of the trace is subtracted: in a 1 x 1 matrix they cancel.
    """
    null = round_off(moment, dtype)

    def gradient(matrix: Tensor, **options: Any) -> np.ndarray:
        return oracles.spectral_gradient(matrix.numpy(), grad.numpy(), reference, null=null, **options)

    base = gradient(moment)
    values, vectors = torch.linalg.eigh(moment)
    # If the slope at 0 is infinite, the null space is dropped by definition: only the range can change.
    keep = values > null * values.abs().max() if reference.infinite_slope else torch.ones_like(values, dtype=torch.bool)
    noises = [random_symmetric(int(keep.sum()), 100 + seed) for seed in range(3)]
    shifts = [vectors[:, keep] @ noise @ vectors[:, keep].mT * null * float(values.abs().max()) for noise in noises]
    moved = [gradient(moment + shift) for shift in shifts]
    moved += [gradient(moment, shift=-null), gradient(moment, shift=null), gradient(moment, snap=null)]
    floor = null * float(np.abs(gradient(moment, through_trace=False)).max()) + 1e-30
    return max(floor, *(float(np.abs(other - base).max()) for other in moved))


def check_gradient_along(
    gradients: Iterable[tuple[Apply, float]],
    moment: Tensor,
    path: Callable[[mpmath.matrix, mpf], mpmath.matrix],
    tangent: Tensor,
    reference: Reference,
) -> None:
    """<dL/dM, tangent> is the one-sided difference of L along a path of positive matrices, in 50 digits.

    ``tangent`` is the derivative of the path at 0. Every gradient comes with its error relative to |dL/dM| |tangent|;
    the step of the difference leaves 1e-15 of |dL/dPsi|.
    """
    grad = random_symmetric(moment.shape[-1], seed=3)
    expected = oracles.mp_directional(moment.numpy(), path, grad.numpy(), reference, eps=1e-6)
    for gradient, rtol in gradients:
        found = gradient(grad).double()
        assert torch.isfinite(found).all()
        allowed = rtol * max(float(found.norm() * tangent.norm()), abs(expected)) + 1e-15 * float(grad.norm())
        assert abs(float((found * tangent).sum()) - expected) <= allowed


def check_tangents(solvers: Iterable[Apply], given: Tensor) -> None:
    """<G, J E> is <J^T G, E>: forward mode and reverse mode are the same derivative, degenerate input included."""
    direction = torch.randn(given.shape, generator=torch.Generator().manual_seed(6)).to(given.dtype) * given.abs().max()
    for apply in solvers:
        value, tangent = torch.func.jvp(apply, (given,), (direction,))
        torch.testing.assert_close(value, apply(given), rtol=1e-4, atol=1e-6 * float(value.abs().max()))
        grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(7)).to(given.dtype)
        leaf = given.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(apply(leaf), leaf, grad)
        found, expected = (grad * tangent).sum(), (gradient * direction).sum()
        # The direction is as large as the input. If the curve is saturated, derivatives are round-off of the value.
        size = float(grad.norm() * (tangent.norm() + value.norm()) + gradient.norm() * direction.norm())
        allowed = 200 * torch.finfo(given.dtype).eps * size + torch.finfo(given.dtype).tiny
        torch.testing.assert_close(found, expected, rtol=0, atol=allowed)


def random_symmetric(size: int, seed: int) -> Tensor:
    noise = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (noise + noise.mT) / 2
