"""Train, evaluate and predict as they are typed, on a user's own pictures; stops, and bad input."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from powerpool.cli.main import main
from powerpool.data import list_images, load_images
from powerpool.files import locked
from powerpool.runs.record import RunRecord
from powerpool.tasks.vision import commands
from powerpool.tasks.vision.runs import load_run
from tests.pipelines.vision.samples import CLASSES, texture, use_tiny, write_pictures

PATIENCE = 300  # seconds: no test is about time, and none waits for ever
CROPS = ["--crops.size", "32", "--crops.count", "2", "--crops.resize", "32"]
SMALL = ["--backbone", "tiny", *CROPS, "--accelerator", "cpu", "--workers", "0"]


def run(*words: object) -> int:
    return main([str(word) for word in words])


def train(out: Path, *words: object) -> int:
    return run("train", "vision", *SMALL, "--out", out, *words)


def refusal(capsys, *words: object) -> str:
    """What is said of a command that is refused: one line, and exit code 2."""
    capsys.readouterr()
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line]
    assert len(lines) == 1, err
    assert lines[0].startswith(f"powerpool {words[0]} {words[1]}: error: ")
    return lines[0]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_run(folder).network.state_dict()


def assert_equal_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """The tiny network, and one cache for all tests of this file: the features of the pictures are computed once."""
    with pytest.MonkeyPatch.context() as patch:
        use_tiny(patch)
        patch.setenv("POWERPOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield patch


@pytest.fixture(scope="module")
def trained(cache, textures, tmp_path_factory):
    """A run on the user's own pictures."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train(folder, "--data", textures, "--grid.eta", "2", "8") == 0
    return folder


# ---- what is typed and what comes out --------------------------------------------------------------------------------


