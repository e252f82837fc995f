"""Zips of images: unpacked once into the cache, complete or not at all; folders; hostile zips are in tests/trust."""

from __future__ import annotations

import os
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from powerpool.data import DataError, Limits, archives, load_images, store
from powerpool.data.archives import list_folder
from powerpool.errors import RecordError
from tests.data.image_sets import png, split_set, write_folder, write_zip


def left_in(cache: Path) -> list[str]:
    """Return the names of unpacked copies, hidden or not."""
    folder = cache / "images" / "unpacked"
    return sorted(os.listdir(folder)) if folder.exists() else []


# ---- copies ----------------------------------------------------------------------------------------------------------


def test_a_zip_is_unpacked_once_wherever_it_is(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zip(tmp_path / "set.zip", split_set())
    first = load_images(path)
    assert len(left_in(cache)) == 1
    monkeypatch.setattr(archives, "_extract", None)  # would raise
    (tmp_path / "elsewhere").mkdir()
    moved = path.rename(tmp_path / "elsewhere" / "set.zip")
    os.utime(moved, ns=(5, 5))
    assert load_images(moved).digest == first.digest


@pytest.mark.parametrize("damage", ["delete", "cut", "manifest", "no manifest"])
def test_a_copy_that_lost_files_is_made_again(tmp_path: Path, cache: Path, damage: str) -> None:
    path = write_zip(tmp_path / "set.zip", split_set())
    first = load_images(path)
    (copy,) = (cache / "images" / "unpacked").iterdir()
    file = copy / "files" / "test" / "rose" / "0.png"
    if damage == "delete":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(b"")
    elif damage == "manifest":
        (copy / "manifest.json").write_text('{"files": [["x"]]}')
    else:
        (copy / "manifest.json").unlink()
    again = load_images(path)
    assert again.digest == first.digest
    assert again["test"].read(2).size == (12, 10)


def test_an_interrupted_process_leaves_nothing_that_is_used(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_zip(tmp_path / "set.zip", split_set())

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(archives, "write_json", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_images(path)
    assert left_in(cache) == []
    # What killed processes left goes with the next zip, unless another process may still be at work.
    killed, young = (cache / "images" / "unpacked" / f"{store.MAKING}{name}" for name in ("killed", "young"))
    for folder in (killed, young):
        write_folder(folder / "files", {"rose/0.png": b""})
    os.utime(killed, (0, time.time() - 2 * store.ABANDONED))
    load_images(path)
    assert left_in(cache)[0] == young.name
    assert len(left_in(cache)) == 2


def test_two_processes_at_once(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one finishes first: its copy is used, and ours is removed."""
    path = write_zip(tmp_path / "set.zip", split_set())
    write = archives.write_json

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(archives, "write_json", write)
        load_images(path)
        write(*arguments)

    monkeypatch.setattr(archives, "write_json", meanwhile)
    assert len(load_images(path)["test"]) == 4
    assert len(left_in(cache)) == 1


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "file"))
    with pytest.raises(RecordError, match="POWERPOOL_CACHE"):
        load_images(write_zip(tmp_path / "set.zip", split_set()))


def test_a_zip_that_does_not_fit_on_the_disk(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(DataError, match=r"set\.zip.* 10 .*POWERPOOL_CACHE"):
        load_images(write_zip(tmp_path / "set.zip", split_set()))
    assert left_in(cache) == []


# ---- damaged zips ----------------------------------------------------------------------------------------------------


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "flipped byte":
        content[len(content) // 3] ^= 0xFF  # in the bytes of an image, which are stored uncompressed
    elif how == "truncated":
        content = content[:-100]
    elif how == "encrypted":
        content[6] |= 1  # the flag of encryption, at the member and in the directory
        content[content.find(b"PK\x01\x02") + 8] |= 1
    else:
        content = bytearray(how.encode())
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["flipped byte", "truncated", "encrypted", "", "words", "PK\x03\x04 and nothing"])
def test_a_damaged_zip_is_named_and_leaves_nothing(how: str, tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "set.zip", split_set())
    damage(path, how)
    with pytest.raises(DataError, match=r"set\.zip"):
        load_images(path)
    assert left_in(cache) == []


def test_a_name_that_occurs_twice(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("rose/0.png", png(0))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("rose/0.png", png(1))
    with pytest.raises(DataError, match=r"'rose/0.png'"):
        load_images(tmp_path / "set.zip")


def test_limits_of_files_and_bytes(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rose/0.png", b"\0" * 3_000_000)
    with pytest.raises(DataError, match=r"bomb\.zip was refused.*3,000,000.*2,999,999"):
        load_images(path, limits=Limits(unpacked=2_999_999))
    with pytest.raises(DataError, match=r"many\.zip was refused.* 12 .* 11"):
        load_images(write_zip(tmp_path / "many.zip", split_set()), limits=Limits(files=11))
    assert left_in(cache) == []


def test_other_archives_must_be_unpacked_first(tmp_path: Path) -> None:
    (tmp_path / "food-101.tgz").write_bytes(b"")
    with pytest.raises(DataError, match=r"food-101\.tgz is not a zip"):
        load_images(tmp_path / "food-101.tgz")


# ---- folders ---------------------------------------------------------------------------------------------------------


def test_hidden_and_system_files_are_skipped(tmp_path: Path) -> None:
    content = split_set()
    rubbish = {
        "__MACOSX/train/iris/._0.png": b"",
        ".DS_Store": b"",
        "train/iris/Thumbs.db": b"",
        "train/iris/desktop.ini": b"",
        ".git/iris/0.png": b"",
    }
    plain = load_images(write_folder(tmp_path / "plain", content))
    assert load_images(write_folder(tmp_path / "folder", content | rubbish)).digest == plain.digest
    assert load_images(write_zip(tmp_path / "zip.zip", content | rubbish)).digest == plain.digest


def test_links_are_followed_and_circles_are_not(tmp_path: Path) -> None:
    write_folder(tmp_path / "elsewhere", {"0.png": b"", "1.png": b""})
    folder = write_folder(tmp_path / "set", {"rose/3.png": b""})
    (folder / "iris").symlink_to(tmp_path / "elsewhere")
    (folder / "again").symlink_to(folder)
    assert list_folder(folder).names == ["iris/0.png", "iris/1.png", "rose/3.png"]


def test_folders_keep_their_names_and_links_to_them_are_reported(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", {"bird/0.png": b"", "zoo/1.png": b""})
    (folder / "a link").symlink_to("zoo")
    (folder / "bird" / "b").symlink_to(folder / "zoo")
    found = list_folder(folder)
    assert (found.names, found.repeated) == (["bird/0.png", "zoo/1.png"], ("a link", "bird/b"))
