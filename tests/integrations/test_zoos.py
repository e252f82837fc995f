"""Backbones of transformers, timm and torchvision, compared with the complete networks.

timm and torchvision are replaced by small modules with the functions that the loaders call, because they need not be
installed; whether the real packages still have these functions is not tested.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import ConvNextConfig, ConvNextForImageClassification

from powerpool.errors import ArgumentError, UnknownNameError
from powerpool.integrations.backbones import BackboneError, fold_batch_norm, load_backbone
from tests.integrations.networks import IMAGENET, AlexNetLike, DenseNet, ResNetLike, Untidy, norms, resnet, shake_norms
from tests.tolerances import tolerance


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
