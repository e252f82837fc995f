"""``powerpool inspect`` on the command line."""

from __future__ import annotations

import json

import pytest

from powerpool.analysis import result
from powerpool.cli.main import main
from tests.analysis.test_runs import graph, write_run

__all__ = ["graph"]  # a fixture


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


def test_first_order_model(tmp_path, capsys):
    assert run("inspect", write_run(tmp_path / "run", "GIN0"), "--samples", 3) == 0
    assert "first-order" in capsys.readouterr().out


def test_help_lists_the_options_of_samples(capsys):
    for command, samples in (("inspect", 200), ("explore", 100)):
        assert run(command, "--help") == 0
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
