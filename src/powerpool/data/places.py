"""Where data are looked for: below a folder of the user's, then in a cache."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """Where downloads, unpacked copies and what else can be made again are kept, for one kind of data.

    ``$POWERPOOL_CACHE/kind``; without that variable, ``powerpool/kind`` below ``$XDG_CACHE_HOME`` or ``~/.cache``.
    """
    given = os.environ.get("POWERPOOL_CACHE")
    if given:
        return Path(given).expanduser() / kind
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "powerpool" / kind


def data_folders(root: str | Path | None, kind: str) -> list[Path]:
    """The folders that may hold sets of one kind: ``root``, or else ``$POWERPOOL_DATA``, and its folder ``kind``."""
    given = root or os.environ.get("POWERPOOL_DATA")
    return [Path(given).expanduser(), Path(given).expanduser() / kind] if given else []


def without_cache(path: Path, error: Exception) -> str:
    """What to do where the cache cannot be written to."""
    return f"Cannot write {path}: {error}. Set XDG_CACHE_HOME or POWERPOOL_CACHE to a folder that can be written to."
