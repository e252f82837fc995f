"""The vector of a symmetric matrix against a double loop, and its inverse."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from powerpool.errors import DTypeError, ShapeError
from powerpool.vectorize import from_vector, to_vector
from tests.tolerances import tolerance

few = settings(max_examples=15, deadline=None)


def _reference(matrix: Tensor) -> Tensor:
    rows = matrix.tolist()
    size = len(rows)
    weight = {True: 1.0, False: math.sqrt(2)}
    return torch.tensor([weight[i == j] * rows[i][j] for i in range(size) for j in range(i, size)], dtype=matrix.dtype)


def _symmetric(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    matrix = torch.randn(*shape, shape[-1], dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return matrix + matrix.mT


class TestToVector:
    @pytest.mark.parametrize("size", [1, 2, 3, 10])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_equals_the_double_loop(self, size: int, dtype: torch.dtype) -> None:
        matrices = _symmetric(2, 3, size, dtype=dtype)
        expected = torch.stack([_reference(m) for m in matrices.flatten(0, 1)]).view(2, 3, -1)
        assert_close(to_vector(matrices), expected, **tolerance(dtype))

    @given(st.integers(1, 9), st.integers(0, 10**6))
    @few
    def test_dot_products_are_kept(self, size: int, seed: int) -> None:
        a, b = _symmetric(2, size, seed=seed)
        assert_close(to_vector(a) @ to_vector(b), (a * b).sum(), **tolerance(torch.float64))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_is_rounded_once(self, dtype: torch.dtype) -> None:
        matrix = _symmetric(20, dtype=torch.float32).to(dtype)
        assert_close(to_vector(matrix), to_vector(matrix.float()).to(dtype), rtol=0, atol=0)

    def test_only_the_upper_triangle_has_a_gradient(self) -> None:
        matrix = _symmetric(4).requires_grad_()
        (gradient,) = torch.autograd.grad(to_vector(matrix).sum(), matrix)
        weights = torch.full((4, 4), math.sqrt(2), dtype=torch.float64).triu(1) + torch.eye(4, dtype=torch.float64)
        assert_close(gradient, weights, **tolerance(torch.float64))

    def test_bad_input(self) -> None:
        with pytest.raises(ShapeError, match=r"\(2, 3\)"):
            to_vector(torch.ones(2, 3))
        with pytest.raises(DTypeError, match="int64"):
            to_vector(torch.ones(2, 2, dtype=torch.int64))


class TestFromVector:
    @given(st.integers(1, 9), st.integers(0, 10**6))
    @few
    def test_round_trip(self, size: int, seed: int) -> None:
        matrix = _symmetric(2, size, seed=seed)
        vector = to_vector(matrix)
        back = from_vector(vector)
        assert_close(back, matrix, **tolerance(torch.float64))
        assert_close(back, back.mT, rtol=0, atol=0)
        assert_close(to_vector(back), vector, **tolerance(torch.float64))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_is_rounded_once(self, dtype: torch.dtype) -> None:
        vector = torch.randn(3, 21).to(dtype)
        assert_close(from_vector(vector), from_vector(vector.float()).to(dtype), rtol=0, atol=0)

    def test_bad_input(self) -> None:
        for length, nearest in ((0, "C = 1"), (2, "C = 1.*C = 2"), (50, "C = 9.*C = 10")):
            with pytest.raises(ShapeError, match=f"got {length}.*{nearest}"):
                from_vector(torch.ones(4, length))
        with pytest.raises(ShapeError, match="scalar"):
            from_vector(torch.tensor(1.0))
        with pytest.raises(DTypeError, match="int64"):
            from_vector(torch.ones(3, dtype=torch.int64))


@pytest.mark.parametrize("function, shape", [(to_vector, (2, 4, 4)), (from_vector, (2, 10))])
class TestBoth:
    def test_first_and_second_derivatives(self, function, shape: tuple[int, ...]) -> None:
        given_input = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(function, given_input, fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, given_input, fast_mode=True, check_fwd_over_rev=True)

    def test_compile_vmap_and_export(self, function, shape: tuple[int, ...]) -> None:
        class Module(torch.nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return function(x)

        x = torch.randn(5, *shape)
        expected = function(x)
        assert_close(torch.compile(function, backend="aot_eager", fullgraph=True)(x), expected, rtol=0, atol=0)
        assert_close(torch.vmap(function)(x), expected, rtol=0, atol=0)
        batch = {"x": {0: torch.export.Dim("batch")}}
        exported = torch.export.export(Module(), (x,), dynamic_shapes=batch).module()
        assert_close(exported(x[:3]), expected[:3], rtol=0, atol=0)

    def test_batch_of_none(self, function, shape: tuple[int, ...]) -> None:
        assert function(torch.ones(0, *shape)).shape[:2] == (0, 2)
