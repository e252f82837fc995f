"""The published results of few-shot learning: records that are whole, and pages that say what they say."""

from dataclasses import asdict
from pathlib import Path

import pytest

from powerpool.cli.reproduce_fewshot import MORE_SHOTS, ONE_SHOT, PRETRAINING, StudyConfig, with_method
from powerpool.report.report import read_records, record_path, write_report
from powerpool.report.tables import MISSING, accuracies
from powerpool.report.tables.formats import p_text
from powerpool.runs.compare import paired_test, summarize
from powerpool.runs.config import read_recipe
from powerpool.tasks.fewshot.config import FewShotConfig
from powerpool.tasks.fewshot.evaluation import PLACES

ROOT = Path(__file__).parents[2]
RESULTS, STUDY = ROOT / "results/fewshot", ROOT / "results/fewshot-pretraining"
RECIPES = {
    ("omniglot", 1): "fewshot/omniglot",
    ("miniimagenet100", 1): "fewshot/miniimagenet100",
    ("miniimagenet100", 5): "fewshot/miniimagenet100-5-shot",
}
PAIR = ("RelationNet", "SoSN(x)+SigmE")
COMPARED = {
    ("omniglot", "5-way-1-shot"): PAIR,
    ("omniglot", "20-way-1-shot"): PAIR,
    ("miniimagenet100", "5-way-1-shot"): ONE_SHOT,
    ("miniimagenet100", "5-way-5-shot"): MORE_SHOTS,
}
STUDIED = {after: method for method in PRETRAINING for after in (method, method.replace(")", ")+Pretr", 1))}
"""Rows of the study of pre-training on its second set, and the method of each."""


@pytest.fixture(scope="module")
def records():
    return read_records(RESULTS)


@pytest.fixture(scope="module")
def study():
    return read_records(STUDY)


@pytest.fixture(scope="module")
def found(records):
    return {(record.data, record.protocol, record.method): record for record in records}


def words(name):
    return " ".join((ROOT / name).read_text(encoding="utf-8").split())


def above(found, data, protocol, method, other):
    """The paired test of two methods over the same episodes."""
    ours, theirs = (accuracies(found[data, protocol, name]) for name in (method, other))
    return paired_test(ours, theirs, test_to_train=0.0)


def half(record):
    low, high = summarize(accuracies(record)).interval
    return (high - low) / 2


@pytest.mark.parametrize("folder", [RESULTS, STUDY], ids=lambda folder: folder.name)
def test_the_report_is_the_one_of_the_records(folder, tmp_path):
    for path in write_report(read_records(folder), tmp_path):
        if path.name == "README.md":
            assert path.read_text() == (folder / path.name).read_text(), (
                f"run: powerpool report --records results/{folder.name}"
            )
        assert (folder / path.relative_to(tmp_path)).exists()


def test_all_rows_are_there_and_no_others(found, study):
    assert set(found) == {(*place, method) for place, methods in COMPARED.items() for method in methods}
    assert {(record.data, record.method) for record in study} == {
        *(("flower102", method) for method in STUDIED),
        *(("miniimagenet100", method) for method in PRETRAINING),
    }


def test_every_record_is_of_a_clean_checkout_and_600_episodes(records, study):
    for folder, record in [*((RESULTS, one) for one in records), *((STUDY, one) for one in study)]:
        assert (folder / record_path(record)).exists()
        assert record.environment["dirty"] is False
        assert len(accuracies(record)) == 600
        assert record.folds[0]["episodes_per_second"] > 0


def test_every_comparison_was_made_with_the_recipe_that_ships(records):
    for record in records:
        shot = record.config["test"]["shot"]
        recipe = read_recipe(RECIPES[record.data, shot], FewShotConfig)
        wanted = asdict(with_method(recipe, record.method, shot))
        wanted["test"]["way"] = int(record.protocol.split("-")[0])
        assert settings_of(record) == without_places(wanted)
        assert record.config["training"]["episodes"] >= 1000


