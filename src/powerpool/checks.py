"""Checks of the shapes, dtypes and values of tensors.

Shapes and dtypes are always checked, which reads no data. Checks of *values* read data and would force a device to
synchronise; :func:`values_are_checked` decides whether they run.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from powerpool import errors
from powerpool.errors import ArgumentError, DomainError, DTypeError, NotFiniteError, NotSymmetricError, ShapeError


def round_off(dtype: torch.dtype) -> float:
    """Return the relative error allowed for round-off: in symmetry, and of entries or eigenvalues outside a domain.

    It is relative to the largest entry or eigenvalue of the same matrix. The bound of float32 also applies to float64,
    because float64 matrices are often computed from float32 features.
    """
    return max(1e-5, torch.finfo(dtype).eps)


def values_are_checked(tensor: Tensor, check: bool | None) -> bool:
    """Return whether checks that read values run.

    ``None`` means on for tensors on the CPU, where reading a value is free, and off elsewhere, where it would
    synchronise. Meta and fake tensors have no values, and neither has any tensor while ``torch.compile``,
    ``torch.export`` or a ``torch.func`` transform traces the operator: there ``None`` is off and ``True`` is an error.
    """
    if check is False:
        return False
    if check is None:
        return tensor.device.type == "cpu" and has_values(tensor)
    if not has_values(tensor):
        raise ArgumentError(
            "check=True needs the values of the input, which do not exist in meta and fake tensors, nor while "
            "torch.compile, torch.export or a torch.func transform traces the operator. Pass check=None or check=False."
        )
    return True


def has_values(tensor: Tensor) -> bool:
    """Return whether values can be read: not in meta and fake tensors, nor while the operator is traced."""
    # The functorch stack has no public query. Every transform that hides values pushes an interpreter on it.
    traced = torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None
    return not (traced or tensor.is_meta or isinstance(tensor, FakeTensor))


def zero_or_nan(tensor: Tensor) -> Tensor:
    """Return 0 where the tensor is finite and NaN elsewhere; added to a result, it marks results of bad input.

    Computed as x - x, because Inductor folds 0 * x to 0.
    """
    values = tensor.detach()
    return values - values


def nan_unless_finite(matrix: Tensor) -> Tensor:  # shape: (*, A, B) -> (*,)
    """Return NaN for a matrix that contains NaN or infinity, else 0; two reductions, no copy of the matrix."""
    values = matrix.detach()
    return zero_or_nan(values.amax((-2, -1))) + zero_or_nan(values.amin((-2, -1)))


def require_floating(tensor: Tensor, name: str) -> None:
    """Require a real floating-point tensor."""
    if not isinstance(tensor, Tensor):
        raise DTypeError(
            f"{name} must be a torch.Tensor (got {type(tensor).__name__}). Convert it with torch.as_tensor."
        )
    if not tensor.is_floating_point():
        raise DTypeError(
            f"{name} must have a floating-point dtype: float16, bfloat16, float32 or float64 (got {tensor.dtype}). "
            f"Convert it first, for instance {name}.float()."
        )


def require_square(matrix: Tensor, name: str = "matrix") -> None:
    """Require a floating-point ``(*, C, C)`` tensor with ``C >= 1``."""
    require_floating(matrix, name)
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2]:
        raise ShapeError(
            f"{name} must be square, with shape (*, C, C) (got {tuple(matrix.shape)}). "
            "Features of shape (*, C, N) become such a matrix with autocorrelation(features)."
        )
    if matrix.shape[-1] == 0:
        raise ShapeError(f"{name} must have at least one channel, C >= 1 (got shape {tuple(matrix.shape)}).")


def require_features(features: Tensor, name: str = "features") -> None:
    """Require a floating-point ``(*, C, N)`` tensor with ``C, N >= 1``."""
    require_floating(features, name)
    if features.ndim < 2:
        raise ShapeError(
            f"{name} must have shape (*, C, N): channels, then locations (got {tuple(features.shape)}). "
            "A map of shape (B, C, H, W) becomes one with flatten(-2)."
        )
    channels, locations = features.shape[-2:]
    if channels == 0 or locations == 0:
        raise ShapeError(
            f"{name} must have at least one channel and one location, C >= 1 and N >= 1 "
            f"(got shape {tuple(features.shape)}). An empty set has no moment: drop it before pooling."
        )


def require_mask(mask: Tensor, features: Tensor, check: bool | None = None) -> None:
    """Require a boolean mask that broadcasts to ``(*, N)`` and leaves no set of ``features`` empty."""
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        given = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise DTypeError(f"mask must be a boolean tensor, True where a location counts (got {given}). Use mask.bool().")
    expected = (*features.shape[:-2], features.shape[-1])
    try:
        fits = mask.ndim > 0 and torch.broadcast_shapes(mask.shape, expected) == expected
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"mask must broadcast to (*, N) = {tuple(expected)}, one flag per location (got {tuple(mask.shape)} "
            f"for features of shape {tuple(features.shape)})."
        )
    if values_are_checked(mask, check) and not bool(mask.any(-1).all()):
        empty = int((~mask.any(-1)).sum())
        raise DomainError(
            f"mask must keep at least one location of every set (got {empty} set(s) without a true entry). "
            "An empty set has no moment: drop it before pooling."
        )


def require_finite(tensor: Tensor, name: str) -> None:
    """Refuse NaN and infinity. Reads values: call it only if :func:`values_are_checked`."""
    if tensor.numel() == 0:  # an empty batch; aminmax refuses it
        return
    # aminmax propagates NaN and infinity in one pass, without the temporary of isfinite(...).all().
    low, high = torch.aminmax(tensor.detach())
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        bad = int((~torch.isfinite(tensor.detach())).sum())
        raise NotFiniteError(
            f"{name} must be finite (got {bad} NaN or infinite of {tensor.numel()} entries). "
            "Find the layer that produced them, or pass check=False to propagate NaN."
        )


def require_symmetric(given: Tensor, symmetric: Tensor, dtype: torch.dtype) -> None:
    """Require that ``given`` equals its symmetric part up to the round-off of ``dtype``. Reads values."""
    if given.numel() == 0:
        return
    difference = given.detach() - symmetric.detach()
    low, high = torch.aminmax(difference)  # propagates NaN and infinity
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        require_finite(given, "matrix")
    if bool(low == 0) and bool(high == 0):  # exactly symmetric, as any X X^T: no second pass
        return
    # Each matrix is compared with its own largest entry, so that a large matrix in the batch hides nothing.
    gap, largest = difference.abs().amax((-2, -1)), given.detach().abs().amax((-2, -1))
    refused = gap > 4 * round_off(dtype) * largest
    if bool(refused.any()):
        raise NotSymmetricError(
            "matrix must be symmetric up to round-off (got entries that differ from their mirror by "
            f"{2 * gap[refused].max().item():.6g}, with a largest entry of {largest[refused].max().item():.6g}). "
            "Symmetrise it: (matrix + matrix.mT) / 2."
        )


def require_beta(beta: float) -> None:
    """Require a centering strength in ``[0, 1]``."""
    if not 0.0 <= beta <= 1.0:
        raise ArgumentError(
            f"beta must lie in [0, 1] (got {beta}): 0 keeps the mean (autocorrelation), 1 removes it (covariance)."
        )


def require_eps(eps: float) -> None:
    """Require a finite regulariser of at least 0."""
    if not 0.0 <= eps < float("inf"):
        raise ArgumentError(f"eps must be >= 0 and finite (got {eps}); the paper uses 1e-6.")


def require_seed(seed: int, name: str = "seed") -> None:
    """Require a seed that every random number generator accepts."""
    if not 0 <= seed < 2**31:
        raise ArgumentError(f"{name} must be at least 0 and below 2**31 (got {seed}).")


def require_at_least(least: float, group: str, **values: float) -> None:
    """Require settings of at least ``least``; ``group`` is their prefix in a recipe.

    Example:
        >>> require_at_least(1, "training", epochs=0)
        Traceback (most recent call last):
        powerpool.errors.ArgumentError: training.epochs must be at least 1 (got 0).
    """
    for name, value in values.items():
        if not value >= least:
            raise ArgumentError(f"{group}{'.' if group else ''}{name} must be at least {least} (got {value}).")


def require_above(bound: float, group: str, **values: float) -> None:
    """Require settings above ``bound``; see :func:`require_at_least`."""
    for name, value in values.items():
        if not value > bound:
            raise ArgumentError(f"{group}{'.' if group else ''}{name} must be above {bound} (got {value}).")


def __getattr__(name: str) -> Any:
    # Error classes and require_choice were defined here in version 0.1.
    found = getattr(errors, name, None)
    if name.startswith("_") or not callable(found):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is now powerpool.errors.{name}.", DeprecationWarning, stacklevel=2)
    return found
