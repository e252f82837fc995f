"""Relation descriptors against the formulas of the paper, as loops over support sets."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import powerpool as pp
from powerpool.errors import ArgumentError, DTypeError, ShapeError, UnknownNameError
from tests.tolerances import tolerance

VARIANTS = ["outer", "outer+L", "outer+P"]
CURVES = [("elementwise", pp.SigmE(5.0)), ("spectral", pp.SigmE(5.0)), ("spectral", pp.MaxExp(7)), ("spectral", None)]


def _sets(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def _moment(features: Tensor, beta: float, coordinates: Tensor | None) -> Tensor:
    centred = features - beta * features.mean(-1, keepdim=True)
    extended = centred if coordinates is None else torch.cat([centred, coordinates])
    return extended @ extended.mT / features.shape[-1]


def _power(matrix: Tensor, mode: str, curve: pp.Curve | None) -> Tensor:
    if curve is None:
        return matrix
    p = matrix / (matrix.trace() + 1e-6)
    if mode == "elementwise":
        return curve.value(p)
    values, vectors = torch.linalg.eigh(p)
    return vectors @ torch.diag(curve.value(values.clamp(min=0))) @ vectors.mT


def _explicit(
    support: Tensor, query: Tensor, mode: str, curve: pp.Curve | None, variant: str, beta: float, grid: Tensor | None
) -> Tensor:
    """The three formulas, for one support (J, K, N) and one query (K, N)."""
    if variant == "outer":
        first = _power(_moment(support.mean(0), beta, grid), mode, curve)
    elif variant == "outer+L":
        first = sum(_power(_moment(one, beta, grid), mode, curve) for one in support) / len(support)
    else:
        first = _power(sum(_moment(one, beta, grid) for one in support) / len(support), mode, curve)
    return torch.stack([first, _power(_moment(query, beta, grid), mode, curve)])


@pytest.mark.parametrize("beta, coordinates", [(0.0, False), (0.5, True)], ids=["plain", "centred-coordinates"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode, curve", CURVES, ids=str)
def test_descriptor_is_the_formula(
    mode: str, curve: pp.Curve | None, variant: str, beta: float, coordinates: bool
) -> None:
    support, query = _sets(2, 3, 4, 6), _sets(2, 4, 6, seed=1)
    grid = pp.spatial_coordinates(2, 3, pivots=2, dtype=torch.float64) if coordinates else None
    result = pp.nn.RelationDescriptor(curve, mode, variant, beta=beta)(support, query, grid)
    size = 8 if coordinates else 4
    assert result.shape == (2, 2, size, size)
    for episode in range(2):
        expected = _explicit(support[episode], query[episode], mode, curve, variant, beta, grid)
        torch.testing.assert_close(result[episode], expected, **tolerance(torch.float64))


@pytest.mark.parametrize("mode, curve", CURVES, ids=str)
def test_variants_are_equal_for_one_support_set_and_differ_for_more(mode: str, curve: pp.Curve | None) -> None:
    query = _sets(4, 6)
    one, three = (_sets(shots, 4, 6, seed=1) for shots in (1, 3))
    descriptors = [pp.nn.RelationDescriptor(curve, mode, variant, beta=0.3) for variant in VARIANTS]
    for descriptor in descriptors[1:]:
        expected = descriptors[0](one, query)
        torch.testing.assert_close(descriptor(one, query), expected, **tolerance(torch.float64))
        assert (descriptor(three, query) - descriptors[0](three, query)).abs().max() > 1e-3


def test_linear_variant_and_pooled_variant_are_equal_without_a_curve() -> None:
    support, query = _sets(3, 4, 6), _sets(4, 6, seed=1)
    linear, pooled = (pp.nn.RelationDescriptor(None, variant=variant) for variant in ("outer+L", "outer+P"))
    torch.testing.assert_close(linear(support, query), pooled(support, query), **tolerance(torch.float64))


@pytest.mark.parametrize("variant", VARIANTS)
def test_support_and_query_broadcast(variant: str) -> None:
    descriptor = pp.nn.RelationDescriptor(pp.SigmE(5.0), variant=variant)
    support, queries = _sets(5, 1, 3, 4, 6), _sets(1, 7, 4, 6, seed=1)  # 5 classes, 7 queries
    result = descriptor(support, queries)
    assert result.shape == (5, 7, 2, 4, 4)
    single = descriptor(support[2, 0], queries[0, 4])
    torch.testing.assert_close(result[2, 4], single, **tolerance(torch.float64))
    assert descriptor(support[:0], queries).shape == (0, 7, 2, 4, 4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode, curve", CURVES, ids=str)
def test_gradient(mode: str, curve: pp.Curve | None, variant: str) -> None:
    descriptor = pp.nn.RelationDescriptor(curve, mode, variant, beta=0.5)
    leaves = (_sets(2, 3, 5).requires_grad_(), _sets(3, 5, seed=1).requires_grad_())
    assert gradcheck(descriptor, leaves, fast_mode=True, check_forward_ad=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_half_precision_is_computed_in_float32(variant: str, dtype: torch.dtype) -> None:
    descriptor = pp.nn.RelationDescriptor(pp.SigmE(5.0), variant=variant, beta=1.0)
    support, query = _sets(5, 4, 6).to(dtype), _sets(4, 6, seed=1).to(dtype)
    result = descriptor(support, query)
    assert result.dtype == dtype
    # Exactly: a mean rounded to half precision in between would differ.
    torch.testing.assert_close(result, descriptor(support.float(), query.float()).to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode, curve", CURVES, ids=str)
def test_not_finite_stays_in_its_own_episode(mode: str, curve: pp.Curve | None, variant: str) -> None:
    support, query = _sets(3, 2, 4, 6), _sets(3, 4, 6, seed=1)
    expected = pp.nn.RelationDescriptor(curve, mode, variant, check=False)(support, query)
    support[0, 1, 2, 3], query[2, 0, 0] = torch.inf, torch.nan
    with pytest.raises(ValueError, match="1 NaN"):
        pp.nn.RelationDescriptor(curve, mode, variant)(support, query)
    result = pp.nn.RelationDescriptor(curve, mode, variant, check=False)(support, query)
    assert result[0, 0].isnan().all()
    assert result[2, 1].isnan().all()
    for episode, channel in [(0, 1), (1, 0), (1, 1), (2, 0)]:
        torch.testing.assert_close(result[episode, channel], expected[episode, channel], **tolerance(torch.float64))


def test_learnable_parameter_is_registered_and_receives_its_gradient() -> None:
    for mode in ("elementwise", "spectral"):
        eta = nn.Parameter(torch.tensor(5.0, dtype=torch.float64))
        descriptor = pp.nn.RelationDescriptor(pp.SigmE(eta), mode)
        assert list(descriptor.parameters()) == [eta]
        step = 1e-6

        def loss(value: float, mode: str = mode) -> float:
            return float(pp.nn.RelationDescriptor(pp.SigmE(value), mode)(_sets(2, 4, 6), _sets(4, 6)).square().sum())

        descriptor(_sets(2, 4, 6), _sets(4, 6)).square().sum().backward()
        difference = (loss(5.0 + step) - loss(5.0 - step)) / (2 * step)
        torch.testing.assert_close(eta.grad.item(), difference, rtol=1e-6, atol=1e-8)


def test_copies_and_repr() -> None:
    descriptor = pp.nn.RelationDescriptor("sigme", variant="outer+P", beta=0.25)
    for copied in (copy.deepcopy(descriptor), pickle.loads(pickle.dumps(descriptor))):
        assert repr(copied) == repr(descriptor)
        torch.testing.assert_close(
            copied(_sets(2, 4, 6), _sets(4, 6)), descriptor(_sets(2, 4, 6), _sets(4, 6)), rtol=0, atol=0
        )
    for shown in ("'elementwise'", "'outer+P'", "beta=0.25", "SigmE(eta=50.0"):
        assert shown in repr(descriptor)


@pytest.mark.parametrize(
    "options, given, error, key",
    [
        ({"variant": "inner"}, None, UnknownNameError, "'inner'.*'outer'"),
        ({"beta": -0.5}, None, ArgumentError, "-0.5"),
        ({}, (torch.rand(2, 4, 6), torch.rand(4, 5)), ShapeError, r"\(2, 4, 6\).*\(4, 5\)"),
        ({}, (torch.rand(4, 6), torch.rand(4, 6)), ShapeError, r"\(4, 6\)"),
        ({}, (torch.rand(0, 4, 6), torch.rand(4, 6)), ShapeError, r"\(0, 4, 6\)"),
        ({}, (torch.ones(2, 4, 6).long(), torch.rand(4, 6)), DTypeError, "support.*int64"),
        ({}, (torch.rand(2, 4, 6), torch.ones(4, 6).long()), DTypeError, "query.*int64"),
        ({}, (torch.rand(2, 4, 6), torch.rand(4, 6), torch.rand(4, 5)), ShapeError, "N = 6.*got 5"),
    ],
)
def test_bad_input(options: dict[str, Any], given: Any, error: type[Exception], key: str) -> None:
    with pytest.raises(error, match=key):
        pp.nn.RelationDescriptor("sigme", **options)(*given)
