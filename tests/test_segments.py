"""Ragged moments against a loop over the segments in NumPy float64, and their memory against its bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

from powerpool.errors import ArgumentError, DomainError, DTypeError, NotFiniteError, ShapeError
from powerpool.moments import segments
from powerpool.moments.dense import autocorrelation
from powerpool.moments.segments import segment_autocorrelation, segment_mean
from tests.tolerances import tolerance

BETAS = (0.0, 0.3, 1.0)
few = settings(max_examples=15, deadline=None)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


def _reference(features: Tensor, index: Tensor, num_segments: int, beta: float) -> Tensor:
    """Segment by segment, with NumPy in float64."""
    rows, segment = features.detach().double().numpy(), index.numpy()
    matrices = np.zeros((num_segments, rows.shape[1], rows.shape[1]))
    for s in range(num_segments):
        own = rows[segment == s]
        if len(own):
            own = own - beta * own.mean(0)
            matrices[s] = own.T @ own / len(own)
    return torch.from_numpy(matrices).to(features.dtype)


def _batch(sizes: list[int], channels: int, seed: int = 0, shuffle: bool = False) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    if shuffle:
        index = index[torch.randperm(len(index), generator=generator)]
    return torch.randn(len(index), channels, dtype=torch.float64, generator=generator), index


sizes_of_a_batch = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


class TestValue:
    @given(sizes_of_a_batch, st.integers(1, 5), st.sampled_from(BETAS), st.booleans(), st.integers(0, 10**6))
    @few
    def test_equals_the_loop(self, sizes: list[int], channels: int, beta: float, shuffle: bool, seed: int) -> None:
        features, index = _batch(sizes, channels, seed, shuffle)
        expected = _reference(features, index, len(sizes), beta)
        assert_close(segment_autocorrelation(features, index, len(sizes), beta), expected, **tolerance(torch.float64))

    @given(sizes_of_a_batch, st.booleans(), st.integers(0, 10**6))
    @few
    def test_mean_equals_the_loop(self, sizes: list[int], shuffle: bool, seed: int) -> None:
        features, index = _batch(sizes, 3, seed, shuffle)
        rows, segment = features.numpy(), index.numpy()
        means = [rows[segment == s].mean(0) if n else np.zeros(3) for s, n in enumerate(sizes)]
        assert_close(
            segment_mean(features, index, len(sizes)), torch.from_numpy(np.stack(means)), **tolerance(torch.float64)
        )

    @pytest.mark.parametrize("sizes", [[1], [1000], [3] * 50, [500, 1, 1, 1, 1, 1, 1, 1, 1], [1] * 30, [0, 0, 7, 0]])
    @pytest.mark.parametrize("channels", [1, 70])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_uneven_sizes(self, sizes: list[int], channels: int, dtype: torch.dtype) -> None:
        features, index = _batch(sizes, channels)
        features = features.to(dtype)
        expected = _reference(features, index, len(sizes), 0.5)
        assert_close(segment_autocorrelation(features, index, len(sizes), 0.5), expected, **tolerance(dtype))

    @pytest.mark.parametrize("beta", BETAS)
    def test_equal_sizes_equal_the_dense_moment(self, beta: float) -> None:
        dense = torch.randn(6, 4, 9, dtype=torch.float64)
        index = torch.arange(6).repeat_interleave(9)
        ragged = segment_autocorrelation(dense.mT.flatten(0, 1), index, beta=beta)
        assert_close(ragged, autocorrelation(dense, beta), **tolerance(torch.float64))

    def test_a_segment_without_rows_is_zero(self) -> None:
        features = torch.randn(4, 3, requires_grad=True)
        index = torch.tensor([1, 1, 3, 3])
        for beta in BETAS:
            matrix = segment_autocorrelation(features, index, 6, beta)
            assert_close(matrix[[0, 2, 4, 5]], torch.zeros(4, 3, 3), rtol=0, atol=0)
            (gradient,) = torch.autograd.grad(matrix.sum(), features)
            assert gradient.isfinite().all()

    def test_number_of_segments_defaults_to_the_largest_index(self) -> None:
        features, index = torch.randn(4, 3), torch.tensor([1, 5, 0, 5])
        assert segment_autocorrelation(features, index).shape == (6, 3, 3)
        assert segment_mean(features, index).shape == (6, 3)

    def test_exactly_symmetric(self) -> None:
        features, index = _batch([5, 100, 17, 1], 33)
        matrix = segment_autocorrelation(features.float(), index, beta=0.5)
        assert_close(matrix, matrix.mT, rtol=0, atol=0)

    def test_chunks_do_not_matter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        features, index = _batch([5, 100, 17, 0, 1, 33], 6, shuffle=True)
        features.requires_grad_()
        whole = segment_autocorrelation(features, index, 6)
        (whole_gradient,) = torch.autograd.grad(whole.square().sum(), features)
        monkeypatch.setattr(segments, "_CHUNK", 1)
        pieces = segment_autocorrelation(features, index, 6)
        (gradient,) = torch.autograd.grad(pieces.square().sum(), features)
        assert_close(pieces, whole, **tolerance(torch.float64))
        assert_close(gradient, whole_gradient, **tolerance(torch.float64))


class TestPlan:
    @given(sizes_of_a_batch, st.integers(1, 100), st.booleans(), st.booleans(), st.integers(0, 10**6))
    @few
    def test_each_row_has_one_slot_in_a_tile_of_its_segment(
        self, sizes: list[int], channels: int, shuffle: bool, readable: bool, seed: int
    ) -> None:
        _, index = _batch(sizes, 1, seed, shuffle)
        with pytest.MonkeyPatch.context() as patch:
            # If values cannot be read, on CUDA and while tracing, the plan has unused tiles.
            patch.setattr(segments, "values_are_checked", lambda tensor, check: readable)
            plan = segments.plan_segments(index, len(sizes), channels)
        filled = plan.slots < len(index)
        assert_close(plan.slots[filled].sort().values, torch.arange(len(index)), rtol=0, atol=0)
        owner = plan.owner.unsqueeze(-1).expand_as(plan.slots)
        assert_close(owner[filled], index[plan.slots[filled]], rtol=0, atol=0)
        assert_close(plan.sizes, torch.tensor(sizes).clamp(min=1), rtol=0, atol=0)


class TestGradient:
    @pytest.mark.parametrize("beta", BETAS)
    @pytest.mark.parametrize("sizes", [[1], [4, 0, 1, 3]])
    def test_first_and_second_derivatives(self, sizes: list[int], beta: float) -> None:
        features, index = _batch(sizes, 3, shuffle=True)
        features.requires_grad_()

        def moment(x: Tensor) -> Tensor:
            return segment_autocorrelation(x, index, len(sizes), beta)

        assert torch.autograd.gradcheck(moment, features, fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(moment, features, fast_mode=True, check_fwd_over_rev=True)

    def test_third_derivatives(self) -> None:
        features, index = _batch([2, 0, 3], 2, shuffle=True)
        features.requires_grad_()

        def slope(x: Tensor) -> Tensor:
            loss = segment_autocorrelation(x, index, 3, 0.5).pow(3).sum()
            return torch.autograd.grad(loss, x, create_graph=True)[0]

        assert torch.autograd.gradgradcheck(slope, features, fast_mode=True, check_fwd_over_rev=True)

    def test_mean_derivatives(self) -> None:
        features, index = _batch([4, 0, 1, 3], 3, shuffle=True)
        assert torch.autograd.gradcheck(lambda x: segment_mean(x, index, 4), features.requires_grad_())

    @given(sizes_of_a_batch, st.integers(0, 10**6))
    @few
    def test_gradient_of_every_row(self, sizes: list[int], seed: int) -> None:
        """dL/dx_n = (G_s + G_s^T) x_n / N_s, in the order of the rows as given."""
        features, index = _batch(sizes, 3, seed, shuffle=True)
        grad = torch.randn(len(sizes), 3, 3, dtype=torch.float64)
        moment = segment_autocorrelation(features.requires_grad_(), index, len(sizes))
        (gradient,) = torch.autograd.grad(moment, features, grad)
        expected = [
            (grad[s] + grad[s].T) @ row / sizes[s] for s, row in zip(index.tolist(), features.detach(), strict=True)
        ]
        assert_close(gradient, torch.stack(expected), **tolerance(torch.float64))


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("beta", BETAS)
    def test_half_is_computed_in_float32(self, dtype: torch.dtype, beta: float) -> None:
        features, index = _batch([300, 5, 40], 6)
        features = (features + 3).to(dtype).requires_grad_()
        moment = segment_autocorrelation(features, index, beta=beta)
        assert_close(moment, segment_autocorrelation(features.float(), index, beta=beta).to(dtype), rtol=0, atol=0)
        assert_close(segment_mean(features, index), segment_mean(features.float(), index).to(dtype), rtol=0, atol=0)
        (gradient,) = torch.autograd.grad(moment.sum(), features)
        assert gradient.dtype == dtype

    def test_autocast_does_not_lower_precision(self) -> None:
        features, index = _batch([30, 5, 4], 6)
        features = features.float().requires_grad_()
        grad = torch.randn(3, 6, 6)
        plain = segment_autocorrelation(features, index, beta=0.5)
        (plain_gradient,) = torch.autograd.grad(plain, features, grad)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert (features @ features.mT).dtype == torch.bfloat16  # autocast is on
            cast = segment_autocorrelation(features, index, beta=0.5)
            (cast_gradient,) = torch.autograd.grad(cast, features, grad)
        assert_close(cast, plain, rtol=0, atol=0)
        assert_close(cast_gradient, plain_gradient, rtol=0, atol=0)

    @pytest.mark.parametrize("value", [torch.nan, -torch.inf])
    @pytest.mark.parametrize("beta", BETAS)
    def test_unchecked_nan_or_infinity_gives_nan_in_its_segment(self, value: float, beta: float) -> None:
        features, index = _batch([5, 60, 7], 3)
        clean = segment_autocorrelation(features, index, 4, beta)
        features[64] = value  # one row of segment 1, in the last of its tiles
        moment = segment_autocorrelation(features, index, 4, beta, check=False)
        assert moment[1].isnan().all()
        assert_close(moment[[0, 2, 3]], clean[[0, 2, 3]], rtol=0, atol=0)
        assert segment_mean(features, index, 4, check=False)[1].isnan().all()

    def test_nan_in_the_last_row_stays_in_its_segment(self) -> None:
        # Empty slots read the last row of all before they are cleared.
        features, index = _batch([5, 60, 7], 3)
        features[-1] = torch.nan
        features.requires_grad_()
        moment = segment_autocorrelation(features, index, 3, check=False)
        (gradient,) = torch.autograd.grad(moment.sum(), features)
        assert moment[:2].isfinite().all()
        assert gradient[:-7].isfinite().all()


# Dynamo of torch 2.13 instantiates every autograd.Function that it traces.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
class TestTracing:
    def test_one_compilation_serves_every_batch(self) -> None:
        counter = CompileCounterWithBackend("aot_eager")

        def moment(features: Tensor, index: Tensor) -> Tensor:
            return segment_autocorrelation(features, index, 5, 0.5)

        compiled = torch.compile(moment, backend=counter, fullgraph=True, dynamic=True)
        for rows in (7, 30, 5000):
            index = torch.randint(5, (rows,))
            left = torch.randn(rows, 3, dtype=torch.float64, requires_grad=True)
            right = left.detach().clone().requires_grad_()
            assert_close(compiled(left, index), moment(right, index), **tolerance(torch.float64))
            compiled(left, index).square().sum().backward()
            moment(right, index).square().sum().backward()
            assert_close(left.grad, right.grad, **tolerance(torch.float64))
        assert counter.frame_count == 1

    def test_vmap_over_features_and_index(self) -> None:
        features = torch.randn(4, 20, 3, dtype=torch.float64)
        index = torch.randint(5, (4, 20))
        expected = torch.stack([_reference(f, i, 5, 0.5) for f, i in zip(features, index, strict=True)])

        def moment(f: Tensor, i: Tensor) -> Tensor:
            return segment_autocorrelation(f, i, 5, 0.5)

        assert_close(torch.vmap(moment)(features, index), expected, **tolerance(torch.float64))
        shared = torch.vmap(moment, in_dims=(1, None))(features.movedim(0, 1), index[0])
        assert_close(shared[0], expected[0], **tolerance(torch.float64))

    def test_transforms_of_torch_func(self) -> None:
        features, index = _batch([4, 0, 3], 2, shuffle=True)
        stacked = torch.stack([features, features.flip(0)])

        def loss(x: Tensor) -> Tensor:
            return segment_autocorrelation(x, index, 3, 0.5).square().sum()

        expected = torch.stack([torch.autograd.grad(loss(x), x)[0] for x in stacked.clone().requires_grad_()])
        assert_close(torch.vmap(torch.func.grad(loss))(stacked), expected, **tolerance(torch.float64))
        hessian = torch.autograd.functional.hessian(loss, features)
        assert_close(torch.func.jacrev(torch.func.jacrev(loss))(features), hessian, **tolerance(torch.float64))

    def test_export_with_any_number_of_rows(self) -> None:
        class Moment(torch.nn.Module):
            def forward(self, features: Tensor, index: Tensor) -> Tensor:
                return segment_autocorrelation(features, index, 5, 0.5)

        rows = torch.export.Dim("rows", min=2)
        given_inputs = torch.randn(40, 3), torch.randint(5, (40,))
        exported = torch.export.export(Moment(), given_inputs, dynamic_shapes=({0: rows}, {0: rows})).module()
        for number in (2, 9, 3000):
            features, index = torch.randn(number, 3), torch.randint(5, (number,))
            assert_close(exported(features, index), _reference(features, index, 5, 0.5), **tolerance(torch.float32))

    def test_number_of_segments_is_needed_in_a_full_graph(self) -> None:
        compiled = torch.compile(segment_autocorrelation, backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match="num_segments"):
            compiled(torch.randn(4, 3), torch.tensor([0, 0, 1, 1]))

    @pytest.mark.parametrize("y", [None, torch.randn(7, 3)])
    def test_kernels_are_registered_correctly(self, y: Tensor | None) -> None:
        x, index = torch.randn(7, 3), torch.tensor([0, 0, 2, 2, 2, 0, 2])
        plan = segments.plan_segments(index, 3, 3)
        parts = plan.slots, plan.owner, plan.sizes
        torch.library.opcheck(segments._pair_kernel, (x, y, *parts))
        torch.library.opcheck(segments._apply_kernel, (torch.randn(3, 3, 3), x, *parts))


def _peak_memory(function: Callable[[], object]) -> int:
    """Peak bytes that ``function`` allocates, including its result."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = function()
    assert recorded.profiler is not None
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    steps = [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())]
    del kept
    return int(np.cumsum(steps).max())


