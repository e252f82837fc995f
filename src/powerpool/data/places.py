"""Where data are looked for: below a folder of the user's, then in a cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from powerpool.errors import DiskError, PowerPoolError, RecordError
from powerpool.files import DISK, make_folder

OFFLINE = "POWERPOOL_OFFLINE"
"""The environment variable that keeps all commands and functions off the network."""
CACHE = "Set XDG_CACHE_HOME or POWERPOOL_CACHE to a folder that can be written to."


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


def without_cache(path: Path, error: Exception, kind: type[PowerPoolError] = RecordError) -> PowerPoolError:
    """The error to raise where the cache cannot be written to: ``kind``, unless the disk is to blame."""
    is_full = isinstance(error, DiskError) or (isinstance(error, OSError) and error.errno in DISK)
    return (DiskError if is_full else kind)(f"Cannot write {path}: {str(error).rstrip('.')}. {CACHE}")


def is_offline() -> bool:
    """Whether the network is forbidden: the variable POWERPOOL_OFFLINE is set, and to something else than 0."""
    return os.environ.get(OFFLINE, "").strip().lower() not in ("", "0", "false", "no", "off")


def may_fetch(download: bool) -> bool:
    """Whether something may come over the network: it was asked for, and is not forbidden.

    All code that fetches asks here, whatever a recipe or an argument says.
    """
    return download and not is_offline()


def how_to_fetch(remedy: str) -> str:
    """What to do about what is not on this machine: ``remedy``; and what stands against it, where something does.

    Example:
        >>> how_to_fetch("Allow download=True.")
        'Allow download=True.'
    """
    if not is_offline():
        return remedy
    return f"{remedy} But the network is forbidden (--offline, or {OFFLINE}={os.environ[OFFLINE]})."


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
        raise without_cache(target, error) from error
    return target
