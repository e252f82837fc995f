"""Hostile archives, images and tables: paths that lead elsewhere, bombs and pipes; the limits, and how to set them."""

from __future__ import annotations

import os
import stat
import struct
import zipfile
from pathlib import Path

import pytest

from powerpool.data import DataError, ImageError, Limits, load_fewshot, load_graphs, load_images, read_image
from powerpool.data.sources import Row
from powerpool.data.store import SMALL
from powerpool.errors import ArgumentError
from tests.data.image_sets import flat, png, png_of_size, split_set, write_folder, write_zip
from tests.data.tu_sets import TINY, texts
from tests.data.tu_sets import write_folder as write_graphs
from tests.data.tu_sets import write_zip as write_graph_zip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def left(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


# ---- members ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["S_IFLNK", "S_IFIFO"])
def test_links_and_devices_in_zips(kind: str, tmp_path: Path, cache: Path) -> None:
    member = zipfile.ZipInfo("train/rose/odd.png")
    member.external_attr = (getattr(stat, kind) | 0o777) << 16
    path = write_zip(tmp_path / "set.zip", split_set() | {member: b"/etc/passwd"})
    for load in (load_images, load_fewshot):
        with pytest.raises(DataError, match=r"train/rose/odd\.png"):
            load(path)
    assert left(cache) == []


@pytest.mark.parametrize("name", ["../evil.png", "/tmp/evil.png", "a/../../evil.png", "..\\evil.png", "C:/evil.png"])
def test_members_that_lead_elsewhere(name: str, tmp_path: Path, cache: Path) -> None:
    path = write_zip(tmp_path / "set.zip", split_set() | {name: png()})
    for load in (load_images, load_fewshot):
        with pytest.raises(DataError, match="evil"):
            load(path)
    assert left(cache) == []
    assert not list(tmp_path.parent.rglob("evil.png"))


def test_a_zip_in_a_zip_is_not_opened(tmp_path: Path, cache: Path) -> None:
    inner = write_zip(tmp_path / "inner.zip", flat()).read_bytes()
    images = load_images(write_zip(tmp_path / "set.zip", split_set() | {"more/inner.zip": inner}))
    assert len(images["train"]) == 4
    assert not list(cache.rglob("*.zip"))


def test_a_header_with_a_wrong_size_is_noticed(tmp_path: Path, cache: Path) -> None:
    """Only as many bytes as the directory states are written, and their checksum is wrong."""
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rose/0.png", b"\0" * 1_000_000)
    content = bytearray(path.read_bytes())
    place = content.rfind(b"PK\x01\x02") + 24
    assert struct.unpack("<I", content[place : place + 4]) == (1_000_000,)
    content[place : place + 4] = struct.pack("<I", 10)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"set\.zip"):
        load_images(path)
    assert left(cache) == []


# ---- bombs -----------------------------------------------------------------------------------------------------------


def bomb(path: Path, name: str, size: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(name, "w") as file:
        for _ in range(size >> 20):
            file.write(b"\0" * (1 << 20))
    return path


def test_high_compression_ratios_are_refused(tmp_path: Path, cache: Path) -> None:
    for name, loaders in (("rose/0.png", (load_images, load_fewshot)), ("X/X_A.txt", (load_graphs,))):
        path = bomb(tmp_path / "bomb.zip", name, SMALL + (6 << 20))
        for load in loaders:
            with pytest.raises(DataError, match=r"bomb\.zip .*73,400,320 .*2\d\d times.* 200 .*POWERPOOL_MAX_RATIO"):
                load(path)
    assert left(cache) == []


def test_members_that_share_their_bytes_count_each(tmp_path: Path, cache: Path) -> None:
    """A directory with many entries for one member: the archive is small, and so is each member."""
    path = bomb(tmp_path / "bomb.zip", "rose/00.png", 4 << 20)
    content = path.read_bytes()
    start, end = content.rfind(b"PK\x01\x02"), content.rfind(b"PK\x05\x06")
    entry = content[start:end]
    entries = b"".join(entry.replace(b"00.png", f"{number:02d}.png".encode()) for number in range(90))
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 90, 90, len(entries), start, 0)
    path.write_bytes(content[:start] + entries + tail)
    with pytest.raises(DataError, match=r"bomb\.zip.*377,487,360"):
        load_images(path)
    assert left(cache) == []


