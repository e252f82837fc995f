r"""Reference answers in 50 decimal digits, computed by textbook formulas.

The oracle of ``powerpool selfcheck`` and of the tests. It uses Python's ``decimal`` and nothing else: no torch, LAPACK
or BLAS, and no code of the library. Eigenvalues come from Jacobi rotations, gradients from the Daleckii-Krein formula

.. math:: \frac{\partial L}{\partial M} = U \bigl((U^T \operatorname{sym}(G)\, U) \odot K\bigr) U^T, \qquad
          K_{ij} = \frac{g(\lambda_i)-g(\lambda_j)}{\lambda_i-\lambda_j}

with plain differences, for which 50 digits are enough. Matrices are tuples of rows. A double converts to a decimal
number without rounding, so the oracle and the library see the same input to the last bit.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import TypeAlias

Vector: TypeAlias = tuple[Decimal, ...]
Matrix: TypeAlias = tuple[Vector, ...]
Function: TypeAlias = Callable[[Decimal], Decimal]

ZERO, ONE, TWO = Decimal(0), Decimal(1), Decimal(2)
EPS = Decimal(1e-6)  # noqa: RUF032  # the double, not exactly one millionth
"""Default ``eps`` of the library: added to the trace."""
NOISE = Decimal("1e-30")
"""Eigenvalues below this part of the largest are 0: inputs contain none so small, and round-off is about 1e-48."""
STEP = Decimal("1e-16")
"""Relative step of a difference in a parameter, which is then exact to 30 digits."""


@contextmanager
def exactly() -> Iterator[None]:
    """Compute with 50 decimal digits inside the ``with`` block."""
    with localcontext(Context(prec=50)):
        yield


# ---- curves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """A curve as two formulas, value and derivative."""

    value: Function
    slope: Function
    trace_normalize: bool = True
    adds_eps: bool = False
    """Whether the element-wise form adds eps to every entry."""
    infinite_slope: bool = False
    """Whether the slope at 0 is infinite: the gradient between null vectors is then defined as 0."""
    signed: bool = False
    """Whether the curve is defined for negative numbers."""


def gamma(theta: Decimal) -> Scalar:
    """p^gamma."""
    return Scalar(
        lambda p: p**theta if p > 0 else ZERO,
        lambda p: theta * _power(p, theta - 1) if p > 0 or theta >= 1 else ZERO,
        trace_normalize=False,
        adds_eps=True,
        infinite_slope=theta < 1,
    )


def maxexp(theta: Decimal, scale: Decimal = ONE) -> Scalar:
    """scale (1 - (1-p)^eta)."""
    return Scalar(
        lambda p: scale * (1 - _power(1 - p, theta)),
        lambda p: scale * theta * _power(1 - p, theta - 1),
    )


def signed_maxexp(theta: Decimal) -> Scalar:
    """sign(p) (1 - (1-|p|)^eta)."""
    return Scalar(
        lambda p: (1 - _power(1 - abs(p), theta)).copy_sign(p),
        lambda p: theta * _power(1 - abs(p), theta - 1),
        signed=True,
    )


def asinhe(theta: Decimal) -> Scalar:
    """log(x + sqrt(1 + x^2)) with x = gamma p."""
    return Scalar(
        lambda p: (abs(theta * p) + (1 + (theta * p) ** 2).sqrt()).ln().copy_sign(p),
        lambda p: theta / (1 + (theta * p) ** 2).sqrt(),
        trace_normalize=False,
        signed=True,
    )


def sigme(theta: Decimal, trace_normalize: bool = True) -> Scalar:
    """2/(1 + e^(-eta p)) - 1."""
    return Scalar(
        lambda p: (2 / (1 + (-theta * abs(p)).exp()) - 1).copy_sign(p),
        lambda p: 2 * theta * (-theta * abs(p)).exp() / (1 + (-theta * abs(p)).exp()) ** 2,
        trace_normalize,
        signed=True,
    )


def hdp(theta: Decimal) -> Scalar:
    """e^(-t/p), 0 at 0."""
    return Scalar(
        lambda p: (-theta / p).exp() if p > 0 else ZERO,
        lambda p: theta / p**2 * (-theta / p).exp() if p > 0 else ZERO,
    )


def fahdp(theta: Decimal, rounded: bool = True) -> Scalar:
    """e^-t (1 - (1-p)^n) for t < 1, e^-t p^n for t >= 1; the exponent n is rounded up or down, respectively."""
    if theta >= 1:
        power = gamma(Decimal(math.floor(theta)) if rounded else theta)
        return Scalar(lambda p: (-theta).exp() * power.value(p), lambda p: (-theta).exp() * power.slope(p))
    inner = 1 / (theta * (ONE.exp() - 1)) - 1 / ONE.exp()
    exponent = ONE / 2 + (ONE / 4 + inner**2).sqrt()
    return maxexp(Decimal(math.ceil(exponent)) if rounded else exponent, (-theta).exp())


def newton_schulz(iterations: int) -> Scalar:
    """Y_k of the coupled iteration on one eigenvalue: a polynomial in p that tends to its square root."""

    def iterate(p: Decimal) -> tuple[Decimal, Decimal]:
        y, z, y_slope, z_slope = p, ONE, ONE, ZERO
        for _ in range(iterations):
            w, w_slope = (3 - z * y) / 2, -(z_slope * y + z * y_slope) / 2
            y, y_slope = y * w, y_slope * w + y * w_slope
            z, z_slope = w * z, w_slope * z + w * z_slope
        return y, y_slope

    return Scalar(lambda p: iterate(p)[0], lambda p: iterate(p)[1])


# ---- matrix functions and their gradients ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A value and a gradient, and for each the size that its error is measured against."""

    value: Matrix
    value_size: Decimal
    gradient: Matrix
    gradient_size: Decimal
    """The largest gradient that this spectrum can produce. The gradient itself may be much smaller, because the curve
    is saturated or the trace cancels most of it, but its round-off is not."""


