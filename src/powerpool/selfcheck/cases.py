"""The inputs of the checks: curves, matrices with difficult spectra, sets of features.

Everything is drawn from Python's own generator and has so few digits that every dtype it is used in holds it exactly:
the rounding of inputs does not count as an error of the library.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from mpmath import mpf

from powerpool import curves
from powerpool.bench import reference
from powerpool.bench.reference import Scalar
from powerpool.curves import Curve
from powerpool.curves.base import Parameter
from powerpool.selfcheck import oracle
from powerpool.selfcheck.oracle import Matrix, Number, Spectrum

WIDE = (torch.float64, torch.float32)
HALF = (torch.bfloat16, torch.float16)
ALL = (*WIDE, *HALF)

Rows = list[list[float]]


@dataclass(frozen=True)
class CurveCase:
    """A curve of the library and its formula."""

    name: str
    """As in ``powerpool.curves.CURVES``."""
    theta: float
    make: Callable[[Parameter], Curve]
    formula: Callable[[Number], Scalar]
    points: tuple[float, float] = (1e-6, 0.9)
    """The range of magnitudes in which it is evaluated point by point."""
    learnable: bool = True
    """Whether a tensor parameter gives the same curve; a learnable FAHDP does not round its exponent."""

    @property
    def label(self) -> str:
        """The curve and its parameter."""
        return f"{self.name}({self.theta:g})"

    @cached_property
    def curve(self) -> Curve:
        """The curve of the library."""
        return self.make(self.theta)

    @cached_property
    def scalar(self) -> Scalar:
        """The formula of the oracle."""
        with oracle.exactly():
            return self.formula(mpf(self.theta))


CURVES = (
    CurveCase("gamma", 0.5, curves.Gamma, reference.gamma, (1e-6, 1e3)),
    CurveCase("gamma", 3, curves.Gamma, reference.gamma, (1e-6, 1e3)),
    CurveCase("maxexp", 20, curves.MaxExp, reference.maxexp),
    CurveCase("maxexp", 2.5, curves.MaxExp, reference.maxexp),
    CurveCase("signed_maxexp", 20, curves.SignedMaxExp, reference.signed_maxexp),
    CurveCase("asinhe", 10.0, curves.AsinhE, reference.asinhe, (1e-6, 1e3)),
    CurveCase("sigme", 50.0, curves.SigmE, reference.sigme, (1e-6, 0.3)),
    CurveCase(
        "sigme",
        5.0,
        partial(curves.SigmE, trace_normalize=False),
        partial(reference.sigme, trace_normalize=False),
        (1e-6, 3.0),
    ),
    # e^(-t/p) loses about log10(t/p) digits: below 0.01 a point-by-point comparison is meaningless.
    CurveCase("hdp", 0.125, curves.HDP, reference.hdp, (0.01, 1.0)),
    CurveCase("fahdp", 0.0625, curves.FAHDP, reference.fahdp, learnable=False),
    CurveCase("fahdp", 2.25, curves.FAHDP, reference.fahdp, (1e-3, 1.0), learnable=False),
    CurveCase("fahdp", 0.3125, partial(curves.FAHDP, rounding="identity"), partial(reference.fahdp, rounded=False)),
)


@dataclass(frozen=True)
class Given:
    """A positive semi-definite matrix (C, C), or features (C, N), and the gradient (C, C) of the loss."""

    name: str
    rows: Matrix
    upstream: Matrix
    """Not symmetric: the gradient from a layer above need not be."""
    dtypes: tuple[torch.dtype, ...] = ALL
    """Those that hold all entries exactly."""
    is_features: bool = False

    @cached_property
    def spectrum(self) -> Spectrum:
        """The decomposition of the matrix, or of the moment of the features; computed once for all curves."""
        return oracle.spectrum(oracle.moment(self.rows) if self.is_features else self.rows)

    @property
    def is_singular(self) -> bool:
        """Whether some eigenvalues are 0, but not all."""
        return {value == 0 for value in self.spectrum.eigenvalues} == {True, False}

    @property
    def is_non_negative(self) -> bool:
        """Whether all entries are in the domain of every curve."""
        return min(self.rows) >= 0


def matrices(seed: int) -> list[Given]:
    """Matrices whose spectra are difficult in different ways."""
    draw = random.Random(f"matrices {seed}")
    full = _dominant_matrix(draw, 6)
    # Eighths: bfloat16 then also holds the sums of eight of them.
    levels = [draw.randint(2, 16) / 8 for _ in range(5)]
    tie, other = draw.randint(4, 8) / 8, draw.randint(10, 16) / 8
    near = [tie + k * 2.0**-18 for k in range(4)]
    apart = [k / 4 for k in range(8)]
    found: list[tuple[str, Rows, tuple[torch.dtype, ...]]] = [
        ("random", full, ALL),
        ("rank-deficient", _with_spectrum(draw, [*levels, *[0.0] * 3]), ALL),
        ("rank 3", _with_spectrum(draw, [*levels[:3], *[0.0] * 5]), ALL),
        ("repeated", _with_spectrum(draw, [tie] * 5 + [other] * 3), ALL),
        ("near ties", _with_spectrum(draw, [*near, *[other] * 4]), WIDE),
        ("separated", _with_spectrum(draw, [0.25 + level for level in apart]), ALL),
        ("separated, lower", _with_spectrum(draw, [0.125 + level for level in apart]), ALL),
        ("graded", _with_spectrum(draw, [2.0**-k for k in (0, 1, 3, 4, 6, 7, 9, 10)]), WIDE),
        ("identity", _diagonal([1.0] * 4), ALL),
        ("zero", _diagonal([0.0] * 4), WIDE),
        ("1 x 1", [[draw.randint(16, 127) / 64]], ALL),
        ("huge", _times(full, 2.0**40), WIDE),
        ("tiny", _times(full, 2.0**-40), WIDE),
    ]
    return [Given(name, oracle.exact(rows), _upstream(draw, len(rows)), dtypes) for name, rows, dtypes in found]


def feature_sets(seed: int) -> list[Given]:
    """Sets of features: fewer and more locations than channels, low rank, extreme scales."""
    draw = random.Random(f"features {seed}")
    few, many, almost = (_well_conditioned(draw, *shape) for shape in ((8, 4), (4, 8), (6, 5)))
    repeated = [[*row, *row] for row in _well_conditioned(draw, 8, 2)]
    found = [
        ("few locations", few, ALL),
        ("many locations", many, ALL),
        ("almost square", almost, ALL),
        ("repeated locations", repeated, ALL),
        ("orthogonal", _times(_diagonal([1.0] * 4), 2.0), ALL),
        ("one location", _grid(draw, 4, 1), ALL),
        ("one channel", _grid(draw, 1, 8), ALL),
        ("zero", [[0.0] * 2 for _ in range(4)], WIDE),
        ("huge", _times(few, 2.0**20), WIDE),
        ("tiny", _times(few, 2.0**-20), WIDE),
        # A steep curve resolves the null space of this one to the noise floor of float64, not to its round-off.
        ("repeated locations, large", _times(repeated, 2.0**12), (torch.float32,)),
    ]
    return [Given(name, oracle.exact(rows), _upstream(draw, len(rows)), dtypes, True) for name, rows, dtypes in found]


def points(case: CurveCase, seed: int, count: int = 40) -> list[float]:
    """0, and float32 numbers whose magnitudes are even on a logarithmic scale."""
    draw = random.Random(f"points {case.label} {seed}")
    low, high = map(math.log, case.points)
    found = [math.exp(draw.uniform(low, high)) for _ in range(count)]
    if case.scalar.signed:
        found = [x * draw.choice((-1, 1)) for x in found]
    rounded: list[float] = torch.tensor(found, dtype=torch.float32).double().tolist()
    return [0.0, *rounded]


def _grid(draw: random.Random, channels: int, locations: int) -> Rows:
    """Features 1/8 ... 1; no zeros, so that no channel is empty."""
    return [[draw.randint(1, 8) / 8 for _ in range(locations)] for _ in range(channels)]


def _well_conditioned(draw: random.Random, channels: int, locations: int) -> Rows:
    """A grid of full rank. Some grids are nearly rank-deficient, and float32 loses digits there with any solver."""
    while True:
        rows = _grid(draw, channels, locations)
        exact = oracle.exact(rows)
        values = oracle.spectrum(oracle.moment(exact if channels <= locations else exact.T)).eigenvalues
        if min(values) > max(values) / 400:
            return rows


def _upstream(draw: random.Random, size: int) -> Matrix:
    """Odd eighths, so that no entry is 0."""
    return oracle.exact([[(2 * draw.randint(-4, 3) + 1) / 8 for _ in range(size)] for _ in range(size)])


def _dominant_matrix(draw: random.Random, size: int) -> Rows:
    """A symmetric matrix of 64ths without negative entries, positive definite because its diagonal dominates."""
    rows = _diagonal([draw.randint(64, 112) / 64 for _ in range(size)])
    for i in range(size):
        for j in range(i):
            rows[i][j] = rows[j][i] = draw.randint(0, 11) / 64
    return rows


def _with_spectrum(draw: random.Random, values: list[float]) -> Rows:
    """A matrix with exactly these eight eigenvalues; its basis is a Hadamard matrix with permuted, signed rows."""
    rows = [[(-1.0) ** (i & j).bit_count() for j in range(8)] for i in range(8)]
    draw.shuffle(rows)
    rows = [[x * sign for x in row] for row in rows if (sign := draw.choice((-1.0, 1.0)))]
    draw.shuffle(values)
    return [[sum(v * a * b for v, a, b in zip(values, p, q, strict=True)) / 8 for q in rows] for p in rows]


def _diagonal(values: list[float]) -> Rows:
    return [[value if i == j else 0.0 for j in range(len(values))] for i, value in enumerate(values)]


def _times(rows: Rows, factor: float) -> Rows:
    return [[factor * x for x in row] for row in rows]
