"""Models in files: what is read is what was written, and what is not one of ours is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from powerpool.data import Crops, load_images
from powerpool.errors import RecordError
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.tasks.vision.config import PoolConfig
from powerpool.tasks.vision.model import ImageClassifier
from powerpool.tasks.vision.runs import TrainedModel, load_run
from tests.pipelines.vision.samples import CLASSES, small_config, tiny_backbone, use_tiny

pytestmark = pytest.mark.usefixtures("tiny")


def model(method: str = "SOP+SC+SpecMaxExpF", is_trained: bool = False) -> TrainedModel:
    network = ImageClassifier(tiny_backbone(), PoolConfig(method, eta=5, pivots=3), len(CLASSES)).eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters() if is_trained else network.classifier.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw))
    return TrainedModel(network, CLASSES, Crops(size=32, count=2, resize=32), is_trained)


@pytest.fixture
def split(textures):
    return load_images(textures)["test"]


@pytest.fixture
def saved(tmp_path) -> Path:
    model().save(tmp_path / "model.pt")
    return tmp_path / "model.pt"


@pytest.mark.parametrize("is_trained", [False, True])
@pytest.mark.parametrize("method", ["Baseline", "FOP", "SOP+SC+SpecMaxExpF", "SOP+SC+NewtonSchulz"])
def test_a_model_is_read_as_it_was_written(method, is_trained, split, tmp_path):
    first = model(method, is_trained)
    first.save(tmp_path / "model.pt")
    again = load_run(tmp_path)
    assert (again.classes, again.crops, again.is_trained) == (first.classes, first.crops, is_trained)
    assert again.network.pool.config == first.network.pool.config
    assert torch.equal(again.logits(split, 0), first.logits(split, 0))
    names = load_state(tmp_path / "model.pt")["weights"]
    assert any(name.startswith("backbone.") for name in names) == is_trained


def test_logits_are_those_of_a_forward(split):
    one = model()
    crops = torch.stack([one.crops(split.read(number)) for number in range(len(split))])
    with torch.no_grad():
        expected = one.network(crops)
    told: list[int] = []
    torch.testing.assert_close(one.logits(split, 0, told.append), expected, rtol=1e-4, atol=1e-4)
    assert told[-1] == len(split)
    many = split + split + split  # enough for processes
    assert torch.equal(one.logits(many, 2)[: len(split)], one.logits(split, 0))


def test_a_backbone_that_has_changed_is_refused(saved, monkeypatch):
    use_tiny(monkeypatch, seed=1)
    with pytest.raises(RecordError, match=r"model.pt was not loaded: the weights that tiny stands for are others"):
        TrainedModel.load(saved)


def test_a_backbone_can_be_given(saved, split, monkeypatch):
    use_tiny(monkeypatch, seed=1)
    assert torch.equal(TrainedModel.load(saved, backbone=tiny_backbone()).logits(split, 0), model().logits(split, 0))


class Mischief:
    def __reduce__(self):
        return os.mkdir, (os.environ["MISCHIEF"],)


def test_a_file_that_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("MISCHIEF", str(tmp_path / "done"))
    torch.save({"pipeline": "vision", "format": 1, "weights": Mischief()}, tmp_path / "model.pt")
    with pytest.raises(RecordError, match="could run code"):
        load_run(tmp_path)
    (tmp_path / "model.pt").write_bytes(pickle.dumps(Mischief()))
    with pytest.raises(RecordError):
        load_run(tmp_path)
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_damaged_file_is_told(saved, part):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(part * len(content))])
    with pytest.raises(RecordError, match=r"model.pt"):
        TrainedModel.load(saved)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of a model without classes
@pytest.mark.parametrize("junk", [None, 3, "text", [5], {"name": 5}, torch.zeros(())], ids=repr)
@pytest.mark.parametrize("name", ["format", "pipeline", "pool", "crops", "classes", "backbone", "weights"])
def test_a_field_that_is_none_of_ours_is_told(saved, name, junk):
    state = load_state(saved)
    save_state(saved, {**state, name: junk})
    with pytest.raises(RecordError, match=r"model.pt"):
        TrainedModel.load(saved)
    del state[name]
    save_state(saved, state)
    with pytest.raises(RecordError, match=r"model.pt"):
        TrainedModel.load(saved)


def test_weights_that_do_not_fit_are_told(saved):
    state = load_state(saved)
    weights = dict(state["weights"])
    save_state(saved, {**state, "weights": {**weights, "classifier.weight": torch.zeros(3, 4)}})
    with pytest.raises(RecordError, match="was not loaded"):
        TrainedModel.load(saved)
    save_state(saved, {**state, "weights": {**weights, "more": torch.zeros(3)}})
    with pytest.raises(RecordError, match="its weights do not fit: more"):
        TrainedModel.load(saved)
    del weights["classifier.bias"]
    save_state(saved, {**state, "weights": weights})
    with pytest.raises(RecordError, match=r"its weights do not fit: classifier.bias"):
        TrainedModel.load(saved)


def test_a_folder_without_a_model_is_told(tmp_path):
    with pytest.raises(RecordError, match=r"no run folder .*nowhere. Make one with: powerpool train vision --out"):
        load_run(tmp_path / "nowhere")
    with pytest.raises(RecordError, match=r"holds no model.pt: it is no run of image classification"):
        load_run(tmp_path)
    assert small_config("x").backbone == "tiny"
