"""The functions and tests named in docs/claims.md and docs/errata.md exist, and none is missing there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import powerpool
from powerpool import theory

ROOT = Path(__file__).parents[2]
PAGES = ["claims.md", "errata.md"]
LABELS = [
    "linearize",
    "maxexp",
    "cooc",
    "maxexp_resid",
    "cooc_anti",
    "sigmoids",
    "maxexp_sigmoid",
    "heatdiff",
    "param_bounds",
    "gamma_bounds",
    "maxexp_ode",
    "gamma_ode",
]
"""Labels of the propositions, theorems and remarks of the paper, in order."""


def _rows(page: str) -> list[list[str]]:
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("| ")]
    assert len({len(row) for row in rows}) == 1, "a row has another number of cells"
    return [row for row in rows if row[-1] != "test"]


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@cache
def _tests(path: str) -> set[str]:
    """Names of the tests in a file, with their classes."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_is_named_exists(page: str) -> None:
    for row in _rows(page):
        named = _code(row[-1])
        assert named, row
        for test in named:
            path, _, name = test.partition("::")
            assert name in _tests(path), test


def test_every_function_that_is_named_exists() -> None:
    for row in _rows("claims.md"):
        named = _code(row[-2])
        assert named, row
        for name in named:
            thing: object = powerpool if not name.startswith("theory.") else theory
            for part in name.removeprefix("theory.").split("."):
                assert hasattr(thing, part), name
                thing = getattr(thing, part)


def test_every_public_function_stands_by_a_claim() -> None:
    named = {name.removeprefix("theory.") for row in _rows("claims.md") for name in _code(row[-2])}
    functions = {name for name in theory.__all__ if not isinstance(getattr(theory, name), type)}
    assert functions <= named, sorted(functions - named)


def test_every_proposition_theorem_and_remark_has_an_entry() -> None:
    places = [row[1] for row in _rows("claims.md")]
    for label in LABELS:
        assert any(re.search(rf"(Prop\.|Theorem|Remark) {label}\b(?!_)", place) for place in places), label


def test_every_test_of_an_erratum_is_listed() -> None:
    named = {test for row in _rows("errata.md") for test in _code(row[-1])}
    for path in ("tests/test_errata.py", "tests/curves/test_errata.py", "tests/theory/test_errata.py"):
        for name in _tests(path):
            if name.startswith("test_"):
                assert f"{path}::{name}" in named, name
