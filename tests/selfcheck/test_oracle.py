"""The oracle against independent computations: differences in 50 digits, NumPy, SciPy and mpmath."""

from __future__ import annotations

import math
from functools import partial

import mpmath
import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from powerpool.bench import reference
from powerpool.bench.reference import Scalar
from powerpool.selfcheck import oracle

STEP = mpf("1e-20")

# Each curve with the formula of the paper, for mpmath.
CURVES = {
    "gamma": (partial(reference.gamma, mpf("0.5")), mpmath.sqrt),
    "gamma-3": (partial(reference.gamma, mpf(3)), lambda p: p**3),
    "maxexp": (partial(reference.maxexp, mpf(20)), lambda p: 1 - (1 - p) ** 20),
    "signed_maxexp": (
        partial(reference.signed_maxexp, mpf(20)),
        lambda p: (1 - max(mpmath.mpf(0), -p)) ** 20 - (1 - max(mpmath.mpf(0), p)) ** 20,
    ),
    "asinhe": (partial(reference.asinhe, mpf(10)), lambda p: mpmath.asinh(10 * p)),
    "sigme": (partial(reference.sigme, mpf(50)), lambda p: mpmath.tanh(25 * p)),
    "sigme-raw": (partial(reference.sigme, mpf(5), trace_normalize=False), lambda p: mpmath.tanh(p * 5 / 2)),
    "hdp": (partial(reference.hdp, mpf("0.125")), lambda p: mpmath.exp(-1 / (8 * p))),
    "fahdp": (partial(reference.fahdp, mpf("0.0625")), lambda p: mpmath.exp(-1 / mpmath.mpf(16)) * (1 - (1 - p) ** 10)),
    "fahdp-late": (partial(reference.fahdp, mpf("2.25")), lambda p: mpmath.exp(-mpmath.mpf(9) / 4) * p**2),
    "fahdp-identity": (
        partial(reference.fahdp, mpf("0.3125"), rounded=False),
        lambda p: mpmath.exp(-0.3125) * (1 - (1 - p) ** (0.5 + mpmath.sqrt(0.25 + _inner(0.3125) ** 2))),
    ),
}
every_curve = pytest.mark.parametrize("name", CURVES)


def _inner(t: float) -> mpmath.mpf:
    return 1 / (t * (mpmath.e - 1)) - 1 / mpmath.e


def scalar_of(name: str) -> Scalar:
    with oracle.exactly():
        return CURVES[name][0]()


def positive(size: int, seed: int = 0) -> oracle.Matrix:
    factor = np.random.default_rng(seed).normal(size=(size, size + 2))
    return oracle.exact((factor @ factor.T / 4).tolist())


def general(rows: int, columns: int, seed: int = 9) -> oracle.Matrix:
    return oracle.exact(np.random.default_rng(seed).normal(size=(rows, columns)).tolist())


def as_array(matrix: oracle.Matrix) -> np.ndarray:
    return np.array(oracle.floats(matrix))


def assert_is_gradient(answer_of, given: oracle.Matrix, upstream: oracle.Matrix, direction: oracle.Matrix) -> None:
    """<gradient, D> is the derivative of <value, upstream> along D, by a difference in 50 digits."""
    with oracle.exactly():
        high, low = (answer_of(given + direction * (sign * STEP)).value for sign in (1, -1))
        change = (high - low) / (2 * STEP)
        found, expected = oracle.inner(answer_of(given).gradient, direction), oracle.inner(upstream, change)
    assert math.isclose(float(found), float(expected), rel_tol=1e-9, abs_tol=1e-12)


@settings(max_examples=8)
@given(st.integers(1, 8), st.integers(0, 2**20))
def test_eigenvalues_and_vectors(size, seed):
    matrix = positive(size, seed)
    found = oracle.spectrum(matrix)
    np.testing.assert_allclose(
        sorted(map(float, found.eigenvalues)), np.linalg.eigvalsh(as_array(matrix)), rtol=1e-10, atol=1e-12
    )
    with oracle.exactly():
        assert oracle.norm(found.vectors.T * found.vectors - mpmath.eye(size)) < 1e-40
        back = found.vectors * mpmath.diag(found.eigenvalues) * found.vectors.T
        assert oracle.norm(back - matrix) < 1e-40 * oracle.norm(matrix)


def test_a_null_space_is_exactly_null():
    features = oracle.exact([[1.0, 0.5], [0.25, 1.0], [0.75, 0.75], [0.5, 0.125]])
    found = oracle.spectrum(oracle.moment(features))
    assert sum(value == 0 for value in found.eigenvalues) == 2
    assert oracle.spectrum(oracle.exact([[0.0, 0.0], [0.0, 0.0]])).eigenvalues == (0, 0)


