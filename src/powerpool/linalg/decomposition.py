"""Eigendecomposition of batches of symmetric matrices, on the CPU with one thread of LAPACK.

MKL divides every decomposition among its threads. Up to 512 rows that takes longer than one thread, which does not have
to wait for others: 50 instead of 26 ms for 8 matrices of 256 rows with two sleeping threads on two cores, and several
times as long on a machine that is busy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from powerpool.checks import has_values

_LARGEST = 512
"""Rows above which the threads of MKL pay off."""


def eigh_on_one_thread(matrices: Tensor) -> tuple[Tensor, Tensor]:  # shape: (*, C, C) -> (*, C), (*, C, C)
    """Compute eigenvalues, in ascending order, and eigenvectors."""
    set_threads = _mkl_threads() if matrices.device.type == "cpu" and has_values(matrices) else None
    if set_threads is None or matrices.shape[-1] > _LARGEST:
        return _eigh(matrices)
    before = set_threads(1)  # for calls from this thread only, and nothing but MKL
    try:
        return _eigh(matrices)
    finally:
        set_threads(before)


def _eigh(matrices: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors = torch.linalg.eigh(matrices)
    return values, vectors


@cache
def _mkl_threads() -> Callable[[int], int] | None:
    """Return MKL's thread-local setter, which returns the previous number (0 for the global one); None without MKL."""
    if not torch.backends.mkl.is_available():
        return None
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        found: Callable[[int], int] = ctypes.CDLL(str(library)).MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):  # another build of torch: MKL is a library of its own, or hides the name
        return None
    return found
