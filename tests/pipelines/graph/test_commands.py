"""Train, evaluate and predict as they are typed, on MUTAG and on a user's own graphs; stops, and bad input."""

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
from powerpool.tasks.graph.runs import load_run

from powerpool.cli.main import main
from powerpool.data import load_graphs, stratified_folds
from powerpool.files import locked
from powerpool.runs.record import RunRecord
from powerpool.tasks.graph import commands, evaluation
from powerpool.tasks.graph.training import Training
from tests.data.tu_sets import Graph
from tests.pipelines.graph.samples import assert_equal_states, rings_and_stars, write_own_set

PATIENCE = 300  # seconds: no test is about time, and none waits for ever
SMALL = ["--model.hidden", "6", "--model.layers", "2", "--training.epochs", "3", "--folds", "3", "--download", "false"]


def run(*words: object) -> int:
    return main([str(word) for word in words])


def train(out: Path, *words: object) -> int:
    return run("train", "graph", *SMALL, "--out", out, *words)


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


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return write_own_set(tmp_path_factory.mktemp("own") / "OWN", rings_and_stars(48))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, own):
    """A run on the user's own graphs."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    words = ["--data", own, "--model.method", "GIN0+Sum", "--training.epochs", "40", "--training.batch_size", "8"]
    assert train(folder, *words, "--model.dropout", "0") == 0
    return folder


# ---- what is typed and what comes out --------------------------------------------------------------------------------


def test_train_evaluate_and_predict_in_their_own_processes(tmp_path):
    def call(*words: str) -> str:
        powerpool = Path(sys.executable).with_name("powerpool")
        done = subprocess.run(
            [powerpool, *words], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    said = call("train", "graph", "--model.method", "SOP+SpecMaxExpF", *SMALL)
    run_folder = Path("runs", "train", "graph", "MUTAG", "SOP+SpecMaxExpF")
    assert "SOP+SpecMaxExpF on MUTAG, validation-only, fold 0: test accuracy " in said
    assert f"The model is in {run_folder}." in said
    answers = rows(call("predict", "graph", "--run", str(run_folder), "--data", "MUTAG"))
    record = RunRecord.read(tmp_path / run_folder / "record.json")
    graphs = load_graphs("MUTAG", download=False)
    test = stratified_folds(graphs.targets, 3, 0)[0].test
    right = [int(answers[number]["class"]) == graphs.classes[graphs.targets[number]] for number in test.tolist()]
    assert record.values == (pytest.approx(100 * sum(right) / len(right)),)
    assert not {".pt", ".json"} & {file.suffix for file in tmp_path.iterdir()}


def test_a_run_folder_holds_the_settings_the_model_and_the_record(trained, own):
    assert {"config.yaml", "model.pt", "record.json"} <= {file.name for file in trained.iterdir()}
    record = RunRecord.read(trained / "record.json")
    assert (record.pipeline, record.data, record.method) == ("graph", "OWN", "GIN0+Sum")
    assert (record.protocol, record.metric, record.seed) == ("validation-only", "accuracy in %", 0)
    assert record.config["training"]["epochs"] == 40
    assert record.folds[0]["fold"] == 0
    assert len(record.folds[0]["curves"]["train_loss"]) == 40
    assert f"data: {own}" in (trained / "config.yaml").read_text()


def test_evaluate_tests_on_the_test_graphs_of_the_fold(trained, own, capsys, tmp_path):
    assert run("evaluate", "graph", "--run", trained, "--out", tmp_path / "figures.json") == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    record = RunRecord.read(trained / "record.json")
    assert figures["accuracy"] == record.folds[0]["value"]
    assert figures["loss"] == pytest.approx(record.folds[0]["test_loss"], rel=1e-4)
    graphs = load_graphs(own)
    test = stratified_folds(graphs.targets, 3, 0)[0].test
    said = load_run(trained).probabilities(graphs, test).argmax(1)
    confusion = [[0, 0], [0, 0]]
    for target, answer in zip(graphs.targets[test].tolist(), said.tolist(), strict=True):
        confusion[target][answer] += 1
    assert figures["confusion"] == confusion
    assert figures["count"] == len(test) == 16
    assert figures["accuracy_by_class"] == {
        label: 100 * confusion[place][place] / sum(confusion[place]) for place, label in enumerate(("3", "7"))
    }
    printed = capsys.readouterr().out
    assert "the test graphs of fold 0 of OWN" in " ".join(printed.split())
    assert not (trained / "evaluation.json").exists()


def test_evaluate_tests_on_all_of_other_graphs(trained, tmp_path, capsys):
    rings = [graph for graph in rings_and_stars(20, first=100) if graph.target == 7]
    other = write_own_set(tmp_path / "OTHER", rings, name="OTHER")
    assert run("evaluate", "graph", "--run", trained, "--data", other, "--out", tmp_path / "figures.json") == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert (figures["data"], figures["graphs"], figures["count"]) == ("OTHER", "all graphs", 10)
    assert figures["accuracy_by_class"]["3"] is None  # there is none
    model = load_run(trained)
    hits = int(model.probabilities(model.read(other)).argmax(1).sum())  # class 7 is number 1
    assert figures["confusion"] == [[0, 0], [10 - hits, hits]]
    assert figures["accuracy"] == figures["accuracy_by_class"]["7"] == 10.0 * hits
    assert f"accuracy {10 * hits}.0 %" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("without", ["", "graph_labels"], ids=["labelled", "not labelled"])
def test_predict_gives_the_probabilities_of_a_forward(trained, tmp_path, capsys, without):
    other = write_own_set(tmp_path / "NEW", rings_and_stars(9, first=50), without, name="NEW")
    capsys.readouterr()
    assert run("predict", "graph", "--run", trained, "--data", other) == 0
    printed = capsys.readouterr().out
    assert run("predict", "graph", "--run", trained, "--data", other, "--out", tmp_path / "a" / "said.csv") == 0
    assert run("predict", "graph", "--run", trained, "--data", other, "--out", tmp_path / "said.json") == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "a" / "said.csv").read_text() == printed
    answers, listed = rows(printed), json.loads((tmp_path / "said.json").read_text())
    graphs = load_graphs(other, labelled=False, features=load_run(trained).features, classes=(3, 7))
    network = load_run(trained).network
    with torch.no_grad():
        scores = torch.cat([network(graphs[[number]]) for number in range(9)]).double()
    expected = scores.exp() / scores.exp().sum(1, keepdim=True)
    assert len(answers) == len(listed) == 9
    for number, (answer, item) in enumerate(zip(answers, listed, strict=True)):
        found = [float(answer[f"probability of {label}"]) for label in (3, 7)]
        assert sum(found) == pytest.approx(1, abs=1e-6)
        assert found == pytest.approx(expected[number].tolist(), abs=1e-5)
        assert int(answer["graph"]) == item["graph"] == number
        assert int(answer["class"]) == item["class"] == (3, 7)[int(expected[number].argmax())]
        assert float(answer["probability"]) == item["probability"] == max(found)


def test_a_grid_and_retrain_are_recorded(tmp_path, own):
    words = ["--data", own, "--grid.hidden", "4", "6", "--grid.eta", "3", "20", "--protocol", "retrain", "--fold", "2"]
    assert train(tmp_path / "run", *words) == 0
    record = RunRecord.read(tmp_path / "run" / "record.json")
    assert (record.protocol, record.folds[0]["fold"]) == ("retrain", 2)
    chosen = record.folds[0]["chosen"]
    assert chosen["hidden"] in (4, 6)
    assert chosen["eta"] in (3.0, 20.0)
    model = load_run(tmp_path / "run")
    assert (model.config.hidden, model.config.eta) == (chosen["hidden"], chosen["eta"])
    graphs = load_graphs(own)
    fold = stratified_folds(graphs.targets, 3, 0)[2]
    expected = Training(model.config, evaluation.GraphConfig().training, graphs, fold.train_and_validation, seed=2)
    expected.run(record.folds[0]["epoch"])
    expected.settle()
    assert_equal_states(model.network.state_dict(), expected.model.state_dict())
    said = model.probabilities(graphs, fold.test).argmax(1)
    assert record.values == (100 * float((said == graphs.targets[fold.test]).double().mean()),)


def test_a_grid_that_the_method_has_not_is_told(tmp_path, own, capsys):
    assert train(tmp_path, "--data", own, "--model.method", "SOP", "--grid.eta", "3", "20") == 0
    assert "grid.eta: not used, SOP does not depend on it." in capsys.readouterr().err


def test_parameters_that_the_method_has_not_are_told(tmp_path, own, capsys):
    words = ["--model.method", "GIN0", "--model.beta", "1", "--model.eta", "7"]
    assert train(tmp_path, "--data", own, *words) == 0
    assert "model.eta, model.beta: not used, GIN0 does not depend on it." in capsys.readouterr().err


def test_graphs_that_changed_since_are_not_gone_on_with(tmp_path, capsys):
    own = write_own_set(tmp_path / "OWN")
    assert train(tmp_path / "run", "--data", own) == 0
    assert main(["evaluate", "graph", "--run", str(tmp_path / "run"), "--data", str(own)]) == 0
    assert "most of them were trained on" in capsys.readouterr().err
    shutil.rmtree(own)
    write_own_set(tmp_path / "OWN", rings_and_stars(24, first=1))
    (tmp_path / "run" / "record.json").unlink()
    assert train(tmp_path / "run", "--data", own) == 2
    assert "but of other data: OWN has changed since" in capsys.readouterr().err
    assert main(["evaluate", "graph", "--run", str(tmp_path / "run")]) == 2
    assert "OWN has changed since the run was trained" in capsys.readouterr().err


def test_names_with_brackets_are_shown_as_they_are(tmp_path, own, capsys):
    folder = tmp_path / "[red]" / "x[" / "bold]"
    assert train(folder, "--data", own, "--model.method", "GIN0", "--training.epochs", "1") == 0
    assert f"The model is in {folder}." in capsys.readouterr().out
    assert run("evaluate", "graph", "--run", folder) == 0
    assert "[red]" in capsys.readouterr().out.replace("\n", "")


# ---- the same folder again -------------------------------------------------------------------------------------------


def test_a_finished_run_is_neither_repeated_nor_overwritten_unless_asked(tmp_path, own, capsys):
    folder, words = tmp_path / "run", ["--data", own, "--model.method", "GIN0"]
    assert train(folder, *words) == 0
    before = {file: file.read_bytes() for file in folder.rglob("*.*") if file.is_file() and file.name != ".lock"}
    typed = ["train", "graph", *SMALL, "--out", folder, *words]
    assert "holds this very run, finished." in refusal(capsys, *typed)
    assert "holds a run with other settings" in refusal(capsys, *typed, "--seed", "1")
    assert "holds a run with other settings" in refusal(capsys, *typed, "--protocol", "retrain")
    assert "holds a run with other settings" in refusal(capsys, *typed, "--fold", "1")
    assert {file: file.read_bytes() for file in before} == before
    assert run("evaluate", "graph", "--run", folder) == 0
    assert run(*typed, "--seed", "1", "--overwrite") == 0
    assert RunRecord.read(folder / "record.json").seed == 1
    fresh = tmp_path / "fresh"
    assert train(fresh, *words, "--seed", "1") == 0
    assert_equal_states(load_run(folder).network.state_dict(), load_run(fresh).network.state_dict())
    assert not (folder / "evaluation.json").exists()  # that of the model before


DRIVER = """
import sys, time
from pathlib import Path
from powerpool.cli.main import main
from powerpool.tasks.graph import evaluation
from powerpool.tasks.graph.training import Training

