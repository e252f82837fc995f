"""The pool over all crops of an image, against its formula, and the classifier around it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from powerpool.errors import ArgumentError, ShapeError
from powerpool.functional import second_order_pool
from powerpool.moments.coordinates import spatial_coordinates
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.model import ImageClassifier, SetPool, require_rectified
from powerpool.vectorize import to_vector
from tests.tasks.vision.samples import CHANNELS, HEAD_CHANNELS, tiny_backbone

SHAPE = (3, 4, 5, 2, 3)  # images, crops, channels, height, width
EVERY = [name for name in VISION_METHODS if name != "Baseline"]


def maps(dtype: torch.dtype = torch.float32, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.rand(shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def by_hand(given: Tensor, config: PoolConfig) -> np.ndarray:
    """Coordinates from their formula, the moment by a loop over crops and places, the spectrum by numpy."""
    _, crops, channels, height, width = given.shape
    pivots = np.linspace(-0.2, 1.2, config.pivots)
    found = []
    for image in given.double().numpy():
        scale = np.sqrt((image**2).sum(1).mean()) if config.unit_scale else 1.0
        features = []
        for crop in range(crops):
            for row in range(height):
                for column in range(width):
                    x, y = column / (width - 1), row / (height - 1)
                    places = [np.exp(-((place - pivots) ** 2) / config.sigma**2) for place in (x, y)]
                    own = image[crop, :, row, column] / scale
                    features.append(np.concatenate([own, *(config.alpha * np.array(places))]))
        stacked = np.array(features)
        stacked[:, :channels] -= config.beta * stacked[:, :channels].mean(0)
        moment = np.einsum("nc,nd->cd", stacked, stacked) / len(stacked)
        values, U = np.linalg.eigh(moment)
        spectrum = 1 - (1 - values / (values.sum() + 1e-6)) ** config.eta
        matrix = (U * spectrum) @ U.T
        rows, columns = np.triu_indices(len(matrix))
        vector = matrix[rows, columns] * np.where(rows == columns, 1, np.sqrt(2))
        found.append(vector / np.linalg.norm(vector) if config.unit_norm else vector)
    return np.array(found)


@pytest.mark.parametrize("method", ["SOP+SC+SpecMaxExp", "SOP+SC+SpecMaxExpF"])
@pytest.mark.parametrize(
    "changes", [{}, {"beta": 0.7}, {"unit_scale": False}, {"unit_norm": False, "alpha": 0.9, "sigma": 0.3}]
)
def test_the_pool_follows_its_formula(method, changes):
    config = PoolConfig(method, eta=7, pivots=3, **changes)
    found = SetPool(config, 5)(maps(torch.float64))
    torch.testing.assert_close(found, torch.from_numpy(by_hand(maps(torch.float64), config)), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", [name for name in EVERY if name.startswith("SOP")])
def test_the_crops_are_one_set(method):
    config = PoolConfig(method, eta=7, pivots=3, unit_scale=False, unit_norm=False)
    given, kind = maps(), VISION_METHODS[method]
    features = torch.cat([given[:, crop].flatten(2) for crop in range(4)], dim=-1)
    places = torch.cat([spatial_coordinates(2, 3, 3, 0.5, 0.1)] * 4, dim=-1) if kind.coordinates else None
    matrix = second_order_pool(
        features, kind.make_curve(config), kind.mode, coordinates=places, solver=kind.make_solver(config)
    )
    torch.testing.assert_close(SetPool(config, 5)(given), to_vector(matrix))


@pytest.mark.parametrize("method", EVERY)
def test_neither_the_order_of_crops_nor_the_scale_of_features_matters(method):
    pool = SetPool(PoolConfig(method, pivots=3), 5)
    torch.testing.assert_close(pool(maps()[:, [2, 0, 3, 1]]), pool(maps()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pool(1000 * maps()), pool(maps()), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pool(1e-3 * maps()), pool(maps()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", EVERY)
def test_shapes_and_lengths(method):
    pool = SetPool(PoolConfig(method, pivots=3), 5)
    found = pool(maps())
    side = 5 + 6 * VISION_METHODS[method].coordinates
    assert found.shape == (3, pool.out_features)
    assert pool.out_features == (5 if method.startswith("FOP") else side * (side + 1) // 2)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    plain = SetPool(PoolConfig(method, pivots=3, unit_norm=False), 5)(maps())
    torch.testing.assert_close(plain / plain.norm(dim=1, keepdim=True), found)
    assert float((plain.norm(dim=1) - 1).abs().max()) > 1e-4 or method == "SOP+NewtonSchulz"


def test_first_order_pooling_is_the_mean_over_locations():
    found = SetPool(PoolConfig("FOP", unit_scale=False, unit_norm=False), 5)(maps())
    torch.testing.assert_close(found, maps().mean(dim=(1, 3, 4)))
    curved = SetPool(PoolConfig("FOP+AsinhE", asinhe_gamma=3.0, unit_scale=False, unit_norm=False), 5)(maps())
    torch.testing.assert_close(curved, torch.asinh(3.0 * maps().mean(dim=(1, 3, 4))))


def test_the_baseline_has_the_head_of_the_network():
    backbone = tiny_backbone()
    given = maps(shape=(3, 4, CHANNELS, 2, 3))
    pool = SetPool(PoolConfig("Baseline", unit_norm=False), CHANNELS, backbone.head, HEAD_CHANNELS)
    expected = torch.stack([backbone.head(one).mean(0) for one in given])
    torch.testing.assert_close(pool(given), expected)
    assert pool.out_features == HEAD_CHANNELS == pool(given).shape[1]


@pytest.mark.parametrize("method", EVERY)
def test_an_image_without_features_has_finite_gradients(method):
    given = maps()
    given[1] = 0
    given.requires_grad_()
    found = SetPool(PoolConfig(method, pivots=3), 5)(given)
    assert found.isfinite().all()
    if not VISION_METHODS[method].coordinates:
        assert torch.equal(found[1], torch.zeros_like(found[1]))
    found.square().mul(torch.rand_like(found)).sum().backward()
    assert given.grad is not None
    assert given.grad.isfinite().all()
    assert given.grad[0].abs().max() > 0


@pytest.mark.parametrize("shape", [(4, 5, 2, 3), (3, 4, 6, 2, 3), (5,)])
def test_maps_of_another_shape_are_refused(shape):
    with pytest.raises(ShapeError, match=r"5, h, w"):
        SetPool(PoolConfig("SOP"), 5)(torch.rand(shape))


# ---- the classifier --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["Baseline", "FOP", "SOP+SC+SpecMaxExpF"])
def test_a_classifier_computes_logits_from_bytes(method):
    backbone = tiny_backbone()
    model = ImageClassifier(backbone, PoolConfig(method, pivots=3), classes=4).eval()
    torch.nn.init.normal_(model.classifier.weight, generator=torch.Generator().manual_seed(0))
    crops = torch.randint(256, (2, 3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.mean, backbone.std))
    expected = []
    for image in crops:
        own = torch.stack([backbone((crop[None].float() / 255 - mean) / std)[0] for crop in image])
        vector = SetPool(PoolConfig(method, pivots=3), CHANNELS, backbone.head, HEAD_CHANNELS)(own[None])
        expected.append(model.classifier(vector)[0])
    torch.testing.assert_close(model(crops), torch.stack(expected), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(crops.float() / 255), model(crops), rtol=1e-4, atol=1e-5)


def test_a_new_classifier_returns_zeros():
    model = ImageClassifier(tiny_backbone(), PoolConfig("SOP"), classes=4)
    assert torch.equal(model(torch.rand(2, 1, 3, 32, 32)), torch.zeros(2, 4))


def test_negative_entries_are_found_in_images_of_any_class():
    given = maps(shape=(60, 1, 2, 2, 2))
    require_rectified("SOP+MaxExp", given, "tiny")
    given[40:, :, 1] *= -1  # the last of three classes
    require_rectified("SOP", given, "tiny")
    with pytest.raises(ArgumentError, match="SOP\\+MaxExp"):
        require_rectified("SOP+MaxExp", given, "tiny")
