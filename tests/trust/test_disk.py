"""A full disk: old files stay complete, the error names the cause, and no part of a file is left."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from powerpool.data import archives, load_images
from powerpool.data.banks import FeatureStore
from powerpool.data.store import make_once
from powerpool.errors import DiskError, LockedError, RecordError
from powerpool.files import atomic, locked, make_folder, read_json, write_json, write_text
from powerpool.report.plots import draw_sweep
from powerpool.runs.folder import DataIdentity, load_state, save_model, save_state
from tests.data.image_sets import split_set, write_zip


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


full = failing(errno.ENOSPC)


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A real disk of 200 kB."""
    folder = tmp_path_factory.mktemp("small")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", folder], capture_output=True, text=True, check=False
    ) if os.geteuid() == 0 else None  # fmt: skip
    if mounted is None or mounted.returncode:
        pytest.skip(f"a small disk needs root and mount: {mounted.stderr.strip() if mounted else 'not root'}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def plot(path: Path) -> None:
    (path.parent / "other.bin").write_bytes(b"x" * 170_000)  # leaves little room, since a plot is small
    try:
        draw_sweep([{"eta": float(n), "accuracy": n % 7, "loss": 1.0} for n in range(1, 500)], "eta", "x", path)
    finally:
        (path.parent / "other.bin").unlink()


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "text": ("a.txt", lambda path: write_text(path, "x" * 400_000)),
    "record": ("a.json", lambda path: write_json(path, ["x" * 400_000])),
    "checkpoint of one tensor": ("a.pt", lambda path: save_state(path, {"weights": torch.zeros(100_000)})),
    "checkpoint of many": ("a.pt", lambda path: save_state(path, {f"{n}": torch.zeros(500) for n in range(200)})),
    "model": (
        "model.safetensors",
        lambda path: save_model(path.parent, "graph", DataIdentity("", ""), {"weights": torch.zeros(100_000)}),
    ),
    "plot": ("a.svg", plot),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_full_disk_leaves_the_last_complete_file(kind: str, small_disk: Path) -> None:
    name, write = WRITERS[kind]
    path = small_disk / name
    save_state(path, {"epoch": 1})
    with pytest.raises(DiskError, match=rf"{name}: No space left on device"):
        write(path)
    assert load_state(path) == {"epoch": 1}
    assert [file.name for file in small_disk.iterdir()] == [name]
    path.unlink()


def test_a_full_disk_is_reported_for_features_zips_and_created_folders(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERPOOL_CACHE", str(small_disk / "cache"))
    store = FeatureStore(small_disk / "store", {}, count=1000, shape=(100,), dtype="float32")
    with pytest.raises(DiskError, match=r"maps\.bin.*No space left.*POWERPOOL_CACHE"):
        store.append(torch.zeros(1, 100))
    # As if another process filled the disk after the free space was read.
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: archives.shutil._ntuple_diskusage(1, 0, 1 << 40))
    content = {name: data + b"\0" * 30_000 for name, data in split_set().items()}
    with pytest.raises(DiskError, match=r"No space left.*POWERPOOL_CACHE"):
        load_images(write_zip(tmp_path / "set.zip", content))
    with pytest.raises(DiskError, match=r"made: .*No space left.*POWERPOOL_CACHE"):
        make_once(small_disk / "made", lambda folder: (folder / "x").write_bytes(b"x" * 400_000) and None)
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


# ---- patched, where mount is not allowed -----------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["tempfile.mkstemp", "os.fsync", "write_text", "replace", "mkdir"])
def test_every_step_of_writing_may_fail(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"epoch": 1})
    with monkeypatch.context() as patch:
        patch.setattr(step if "." in step else f"pathlib.Path.{step}", full)
        with pytest.raises(DiskError, match="No space left on device"):
            write_json(path, {"epoch": 2})
    assert read_json(path) == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EACCES])
def test_errors_of_the_disk_differ_from_those_the_user_can_avoid(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "write_text", failing(number))
    monkeypatch.setattr(Path, "mkdir", failing(number))
    for write in (lambda path: write_text(path, ""), make_folder):
        with pytest.raises(RecordError, match=os.strerror(number)) as caught:
            write(tmp_path / "a")
        assert isinstance(caught.value, DiskError) is (number != errno.EACCES)


def test_an_error_of_another_file_is_not_blamed_on_this_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"), atomic(tmp_path / "a"):
        (tmp_path / "nowhere").read_text()
    assert list(tmp_path.iterdir()) == []


def test_features_that_do_not_reach_the_disk_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def store() -> FeatureStore:
        return FeatureStore(tmp_path, {}, count=4, shape=(2,), dtype="float32")

    first = store()
    first.append(torch.ones(2, 2))
    first.flush()
    first.append(torch.ones(1, 2))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DiskError, match=r"maps\.bin: No space left"):
            first.flush()
    assert store().done == 2


def test_a_lock_holds_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", full)
    with locked(tmp_path), pytest.raises(LockedError, match=tmp_path.name), locked(tmp_path):
        pass
    monkeypatch.setattr("fcntl.flock", failing(errno.ENOLCK))
    with pytest.raises(RecordError, match=os.strerror(errno.ENOLCK)), locked(tmp_path):
        pass


def test_names_that_are_not_utf_8_are_written_as_escapes(tmp_path: Path) -> None:
    write_text(tmp_path / "a.csv", "ro\udcffse,1")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == "ro\\udcffse,1"
