"""Mean spectra of test samples: against NumPy, on matrices whose answer is known, and without a trace of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import powerpool as pp
from powerpool.analysis import Gathering
from powerpool.data import load_graphs
from powerpool.tasks.fewshot.evaluation import assess, make_training, training_model
from powerpool.tasks.fewshot.model import make_network, normalization
from powerpool.tasks.fewshot.training import ask, draw_episodes, episode_spectrum
from powerpool.tasks.graph import evaluation as graphs
from powerpool.tasks.graph.model import GraphClassifier
from powerpool.tasks.pooling import FeatureSet, Normalization
from powerpool.tasks.spectra import FEWEST, MOST, VALUES, mean_spectrum, ranks, spread_out
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.frozen import stored_spectrum
from powerpool.tasks.vision.model import SetPool
from tests.pipelines.fewshot import samples as fewshot_samples
from tests.pipelines.graph import samples as graph_samples


def numpy_shares(matrix: np.ndarray) -> np.ndarray:
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[::-1]
    return values / values.sum()


def some(count: int, channels: int, locations: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(channels, locations, generator=generator, dtype=torch.float64) for _ in range(count)]


@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 99))
def test_means_are_those_of_numpy(count, channels, beta, seed):
    features = some(count, channels, channels + 5, seed)
    found = mean_spectrum(Normalization("x", pp.MaxExp(eta=5), beta=beta, eps=0.0), map(FeatureSet, features))
    before = []
    for phi in (one.numpy() for one in features):
        centred = phi - beta * phi.mean(1, keepdims=True)
        before.append(numpy_shares(centred @ centred.T))
    after = [1 - (1 - shares) ** 5 for shares in before]
    assert (found["samples"], found["size"], found["ranks"]) == (count, channels, list(range(1, channels + 1)))
    np.testing.assert_allclose(found["before"], np.mean(before, 0), rtol=1e-3)
    np.testing.assert_allclose(found["after"], np.mean([one / one.sum() for one in after], 0), rtol=1e-3)


def test_entry_by_entry_it_is_the_matrix_that_the_pool_returns():
    features, curve = [one - 0.5 for one in some(3, 6, 20)], pp.SigmE(eta=30.0)
    found = mean_spectrum(Normalization("x", curve, "elementwise"), map(FeatureSet, features))
    matrices = [pp.second_order_pool(one, curve, "elementwise").numpy() for one in features]
    np.testing.assert_allclose(found["after"], np.mean([numpy_shares(one) for one in matrices], 0), rtol=1e-3)
    assert found["after"] != found["before"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("curve", [None, pp.Gamma(0.5), pp.MaxExp(20)])
def test_what_has_no_energy_is_0_and_not_round_off(dtype, curve):
    features = torch.cat(some(2, 20, 4)).to(dtype)  # four locations: no more eigenvalues than that
    found = mean_spectrum(Normalization("x", curve, eps=0.0), [FeatureSet(features)])
    for name in ("before", "after"):
        assert found[name][4:] == [0.0] * 36
        assert min(found[name][:4]) > 1e-4


def test_of_large_matrices_some_eigenvalues_are_kept():
    features = some(2, 80, 200)
    found = mean_spectrum(Normalization("x"), map(FeatureSet, features))
    whole = np.mean([numpy_shares((one @ one.T).numpy()) for one in features], 0)
    assert len(found["ranks"]) == VALUES
    np.testing.assert_allclose(found["before"], whole[np.array(found["ranks"]) - 1], rtol=1e-3)


@given(st.integers(1, 5000))
def test_ranks_rise_from_the_first_to_the_last(size):
    found = ranks(size)
    assert found[0] == 1
    assert found[-1] == size
    assert len(found) == min(size, VALUES)
    assert found == sorted(set(found))
    # The steps of the logarithm do not fall by much: where a rank has to rise by 1 they are larger than asked for.
    assert size <= VALUES or found[-1] / found[-2] < 1.2


@given(st.integers(0, 100_000))
def test_samples_are_spread_over_all_and_nothing_is_drawn(count):
    state = torch.get_rng_state()
    found = spread_out(count).tolist()
    assert torch.equal(torch.get_rng_state(), state)
    assert found == sorted(set(found))
    assert len(found) <= min(count, MOST)
    assert len(found) >= min(count, FEWEST)
    if count:
        assert found[0] == 0
        assert count - found[-1] <= -(-count // len(found))


def test_a_first_order_pool_has_no_spectrum_and_its_sets_are_not_made():
    assert mean_spectrum(Normalization("x", is_first_order=True), (1 / 0 for _ in range(1))) is None


def test_samples_without_energy_are_left_out():
    loud, alike = some(1, 4, 9)[0], torch.full((4, 9), 0.1)
    centred = Normalization("x", beta=1.0)
    found = mean_spectrum(centred, map(FeatureSet, [alike, loud, torch.zeros(4, 9)]))
    assert found == mean_spectrum(centred, [FeatureSet(loud)])
    assert found["samples"] == 1
    assert mean_spectrum(centred, map(FeatureSet, [alike, torch.zeros(4, 9)])) is None
    assert mean_spectrum(centred, []) is None


# ---- in the pipelines ------------------------------------------------------------------------------------------------


def assert_is_inspection(found, own: Normalization, sets: list[FeatureSet]) -> None:
    """What the inspection of a run sees of the same sets."""
    gathering = Gathering(own, len(sets))
    gathering.extend(sets)
    seen = gathering.result("test")
    np.testing.assert_allclose(found["before"], seen.before.spectra.mean(0), rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(found["after"], seen.after.spectra.mean(0), rtol=1e-3, atol=1e-5)
    assert found["samples"] == seen.samples


@pytest.mark.parametrize("method", ["SOP+SigmE", "SOP+Gamma", "SOP+SpecMaxExpF", "SOP+NewtonSchulz"])
def test_a_fold_of_graphs_has_the_spectra_of_its_test_graphs(method):
    config, data = graph_samples.small_config(method), load_graphs("MUTAG")
    torch.manual_seed(0)
    model = GraphClassifier(config.model, data.channels, len(data.classes))
    state = torch.get_rng_state()
    tested = graphs.test_score(config, data, 1, model)
    assert torch.equal(torch.get_rng_state(), state)
    test = graphs.make_fold(config, data, 1).test
    sets = model.feature_sets(data[test[spread_out(len(test))]])
    assert len(sets) == 16
    assert_is_inspection(tested.details["spectrum"], model.normalization, sets)


def test_a_readout_of_first_order_has_no_spectrum():
    config, data = graph_samples.small_config("GIN0"), load_graphs("MUTAG")
    model = GraphClassifier(config.model, data.channels, len(data.classes))
    assert set(graphs.test_score(config, data, 0, model).details) == {"confusion"}


@pytest.mark.parametrize("method", ["SOP+SC+SpecMaxExpF", "SOP+SigmE", "SOP"])
def test_stored_maps_have_the_spectra_of_their_pool(method):
    pool, maps = SetPool(PoolConfig(method, beta=0.5), channels=6), torch.rand(20, 2, 6, 3, 4)
    chosen = spread_out(20).tolist()
    found = stored_spectrum(pool, maps)
    assert_is_inspection(found, pool.normalization, [pool.feature_set(maps[row]) for row in chosen])
    assert stored_spectrum(SetPool(PoolConfig("FOP+AsinhE"), channels=6), maps) is None


@pytest.mark.parametrize("transductive", [False, True])
def test_queries_are_encoded_as_in_the_test(transductive):
    bank, config = fewshot_samples.stripes(), fewshot_samples.small_config("SoSN(x)+SC+SigmE")
    network = make_network(config.model, channels=1, size=16).eval()
    drawn = draw_episodes(bank, config.test)
    episodes = [drawn[number] for number in range(4)]
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state, seen = torch.get_rng_state(), []
    real = network.descriptor.query_matrix
    network.descriptor.query_matrix = lambda query, grid=None: seen.append((query, grid)) or real(query, grid)
    ask(network, bank, episodes, transductive=transductive)
    found = episode_spectrum(network, bank, episodes, transductive=transductive)
    sets = [FeatureSet(one, grid) for query, grid in seen for one in query]
    assert_is_inspection(found, normalization(network), sets[: found["samples"]])
    assert found["samples"] == min(16, len(sets))
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_only_second_order_networks_say_it_of_their_test():
    data = fewshot_samples.stripe_set()
    for method, has in (("RelationNet", False), ("PrototypicalNet", False), ("NCM(x+L)+SpecGamma", True)):
        config = fewshot_samples.small_config(method)
        model = training_model(make_training(config, data))
        assert ("spectrum" in assess(model, data["test"], config.test)) == has
