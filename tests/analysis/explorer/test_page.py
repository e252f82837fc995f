"""The file itself, without a browser: complete, closed against requests, and escaped."""

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import powerpool as pp
from powerpool.analysis import Inspection, inspect_features
from powerpool.analysis.explorer import RunSpectra, make_page, spectra_of
from powerpool.tasks.pooling import Normalization
from tests.analysis.custom_curve import Straight
from tests.analysis.samples import make_features


@pytest.fixture(scope="module")
def text(explorer: Path) -> str:
    return explorer.read_text(encoding="utf-8")


def test_page_is_one_file(text: str) -> None:
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert len(own) < 50_000 < len(text)
    assert not re.search(r"(?:src|href|url|@import)\s*[=(]", own)
    assert not re.search(r"\{\{|\{%", own)  # all placeholders are filled
    assert len(text) < 6_000_000


def test_policy_allows_only_the_scripts_of_the_page(text: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert found is not None
    policy = html.unescape(found[1])
    assert re.findall(r"'sha256-([^']*)'", policy) == digests
    assert len(scripts) == 3
    assert policy.startswith("default-src 'none';")
    assert "connect-src" not in policy


def test_texts_of_a_run_are_escaped(run_spectra: RunSpectra) -> None:
    text = make_page(replace(run_spectra, rounding=f"{run_spectra.title}\u2028"))
    assert html.unescape(text).count(run_spectra.title) == 3  # page title, box and note
    assert "window.hacked = 1</script>" not in text
    data = re.search(r'id="run-data">(.*?)</script>', text, flags=re.DOTALL)
    assert data is not None
    assert not set(data[1]) & set("<>&\u2028")
    found = json.loads(data[1])
    assert found["start"]["rounding"] == f"{run_spectra.title}\u2028"
    assert found["spectra"] == [list(one) for one in run_spectra.spectra]


# ---- spectra of a run ------------------------------------------------------------------------------------------------


def test_spectra_match_the_inspection(inspection: Inspection) -> None:
    found = spectra_of(inspection)
    torch.testing.assert_close(
        torch.tensor(found.spectra, dtype=torch.float64), inspection.before.spectra, rtol=1e-6, atol=1e-12
    )
    assert found.start == ("maxexp", 20.0)
    assert found.notes == ()


def test_large_run_is_shortened() -> None:
    found = spectra_of(inspect_features(make_features(6)), largest=13)
    assert len(found.spectra) == 2
    assert "first 2 of 6" in found.notes[0]


@pytest.mark.parametrize(
    "curve, start",
    [
        (pp.Gamma(0.25), ("gamma", 0.25)),
        (pp.SignedMaxExp(8), ("maxexp", 8.0)),
        (pp.SigmE(30.0), ("sigme", 30.0)),
        (pp.HDP(0.2), ("hdp", 0.2)),
        (pp.FAHDP(0.2, rounding="round"), ("fahdp", 0.2)),
    ],
)
def test_start_is_the_curve_of_the_run(curve: pp.curves.Curve, start: tuple[str, float]) -> None:
    found = spectra_of(inspect_features(make_features(6), curve))
    assert found.start == start
    assert found.notes == ()
    assert found.rounding == ("round" if start[0] == "fahdp" else None)


@pytest.mark.parametrize("curve", [pp.AsinhE(4.0), pp.SigmE(4.0, trace_normalize=False)])
def test_parameter_without_trace_normalization_is_scaled(curve: pp.curves.Curve) -> None:
    given = make_features(6)
    trace = (given.square().sum((1, 2)) / given.shape[2]).mean().item()
    found = spectra_of(inspect_features(given, curve))
    assert found.start[1] == pytest.approx(4.0 * trace)
    assert f"{trace:.3g}" in found.notes[0]
    assert found.suggestion["asinhe"] == pytest.approx(found.suggestion["maxexp"])


def test_custom_curve_starts_with_a_suggestion() -> None:
    found = spectra_of(inspect_features(make_features(6), Straight(3.0)))
    assert found.start == ("maxexp", found.suggestion["maxexp"])
    assert "Straight" in found.notes[0]
    assert found.rounding is None


def test_first_order_and_several_parameters_start_with_a_suggestion() -> None:
    found = inspect_features(make_features(6))
    for normalization, curve in (
        (Normalization("several", pp.Gamma(torch.full((6,), 0.5))), "gamma"),
        (Normalization("FOP", pp.AsinhE(4.0), is_first_order=True), "maxexp"),
    ):
        spectra = spectra_of(replace(found, normalization=normalization))
        assert spectra.start == (curve, spectra.suggestion[curve])
        assert len(spectra.notes) == 1


def test_omitted_settings_are_noted() -> None:
    found = spectra_of(inspect_features(make_features(6), pp.MaxExp(5), trace_power=0.5, slope=0.25))
    assert "trace power 0.5, slope 0.25" in found.notes[0]
    plain = spectra_of(inspect_features(make_features(6)))
    assert plain.start == ("maxexp", plain.suggestion["maxexp"])
    entries = spectra_of(inspect_features(make_features(6), pp.MaxExp(5), "elementwise"))
    assert "entries" in entries.notes[0]
    assert entries.start == ("maxexp", 5.0)
