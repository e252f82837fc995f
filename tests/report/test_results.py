"""What results hold beside their values: computed another way, and refused where it is damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix as sklearn_confusion

from powerpool.errors import RecordError
from powerpool.report.results import (
    accuracies,
    check_record,
    frequent_mistakes,
    is_right,
    mean_spectrum,
    row_shares,
    sum_confusions,
)
from powerpool.runs.record import Confusion, RunRecord
from powerpool.tasks.base import confusion_matrix
from tests.report.samples import (
    QUERIES,
    confusion,
    draw_flags,
    draw_right,
    episode_run,
    fold,
    graph_run,
    image_run,
    spectrum,
    split,
)


def record_of(*extras: dict[str, Any], method: str = "SOP") -> RunRecord:
    folds = (fold(**({"value": 50.0, "number": number} | extra)) for number, extra in enumerate(extras))
    return graph_run(method, results=tuple(folds))


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_flags_are_read_as_they_were_packed(flags: list[bool]) -> None:
    assert is_right(split(flags)) == flags


def test_flags_worked_by_hand() -> None:
    found = is_right(split([True] * 10, right="8140"))
    assert found == [True, *[False] * 6, True, False, True]


TEN = [True] * 3 + [False] * 7


@pytest.mark.parametrize(
    "change",
    [
        {"right": "zz00"},
        {"right": "e00"},
        {"right": "e0"},
        {"right": "e00000"},
        {"right": "c020"},  # the eleventh image of ten
        {"count": 0, "right": ""},
        {"count": -8, "right": ""},
        {"value": 40.0},
        {"right": "c000"},
    ],
)
def test_flags_that_contradict_the_record_are_refused(change: dict[str, Any]) -> None:
    check_record(image_run("SOP", TEN))
    with pytest.raises(RecordError, match="Result 0 of the record of SOP on flower102, protocol frozen"):
        check_record(image_run("SOP", TEN, result=change))


@pytest.mark.parametrize(
    "change",
    [
        {"right": (1, 2, 4), "value": 50.0},
        {"right": (6,)},
        {"right": (1, 5, -1), "value": 5.0},
        {"right": (16, 1, 1)},
        {"queries": 0, "value": 0.0, "right": (0, 0)},
    ],
)
def test_episodes_that_contradict_the_record_are_refused(change: dict[str, Any]) -> None:
    check_record(episode_run("SoSN(x)", [1, 2, 3]))
    with pytest.raises(RecordError, match=r"Result 0 of the record of SoSN\(x\) on miniimagenet100"):
        check_record(episode_run("SoSN(x)", [1, 2, 3], result=change))


def test_rounded_value_is_not_a_contradiction() -> None:
    check_record(image_run("SOP", [True, False, True], result={"value": 66.67}))


def test_accuracies_are_means_over_runs() -> None:
    rights = [draw_right(0.5, seed) for seed in range(3)]
    record = episode_run("SoSN(x)", *rights)
    np.testing.assert_allclose(accuracies(record), 100 * np.mean(rights, 0) / QUERIES)
    np.testing.assert_allclose(accuracies(record, [1]), 100 * np.array(rights[1]) / QUERIES)
    with pytest.raises(RecordError, match=r"same test episodes.*\[60, 59\]"):
        check_record(episode_run("SoSN(x)", rights[0], draw_right(0.5, 1, count=59)))


# ---- confusions ------------------------------------------------------------------------------------------------------


def test_confusions_are_summed() -> None:
    two = ("a", "b")
    found = sum_confusions(record_of(confusion([[3, 0], [3, 0]], two), confusion([[0, 2], [0, 2]], two)))
    assert found == Confusion(two, ("0 0 3", "0 1 2", "1 0 3", "1 1 2"))
    assert row_shares(found) == {(0, 0): 60.0, (0, 1): 40.0, (1, 0): 60.0, (1, 1): 40.0}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=60), st.integers(1, 3))
def test_confusions_are_those_of_scikit_learn(pairs: list[tuple[int, int]], count: int) -> None:
    targets, predicted = torch.tensor(pairs).unbind(1)
    matrix = Confusion.of(confusion_matrix(predicted, targets, 5), range(5))
    found = sum_confusions(record_of(*[{"confusion": matrix}] * count))
    assert found is not None
    expected = count * sklearn_confusion(targets, predicted, labels=range(5))
    assert found.dense() == expected.tolist()


def test_records_without_confusions_or_spectra() -> None:
    assert sum_confusions(graph_run("SOP", [1.0, 2.0])) is None
    assert sum_confusions(record_of(confusion([[3, 3]] * 2, "ab"), {})) is None  # not every result has one
    assert mean_spectrum(graph_run("SOP", [1.0, 2.0])) is None


@pytest.mark.parametrize(
    "entries",
    ["1 0", "1 2 1", "2 0 1", "-1 0 1", "1 0 1.5", "1 0 " + "9" * 99],
)
def test_damaged_confusion_is_refused(entries: str) -> None:
    with pytest.raises(RecordError, match="Result 0 of the record of SOP on MUTAG"):
        check_record(record_of({"confusion": Confusion(("a", "b"), ("0 0 1", entries))}))


def test_confusion_that_contradicts_the_record_is_refused() -> None:
    with pytest.raises(RecordError, match="3 of 4"):
        check_record(record_of(confusion([[3, 0], [1, 0]], "ab")))
    with pytest.raises(RecordError, match="classes must be different"):
        check_record(record_of(confusion([[3, 3], [0, 0]], "aa")))
    with pytest.raises(RecordError, match="same classes"):
        check_record(record_of(confusion([[1, 0], [1, 0]], "ab"), confusion([[1, 0], [1, 0]], "ac")))


def test_frequent_mistakes() -> None:
    classes = [f"c{number}" for number in range(9)]

    def rows(counts: dict[tuple[int, int], int]) -> list[list[int]]:
        return [[counts.get((true, predicted), 0) for predicted in range(9)] for true in range(9)]

    first = rows({(3, 4): 5, (3, 3): 5, (2, 1): 2, (2, 2): 2})
    second = rows({(3, 4): 1, (7, 8): 4, (7, 7): 5})
    assert frequent_mistakes([record_of(confusion(first, classes)), record_of(confusion(second, classes))]) == [
        ("c3", "c4", "5 (50 %)", "1 (100 %)"),
        ("c7", "c8", "0", "4 (44 %)"),
        ("c2", "c1", "2 (50 %)", "0"),
    ]


# ---- spectra and curves ----------------------------------------------------------------------------------------------


def test_spectra_are_means_over_the_most_frequent_size() -> None:
    parts = [spectrum(4, 1.0, 10), spectrum(6, 3.0, 7), spectrum(4, 2.0, 9)]
    found = mean_spectrum(record_of(*({"spectrum": part} for part in parts), {}))
    assert found is not None
    assert (found.size, found.ranks, found.samples) == (4, (1, 2, 3, 4), 19)
    np.testing.assert_allclose(found.before, np.mean([parts[0].before, parts[2].before], 0))
    np.testing.assert_allclose(found.after, np.mean([parts[0].after, parts[2].after], 0))
    # Of equally frequent sizes the larger.
    found = mean_spectrum(record_of(*({"spectrum": part} for part in parts[:2])))
    assert found is not None
    assert found.size == 6


def test_curve_needs_a_point_for_each_step() -> None:
    bad = {"curves": {"episode": (1.0, 2.0), "train_loss": (0.5,)}}
    with pytest.raises(RecordError, match=r"\[1, 2\] points"):
        check_record(episode_run("SoSN(x)", draw_right(0.5, 1), result=bad))


def test_flags_of_several_runs_are_checked() -> None:
    results = (split(draw_flags(0.5, 1)), split(draw_flags(0.5, 2), 1, value=1.0))
    with pytest.raises(RecordError, match="Result 1 of"):
        check_record(image_run("SOP", results=results))
