"""``powerpool train|evaluate|predict graph`` on MUTAG and on custom graphs: outputs, kill -9, and bad input."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from powerpool.cli.main import main
from powerpool.data import load_graphs, stratified_folds
from powerpool.runs.config import read_recipe
from powerpool.runs.record import RunRecord
from powerpool.tasks.graph.inference import load_run
from powerpool.tasks.graph.options import RunConfig
from powerpool.tasks.graph.task import TASK, make_fold
from powerpool.tasks.graph.training import Training
from powerpool.tasks.pooling import Samples
from tests.data.tu_sets import Graph
from tests.tasks.graph.samples import assert_equal_states, rings_and_stars, write_own_set

PATIENCE = 300  # seconds
SMALL = ["--model.hidden", "6", "--model.layers", "2", "--training.epochs", "3", "--folds", "3", "--download", "false"]


def run(*words: object) -> int:
    return main([str(word) for word in words])


def train(out: Path, *words: object) -> int:
    return run("train", "graph", *SMALL, "--out", out, *words)


def refusal(capsys, *words: object) -> str:
    """Return the error of a command that is refused: one line, and exit code 2."""
    capsys.readouterr()
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if not line.startswith("MUTAG: node features are")]
    assert line.startswith(f"powerpool {words[0]} {words[1]}: error: ")
    return line


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return write_own_set(tmp_path_factory.mktemp("own") / "OWN", rings_and_stars(48))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, own):
    """A run on custom graphs."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    words = ["--data", own, "--model.method", "GIN0+Sum", "--training.epochs", "40", "--training.batch_size", "8"]
    assert train(folder, *words, "--model.dropout", "0") == 0
    return folder


def test_a_run_folder_holds_settings_model_and_record(trained, own):
    assert {"config.yaml", "model.json", "model.safetensors", "record.json"} <= {one.name for one in trained.iterdir()}
    record = RunRecord.read(trained / "record.json")
    assert (record.task, record.data, record.method) == ("graph", "OWN", "GIN0+Sum")
    assert (record.protocol, record.metric, record.seed) == ("validation-only", "accuracy in %", 0)
    assert record.config["training"]["epochs"] == 40
    assert len(record.results[0].curves["train_loss"]) == 40
    assert f"data: {own}" in (trained / "config.yaml").read_text()


@pytest.mark.parametrize("words", [["--data", "OWN"], ["--data", "OWN", "--data_root", "."], ["--data", "./OWN"]])
def test_a_run_can_be_tested_in_another_working_folder(words, own, tmp_path, monkeypatch):
    shutil.copytree(own, tmp_path / "first" / "OWN")
    monkeypatch.chdir(tmp_path / "first")
    assert train(tmp_path / "run", *words, "--training.epochs", "1") == 0
    assert train(tmp_path / "run", *words, "--training.epochs", "1", "--overwrite") == 0
    (tmp_path / "second").mkdir()
    monkeypatch.chdir(tmp_path / "second")
    assert run("evaluate", "graph", "--run", tmp_path / "run") == 0


def test_evaluate_tests_the_test_graphs_of_the_fold(trained, own, capsys, tmp_path):
    assert run("evaluate", "graph", "--run", trained, "--out", tmp_path / "found.json") == 0
    found = json.loads((tmp_path / "found.json").read_text())
    (result,) = RunRecord.read(trained / "record.json").results
    assert found["accuracy"] == result.value
    assert found["loss"] == pytest.approx(result.test_loss, rel=1e-4)
    assert found["confusion"] == result.confusion.dense()
    assert found["count"] == sum(map(sum, found["confusion"])) == 16
    assert found["accuracy_by_class"] == {
        label: 100 * row[place] / sum(row)
        for place, (label, row) in enumerate(zip(("3", "7"), found["confusion"], strict=True))
    }
    assert "fold 0 of OWN" in " ".join(capsys.readouterr().out.split())
    assert not (trained / "evaluation.json").exists()


def test_evaluate_tests_all_of_other_graphs(trained, own, tmp_path, capsys):
    rings = [graph for graph in rings_and_stars(20, first=100) if graph.target == 7]
    other = write_own_set(tmp_path / "OTHER", rings, name="OTHER")
    assert run("evaluate", "graph", "--run", trained, "--data", other, "--out", tmp_path / "found.json") == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["data"], found["graphs"], found["count"]) == ("OTHER", "all graphs", 10)
    assert found["accuracy_by_class"]["3"] is None
    model = load_run(trained)
    hits = int(model.probabilities(model.read(other)).argmax(1).sum())  # class 7 has index 1
    assert found["confusion"] == [[0, 0], [10 - hits, hits]]
    assert run("evaluate", "graph", "--run", trained, "--data", own, "--out", tmp_path / "found.json") == 0
    assert "trained on" in capsys.readouterr().err


