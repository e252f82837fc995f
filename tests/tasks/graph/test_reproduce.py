"""``powerpool reproduce graph``: records, resuming, and results that never mix."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from powerpool.cli import reproduce as command
from powerpool.cli.main import main
from powerpool.data import stratified_folds
from powerpool.report.groups import describe_protocol, group_records
from powerpool.runs import scheduler
from powerpool.runs.config import RenamedFieldWarning
from powerpool.runs.record import RunRecord
from powerpool.tasks.base import run_chain
from powerpool.tasks.graph.config import GridConfig
from powerpool.tasks.graph.options import ReproduceOptions
from powerpool.tasks.graph.task import TASK
from tests.runs.threads import Threads
from tests.tasks.graph.samples import rings_and_stars, small_config, write_own_set

PATIENCE = 600  # seconds
TWO = ["GIN0", "SOP+SpecMaxExpF"]
BOTH = ("validation-only", "retrain")
LONGER = "model: {hidden: 8, layers: 2, eta: 5}\ntraining: {epochs: 40}\nfolds: 3\n"


@pytest.fixture(scope="module", autouse=True)
def threads():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_make_executor", Threads)
        yield


def run(out: Path, **options) -> dict[tuple[str, str, str], RunRecord]:
    """Return the records by data set, method and protocol."""
    options = {"jobs": 1, "download": False, "quick": "recipe" not in options, "out": str(out), **options}
    records = command.reproduce(ReproduceOptions(**options), report=False).records
    return {(record.data, record.method, record.protocol): record for record in records}


def results(folder: Path) -> dict[str, int]:
    """When the result of each unit was written."""
    files = (folder / "units").rglob("0*.json")
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A quick run of two methods under both protocols."""
    folder = tmp_path_factory.mktemp("quick") / "out"
    return folder, run(folder, methods=TWO)


@pytest.fixture
def copy(done, tmp_path):
    return Path(shutil.copytree(done[0], tmp_path / "copy"))


def test_there_is_a_record_for_each_method_and_protocol(done):
    folder, records = done
    assert set(records) == {("MUTAG", method, protocol) for method in TWO for protocol in BOTH}
    for (_, method, _), record in records.items():
        assert (record.metric, record.count, record.environment.quick) == ("accuracy in %", 3, True)
        assert record.config["model"]["method"] == method
        assert [result.number for result in record.results] == [0, 1, 2]
    assert len(results(folder)) == 6


def test_values_are_those_of_the_protocol(done):
    recipe = ReproduceOptions(quick=True, download=False).read_config("MUTAG")
    config = replace(recipe, model=replace(recipe.model, method="SOP+SpecMaxExpF"))
    for fold in range(3):
        outcome = run_chain(TASK, config, TASK.load(config), fold, BOTH)
        for protocol, expected in outcome.results.items():
            result = done[1]["MUTAG", "SOP+SpecMaxExpF", protocol].results[fold]
            assert (result.value, result.epoch, result.chosen) == (expected.value, expected.epoch, expected.chosen)


def test_the_same_command_runs_nothing_again(copy, done, monkeypatch):
    files = results(copy)
    monkeypatch.setattr(scheduler, "_make_executor", None)  # any unit that runs is an error
    assert run(copy, methods=TWO) == done[1]
    assert results(copy) == files


def test_only_missing_and_damaged_units_run(copy, done):
    files = results(copy)
    gone, broken, empty = sorted(name for name in files if "/GIN0-" in name)
    (copy / gone).unlink()
    (copy / broken).write_text('{"results": {"val')
    (copy / empty).write_text("{}")
    records = run(copy, methods=[*TWO, "SOP"])
    after = results(copy)
    assert {name for name in files if files[name] != after[name]} == {gone, broken, empty}
    assert len(after) == 9
    key = ("MUTAG", "GIN0", "retrain")
    assert records[key].values == done[1][key].values


def test_other_settings_never_mix_with_earlier_results(copy, done, tmp_path, monkeypatch):
    files, key = results(copy), ("MUTAG", "GIN0", "validation-only")
    words = {"methods": ["GIN0"], "protocols": ["validation-only"]}
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("model: {hidden: 8, layers: 2}\ntraining: {epochs: 2}\nfolds: 3\n")
    assert run(copy, **words, seed=1)[key].results != done[1][key].results
    assert run(copy, **words, recipe=str(recipe))[key].config["training"]["epochs"] == 2
    monkeypatch.setattr(TASK, "version", 0)  # as if the numbers of the task had changed
    run(copy, **words)
    monkeypatch.undo()
    after = results(copy)
    assert {name: after[name] for name in files} == files
    assert len(after) == 6 + 3 * 3


