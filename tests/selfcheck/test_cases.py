"""The cases are what their names say, in every dtype, whatever the seed."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import powerpool as pp
from powerpool.selfcheck import cases, oracle

seeds = st.integers(0, 2**32 - 1)


def _by_name(seed: int) -> dict[str, cases.MatrixCase]:
    return {case.name: case for case in cases.matrices(seed)}


def _sorted(case: cases.MatrixCase) -> list[Decimal]:
    return sorted(case.spectrum.eigenvalues)


@settings(max_examples=20)
@given(seeds)
def test_every_dtype_holds_every_number(seed):
    everything = [*cases.matrices(seed), *cases.separated(seed), *cases.singular(seed), *cases.entries(seed)]
    for case in [*everything, *cases.feature_sets(seed)]:
        given_rows = case.matrix if isinstance(case, cases.MatrixCase) else case.features
        for rows in (given_rows, case.upstream):
            exact = torch.tensor(oracle.floats(rows), dtype=torch.float64)
            for dtype in case.dtypes:
                assert torch.equal(exact.to(dtype).double(), exact), (case.name, dtype)
    for case in everything:
        assert case.matrix == oracle.transpose(case.matrix), case.name
        assert case.upstream != oracle.transpose(case.upstream) or len(case.matrix) == 1, case.name
        assert all(entry for row in case.upstream for entry in row), case.name


@settings(max_examples=4)
@given(seeds)
def test_spectra_are_what_they_are_called(seed):
    found = _by_name(seed)
    assert _sorted(found["random"])[0] > Decimal("0.1")
    assert [value == 0 for value in _sorted(found["rank-deficient"])] == [True] * 3 + [False] * 5
    repeated = _sorted(found["repeated"])
    assert repeated[4] - repeated[0] < Decimal("1e-40") < repeated[5] - repeated[4]
    near = _sorted(found["near ties"])
    for low, high in itertools.pairwise(near[:4]):
        assert abs(high - low - Decimal(2) ** -18) < Decimal("1e-40")
    assert abs(_sorted(found["graded"])[0] * 1024 - 1) < Decimal("1e-40")
    assert set(_sorted(found["zero"])) == {0}
    assert len(found["1 x 1"].matrix) == 1


@settings(max_examples=4)
@given(seeds)
def test_separated_spectra_have_gaps_and_singular_ones_a_null_space(seed):
    first, second = cases.separated(seed)
    for case in (first, second):
        assert min(high - low for low, high in itertools.pairwise(_sorted(case))) > Decimal("0.2499")
        assert _sorted(case)[0] > Decimal("0.1249")
    assert first.matrix != second.matrix
    (singular,) = cases.singular(seed)
    assert [value == 0 for value in _sorted(singular)] == [True] * 5 + [False] * 3
    assert singular.is_singular
    assert [case.name for case in cases.matrices(seed) if case.is_singular] == ["rank-deficient"]


def test_seeds_make_different_problems_and_come_back():
    assert cases.matrices(0) == cases.matrices(0)
    assert cases.matrices(0)[0] != cases.matrices(1)[0]
    assert cases.feature_sets(0)[0] != cases.feature_sets(1)[0]


def test_every_curve_of_the_library_is_there():
    assert {case.name for case in cases.CURVES} == set(pp.curves.CURVES)
    for case in cases.CURVES:
        assert type(case.curve) is pp.curves.CURVES[case.name]
        assert case.scalar.trace_normalize == case.curve.trace_normalize
        assert case.scalar.adds_eps == case.curve.adds_eps
        assert case.scalar.infinite_slope == case.curve.has_infinite_slope


@pytest.mark.parametrize("case", cases.CURVES, ids=lambda case: case.label)
def test_points_are_in_the_domain_and_numbers_of_float32(case):
    points = cases.points(case, seed=3)
    low, high = case.curve.domain
    assert points[0] == 0
    assert all(low <= p <= high for p in points)
    assert any(p < 0 for p in points) == case.signed
    assert torch.tensor(points, dtype=torch.float32).double().tolist() == points
