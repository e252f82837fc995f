"""A disk that is full: what was there stays whole, the message is clear, nothing half-written is left."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from powerpool import files as locks
from powerpool.cli import main as cli
from powerpool.data import archives, load_images
from powerpool.data.features import FeatureStore
from powerpool.data.store import make_once
from powerpool.errors import DiskError, RecordError
from powerpool.files import atomic, locked, make_folder, read_json, write_json, write_text
from powerpool.report.plots import draw_sweep
from powerpool.runs.checkpoint import load_state, save_state
from tests.data.image_sets import split_set, write_zip
from tests.report import samples

FULL = OSError(errno.ENOSPC, "No space left on device")


def full(*arguments: object, **options: object) -> NoReturn:
    raise OSError(FULL.errno, FULL.strerror)


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
    (path.parent / "other.bin").write_bytes(b"x" * 170_000)  # a plot is small: little is left for it
    try:
        draw_sweep([{"eta": float(n), "accuracy": n % 7, "loss": 1.0} for n in range(1, 500)], "eta", "x", path)
    finally:
        (path.parent / "other.bin").unlink()


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": lambda path: write_text(path, "x" * 400_000),
    "record": lambda path: write_json(path, ["x" * 400_000]),
    "checkpoint of one tensor": lambda path: save_state(path, {"weights": torch.zeros(100_000)}),
    "checkpoint of many": lambda path: save_state(path, {f"{n}": torch.zeros(500) for n in range(200)}),
    "plot": plot,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_real_full_disk_leaves_the_last_good_file(kind: str, small_disk: Path) -> None:
    path = small_disk / "file.svg"  # for a plot, the suffix is its format
    save_state(path, {"epoch": 1})
    with pytest.raises(DiskError, match=r"Cannot write .*file\.svg: No space left on device\. What was there before"):
        WRITERS[kind](path)
    assert load_state(path) == {"epoch": 1}
    assert [file.name for file in small_disk.iterdir()] == ["file.svg"]
    path.unlink()


def test_a_real_full_disk_is_told_by_features_zips_and_made_folders(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POWERPOOL_CACHE", str(small_disk / "cache"))
    store = FeatureStore(small_disk / "store", {}, count=1000, shape=(100,), dtype="float32")
    with pytest.raises(DiskError, match=r"maps\.bin.*No space left.*POWERPOOL_CACHE"):
        store.append(torch.zeros(1, 100))
    # As it is where another process fills the disk after the space was counted.
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: archives.shutil._ntuple_diskusage(1, 0, 1 << 40))
    content = {name: data + b"\0" * 30_000 for name, data in split_set().items()}
    with pytest.raises(DiskError, match=r"No space left.*POWERPOOL_CACHE"):
        load_images(write_zip(tmp_path / "set.zip", content))
    with pytest.raises(DiskError, match=r"Cannot write .*made: .*No space left.*POWERPOOL_CACHE"):
        make_once(small_disk / "made", lambda folder: (folder / "x").write_bytes(b"x" * 400_000) and None)
    left = [path for path in small_disk.rglob("*") if path.is_file()]
    assert left == []


# ---- patched, for those who may not mount ----------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["mkstemp", "write", "fsync", "replace", "mkdir"])
def test_every_step_of_writing_may_fail(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"epoch": 1})
    with monkeypatch.context() as patch:
        if step == "write":
            patch.setattr(Path, "write_text", full)
        elif step in ("replace", "mkdir"):
            patch.setattr(Path, step, full)
        else:
            patch.setattr({"mkstemp": "tempfile.mkstemp", "fsync": "os.fsync"}[step], full)
        with pytest.raises(DiskError, match=r"No space left on device"):
            write_json(path, {"epoch": 2})
    assert read_json(path) == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize("number", [errno.EDQUOT, errno.EIO, errno.EFBIG])
def test_a_quota_and_a_broken_disk_are_no_fault_of_the_user(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(number, os.strerror(number))))
    with pytest.raises(DiskError, match=os.strerror(number)):
        write_text(tmp_path / "a", "")


def test_what_the_user_can_put_right_is_another_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(RecordError, match=r"Permission denied\. Choose a folder that you may write to") as caught:
        write_text(tmp_path / "a", "")
    assert not isinstance(caught.value, DiskError)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RecordError, match=r"Permission denied\. Choose another one") as caught:
        make_folder(tmp_path / "b")
    assert not isinstance(caught.value, DiskError)


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
    with locked(tmp_path), pytest.raises(locks.LockedError, match=r"Another process \(unknown\)"), locked(tmp_path):
        pass
    monkeypatch.setattr("fcntl.flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks available")))
    with pytest.raises(RecordError, match=r"Cannot lock .*No locks available.*another disk"), locked(tmp_path):
        pass


def test_names_that_are_no_text_are_written_all_the_same(tmp_path: Path) -> None:
    write_text(tmp_path / "a.csv", "ro\udcffse,1")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == "ro\\udcffse,1"


def test_the_command_says_so_in_one_line_with_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """And the report of before stays as it was."""
    samples.graph_run("SOP", [80.0, 84.0]).write(tmp_path / "MUTAG" / "SOP.json")
    words = ["report", "--records", str(tmp_path)]
    assert cli.main(words) == 0
    before = (tmp_path / "README.md").read_text()
    monkeypatch.setattr(Path, "write_text", full)
    capsys.readouterr()
    assert cli.main(words) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "powerpool report: error: Cannot write" in said
    assert "README.md: No space left on device. What was there before is unchanged: make room, and try again." in said
    assert (tmp_path / "README.md").read_text() == before
    assert not list(tmp_path.glob(".*"))
