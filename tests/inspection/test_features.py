"""Inspection of given features: against NumPy's eigenvalues, on matrices whose answer is known, and its files."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import powerpool as pp
from powerpool.analysis import FeatureSet, Gathering, inspect_features, pictures
from powerpool.errors import ArgumentError, NotFiniteError, ShapeError, UnknownNameError
from powerpool.tasks.pooling import Normalization
from tests.inspection.foreign import Straight


def features(samples: int = 4, channels: int = 6, locations: int = 30, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.rand(channels, channels, generator=generator)
    return mix @ torch.rand(samples, channels, locations, generator=generator)


def numpy_shares(matrix: np.ndarray) -> np.ndarray:
    values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[::-1]
    return values / values.sum()


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_spectra_before_and_after_are_those_of_numpy(beta):
    given = features().double()
    found = inspect_features(given, pp.MaxExp(eta=5), beta=beta, eps=0.0)
    for row, phi in enumerate(given.numpy()):
        centred = phi - beta * phi.mean(1, keepdims=True)
        before = numpy_shares(centred @ centred.T / phi.shape[1])
        after = 1 - (1 - before) ** 5
        np.testing.assert_allclose(found.before.spectra[row], before, atol=1e-12)
        np.testing.assert_allclose(found.after.spectra[row], after / after.sum(), atol=1e-9)


def test_entry_by_entry_the_matrix_is_the_curve_of_its_entries():
    given = features(1).double()
    found = inspect_features(given, pp.SigmE(eta=40.0), "elementwise", eps=0.0)
    phi = given[0].numpy()
    moment = phi @ phi.T / phi.shape[1]
    matrix = np.tanh(20 * moment / np.trace(moment))
    np.testing.assert_allclose(found.after.spectra[0], numpy_shares(matrix), atol=1e-9)
    values = np.linalg.eigvalsh(matrix)
    assert found.after.negative[0].item() == pytest.approx(-values[values < 0].sum() / np.abs(values).sum(), abs=1e-6)
    root = np.sqrt(np.diag(matrix))
    np.testing.assert_allclose(found.after.correlations, matrix / np.outer(root, root), atol=1e-9)


def test_a_matrix_of_rank_one_has_rank_one_before_and_after():
    found = inspect_features(torch.rand(3, 5, 1).expand(3, 5, 7), pp.MaxExp(eta=20))
    for side in (found.before, found.after):
        torch.testing.assert_close(side.effective_rank, torch.ones(3, dtype=torch.float64), rtol=1e-4, atol=0)
    assert found.suggestion.eta == 1
    torch.testing.assert_close(found.before.correlation, torch.ones(3, dtype=torch.float64), rtol=1e-5, atol=0)


def test_the_identity_is_even_uncorrelated_and_stays_so():
    found = inspect_features(torch.eye(6).expand(2, 6, 6), pp.HDP(t=0.1))
    for side in (found.before, found.after):
        torch.testing.assert_close(side.effective_rank, torch.full((2,), 6.0, dtype=torch.float64), rtol=1e-6, atol=0)
        torch.testing.assert_close(side.inequality, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)
        torch.testing.assert_close(side.correlation, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)
    assert found.suggestion.eta == 6


def test_a_strong_curve_flattens_and_decorrelates():
    found = inspect_features(features(), pp.MaxExp(eta=200))
    assert (found.after.effective_rank > found.before.effective_rank).all()
    assert (found.after.correlation < found.before.correlation).all()
    assert (found.after.inequality < found.before.inequality).all()


def test_without_a_curve_nothing_changes():
    found = inspect_features(features())
    torch.testing.assert_close(found.before.spectra, found.after.spectra, rtol=0, atol=1e-6)


def test_the_correlations_are_the_mean_over_samples_where_a_feature_is_not_silent():
    first, second = torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    found = inspect_features(torch.stack([first, second]))
    # The second feature is silent in the second sample: the mean is over the first alone.
    assert found.before.correlations[0, 1].item() == pytest.approx(1 / 2**0.5, rel=1e-6)
    assert found.before.correlations[0, 0].item() == pytest.approx(1.0)


def test_maps_lists_and_sets_are_the_same():
    given = features(3, 4, 6)
    ones = [inspect_features(form) for form in (given, given.view(3, 4, 2, 3), list(given))]
    for other in ones[1:]:
        torch.testing.assert_close(ones[0].before.spectra, other.before.spectra)
    ragged = inspect_features([given[0], given[1, :, :2]])
    assert ragged.locations == (6, 2)


def test_coordinates_add_channels_but_not_burstiness():
    grid = pp.spatial_coordinates(5, 6, pivots=3)
    found = inspect_features(features(2, 4, 30), pp.MaxExp(eta=3), coordinates=grid)
    assert (found.channels, len(found.burstiness)) == (10, 4)


def test_samples_without_energy_are_left_out_and_counted():
    given = features(3)
    given[1] = 0
    found = inspect_features(given, pp.MaxExp(eta=3))
    assert (found.samples, found.skipped) == (2, 1)
    assert "1 samples were left out" in found.notes[0]
    # Features that are all alike have nothing once their mean is gone, but round-off.
    alike = torch.cat([features(1), torch.full((1, 6, 30), 0.1)])
    assert inspect_features(alike, beta=1.0).skipped == 1


def test_coordinates_alone_are_no_sample():
    with pytest.raises(ArgumentError, match="nothing to look at"):
        inspect_features(torch.zeros(2, 3, 4), coordinates=pp.spatial_coordinates(2, 2))


def test_bad_input_is_refused():
    with pytest.raises(ShapeError, match=r"\(S, C, N\) or \(S, C, H, W\)"):
        inspect_features(torch.rand(3, 4))
    with pytest.raises(ShapeError, match=r"the same channels \(got 5 after 4\)"):
        inspect_features([torch.rand(4, 3), torch.rand(5, 3)])
    with pytest.raises(NotFiniteError):
        inspect_features(torch.full((1, 2, 3), torch.nan))
    with pytest.raises(UnknownNameError, match="mode"):
        inspect_features(torch.rand(1, 2, 3), mode="both")
    with pytest.raises(ArgumentError, match="nothing to look at"):
        inspect_features([])
    with pytest.raises(ArgumentError, match="samples must be at least 1"):
        Gathering(Normalization("none"), samples=0)


def test_only_as_many_as_wanted_are_taken():
    gathering = Gathering(Normalization("plain"), samples=2)
    gathering.extend(FeatureSet(one) for one in features(5))
    assert gathering.result("here").samples == 2


# ---- what is said and written ----------------------------------------------------------------------------------------


def test_the_table_has_the_means():
    found = inspect_features(features(), pp.MaxExp(eta=5))
    rows = {name: (before, after) for name, before, after in found.table()}
    rank = found.before.effective_rank
    assert rows["effective rank"][0] == f"{rank.mean():.2f} ± {rank.std(correction=0):.2f}"
    first = found.after.spectra[:, 0]
    expected = f"{100 * first.mean():.1f} ± {100 * first.std(correction=0):.1f} %"
    assert rows["trace in the first eigenvalue"][1] == expected
    assert "negative part of the spectrum" not in rows


def test_burstiness_is_told_of_enough_samples_and_of_features_that_fired_in_some():
    name = "burstiness of features (median)"
    # Four features that fire alike in every sample, and one in four samples alone, whose burstiness would be 5.
    given = torch.ones(20, 5, 6)
    given[4:, 4] = 0
    found = inspect_features(given)
    assert found.table()[-1] == (name, "1.00 (1.00 to 1.00)", "-")
    assert found.burstiness.isnan().tolist() == [False] * 4 + [True]
    few = inspect_features(given[:19])
    assert few.table()[-1] == (name, "-", "-")


@pytest.mark.parametrize("beta, relation", [(0.0, "cosine"), (0.5, "cosine"), (1.0, "correlation")])
def test_what_is_not_centred_is_called_a_cosine(beta, relation):
    found = inspect_features(features(), pp.MaxExp(eta=5), beta=beta)
    assert [row[0] for row in found.table() if row[0].startswith("mean |")] == [f"mean |{relation}| of features"]
    assert f"mean |{relation}| of features" in found.to_dict()["after"]
    figure = Figure()
    pictures._correlations(found, figure)
    assert figure.axes[0].get_title() == f"before: mean |{relation}| {found.before.correlation.mean():.3f}"
    assert figure.axes[2].get_ylabel() == f"mean {relation}, with its sign"
    assert f"{relation}s of features, mean over samples with signs" in figure.get_suptitle()


def test_hdp_has_no_time_that_changes_nothing():
    alike = torch.rand(3, 5, 1).expand(3, 5, 7)
    found = inspect_features(alike, pp.HDP(t=0.1))
    rows = {row[0]: row[2] for row in found.parameters()}
    assert rows["HDP"] == "-"
    assert rows["Gamma"] == "1 (1 to 1)"
    assert found.advice().startswith("Suggestion: no t, since HDP with any changes the spectrum. ")
    assert {row[0]: row[2] for row in inspect_features(torch.eye(6)[None]).parameters()}["HDP"] != "-"


def test_the_advice_names_the_curve_its_value_and_the_range():
    found = inspect_features(features(), pp.MaxExp(eta=500))
    eta = found.suggestion.eta
    assert found.advice().startswith(f"Suggestion: MaxExp with eta {eta:g} instead of 500; search ")
    assert "not an optimum" in found.advice()
    near = inspect_features(features(), pp.MaxExp(eta=eta))
    assert near.advice().startswith(f"Suggestion: eta {eta:g}, as it is")
    assert inspect_features(features()).advice().startswith(f"Suggestion: MaxExp with eta {eta:g} on the spectrum")


def test_a_curve_of_entries_has_the_suggestion_of_the_diagonal():
    found = inspect_features(features(), pp.AsinhE(gamma=3.0), "elementwise")
    assert found.suggestion is found.suggestions["elementwise"]
    assert f"gamma {found.suggestion.gamma_prime:.3g}" in found.advice()
    diagonal = torch.stack([(one @ one.T).diagonal() for one in features().double()])
    share = diagonal / diagonal.sum(-1, keepdim=True)
    entropy = -(share * share.log()).sum(-1).mean()
    assert found.suggestion.eta == round(entropy.exp().item())


def test_what_is_written_can_be_read_and_is_the_same_twice(tmp_path):
    found = inspect_features(features(), pp.MaxExp(eta=5))
    files = found.write(tmp_path / "one")
    assert {path.name for path in files} == {path.name for path in (tmp_path / "one").iterdir()}
    content = json.loads((tmp_path / "one" / "inspection.json").read_text())
    assert content["samples"] == 4
    assert content["before"]["effective rank"]["mean"] == pytest.approx(found.before.effective_rank.mean().item(), 1e-5)
    assert content["suggestions"]["spectral"]["eta"] == found.suggestion.eta
    with (tmp_path / "one" / "spectra.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["before, mean"]) for row in rows] == pytest.approx(found.before.spectra.mean(0).tolist(), 1e-5)
    with (tmp_path / "one" / "samples.csv").open() as file:
        values = [float(row["effective rank, after"]) for row in csv.DictReader(file)]
    assert values == pytest.approx(found.after.effective_rank.tolist(), 1e-5)
    page = (tmp_path / "one" / "inspection.md").read_text()
    assert "| effective rank |" in page
    assert "![spectra](spectra.png)" in page
    found.write(tmp_path / "two")
    for path in files:
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_pictures_can_be_left_out(tmp_path):
    files = inspect_features(features(2, 1, 3)).write(tmp_path, pictures=False)
    assert [path.suffix for path in files] == [".json", ".md", ".csv", ".csv"]


def test_one_channel_is_drawn_too(tmp_path):
    inspect_features(torch.rand(2, 1, 3)).write(tmp_path)


@pytest.mark.parametrize("mode", ["spectral", "elementwise"])
def test_a_curve_of_ones_own_is_measured_and_nothing_is_suggested_for_it(mode):
    found = inspect_features(features(), Straight(3.0), mode, eps=0.0)
    torch.testing.assert_close(found.after.spectra, found.before.spectra, rtol=1e-4, atol=1e-6)
    assert found.notes == ("Straight is a curve of your own, for which no parameter can be suggested.",)
    assert found.advice().startswith(f"Suggestion: MaxExp with eta {found.suggestion.eta:g} on the spectrum")
    assert found.suggestion.mode == "spectral"
    content = found.to_dict()
    assert (content["curve"], content["parameter"]) == ("Straight", 3.0)
    assert "Straight" in found.markdown()


@pytest.mark.parametrize("kind", pp.curves.CURVES.values())
def test_there_is_advice_for_every_curve_of_powerpool(kind):
    found = inspect_features(features(), kind(1.0))
    assert found.notes == ()
    assert kind(1.0).parameter_name in found.advice()


def test_what_a_pool_does_beside_its_curve_is_told():
    found = inspect_features(features(), pp.MaxExp(eta=5), eps=1e-3, trace_power=0.5, slope=0.25)
    assert found.normalization.describe().endswith("on the spectrum, trace power 0.5, slope 0.25")
    content = found.to_dict()
    assert (content["eps"], content["trace_power"], content["slope"]) == (1e-3, 0.5, 0.25)
    assert inspect_features(features(), pp.MaxExp(eta=5)).normalization.describe().endswith("on the spectrum")
