"""Every system of equations gives the classifier that scikit-learn, or a plain loop, computes from all vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from powerpool.tasks.vision.config import HeadConfig, PoolConfig
from powerpool.tasks.vision.linear import VectorRows, train_softmax
from powerpool.tasks.vision.model import SetPool
from powerpool.tasks.vision.systems import Gram, Minibatches, NormalEquations, Samples, Subspace, krylov_basis
from powerpool.tasks.vision.vectors import Vectors, descriptors
from tests.tasks.vision.samples import GROUPS, noisy_maps

CHANNELS = 12  # vectors of 78 numbers
SOFTMAX = HeadConfig("softmax", epochs=3, batch_size=8, learning_rate=0.05, scale=4.0)


def make_samples(train: int = 40, keep: bool = True, block: int = 16, channels: int = CHANNELS) -> Samples:
    (maps, targets), (other_maps, other_targets) = noisy_maps(train, channels), noisy_maps(25, channels, seed=1)
    pool = SetPool(PoolConfig("SOP"), channels).eval()
    return Samples(Vectors(pool, [maps, other_maps], keep=keep), (targets, other_targets), GROUPS, block)


def all_vectors(samples: Samples) -> torch.Tensor:
    return descriptors(samples.vectors.pool, torch.cat(list(samples.vectors.maps)))


SYSTEMS = {
    "gram": Gram,
    "normal": NormalEquations,
    "all Krylov steps": lambda samples: NormalEquations(samples, Subspace(20)),
}


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "pooled again"])
@pytest.mark.parametrize("train", [40, 120], ids=["wide", "tall"])
def test_ridge_is_that_of_scikit_learn(name, keep, train):
    samples = make_samples(train, keep)
    system, vectors = SYSTEMS[name](samples), all_vectors(samples).double().numpy()
    penalties = [0.003, 0.1]
    fits = system.fit(1, HeadConfig(), penalties, 0)
    for penalty, scores in zip(penalties, system.scores(fits), strict=True):
        labels = np.eye(GROUPS)[samples.targets[0].numpy()]
        expected = Ridge(alpha=penalty).fit(vectors[:train], labels).predict(vectors[train:])
        bound = 5e-3 if "Krylov" in name else 2e-4
        torch.testing.assert_close(scores.double(), torch.from_numpy(expected), rtol=0, atol=bound)
    (final,) = system.fit(2, HeadConfig(), [0.01], 0)
    weight, bias = system.weights(final)
    reference = Ridge(alpha=0.01).fit(vectors, np.eye(GROUPS)[samples.labels(2).numpy()])
    found = vectors @ weight.double().numpy().T + bias.double().numpy()
    assert (weight.dtype, weight.shape) == (torch.float32, (GROUPS, samples.vectors.width))
    np.testing.assert_allclose(found, reference.predict(vectors), rtol=0, atol=bound)


@pytest.mark.parametrize("system_type", [Gram, Minibatches])
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "pooled again"])
def test_softmax_is_trained_in_the_space_of_the_vectors(system_type, keep):
    samples = make_samples(40, keep)
    system, vectors = system_type(samples), all_vectors(samples).double()
    train, others, penalties = vectors[:40], vectors[40:], [0.0, 0.01]
    rows = VectorRows(train.__getitem__, 40, train.mean(0), SOFTMAX.scale)
    expected = train_softmax(rows, samples.targets[0], GROUPS, SOFTMAX, penalties, 5)
    found = system.fit(1, SOFTMAX, penalties, 5)
    for scores, one, other in zip(system.scores(found), found, expected, strict=True):
        logits = other.logits(others - train.mean(0))
        torch.testing.assert_close(scores.double(), logits, rtol=1e-3, atol=1e-3)
        weight, bias = system.weights(one)
        torch.testing.assert_close(others @ weight.double().T + bias.double(), logits, rtol=1e-3, atol=1e-3)
        losses = torch.nn.functional.cross_entropy(logits, samples.targets[1])
        assert one.validation_loss[-1] == pytest.approx(float(losses), rel=1e-3)
        assert len(one.validation_value) == SOFTMAX.epochs
    (final,) = system.fit(2, SOFTMAX, [0.01], 5)
    assert final.validation_value == []


def test_a_krylov_basis_is_orthonormal_and_contains_the_class_means():
    samples = make_samples(120)
    basis = krylov_basis(samples, Subspace(3), 1)
    assert basis.shape[1] <= 3 * GROUPS
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]), rtol=0, atol=1e-4)
    vectors, targets = all_vectors(samples)[:120], samples.targets[0]
    means = torch.stack([vectors[targets == label].mean(0) for label in range(GROUPS)]) - vectors.mean(0)
    torch.testing.assert_close(means @ basis @ basis.T, means, rtol=0, atol=1e-6)
    wide = krylov_basis(samples, Subspace(3, groups=4), 1)
    assert basis.shape[1] < wide.shape[1] <= 3 * 4 * GROUPS
    torch.testing.assert_close(means @ wide @ wide.T, means, rtol=0, atol=1e-6)


def test_more_krylov_steps_come_nearer_to_all_dimensions():
    samples = make_samples(120, channels=20)
    head, exact = HeadConfig(), Gram(samples)
    expected = exact.scores(exact.fit(1, head, [0.003], 0))[0]
    systems = [NormalEquations(samples, Subspace(steps)) for steps in (1, 2, 4, 8, 16)]
    errors = [float((one.scores(one.fit(1, head, [0.003], 0))[0] - expected).norm()) for one in systems]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05 * errors[0]


def test_equal_images_end_the_krylov_space():
    samples = make_samples(40)
    (first, second), maps = samples.targets, samples.vectors.maps
    same = Vectors(samples.vectors.pool, [maps[0][:1].expand(40, -1, -1, -1, -1), maps[1]])
    system = NormalEquations(replace(samples, vectors=same), Subspace(3))
    (found,) = system.fit(1, HeadConfig(), [0.1], 0)
    assert found.weight.isfinite().all()
    assert system.scores([found])[0].isfinite().all()
    assert len(first) == 40
    assert len(second) == 25


def test_a_training_that_pools_again_is_resumed(tmp_path):
    samples, batches = make_samples(40, keep=False), []  # 65 images are 9 batches
    (whole,) = Minibatches(samples).fit(2, SOFTMAX, [0.01], 0)

    def stop(what, done, total, remark=""):
        batches.append(done)
        if len(batches) == 12:
            raise KeyboardInterrupt

    system = Minibatches(replace(samples, watch=stop))
    with pytest.raises(KeyboardInterrupt):
        system.fit(2, SOFTMAX, [0.01], 0, tmp_path / "state.pt")
    (resumed,) = system.fit(2, SOFTMAX, [0.01], 0, tmp_path / "state.pt")
    assert batches == [*range(1, 13), *range(10, 28)]
    assert torch.equal(resumed.weight, whole.weight)