def test_train_evaluate_and_predict_with_a_real_network(textures, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    words = ["--crops.size", "64", "--crops.count", "1", "--crops.resize", "64", "--workers", "1"]
    done = subprocess.run(
        [Path(sys.executable).with_name("powerpool"), "train", "vision", "--data", textures, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    folder = Path("runs", "train", "vision", "stripes", "SOP+SC+SpecMaxExpF")
    assert "SOP+SC+SpecMaxExpF on stripes, frozen: test accuracy " in done.stdout
    assert f"The model is in {folder}." in done.stdout
    monkeypatch.chdir(tmp_path)
    assert run("evaluate", "vision", "--run", folder, "--workers", "0") == 0
    record = RunRecord.read(folder / "record.json")
    figures = json.loads((folder / "evaluation.json").read_text())
    assert figures["top1"] == pytest.approx(record.values[0])
    assert record.values[0] > 60  # three kinds of stripes
    capsys.readouterr()
    assert run("predict", "vision", textures / "along" / "00.png", "--run", folder) == 0
    assert "along" in capsys.readouterr().out


def test_a_run_folder_holds_all_that_came_out(trained, textures):
    assert {"config.yaml", "data.json", "model.pt", "record.json", "points"} <= {
        file.name for file in trained.iterdir()
    }
    record = RunRecord.read(trained / "record.json")
    assert (record.pipeline, record.data, record.method) == ("vision", "stripes", "SOP+SC+SpecMaxExpF")
    assert (record.protocol, record.metric, record.seed) == ("frozen", "top-1 accuracy in %", 0)
    result, model = record.folds[0], load_run(trained)
    assert result["chosen"]["eta"] == model.network.pool.config.eta
    assert len(result["grid"]) == 2 * 6
    images = load_images(textures)
    scores = model.logits(images["test"], 0)
    right = scores.argmax(1) == images["test"].targets
    assert result["value"] == pytest.approx(100 * float(right.double().mean()))
    assert result["test_loss"] == pytest.approx(
        float(torch.nn.functional.cross_entropy(scores, images["test"].targets)), rel=0.02
    )
    assert record.config["data_digest"] == images.digest
    assert f"data: {textures}" in (trained / "config.yaml").read_text()


def test_evaluate_tests_on_the_test_pictures_of_the_run(trained, textures, tmp_path, capsys):
    assert run("evaluate", "vision", "--run", trained, "--out", tmp_path / "a", "--workers", "0") == 0
    figures = json.loads((tmp_path / "a" / "evaluation.json").read_text())
    assert figures["pictures"] == "test pictures of stripes"
    assert figures["top1"] == pytest.approx(RunRecord.read(trained / "record.json").values[0])
    assert (tmp_path / "a" / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert "[oblique]" in capsys.readouterr().out
    assert not (trained / "evaluation.json").exists()
    assert run("evaluate", "vision", "--run", trained, "--split", "train", "--out", tmp_path / "b") == 0
    figures = json.loads((tmp_path / "b" / "evaluation.json").read_text())
    assert figures["count"] == len(load_images(textures)["train"])


def test_evaluate_tests_on_all_of_other_pictures_by_the_names_of_their_classes(trained, tmp_path):
    other = write_pictures(tmp_path / "other", 5, first=40, classes=CLASSES[1:])
    assert run("evaluate", "vision", "--run", trained, "--data", other, "--out", tmp_path) == 0
    figures = json.loads((tmp_path / "evaluation.json").read_text())
    assert (figures["pictures"], figures["count"]) == ("all pictures of other", 10)
    model = load_run(trained)
    said = {}
    for label in CLASSES[1:]:
        answers = model.logits(list_images([other / label]), 0).argmax(1)
        said[label] = int((answers == model.classes.index(label)).sum())
    assert figures["top1"] == pytest.approx(10 * sum(said.values()))


def test_evaluate_finds_the_pictures_where_they_are_now(cache, tmp_path, capsys):
    write_pictures(tmp_path / "before" / "own", 6)
    words = ["--data", "own", "--data_root", tmp_path / "before", "--pool.method", "FOP"]
    assert train(tmp_path / "run", *words) == 0
    (tmp_path / "before").rename(tmp_path / "after")
    capsys.readouterr()
    assert run("evaluate", "vision", "--run", tmp_path / "run") == 2
    assert run("evaluate", "vision", "--run", tmp_path / "run", "--data_root", tmp_path / "after") == 0


def test_predict_files_and_folders(trained, textures, tmp_path, capsys):
    folder = tmp_path / "pictures" / "deep"
    folder.mkdir(parents=True)
    for number in range(3):
        texture(number, 50).save(folder / f"{number}.png")
    file = textures / "along" / "03.png"
    words = ["predict", "vision", file, tmp_path / "pictures", "--run", trained]
    assert run(*words, "--out", tmp_path / "said.csv") == 0
    assert run(*words, "--out", tmp_path / "a" / "said.json") == 0
    assert capsys.readouterr().out == ""
    model = load_run(trained)
    names = [str(file), *(str(folder / f"{number}.png") for number in range(3))]
    expected = model.logits(list_images(names), 0).softmax(1)
    answers = list(csv.DictReader((tmp_path / "said.csv").read_text(encoding="utf-8").splitlines()))
    listed = json.loads((tmp_path / "a" / "said.json").read_text())
    assert [answer["picture"] for answer in answers] == [item["picture"] for item in listed] == names
    for answer, item, row in zip(answers, listed, expected, strict=True):
        assert answer["class"] == item["class"] == model.classes[int(row.argmax())]
        found = [float(answer[f"probability of {label}"]) for label in model.classes]
        assert found == pytest.approx(row.tolist(), abs=1e-6)
        assert float(answer["probability"]) == item["probability"] == max(found)
    assert run(*words) == 0
    printed = capsys.readouterr().out
    assert "probability" in printed
    assert "[oblique]" in printed


def test_pictures_may_stand_before_and_after_the_options(trained, textures, tmp_path):
    first, second = textures / "along" / "00.png", textures / "along" / "01.png"
    answers = []
    for number, words in enumerate(([first, second, "--run", trained], [first, "--run", trained, second])):
        out = tmp_path / f"{number}.csv"
        assert run("predict", "vision", *words, "--out", out) == 0
        answers.append(out.read_text())
    assert answers[0] == answers[1]
    assert len(answers[0].splitlines()) == 3


@pytest.mark.usefixtures("cache")
def test_a_run_can_be_evaluated_from_another_folder(textures, tmp_path, monkeypatch):
    monkeypatch.chdir(textures.parent)
    assert train(tmp_path / "run", "--data", textures.name, "--pool.method", "FOP") == 0
    monkeypatch.chdir(tmp_path)
    assert run("evaluate", "vision", "--run", tmp_path / "run", "--workers", 0) == 0


def test_other_pictures_are_evaluated_without_cutting_them(trained, textures, tmp_path, capsys):
    (tmp_path / "few" / "along").mkdir(parents=True)
    shutil.copy(textures / "along" / "00.png", tmp_path / "few" / "along")
    words = ("evaluate", "vision", "--run", trained, "--out", tmp_path)
    assert run(*words, "--data", tmp_path / "few") == 0
    assert "on all pictures of few" in " ".join(capsys.readouterr().out.split())
    assert run(*words, "--data", tmp_path / "few", "--split", "test") == 2
    assert "few has no split 'test'" in capsys.readouterr().err


def test_predict_skips_what_is_no_picture_if_asked_to(trained, textures, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    words = ["predict", "vision", tmp_path / "bad.png", textures / "along" / "00.png", "--run", trained]
    assert "bad.png is no picture" in refusal(capsys, *words)
    assert run(*words, "--corrupt", "skip") == 0
    out, err = capsys.readouterr()
    assert "00.png" in out
    assert "bad.png" not in out
    assert f"skipped, not readable: {tmp_path / 'bad.png'}" in err.replace("\n", "")
    said = refusal(capsys, *words[:3], "--run", trained, "--corrupt", "skip")
    assert "1 of 1 images cannot be read" in said


def test_settings_that_the_method_has_not_are_told(cache, textures, tmp_path, capsys):
    words = ["--pool.method", "FOP", "--pool.eta", "7", "--grid.gamma", "0.2", "0.3"]
    assert train(tmp_path, "--data", textures, *words) == 0
    assert "pool.eta, grid.gamma: not used, FOP does not depend on it." in capsys.readouterr().err


def test_pictures_that_are_skipped_are_counted(cache, tmp_path, capsys):
    own = write_pictures(tmp_path / "own", 6)
    bad = load_images(own)["train"].names[0]
    (own / bad).write_bytes(b"no picture")
    assert train(tmp_path / "run", "--data", own, "--pool.method", "FOP", "--corrupt", "skip") == 0
    assert f"1 pictures of train cannot be read and were skipped, the first is {bad}." in capsys.readouterr().err
    recorded = RunRecord.read(tmp_path / "run" / "record.json").config["pictures"]
    whole = load_images(own).splits
    assert recorded == {name: len(split) - (name == "train") for name, split in whole.items()}


# ---- the same folder again -------------------------------------------------------------------------------------------


def test_a_finished_run_is_neither_repeated_nor_overwritten_unless_asked(cache, textures, tmp_path, capsys):
    folder, words = tmp_path / "run", ["--data", textures, "--pool.method", "SOP"]
    assert train(folder, *words) == 0
    before = {file: file.read_bytes() for file in folder.rglob("*.*") if file.is_file() and file.name != ".lock"}
    typed = ["train", "vision", *SMALL, "--out", folder, *words]
    assert "holds this very run, finished." in refusal(capsys, *typed)
    assert "holds a run with other settings" in refusal(capsys, *typed, "--pool.beta", "0.5")
    assert {file: file.read_bytes() for file in before} == before
    assert run(*typed, "--pool.beta", "0.5", "--overwrite") == 0
    assert train(tmp_path / "fresh", *words, "--pool.beta", "0.5") == 0
    assert_equal_weights(folder, tmp_path / "fresh")


def test_a_grid_that_was_stopped_goes_on(cache, textures, tmp_path, monkeypatch, capsys):
    words = ["--data", textures, "--grid.eta", "2", "5", "9"]
    assert train(tmp_path / "whole", *words) == 0
    tried, validate = [], commands.validate

    def stop(config, pool, features):
        tried.append(pool.eta)
        if len(tried) == 3:
            raise KeyboardInterrupt
        return validate(config, pool, features)

    monkeypatch.setattr(commands, "validate", stop)
    assert train(tmp_path / "parts", *words) == 130
    assert not (tmp_path / "parts" / "model.pt").exists()
    capsys.readouterr()
    assert run("predict", "vision", textures, "--run", tmp_path / "parts") == 2
    assert "its training did not end" in capsys.readouterr().err
    assert train(tmp_path / "parts", *words) == 0
    assert f"Going on with the run in {tmp_path / 'parts'}." in capsys.readouterr().err
    assert tried == [2, 5, 9, 9]
    assert_equal_weights(tmp_path / "parts", tmp_path / "whole")
    one, other = (RunRecord.read(tmp_path / name / "record.json").folds[0] for name in ("parts", "whole"))
    assert one["grid"] == other["grid"]


def test_pictures_that_changed_since_are_not_gone_on_with(cache, tmp_path, capsys):
    own = write_pictures(tmp_path / "own", 6)
    typed = ["train", "vision", *SMALL, "--out", tmp_path / "run", "--data", own, "--pool.method", "FOP"]
    assert run(*typed) == 0
    shutil.copy(own / "along" / "01.png", own / "along" / "00.png")
    assert "but of other data: own has changed since" in refusal(capsys, *typed)
    assert "own has changed since the run was trained" in refusal(
        capsys, "evaluate", "vision", "--run", tmp_path / "run"
    )


def test_a_folder_is_for_one_process_at_a_time(cache, textures, tmp_path, capsys):
    with locked(tmp_path / "run"):
        said = refusal(capsys, "train", "vision", *SMALL, "--out", tmp_path / "run", "--data", textures)
    assert f"Another process (process {os.getpid()}" in said


# ---- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, said",
    [
        (["--data", "nowhere-at-all"], "nowhere-at-all"),
        (["--pool.method", "SOP+SC+SpecMaxExpG"], "SOP+SC+SpecMaxExpF"),
        (["--pool.eta", "2.5"], "pool.eta=2.5"),
        (["--workers", "-1"], "workers must be at least 0"),
        (["--crops.count", "3"], "count must be one of 1, 2, 5, 6, 10, 12"),
        (["--head.ridge_penalty", "0"], "head.ridge_penalty must be above 0"),
        (["--pool.reduce_to", "4"], "pool.reduce_to needs mode end-to-end"),
    ],
)
def test_what_cannot_be_trained_is_told_in_one_line(cache, textures, tmp_path, capsys, words, said):
    assert said in refusal(capsys, "train", "vision", *SMALL, "--out", tmp_path, "--data", textures, *words)
    assert not (tmp_path / "model.pt").exists()


def test_a_set_without_test_pictures_is_told(cache, tmp_path, capsys):
    for split in ("train", "validation"):
        write_pictures(tmp_path / "own" / split, 3)
    said = refusal(capsys, "train", "vision", *SMALL, "--out", tmp_path / "run", "--data", tmp_path / "own")
    assert "own has no pictures for test" in said


@pytest.mark.parametrize(
    "words, said",
    [
        (["predict", "vision", "--run", "RUN"], "pictures must name at least one file or folder"),
        (["predict", "vision", "nowhere.png", "--run", "RUN"], "There is no file or folder nowhere.png"),
        (["predict", "vision", "PICTURE", "--run", "RUN", "--out", "a.txt"], "out must end in .csv or .json"),
        (["predict", "vision", "PICTURE", "--run", "nowhere"], "There is no run folder nowhere"),
        (["evaluate", "vision", "--run", "nowhere"], "There is no run folder nowhere"),
        (["evaluate", "vision", "--run", "RUN", "--data", "OTHER"], "classes that the model does not know: zebra"),
    ],
)
def test_what_cannot_be_answered_is_told_in_one_line(trained, textures, tmp_path, capsys, words, said):
    shutil.copytree(textures / "along", tmp_path / "other" / "zebra")
    shutil.copytree(textures / "along", tmp_path / "other" / "along")
    places = {"RUN": trained, "PICTURE": textures / "along" / "00.png", "OTHER": tmp_path / "other"}
    assert said in refusal(capsys, *(places.get(word, word) for word in words))
