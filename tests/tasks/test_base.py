"""What tasks share: confusion matrices, curves for records, and the rows of reproduce."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix as sklearn_confusion

from powerpool.runs.record import Confusion
from powerpool.tasks import base
from powerpool.tasks.base import Row, confusion_matrix, fit_units, ignore_progress, round_curve

predictions = st.integers(2, 7).flatmap(
    lambda size: st.tuples(st.just(size), st.lists(st.tuples(*[st.integers(0, size - 1)] * 2), min_size=1, max_size=60))
)


@given(predictions)
def test_a_confusion_matrix_is_that_of_scikit_learn_also_after_a_record(drawn):
    size, pairs = drawn
    targets, predicted = torch.tensor(pairs).unbind(1)
    found = confusion_matrix(predicted, targets, size)
    expected = sklearn_confusion(targets, predicted, labels=range(size)).tolist()
    assert found.tolist() == expected
    stored = Confusion.of(found, [f"class {name}" for name in range(size)])
    assert stored.classes == tuple(f"class {name}" for name in range(size))
    assert stored.dense() == expected


def test_curves_are_rounded_and_have_no_nan():
    assert round_curve([0.123456, float("nan"), float("inf"), 2.0]) == (0.1235, None, None, 2.0)


def test_chains_are_numbered_among_equal_configurations():
    folds = Row(("config",) * 3, None, ("retrain",), "SOP", "MUTAG")
    seeds = Row(("seed 0", "seed 1"), None, ("5-way-1-shot",), "SoSN(x)", "glyphs")
    assert [folds.chain(place) for place in range(3)] == [0, 1, 2]
    assert [seeds.chain(place) for place in range(2)] == [0, 0]


def test_freed_memory_is_kept_before_anything_is_trained(monkeypatch):
    calls = []
    monkeypatch.setattr(base, "keep_freed_memory", lambda: calls.append("kept"))
    task = SimpleNamespace(units=lambda config, chain: calls.append("units") or [])
    assert fit_units(task, None, None, 0, (), None, ignore_progress) == []
    assert calls == ["kept", "units"]
