"""Archives and pictures that lead elsewhere, or are larger than they look; the limits, and how they are raised."""

from __future__ import annotations

import io
import os
import stat
import struct
import tarfile
import zipfile
from pathlib import Path

import pytest

from powerpool.data import DataError, ImageError, Limits, load_fewshot, load_graphs, load_images, read_image
from powerpool.data import limits as limits_of
from powerpool.data.image_hub import Row
from powerpool.errors import ArgumentError
from tests.data.image_sets import claims, flat, picture, split_set, write_folder, write_zip
from tests.data.tu_sets import TINY, texts
from tests.data.tu_sets import write_folder as write_graphs
from tests.data.tu_sets import write_zip as write_graph_zip


def left(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


# ---- members ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["S_IFLNK", "S_IFCHR", "S_IFBLK", "S_IFIFO", "S_IFSOCK"])
@pytest.mark.parametrize("load", [load_images, load_fewshot])
def test_links_and_devices_in_zips(kind: str, load, tmp_path: Path) -> None:
    called = "a link" if kind == "S_IFLNK" else "a device or a pipe"
    member = zipfile.ZipInfo("train/rose/odd.png")
    member.external_attr = (getattr(stat, kind) | 0o777) << 16
    path = write_zip(tmp_path / "set.zip", split_set() | {member: b"/etc/passwd"})
    with pytest.raises(DataError, match=f"its member 'train/rose/odd.png' is {called}. Pack the files themselves"):
        load(path)
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", ["../evil.png", "/tmp/evil.png", "a/../../evil.png", "..\\evil.png", "C:\\evil.png"])
def test_members_that_lead_elsewhere(name: str, tmp_path: Path) -> None:
    path = write_zip(tmp_path / "set.zip", split_set() | {name: picture()})
    with pytest.raises(DataError, match="would be written outside of the folder"):
        load_fewshot(path)
    assert left(tmp_path) == []
    assert not list(tmp_path.parent.rglob("evil.png"))


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip"])
def test_no_tar_is_unpacked_whatever_it_is_called(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"set{suffix}"
    with tarfile.open(path, "w") as archive:
        for name, kind in (("../evil.png", tarfile.REGTYPE), ("rose/link.png", tarfile.SYMTYPE),
                           ("rose/hard.png", tarfile.LNKTYPE), ("rose/dev.png", tarfile.CHRTYPE)):  # fmt: skip
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, "/etc/passwd", 0
            archive.addfile(member, io.BytesIO(b""))
    for load in (load_images, load_fewshot, load_graphs):
        with pytest.raises(DataError, match=r"no zip: unpack it, and pass|is damaged, or no zip|not a whole zip"):
            load(path)
    assert left(tmp_path) == []


def test_a_zip_in_a_zip_is_not_opened(tmp_path: Path) -> None:
    inner = write_zip(tmp_path / "inner.zip", flat()).read_bytes()
    images = load_images(write_zip(tmp_path / "set.zip", split_set() | {"more/inner.zip": inner}))
    assert len(images["train"]) == 4
    assert not list((tmp_path / "cache").rglob("*.zip"))


def test_a_header_that_lies_about_its_size_is_noticed(tmp_path: Path) -> None:
    """More bytes than the index says are not written: the checksum of those that are is wrong."""
    path = tmp_path / "set.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rose/0.png", b"\0" * 1_000_000)
    content = bytearray(path.read_bytes())
    place = content.rfind(b"PK\x01\x02") + 24
    assert struct.unpack("<I", content[place : place + 4]) == (1_000_000,)
    content[place : place + 4] = struct.pack("<I", 10)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"set\.zip is damaged, or no zip"):
        load_images(path)
    assert left(tmp_path) == []


# ---- bombs -----------------------------------------------------------------------------------------------------------


def bomb(path: Path, name: str, size: int = 70 << 20) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(name, "w") as file:
        for _ in range(size >> 20):
            file.write(b"\0" * (1 << 20))
    return path


@pytest.mark.parametrize("name, load", [("rose/0.png", load_images), ("rose/0.png", load_fewshot),
                                        ("X/X_A.txt", load_graphs)])  # fmt: skip
def test_what_is_packed_too_well_is_refused(name: str, load, tmp_path: Path) -> None:
    path = bomb(tmp_path / "bomb.zip", name)
    said = r"its files have 73,400,320 bytes, 2\d\d times as many as the archive, and at most 200 times"
    with pytest.raises(
        DataError, match=rf"bomb\.zip is refused: {said}.*POWERPOOL_MAX_RATIO, or Limits\(ratio=\.\.\.\)"
    ):
        load(path)
    assert left(tmp_path) == []


def test_members_that_share_their_bytes_count_each(tmp_path: Path) -> None:
    """An index with many entries for one member: small packed, and small each, but not together."""
    path = bomb(tmp_path / "bomb.zip", "rose/00.png", 4 << 20)
    content = path.read_bytes()
    start, end = content.rfind(b"PK\x01\x02"), content.rfind(b"PK\x05\x06")
    entry = content[start:end]
    entries = b"".join(entry.replace(b"00.png", f"{number:02d}.png".encode()) for number in range(90))
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 90, 90, len(entries), start, 0)
    path.write_bytes(content[:start] + entries + tail)
    with pytest.raises(DataError, match=r"bomb\.zip is refused: its files have 377,487,360 bytes"):
        load_images(path)
    assert left(tmp_path) == []


