"""How large data may be: what is larger was made to fill a memory or a disk, and is refused before it does."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from functools import partial

from powerpool.errors import ArgumentError, shorten

VARIABLE = "POWERPOOL_MAX_{name}"
"""The environment variable that sets a limit where none is passed, for instance POWERPOOL_MAX_PIXELS."""
USUAL = {
    "pixels": 50_000_000,
    "files": 2_000_000,
    "unpacked": 50 << 30,
    "ratio": 200,
    "text": 2 << 30,
}
SMALL = 64 << 20
"""Bytes below which an archive harms nobody, however well it is packed."""


def variable(name: str) -> str:
    """The environment variable of a limit."""
    return VARIABLE.format(name=name.upper())


def _usual(name: str) -> int:
    given = os.environ.get(variable(name), "")
    if not given:
        return USUAL[name]
    try:
        limit = int(given)
    except ValueError:
        limit = 0
    if limit < 1:
        raise ArgumentError(f"The variable {variable(name)} must be a whole number from 1 on (got {shorten(given)!r}).")
    return limit


def _limit(name: str) -> int:
    return field(default_factory=partial(_usual, name))


@dataclass(frozen=True)
class Limits:
    """How large pictures, archives and texts may be: what is larger is refused before it is decoded or unpacked.

    A limit that is not passed is that of the environment, ``POWERPOOL_MAX_PIXELS`` and so on, which holds for commands
    too; without that variable it is the usual one.

    Example:
        >>> Limits().pixels, Limits(pixels=1_000).pixels
        (50000000, 1000)
    """

    pixels: int = _limit("pixels")
    """Of one picture. Large cameras make about 50 million, the usual limit."""
    files: int = _limit("files")
    """Of one archive, 2 million; ImageNet has 1.3 million."""
    unpacked: int = _limit("unpacked")
    """Bytes that an archive may take once unpacked, 50 GiB."""
    ratio: int = _limit("ratio")
    """How many times as large as an archive what is in it may be, 200; texts are about 6 times as large, pictures 1."""
    text: int = _limit("text")
    """Bytes of a text that is read whole, such as a list of edges or of pictures, and of a download; 2 GiB."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise ArgumentError(f"{each.name} must be at least 1 (got {getattr(self, each.name)}).")

    def excess(self, packed: int, files: int, unpacked: int) -> str | None:
        """Why an archive of ``packed`` bytes is refused that says to hold so many files and bytes; None if it is not.

        Example:
            >>> Limits(files=3).excess(packed=100, files=4, unpacked=200)
            'it has 4 files, at most 3 are unpacked. Raise the limit with POWERPOOL_MAX_FILES, or Limits(files=...)'
        """
        if files > self.files:
            return f"it has {files:,} files, at most {self.files:,} are unpacked. {how_to_raise('files')}"
        if unpacked > self.unpacked:
            return (
                f"its files have {unpacked:,} bytes, at most {self.unpacked:,} are unpacked. {how_to_raise('unpacked')}"
            )
        # Of the file and not of its members: members may share their bytes, and each be small.
        if unpacked > max(SMALL, self.ratio * packed):
            return (
                f"its files have {unpacked:,} bytes, {unpacked / max(packed, 1):,.0f} times as many as the archive, "
                f"and at most {self.ratio:,} times as many are unpacked. {how_to_raise('ratio')}"
            )
        return None


def how_to_raise(name: str) -> str:
    """What a user can do who trusts the data."""
    return f"Raise the limit with {variable(name)}, or Limits({name}=...)"