def test_a_custom_folder_is_a_data_set_and_paths_are_not_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_own_set(tmp_path / "mine" / "OWN")
    words = {"data": ["mine/OWN"], "methods": ["GIN0", "SOP+Gamma"], "protocols": ["validation-only"]}
    record = run(Path("out"), **words)["OWN", "SOP+Gamma", "validation-only"]
    assert record.config["model"]["mean"] == "concat"  # which GIN0 does not have
    files = results(tmp_path / "out")
    for file in (tmp_path / "out").rglob("*.json"):
        content = json.loads(file.read_text())
        content.get("environment", {}).pop("command", None)
        assert "mine" not in json.dumps(content)
    run(Path("out"), **{**words, "data": ["OWN"]}, data_root="mine")
    assert results(tmp_path / "out") == files
    # Other graphs of the same name have results of their own, and cannot share a command.
    write_own_set(tmp_path / "other" / "OWN", rings_and_stars(24, first=1))
    run(Path("out"), **{**words, "data": ["other/OWN"]})
    assert len(results(tmp_path / "out")) == 2 * len(files)
    with pytest.raises(ValueError, match="OWN"):
        run(Path("out"), **{**words, "data": ["mine/OWN", "other/OWN"]})


SEARCH = """
model: {hidden: 4, layers: 1}
training: {epochs: 3}
grid: {beta: [0, 1], eta: [2, 5]}
first_order_grid: {hidden: [2, 8]}
folds: 3
"""


def test_further_seeds_share_the_folds_and_reuse_the_choice_of_the_first(tmp_path, monkeypatch):
    (tmp_path / "search.yaml").write_text(SEARCH)
    words = {"recipe": str(tmp_path / "search.yaml"), "protocols": ["validation-only"], "fold_subset": [2, 0]}
    first = run(tmp_path / "out", **words, methods=TWO)
    files = results(tmp_path / "out")
    records = run(tmp_path / "out", **words, methods=TWO, seeds=[0, 7])
    after = results(tmp_path / "out")
    assert {name: after[name] for name in files} == files  # the first seed is not trained again
    assert len(after) == 2 * len(files) == 8
    for key, record in records.items():
        assert [(one.number, one.fold, one.seed) for one in record.results] == [
            (0, 2, 0),
            (1, 0, 0),
            (2, 2, 7),
            (3, 0, 7),
        ]
        assert record.results[:2] == first[key].results
        assert (record.config["search_seed"], "search_seed" in first[key].config) == (0, False)
        points = 2 if record.method == "GIN0" else 4
        for one, again in zip(record.results[:2], record.results[2:], strict=True):
            assert (len(one.trials), len(again.trials)) == (points, 1)
            assert again.chosen == one.chosen
            assert one.test_loss != again.test_loss
            config = replace(
                ReproduceOptions(**words).read_config(None).at(one.chosen), download=False
            )  # of GIN0, whose folds are those of all methods
            fold = stratified_folds(TASK.load(config).targets, 3, 0)[one.fold]
            assert sum(sum(row) for row in again.confusion.dense()) == len(fold.test)
    gin, ours = (records["MUTAG", method, "validation-only"] for method in TWO)
    assert ours.paired(gin)[0] == [
        pytest.approx((ours.results[1].value + ours.results[3].value) / 2),
        pytest.approx((ours.results[0].value + ours.results[2].value) / 2),
    ]
    monkeypatch.setattr(scheduler, "_make_executor", None)
    assert run(tmp_path / "out", **words, methods=TWO, seeds=[0, 7]) == records


def test_epochs_chosen_on_test_graphs_and_permuted_labels_are_marked(tmp_path):
    protocols = ["test-epoch", "test-epoch-per-fold"]
    records = run(tmp_path / "out", methods=["GIN0"], protocols=protocols, permute_labels=True)
    one, each = (records["MUTAG (permuted labels)", "GIN0", protocol] for protocol in protocols)
    assert len({result.epoch for result in one.results}) == 1
    assert each.mean >= one.mean
    assert all(record.config["permute_labels"] and "optimistic" in record.config["epoch_is"] for record in (one, each))
    (group, _) = group_records([one, each])
    assert "optimistic" in describe_protocol(group)


