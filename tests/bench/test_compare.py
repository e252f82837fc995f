"""The gate of ``powerpool bench compare``: one regression is enough, none is none."""

import dataclasses

import pytest

from powerpool.bench.compare import CompareOptions, compare, run
from tests.bench import samples


def verdicts(old, new, **options) -> dict[tuple[str, str], str]:
    return {(change.case, change.contender): change.verdict for change in compare(old, new, **options)}


def exit_code(tmp_path, old, new, **options) -> int:
    old.save(tmp_path / "old.json")
    new.save(tmp_path / "new.json")
    return run(CompareOptions(tmp_path / "old.json", tmp_path / "new.json", **options))


def test_no_change_passes(tmp_path, capsys):
    assert exit_code(tmp_path, samples.pair(auto=3.0), samples.pair(auto=3.0)) == 0
    assert "Nothing of powerpool got slower" in capsys.readouterr().out


def test_exactly_one_regression_fails_and_is_named(tmp_path, capsys):
    old, new = samples.pair(auto=3.0), samples.pair(auto=4.0)
    found = verdicts(old, new)
    assert [key for key, verdict in found.items() if verdict != "same"] == [("first", "powerpool auto")]
    assert exit_code(tmp_path, old, new) == 1
    printed = capsys.readouterr().out
    assert "1 of powerpool got slower" in printed
    assert "powerpool auto" in printed


def test_an_improvement_passes(tmp_path, capsys):
    assert exit_code(tmp_path, samples.pair(auto=4.0), samples.pair(auto=3.0)) == 0
    assert "faster" in capsys.readouterr().out


@pytest.mark.parametrize("new, expected", [(3.7, "same"), (3.8, "slower")])
def test_threshold(new, expected):
    found = verdicts(samples.pair(auto=3.0, spread=0.01), samples.pair(auto=new, spread=0.01))
    assert found["first", "powerpool auto"] == expected


def test_a_difference_within_the_spread_is_none():
    old, new = samples.pair(auto=3.0, spread=0.3), samples.pair(auto=4.0, spread=0.3)
    assert verdicts(old, new)["first", "powerpool auto"] == "same"


def test_a_busier_machine_is_no_regression_and_a_quicker_one_hides_none():
    old = samples.pair(auto=3.0, floor=1.0)
    busy = samples.pair(auto=6.0, floor=2.0)
    assert verdicts(old, busy)["first", "powerpool auto"] == "same"
    assert verdicts(old, busy, absolute=True)["first", "powerpool auto"] == "slower"
    quick = samples.pair(auto=3.0, floor=0.5)
    assert verdicts(old, quick)["first", "powerpool auto"] == "slower"


def test_a_slower_competitor_or_floor_does_not_fail_the_gate(tmp_path):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    new.cases[0].results[2] = samples.measured("eigh + Loewner", 90.0, "competitor")
    assert verdicts(old, new)["first", "eigh + Loewner"] == "slower"
    assert exit_code(tmp_path, old, new) == 0


def test_missing_and_new_are_shown():
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    del new.cases[1]
    del new.cases[0].results[2]
    new.cases[0].results.append(samples.measured("powerpool new", 1.0))
    found = verdicts(old, new)
    assert found["second", "(all)"] == "missing"
    assert found["first", "eigh + Loewner"] == "missing"
    assert found["first", "powerpool new"] == "new"


def test_one_missing_contender_of_powerpool_fails_the_gate(tmp_path, capsys):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    del new.cases[0].results[1]
    assert exit_code(tmp_path, old, new) == 1
    assert "1 of powerpool missing" in capsys.readouterr().out


def test_one_missing_case_fails_the_gate(tmp_path):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    del new.cases[1]
    assert exit_code(tmp_path, old, new) == 1


def test_a_missing_competitor_does_not_fail_the_gate(tmp_path):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    del new.cases[0].results[2]
    assert exit_code(tmp_path, old, new) == 0


def test_one_case_whose_answers_disagree_fails_the_gate(tmp_path, capsys):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    new.cases[1] = dataclasses.replace(new.cases[1], results=[], error="powerpool auto is off by 1")
    assert exit_code(tmp_path, old, new) == 1
    assert "1 of powerpool wrong" in capsys.readouterr().out


def test_a_record_in_which_every_case_disagrees_fails_the_gate(tmp_path):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    new.cases[:] = [dataclasses.replace(case, results=[], error="off by 1") for case in new.cases]
    assert exit_code(tmp_path, old, new) == 1


def test_another_machine_is_named(tmp_path, capsys):
    old, new = samples.pair(auto=3.0), samples.pair(auto=3.0)
    new.environment["processor"] = "another"
    assert exit_code(tmp_path, old, new) == 0
    assert "Not the same processor: a machine, now another" in capsys.readouterr().out


def test_records_that_cannot_be_compared_are_refused():
    old = samples.pair(auto=3.0)
    unfinished = samples.pair(auto=3.0)
    unfinished.complete = False
    with pytest.raises(ValueError, match="unfinished"):
        compare(old, unfinished)
    with pytest.raises(ValueError, match="different suites, 'pools' and 'curves'"):
        compare(old, samples.record(suite="curves"))
    with pytest.raises(ValueError, match="no case in common"):
        compare(old, samples.record())
    with pytest.raises(ValueError, match="differ in threads"):
        compare(old, samples.record(*old.cases, threads=1))


def test_threshold_must_be_above_one(tmp_path):
    with pytest.raises(ValueError, match=r"threshold must be above 1 \(got 1.0\)"):
        CompareOptions(tmp_path, tmp_path, threshold=1.0)
