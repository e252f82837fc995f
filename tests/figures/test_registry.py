"""``powerpool figures``: names, files, and missing or damaged records."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from powerpool.cli.main import main
from powerpool.errors import ArgumentError, RecordError, UnknownNameError
from powerpool.figures import drawing, registry
from powerpool.figures.data import MissingRecordError
from powerpool.figures.registry import FIGURES, FiguresOptions, run
from tests.figures.test_measured import bench_record, open_mic_records, sweep_record

PAGE = Path(__file__).parents[2] / "docs" / "figures.md"
MEASURED = [name for name in FIGURES if name.startswith(("timing", "sensitivity", "open-mic"))]


@pytest.fixture
def drawn(monkeypatch) -> list[str]:
    """Collect the names of figures instead of writing them."""
    names: list[str] = []
    monkeypatch.setattr(registry, "write_figure", lambda data, stem, dpi: names.append(stem.name) or [stem])
    return names


def test_every_figure_is_drawn(tmp_path, monkeypatch, capsys):
    records = bench_record(tmp_path)
    open_mic_records(tmp_path)
    for setting in ("beta", "alpha", "sigme_eta", "eta"):
        sweep_record(tmp_path, setting, [0.1, 0.5, 50])

    def draw_only(draw, paths, size, **_):  # rendering takes seconds for each figure; hdp is rendered below
        draw(Figure(figsize=size))

    monkeypatch.setattr(drawing, "save", draw_only)
    run(FiguresOptions(records=[records], out=tmp_path / "out"))
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"{name}.csv" for name in FIGURES}
    assert len(FIGURES) == 24
    assert "skipped" not in capsys.readouterr().out


def test_without_names_figures_without_a_record_are_skipped(tmp_path, capsys, monkeypatch, drawn):
    monkeypatch.chdir(tmp_path)
    assert main(["figures", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found["skipped"]) == MEASURED
    assert list(found["written"]) == drawn == [name for name in FIGURES if name not in MEASURED]
    for name, make in (
        ("timing-eta", "powerpool bench pools"),
        ("sensitivity-alpha", "powerpool sweep vision --data fmd --over alpha"),
        ("open-mic-2", "--problems shn hon clv clk gls scl sci nat shx rlc --ways 5 20 90"),
    ):
        assert found["skipped"][name].endswith(make)
        assert "results or runs" in found["skipped"][name]


def test_a_named_figure_without_a_record_is_an_error_after_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingRecordError, match=r"timing-eta: .* powerpool bench") as caught:
        run(FiguresOptions(["timing-eta", "hdp"], dpi=30))
    assert caught.value.exit_code == 1
    folder = tmp_path / "runs" / "figures"
    assert sorted(path.name for path in folder.iterdir()) == ["hdp.csv", "hdp.png", "hdp.svg"]
    assert (folder / "hdp.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "hdp.svg").read_text(encoding="utf-8")


def test_a_damaged_record_is_an_error_after_the_others(tmp_path, drawn):
    path = tmp_path / "pools.json"
    path.write_text("{}")
    with pytest.raises(RecordError, match=r"timing-eta: .*pools\.json") as caught:
        run(FiguresOptions(["timing-eta", "hdp", "sensitivity-alpha"], records=[path]))
    assert not isinstance(caught.value, MissingRecordError)
    assert "sensitivity-alpha" in str(caught.value)
    assert drawn == ["hdp"]
    with pytest.raises(RecordError, match=r"timing-eta: .*pools\.json") as caught:
        run(FiguresOptions(records=[path]))
    assert "sensitivity" not in str(caught.value)  # missing, and not asked for by name


def test_bad_options_are_refused(tmp_path):
    with pytest.raises(UnknownNameError, match=r"fahdp-point'.*fahdp-points"):
        FiguresOptions(["fahdp-point"])
    with pytest.raises(ArgumentError, match="dpi"):
        FiguresOptions(dpi=5)
    with pytest.raises(RecordError, match="nowhere"):
        run(FiguresOptions(["hdp"], records=[tmp_path / "nowhere"]))
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="file"):
        run(FiguresOptions(["hdp"], out=tmp_path / "file"))


def test_computed_figures_need_nothing_of_the_vision_task():
    """As with only the extras train and figures installed."""
    code = (
        "import sys\n"
        "for name in ('PIL', 'transformers', 'datasets', 'kornia', 'joblib', 'sklearn', 'torch_geometric', 'onnx'):\n"
        "    sys.modules[name] = None\n"
        "from powerpool.figures.registry import make_figure\n"
        "assert make_figure('hdp').panels and make_figure('variance').panels\n"
        "print([name for name in sys.modules if name.startswith('powerpool.tasks.vision')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_figures_are_listed_and_documented(capsys):
    run(FiguresOptions(list=True))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(FIGURES)
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [(name, paper) for name, _, paper in rows] == [(name, entry.paper) for name, entry in FIGURES.items()]
