"""Sec. 4.3: the graph of a covariance, and power normalization as heat flow on it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, linalg

import powerpool as pp
from powerpool import theory
from powerpool.errors import ArgumentError, NotPositiveError, NotSymmetricError, ShapeError
from tests.theory.grids import ETAS, F64, E, covariance, few_examples, log_floats, unit_points

CLOSE = {"rtol": 1e-9, "atol": 1e-11}
sizes = st.integers(1, 6)
seeds = st.integers(0, 2**16)


# Theorem heatdiff: the graph.


@few_examples
@given(sizes, st.integers(1, 6), seeds)
def test_the_precision_matrix_is_a_loopy_laplacian(size, rank, seed):
    matrix = covariance(size, rank, seed)
    graph = theory.loopy_graph(matrix, tolerance=1e-9)
    expected = torch.linalg.pinv(matrix, rtol=1e-9, hermitian=True)
    scale = expected.abs().max()
    torch.testing.assert_close(graph.laplacian / scale, expected / scale, **CLOSE)
    # D - W + loops, with the degrees D of edges between different nodes.
    rebuilt = torch.diag(graph.weights.sum(-1)) - graph.weights + torch.diag(graph.loops)
    torch.testing.assert_close(rebuilt / scale, graph.laplacian / scale, **CLOSE)
    assert graph.weights.diagonal().abs().max() == 0
    # Its quadratic form is a sum over edges and loops.
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=F64)
    energy = (graph.weights * (x[:, None] - x[None, :]).square()).sum() / 2 + (graph.loops * x.square()).sum()
    torch.testing.assert_close(energy / scale, x @ graph.laplacian @ x / scale, **CLOSE)


def test_features_without_partial_correlation_share_no_edge():
    """A Gaussian chain x1 - x2 - x3: x1 and x3 are correlated, and independent given x2."""
    covariance_of_chain = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 2.0], [1.0, 2.0, 3.0]], dtype=F64)
    weights = theory.loopy_graph(covariance_of_chain).weights
    torch.testing.assert_close(weights, torch.tensor([[0.0, 1, 0], [1, 0, 1], [0, 1, 0]], dtype=F64), **CLOSE)


@few_examples
@given(st.integers(2, 6), seeds, log_floats(1e-8, 1.0))
def test_hdp_on_the_graph_is_the_spectral_curve_on_the_range(size, seed, t):
    for rank in (1, size - 1, 3 * size):
        matrix = covariance(size, rank, seed)
        found = theory.graph_hdp(matrix, t, tolerance=1e-9)
        torch.testing.assert_close(found, pp.spectral(matrix, pp.HDP(t), eps=0.0), rtol=1e-6, atol=1e-7)
        expected = torch.from_numpy(linalg.expm(-t * linalg.pinvh(matrix.numpy(), rtol=1e-9))) if t > 1e-3 else None
        if expected is not None and rank >= size:
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


def test_heat_kernel_solves_the_heat_equation():
    """Eq. heat_eq: by an integrator of ordinary differential equations."""
    laplacian = theory.loopy_graph(covariance(4)).laplacian
    start = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=F64)
    flow = integrate.solve_ivp(lambda _, v: -laplacian.numpy() @ v, (0, 0.2), start.numpy(), rtol=1e-10, atol=1e-12)
    found = theory.heat_kernel(laplacian, 0.2) @ start
    torch.testing.assert_close(found, torch.from_numpy(flow.y[:, -1].copy()), rtol=1e-6, atol=1e-9)


def test_maxexp_and_gamma_are_close_to_hdp():
    """Theorem heatdiff: HDP is near, from below. The bounds are measured; the theorem gives no numbers."""
    for eta in ETAS.tolist():
        t = theory.t_of_eta(eta)
        assert 0 < t < 1
        points = unit_points(t, 1 / (eta + 1))
        gap = pp.MaxExp(eta).value(points) - pp.HDP(t).value(points)
        assert gap.min() >= 0
        assert gap.max() <= (0.327 if eta < 2 else 0.22 if eta < 5 else 0.161 if eta < 100 else 0.129)
    for t in (1e-6, 1e-4, 0.01, 0.1):
        points = torch.linspace(0.05, 1, 2001, dtype=F64)
        gap = pp.Gamma(theory.gamma_of_t(t)).value(points) - pp.HDP(t).value(points)
        assert 0 <= gap.min() <= gap.max() < 1.6 * math.sqrt(t)


@pytest.mark.parametrize("rank", [None, 2])
def test_limits_are_the_identity_on_the_range(rank):
    """t -> 0, eta -> inf, gamma -> 0: whitening. On the null space every curve is 0."""
    matrix = covariance(4, rank)
    projection = matrix @ torch.linalg.pinv(matrix, rtol=1e-9, hermitian=True)
    for curve in (pp.HDP(1e-10), pp.MaxExp(10**8), pp.Gamma(1e-9)):
        result = pp.spectral(matrix, curve, "eigen", eps=0.0)
        if not isinstance(curve, pp.MaxExp) and rank is not None:
            result = projection @ result @ projection  # so steep a curve amplifies round-off in the null space
        torch.testing.assert_close(result, projection, rtol=0, atol=1e-6)
    for flow in (theory.graph_hdp(matrix, 1e-10), theory.maxexp_flow(matrix, 1e-9), theory.gamma_flow(matrix, 1e-9)):
        torch.testing.assert_close(flow, projection, rtol=0, atol=1e-6)


# Theorems maxexp_ode and gamma_ode.


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("start, end", [(0.2, 0.6), (0.3, 0.05), (0.5, 3.0)])
def test_maxexp_solves_its_heat_equation(start, end, rank):
    """Eq. heat_maxexp, integrated forwards and backwards in time between two states.

    Not from very early times, where 1 - V is of the size of round-off.
    """
    matrix = covariance(3, rank)

    def rate(t: float, state: np.ndarray) -> np.ndarray:
        return theory.maxexp_flow_rate(torch.from_numpy(state.reshape(3, 3)), matrix, t).numpy().ravel()

    flow = integrate.solve_ivp(
        rate, (start, end), theory.maxexp_flow(matrix, start).numpy().ravel(), method="DOP853", rtol=1e-10, atol=1e-12
    )
    found = torch.from_numpy(flow.y[:, -1].reshape(3, 3).copy())
    torch.testing.assert_close(found, theory.maxexp_flow(matrix, end), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("start, end", [(0.1, 0.9), (0.9, 0.1)])
def test_gamma_solves_its_heat_equation(start, end, rank):
    """Eq. heat_gamma."""
    matrix = covariance(3, rank)

    def rate(_: float, state: np.ndarray) -> np.ndarray:
        return theory.gamma_flow_rate(torch.from_numpy(state.reshape(3, 3)), matrix).numpy().ravel()

    flow = integrate.solve_ivp(
        rate, (start, end), theory.gamma_flow(matrix, start).numpy().ravel(), method="DOP853", rtol=1e-10, atol=1e-12
    )
    found = torch.from_numpy(flow.y[:, -1].reshape(3, 3).copy())
    torch.testing.assert_close(found, theory.gamma_flow(matrix, end), rtol=1e-5, atol=1e-7)


@few_examples
@given(sizes, seeds, log_floats(1e-8, 3.0))
def test_rates_are_the_derivatives_of_the_flows(size, seed, t):
    matrix, step = covariance(size, seed=seed), 1e-5 * t
    maxexp = (theory.maxexp_flow(matrix, t + step) - theory.maxexp_flow(matrix, t - step)) / (2 * step)
    scale = 1 / t
    found = theory.maxexp_flow_rate(theory.maxexp_flow(matrix, t), matrix, t)
    torch.testing.assert_close(found / scale, maxexp / scale, rtol=1e-5, atol=1e-7)
    gamma = (theory.gamma_flow(matrix, t + step) - theory.gamma_flow(matrix, t - step)) / (2 * step)
    found = theory.gamma_flow_rate(theory.gamma_flow(matrix, t), matrix)
    torch.testing.assert_close(found / scale, gamma / scale, rtol=1e-5, atol=1e-7)


@few_examples
@given(st.integers(2, 6), seeds, log_floats(1e-3, 2.0))
def test_flows_are_the_spectral_curves(size, seed, t):
    matrix = covariance(size, seed=seed)
    gamma = pp.spectral(matrix, pp.Gamma(theory.gamma_of_t(t)), "eigen")
    torch.testing.assert_close(theory.gamma_flow(matrix, t), gamma, rtol=1e-8, atol=1e-9)
    # Gamma is HDP on the Log-Euclidean map of the Laplacian.
    log_map = theory.log_laplacian(matrix)
    torch.testing.assert_close(theory.heat_kernel(E * log_map, t), gamma, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(
        torch.linalg.matrix_exp(log_map) @ matrix, torch.eye(size, dtype=F64), rtol=1e-6, atol=1e-6
    )
    if theory.eta_of_t(t) >= 1:
        maxexp = pp.spectral(matrix, pp.MaxExp(theory.eta_of_t(t)), "eigen", eps=0.0)
        torch.testing.assert_close(theory.maxexp_flow(matrix, t), maxexp, rtol=1e-8, atol=1e-9)


def test_an_eigenvalue_of_one_stays():
    matrix = torch.diag(torch.tensor([1.0, 0.25], dtype=F64))
    flow = theory.maxexp_flow(matrix, 0.3)
    assert flow[0, 0] == 1
    assert theory.maxexp_flow_rate(flow, matrix, 0.3)[0, 0] == 0


def test_batches_are_their_matrices():
    batch = torch.stack([covariance(3, seed=0), covariance(3, 1)])
    for function in (
        lambda m: theory.loopy_graph(m).laplacian,
        lambda m: theory.graph_hdp(m, 0.1),
        lambda m: theory.maxexp_flow(m, 0.1),
        lambda m: theory.gamma_flow(m, 0.1),
        theory.log_laplacian,
    ):
        torch.testing.assert_close(function(batch), torch.stack([function(m) for m in batch]), rtol=1e-6, atol=1e-8)


def test_bad_arguments():
    eye = torch.eye(2, dtype=F64)
    with pytest.raises(ArgumentError, match="t must"):
        theory.graph_hdp(eye, 0.0)
    with pytest.raises(NotPositiveError, match="negative eigenvalue"):
        theory.loopy_graph(-eye)
    with pytest.raises(NotSymmetricError, match="symmetric"):
        theory.gamma_flow(torch.tensor([[1.0, 1.0], [0.0, 1.0]]), 0.1)
    with pytest.raises(ArgumentError, match="eigenvalues"):
        theory.maxexp_flow(2 * eye, 0.1)
    with pytest.raises(ArgumentError, match="tolerance"):
        theory.loopy_graph(eye, tolerance=1.0)
    for call in (
        lambda: theory.maxexp_flow_rate(torch.eye(3), eye / 2, 0.1),
        lambda: theory.gamma_flow_rate(torch.eye(3), eye / 2),
    ):
        with pytest.raises(ShapeError, match="state"):
            call()
