"""``powerpool train|evaluate|predict fewshot`` on a custom folder of images: outputs, Ctrl-C, and bad input."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from powerpool.cli.main import main
from powerpool.cli.reproduce import chain_folder
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.runs.config import read_recipe
from powerpool.runs.record import RunRecord
from powerpool.tasks.fewshot.config import FewShotConfig
from powerpool.tasks.fewshot.inference import TrainedModel, load_run
from powerpool.tasks.fewshot.options import ReproduceOptions
from powerpool.tasks.fewshot.rows import make_row, with_encoders, with_method
from powerpool.tasks.fewshot.task import TASK
from powerpool.tasks.fewshot.training import Training
from tests.tasks.fewshot.samples import write_folder

CUT = ["--train_classes", "6", "--validation_classes", "3", "--class_order", "drawn"]
EPISODES = ["--test.way", "2", "--test.count", "10", "--training.episodes", "4", "--training.validate_every", "2"]
FEW = ["--training.validation_episodes", "5", "--training.settling_episodes", "2"]
SMALL = [*CUT, *EPISODES, *FEW, "--size", "16", "--channels", "1", "--model.hidden", "4"]
SMALL += ["--training.precision", "32-true"]


def run(*words: object) -> int:
    return main([str(word) for word in words])


def refusal(capsys, *words: object) -> str:
    """Return the error of a command that is refused: one line, and exit code 2."""
    capsys.readouterr()
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("own") / "bars")


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert run("train", "fewshot", "--data", images, *SMALL, "--out", folder) == 0
    return folder


def test_a_run_folder_holds_model_record_and_settings(trained, images):
    record = RunRecord.read(trained / "record.json")
    assert (record.task, record.data, record.method) == ("fewshot", "bars", "SoSN(x+L)+SigmE")
    assert record.protocol == "2-way-1-shot"
    assert record.config["data"] == "bars"
    assert record.config["images"] == {"train": 36, "validation": 18, "test": 18}
    assert str(images) not in (trained / "record.json").read_text()
    assert str(images) in (trained / "config.yaml").read_text()
    assert load_run(trained).images.size == 16


def test_a_finished_run_is_trained_again_only_on_request(trained, images, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(trained, copy)
    command = ["train", "fewshot", "--data", images, *SMALL, "--out", copy]
    assert "finished" in refusal(capsys, *command)
    assert "other settings" in refusal(capsys, *command, "--seed", "1")
    assert run(*command, "--seed", "1", "--overwrite", "true") == 0
    out, err = capsys.readouterr()
    record = RunRecord.read(copy / "record.json")
    assert record.seed == 1
    assert f"accuracy {record.mean:.2f} ± " in out
    assert "episode 2 of 4: loss " in err


def test_precision_is_stored_as_it_was_chosen_and_another_machine_does_not_resume_in_another(
    images, tmp_path, capsys, monkeypatch
):
    command = ["train", "fewshot", "--data", images, *SMALL, "--training.precision", "auto", "--out", tmp_path]
    monkeypatch.setattr("powerpool.tasks.training.has_native_bfloat16", lambda device: False)
    assert run(*command) == 0
    assert capsys.readouterr().err.count("training.precision auto is 32-true") == 1
    assert RunRecord.read(tmp_path / "record.json").config["training"]["precision"] == "32-true"
    (tmp_path / "record.json").unlink()  # as if it had been stopped
    monkeypatch.setattr("powerpool.tasks.training.has_native_bfloat16", lambda device: True)
    assert run(*command) == 2
    chosen, error = capsys.readouterr().err.splitlines()
    assert "bf16-mixed" in chosen
    assert "other settings" in error
    assert run(*command, "--training.precision", "32-true") == 0


def test_evaluate_repeats_the_test_and_takes_other_episodes(trained, capsys, tmp_path):
    assert run("evaluate", "fewshot", "--run", trained, "--out", tmp_path) == 0
    (result,) = RunRecord.read(trained / "record.json").results
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["right_by_episode"] == " ".join(map(str, result.right))
    assert found["value"] == result.value
    assert f"{result.value:.2f}" in capsys.readouterr().out
    more = ["--way", "3", "--shot", "2", "--queries", "1", "--count", "5", "--transductive", "true"]
    assert run("evaluate", "fewshot", "--run", trained, "--out", tmp_path, *more) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    wanted = {"way": 3, "shot": 2, "queries": 1, "count": 5, "transductive": True}
    assert (found["test"], found["queries"], found["count"]) == (wanted, 3, 5)


def test_evaluate_takes_other_images_in_nested_folders_but_not_open_mic(trained, images, tmp_path, capsys):
    for name in ("first", "second"):
        write_folder(tmp_path / "other" / name, classes=2)
    words = ["evaluate", "fewshot", "--run", trained, "--out", tmp_path, "--data"]
    assert run(*words, tmp_path / "other", "--way", "4") == 0
    assert json.loads((tmp_path / "evaluation.json").read_text())["pictures"] == "all classes of other"
    assert run(*words, images) == 0
    assert "trained on" in capsys.readouterr().err
    write_folder(tmp_path / "museum/shn/target", classes=2)
    assert "Open MIC" in refusal(capsys, *words, tmp_path / "museum")


def test_bad_input_is_refused_in_one_line(trained, images, tmp_path, capsys):
    evaluate = ["evaluate", "fewshot", "--out", tmp_path, "--run"]
    train = ["train", "fewshot", "--data", images, *SMALL, "--out", tmp_path / "no"]
    assert "3 classes" in refusal(capsys, *evaluate, trained, "--way", "9")
    assert "nowhere" in refusal(capsys, *evaluate, tmp_path / "nowhere")
    if not torch.cuda.is_available():
        assert "cuda" in refusal(capsys, *evaluate, trained, "--device", "cuda")
    assert "split train of bars" in refusal(capsys, *train, "--test.way", "9")
    assert "split train of bars" in refusal(capsys, *train, "--test.shot", "9")
    assert "train_classes" in refusal(capsys, *train, "--train_classes", "11", "--validation_classes", "1")
    assert "SoSN(x)" in refusal(capsys, *train, "--model.method", "SoSM")
    fits_not = refusal(capsys, *train, "--pretrained", trained, "--model.method", "SoSN(x)+AsinhE")
    assert "model.method SoSN(x+L)+SigmE" in fits_not
    assert not (tmp_path / "no").exists()


def test_changed_data_is_noticed(trained, images, tmp_path, capsys):
    changed, copy = tmp_path / "bars", tmp_path / "run"
    shutil.copytree(images, changed)
    (changed / "bar00" / "0.png").unlink()
    shutil.copytree(trained, copy)
    config = (copy / "config.yaml").read_text().replace(str(images), str(changed))
    (copy / "config.yaml").write_text(config)
    assert "bars has changed" in refusal(capsys, "evaluate", "fewshot", "--run", copy)


def test_unreadable_images_are_an_error_or_skipped_and_counted(images, tmp_path, capsys):
    damaged = tmp_path / "bars"
    shutil.copytree(images, damaged)
    (damaged / "bar00" / "0.png").write_bytes(b"damaged")
    command = ["train", "fewshot", "--data", damaged, *SMALL, "--out", tmp_path / "run"]
    assert "0.png" in refusal(capsys, *command)
    assert run(*command, "--corrupt", "skip") == 0
    assert "1 image was skipped" in capsys.readouterr().err


# ---- predict ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def examples(images, tmp_path):
    """Two classes with three examples and one, and images to classify."""
    for label, count in (("bar00", 3), ("bar07", 1)):
        (tmp_path / "examples" / label).mkdir(parents=True)
        for number in range(count):
            shutil.copy(images / label / f"{number}.png", tmp_path / "examples" / label)
    (tmp_path / "new").mkdir()
    for label in ("bar00", "bar07"):
        shutil.copy(images / label / "5.png", tmp_path / "new" / f"{label}.png")
    return tmp_path


def test_images_are_classified_by_a_few_examples(trained, examples, capsys):
    words = ["predict", "fewshot", "--run", trained, "--support", examples / "examples", examples / "new"]
    assert run(*words) == 0
    assert "bar07" in capsys.readouterr().out
    for name in ("answers.csv", "answers.json"):
        assert run(*words, "--out", examples / name) == 0
    rows = json.loads((examples / "answers.json").read_text())
    assert [Path(row["picture"]).name for row in rows] == ["bar00.png", "bar07.png"]
    for row in rows:
        scores = {label: row[f"score of {label}"] for label in ("bar00", "bar07")}
        assert row["class"] == max(scores, key=scores.get)
        assert row["score"] == max(scores.values())
    with (examples / "answers.csv").open() as file:
        assert [float(row["score"]) for row in csv.DictReader(file)] == [row["score"] for row in rows]


def test_bad_examples_and_images_are_refused_or_skipped(trained, examples, capsys):
    predict = ["predict", "fewshot", "--run", trained, "--support"]
    shutil.copytree(examples / "new", examples / "one" / "class")
    assert "two classes" in refusal(capsys, *predict, examples / "one", examples / "new")
    assert "nowhere" in refusal(capsys, *predict, examples / "nowhere", examples / "new")
    (examples / "new" / "broken.png").write_bytes(b"damaged")
    assert "broken.png" in refusal(capsys, *predict, examples / "examples", examples / "new")
    assert run(*predict, examples / "examples", examples / "new", "--corrupt", "skip") == 0
    out, err = capsys.readouterr()
    assert "broken.png" in err
    assert "broken.png" not in out
    (examples / "examples" / "bar00" / "0.png").write_bytes(b"damaged")
    assert run(*predict, examples / "examples", examples / "new", "--corrupt", "skip") == 0
    assert "0.png" in capsys.readouterr().err


def test_files_beside_the_examples_are_named(trained, examples, capsys):
    (examples / "examples" / "bar00" / "notes.txt").write_text("not an image")
    assert run("predict", "fewshot", "--run", trained, "--support", examples / "examples", examples / "new") == 0
    assert "notes.txt" in capsys.readouterr().err


def test_a_model_of_centred_images_centres_by_the_examples(trained, examples, monkeypatch):
    found = []
    real = TrainedModel.scores

    def noted(self, support, query):
        found.append((support, query))
        return real(self, support, query)

    monkeypatch.setattr(TrainedModel, "scores", noted)
    words = ["--support", examples / "examples", examples / "new"]
    assert run("predict", "fewshot", "--run", trained, *words, "--out", examples / "plain.csv") == 0
    model = load_run(trained)
    TASK.save(replace(model, images=replace(model.images, centred=True)), examples / "run")
    assert run("predict", "fewshot", "--run", examples / "run", *words, "--out", examples / "centred.csv") == 0
    (plain_support, plain_query), (support, query) = found
    mean = torch.cat(plain_support).mean(0)
    torch.testing.assert_close(torch.cat(support), torch.cat(plain_support) - mean)
    torch.testing.assert_close(query, plain_query - mean)


def test_an_interrupted_command_is_resumed_by_the_same_command(images, trained, tmp_path, capsys, monkeypatch):
    words = ["train", "fewshot", "--data", images, *SMALL, "--out", tmp_path / "run"]
    steps, step = [], Training._step

    def interrupted(training):
        steps.append(training.done)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        step(training)

    monkeypatch.setattr(Training, "_step", interrupted)
    assert run(*words) == 130
    assert "3 of 4" in capsys.readouterr().err
    assert "model.json" in refusal(capsys, "evaluate", "fewshot", "--run", tmp_path / "run")
    assert run(*words) == 0
    assert steps == [0, 1, 2, 3]
    (one,), (two,) = (RunRecord.read(folder / "record.json").results for folder in (trained, tmp_path / "run"))
    for name in ("episode", "train_loss", "validation_loss", "validation_value"):
        assert one.curves[name] == two.curves[name]
    assert one.right == two.right


# ---- few images ------------------------------------------------------------------------------------------------------

QUICK = ["--size", "16", "--channels", "1", "--model.hidden", "4", "--training.episodes", "2", "--test.count", "10"]
QUICK += ["--training.settling_episodes", "1", "--training.precision", "32-true"]


def test_defaults_fit_a_folder_of_five_classes_of_five_photos(tmp_path, capsys):
    folder = write_folder(tmp_path / "photos", classes=5, each=5)
    assert run("train", "fewshot", "--data", folder, *QUICK, "--out", tmp_path / "run") == 0
    out, err = capsys.readouterr()
    assert "3 train, 2 test classes: 2-way 1-shot, 3 queries of each class in tests and 4 in training" in err
    assert "10 test images: over images, the 95 % interval" in out
    record = RunRecord.read(tmp_path / "run" / "record.json")
    assert (record.protocol, record.config["training"]["queries"]) == ("2-way-1-shot", 4)
    assert run("predict", "fewshot", folder / "bar00", "--run", tmp_path / "run", "--support", folder) == 0


def test_explicit_episodes_are_not_changed(tmp_path, capsys):
    folder = write_folder(tmp_path / "photos", classes=5, each=5)
    words = ["train", "fewshot", "--data", folder, *QUICK, "--out", tmp_path / "run"]
    assert "predict fewshot" in refusal(capsys, *words, "--test.way", "4")


def test_too_few_classes_for_training_name_what_works(tmp_path, capsys):
    folder = write_folder(tmp_path / "photos", classes=3, each=5)
    words = ["train", "fewshot", "--data", folder, *QUICK, "--out", tmp_path / "run"]
    assert "predict fewshot PHOTOS --support EXAMPLES" in refusal(capsys, *words)


def test_a_training_starts_from_the_encoder_of_another_method(trained, images, tmp_path, capsys):
    words = ["train", "fewshot", "--data", images, *SMALL, "--model.method", "NCM(x+L)+SigmE", "--pretrained", trained]
    assert "pretrained_part" in refusal(capsys, *words, "--out", tmp_path / "no")
    words += ["--pretrained_part", "encoder", "--training.learning_rate", "1e-12", "--out", tmp_path / "run"]
    assert run(*words) == 0
    source, found = load_run(trained).network, load_run(tmp_path / "run").network
    for (name, one), (_, two) in zip(source.encoder.named_parameters(), found.encoder.named_parameters(), strict=True):
        torch.testing.assert_close(one, two, msg=name)


def test_a_row_starts_every_seed_from_its_encoder(trained):
    config = read_recipe(trained / "config.yaml", FewShotConfig)
    data = TASK.load(config)
    config = replace(config, train_classes=None, validation_classes=None, class_order=None)
    options = ReproduceOptions(seeds=[0, 1])
    row = with_encoders(make_row(options, with_method(config, "SoSN(x)+SigmE", 1), data), [str(trained)])
    assert row.method == "SoSN(x)+Enc+SigmE"
    assert [one.seed for one in row.configs] == [0, 1]
    assert {(one.pretrained, one.pretrained_part) for one in row.configs} == {(str(trained), "encoder")}
    assert row.facts["pretrained"] == "encoder of SoSN(x+L)+SigmE, seeds 0, 0"  # no path of this machine
    assert row.facts["pretraining"] == {
        "data": "bars",
        "method": "SoSN(x+L)+SigmE",
        "part": "encoder",
        "episodes": 4,
    }
    with pytest.raises(PowerPoolError, match="2 seeds"):
        with_encoders(row, [str(trained)] * 3)


def test_encoders_of_one_row_have_the_same_budget(trained, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(trained, other)
    file = other / "config.yaml"
    file.write_text(file.read_text().replace("episodes: 4", "episodes: 5", 1))
    config = read_recipe(trained / "config.yaml", FewShotConfig)
    data = TASK.load(config)
    config = replace(config, train_classes=None, validation_classes=None, class_order=None)
    row = make_row(ReproduceOptions(seeds=[0, 1]), with_method(config, "SoSN(x)", 1), data)
    with pytest.raises(ArgumentError, match="one number of"):
        with_encoders(row, [str(trained), str(other)])
    shutil.copy(trained / "config.yaml", file)
    shutil.copytree(trained, tmp_path / "third")
    (tmp_path / "third" / "data.json").write_text('{"name": "others", "digest": "0"}')
    with pytest.raises(ArgumentError, match="one data set"):
        with_encoders(row, [str(other), str(tmp_path / "third")])
    file.write_text(file.read_text().replace("pretrained: null", "pretrained: /some/run", 1))
    with pytest.raises(ArgumentError, match="another run"):
        with_encoders(row, [str(other)])


def test_an_encoder_of_a_problem_of_open_mic_is_found_by_the_name_in_the_tables(trained):
    config = read_recipe(trained / "config.yaml", FewShotConfig)
    data = TASK.load(config)
    config = replace(config, train_classes=None, validation_classes=None, class_order=None)
    row = make_row(ReproduceOptions(), with_method(config, "SoSN(x)", 1), data)
    named = with_encoders(replace(row, data_name="bars-p1-to-p2"), [str(trained)])
    assert named.facts["pretraining"]["data"] == "bars-p1-to-p2"


def test_results_are_stored_by_the_encoder_that_their_seed_starts_from(trained, tmp_path):
    config = read_recipe(trained / "config.yaml", FewShotConfig)
    data = TASK.load(config)
    config = replace(config, train_classes=None, validation_classes=None, class_order=None)
    config = with_method(config, "SoSN(x)+SigmE", 1)
    same, other = (Path(shutil.copytree(trained, tmp_path / name)) for name in ("same", "other"))
    model = load_run(other)
    with torch.no_grad():
        next(model.network.encoder.parameters()).mul_(2)
    TASK.save(model, other)

    def folders(*runs: Path) -> list[Path]:
        seeds = list(range(len(runs)))
        row = with_encoders(make_row(ReproduceOptions(seeds=seeds), config, data), [str(one) for one in runs])
        return [chain_folder(TASK, row, place, tmp_path) for place in seeds]

    first = folders(trained)
    assert folders(same) == first
    assert folders(other) != first
    assert folders(trained, other)[:1] == first  # a further seed changes no other
