"""Linear classifiers in the span of the vectors, against the same computed in the space of the vectors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import Tensor

from powerpool.tasks.vision import linear
from powerpool.tasks.vision.config import HeadConfig
from powerpool.tasks.vision.linear import SCALES, LinearFit, Span, score, temperature

CLASSES = 4


def fit(vectors, targets, classes, head, penalty, seed, validation=None) -> LinearFit:
    """The classifier for one penalty."""
    (found,) = linear.fit(vectors, targets, classes, head, [penalty], seed, validation)
    return found


def parallel(count: int, width: int = 300, seed: int = 0, spread: float = 0.05) -> tuple[Tensor, Tensor]:
    """Unit vectors of classes that differ little, as those of images do: their cosines are near 1."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % CLASSES
    classes = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(7))
    noise = torch.randn(count, width, generator=draw)
    vectors = 1 + spread * classes[targets] + 2 * spread * noise
    return torch.nn.functional.normalize(vectors, dim=-1), targets


# ---- the span --------------------------------------------------------------------------------------------------------


def test_small_differences_of_nearly_parallel_vectors_are_kept():
    """Their share is far below n times the round-off of float32, and classifiers depend on nothing else."""
    vectors = parallel(200, 300, spread=0.01)[0]
    span = Span.of(vectors)
    assert span.coordinates.shape == (200, 200)
    centred = span.coordinates.double() - span.coordinates.double().mean(0)
    expected = vectors.double() - vectors.double().mean(0)
    torch.testing.assert_close(centred @ centred.T, expected @ expected.T, rtol=0, atol=1e-6)


def test_other_vectors_are_projected_onto_the_span():
    vectors, others = parallel(20)[0].double(), parallel(9, seed=1)[0].double()
    span = Span.of(vectors)
    basis = np.linalg.qr(vectors.numpy().T)[0]
    expected = others.numpy() @ basis @ basis.T @ vectors.numpy().T
    torch.testing.assert_close(span.project(others) @ span.coordinates.T, torch.from_numpy(expected))
    torch.testing.assert_close(span.project(vectors), span.coordinates)


def test_weights_of_coordinates_become_weights_of_vectors(monkeypatch):
    monkeypatch.setattr(linear, "BLOCK", 64)  # 300 columns are several blocks and a rest
    vectors, others = parallel(20)[0].double(), parallel(9, seed=1)[0].double()
    span = Span.of(vectors)
    own = torch.randn(span.coordinates.shape[1], CLASSES, dtype=torch.float64)
    torch.testing.assert_close(others @ span.weights(own).T, span.project(others) @ own)


@pytest.mark.parametrize("kind, rank", [("duplicates", 5), ("single", 1), ("zero", 0)])
def test_dependent_vectors_have_fewer_coordinates(kind, rank):
    base = torch.randn(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    vectors = {"duplicates": base.repeat(3, 1), "single": base[:1], "zero": torch.zeros(4, 30).double()}[kind]
    span = Span.of(vectors)
    assert span.coordinates.shape == (len(vectors), rank)
    torch.testing.assert_close(span.coordinates @ span.coordinates.T, vectors @ vectors.T)
    assert span.project(base).shape == (5, rank)
    assert span.weights(torch.ones(rank, 2, dtype=torch.float64)).isfinite().all()


# ---- classifiers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.001, 0.3])
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-4), (torch.float64, 1e-8)])
def test_ridge_is_that_of_scikit_learn(penalty, dtype, bound):
    vectors, targets = parallel(60)
    others = parallel(25, seed=1)[0]
    span = Span.of(vectors.to(dtype))
    found = fit(span.coordinates, targets, CLASSES, HeadConfig(), penalty, seed=0)
    reference = Ridge(alpha=penalty, solver="cholesky").fit(vectors.double().numpy(), np.eye(CLASSES)[targets.numpy()])
    expected = torch.from_numpy(reference.predict(others.double().numpy()))
    scores = found.logits(span.project(others.to(dtype)))
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=bound)
    direct = others.double() @ span.weights(found.weight).double().T + found.bias.double()
    torch.testing.assert_close(direct, expected, rtol=0, atol=bound)


def test_softmax_regression_is_gradient_descent_with_momentum_in_the_space_of_the_vectors():
    head = HeadConfig("softmax", epochs=3, batch_size=8, learning_rate=0.02, scale=5.0)
    vectors, targets = parallel(30, 80)
    others, other_targets = parallel(10, 80, seed=1)
    span = Span.of(vectors)
    found = fit(span.coordinates, targets, CLASSES, head, 0.01, 3, (span.project(others), other_targets))

    mean = vectors.double().mean(0)
    inputs = 5.0 * (vectors.double() - mean)
    weight = torch.zeros(80, CLASSES, dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(CLASSES, dtype=torch.float64, requires_grad=True)
    speeds = [torch.zeros_like(weight), torch.zeros_like(bias)]
    order, step, steps, losses, validated = torch.Generator().manual_seed(3), 0, 3 * 4, [], []
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
        scores = (5.0 * (others.double() - mean) @ weight + bias).detach()
        validated.append(float(torch.nn.functional.cross_entropy(scores, other_targets)))
    whole = 5.0 * weight.detach()
    torch.testing.assert_close(span.weights(found.weight).double(), whole.T, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.bias.double(), bias.detach() - mean @ whole, rtol=1e-3, atol=1e-4)
    assert found.train_loss == pytest.approx(losses, rel=1e-4)
    assert found.validation_loss == pytest.approx(validated, rel=1e-4)


@pytest.mark.parametrize("kind", ["ridge", "softmax"])
def test_validation_does_not_change_the_classifier(kind):
    head = HeadConfig(kind, epochs=2)
    vectors, targets = parallel(20, 30)
    alone = fit(vectors, targets, CLASSES, head, 0.01, 0)
    validated = fit(vectors, targets, CLASSES, head, 0.01, 0, parallel(8, 30, seed=2))
    assert torch.equal(alone.weight, validated.weight)
    assert torch.equal(alone.bias, validated.bias)
    assert len(validated.validation_value) == (1 if kind == "ridge" else 2)


@pytest.mark.parametrize("kind", ["ridge", "softmax"])
def test_zero_vectors_give_the_most_frequent_class(kind):
    span = Span.of(torch.zeros(6, 10))
    targets = torch.tensor([0, 0, 0, 0, 1, 2])
    found = fit(span.coordinates, targets, 3, HeadConfig(kind, epochs=2), 0.1, 0)
    assert found.logits(span.project(torch.rand(2, 10))).argmax(1).tolist() == [0, 0]
    assert span.weights(found.weight).shape == (3, 10)


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
