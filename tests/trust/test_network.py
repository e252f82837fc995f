"""Nothing is downloaded without permission, and nothing at all where the network is forbidden."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from powerpool.cli.main import main
from powerpool.data import load_fewshot, load_graphs, load_images
from powerpool.data.store import is_offline, may_fetch
from powerpool.errors import PowerPoolError
from powerpool.integrations.backbones import load_backbone
from tests.data.image_sets import split_set, write_folder
from tests.trust.conftest import NetworkUsedError

pytestmark = pytest.mark.usefixtures("no_network")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True)
def _zoos(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Stand-ins for timm and torchvision, which download weights; transformers is the real one."""
    if not any(zoo in request.node.name for zoo in ("timm", "torchvision")):
        return

    def fetch(*arguments: object, **options: Any) -> None:
        if options.get("pretrained", True) and "pretrained_cfg_overlay" not in options:
            socket.create_connection(("example.org", 443))

    url = "https://example.org/net-01.pth"
    timm, models, package = (ModuleType(name) for name in ("timm", "torchvision.models", "torchvision"))
    timm.__dict__.update(
        is_model=lambda name: True,
        get_pretrained_cfg=lambda name: SimpleNamespace(hf_hub_id=None, url=url),
        create_model=fetch,
    )
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(url=url, transforms=lambda: None))
    models.__dict__.update(list_models=lambda module: ["net"], get_model_weights=lambda name: weights, get_model=fetch)
    package.__dict__.update(models=models)
    for module in (timm, models, package):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))


FETCHES: dict[str, Callable[..., Any]] = {
    "graphs": lambda **options: load_graphs("NCI1", **options),
    "images by name": lambda **options: load_images("food101", **options),
    "images of the hub": lambda **options: load_images("hf:owner/name", **options),
    "classes by name": lambda **options: load_fewshot("cub200", **options),
    "backbone of the hub": lambda **options: load_backbone("hf:owner/name", **options),
    "backbone of timm": lambda **options: load_backbone("timm:net", **options),
    "backbone of torchvision": lambda **options: load_backbone("torchvision:net", **options),
}


@pytest.mark.parametrize("what", FETCHES)
def test_nothing_is_downloaded_without_permission(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({}, {"download": False}):
        with pytest.raises(PowerPoolError, match="download=True"):
            FETCHES[what](**options)
    monkeypatch.setenv("POWERPOOL_OFFLINE", "1")
    with pytest.raises(PowerPoolError, match="POWERPOOL_OFFLINE=1"):
        FETCHES[what](download=True)


@pytest.mark.parametrize("what", FETCHES)
def test_a_permitted_download_uses_the_network(what: str) -> None:
    """The other tests would therefore notice a download."""
    with pytest.raises((NetworkUsedError, PowerPoolError)) as caught:
        FETCHES[what](download=True)
    chain, error = [], caught.value
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    assert any(isinstance(error, NetworkUsedError) for error in chain)


def test_offline_allows_what_is_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_OFFLINE", "1")
    assert len(load_graphs("MUTAG", download=True)) == 188
    assert load_images(write_folder(tmp_path / "set", split_set()), download=True).name == "set"


@pytest.mark.parametrize("value, expected", [("1", True), ("yes", True), ("", False), ("0", False), (" No ", False)])
def test_values_of_the_offline_variable(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_OFFLINE", value)
    assert is_offline() is expected
    assert may_fetch(True) is not expected
    assert not may_fetch(False)


def test_commands_obey_offline_whatever_a_recipe_permits(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("data: NCI1\ndownload: true\n")
    assert main(["train", "graph", "--config", str(recipe), "--out", str(tmp_path / "run"), "--offline"]) == 2
    message = capsys.readouterr().err
    assert "NCI1" in message
    assert "POWERPOOL_OFFLINE=1" in message
    assert not is_offline()
    monkeypatch.setenv("POWERPOOL_OFFLINE", "1")
    assert main(["train", "vision", "--config", "vision/fmd", "--out", str(tmp_path / "run")]) == 2
    assert "POWERPOOL_OFFLINE=1" in capsys.readouterr().err
