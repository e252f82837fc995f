"""Pipes, devices, links, huge files and places that cannot be written: none is waited for, and none after the work."""

from __future__ import annotations

import errno
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from powerpool import files as records
from powerpool.analysis import command as analysis
from powerpool.cli.main import main
from powerpool.data import Limits, load_graphs, load_images, store
from powerpool.errors import PowerPoolError, RecordError
from powerpool.files import read_bytes, read_json, require_writable, write_json, write_text
from powerpool.runs.checkpoint import load_state, save_state
from powerpool.runs.config import read_recipe
from powerpool.tasks.fewshot import commands as fewshot
from powerpool.tasks.graph import commands as graph
from powerpool.tasks.graph.config import GraphConfig
from powerpool.tasks.vision import commands as vision
from tests.data.image_sets import flat, split_set, write_zip

# ---- what is read ----------------------------------------------------------------------------------------------------

READERS: dict[str, Callable[[Path], object]] = {
    "record.json": read_json,
    "last.pt": load_state,
    "set.zip": load_graphs,
    "my.yaml": lambda path: read_recipe(path, GraphConfig),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_and_not_waited_for(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(PowerPoolError, match=r"it is a pipe or a device|is not a file"):
        READERS[name](tmp_path / name)


@pytest.mark.parametrize("words", [["report", "--records", "{here}"], ["bench", "compare", "{pipe}", "{pipe}"]])
def test_commands_do_not_wait_for_pipes(words: list[str], tmp_path: Path, capsys: Any) -> None:
    os.mkfifo(tmp_path / "SOP.json")
    assert main([word.format(here=tmp_path, pipe=tmp_path / "SOP.json") for word in words]) == 2
    assert "SOP.json" in capsys.readouterr().err


@pytest.mark.parametrize("name", READERS)
def test_a_huge_file_is_refused_by_its_size(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(64 << 30)  # takes no room
    with pytest.raises(PowerPoolError, match=r"68,719,476,736 bytes"):
        READERS[name](tmp_path / name)


def test_the_limit_is_the_last_size_that_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    assert read_bytes(tmp_path / "a", 3) == b"123"
    with pytest.raises(RecordError, match=r"it has 3 bytes, and files of its kind at most 2"):
        read_bytes(tmp_path / "a", 2)
    with pytest.raises(RecordError, match="Is a directory"):
        read_bytes(tmp_path, 3)
    with pytest.raises(RecordError, match="No such file"):
        read_bytes(tmp_path / "b", 3)


def test_a_zip_of_graphs_is_as_large_as_the_limits_say(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("a", bytes(2000))
    with pytest.raises(PowerPoolError, match=r"1,000.*POWERPOOL_MAX_UNPACKED"):
        load_graphs(tmp_path / "set.zip", limits=Limits(unpacked=1000))


# ---- what is unpacked ------------------------------------------------------------------------------------------------


def test_the_copy_of_a_zip_whose_name_begins_with_a_dot_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    first = load_images(write_zip(tmp_path / ".hidden.zip", split_set()))
    unpacked = tmp_path / "cache" / "images" / "unpacked"
    (copy,) = unpacked.iterdir()
    assert copy.name.startswith("hidden-")
    left = unpacked / f"{store.MAKING}left"
    left.mkdir()
    for folder in (copy, left):
        os.utime(folder, (1, time.time() - 2 * store.ABANDONED))
    load_images(write_zip(tmp_path / "other.zip", flat()))
    assert first["train"].read(0) is not None
    assert copy.exists()
    assert not left.exists()


# ---- what is written -------------------------------------------------------------------------------------------------


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    real, link = tmp_path / "there" / "real.json", tmp_path / "link.json"
    write_json(real, 1)
    link.symlink_to(Path("there", "real.json"))
    write_json(link, 2)
    assert link.is_symlink()
    assert read_json(real) == 2
    (tmp_path / "new.json").symlink_to(tmp_path / "later" / "a.json")
    write_json(tmp_path / "new.json", 3)
    assert read_json(tmp_path / "later" / "a.json") == 3


@pytest.mark.parametrize("name", ["n" * 248 + ".json", "n" * 255, "." + "n" * 254, "a." + "n" * 253])
def test_every_name_that_the_system_takes_can_be_written(name: str, tmp_path: Path) -> None:
    require_writable(tmp_path / name)
    write_text(tmp_path / name, "x")
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    for write in (lambda path: write_json(path, 1), require_writable):
        with pytest.raises(RecordError, match=r"a\.json: it is a pipe or a device\. Name a file\."):
            write(tmp_path / "a.json")
    assert (tmp_path / "a.json").is_fifo()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EISDIR])
def test_another_folder_is_advised_only_where_it_would_help(number: int) -> None:
    said = str(records.cannot_write("a.json", OSError(number, os.strerror(number))))
    assert ("Choose a folder" in said) is (number in (errno.EACCES, errno.EPERM, errno.EROFS))
    assert said.startswith(f"Cannot write a.json: {os.strerror(number)}.")
    assert said == said.strip()


def denied(*_: object, **__: object) -> NoReturn:
    raise PermissionError(errno.EACCES, "Permission denied")


def test_a_place_is_tried_without_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_writable(tmp_path / "a" / "b" / "c.json")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"file/c\.json: Not a directory\. Elsewhere\."):
        require_writable(tmp_path / "file" / "c.json", "Elsewhere.")
    with pytest.raises(RecordError, match="Is a directory"):
        require_writable(tmp_path)
    with pytest.raises(RecordError, match="File name too long"):
        require_writable(tmp_path / ("n" * 300))
    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    with pytest.raises(RecordError, match=r"c\.json: Permission denied\. Choose a folder that you may write to\."):
        require_writable(tmp_path / "c.json")


# ---- places are tried before the work --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "module, options, steps",
    [
        (graph, graph.EvaluateOptions(run="r"), ["load_run", "read_recipe"]),
        (vision, vision.EvaluateOptions(run="r"), ["load_run"]),
        (fewshot, fewshot.EvaluateOptions(run="r"), ["load_run"]),
        (analysis, analysis.InspectOptions(run="r"), ["inspect_with_progress"]),
        (analysis, analysis.ExploreOptions(run="r"), ["inspect_with_progress"]),
    ],
    ids=["graph", "vision", "fewshot", "inspect", "explore"],
)
def test_an_unwritable_place_is_found_before_the_work(
    module: Any, options: Any, steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes after the model is loaded would fail otherwise: there is none."""
    for step in steps:
        monkeypatch.setattr(module, step, lambda *_, **__: None)
    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    monkeypatch.chdir(tmp_path)
    names = {analysis.InspectOptions: "inspect", analysis.ExploreOptions: "explore"}
    work = getattr(module, names.get(type(options), "evaluate"))
    with pytest.raises(RecordError, match=r"Permission denied\. Choose another place with --out\."):
        work(options)


def test_answers_that_could_not_be_written_are_refused_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    with pytest.raises(RecordError, match=r"a\.csv: Permission denied\. Choose another place with --out\."):
        graph.PredictOptions(run="r", data="MUTAG", out="a.csv")


def test_checkpoints_are_still_read_through_a_link(tmp_path: Path) -> None:
    save_state(tmp_path / "a.pt", {"weights": torch.ones(2)})
    (tmp_path / "b.pt").symlink_to("a.pt")
    assert load_state(tmp_path / "b.pt")["weights"].tolist() == [1, 1]
