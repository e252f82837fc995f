"""Suggested parameters: exact for spectra with a known answer, and independent of scale and order."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

import powerpool as pp
from powerpool.analysis.result import _number_text
from powerpool.analysis.suggestion import CURVES, fahdp_time, suggest
from powerpool.errors import ArgumentError, ShapeError
from powerpool.theory import eta_prime_of_eta
from tests.analysis.custom_curve import Straight


def even(count: int, size: int = 20, samples: int = 3) -> torch.Tensor:
    share = torch.zeros(samples, size, dtype=torch.float64)
    share[:, :count] = 1 / count
    return share


def test_random_shares_have_the_mean_entropy_of_a_dirichlet_distribution():
    # Shares of a flat Dirichlet distribution over C have the mean entropy digamma(C + 1) - digamma(2).
    size = 50
    weights = -torch.rand(4000, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).log()
    share = weights / weights.sum(-1, keepdim=True)
    expected = math.exp(special.digamma(size + 1) - special.digamma(2))
    assert suggest(share, torch.ones(4000)).eta == round(expected) == 33


def test_all_fields_match_closed_forms():
    # 2, 8 and 4 equal eigenvalues have the geometric mean 4. The mean of the traces is 4, too.
    share = torch.cat([even(count, samples=1) for count in (2, 8, 4)])
    found = suggest(share, torch.tensor([1.0, 3.0, 8.0]))
    e = math.e
    assert (found.eta, found.low, found.high, found.trace) == (4.0, 2.0, 40.0, 4.0)
    assert found.asinhe_gamma == pytest.approx(4 / 4)
    assert found.t == pytest.approx(e / (e - 1) * 4**4 / 5**5)
    assert found.sigme_eta == pytest.approx(eta_prime_of_eta(4.0))
    # The t of exponent 3.75, rounded to three digits, which keep the exponent between 3.5 and 4.
    assert found.t_fahdp == float(f"{e / (e - 1) / (1 + e * math.sqrt(3.75 * 2.75)):.3g}")
    # Equal eigenvalues have no slope. Two of the leading four eigenvalues of the first sample are 0: its spread is 1.
    assert found.gamma == 1.0
    assert found.spread_before == pytest.approx(1 / 3)
    assert found.spread_after == pytest.approx(1 / 3)


@pytest.mark.parametrize("trace", [0.01, 40.0])
def test_sigme_without_trace_normalization_gives_the_same_matrix(trace):
    found = suggest(even(8), torch.full((3,), trace))
    divided, plain = pp.SigmE(eta=1.0), pp.SigmE(eta=1.0, trace_normalize=False)
    matrix = trace * torch.linspace(-0.1, 0.1, 5, dtype=torch.float64)
    for one, other in zip(
        (found.of(divided), *found.range_of(divided)), (found.of(plain), *found.range_of(plain)), strict=True
    ):
        expected = pp.SigmE(eta=one).value(matrix / trace)
        torch.testing.assert_close(pp.SigmE(eta=other, trace_normalize=False).value(matrix), expected)


@settings(max_examples=50)
@given(st.integers(1, 3000), st.sampled_from(["ceil", "round"]))
def test_printed_digits_of_fahdp_give_the_exponent(eta, rounding):
    t = float(_number_text(fahdp_time(float(eta)), pp.FAHDP(t=1.0)))
    assert pp.FAHDP(t=t, rounding=rounding).exponent(t) == eta


def test_single_eigenvalue_gets_identities():
    found = suggest(even(1), torch.ones(3))
    assert found.range_of(pp.Gamma(0.5)) == (1.0, 1.0)
    identity = pp.FAHDP(t=found.t_fahdp)
    p = torch.linspace(0, 1, 7, dtype=torch.float64)
    torch.testing.assert_close(identity.value(p), p * math.exp(-found.t_fahdp))


def test_range_contains_half_ten_times_and_most_samples():
    one = suggest(even(8), torch.ones(3))
    assert (one.low, one.high) == (4, 80)
    wide = suggest(torch.cat([even(1, 40, samples=8), even(40, 40, samples=2)]), torch.ones(10))
    assert (wide.low, wide.eta, wide.high) == (1, 2, 40)


def test_gamma_is_the_weighted_log_log_slope():
    share = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64)
    found = suggest(share, torch.ones(1))
    p = share[0]
    x, y = p.log(), (1 - (1 - p) ** found.eta).log()
    # Weighted least squares over slope and offset.
    design = torch.stack([x, torch.ones(3, dtype=torch.float64)], dim=1) * p.sqrt()[:, None]
    slope = torch.linalg.lstsq(design, (y * p.sqrt())[:, None]).solution[0].item()
    assert found.gamma == pytest.approx(slope, rel=1e-9)
    assert 0 < found.gamma < 1


@settings(max_examples=30)
@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=20), st.randoms(use_true_random=False))
def test_order_does_not_matter_and_all_parameters_are_valid(values, random):
    share = torch.tensor([values], dtype=torch.float64)
    share /= share.sum()
    order = list(range(len(values)))
    random.shuffle(order)
    one, other = suggest(share, torch.ones(1)), suggest(share[:, order], torch.ones(1))
    assert (one.eta, one.t) == (other.eta, other.t)
    assert one.gamma == pytest.approx(other.gamma, rel=1e-6)
    for kind in CURVES:
        curve = kind(one.of(kind(1.0)))  # raises if the parameter is invalid
        low, high = one.range_of(curve)
        assert low <= one.of(curve) * (1 + 1e-9)
        assert one.of(curve) <= high * (1 + 1e-9)


def test_old_names_of_fields_warn():
    found = suggest(even(8), torch.full((3,), 2.0))
    with pytest.warns(DeprecationWarning, match="sigme_eta"):
        assert found.eta_prime == found.sigme_eta
    with pytest.warns(DeprecationWarning, match="asinhe_gamma"):
        assert found.gamma_prime == found.asinhe_gamma


def test_bad_input():
    with pytest.raises(ShapeError, match=r"\(0, 3\)"):
        suggest(torch.zeros(0, 3), torch.zeros(0))
    with pytest.raises(ArgumentError, match="Straight"):
        suggest(even(2), torch.ones(3)).of(Straight(1.0))