log, limit, step = Path(sys.argv[1]), int(sys.argv[2]), Training.step
evaluation.CHECKPOINT_SECONDS = -1.0  # after every epoch

def slow(training):
    with log.open("a") as file:
        file.write("epoch\\n")
    while len(log.read_text().split()) >= limit:
        time.sleep(0.05)
    step(training)

Training.step = slow
sys.exit(main(sys.argv[3:]))
"""


def test_kill_9_costs_no_finished_epoch_and_the_result_is_that_of_an_unbroken_run(tmp_path, own, capsys, monkeypatch):
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
        assert f"Another process (process {process.pid} on " in refusal(capsys, *typed)
        process.kill()
        process.wait(PATIENCE)
    assert not (tmp_path / "run" / "model.pt").exists()
    assert "holds no model.pt" in refusal(capsys, "predict", "graph", "--run", tmp_path / "run", "--data", own)
    steps, step = [], Training.step
    monkeypatch.setattr(Training, "step", lambda training: (steps.append(training.epoch), step(training)))
    # What the refusal says to type: the settings from the folder.
    assert run("train", "graph", "--config", tmp_path / "run" / "config.yaml", "--out", tmp_path / "run") == 0
    assert "Going on with the run in" in capsys.readouterr().err
    record = RunRecord.read(tmp_path / "run" / "record.json")
    assert steps == [2, 3, *range(record.folds[0]["epoch"])]  # two of the second trial, and the model of all graphs
    assert train(tmp_path / "unbroken", *words) == 0
    expected = RunRecord.read(tmp_path / "unbroken" / "record.json")
    dropped = [{name: value for name, value in one.folds[0].items() if name != "seconds"} for one in (record, expected)]
    assert dropped[0] == dropped[1]
    models = [load_run(tmp_path / name).network.state_dict() for name in ("run", "unbroken")]
    assert_equal_states(*models)


def test_a_second_command_in_the_same_folder_is_refused(tmp_path, own, capsys):
    with locked(tmp_path):
        said = refusal(capsys, "train", "graph", *SMALL, "--data", own, "--out", tmp_path)
    assert f"Another process (process {os.getpid()} on " in said


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--fold", "99"], "fold must be 0 to 2 with folds=3 (got 99)."),
        (["--fold", "-1"], "fold must be 0 to 2 with folds=3 (got -1)."),
        (["--data", "NOPE"], "Unknown set of graphs 'NOPE'"),
        (["--data", "no/where"], "no/where"),
        (["--data", "NCI1", "--data_root", "/nowhere"], "NCI1 is not on this machine"),
        (["--model.hidden", "0"], "model.hidden must be at least 1 (got 0)."),
        (["--model.method", "GIN1"], "model.method 'GIN1'"),
        (["--folds", "2"], "folds must be at least 3 (got 2)."),
        (["--folds", "100"], "only 63"),
        (["--protocol", "both"], "protocol must be one of validation-only, retrain (got 'both')."),
        (["--training.device", "gpu"], "training.device must be a device of torch, such as cpu or cuda:0 (got 'gpu')."),
        (["--training.learning_rate", "1e30", "--model.method", "GIN0"], "Lower training.learning_rate"),
    ],
)
def test_a_training_that_cannot_be_is_refused_in_one_line(tmp_path, capsys, monkeypatch, words, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    assert expected in refusal(capsys, "train", "graph", *SMALL, "--out", tmp_path / "run", *words)
    assert not (tmp_path / "run" / "model.pt").exists()


def test_evaluate_and_predict_refuse_what_they_cannot_do(trained, tmp_path, capsys):
    label = write_own_set(tmp_path / "LABEL", [Graph([2, 4], [(0, 1)], 7)])
    target = write_own_set(tmp_path / "TARGET", [Graph([2, 5], [(0, 1)], 8)])
    bare = write_own_set(tmp_path / "BARE", without="graph_labels")
    for first in ("evaluate", "predict"):
        assert "There is no run folder" in refusal(capsys, first, "graph", "--run", tmp_path / "no", "--data", bare)
        assert "unknown node label 4" in refusal(capsys, first, "graph", "--run", trained, "--data", label)
        assert "Unknown set of graphs 'NOPE'" in refusal(capsys, first, "graph", "--run", trained, "--data", "NOPE")
    assert "unknown class 8, expected one of 3, 7" in refusal(
        capsys, "evaluate", "graph", "--run", trained, "--data", target
    )
    assert "graph_labels" in refusal(capsys, "evaluate", "graph", "--run", trained, "--data", bare)
    for name in ("said.txt", "said", "said.json.gz"):
        said = refusal(capsys, "predict", "graph", "--run", trained, "--data", bare, "--out", tmp_path / name)
        assert "out must end in .csv or .json" in said
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("content", [b"", b"hello", None], ids=["empty", "text", "cut off"])
def test_a_damaged_model_is_refused_in_one_line(trained, own, tmp_path, capsys, content):
    for name in ("config.yaml", "model.pt"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    whole = (tmp_path / "model.pt").read_bytes()
    (tmp_path / "model.pt").write_bytes(whole[: len(whole) // 2] if content is None else content)
    for first in ("evaluate", "predict"):
        assert "model.pt" in refusal(capsys, first, "graph", "--run", tmp_path, "--data", own)


def test_a_model_that_is_sure_and_wrong_has_a_finite_loss(trained, own, tmp_path):
    model = load_run(trained)
    with torch.no_grad():
        model.network.head[-1].weight.mul_(-1e4)
    model.save(tmp_path / "model.pt")
    for name in ("config.yaml", "data.json"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    graphs = model.read(own)
    figures = commands.evaluation_figures(model, graphs, torch.arange(len(graphs)))
    with torch.no_grad():
        said = model.network(graphs[torch.arange(len(graphs))]).double()
    expected = float(torch.nn.functional.cross_entropy(said, graphs.targets))
    assert figures["loss"] == pytest.approx(expected, rel=1e-3)
    assert expected > 100
    assert run("evaluate", "graph", "--run", tmp_path) == 0


def test_graphs_without_node_labels_are_told_apart_by_degree(tmp_path, capsys):
    data = write_own_set(tmp_path / "PLAIN", without="node_labels", name="PLAIN")
    assert train(tmp_path / "run", "--data", data, "--model.method", "SOP") == 0
    model = load_run(tmp_path / "run")
    assert model.features.kind == "degree"
    capsys.readouterr()
    assert run("predict", "graph", "--run", tmp_path / "run", "--data", data) == 0
    assert len(rows(capsys.readouterr().out)) == 24
