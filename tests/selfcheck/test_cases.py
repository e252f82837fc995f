"""The inputs are what their names say, in every dtype, for any seed."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

import powerpool as pp
from powerpool.selfcheck import cases, oracle

seeds = st.integers(0, 2**32 - 1)
TINY = mpf("1e-40")


@settings(max_examples=10)
@given(seeds)
def test_every_dtype_holds_every_number(seed):
    for case in [*cases.matrices(seed), *cases.feature_sets(seed)]:
        for rows in (case.rows, case.upstream):
            exact = torch.tensor(oracle.floats(rows), dtype=torch.float64)
            for dtype in case.dtypes:
                assert torch.equal(exact.to(dtype).double(), exact), (case.name, dtype)
        assert all(case.upstream), case.name
        if not case.is_features:
            assert case.rows == case.rows.T, case.name
            assert case.upstream != case.upstream.T or case.rows.rows == 1, case.name


@settings(max_examples=4)
@given(seeds)
def test_spectra_are_as_named(seed):
    found = {case.name: sorted(case.spectrum.eigenvalues) for case in cases.matrices(seed)}
    assert found["random"][0] > mpf("0.1")
    assert [value == 0 for value in found["rank-deficient"]] == [True] * 3 + [False] * 5
    assert [value == 0 for value in found["rank 3"]] == [True] * 5 + [False] * 3
    assert found["repeated"][4] - found["repeated"][0] < TINY < found["repeated"][5] - found["repeated"][4]
    for low, high in itertools.pairwise(found["near ties"][:4]):
        assert abs(high - low - mpf(2) ** -18) < TINY
    for name, lowest in (("separated", "0.25"), ("separated, lower", "0.125")):
        assert abs(found[name][0] - mpf(lowest)) < TINY
        assert min(high - low for low, high in itertools.pairwise(found[name])) > mpf("0.2499")
    assert abs(found["graded"][0] * 1024 - 1) < TINY
    assert set(found["zero"]) == {0}
    assert len(found["1 x 1"]) == 1
    singular = [case.name for case in cases.matrices(seed) if case.is_singular]
    assert singular == ["rank-deficient", "rank 3"]


def test_seeds_give_different_inputs_that_can_be_repeated():
    assert cases.matrices(0) == cases.matrices(0)
    assert cases.matrices(0)[0] != cases.matrices(1)[0]
    assert cases.feature_sets(0)[0] != cases.feature_sets(1)[0]


def test_every_curve_of_the_library_has_a_case():
    assert {case.name for case in cases.CURVES} == set(pp.curves.CURVES)
    for case in cases.CURVES:
        assert type(case.curve) is pp.curves.CURVES[case.name]
        assert case.scalar.trace_normalize == case.curve.trace_normalize
        assert case.scalar.adds_eps == case.curve.adds_eps
        assert case.scalar.infinite_slope == case.curve.has_infinite_slope
        assert case.scalar.signed == (case.curve.domain[0] < 0)


@pytest.mark.parametrize("case", cases.CURVES, ids=lambda case: case.label)
def test_points_are_float32_numbers_in_the_domain(case):
    points = cases.points(case, seed=3)
    low, high = case.curve.domain
    assert points[0] == 0
    assert all(low <= p <= high for p in points)
    assert any(p < 0 for p in points) == case.scalar.signed
    assert torch.tensor(points, dtype=torch.float32).double().tolist() == points
