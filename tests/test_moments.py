"""Dense moments against loops in NumPy float64, and against the covariance of NumPy."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from powerpool.errors import ArgumentError, DomainError, DTypeError, NotFiniteError, ShapeError
from powerpool.moments.dense import autocorrelation, center, count
from tests.tolerances import tolerance

BETAS = (0.0, 0.3, 1.0)
few = settings(max_examples=30, deadline=None)


@pytest.fixture(autouse=True)
def _same_numbers_in_any_order_of_tests() -> None:
    torch.manual_seed(0)


def _reference_moment(features: np.ndarray, beta: float, keep: np.ndarray) -> np.ndarray:
    """One set, location by location: (C, N), (N,) -> (C, C)."""
    vectors = [features[:, n] for n in range(features.shape[1]) if keep[n]]
    mean = sum(vectors) / len(vectors)
    return sum(np.outer(v - beta * mean, v - beta * mean) for v in vectors) / len(vectors)


def _reference(features: Tensor, beta: float, mask: Tensor | None = None) -> Tensor:
    shape = (*features.shape[:-2], features.shape[-1])
    keep = np.broadcast_to(True if mask is None else mask.numpy(), shape).reshape(-1, shape[-1])
    sets = features.detach().double().numpy().reshape(-1, *features.shape[-2:])
    matrices = np.stack([_reference_moment(one, beta, flags) for one, flags in zip(sets, keep, strict=True)])
    return torch.from_numpy(matrices).view(*features.shape[:-2], *matrices.shape[1:]).to(features.dtype)


def _masked_set(seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Three sets of five channels and seven locations, one to seven of which count."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(3, 7, generator=generator) < 0.5
    mask[:, seed % 7] = True
    return torch.randn(3, 5, 7, dtype=dtype, generator=generator), mask


class TestValue:
    def test_a_moment_one_can_do_in_the_head(self) -> None:
        features = torch.tensor([[1.0, 3.0], [2.0, -2.0]])
        assert_close(autocorrelation(features), torch.tensor([[5.0, -2.0], [-2.0, 4.0]]), rtol=0, atol=0)
        assert_close(autocorrelation(features, beta=1.0), torch.tensor([[1.0, -2.0], [-2.0, 4.0]]), rtol=0, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("beta", BETAS)
    @pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 9), (4, 9), (9, 4), (2, 4, 9), (2, 0, 3, 4), (2, 3, 4, 9)])
    def test_equals_the_loop(self, shape: tuple[int, ...], beta: float, dtype: torch.dtype) -> None:
        features = torch.randn(shape, dtype=dtype)
        if 0 in shape:
            assert autocorrelation(features, beta).shape == (2, 0, 3, 3)
        else:
            assert_close(autocorrelation(features, beta), _reference(features, beta), **tolerance(dtype))

    @pytest.mark.parametrize("shape", [(7,), (1, 7), (3, 7), (2, 3, 7), (2, 1, 7), (2, 3, 1)])
    @pytest.mark.parametrize("beta", BETAS)
    def test_mask_broadcasts(self, shape: tuple[int, ...], beta: float) -> None:
        mask = torch.arange(torch.Size(shape).numel()).view(shape) % 5 != 3
        if shape[-1] == 1:
            mask = torch.ones(shape, dtype=torch.bool)
        features = torch.randn(2, 3, 4, 7, dtype=torch.float64)
        assert_close(
            autocorrelation(features, beta, mask), _reference(features, beta, mask), **tolerance(torch.float64)
        )

    @pytest.mark.parametrize("shape", [(3, 2), (64, 49), (2, 33, 7), (8, 100, 400)])
    def test_exactly_symmetric(self, shape: tuple[int, ...]) -> None:
        matrix = autocorrelation(torch.randn(shape), beta=0.5)
        assert_close(matrix, matrix.mT, rtol=0, atol=0)

    def test_a_large_mean_is_removed_without_cancellation(self) -> None:
        # E[xx] - E[x]E[x] would have no digit left here: 1e4 ** 2 * 6e-8 = 6 beside a variance of 1.
        features = torch.randn(3, 50) + 1e4
        assert_close(autocorrelation(features, beta=1.0), _reference(features, 1.0), **tolerance(torch.float32))

    @given(st.integers(0, 10**6), st.sampled_from(BETAS))
    @few
    def test_order_of_locations_does_not_matter(self, seed: int, beta: float) -> None:
        features, mask = _masked_set(seed)
        order = torch.randperm(7, generator=torch.Generator().manual_seed(seed))
        assert_close(
            autocorrelation(features[..., order], beta, mask[:, order]),
            autocorrelation(features, beta, mask),
            **tolerance(torch.float64),
        )

    @given(st.integers(0, 10**6), st.sampled_from(BETAS))
    @few
    def test_mask_equals_dropping_the_columns(self, seed: int, beta: float) -> None:
        features, mask = _masked_set(seed)
        dropped = torch.stack([autocorrelation(f[:, m], beta) for f, m in zip(features, mask, strict=True)])
        assert_close(autocorrelation(features, beta, mask), dropped, **tolerance(torch.float64))

    @given(st.integers(1, 6), st.integers(2, 12), st.integers(0, 10**6))
    @few
    def test_beta_one_is_the_covariance_of_numpy(self, channels: int, locations: int, seed: int) -> None:
        features = np.random.default_rng(seed).normal(size=(channels, locations))
        expected = torch.from_numpy(np.cov(features, bias=True).reshape(channels, channels))
        assert_close(autocorrelation(torch.from_numpy(features), beta=1.0), expected, **tolerance(torch.float64))

    @given(st.integers(0, 10**6))
    @few
    def test_inner_products_of_moments_are_mean_squared_inner_products(self, seed: int) -> None:
        """Proposition 1 of the paper."""
        generator = torch.Generator().manual_seed(seed)
        a = torch.randn(4, 6, dtype=torch.float64, generator=generator)
        b = torch.randn(4, 9, dtype=torch.float64, generator=generator)
        kernel = sum(torch.dot(x, y) ** 2 for x in a.unbind(1) for y in b.unbind(1)) / (6 * 9)
        assert_close((autocorrelation(a) * autocorrelation(b)).sum(), kernel, **tolerance(torch.float64))


class TestHelpers:
    @pytest.mark.parametrize("beta", BETAS)
    def test_center_and_count_compose_to_the_moment(self, beta: float) -> None:
        features, mask = _masked_set(1)
        scaled = center(features, beta, mask) / count(features, mask)[:, None, None].sqrt()
        assert_close(scaled @ scaled.mT, autocorrelation(features, beta, mask), **tolerance(torch.float64))

    def test_masked_columns_are_zero(self) -> None:
        features, mask = _masked_set(2)
        centred = center(torch.where(mask[:, None], features, torch.nan), 1.0, mask)
        assert torch.equal(centred.mT[~mask], torch.zeros(int((~mask).sum()), 5, dtype=torch.float64))
        assert_close(centred.sum(-1), torch.zeros(3, 5, dtype=torch.float64), **tolerance(torch.float64))

    def test_count(self) -> None:
        features, mask = _masked_set(3)
        assert count(features) == 7
        assert_close(count(features, mask), torch.tensor([int(m.sum()) for m in mask], dtype=torch.float64))
        assert_close(count(features, mask[0]), mask[0].sum().double().expand(3))
        # 300 has no bfloat16: a count in half precision would be wrong.
        many = torch.ones(300, dtype=torch.bool)
        assert_close(count(torch.zeros(1, 300, dtype=torch.bfloat16), many), torch.tensor(300.0))


class TestMaskedValues:
    @pytest.mark.parametrize("beta", BETAS)
    @pytest.mark.parametrize("check", [None, True, False])
    @pytest.mark.parametrize("hidden", [torch.nan, torch.inf, -torch.inf, 1e30])
    def test_what_is_masked_has_no_influence(self, hidden: float, check: bool | None, beta: float) -> None:
        features, mask = _masked_set(4)
        weights = torch.randn(3, 5, 5, dtype=torch.float64)
        results = []
        for value in (0.0, hidden):
            leaf = torch.where(mask[:, None], features, value).requires_grad_()
            matrix = autocorrelation(leaf, beta, mask, check=check)
            (gradient,) = torch.autograd.grad((matrix * weights).sum(), leaf)
            results.append((matrix.detach(), gradient))
        assert_close(results[1], results[0], rtol=0, atol=0)
        hidden_gradient = results[1][1].mT[~mask]
        assert_close(hidden_gradient, torch.zeros_like(hidden_gradient), rtol=0, atol=0)

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    @pytest.mark.parametrize("beta", BETAS)
    @pytest.mark.parametrize("masked", [False, True])
    def test_unchecked_nan_or_infinity_gives_nan(self, value: float, beta: float, masked: bool) -> None:
        features, mask = _masked_set(5)
        clean = autocorrelation(features, beta, mask if masked else None)
        features[1, 2, 5] = value
        mask[1, 5] = True
        matrix = autocorrelation(features.requires_grad_(), beta, mask if masked else None, check=False)
        assert matrix[1].isnan().all()
        assert_close(matrix[::2].detach(), clean[::2], rtol=0, atol=0)
        (gradient,) = torch.autograd.grad(matrix.sum(), features)
        assert gradient[1].mT[mask[1]].isnan().any()
        assert gradient[::2].isfinite().all()

    def test_unchecked_empty_set_gives_nan(self) -> None:
        features, mask = _masked_set(6)
        mask[0] = False
        matrix = autocorrelation(features, mask=mask, check=False)
        assert matrix[0].isnan().all()
        assert matrix[1:].isfinite().all()


class TestGradient:
    @pytest.mark.parametrize("beta", BETAS)
    @pytest.mark.parametrize("masked", [False, True])
    def test_first_and_second_derivatives(self, beta: float, masked: bool) -> None:
        features, mask = _masked_set(7)
        features = features[:2, :3].clone().requires_grad_()

        def moment(x: Tensor) -> Tensor:
            return autocorrelation(x, beta, mask[:2] if masked else None)

        assert torch.autograd.gradcheck(moment, features)
        assert torch.autograd.gradgradcheck(moment, features)

    @pytest.mark.parametrize("name", ["rank one", "equal columns", "identity", "zero", "1x1", "huge", "tiny"])
    def test_equals_the_formula(self, name: str) -> None:
        """dL/dPhi = (G + G^T) Phi / N."""
        random = torch.randn(4, 6, dtype=torch.float64)
        features = {
            "rank one": random[:, :1] * random[:1],
            "equal columns": random[:, :1].repeat(1, 6),
            "identity": torch.eye(4, dtype=torch.float64),
            "zero": torch.zeros_like(random),
            "1x1": random[:1, :1].clone(),
            "huge": random * 1e100,
            "tiny": random * 1e-100,
        }[name]
        grad = torch.randn(len(features), len(features), dtype=torch.float64)
        (gradient,) = torch.autograd.grad(autocorrelation(features.requires_grad_()), features, grad)
        expected = (grad + grad.T).numpy() @ features.detach().numpy() / features.shape[1]
        assert_close(gradient, torch.from_numpy(expected), rtol=tolerance(torch.float64)["rtol"], atol=0)


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("beta", BETAS)
    def test_half_is_computed_in_float32(self, dtype: torch.dtype, beta: float) -> None:
        features = (torch.randn(2, 5, 700) + 3).to(dtype)
        mask = torch.rand(2, 700) < 0.9
        expected = autocorrelation(features.float(), beta, mask).to(dtype)
        assert_close(autocorrelation(features, beta, mask), expected, rtol=0, atol=0)

    def test_half_gradient_has_its_dtype(self) -> None:
        features = torch.randn(5, 7, dtype=torch.bfloat16, requires_grad=True)
        autocorrelation(features, 1.0).sum().backward()
        assert features.grad is not None
        assert features.grad.dtype == torch.bfloat16

    def test_autocast_does_not_lower_precision(self) -> None:
        features = torch.randn(2, 5, 50, requires_grad=True)
        grad = torch.randn(2, 5, 5)
        plain = autocorrelation(features, 0.5)
        (plain_gradient,) = torch.autograd.grad(plain, features, grad)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (features @ features.mT).dtype == torch.bfloat16  # autocast is on
            cast = autocorrelation(features, 0.5)
            (cast_gradient,) = torch.autograd.grad(cast, features, grad)
        assert_close(cast, plain, rtol=0, atol=0)
        assert_close(cast_gradient, plain_gradient, rtol=0, atol=0)


# torch 2.13's own: Dynamo instantiates every autograd.Function that it traces.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
class TestTracing:
    @pytest.mark.parametrize("masked", [False, True])
    def test_compile(self, masked: bool) -> None:
        features, mask = _masked_set(8, torch.float32)
        flags = mask if masked else None
        compiled = torch.compile(autocorrelation, backend="aot_eager", fullgraph=True)
        left, right = features.clone().requires_grad_(), features.clone().requires_grad_()
        assert_close(compiled(left, 0.5, flags), autocorrelation(right, 0.5, flags), **tolerance(torch.float32))
        compiled(left, 0.5, flags).square().sum().backward()
        autocorrelation(right, 0.5, flags).square().sum().backward()
        assert_close(left.grad, right.grad, **tolerance(torch.float32))

    # Inductor, because it simplifies: it makes 0 of 0 * infinity. The warnings that it imports are torch's own.
    @pytest.mark.filterwarnings("ignore")
    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_compiled_nan_stays_nan(self, value: float) -> None:
        if shutil.which("g++") is None:
            pytest.skip("Inductor needs a C++ compiler")
        compiled = torch.compile(autocorrelation, fullgraph=True)
        assert compiled(torch.tensor([[1.0, value], [0.0, 0.0]])).isnan().all()

    def test_vmap_over_features_and_mask(self) -> None:
        features, mask = _masked_set(9)
        expected = autocorrelation(features, 0.5, mask)
        assert_close(torch.vmap(lambda f, m: autocorrelation(f, 0.5, m))(features, mask), expected)
        one_set = torch.vmap(lambda m: autocorrelation(features[0], 0.5, m))(mask)
        assert_close(one_set, autocorrelation(features[:1].expand(3, 5, 7), 0.5, mask), **tolerance(torch.float64))

    def test_per_example_gradients(self) -> None:
        features, mask = _masked_set(10)

        def loss(f: Tensor, m: Tensor) -> Tensor:
            return autocorrelation(f, 0.5, m).square().sum()

        per_example = torch.vmap(torch.func.grad(loss))(features, mask)
        leaf = features.clone().requires_grad_()
        autocorrelation(leaf, 0.5, mask).square().sum().backward()
        assert_close(per_example, leaf.grad, **tolerance(torch.float64))

    def test_export_with_any_number_of_sets_and_locations(self) -> None:
        class Moment(torch.nn.Module):
            def forward(self, features: Tensor, mask: Tensor) -> Tensor:
                return autocorrelation(features, 0.5, mask)

        features, mask = _masked_set(11, torch.float32)
        sets, locations = torch.export.Dim("sets"), torch.export.Dim("locations", min=2)
        shapes = {"features": {0: sets, 2: locations}, "mask": {0: sets, 1: locations}}
        exported = torch.export.export(Moment(), (features, mask), dynamic_shapes=shapes).module()
        other = torch.randn(8, 5, 31), torch.rand(8, 31) < 0.8
        assert_close(exported(*other), autocorrelation(other[0], 0.5, other[1]), **tolerance(torch.float32))


class TestErrors:
    def test_not_a_tensor(self) -> None:
        with pytest.raises(DTypeError, match=r"features must be a torch.Tensor \(got list\)"):
            autocorrelation([[1.0]])  # type: ignore[arg-type]

    def test_integers(self) -> None:
        with pytest.raises(DTypeError, match=r"floating-point.*got torch.int64"):
            autocorrelation(torch.ones(2, 3, dtype=torch.int64))

    def test_one_dimension(self) -> None:
        with pytest.raises(ShapeError, match=r"\(\*, C, N\).*got \(3,\)"):
            autocorrelation(torch.ones(3))

    @pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
    def test_empty(self, shape: tuple[int, int]) -> None:
        with pytest.raises(ShapeError, match="at least one channel and one location"):
            autocorrelation(torch.ones(shape))

    @pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan")])
    def test_beta_out_of_range(self, beta: float) -> None:
        with pytest.raises(ArgumentError, match=rf"beta must lie in \[0, 1\] \(got {beta}\)"):
            autocorrelation(torch.ones(2, 3), beta)

    def test_mask_of_numbers(self) -> None:
        with pytest.raises(DTypeError, match=r"mask must be a boolean tensor.*got torch.float32"):
            autocorrelation(torch.ones(2, 3), mask=torch.ones(3))

    @pytest.mark.parametrize("shape", [(2,), (2, 3), (5, 4, 3)])
    def test_mask_of_wrong_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"mask must broadcast to \(\*, N\) = \(4, 3\)"):
            autocorrelation(torch.ones(4, 2, 3), mask=torch.ones(shape, dtype=torch.bool))

    def test_mask_that_empties_a_set(self) -> None:
        with pytest.raises(DomainError, match=r"at least one location.*got 1 set"):
            autocorrelation(torch.ones(2, 2, 3), mask=torch.tensor([[True, True, True], [False, False, False]]))

    @pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
    def test_not_finite(self, value: float) -> None:
        features = torch.ones(2, 3, 4)
        features[0, 1, 2] = value
        with pytest.raises(NotFiniteError, match=r"features must be finite \(got 1 NaN or infinite of 24 entries\)"):
            autocorrelation(features, beta=1.0)
