"""Thousands of degenerate matrices: finite and correct gradients."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import powerpool as pp
from tests.cases import CURVES, CurveCase, exact_solvers
from tests.contracts.solver import check_gradients, round_off

SIZES = (1, 2, 3, 5, 8, 12)
PER_KIND = 60


def nasty(size: int, seed: int = 0) -> Tensor:  # shape: (kinds * PER_KIND, C, C)
    """Float32 matrices of every kind, the same in every run."""
    generator = torch.Generator().manual_seed(1000 * seed + size)

    def random(*shape: int) -> Tensor:
        return torch.randn(PER_KIND, *shape, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(PER_KIND, *shape, generator=generator, dtype=torch.float64)

    def moment(side: int, rank: int) -> Tensor:
        x = random(side, rank)
        return x @ x.mT

    def with_spectrum(values: Tensor) -> Tensor:
        vectors = torch.linalg.qr(random(size, size))[0]
        return (vectors * values.unsqueeze(-2)) @ vectors.mT

    half, ones = max(1, size // 2), torch.ones(size, size, dtype=torch.float64)
    kinds = {
        "random": moment(size, size + 2),
        "rank one": moment(size, 1),
        "rank half": moment(size, half),
        "repeated eigenvalues": with_spectrum((uniform(size) * 3).floor() + 1),
        "near ties": with_spectrum(1 + 1e-7 * uniform(size)),
        "graded eigenvalues": with_spectrum(10.0 ** (-10 * uniform(size))),
        "multiples of the identity": 10.0 ** (6 * uniform(1, 1) - 3) * torch.eye(size, dtype=torch.float64),
        "diagonal": torch.diag_embed((uniform(size) * 4).floor()),
        "zero": 0 * moment(size, 1),
        "constant": uniform(1, 1) * ones,
        "tiny": 1e-12 * moment(size, size + 2),
        "huge": 1e12 * moment(size, half),
        "the same block twice": torch.stack(
            [torch.block_diag(b, b)[:size, :size] for b in moment((size + 1) // 2, size + 2)]
        ),
    }
    matrices = torch.cat(list(kinds.values()))
    return ((matrices + matrices.mT) / 2).float()


def _representable(matrices: Tensor, case: CurveCase, squared: bool = False) -> Tensor:
    """Without those whose cube exceeds float32: there the correct result is infinite."""
    if case.name != "gamma-3":
        return matrices
    largest = matrices.double().abs().amax((-2, -1)) * matrices.shape[-1]
    return matrices[(largest**2 if squared else largest) < 1e12]


def _borders_on_null(matrix: Tensor) -> bool:
    """Whether round-off decides if an eigenvalue counts as 0."""
    values = torch.linalg.eigvalsh(matrix.double())
    ratio = values / (values.abs().max() * round_off(matrix, matrix.dtype)).clamp(min=1e-300)
    return bool(((ratio > 1 / 16) & (ratio < 16)).any())


def _grad_like(matrices: Tensor) -> Tensor:
    return torch.randn(matrices.shape, generator=torch.Generator().manual_seed(7))


every_curve = pytest.mark.parametrize("case", CURVES, ids=str)


def _solvers(case: CurveCase) -> dict[str, Callable[[Tensor], Tensor]]:
    curve = case.make()
    return {solver: lambda m, solver=solver: pp.spectral(m, curve, solver) for solver in exact_solvers(curve)}


@pytest.mark.stress
@every_curve
def test_gradients_are_finite_and_correct_for_new_seeds(case: CurveCase) -> None:
    for seed in range(1, 41):
        for size in SIZES:
            leaf = _representable(nasty(size, seed), case).requires_grad_()
            for apply in _solvers(case).values():
                (grad,) = torch.autograd.grad(apply(leaf), leaf, _grad_like(leaf))
                assert torch.isfinite(grad).all()
            for matrix in leaf.detach()[:: len(leaf) // 5] if size <= 8 else ():
                if not (case.reference.infinite_slope and _borders_on_null(matrix)):
                    check_gradients(_solvers(case), matrix.double(), matrix, case.reference, seed=seed)


@every_curve
def test_gradients_are_finite(case: CurveCase) -> None:
    """Of matrices M by every solver, and of M as features through the Gram form."""
    for size in SIZES:
        matrices, features = (_representable(nasty(size), case, squared) for squared in (False, True))
        calls = [(apply, matrices) for apply in _solvers(case).values()]
        calls.append((lambda f: pp.second_order_pool(f, case.make(), solver="gram"), features))
        for apply, given in calls:
            leaf = given.requires_grad_()
            value = apply(leaf)
            (grad,) = torch.autograd.grad(value, leaf, _grad_like(leaf))
            assert torch.isfinite(value).all()
            assert torch.isfinite(grad).all()


@pytest.mark.parametrize("case", [case for case in CURVES if case.name in ("gamma-0.5", "maxexp-50")], ids=str)
def test_autograd_through_eigh_is_not_finite(case: CurveCase) -> None:
    """The sweep can fail: differentiating through eigh does."""
    bad = 0
    for size in SIZES:
        leaf = nasty(size).requires_grad_()
        values, vectors = torch.linalg.eigh(leaf / (leaf.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None] + 1e-6))
        value = (vectors * case.make().value(values.clamp(0, 1)).unsqueeze(-2)) @ vectors.mT
        (grad,) = torch.autograd.grad(value, leaf, _grad_like(leaf))
        bad += int((~torch.isfinite(grad)).flatten(1).any(1).sum())
    assert bad > 50


def _sample(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(11)
    pools = [nasty(size) for size in SIZES if size <= 8]
    picks = []
    for _ in range(count):
        pool = pools[int(torch.randint(len(pools), (), generator=generator))]
        picks.append(pool[int(torch.randint(len(pool), (), generator=generator))])
    return picks


@every_curve
def test_gradients_match_the_reference(case: CurveCase) -> None:
    """On a sample of its own for every curve."""
    sample = _sample(10 * len(CURVES))
    for number, matrix in enumerate(sample[CURVES.index(case) :: len(CURVES)]):
        check_gradients(_solvers(case), matrix.double(), matrix, case.reference, seed=number)


def test_lapack_failures_get_a_second_attempt() -> None:
    """Constant float32 matrices, for which eigh returns NaN vectors on some machines."""
    generator = torch.Generator().manual_seed(0)
    leaf = (torch.rand(3000, 1, 1, generator=generator) * torch.ones(12, 12)).requires_grad_()
    value = pp.spectral(leaf, pp.Gamma(1), "eigen")
    torch.testing.assert_close(value, leaf, rtol=1e-4, atol=1e-5)
    (grad,) = torch.autograd.grad(value, leaf, torch.ones_like(value))
    torch.testing.assert_close(grad, torch.ones_like(grad), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("failure", ["nan", "raise"])
def test_second_attempt_repairs_only_what_failed(failure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with a first call that is made to fail."""
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


def test_nan_to_num_is_not_used() -> None:
    source = pathlib.Path(pp.__file__).parent
    assert not [path for path in source.rglob("*.py") if "nan_to_num" in path.read_text(encoding="utf-8")]
