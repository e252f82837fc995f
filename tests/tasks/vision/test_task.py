"""Train, evaluate and predict as they are typed, on custom images; stops, and bad input."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from powerpool import console
from powerpool.cli.main import main
from powerpool.data import list_images, load_images
from powerpool.errors import RecordError
from powerpool.integrations.backbones import load_backbone
from powerpool.runs.config import read_recipe
from powerpool.runs.folder import CHECKPOINTS, CONFIG, MODEL, open_run
from powerpool.runs.record import RunRecord
from powerpool.tasks.vision import extraction, frozen, linear, plan, tuned
from powerpool.tasks.vision.config import FineTuningConfig, VisionConfig
from powerpool.tasks.vision.inference import load_run
from powerpool.tasks.vision.task import TASK
from tests.tasks.vision.samples import CLASSES, small_config, texture, use_tiny, write_images

PATIENCE = 300
CROPS = ["--crops.size", "32", "--crops.count", "2", "--crops.resize", "32"]
SMALL = ["--backbone", "tiny", *CROPS, "--accelerator", "cpu", "--workers", "0", "--widen", "0"]


def run(*words: object) -> int:
    return main([str(word) for word in words])


def train(out: Path, *words: object) -> int:
    return run("train", "vision", *SMALL, "--out", out, *words)


def refusal(capsys, *words: object) -> str:
    """The error of a command that is refused: one line, and exit code 2."""
    capsys.readouterr()
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line]
    assert len(lines) == 1, err
    return lines[0]


def assert_equal_weights(one: Path, other: Path) -> None:
    first, second = (load_run(folder).network.state_dict() for folder in (one, other))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def trained(shared_cache, textures, tmp_path_factory):
    """A run on custom images."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train(folder, "--data", textures, "--grid.eta", "2", "8") == 0
    return folder


# ---- commands and their results --------------------------------------------------------------------------------------


