"""``powerpool figures``: names, files, and what is said where a record is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from powerpool.cli import options
from powerpool.console import governed
from powerpool.errors import ArgumentError, RecordError, UnknownNameError
from powerpool.figures.command import FiguresOptions, run
from powerpool.figures.registry import FIGURES
from powerpool.figures.sources import MissingRecordError
from tests.figures.test_measured import bench_record, open_mic_records, sweep_record

PAGE = Path(__file__).parents[2] / "docs" / "figures.md"
MEASURED = [name for name in FIGURES if name.startswith(("timing", "sensitivity", "open-mic"))]


def parse(*words: object) -> FiguresOptions:
    return options.parse(FiguresOptions, [str(word) for word in words], "names")


def test_every_figure_is_drawn(tmp_path, capsys):
    records = bench_record(tmp_path)
    open_mic_records(tmp_path)
    for setting in ("beta", "alpha", "eta_prime", "eta"):
        sweep_record(tmp_path, setting, [0.1, 0.5, 50])
    out = tmp_path / "out"
    run(parse("--records", records, "--out", out, "--dpi", 30))
    said = capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        f"{name}.{suffix}" for name in FIGURES for suffix in ("png", "svg", "csv")
    }
    assert "skipped" not in said
    for name in FIGURES:
        assert f"{name}: {out / name}.{{png,svg,csv}}\n" in said
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text(encoding="utf-8")


def test_without_names_what_has_no_record_is_left_out_and_said(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("powerpool.figures.command.write_figure", lambda data, stem, dpi: [stem])
    with governed(as_json=True) as output:
        run(parse())
    found = json.loads(output.document)
    assert list(found["skipped"]) == MEASURED
    assert list(found["written"]) == [name for name in FIGURES if name not in MEASURED]
    run(parse())
    said = capsys.readouterr().out
    open_mic = "--data open_mic --problems shn hon clv clk gls scl sci nat shx rlc --ways 5 20 90"
    for name, what, make in (
        ("timing-eta", "finished record of `powerpool bench pools`", "powerpool bench pools"),
        ("sensitivity-alpha", "record of a sweep over alpha", "powerpool sweep vision --data fmd --over alpha"),
        ("open-mic-2", "records of Open MIC, protocol II", f"powerpool reproduce fewshot {open_mic}"),
    ):
        assert f"{name}: skipped, no {what} in results or runs. Make it: {make}\n" in said


def test_a_figure_that_is_named_and_has_no_record_is_an_error_after_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        MissingRecordError, match=r"timing-eta: no finished record .* Make it: powerpool bench"
    ) as caught:
        run(parse("timing-eta", "hdp", "--dpi", 30))
    assert caught.value.exit_code == 1
    assert sorted(path.name for path in (tmp_path / "runs" / "figures").iterdir()) == ["hdp.csv", "hdp.png", "hdp.svg"]


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(
        UnknownNameError, match=r"Unknown figure 'fahdp-point'\. Did you mean fahdp-points\? There are curves, "
    ):
        parse("fahdp-point")


def test_what_cannot_be_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="dpi must be between 30 and 1200"):
        parse("--dpi", 5)
    with pytest.raises(RecordError, match=r"There is no .*nowhere: --records needs files or folders"):
        run(parse("hdp", "--records", tmp_path / "nowhere"))
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file"):
        run(parse("hdp", "--out", tmp_path / "file"))


def test_a_record_that_cannot_be_read_is_an_error_after_the_others(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("powerpool.figures.command.write_figure", lambda data, stem, dpi: drawn.append(stem.name))
    path = tmp_path / "pools.json"
    path.write_text("{}")
    said = r"timing-eta: .*pools\.json is not a record of `powerpool bench`"
    with pytest.raises(RecordError, match=said) as caught:
        run(parse("timing-eta", "hdp", "sensitivity-alpha", "--records", path))
    assert not isinstance(caught.value, MissingRecordError)
    assert "sensitivity-alpha: no record of a sweep" in str(caught.value)
    assert drawn == ["hdp"]
    with pytest.raises(RecordError, match=said) as caught:
        run(parse("--records", path))
    assert "sensitivity" not in str(caught.value)
    assert drawn[1:] == [name for name in FIGURES if name not in MEASURED]


def test_curves_and_bounds_need_nothing_of_the_pipeline_of_pictures():
    """As where only the extras train and figures are installed."""
    code = (
        "import sys\n"
        "for name in ('PIL', 'transformers', 'datasets', 'kornia', 'joblib', 'sklearn', 'torch_geometric', 'onnx'):\n"
        "    sys.modules[name] = None\n"
        "from powerpool.figures import command\n"
        "from powerpool.figures.registry import make_figure\n"
        "assert make_figure('hdp').panels and make_figure('variance').panels\n"
        "print([name for name in sys.modules if name.startswith('powerpool.tasks.vision')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_names_are_listed_and_in_the_documentation(capsys):
    run(parse("--list"))
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == list(FIGURES)
    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \|", page, re.MULTILINE)
    assert [name for name, _, _ in rows] == list(FIGURES)
    for name, _, paper in rows:
        assert paper == FIGURES[name].paper
