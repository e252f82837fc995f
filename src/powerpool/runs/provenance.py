"""Where results come from: which code, which state of the checkout, which machine."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import powerpool
from powerpool.errors import RecordError
from powerpool.runs.environment import environment
from powerpool.runs.scheduler import WORKER_VARIABLES

NO_RESULT = (
    *("__main__.py", "cli.py", "console.py", "options.py", "demo.py", "plotting.py"),
    *("bench", "experiments", "explore", "figures", "inspect", "selfcheck"),
)
"""Parts of the package that are not counted, since results do not depend on them. Of `experiments` that is true but for
what its units do around their call of a pipeline: the seeds in :mod:`powerpool.runs.scheduler`, and functions such
as `validate_stored`, which pass on what the pipeline gives. Who changes results there has to change settings, too."""
MACHINE = ("processor", "cores", "platform", "python", "torch", "powerpool", "cuda")
ORIGIN = (*MACHINE, "packages", "commit", "dirty", "time")
"""What a result keeps of the environment that it was made in."""


def fingerprint(pipeline: str, *parts: Any) -> str:
    """Another one for other settings, data, versions or code, so that no result is taken for another's.

    Args:
        pipeline: whose code counts, beside that which all share.
        parts: settings, digests and versions, as JSON can hold them.
    """
    versions = [torch.__version__, platform.python_version(), pillow()]
    text = json.dumps([*parts, *versions, code_digest(pipeline)], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def pillow() -> str | None:
    """The version of what decodes and scales pictures."""
    if find_spec("PIL") is None:
        return None
    import PIL

    return PIL.__version__


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


def guarded(pipeline: str, work: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """The work of a unit, refused in a process whose code is not that of this one; its result has its origin.

    Workers start at any time, with the code that lies there then, and results are stored under the fingerprint of the
    command.
    """
    return partial(_guarded, pipeline, code_digest(pipeline), work)


def _guarded(pipeline: str, code: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    if code_digest(pipeline) != code:  # which is read once in each process
        raise RecordError(
            "The code of powerpool has changed since the command started, and results would mix. Give the command "
            "again to have all results from the new code, or restore the old one."
        )
    return with_origin(work)


def with_origin(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a unit, with the machine, the versions and the state of the code that it came from."""
    found = environment()
    return {**work(), "origin": {name: found[name] for name in ORIGIN}}


def origin_of(results: Sequence[dict[str, Any]], start: dict[str, Any]) -> dict[str, Any]:
    """The environment of results that :func:`with_origin` gave.

    They may have been made by another command, on another machine, from another state of the code: theirs is what
    counts. Where they differ, all are named.
    """
    origins = [result["origin"] for result in results]
    packages = [origin.get("packages", {}) for origin in origins]
    names = sorted({name for own in packages for name in own})
    commits = sorted({str(origin["commit"]) for origin in origins if origin["commit"] is not None})
    return {
        **start,
        **{name: _merged(origin.get(name) for origin in origins) for name in MACHINE},
        "packages": {name: _merged(own[name] for own in packages if name in own) for name in names},
        "commit": ", ".join(commits) or None,
        "dirty": any(origin["dirty"] for origin in origins) if commits else None,
        "time": min(origin["time"] for origin in origins),
        "threads": 1,
        "variables": WORKER_VARIABLES,
    }


def _merged(values: Iterable[Any]) -> Any:
    """A value that is the same for all, or a text with all that there are."""
    found = list(dict.fromkeys(values))
    return found[0] if len(found) == 1 else ", ".join(sorted(map(str, found)))


def without_origin(result: dict[str, Any]) -> dict[str, Any]:
    """The result as a record keeps it."""
    return {name: value for name, value in result.items() if name != "origin"}
