"""Replacing the pooling of complete classifiers."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import pytest
import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.testing import assert_close

import powerpool as pp
from powerpool.errors import ArgumentError, PowerPoolError
from powerpool.integrations.backbones import BackboneError, replace_pooling
from tests.integrations.networks import AlexNetLike, ResNetLike, Untidy, resnet
from tests.tolerances import tolerance


class HandWritten(nn.Module):
    """A network for images of one channel, with dropout, whose layers are not in the order of use."""

    def __init__(self, pooling: nn.Module | None = None, between: nn.Module | None = None) -> None:
        super().__init__()
        self.classifier = nn.Linear(8, 10, bias=False)
        self.drop = nn.Dropout(0.25)
        self.global_pool = pooling or nn.AdaptiveAvgPool2d(1)
        self.between = between or nn.Identity()
        self.trunk = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.num_classes = 10

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.drop(self.between(self.global_pool(self.trunk(images)).flatten(1))))


class FlatPool(nn.Module):
    """Pools to vectors, as timm's SelectAdaptivePool2d with flatten=True."""

    def forward(self, maps: Tensor) -> Tensor:
        return maps.mean((2, 3))


class StrictlyFlat(HandWritten):
    """A network whose forward does not flatten."""

    def __init__(self) -> None:
        super().__init__(FlatPool())

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.drop(self.global_pool(self.trunk(images))))


class Squeezed(nn.Module):
    """A network with squeeze and excitation, which has a pooling of its own, before the last pooling."""

    def __init__(self, functional: bool = False) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3)
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8), nn.Sigmoid())
        self.avgpool = None if functional else nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.convolution(images)
        maps = maps * self.squeeze(maps)[:, :, None, None]
        return self.fc(maps.mean((2, 3)) if self.avgpool is None else self.avgpool(maps).flatten(1))


def sequential() -> nn.Module:
    return nn.Sequential(
        OrderedDict(
            features=nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()),
            pool=nn.AdaptiveMaxPool2d((1, 1)),
            flatten=nn.Flatten(),
            dropout=nn.Dropout(0.5),
            fc=nn.Linear(8, 10),
        )
    )


def fixed_window() -> nn.Module:
    """Return a network for images of one size."""
    return nn.Sequential(nn.Conv2d(3, 8, 8, stride=8), nn.AvgPool2d(28), nn.Flatten(), nn.Linear(8, 10))


def lite0() -> nn.Module:
    return EfficientNet.from_name("efficientnet-lite0", num_classes=10)


MODELS: dict[str, tuple[Any, int, int]] = {  # a model, its channels, the channels of its images
    "hand-written": (HandWritten, 8, 1),
    "flat": (StrictlyFlat, 8, 1),
    "squeezed": (Squeezed, 8, 3),
    "sequential": (sequential, 8, 3),
    "fixed window": (fixed_window, 8, 3),
    "torchvision resnet": (ResNetLike, 8, 3),
    "torchvision alexnet": (AlexNetLike, 8, 3),
    "transformers": (resnet, 16, 3),
    "efficientnet-lite": (lite0, 1280, 3),
}


def scores(output: Any) -> Tensor:
    return getattr(output, "logits", output)


@pytest.mark.parametrize("kind", MODELS)
def test_a_replaced_pooling_can_be_trained(kind: str) -> None:
    torch.manual_seed(0)
    build, channels, colours = MODELS[kind]
    model = build().train()
    reduced = 4 if channels > 100 else None
    pool = pp.nn.SecondOrderPool2d(channels, pp.MaxExp(eta=5), reduce_to=reduced)
    size = 224 if kind == "fixed window" else 64
    state = torch.random.get_rng_state()
    expected_names = {name for name, _ in model.named_modules()}
    assert replace_pooling(model, pool, 5) is model
    assert expected_names <= {name for name, _ in model.named_modules()}
    assert all(layer.training for layer in model.modules())
    images = torch.rand(3, colours, size, size)
    got = scores(model(images))
    assert got.shape == (3, 5)
    nn.functional.cross_entropy(got, torch.tensor([0, 1, 4])).backward()
    assert [name for name, weight in model.named_parameters() if weight.grad is None] == []
    assert any(layer is pool for layer in model.modules())
    assert not torch.equal(state, torch.random.get_rng_state())  # the new classifier is random


@torch.no_grad()
def test_the_scores_are_linear_in_the_pooled_vectors() -> None:
    model = HandWritten().eval()
    pool = pp.nn.SecondOrderPool2d(8, pp.MaxExp(eta=5))
    replace_pooling(model, pool, 5)
    images = torch.rand(2, 1, 12, 12)
    vectors = pool(model.trunk(images))
    assert model.classifier.weight.shape == (5, 36)
    assert model.classifier.bias is None
    assert_close(model(images), vectors @ model.classifier.weight.T, **tolerance(torch.float32))
    assert (model.drop.p, model.num_classes) == (0.25, 5)
    assert not any(layer.training for layer in model.modules())


