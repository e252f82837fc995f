"""Pooled vectors in memory and in blocks, and their products."""

from __future__ import annotations

import pytest
import torch

from powerpool.tasks.vision import vectors as module
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.model import SetPool
from powerpool.tasks.vision.vectors import Vectors, choose_dtype, descriptors, products
from tests.tasks.vision.samples import noisy_maps, parallel_vectors

POOL = SetPool(PoolConfig("SOP"), channels=3).eval()


@pytest.fixture
def splits():
    return [noisy_maps(19, 3)[0], noisy_maps(10, 3, seed=1)[0]]


def test_descriptors_are_pooled_a_few_at_a_time():
    pool = SetPool(PoolConfig("SOP+SC+SigmE", pivots=2), channels=3)
    maps = torch.rand(19, 2, 3, 2, 2).half()
    found = descriptors(pool, maps)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.cat([pool(one[None].float()) for one in maps]))
    assert not found.requires_grad


@pytest.mark.parametrize("keep", [True, False])
def test_vectors_are_those_of_the_pool_minus_a_common_one(splits, keep):
    vectors = Vectors(POOL, splits, keep=keep)
    expected = descriptors(POOL, torch.cat(splits)) - vectors.origin
    assert (len(vectors), vectors.width, vectors.is_kept) == (29, 6, keep)
    some = torch.tensor([28, 3, 18, 19])
    torch.testing.assert_close(vectors.take(some), expected[some])
    blocks = list(vectors.blocks(4, 15, 27))
    assert [part.stop for part, _ in blocks] == [19, 23, 27]
    torch.testing.assert_close(torch.cat([rows for _, rows in blocks]), expected[15:27])
    torch.testing.assert_close(vectors.mean(19, 5), expected[:19].mean(0))


def test_progress_counts_pooled_images(splits, monkeypatch):
    monkeypatch.setattr(module, "KEEP_BLOCK", 10)
    told = []
    Vectors(POOL, splits, watch=lambda *given: told.append(given))
    assert told == [("pooled images", done, 29) for done in (0, 10, 20, 29)]


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 3e-7), (torch.float64, 1e-15)])
def test_products_of_centred_vectors(dtype, bound, monkeypatch):
    monkeypatch.setattr(module, "COLUMNS", 64)  # 300 columns are several blocks and a rest
    vectors = parallel_vectors(20)[0]
    vectors = vectors - vectors.mean(0)
    exact = vectors.double() @ vectors[:7].double().T
    found = products(vectors, vectors[:7], dtype)
    assert found.dtype == torch.float64
    assert float((found - exact).abs().max()) < bound * float(exact.abs().max())


def test_small_problems_are_exact_and_large_ones_fast():
    assert choose_dtype(2040, 54_615) == torch.float64
    assert choose_dtype(5994, 51_360) == torch.float32
    assert choose_dtype(75_000, 320) == torch.float64
