"""The file itself, without a browser: whole, sealed and escaped."""

import base64
import hashlib
import html
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import powerpool as pp
from powerpool.analysis import Inspection, inspect_features
from powerpool.analysis.explorer import RunSpectra, command, make_page, spectra_of
from powerpool.analysis.explorer.command import ExploreOptions
from powerpool.analysis.explorer.page import json_in_html
from powerpool.errors import ArgumentError, RecordError
from tests.inspection.foreign import Straight


@pytest.fixture(scope="module")
def text(explorer: Path) -> str:
    return explorer.read_text(encoding="utf-8")


def test_the_page_is_one_file(text: str) -> None:
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert len(own) < 50_000 < len(text)
    assert not re.search(r"(?:src|href|url|@import)\s*[=(]", own)
    assert "<!--" not in own  # every place is filled
    assert len(text) < 6_000_000


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else(text: str) -> None:
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
    text = make_page(run_spectra)
    assert text.count(html.escape(run_spectra.title)) == 3  # the title of the page, of the box, and the note
    assert "window.hacked = 1</script>" not in text
    data = re.search(r'id="run-data">(.*?)</script>', text, flags=re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["spectra"] == [list(one) for one in run_spectra.spectra]


@pytest.mark.parametrize("value", ["</script>", "<!--", "&lt;", "\u2028", {"</x>": ["<"]}])
def test_json_survives_inside_html(value: Any) -> None:
    written = json_in_html(value)
    assert not set(written) & set("<>&\u2028")
    assert json.loads(written) == value


# ---- spectra of a run ------------------------------------------------------------------------------------------------


def features(samples: int = 6, channels: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return 3 * torch.rand(samples, channels, 20, generator=generator, dtype=torch.float64)


def test_spectra_are_those_of_the_inspection(inspection: Inspection) -> None:
    found = spectra_of(inspection)
    torch.testing.assert_close(
        torch.tensor(found.spectra, dtype=torch.float64), inspection.before.spectra, rtol=1e-6, atol=1e-12
    )
    assert found.start == ("maxexp", 20.0)
    assert found.notes == ()


def test_a_large_run_is_cut_and_says_so() -> None:
    found = spectra_of(inspect_features(features()), largest=11)
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
def test_the_page_begins_with_the_curve_of_the_run(curve: pp.curves.Curve, start: tuple[str, float]) -> None:
    found = spectra_of(inspect_features(features(), curve))
    assert found.start == start
    assert found.notes == ()
    assert found.rounding == ("round" if start[0] == "fahdp" else None)


@pytest.mark.parametrize("curve", [pp.AsinhE(4.0), pp.SigmE(4.0, trace_normalize=False)])
def test_a_curve_that_does_not_divide_by_the_trace_is_told_it(curve: pp.curves.Curve) -> None:
    given = features()
    trace = (given.square().sum((1, 2)) / given.shape[2]).mean().item()
    found = spectra_of(inspect_features(given, curve))
    assert found.start[1] == pytest.approx(4.0 * trace)
    assert "does not divide by the trace" in found.notes[0]
    # In parts of the trace AsinhE bends where MaxExp does.
    assert found.suggestion["asinhe"] == pytest.approx(found.suggestion["maxexp"])


def test_a_curve_of_ones_own_begins_with_another() -> None:
    found = spectra_of(inspect_features(features(), Straight(3.0)))
    assert found.start == ("maxexp", found.suggestion["maxexp"])
    assert "cannot draw the curve of the run, Straight" in found.notes[-1]
    assert found.rounding is None


@pytest.mark.parametrize("kind", pp.curves.CURVES.values())
def test_every_curve_of_powerpool_can_be_drawn(kind: Any) -> None:
    assert not any("cannot draw" in note for note in spectra_of(inspect_features(features(), kind(1.0))).notes)


def test_what_the_page_cannot_show_is_said() -> None:
    beside = spectra_of(inspect_features(features(), pp.MaxExp(5), trace_power=0.5, slope=0.25))
    assert beside.notes == ("The page leaves out what the run does beside its curve: trace power 0.5 and slope 0.25.",)
    plain = spectra_of(inspect_features(features()))
    assert plain.start == ("maxexp", plain.suggestion["maxexp"])
    assert "no curve" in plain.notes[0]
    entries = spectra_of(inspect_features(features(), pp.MaxExp(5), "elementwise"))
    assert "entry by entry" in entries.notes[0]
    assert entries.start == ("maxexp", 5.0)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new folder" / "page.html"
    command.run(ExploreOptions(out=out))
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [file.name for file in out.parent.iterdir()] == ["page.html"]
    said = capsys.readouterr().out
    assert str(out) in said
    assert "file:///" in said


def test_the_command_shows_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inspection: Inspection, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    monkeypatch.setattr(command, "open_run", lambda *given: asked.append(given) or SimpleNamespace(count=30))
    monkeypatch.setattr(command, "look", lambda source, watch: watch(source.count) or inspection)
    command.run(ExploreOptions(out=tmp_path / "page.html", run="runs/one", samples=7, split="test"))
    ((folder, which),) = asked
    assert (folder, which.samples, which.split) == ("runs/one", 7, "test")
    assert html.escape(inspection.headline()) in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"out": Path("page.txt")}, "ends in .html"),
        ({"samples": 0}, "samples"),
        ({"seed": -1}, "seed"),
        ({"data": "MUTAG"}, "--run"),
        ({"split": "test"}, "--run"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ExploreOptions(**options)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    folder = tmp_path / "page.html"
    folder.mkdir()
    with pytest.raises(ArgumentError, match="is a folder"):
        ExploreOptions(out=folder)


def test_plotly_is_missed_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "open_run", lambda *_: pytest.fail("the work began"))
    for name in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="plotly"):
        command.run(ExploreOptions(out=tmp_path / "page.html", run="runs/one"))


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("old", encoding="utf-8")
    with pytest.raises(RecordError, match="no run folder"):
        command.run(ExploreOptions(out=out, run=str(tmp_path / "none")))
    assert out.read_text(encoding="utf-8") == "old"
