"""Losses and measures against scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn import metrics
from sklearn.utils.class_weight import compute_class_weight
from torch.testing import assert_close

from powerpool.tasks.graph.scores import Objective, measure
from powerpool.tasks.training import balanced_weights


@pytest.mark.parametrize("classes", [2, 4])
def test_measures_of_classifiers(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    targets = torch.randint(classes, (60,), generator=generator)
    outputs = torch.randn(60, classes, generator=generator) + torch.nn.functional.one_hot(targets, classes)
    found = measure(outputs, targets)
    expected = metrics.balanced_accuracy_score(targets, outputs.argmax(-1))
    assert found["balanced accuracy in %"] == pytest.approx(100 * expected)
    shares = outputs.softmax(-1).double()
    expected = metrics.roc_auc_score(
        targets, shares[:, 1] if classes == 2 else shares / shares.sum(-1, keepdim=True), multi_class="ovr"
    )
    assert found["ROC-AUC in %"] == pytest.approx(100 * expected)


def test_a_test_of_one_class_has_no_curve() -> None:
    assert measure(torch.randn(5, 2), torch.ones(5, dtype=torch.long)).keys() == {"balanced accuracy in %"}


def test_a_constant_classifier_of_rare_classes_is_not_praised() -> None:
    targets = torch.tensor([0] * 19 + [1])
    outputs = torch.tensor([[1.0, 0.0]]).repeat(20, 1)
    assert Objective().score(outputs, targets).value == 95
    assert measure(outputs, targets) == {"balanced accuracy in %": 50, "ROC-AUC in %": 50}


def test_balanced_weights() -> None:
    targets = torch.tensor([0, 0, 0, 1, 2, 2])
    weights = balanced_weights(targets, 3)
    expected = compute_class_weight("balanced", classes=targets.unique().numpy(), y=targets.numpy())
    assert_close(weights.double(), torch.tensor(expected), rtol=1e-6, atol=0)
    assert_close(balanced_weights(targets, 5)[:3], weights)  # two classes without targets
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    loss = Objective(weights=weights).loss(outputs, targets)
    own = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    assert_close(loss, (own * weights[targets]).sum() / weights[targets].sum())


def test_regression() -> None:
    outputs, targets = torch.tensor([[1.0], [4.0]]), torch.tensor([2.0, 2.0])
    score = Objective(is_regression=True, scale=2.0).score(outputs, targets)
    assert (score.value, score.loss) == (1.5, pytest.approx(2.5 / 4))
    assert measure(outputs, targets)["RMSE"] == pytest.approx(2.5**0.5)
