"""What is killed goes on and comes to the same, bit for bit; `make stress` kills more often."""

from __future__ import annotations

import json
import random
import re
import signal
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from powerpool.files import write_json
from tests.fuzz import with_atheris
from tests.stress import cases, trials
from tests.stress.conftest import SHORT
from tests.stress.kills import (
    RECORD,
    REPRODUCE_KILLS,
    TABLE,
    Kill,
    Place,
    _note_redone,
    are_equal,
    finish,
    problems,
    start,
    table,
    trial,
)

PUBLISHED = Path(__file__).parents[2] / "results" / "stress"


@pytest.mark.stress  # each pipeline has such a test of its own; this one's moment is random
@pytest.mark.parametrize("name", SHORT)
def test_kill_9_at_a_random_moment_costs_nothing_that_was_saved(name, runs):
    (kill,) = trial(runs(name), 1, random.Random(name))
    assert kill.equal
    assert kill.saved_redone == 0
    # At most what no checkpoint had yet: a unit, or of pictures an epoch of six batches.
    assert kill.redone <= (6 if name == "vision" else 1)


@pytest.mark.stress
@pytest.mark.parametrize("name", ["graph", "few-shot"])
def test_kills_between_checkpoints_cost_what_was_done_since_the_last_one(name, runs):
    """Twice in one run: with 5 units done and 3 of them saved, and with another 5 done."""
    whole = runs(name)
    place = Place(whole.case, whole.folder, "between", hold=5, every=3)
    for done, saved in ((5, 3), (8, 6)):
        before, safe = place.stamps, place.saved
        running = start(place)
        try:
            running.wait_until_held()
        finally:
            running.signal(signal.SIGKILL)
        running.wait()
        assert (len(place.stamps), len(place.saved)) == (done, saved)
        assert not {unit for unit in safe if place.stamps[unit] != before[unit]}
    finish(place)
    assert are_equal(place, whole)


# ---- it would show ---------------------------------------------------------------------------------------------------


def some_kill(**changes: object) -> Kill:
    return Kill(**{"case": "graph", "unit": "epochs", "moment": 1.0, "done": 5, "of": 9, "saved": 4, **changes})


def record_of(*kills: Kill) -> dict:
    machine = {"processor": "a processor", "torch": "2.0", "commit": "abcdefghi"}
    listed = [asdict(kill) for kill in (*kills, *[some_kill(case="reproduce", equal=True)] * REPRODUCE_KILLS)]
    return {"schema": 1, "asked": len(kills), "seed": 0, "kills": listed, "environment": machine}


def test_missing_kills_and_other_results_are_problems():
    whole = record_of(some_kill(equal=True), some_kill(equal=True))
    assert problems(whole) == []
    assert len(problems({**whole, "kills": []})) == 2
    for wrong in (some_kill(), some_kill(equal=True, redone=2, saved_redone=1)):
        (problem,) = problems(record_of(some_kill(equal=True), wrong))
        assert "graph" in problem
    early = [some_kill(saved=0, equal=True)] * (REPRODUCE_KILLS + 1)
    assert len(problems(record_of(*early))) == 1


def test_what_was_computed_again_is_counted_by_the_time_of_its_last_line(tmp_path):
    ledger = tmp_path / "ledger"
    ledger.write_text("epoch 1\t1.0\nepoch 2\t2.0\nepoch 3\t3.0\n")
    kill, before = some_kill(), cases.read_ledger(ledger)
    with ledger.open("a") as file:
        file.write("epoch 2\t4.0\nepoch 3\t5.0\nepoch 4\t6.0\n")
    _note_redone([kill], before, {"epoch 1", "epoch 2"}, cases.read_ledger(ledger))
    assert (kill.redone, kill.saved_redone) == (2, 1)


