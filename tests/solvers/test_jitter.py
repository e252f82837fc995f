"""The paper's Algorithm 1: close to the exact answer, finite where plain eigenvectors are not, and it says when not."""

from __future__ import annotations

import pytest
import torch

import powerpool as pp
from powerpool.solvers import Jitter
from tests.cases import MATRICES


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_is_close_to_the_exact_answer_where_eigenvalues_differ() -> None:
    leaf = MATRICES["random"].clone().requires_grad_()
    exact = pp.spectral(leaf, pp.MaxExp(10), "eigen")
    jittered = pp.spectral(leaf, pp.MaxExp(10), "jitter")
    assert not torch.equal(exact, jittered)
    torch.testing.assert_close(jittered, exact, rtol=0, atol=1e-3)
    grad = torch.diag(torch.arange(5.0, dtype=torch.float64))
    (ours,) = torch.autograd.grad(exact, leaf, grad)
    (theirs,) = torch.autograd.grad(jittered, leaf, grad)
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-2)


@pytest.mark.parametrize("name", ["repeated", "identity", "one-by-one"])
def test_gradients_are_finite_on_ties(name: str) -> None:
    leaf = MATRICES[name].clone().requires_grad_()
    value = pp.spectral(leaf, pp.MaxExp(10), "jitter")
    (grad,) = torch.autograd.grad(value.square().sum(), leaf)
    assert torch.isfinite(value).all()
    assert torch.isfinite(grad).all()


def test_says_when_the_jitter_drowns() -> None:
    huge = torch.diag(torch.full((3,), 1e9))
    with pytest.raises(ValueError, match=r"did not separate.*eigen"):
        pp.spectral(huge, pp.AsinhE(1.0), Jitter(gap=1e-6, attempts=2))


def test_negative_spectra_are_refused() -> None:
    with pytest.raises(ValueError, match="eigenvalues >= 0"):
        pp.spectral(torch.diag(torch.tensor([1.0, -0.5])), pp.Gamma(0.5), "jitter")


def test_gap_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"gap > 0 and attempts >= 1 \(got 0.0"):
        Jitter(gap=0.0)