@dataclass(frozen=True)
class Spectrum:
    """A symmetric matrix and its decomposition U diag(lambda) U^T."""

    matrix: Matrix
    eigenvalues: Vector
    vectors: Matrix


def spectrum(matrix: Matrix) -> Spectrum:
    """Decompose a symmetric matrix by cyclic Jacobi rotations."""
    with exactly():
        size = len(matrix)
        a = [list(row) for row in matrix]
        v = [list(row) for row in identity(size)]
        total = inner(matrix, matrix)
        while sum((a[i][j] ** 2 for i in range(size) for j in range(i)), ZERO) > total * Decimal("1e-96"):
            for p in range(size):
                for q in range(p + 1, size):
                    _rotate(a, v, p, q)
        largest = max(abs(a[i][i]) for i in range(size))
        values = tuple(a[i][i] if abs(a[i][i]) > NOISE * largest else ZERO for i in range(size))
        return Spectrum(matrix, values, tuple(map(tuple, v)))


def spectral(given: Spectrum, upstream: Matrix, scalar: Scalar, eps: Decimal = EPS) -> Answer:
    """Apply a curve to the spectrum; ``upstream`` is the gradient of the loss with respect to the result."""
    with exactly():
        divisor = _trace(given.matrix) + eps if scalar.trace_normalize else ONE
        points = tuple(value / divisor for value in given.eigenvalues)
        value = from_eigen(given.vectors, tuple(map(scalar.value, points)))
        through, steepest = _through_spectrum(given.vectors, points, upstream, scalar)
        gradient = _through_division(through, given.matrix, divisor, scalar.trace_normalize)
        return Answer(value, norm(value), gradient, steepest * norm(symmetric(upstream)) / divisor)


def square_root(given: Spectrum, upstream: Matrix, iterations: int) -> Answer:
    """sqrt(tr M) Y_k(M / tr M); for the zero matrix value and gradient are 0."""
    with exactly():
        trace, size = _trace(given.matrix), len(given.matrix)
        if trace == 0:
            return Answer(given.matrix, ZERO, given.matrix, ZERO)
        unit = spectral(given, upstream, newton_schulz(iterations), eps=ZERO)
        root = trace.sqrt()
        restored = inner(upstream, unit.value) / (2 * root)
        gradient = add(scaled(unit.gradient, root), scaled(identity(size), restored))
        return Answer(scaled(unit.value, root), root * unit.value_size, gradient, root * unit.gradient_size)


def elementwise(matrix: Matrix, upstream: Matrix, scalar: Scalar) -> Answer:
    """Apply a curve to every entry."""
    with exactly():
        divisor = _trace(matrix) + EPS if scalar.trace_normalize else ONE
        added = EPS if scalar.adds_eps else ZERO
        points = _each(lambda m: m / divisor + added, matrix)
        value, slopes = _each(scalar.value, points), _each(scalar.slope, points)
        through = _each(operator.mul, upstream, slopes)
        gradient = _through_division(through, matrix, divisor, scalar.trace_normalize)
        secants = [abs(scalar.value(p) / p) for row in points for p in row if p != 0]
        steepest = max([*secants, *(abs(slope) for row in slopes for slope in row)])
        return Answer(value, norm(value), gradient, steepest * norm(upstream) / divisor)


def parameter_slope(
    given: Spectrum, upstream: Matrix, make: Callable[[Decimal], Scalar], theta: Decimal
) -> tuple[Decimal, Decimal]:
    """Return dL/dtheta of :func:`spectral`, by a central difference, and the size its error is measured against."""
    with exactly():
        step = STEP * theta
        high, low = (spectral(given, upstream, make(theta + sign * step)).value for sign in (ONE, -ONE))
        change = _each(lambda a, b: (a - b) / (2 * step), high, low)
        return inner(upstream, change), norm(upstream) * norm(change)


def moment(features: Matrix) -> Matrix:  # shape: (C, N) -> (C, C)
    """X X^T / N."""
    with exactly():
        return scaled(product(features, transpose(features)), 1 / Decimal(len(features[0])))


