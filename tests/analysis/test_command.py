"""``powerpool inspect`` and ``powerpool explore``."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path

import pytest

from powerpool.analysis import command, inspect_features, result
from powerpool.analysis.command import ExploreOptions
from powerpool.cli.main import main
from powerpool.errors import ArgumentError, RecordError
from tests.analysis.samples import make_features


@pytest.fixture(autouse=True)
def without_plots(monkeypatch):
    monkeypatch.setattr(result, "draw_plots", lambda found, folder: [])  # they take most of the time


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_tables_and_files(graph, tmp_path, capsys):
    assert run("inspect", graph, "--samples", 5, "--out", tmp_path / "out") == 0
    printed = capsys.readouterr().out
    for expected in ("5 samples of the train graphs of MUTAG", "effective rank", "Suggestion: ", str(tmp_path / "out")):
        assert expected in printed
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"inspection.json", "inspection.md", "samples.csv", "spectra.csv"}
    content = json.loads((tmp_path / "out" / "inspection.json").read_text())
    assert (content["curve"], content["parameter"], content["mode"]) == ("MaxExp", 20.0, "spectral")


def test_json(graph, capsys):
    assert run("inspect", "--run", graph, "--samples", 3, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["folder"] == str(graph / "inspect")
    assert printed["inspection"] == json.loads((graph / "inspect" / "inspection.json").read_text())


def test_help_lists_the_options_of_samples(capsys):
    for name, samples in (("inspect", 200), ("explore", 100)):
        assert run(name, "--help") == 0
        printed = " ".join(capsys.readouterr().out.split())
        for expected in ("--run", "--split", "--seed", f"default: {samples})"):
            assert expected in printed


def test_errors_are_one_line(tmp_path, capsys):
    assert run("inspect", "--run", tmp_path / "none") == 2
    printed = capsys.readouterr().err
    assert printed.startswith("powerpool inspect: error: ")
    assert printed.count("\n") == 1
    assert run("inspect", "--run", tmp_path, "--samples", 0) == 2
    assert "samples" in capsys.readouterr().err


# ---- the explorer ----------------------------------------------------------------------------------------------------


def test_explorer_is_written(tmp_path, capsys):
    out = tmp_path / "new folder" / "page.html"
    command.explore(ExploreOptions(out=out))
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [file.name for file in out.parent.iterdir()] == ["page.html"]
    assert out.as_uri() in capsys.readouterr().out


def test_explorer_with_a_run(tmp_path, monkeypatch):
    given, inspection = [], inspect_features(make_features())
    monkeypatch.setattr(command, "inspect_with_progress", lambda *arguments: given.append(arguments) or inspection)
    options = ExploreOptions(out=tmp_path / "page.html", run="runs/one", samples=7, split="test")
    command.explore(options)
    assert given == [("runs/one", options)]
    assert html.escape(inspection.headline()) in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"out": Path("page.txt")}, ".html"),
        ({"samples": 0}, "samples"),
        ({"data": "MUTAG"}, "--run"),
        ({"split": "test"}, "--run"),
    ],
)
def test_bad_options_of_the_explorer(options, message):
    with pytest.raises(ArgumentError, match=re.escape(message)):
        ExploreOptions(**options)


def test_missing_plotly_is_found_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "inspect_with_progress", lambda *_: pytest.fail("the work began"))
    for name in ("plotly", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match="plotly"):
        command.explore(ExploreOptions(out=tmp_path / "page.html", run="runs/one"))


def test_failed_command_leaves_the_old_page(tmp_path):
    out = tmp_path / "page.html"
    out.write_text("old", encoding="utf-8")
    with pytest.raises(RecordError, match="none"):
        command.explore(ExploreOptions(out=out, run=str(tmp_path / "none")))
    assert out.read_text(encoding="utf-8") == "old"
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(RecordError, match=r"folder\.html"):
        command.explore(ExploreOptions(out=tmp_path / "folder.html"))
