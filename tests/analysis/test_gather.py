"""Analysis of given features, against NumPy's eigenvalues and matrices with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import powerpool as pp
from powerpool.analysis import FeatureSet, Gathering, inspect_features
from powerpool.errors import ArgumentError, NotFiniteError, ShapeError, UnknownNameError
from powerpool.tasks.pooling import Normalization
from tests.analysis.samples import make_features


def numpy_shares(matrix: np.ndarray) -> np.ndarray:
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[::-1]
    return values / values.sum()


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_spectra_before_and_after_match_numpy(beta):
    given = make_features().double()
    found = inspect_features(given, pp.MaxExp(eta=5), beta=beta, eps=0.0)
    for row, phi in enumerate(given.numpy()):
        centred = phi - beta * phi.mean(1, keepdims=True)
        before = numpy_shares(centred @ centred.T / phi.shape[1])
        after = 1 - (1 - before) ** 5
        np.testing.assert_allclose(found.before.spectra[row], before, atol=1e-12)
        np.testing.assert_allclose(found.after.spectra[row], after / after.sum(), atol=1e-9)


def test_element_wise_curve_acts_on_entries():
    given = make_features(1).double()
    found = inspect_features(given, pp.SigmE(eta=40.0), "elementwise", eps=0.0)
    phi = given[0].numpy()
    moment = phi @ phi.T / phi.shape[1]
    matrix = np.tanh(20 * moment / np.trace(moment))
    np.testing.assert_allclose(found.after.spectra[0], numpy_shares(matrix), atol=1e-9)
    values = np.linalg.eigvalsh(matrix)
    assert found.after.negative[0].item() == pytest.approx(-values[values < 0].sum() / np.abs(values).sum(), abs=1e-6)
    root = np.sqrt(np.diag(matrix))
    np.testing.assert_allclose(found.after.correlations, matrix / np.outer(root, root), atol=1e-9)


def test_matrix_of_rank_one_stays_of_rank_one():
    found = inspect_features(torch.rand(3, 5, 1).expand(3, 5, 7), pp.MaxExp(eta=20))
    ones = torch.ones(3, dtype=torch.float64)
    for side in (found.before, found.after):
        torch.testing.assert_close(side.effective_rank, ones, rtol=1e-4, atol=0)
    assert found.suggestion.eta == 1
    torch.testing.assert_close(found.before.correlation, ones, rtol=1e-5, atol=0)


def test_identity_matrix_is_even_and_uncorrelated():
    found = inspect_features(torch.eye(6).expand(2, 6, 6), pp.HDP(t=0.1))
    for side in (found.before, found.after):
        torch.testing.assert_close(side.effective_rank, torch.full((2,), 6.0, dtype=torch.float64), rtol=1e-6, atol=0)
        torch.testing.assert_close(side.inequality, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)
        torch.testing.assert_close(side.correlation, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)
    assert found.suggestion.eta == 6


def test_mean_correlations_skip_samples_in_which_a_feature_has_no_energy():
    first, second = torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    found = inspect_features(torch.stack([first, second]))
    assert found.before.correlations[0, 1].item() == pytest.approx(1 / 2**0.5, rel=1e-6)
    assert found.before.correlations[0, 0].item() == pytest.approx(1.0)


def test_maps_lists_and_sets_give_the_same():
    given = make_features(3, 4, 6)
    first, *others = (inspect_features(form) for form in (given, given.view(3, 4, 2, 3), list(given)))
    for other in others:
        torch.testing.assert_close(first.before.spectra, other.before.spectra)
    assert inspect_features([given[0], given[1, :, :2]]).locations == (6, 2)


def test_coordinates_add_channels_but_not_burstiness():
    grid = pp.spatial_coordinates(5, 6, pivots=3)
    found = inspect_features(make_features(2, 4, 30), pp.MaxExp(eta=3), coordinates=grid)
    assert (found.channels, len(found.burstiness)) == (10, 4)


def test_samples_without_energy_are_skipped_and_counted():
    given = make_features(3)
    given[1] = 0
    found = inspect_features(given, pp.MaxExp(eta=3))
    assert (found.samples, found.skipped) == (2, 1)
    assert "1 of 3 samples" in found.notes[0]
    # Constant features are zero after centering, up to round-off.
    constant = torch.cat([make_features(1), torch.full((1, 6, 30), 0.1)])
    assert inspect_features(constant, beta=1.0).skipped == 1


def test_bad_input():
    with pytest.raises(ShapeError, match=r"\(3, 4\)"):
        inspect_features(torch.rand(3, 4))
    with pytest.raises(ShapeError, match="5 after 4"):
        inspect_features([torch.rand(4, 3), torch.rand(5, 3)])
    with pytest.raises(NotFiniteError):
        inspect_features(torch.full((1, 2, 3), torch.nan))
    with pytest.raises(UnknownNameError, match="mode"):
        inspect_features(torch.rand(1, 2, 3), mode="both")
    with pytest.raises(ArgumentError, match="0 samples"):
        inspect_features([])
    with pytest.raises(ArgumentError, match="2 samples"):  # coordinates alone do not count
        inspect_features(torch.zeros(2, 3, 4), coordinates=pp.spatial_coordinates(2, 2))
    with pytest.raises(ArgumentError, match="samples"):
        Gathering(Normalization("none"), samples=0)


def test_gathering_stops_at_the_number_of_samples():
    gathering = Gathering(Normalization("plain"), samples=2)
    gathering.extend(FeatureSet(one) for one in make_features(5))
    assert gathering.is_full
    assert gathering.result("here").samples == 2
