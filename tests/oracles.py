"""Independent references: the formulas of ``powerpool.bench.reference`` in 50 digits, for mpmath and NumPy.

They share no code with the library. A *reference curve* is a function of an mpmath number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import mpmath
import numpy as np
from mpmath import mpf

from powerpool.bench import reference as formulas
from powerpool.bench.reference import Scalar

mpmath.mp.dps = 50


@dataclass
class Reference:
    """A curve by the formula of the paper."""

    scalar: Scalar

    def __post_init__(self) -> None:
        self.trace_normalize, self.signed = self.scalar.trace_normalize, self.scalar.signed
        self.infinite_slope = self.scalar.infinite_slope

    def value(self, p: mpf) -> mpf:
        return self.scalar.value(self._limit(p))

    def slope(self, p: mpf) -> mpf:
        return mpf(0) if p == 0 and self.infinite_slope else self.scalar.slope(self._limit(p))

    def _limit(self, p: mpf) -> mpf:
        return min(p, mpf(1)) if self.trace_normalize else p  # round-off beyond the domain


def _reference(formula: Callable[..., Scalar], theta: float, *options: bool) -> Reference:
    return Reference(formula(mpf(theta), *options))


gamma = partial(_reference, formulas.gamma)
maxexp = partial(_reference, formulas.maxexp)
signed_maxexp = partial(_reference, formulas.signed_maxexp)
asinhe = partial(_reference, formulas.asinhe)
sigme = partial(_reference, formulas.sigme)
hdp = partial(_reference, formulas.hdp)


def fahdp(t: float, rounding: str) -> Reference:
    return _reference(formulas.fahdp, t, rounding == "ceil")


def divided_difference(reference: Reference, a: float, b: float) -> float:
    """(g(a) - g(b))/(a - b) in 50 digits; a tie is the slope, and 0 if the slope at 0 is infinite."""
    x, y = mpf(a), mpf(b)
    return float((reference.value(x) - reference.value(y)) / (x - y) if x != y else reference.slope(x))


def spectral(matrix: np.ndarray, reference: Reference, eps: float = 1e-6, null: float = 0.0) -> np.ndarray:
    """U g(lambda) U^T of one float64 matrix.

    If the slope at 0 is infinite, eigenvalues below ``null`` times the largest are 0.
    """
    values, vectors, _ = _spectrum(matrix, reference, eps, null)
    applied = np.array([float(reference.value(mpf(v))) for v in values])
    return (vectors * applied) @ vectors.T


def spectral_gradient(
    matrix: np.ndarray,
    grad: np.ndarray,
    reference: Reference,
    eps: float = 1e-6,
    null: float = 0.0,
    shift: float = 0.0,
    snap: float = 0.0,
    through_trace: bool = True,
) -> np.ndarray:
    """dL/dM of one float64 matrix, dL/dPsi = ``grad``: Daleckii-Krein with 50-digit divided differences, then the
    quotient rule through the trace. ``shift`` changes normalised eigenvalues by that fraction of the largest, within
    [0, 1]; ``snap`` sets those to 0 that are below that fraction of the largest.
    """
    values, vectors, scale = _spectrum(matrix, reference, eps, null)
    values = np.where(np.abs(values) <= snap * np.abs(values).max(initial=0.0), 0.0, values) if snap else values
    if shift:
        moved = np.where(values != 0, values + shift * np.abs(values).max(initial=0.0), 0.0)
        values = np.minimum(moved, 1.0) if reference.trace_normalize else moved
    loewner = np.zeros((len(values), len(values)))
    for i, a in enumerate(values):
        for j, b in enumerate(values[: i + 1]):
            loewner[i, j] = loewner[j, i] = divided_difference(reference, a, b)
    through = vectors @ (loewner * (vectors.T @ ((grad + grad.T) / 2) @ vectors)) @ vectors.T
    if not (reference.trace_normalize and through_trace):
        return through / scale
    coupling = np.sum(through * matrix) / scale**2
    return through / scale - coupling * np.eye(len(matrix))


def _spectrum(
    matrix: np.ndarray, reference: Reference, eps: float, null: float
) -> tuple[np.ndarray, np.ndarray, float]:
    scale = float(np.trace(matrix) + eps) if reference.trace_normalize else 1.0
    values, vectors = np.linalg.eigh(matrix / scale)
    if not reference.signed:
        floor = null * np.abs(values).max(initial=0.0) if reference.infinite_slope else 0.0
        values = np.where(values <= floor, 0.0, values)
    return np.minimum(values, 1.0) if reference.trace_normalize else values, vectors, scale


def mp_spectral(matrix: mpmath.matrix, reference: Reference, eps: float) -> mpmath.matrix:
    """The spectral form in 50 digits."""
    scale = sum(matrix[i, i] for i in range(matrix.rows)) + mpf(eps) if reference.trace_normalize else mpf(1)
    values, vectors = mpmath.eigsy(matrix / scale)
    # With 50 digits an eigenvalue 0 is about 1e-45.
    largest = max(abs(v) for v in values)
    applied = [reference.value(v if abs(v) > largest * mpf("1e-40") else mpf(0)) for v in values]
    return vectors * mpmath.diag(applied) * vectors.T


def mp_directional(
    matrix: np.ndarray,
    path: Callable[[mpmath.matrix, mpf], mpmath.matrix],
    grad: np.ndarray,
    reference: Reference,
    eps: float,
    step: str = "1e-18",
) -> float:
    """d/dh <grad, g(path(M, h))> at h = 0+, by a one-sided difference in 50 digits."""
    base = mpmath.matrix(matrix.tolist())
    h = mpf(step)
    change = mp_spectral(path(base, h), reference, eps) - mp_spectral(path(base, mpf(0)), reference, eps)
    size = len(matrix)
    return float(sum(mpf(float(grad[i, j])) * change[i, j] for i in range(size) for j in range(size)) / h)


def coordinates(height: int, width: int, pivots: int, sigma: float = 0.5, alpha: float = 1.0) -> np.ndarray:
    """The codes of all locations of a map, (2Z, H W)."""
    centres = np.linspace(-0.2, 1.2, pivots)
    columns = []
    for row in range(height):
        for column in range(width):
            x, y = column / (width - 1), row / (height - 1)
            columns.append(alpha * np.exp(-((np.concatenate([x - centres, y - centres]) / sigma) ** 2)))
    return np.array(columns).T


def second_order(
    features: np.ndarray,
    reference: Reference | None = None,
    mode: str = "spectral",
    beta: float = 0.0,
    codes: np.ndarray | None = None,
    eps: float = 1e-6,
    trace_power: float = 0.0,
    slope: float = 0.0,
    added: float = 0.0,
) -> np.ndarray:
    """The vector of second-order pooling of one set (C, N), location by location.

    ``added`` is added to every entry before an element-wise curve.
    """
    mean = features.mean(axis=1)
    columns = [phi - beta * mean for phi in features.T]
    if codes is not None:
        columns = [np.concatenate([phi, code]) for phi, code in zip(columns, codes.T, strict=True)]
    moment = sum(np.outer(phi, phi) for phi in columns) / len(columns)
    scale = np.trace(moment) + eps
    if reference is None:
        result = moment
    elif mode == "spectral":
        result = spectral(moment, reference, eps, null=len(moment) * np.finfo(np.float64).eps)
    else:
        p = moment / scale if reference.trace_normalize else moment
        result = np.array([[float(reference.value(mpf(entry + added))) for entry in line] for line in p])
    result = result * scale**trace_power + slope * moment
    rows, columns_of = np.triu_indices(len(result))
    return result[rows, columns_of] * np.where(rows == columns_of, 1.0, np.sqrt(2.0))
