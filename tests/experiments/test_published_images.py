"""The published results of images: records that are whole, and pages that say what they say."""

from dataclasses import asdict
from pathlib import Path

import pytest
from powerpool.tasks.vision.methods import METHODS

from powerpool.cli.reproduce_vision import NOT_FROZEN, PLACES, PROTOCOLS
from powerpool.report.report import read_records, record_path, write_report
from powerpool.report.tables import right_pictures
from powerpool.runs.compare import mcnemar
from powerpool.runs.config import read_recipe
from powerpool.tasks.vision.config import VisionConfig

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results/vision"
SPECTRAL = [name for name, method in METHODS.items() if method.is_spectral and "NewtonSchulz" not in name]
FROZEN = tuple(PROTOCOLS.values())


@pytest.fixture(scope="module")
def records():
    return read_records(RESULTS)


@pytest.fixture(scope="module")
def found(records):
    return {(record.method, record.protocol): record for record in records if record.protocol in FROZEN}


def test_the_report_is_the_one_of_the_records(records, tmp_path):
    for path in write_report(records, tmp_path):
        if path.name == "README.md":
            assert path.read_text() == (RESULTS / path.name).read_text(), (
                "run: powerpool report --records results/vision"
            )
        assert (RESULTS / path.relative_to(tmp_path)).exists()


def test_every_record_is_of_a_clean_checkout_and_all_test_pictures(records):
    for record in records:
        assert (RESULTS / record_path(record)).exists()
        assert record.environment["dirty"] is False
        assert record.folds[0]["count"] == 6149


def test_every_frozen_record_was_made_with_the_recipe_that_ships(found):
    digests = {(record.config["data_digest"], record.config["backbone_digest"]) for record in found.values()}
    assert len(digests) == 1
    for (method, protocol), record in found.items():
        wanted = asdict(read_recipe(f"vision/{record.data}", VisionConfig))
        wanted["pool"]["method"] = method
        wanted["head"]["kind"] = next(kind for kind, name in PROTOCOLS.items() if name == protocol)
        named = {name: value for name, value in record.config.items() if not name.endswith("_digest")}
        assert named == {name: value for name, value in wanted.items() if name not in (*PLACES, *NOT_FROZEN)}


def test_all_rows_are_there(found):
    assert set(found) == {(method, protocol) for method in METHODS for protocol in FROZEN}


def test_training_by_epochs_says_when_it_converged(found):
    for (_, protocol), record in found.items():
        converged = record.folds[0]["converged"]
        assert (converged is None) == (protocol == "frozen")


def test_the_table_of_the_readme_has_the_figures_of_the_records(found):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for method in ("Baseline", "FOP", "SOP", "SOP+AsinhE", "SOP+SC+SigmE", "SOP+SC+NewtonSchulz", "SOP+SC+SpecMaxExpF"):
        values = [f"{found[method, protocol].mean:.2f}" for protocol in FROZEN]
        assert f"| {method} | {' | '.join(values)} |" in text


def test_the_page_on_images_has_the_figures_of_the_records(found):
    text = " ".join((ROOT / "docs/images.md").read_text(encoding="utf-8").split())
    ridge = {method: found[method, "frozen"] for method in METHODS}
    best = max(SPECTRAL, key=lambda name: ridge[name].folds[0]["validation"]["value"])
    gain = ridge[best].mean - ridge["FOP"].mean
    assert f"`{best}` {ridge[best].mean:.2f} %, {gain:.2f} points above average pooling" in text
    for ours, other in (("SOP+AsinhE", "SOP"), ("SOP+SC+SpecMaxExpF", "SOP+SpecMaxExpF"), (best, "SOP")):
        pictures = (right_pictures(ridge[name].folds[0], name) for name in (ours, other))
        assert f"`{ours}` against `{other}` {mcnemar(*pictures).difference:+.2f}" in text


def test_both_pages_have_the_figure_of_the_training_end_to_end(records, found):
    (record,) = [record for record in records if record.protocol == "end-to-end"]
    page, readme = (
        " ".join((ROOT / name).read_text(encoding="utf-8").split()) for name in ("docs/images.md", "README.md")
    )
    frozen = found[record.method, "frozen"]
    test = mcnemar(*(right_pictures(one.folds[0], one.method) for one in (record, frozen)))
    assert test.p_value < 0.001
    assert f"have {record.mean:.2f} %, {test.difference:.2f} points above the same method" in page
    assert f"{record.seconds / 60:.0f} minutes on one core" in page
    assert f"Trained end to end from there, the last one has {record.mean:.2f} %" in readme
    wanted = {"epochs": 20, "crops": 1, "learning_rate": 5e-5, "decay_every": 12, "validation": "train"}
    assert {name: record.config["training"][name] for name in wanted} == wanted
