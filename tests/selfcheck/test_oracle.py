"""The decimal oracle against other oracles: mpmath, NumPy, and autograd in float64."""

from __future__ import annotations

import math
from decimal import Decimal

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerpool.bench import reference
from powerpool.selfcheck import oracle
from tests import oracles
from tests.tolerances import tolerance

CLOSE = tolerance(torch.float64)
PAIRS = {
    "gamma": (oracle.gamma(Decimal("0.5")), oracles.gamma(0.5)),
    "gamma-3": (oracle.gamma(Decimal(3)), oracles.gamma(3)),
    "maxexp": (oracle.maxexp(Decimal(20)), oracles.maxexp(20)),
    "signed_maxexp": (oracle.signed_maxexp(Decimal(20)), oracles.signed_maxexp(20)),
    "asinhe": (oracle.asinhe(Decimal(10)), oracles.asinhe(10.0)),
    "sigme": (oracle.sigme(Decimal(50)), oracles.sigme(50.0)),
    "sigme-raw": (oracle.sigme(Decimal(5), trace_normalize=False), oracles.sigme(5.0, False)),
    "hdp": (oracle.hdp(Decimal("0.125")), oracles.hdp(0.125)),
    "fahdp": (oracle.fahdp(Decimal("0.0625")), oracles.fahdp(0.0625, "ceil")),
    "fahdp-long": (oracle.fahdp(Decimal("2.25")), oracles.fahdp(2.25, "ceil")),
    "fahdp-identity": (oracle.fahdp(Decimal("0.3125"), rounded=False), oracles.fahdp(0.3125, "identity")),
}


def _positive(size: int, seed: int = 0) -> np.ndarray:
    factor = np.random.default_rng(seed).normal(size=(size, size + 2))
    return factor @ factor.T / 4


def _general(size: int, seed: int = 9) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(size, size))


def _array(matrix: oracle.Matrix) -> torch.Tensor:
    return torch.tensor(oracle.floats(matrix), dtype=torch.float64)


@settings(max_examples=8)
@given(st.integers(1, 8), st.integers(0, 2**20))
def test_rotations_find_eigenvalues_and_vectors(size, seed):
    matrix = _positive(size, seed)
    found = oracle.spectrum(oracle.exact(matrix.tolist()))
    expected = np.linalg.eigvalsh(matrix)
    torch.testing.assert_close(
        torch.tensor(sorted(map(float, found.eigenvalues)), dtype=torch.float64), torch.tensor(expected), **CLOSE
    )
    with oracle.exactly():
        vectors = found.vectors
        unit = oracle.product(oracle.transpose(vectors), vectors)
        off = oracle.add(unit, oracle.scaled(oracle.identity(size), Decimal(-1)))
        assert oracle.norm(off) < Decimal("1e-40")
        back = oracle._from_eigen(vectors, found.eigenvalues)
        residual = oracle.add(back, oracle.scaled(found.matrix, Decimal(-1)))
        assert oracle.norm(residual) < Decimal("1e-40") * oracle.norm(found.matrix)


def test_a_null_space_is_exactly_null():
    features = oracle.exact([[1.0, 0.5], [0.25, 1.0], [0.75, 0.75], [0.5, 0.125]])
    found = oracle.spectrum(oracle.moment(features))
    assert sum(value == 0 for value in found.eigenvalues) == 2
    assert oracle.spectrum(oracle.exact([[0.0, 0.0], [0.0, 0.0]])).eigenvalues == (0, 0)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("size", [1, 5])
def test_values_and_gradients_are_those_of_mpmath(name, size):
    scalar, other = PAIRS[name]
    matrix, upstream = _positive(size), _general(size)
    found = oracle.spectral(oracle.spectrum(oracle.exact(matrix.tolist())), oracle.exact(upstream.tolist()), scalar)
    expected = oracles.spectral(matrix, other)
    torch.testing.assert_close(_array(found.value), torch.from_numpy(expected), **CLOSE)
    gradient = oracles.spectral_gradient(matrix, upstream, other)
    torch.testing.assert_close(_array(found.gradient), torch.from_numpy(gradient), **tolerance(torch.float64, slack=10))
    # No gradient exceeds the size that its error is measured by, but for the share that the trace takes back.
    assert oracle.norm(found.gradient) <= 2 * found.gradient_size


@pytest.mark.parametrize("name", PAIRS)
def test_slopes_are_those_of_differences(name):
    scalar, other = PAIRS[name]
    for p in (0.015625, 0.25, 0.875):
        with oracle.exactly():
            found = float(scalar.slope(Decimal(p)))
        assert math.isclose(found, oracles.divided_difference(other, p, p), rel_tol=1e-12)
        if other.signed:
            with oracle.exactly():
                assert scalar.value(Decimal(-p)) == -scalar.value(Decimal(p)) or "sigme" in name
                assert abs(scalar.slope(Decimal(-p)) - scalar.slope(Decimal(p))) < Decimal("1e-40")