def test_train_evaluate_and_predict_with_a_real_network(textures, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    words = ["--crops.size", "64", "--crops.count", "1", "--crops.resize", "64", "--workers", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "powerpool", "train", "vision", "--data", textures, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    folder = Path("runs", "train", "vision", "stripes", "SOP+SC+SpecMaxExpF")
    assert str(folder) in done.stdout
    monkeypatch.chdir(tmp_path)
    assert run("evaluate", "vision", "--run", folder, "--workers", "0") == 0
    record = RunRecord.read(folder / "record.json")
    found = json.loads((folder / "evaluation.json").read_text())
    assert found["top1"] == pytest.approx(record.values[0])
    assert record.values[0] > 60  # three kinds of stripes
    capsys.readouterr()
    assert run("predict", "vision", textures / "along" / "00.png", "--run", folder) == 0
    assert "along" in capsys.readouterr().out


def test_a_run_folder_contains_settings_model_and_record(trained, textures):
    names = {file.name for file in trained.iterdir()}
    assert {"config.yaml", "data.json", "model.json", "model.safetensors", "record.json", CHECKPOINTS} <= names
    record = RunRecord.read(trained / "record.json")
    assert (record.task, record.data, record.method) == ("vision", "stripes", "SOP+SC+SpecMaxExpF")
    assert (record.protocol, record.metric, record.seed) == ("frozen", "top-1 accuracy in %", 0)
    result, model = record.results[0], load_run(trained)
    assert result.chosen["eta"] == model.network.pool.config.eta
    assert len(result.trials) == 2 * 6
    images = load_images(textures)
    scores = model.logits(images["test"], 0)
    right = scores.argmax(1) == images["test"].targets
    assert result.value == pytest.approx(100 * float(right.double().mean()))
    loss = float(torch.nn.functional.cross_entropy(scores, images["test"].targets))
    assert result.test_loss == pytest.approx(loss, rel=0.02)
    assert record.config["data_digest"] == images.digest
    assert not {"data_root", "download", "workers", "accelerator", "training"} & record.config.keys()
    stored = (trained / "config.yaml").read_text()
    assert f"data: {textures}" in stored
    assert "workers: null" in stored


def test_evaluate_tests_a_split_of_the_run(trained, textures, tmp_path, capsys):
    assert run("evaluate", "vision", "--run", trained, "--out", tmp_path / "a", "--workers", "0") == 0
    found = json.loads((tmp_path / "a" / "evaluation.json").read_text())
    assert found["top1"] == pytest.approx(RunRecord.read(trained / "record.json").values[0])
    assert (tmp_path / "a" / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert "[oblique]" in capsys.readouterr().out
    assert not (trained / "evaluation.json").exists()
    assert run("evaluate", "vision", "--run", trained, "--split", "train", "--out", tmp_path / "b") == 0
    found = json.loads((tmp_path / "b" / "evaluation.json").read_text())
    assert found["count"] == len(load_images(textures)["train"])


def test_evaluate_tests_all_other_images_by_the_names_of_their_classes(trained, tmp_path, capsys):
    other = write_images(tmp_path / "other", 5, first=40, classes=CLASSES[1:])
    assert run("evaluate", "vision", "--run", trained, "--data", other, "--out", tmp_path) == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found["count"] == 10
    model, right = load_run(trained), 0
    for label in CLASSES[1:]:
        predicted = model.logits(list_images([other / label]), 0).argmax(1)
        right += int((predicted == model.classes.index(label)).sum())
    assert found["top1"] == pytest.approx(10 * right)
    assert "test" in refusal(capsys, "evaluate", "vision", "--run", trained, "--data", other, "--split", "test")


@pytest.mark.usefixtures("shared_cache")
def test_a_run_is_evaluated_from_another_folder_and_after_its_data_has_moved(tmp_path, monkeypatch):
    write_images(tmp_path / "before" / "own", 6)
    words = ["--data", "own", "--data_root", tmp_path / "before", "--pool.method", "FOP"]
    assert train(tmp_path / "run", *words) == 0
    (tmp_path / "before").rename(tmp_path / "after")
    assert run("evaluate", "vision", "--run", tmp_path / "run") == 2
    assert run("evaluate", "vision", "--run", tmp_path / "run", "--data_root", tmp_path / "after") == 0
    monkeypatch.chdir(tmp_path / "after")
    assert train(tmp_path / "other", "--data", "own", "--pool.method", "FOP") == 0
    monkeypatch.chdir(tmp_path)
    assert run("evaluate", "vision", "--run", tmp_path / "other", "--workers", 0) == 0


def test_predict_files_and_folders(trained, textures, tmp_path, capsys):
    folder = tmp_path / "images" / "deep"
    folder.mkdir(parents=True)
    for number in range(3):
        texture(number, 50).save(folder / f"{number}.png")
    file = textures / "along" / "03.png"
    words = ["predict", "vision", file, "--run", trained, tmp_path / "images"]  # before and after the options
    assert run(*words, "--out", tmp_path / "found.csv") == 0
    assert run(*words, "--out", tmp_path / "a" / "found.json") == 0
    assert capsys.readouterr().out == ""
    model = load_run(trained)
    names = [str(file), *(str(folder / f"{number}.png") for number in range(3))]
    expected = model.logits(list_images(names), 0).softmax(1)
    rows = list(csv.DictReader((tmp_path / "found.csv").read_text(encoding="utf-8").splitlines()))
    listed = json.loads((tmp_path / "a" / "found.json").read_text())
    assert [row["picture"] for row in rows] == [item["picture"] for item in listed] == names
    for row, item, own in zip(rows, listed, expected, strict=True):
        assert row["class"] == item["class"] == model.classes[int(own.argmax())]
        found = [float(row[f"probability of {label}"]) for label in model.classes]
        assert found == pytest.approx(own.tolist(), abs=1e-6)
        assert float(row["probability"]) == item["probability"] == max(found)
    assert run(*words) == 0
    assert "[oblique]" in capsys.readouterr().out


def test_predict_skips_unreadable_images_on_request(trained, textures, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "bad.png").write_bytes(b"no image")
    words = ["predict", "vision", tmp_path / "bad.png", textures / "along" / "00.png", "--run", trained]
    assert "bad.png" in refusal(capsys, *words)
    assert run(*words, "--corrupt", "skip") == 0
    out, err = capsys.readouterr()
    assert "00.png" in out
    assert "bad.png" not in out
    assert "bad.png" in err
    assert "1 of 1" in refusal(capsys, *words[:3], "--run", trained, "--corrupt", "skip")


@pytest.mark.usefixtures("shared_cache")
def test_remarks_name_unused_settings_and_skipped_images(tmp_path, capsys):
    own = write_images(tmp_path / "own", 6)
    bad = load_images(own)["train"].names[0]
    (own / bad).write_bytes(b"no image")
    words = ["--pool.method", "FOP", "--pool.eta", "7", "--grid.gamma", "0.2", "0.3", "--corrupt", "skip"]
    words += ["--training.optimizer", "adamw", "--training.patience", "1"]
    assert train(tmp_path / "run", "--data", own, *words) == 0
    printed = capsys.readouterr().err
    assert "pool.eta, grid.gamma" in printed
    assert "training.optimizer, training.patience: not used in mode frozen" in printed
    assert bad in printed
    recorded = RunRecord.read(tmp_path / "run" / "record.json").config["pictures"]
    assert recorded == {name: len(split) - (name == "train") for name, split in load_images(own).splits.items()}


# ---- end to end ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("warm", [False, True])
def test_training_end_to_end_keeps_a_model_with_its_backbone(warm, textures, tmp_path, monkeypatch):
    words = ["--data", textures, "--mode", "end-to-end", "--pool.method", "FOP", "--training.epochs", "1"]
    words += ["--training.crops", "1", "--training.batch_size", "9"]
    if warm:
        words += ["--training.warm_start", "true", "--training.validation", "train"]
    assert train(tmp_path / "run", *words) == 0
    record = RunRecord.read(tmp_path / "run" / "record.json")
    result = record.results[0]
    assert (record.protocol, result.chosen) == ("end-to-end", {"epoch": 1.0})
    assert (result.validation is None) is warm
    assert len(result.curves["train_loss"]) == 1
    assert load_run(tmp_path / "run").is_trained
    assert run("evaluate", "vision", "--run", tmp_path / "run", "--workers", "0") == 0
    found = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert found["top1"] == pytest.approx(result.value)


# ---- the same folder again -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("native, wanted", [(True, "bf16-mixed"), (False, "32-true")])
def test_the_precision_of_a_training_is_stored_as_it_was_chosen(native, wanted, monkeypatch, capsys):
    monkeypatch.setattr("powerpool.tasks.training.has_native_bfloat16", lambda device: native)
    training = FineTuningConfig(precision="auto")
    config = TASK.prepare(VisionConfig(mode="end-to-end", training=training))
    assert config.training.precision == wanted
    assert wanted in capsys.readouterr().err
    assert TASK.prepare(VisionConfig(training=training)).training.precision == "auto"  # frozen features have none
    assert capsys.readouterr().err == ""


def test_a_finished_run_is_neither_repeated_nor_overwritten_unless_requested(textures, tmp_path, capsys):
    folder, words = tmp_path / "run", ["--data", textures, "--pool.method", "SOP"]
    assert train(folder, *words) == 0
    before = {file: file.read_bytes() for file in folder.rglob("*.*") if file.is_file() and file.name != ".lock"}
    typed = ["train", "vision", *SMALL, "--out", folder, *words]
    assert "--overwrite" in refusal(capsys, *typed)
    assert "--overwrite" in refusal(capsys, *typed, "--pool.beta", "0.5")
    assert {file: file.read_bytes() for file in before} == before
    assert run(*typed, "--pool.beta", "0.5", "--overwrite") == 0
    assert train(tmp_path / "fresh", *words, "--pool.beta", "0.5") == 0
    assert_equal_weights(folder, tmp_path / "fresh")


@pytest.mark.usefixtures("shared_cache")
def test_a_stopped_grid_is_resumed(textures, tmp_path, monkeypatch, capsys):
    words = ["--data", textures, "--grid.eta", "2", "5", "9", "--widen", "2"]
    assert train(tmp_path / "whole", *words) == 0
    assert "Ranges widened: eta 2 to 9, added 16, 28" in capsys.readouterr().err
    tried, validate = [], frozen.validate

    def stop(config, unit, *rest):
        tried.append(unit.name)
        if len(tried) in (3, 5):  # in the grid, and beyond it
            raise KeyboardInterrupt
        return validate(config, unit, *rest)

    monkeypatch.setattr(frozen, "validate", stop)
    assert train(tmp_path / "parts", *words) == 130
    assert not (tmp_path / "parts" / MODEL).exists()
    assert "powerpool train vision" in refusal(capsys, "predict", "vision", textures, "--run", tmp_path / "parts")
    assert train(tmp_path / "parts", *words) == 130
    assert train(tmp_path / "parts", *words) == 0
    beyond = [f"00-{number:02d}-frozen" for number in (3, 3, 4)]
    assert tried == ["00-00", "00-01", "00-02", "00-02", *beyond]
    assert_equal_weights(tmp_path / "parts", tmp_path / "whole")
    one, other = (RunRecord.read(tmp_path / name / "record.json").results[0] for name in ("parts", "whole"))
    assert one.trials == other.trials


@pytest.mark.usefixtures("shared_cache")
def test_progress_is_printed_for_every_grid_point_where_there_are_no_bars(textures, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(console, "PATIENCE", -1.0)  # everything takes long
    assert train(tmp_path, "--data", textures, "--grid.eta", "2", "5", "9") == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("pooled images: 24 of 24") >= 3
    assert lines.count("products of images: 24 of 24") >= 3
    assert lines.count("penalties of the classifier: 6 of 6") == 3
    assert {"grid points: 3 of 3", "images for the weights: 24 of 24", "test images: 6 of 6"} <= set(lines)


@pytest.mark.usefixtures("shared_cache")
def test_a_training_within_little_memory_gives_the_same_model(textures, tmp_path, capsys):
    words = ["--data", textures, "--grid.eta", "2", "8"]
    assert train(tmp_path / "much", *words) == 0
    assert train(tmp_path / "little", *words, "--head.memory", "0.000085") == 0
    assert "pooled when needed" in capsys.readouterr().err
    much, little = (RunRecord.read(tmp_path / name / "record.json").results[0] for name in ("much", "little"))
    assert "in memory" in much.solver
    assert "pooled when needed" in little.solver
    assert (little.value, little.chosen, little.right) == (much.value, much.chosen, much.right)
    one, other = (load_run(tmp_path / name).network.classifier.weight for name in ("much", "little"))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert run("evaluate", "vision", "--run", tmp_path / "little", "--workers", "0") == 0
    found = json.loads((tmp_path / "little" / "evaluation.json").read_text())
    assert found["top1"] == pytest.approx(little.value)
    typed = ["train", "vision", *SMALL, "--out", tmp_path / "none", *words, "--head.memory", "0.00005"]
    assert "head.memory" in refusal(capsys, *typed)
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("shared_cache")
def test_a_stopped_grid_is_resumed_with_another_limit(textures, tmp_path, monkeypatch):
    """Points of the same solver are kept, and those of another one are computed again."""
    monkeypatch.setattr(plan, "_gram_bytes", lambda head, shape: 10**6)
    words = ["--data", textures, "--grid.eta", "2", "5"]
    tried, validate = [], frozen.validate

    def stop(config, unit, *rest):
        tried.append(unit.point)
        if len(tried) in (2, 3):
            raise KeyboardInterrupt
        return validate(config, unit, *rest)

    monkeypatch.setattr(frozen, "validate", stop)
    assert train(tmp_path, *words) == 130
    assert train(tmp_path, *words, "--head.memory", "0.01") == 130
    assert train(tmp_path, *words, "--head.memory", "0.0005") == 0
    assert tried == [0, 1, 1, 0, 1]
    assert "dimensions" in RunRecord.read(tmp_path / "record.json").results[0].solver


@pytest.mark.usefixtures("shared_cache")
def test_stopped_minibatches_are_resumed_after_their_last_epoch(textures, tmp_path, monkeypatch):
    words = ["--data", textures, "--pool.method", "FOP", "--head.kind", "softmax", "--head.epochs", "4"]
    words += ["--head.memory", "0.000004"]
    assert train(tmp_path / "whole", *words) == 0
    saved, save_state = [], linear.save_state

    def stop(path, state):
        save_state(path, state)
        saved.append((path.name, state["epoch"]))
        if len(saved) in (2, 6):
            raise KeyboardInterrupt

    monkeypatch.setattr(linear, "save_state", stop)
    assert train(tmp_path / "parts", *words) == 130
    assert train(tmp_path / "parts", *words) == 130
    assert train(tmp_path / "parts", *words) == 0
    selection, final = "00-00-frozen-softmax.pt", "00-final-frozen-softmax.pt"
    assert saved == [(name, epoch) for name in (selection, final) for epoch in (1, 2, 3, 4)]
    assert_equal_weights(tmp_path / "parts", tmp_path / "whole")
    assert not list((tmp_path / "parts" / CHECKPOINTS).glob("*.pt"))


@pytest.mark.usefixtures("shared_cache")
def test_a_run_whose_images_have_changed_is_not_resumed(tmp_path, capsys):
    own = write_images(tmp_path / "own", 6)
    typed = ["train", "vision", *SMALL, "--out", tmp_path / "run", "--data", own, "--pool.method", "FOP"]
    assert run(*typed) == 0
    shutil.copy(own / "along" / "01.png", own / "along" / "00.png")
    assert "own has changed" in refusal(capsys, *typed)
    assert "own has changed" in refusal(capsys, "evaluate", "vision", "--run", tmp_path / "run")


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize(
    "words, named",
    [
        (["--data", "nowhere-at-all"], "nowhere-at-all"),
        (["--pool.method", "SOP+SC+SpecMaxExpG"], "SOP+SC+SpecMaxExpF"),
        (["--crops.count", "3"], "count"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_one_line(textures, tmp_path, capsys, words, named):
    assert named in refusal(capsys, "train", "vision", *SMALL, "--out", tmp_path, "--data", textures, *words)
    assert not (tmp_path / MODEL).exists()


@pytest.mark.usefixtures("shared_cache")
def test_without_test_images_a_share_of_the_training_images_is_tested(tmp_path):
    for split in ("train", "validation"):
        write_images(tmp_path / "own" / split, 5)
    words = ("--out", tmp_path / "run", "--data", tmp_path / "own", "--test_share", "0.4")
    assert run("train", "vision", *SMALL, *words) == 0
    (found,) = RunRecord.read(tmp_path / "run" / "record.json").results
    assert [sum(row) for row in found.confusion.dense()] == [2] * len(CLASSES)


@pytest.mark.parametrize(
    "words, named",
    [
        (["predict", "vision", "--run", "RUN"], "photo.jpg"),
        (["predict", "vision", "nowhere.png", "--run", "RUN"], "nowhere.png"),
        (["predict", "vision", "IMAGE", "--run", "RUN", "--out", "a.txt"], ".csv"),
        (["predict", "vision", "IMAGE", "--run", "nowhere"], "nowhere"),
        (["evaluate", "vision", "--run", "nowhere"], "nowhere"),
        (["evaluate", "vision", "--run", "RUN", "--data", "OTHER"], "zebra"),
    ],
)
def test_what_cannot_be_tested_or_predicted_is_refused_in_one_line(trained, textures, tmp_path, capsys, words, named):
    shutil.copytree(textures / "along", tmp_path / "other" / "zebra")
    shutil.copytree(textures / "along", tmp_path / "other" / "along")
    places = {"RUN": trained, "IMAGE": textures / "along" / "00.png", "OTHER": tmp_path / "other"}
    assert named in refusal(capsys, *(places.get(word, word) for word in words))


def test_a_recipe_with_settings_of_training_needs_no_remark():
    quick, none = read_recipe("vision/quick", VisionConfig), load_images("digits")
    assert not any("mode frozen" in remark for remark in TASK.remarks(quick, none))
    longer = replace(quick, training=replace(quick.training, epochs=7))
    assert any("training.epochs" in remark for remark in TASK.remarks(longer, none))


@pytest.mark.usefixtures("tiny")
def test_keys_of_end_to_end_training_are_those_of_earlier_versions_where_new_settings_have_their_defaults(textures):
    images, config = load_images(textures), replace(small_config(textures, mode="end-to-end"), widen=3)
    found = TASK.settings(config, images)
    old = json.loads(Path(__file__).with_name("end_to_end_key.json").read_text())
    assert found == {**old, **{name: found[name] for name in ("data_digest", "backbone_digest")}}
    new = {"optimizer": "adamw", "class_weights": "balanced", "patience": 3}
    changed = replace(config, training=FineTuningConfig(**new))
    assert TASK.settings(changed, images)["training"] == {**found["training"], **new}
    warm = replace(config, training=FineTuningConfig(warm_start=True, validation="train"))
    assert TASK.settings(warm, images)["widen"] == 3


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("mode", ["frozen", "end-to-end"])
def test_a_run_that_was_started_before_ranges_could_widen_has_fixed_ones(textures, tmp_path, capsys, mode):
    config = replace(small_config(textures), mode=mode)
    identity = TASK.identity(load_images(textures))
    open_run(tmp_path, config, identity, task="vision")
    file = tmp_path / CONFIG
    file.write_text(file.read_text().replace("widen: 0\n", ""))
    if mode == "frozen":
        with pytest.raises(RecordError, match="other settings: widen"):
            open_run(tmp_path, replace(config, widen=3), identity, task="vision")
        open_run(tmp_path, config, identity, task="vision")
        assert "widen: 0" in file.read_text()
    else:  # where nothing widens
        open_run(tmp_path, replace(config, widen=3), identity, task="vision")
    assert "Resuming" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["frozen", "end-to-end"])
def test_curves_for_rectified_maps_refuse_others(textures, tmp_path, monkeypatch, capsys, mode):
    words = ["train", "vision", *SMALL, "--data", textures, "--pool.method", "SOP+MaxExp", "--mode", mode]
    use_tiny(monkeypatch)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    assert run(*words, "--training.epochs", "1", "--training.crops", "1", "--out", tmp_path / "rectified") == 0
    for module in (extraction, frozen, tuned):
        monkeypatch.setattr(
            module, "load_backbone", lambda name, **_: load_backbone(torch.nn.Conv2d(3, 6, 3, stride=4, bias=False))
        )
    assert "SOP+MaxExp" in refusal(capsys, *words, "--out", tmp_path / "linear")