def test_the_study_was_made_with_the_recipe_that_ships(study):
    recipe = read_recipe("fewshot/pretraining", StudyConfig)
    for record in study:
        own = recipe.target if record.data == "flower102" else recipe.first
        wanted = without_places(asdict(with_method(own, STUDIED[record.method], 1)))
        if "+Pretr" in record.method:
            before = record.config["pretraining"]
            assert (before["data"], before["episodes"]) == (recipe.source, recipe.source_episodes)
            wanted["pretrained"] = f"{recipe.source} 5-way-1-shot"
        assert settings_of(record) == wanted


def settings_of(record):
    made = ("data_digest", "pictures", "pretraining")
    return {name: value for name, value in record.config.items() if name not in made}


def without_places(settings):
    return {name: value for name, value in settings.items() if name not in PLACES}


def test_all_rows_of_a_table_had_the_same_pictures_and_as_many_episodes(found):
    for place, methods in COMPARED.items():
        rows = [found[(*place, method)].config for method in methods]
        assert len({row["data_digest"] for row in rows}) == 1
        assert all(row["training"] == rows[0]["training"] for row in rows)


@pytest.mark.parametrize("protocol", ["5-way-1-shot", "5-way-5-shot"])
def test_sosn_is_above_relation_net_by_more_than_the_interval(found, protocol):
    low, _ = above(found, "miniimagenet100", protocol, "SoSN(x)+SigmE", "RelationNet").interval
    assert low > 0


def test_the_table_of_the_readme_has_the_figures_of_the_records(found):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for method in dict.fromkeys(method for methods in COMPARED.values() for method in methods):
        rows = [found.get((*place, method)) for place in COMPARED]
        cells = [MISSING if row is None else f"{row.mean:.2f} ± {half(row):.2f}" for row in rows]
        assert f"| {method} | {' | '.join(cells)} |" in text


@pytest.mark.parametrize("page", ["README.md", "docs/fewshot.md"])
def test_both_pages_have_the_differences_of_the_records(found, page):
    text, plain = words(page), ("miniimagenet100", "5-way-1-shot", "SoSN(x)")
    tests = [above(found, *place, "SoSN(x)+SigmE", "RelationNet") for place in COMPARED]
    *first, last = [f"{test.difference:.2f}" for test in tests]
    assert f"by {', '.join(first)} and {last} points" in text
    assert all(test.p_value < 0.001 for test in tests)
    curves = {"SigmE": "SoSN(x)+SigmE", "AsinhE": "SoSN(x)+AsinhE", "spectral MaxExp(F)": "SoSN(x)+SpecMaxExpF"}
    gains = {name: above(found, *plain[:2], method, plain[2]) for name, method in curves.items()}
    said = [f"{name} {gain.difference:+.2f}, p {p_text(gain.p_value)}" for name, gain in gains.items()]
    assert "; ".join(said) in text
    shots = above(found, "miniimagenet100", "5-way-5-shot", "SoSN(x+L)+SigmE", "SoSN(x)+SigmE")
    assert f"{shots.difference:.2f} points above" in text


@pytest.mark.parametrize("page", ["README.md", "docs/fewshot.md"])
def test_both_pages_say_what_pre_training_did(study, page):
    found = {(record.data, record.protocol, record.method): record for record in study}
    losses = {}
    for method in PRETRAINING:
        test = above(found, "flower102", "5-way-1-shot", method.replace(")", ")+Pretr", 1), method)
        assert test.difference < 0
        losses[method] = (f"{-test.difference:.2f}", p_text(test.p_value))
    (first, p_first), (second, p_second) = losses.values()
    said = {
        "README.md": f"{first} points lost with SigmE, {second} with MaxExp(F), which may be chance",
        "docs/fewshot.md": f"{first} points from SigmE (p {p_first}) and {second} from spectral MaxExp(F) "
        f"(p {p_second})",
    }
    assert said[page] in words(page)
