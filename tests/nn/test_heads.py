"""Heads: the factored classifier equals the dense one with the same weights, and never forms C x C."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import powerpool as pp
from powerpool.errors import ArgumentError, DTypeError, ShapeError
from tests.tolerances import tolerance

CURVES = [None, pp.MaxExp(7), pp.SigmE(5.0), pp.Gamma(0.5)]


def _features(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def _head(size: int, classes: int = 3, rank: int = 3) -> pp.nn.FactoredHead:
    torch.manual_seed(1)
    head = pp.nn.FactoredHead(size, classes, rank).double()
    nn.init.normal_(head.bias)
    return head


class _Largest(TorchDispatchMode):
    """The most entries of any returned tensor, and the largest side of a square that fits inside one."""

    def __init__(self) -> None:
        super().__init__()
        self.side = self.entries = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.side = max(self.side, sorted((1, 1, *tensor.shape))[-2])
                self.entries = max(self.entries, tensor.numel())
        return result


@pytest.mark.parametrize("curve", CURVES, ids=str)
@pytest.mark.parametrize("rank", [1, 4])
def test_factored_head_is_the_dense_head_of_the_same_weights(curve: pp.Curve | None, rank: int) -> None:
    given = _features(2, 3, 6, 4)
    head = _head(6, rank=rank)
    dense = head.to_dense()
    matrix = pp.second_order_pool(given, curve, solver="gram")
    factor = pp.gram_factor(given, curve)
    expected = torch.einsum("kij,...ij->...k", head.dense_weight(), matrix) + head.bias
    torch.testing.assert_close(head(factor), expected, **tolerance(torch.float64))
    torch.testing.assert_close(dense(factor.dense()), expected, **tolerance(torch.float64))


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_gradients_of_both_heads_agree(curve: pp.Curve | None) -> None:
    head = _head(6)
    weights = torch.rand(2, 3, dtype=torch.float64)
    first, second = (_features(2, 6, 4).requires_grad_() for _ in range(2))
    (head(pp.gram_factor(first, curve)) * weights).sum().backward()
    dense_weight, bias = head.dense_weight(), head.bias.detach().clone().requires_grad_()
    matrix = pp.second_order_pool(second, curve, solver="gram")
    logits = pp.to_vector(matrix) @ pp.to_vector(dense_weight).mT + bias  # as DenseHead
    found = torch.autograd.grad((logits * weights).sum(), (second, head.weight, bias))
    for gradient, expected in zip((first.grad, head.weight.grad, head.bias.grad), found, strict=True):
        torch.testing.assert_close(gradient, expected, **tolerance(torch.float64))


def test_gradcheck_of_the_factored_head() -> None:
    head = _head(4)

    def logits(given: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        factor = pp.gram_factor(given, pp.MaxExp(3))
        return torch.func.functional_call(head, {"weight": weight, "bias": bias}, factor)

    leaves = (_features(2, 4, 3), head.weight.detach().clone(), head.bias.detach().clone())
    assert gradcheck(logits, tuple(leaf.requires_grad_() for leaf in leaves), fast_mode=True, check_forward_ad=True)


@pytest.mark.parametrize("curve", CURVES, ids=str)
def test_factored_head_never_forms_the_matrix(curve: pp.Curve | None) -> None:
    channels, classes, rank = 512, 3, 4
    pool = pp.nn.SecondOrderFactor2d(channels, curve, beta=0.5, trace_power=0.5, slope=0.1)
    head = pp.nn.FactoredHead(pool.size, classes, rank)
    given = torch.rand(2, channels, 4, 4, requires_grad=True)
    with _Largest() as seen:
        head(pool(given)).sum().backward()
    assert seen.side <= 2 * 16  # two sets of 16 locations, which a product may concatenate
    assert seen.entries <= given.numel()
    # The measure works: the dense form has a C x C matrix.
    with _Largest() as seen:
        pp.second_order_pool(given.flatten(-2), curve, solver="gram")
    assert seen.side == channels


def test_backward_inside_autocast_keeps_float32() -> None:
    head, given = _head(6).float(), _features(2, 6, 4, dtype=torch.float32)
    gradients = []
    for enabled in (False, True):
        leaf = given.clone().requires_grad_()
        head.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            head(pp.gram_factor(leaf, pp.MaxExp(7))).sum().backward()
        gradients.append((leaf.grad, head.weight.grad.clone()))
    for plain, cast in zip(*gradients, strict=True):
        torch.testing.assert_close(cast, plain, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_head_computes_in_float32(dtype: torch.dtype) -> None:
    head = _head(6).to(dtype)
    factor = pp.gram_factor(_features(2, 6, 4).to(dtype), pp.MaxExp(7))
    assert factor.features.dtype == factor.core.dtype == torch.float32
    logits = head(factor)
    assert logits.dtype == dtype
    torch.testing.assert_close(logits, head.float()(factor).to(dtype), **tolerance(dtype))


def test_heads_can_be_copied_and_saved() -> None:
    factor = pp.gram_factor(_features(2, 6, 4), pp.MaxExp(7))
    head = _head(6)
    other = pp.nn.FactoredHead(6, 3, 3).double()
    other.load_state_dict(head.state_dict())
    for copied in (copy.deepcopy(head), pickle.loads(pickle.dumps(head)), other):
        torch.testing.assert_close(copied(factor), head(factor), rtol=0, atol=0)
    assert repr(head) == "FactoredHead(size=6, classes=3, rank=3)"
    assert sum(weight.numel() for weight in head.parameters()) == 3 * 3 * 6 + 3
    assert sum(weight.numel() for weight in head.to_dense().parameters()) == 3 * (6 * 7 // 2) + 3


def test_dense_head_of_a_symmetric_weight_is_a_dot_product() -> None:
    torch.manual_seed(0)
    head = pp.nn.DenseHead(5, 2).double()
    matrix = pp.autocorrelation(_features(3, 5, 8))
    weight = pp.from_vector(head.linear.weight)
    expected = (weight * matrix.unsqueeze(-3)).sum((-2, -1)) + head.linear.bias
    torch.testing.assert_close(head(matrix), expected, **tolerance(torch.float64))


def test_factor_keeps_its_parts_and_its_matrix() -> None:
    given = _features(2, 6, 4)
    factor = pp.gram_factor(given, pp.MaxExp(7), beta=0.5)
    assert isinstance(factor, pp.GramFactor)
    assert factor.features.shape == (2, 6, 4)
    assert factor.core.shape == (2, 4, 4)
    torch.testing.assert_close(factor.core, factor.core.mT, **tolerance(torch.float64))
    product = factor.features @ factor.core @ factor.features.mT
    torch.testing.assert_close(factor.dense(), product, **tolerance(torch.float64))
    torch.testing.assert_close(
        product,
        pp.second_order_pool(given, pp.MaxExp(7), beta=0.5, solver="eigen"),
        **tolerance(torch.float64),
    )


@pytest.mark.parametrize(
    "call, error, key",
    [
        (lambda: pp.nn.FactoredHead(4, 2)(pp.gram_factor(torch.rand(5, 3))), ShapeError, r"\(5, 3\)"),
        (lambda: pp.nn.DenseHead(4, 2)(torch.eye(5)), ShapeError, r"\(5, 5\)"),
        (lambda: pp.nn.DenseHead(4, 2)(torch.rand(4, 5)), ShapeError, r"\(4, 5\)"),
        (lambda: pp.nn.FactoredHead(4, 2, 1)(torch.eye(4)), DTypeError, "GramFactor.*Tensor"),
        (lambda: pp.nn.FactoredHead(4, 2, rank=0), ArgumentError, "4, 2, 0"),
        (lambda: pp.nn.DenseHead(0, 3), ArgumentError, "0, 3"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], key: str) -> None:
    with pytest.raises(error, match=key):
        call()


def test_a_factor_passes_through_vmap_and_export() -> None:
    pool = pp.nn.SecondOrderFactor2d(6, pp.MaxExp(5))
    maps = torch.rand(3, 6, 2, 2)
    expected = pool(maps)
    mapped = torch.func.vmap(pool)(maps)
    exported = torch.export.export(pool, (maps,)).module()(maps)
    for factor in (mapped, exported):
        torch.testing.assert_close(factor.features, expected.features)
        torch.testing.assert_close(factor.core, expected.core)
