"""``powerpool sweep vision``: one setting at a time, on validation pictures alone."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from powerpool.cli import sweep
from powerpool.cli.main import main
from powerpool.cli.sweep import PAPER, STUDIES, SweepOptions
from powerpool.errors import PowerPoolError
from powerpool.runs import scheduler as runner
from powerpool.tasks.vision import evaluation
from powerpool.tasks.vision.config import VisionConfig, grid_names
from powerpool.tasks.vision.extraction import open_features
from tests.experiments.threads import Threads
from tests.pipelines.vision.samples import use_tiny, write_pictures


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        patch.setattr(runner, "_make_executor", Threads)
        patch.setenv("POWERPOOL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("own") / "stripes")


def run(out: Path, data: Path, *words: object) -> int:
    fixed = ["--jobs", "1", "--workers", "0", "--download", "false", "--quick"]
    return main(["sweep", "vision", *fixed, "--out", str(out), "--data", str(data), *map(str, words)])


def test_a_sweep_over_eta(own, cache, tmp_path, capsys, monkeypatch):
    words = ["--over", "eta", "--values", "2", "9", "40", "--method", "SOP+SpecMaxExpF"]
    assert run(tmp_path, own, *words) == 0
    stem = "stripes-SOP+SpecMaxExpF-eta"
    found = json.loads((tmp_path / f"{stem}.json").read_text())
    assert (found["setting"], found["method"], found["data"]) == ("eta", "SOP+SpecMaxExpF", "stripes")
    assert [row["eta"] for row in found["values"]] == [2, 9, 40]
    assert found["environment"]["quick"] is True
    best = min(found["values"], key=lambda row: (-row["accuracy"], row["loss"]))
    assert found["picked"] == best["eta"]
    rows = list(csv.DictReader((tmp_path / f"{stem}.csv").read_text().splitlines()))
    assert [{name: float(value) for name, value in row.items()} for row in rows] == found["values"]
    assert "<svg" in (tmp_path / f"{stem}.svg").read_text(encoding="utf-8")
    assert f"eta of SOP+SpecMaxExpF on stripes: {best['eta']:g} has {best['accuracy']:.2f} %" in capsys.readouterr().out
    (place,) = (cache / "features").glob("stripes-*")
    recipe = sweep.read_config(SweepOptions(str(own), quick=True, download=False), str(own))
    for row in found["values"]:
        pool = replace(recipe.pool, method="SOP+SpecMaxExpF", eta=row["eta"])
        expected = evaluation.validate(replace(recipe, pool=pool), pool, open_features(place))
        assert (row["accuracy"], row["loss"]) == (expected["value"], expected["loss"])
    monkeypatch.setattr(runner, "_make_executor", None)  # nothing is tried twice
    assert run(tmp_path, own, *words) == 0
    assert json.loads((tmp_path / f"{stem}.json").read_text())["values"] == found["values"]


def test_several_settings_each_by_itself(own, tmp_path):
    """Both have a point with the values of the recipe: it is tried once, and is in both tables."""
    assert run(tmp_path, own, "--over", "beta", "pivots") == 0
    assert len(list((tmp_path / "points").glob("*.json"))) == 6 + 4 - 1
    names = {f"stripes-SOP+SC+SpecMaxExpF-{setting}" for setting in ("beta", "pivots")}
    assert {file.stem for file in tmp_path.glob("*.csv")} == names
    betas = json.loads((tmp_path / "stripes-SOP+SC+SpecMaxExpF-beta.json").read_text())["values"]
    assert [row["beta"] for row in betas] == list(STUDIES["beta"].values)


def test_only_quick_sweeps_are_quick():
    assert SweepOptions(quick=True).is_quick
    assert SweepOptions(recipe="demo/vision-quick").is_quick
    assert not SweepOptions(recipe="demo/vision").is_quick


def test_every_study_can_be_made():
    assert set(PAPER) <= set(STUDIES)
    for name, study in STUDIES.items():
        assert name in grid_names(study.method)
        points = list(sweep.make_config(SweepOptions(over=[name]), VisionConfig(), name).points())
        assert [getattr(point, name) for point in points] == list(study.values)
        assert len({replace(point, **{name: getattr(points[0], name)}) for point in points}) == 1


@pytest.mark.parametrize(
    "options, said",
    [
        ({"over": []}, "over must name at least one setting"),
        ({"over": ["eta", "eta"]}, "over must name at least one setting, and each once"),
        ({"over": ["etta"]}, "etta"),
        ({"over": ["eta", "beta"], "values": [1.0]}, "values and method need one setting"),
        ({"over": ["eta"], "method": "SOPP"}, "SOPP"),
        ({"over": ["eta"], "method": "SOP+SC"}, "does not depend on eta: it depends on beta, pivots, sigma, alpha"),
        ({"over": ["eta"], "method": "FOP"}, "it depends on no setting"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"workers": -2}, "workers must be at least 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, said):
    with pytest.raises(PowerPoolError, match=said):
        SweepOptions(**options)


@pytest.mark.parametrize(
    "words, said",
    [
        (["--over", "eta", "--values", "2", "2.5"], "pool.eta=2.5"),
        (["--over", "pivots", "--values", "2.5"], "values of pivots must be whole numbers"),
        (["--over", "eta", "--values", "2", "2"], "grid.eta names a value twice"),
    ],
)
def test_values_that_cannot_be_show_before_the_features(own, tmp_path, capsys, monkeypatch, words, said):
    monkeypatch.setattr(sweep, "read_features", None)
    assert run(tmp_path, own, *words) == 2
    assert said in capsys.readouterr().err
