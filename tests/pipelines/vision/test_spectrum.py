"""Spectra of a network that was trained end to end: those of its maps, and no trace of having looked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from powerpool.analysis import Gathering
from powerpool.data import Crops, ImageDataset, load_images
from powerpool.tasks.spectra import spread_out
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.tasks.vision.runs import TrainedModel
from tests.pipelines.vision.samples import CLASSES, tiny_backbone


def model(method: str) -> TrainedModel:
    network = ImageClassifier(tiny_backbone(), PoolConfig(method, eta=9, reduce_to=4), len(CLASSES))
    return TrainedModel(network, CLASSES, Crops(size=32, count=2, resize=32), is_trained=True)


@pytest.fixture(scope="module")
def pictures(textures):
    (split, *others) = load_images(textures).splits.values()
    return sum(others, start=split)


@pytest.mark.parametrize("method", ["SOP+SC+SpecMaxExpF", "SOP+SigmE"])
def test_spectra_are_those_of_the_maps_that_the_pool_sees(method, pictures):
    own = model(method)
    weights = {name: value.clone() for name, value in own.network.state_dict().items()}
    state = torch.get_rng_state()
    found = own.spectrum(pictures, "cpu")
    assert torch.equal(torch.get_rng_state(), state)
    for name, value in own.network.state_dict().items():
        assert torch.equal(value, weights[name]), name
    chosen = spread_out(len(pictures)).tolist()
    assert (len(pictures), len(chosen), found["samples"]) == (30, 16, 16)
    crops, pool = ImageDataset(pictures.select(chosen), own.crops), own.network.pool
    gathering = Gathering(pool.normalization, 16)
    with torch.no_grad():
        for one in crops:
            gathering.add(pool.feature_set(own.network.maps(one["images"][None])[0]))
    seen = gathering.result("test")
    np.testing.assert_allclose(found["before"], seen.before.spectra.mean(0), rtol=1e-2, atol=1e-5)
    np.testing.assert_allclose(found["after"], seen.after.spectra.mean(0), rtol=1e-2, atol=1e-5)


def test_a_first_order_pool_has_none(pictures):
    assert model("FOP").spectrum(pictures, "cpu") is None
