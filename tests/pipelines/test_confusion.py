"""Confusion matrices: against scikit-learn, and there and back through the form of a record."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from powerpool.tasks.confusion import as_entry, confusion_matrix
from sklearn.metrics import confusion_matrix as sklearn_confusion

from powerpool.data import load_graphs
from powerpool.report.details import confusion_of
from powerpool.runs.record import RunRecord
from powerpool.tasks.graph import evaluation as graphs
from powerpool.tasks.graph.model import GraphClassifier
from tests.experiments import runs
from tests.pipelines.graph import samples as graph_samples

answers = st.integers(2, 7).flatmap(
    lambda size: st.tuples(st.just(size), st.lists(st.tuples(*[st.integers(0, size - 1)] * 2), min_size=1, max_size=60))
)


def fold(number: int, pairs: list[tuple[int, int]], size: int) -> dict[str, object]:
    targets, said = torch.tensor(pairs).unbind(1)
    entry = as_entry(confusion_matrix(said, targets, size), [f"class {name}" for name in range(size)])
    return {"fold": number, "value": 100 * float((said == targets).double().mean()), "confusion": entry}


@given(answers)
def test_counts_are_those_of_scikit_learn(drawn):
    size, pairs = drawn
    targets, said = torch.tensor(pairs).unbind(1)
    found = confusion_matrix(said, targets, size)
    assert found.tolist() == sklearn_confusion(targets, said, labels=range(size)).tolist()


@given(answers, st.integers(1, 3))
def test_a_record_gives_back_the_sum_over_its_folds(drawn, folds):
    size, pairs = drawn
    record = runs.run("SOP", [], folds=tuple(fold(number, pairs, size) for number in range(folds)))
    found = confusion_of(record)
    assert found.classes == tuple(f"class {name}" for name in range(size))
    expected = folds * sklearn_confusion(*zip(*pairs, strict=True), labels=range(size))
    assert [[found.counts.get((row, column), 0) for column in range(size)] for row in range(size)] == expected.tolist()
    assert found.sizes == expected.sum(1).tolist()


def test_a_fold_of_graphs_says_what_its_model_says(tmp_path):
    config, data = graph_samples.small_config("SOP+SigmE"), load_graphs("MUTAG")
    torch.manual_seed(3)
    model = GraphClassifier(config.model, data.channels, len(data.classes))
    tested = graphs.test_score(config, data, 0, model)
    test = graphs.make_fold(config, data, 0).test
    with torch.no_grad():
        said = model.eval()(data[test]).argmax(1)
    expected = sklearn_confusion(data.targets[test], said, labels=range(2))
    record = runs.run("SOP+SigmE", [], folds=({"fold": 0, "value": tested.accuracy, **tested.details},))
    record.write(tmp_path / "record.json")
    found = confusion_of(RunRecord.read(tmp_path / "record.json"))
    assert found.classes == tuple(map(str, data.classes))
    assert found.counts == {
        (row, column): expected[row, column] for row in range(2) for column in range(2) if expected[row, column]
    }
