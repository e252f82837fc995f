"""What is published: finished records only, every loss, and tables that are those of the stored records."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from powerpool.bench import publish, record
from powerpool.bench.publish import PublishOptions
from powerpool.bench.targets import TARGETS
from powerpool.errors import ArgumentError, RecordError
from tests.bench import samples

RESULTS = Path(__file__).parents[2] / "results" / "bench"
IS_CHECKOUT = (RESULTS.parents[1] / ".git").exists()


def test_a_finished_record_is_copied_and_its_tables_are_written(tmp_path: Path) -> None:
    source, out = tmp_path / "runs", tmp_path / "results"
    source.mkdir()
    samples.pair(auto=3.0).save(source / "pools.json")
    publish.run(PublishOptions(source, out))
    assert record.load(out / "pools.json") == samples.pair(auto=3.0)
    text = (out / "README.md").read_text()
    assert text == publish.markdown([samples.pair(auto=3.0)])
    assert "## pools" in text
    assert "a machine, 2 threads" in text


def test_suites_that_were_published_before_stay(tmp_path: Path) -> None:
    source, out = tmp_path / "runs", tmp_path / "results"
    source.mkdir()
    out.mkdir()
    samples.record(suite="curves").save(out / "curves.json")
    samples.pair(auto=3.0).save(source / "pools.json")
    publish.run(PublishOptions(source, out))
    assert "## curves" in (out / "README.md").read_text()


@pytest.mark.parametrize("change, message", [({"complete": False}, "unfinished"), ({"quick": True}, "quick")])
def test_an_unfinished_or_quick_record_is_refused_and_nothing_is_written(tmp_path: Path, change, message) -> None:
    unfit = samples.record(samples.case("first", {"channels": 2}), quick=change.get("quick", False))
    unfit.complete = change.get("complete", True)
    samples.record(suite="curves").save(tmp_path / "curves.json")
    unfit.save(tmp_path / "pools.json")
    with pytest.raises(RecordError, match=message):
        publish.run(PublishOptions(tmp_path, tmp_path / "results"))
    assert not (tmp_path / "results").exists()


def test_a_folder_without_records_and_no_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no record"):
        publish.run(PublishOptions(tmp_path, tmp_path / "results"))
    with pytest.raises(ArgumentError, match="must be a folder"):
        PublishOptions(tmp_path / "missing")


@pytest.mark.parametrize("rival, lost", [(2.0, True), (2.9, False), (4.0, False)])
def test_a_competitor_with_the_same_answer_and_less_time_is_a_loss(rival: float, lost: bool) -> None:
    case = samples.case(
        "row",
        {"channels": 64},
        dataclasses.replace(samples.measured("form M", 1.0, "floor"), answers="another question"),
        samples.measured("powerpool auto", 3.0),
        samples.measured("rival", rival, "competitor"),
    )
    found = publish.losses([case])
    assert [(name, ours.name, other.name) for name, ours, other in found] == (
        [("row", "powerpool auto", "rival")] if lost else []
    )
    published = publish.markdown([samples.record(case)])
    assert ("| row | powerpool auto | rival | 1.50 |" in published) is lost


def test_the_floor_counts_as_a_loss_and_a_rival_without_a_gradient_does_not() -> None:
    floor, ours = samples.measured("form M", 1.0, "floor"), samples.measured("powerpool autocorrelation", 3.0)
    broken = dataclasses.replace(samples.measured("svd", 2.0, "competitor"), note="gradient: not finite")
    found = publish.losses([samples.case("row", {"channels": 64}, floor, ours, broken)])
    assert [(mine.name, rival.name) for _, mine, rival in found] == [("powerpool autocorrelation", "form M")]


def test_cases_whose_answers_disagreed_are_listed() -> None:
    wrong = dataclasses.replace(samples.case("row", {"channels": 64}), error="powerpool auto is off by 1")
    text = publish.markdown([samples.record(wrong)])
    assert "Not timed: answers disagreed" in text
    assert "- row: powerpool auto is off by 1" in text


@pytest.mark.skipif(not IS_CHECKOUT, reason="results are stored in a checkout only")
def test_the_stored_tables_are_those_of_the_stored_records() -> None:
    stored = [record.load(path) for suite in publish.SUITES if (path := RESULTS / f"{suite}.json").exists()]
    assert [kept.suite for kept in stored] == list(publish.SUITES)
    assert all(kept.complete and not kept.options["quick"] for kept in stored)
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == publish.markdown(stored)


@pytest.mark.skipif(not IS_CHECKOUT, reason="results are stored in a checkout only")
def test_the_table_of_the_readme_is_that_of_the_stored_record() -> None:
    table = publish.summary(record.load(RESULTS / "pools.json"))
    assert table.count("\n") == 1 + len(TARGETS)
    assert table in (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.skipif(not IS_CHECKOUT, reason="results are stored in a checkout only")
def test_stored_records_name_no_folder_of_a_machine() -> None:
    paths = list(RESULTS.glob("*.json"))
    assert len(paths) == len(publish.SUITES)
    for path in paths:
        assert "/root" not in path.read_text(encoding="utf-8")
        assert "/home" not in path.read_text(encoding="utf-8")
