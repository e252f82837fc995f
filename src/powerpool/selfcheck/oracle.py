r"""Reference answers in 50 decimal digits, computed by textbook formulas.

The oracle of ``powerpool selfcheck`` and of the tests. It computes with mpmath, which comes with torch: no LAPACK or
BLAS, and no code of the library. Gradients come from the Daleckii-Krein formula

.. math:: \frac{\partial L}{\partial M} = U \bigl((U^T \operatorname{sym}(G)\, U) \odot K\bigr) U^T, \qquad
          K_{ij} = \frac{g(\lambda_i)-g(\lambda_j)}{\lambda_i-\lambda_j}

with plain differences, for which 50 digits are enough. A double converts to a number of mpmath without rounding, so the
oracle and the library see the same input to the last bit. The formulas of the curves are in
:mod:`powerpool.bench.reference`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

import mpmath
from mpmath import matrix, mpf

from powerpool.bench.reference import Scalar

Number: TypeAlias = Any
Matrix: TypeAlias = Any
"""A number and a matrix of mpmath."""

EPS = mpf(1e-6)
"""Default ``eps`` of the library, which is added to the trace: the double, not exactly one millionth."""
NOISE = mpf("1e-30")
"""Eigenvalues below this part of the largest are 0: inputs contain none so small, and round-off is about 1e-48."""
STEP = mpf("1e-16")
"""Relative step of a difference in a parameter, which is then exact to 30 digits."""


def exactly() -> AbstractContextManager[Any]:
    """Compute with 50 decimal digits inside the ``with`` block."""
    context: AbstractContextManager[Any] = mpmath.workdps(50)
    return context


@dataclass(frozen=True)
class Answer:
    """A value and a gradient, and for each the size that its error is measured against."""

    value: Matrix
    value_size: Number
    gradient: Matrix
    gradient_size: Number
    """The largest gradient that this spectrum can produce. The gradient itself may be much smaller, because the curve
    is saturated or the trace cancels most of it, but its round-off is not."""


@dataclass(frozen=True)
class Spectrum:
    """A symmetric matrix and its decomposition U diag(lambda) U^T."""

    matrix: Matrix
    eigenvalues: tuple[Number, ...]
    vectors: Matrix


def spectrum(given: Matrix) -> Spectrum:
    """Decompose a symmetric matrix."""
    with exactly():
        values, vectors = mpmath.eigsy(given)
        largest = max(map(abs, values))
        return Spectrum(given, tuple(value if abs(value) > NOISE * largest else mpf(0) for value in values), vectors)


def spectral(given: Spectrum, upstream: Matrix, scalar: Scalar, eps: Number = EPS) -> Answer:
    """Apply a curve to the spectrum; ``upstream`` is the gradient of the loss with respect to the result."""
    with exactly():
        divisor = trace(given.matrix) + eps if scalar.trace_normalize else mpf(1)
        points = [value / divisor for value in given.eigenvalues]
        value = given.vectors * mpmath.diag([scalar.value(p) for p in points]) * given.vectors.T
        through, steepest = _through_spectrum(given.vectors, points, upstream, scalar)
        gradient = _through_division(through, given.matrix, divisor, scalar.trace_normalize)
        return Answer(value, norm(value), gradient, steepest * norm(symmetric(upstream)) / divisor)


def square_root(given: Spectrum, upstream: Matrix, iterations: int) -> Answer:
    """sqrt(tr M) Y_k(M / tr M); for the zero matrix value and gradient are 0."""
    with exactly():
        root = mpmath.sqrt(trace(given.matrix))
        if root == 0:
            return Answer(given.matrix, root, given.matrix, root)
        unit = spectral(given, upstream, newton_schulz(iterations), eps=mpf(0))
        restored = inner(upstream, unit.value) / (2 * root)
        gradient = unit.gradient * root + mpmath.eye(given.matrix.rows) * restored
        return Answer(unit.value * root, root * unit.value_size, gradient, root * unit.gradient_size)


def newton_schulz(iterations: int) -> Scalar:
    """Y_k of the coupled iteration on one eigenvalue: a polynomial in p that tends to its square root."""

    def iterate(p: Number) -> tuple[Number, Number]:
        y, z, y_slope, z_slope = p, mpf(1), mpf(1), mpf(0)
        for _ in range(iterations):
            w, w_slope = (3 - z * y) / 2, -(z_slope * y + z * y_slope) / 2
            y, y_slope = y * w, y_slope * w + y * w_slope
            z, z_slope = w * z, w_slope * z + w * z_slope
        return y, y_slope

    return Scalar(lambda p: iterate(p)[0], lambda p: iterate(p)[1])


def elementwise(given: Matrix, upstream: Matrix, scalar: Scalar) -> Answer:
    """Apply a curve to every entry."""
    with exactly():
        divisor = trace(given) + EPS if scalar.trace_normalize else mpf(1)
        points = given.apply(lambda entry: entry / divisor + (EPS if scalar.adds_eps else 0))
        value, slopes = points.apply(scalar.value), points.apply(scalar.slope)
        gradient = _through_division(_product(upstream, slopes), given, divisor, scalar.trace_normalize)
        secants = [abs(scalar.value(p) / p) for p in points if p]
        steepest = max([*secants, *map(abs, slopes)])
        return Answer(value, norm(value), gradient, steepest * norm(upstream) / divisor)


def parameter_slope(
    given: Spectrum, upstream: Matrix, make: Callable[[Number], Scalar], theta: Number
) -> tuple[Number, Number]:
    """Return dL/dtheta of :func:`spectral`, by a central difference, and the size its error is measured against."""
    with exactly():
        step = STEP * theta
        high, low = (spectral(given, upstream, make(theta + sign * step)).value for sign in (1, -1))
        change = (high - low) / (2 * step)
        return inner(upstream, change), norm(upstream) * norm(change)


def moment(features: Matrix) -> Matrix:  # shape: (C, N) -> (C, C)
    """X X^T / N."""
    with exactly():
        return features * features.T / features.cols


def pool(features: Matrix, given: Spectrum, upstream: Matrix, scalar: Scalar) -> Answer:
    """Apply a curve to the spectrum of :func:`moment`, whose decomposition is ``given``."""
    with exactly():
        top, scale = spectral(given, upstream, scalar), mpf(2) / features.cols
        gradient = symmetric(top.gradient) * features * scale
        return Answer(top.value, top.value_size, gradient, top.gradient_size * scale * norm(features))


# ---- matrices --------------------------------------------------------------------------------------------------------


def exact(rows: Sequence[Sequence[float]]) -> Matrix:
    """Convert doubles without rounding."""
    return matrix(rows)


def floats(given: Matrix) -> list[list[float]]:
    """Convert to the nearest doubles."""
    return [[float(entry) for entry in row] for row in given.tolist()]


def symmetric(given: Matrix) -> Matrix:
    """(A + A^T)/2."""
    return (given + given.T) / 2


def inner(a: Matrix, b: Matrix) -> Number:
    """The sum of A_ij B_ij."""
    return mpmath.fdot(a, b)


def norm(given: Matrix) -> Number:
    """The Frobenius norm."""
    return mpmath.sqrt(inner(given, given))


def trace(given: Matrix) -> Number:
    """The sum of the diagonal."""
    return mpmath.fsum(given[i, i] for i in range(given.rows))


def _product(a: Matrix, b: Matrix) -> Matrix:
    """A_ij B_ij."""
    return matrix([list(map(operator.mul, *rows)) for rows in zip(a.tolist(), b.tolist(), strict=True)])


def _through_spectrum(
    vectors: Matrix, points: Sequence[Number], upstream: Matrix, scalar: Scalar
) -> tuple[Matrix, Number]:
    """U ((U^T sym(G) U) * K) U^T, and the largest entry of K or secant to 0."""
    largest, values = max(map(abs, points)), {p: scalar.value(p) for p in points}

    def quotient(a: Number, b: Number) -> Number:
        if abs(a - b) > NOISE * largest:
            return (values[a] - values[b]) / (a - b)
        return mpf(0) if a == 0 and scalar.infinite_slope else scalar.slope(a)

    loewner = matrix([[quotient(a, b) for b in points] for a in points])
    through = vectors * _product(vectors.T * symmetric(upstream) * vectors, loewner) * vectors.T
    secants = [abs(values[p] / p) for p in points if p]  # every curve is 0 at 0
    return through, max([*secants, *map(abs, loewner)])


def _through_division(through: Matrix, given: Matrix, divisor: Number, divided: bool) -> Matrix:
    """The gradient with respect to M, from that with respect to M/(tr M + eps)."""
    if not divided:
        return through
    return through / divisor - mpmath.eye(given.rows) * (inner(through, given) / divisor**2)