@pytest.mark.parametrize("without", ["", "graph_labels"], ids=["labelled", "not labelled"])
def test_predict_returns_the_probabilities_of_every_graph(trained, tmp_path, capsys, without):
    other = write_own_set(tmp_path / "NEW", rings_and_stars(9, first=50), without, name="NEW")
    words = ["predict", "graph", "--run", trained, "--data", other]
    capsys.readouterr()
    assert run(*words) == 0
    printed = capsys.readouterr().out
    assert run(*words, "--out", tmp_path / "a" / "found.csv") == 0
    assert run(*words, "--out", tmp_path / "found.json") == 0
    assert (tmp_path / "a" / "found.csv").read_text() == printed
    listed = json.loads((tmp_path / "found.json").read_text())
    model = load_run(trained)
    expected = model.probabilities(model.read(other, labelled=False))
    for number, (answer, item) in enumerate(zip(rows(printed), listed, strict=True)):
        found = [float(answer[f"probability of {label}"]) for label in (3, 7)]
        assert found == pytest.approx(expected[number].tolist(), abs=1e-6)
        assert int(answer["graph"]) == item["graph"] == number
        assert int(answer["class"]) == item["class"] == (3, 7)[int(expected[number].argmax())]
        assert float(answer["probability"]) == item["probability"] == max(found)


def test_a_grid_and_retrain_are_recorded(tmp_path, own):
    words = ["--data", own, "--grid.hidden", "4", "6", "--grid.eta", "3", "20", "--protocol", "retrain", "--fold", "2"]
    assert train(tmp_path / "run", *words) == 0
    record = RunRecord.read(tmp_path / "run" / "record.json")
    (result,) = record.results
    assert (record.protocol, result.number, len(result.trials)) == ("retrain", 2, 4)
    model = load_run(tmp_path / "run")
    assert result.chosen == {"hidden": model.config.hidden, "layers": 2, "eta": model.config.eta}
    graphs = load_graphs(own)
    test = stratified_folds(graphs.targets, 3, 0)[2].test
    predicted = model.probabilities(graphs, test).argmax(1)
    assert record.values == (100 * float((predicted == graphs.targets[test]).double().mean()),)


def test_changed_data_is_neither_resumed_nor_evaluated(tmp_path, capsys):
    own = write_own_set(tmp_path / "OWN")
    assert train(tmp_path / "run", "--data", own) == 0
    shutil.rmtree(own)
    write_own_set(tmp_path / "OWN", rings_and_stars(24, first=1))
    (tmp_path / "run" / "record.json").unlink()
    assert "OWN has changed" in refusal(capsys, "train", "graph", *SMALL, "--out", tmp_path / "run", "--data", own)
    assert "OWN has changed" in refusal(capsys, "evaluate", "graph", "--run", tmp_path / "run")


def test_a_finished_run_is_neither_repeated_nor_overwritten_unless_asked(tmp_path, own, capsys):
    folder, words = tmp_path / "run", ["--data", own, "--model.method", "GIN0"]
    assert train(folder, *words) == 0
    before = {file: file.read_bytes() for file in folder.rglob("*.*") if file.is_file() and file.name != ".lock"}
    typed = ["train", "graph", *SMALL, "--out", folder, *words]
    assert "finished" in refusal(capsys, *typed)
    for other in (["--seed", "1"], ["--protocol", "retrain"], ["--fold", "1"]):
        assert "other settings" in refusal(capsys, *typed, *other)
    assert {file: file.read_bytes() for file in before} == before
    assert run("evaluate", "graph", "--run", folder) == 0
    assert run(*typed, "--seed", "1", "--overwrite") == 0
    assert RunRecord.read(folder / "record.json").seed == 1
    assert not (folder / "evaluation.json").exists()  # it was that of the old model
    fresh = tmp_path / "fresh"
    assert train(fresh, *words, "--seed", "1") == 0
    assert_equal_states(load_run(folder).network.state_dict(), load_run(fresh).network.state_dict())


DRIVER = """
import sys, time
from pathlib import Path
from powerpool.cli.main import main
from powerpool.tasks.graph import task
from powerpool.tasks.graph.training import Training

log, limit, step = Path(sys.argv[1]), int(sys.argv[2]), Training.step
task.CHECKPOINT_SECONDS = -1.0  # after every epoch

def slow(training):
    with log.open("a") as file:
        file.write("epoch\\n")
    while len(log.read_text().split()) >= limit:
        time.sleep(0.05)
    step(training)

Training.step = slow
sys.exit(main(sys.argv[3:]))
"""


