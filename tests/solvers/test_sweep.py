"""Ten thousand nasty matrices: no NaN, no infinity, and the right gradient."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import powerpool as pp
from tests.cases import CURVES, CurveCase, exact_solvers
from tests.contracts.solver import check_gradient, round_off

SIZES = (1, 2, 3, 5, 8, 12)
PER_KIND = 130

Maker = Callable[[int, torch.Generator], Tensor]


def _randn(size: int, columns: int, generator: torch.Generator) -> Tensor:
    return torch.randn(PER_KIND, size, columns, generator=generator, dtype=torch.float64)


def _spectrum(values: Tensor, size: int, generator: torch.Generator) -> Tensor:
    vectors = torch.linalg.qr(_randn(size, size, generator))[0]
    return (vectors * values.unsqueeze(-2)) @ vectors.mT


def _uniform(size: int, generator: torch.Generator) -> Tensor:
    return torch.rand(PER_KIND, size, generator=generator, dtype=torch.float64)


def _random(size: int, generator: torch.Generator) -> Tensor:
    x = _randn(size, size + 2, generator)
    return x @ x.mT


def _rank_one(size: int, generator: torch.Generator) -> Tensor:
    x = _randn(size, 1, generator)
    return x @ x.mT


def _rank_half(size: int, generator: torch.Generator) -> Tensor:
    x = _randn(size, max(1, size // 2), generator)
    return x @ x.mT


def _repeated(size: int, generator: torch.Generator) -> Tensor:
    return _spectrum((_uniform(size, generator) * 3).floor() + 1, size, generator)


def _near_ties(size: int, generator: torch.Generator) -> Tensor:
    return _spectrum(1 + 1e-7 * _uniform(size, generator), size, generator)


def _graded(size: int, generator: torch.Generator) -> Tensor:
    return _spectrum(10.0 ** (-10 * _uniform(size, generator)), size, generator)


def _identity(size: int, generator: torch.Generator) -> Tensor:
    scale = 10.0 ** (6 * _uniform(1, generator) - 3)
    return scale.unsqueeze(-1) * torch.eye(size, dtype=torch.float64)


def _diagonal(size: int, generator: torch.Generator) -> Tensor:
    return torch.diag_embed((_uniform(size, generator) * 4).floor())


def _zero(size: int, generator: torch.Generator) -> Tensor:
    return torch.zeros(PER_KIND, size, size, dtype=torch.float64)


def _constant(size: int, generator: torch.Generator) -> Tensor:
    return _uniform(1, generator).unsqueeze(-1) * torch.ones(size, size, dtype=torch.float64)


def _tiny(size: int, generator: torch.Generator) -> Tensor:
    return 1e-12 * _random(size, generator)


def _huge(size: int, generator: torch.Generator) -> Tensor:
    return 1e12 * _rank_half(size, generator)


def _blocks(size: int, generator: torch.Generator) -> Tensor:
    """The same block twice: every eigenvalue twice."""
    block = _random((size + 1) // 2, generator)
    return torch.stack([torch.block_diag(b, b)[:size, :size] for b in block])


KINDS: dict[str, Maker] = {
    maker.__name__.strip("_"): maker
    for maker in (
        _random, _rank_one, _rank_half, _repeated, _near_ties, _graded, _identity, _diagonal, _zero, _constant,
        _tiny, _huge, _blocks,
    )
}  # fmt: skip


def nasty(size: int, seed: int = 0) -> Tensor:  # shape: (kinds * PER_KIND, C, C)
    """Float32 matrices of every kind, the same on every run."""
    generator = torch.Generator().manual_seed(1000 * seed + size)
    matrices = torch.cat([maker(size, generator).expand(PER_KIND, size, size) for maker in KINDS.values()])
    return ((matrices + matrices.mT) / 2).float()


def _representable(matrices: Tensor, case: CurveCase, squared: bool = False) -> Tensor:
    """Without those whose cube leaves float32: the answer itself is infinite there."""
    if case.name != "gamma-3":
        return matrices
    largest = matrices.double().abs().amax((-2, -1)) * matrices.shape[-1]
    return matrices[(largest**2 if squared else largest) < 1e12]


def _borders_on_null(matrix: Tensor) -> bool:
    """Whether an eigenvalue is so near to what counts as 0 that round-off decides on which side it is."""
    values = torch.linalg.eigvalsh(matrix.double())
    ratio = values / (values.abs().max() * round_off(matrix, matrix.dtype)).clamp(min=1e-300)
    return bool(((ratio > 1 / 16) & (ratio < 16)).any())


def _grad_like(matrices: Tensor) -> Tensor:
    return torch.randn(matrices.shape, generator=torch.Generator().manual_seed(7))


WITH_SOLVER = [
    pytest.param(case, solver, id=f"{case}-{solver}") for case in CURVES for solver in exact_solvers(case.make())
]


def test_there_are_ten_thousand() -> None:
    assert sum(len(nasty(size)) for size in SIZES) >= 10_000


@pytest.mark.stress
@pytest.mark.parametrize("case, solver", WITH_SOLVER)
def test_gradients_are_finite_and_right_for_new_seeds(case: CurveCase, solver: str) -> None:
    """Two hundred thousand other matrices are finite, and hundreds of them right."""
    for seed in range(1, 21):
        for size in SIZES:
            leaf = _representable(nasty(size, seed), case).requires_grad_()
            (grad,) = torch.autograd.grad(pp.spectral(leaf, case.make(), solver), leaf, _grad_like(leaf))
            assert torch.isfinite(grad).all()
            if size <= 8:
                for matrix in leaf.detach()[:: len(leaf) // 5]:
                    if case.reference.infinite_slope and _borders_on_null(matrix):
                        continue
                    check_gradient(
                        lambda m: pp.spectral(m, case.make(), solver),
                        matrix.double(),
                        matrix,
                        case.reference,
                        seed=seed,
                        by_products=solver == "squaring",
                    )


@pytest.mark.parametrize("case, solver", WITH_SOLVER)
def test_gradients_are_finite(case: CurveCase, solver: str) -> None:
    for size in SIZES:
        leaf = _representable(nasty(size), case).requires_grad_()
        value = pp.spectral(leaf, case.make(), solver)
        (grad,) = torch.autograd.grad(value, leaf, _grad_like(leaf))
        assert torch.isfinite(value).all()
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("case", CURVES, ids=str)
def test_gradients_of_features_are_finite(case: CurveCase) -> None:
    """The same matrices as features: M M^T, through the Gram form."""
    for size in SIZES:
        leaf = _representable(nasty(size), case, squared=True).requires_grad_()
        value = pp.second_order_pool(leaf, case.make(), solver="gram")
        (grad,) = torch.autograd.grad(value, leaf, _grad_like(leaf))
        assert torch.isfinite(value).all()
        assert torch.isfinite(grad).all()


@pytest.mark.parametrize("case", [case for case in CURVES if case.name in ("gamma-0.5", "maxexp-50")], ids=str)
def test_autograd_through_eigh_is_not_finite(case: CurveCase) -> None:
    """The sweep can fail: what users write today does."""
    bad = 0
    for size in SIZES:
        leaf = nasty(size).requires_grad_()
        values, vectors = torch.linalg.eigh(leaf / (leaf.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] + 1e-6))
        value = (vectors * case.make().value(values.clamp(0, 1)).unsqueeze(-2)) @ vectors.mT
        (grad,) = torch.autograd.grad(value, leaf, _grad_like(leaf))
        bad += int((~torch.isfinite(grad)).flatten(1).any(1).sum())
    assert bad > 100


def _sample(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(11)
    pools = [nasty(size) for size in SIZES if size <= 8]
    picks = []
    for _ in range(count):
        pool = pools[int(torch.randint(len(pools), (), generator=generator))]
        picks.append(pool[int(torch.randint(len(pool), (), generator=generator))])
    return picks


@pytest.mark.parametrize("case, solver", WITH_SOLVER)
def test_gradients_match_the_reference(case: CurveCase, solver: str) -> None:
    """Five hundred of them, shared out among the curves and solvers so that each sees its own."""
    sample = _sample(22 * len(WITH_SOLVER))
    position = [param.values for param in WITH_SOLVER].index((case, solver))
    mine = sample[position :: len(WITH_SOLVER)]
    assert len(mine) * len(WITH_SOLVER) >= 500
    for number, matrix in enumerate(mine):
        check_gradient(
            lambda m: pp.spectral(m, case.make(), solver),
            matrix.double(),
            matrix,
            case.reference,
            seed=number,
            by_products=solver == "squaring",
        )


def test_lapack_failures_get_a_second_try() -> None:
    """Constant float32 matrices, some of which eigh answers with NaN vectors on some machines."""
    generator = torch.Generator().manual_seed(0)
    leaf = (torch.rand(3000, 1, 1, generator=generator) * torch.ones(12, 12)).requires_grad_()
    value = pp.spectral(leaf, pp.Gamma(1), "eigen")
    torch.testing.assert_close(value, leaf, rtol=1e-4, atol=1e-5)
    (grad,) = torch.autograd.grad(value, leaf, torch.ones_like(value))
    torch.testing.assert_close(grad, torch.ones_like(grad), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("failure", ["nan", "raise"])
def test_second_try_mends_only_what_failed(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, on a machine whose LAPACK never fails: the first call is made to."""
    genuine, calls = torch.linalg.eigh, []

    def failing(matrix: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(matrix))
        values, vectors = genuine(matrix)
        if len(calls) == 1:
            if failure == "raise":
                raise torch.linalg.LinAlgError("linalg.eigh: the algorithm failed to converge")
            vectors[2] = torch.nan
        return values, vectors

    matrices = nasty(5)[:4]
    expected = pp.spectral(matrices, pp.HDP(0.1), "eigen")
    monkeypatch.setattr(torch.linalg, "eigh", failing)
    torch.testing.assert_close(pp.spectral(matrices, pp.HDP(0.1), "eigen"), expected, rtol=1e-4, atol=1e-5)
    assert calls == ([4, 1] if failure == "nan" else [4, 4])


def test_nothing_is_swept_under_nan_to_num() -> None:
    source = pathlib.Path(pp.__file__).parent
    assert not [path for path in source.rglob("*.py") if "nan_to_num" in path.read_text(encoding="utf-8")]
