"""``powerpool reproduce fewshot``: what is written, what is never done twice, and what never mixes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from powerpool.tasks.fewshot.methods import METHODS

from powerpool.cli import reproduce_fewshot as fewshot
from powerpool.cli.main import main
from powerpool.errors import PowerPoolError
from powerpool.report import report
from powerpool.report.report import read_records
from powerpool.runs import scheduler as runner
from powerpool.runs.config import read_recipe, recipe_names
from powerpool.runs.record import RunRecord
from powerpool.tasks.fewshot import evaluation
from powerpool.tasks.fewshot.config import EpisodeConfig, FewShotConfig
from powerpool.tasks.fewshot.runs import load_run
from tests.experiments.threads import Threads
from tests.pipelines.fewshot.samples import write_folder

TWO = ["RelationNet", "SoSN(x)+SigmE"]
PAIR = ["SoSN(x+L)+SigmE", "SoSN(x+L)+SpecMaxExpF"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Threads for processes, a cache of its own, and reports without pictures, which take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "_draw", lambda groups, folder: [[] for _ in groups])
        patch.setattr(runner, "_make_executor", Threads)
        patch.setenv("POWERPOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("own") / "bars", each=9)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A recipe of a few tiny episodes."""
    file = tmp_path_factory.mktemp("recipe") / "small.yaml"
    file.write_text(
        "size: 16\nchannels: 1\nmodel: {hidden: 8}\ntest: {way: 2, count: 6}\n"
        "train_classes: 5\nvalidation_classes: 3\nclass_order: names\n"
        "training: {episodes: 4, queries: 2, validate_every: 2, validation_episodes: 3, settling_episodes: 1}\n"
    )
    return file


def reproduce(out: Path, recipe: Path, *words: object) -> int:
    fixed = ["--jobs", "1", "--download", "false", "--recipe", str(recipe)]
    return main(["reproduce", "fewshot", *fixed, "--out", str(out), *map(str, words)])


def results(folder: Path) -> dict[str, int]:
    """When each result was written."""
    files = (folder / "trainings").rglob("*.json")
    return {str(file.relative_to(folder)): file.stat().st_mtime_ns for file in files if file.name != "data.json"}


def by_name(folder: Path) -> dict[tuple[str, str, str], RunRecord]:
    return {(record.data, record.method, record.protocol): record for record in read_records(folder)}


@pytest.fixture(scope="module")
def done(own, small, tmp_path_factory):
    """The folder of a run of two methods, tested in episodes of two and of four classes."""
    folder = tmp_path_factory.mktemp("done") / "out"
    assert reproduce(folder, small, "--data", own, "--methods", *TWO, "--ways", 2, 4) == 0
    return folder


@pytest.fixture
def copy(done, tmp_path):
    """The same, to change."""
    return Path(shutil.copytree(done, tmp_path / "copy"))


def test_records_and_report_are_written(done):
    records = by_name(done)
    assert set(records) == {("bars", method, f"{way}-way-1-shot") for method in TWO for way in (2, 4)}
    for (_, method, protocol), record in records.items():
        assert (record.pipeline, record.metric) == ("fewshot", "accuracy in %")
        assert record.config["model"]["method"] == method
        assert protocol == f"{record.config['test']['way']}-way-1-shot"
        assert record.config["training"]["way"] == 2
        assert record.environment["threads"] == 1
        assert not {"data_root", "download"} & record.config.keys()
        (fold,) = record.folds
        assert "origin" not in fold
        assert (fold["fold"], fold["seed"], fold["count"]) == (0, 0, 6)
        assert fold["queries"] == 3 * record.config["test"]["way"]
    two, four = (records["bars", "SoSN(x)+SigmE", f"{way}-way-1-shot"].folds[0] for way in (2, 4))
    assert two["curves"] == four["curves"]  # one training
    for name in ("README.md", "report.html"):
        assert "SoSN(x)+SigmE" in (done / name).read_text(encoding="utf-8")
    assert len(results(done)) == 2 * 2  # a training and a test for each method