def test_kill_9_loses_no_finished_epoch_and_the_result_is_that_of_an_unbroken_run(tmp_path, own, capsys, monkeypatch):
    words = ["--data", own, "--grid.hidden", "4", "6", "--training.epochs", "4", "--protocol", "retrain"]
    typed = [str(word) for word in ("train", "graph", *SMALL, *words, "--out", tmp_path / "run")]
    log = tmp_path / "log"
    log.touch()
    command = [sys.executable, "-c", DRIVER, str(log), "7", *typed]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + PATIENCE
        while len(log.read_text().split()) < 7:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.05)
        assert "Another process" in refusal(capsys, *typed)
        process.kill()
        process.wait(PATIENCE)
    assert "model.json" in refusal(capsys, "predict", "graph", "--run", tmp_path / "run", "--data", own)
    steps, step = [], Training.step
    monkeypatch.setattr(Training, "step", lambda training: (steps.append(training.epoch), step(training)))
    # As the refusal advises: with the settings from the folder.
    assert run("train", "graph", "--config", tmp_path / "run" / "config.yaml", "--out", tmp_path / "run") == 0
    (result,) = RunRecord.read(tmp_path / "run" / "record.json").results
    assert steps == [2, 3, *range(result.epoch)]  # two epochs of the second grid point, and those of retraining
    assert train(tmp_path / "unbroken", *words) == 0
    (expected,) = RunRecord.read(tmp_path / "unbroken" / "record.json").results
    assert {name for name, value in vars(result).items() if value != getattr(expected, name)} <= {"seconds"}
    assert_equal_states(*(load_run(tmp_path / name).network.state_dict() for name in ("run", "unbroken")))


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, shown",
    [
        (["--fold", "99"], "99"),
        (["--data", "NOPE"], "'NOPE'"),
        (["--data", "no/where"], "no/where"),
        (["--data", "NCI1", "--data_root", "/nowhere"], "NCI1"),
        (["--model.hidden", "0"], "model.hidden"),
        (["--folds", "100"], "63"),
        (["--protocol", "both"], "validation-only, retrain"),
        (["--training.device", "gpu"], "training.device"),
        (["--training.learning_rate", "1e30", "--model.method", "GIN0"], "training.learning_rate"),
    ],
)
def test_an_impossible_training_is_refused_in_one_line(tmp_path, capsys, monkeypatch, words, shown):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    assert shown in refusal(capsys, "train", "graph", *SMALL, "--out", tmp_path / "run", *words)
    assert not (tmp_path / "run" / "model.json").exists()


def test_evaluate_and_predict_refuse_graphs_that_do_not_fit(trained, tmp_path, capsys):
    label = write_own_set(tmp_path / "LABEL", [Graph([2, 4], [(0, 1)], 7)])
    target = write_own_set(tmp_path / "TARGET", [Graph([2, 5], [(0, 1)], 8)])
    bare = write_own_set(tmp_path / "BARE", without="graph_labels")
    for first in ("evaluate", "predict"):
        assert "no run folder" in refusal(capsys, first, "graph", "--run", tmp_path / "no", "--data", bare)
        assert "label 4" in refusal(capsys, first, "graph", "--run", trained, "--data", label)
    assert "class 8" in refusal(capsys, "evaluate", "graph", "--run", trained, "--data", target)
    assert "graph_labels" in refusal(capsys, "evaluate", "graph", "--run", trained, "--data", bare)
    words = ["predict", "graph", "--run", trained, "--data", bare, "--out", tmp_path / "found.txt"]
    assert ".csv or .json" in refusal(capsys, *words)


def test_folds_of_permuted_labels_are_those_of_the_training_wherever_a_run_is_opened(tmp_path, own):
    folder = tmp_path / "run"
    assert train(folder, "--data", own, "--training.epochs", "1", "--permute_labels", "true") == 0
    assert run("evaluate", "graph", "--run", folder) == 0
    config = read_recipe(folder / "config.yaml", RunConfig)
    graphs = TASK.load(config)
    for split in ("train", "test"):
        source = TASK.feature_source(folder, Samples(split=split, samples=1000))
        chosen = getattr(make_fold(config, graphs, 0), split)
        assert source.data == TASK.identity(graphs)
        sizes = sorted(graphs.node_ptr.diff()[chosen].tolist())
        assert sorted(one.features.shape[1] for one in source.sets) == sizes
