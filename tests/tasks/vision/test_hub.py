"""Exported folders in the format of transformers: the same probabilities as the run, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import ViTImageProcessorPil

import powerpool as pp
from powerpool.cli.main import main
from powerpool.data import Crops, load_images
from powerpool.errors import ArgumentError, RecordError
from powerpool.integrations import hub
from powerpool.integrations.backbones import load_backbone
from powerpool.runs.folder import MODEL
from powerpool.tasks.vision import export as exporting
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.export import ExportError, ExportOptions, export_folder
from powerpool.tasks.vision.hub import is_hub_folder, load_hub
from powerpool.tasks.vision.inference import TrainedModel
from powerpool.tasks.vision.model import ImageClassifier
from tests.integrations.families import FAMILIES
from tests.tasks.vision.samples import CLASSES, tiny_backbone

METHODS = ("Baseline", "FOP+AsinhE", "SOP+SC+SigmE", "SOP+NewtonSchulz", "SOP+SC+SpecGamma", "SOP+SC+SpecMaxExpF")
CROPS = Crops(size=32, count=2, resize=32)


def make_model(method: str, is_trained: bool = False, **pool: Any) -> TrainedModel:
    network = ImageClassifier(tiny_backbone(), PoolConfig(method, eta=5, pivots=3, **pool), len(CLASSES)).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in network.parameters() if is_trained else network.classifier.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) / 4)
    return TrainedModel(network, CLASSES, CROPS, is_trained)


@pytest.fixture
def known(tiny, monkeypatch):
    """Every name stands for the tiny network; in the format of transformers its weights are others at first."""
    monkeypatch.setattr(hub, "load_backbone", lambda name, **options: tiny_backbone(1))


@pytest.fixture(scope="module")
def split(textures):
    return load_images(textures)["test"]


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_folder_gives_the_probabilities_of_the_run(method, is_trained, split, tmp_path):
    model = make_model(method, is_trained)
    difference = export_folder(model, tmp_path / "hub")
    assert difference is not None
    assert difference <= 1e-5
    again = load_hub(tmp_path / "hub")
    assert again.classes == CLASSES
    expected = model.logits(split, 0).softmax(-1)
    assert expected.std(0).max() > 1e-3  # it depends on the images
    torch.testing.assert_close(again.logits(split, 0).softmax(-1), expected, rtol=0, atol=1e-5)


def test_the_commands_read_a_run_with_efficientnet_lite0_from_its_folder(textures, tmp_path, capsys):
    """The backbone was trained: its weights are those of the folder."""
    backbone = load_backbone("efficientnet-lite0")
    network = ImageClassifier(backbone, PoolConfig("SOP+SC+SpecMaxExpF", eta=5, reduce_to=8), len(CLASSES)).eval()
    torch.manual_seed(0)
    nn.init.normal_(network.classifier.weight)
    with torch.no_grad():
        backbone.body.stem[0].weight.mul_(1.1)
    TrainedModel(network, CLASSES, CROPS, is_trained=True).save(tmp_path / "run")
    run, out = str(tmp_path / "run"), str(tmp_path / "hub")
    assert main(["export", "vision", "--run", run, "--out", out]) == 0
    assert "transformers" in capsys.readouterr().out
    answers = []
    for folder in (run, out):
        file = tmp_path / "answers.json"
        assert main(["predict", "vision", str(textures), "--run", folder, "--workers", "0", "--out", str(file)]) == 0
        answers.append(json.loads(file.read_text()))
    for one, other in zip(*answers, strict=True):
        assert one["class"] == other["class"]
        numbers = {name: value for name, value in one.items() if name.startswith("probability")}
        assert {name: other[name] for name in numbers} == pytest.approx(numbers, abs=1e-5)
    tested = ["evaluate", "vision", "--run", out, "--workers", "0"]
    assert main(tested) == 2
    assert "--data" in capsys.readouterr().err
    assert main([*tested, "--data", str(textures)]) == 0
    found = json.loads((tmp_path / "hub/evaluation.json").read_text())
    assert found["count"] == len(answers[0])
    right = sum(Path(row["picture"]).parent.name == row["class"] for row in answers[0])
    assert found["top1"] == pytest.approx(100 * right / len(answers[0]))


def test_a_network_of_transformers_is_read_with_its_own_image_processor(split, tmp_path):
    family = next(family for family in FAMILIES if family.name == "ViT")
    pool = pp.nn.SecondOrderPool1d(32, pp.MaxExp(eta=5), reduce_to=4)
    model = hub.PowerPoolForImageClassification.from_backbone(family.build(), pool, list(CLASSES)).eval()
    processor = ViTImageProcessorPil(size={"height": 32, "width": 32})
    model.save_pretrained(tmp_path)
    with pytest.raises(RecordError, match="preprocessor"):
        load_hub(tmp_path)
    processor.save_pretrained(tmp_path)
    again = load_hub(tmp_path)
    images = [split.read(index) for index in range(len(split))]
    with torch.no_grad():
        expected = model(processor(images, return_tensors="pt")["pixel_values"]).logits
    torch.testing.assert_close(again.logits(split, 0), expected)
    assert "SecondOrderPool1d" in again.method
    assert again.classes == CLASSES


@pytest.mark.usefixtures("known")
def test_the_card_has_the_accuracy_of_the_record(tmp_path, monkeypatch):
    model = make_model("FOP")
    monkeypatch.setattr(exporting, "load_run", lambda run, download: model)
    monkeypatch.setattr(exporting, "_read_metrics", lambda run: {"top-1 accuracy in %": 87.5})
    exporting.export(ExportOptions("run", str(tmp_path / "hub")))
    assert "| `top-1 accuracy in %` | 87.5 |" in (tmp_path / "hub/README.md").read_text()


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("known")
def test_an_export_leaves_nothing_half_written(tmp_path, monkeypatch):
    out = tmp_path / "hub"
    monkeypatch.setattr(exporting, "_open_folder", lambda folder: lambda crops: torch.full((len(crops), 3), 0.5))
    with pytest.raises(ExportError, match="differ"):
        export_folder(make_model("FOP"), out)
    assert not list(tmp_path.glob("*hub*")) + list(tmp_path.glob(".part*"))
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ExportError, match="not empty"):
        export_folder(make_model("FOP"), out, check=False)
    assert [file.name for file in out.iterdir()] == ["mine.txt"]


def test_a_folder_has_no_suffix_and_no_batch(tmp_path):
    assert ExportOptions("run", "models/flowers").out
    assert ExportOptions("run", "models/v1.2/").out
    assert ExportOptions("run", str(tmp_path)).out
    with pytest.raises(ArgumentError, match=r"model\.onx"):
        ExportOptions("run", "model.onx")
    with pytest.raises(ArgumentError, match="batch"):
        ExportOptions("run", "models/flowers", batch=3)


@pytest.fixture
def exported(known, tmp_path) -> Path:
    export_folder(make_model("SOP+SC+SpecMaxExpF"), tmp_path / "hub", check=False)
    return tmp_path / "hub"


def test_damaged_folders_are_refused(exported, tmp_path):
    assert is_hub_folder(exported)
    config = (exported / "config.json").read_text()
    damages = {
        "config.json": [
            "",
            "[]",
            "{}",
            config[:-20],
            config.replace('"powerpool"', '"vit"'),
            config.replace("maxexp", "x"),
        ],
        "preprocessor_config.json": [
            "",
            "{}",
            '{"image_processor_type": "PowerPoolImageProcessor", "crops": {"size": -1}}',
        ],
        "model.safetensors": ["", "not a file of tensors", None],
    }
    for name, texts in damages.items():
        for text in texts:
            folder = tmp_path / "damaged"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(exported, folder)
            (folder / name).unlink()
            if text is not None:
                (folder / name).write_text(text)
            with pytest.raises(RecordError, match="damaged"):
                load_hub(folder)


def test_a_run_folder_is_no_folder_of_transformers(exported):
    (exported / MODEL).write_text("{}")
    assert not is_hub_folder(exported)
