"""``powerpool reproduce vision``: what is written, what is never done twice, and what never mixes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from powerpool.cli import reproduce_vision as vision
from powerpool.cli.main import main
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.report.report import read_records
from powerpool.runs import scheduler as runner
from powerpool.runs.record import RunRecord
from powerpool.tasks.vision import evaluation, extraction
from powerpool.tasks.vision.extraction import open_features
from tests.experiments.threads import Threads
from tests.pipelines.vision.samples import tiny_backbone, use_tiny, write_pictures

TWO = ["FOP", "SOP+SC+SpecMaxExpF"]
HEADS = {"ridge": "frozen", "softmax": "frozen-softmax"}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """A tiny network for every name, threads for processes, and a cache of its own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        patch.setattr(vision, "load_backbone", lambda name, **options: tiny_backbone())
        patch.setattr(runner, "_make_executor", Threads)
        patch.setenv("POWERPOOL_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return write_pictures(tmp_path_factory.mktemp("own") / "stripes")


def reproduce(out: Path, data: Path, *words: object) -> int:
    fixed = ["--jobs", "1", "--workers", "0", "--download", "false", "--quick"]
    return main(["reproduce", "vision", *fixed, "--out", str(out), "--data", str(data), *map(str, words)])


def results(folder: Path) -> dict[str, int]:
    """When each result was written."""
    files = (folder / "points").rglob("*.json")
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}


def by_name(folder: Path) -> dict[tuple[str, str], RunRecord]:
    return {(record.method, record.protocol): record for record in read_records(folder)}


@pytest.fixture(scope="module")
def quick(own, tmp_path_factory):
    """The folder of a quick run of two methods with both classifiers."""
    folder = tmp_path_factory.mktemp("quick") / "out"
    assert reproduce(folder, own, "--methods", *TWO) == 0
    return folder


@pytest.fixture
def copy(quick, tmp_path):
    """The same, to change."""
    return Path(shutil.copytree(quick, tmp_path / "copy"))


def test_records_and_report_are_written(quick):
    records = by_name(quick)
    assert set(records) == {(method, protocol) for method in TWO for protocol in HEADS.values()}
    for (method, protocol), record in records.items():
        assert (record.pipeline, record.data, record.metric) == ("vision", "stripes", "top-1 accuracy in %")
        assert record.config["pool"]["method"] == method
        assert HEADS[record.config["head"]["kind"]] == protocol
        assert record.environment["threads"] == 1
        assert not {"data_root", "download", "training", "mode"} & record.config.keys()
        assert "origin" not in record.folds[0]
    for name in ("README.md", "report.html"):
        text = (quick / name).read_text(encoding="utf-8")
        assert "stripes" in text
        assert "SOP+SC+SpecMaxExpF" in text
    assert len(results(quick)) == 2 * 2  # a point and a test for each method


def test_the_values_are_those_of_the_protocol(quick, own, cache):
    options = vision.ReproduceVisionOptions(data=[str(own)], quick=True, download=False)
    recipe = vision.read_config(options, str(own))
    (place,) = (cache / "features").glob("stripes-*")
    features = open_features(place)
    for (method, protocol), record in by_name(quick).items():
        kind = next(head for head, name in HEADS.items() if name == protocol)
        config = replace(recipe, pool=replace(recipe.pool, method=method), head=replace(recipe.head, kind=kind))
        points = [evaluation.validate(config, pool, features) for pool in config.points()]
        (expected,) = evaluation.test(evaluation.train_again([config], [points], features), [points], features)
        assert record.values == (expected["value"],)
        assert record.folds[0]["right"] == expected["right"]
        assert record.folds[0]["chosen"] == expected["chosen"]
        assert record.config["data_digest"] == features.facts["data_digest"]


def test_the_same_command_does_nothing_twice(copy, own, monkeypatch, capsys):
    monkeypatch.setattr(runner, "_make_executor", None)  # a unit that is not on the disk is an error
    before, files = by_name(copy), results(copy)
    assert reproduce(copy, own, "--methods", *TWO) == 0
    assert results(copy) == files
    assert by_name(copy) == before
    out, err = capsys.readouterr()
    assert "points of the grid: resumed 2 of 2" in err
    assert "tests: resumed 2 of 2" in err
    assert "mean nothing" in out


def test_only_what_is_missing_runs(copy, own):
    before, files = by_name(copy), results(copy)
    gone = next(name for name in files if "/FOP-" in name and name.endswith("test.json"))
    (copy / gone).unlink()
    assert reproduce(copy, own, "--methods", "SOP", *TWO, "--heads", "ridge", "softmax") == 0
    after = results(copy)
    assert {name for name in files if files[name] != after[name]} == {gone}
    assert len(after) == 6
    assert by_name(copy)["FOP", "frozen"].folds[0]["right"] == before["FOP", "frozen"].folds[0]["right"]


