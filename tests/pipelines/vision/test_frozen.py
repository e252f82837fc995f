"""Training on stored features, against the same computed plainly in the space of the vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from torch import Tensor

from powerpool.tasks.vision import frozen
from powerpool.tasks.vision.config import HeadConfig, PoolConfig
from powerpool.tasks.vision.frozen import SCALES, Fit, Span, bits, descriptors, score, summary, temperature
from powerpool.tasks.vision.model import SetPool

CLASSES = 4


def fit(vectors, targets, classes, head, penalty, seed, validation=None) -> Fit:
    """The classifier for one penalty."""
    (found,) = frozen.fit(vectors, targets, classes, head, [penalty], seed, validation)
    return found


def parallel(count: int, width: int = 300, seed: int = 0, spread: float = 0.05) -> tuple[Tensor, Tensor]:
    """Unit vectors of classes that differ little, as those of pictures: their cosines are near 1."""
    draw = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % CLASSES
    classes = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(7))
    noise = torch.randn(count, width, generator=draw)
    vectors = 1 + spread * classes[targets] + 2 * spread * noise
    return torch.nn.functional.normalize(vectors, dim=-1), targets


# ---- the span --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dot_products_are_kept(dtype):
    vectors = parallel(40)[0].to(dtype)
    span = Span.of(vectors)
    assert span.coordinates.shape == (40, 40)
    assert span.coordinates.dtype == dtype
    found, expected = span.coordinates.double(), vectors.double()
    torch.testing.assert_close(found @ found.T, expected @ expected.T, rtol=0, atol=4e-7)


def test_directions_that_tell_nearly_parallel_vectors_apart_are_kept():
    """Their share is far below n times the round-off of float32, and classifiers are made of nothing else."""
    vectors = parallel(600, 900, spread=0.01)[0]
    span = Span.of(vectors)
    assert span.coordinates.shape[1] == 600
    centred = span.coordinates.double() - span.coordinates.double().mean(0)
    expected = vectors.double() - vectors.double().mean(0)
    torch.testing.assert_close(centred @ centred.T, expected @ expected.T, rtol=0, atol=1e-6)


def test_the_part_of_other_vectors_that_lies_in_the_span():
    vectors, others = parallel(20)[0].double(), parallel(9, seed=1)[0].double()
    span = Span.of(vectors)
    basis = np.linalg.qr(vectors.numpy().T)[0]
    expected = others.numpy() @ basis @ basis.T @ vectors.numpy().T
    torch.testing.assert_close(span.project(others) @ span.coordinates.T, torch.from_numpy(expected))
    torch.testing.assert_close(span.project(vectors), span.coordinates)


def test_weights_of_coordinates_are_weights_of_vectors(monkeypatch):
    monkeypatch.setattr(frozen, "BLOCK", 64)  # 300 columns are several blocks and a rest
    vectors, others = parallel(20)[0].double(), parallel(9, seed=1)[0].double()
    span = Span.of(vectors)
    own = torch.randn(span.coordinates.shape[1], CLASSES, dtype=torch.float64)
    weights = span.weights(own)
    assert weights.shape == (CLASSES, 300)
    torch.testing.assert_close(others @ weights.T, span.project(others) @ own)
    basis = vectors.T @ span.mixing
    torch.testing.assert_close(weights, (basis @ own).T)


@pytest.mark.parametrize("kind, rank", [("duplicates", 5), ("combinations", 5), ("single", 1), ("zero", 0)])
def test_vectors_that_do_not_span_as_many_directions(kind, rank):
    base = torch.randn(5, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    vectors = {
        "duplicates": base.repeat(3, 1),
        "combinations": torch.randn(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) @ base,
        "single": base[:1],
        "zero": torch.zeros(4, 30, dtype=torch.float64),
    }[kind]
    span = Span.of(vectors)
    assert span.coordinates.shape == (len(vectors), rank)
    torch.testing.assert_close(span.coordinates @ span.coordinates.T, vectors @ vectors.T)
    assert span.project(base).shape == (5, rank)
    assert span.weights(torch.ones(rank, 2, dtype=torch.float64)).isfinite().all()


# ---- classifiers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", [0.001, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ridge_is_ridge_regression_in_the_space_of_the_vectors(penalty, dtype):
    vectors, targets = parallel(60)
    others = parallel(25, seed=1)[0]
    span = Span.of(vectors.to(dtype))
    found = fit(span.coordinates, targets, CLASSES, HeadConfig(), penalty, seed=0)
    reference = Ridge(alpha=penalty, solver="cholesky").fit(vectors.double().numpy(), np.eye(CLASSES)[targets.numpy()])
    expected = torch.from_numpy(reference.predict(others.double().numpy()))
    bound = 1e-8 if dtype == torch.float64 else 2e-4
    scores = found.logits(span.project(others.to(dtype)))
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=bound)
    weights = span.weights(found.weight).double()
    torch.testing.assert_close(weights, torch.from_numpy(reference.coef_), rtol=0, atol=10 * bound)
    direct = others.double() @ weights.T + found.bias.double()
    torch.testing.assert_close(direct, expected, rtol=0, atol=bound)


def test_softmax_regression_is_gradient_descent_in_the_space_of_the_vectors():
    head = HeadConfig("softmax", epochs=3, batch_size=8, learning_rate=0.02, scale=5.0)
    vectors, targets = parallel(30, 80)
    others, other_targets = parallel(10, 80, seed=1)
    span = Span.of(vectors)
    validation = (span.project(others), other_targets)
    found = fit(span.coordinates, targets, CLASSES, head, 0.01, 3, validation)

    def plain() -> tuple[Tensor, Tensor, list[float], list[float]]:
        mean = vectors.double().mean(0)
        inputs = 5.0 * (vectors.double() - mean)
        weight = torch.zeros(80, CLASSES, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(CLASSES, dtype=torch.float64, requires_grad=True)
        speeds = [torch.zeros_like(weight), torch.zeros_like(bias)]
        order, step, steps, losses, looks = torch.Generator().manual_seed(3), 0, 3 * 4, [], []
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
            seen = (5.0 * (others.double() - mean) @ weight + bias).detach()
            looks.append(float(torch.nn.functional.cross_entropy(seen, other_targets)))
        whole = 5.0 * weight.detach()
        return whole, bias.detach() - mean @ whole, losses, looks

    weight, bias, losses, looks = plain()
    torch.testing.assert_close(span.weights(found.weight).double(), weight.T, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.bias.double(), bias, rtol=1e-3, atol=1e-4)
    assert found.train_loss == pytest.approx(losses, rel=1e-4)
    assert found.validation_loss == pytest.approx(looks, rel=1e-4)
    assert losses[-1] < losses[0]
    logits = found.logits(span.project(others))
    torch.testing.assert_close(logits.double(), others.double() @ weight + bias, rtol=1e-3, atol=1e-3)
    assert found.validation_value[-1] == score(logits, other_targets)[1]


@pytest.mark.parametrize("kind", ["ridge", "softmax"])
def test_looking_at_validation_changes_nothing(kind):
    head = HeadConfig(kind, epochs=2)
    vectors, targets = parallel(20, 30)
    alone = fit(vectors, targets, CLASSES, head, 0.01, 0)
    looked = fit(vectors, targets, CLASSES, head, 0.01, 0, parallel(8, 30, seed=2))
    assert torch.equal(alone.weight, looked.weight)
    assert torch.equal(alone.bias, looked.bias)
    assert alone.validation_value == []
    assert len(looked.validation_value) == (1 if kind == "ridge" else 2)
    assert alone.converged is None


def test_the_seed_is_that_of_the_order():
    vectors, targets = parallel(20, 30)
    head = HeadConfig("softmax", epochs=1, batch_size=4)
    one, same, other = (fit(vectors, targets, CLASSES, head, 0.01, seed).weight for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("kind", ["ridge", "softmax"])
def test_vectors_without_a_direction_give_the_shares_of_the_classes(kind):
    span = Span.of(torch.zeros(6, 10))
    targets = torch.tensor([0, 0, 0, 0, 1, 2])
    found = fit(span.coordinates, targets, 3, HeadConfig(kind, epochs=2), 0.1, 0)
    scores = found.logits(span.project(torch.rand(2, 10)))
    assert scores.argmax(1).tolist() == [0, 0]
    assert span.weights(found.weight).shape == (3, 10)


def test_the_epoch_of_convergence():
    weight = torch.zeros(1, 2)
    curve = [10.0, 60.0, 79.4, 79.5, 70.0, 80.0, 79.0]
    assert Fit(weight, weight[0], curve, curve, curve).converged == 4
    assert Fit(weight, weight[0], curve, [], []).converged is None
    assert Fit(weight, weight[0], [], [1.0], [50.0]).converged is None  # ridge has no epochs
    assert Fit(weight, weight[0], [], [1.0], [50.0]).curves() == {}
    kept = Fit(weight, weight[0], [0.123456], [12345.6], [99.99999]).curves()
    assert kept == {"train_loss": [0.1235], "validation_loss": [12350.0], "validation_value": [100.0]}


@given(seed=st.integers(0, 100), sharp=st.sampled_from([0.05, 0.3, 1.0, 20.0]))
def test_the_temperature_has_the_lowest_cross_entropy_of_all_candidates(seed, sharp):
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
    assert (min(SCALES), max(SCALES)) == (0.25, 1024.0)


# ---- what is kept ----------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_bits_are_those_of_numpy(flags):
    assert bits(torch.tensor(flags)) == np.packbits(flags).tobytes().hex()


@given(seed=st.integers(0, 50), classes=st.integers(2, 8))
def test_the_summary_counts_what_is_right(seed, classes):
    draw = np.random.default_rng(seed)
    scores, targets = draw.permuted(np.tile(np.arange(classes) * 1.0, (9, 1)), axis=1), draw.integers(0, classes, 9)
    own = scores[np.arange(9), targets]
    better = (scores > own[:, None]).sum(1)
    found = summary(torch.from_numpy(scores), torch.from_numpy(targets))
    assert found["value"] == pytest.approx(100 * (better == 0).mean())
    assert found["top5"] == pytest.approx(100 * (better < 5).mean())
    assert found["count"] == 9
    assert found["right"] == np.packbits(better == 0).tobytes().hex()
    assert score(torch.from_numpy(scores), torch.from_numpy(targets))[1] == pytest.approx(found["value"])


def test_descriptors_are_pooled_in_parts_of_a_few():
    pool = SetPool(PoolConfig("SOP+SC+SigmE", pivots=2), channels=3)
    maps = torch.rand(19, 2, 3, 2, 2).half()
    found = descriptors(pool, maps)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.cat([pool(one[None].float()) for one in maps]))
    assert not found.requires_grad
    assert descriptors(SetPool(replace(pool.config, method="FOP"), 3), maps).shape == (19, 3)
