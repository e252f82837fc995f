"""What the battery runs over: curves, spectra that are hard, sets of features.

Everything is drawn from Python's own generator, and has so few digits that it is the same number in every dtype that it
is used in: errors of rounding the input are no errors of the library.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, partial

import torch

from powerpool import curves
from powerpool.curves import Curve
from powerpool.curves.base import Parameter
from powerpool.selfcheck import oracle
from powerpool.selfcheck.oracle import Matrix, Scalar, Spectrum

WIDE = (torch.float64, torch.float32)
HALF = (torch.bfloat16, torch.float16)
ALL = (*WIDE, *HALF)


@dataclass(frozen=True)
class CurveCase:
    """A curve of the library beside its formula."""

    name: str
    """As in the table of curves."""
    theta: float
    make: Callable[[Parameter], Curve]
    formula: Callable[[Decimal], Scalar]
    points: tuple[float, float] = (1e-6, 0.9)
    """Between which magnitudes it is evaluated point by point."""
    signed: bool = False
    learnable: bool = True
    """Whether a tensor parameter is the same curve; FAHDP learns through an exponent that is not rounded."""

    @property
    def label(self) -> str:
        """The curve and its parameter."""
        return f"{self.name}({self.theta:g})"

    @cached_property
    def curve(self) -> Curve:
        """Of the library."""
        return self.make(self.theta)

    @cached_property
    def scalar(self) -> Scalar:
        """Of the oracle."""
        with oracle.exactly():
            return self.formula(Decimal(self.theta))


CURVES = (
    CurveCase("gamma", 0.5, curves.Gamma, oracle.gamma, (1e-6, 1e3)),
    CurveCase("gamma", 3, curves.Gamma, oracle.gamma, (1e-6, 1e3)),
    CurveCase("maxexp", 20, curves.MaxExp, oracle.maxexp),
    CurveCase("maxexp", 2.5, curves.MaxExp, oracle.maxexp),
    CurveCase("signed_maxexp", 20, curves.SignedMaxExp, oracle.signed_maxexp, signed=True),
    CurveCase("asinhe", 10.0, curves.AsinhE, oracle.asinhe, (1e-6, 1e3), signed=True),
    CurveCase("sigme", 50.0, curves.SigmE, oracle.sigme, (1e-6, 0.3), signed=True),
    CurveCase(
        "sigme",
        5.0,
        partial(curves.SigmE, trace_normalize=False),
        partial(oracle.sigme, trace_normalize=False),
        (1e-6, 3.0),
        signed=True,
    ),
    # e^(-t/p) loses as many digits as t/p has units: below 0.01 a comparison point by point says nothing.
    CurveCase("hdp", 0.125, curves.HDP, oracle.hdp, (0.01, 1.0)),
    CurveCase("fahdp", 0.0625, curves.FAHDP, oracle.fahdp, learnable=False),
    CurveCase("fahdp", 2.25, curves.FAHDP, oracle.fahdp, (1e-3, 1.0), learnable=False),
    CurveCase("fahdp", 0.3125, partial(curves.FAHDP, rounding="identity"), partial(oracle.fahdp, rounded=False)),
)


@dataclass(frozen=True)
class MatrixCase:
    """A positive semi-definite matrix, the gradient that arrives from above, and the dtypes that hold both."""

    name: str
    matrix: Matrix  # shape: (C, C)
    upstream: Matrix  # shape: (C, C), not symmetric: what a layer above sends down need not be
    dtypes: tuple[torch.dtype, ...] = ALL

    @cached_property
    def spectrum(self) -> Spectrum:
        """Decomposed once for all curves."""
        return oracle.spectrum(self.matrix)

    @property
    def is_singular(self) -> bool:
        """Whether there is a null space, and something beside it."""
        return {value == 0 for value in self.spectrum.eigenvalues} == {True, False}


@dataclass(frozen=True)
class FeatureCase:
    """A set of features, the gradient of its matrix, and the dtypes that hold both."""

    name: str
    features: Matrix  # shape: (C, N)
    upstream: Matrix  # shape: (C, C)
    dtypes: tuple[torch.dtype, ...] = ALL

    @cached_property
    def spectrum(self) -> Spectrum:
        """Of its moment."""
        return oracle.spectrum(oracle.moment(self.features))


def matrices(seed: int) -> list[MatrixCase]:
    """The spectra of the battery."""
    draw = random.Random(f"matrices {seed}")
    full = _random_matrix(draw, 6)
    # Below a whole the bits that bfloat16 holds, with room for the sum of eight.
    levels = [draw.randint(2, 16) / 8 for _ in range(5)]
    tie, other = draw.randint(4, 8) / 8, draw.randint(10, 16) / 8
    near = 2.0**-18
    found: list[tuple[str, list[list[float]], tuple[torch.dtype, ...]]] = [
        ("random", full, ALL),
        ("rank-deficient", _with_spectrum(draw, [*levels, 0.0, 0.0, 0.0]), ALL),
        ("repeated", _with_spectrum(draw, [tie] * 5 + [other] * 3), ALL),
        ("near ties", _with_spectrum(draw, [tie, tie + near, tie + 2 * near, tie + 3 * near, *[other] * 4]), WIDE),
        ("graded", _with_spectrum(draw, [2.0**-k for k in (0, 1, 3, 4, 6, 7, 9, 10)]), WIDE),
        ("identity", _diagonal([1.0] * 4), ALL),
        ("zero", _diagonal([0.0] * 4), WIDE),
        ("1 x 1", [[draw.randint(16, 127) / 64]], ALL),
        ("huge", _times(full, 2.0**40), WIDE),
        ("tiny", _times(full, 2.0**-40), WIDE),
    ]
    return [MatrixCase(name, oracle.exact(rows), _upstream(draw, len(rows)), dtypes) for name, rows, dtypes in found]


def separated(seed: int) -> list[MatrixCase]:
    """Two matrices whose eigenvalues are a quarter apart, for a solver that needs gaps."""
    draw = random.Random(f"separated {seed}")
    return [
        MatrixCase(
            name, oracle.exact(_with_spectrum(draw, [(lowest + 2 * k) / 8 for k in range(8)])), _upstream(draw, 8)
        )
        for name, lowest in (("separated", 2), ("separated, lower", 1))
    ]


def singular(seed: int) -> list[MatrixCase]:
    """A matrix of rank 3, beside the rank-deficient one of :func:`matrices`."""
    draw = random.Random(f"singular {seed}")
    rows = _with_spectrum(draw, [*(draw.randint(4, 16) / 8 for _ in range(3)), *[0.0] * 5])
    return [MatrixCase("of rank 3", oracle.exact(rows), _upstream(draw, 8))]


def entries(seed: int) -> list[MatrixCase]:
    """Matrices for element-wise curves: entries from 0 up, beside those with both signs ("signed ...")."""
    draw = random.Random(f"entries {seed}")
    positive = oracle.floats(oracle.moment(oracle.exact(_grid(draw, 6, 8))))
    mixed = [[x * draw.choice((-1, 1)) for x in row] for row in _grid(draw, 6, 8)]
    found = [
        ("random", positive),
        ("identity", _diagonal([1.0] * 4)),
        ("zero", _diagonal([0.0] * 4)),
        ("1 x 1", [[draw.randint(16, 127) / 64]]),
        ("huge", _times(positive, 2.0**40)),
        ("tiny", _times(positive, 2.0**-40)),
        ("signed", oracle.floats(oracle.moment(oracle.exact(mixed)))),
    ]
    return [MatrixCase(name, oracle.exact(rows), _upstream(draw, len(rows)), WIDE) for name, rows in found]


def feature_sets(seed: int) -> list[FeatureCase]:
    """Sets with fewer locations than channels and with more, of low rank, and of any scale."""
    draw = random.Random(f"features {seed}")
    few = _well_conditioned(draw, 8, 4)
    found = [
        ("few locations", few, ALL),
        ("many locations", _well_conditioned(draw, 4, 8), ALL),
        ("almost square", _well_conditioned(draw, 6, 5), ALL),
        ("twin locations", [[*row, *row] for row in _well_conditioned(draw, 8, 2)], ALL),
        ("orthogonal", _times(_diagonal([1.0] * 4), 2.0), ALL),
        ("one location", _grid(draw, 4, 1), ALL),
        ("one channel", _grid(draw, 1, 8), ALL),
        ("zero", [[0.0] * 2 for _ in range(4)], WIDE),
        ("huge", _times(few, 2.0**20), WIDE),
        ("tiny", _times(few, 2.0**-20), WIDE),
    ]
    return [FeatureCase(name, oracle.exact(rows), _upstream(draw, len(rows)), dtypes) for name, rows, dtypes in found]


def points(case: CurveCase, seed: int, count: int = 40) -> list[float]:
    """0, and magnitudes even on a logarithmic scale; all of them numbers of float32."""
    draw = random.Random(f"points {case.label} {seed}")
    low, high = map(math.log, case.points)
    found = [math.exp(draw.uniform(low, high)) for _ in range(count)]
    if case.signed:
        found = [x * draw.choice((-1, 1)) for x in found]
    rounded: list[float] = torch.tensor(found, dtype=torch.float32).double().tolist()
    return [0.0, *rounded]


def _grid(draw: random.Random, channels: int, locations: int) -> list[list[float]]:
    """Features 1/8 ... 1, without zeros so that no channel is empty."""
    return [[draw.randint(1, 8) / 8 for _ in range(locations)] for _ in range(channels)]


def _well_conditioned(draw: random.Random, channels: int, locations: int) -> list[list[float]]:
    """A grid of full rank. Among many seeds some are almost of less, and float32 then loses what no solver can keep."""
    while True:
        rows = _grid(draw, channels, locations)
        short = rows if channels <= locations else [list(column) for column in zip(*rows, strict=True)]
        values = oracle.spectrum(oracle.moment(oracle.exact(short))).eigenvalues
        if min(values) > max(values) / 400:
            return rows


def _upstream(draw: random.Random, size: int) -> Matrix:
    """Odd eighths, so that no entry is 0."""
    return oracle.exact([[(2 * draw.randint(-4, 3) + 1) / 8 for _ in range(size)] for _ in range(size)])


def _random_matrix(draw: random.Random, size: int) -> list[list[float]]:
    """A general basis and eigenvalues from 0.2 to 1.6, rounded to 64ths, which move them by less than 0.05."""
    basis: list[list[float]] = []
    while len(basis) < size:
        row = [draw.gauss(0, 1) for _ in range(size)]
        for _ in range(2):  # twice is enough
            for other in basis:
                share = sum(x * y for x, y in zip(row, other, strict=True))
                row = [x - share * y for x, y in zip(row, other, strict=True)]
        length = math.hypot(*row)
        if length > 0.1:
            basis.append([x / length for x in row])
    values = [draw.uniform(0.2, 1.6) for _ in range(size)]
    return [
        [
            round(64 * sum(v * row[min(i, j)] * row[max(i, j)] for v, row in zip(values, basis, strict=True))) / 64
            for j in range(size)
        ]
        for i in range(size)
    ]


def _with_spectrum(draw: random.Random, values: list[float]) -> list[list[float]]:
    """Exactly these eight eigenvalues: the basis is a Hadamard matrix, with rows exchanged and signs changed."""
    rows = [[(-1.0) ** (i & j).bit_count() for j in range(8)] for i in range(8)]
    draw.shuffle(rows)
    rows = [[x * sign for x in row] for row in rows if (sign := draw.choice((-1.0, 1.0)))]
    draw.shuffle(values)
    return [[sum(v * a * b for v, a, b in zip(values, p, q, strict=True)) / 8 for q in rows] for p in rows]


def _diagonal(values: list[float]) -> list[list[float]]:
    return [[value if i == j else 0.0 for j in range(len(values))] for i, value in enumerate(values)]


def _times(rows: list[list[float]], factor: float) -> list[list[float]]:
    return [[factor * x for x in row] for row in rows]
