"""Nothing is fetched unless it is asked for, and nothing at all where the network is forbidden."""

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
from powerpool.data.store import how_to_fetch, is_offline, may_fetch
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
    """Stand-ins for timm and torchvision, whose weights come from a network; not for transformers, which would see."""
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
    "pictures by name": lambda **options: load_images("food101", **options),
    "pictures of the hub": lambda **options: load_images("hf:owner/name", **options),
    "classes by name": lambda **options: load_fewshot("cub200", **options),
    "backbone of the hub": lambda **options: load_backbone("hf:owner/name", **options),
    "backbone of timm": lambda **options: load_backbone("timm:net", **options),
    "backbone of torchvision": lambda **options: load_backbone("torchvision:net", **options),
}


@pytest.mark.parametrize("what", FETCHES)
def test_nothing_is_fetched_unless_it_is_asked_for(what: str) -> None:
    for options in ({}, {"download": False}):
        with pytest.raises(PowerPoolError, match="download=True"):
            FETCHES[what](**options)


@pytest.mark.parametrize("what", FETCHES)
def test_what_is_asked_for_is_fetched(what: str) -> None:
    """So the tests above and below would see a network that is used."""
    with pytest.raises((NetworkUsedError, PowerPoolError)) as caught:
        FETCHES[what](download=True)
    chain, error = [], caught.value
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    assert any(isinstance(error, NetworkUsedError) for error in chain)


@pytest.mark.parametrize("what", FETCHES)
def test_offline_forbids_what_is_asked_for(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_OFFLINE", "1")
    with pytest.raises(PowerPoolError, match=r"the network is forbidden \(--offline, or POWERPOOL_OFFLINE=1\)"):
        FETCHES[what](download=True)


def test_offline_leaves_alone_what_is_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_OFFLINE", "1")
    assert len(load_graphs("MUTAG", download=True)) == 188
    assert load_images(write_folder(tmp_path / "set", split_set()), download=True).name == "set"


@pytest.mark.parametrize("value, expected", [("1", True), ("true", True), ("yes", True), ("", False), ("0", False),
                                             ("false", False), (" No ", False), ("off", False)])  # fmt: skip
def test_words_for_offline(value: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_OFFLINE", value)
    assert is_offline() is expected
    assert may_fetch(True) is not expected
    assert not may_fetch(False)
    assert how_to_fetch("Do this.").startswith("Do this.")
    assert ("forbidden" in how_to_fetch("Do this.")) is expected


def test_the_command_obeys_offline_whatever_a_recipe_says(tmp_path: Path, capsys: Any) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("data: NCI1\ndownload: true\n")
    assert main(["train", "graph", "--config", str(recipe), "--out", str(tmp_path / "run"), "--offline"]) == 2
    said = capsys.readouterr().err
    assert "NCI1 was not found" in said
    assert "POWERPOOL_OFFLINE=1" in said
    assert not is_offline()


def test_the_pictures_of_a_recipe_that_downloads(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_OFFLINE", "1")
    assert main(["train", "vision", "--config", "vision/fmd", "--out", str(tmp_path / "run")]) == 2
    assert "POWERPOOL_OFFLINE=1" in capsys.readouterr().err
