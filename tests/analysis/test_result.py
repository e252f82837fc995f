"""Tables, advice and files of an analysis."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from matplotlib.figure import Figure

import powerpool as pp
from powerpool.analysis import inspect_features, plots
from tests.analysis.custom_curve import Straight
from tests.analysis.samples import make_features


def test_table_shows_means():
    found = inspect_features(make_features(), pp.MaxExp(eta=5))
    rows = {name: (before, after) for name, before, after in found.table()}
    rank = found.before.effective_rank
    assert rows["effective rank"][0] == f"{rank.mean():.2f} ± {rank.std(correction=0):.2f}"
    first = found.after.spectra[:, 0]
    expected = f"{100 * first.mean():.1f} ± {100 * first.std(correction=0):.1f} %"
    assert rows["trace in the first eigenvalue"][1] == expected
    assert "negative part of the spectrum" not in rows


def test_burstiness_needs_enough_samples_and_active_features():
    # Four features are active everywhere. The fifth is active in four of 20 samples, so its burstiness would be 5.
    given = torch.ones(20, 5, 6)
    given[4:, 4] = 0
    found = inspect_features(given)
    assert found.table()[-1][1:] == ("1.00 (1.00 to 1.00)", "-")
    assert found.burstiness.isnan().tolist() == [False] * 4 + [True]
    assert inspect_features(given[:19]).table()[-1][1:] == ("-", "-")


@pytest.mark.parametrize("beta, relation", [(0.5, "cosine"), (1.0, "correlation")])
def test_only_centred_features_have_correlations(beta, relation):
    found = inspect_features(make_features(), pp.MaxExp(eta=5), beta=beta)
    name = f"mean |{relation}| of features"
    assert [row[0] for row in found.table() if row[0].startswith("mean |")] == [name]
    assert name in found.to_dict()["after"]
    figure = Figure()
    plots._draw_correlations(found, figure)
    assert f"mean |{relation}| {found.before.correlation.mean():.3f}" in figure.axes[0].get_title()


def test_advice_names_the_curve_its_value_and_the_range():
    found = inspect_features(make_features(), pp.MaxExp(eta=500))
    eta, low, high = (f"{value:g}" for value in (found.suggestion.eta, found.suggestion.low, found.suggestion.high))
    assert found.advice().startswith(f"Suggestion: MaxExp with eta {eta} instead of 500, search {low} to {high}. ")
    assert found.suggestion.reason in found.advice()
    near = inspect_features(make_features(), pp.MaxExp(eta=found.suggestion.eta))
    assert near.advice().startswith(f"Suggestion: keep eta {eta} ")
    assert inspect_features(make_features()).advice().startswith(f"Suggestion: MaxExp with eta {eta} on the spectrum")


def test_hdp_has_no_suggestion_where_nothing_should_change():
    rank_one = torch.rand(3, 5, 1).expand(3, 5, 7)
    found = inspect_features(rank_one, pp.HDP(t=0.1))
    rows = {row[0]: row[2] for row in found.parameters()}
    assert (rows["HDP"], rows["Gamma"]) == ("-", "1 (1 to 1)")
    assert "no curve" in found.advice()
    assert {row[0]: row[2] for row in inspect_features(torch.eye(6)[None]).parameters()}["HDP"] != "-"


def test_element_wise_curve_gets_the_suggestion_of_the_diagonal():
    found = inspect_features(make_features(), pp.AsinhE(gamma=300.0), "elementwise")
    assert found.suggestion is found.suggestions["elementwise"]
    assert f"gamma {found.suggestion.asinhe_gamma:.3g}" in found.advice()
    diagonal = torch.stack([(one @ one.T).diagonal() for one in make_features().double()])
    share = diagonal / diagonal.sum(-1, keepdim=True)
    entropy = -(share * share.log()).sum(-1).mean()
    assert found.suggestion.eta == round(entropy.exp().item())


@pytest.mark.parametrize("mode", ["spectral", "elementwise"])
def test_custom_curve_is_measured_without_a_suggestion(mode):
    found = inspect_features(make_features(), Straight(3.0), mode, eps=0.0)
    torch.testing.assert_close(found.after.spectra, found.before.spectra, rtol=1e-4, atol=1e-6)
    assert "Straight" in found.notes[0]
    assert found.advice().startswith(f"Suggestion: MaxExp with eta {found.suggestion.eta:g} on the spectrum")
    assert found.suggestion.mode == "spectral"
    content = found.to_dict()
    assert (content["curve"], content["parameter"]) == ("Straight", 3.0)


def test_settings_beside_the_curve_are_shown():
    found = inspect_features(make_features(), pp.MaxExp(eta=5), eps=1e-3, trace_power=0.5, slope=0.25)
    assert found.headline().startswith("SOP+SpecMaxExp: MaxExp(eta=5) on the spectrum, trace power 0.5, slope 0.25. ")
    content = found.to_dict()
    assert (content["eps"], content["trace_power"], content["slope"]) == (1e-3, 0.5, 0.25)


def test_json_keys_are_those_of_version_0_1():
    content = inspect_features(make_features(), pp.MaxExp(eta=5)).to_dict()
    assert {"eta_prime", "gamma_prime", "t_fahdp", "reason"} < content["suggestions"]["spectral"].keys()
    assert {"mean", "std", "values"} == content["before"]["effective rank"].keys()


def test_files_contain_the_numbers(tmp_path):
    found = inspect_features(make_features(), pp.MaxExp(eta=5))
    files = found.write(tmp_path / "one")
    assert {path.name for path in files} == {path.name for path in (tmp_path / "one").iterdir()}
    content = json.loads((tmp_path / "one" / "inspection.json").read_text())
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
    for other in found.write(tmp_path / "two", plots=False):
        if other.suffix != ".md":  # which links the plots
            assert other.read_bytes() == (tmp_path / "one" / other.name).read_bytes(), other.name


def test_page_escapes_names_of_others():
    found = inspect_features(make_features())
    page = type(found)(**{**vars(found), "source": "a|b\n<img>", "notes": ("*c*",)}).markdown()
    assert r"a\|b \<img\>" in page
    assert r"- \*c\*" in page
    assert "\n<img" not in page


def test_one_channel_and_first_order_are_drawn(tmp_path, monkeypatch):
    found = inspect_features(torch.rand(2, 1, 3))
    without = type(found)(**{**vars(found), "after": None})
    monkeypatch.setattr(plots, "save", lambda draw, paths, size: draw(Figure()))  # saving takes most of the time
    for one in (found, without):
        assert len(plots.draw_plots(one, tmp_path)) == 8
    with pytest.warns(DeprecationWarning, match="plots"):
        files = without.write(tmp_path, pictures=False)
    assert [path.suffix for path in files] == [".json", ".md", ".csv", ".csv"]
