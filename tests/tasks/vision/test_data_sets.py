"""Published data sets with their recipes, tables of splits, and what folders may contain, as commands see them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from powerpool.cli.main import main
from powerpool.report.write import read_records
from powerpool.runs.record import RunRecord
from tests.data.image_sets import PUBLISHED, write_folder
from tests.tasks.vision.samples import CLASSES, write_images
from tests.tasks.vision.test_task import run, train

pytestmark = pytest.mark.usefixtures("thread_cache")


def test_every_recipe_of_a_published_data_set_runs(tmp_path: Path) -> None:
    for make in PUBLISHED.values():
        write_folder(tmp_path / "data", make())
    words = ["--quick", "--mode", "frozen", "--methods", "FOP", "--heads", "ridge"]
    words += ["--jobs", "1", "--workers", "0", "--download", "false"]
    places = ["--data_root", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "vision", "--data", *PUBLISHED, *places, *words]) == 0
    counts = {record.data: record.config["pictures"] for record in read_records(tmp_path / "out")}
    drawn = {"train": 2, "validation": 2, "test": 4}  # without a validation split, half of two images of each class
    assert counts == dict.fromkeys(PUBLISHED, drawn) | {
        "dtd": {"train": 4, "validation": 4, "test": 4},
        "aircraft": {"train": 2, "validation": 2, "test": 4},
    }


def test_a_table_of_splits_is_named_stored_and_read_again(tmp_path, capsys, monkeypatch):
    own = write_images(tmp_path / "own", 6)
    split_of = ("train", "train", "val", "test", "test", "test")
    names = {f"{label}/{number:02d}.png": split for label in CLASSES for number, split in enumerate(split_of)}
    table = tmp_path / "mine.csv"
    table.write_text("path,label,split\n" + "".join(f"{name},kind {name[0]},{names[name]}\n" for name in names))
    monkeypatch.chdir(tmp_path)
    assert train(tmp_path / "run", "--data", "own", "--split_file", "mine.csv", "--pool.method", "FOP") == 0
    record = RunRecord.read(tmp_path / "run" / "record.json")
    assert record.config["pictures"] == {"train": 6, "validation": 3, "test": 9}
    assert "split_file" not in record.config  # the digest of the data depends on it
    monkeypatch.chdir(own)
    assert run("evaluate", "vision", "--run", tmp_path / "run", "--out", tmp_path / "out", "--workers", 0) == 0
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert {name: own["count"] for name, own in found["accuracy_by_class"].items()} == {"kind a": 6, "kind [": 3}
    table.write_text(table.read_text().replace("00.png,kind a,train", "00.png,kind a,tset"))
    capsys.readouterr()
    assert train(tmp_path / "other", "--data", own, "--split_file", table) == 2
    assert f"{table}, line 2: unknown split 'tset'" in capsys.readouterr().err


def test_what_is_skipped_is_printed_and_strict_refuses_it(tmp_path, capsys):
    own = write_images(tmp_path / "own", 5)
    write_folder(own, {"along/notes.txt": b"", "tulip/info.json": b""})
    (own / "along" / "loop").symlink_to(own)
    words = ["--data", own, "--pool.method", "FOP"]
    assert train(tmp_path / "run", *words) == 0
    trained = capsys.readouterr().err
    assert run("evaluate", "vision", "--run", tmp_path / "run", "--data", own, "--workers", 0) == 0
    for printed in (trained, capsys.readouterr().err):
        assert [name in printed for name in ("(1): along/notes.txt", "(1): tulip", "(1): along/loop")] == [True] * 3
    assert train(tmp_path / "other", *words, "--strict") == 2
    assert "tulip" in capsys.readouterr().err


def test_the_most_probable_classes_are_named(tmp_path, textures, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert train(tmp_path / "run", "--data", textures, "--pool.method", "SOP") == 0
    words = ["predict", "vision", textures / "along", "--run", tmp_path / "run", "--workers", 0]
    for name, more in (("all.json", ()), ("two.csv", ("--top", 2)), ("two.json", ("--top", 2))):
        assert run(*words, "--out", tmp_path / name, *more) == 0
    whole = json.loads((tmp_path / "all.json").read_text())
    for row, item, other in zip(
        csv.DictReader((tmp_path / "two.csv").read_text().splitlines()),
        json.loads((tmp_path / "two.json").read_text()),
        whole,
        strict=True,
    ):
        ranked = sorted(((other[f"probability of {label}"], label) for label in CLASSES), reverse=True)
        assert list(item) == list(row) == ["picture", "class", "probability", "class 2", "probability 2"]
        for found in (row, item):
            assert [found["class"], found["class 2"]] == [label for _, label in ranked[:2]]
            values = [float(found["probability"]), float(found["probability 2"])]
            assert values == pytest.approx([value for value, _ in ranked[:2]], abs=1e-6)
    capsys.readouterr()
    assert run(*words, "--top", 5) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "00.png" in line)
    assert line.count("%") == len(CLASSES)
    assert all(label in line for label in CLASSES)
    assert run(*words, "--top", 0) == 2
    assert "top" in capsys.readouterr().err
