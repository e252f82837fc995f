"""Damaged and invented files of every kind are read, or refused by an error of powerpool."""

from __future__ import annotations

import io
import os
import struct
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, seeds, survive

EXAMPLES = {"graphs": 60, "recipe": 60, "lists": 120, "names": 120, "image": 60, "record": 60,
            "bench_record": 60, "stored_features": 60}  # fmt: skip
FEW = 25
"""Examples of slow targets: zips and checkpoints."""
TIMES = int(os.environ.get("POWERPOOL_FUZZ", "1"))
"""Factor of the number of examples; `make fuzz` sets it, and draws new examples each time."""
PIECES = {
    "graphs": [b"1", b"-1", b"0", b", ", b"\n", b"\r\n", b" ", b"\t", b"9" * 19, b"9" * 5000, b"\xff", b"1.5", b"\0"],
    "recipe": [b"data", b"model", b": ", b"\n", b"  ", b"- ", b"[", b"{", b"&a", b"*a", b"!!python/object:os.system",
               b"1" * 5000, b"1e999", b".nan", b"\xff", b"\\U", b"'", b'"', b"null", b"\0", b"|", b"---\n"],
    "lists": [b"\0", b"\n", b",", b" ", b"filename,label", b"0.jpg", b"a/0", b"/", b"..", b"9" * 5000, b"\xff",
              b"\xef\xbb\xbf", "\u0663".encode(), b"1 "],
    "names": [b"/", b"\n", b"..", b".png", b".jpg", b"train", b"test", b"val", b"images", b"a", b"\xff", b"9" * 5000,
              b" ", b"shn/source", b"train.csv", b"\0"],
    "record": [b"{", b"[" * 50_000, b"9" * 5000, b"NaN", b"1e999", b'"', b":", b",", b"null", b"\xff", b"true",
               b"[]", b"{}"],
}  # fmt: skip
PIECES["bench_record"] = PIECES["stored_features"] = PIECES["record"]
COMMON = [b"", b"\0", b"\xff", b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"../", b"\x80\x02", b"cos\nsystem\n"]


@st.composite
def damaged(draw: st.DrawFn, target: str) -> bytes:
    """A valid file with a few places replaced, or bytes made of pieces, or random bytes."""
    pieces = st.sampled_from([*PIECES.get(target, []), *COMMON]) | st.binary(max_size=4)
    form = draw(st.integers(0, 5))
    if form == 0:
        return draw(st.binary(max_size=80))
    if form == 1:
        return draw(st.binary(max_size=1)) + b"".join(draw(st.lists(pieces, max_size=20)))
    data = draw(st.sampled_from(seeds(target)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + draw(st.sampled_from([0, 1, 1, 4, 40])))))
        data = data[:start] + draw(pieces) + data[end:]
    return data if form < 5 else data[: draw(st.integers(0, len(data)))]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns about damaged images
def test_only_errors_of_powerpool_are_raised(target: str) -> None:
    @settings(max_examples=TIMES * EXAMPLES.get(target, FEW))
    @given(damaged(target))
    def each(data: bytes) -> None:
        survive(target, data)

    for seed in seeds(target):
        TARGETS[target](seed)  # valid, so that the code behind the first checks is reached
    each()


def zip_without_a_name() -> bytes:
    """The only member has an empty name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(""), b"")
    return file.getvalue()


def zip_of_several_disks() -> bytes:
    """The locator of a zip64 archive names a second disk."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo("a"), b"")  # with a fixed date
    whole = file.getvalue()
    return whole[:-22] + struct.pack("<4sLQL", b"PK\x06\x07", 1, 0, 2) + whole[-22:]


@pytest.mark.parametrize("target, data", [
    ("lists", b"filename,label\n0.jpg," + b"9" * 5000 + b"\n\0filename,label\n1.jpg,b\n"),  # too long for int()
    ("lists", b"\0".join([b"", b"", b"9" * 5000 + b" a/0.jpg\n", b"1 1\n", b"", b""])),
    ("names", b"\xff/0.png\n\xff/1.png\n\xff/2.png\na/0.png\na/1.png\na/2.png"),  # names that are not UTF-8
    ("record", b"[" * 100_000),
    ("record", b'{"schema": ' + b"1" * 5000 + b"}"),
    ("recipe", b"\0data: " + b"[" * 2000),
    ("recipe", b"\0!!python/object/apply:os.system ['true']"),
    ("recipe", b"\0seed: " + b"1" * 5000),
    ("image_zip", zip_without_a_name()),
    ("checkpoint", zip_of_several_disks()),
])  # fmt: skip
def test_earlier_findings(target: str, data: bytes) -> None:
    survive(target, data)