def test_other_settings_and_pictures_never_mix_with_earlier_results(copy, tmp_path, own):
    files = results(copy)
    assert reproduce(copy, own, "--methods", "FOP", "--heads", "ridge", "--seed", "1") == 0
    assert by_name(copy)["FOP", "frozen"].seed == 1
    other = write_pictures(tmp_path / "stripes", first=20)
    assert reproduce(copy, other, "--methods", "FOP", "--heads", "ridge") == 0
    after = results(copy)
    assert {name: after[name] for name in files} == files
    assert len(after) == len(files) + 2 + 2


def test_results_on_features_that_another_pillow_made_are_not_mixed(copy, own, monkeypatch):
    files = results(copy)
    monkeypatch.setattr(extraction, "_made_by", lambda: "another version")
    assert reproduce(copy, own, "--methods", "FOP", "--heads", *HEADS) == 0
    after = results(copy)
    assert {name: after[name] for name in files} == files
    assert len(after) == len(files) + 2


def test_a_value_that_a_method_cannot_have_shows_before_the_features(tmp_path, own, monkeypatch, capsys):
    monkeypatch.setattr(vision, "extract", None)
    (tmp_path / "mine.yaml").write_text("grid: {eta: [2.5]}\n")
    fixed = ["reproduce", "vision", "--data", str(own), "--out", str(tmp_path / "out")]
    assert main([*fixed, "--recipe", str(tmp_path / "mine.yaml"), "--methods", *TWO]) == 2
    assert "pool.eta=2.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, said",
    [
        ({"methods": ["SOPP"]}, "SOPP"),
        ({"heads": ["svm"]}, "svm"),
        ({"methods": []}, "methods must name at least one"),
        ({"heads": ["ridge", "ridge"]}, "heads must name at least one, and each once"),
        ({"data": ["a", "a"]}, "data must name at least one, and each once"),
        ({"recipe": "vision/fmd", "quick": True}, "contradict one another"),
        ({"workers": -1}, "workers must be at least 0"),
        ({"jobs": 0}, "jobs must be at least 1"),
    ],
)
def test_options_that_cannot_be_are_refused(options, said):
    with pytest.raises(PowerPoolError, match=said):
        vision.ReproduceVisionOptions(**options)


def test_trainings_end_to_end_are_not_repeated_and_never_mix(own, tmp_path, monkeypatch):
    """The training itself is another's: here it writes the record of a run folder."""
    trained = []

    def train(config, images, folder, workers):
        trained.append(config.seed)
        fold = {"fold": 0, "value": 100.0, "top5": 100.0, "count": 4, "right": "f0", "chosen": {}, "converged": None}
        record = RunRecord(
            "vision", images.name, config.pool.method, "end-to-end", "a", (fold,), {"backbone": "x"}, config.seed, 1, {}
        )
        record.write(folder / "record.json")
        return record

    monkeypatch.setattr(vision, "train_run", train)
    out = tmp_path / "out"
    words = ["reproduce", "vision", "--data", str(own), "--methods", "FOP", "--mode", "end-to-end", "--out", str(out)]
    assert main(words) == 0
    assert main(words) == 0  # what is in run folders is not taken for a second record of the table
    assert trained == [0]
    assert [record.method for record in read_records(out)] == ["FOP"]
    assert main([*words, "--seed", "1"]) == 0
    assert trained == [0, 1]
    monkeypatch.setattr(vision, "load_backbone", lambda name, **options: tiny_backbone(seed=1))
    assert main(words) == 0  # other weights under the same name
    assert trained == [0, 1, 0]


def test_two_sets_of_one_name_are_refused(own, tmp_path, capsys):
    other = tmp_path / "elsewhere" / own.name
    shutil.copytree(own, other)
    assert main(["reproduce", "vision", "--data", str(own), str(other), "--quick", "--out", str(tmp_path / "out")]) == 2
    assert f"2 data sets that are called {own.name}" in capsys.readouterr().err


def test_the_recipe_of_a_set_is_read_for_frozen_features():
    options = vision.ReproduceVisionOptions(data=["fmd"], mode="frozen")
    config = vision.read_config(options, "fmd")
    assert (config.mode, config.pool.reduce_to, config.crops.size) == ("frozen", None, 448)
    assert config.grid.eta == [10, 20, 40]
    whole = vision.read_config(vision.ReproduceVisionOptions(data=["fmd"]), "fmd")
    assert (whole.mode, whole.pool.reduce_to) == ("end-to-end", 512)
    with pytest.raises(ArgumentError):
        vision.read_config(replace(options, seed=-1), "fmd")
