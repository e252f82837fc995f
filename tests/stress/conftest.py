"""Runs that nobody stops: what tests of this folder compare with."""

from __future__ import annotations

import pytest

from tests.stress import cases
from tests.stress.kills import Place, begin

SHORT = {"graph": cases.graph(8), "few-shot": cases.fewshot(25), "vision": cases.end_to_end(4, workers=0)}
"""A small run of each pipeline."""


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Gives the finished run of a pipeline, which is made once."""
    made: dict[str, Place] = {}

    def give(name: str) -> Place:
        if name not in made:
            made[name] = begin(SHORT[name], tmp_path_factory.mktemp("stress"))
        return made[name]

    return give