def test_the_values_are_those_of_the_training(done, own, small, tmp_path):
    recipe = read_recipe(small, FewShotConfig)
    config = fewshot.with_method(replace(recipe, data=str(own)), "SoSN(x)+SigmE", 1)
    expected = evaluation.train_and_test(config, tmp_path, evaluation.read_set(config).digest)
    record = by_name(done)["bars", "SoSN(x)+SigmE", "2-way-1-shot"]
    for name in ("value", "right_by_episode", "chosen", "validation", "curves"):
        assert record.folds[0][name] == expected[name]
    assert record.config["data_digest"] == evaluation.read_set(config).digest
    digest = record.config["data_digest"]
    again = evaluation.assess_again(config, tmp_path, digest, expected, EpisodeConfig(way=4, count=6))
    other = by_name(done)["bars", "SoSN(x)+SigmE", "4-way-1-shot"]
    assert other.folds[0]["right_by_episode"] == again["right_by_episode"]


def test_the_same_command_does_nothing_twice(copy, done, own, small, monkeypatch, capsys):
    before, files = by_name(copy), results(copy)
    monkeypatch.setattr(runner, "_make_executor", None)  # a unit that is not on the disk is an error
    assert reproduce(copy, small, "--data", own, "--methods", *TWO, "--ways", 2, 4) == 0
    assert results(copy) == files
    assert by_name(copy) == before
    err = capsys.readouterr().err
    assert "trainings: resumed 2 of 2" in err
    assert "tests: resumed 2 of 2" in err


def test_only_what_is_missing_runs(copy, own, small):
    before, files = by_name(copy), results(copy)
    gone = next(name for name in files if "/RelationNet-" in name and name.endswith("4-way-1-shot.json"))
    (copy / gone).unlink()
    assert reproduce(copy, small, "--data", own, "--methods", *TWO, "PrototypicalNet", "--ways", 2, 4) == 0
    after = results(copy)
    assert {name for name in files if files[name] != after[name]} == {gone}
    assert len(after) == 6
    key = ("bars", "RelationNet", "4-way-1-shot")
    assert by_name(copy)[key].folds[0]["right_by_episode"] == before[key].folds[0]["right_by_episode"]


def test_a_training_that_was_stopped_goes_on(tmp_path, own, small, monkeypatch):
    """The result is gone, the checkpoint of the last episode is there: nothing is trained again."""
    assert reproduce(tmp_path, small, "--data", own, "--methods", "SoSN(x)") == 0
    (result,) = (tmp_path / "trainings").rglob("result.json")
    before = by_name(tmp_path)
    result.unlink()
    monkeypatch.setattr("powerpool.tasks.fewshot.training.Training._step", None)
    assert reproduce(tmp_path, small, "--data", own, "--methods", "SoSN(x)") == 0
    key = ("bars", "SoSN(x)", "2-way-1-shot")
    assert by_name(tmp_path)[key].folds[0]["right_by_episode"] == before[key].folds[0]["right_by_episode"]


def test_shots_and_seeds_are_trainings_of_their_own(tmp_path, own, small):
    words = ("--data", own, "--methods", "SoSN(x)", "--shots", 1, 2, "--seeds", 3, 5)
    assert reproduce(tmp_path, small, *words) == 0
    records = by_name(tmp_path)
    assert set(records) == {("bars", "SoSN(x)", f"2-way-{shot}-shot") for shot in (1, 2)}
    for record in records.values():
        assert [(fold["fold"], fold["seed"]) for fold in record.folds] == [(0, 3), (1, 5)]
        assert record.seed == 3
        assert record.folds[0]["curves"] != record.folds[1]["curves"]
    assert len(results(tmp_path)) == 4


def test_transductive_tests_are_records_of_their_own(copy, tmp_path, own, small):
    before = by_name(copy)
    changed = tmp_path / "changed.yaml"
    changed.write_text(small.read_text().replace("way: 2,", "way: 2, transductive: true,"))
    assert reproduce(copy, changed, "--data", own, "--methods", "SoSN(x)+SigmE", "--ways", 2, 4) == 0
    after = by_name(copy)
    assert {key: after[key] for key in before} == before
    added = {key: record for key, record in after.items() if key not in before}
    assert set(added) == {("bars", "SoSN(x)+SigmE", f"{way}-way-1-shot-transductive") for way in (2, 4)}
    assert all(record.config["test"]["transductive"] for record in added.values())


def test_other_settings_and_pictures_never_mix_with_earlier_results(copy, tmp_path, own, small):
    files = results(copy)
    changed = tmp_path / "changed.yaml"
    changed.write_text(small.read_text().replace("episodes: 4", "episodes: 5"))
    assert reproduce(copy, changed, "--data", own, "--methods", "RelationNet") == 0
    other = write_folder(tmp_path / "bars", each=10)
    assert reproduce(copy, small, "--data", other, "--methods", "RelationNet") == 0
    after = results(copy)
    assert {name: after[name] for name in files} == files
    assert len(after) == len(files) + 2