def test_small_archives_are_never_bombs() -> None:
    limits = Limits()
    assert limits.excess(packed=1000, files=1, unpacked=limits_of.SMALL) is None
    assert limits.excess(packed=1000, files=1, unpacked=limits_of.SMALL + 1) is not None
    assert limits.excess(packed=1_000_000, files=1, unpacked=200_000_000) is None
    assert "200 times" in str(limits.excess(packed=1_000_000, files=1, unpacked=200_000_001))


def test_graphs_have_limits_of_files_bytes_and_texts(tmp_path: Path) -> None:
    path = write_graph_zip(tmp_path / "TINY.zip", texts(TINY))
    folder = write_graphs(tmp_path / "TINY", texts(TINY))
    for limits, message in (
        (Limits(files=3), r"has 4 files, at most 3 are .*POWERPOOL_MAX_FILES"),
        (Limits(unpacked=100), r"bytes, at most 100 are .*POWERPOOL_MAX_UNPACKED"),
        (Limits(text=10), r"TINY_graph_indicator\.txt is refused: it has 18 bytes, at most 10 .*POWERPOOL_MAX_TEXT"),
    ):
        with pytest.raises(DataError, match=message):
            load_graphs(path, limits=limits)
    with pytest.raises(DataError, match=r"TINY_graph_indicator\.txt is refused: it has 18 bytes, at most 10 "):
        load_graphs(folder, limits=Limits(text=10))
    assert len(load_graphs(path, limits=Limits(files=4, text=70))) == 3


def test_lists_of_pictures_have_a_limit(tmp_path: Path) -> None:
    names = [f"n{number}.jpg" for number in range(4)]
    content = {f"images/{name}": picture(seed) for seed, name in enumerate(names)}
    content |= {"train.csv": b"filename,label\n" + b"".join(f"{name},a\n".encode() for name in names)}
    folder = write_folder(tmp_path / "mini", content)
    for load in (load_images, load_fewshot):
        with pytest.raises(
            DataError, match=r"train\.csv is refused: it has \d+ bytes, at most 20 .*POWERPOOL_MAX_TEXT"
        ):
            load(folder, limits=Limits(text=20))


# ---- how limits are set ----------------------------------------------------------------------------------------------


def test_limits_of_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POWERPOOL_MAX_PIXELS", "119")
    monkeypatch.setenv("POWERPOOL_MAX_FILES", "11")
    assert (Limits().pixels, Limits(pixels=5).pixels, Limits().ratio) == (119, 5, 200)
    with pytest.raises(ImageError, match=r"12 x 10 pixels, at most 119 .*POWERPOOL_MAX_PIXELS, or Limits\(pixels"):
        read_image(picture())
    with pytest.raises(DataError, match=r"12 files, at most 11 are unpacked.*POWERPOOL_MAX_FILES.*pass the folder"):
        load_images(write_zip(tmp_path / "many.zip", split_set()))
    for wrong, message in (("many", "got 'many'"), ("0", "got '0'"), (9000 * "9", r"got '9{57}\.{3}'")):
        monkeypatch.setenv("POWERPOOL_MAX_PIXELS", wrong)
        with pytest.raises(ArgumentError, match=f"POWERPOOL_MAX_PIXELS must be a whole number .*{message}"):
            Limits()
    with pytest.raises(ArgumentError, match=r"pixels must be at least 1 \(got 0\)"):
        Limits(pixels=0)
    monkeypatch.setenv("POWERPOOL_MAX_PIXELS", "")
    assert Limits().pixels == 50_000_000


def test_a_limit_above_that_of_pillow_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50)
    with pytest.raises(ImageError, match="too large"):
        read_image(picture(), Limits(pixels=50))
    assert read_image(picture(), Limits(pixels=120)).size == (12, 10)
    with pytest.raises(ImageError, match=r"too large.*at most 119"):
        read_image(claims(40, 60), Limits(pixels=119))
    assert Image.MAX_IMAGE_PIXELS == 50


# ---- what is no file -------------------------------------------------------------------------------------------------


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "set", flat())
    os.mkfifo(folder / "rose" / "99.png")
    for load in (load_images, load_fewshot):
        with pytest.raises(ImageError, match=r"99\.png: it is a pipe or a device, and no file"):
            load(folder)
    for path in (folder / "rose" / "99.png", Path("/dev/zero")):
        with pytest.raises(ImageError, match="it is a pipe or a device"):
            read_image(path)


@pytest.mark.parametrize("path", ["/dev/zero", "/nowhere/a.png", "https://example.org/a.png", None, "a\0b"])
def test_a_table_that_names_a_file_of_its_own_choice(path: str | None) -> None:
    with pytest.raises(ImageError, match=r"Row 0 names the file|a pipe or a device"):
        Row([{"image": {"bytes": None, "path": path}}], "image", 0).read()
