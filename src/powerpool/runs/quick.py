"""Quick runs, which only show that everything runs: how a record says so, and what is said of its figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from powerpool.runs.config import recipe_names
from powerpool.runs.record import RunRecord

NOTE = "These figures mean nothing: --quick only shows that everything runs."
FLAG = "quick"
"""Among the facts of the environment of a record. One that does not have it is not of a quick run."""


def is_quick_recipe(name: str | None) -> bool:
    """Whether a recipe that ships is one of quick runs: its name ends so. A file of one's own never is.

    Example:
        >>> is_quick_recipe("demo/graph-quick"), is_quick_recipe("demo/graph"), is_quick_recipe("my-quick.yaml")
        (True, False, False)
    """
    return name is not None and name.endswith(FLAG) and name in recipe_names()


def as_quick(record: RunRecord) -> RunRecord:
    """The record, with the flag that its figures mean nothing."""
    return replace(record, environment={**record.environment, FLAG: True})


def is_quick(record: RunRecord) -> bool:
    """Whether the figures of a record mean nothing."""
    return record.environment.get(FLAG) is True


def warning(records: Sequence[RunRecord]) -> str:
    """What a report of the records begins with; nothing where none is of a quick run."""
    count = sum(map(is_quick, records))
    if count == len(records) > 0:
        return f"{NOTE} They are no findings about any method."
    if count:
        return (
            f"{count} of {len(records)} records are of quick runs, which only show that everything runs: their figures "
            "mean nothing. The sections say which they are."
        )
    return ""