def test_methods_are_those_of_the_number_of_support_pictures(own, small):
    options = fewshot.ReproduceFewShotOptions(data=[str(own)], recipe=str(small), shots=[1, 2])
    (config,) = fewshot.read_configs(options)
    rows = fewshot.make_rows(options, config)
    assert [(row.method, row.config.test.shot) for row in rows] == [
        *((method, 1) for method in fewshot.ONE_SHOT),
        *((method, 2) for method in fewshot.MORE_SHOTS),
    ]
    assert set(fewshot.ONE_SHOT + fewshot.MORE_SHOTS + fewshot.PRETRAINING) <= METHODS.keys()


# ---- pre-training ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(own, small, tmp_path_factory):
    """The folder of a study of two methods, from a folder of its own to the bars."""
    place = tmp_path_factory.mktemp("study")
    source = write_folder(place / "others", each=8)
    recipe = place / "study.yaml"
    recipe.write_text(f"{small.read_text()}source: {source}\nsource_episodes: 3\n")
    assert reproduce(place / "out", recipe, "--study", "pretraining", "--data", own) == 0
    return place / "out"


def test_a_study_has_each_method_with_and_without_pretraining(study):
    records = by_name(study)
    assert set(records) == {
        *(("others", method, "2-way-1-shot") for method in PAIR),
        *(("bars", method, "2-way-1-shot") for method in PAIR),
        *(("bars", method.replace(")", ")+Pretr"), "2-way-1-shot") for method in PAIR),
    }
    for method in PAIR:
        first = records["others", method, "2-way-1-shot"]
        after = records["bars", method.replace(")", ")+Pretr"), "2-way-1-shot"]
        without = records["bars", method, "2-way-1-shot"]
        assert [one.config["training"]["episodes"] for one in (first, after, without)] == [3, 4, 4]
        assert after.config["pretraining"] == {
            "data": "others", "data_digest": first.config["data_digest"], "episodes": 3,
        }  # fmt: skip
        assert after.config["pretrained"] == "others 2-way-1-shot"  # no path of this machine
        assert without.config["pretrained"] is None
        assert after.config["data_digest"] == without.config["data_digest"]
        assert after.folds[0]["curves"]["train_loss"] != without.folds[0]["curves"]["train_loss"]
    text = (study / "README.md").read_text(encoding="utf-8")
    assert "Pre-training of SoSN(x+L)+SigmE on others, not spectral: " in text
    assert "That spectral normalization alone profits from pre-training" in text


def test_the_second_training_starts_from_the_first(study, own, small, tmp_path):
    (first,) = (study / "trainings" / "others").glob("SoSN(x+L)+SigmE-*")
    assert load_run(first).network.config.method == "SoSN(x+L)+SigmE"
    config = fewshot.with_method(replace(read_recipe(small, FewShotConfig), data=str(own)), "SoSN(x+L)+SigmE", 1)
    config = replace(config, pretrained=str(first))
    expected = evaluation.train_and_test(config, tmp_path, evaluation.read_set(config).digest)
    record = by_name(study)["bars", "SoSN(x+L)+Pretr+SigmE", "2-way-1-shot"]
    assert record.folds[0]["curves"] == expected["curves"]


def test_a_study_needs_two_sets(own, small, tmp_path, capsys):
    assert reproduce(tmp_path, small, "--study", "pretraining", "--data", own, "--source", own) == 2
    assert "must be two data sets (got bars for both)" in capsys.readouterr().err


def test_a_quick_study_needs_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("POWERPOOL_DATA", str(tmp_path / "nothing"))
    out = tmp_path / "out"
    words = ["--study", "pretraining", "--quick", "--jobs", "1", "--methods", "SoSN(x)+SigmE", "--out", str(out)]
    assert main(["reproduce", "fewshot", *words]) == 0
    assert set(by_name(out)) == {
        ("glyphs", "SoSN(x)+SigmE", "2-way-1-shot"),
        ("digits", "SoSN(x)+SigmE", "2-way-1-shot"),
        ("digits", "SoSN(x)+Pretr+SigmE", "2-way-1-shot"),
    }


