"""Division by the trace: the closed forms of its backward against autograd through plain operations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from powerpool.linalg.trace import features_by_trace, matrix_by_trace, product_by_trace, trace_of

Plain = Callable[[Tensor, float], Tensor]


def _features(x: Tensor, extra: float) -> Tensor:
    return x / (x.square().sum((-2, -1), keepdim=True) + extra).sqrt()


def _product(x: Tensor, extra: float) -> Tensor:
    return x @ x.mT / (x.square().sum((-2, -1), keepdim=True) + extra)


def _matrix(x: Tensor, extra: float) -> Tensor:
    return x / (x.diagonal(dim1=-2, dim2=-1).sum(-1)[..., None, None] + extra)


def _by_features(x: Tensor, extra: float) -> Tensor:
    return features_by_trace(x, extra)


def _by_product(x: Tensor, extra: float) -> Tensor:
    return product_by_trace(x, extra)


def _by_matrix(x: Tensor, extra: float) -> Tensor:
    return matrix_by_trace(x, trace_of(x.detach())[..., None, None] + extra)


FORMS = [
    pytest.param(_by_features, _features, (2, 3, 4), id="features"),
    pytest.param(_by_product, _product, (2, 3, 4), id="product"),
    pytest.param(_by_product, _product, (2, 2, 3, 4), id="product-with-more-leading"),
    pytest.param(_by_product, _product, (3, 4), id="product-without-leading"),
    pytest.param(_by_matrix, _matrix, (2, 3, 3), id="matrix"),
]


@pytest.mark.parametrize("extra", [0.0, 0.7])
@pytest.mark.parametrize("form, plain, shape", FORMS)
def test_value_and_gradient(form: Plain, plain: Plain, shape: tuple[int, ...], extra: float) -> None:
    x = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    found, expected = form(x, extra), plain(x, extra)
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    (found_grad,) = torch.autograd.grad(found, x, grad)
    (expected_grad,) = torch.autograd.grad(expected, x, grad)
    torch.testing.assert_close(found_grad, expected_grad)


@pytest.mark.parametrize("form, plain, shape", FORMS)
def test_second_derivative(form: Plain, plain: Plain, shape: tuple[int, ...]) -> None:
    """Against autograd: gradgradcheck would recompute the detached total at every step, and pass."""
    x = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    value = plain(x, 0.3)
    grad, direction = torch.randn_like(value), torch.randn_like(x)
    found, expected = [
        torch.autograd.grad(
            torch.autograd.grad(function(x, 0.3), x, grad, create_graph=True)[0], x, direction, retain_graph=True
        )[0]
        for function in (form, plain)
    ]
    torch.testing.assert_close(found, expected)
    assert expected.abs().max() > 1e-3


@pytest.mark.parametrize("form, plain, shape", FORMS)
def test_nan_in_the_total_is_nan_in_value_and_gradient(form: Plain, plain: Plain, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, requires_grad=True)
    result = form(x, float("nan"))
    result.sum().backward()
    assert result.isnan().all()
    assert x.grad is not None
    assert x.grad.isnan().all()
