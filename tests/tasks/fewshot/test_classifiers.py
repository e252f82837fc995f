"""Classifiers from dot products, compared with scikit-learn on the vectors themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge

from powerpool.tasks.fewshot.classifiers import (
    DEFAULTS,
    Classifier,
    Examples,
    candidates,
    choose,
    chosen_scores,
    class_scores,
    leave_one_out,
)

LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])  # classes of different sizes
WAY = 3
PENALTY = 0.3


@pytest.fixture
def vectors() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(WAY, 30, generator=generator, dtype=torch.float64)
    examples = centres[LABELS] + torch.randn(len(LABELS), 30, generator=generator, dtype=torch.float64)
    return examples, centres.repeat(2, 1) + torch.randn(6, 30, generator=generator, dtype=torch.float64)


def expected(kind: str, examples: torch.Tensor, labels: torch.Tensor, queries: torch.Tensor) -> np.ndarray:
    """Return scores by scikit-learn, or by distances to means, of vectors that are centred and scaled already."""
    if kind == "ncm":
        means = torch.stack([examples[labels == label].mean(0) for label in range(WAY)])
        return (queries.square().sum(1, keepdim=True) - torch.cdist(queries, means).square()).numpy()
    if kind == "ridge":
        one_hot = torch.nn.functional.one_hot(labels, WAY).numpy()
        return Ridge(alpha=PENALTY).fit(examples.numpy(), one_hot).predict(queries.numpy())
    model = LogisticRegression(C=1 / PENALTY, fit_intercept=False, tol=1e-12, max_iter=10_000)
    return model.fit(examples.numpy(), labels.numpy()).predict_proba(queries.numpy())


def scaled(examples: torch.Tensor, queries: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Centre and scale by the examples: what the penalty is relative to."""
    if kind == "ncm":
        return examples, queries
    mean = examples.mean(0)
    scale = (examples - mean).square().sum(1).mean().sqrt()
    return (examples - mean) / scale, (queries - mean) / scale


def probabilities(scores: torch.Tensor, kind: str) -> np.ndarray:
    return (scores.softmax(-1) if kind == "logistic" else scores).numpy()


@pytest.mark.parametrize("kind", ["ncm", "ridge", "logistic"])
def test_scores_are_those_of_the_vectors(vectors, kind):
    examples, queries = vectors
    found = class_scores(Classifier(kind, PENALTY), Examples(examples @ examples.T, LABELS, WAY), queries @ examples.T)
    wanted = expected(kind, *scaled(examples, queries, kind)[:1], LABELS, scaled(examples, queries, kind)[1])
    np.testing.assert_allclose(probabilities(found, kind), wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["ncm", "ridge", "logistic"])
def test_leaving_one_out_is_fitting_without_it(vectors, kind):
    examples, _ = vectors
    found = probabilities(leave_one_out(Classifier(kind, PENALTY), Examples(examples @ examples.T, LABELS, WAY)), kind)
    own, _ = scaled(examples, examples, kind)
    for place in range(len(LABELS)):
        others = [row for row in range(len(LABELS)) if row != place]
        wanted = expected(kind, own[others], LABELS[others], own[place : place + 1])
        np.testing.assert_allclose(found[place], wanted[0], atol=1e-5)


def test_episodes_are_solved_together(vectors):
    examples, queries = vectors
    both = torch.stack([examples, examples.flip(-1) * 2])
    across = torch.stack([queries, queries + 1]) @ both.mT
    together = Examples(both @ both.mT, LABELS, WAY)
    for classifier in DEFAULTS.values():
        found = class_scores(classifier, together, across)
        for place in range(2):
            alone = class_scores(classifier, together._replace(products=together.products[place]), across[place])
            torch.testing.assert_close(found[place], alone)
    found = chosen_scores(together, across)
    for place in range(2):
        alone = together._replace(products=together.products[place])
        classifier, accuracy = choose(alone)
        assert 0 <= accuracy <= 1
        torch.testing.assert_close(found[place], class_scores(classifier, alone, across[place]))


def test_the_choice_has_the_highest_leave_one_out_accuracy_and_single_examples_leave_none(vectors):
    examples, _ = vectors
    given = Examples(examples @ examples.T, LABELS, WAY)
    right = {one: float((leave_one_out(one, given).argmax(-1) == LABELS).double().mean()) for one in candidates(given)}
    best, accuracy = choose(given)
    assert accuracy == right[best] == max(right.values())
    single = Examples(torch.eye(3, dtype=torch.float64), torch.arange(3), 3)
    assert choose(single) == (DEFAULTS["ridge"], None)


def test_many_examples_leave_out_logistic_regression():
    labels = torch.arange(3).repeat(60)
    kinds = {one.kind for one in candidates(Examples(torch.eye(180), labels, 3))}
    assert kinds == {"ncm", "ridge"}
