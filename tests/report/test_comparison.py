"""Which records can be compared, and by which test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from powerpool.report.comparison import compare_gains, compare_records, compute_interval
from powerpool.runs.compare import mcnemar
from tests.report.samples import draw_flags, draw_right, episode_run, episodes, fold, graph_run, image_run, split

FLAGS, RIGHT = draw_flags(0.8, 1), draw_right(0.5, 1)


@pytest.mark.parametrize("protocol, ratio", [("validation-only", 1 / 8), ("retrain", 1 / 9), ("another", 1 / 8)])
def test_correction_depends_on_the_size_of_the_training_set(protocol: str, ratio: float) -> None:
    # The data are divided into ten parts, although three folds were run.
    ours, baseline = (graph_run("SOP", values, protocol=protocol) for values in ([81, 84, 84], [80, 81, 85]))
    test = compare_records(ours, baseline)
    assert test is not None
    t, plain = stats.t.isf(test.corrected_p_value / 2, 2), stats.t.isf(test.p_value / 2, 2)
    assert (plain / t) ** 2 / 3 - 1 / 3 == pytest.approx(ratio)


@pytest.mark.parametrize(
    "other",
    [
        {"config": {"folds": 5}},
        {"config": {"data_digest": "b"}},
        {"seed": 1},
        {"results": (fold(85.0),)},
        {"results": (fold(85.0, 5), fold(88.0, 6))},
    ],
)
def test_other_folds_are_not_paired(other: dict[str, Any]) -> None:
    values = [] if "results" in other else [85.0, 88.0, 86.0]
    assert compare_records(graph_run("SOP", values, **other), graph_run("GIN0", [80.0, 84.0, 81.0])) is None


@pytest.mark.parametrize(
    "other",
    [
        {"config": {"data_digest": "b"}},
        {"results": (split(draw_flags(0.8, 9, count=202)),)},
        {"results": (split(FLAGS, number=1),)},
    ],
)
def test_other_images_are_not_paired(other: dict[str, Any]) -> None:
    flags = [] if "results" in other else [FLAGS]
    assert compare_records(image_run("SOP", *flags, **other), image_run("FOP", FLAGS)) is None


def test_another_seed_has_the_same_test_images() -> None:
    assert compare_records(image_run("SOP", FLAGS, seed=5), image_run("FOP", draw_flags(0.7, 2))) is not None


@pytest.mark.parametrize(
    "other",
    [
        {"config": {"data_digest": "b"}},
        {"config": {"test": {"way": 5, "shot": 1, "queries": 5}}},
        {"config": {"test": {"way": 5, "shot": 1, "queries": 3, "transductive": True}}},
        {"results": (episodes(draw_right(0.5, 9, count=59)),)},
        {"results": (episodes(RIGHT, number=1),)},
        {"results": (episodes([2 * right for right in RIGHT], queries=30),)},
    ],
)
def test_other_episodes_are_not_paired(other: dict[str, Any]) -> None:
    rights = [] if "results" in other else [RIGHT]
    ours, baseline = episode_run("SoSN(x)", *rights, **other), episode_run("RelationNet", RIGHT)
    assert compare_records(ours, baseline) is None
    assert compare_gains(ours, baseline, baseline, baseline) is None


def test_several_runs_are_not_more_images() -> None:
    ours, theirs = ([draw_flags(share, seed) for seed in (1, 2)] for share in (0.9, 0.8))
    test = compare_records(image_run("SOP", *ours), image_run("FOP", *theirs))
    single = [mcnemar(*pair) for pair in zip(ours, theirs, strict=True)]
    assert test is not None
    assert test.difference == pytest.approx(np.mean([one.difference for one in single]))
    assert test.interval == (min(one.interval[0] for one in single), max(one.interval[1] for one in single))
    assert test.p_value == max(one.p_value for one in single)
    # Wilson's interval solves (share - x)^2 = z^2 x (1 - x) / n, where n is the number of images.
    interval = compute_interval(image_run("SOP", *ours))
    share = np.mean([sum(flags) / 203 for flags in ours])
    assert interval is not None
    for end in (end / 100 for end in interval):
        assert (share - end) ** 2 == pytest.approx(stats.norm.ppf(0.975) ** 2 * end * (1 - end) / 203)


def test_single_fold_has_no_interval() -> None:
    assert compute_interval(graph_run("SOP", [80.0])) is None
