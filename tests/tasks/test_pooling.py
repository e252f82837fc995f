"""Mean spectra of test samples, against NumPy and on matrices with known spectra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import powerpool as pp
from powerpool.data import load_graphs
from powerpool.tasks.base import run_chain
from powerpool.tasks.fewshot.model import make_network, normalization
from powerpool.tasks.fewshot.testing import draw_episodes, episode_spectrum, run_episodes
from powerpool.tasks.graph.task import TASK, make_fold
from powerpool.tasks.pooling import FEWEST, MOST, VALUES, FeatureSet, Normalization, mean_spectrum, ranks, spread_out
from tests.tasks.fewshot import samples as fewshot_samples
from tests.tasks.graph import samples as graph_samples


def numpy_shares(matrix: np.ndarray) -> np.ndarray:
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[::-1]
    return values / values.sum()


def draw(count: int, channels: int, locations: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(channels, locations, generator=generator, dtype=torch.float64) for _ in range(count)]


@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 99))
def test_means_equal_those_of_numpy(count, channels, beta, seed):
    features = draw(count, channels, channels + 5, seed)
    found = mean_spectrum(Normalization("x", pp.MaxExp(eta=5), beta=beta, eps=0.0), map(FeatureSet, features))
    before = []
    for phi in (one.numpy() for one in features):
        centred = phi - beta * phi.mean(1, keepdims=True)
        before.append(numpy_shares(centred @ centred.T))
    after = [1 - (1 - shares) ** 5 for shares in before]
    assert (found.samples, found.size, found.ranks) == (count, channels, tuple(range(1, channels + 1)))
    np.testing.assert_allclose(found.before, np.mean(before, 0), rtol=1e-3)
    np.testing.assert_allclose(found.after, np.mean([one / one.sum() for one in after], 0), rtol=1e-3)


def test_an_elementwise_curve_gives_the_spectrum_of_the_pooled_matrix():
    features, curve = [one - 0.5 for one in draw(3, 6, 20)], pp.SigmE(eta=30.0)
    found = mean_spectrum(Normalization("x", curve, "elementwise"), map(FeatureSet, features))
    matrices = [pp.second_order_pool(one, curve, "elementwise").numpy() for one in features]
    np.testing.assert_allclose(found.after, np.mean([numpy_shares(one) for one in matrices], 0), rtol=1e-3)
    assert found.after != found.before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("curve", [None, pp.Gamma(0.5), pp.MaxExp(20)])
def test_eigenvalues_without_energy_are_zero(dtype, curve):
    features = torch.cat(draw(2, 20, 4)).to(dtype)  # four locations: no more eigenvalues than that
    found = mean_spectrum(Normalization("x", curve, eps=0.0), [FeatureSet(features)])
    for name in ("before", "after"):
        assert getattr(found, name)[4:] == (0.0,) * 36
        assert min(getattr(found, name)[:4]) > 1e-4


def test_large_matrices_keep_a_subset_of_eigenvalues():
    features = draw(2, 80, 200)
    found = mean_spectrum(Normalization("x"), map(FeatureSet, features))
    whole = np.mean([numpy_shares((one @ one.T).numpy()) for one in features], 0)
    assert len(found.ranks) == VALUES
    np.testing.assert_allclose(found.before, whole[np.array(found.ranks) - 1], rtol=1e-3)


@given(st.integers(1, 5000))
def test_ranks_rise_from_the_first_to_the_last(size):
    found = ranks(size)
    assert found[0] == 1
    assert found[-1] == size
    assert len(found) == min(size, VALUES)
    assert found == sorted(set(found))
    # Steps are about even in the logarithm, except where a rank must rise by 1.
    assert size <= VALUES or found[-1] / found[-2] < 1.2


@given(st.integers(0, 100_000))
def test_samples_are_evenly_spaced_and_nothing_is_drawn(count):
    state = torch.get_rng_state()
    found = spread_out(count).tolist()
    assert torch.equal(torch.get_rng_state(), state)
    assert found == sorted(set(found))
    assert len(found) <= min(count, MOST)
    assert len(found) >= min(count, FEWEST)
    if count:
        assert found[0] == 0
        assert count - found[-1] <= -(-count // len(found))


def test_a_first_order_pool_has_no_spectrum():
    assert mean_spectrum(Normalization("x", is_first_order=True), (1 / 0 for _ in range(1))) is None


def test_samples_without_energy_are_skipped():
    loud, alike = draw(1, 4, 9)[0], torch.full((4, 9), 0.1)
    centred = Normalization("x", beta=1.0)
    found = mean_spectrum(centred, map(FeatureSet, [alike, loud, torch.zeros(4, 9)]))
    assert found == mean_spectrum(centred, [FeatureSet(loud)])
    assert found.samples == 1
    assert mean_spectrum(centred, map(FeatureSet, [alike, torch.zeros(4, 9)])) is None
    assert mean_spectrum(centred, []) is None


# ---- in tests of models ----------------------------------------------------------------------------------------------


def assert_is_mean(found, own: Normalization, sets: list[FeatureSet]) -> None:
    """Compare with the spectra of single samples."""
    single = [mean_spectrum(own, [one]) for one in sets]
    assert found.samples == len(single)
    np.testing.assert_allclose(found.before, np.mean([one.before for one in single], 0), rtol=2e-3, atol=1e-6)
    np.testing.assert_allclose(found.after, np.mean([one.after for one in single], 0), rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["SOP+SigmE", "SOP+SpecMaxExpF", "GIN0"])
def test_a_fold_has_the_spectrum_of_its_test_graphs(method):
    config, data = graph_samples.small_config(method, training={"epochs": 1}), load_graphs("MUTAG")
    outcome = run_chain(TASK, config, data, 1, ["validation-only"])
    network = outcome.models["validation-only"].trained.network
    found = outcome.results["validation-only"].spectrum
    if method == "GIN0":
        assert found is None
        return
    test = make_fold(config, data, 1).test
    sets = network.feature_sets(data[test[spread_out(len(test))]])
    assert len(sets) == 16
    assert_is_mean(found, network.normalization, sets)


@pytest.mark.parametrize("transductive", [False, True])
def test_queries_are_encoded_as_in_the_test(transductive):
    bank, config = fewshot_samples.stripes(), fewshot_samples.small_config("SoSN(x)+SC+SigmE")
    network = make_network(config.model, channels=1, size=16).eval()
    episodes = draw_episodes(bank, config.test, 4)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state, seen = torch.get_rng_state(), []
    real = network.descriptor.query_matrix
    network.descriptor.query_matrix = lambda query, grid=None: seen.append((query, grid)) or real(query, grid)
    run_episodes(network, bank, episodes, transductive=transductive)
    found = episode_spectrum(network, bank, episodes, transductive=transductive)
    sets = [FeatureSet(one, grid) for query, grid in seen for one in query]
    assert found.samples == min(16, len(sets))
    assert_is_mean(found, normalization(network), sets[: found.samples])
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
