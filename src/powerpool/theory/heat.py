r"""Power normalization as heat flow on a graph, run backwards in time (Sec. 4.3, App. E, H and I).

A moment matrix M is the covariance of a Gaussian whose precision matrix Q = M^+ is the Laplacian of a graph with loops:
features are nodes. Heat that flows on that graph for a time t is Exp(-t Q), which is HDP of M on the range of M. MaxExp
and Gamma solve equations of the same kind.

Everything is computed in float64 from an eigendecomposition. Directions in which M is 0, up to ``tolerance`` times its
largest eigenvalue, are its null space: the precision matrix is 0 there, and so is every curve.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from powerpool.checks import require_finite, require_square, require_symmetric
from powerpool.errors import ArgumentError, NotPositiveError, ShapeError
from powerpool.linalg.products import symmetrize
from powerpool.theory._numbers import require_positive
from powerpool.theory.links import eta_of_t, eta_slope


class LoopyGraph(NamedTuple):
    """A graph with loops, as matrices ``(*, C, C)`` and the weights of the loops ``(*, C)``."""

    laplacian: Tensor
    """The precision matrix Q = M^+."""
    weights: Tensor
    """Weights of edges between different nodes, -Q off the diagonal; negative for features that repel each other."""
    loops: Tensor
    """Weights of self-loops: the row sums of Q, which are 0 for an ordinary Laplacian."""


def loopy_graph(matrix: Tensor, tolerance: float = 1e-12) -> LoopyGraph:  # shape: (*, C, C)
    r"""The graph whose Laplacian is the precision matrix of M (Theorem heatdiff).

    .. math:: Q = M^+ = D - W + \operatorname{diag}(l), \qquad W_{ij} = -Q_{ij}\ (i \ne j), \qquad
              D_{ii} = \sum_j W_{ij}, \qquad l_i = \sum_j Q_{ij}

    Example:
        >>> graph = loopy_graph(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
        >>> graph.weights[0, 1], graph.loops  # Q = [[2, -1], [-1, 2]]/3
        (tensor(0.3333, dtype=torch.float64), tensor([0.3333, 0.3333], dtype=torch.float64))
    """
    values, vectors, inside = _spectrum(matrix, tolerance)
    laplacian = _rebuild(vectors, torch.where(inside, 1 / torch.where(inside, values, 1.0), 0.0))
    edges = -laplacian
    edges.diagonal(dim1=-2, dim2=-1).zero_()
    return LoopyGraph(laplacian, edges, laplacian.sum(-1))


def heat_kernel(laplacian: Tensor, t: float) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    r"""The heat kernel :math:`K(L; t) = \operatorname{Exp}(-tL)`, which solves dv/dt + Lv = 0 (Eq. heat_eq).

    Example:
        >>> heat_kernel(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), 100.0)  # two nodes: each has half of the heat
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000]], dtype=torch.float64)
    """
    values, vectors = torch.linalg.eigh(_symmetric(laplacian, "laplacian"))
    return _rebuild(vectors, torch.exp(-_time(t) * values))


def graph_hdp(matrix: Tensor, t: float, tolerance: float = 1e-12) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    r"""The heat kernel of the graph of M, on the range of M, which is HDP (Theorem heatdiff).

    .. math:: \Pi \operatorname{Exp}(-tM^+) \Pi, \qquad \Pi = M M^+

    Without the projection it would be the identity on the null space. It equals the spectral curve,
    ``powerpool.spectral(M, HDP(t))``, for M of trace 1.

    Example:
        >>> matrix = torch.diag(torch.tensor([0.5, 0.5, 0.0]))
        >>> graph_hdp(matrix, 0.5).diagonal()
        tensor([0.3679, 0.3679, 0.0000], dtype=torch.float64)
    """
    _, vectors, inside = _spectrum(matrix, tolerance)
    projection = _rebuild(vectors, inside.to(torch.float64))
    return projection @ heat_kernel(loopy_graph(matrix, tolerance).laplacian, t) @ projection


def maxexp_flow(matrix: Tensor, t: float) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    r"""MaxExp as a state of heat at time t: :math:`V(t) = I - (I-M)^{\eta(t)}` with :func:`eta_of_t` (App. H).

    M needs eigenvalues in [0, 1]. As t falls to 0 the exponent grows to infinity, and V tends to the identity on the
    range of M.

    Example:
        >>> maxexp_flow(torch.diag(torch.tensor([0.5, 0.0])), 1e-6)
        tensor([[1., 0.],
                [0., 0.]], dtype=torch.float64)
    """
    values, vectors = _unit_spectrum(matrix)
    return _rebuild(vectors, -torch.expm1(eta_of_t(_time(t)) * torch.log1p(-values)))


def maxexp_flow_rate(state: Tensor, matrix: Tensor, t: float) -> Tensor:  # shape: (*, C, C), (*, C, C) -> (*, C, C)
    r"""dV/dt of the heat equation that MaxExp solves (Eq. heat_maxexp).

    .. math:: \frac{dV}{dt} = -\frac{d\eta}{dt} \operatorname{Log}(I-M) (I - V)

    M needs eigenvalues in [0, 1]; for an eigenvalue 1, V is 1 at all times and the rate is 0. For a vector
    :math:`v = V v_0`, I - V becomes :math:`v_0 - v`.

    Example:
        >>> matrix = torch.diag(torch.tensor([0.5, 0.0]))
        >>> maxexp_flow_rate(maxexp_flow(matrix, 0.5), matrix, 0.5).diagonal()
        tensor([-0.8713,  0.0000], dtype=torch.float64)
    """
    values, vectors = _unit_spectrum(matrix)
    logs = torch.where(values < 1, torch.log1p(-torch.where(values < 1, values, 0.0)), 0.0)
    identity = torch.eye(values.shape[-1], dtype=torch.float64, device=values.device)
    return -eta_slope(_time(t)) * _rebuild(vectors, logs) @ (identity - _like(state, matrix))


def gamma_flow(matrix: Tensor, t: float, tolerance: float = 1e-12) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    r"""Gamma as a state of heat at time t: :math:`V(t) = M^{et}`, on the range of M (App. I).

    It is the heat kernel of :math:`e \operatorname{Log}(L)`, L = M^+: Gamma is HDP on the Log-Euclidean map of the
    Laplacian.

    Example:
        >>> gamma_flow(torch.diag(torch.tensor([0.5, 0.0])), 1 / math.e)
        tensor([[0.5000, 0.0000],
                [0.0000, 0.0000]], dtype=torch.float64)
    """
    values, vectors, inside = _spectrum(matrix, tolerance)
    return _rebuild(vectors, torch.where(inside, torch.where(inside, values, 1.0).pow(math.e * _time(t)), 0.0))


def gamma_flow_rate(
    state: Tensor,  # shape: (*, C, C)
    matrix: Tensor,  # shape: (*, C, C)
    tolerance: float = 1e-12,
) -> Tensor:  # shape: (*, C, C)
    r"""dV/dt of the heat equation that Gamma solves (Eq. heat_gamma): :math:`dV/dt = -e \operatorname{Log}(L) V`.

    Example:
        >>> matrix = torch.diag(torch.tensor([0.5, 0.0]))
        >>> gamma_flow_rate(gamma_flow(matrix, 1 / math.e), matrix).diagonal()
        tensor([-0.9421,  0.0000], dtype=torch.float64)
    """
    return -math.e * log_laplacian(matrix, tolerance) @ _like(state, matrix)


def log_laplacian(matrix: Tensor, tolerance: float = 1e-12) -> Tensor:  # shape: (*, C, C) -> (*, C, C)
    r"""The Log-Euclidean map of the graph of M, :math:`\operatorname{Log}(M^+)`, on the range of M (Theorem gamma_ode).

    Example:
        >>> log_laplacian(torch.diag(torch.tensor([0.25, 0.0]))).diagonal()
        tensor([1.3863, 0.0000], dtype=torch.float64)
    """
    values, vectors, inside = _spectrum(matrix, tolerance)
    return _rebuild(vectors, torch.where(inside, -torch.log(torch.where(inside, values, 1.0)), 0.0))


def _time(t: float) -> Tensor:
    return require_positive(torch.tensor(t, dtype=torch.float64), "t")


def _symmetric(matrix: Tensor, name: str = "matrix") -> Tensor:
    require_square(matrix, name)
    require_finite(matrix, name)
    given = matrix.to(torch.float64)
    moment = symmetrize(given)
    require_symmetric(given, moment, matrix.dtype)
    return moment


def _spectrum(matrix: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Eigenvalues, eigenvectors, and which of them span the range."""
    if not 0 <= tolerance < 1:
        raise ArgumentError(f"tolerance must be in [0, 1), relative to the largest eigenvalue (got {tolerance}).")
    values, vectors = torch.linalg.eigh(_symmetric(matrix))
    largest = values.abs().amax(-1, keepdim=True)
    if bool((values < -max(tolerance, 1e-12) * largest).any()):
        raise NotPositiveError(
            f"matrix must have no negative eigenvalue (got {values.min().item():.6g}): it is to be a covariance. "
            "Build it with autocorrelation(features)."
        )
    return values, vectors, values > tolerance * largest


def _unit_spectrum(matrix: Tensor) -> tuple[Tensor, Tensor]:
    values, vectors, _ = _spectrum(matrix, 0.0)
    if bool((values > 1 + 1e-12).any()):
        raise ArgumentError(
            f"matrix must have eigenvalues up to 1 (got {values.max().item():.6g}). Divide it by its trace."
        )
    return values.clamp(0.0, 1.0), vectors


def _rebuild(vectors: Tensor, values: Tensor) -> Tensor:
    return symmetrize((vectors * values[..., None, :]) @ vectors.mT)


def _like(state: Tensor, matrix: Tensor) -> Tensor:
    require_square(state, "state")
    if state.shape[-1] != matrix.shape[-1]:
        raise ShapeError(f"state must have the size of matrix, {tuple(matrix.shape)} (got {tuple(state.shape)}).")
    return state.to(torch.float64)