@torch.no_grad()
def test_replacing_average_pooling_by_itself_changes_nothing() -> None:
    model = resnet(num_labels=10)
    images = torch.rand(2, 3, 32, 32)
    weight, expected = copy.deepcopy(model.classifier.state_dict()), model(images).logits
    replace_pooling(model, pp.nn.FirstOrderPool2d(16), 10)
    model.classifier.load_state_dict(weight)
    assert_close(model(images).logits, expected, **tolerance(torch.float32))


def test_a_transformers_model_keeps_its_outputs_loss_and_labels() -> None:
    model = replace_pooling(resnet(num_labels=3), pp.nn.SecondOrderPool2d(16), 5)
    output = model(torch.rand(2, 3, 32, 32), labels=torch.tensor([0, 4]), output_hidden_states=True)
    assert output.logits.shape == (2, 5)
    assert len(output.hidden_states) == 3
    assert_close(output.loss, nn.functional.cross_entropy(output.logits, torch.tensor([0, 4])))
    assert (model.num_labels, model.config.num_labels) == (5, 5)
    assert list(model.config.id2label) == list(model.config.label2id.values()) == [0, 1, 2, 3, 4]


def test_a_pooling_can_be_replaced_again() -> None:
    model = replace_pooling(sequential(), pp.nn.SecondOrderPool2d(8, reduce_to=4), 5)
    replace_pooling(model, pp.nn.FirstOrderPool2d(8), 3)
    assert model(torch.rand(2, 3, 9, 9)).shape == (2, 3)
    assert not any(isinstance(layer, pp.nn.SecondOrderPool2d) for layer in model.modules())


def test_new_layers_have_the_dtype_of_the_model() -> None:
    model = replace_pooling(sequential().double(), pp.nn.SecondOrderPool2d(8, reduce_to=4), 5)
    assert {weight.dtype for weight in model.parameters()} == {torch.float64}
    assert model(torch.rand(2, 3, 9, 9).double()).dtype == torch.float64


def test_statistics_and_modes_do_not_change() -> None:
    model = HandWritten()
    model.trunk[1].eval()
    before = copy.deepcopy(model.trunk.state_dict())
    replace_pooling(model, pp.nn.SecondOrderPool2d(8), 5)
    assert_close(model.trunk.state_dict(), before)
    assert (model.training, model.trunk[1].training, model.trunk[0].training) == (True, False, True)


class Wrong(nn.Module):
    """A pool with the wrong output."""

    def __init__(self, out_features: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.out_features, self.shape = out_features, shape

    def forward(self, maps: Tensor) -> Tensor:
        return maps.new_zeros(len(maps), *self.shape)


@pytest.mark.parametrize(
    "build, pool, error, message",
    [
        (sequential, pp.nn.SecondOrderPool2d(16), ArgumentError, "8 channels.* 16"),
        (sequential, nn.AdaptiveAvgPool2d(1), ArgumentError, "got AdaptiveAvgPool2d"),
        (sequential, Wrong(4, (5,)), BackboneError, "was restored"),
        (StrictlyFlat, Wrong(4, (2, 4)), BackboneError, r"\[\(2, 2, 5\)\] instead of \(2, 5\)"),
        (Untidy, pp.nn.SecondOrderPool2d(8), BackboneError, "no global pooling"),
        (lambda: Squeezed(True), pp.nn.SecondOrderPool2d(8), BackboneError, r"model\.squeeze\.0"),
        (lambda: HandWritten(between=nn.LayerNorm(8)), pp.nn.SecondOrderPool2d(8), BackboneError, r"model\.between"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            pp.nn.SecondOrderPool2d(8),
            BackboneError,
            r"Linear after its pooling, model\.1",
        ),
        (lambda: nn.Linear(3, 2), pp.nn.SecondOrderPool2d(8), BackboneError, "no Conv2d"),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(9, 2)),
            pp.nn.SecondOrderPool2d(8),
            BackboneError,
            r"\(2, 3, 64, 64\)",
        ),
    ],
)
def test_a_model_is_unchanged_on_failure(build: Any, pool: Any, error: type[PowerPoolError], message: str) -> None:
    model = build()
    layers = dict(model.named_modules())
    with pytest.raises(error, match=message):
        replace_pooling(model, pool, 5)
    assert dict(model.named_modules()) == layers
    assert not any(layer._forward_hooks for layer in model.modules())


def test_the_number_of_classes_is_checked() -> None:
    with pytest.raises(ArgumentError, match="got 0"):
        replace_pooling(sequential(), pp.nn.SecondOrderPool2d(8), 0)
