"""Train, evaluate and predict as they are typed, on a user's own pictures; stops, and bad input."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from powerpool.cli.main import main
from powerpool.runs.record import RunRecord
from powerpool.tasks.fewshot.runs import TrainedModel, load_run
from tests.pipelines.fewshot.samples import write_folder

PATIENCE = 300  # seconds: no test is about time, and none waits for ever
CUT = ["--train_classes", "6", "--validation_classes", "3", "--class_order", "drawn"]
EPISODES = ["--test.way", "2", "--test.count", "10", "--training.episodes", "4", "--training.validate_every", "2"]
SMALL = [*CUT, *EPISODES, "--size", "16", "--channels", "1", "--model.hidden", "4"]


def run(*words: object) -> int:
    return main([str(word) for word in words])


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


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("own") / "bars")


@pytest.fixture(scope="module")
def trained(pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert run("train", "fewshot", "--data", pictures, *SMALL, "--out", folder) == 0
    return folder


def test_a_run_has_a_model_a_record_and_its_settings(trained, pictures):
    record = RunRecord.read(trained / "record.json")
    assert (record.pipeline, record.data, record.method) == ("fewshot", "bars", "SoSN(x+L)+SigmE")
    assert record.protocol == "2-way-1-shot"
    assert record.config["data"] == "bars"
    assert record.config["pictures"] == {"train": 36, "validation": 18, "test": 18}
    assert str(pictures) not in (trained / "record.json").read_text()
    assert load_run(trained).pictures.size == 16


def test_what_came_out_is_said(trained, pictures, tmp_path, capsys):
    assert run("train", "fewshot", "--data", pictures, *SMALL, "--out", tmp_path / "again") == 0
    out, err = capsys.readouterr()
    value = RunRecord.read(trained / "record.json").folds[0]["value"]
    assert f"accuracy {value:.2f} ± " in out
    assert "over 10 episodes" in out
    assert "episode 2 of 4: loss " in err
    assert ", validation " in err


def test_a_finished_run_is_not_trained_again_unless_asked_for(trained, pictures, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    command = ["train", "fewshot", "--data", pictures, *SMALL, "--out", copy]
    assert "holds this very run, finished" in refusal(capsys, *command)
    assert "other settings" in refusal(capsys, *command, "--seed", "1")
    assert run(*command, "--seed", "1", "--overwrite", "true") == 0
    assert RunRecord.read(copy / "record.json").seed == 1


def test_evaluation_of_the_same_episodes_gives_the_same_and_others_can_be_asked_for(trained, capsys, tmp_path):
    assert run("evaluate", "fewshot", "--run", trained, "--out", tmp_path) == 0
    fold = RunRecord.read(trained / "record.json").folds[0]
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["right_by_episode"] == fold["right_by_episode"]
    assert "test classes of bars, 2-way 1-shot" in capsys.readouterr().out
    more = ["--way", "3", "--shot", "2", "--queries", "1", "--count", "5", "--transductive", "true"]
    assert run("evaluate", "fewshot", "--run", trained, "--out", tmp_path, *more) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    wanted = {"way": 3, "shot": 2, "queries": 1, "count": 5, "transductive": True}
    assert (found["test"], found["queries"], found["count"]) == (wanted, 3, 5)


def test_other_pictures_can_be_tested_on(trained, tmp_path, capsys):
    other = write_folder(tmp_path / "other", classes=4)
    assert run("evaluate", "fewshot", "--run", trained, "--data", other, "--way", "4", "--out", tmp_path) == 0
    assert "all classes of" in capsys.readouterr().out


def test_cuts_that_leave_nothing_are_told_by_their_options(pictures, tmp_path, capsys):
    cut = ("--train_classes", "11", "--validation_classes", "1", "--class_order", "names")
    said = refusal(capsys, "train", "fewshot", "--data", pictures, *SMALL, *cut, "--out", tmp_path)
    assert "with the settings train_classes, validation_classes and class_order." in said
    assert "ClassCut" not in said


def test_classes_may_lie_in_folders_of_classes_but_open_mic_is_refused(trained, tmp_path, capsys):
    for name in ("first", "second"):
        write_folder(tmp_path / "other" / name, classes=2)
    assert (
        run("evaluate", "fewshot", "--run", trained, "--data", tmp_path / "other", "--way", "4", "--out", tmp_path) == 0
    )
    assert "all classes of other" in capsys.readouterr().out
    write_folder(tmp_path / "museum/shn/target", classes=2)
    said = refusal(capsys, "evaluate", "fewshot", "--run", trained, "--data", tmp_path / "museum", "--out", tmp_path)
    assert "is Open MIC, all classes of which are no test" in said


def test_classes_that_were_trained_on_are_no_test_and_that_is_said(trained, pictures, tmp_path, capsys):
    assert run("evaluate", "fewshot", "--run", trained, "--data", pictures, "--out", tmp_path) == 0
    assert "this is no test" in capsys.readouterr().err


def test_a_folder_of_another_kind_of_run_is_told_from_one_with_other_settings(pictures, tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("folds: 10\n")
    said = refusal(capsys, "train", "fewshot", "--data", pictures, *SMALL, "--out", tmp_path)
    assert "holds a run with other settings" in said


def test_a_device_that_is_not_there_is_refused(trained, tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    said = refusal(capsys, "evaluate", "fewshot", "--run", trained, "--device", "cuda", "--out", tmp_path)
    assert "cannot be used on this machine" in said


def test_pictures_for_a_model_of_centred_pictures_are_centred_by_the_examples(trained, examples, monkeypatch):
    found = []
    real = TrainedModel.scores

    def noted(self, support, query):
        found.append((support, query))
        return real(self, support, query)

    monkeypatch.setattr(TrainedModel, "scores", noted)
    where = ["predict", "fewshot", "--run", trained, "--support", examples / "examples", examples / "asked"]
    assert run(*where, "--out", examples / "plain.csv") == 0
    model = load_run(trained)
    TrainedModel(model.network, replace(model.pictures, centred=True)).save(examples / "run" / "model.pt")
    assert run(*where[:2], "--run", examples / "run", *where[4:], "--out", examples / "centred.csv") == 0
    (plain_support, plain_query), (support, query) = found
    mean = torch.cat(plain_support).mean(0)
    torch.testing.assert_close(torch.cat(support), torch.cat(plain_support) - mean)
    torch.testing.assert_close(query, plain_query - mean)


def test_too_many_classes_say_what_would_fit(trained, pictures, tmp_path, capsys):
    said = refusal(capsys, "evaluate", "fewshot", "--run", trained, "--way", "9", "--out", tmp_path)
    assert "There are 3 classes" in said
    assert "way at most 3" in said
    said = refusal(capsys, "train", "fewshot", "--data", pictures, *SMALL, "--test.way", "9", "--out", tmp_path / "no")
    assert "What fits: way at most" in said
    assert not (tmp_path / "no" / "model.pt").exists()
    said = refusal(capsys, "train", "fewshot", "--data", pictures, *SMALL, "--test.shot", "9", "--out", tmp_path / "no")
    assert "shot + queries at most 6" in said


def test_other_pictures_than_those_of_the_run_are_noticed(trained, pictures, tmp_path, capsys):
    changed = tmp_path / "bars"
    shutil.copytree(pictures, changed)
    (changed / "bar00" / "0.png").unlink()
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    config = (copy / "config.yaml").read_text().replace(str(pictures), str(changed))
    (copy / "config.yaml").write_text(config)
    assert "has changed since the run was trained" in refusal(capsys, "evaluate", "fewshot", "--run", copy)


@pytest.fixture
def examples(pictures, tmp_path):
    """Two classes with three examples and one, and pictures to name."""
    for label, count in (("bar00", 3), ("bar07", 1)):
        (tmp_path / "examples" / label).mkdir(parents=True)
        for number in range(count):
            shutil.copy(pictures / label / f"{number}.png", tmp_path / "examples" / label)
    (tmp_path / "asked").mkdir()
    for label in ("bar00", "bar07"):
        shutil.copy(pictures / label / "5.png", tmp_path / "asked" / f"{label}.png")
    return tmp_path


def test_pictures_are_named_by_a_few_examples(trained, examples, capsys):
    where = ["--run", trained, "--support", examples / "examples", examples / "asked"]
    assert run("predict", "fewshot", *where) == 0
    out = capsys.readouterr().out
    assert "then" in out
    assert "bar07" in out
    for name in ("answers.csv", "answers.json"):
        assert run("predict", "fewshot", *where, "--out", examples / name) == 0
    rows = json.loads((examples / "answers.json").read_text())
    assert [Path(row["picture"]).name for row in rows] == ["bar00.png", "bar07.png"]
    for row in rows:
        scores = {label: row[f"score of {label}"] for label in ("bar00", "bar07")}
        assert row["class"] == max(scores, key=scores.get)
        assert row["score"] == max(scores.values())
    with (examples / "answers.csv").open() as file:
        assert [float(row["score"]) for row in csv.DictReader(file)] == [row["score"] for row in rows]


def test_a_picture_that_cannot_be_read_is_named_or_skipped(trained, examples, capsys):
    (examples / "asked" / "broken.png").write_bytes(b"no picture")
    where = ["--run", trained, "--support", examples / "examples", examples / "asked"]
    assert "broken.png" in refusal(capsys, "predict", "fewshot", *where)
    assert run("predict", "fewshot", *where, "--corrupt", "skip") == 0
    out, err = capsys.readouterr()
    assert "skipped, not readable" in err
    assert "broken.png" not in out


def test_bad_words_say_what_is_needed(trained, examples, tmp_path, capsys):
    predict = ["predict", "fewshot", "--run", trained, "--support"]
    (tmp_path / "one" / "class").mkdir(parents=True)
    shutil.copy(examples / "asked" / "bar00.png", tmp_path / "one" / "class")
    asked = examples / "asked"
    assert "at least two classes" in refusal(capsys, *predict, tmp_path / "one", asked)
    assert "at least one file or folder" in refusal(capsys, *predict, examples / "examples")
    assert ".csv or .json" in refusal(capsys, *predict, examples / "examples", asked, "--out", "a.txt")
    assert "There is no file or folder" in refusal(capsys, *predict, tmp_path / "nowhere", asked)
    assert "There is no run folder" in refusal(capsys, "evaluate", "fewshot", "--run", tmp_path / "nowhere")
    said = refusal(capsys, "train", "fewshot", "--data", examples / "examples", "--model.method", "SoSM")
    assert "SoSN(x)" in said


def test_a_network_can_start_from_another_and_tells_where_it_does_not_fit(trained, pictures, tmp_path, capsys):
    command = ["train", "fewshot", "--data", pictures, *SMALL, "--pretrained", trained]
    assert run(*command, "--out", tmp_path / "finer", "--training.learning_rate", "1e-9") == 0
    start, end = (load_run(folder).network.state_dict() for folder in (trained, tmp_path / "finer"))
    for name, value in start.items():
        if name.endswith("weight"):
            torch.testing.assert_close(end[name], value, rtol=1e-4, atol=1e-6)
    said = refusal(capsys, *command, "--model.method", "SoSN(x)+AsinhE", "--out", tmp_path / "no")
    assert "was trained with model.method SoSN(x+L)+SigmE" in said


def test_an_interrupted_training_goes_on_with_the_same_command(trained, pictures, tmp_path):
    slow = ["--training.episodes", "150", "--training.validate_every", "150", "--training.validation_episodes", "2"]
    powerpool = Path(sys.executable).with_name("powerpool")
    program = [powerpool, "train", "fewshot", "--data", pictures, *SMALL, *slow, "--out", tmp_path / "run"]
    begun = subprocess.Popen(program, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "config.yaml").exists():
        assert begun.poll() is None
    begun.send_signal(signal.SIGINT)
    _, err = begun.communicate(timeout=PATIENCE)
    assert begun.returncode != 0
    assert "Traceback" not in err
    ended = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "Going on with the run" in ended.stderr
    assert RunRecord.read(tmp_path / "run" / "record.json").folds[0]["curves"]["episode"] == [150]
