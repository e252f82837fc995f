"""Where a set of graphs in TU format is: in the user's folder, in the cache, in the wheel of grakel, on the network."""

from __future__ import annotations

import importlib.util
import logging
import os
import urllib.request
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import NamedTuple

from powerpool.data.errors import DataError, MissingDataError
from powerpool.data.limits import Limits, how_to_raise
from powerpool.data.places import cache_folder, data_folders, how_to_fetch, may_fetch, without_cache
from powerpool.data.tu_format import TuFiles, read_tables
from powerpool.errors import RecordError, UnknownNameError
from powerpool.files import atomic

GRAPHS = {
    "MUTAG": 188,
    "PTC_MR": 344,
    "PROTEINS": 1113,
    "NCI1": 4110,
    "COLLAB": 5000,
    "REDDIT-BINARY": 2000,
    "REDDIT-MULTI-5K": 4999,
    "IMDB-BINARY": 1000,
    "IMDB-MULTI": 1500,
}
"""The sets that can be asked for by name, and how many graphs each has."""
URL = "https://www.chrsmrrs.com/graphkerneldatasets/{name}.zip"
"""The official copy of the TU collection."""
TIMEOUT = 30.0
"""Seconds without an answer after which a download is given up."""


class Place(NamedTuple):
    """Where a set is; without a name, it is the only one there."""

    path: Path
    name: str | None


def locate(name: str | Path, root: str | Path | None, download: bool, limits: Limits | None = None) -> Place:
    """The folder or zip that a name or a path stands for; see :func:`powerpool.data.load_graphs`."""
    path = Path(name).expanduser()
    # A name of the table is always that set, even where a folder of that name lies in the working directory: whether
    # one does should not change what is trained on. Path("MUTAG") and "./MUTAG" are the folder.
    if isinstance(name, Path) or "/" in name or os.sep in name or (name not in GRAPHS and path.exists()):
        return Place(path, None)
    found = find(name, root)
    if found is None and name not in GRAPHS:
        looked = ", ".join(str(folder) for folder in _folders(root))
        raise UnknownNameError(
            f"Unknown set of graphs {name!r}: choose one of {', '.join(GRAPHS)}, or pass the path of a folder or zip "
            f"in TU format (looked in the working directory, {looked})."
        )
    if found is None and not may_fetch(download):
        remedy = how_to_fetch(f"Allow download=True, or pass root=, a folder that holds {name}.zip or {name}/.")
        raise MissingDataError(f"{_not_here(name, root)}. {remedy}")
    return Place(fetch(name, root, limits or Limits()) if found is None else found, name)


def find(name: str, root: str | Path | None) -> Path | None:
    """The folder or zip of a named set on this machine; None where there is none.

    Looks in ``root`` (by default the folder that the variable POWERPOOL_DATA names), then in the cache, then, for
    MUTAG, in the installed package grakel.
    """
    for folder in _folders(root):
        for place in (folder / name, folder / name / "raw"):
            # Any file of the set is enough: that others are missing is for the reader to say, not to be passed over.
            if place.is_dir() and any(place.glob(f"{name}_*.txt")):
                return place
        if (folder / f"{name}.zip").is_file():
            return folder / f"{name}.zip"
    return _in_grakel() if name == "MUTAG" else None


def fetch(name: str, root: str | Path | None, limits: Limits) -> Path:
    """Download a named set to the cache. The file is there once it was read without an error, and not before."""
    target, url = cache_folder("graphs") / f"{name}.zip", URL.format(name=name)
    by_hand = f"Download it by other means and pass root=, the folder that holds {name}.zip."
    logging.getLogger(__name__).info("Downloading %s to %s", url, target)
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            content = answer.read(limits.text + 1)
            if answer.length and len(content) <= limits.text:  # read() without a number would say so itself
                raise IncompleteRead(content, answer.length)
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise MissingDataError(f"{_not_here(name, root)}, and {url} did not send it ({reason}). {by_hand}") from error
    if len(content) > limits.text:
        raise DataError(f"{url} sends more than {limits.text:,} bytes, and was not read. {how_to_raise('text')}.")
    try:
        with atomic(target) as temporary:
            temporary.write_bytes(content)
            with TuFiles.open(temporary, name, limits) as files:
                # Whether edges go both ways is the caller's choice; that the file is whole, its checksums say.
                graphs = len(read_tables(files, edges="directed").node_ptr) - 1
            if graphs != GRAPHS[name]:
                raise DataError(f"{temporary} has {graphs} graphs, expected {GRAPHS[name]}.")
    except DataError as error:
        raise DataError(f"What {url} sent is not {name}, and was not kept: {error} {by_hand}") from error
    except (OSError, RecordError) as error:
        raise without_cache(target, error, DataError) from error
    return target


def _folders(root: str | Path | None) -> list[Path]:
    return [*data_folders(root, "graphs"), cache_folder("graphs")]


def _not_here(name: str, root: str | Path | None) -> str:
    return f"{name} is not on this machine (looked in {', '.join(str(folder) for folder in _folders(root))})"


def _in_grakel() -> Path | None:
    found = importlib.util.find_spec("grakel")  # the folder alone: importing grakel takes a second
    if found is None or not found.submodule_search_locations:
        return None
    folder = Path(found.submodule_search_locations[0]) / "tests" / "data" / "MUTAG"
    return folder if folder.is_dir() else None