@pytest.mark.parametrize(
    "given, source, target",
    [
        ({}, "glyphs", "digits"),
        ({"data": ["glyphs"]}, "digits", "glyphs"),
        ({"data": ["omniglot"]}, "glyphs", "omniglot"),
        ({"source": "digits"}, "digits", "glyphs"),
        ({"source": "omniglot"}, "omniglot", "digits"),
        ({"source": "food101", "data": ["flower102"]}, "food101", "flower102"),
    ],
)
def test_a_quick_study_fills_in_what_is_there_on_every_machine(given, source, target):
    options = fewshot.ReproduceFewShotOptions(study="pretraining", quick=True, **given)
    (config,) = fewshot.read_configs(options)
    assert (config.first.data, config.target.data) == (source, target)


@pytest.mark.parametrize(
    "words, missing",
    [
        ((), "finds no miniimagenet100, its --source: "),
        (("--source", "glyphs"), "finds no flower102, its --data: flower102 is not on this machine"),
        (("--source", "glyphs", "--data", "a/folder"), "finds no a/folder, its --data: "),
    ],
)
def test_a_study_says_which_set_is_missing_and_leaves_nothing(words, missing, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("POWERPOOL_DATA", str(tmp_path / "nothing"))
    out = tmp_path / "out"
    fixed = ["--study", "pretraining", "--download", "false", "--out", str(out)]
    assert main(["reproduce", "fewshot", *fixed, *words]) == 2
    said = capsys.readouterr().err
    assert missing in said
    assert "Other sets are named with --source and --data: glyphs and digits need no data on the machine." in said
    assert not out.exists()


# ---- options and recipes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, said",
    [
        ({"methods": ["SoSN"]}, "SoSN"),
        ({"methods": ["SoSN(x)", "SoSN(x)"]}, "methods must name each once"),
        ({"data": ["a", "a"]}, "data must name each once"),
        ({"ways": [5, 5]}, "ways must name each once"),
        ({"ways": [1]}, "ways"),
        ({"shots": [0]}, "shots"),
        ({"jobs": 0}, "jobs"),
        ({"recipe": "fewshot/omniglot", "quick": True}, "contradict one another"),
        ({"data": ["a", "b"], "study": "pretraining"}, "is about one data set at a time"),
        ({"source": "omniglot"}, "--source belongs to --study pretraining"),
    ],
)
def test_options_that_cannot_be_are_refused(options, said):
    with pytest.raises(PowerPoolError, match=said):
        fewshot.ReproduceFewShotOptions(**options)


def test_impossible_episodes_show_before_any_training(own, small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fewshot, "run_units", None)
    out = tmp_path / "out"
    assert reproduce(out, small, "--data", own, "--methods", "SoSN(x)", "--ways", 2, 50) == 2
    assert "50" in capsys.readouterr().err
    assert not out.exists()


def test_seeds_that_draw_other_classes_are_refused(own, small, tmp_path, capsys):
    drawn = tmp_path / "drawn.yaml"
    drawn.write_text(small.read_text().replace("names", "drawn"))
    assert reproduce(tmp_path / "out", drawn, "--data", own, "--seeds", 0, 1) == 2
    assert "another seed draws other classes to test on" in capsys.readouterr().err


def test_a_recipe_that_starts_from_another_run_is_refused(own, small, tmp_path, capsys):
    started = tmp_path / "started.yaml"
    started.write_text(f"{small.read_text()}pretrained: runs/first\n")
    assert reproduce(tmp_path / "out", started, "--data", own) == 2
    assert "must not name a run to start from (got pretrained runs/first)" in capsys.readouterr().err


def test_training_has_as_many_support_pictures_as_are_asked_for(small, tmp_path):
    one = tmp_path / "one.yaml"
    one.write_text(small.read_text().replace("training: {", "training: {shot: 2, "))
    for shots, wanted in (([], 2), ([1, 3], None)):
        options = fewshot.ReproduceFewShotOptions(recipe=str(one), shots=shots)
        assert fewshot.read_config(options, "glyphs").training.shot == wanted