@pytest.mark.parametrize(
    "words, shown",
    [
        (["--quick", "--full"], "--full"),
        (["--quick", "--recipe", "graph/default"], "--recipe"),
        (["--methods", "GIN0", "GIN1"], "'GIN1'"),
        (["--protocols", "both"], "'both'"),
        (["--seeds", "1", "1"], "seeds"),
        (["--seeds", "-1"], "seed"),
        (["--quick", "--fold_subset", "3"], "fold"),
        (["--data", "NOPE", "--quick"], "'NOPE'"),
        (["--data", "MUTAG", "MUTAG", "--quick"], "data"),
        (["--quick", "--jobs", "0"], "jobs"),
    ],
)
def test_impossible_options_are_refused_in_one_line(tmp_path, capsys, monkeypatch, words, shown):
    monkeypatch.setattr(scheduler, "_make_executor", None)
    assert main(["reproduce", "graph", "--download", "false", "--out", str(tmp_path / "out"), *words]) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert shown in err
    assert not (tmp_path / "out").exists()


PROGRAM = """
import sys
from powerpool.cli.reproduce import reproduce
from powerpool.tasks.graph.config import GridConfig
from powerpool.tasks.graph.options import ReproduceOptions

if __name__ == "__main__":
    words = {"methods": ["SOP+SpecMaxExpF"], "protocols": ["validation-only"], "recipe": "longer.yaml", "out": "out"}
    reproduce(ReproduceOptions(**words, jobs=int(sys.argv[1]), download=False), report=False)
"""


def test_kill_9_loses_running_units_only_and_the_number_of_jobs_changes_nothing(tmp_path):
    """Two workers until the kill, then one, in real processes; compared with the folds in this process."""
    (tmp_path / "longer.yaml").write_text(LONGER)
    (tmp_path / "program.py").write_text(PROGRAM)
    program = [sys.executable, "program.py"]
    with subprocess.Popen([*program, "2"], cwd=tmp_path, stderr=subprocess.DEVNULL) as process:
        end = time.monotonic() + PATIENCE
        while not results(tmp_path / "out"):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.02)
        process.kill()
        process.wait(PATIENCE)
    time.sleep(0.5)  # workers end with the command
    kept = results(tmp_path / "out")
    assert 1 <= len(kept) < 3
    subprocess.run([*program, "1"], cwd=tmp_path, capture_output=True, timeout=PATIENCE, check=True)
    after = results(tmp_path / "out")
    assert {name: after[name] for name in kept} == kept
    assert len(after) == 3
    config = small_config("SOP+SpecMaxExpF", model={"eta": 5.0}, training={"epochs": 40})
    record = RunRecord.read(tmp_path / "out" / "MUTAG" / "SOP+SpecMaxExpF.json")
    for result in record.results:
        outcome = run_chain(TASK, config, TASK.load(config), result.number, ["validation-only"])
        expected = outcome.results["validation-only"]
        assert (result.value, result.chosen, result.epoch) == (expected.value, expected.chosen, expected.epoch)
        assert result.test_loss == pytest.approx(expected.test_loss, rel=1e-5)


def test_a_finished_fold_leaves_all_checkpoints(tmp_path):
    config = small_config()
    digest = TASK.identity(TASK.load(config)).digest
    other = tmp_path / "checkpoints" / "01" / "01-00"
    other.parent.mkdir(parents=True)
    other.touch()
    answer = command.compute_chain("graph", config, 0, ("validation-only",), digest, tmp_path)
    assert answer["results"]["validation-only"]["number"] == 0
    assert other.exists()
    assert (tmp_path / "checkpoints" / "00" / "00-00").exists()  # until its result is written


def test_eta_of_version_0_1_is_taken_for_sigme():
    old = small_config("SOP+SigmE", model={"eta": 50.0}, grid=GridConfig(eta=[5.0, 10.0]))
    with pytest.warns(RenamedFieldWarning, match="sigme_eta"):
        config = TASK.prepare(old)
    assert (config.model.sigme_eta, config.grid.sigme_eta) == (50.0, [5.0, 10.0])
    new = small_config("SOP+SigmE", model={"eta": 50.0, "sigme_eta": 7.0}, grid=GridConfig(eta=[5.0], sigme_eta=[2.0]))
    assert TASK.prepare(new) == new
