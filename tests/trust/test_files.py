"""Pipes, devices, links, huge files and places that cannot be written: nothing waits, and work is not lost."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from powerpool.cli.main import main
from powerpool.data import load_graphs, load_images, store
from powerpool.errors import PowerPoolError, RecordError
from powerpool.files import read_bytes, read_json, require_writable, write_json, write_text
from powerpool.runs.config import read_recipe
from powerpool.runs.folder import Weights, load_state
from powerpool.tasks.graph.config import GraphConfig
from tests.data.image_sets import flat, split_set, write_zip

# ---- reading ---------------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], object]] = {
    "record.json": read_json,
    "last.pt": load_state,
    "model.safetensors": Weights.open,
    "set.zip": load_graphs,
    "my.yaml": lambda path: read_recipe(path, GraphConfig),
}


@pytest.mark.parametrize("name", READERS)
def test_pipes_and_huge_files_are_refused_without_waiting(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    os.mkfifo(path)
    with pytest.raises(PowerPoolError, match=name):
        READERS[name](path)
    path.unlink()
    with path.open("wb") as file:
        file.truncate(64 << 30)  # a sparse file
    with pytest.raises(PowerPoolError, match=name):
        READERS[name](path)


@pytest.mark.parametrize("words", [["report", "--records", "{here}"], ["bench", "compare", "{pipe}", "{pipe}"]])
def test_commands_do_not_wait_for_pipes(words: list[str], tmp_path: Path, capsys: Any) -> None:
    os.mkfifo(tmp_path / "SOP.json")
    assert main([word.format(here=tmp_path, pipe=tmp_path / "SOP.json") for word in words]) == 2
    assert "SOP.json" in capsys.readouterr().err


def test_the_limit_is_the_largest_size_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "link").symlink_to("a")
    assert read_bytes(tmp_path / "link", 3) == b"123"
    with pytest.raises(RecordError, match=r"3 bytes.* 2\b"):
        read_bytes(tmp_path / "a", 2)
    with pytest.raises(RecordError, match="Is a directory"):
        read_bytes(tmp_path, 3)
    with pytest.raises(RecordError, match="No such file"):
        read_bytes(tmp_path / "b", 3)


def test_the_copy_of_a_zip_with_a_hidden_name_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    first = load_images(write_zip(tmp_path / ".hidden.zip", split_set()))
    unpacked = tmp_path / "cache" / "images" / "unpacked"
    (copy,) = unpacked.iterdir()
    abandoned = unpacked / f"{store.MAKING}left"
    abandoned.mkdir()
    for folder in (copy, abandoned):
        os.utime(folder, (1, time.time() - 2 * store.ABANDONED))
    load_images(write_zip(tmp_path / "other.zip", flat()))
    assert first["train"].read(0) is not None
    assert (copy.exists(), abandoned.exists()) == (True, False)


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_the_target_of_a_link_is_written(tmp_path: Path) -> None:
    real, link = tmp_path / "there" / "real.json", tmp_path / "link.json"
    write_json(real, 1)
    link.symlink_to(Path("there", "real.json"))
    write_json(link, 2)
    assert link.is_symlink()
    assert read_json(real) == 2
    (tmp_path / "new.json").symlink_to(tmp_path / "later" / "a.json")
    write_json(tmp_path / "new.json", 3)
    assert read_json(tmp_path / "later" / "a.json") == 3


@pytest.mark.parametrize("name", ["n" * 248 + ".json", "." + "n" * 254, "a." + "n" * 253])
def test_names_of_the_largest_length_can_be_written(name: str, tmp_path: Path) -> None:
    require_writable(tmp_path / name)
    write_text(tmp_path / name, "x")
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    for write in (lambda path: write_json(path, 1), require_writable):
        with pytest.raises(RecordError, match=r"a\.json.* pipe"):
            write(tmp_path / "a.json")
    assert (tmp_path / "a.json").is_fifo()


def denied(*_: object, **__: object) -> NoReturn:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_place_is_tried_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_writable(tmp_path / "a" / "b" / "c.json")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    for path, reason in (
        (tmp_path / "file" / "c.json", "Not a directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / ("n" * 300), "File name too long"),
    ):
        with pytest.raises(RecordError, match=f"{reason}. Elsewhere"):
            require_writable(path, "Elsewhere.")
    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    with pytest.raises(RecordError, match=r"c\.json: Permission denied"):
        require_writable(tmp_path / "c.json")


@pytest.mark.parametrize("command", ["evaluate graph", "evaluate vision", "evaluate fewshot", "predict graph",
                                     "predict vision", "predict fewshot", "inspect", "explore"])  # fmt: skip
def test_an_unwritable_place_is_found_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The run does not exist, which would be the error of a command that reads it first."""
    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    others = {"predict graph": ["--data", "MUTAG"], "predict vision": ["a.png"],
              "predict fewshot": ["--support", "a", "a.png"]}.get(command, [])  # fmt: skip
    out = tmp_path / "a.html" if command == "explore" else tmp_path / "a.csv"
    words = [*command.split(), "--run", str(tmp_path / "none"), *others, "--out", str(out)]
    assert main(words) == 2
    assert "Permission denied. Choose another place with --out." in capsys.readouterr().err
