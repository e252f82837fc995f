"""Where results come from: which code, which state of the checkout, which machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import powerpool
from powerpool.experiments.runner import WORKER_VARIABLES
from powerpool.records import environment

NO_RESULT = (
    *("__main__.py", "cli.py", "console.py", "options.py", "demo.py", "plotting.py"),
    *("bench", "experiments", "explore", "figures", "inspect", "selfcheck"),
)
"""Parts of the package that no result of a unit depends on."""
ORIGIN = ("commit", "dirty", "time")


def fingerprint(pipeline: str, *parts: Any) -> str:
    """Another one for other settings, data, versions or code, so that no result is taken for another's.

    Args:
        pipeline: whose code counts, beside that which all share.
        parts: settings, digests and versions, as JSON can hold them.
    """
    text = json.dumps([*parts, torch.__version__, code_digest(pipeline)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


@cache
def code_digest(pipeline: str) -> str:
    """A digest of the code that results of a pipeline depend on."""
    root = Path(powerpool.__file__).parent
    digest = hashlib.blake2b()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        of_another = name.parts[0] == "pipelines" and len(name.parts) > 2 and name.parts[1] != pipeline
        if name.parts[0] not in NO_RESULT and not of_another:
            digest.update(f"{name.as_posix()}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def with_origin(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a unit, with the state of the code that it came from."""
    found = environment()
    return {**work(), "origin": {name: found[name] for name in ORIGIN}}


def origin_of(results: Sequence[dict[str, Any]], start: dict[str, Any]) -> dict[str, Any]:
    """The environment of results that :func:`with_origin` gave.

    They may have been made by another command, from another state of the code: theirs is what counts.
    """
    origins = [result["origin"] for result in results]
    commits = sorted({str(origin["commit"]) for origin in origins if origin["commit"] is not None})
    return {
        **start,
        "commit": ", ".join(commits) or None,
        "dirty": any(origin["dirty"] for origin in origins) if commits else None,
        "time": min(origin["time"] for origin in origins),
        "threads": 1,
        "variables": WORKER_VARIABLES,
    }


def without_origin(result: dict[str, Any]) -> dict[str, Any]:
    """The result as a record keeps it."""
    return {name: value for name, value in result.items() if name != "origin"}
