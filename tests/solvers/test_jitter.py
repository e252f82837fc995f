"""The paper's Algorithm 1: close to the exact result, finite on ties, and an error if the jitter is too small."""

from __future__ import annotations

import pytest
import torch

import powerpool as pp
from powerpool.errors import ArgumentError, DomainError, NotPositiveError
from powerpool.solvers import Jitter
from tests.cases import MATRICES


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_is_close_to_the_exact_result_if_eigenvalues_differ() -> None:
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


def test_jitter_below_round_off_is_an_error() -> None:
    huge = torch.diag(torch.full((3,), 1e9))
    with pytest.raises(DomainError, match="2 attempts"):
        pp.spectral(huge, pp.AsinhE(1.0), Jitter(gap=1e-6, attempts=2))


def test_bad_input() -> None:
    with pytest.raises(NotPositiveError, match=r"-0\.5"):
        pp.spectral(torch.diag(torch.tensor([1.0, -0.5])), pp.Gamma(0.5), "jitter")
    with pytest.raises(ArgumentError, match=r"0\.0"):
        Jitter(gap=0.0)
