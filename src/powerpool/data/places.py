"""Where data are looked for: below a folder of the user's, then in a cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from powerpool.records import RecordError, make_folder


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


def made_once(target: Path, write: Callable[[Path], None]) -> Path:
    """A folder of the cache that is whole or not there: ``write`` fills it, unless that was done before."""
    if target.is_dir():
        return target
    try:
        make_folder(target.parent)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        temporary.chmod(0o755)  # mkdtemp makes folders for their owner alone
        try:
            write(temporary)
            os.rename(temporary, target)
        except OSError:
            if not target.is_dir():  # another process was faster
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, RecordError) as error:
        raise RecordError(without_cache(target, error)) from error
    return target
