"""The battery of every pool: maps (*, C, H, W) in, vectors (*, out_features) out.

A new pool adds a :class:`PoolCase`, with a reference that shares no code with the library, and runs :data:`BATTERY`.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from mpmath import mpf
from torch import Tensor, nn
from torch.autograd import gradcheck

from tests import oracles
from tests.oracles import Reference
from tests.tolerances import tolerance

CHANNELS, HEIGHT, WIDTH = 4, 2, 3


@dataclass(frozen=True)
class PoolCase:
    """A pool for maps of :data:`CHANNELS` channels, and the vector it must give for one map."""

    name: str
    make: Callable[..., nn.Module]  # takes check=
    reference: Callable[[np.ndarray], np.ndarray]  # (C, H, W) -> (out_features,), float64
    out_features: int

    def __str__(self) -> str:
        return self.name


def first_order(maps: np.ndarray, reduce: str, reference: Reference | None) -> np.ndarray:
    """The mean or maximum over locations, then the curve."""
    pooled = getattr(maps.reshape(len(maps), -1), reduce)(axis=1)
    return pooled if reference is None else np.array([float(reference.value(mpf(p))) for p in pooled])


def second_order(
    maps: np.ndarray,
    mode: str,
    reference: Reference | None,
    beta: float = 0.0,
    pivots: int = 0,
    trace_power: float = 0.0,
    slope: float = 0.0,
    eps: float = 1e-6,
) -> np.ndarray:
    """The paper's formulas, location by location."""
    channels, height, width = maps.shape
    mean = maps.mean(axis=(1, 2))
    centres = np.linspace(-0.2, 1.2, pivots) if pivots else np.zeros(0)
    moment = np.zeros((channels + 2 * pivots, channels + 2 * pivots))
    for row in range(height):
        for column in range(width):
            codes = [np.exp(-((at - centres) ** 2) / 0.5**2) for at in (column / (width - 1), row / (height - 1))]
            phi = np.concatenate([maps[:, row, column] - beta * mean, *codes])
            moment += np.outer(phi, phi) / (height * width)
    scale = np.trace(moment) + eps
    if reference is None:
        result = moment
    elif mode == "spectral":
        result = oracles.spectral(moment, reference, eps, null=len(moment) * np.finfo(np.float64).eps)
    else:
        p = moment / scale if reference.trace_normalize else moment
        result = np.array([[float(reference.value(mpf(entry))) for entry in line] for line in p])
    return _vector(result * scale**trace_power + slope * moment)


def _vector(matrix: np.ndarray) -> np.ndarray:
    rows, columns = np.triu_indices(len(matrix))
    return matrix[rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))