def pool(features: Matrix, given: Spectrum, upstream: Matrix, scalar: Scalar) -> Answer:
    """Apply a curve to the spectrum of :func:`moment`, whose decomposition is ``given``."""
    with exactly():
        top = spectral(given, upstream, scalar)
        scale = TWO / Decimal(len(features[0]))
        gradient = scaled(product(symmetric(top.gradient), features), scale)
        return Answer(top.value, top.value_size, gradient, top.gradient_size * scale * norm(features))


# ---- matrix algebra --------------------------------------------------------------------------------------------------


def exact(rows: Sequence[Sequence[float]]) -> Matrix:
    """Convert doubles to decimal numbers without rounding."""
    return tuple(tuple(map(Decimal, row)) for row in rows)


def floats(matrix: Matrix) -> list[list[float]]:
    """Convert decimal numbers to the nearest doubles."""
    return [[float(entry) for entry in row] for row in matrix]


def identity(size: int) -> Matrix:
    """The identity matrix."""
    return tuple(tuple(ONE if i == j else ZERO for j in range(size)) for i in range(size))


def product(a: Matrix, b: Matrix) -> Matrix:
    """A B."""
    columns = transpose(b)
    return tuple(tuple(sum(map(operator.mul, row, column), ZERO) for column in columns) for row in a)


def transpose(matrix: Matrix) -> Matrix:
    """A^T."""
    return tuple(zip(*matrix, strict=True))


def symmetric(matrix: Matrix) -> Matrix:
    """(A + A^T)/2."""
    return _each(lambda a, b: (a + b) / 2, matrix, transpose(matrix))


def add(a: Matrix, b: Matrix) -> Matrix:
    """A + B."""
    return _each(operator.add, a, b)


def scaled(matrix: Matrix, factor: Decimal) -> Matrix:
    """A times a number."""
    return _each(lambda entry: entry * factor, matrix)


def inner(a: Matrix, b: Matrix) -> Decimal:
    """The sum of A_ij B_ij."""
    return sum((x * y for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)), ZERO)


def norm(matrix: Matrix) -> Decimal:
    """The Frobenius norm."""
    return inner(matrix, matrix).sqrt()


def from_eigen(vectors: Matrix, values: Vector) -> Matrix:
    """U diag(values) U^T."""
    return product(tuple(tuple(map(operator.mul, row, values)) for row in vectors), transpose(vectors))


def _each(function: Callable[..., Decimal], *matrices: Matrix) -> Matrix:
    return tuple(tuple(map(function, *rows)) for rows in zip(*matrices, strict=True))


def _trace(matrix: Matrix) -> Decimal:
    return sum((matrix[i][i] for i in range(len(matrix))), ZERO)


def _power(base: Decimal, exponent: Decimal) -> Decimal:
    return ONE if exponent == 0 else base**exponent  # decimal has no 0^0


def _rotate(a: list[list[Decimal]], v: list[list[Decimal]], p: int, q: int) -> None:
    """Make a_pq zero, in place."""
    if a[p][q] == 0:
        return
    ratio = (a[q][q] - a[p][p]) / (2 * a[p][q])
    tangent = ONE.copy_sign(ratio) / (abs(ratio) + (ratio**2 + 1).sqrt())
    cosine = 1 / (tangent**2 + 1).sqrt()
    sine = tangent * cosine
    for rows in (a, v):
        for row in rows:
            row[p], row[q] = cosine * row[p] - sine * row[q], sine * row[p] + cosine * row[q]
    a[p], a[q] = (
        [cosine * x - sine * y for x, y in zip(a[p], a[q], strict=True)],
        [sine * x + cosine * y for x, y in zip(a[p], a[q], strict=True)],
    )


def _through_spectrum(vectors: Matrix, points: Vector, upstream: Matrix, scalar: Scalar) -> tuple[Matrix, Decimal]:
    """U ((U^T sym(G) U) * K) U^T, and the largest entry of K or secant to 0."""
    largest = max(map(abs, points))

    def quotient(a: Decimal, b: Decimal) -> Decimal:
        if abs(a - b) > NOISE * largest:
            return (scalar.value(a) - scalar.value(b)) / (a - b)
        return ZERO if a == 0 and scalar.infinite_slope else scalar.slope(a)

    loewner = tuple(tuple(quotient(a, b) for b in points) for a in points)
    rotated = product(product(transpose(vectors), symmetric(upstream)), vectors)
    through = product(product(vectors, _each(operator.mul, rotated, loewner)), transpose(vectors))
    secants = [abs(quotient(a, ZERO)) for a in points if a != 0]
    return through, max([*secants, *(abs(entry) for row in loewner for entry in row)])


def _through_division(through: Matrix, matrix: Matrix, divisor: Decimal, divided: bool) -> Matrix:
    """The gradient with respect to M, from that with respect to M/(tr M + eps)."""
    if not divided:
        return through
    share = inner(through, matrix) / divisor**2
    return add(scaled(through, 1 / divisor), scaled(identity(len(matrix)), -share))
