"""Token models of transformers in the commands: frozen features, training end to end, crops, and seeds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from powerpool.cli.main import main
from powerpool.errors import PowerPoolError
from powerpool.integrations.backbones import load_backbone
from powerpool.report.write import read_records
from powerpool.runs.config import Setting, make_config
from powerpool.runs.record import RunRecord
from powerpool.tasks.vision.config import PoolConfig, VisionConfig
from powerpool.tasks.vision.extraction import extract, read_images
from powerpool.tasks.vision.inference import load_run
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.tasks.vision.options import ReproduceOptions
from tests.integrations.families import FAMILIES, TOKENS

BY_NAME = {family.name: family for family in FAMILIES}
QUIET = ["--accelerator", "cpu", "--workers", "0"]
SCRATCH = ["--mode", "end-to-end", "--backbone_weights", "random", "--training.epochs", "1", "--training.crops", "1"]
SCRATCH += ["--training.batch_size", "9", "--crops.count", "1"]


def save(name: str, folder: Path) -> Path:
    BY_NAME[name].build().save_pretrained(folder)
    return folder


def train(out: Path, data: Path, backbone: Path, method: str, *words: object) -> int:
    fixed = ["train", "vision", "--data", data, "--backbone", f"hf:{backbone}", "--pool.method", method, "--out", out]
    return main([str(word) for word in (*fixed, *QUIET, *words)])


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache for all tests of the file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POWERPOOL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def registers(tmp_path_factory):
    """A DINOv2 with a class token and three registers."""
    return save("DINOv2 with registers", tmp_path_factory.mktemp("models") / "dinov2")


# ---- frozen features -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cache")
@torch.no_grad()
def test_methods_pool_the_patches_and_the_baseline_is_the_class_token(registers, textures):
    settings = {
        "data": str(textures),
        "backbone": f"hf:{registers}",
        "crops.count": 2,
        "stored": "float32",
        "workers": 0,
    }
    config = make_config(VisionConfig, {name: Setting(value) for name, value in settings.items()})
    features = extract(config, read_images(config)[0])
    maps = features.maps("test")[:2]
    assert (maps.shape[1:], features.prefix_tokens) == ((2, 32, 4 + 16, 1), 4)
    backbone = load_backbone(config.backbone)
    expected = {
        "Baseline": maps[:, :, :, 0, 0].mean(1),
        "FOP": maps[:, :, :, 4:, 0].mean((1, 3)),
    }
    for method, vector in expected.items():
        pool = ImageClassifier(backbone, PoolConfig(method, unit_scale=False, unit_norm=False), 3).pool
        torch.testing.assert_close(pool(maps), vector)
    patches = maps[:, :, :, 4:, 0].transpose(1, 2).flatten(2)
    matrix = patches @ patches.mT / patches.shape[2]
    pool = ImageClassifier(backbone, PoolConfig("SOP", unit_scale=False, unit_norm=False), 3).pool
    assert pool.out_features == 32 * 33 // 2
    diagonal = pool(maps).square().sum(1)  # off-diagonal entries have a factor of the square root of two
    torch.testing.assert_close(diagonal, matrix.square().sum((1, 2)))
    assert ImageClassifier(backbone, PoolConfig("SOP+SC"), 3).pool(maps).shape == (2, 42 * 43 // 2)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("method", ["Baseline", "SOP+SC+SpecMaxExpF"])
def test_a_run_on_frozen_tokens_can_be_used_again(method, registers, textures, tmp_path):
    run = tmp_path / "run"
    assert train(run, textures, registers, method) == 0
    record = RunRecord.read(run / "record.json")
    assert record.config["crops"]["size"] == 32  # of the model
    assert main(["evaluate", "vision", "--run", str(run), "--workers", "0"]) == 0
    found = json.loads((run / "evaluation.json").read_text())
    assert found["top1"] == pytest.approx(record.results[0].value)
    assert main(["export", "vision", "--run", str(run), "--out", str(tmp_path / "hub")]) == 0
    answers = []
    for folder in (run, tmp_path / "hub"):
        file = tmp_path / "answers.json"
        words = ["predict", "vision", textures, "--run", folder, "--workers", "0", "--out", file]
        assert main([str(word) for word in words]) == 0
        answers.append([row["probability"] for row in json.loads(file.read_text())])
    assert answers[0] == pytest.approx(answers[1], abs=1e-5)


# ---- end to end ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", ["ViT", "ConvNeXt", "Swin", "CLIP", "SigLIP"])
def test_training_from_a_configuration_alone(name, textures, tmp_path):
    BY_NAME[name].config().save_pretrained(tmp_path / "model")
    for method in ("Baseline", "SOP"):
        run = tmp_path / method
        assert train(run, textures, tmp_path / "model", method, *SCRATCH) == 0
        trained = load_run(run)
        assert (trained.is_trained, trained.crops.size) == (True, 32)
        image = torch.rand(1, 1, 3, 32, 32)
        torch.manual_seed(0)
        first = load_backbone(f"hf:{tmp_path / 'model'}", pretrained=False)
        with torch.no_grad():
            assert not torch.equal(trained.backbone(image[0]), first(image[0]))
            assert trained.network(image).isfinite().all()


def test_a_configuration_alone_is_refused_without_random_weights(textures, tmp_path, capsys):
    transformers.ViTConfig(**TOKENS).save_pretrained(tmp_path)
    assert train(tmp_path / "run", textures, tmp_path, "FOP") == 2
    assert "model.safetensors" in capsys.readouterr().err
    with pytest.raises(PowerPoolError, match="backbone_weights"):
        VisionConfig(backbone_weights="random")


@pytest.mark.usefixtures("cache")
def test_seeds_and_learning_rates(textures, tmp_path):
    transformers.ViTConfig(**TOKENS).save_pretrained(tmp_path / "model")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "mode: end-to-end\nbackbone_weights: random\ncrops: {count: 1}\naccelerator: cpu\n"
        "training: {epochs: 1, crops: 1, batch_size: 9, batch_norm: true, learning_rates: [0.0001, 0.001]}\n"
    )
    words = ["reproduce", "vision", "--data", str(textures), "--recipe", str(recipe), "--out", str(tmp_path / "out")]
    words += ["--backbone", f"hf:{tmp_path / 'model'}", "--workers", "0", "--methods", "Baseline", "FOP"]
    assert main([*words, "--seeds", "3", "4"]) == 0
    for record in read_records(tmp_path / "out"):
        assert [result.seed for result in record.results] == [3, 4]
        assert record.config["split_seed"] == 0
        assert record.config["crops"]["size"] == 32
        first, second = record.results
        rates = {trial.settings["learning_rate"]: trial for trial in first.trials}
        assert set(rates) == {0.0001, 0.001}
        best = min(rates.values(), key=lambda trial: (-trial.value, trial.loss))
        assert first.chosen["learning_rate"] == second.chosen["learning_rate"] == best.settings["learning_rate"]
        assert first.validation is not None
        assert first.validation.value == best.value
    text = (tmp_path / "out" / "README.md").read_text()
    assert "2 runs per method" in text
    assert "3, 4" in text


def test_seeds_need_training_end_to_end(registers, textures, tmp_path, capsys):
    words = ["reproduce", "vision", "--data", str(textures), "--quick", "--seeds", "1", "2", "--workers", "0"]
    assert main([*words, "--backbone", f"hf:{registers}", "--out", str(tmp_path)]) == 2
    assert "--seeds" in capsys.readouterr().err


# ---- crops -----------------------------------------------------------------------------------------------------------


def test_crops_follow_the_processor_unless_a_size_is_given(registers, tmp_path):
    def crops(**settings: object) -> tuple[int, int | None, str]:
        given = {name.replace("__", "."): Setting(value) for name, value in settings.items()}
        found = make_config(VisionConfig, given).crops
        return found.size, found.resize, found.interpolation

    name = f"hf:{save('ViT', tmp_path)}"
    processor = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "resample": 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    assert crops(backbone=name) == (32, 40, "bicubic")
    assert crops(backbone=name, crops__size=64) == (64, None, "bilinear")
    assert crops(backbone=name, crops__resize=48) == (32, 48, "bicubic")
    assert crops(backbone="efficientnet-lite0") == (224, None, "bilinear")
    # A recipe has the crops of its own backbone.
    options = {"data": ["some/where"], "workers": 0}
    assert ReproduceOptions(**options, backbone=name).read_config("some/where").crops.size == 32
    assert ReproduceOptions(**options).read_config("some/where").crops.size == 224
    assert ReproduceOptions(**options, backbone=name, quick=True).read_config("some/where").crops.size == 64
