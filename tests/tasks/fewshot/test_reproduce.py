"""``powerpool reproduce fewshot``: records, resuming, and results that never mix."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from powerpool.cli.main import main
from powerpool.cli.reproduce import reproduce
from powerpool.data.layouts import EXHIBITIONS
from powerpool.errors import ArgumentError
from powerpool.runs import scheduler
from powerpool.runs.config import read_recipe, recipe_names
from powerpool.runs.record import RunRecord
from powerpool.tasks.base import run_chain
from powerpool.tasks.fewshot.config import FewShotConfig
from powerpool.tasks.fewshot.inference import load_run
from powerpool.tasks.fewshot.options import ReproduceOptions
from powerpool.tasks.fewshot.rows import with_method
from powerpool.tasks.fewshot.task import TASK
from powerpool.tasks.fewshot.training import Training
from tests.runs.threads import Threads
from tests.tasks.fewshot.samples import write_folder

TWO = ["RelationNet", "SoSN(x)+SigmE"]
SMALL = (
    "size: 16\nchannels: 1\nmodel: {hidden: 8}\ntest: {way: 2, count: 6}\n"
    "train_classes: 5\nvalidation_classes: 3\nclass_order: names\n"
    "training: {episodes: 4, queries: 2, validate_every: 2, validation_episodes: 3, settling_episodes: 1}\n"
)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Threads instead of processes, and a separate cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "_make_executor", Threads)
        patch.setenv("POWERPOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("own") / "bars", each=9)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    file = tmp_path_factory.mktemp("recipe") / "small.yaml"
    file.write_text(SMALL)
    return file


def run(out: Path, recipe: Path, **options) -> dict[tuple[str, str, str], RunRecord]:
    """Return the records by data set, method and protocol."""
    options = {"jobs": 1, "download": False, "recipe": str(recipe), "out": str(out), **options}
    records = reproduce(ReproduceOptions(**options), report=False).records
    return {(record.data, record.method, record.protocol): record for record in records}


def results(folder: Path) -> dict[str, int]:
    """When the result of each unit was written."""
    files = (folder / "units").rglob("0*.json")
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files}


def expected(recipe: Path, data: Path, method: str, protocols: list[str], **changes):
    """Run the same training in this process."""
    config = with_method(replace(read_recipe(recipe, FewShotConfig), data=str(data), **changes), method, 1)
    return run_chain(TASK, config, TASK.load(config), 0, protocols)


@pytest.fixture(scope="module")
def done(own, small, tmp_path_factory):
    """A run of two methods, tested with two and with four classes."""
    folder = tmp_path_factory.mktemp("done") / "out"
    return folder, run(folder, small, data=[str(own)], methods=TWO, ways=[2, 4])


@pytest.fixture
def copy(done, tmp_path):
    return Path(shutil.copytree(done[0], tmp_path / "copy"))


def test_there_is_a_record_for_each_method_and_number_of_classes(done):
    folder, records = done
    assert set(records) == {("bars", method, f"{way}-way-1-shot") for method in TWO for way in (2, 4)}
    for (_, method, protocol), record in records.items():
        assert (record.task, record.metric) == ("fewshot", "accuracy in %")
        assert record.config["model"]["method"] == method
        assert protocol == f"{record.config['test']['way']}-way-1-shot"
        assert record.config["training"]["way"] == 2
        assert record.config["pretrained"] is None
        assert not {"data_root", "download"} & record.config.keys()
        (result,) = record.results
        assert (result.number, result.seed, len(result.right)) == (0, 0, 6)
        assert result.queries == 3 * record.config["test"]["way"]
    assert len(results(folder)) == 2  # one training serves both numbers of classes


def without_times(curves):
    return {name: values for name, values in curves.items() if name != "cpu_seconds"}


def test_values_are_those_of_the_protocol(done, own, small):
    outcome = expected(small, own, "SoSN(x)+SigmE", ["2-way-1-shot", "4-way-1-shot"])
    for protocol, wanted in outcome.results.items():
        (result,) = done[1]["bars", "SoSN(x)+SigmE", protocol].results
        for name in ("value", "right", "chosen", "validation", "spectrum"):
            assert getattr(result, name) == getattr(wanted, name)
        assert without_times(result.curves) == without_times(wanted.curves)


def test_the_same_command_runs_nothing_again(copy, done, own, small, monkeypatch):
    files = results(copy)
    monkeypatch.setattr(scheduler, "_make_executor", None)  # any unit that runs is an error
    assert run(copy, small, data=[str(own)], methods=TWO, ways=[2, 4]) == done[1]
    assert results(copy) == files


def test_other_numbers_of_classes_and_other_seeds_repeat_no_training(copy, done, own, small, monkeypatch):
    words = {"data": [str(own)], "methods": TWO[:1]}
    first = run(copy, small, **words, seeds=[0, 3])["bars", "RelationNet", "2-way-1-shot"]
    assert [(result.number, result.seed) for result in first.results] == [(0, 0), (1, 3)]
    monkeypatch.setattr(Training, "_step", None)  # any training step is an error
    records = run(copy, small, **words, seeds=[3, 0], ways=[3, 2])
    assert {record.config["test"]["way"] for record in records.values()} == {2, 3}
    second = records["bars", "RelationNet", "2-way-1-shot"]
    assert [(result.number, result.seed) for result in second.results] == [(0, 3), (1, 0)]
    assert [result.right for result in second.results] == [result.right for result in reversed(first.results)]
    assert second.seed == 3
    assert done[1]["bars", "RelationNet", "2-way-1-shot"].results[0].right == first.results[0].right


def test_a_transductive_test_of_finished_trainings_has_its_own_record(copy, done, own, small, monkeypatch):
    monkeypatch.setattr(Training, "_step", None)  # any training step is an error
    words = {"data": [str(own)], "methods": TWO, "ways": [2, 4]}
    records = run(copy, small, **words, transductive=True)
    assert len(records) == 2 * len(done[1])
    for (data, method, protocol), record in done[1].items():
        assert records[data, method, protocol].results[0].right == record.results[0].right
        other = records[data, method, f"{protocol}-transductive"]
        assert other.config["test"] == {**record.config["test"], "transductive": True}
        assert other.results[0].test_loss != record.results[0].test_loss
        assert other.results[0].validation == record.results[0].validation


def test_a_test_that_is_transductive_already_is_not_repeated(own, tmp_path):
    recipe = tmp_path / "transductive.yaml"
    recipe.write_text(SMALL.replace("count: 6", "count: 6, transductive: true"))
    records = run(tmp_path / "out", recipe, data=[str(own)], methods=TWO[:1], transductive=True)
    assert [protocol for _, _, protocol in records] == ["2-way-1-shot-transductive"]


def test_other_settings_shots_and_images_never_mix_with_earlier_results(copy, tmp_path, own, small):
    files = results(copy)
    changed = tmp_path / "changed.yaml"
    changed.write_text(SMALL.replace("way: 2,", "way: 2, transductive: true,"))
    words = {"methods": TWO[:1]}
    assert set(run(copy, changed, data=[str(own)], **words)) == {("bars", "RelationNet", "2-way-1-shot-transductive")}
    assert set(run(copy, small, data=[str(own)], shots=[2], **words)) == {("bars", "RelationNet", "2-way-2-shot")}
    other = write_folder(tmp_path / "bars", each=10)
    run(copy, small, data=[str(other)], **words)
    after = results(copy)
    assert {name: after[name] for name in files} == files
    assert len(after) == len(files) + 3
    with pytest.raises(ArgumentError, match="bars"):
        run(copy, small, data=[str(own), str(other)], **words)


def test_a_study_starts_the_second_training_from_the_first(own, small, tmp_path):
    source = write_folder(tmp_path / "others", each=8)
    recipe = tmp_path / "study.yaml"
    recipe.write_text(f"{SMALL}source: {source}\nsource_episodes: 3\n")
    methods = ["SoSN(x+L)+SigmE"]
    records = run(tmp_path / "out", recipe, study="pretraining", data=[str(own)], methods=methods)
    first = records["others", "SoSN(x+L)+SigmE", "2-way-1-shot"]
    without = records["bars", "SoSN(x+L)+SigmE", "2-way-1-shot"]
    after = records["bars", "SoSN(x+L)+Pretr+SigmE", "2-way-1-shot"]
    assert len(records) == 3
    assert [one.config["training"]["episodes"] for one in (first, after, without)] == [3, 4, 4]
    digest = first.config["data_digest"]
    assert after.config["pretraining"] == {"data": "others", "data_digest": digest, "episodes": 3}
    assert after.config["pretrained"] == "others 2-way-1-shot"  # not a path of this machine
    assert without.config["pretrained"] is None
    (folder,) = (tmp_path / "out" / "units" / "others").iterdir()
    assert load_run(folder).network.config.method == "SoSN(x+L)+SigmE"
    outcome = expected(small, own, "SoSN(x+L)+SigmE", ["2-way-1-shot"], pretrained=str(folder))
    assert without_times(after.results[0].curves) == without_times(outcome.results["2-way-1-shot"].curves)
    assert after.results[0].curves["train_loss"] != without.results[0].curves["train_loss"]


def test_a_refused_command_leaves_no_folder(own, small, tmp_path, capsys):
    words = ["--recipe", str(small), "--data", str(own), "--out", str(tmp_path / "out")]
    assert main(["reproduce", "fewshot", *words, "--ways", "2", "50"]) == 2
    assert "50" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "name, problem", [("open_mic", "p1->p2"), ("open_mic", "shn"), ("flower102", None), ("food101", None)]
)
def test_data_sets_of_the_paper_run_in_quick_form_by_their_recipes(name, problem, tmp_path):
    assert f"fewshot/{name}" in recipe_names()
    if problem is None:
        write_folder(tmp_path / name, classes=83)  # 64, 16 and 3
    else:
        for exhibition in EXHIBITIONS:
            for domain in ("source", "target"):
                write_folder(tmp_path / name / exhibition / domain, classes=3)
    options = ReproduceOptions(
        data=[name],
        problems=[problem] if problem else [],
        methods=["SoSN(x)+SigmE"],
        data_root=str(tmp_path),
        out=str(tmp_path / "out"),
        quick=True,
        jobs=1,
    )
    whole = replace(options, quick=False).read_config(name, problem)
    assert whole.training.episodes == {"open_mic": 15_000, "flower102": 40_000, "food101": 200_000}[name]
    (record,) = reproduce(options, report=False).records
    assert record.data == (f"{name}-{problem.replace('->', '-to-')}" if problem else name)
    assert record.config["images"]["test"] == {"p1->p2": 54, "shn": 18, None: 18}[problem]
    assert record.config["training"]["learning_rate"] == (1e-4 if problem else 1e-3)  # quick recipes leave it as it is
    (result,) = record.results
    assert len(result.right) == 20
