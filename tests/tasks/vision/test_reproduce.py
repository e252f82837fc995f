"""``powerpool reproduce vision``: what is written, what is not computed twice, and what is kept apart."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from powerpool.cli.main import main
from powerpool.errors import PowerPoolError
from powerpool.report.write import read_records
from powerpool.runs import scheduler
from powerpool.runs.record import RunRecord
from powerpool.tasks.base import run_chain
from powerpool.tasks.vision import extraction, frozen
from powerpool.tasks.vision.extraction import open_features
from powerpool.tasks.vision.options import ReproduceOptions
from powerpool.tasks.vision.task import TASK
from tests.tasks.vision.samples import use_tiny, write_images

pytestmark = pytest.mark.usefixtures("thread_cache")
TWO = ["FOP", "SOP+SC+SpecMaxExpF"]
HEADS = {"ridge": "frozen", "softmax": "frozen-softmax"}


def reproduce(out: Path, data: Path, *words: object) -> int:
    fixed = ["--jobs", "1", "--workers", "0", "--download", "false", "--quick"]
    return main(["reproduce", "vision", *fixed, "--out", str(out), "--data", str(data), *map(str, words)])


def units(folder: Path) -> dict[str, int]:
    """When each result was written."""
    files = (folder / "units").rglob("[0-9]*.json")
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}


def by_name(folder: Path) -> dict[tuple[str, str], RunRecord]:
    return {(record.method, record.protocol): record for record in read_records(folder)}


@pytest.fixture(scope="module")
def quick(textures, thread_cache, tmp_path_factory):
    """The folder of a quick run of two methods with both classifiers."""
    folder = tmp_path_factory.mktemp("quick") / "out"
    assert reproduce(folder, textures, "--methods", *TWO) == 0
    return folder


@pytest.fixture
def copy(quick, tmp_path):
    return Path(shutil.copytree(quick, tmp_path / "copy"))


def test_records_and_report_are_written(quick):
    records = by_name(quick)
    assert set(records) == {(method, protocol) for method in TWO for protocol in HEADS.values()}
    for (method, protocol), record in records.items():
        assert (record.task, record.data, record.metric) == ("vision", "stripes", "top-1 accuracy in %")
        assert record.config["pool"]["method"] == method
        assert HEADS[record.config["head"]["kind"]] == protocol
        assert not {"data_root", "download", "training", "mode", "workers"} & record.config.keys()
    for name in ("README.md", "report.html"):
        text = (quick / name).read_text(encoding="utf-8")
        assert "stripes" in text
        assert "SOP+SC+SpecMaxExpF" in text
    assert len(units(quick)) == 2


def test_the_values_are_those_of_the_protocol(quick, textures, thread_cache):
    recipe = ReproduceOptions(data=[str(textures)], quick=True, download=False).read_config(str(textures))
    (place,) = (thread_cache / "features").glob("stripes-*")
    features = open_features(place)
    for (method, protocol), record in by_name(quick).items():
        config = replace(recipe, pool=replace(recipe.pool, method=method))
        expected = run_chain(TASK, config, features, 0, [protocol]).results[protocol]
        assert record.values == (expected.value,)
        assert record.results[0].right == expected.right
        assert record.results[0].chosen == expected.chosen
        assert record.config["data_digest"] == features.facts["data_digest"]


def test_the_same_command_computes_nothing_twice(copy, textures, monkeypatch):
    monkeypatch.setattr(scheduler, "_make_executor", None)  # a unit that is not stored is an error
    before, files = by_name(copy), units(copy)
    assert reproduce(copy, textures, "--methods", *TWO) == 0
    assert units(copy) == files
    assert by_name(copy) == before


def test_only_what_is_missing_is_computed(copy, textures):
    before, files = by_name(copy), units(copy)
    gone = next(name for name in files if "/FOP-" in name)
    (copy / gone).unlink()
    assert reproduce(copy, textures, "--methods", "SOP", *TWO) == 0
    after = units(copy)
    assert {name for name in files if files[name] != after[name]} == {gone}
    assert len(after) == 3
    assert by_name(copy)["FOP", "frozen"].results[0].right == before["FOP", "frozen"].results[0].right


def test_other_settings_images_and_versions_are_kept_apart(copy, tmp_path, textures, monkeypatch):
    files = units(copy)
    assert reproduce(copy, textures, "--methods", "FOP", "--heads", "ridge", "--seed", "1") == 0
    assert by_name(copy)["FOP", "frozen"].seed == 1
    other = write_images(tmp_path / "stripes", first=20)
    assert reproduce(copy, other, "--methods", "FOP", "--heads", "ridge") == 0
    monkeypatch.setattr(extraction, "_made_by", lambda: "another version of Pillow")
    assert reproduce(copy, textures, "--methods", "FOP", "--heads", *HEADS) == 0
    after = units(copy)
    assert {name: after[name] for name in files} == files
    assert len(after) == len(files) + 3


def test_a_bad_grid_value_is_refused_before_images_are_read(tmp_path, textures, monkeypatch, capsys):
    monkeypatch.setattr("powerpool.tasks.vision.task.read_images", None)
    (tmp_path / "mine.yaml").write_text("grid: {eta: [2.5]}\n")
    fixed = ["reproduce", "vision", "--data", str(textures), "--out", str(tmp_path / "out")]
    assert main([*fixed, "--recipe", str(tmp_path / "mine.yaml"), "--methods", *TWO]) == 2
    assert "pool.eta=2.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options, named",
    [
        ({"methods": ["SOPP"]}, "SOPP"),
        ({"heads": ["svm"]}, "svm"),
        ({"heads": []}, "heads"),
        ({"heads": ["ridge", "ridge"]}, "heads"),
        ({"workers": -1}, "workers"),
    ],
)
def test_bad_options_are_refused(options, named):
    with pytest.raises(PowerPoolError, match=named):
        ReproduceOptions(**options)


def test_end_to_end_trainings_run_in_this_process_and_are_not_repeated(textures, tmp_path, monkeypatch):
    monkeypatch.setattr(scheduler, "_make_executor", None)  # no worker is needed
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "mode: end-to-end\ncrops: {size: 32, count: 1, resize: 32}\naccelerator: cpu\n"
        "training: {epochs: 1, crops: 1, batch_size: 9}\n"
    )
    out = tmp_path / "out"
    words = ["reproduce", "vision", "--data", str(textures), "--recipe", str(recipe), "--out", str(out)]
    words += ["--methods", "FOP", "--workers", "0"]
    assert main(words) == 0
    files = units(out)
    assert main(words) == 0
    assert units(out) == files
    assert [(record.method, record.protocol) for record in read_records(out)] == [("FOP", "end-to-end")]
    (model,) = out.rglob("model.json")
    assert main(["evaluate", "vision", "--run", str(model.parent), "--workers", "0"]) == 0  # the model is kept
    with monkeypatch.context() as patch:
        use_tiny(patch, seed=1)
        assert main(words) == 0  # other weights of the same name
    assert len(units(out)) == 2


def test_two_data_sets_of_one_name_are_refused(textures, tmp_path, capsys):
    other = tmp_path / "elsewhere" / textures.name
    shutil.copytree(textures, other)
    words = ["reproduce", "vision", "--data", str(textures), str(other), "--quick", "--workers", "0"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert textures.name in capsys.readouterr().err


def test_both_classifiers_share_the_pooled_images(textures, thread_cache, monkeypatch):
    calls = []
    original = frozen.Vectors
    monkeypatch.setattr(frozen, "Vectors", lambda *given, **named: (calls.append(1), original(*given, **named))[1])
    config = ReproduceOptions(data=[str(textures)], quick=True, download=False, workers=0).read_config(str(textures))
    features = TASK.load(config)
    run_chain(TASK, config, features, 0, tuple(HEADS.values()))
    assert len(calls) == 1  # for the selection by both classifiers and for the models


def test_ranges_that_were_widened_are_printed_and_their_trials_are_in_the_record(textures, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("crops: {size: 32, count: 2, resize: 32}\nhead: {ridge_penalty: [0.001, 0.002]}\n")
    words = ["--recipe", recipe, "--data", textures, "--methods", "SOP", "--heads", "ridge", "--out", tmp_path / "out"]
    assert main(["reproduce", "vision", "--jobs", "1", "--workers", "0", *map(str, words)]) == 0
    assert "stripes, SOP, frozen: Ranges widened: penalty 0.001 to 0.002, added" in capsys.readouterr().err
    (record,) = read_records(tmp_path / "out")
    assert record.config["widen"] == 3
    assert 2 < len(record.results[0].trials) <= 5
