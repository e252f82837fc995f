"""Measures of spectra, matrices and features against NumPy, closed forms and counting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from powerpool.analysis.measures import (
    Repetition,
    correlations,
    effective_rank,
    gini,
    leading_share,
    mean_correlation,
    participation_ratio,
)
from powerpool.tasks.pooling import shares
from tests.tolerances import tolerance

numbers = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12)


@settings(max_examples=30)
@given(numbers, st.floats(1e-3, 1e3))
def test_ranks_are_scale_invariant_and_between_one_and_the_count(values, scale):
    amounts = torch.tensor(values, dtype=torch.float64)
    share = shares(amounts)
    for rank in (effective_rank, participation_ratio):
        assert 1 - 1e-9 <= float(rank(share)) <= len(values) * (1 + 1e-9)
        torch.testing.assert_close(rank(share), rank(shares(scale * amounts)), rtol=1e-9, atol=0)
    assert float(participation_ratio(share)) <= float(effective_rank(share)) * (1 + 1e-9)


@pytest.mark.parametrize("count", [1, 7])
def test_equal_shares_have_their_number_as_rank(count):
    share = torch.zeros(9, dtype=torch.float64)
    share[:count] = 1 / count
    torch.testing.assert_close(effective_rank(share).item(), float(count))
    torch.testing.assert_close(participation_ratio(share).item(), float(count))
    torch.testing.assert_close(leading_share(share, 1).item(), 1 / count)


@settings(max_examples=30)
@given(numbers)
def test_gini_is_the_mean_difference_over_twice_the_mean(values):
    e = np.array(values)
    expected = np.abs(e[:, None] - e[None]).sum() / (2 * len(e) * e.sum())
    torch.testing.assert_close(gini(torch.tensor(values, dtype=torch.float64)).item(), expected, rtol=1e-9, atol=1e-12)


def test_correlations_of_a_covariance_matrix_match_numpy():
    features = torch.randn(5, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    centred = features - features.mean(-1, keepdim=True)
    found = correlations(centred @ centred.T / 40)
    expected = np.corrcoef(features.numpy())
    torch.testing.assert_close(found, torch.tensor(expected), **tolerance(torch.float64))
    torch.testing.assert_close(mean_correlation(found).item(), np.abs(expected[~np.eye(5, dtype=bool)]).mean())


def test_features_without_energy_have_no_correlation():
    found = correlations(torch.tensor([[4.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]]))
    assert found[1].isnan().all()
    assert found[:, 1].isnan().all()
    assert mean_correlation(found).item() == 0.5
    assert mean_correlation(correlations(torch.ones(1, 1))).item() == 0.0  # no pair


# ---- burstiness ------------------------------------------------------------------------------------------------------


def count_repetitions(samples: list[torch.Tensor]) -> float:
    """P(active at another location of the sample | active at one) / P(active), by counting pairs."""
    together = pairs = active = locations = 0
    for sample in samples:
        values = sample[0].tolist()
        active, locations = active + sum(values), locations + len(values)
        for i, one in enumerate(values):
            for j, other in enumerate(values):
                if i != j:
                    pairs, together = pairs + 1, together + one * other
    return (together / pairs) / (active / locations) ** 2


def test_burstiness_of_binary_features_counts_repetitions():
    generator = torch.Generator().manual_seed(1)
    samples = [torch.bernoulli(torch.full((1, size), 0.4), generator=generator) for size in (3, 5, 8)]
    burst = Repetition(1)
    for sample in samples:
        burst.add(sample)
    torch.testing.assert_close(burst.value().item(), count_repetitions(samples))


@pytest.mark.parametrize("samples", [3, 30])
def test_burstiness_is_at_most_the_number_of_samples(samples):
    burst = Repetition(3)
    for number in range(samples):
        first, two = float(number == 0), float(number < 2)
        uneven = torch.rand(6, generator=torch.Generator().manual_seed(number)) ** (1 + 9 * number)
        burst.add(torch.stack([torch.full((6,), first), torch.full((6,), two), uneven]))
    torch.testing.assert_close(burst.value()[:2], torch.tensor([samples, samples / 2], dtype=torch.float64))
    assert burst.value()[2] <= samples
    assert burst.value(least=2).isnan().tolist() == [True, False, False]
    assert burst.value(least=3).isnan().tolist() == [True, True, False]


def test_burstiness_of_inactive_features_and_single_locations_is_nan():
    burst = Repetition(2)
    burst.add(torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    assert burst.value()[1].isnan()
    alone = Repetition(1)
    alone.add(torch.ones(1, 1))
    assert alone.value().isnan().all()