def test_two_sets_of_one_name_are_refused(own, small, tmp_path, capsys):
    other = Path(shutil.copytree(own, tmp_path / "elsewhere" / own.name))
    assert reproduce(tmp_path / "out", small, "--data", own, other, "--methods", "SoSN(x)") == 2
    assert f"two data sets that are called {own.name}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name, size, episodes, rate, queries, count",
    [
        ("miniimagenet", 84, 200_000, 1e-3, (5, 3), 600),
        ("miniimagenet-224", 224, 200_000, 1e-3, (5, 3), 600),
        ("food101", 224, 200_000, 1e-3, (5, 3), 600),
        ("flower102", 224, 40_000, 1e-3, (5, 3), 600),
        ("open_mic", 84, 15_000, 1e-4, (2, 2), 1000),
        ("miniimagenet100", 84, 4000, 1e-3, (5, 3), 600),
        ("miniimagenet100-5-shot", 84, 2000, 1e-3, (5, 3), 600),
        ("omniglot", 28, 8000, 1e-3, (5, 3), 600),
        ("glyphs", 28, 1000, 1e-3, (5, 3), 600),
    ],
)
def test_recipes_are_those_of_the_paper(name, size, episodes, rate, queries, count):
    config = read_recipe(f"fewshot/{name}", FewShotConfig)
    assert config.data == name.removesuffix("-224").removesuffix("-5-shot")
    assert (config.size, config.training.episodes, config.training.learning_rate) == (size, episodes, rate)
    assert (config.training.queries, config.test.queries) == queries
    assert (config.test.way, config.test.shot, config.test.count) == (5, 5 if name.endswith("-5-shot") else 1, count)
    assert not config.test.transductive


def test_every_method_fits_every_recipe():
    names = [name for name in recipe_names() if name.startswith("fewshot/")]
    assert len(names) == 12
    for name in names:
        kind = fewshot.StudyConfig if name == "fewshot/pretraining" else FewShotConfig
        recipe = read_recipe(name, kind)
        for method in METHODS:
            assert fewshot.with_method(recipe, method, 1).model.method == method


def test_the_recipe_of_a_set_is_found_by_its_name():
    options = fewshot.ReproduceFewShotOptions(data=["omniglot"], data_root="somewhere")
    (config,) = fewshot.read_configs(options)
    assert (config.channels, config.invert, config.training.turns, config.data_root) == (1, True, True, "somewhere")
    quick = fewshot.read_config(replace(options, quick=True), "omniglot")
    assert (quick.invert, quick.test.way, quick.training.episodes) == (True, 2, 10)
    assert fewshot.read_config(options, "a/folder").training.episodes == 5000


def test_glyphs_are_the_usual_set():
    """They are there on every machine. A recipe that names a set decides otherwise."""
    (config,) = fewshot.read_configs(fewshot.ReproduceFewShotOptions())
    assert (config.data, config.channels, config.invert, config.model.eta_prime) == ("glyphs", 1, True, 200)
    assert (config.training.decay_every, config.training.validate_every) == (250, 250)
    assert config.training.validation_episodes == 100
    (quick,) = fewshot.read_configs(fewshot.ReproduceFewShotOptions(quick=True))
    assert (quick.data, quick.invert, quick.training.episodes) == ("glyphs", True, 10)
    (named,) = fewshot.read_configs(fewshot.ReproduceFewShotOptions(recipe="fewshot/omniglot"))
    assert named.data == "omniglot"


def test_problems_of_open_mic_are_sets_of_their_own():
    options = fewshot.ReproduceFewShotOptions(data=["open_mic"], problems=["p1->p2", "shn"])
    configs = fewshot.read_configs(options)
    assert [config.problem for config in configs] == ["p1->p2", "shn"]
    data = type("Set", (), {"name": "open_mic", "digest": "a"})
    assert [fewshot.Row(config, data, Path()).name for config in configs] == ["open_mic-p1-to-p2", "open_mic-shn"]


def test_the_study_and_scales_have_folders_of_their_own():
    folders = {
        str(fewshot.ReproduceFewShotOptions(**options).folder)
        for options in ({}, {"quick": True}, {"study": "pretraining"}, {"study": "pretraining", "quick": True})
    }
    assert len(folders) == 4
    assert "runs/reproduce/fewshot-pretraining" in folders


def test_a_study_reads_both_budgets_from_its_recipe():
    options = fewshot.ReproduceFewShotOptions(study="pretraining")
    config = fewshot.read_config(options, None)
    assert (config.target.data, config.first.data) == ("flower102", "miniimagenet100")
    assert (config.first.size, config.target.size) == (84, 84)
    assert (config.first.training.episodes, config.target.training.episodes) == (300, 300)
    quick = fewshot.read_config(replace(options, quick=True, source="omniglot"), None)
    assert (quick.first.data, quick.first.training.episodes) == ("omniglot", quick.target.training.episodes)
