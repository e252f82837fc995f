"""Eigendecomposition with one thread of MKL."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from powerpool.linalg import decomposition
from powerpool.linalg.decomposition import eigh_on_one_thread


@pytest.mark.parametrize("shape", [(3, 3), (2, 5, 8, 8), (0, 4, 4), (2, 520, 520)], ids=str)
def test_it_decomposes(shape: tuple[int, ...]) -> None:
    matrices = torch.randn(shape, dtype=torch.float64)
    matrices = matrices + matrices.mT
    values, vectors = eigh_on_one_thread(matrices)
    torch.testing.assert_close((vectors * values.unsqueeze(-2)) @ vectors.mT, matrices)
    assert (values.diff(dim=-1) >= 0).all()


def test_the_number_of_threads_is_restored_even_after_an_error() -> None:
    set_threads = decomposition._mkl_threads()
    if set_threads is None:
        pytest.skip("this build of torch has no MKL")
    before = set_threads(3)
    try:
        eigh_on_one_thread(torch.eye(4))
        with pytest.raises(RuntimeError):
            eigh_on_one_thread(torch.ones(2, 3))
        found = []
        other = threading.Thread(target=lambda: found.append(set_threads(0)))
        other.start()
        other.join()
        assert found == [0]  # another thread has its own number
        assert set_threads(3) == 3
    finally:
        set_threads(before)


def test_it_works_without_mkl() -> None:
    code = (
        "import torch; torch.backends.mkl.is_available = lambda: False\n"
        "from powerpool.linalg import decomposition\n"
        "assert decomposition._mkl_threads() is None\n"
        "values, _ = decomposition.eigh_on_one_thread(torch.diag(torch.tensor([2.0, 1.0])))\n"
        "assert values.tolist() == [1.0, 2.0]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
