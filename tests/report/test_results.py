"""What results hold beside their values: computed another way, and refused where it is damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import confusion_matrix as sklearn_confusion

from powerpool.errors import RecordError
from powerpool.report.results import (
    accuracies,
    check_record,
    compare_episodes,
    compare_records,
    compute_interval,
    frequent_mistakes,
    is_right,
    mean_spectrum,
    sum_confusions,
)
from powerpool.runs.compare import mcnemar
from powerpool.runs.record import Confusion, RunRecord
from powerpool.tasks.base import confusion_matrix
from tests.report.samples import (
    QUERIES,
    confusion,
    draw_flags,
    draw_right,
    episode_run,
    episodes,
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


TEN = [True] * 3 + [False] * 7


@pytest.mark.parametrize(
    "change",
    [
        {"right": "zz00"},
        {"right": "e0"},
        {"right": "c020"},  # the eleventh image of ten
        {"count": 0, "right": ""},
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
        {"right": (1, 5, -1), "value": 5.0},
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
    ["1 0", "1 2 1", "-1 0 1"],
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


# ---- comparisons -----------------------------------------------------------------------------------------------------

FLAGS, RIGHT = draw_flags(0.8, 1), draw_right(0.5, 1)


@pytest.mark.parametrize("protocol, ratio", [("validation-only", 1 / 8), ("retrain", 1 / 9), ("another", 1 / 8)])
def test_correction_depends_on_the_size_of_the_training_set(protocol: str, ratio: float) -> None:
    # The data are divided into ten parts, although three folds were run.
    ours, baseline = (graph_run("SOP", values, protocol=protocol) for values in ([81, 84, 84], [80, 81, 85]))
    test = compare_records(ours, baseline)
    assert test is not None
    t, plain = stats.t.isf(test.corrected_p_value / 2, 2), stats.t.isf(test.p_value / 2, 2)
    assert (plain / t) ** 2 / 3 - 1 / 3 == pytest.approx(ratio)


UNPAIRED = {
    "folds": {"config": {"folds": 5}},
    "graphs": {"config": {"data_digest": "b"}},
    "seed of folds": {"seed": 1},
    "too few folds": {"results": (fold(85.0),)},
    "numbers of folds": {"results": (fold(85.0, 5), fold(88.0, 6))},
    "images": {"task": "vision", "config": {"data_digest": "b"}},
    "number of images": {"task": "vision", "results": (split(draw_flags(0.8, 9, count=202)),)},
    "runs": {"task": "vision", "results": (split(FLAGS, number=1),)},
    "images of episodes": {"task": "fewshot", "config": {"data_digest": "b"}},
    "queries": {"task": "fewshot", "config": {"test": {"way": 5, "shot": 1, "queries": 5}}},
    "transductive": {"task": "fewshot", "config": {"test": {"way": 5, "shot": 1, "queries": 3, "transductive": True}}},
    "episodes": {"task": "fewshot", "results": (episodes(draw_right(0.5, 9, count=59)),)},
    "runs of episodes": {"task": "fewshot", "results": (episodes(RIGHT, number=1),)},
}


@pytest.mark.parametrize("name", UNPAIRED)
def test_results_that_differ_in_more_than_the_method_are_not_paired(name: str) -> None:
    other = dict(UNPAIRED[name])
    task = other.pop("task", "graph")
    make, values = {
        "graph": (graph_run, [[85.0, 88.0, 86.0]]),
        "vision": (image_run, [FLAGS]),
        "fewshot": (episode_run, [RIGHT]),
    }[task]
    baseline, ours = make("A", *values), make("B", *([] if "results" in other else values), **other)
    assert compare_records(ours, baseline) is None
    if task == "fewshot":
        assert compare_episodes([ours, baseline], [baseline, baseline]) is None


def test_another_seed_has_the_same_test_images() -> None:
    assert compare_records(image_run("SOP", FLAGS, seed=5), image_run("FOP", draw_flags(0.7, 2))) is not None


def test_several_runs_are_not_more_images() -> None:
    ours, theirs = ([draw_flags(share, seed) for seed in (1, 2)] for share in (0.9, 0.8))
    test = compare_records(image_run("SOP", *ours), image_run("FOP", *theirs))
    single = [mcnemar(*pair) for pair in zip(ours, theirs, strict=True)]
    assert test is not None
    assert test.difference == pytest.approx(np.mean([one.difference for one in single]))
    means = [[100 * np.mean(flags) for flags in side] for side in (ours, theirs)]
    paired = stats.ttest_rel(*means)
    assert test.p_value == pytest.approx(paired.pvalue)
    assert test.interval == pytest.approx(tuple(paired.confidence_interval()))
    # Wilson's interval solves (share - x)^2 = z^2 x (1 - x) / n, where n is the number of images.
    interval = compute_interval(image_run("SOP", *ours))
    share = np.mean([sum(flags) / 203 for flags in ours])
    assert interval is not None
    for end in (end / 100 for end in interval):
        assert (share - end) ** 2 == pytest.approx(stats.norm.ppf(0.975) ** 2 * end * (1 - end) / 203)


def test_single_fold_has_no_interval() -> None:
    assert compute_interval(graph_run("SOP", [80.0])) is None
