"""Quick runs, which only show that everything works: their numbers mean nothing, and records say so."""

from __future__ import annotations

from dataclasses import replace

from powerpool.runs.config import recipe_names
from powerpool.runs.record import RunRecord

NOTE = "These numbers mean nothing: a quick run only shows that everything works."


def is_quick_recipe(name: str | None) -> bool:
    """Whether a recipe that ships with powerpool is one of quick runs, by its name.

    Example:
        >>> is_quick_recipe("demo/graph-quick"), is_quick_recipe("demo/graph"), is_quick_recipe("my-quick.yaml")
        (True, False, False)
    """
    return name is not None and name.endswith("quick") and name in recipe_names()


def mark_quick(record: RunRecord) -> RunRecord:
    """Return the record with the mark of a quick run."""
    return replace(record, environment=replace(record.environment, quick=True))