@pytest.mark.parametrize("iterations", [1, 5, 15])
def test_newton_schulz_is_the_matrix_iteration(iterations):
    features = torch.from_numpy(np.random.default_rng(3).normal(size=(1, 5, 8)))
    upstream = torch.from_numpy(_general(5))[None]
    right = reference.newton_schulz(features, upstream, iterations)
    columns = oracle.exact(features[0].tolist())
    found = oracle.square_root(oracle.spectrum(oracle.moment(columns)), oracle.exact(upstream[0].tolist()), iterations)
    torch.testing.assert_close(_array(found.value), right.value[0], **tolerance(torch.float64, slack=100))
    gradient = oracle.moment_gradient(columns, found.gradient)
    torch.testing.assert_close(_array(gradient), right.gradient[0], **tolerance(torch.float64, slack=100))


@pytest.mark.parametrize("name", ["gamma", "maxexp", "sigme", "hdp"])
def test_entries_are_differentiated_through_the_trace(name):
    scalar, _ = PAIRS[name]
    formulas = {
        "gamma": reference.gamma(0.5),
        "maxexp": reference.maxexp(20),
        "sigme": reference.sigme(50.0),
        "hdp": reference.hdp(0.125),
    }
    features = torch.from_numpy(np.random.default_rng(4).uniform(0.1, 1, size=(1, 4, 6)))
    upstream = torch.from_numpy(_general(4))[None]
    right = reference.elementwise(features, upstream, formulas[name])
    columns = oracle.exact(features[0].tolist())
    found = oracle.elementwise(oracle.moment(columns), oracle.exact(upstream[0].tolist()), scalar)
    torch.testing.assert_close(_array(found.value), right.value[0], **CLOSE)
    gradient = oracle.moment_gradient(columns, found.gradient)
    torch.testing.assert_close(_array(gradient), right.gradient[0], **tolerance(torch.float64, slack=100))


def test_the_parameter_is_differentiated():
    matrix, upstream = _positive(4), _general(4)
    spectrum = oracle.spectrum(oracle.exact(matrix.tolist()))
    found, size = oracle.parameter_slope(spectrum, oracle.exact(upstream.tolist()), oracle.maxexp, Decimal(20))

    def loss(eta: mpmath.mpf) -> mpmath.mpf:
        scale = float(np.trace(matrix)) + 1e-6
        values, vectors = mpmath.eigsy(mpmath.matrix((matrix / scale).tolist()))
        value = vectors * mpmath.diag([1 - (1 - v) ** eta for v in values]) * vectors.T
        return sum(mpmath.mpf(upstream[i, j]) * value[i, j] for i in range(4) for j in range(4))

    assert math.isclose(float(found), float(mpmath.diff(loss, 20)), rel_tol=1e-10)
    assert abs(found) <= size


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_moments_are_centred_and_so_is_their_gradient(beta):
    features = torch.from_numpy(_general(5)[:3]).requires_grad_()
    upstream = torch.from_numpy(_general(3))
    centred = features - beta * features.mean(-1, keepdim=True)
    expected = centred @ centred.mT / 5
    (gradient,) = torch.autograd.grad(expected, features, upstream)
    columns, sent = oracle.exact(features.tolist()), oracle.exact(upstream.tolist())
    torch.testing.assert_close(_array(oracle.moment(columns, Decimal(beta))), expected.detach(), **CLOSE)
    found = oracle.moment_gradient(columns, sent, Decimal(beta))
    torch.testing.assert_close(_array(found), gradient, **CLOSE)


def test_vectors_have_the_dot_product_of_matrices():
    a, b = (oracle.symmetric(oracle.exact(_general(4, seed).tolist())) for seed in (1, 2))
    with oracle.exactly():
        dot = sum(x * y for x, y in zip(oracle.vector(a), oracle.vector(b), strict=True))
        assert abs(dot - oracle.inner(a, b)) < Decimal("1e-45")
    assert oracle.vector(a)[:2] == (a[0][0], oracle.vector(a)[1])
    assert len(oracle.vector(a)) == 10


def test_coordinates_are_soft_assignments():
    found = oracle.coordinates(2, 3, pivots=2, sigma=Decimal(1))
    codes = [[math.exp(-((x - z) ** 2)) for x in (0, 0.5, 1)] for z in (-0.2, 1.2)]
    rows = [[math.exp(-((y - z) ** 2)) for y in (0, 1)] for z in (-0.2, 1.2)]
    expected = [code * 2 for code in codes] + [[one] * 3 + [two] * 3 for one, two in rows]
    torch.testing.assert_close(_array(found), torch.tensor(expected, dtype=torch.float64), **CLOSE)
