"""Products that use symmetry equal the plain formula."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import powerpool as pp
from powerpool.bench.measure import count
from powerpool.linalg import products


@pytest.fixture(autouse=True)
def panels_from_small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use panels for small matrices."""
    monkeypatch.setattr(products, "_PANELS_FROM", (16, 32))


def _commuting(size: int, batch: int = 2) -> tuple[Tensor, Tensor]:
    x = torch.randn(batch, size, size, dtype=torch.float64) / size
    a = x @ x.mT
    return a, a @ a + a


@pytest.mark.parametrize("size", [3, 31, 32, 35, 50])  # from 32 on in panels, of unequal height
def test_symmetric_products_are_the_products(size: int) -> None:
    a, b = _commuting(size)
    torch.testing.assert_close(products.symmetric_bmm(a, b), a @ b)
    found = products.symmetric_baddbmm(a, a, b, beta=2, alpha=-3)
    torch.testing.assert_close(found, 2 * a - 3 * a @ b)


@pytest.mark.parametrize("columns", [1, 3, 7])
def test_the_product_of_a_symmetric_matrix_has_the_layout_of_its_factor(columns: int) -> None:
    a, _ = _commuting(5)
    x = torch.randn(2, 5, columns, dtype=torch.float64)
    for one in (x, x.mT.contiguous().mT):
        found = products.symmetric_times(a, one)
        torch.testing.assert_close(found, a @ x)
        assert found.stride() == one.stride() or columns == 1


@pytest.mark.parametrize("shape", [(16, 40), (2, 19, 32), (2, 2, 18, 33), (2, 40, 20), (3, 10, 40), (0, 4, 5)])
def test_self_product_of_every_shape(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found, expected = products.self_product(x), x @ x.mT
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(found, x, grad)[0], torch.autograd.grad(expected, x, grad)[0])


def test_panels_are_exactly_symmetric_beside_the_diagonal_blocks() -> None:
    a, b = (matrix.float() for matrix in _commuting(64))
    result = products.symmetric_bmm(a, b)
    assert torch.equal(result[:, :16, 16:], result[:, 16:, :16].mT)


def test_panels_compute_ten_blocks_of_sixteen() -> None:
    a, b = _commuting(64, batch=1)
    assert count(lambda: products.symmetric_bmm(a, b)).product_flops == 2 * 64**3 * 10 // 16


def test_panels_are_used_for_large_matrices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for shape, pays in (((1, 256, 512), True), ((1, 255, 512), False), ((1, 256, 511), False)):
        a = torch.ones(shape)
        whole = 2 * a.shape[1] ** 2 * a.shape[2]
        assert (count(lambda a=a: products.symmetric_bmm(a, a.mT)).product_flops < whole) is pays


@pytest.mark.parametrize("columns", [1, 4, 9, 40])  # two products up to an eighth of the rows, one beyond
@pytest.mark.parametrize("rows", [16, 35, 64])  # in panels from 32 on, of unequal height
def test_twice_symmetric_times(rows: int, columns: int) -> None:
    matrix, x = torch.randn(2, rows, rows, dtype=torch.float64), torch.randn(2, rows, columns, dtype=torch.float64)
    torch.testing.assert_close(products.twice_symmetric_times(matrix, x), (matrix + matrix.mT) @ x)
    torch.testing.assert_close(products.twice_symmetric_times(matrix[0], x[0]), (matrix[0] + matrix[0].mT) @ x[0])


@pytest.mark.parametrize("columns", [2, 30])
def test_sandwich_and_inner_product_gradients(columns: int) -> None:
    x = torch.randn(2, 20, columns, dtype=torch.float64, requires_grad=True)
    root = torch.randn(2, columns, columns, dtype=torch.float64)
    core = (root + root.mT).requires_grad_()
    grad = torch.randn(2, 20, 20, dtype=torch.float64)
    found = torch.autograd.grad(products.sandwich(x, core), (x, core), grad)
    expected = torch.autograd.grad(x @ core @ x.mT, (x, core), grad)
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], products.symmetrize(expected[1]))
    inner_grad = torch.randn(2, columns, columns, dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad(products.inner_product(x), x, inner_grad),
        torch.autograd.grad(x.mT @ x, x, inner_grad),
    )


@pytest.mark.parametrize(
    "left, right",
    [((3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((3, 4), (2, 3, 4, 5)), ((2, 3, 4), (2, 4, 5)), ((1, 3, 4), (2, 4, 5))],
)
def test_product_gradients(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a = torch.randn(left, dtype=torch.float64, requires_grad=True)
    b = torch.randn(right, dtype=torch.float64, requires_grad=True)
    grad = torch.randn_like(a @ b)
    torch.testing.assert_close(
        torch.autograd.grad(products.product(a, b), (a, b), grad), torch.autograd.grad(a @ b, (a, b), grad)
    )
    assert torch.autograd.gradgradcheck(products.product, (a, b), fast_mode=True, check_fwd_over_rev=True)


@pytest.mark.parametrize("power", [6, 7])
def test_panels_inside_the_solvers_are_differentiable_twice_and_vmapped(power: int, monkeypatch) -> None:
    monkeypatch.setattr(products, "_PANELS_FROM", (2, 4))
    features = torch.rand(2, 5, 7, dtype=torch.float64, requires_grad=True)
    curve = pp.MaxExp(power)

    def pool(x: Tensor, solver: str) -> Tensor:
        return pp.second_order_pool(x, curve, solver=solver)

    for solver in ("squaring", "gram"):
        assert torch.autograd.gradcheck(
            lambda x, solver=solver: pool(x, solver), features, fast_mode=True, check_forward_ad=True
        )
        assert torch.autograd.gradgradcheck(
            lambda x, solver=solver: pool(x, solver), features, fast_mode=True, check_fwd_over_rev=True
        )
        mapped = torch.func.vmap(lambda x, solver=solver: pool(x, solver))(features)
        torch.testing.assert_close(mapped, pool(features, solver))
