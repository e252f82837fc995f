"""``powerpool reproduce graph``: what is written, what is never done twice, and what never mixes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from powerpool.cli import reproduce_graph as graph
from powerpool.cli.main import main
from powerpool.report.write import read_records
from powerpool.runs import provenance
from powerpool.runs import scheduler as runner
from powerpool.runs.environment import environment
from powerpool.runs.record import RunRecord
from powerpool.tasks.graph import evaluation
from tests.experiments.threads import Threads
from tests.pipelines.graph.samples import rings_and_stars, small_config, write_own_set

PATIENCE = 600  # seconds: no test is about time, and none waits for ever
TWO = ["--methods", "GIN0", "SOP+SpecMaxExpF"]
NAMES = {f"{method}{suffix}.json" for method in TWO[1:] for suffix in ("", ".retrain")}
LONGER = "model: {hidden: 8, layers: 2, eta: 5}\ntraining: {epochs: 60}\nfolds: 3\n"


@pytest.fixture
def nothing_runs(monkeypatch):
    """A unit that is not on the disk is an error."""

    def refuse() -> None:
        raise AssertionError("a unit is run")

    monkeypatch.setattr(runner, "_make_executor", refuse)


def reproduce(out: Path, *words: object) -> int:
    return main(["reproduce", "graph", "--jobs", "1", "--download", "false", "--out", str(out), *map(str, words)])


def fold_files(folder: Path) -> dict[str, int]:
    """When each result of a fold was written; what a killed process was writing has a hidden name."""
    files = [file for file in (folder / "folds").rglob("*.json") if not file.name.startswith(".")]
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}


def without_time(record: RunRecord) -> dict[str, object]:
    """What a record holds of the results themselves."""
    folds = [{name: value for name, value in fold.items() if name != "seconds"} for fold in record.folds]
    return {"folds": folds, "config": record.config, "seed": record.seed}


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """The folder of a quick run of two methods under both protocols."""
    folder = tmp_path_factory.mktemp("quick") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_make_executor", Threads)
        assert reproduce(folder, "--data", "MUTAG", *TWO, "--quick") == 0
    return folder


@pytest.fixture
def copy(quick, tmp_path):
    """The same, to change."""
    return Path(shutil.copytree(quick, tmp_path / "copy"))


def test_records_and_report_are_written(quick):
    assert {file.name for file in (quick / "MUTAG").glob("*.json")} == NAMES
    for method in TWO[1:]:
        for suffix, protocol in (("", "validation-only"), (".retrain", "retrain")):
            record = RunRecord.read(quick / "MUTAG" / f"{method}{suffix}.json")
            assert (record.pipeline, record.data, record.method) == ("graph", "MUTAG", method)
            assert (record.protocol, record.metric, record.count) == (protocol, "accuracy in %", 3)
            assert record.environment["threads"] == 1
            assert record.config["model"]["method"] == method
    assert len(fold_files(quick)) == 12
    for name in ("README.md", "report.html"):
        text = (quick / name).read_text(encoding="utf-8")
        assert "MUTAG" in text
        assert "SOP+SpecMaxExpF" in text


def test_the_values_are_those_of_the_protocols(quick):
    for method in TWO[1:]:
        recipe = graph.read_config(graph.ReproduceGraphOptions(quick=True, download=False), "MUTAG")
        beta = 0.0 if method == "GIN0" else 1.0
        config = replace(recipe, model=replace(recipe.model, method=method, beta=beta))
        digest = evaluation.read_graphs(config).digest
        chosen = [evaluation.validation_only(config, fold, digest) for fold in range(3)]
        again = [evaluation.retrain(config, fold, digest, result) for fold, result in enumerate(chosen)]
        for suffix, results in (("", chosen), (".retrain", again)):
            record = RunRecord.read(quick / "MUTAG" / f"{method}{suffix}.json")
            assert list(record.values) == [result["value"] for result in results]
            assert [fold["epoch"] for fold in record.folds] == [result["epoch"] for result in results]


@pytest.mark.usefixtures("nothing_runs")
def test_the_same_command_does_nothing_twice_and_writes_the_same(copy, capsys):
    before, files = {record.method + record.protocol: record for record in read_records(copy)}, fold_files(copy)
    assert reproduce(copy, "--data", "MUTAG", *TWO, "--quick") == 0
    out, err = capsys.readouterr()
    assert fold_files(copy) == files
    for record in read_records(copy):
        earlier = before[record.method + record.protocol]
        assert without_time(record) == without_time(earlier)
        assert (record.seconds, record.folds) == (earlier.seconds, earlier.folds)
    assert err.splitlines() == ["folds of validation-only: resumed 6 of 6", "folds of retrain: resumed 6 of 6"]
    *written, note = out.splitlines()
    assert written == [f"written: {copy / 'README.md'}", f"written: {copy / 'report.html'}"]
    assert "mean nothing" in note


@pytest.mark.usefixtures("threads")
def test_a_method_that_is_added_later_leaves_the_folds_of_the_others(copy):
    files = fold_files(copy)
    assert reproduce(copy, "--data", "MUTAG", "--methods", "SOP", "GIN0", "--quick") == 0
    after = fold_files(copy)
    assert {name: after[name] for name in files} == files
    assert len(after) == 18
    assert {file.name for file in (copy / "MUTAG").glob("*.json")} == {*NAMES, "SOP.json", "SOP.retrain.json"}
    assert "SOP+SpecMaxExpF" in (copy / "README.md").read_text(encoding="utf-8")  # of the run before


@pytest.mark.usefixtures("threads")
def test_only_what_is_missing_or_damaged_runs_again(copy, capsys):
    before, files = without_time(RunRecord.read(copy / "MUTAG" / "GIN0.json")), fold_files(copy)
    gone, broken = sorted(name for name in files if "/GIN0-" in name and "validation-only" in name)[:2]
    (copy / gone).unlink()
    (copy / broken).write_text('{"fold": 1, "val')
    assert reproduce(copy, "--data", "MUTAG", *TWO, "--quick") == 0
    after = fold_files(copy)
    assert {name for name in files if files[name] != after[name]} == {gone, broken}
    assert without_time(RunRecord.read(copy / "MUTAG" / "GIN0.json")) == before
    assert "resumed 4 of 6" in capsys.readouterr().err


@pytest.mark.usefixtures("threads")
def test_other_settings_never_mix_with_earlier_results(copy, tmp_path, monkeypatch):
    files, first = fold_files(copy), RunRecord.read(copy / "MUTAG" / "GIN0.json")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model: {hidden: 8, layers: 2}\ntraining: {epochs: 2}\nfolds: 3\n")
    alone = ["--data", "MUTAG", "--methods", "GIN0", "--protocols", "validation-only"]
    assert reproduce(copy, *alone, "--quick", "--seed", "1") == 0
    seeded = RunRecord.read(copy / "MUTAG" / "GIN0.json")
    assert seeded.seed == 1
    assert seeded.folds != first.folds
    assert reproduce(copy, *alone, "--recipe", recipe) == 0
    assert RunRecord.read(copy / "MUTAG" / "GIN0.json").config["training"]["epochs"] == 2
    after = fold_files(copy)
    assert {name: after[name] for name in files} == files
    assert len(after) == 12 + 3 + 3
    assert len({Path(name).parent for name in after if "/GIN0-" in name}) == 3
    # Back to the first settings: all of it is still there.
    monkeypatch.setattr(runner, "_make_executor", None)
    assert reproduce(copy, *alone, "--quick") == 0
    assert RunRecord.read(copy / "MUTAG" / "GIN0.json").folds == first.folds


@pytest.mark.usefixtures("threads")
def test_a_protocol_that_was_not_asked_for_has_no_record(tmp_path):
    words = ["--data", "MUTAG", "--methods", "GIN0", "--quick"]
    assert reproduce(tmp_path / "one", *words, "--protocols", "validation-only") == 0
    assert [file.name for file in (tmp_path / "one" / "MUTAG").glob("*.json")] == ["GIN0.json"]
    assert not [name for name in fold_files(tmp_path / "one") if "retrain" in name]
    assert reproduce(tmp_path / "two", *words, "--protocols", "retrain") == 0
    assert [file.name for file in (tmp_path / "two" / "MUTAG").glob("*.json")] == ["GIN0.retrain.json"]


@pytest.mark.usefixtures("threads")
def test_a_users_own_folder_is_a_data_set(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_own_set(tmp_path / "mine" / "OWN")
    words = ["--data", "mine/OWN", "--methods", "GIN0", "SOP+Gamma", "--quick", "--protocols", "validation-only"]
    assert reproduce(Path("out"), *words) == 0
    record = RunRecord.read(tmp_path / "out" / "OWN" / "SOP+Gamma.json")
    assert (record.data, record.count) == ("OWN", 3)
    files = fold_files(tmp_path / "out")
    assert reproduce(Path("out"), *words) == 0
    assert fold_files(tmp_path / "out") == files
    # Other graphs under the same name are other graphs.
    shutil.rmtree(tmp_path / "mine")
    write_own_set(tmp_path / "mine" / "OWN", rings_and_stars(24, first=1))
    assert reproduce(Path("out"), *words) == 0
    assert len(fold_files(tmp_path / "out")) == 2 * len(files)


@pytest.mark.usefixtures("threads")
def test_a_recipe_for_all_methods_gives_beta_to_those_that_have_one(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model: {hidden: 4, layers: 1, beta: 1.0}\ntraining: {epochs: 1}\nfolds: 3\n")
    methods = ["GIN0", "SOP", "SOP+MaxExp", "SOP+Gamma"]
    words = ["--methods", *methods, "--recipe", recipe, "--protocols", "validation-only"]
    assert reproduce(tmp_path / "out", *words) == 0
    betas = {record.method: record.config["model"]["beta"] for record in read_records(tmp_path / "out")}
    assert betas == {"GIN0": 0.0, "SOP": 1.0, "SOP+MaxExp": 0.0, "SOP+Gamma": 0.0}


@pytest.mark.usefixtures("threads")
def test_no_record_says_where_the_data_lies(tmp_path, monkeypatch):
    """A folder by $POWERPOOL_DATA or by an option; the command as it was typed is the only place for a path."""
    monkeypatch.chdir(tmp_path)
    write_own_set(tmp_path / "store" / "OWN")
    words = ["--data", "OWN", "--methods", "GIN0", "--quick"]
    assert reproduce(Path("option"), *words, "--data_root", tmp_path / "store") == 0
    monkeypatch.setenv("POWERPOOL_DATA", str(tmp_path / "store"))
    assert reproduce(Path("variable"), *words) == 0
    written = [file for name in ("option", "variable") for file in (tmp_path / name).rglob("*") if file.is_file()]
    assert len(written) > 20
    for file in written:
        if file.suffix == ".json" and "schema" in (data := json.loads(file.read_text(encoding="utf-8"))):
            assert not {"data_root", "download"} & data["config"].keys()
            data["environment"].pop("command")  # of the test
            assert str(tmp_path) not in json.dumps(data)
        elif file.suffix in (".json", ".md", ".html"):
            assert str(tmp_path) not in file.read_text(encoding="utf-8"), file
    # Where the data lay makes no difference to what is on the disk, either.
    assert fold_files(tmp_path / "option").keys() == fold_files(tmp_path / "variable").keys()


@pytest.mark.usefixtures("threads")
def test_two_sets_of_one_name_are_not_written_over_one_another(tmp_path, capsys):
    for name, first in (("one", 0), ("two", 1)):
        write_own_set(tmp_path / name / "OWN", rings_and_stars(24, first))
    words = ["--data", tmp_path / "one" / "OWN", tmp_path / "two" / "OWN", "--methods", "GIN0", "--quick"]
    assert reproduce(tmp_path / "out", *words) == 2
    assert "OWN" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--quick", "--full"], "--quick and --full contradict one another"),
        (["--quick", "--recipe", "graph/default"], "--recipe and --quick contradict one another"),
        (["--methods", "GIN0", "GIN1"], "methods 'GIN1'"),
        (["--methods", "GIN0", "GIN0"], "methods must name at least one, and each once"),
        (["--protocols", "both"], "protocols 'both'"),
        (["--data", "NOPE", "--quick"], "Unknown set of graphs 'NOPE'"),
        (["--data", "no/where", "--quick"], "no/where"),
        (["--data", "MUTAG", "MUTAG", "--quick"], "data must name at least one, and each once"),
        (["--recipe", "graph/nothing"], "There is no recipe 'graph/nothing'"),
        (["--quick", "--seed", "-1"], "seed must be at least 0"),
        (["--quick", "--jobs", "0"], "jobs must be >= 1 (got 0)"),
        (["--data", "NCI1", "--data_root", "/nowhere", "--quick"], "NCI1 is not on this machine"),
    ],
)
@pytest.mark.usefixtures("nothing_runs")
def test_what_cannot_be_is_refused_in_one_line(tmp_path, capsys, monkeypatch, words, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    typed = ["reproduce", "graph", "--download", "false", "--out", str(tmp_path / "out"), *words]
    assert main(typed) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("powerpool reproduce graph: error: ")
    assert len(err.splitlines()) == 1
    assert expected in err


def test_kill_9_costs_the_folds_in_progress_and_the_number_of_jobs_changes_nothing(tmp_path):
    """Two workers until the kill, then one, in real processes; against the folds one by one in this process."""
    (tmp_path / "longer.yaml").write_text(LONGER)
    out = tmp_path / "out"
    powerpool = Path(sys.executable).with_name("powerpool")
    command = [powerpool, "reproduce", "graph", "--data", "MUTAG", *TWO, "--recipe", "longer.yaml", "--out", "out"]
    with subprocess.Popen(
        [*command, "--jobs", "2"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + PATIENCE
        while not fold_files(out):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        process.kill()
        process.wait(PATIENCE)
    time.sleep(0.5)  # workers end with the command
    kept = fold_files(out)
    assert 1 <= len(kept) < 6
    assert not (out / "MUTAG").exists()
    done = subprocess.run(
        [*command, "--jobs", "1"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"folds of validation-only: resumed {len(kept)} of 6\n" in done.stderr
    after = fold_files(out)
    assert {name: after[name] for name in kept} == kept
    assert len(after) == 12
    assert {file.name for file in (out / "MUTAG").glob("*.json")} == NAMES
    assert all((out / name).is_file() for name in ("README.md", "report.html"))
    for method in TWO[1:]:
        config = small_config(method, model={"eta": 5.0}, training={"epochs": 60})
        digest = evaluation.read_graphs(config).digest
        record = RunRecord.read(out / "MUTAG" / f"{method}.json")
        for fold in record.folds:
            expected = evaluation.validation_only(config, fold["fold"], digest)
            for name in ("value", "chosen", "epoch", "validation_accuracy"):
                assert fold[name] == expected[name]
            assert fold["test_loss"] == pytest.approx(expected["test_loss"], rel=1e-5)


def test_a_second_command_in_the_same_folder_is_refused(tmp_path, capsys):
    from powerpool.files import locked

    with locked(tmp_path):
        assert reproduce(tmp_path, "--quick") == 2
    assert f"Another process (process {os.getpid()} on " in capsys.readouterr().err


@pytest.mark.usefixtures("threads")
def test_other_code_runs_again_and_the_record_says_which_code_it_was(copy, monkeypatch):
    files, first = fold_files(copy), RunRecord.read(copy / "MUTAG" / "GIN0.json")
    words = ["--data", "MUTAG", "--methods", "GIN0", "--quick", "--protocols", "validation-only"]
    known = {**environment(), "commit": "a" * 40, "dirty": True}
    for module in (graph, provenance):
        monkeypatch.setattr(module, "environment", lambda: known)
    assert reproduce(copy, *words) == 0  # nothing runs: the folds are of the commit before
    assert fold_files(copy) == files
    again = RunRecord.read(copy / "MUTAG" / "GIN0.json")
    assert [again.environment[name] for name in ("commit", "dirty", "time")] == [
        first.environment[name] for name in ("commit", "dirty", "time")
    ]
    monkeypatch.setattr(provenance, "code_digest", lambda pipeline: "other")
    assert reproduce(copy, *words) == 0
    assert len(fold_files(copy)) == len(files) + 3
    other = RunRecord.read(copy / "MUTAG" / "GIN0.json")
    assert other.environment["commit"] == "a" * 40
    assert other.environment["dirty"] is True
    assert other.values == first.values


@pytest.mark.usefixtures("threads")
def test_an_object_without_the_keys_of_a_result_is_none(copy, capsys):
    name = min(name for name in fold_files(copy) if "/GIN0-" in name)
    (copy / name).write_text("{}")
    assert reproduce(copy, "--data", "MUTAG", *TWO, "--quick") == 0
    assert "Moved to" in capsys.readouterr().err
    assert json.loads((copy / name).read_text())["value"] > 0


@pytest.mark.usefixtures("nothing_runs")
def test_records_of_other_kinds_in_the_folder_are_passed_over(copy):
    (copy / "curves.json").write_text('{"schema": "powerpool-bench/1"}')
    assert reproduce(copy, "--data", "MUTAG", *TWO, "--quick") == 0


def test_a_recipe_names_its_data_unless_an_option_does(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("data: PROTEINS\ndata_root: here\ndownload: false\nmodel: {method: SOP+SpecMaxExp, eta: 2.5}\n")
    options = graph.ReproduceGraphOptions(recipe=str(recipe))
    assert options.data_sets == [None]
    config = graph.read_config(options, None)
    assert (config.data, config.data_root, config.download, config.model.eta) == ("PROTEINS", "here", False, 2.5)
    typed = graph.ReproduceGraphOptions(recipe=str(recipe), data=["MUTAG"], data_root="there", download=True)
    config = graph.read_config(typed, "MUTAG")
    assert (config.data, config.data_root, config.download) == ("MUTAG", "there", True)
    assert graph.ReproduceGraphOptions().data_sets == ["MUTAG"]