UNEVEN = {
    "one of 4000 among 2000 of 10": ([10] * 1000 + [4000] + [10] * 1000, 16),
    "small graphs": ([8 + n % 21 for n in range(128)], 64),
    "one graph": ([5000], 32),
    "single nodes": ([1] * 500, 64),
    "wide": ([18] * 16, 512),
}


class TestMemory:
    @staticmethod
    def _peaks(
        moment: Callable[[Tensor, Tensor, int], Tensor], sizes: list[int], channels: int, shuffle: bool = False
    ) -> tuple[float, float]:
        """Peak of forward, and of forward and backward, in units of input plus output."""
        features, index = _batch(sizes, channels, shuffle=shuffle)
        features = features.float().requires_grad_()
        grad = torch.randn(len(sizes), channels, channels)
        unit = 4 * (features.numel() + grad.numel())
        forward = _peak_memory(lambda: moment(features, index, len(sizes)))
        both = _peak_memory(lambda: torch.autograd.grad(moment(features, index, len(sizes)), features, grad))
        return forward / unit, both / unit

    @pytest.mark.parametrize("name", UNEVEN)
    @pytest.mark.parametrize("beta, shuffle", [(0.0, False), (1.0, True)])
    def test_at_most_four_times_input_and_output(self, name: str, beta: float, shuffle: bool) -> None:
        def moment(features: Tensor, index: Tensor, num_segments: int) -> Tensor:
            return segment_autocorrelation(features, index, num_segments, beta)

        forward, both = self._peaks(moment, *UNEVEN[name], shuffle=shuffle)
        assert 0 < forward <= 4
        assert 0 < both <= 4

    def test_only_the_input_is_saved_for_backward(self) -> None:
        features, index = _batch(*UNEVEN["one of 4000 among 2000 of 10"])
        features = features.float().requires_grad_()
        kept = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal kept
            if tensor.is_floating_point() and tensor.data_ptr() != features.data_ptr():
                kept += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            segment_autocorrelation(features, index)
        assert kept == 0