def maps(*leading: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:  # shape: (*leading, C, H, W)
    """Positive maps with few digits, the same problem in every precision."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(*leading, CHANNELS, HEIGHT, WIDTH, generator=generator, dtype=torch.float64)
    return ((values * 64).round() / 64 + 1 / 64).to(dtype)


def check_value_is_that_of_the_reference(case: PoolCase) -> None:
    given = maps(3)
    expected = torch.stack([torch.from_numpy(case.reference(one)) for one in given.numpy()])
    # The slope of MaxExp(50) and the condition of the square root magnify round-off.
    torch.testing.assert_close(case.make()(given), expected, **tolerance(torch.float64))
    torch.testing.assert_close(case.make()(given.float()).double(), expected, **tolerance(torch.float32))


def check_out_features_is_the_length_of_the_vector(case: PoolCase) -> None:
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
    assert gradcheck(case.make(), (maps(2, seed=1).requires_grad_(),))


def check_gradient_of_an_empty_batch_is_empty(case: PoolCase) -> None:
    given = maps(0).requires_grad_()
    case.make()(given).sum().backward()
    assert given.grad is not None
    assert given.grad.shape == given.shape


def check_layout_of_the_input_does_not_matter(case: PoolCase) -> None:
    pool, given = case.make(), maps(3, dtype=torch.float32)
    expected = pool(given)
    strided = torch.stack([given, given], dim=-1).flatten(-2)[..., ::2]
    assert not strided.is_contiguous()
    for other in (given.to(memory_format=torch.channels_last), given.mT.contiguous().mT, strided):
        torch.testing.assert_close(pool(other), expected, **tolerance(torch.float32))


def check_two_calls_agree_to_the_last_bit(case: PoolCase) -> None:
    pool, given = case.make(), maps(3, dtype=torch.float32)
    results, gradients = [], []
    for _ in range(2):
        leaf = given.clone().requires_grad_()
        result = pool(leaf)
        result.square().sum().backward()
        assert leaf.grad is not None
        results.append(result.detach())
        gradients.append(leaf.grad)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def check_input_is_left_alone(case: PoolCase) -> None:
    given = maps(3).requires_grad_()
    version, copied = given._version, given.detach().clone()
    case.make()(given).sum().backward()
    assert given._version == version
    torch.testing.assert_close(given.detach(), copied, rtol=0, atol=0)


def check_half_precision_is_computed_in_float32(case: PoolCase) -> None:
    pool = case.make()
    for dtype in (torch.float16, torch.bfloat16):
        given = maps(3, dtype=dtype).requires_grad_()
        result = pool(given)
        assert result.dtype == dtype
        # The vector scales rounded entries by sqrt 2, hence two roundings where the float32 result has one.
        torch.testing.assert_close(result, pool(given.float()).to(dtype), **tolerance(dtype))
        result.float().sum().backward()
        assert given.grad is not None
        assert given.grad.dtype == dtype
        assert torch.isfinite(given.grad).all()


def check_autocast_changes_nothing(case: PoolCase) -> None:
    pool, given = case.make(), maps(3, dtype=torch.float32)
    plain, cast = given.clone().requires_grad_(), given.clone().requires_grad_()
    expected = pool(plain)
    expected.square().sum().backward()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = pool(cast)
        result.square().sum().backward()  # also where backward runs inside the region
    assert result.dtype == torch.float32
    assert plain.grad is not None
    assert cast.grad is not None
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(cast.grad, plain.grad, rtol=0, atol=0)


def check_state_dict_round_trip(case: PoolCase) -> None:
    torch.manual_seed(0)
    pool = case.make()
    stored = io.BytesIO()
    torch.save(pool.state_dict(), stored)
    stored.seek(0)
    torch.manual_seed(1)
    other = case.make()
    other.load_state_dict(torch.load(stored, weights_only=True))
    torch.testing.assert_close(other(maps(2)), pool(maps(2)), rtol=0, atol=0)


def check_copies_are_equal(case: PoolCase) -> None:
    pool = case.make()
    for copied in (copy.deepcopy(pool), pickle.loads(pickle.dumps(pool))):
        assert repr(copied) == repr(pool)
        torch.testing.assert_close(copied(maps(2)), pool(maps(2)), rtol=0, atol=0)


def check_repr_says_what_the_head_needs(case: PoolCase) -> None:
    pool = case.make()
    assert f"out_features={case.out_features}" in repr(pool)
    if pool.curve is not None:
        assert f"(curve): {pool.curve}" in repr(pool)


def check_wrong_channels_are_refused(case: PoolCase) -> None:
    with pytest.raises(ValueError, match=rf"\(\*, {CHANNELS}, H, W\) \(got \(2, 5, 2, 3\)\).*Build it with"):
        case.make()(torch.rand(2, 5, 2, 3))
    with pytest.raises(ValueError, match=r"got \(2, 3\)"):
        case.make()(torch.rand(2, 3))


def check_wrong_dtype_is_refused(case: PoolCase) -> None:
    with pytest.raises(TypeError, match=r"got torch\.int64.*\.float\(\)"):
        case.make()(torch.ones(2, CHANNELS, HEIGHT, WIDTH, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"got list.*torch\.as_tensor"):
        case.make()([[1.0]])


def check_empty_map_is_refused(case: PoolCase) -> None:
    with pytest.raises(ValueError, match=r"at least one|>= 1"):
        case.make()(torch.rand(2, CHANNELS, 0, WIDTH))


def check_not_finite_is_refused(case: PoolCase) -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        given = maps(3)
        given[1, 2, 0, 1] = bad
        with pytest.raises(ValueError, match=r"got 1 NaN or infinite of \d+ entries.*check=False"):
            case.make()(given)


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
