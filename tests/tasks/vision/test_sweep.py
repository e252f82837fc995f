"""``powerpool sweep vision``: one setting at a time, on validation images only."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from powerpool.cli.main import main
from powerpool.errors import PowerPoolError
from powerpool.runs import scheduler
from powerpool.tasks.base import Unit
from powerpool.tasks.vision.config import VisionConfig, grid_names
from powerpool.tasks.vision.extraction import open_features
from powerpool.tasks.vision.frozen import validate
from powerpool.tasks.vision.options import PAPER, STUDIES, SweepOptions

pytestmark = pytest.mark.usefixtures("thread_cache")


def run(out: Path, data: Path, *words: object) -> int:
    fixed = ["--jobs", "1", "--workers", "0", "--download", "false", "--quick"]
    return main(["sweep", "vision", *fixed, "--out", str(out), "--data", str(data), *map(str, words)])


def test_a_sweep_over_eta(textures, thread_cache, tmp_path, capsys, monkeypatch):
    words = ["--over", "eta", "--values", "2", "9", "40", "--method", "SOP+SpecMaxExpF"]
    assert run(tmp_path, textures, *words) == 0
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
    assert f"{best['accuracy']:.2f} %" in capsys.readouterr().out
    (place,) = (thread_cache / "features").glob("stripes-*")
    features = open_features(place)
    with pytest.raises(PowerPoolError, match=r" 0 of \d+ test images"):
        features.maps("test")
    assert found["images"] == len(features.targets["validation"])
    recipe = SweepOptions(data=str(textures), quick=True, download=False).read_config()
    for row in found["values"]:
        config = replace(recipe, pool=replace(recipe.pool, method="SOP+SpecMaxExpF", eta=row["eta"]))
        expected = validate(config, Unit(0), features, ["frozen"]).heads["frozen"].score
        assert (row["accuracy"], row["loss"]) == (expected.value, expected.loss)
    monkeypatch.setattr(scheduler, "_make_executor", None)  # nothing is computed twice
    assert run(tmp_path, textures, *words) == 0
    assert json.loads((tmp_path / f"{stem}.json").read_text())["values"] == found["values"]


def test_several_settings_are_varied_one_at_a_time(textures, tmp_path):
    """Both have a point with the values of the recipe: it is computed once, and is in both tables."""
    assert run(tmp_path, textures, "--over", "beta", "pivots") == 0
    assert len(list((tmp_path / "points").glob("*.json"))) == 6 + 4 - 1
    names = {f"stripes-SOP+SC+SpecMaxExpF-{setting}" for setting in ("beta", "pivots")}
    assert {file.stem for file in tmp_path.glob("*.csv")} == names
    betas = json.loads((tmp_path / "stripes-SOP+SC+SpecMaxExpF-beta.json").read_text())["values"]
    assert [row["beta"] for row in betas] == list(STUDIES["beta"].values)


def test_old_names_of_settings_are_accepted():
    with pytest.warns(DeprecationWarning, match="sigme_eta"):
        assert SweepOptions(over=["eta_prime"]).over == ["sigme_eta"]


def test_every_study_has_a_method_that_depends_on_its_setting():
    assert set(PAPER) <= set(STUDIES)
    for name, study in STUDIES.items():
        assert name in grid_names(study.method)
        points = SweepOptions(over=[name]).points(VisionConfig(), name)
        assert [getattr(point.pool, name) for point in points] == list(study.values)
        assert len({replace(point.pool, **{name: study.values[0]}) for point in points}) == 1


@pytest.mark.parametrize(
    "options, named",
    [
        ({"over": []}, "over"),
        ({"over": ["eta", "eta"]}, "over"),
        ({"over": ["etta"]}, "etta"),
        ({"over": ["eta", "beta"], "values": [1.0]}, "values"),
        ({"over": ["eta"], "method": "SOPP"}, "SOPP"),
        ({"over": ["eta"], "method": "SOP+SC"}, "beta, pivots, sigma, alpha"),
        ({"jobs": 0}, "jobs"),
        ({"workers": -2}, "workers"),
    ],
)
def test_bad_options_are_refused(options, named):
    with pytest.raises(PowerPoolError, match=named):
        SweepOptions(**options)


def test_pivots_must_be_whole_numbers():
    with pytest.raises(PowerPoolError, match=r"2\.5"):
        SweepOptions(over=["pivots"], values=[2.5]).points(VisionConfig(), "pivots")