ZEROS = torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize("function", [segment_autocorrelation, segment_mean])
def test_bad_input(function: Callable[..., Tensor]) -> None:
    ones = torch.ones(4, 3)
    for given_input, error, key in (
        ((torch.ones(2, 3, 4), ZEROS[:2]), ShapeError, r"\(2, 3, 4\)"),
        ((torch.ones(0, 3), ZEROS[:0], 2), ShapeError, r"\(0, 3\)"),
        ((torch.ones(4, 3, dtype=torch.int64), ZEROS), DTypeError, "int64"),
        ((ones, ZEROS.float()), DTypeError, "index.*float32"),
        ((ones, [0, 0, 1, 1]), DTypeError, "index.*list"),
        ((ones, ZEROS[:3]), ShapeError, r"index.*\(3,\)"),
        ((ones, torch.tensor([0, -1, 2, 2])), DomainError, "-1 to 2"),
        ((ones, torch.tensor([0, 0, 2, 2]), 2), DomainError, "0 to 2"),
        ((ones, ZEROS, 0), ArgumentError, "num_segments.*0"),
        ((ones, ZEROS, 2.0), ArgumentError, "num_segments.*2.0"),
        ((torch.tensor([[1.0], [torch.nan]]), ZEROS[:2]), NotFiniteError, "1 NaN"),
    ):
        with pytest.raises(error, match=key):
            function(*given_input)


def test_bad_beta_and_unchecked_index() -> None:
    with pytest.raises(ArgumentError, match=r"1\.1"):
        segment_autocorrelation(torch.ones(4, 3), ZEROS, beta=1.1)
    for wrong in (-1, 2):
        with pytest.raises((IndexError, RuntimeError)):
            segment_autocorrelation(torch.ones(2, 3), torch.tensor([0, wrong]), 2, check=False)
