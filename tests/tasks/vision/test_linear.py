"""Ridge and softmax regression against scikit-learn and against a plain loop in the space of the vectors."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from powerpool.runs.record import Score
from powerpool.tasks.vision.config import HeadConfig
from powerpool.tasks.vision.linear import (
    SCALES,
    GramRows,
    LinearFit,
    VectorRows,
    centred_targets,
    score,
    solve_ridge,
    temperature,
    train_softmax,
)
from tests.tasks.vision.samples import GROUPS, parallel_vectors


def softmax(vectors, targets, head, penalties, **options) -> list[LinearFit]:
    """Classifiers of vectors."""
    rows = VectorRows(vectors.__getitem__, len(vectors), vectors.mean(0), head.scale)
    return train_softmax(rows, targets, GROUPS, head, penalties, 3, **options)


# ---- ridge -----------------------------------------------------------------------------------------------------------


def test_ridge_of_several_penalties_is_that_of_scikit_learn():
    vectors, targets = parallel_vectors(60, 20)
    centred = (vectors - vectors.mean(0)).double()
    right, share = centred_targets(targets, GROUPS)
    torch.testing.assert_close(share, torch.full((GROUPS,), 1 / GROUPS).double())
    penalties = [0.001, 0.3]
    found = solve_ridge(lambda: centred.T @ centred, centred.T @ right, penalties)
    for weight, penalty in zip(found, penalties, strict=True):
        reference = Ridge(alpha=penalty, solver="svd").fit(vectors.double().numpy(), np.eye(GROUPS)[targets.numpy()])
        torch.testing.assert_close(weight.T, torch.from_numpy(reference.coef_), rtol=1e-6, atol=1e-8)


def test_a_penalty_below_round_off_gives_the_smallest_solution():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 30, dtype=torch.float64, generator=draw).repeat(3, 1)
    right = torch.randn(12, 2, dtype=torch.float64, generator=draw)
    (found,) = solve_ridge(lambda: rows.T @ rows, rows.T @ right, [1e-30])
    expected = torch.from_numpy(np.linalg.pinv(rows.numpy(), rcond=1e-8)) @ right
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


def test_ridge_of_nothing_but_zeros_has_weights_of_zero():
    (found,) = solve_ridge(lambda: torch.zeros(3, 3).double(), torch.zeros(3, 2).double(), [0.1])
    assert torch.equal(found, torch.zeros(3, 2).double())


# ---- softmax ---------------------------------------------------------------------------------------------------------


def test_softmax_regression_is_gradient_descent_with_momentum():
    head = HeadConfig("softmax", epochs=3, batch_size=8, learning_rate=0.02, scale=5.0)
    vectors, targets = parallel_vectors(30, 80)
    (found,) = softmax(vectors.double(), targets, head, [0.01])

    inputs = 5.0 * (vectors.double() - vectors.double().mean(0))
    weight = torch.zeros(80, GROUPS, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(GROUPS, dtype=torch.float64, requires_grad=True)
    speeds = [torch.zeros_like(weight), torch.zeros_like(bias)]
    order, step, steps, losses = torch.Generator().manual_seed(3), 0, 3 * 4, []
    for _ in range(3):
        total = 0.0
        for part in torch.randperm(30, generator=order).split(8):
            logs = (inputs[part] @ weight + bias).log_softmax(1)
            loss = -logs[torch.arange(len(part)), targets[part]].mean()
            slopes = torch.autograd.grad(loss, [weight, bias])
            rate = 0.02 * (1 + np.cos(np.pi * step / steps)) / 2
            with torch.no_grad():
                for value, slope, speed, decay in zip((weight, bias), slopes, speeds, (0.01, 0.0), strict=True):
                    speed.mul_(0.9).add_(slope + decay * value)
                    value.sub_(rate * speed)
            step += 1
            total += loss.item() * len(part)
        losses.append(total / 30)
    torch.testing.assert_close(found.weight, 5.0 * weight.detach())
    torch.testing.assert_close(found.bias, bias.detach())
    assert found.train_loss == pytest.approx(losses)


def test_training_on_dot_products_is_training_on_vectors():
    head = HeadConfig("softmax", epochs=4, batch_size=7, learning_rate=0.05, scale=3.0)
    vectors, targets = parallel_vectors(30, 80)
    centred = (vectors - vectors.mean(0)).double()
    penalties = [0.0, 0.01]
    direct = softmax(centred, targets, head, penalties)
    found = train_softmax(GramRows(centred @ centred.T, 3.0), targets, GROUPS, head, penalties, 3)
    for one, other in zip(found, direct, strict=True):
        torch.testing.assert_close(centred.T @ one.weight, other.weight)
        torch.testing.assert_close(one.bias, other.bias)
        assert one.train_loss == pytest.approx(other.train_loss)
    assert not torch.equal(found[0].weight, found[1].weight)


def test_validation_does_not_change_the_classifier():
    head = HeadConfig("softmax", epochs=2)
    vectors, targets = parallel_vectors(20, 30)
    seen = []

    def validate(fits):
        seen.append([one.weight.clone() for one in fits])
        return [Score(50.0, 1.0) for _ in fits]

    alone, validated = softmax(vectors, targets, head, [0.1]), softmax(vectors, targets, head, [0.1], validate=validate)
    assert torch.equal(alone[0].weight, validated[0].weight)
    assert validated[0].validation_value == [50.0, 50.0]
    assert torch.equal(seen[-1][0], validated[0].weight)  # without the factor of the rows


def test_a_stopped_training_is_resumed_from_its_last_epoch(tmp_path):
    head = HeadConfig("softmax", epochs=4, batch_size=20)
    vectors, targets = parallel_vectors(40, 30)
    whole = softmax(vectors, targets, head, [0.0, 0.1])
    batches = []

    def stop(what, done, total, remark=""):
        batches.append(done)
        if batches == [1, 2, 3, 4, 5]:
            raise KeyboardInterrupt

    options = {"checkpoint": tmp_path / "state.pt", "watch": stop}
    with pytest.raises(KeyboardInterrupt):
        softmax(vectors, targets, head, [0.0, 0.1], **options)
    resumed = softmax(vectors, targets, head, [0.0, 0.1], **options)
    assert batches == [1, 2, 3, 4, 5, 5, 6, 7, 8]
    for one, other in zip(resumed, whole, strict=True):
        assert torch.equal(one.weight, other.weight)
        assert one.train_loss == other.train_loss


def test_zero_vectors_give_the_most_frequent_class():
    targets = torch.tensor([0, 0, 0, 0, 1, 2])
    (found,) = softmax(torch.zeros(6, 10), targets, HeadConfig("softmax", epochs=2), [0.1])
    assert found.logits(torch.zeros(2, 10)).argmax(1).tolist() == [0, 0]


# ---- scores ----------------------------------------------------------------------------------------------------------


def test_the_epoch_of_convergence():
    weight = torch.zeros(1, 2)
    curve = [10.0, 60.0, 79.4, 79.5, 70.0, 80.0, 79.0]
    assert LinearFit(weight, weight[0], curve, curve, curve).converged == 4
    assert LinearFit(weight, weight[0], curve, [], []).converged is None
    assert LinearFit(weight, weight[0], [], [1.0], [50.0]).converged is None  # ridge has no epochs
    assert LinearFit(weight, weight[0], [], [1.0], [50.0]).curves == {}
    kept = LinearFit(weight, weight[0], [0.123456], [12345.6], [99.99999]).curves
    assert kept == {"train_loss": (0.1235,), "validation_loss": (12350.0,), "validation_value": (100.0,)}


@given(seed=st.integers(0, 100), sharp=st.sampled_from([0.05, 0.3, 1.0, 20.0]))
def test_the_temperature_has_the_lowest_cross_entropy(seed, sharp):
    draw = np.random.default_rng(seed)
    targets = draw.integers(0, 3, 12)
    scores = draw.normal(size=(12, 3)) / sharp + np.eye(3)[targets] * draw.integers(0, 2, (12, 1))

    def entropy(scale: float) -> float:
        values = scale * scores
        logs = values - np.log(np.exp(values - values.max(1, keepdims=True)).sum(1, keepdims=True))
        logs = logs - values.max(1, keepdims=True)
        return float(-logs[np.arange(12), targets].mean())

    found = temperature(torch.from_numpy(scores), torch.from_numpy(targets))
    assert found in SCALES
    assert entropy(found) <= min(map(entropy, SCALES)) + 1e-12


def test_score_is_accuracy_and_cross_entropy():
    found = score(torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1]))
    assert found.value == pytest.approx(200 / 3)
    expected = np.mean([np.log1p(np.exp(-2)), np.log1p(np.exp(-1)), np.log1p(np.exp(3))])
    assert found.loss == pytest.approx(expected)


def test_a_matrix_is_freed_before_the_next_one_is_made():
    made = []

    def make_matrix():
        alive = [one for one in made if one() is not None]
        assert not alive
        array = -np.eye(3)  # the penalty 0.1 does not make it positive definite
        made.append(weakref.ref(array))
        return torch.from_numpy(array)

    solve_ridge(make_matrix, torch.ones(3, 2, dtype=torch.float64), [2.0, 3.0, 0.1, 2.0])
    assert len(made) == 5
