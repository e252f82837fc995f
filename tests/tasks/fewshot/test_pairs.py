"""The block on pairs against the same layers on stacked pairs: values, gradients, statistics."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from powerpool.errors import ShapeError
from powerpool.tasks.fewshot import pairs
from powerpool.tasks.fewshot.model import conv_block
from powerpool.tasks.fewshot.pairs import PairBlock, compare_maps, pool_pairs
from powerpool.tasks.training import recompute_batch_norm, use_batch_statistics


def stacked(support, query):
    """Stack all pairs: (n L, 2, H, W), those of the first query first."""
    shape = (len(query), len(support), *query.shape[1:])
    return torch.stack([support.expand(shape), query[:, None].expand(shape)], 2).flatten(0, 1)


def directly(block: PairBlock, support, query):
    normed = block.norm(block.convolution(stacked(support, query)))
    return nn.functional.max_pool2d(normed, 2).relu()


def make(channels=3, seed=0, padding=1):
    torch.manual_seed(seed)
    block = PairBlock(channels, padding).double()
    with torch.no_grad():
        block.norm.weight.uniform_(-1, 1)  # of both signs
        block.norm.bias.uniform_(-1, 1)
    return block, copy.deepcopy(block)


@settings(max_examples=15)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(2, 4), st.integers(2, 4), st.integers(0, 5), st.integers(0, 1))
def test_values_gradients_and_statistics_equal_those_of_stacked_pairs(way, queries, height, width, seed, padding):
    block, reference = make(seed=seed, padding=padding)
    support = torch.randn(way, 2 * height, 2 * width, dtype=torch.float64, requires_grad=True)
    query = torch.randn(queries, 2 * height, 2 * width, dtype=torch.float64, requires_grad=True)
    ours, theirs = block(support, query), directly(reference, support, query)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    upstream = torch.randn_like(theirs)
    found = torch.autograd.grad(ours, [support, query, *block.parameters()], upstream)
    wanted = torch.autograd.grad(theirs, [support, query, *reference.parameters()], upstream)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    for name, value in reference.norm.state_dict().items():
        torch.testing.assert_close(block.norm.state_dict()[name], value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_in_evaluation_running_statistics_are_used(momentum):
    block, reference = make()
    block.norm.momentum = reference.norm.momentum = momentum
    for seed in range(3):
        torch.manual_seed(seed)
        support, query = torch.rand(3, 8, 8).double(), torch.rand(4, 8, 8).double()
        block(support, query)
        directly(reference, support, query)
    block.eval(), reference.eval()
    torch.testing.assert_close(block(support, query), directly(reference, support, query), rtol=1e-9, atol=1e-10)
    one = block(support, query[:1])
    torch.testing.assert_close(one, block(support, query)[:3], rtol=1e-12, atol=1e-12)


def test_float32_is_as_accurate_as_the_layers():
    block, reference = make(8)
    support, query = torch.rand(5, 16, 16) + 5, torch.rand(7, 16, 16) + 5  # a variance by cancellation fails
    exact = directly(reference, support.double(), query.double())
    assert (block.float()(support, query) - exact).abs().max() < 1e-3


# ---- maps of many channels -------------------------------------------------------------------------------------------


def concatenated(block, support, query):
    shape = (len(query), len(support), *query.shape[1:])
    return block(torch.cat([support.expand(shape), query[:, None].expand(shape)], 2).flatten(0, 1))


def make_block(padding=0, pool=True, seed=0):
    torch.manual_seed(seed)
    block = conv_block(6, 4, padding=padding, pool=pool).double()
    with torch.no_grad():
        block[1].weight.uniform_(-1, 1)  # of both signs
        block[1].bias.uniform_(-1, 1)
    return block, copy.deepcopy(block)


@settings(max_examples=15)
@given(
    st.integers(1, 4), st.integers(1, 5), st.integers(4, 7), st.sampled_from([0, 1]), st.booleans(), st.integers(0, 5)
)
def test_compared_maps_equal_the_layers_on_concatenated_maps(way, queries, side, padding, pool, seed):
    block, reference = make_block(padding, pool, seed)
    support = torch.randn(way, 3, side, side + 1, dtype=torch.float64, requires_grad=True)
    query = torch.randn(queries, 3, side, side + 1, dtype=torch.float64, requires_grad=True)
    ours, theirs = compare_maps(block, support, query), concatenated(reference, support, query)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)
    upstream = torch.randn_like(theirs)
    found = torch.autograd.grad(ours, [support, query, *block.parameters()], upstream)
    wanted = torch.autograd.grad(theirs, [support, query, *reference.parameters()], upstream)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(block.state_dict()[name], value, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("context", [recompute_batch_norm, use_batch_statistics])
def test_compared_maps_follow_the_mode_of_batch_normalization(context):
    block, reference = make_block()
    support, query = torch.rand(3, 3, 6, 6).double(), torch.rand(4, 3, 6, 6).double()
    with context(block), context(reference):
        for shift in range(3):
            ours = compare_maps(block, support + shift, query)
            torch.testing.assert_close(ours, concatenated(reference, support + shift, query), rtol=1e-9, atol=1e-10)
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(block.state_dict()[name], value, rtol=1e-9, atol=1e-10)
    ours = compare_maps(block, support, query)  # in evaluation
    torch.testing.assert_close(ours, concatenated(reference, support, query), rtol=1e-9, atol=1e-10)


def test_compared_maps_are_as_accurate_as_the_layers_in_float32_and_bfloat16():
    block, reference = make_block()
    support, query = torch.rand(5, 3, 9, 9) + 5, torch.rand(7, 3, 9, 9) + 5  # a variance by cancellation fails
    exact = concatenated(reference, support.double(), query.double())
    assert (compare_maps(block.float(), support, query) - exact).abs().max() < 1e-3
    reference.float()
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = compare_maps(block, support, query), concatenated(reference, support, query)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert (ours - exact).abs().mean() < 1.5 * (theirs - exact).abs().mean()


# ---- sums of pairs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block_size", [40, 10**9])
def test_the_size_of_blocks_does_not_change_the_result(monkeypatch, block_size):
    torch.manual_seed(0)
    first = torch.randn(4, 2, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    second = torch.randn(4, 5, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    wanted = (first[:, None] + second[:, :, None]).amax(0).relu().movedim(-1, 2)
    monkeypatch.setattr(pairs, "BLOCK", block_size)
    found = pool_pairs(first, second)
    assert torch.equal(found, wanted)
    assert torch.autograd.gradcheck(pool_pairs, (first, second))


def test_of_equal_entries_the_first_gets_the_gradient():
    first = torch.ones(4, 1, 1, 1, 1, requires_grad=True)
    second = torch.ones(4, 2, 1, 1, 1, requires_grad=True)
    pool_pairs(first, second).sum().backward()
    assert first.grad.flatten().tolist() == [2, 0, 0, 0]
    assert second.grad.flatten(1).tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize(
    "support, query, shown",
    [
        ((5, 8), (3, 8, 8), r"\(5, 8\)"),
        ((5, 8, 8), (3, 8, 6), r"\(3, 8, 6\)"),
        ((5, 7, 8), (3, 7, 8), "even"),
    ],
)
def test_wrong_shapes_are_refused(support, query, shown):
    with pytest.raises(ShapeError, match=shown):
        PairBlock(2)(torch.rand(support), torch.rand(query))
