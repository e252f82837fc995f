"""Dense moments against loops in NumPy float64, and against the covariance of NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from powerpool.moments.dense import autocorrelation, center, count
from tests.tolerances import tolerance

BETAS = (0.0, 0.3, 1.0)
few = settings(max_examples=15, deadline=None)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
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
    def test_small_example(self) -> None:
        features = torch.tensor([[1.0, 3.0], [2.0, -2.0]])
        assert_close(autocorrelation(features), torch.tensor([[5.0, -2.0], [-2.0, 4.0]]), rtol=0, atol=0)
        assert_close(autocorrelation(features, beta=1.0), torch.tensor([[1.0, -2.0], [-2.0, 4.0]]), rtol=0, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("beta", BETAS)
    @pytest.mark.parametrize("shape", [(1, 1), (5, 1), (1, 9), (9, 4), (2, 0, 3, 4), (2, 3, 4, 9)])
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
        # E[xx] - E[x]E[x] would lose all digits: 1e4 ** 2 * 6e-8 = 6, and the variance is 1.
        features = torch.randn(3, 50) + 1e4
        assert_close(autocorrelation(features, beta=1.0), _reference(features, 1.0), **tolerance(torch.float32))

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
    @pytest.mark.parametrize("check", [True, False])
    @pytest.mark.parametrize("hidden", [torch.nan, -torch.inf, 1e30])
    def test_masked_values_have_no_influence(self, hidden: float, check: bool | None, beta: float) -> None:
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


class TestGradient:
    @pytest.mark.parametrize("beta", BETAS)
    @pytest.mark.parametrize("masked", [False, True])
    def test_first_and_second_derivatives(self, beta: float, masked: bool) -> None:
        features, mask = _masked_set(7)
        features = features[:2, :3].clone().requires_grad_()

        def moment(x: Tensor) -> Tensor:
            return autocorrelation(x, beta, mask[:2] if masked else None)

        assert torch.autograd.gradcheck(moment, features, fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(moment, features, fast_mode=True, check_fwd_over_rev=True)

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


class TestTracing:
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