@every_curve
def test_formulas_are_those_of_the_paper(name):
    scalar, formula = scalar_of(name), CURVES[name][1]
    for p in (0.015625, 0.25, 0.875, -0.25)[: 4 if scalar.signed else 3]:
        with oracle.exactly():
            assert math.isclose(float(scalar.value(mpf(p))), float(formula(mpmath.mpf(p))), rel_tol=1e-13)
            slope = (scalar.value(mpf(p) + STEP) - scalar.value(mpf(p) - STEP)) / (2 * STEP)
            assert math.isclose(float(scalar.slope(mpf(p))), float(slope), rel_tol=1e-12)


@every_curve
@pytest.mark.parametrize("size", [1, 4])
def test_spectral_values_and_gradients(name, size):
    scalar, matrix, upstream = scalar_of(name), positive(size), general(size, size)
    found = oracle.spectral(oracle.spectrum(matrix), upstream, scalar)
    array = as_array(matrix)
    divided = array / (np.trace(array) + 1e-6) if scalar.trace_normalize else array
    eigenvalues, vectors = np.linalg.eigh(divided)
    applied = [float(CURVES[name][1](mpmath.mpf(value))) for value in eigenvalues]
    np.testing.assert_allclose(as_array(found.value), (vectors * applied) @ vectors.T, rtol=1e-10, atol=1e-12)
    direction = oracle.symmetric(general(size, size, seed=3))
    assert_is_gradient(lambda m: oracle.spectral(oracle.spectrum(m), upstream, scalar), matrix, upstream, direction)
    # No gradient exceeds the size that its error is measured against, except for the share of the trace.
    assert oracle.norm(found.gradient) <= 2 * found.gradient_size


@every_curve
def test_elementwise_values_and_gradients(name):
    scalar, upstream = scalar_of(name), general(3, 3)
    matrix = oracle.moment(oracle.exact(np.random.default_rng(4).uniform(0.1, 1, size=(3, 4)).tolist()))
    array = as_array(matrix)
    points = array / (np.trace(array) + 1e-6) if scalar.trace_normalize else array
    points = points + (1e-6 if scalar.adds_eps else 0)
    expected = [[float(CURVES[name][1](mpmath.mpf(p))) for p in row] for row in points]
    found = oracle.elementwise(matrix, upstream, scalar)
    np.testing.assert_allclose(as_array(found.value), expected, rtol=1e-12)
    assert_is_gradient(lambda m: oracle.elementwise(m, upstream, scalar), matrix, upstream, general(3, 3, seed=3))


def test_gradients_of_features_pass_through_the_moment():
    features, upstream, scalar = general(3, 5), general(3, 3, seed=1), scalar_of("maxexp")

    def answer_of(x: oracle.Matrix) -> oracle.Answer:
        return oracle.pool(x, oracle.spectrum(oracle.moment(x)), upstream, scalar)

    assert_is_gradient(answer_of, features, upstream, general(3, 5, seed=2))
    x = as_array(features)
    np.testing.assert_allclose(as_array(oracle.moment(features)), x @ x.T / 5, rtol=1e-12)


def test_newton_schulz_tends_to_the_square_root():
    matrix, upstream = positive(4), general(4, 4)
    found = oracle.square_root(oracle.spectrum(matrix), upstream, 40)
    np.testing.assert_allclose(as_array(found.value), scipy.linalg.sqrtm(as_array(matrix)).real, rtol=1e-9, atol=1e-10)
    for iterations in (1, 5):
        direction = oracle.symmetric(general(4, 4, seed=3))
        compute = partial(oracle.square_root, upstream=upstream, iterations=iterations)
        assert_is_gradient(lambda m, compute=compute: compute(oracle.spectrum(m)), matrix, upstream, direction)
    zero = oracle.exact([[0.0, 0.0], [0.0, 0.0]])
    assert oracle.square_root(oracle.spectrum(zero), zero, 5).value == zero


def test_one_iteration_of_newton_schulz():
    """Y_1 = P (3I - P)/2 with P = M / tr M, times the root of the trace."""
    matrix = as_array(positive(4))
    divided = matrix / np.trace(matrix)
    expected = math.sqrt(np.trace(matrix)) * divided @ (3 * np.eye(4) - divided) / 2
    found = oracle.square_root(oracle.spectrum(positive(4)), general(4, 4), 1)
    np.testing.assert_allclose(as_array(found.value), expected, rtol=1e-11)


def test_the_gradient_of_a_parameter():
    matrix, upstream = positive(4), general(4, 4)
    found, size = oracle.parameter_slope(oracle.spectrum(matrix), upstream, reference.maxexp, mpf(20))
    array, sent = as_array(matrix), as_array(upstream)

    def loss(eta: mpmath.mpf) -> mpmath.mpf:
        values, vectors = mpmath.eigsy(mpmath.matrix((array / (float(np.trace(array)) + 1e-6)).tolist()))
        value = vectors * mpmath.diag([1 - (1 - v) ** eta for v in values]) * vectors.T
        return sum(mpmath.mpf(sent[i, j]) * value[i, j] for i in range(4) for j in range(4))

    assert math.isclose(float(found), float(mpmath.diff(loss, 20)), rel_tol=1e-10)
    assert abs(found) <= size
