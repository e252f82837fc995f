"""The battery of every pool: maps (*, C, H, W) in, vectors (*, out_features) out.

A new pool adds a :class:`PoolCase`, with a reference without code of the library, and runs :data:`BATTERY`.
"""

from __future__ import annotations

import copy
import io
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from mpmath import mpf
from torch import Tensor, nn
from torch.autograd import gradcheck

from powerpool.errors import DTypeError, NotFiniteError, ShapeError
from tests import oracles
from tests.oracles import Reference
from tests.tolerances import tolerance

CHANNELS, HEIGHT, WIDTH = 4, 2, 3


@dataclass(frozen=True)
class PoolCase:
    """A pool for maps of :data:`CHANNELS` channels, and its vector for one map."""

    name: str
    make: Callable[..., nn.Module]  # accepts check=
    reference: Callable[[np.ndarray], np.ndarray]  # (C, H, W) -> (out_features,), float64
    out_features: int

    def __str__(self) -> str:
        return self.name


def first_order(maps: np.ndarray, reduce: str, reference: Reference | None) -> np.ndarray:
    """The mean or maximum over locations, then the curve."""
    pooled = getattr(maps.reshape(len(maps), -1), reduce)(axis=1)
    return pooled if reference is None else np.array([float(reference.value(mpf(p))) for p in pooled])


def second_order(maps: np.ndarray, pivots: int = 0, **options: Any) -> np.ndarray:
    """:func:`tests.oracles.second_order` of a map."""
    channels, height, width = maps.shape
    codes = oracles.coordinates(height, width, pivots) if pivots else None
    return oracles.second_order(maps.reshape(channels, -1), codes=codes, **options)


def maps(*leading: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:  # shape: (*leading, C, H, W)
    """Positive maps with few digits, the same problem in every precision."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(*leading, CHANNELS, HEIGHT, WIDTH, generator=generator, dtype=torch.float64)
    return ((values * 64).round() / 64 + 1 / 64).to(dtype)


def check_value_equals_the_reference(case: PoolCase) -> None:
    given = maps(3)
    expected = torch.stack([torch.from_numpy(case.reference(one)) for one in given.numpy()])
    # The slope of MaxExp(50) and the condition of the square root magnify round-off.
    torch.testing.assert_close(case.make()(given), expected, **tolerance(torch.float64))
    torch.testing.assert_close(case.make()(given.float()).double(), expected, **tolerance(torch.float32))


def check_out_features(case: PoolCase) -> None:
    pool = case.make()
    assert pool.out_features == case.out_features
    assert nn.Linear(pool.out_features, 2)(pool(maps(3, dtype=torch.float32))).shape == (3, 2)


def check_any_leading_dimensions(case: PoolCase) -> None:
    pool = case.make()
    many = maps(2, 3)
    result = pool(many)
    assert result.shape == (2, 3, case.out_features)
    torch.testing.assert_close(pool(many[0]), result[0], **tolerance(torch.float64))
    torch.testing.assert_close(pool(many[1, 2]), result[1, 2], **tolerance(torch.float64))
    assert pool(many[:0]).shape == (0, 3, case.out_features)
    assert pool(many[0, :0]).shape == (0, case.out_features)


def check_gradient(case: PoolCase) -> None:
    assert gradcheck(case.make(), (maps(2, seed=1).requires_grad_(),), fast_mode=True, check_forward_ad=True)
    empty = maps(0).requires_grad_()
    case.make()(empty).sum().backward()
    assert empty.grad is not None
    assert empty.grad.shape == empty.shape


def check_memory_layout_does_not_matter(case: PoolCase) -> None:
    pool, given = case.make(), maps(3, dtype=torch.float32)
    expected = pool(given)
    strided = torch.stack([given, given], dim=-1).flatten(-2)[..., ::2]
    assert not strided.is_contiguous()
    for other in (given.to(memory_format=torch.channels_last), given.mT.contiguous().mT, strided):
        torch.testing.assert_close(pool(other), expected, **tolerance(torch.float32))


def check_two_calls_are_equal_and_leave_the_input_unchanged(case: PoolCase) -> None:
    pool, given = case.make(), maps(3, dtype=torch.float32).requires_grad_()
    version, copied = given._version, given.detach().clone()
    results = []
    for _ in range(2):
        result = pool(given)
        results.append((result.detach(), torch.autograd.grad(result.square().sum(), given)[0]))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert given._version == version
    torch.testing.assert_close(given.detach(), copied, rtol=0, atol=0)


def check_copies_are_equal(case: PoolCase) -> None:
    pool, stored = case.make(), io.BytesIO()
    torch.save(pool.state_dict(), stored)
    stored.seek(0)
    loaded = case.make()
    loaded.load_state_dict(torch.load(stored, weights_only=True))
    for copied in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool)), loaded):
        assert repr(copied) == repr(pool)
        torch.testing.assert_close(copied(maps(2)), pool(maps(2)), rtol=0, atol=0)
    assert f"out_features={case.out_features}" in repr(pool)
    if pool.curve is not None:
        assert f"(curve): {pool.curve}" in repr(pool)


def check_bad_input_is_refused(case: PoolCase) -> None:
    pool = case.make()
    for shape in ((2, 5, 2, 3), (2, 3)):
        with pytest.raises(ShapeError, match=re.escape(str(shape))):
            pool(torch.rand(shape))
    with pytest.raises(ValueError, match=r"got.* 0"):
        pool(torch.rand(2, CHANNELS, 0, WIDTH))
    with pytest.raises(DTypeError, match="int64"):
        pool(torch.ones(2, CHANNELS, HEIGHT, WIDTH, dtype=torch.int64))
    with pytest.raises(DTypeError, match="list"):
        pool([[1.0]])
    for bad in (torch.nan, torch.inf, -torch.inf):
        given = maps(3)
        given[1, 2, 0, 1] = bad
        with pytest.raises(NotFiniteError, match="1 NaN"):
            pool(given)


def check_not_finite_stays_in_its_own_map(case: PoolCase) -> None:
    pool = case.make(check=False)
    for bad in (torch.nan, torch.inf, -torch.inf):
        given = maps(3)
        expected = pool(given)
        given[1, :, 0, 1] = bad
        result = pool(given)
        assert result[1].isnan().all()
        torch.testing.assert_close(result[::2], expected[::2], **tolerance(torch.float64))


BATTERY = [check for name, check in sorted(globals().items()) if name.startswith("check_")]