def test_small_archives_are_never_bombs() -> None:
    limits = Limits()
    assert limits.excess(packed=1000, files=1, unpacked=SMALL) is None
    assert limits.excess(packed=1000, files=1, unpacked=SMALL + 1) is not None
    assert limits.excess(packed=1_000_000, files=1, unpacked=200_000_000) is None
    assert "200 times" in str(limits.excess(packed=1_000_000, files=1, unpacked=200_000_001))


def test_limits_of_graph_files(tmp_path: Path) -> None:
    path = write_graph_zip(tmp_path / "TINY.zip", texts(TINY))
    folder = write_graphs(tmp_path / "TINY", texts(TINY))
    for where, limits, message in (
        (path, Limits(files=3), "4 files.* 3.*POWERPOOL_MAX_FILES"),
        (path, Limits(unpacked=100), "bytes.* 100.*POWERPOOL_MAX_UNPACKED"),
        (path, Limits(text=10), r"TINY_graph_indicator\.txt .*18 bytes.* 10.*POWERPOOL_MAX_TEXT"),
        (folder, Limits(text=10), r"TINY_graph_indicator\.txt .*18 bytes.* 10.*POWERPOOL_MAX_TEXT"),
    ):
        with pytest.raises(DataError, match=message):
            load_graphs(where, limits=limits)
    assert len(load_graphs(path, limits=Limits(files=4, text=70))) == 3


def test_limits_of_image_lists(tmp_path: Path) -> None:
    content = {f"images/{number}.jpg": png(number) for number in range(4)}
    content["train.csv"] = b"filename,label\n0.jpg,a\n1.jpg,a\n2.jpg,a\n3.jpg,a\n"
    folder = write_folder(tmp_path / "mini", content)
    for load in (load_images, load_fewshot):
        with pytest.raises(DataError, match=r"train\.csv .*bytes.* 20.*POWERPOOL_MAX_TEXT"):
            load(folder, limits=Limits(text=20))


# ---- how limits are set ----------------------------------------------------------------------------------------------


def test_limits_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERPOOL_MAX_PIXELS", "119")
    assert (Limits().pixels, Limits(pixels=5).pixels, Limits().ratio) == (119, 5, 200)
    with pytest.raises(ImageError, match=r"12 x 10.* 119.*POWERPOOL_MAX_PIXELS"):
        read_image(png())
    for wrong in ("many", "0", 9000 * "9"):
        monkeypatch.setenv("POWERPOOL_MAX_PIXELS", wrong)
        with pytest.raises(ArgumentError, match=f"POWERPOOL_MAX_PIXELS .*{wrong[:50]}") as caught:
            Limits()
        assert len(str(caught.value)) < 300
    with pytest.raises(ArgumentError, match=r"pixels .*0"):
        Limits(pixels=0)
    monkeypatch.setenv("POWERPOOL_MAX_PIXELS", "")
    assert Limits().pixels == 50_000_000


def test_a_limit_above_that_of_pillow_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(ImageError, match="50"):
        read_image(png(), Limits(pixels=50))
    assert read_image(png(), Limits(pixels=120)).size == (12, 10)
    with pytest.raises(ImageError, match="119"):
        read_image(png_of_size(40, 60), Limits(pixels=119))
    assert Image.MAX_IMAGE_PIXELS == 50


# ---- pipes and devices -----------------------------------------------------------------------------------------------


def test_pipes_and_devices_do_not_block(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", flat())
    os.mkfifo(folder / "rose" / "99.png")
    os.mkfifo(tmp_path / "pipe.zip")
    for load in (load_images, load_fewshot):
        with pytest.raises(DataError, match=r"99\.png"):
            load(folder)
    for load in (load_images, load_fewshot, load_graphs):
        with pytest.raises(DataError, match=r"pipe\.zip"):
            load(tmp_path / "pipe.zip")
    for path in (folder / "rose" / "99.png", Path("/dev/zero")):
        with pytest.raises(ImageError, match=path.name):
            read_image(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/nowhere/a.png", "https://example.org/a.png", None, "a\0b"])
def test_tables_that_name_other_files(path: str | None) -> None:
    with pytest.raises(ImageError, match="row 0"):
        Row([{"image": {"bytes": None, "path": path}}], "image", 0).read()
