"""Digests of backbones, and folding of batch normalization."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from powerpool.integrations.backbones import Backbone, fold_batch_norm, load_backbone
from tests.integrations.networks import norms, shake_norms
from tests.tolerances import tolerance


def small() -> Backbone:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return Backbone("small", body, 4)


def test_the_digest_depends_on_values_not_on_storage() -> None:
    backbone = small()
    digest = backbone.digest()
    assert digest == small().digest() == copy.deepcopy(backbone).digest()
    torch.manual_seed(0)
    fixed = Backbone("fixed", nn.Conv2d(3, 1, 1).requires_grad_(False), 1)
    nn.init.constant_(fixed.body.weight, 0.5)
    nn.init.zeros_(fixed.body.bias)
    assert fixed.digest() == "1567f40cd02e7f15b093d5305d6ea792"  # as in version 0.1: stored features are found by it
    assert digest == backbone.to(memory_format=torch.channels_last).digest() == backbone.eval().digest()
    renamed = small()
    renamed.name = "another"
    assert renamed.digest() == digest
    half = small().to(torch.bfloat16)
    assert half.digest() not in (digest, small().to(torch.float16).digest())


def test_the_digest_changes_with_every_setting() -> None:
    for change in (
        lambda b: b.body[0].weight.data[0, 0, 0, 0].add_(1e-3),
        lambda b: b.body[1].running_var[3].add_(1e-3),
        lambda b: setattr(b.body[0], "stride", (2, 2)),
        lambda b: setattr(b, "std", (0.5, 0.5, 0.5)),
        lambda b: b.head.__setitem__(0, nn.AdaptiveMaxPool2d(1)),
    ):
        backbone = small()
        before = backbone.digest()
        change(backbone)
        assert backbone.digest() != before


# ---- folding ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_lite_is_folded_completely() -> None:
    lite = load_backbone("efficientnet-lite0")
    before = lite.digest()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    folded = fold_batch_norm(lite, images)
    assert isinstance(folded, Backbone)
    assert len(norms(lite)) == 49
    assert norms(folded) == []
    other = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(1))
    maps = lite(other)
    assert_close(folded(other), maps, rtol=0, atol=1e-5 * float(maps.abs().max()))
    assert_close(folded.head(maps), lite.head(maps), **tolerance(torch.float32, slack=100))
    assert lite.digest() == before != folded.digest()  # a copy was folded
    assert (folded.name, folded.channels, folded.head_channels) == (lite.name, 320, 1280)
    assert not any(weight.requires_grad for weight in folded.parameters())
    assert not any(layer.training for layer in folded.modules())


@settings(max_examples=25)
@given(
    bias=st.booleans(),
    affine=st.booleans(),
    groups=st.sampled_from([1, 2]),
    kernel=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
@torch.no_grad()
def test_folding_is_normalized_convolution(bias: bool, affine: bool, groups: int, kernel: int, seed: int) -> None:
    torch.manual_seed(seed)
    convolution = nn.Conv2d(4, 6, kernel, groups=groups, bias=bias, padding=1, padding_mode="reflect")
    module = nn.Sequential(convolution, nn.BatchNorm2d(6, affine=affine, eps=1e-2), nn.ReLU()).double()
    shake_norms(module).train()
    folded = fold_batch_norm(module, torch.randn(1, 4, 5, 5).double())
    assert [type(layer) for layer in folded] == [nn.Conv2d, nn.Identity, nn.ReLU]
    assert all(layer.training for layer in module.modules())
    maps = torch.randn(3, 4, 7, 6).double()
    norm = module[1]
    a = norm.weight if affine else torch.ones(6).double()
    c = norm.bias if affine else torch.zeros(6).double()
    column = (slice(None), None, None)
    expected = (convolution(maps) - norm.running_mean[column]) / (norm.running_var[column] + 1e-2).sqrt()
    assert_close(folded(maps), (expected * a[column] + c[column]).relu(), **tolerance(torch.float64, slack=10))


class Branches(nn.Module):
    """A convolution whose output is used twice."""

    def __init__(self, after: nn.Module | None) -> None:
        super().__init__()
        self.convolution, self.norm, self.after = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), after

    def forward(self, maps: Tensor) -> Tensor:
        maps = self.convolution(maps)
        return self.norm(maps) + (maps if self.after is None else self.after(maps))


class Twice(nn.Module):
    """A convolution, or a normalization, that runs twice."""

    def __init__(self, norms: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(3 - norms))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(norms))

    def forward(self, maps: Tensor) -> Tensor:
        for step in range(2):
            maps = self.norms[step % len(self.norms)](self.convolutions[step % len(self.convolutions)](maps))
        return maps


class NormAndActivation(nn.BatchNorm2d):
    """Normalization and activation in one layer, as in timm."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return super().forward(input).relu()


def weight_normalized() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 3, 1)), nn.BatchNorm2d(3))


@pytest.mark.parametrize(
    "module",
    [
        Branches(nn.ReLU()),  # a second module uses the output
        Branches(None),  # an addition uses it, which no hook sees
        Twice(norms=1),
        Twice(norms=2),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(inplace=True), nn.BatchNorm2d(3)),
        nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 3, 1)),
        nn.Sequential(nn.Conv2d(3, 3, 1), NormAndActivation(3)),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)),
        weight_normalized(),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU()),
    ],
    ids=lambda module: type(module).__name__,
)
@torch.no_grad()
def test_what_cannot_be_folded_is_kept(module: nn.Module) -> None:
    shake_norms(module)
    maps = torch.randn(2, 3, 5, 5)
    folded = fold_batch_norm(module, maps)
    assert len(norms(folded)) == len(norms(module))
    assert_close(folded(maps), module.eval()(maps))


def test_other_pairs_are_still_folded() -> None:
    module = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), Branches(nn.ReLU()), nn.Sequential())
    module[3] = nn.Sequential(nn.Conv2d(3, 3, 1), nn.Sequential(nn.BatchNorm2d(3)))  # within a container
    folded = fold_batch_norm(shake_norms(module), torch.randn(2, 3, 5, 5))
    assert len(norms(folded)) == 1
    assert isinstance(folded[2].norm, nn.BatchNorm2d)