def test_one_bit_of_one_weight_is_another_result():
    weights = {"a": torch.tensor([0.0, float("nan")]), "b": {"c": [1, 2]}, "d": [torch.arange(5000)]}
    first = cases.digest(weights)
    assert cases.digest({**weights, "a": weights["a"].clone(), "seconds": 3.0}) == first
    others = [
        {**weights, "a": torch.tensor([-0.0, float("nan")])},
        {**weights, "a": weights["a"].double()},
        {**weights, "a": weights["a"][:, None]},
        {**weights, "b": {"c": [1, 3]}},
        {**weights, "d": [torch.arange(5000).index_fill(0, torch.tensor([2500]), 0)]},
        {name.replace("a", "z"): value for name, value in weights.items()},
    ]
    assert first not in {cases.digest(other) for other in others}


def test_a_command_that_fails_is_no_result(tmp_path):
    place = Place(cases.Case("bad", ("train", "graph", "--fold", "99"), "epochs", cases.saved_graph), tmp_path, "run")
    with pytest.raises(AssertionError, match="ended with exit code 2"):
        finish(place)


def test_trials_are_counted_from_the_report(tmp_path):
    report = tmp_path / "fuzz.xml"
    report.write_text(
        "<testsuites><testsuite>"
        '<testcase classname="t" name="test_only_errors_of_powerpool_are_raised[lists]" time="1.6"/>'
        '<testcase classname="t" name="bad" time="1"><failure/></testcase>'
        '<testcase classname="t" name="left" time="0"><skipped/></testcase>'
        "</testsuite></testsuites>"
    )
    found = trials.count(report, times=5)
    assert found == {"name": "fuzz", "tests": 2, "skipped": 1, "failed": ["t::bad"], "examples": 600, "seconds": 3}
    text = trials.section({"trials": [found], "times": 5, "commit": "abcdefghi"})
    assert "| `make fuzz` | 2 | 1 | 600 | 1 | 3 |" in text


def test_inputs_of_atheris_are_counted_from_its_last_line(tmp_path):
    counts = [
        with_atheris.count("lists", ["INFO: seed corpus", "Done 500 runs in 3 second(s)\n"], 0),
        with_atheris.count("record", ["#12 NEW", "==1== ERROR: libFuzzer: fuzz target exited"], 77),
        with_atheris.count("recipe", ["Done 7 runs in 1 second(s)"], -9),
        with_atheris.count("model", ["no last line"], 0),
    ]
    report = tmp_path / "atheris.json"
    write_json(report, counts)
    found = trials.count_atheris(report)
    assert (found["tests"], found["failed"], found["examples"], found["seconds"]) == (
        4,
        ["record", "recipe", "model"],
        507,
        4,
    )
    text = trials.section({"trials": [found], "times": 1, "commit": None})
    assert "| `make fuzz`, atheris | 4 | 0 | 507 | 3 | 4 |" in text


# ---- the record of the project ---------------------------------------------------------------------------------------


def test_the_table_says_what_is_in_the_record():
    text = table(record_of(some_kill(equal=True, redone=1), some_kill(saved=0, done=1, equal=True)))
    assert "| graph | 2 | 1 | 1 of 6 epochs | 0 | 2 |" in text
    assert f"{1 + REPRODUCE_KILLS} times with a checkpoint" in text.replace("\n", " ")


@pytest.mark.skipif(not PUBLISHED.exists(), reason="no record of kills is published")
def test_the_published_record_has_at_least_twenty_kills_of_trainings_and_no_problem():
    text = (PUBLISHED / RECORD).read_text()
    record = json.loads(text)
    trainings = [kill for kill in record["kills"] if kill["case"] != "reproduce"]
    assert len(trainings) >= 20
    assert {kill["case"] for kill in trainings} == {"graph", "few-shot", "vision, frozen", "vision, end to end"}
    assert 2 * sum(kill["saved"] > 0 for kill in trainings) >= len(trainings)
    assert problems(record) == []
    assert record["environment"]["dirty"] is False
    assert not re.search(r"/(root|home|work|tmp)\b", text)
    others = json.loads((PUBLISHED / trials.RECORD).read_text())
    assert (PUBLISHED / TABLE).read_text() == table(record) + trials.section(others)
    assert {one["name"]: one["failed"] for one in others["trials"]} == {"stress": [], "fuzz": [], "fuzz, atheris": []}
    assert others["dirty"] is False
