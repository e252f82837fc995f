"""``bench compare``: one regression is enough to fail. ``bench publish``: the tables are those of finished records."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from powerpool.bench import record
from powerpool.bench.finished import CompareOptions, PublishOptions, compare, markdown, run_compare, run_publish
from powerpool.errors import ArgumentError, RecordError
from tests.bench import samples

RESULTS = Path(__file__).parents[2] / "results" / "bench"
stored = pytest.mark.skipif(not RESULTS.exists(), reason="results are stored in a checkout only")


def verdicts(old, new, **options) -> dict[tuple[str, str], str]:
    return {(change.case, change.contender): change.verdict for change in compare(old, new, **options)}


def exit_code(tmp_path, old, new, **options) -> int:
    old.save(tmp_path / "old.json")
    new.save(tmp_path / "new.json")
    return run_compare(CompareOptions(tmp_path / "old.json", tmp_path / "new.json", **options))


@pytest.mark.parametrize("old, new, code", [(3.0, 3.0, 0), (3.0, 4.0, 1), (4.0, 3.0, 0)])
def test_exit_code_and_what_is_printed(old, new, code, tmp_path, capsys):
    found = verdicts(samples.pair(auto=old), samples.pair(auto=new))
    changed = [key for key, verdict in found.items() if verdict != "same"]
    assert changed == ([] if old == new else [("first", "powerpool auto")])
    assert exit_code(tmp_path, samples.pair(auto=old), samples.pair(auto=new)) == code
    printed = capsys.readouterr().out
    assert ("powerpool auto" in printed) is (old != new)
    assert ("1 of powerpool got slower" in printed) is (code == 1)


@pytest.mark.parametrize("new, expected", [(3.7, "same"), (3.8, "slower")])
def test_threshold(new, expected):
    found = verdicts(samples.pair(auto=3.0, spread=0.01), samples.pair(auto=new, spread=0.01))
    assert found["first", "powerpool auto"] == expected
    with pytest.raises(ArgumentError, match="threshold"):
        CompareOptions("old", "new", threshold=1.0)


def test_a_difference_within_the_spread_is_none():
    old, new = samples.pair(auto=3.0, spread=0.3), samples.pair(auto=4.0, spread=0.3)
    assert verdicts(old, new)["first", "powerpool auto"] == "same"


def test_times_are_relative_to_the_floor_unless_absolute():
    old, busy = samples.pair(auto=3.0, floor=1.0), samples.pair(auto=6.0, floor=2.0)
    assert verdicts(old, busy)["first", "powerpool auto"] == "same"
    assert verdicts(old, busy, absolute=True)["first", "powerpool auto"] == "slower"
    assert verdicts(old, samples.pair(auto=3.0, floor=0.5))["first", "powerpool auto"] == "slower"


def test_missing_new_and_slower_competitors_are_shown_and_do_not_fail(tmp_path):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    new.cases[0].results[2] = samples.measured("eigh + Loewner", 90.0, "competitor")
    new.cases[0].results.append(samples.measured("powerpool new", 1.0))
    found = verdicts(old, new)
    assert found["first", "eigh + Loewner"] == "slower"
    assert found["first", "powerpool new"] == "new"
    assert exit_code(tmp_path, old, new) == 0
    del new.cases[0].results[2]
    assert verdicts(old, new)["first", "eigh + Loewner"] == "missing"
    assert exit_code(tmp_path, old, new) == 0


def test_a_missing_contender_of_powerpool_or_a_missing_case_fails(tmp_path):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    del new.cases[0].results[1]
    assert exit_code(tmp_path, old, new) == 1
    new = samples.pair(auto=3.0)
    del new.cases[1]
    assert verdicts(old, new)["second", "(all)"] == "missing"
    assert exit_code(tmp_path, old, new) == 1


@pytest.mark.parametrize("wrong", [1, 2])
def test_cases_whose_answers_disagree_fail(wrong, tmp_path):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    bad = [dataclasses.replace(case, results=[], error="off by 1") for case in new.cases[-wrong:]]
    new.cases[-wrong:] = bad
    assert verdicts(old, new)["second", "(all)"] == "wrong"
    assert exit_code(tmp_path, old, new) == 1


def test_another_machine_is_named(tmp_path, capsys):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    new.environment = dataclasses.replace(new.environment, processor="another")
    assert exit_code(tmp_path, old, new) == 0
    assert "processor: a machine, now another" in capsys.readouterr().out


def test_records_that_cannot_be_compared_are_refused():
    old, unfinished = samples.pair(auto=3.0), samples.pair(auto=3.0)
    unfinished.complete = False
    other_suite, empty = samples.record(suite="curves"), samples.record()
    for new, match in (
        (unfinished, "unfinished"),
        (other_suite, "'pools' and 'curves'"),
        (empty, "no case in common"),
        (samples.record(*old.cases, threads=1), "threads"),
    ):
        with pytest.raises(RecordError, match=match):
            compare(old, new)


def test_finished_records_are_copied_and_their_tables_are_written(tmp_path: Path) -> None:
    source, out = tmp_path / "runs", tmp_path / "results"
    source.mkdir()
    out.mkdir()
    samples.record(suite="curves").save(out / "curves.json")  # published before: stays
    samples.pair(auto=3.0).save(source / "pools.json")
    run_publish(PublishOptions(source, out))
    assert record.load(out / "pools.json") == samples.pair(auto=3.0)
    text = (out / "README.md").read_text()
    assert text == markdown([samples.pair(auto=3.0), samples.record(suite="curves")])
    assert "## pools" in text
    assert "## curves" in text
    assert "a machine, 2 threads" in text


@pytest.mark.parametrize("complete, quick", [(False, False), (True, True)])
def test_an_unfinished_or_quick_record_is_refused_and_nothing_is_written(tmp_path, complete, quick) -> None:
    unfit = samples.record(samples.case("first", {"channels": 2}), quick=quick)
    unfit.complete = complete
    samples.record(suite="curves").save(tmp_path / "curves.json")
    unfit.save(tmp_path / "pools.json")
    with pytest.raises(RecordError, match="quick" if quick else "unfinished"):
        run_publish(PublishOptions(tmp_path, tmp_path / "results"))
    assert not (tmp_path / "results").exists()


def test_a_folder_without_records_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=tmp_path.name):
        run_publish(PublishOptions(tmp_path, tmp_path / "results"))
    with pytest.raises(ArgumentError, match="source"):
        PublishOptions(tmp_path / "missing")


def test_losses_and_cases_whose_answers_disagreed_are_listed() -> None:
    results = [samples.measured("powerpool auto", 3.0), samples.measured("rival", 2.0, "competitor")]
    wrong = dataclasses.replace(samples.case("wrong", {"channels": 64}), error="powerpool auto is off by 1")
    text = markdown([samples.record(samples.case("row", {"channels": 64}, *results), wrong)])
    assert "| row | powerpool auto | rival | 1.50 |" in text
    assert "- wrong: powerpool auto is off by 1" in text


@stored
def test_the_stored_tables_are_those_of_the_stored_records() -> None:
    kept = [record.load(RESULTS / f"{suite}.json") for suite in record.SUITES]
    assert all(one.complete and not one.options.quick for one in kept)
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == markdown(kept)


@stored
def test_stored_records_name_no_folder_of_a_machine() -> None:
    for path in RESULTS.glob("*.json"):
        assert "/root" not in path.read_text(encoding="utf-8")
        assert "/home" not in path.read_text(encoding="utf-8")
