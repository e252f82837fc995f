"""Pages of the documentation that quote records: their tables are made from the records, and so are other numbers."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from powerpool import data
from powerpool.bench.record import LOSS
from powerpool.solvers import select

DOCS = Path(__file__).parents[2] / "docs"
PROTOCOLS = ("frozen", "frozen-softmax")


@cache
def tables() -> ModuleType:
    """The script that writes the tables."""
    spec = importlib.util.spec_from_file_location("tables", DOCS / "making" / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name: str) -> str:
    return " ".join((DOCS / name).read_text(encoding="utf-8").split())


def numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", text))


def test_tables_are_those_of_the_records() -> None:
    marked = set()
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert tables().filled(text) == text, f"{page.name}: run python docs/making/tables.py"
        marked |= {match[2] for match in tables().MARKED.finditer(text)}
    assert marked == set(tables().TABLES)


@pytest.mark.parametrize("name", ["benchmarks.md", "choosing.md", "reproducing.md"])
def test_numbers_of_sentences_are_in_a_table(name: str) -> None:
    text = (DOCS / name).read_text(encoding="utf-8")
    sentences = tables().MARKED.sub("", re.sub(r"`[^`]*`|\]\([^)]*\)", "", text))
    known = set(re.findall(r"\d+\.\d+", " ".join(table() for table in tables().TABLES.values())))
    limits = {f"{one:g}" for one in (LOSS, select.GRAM_BELOW_SQUARING, select.GRAM_BELOW_SQUARING_SMALL, 0.001, 0.1)}
    known |= limits | compared_curves() | compared_costs() | {"83.0"}  # GIN0 in the demo, which has no record
    assert numbers(sentences) <= known, f"{name}: {sorted(numbers(sentences) - known)}"


def compared_curves() -> set[str]:
    """How MaxExp compares with other curves on Flower102."""
    found = set()
    for protocol in PROTOCOLS:
        group = tables().found("vision", "flower102", protocol)
        for name in ("", "+SpecGamma", "+NewtonSchulz", "+SpecHDP"):
            test = tables().compared(group, "SOP+SC+SpecMaxExpF", f"SOP+SC{name}")
            found |= {f"{abs(test.difference):.2f}", f"{test.p_value:.3f}"}
    return found


def compared_costs() -> set[str]:
    """Up to which N / C a curve on the spectrum always takes less time than on entries, and from where on never."""
    sides: dict[bool, list[float]] = {True: [], False: []}
    for case in (case for name in ("pools", "curves") for case in tables().suite(name).cases):
        spectrum, entries = case.find("powerpool auto"), case.find("powerpool element-wise")
        if spectrum is not None and entries is not None:
            share = case.sizes["locations"] / case.sizes["channels"]
            sides[spectrum.total.median < entries.total.median].append(share)
    assert max(sides[True]) < min(sides[False])
    return {f"{max(sides[True]):.2f}", f"{min(sides[False]):.2f}"}


def test_page_on_choosing() -> None:
    text = read("choosing.md")
    assert compared_costs() <= numbers(text)
    groups = {protocol: tables().found("vision", "flower102", protocol) for protocol in PROTOCOLS}
    ridge, softmax = (tables().compared(group, "SOP+SC+SpecMaxExpF", "SOP+SC") for group in groups.values())
    assert max(ridge.p_value, softmax.p_value) < 0.001
    for group in groups.values():
        mean = {record.method: record.mean for record in group.records}
        gains = [mean[name] - mean[name.replace("+SC", "")] for name in mean if name.replace("+SC", "") in mean]
        assert round(max(gains), 2) <= 0.1  # "at most 0.1 points"
    graphs = [
        tables().row(tables().found("graph", name, "validation-only"), "SOP+SpecMaxExpF") for name in tables().GRAPHS
    ]
    assert all(row.to_baseline > 0 for row in graphs)
    quoted = {f"{ridge.difference:.2f}", f"{softmax.difference:.2f}"}
    quoted.add(f"{min(row.test.corrected_p_value for row in graphs):.3f}")
    assert quoted <= {number.lstrip("+") for number in re.findall(r"\d+\.\d+", text)}
    sizes = {case.sizes["batch"] for name in ("pools", "curves", "solvers") for case in tables().suite(name).cases}
    assert max(sizes) == 8


def test_counts_on_the_page_on_reproducing() -> None:
    text = read("reproducing.md")
    groups = {(group.data, group.protocol): group for group in tables().groups("graph")}
    known = [row for (_, protocol), group in groups.items() if protocol == "validation-only" for row in group.known]
    counts = f"{sum(bool(row.is_within) for row in known)} of {len(known)}"
    assert f"{counts} rows" in text
    assert counts in read("../README.md")
    words = ["none", "one", "two", "three", "four", "five", "six"]
    for name in ("MUTAG", "PTC_MR"):
        rows = groups[name, "retrain"].known
        outside = [row for row in rows if not row.is_within]
        assert f"{name}: {words[len(outside)]} rows of {words[len(rows)]}" in text
        assert all(row.to_paper < 0 for row in outside)
    for protocol in PROTOCOLS:
        group = tables().found("vision", "flower102", protocol)
        tests = [tables().compared(group, *pair) for pair in tables().ORDER.values()]
        assert (sum(test.p_value < 0.05 and test.difference > 0 for test in tests), len(tests)) == (2, 5)
    assert "two of five" in text


def test_both_copies_of_mutag(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if importlib.util.find_spec("grakel") is None:  # not imported: that takes seconds
        pytest.skip("THE COPY OF MUTAG IS NOT TESTED: pip install '.[graph]'")
    rows = tables().found("graph", "MUTAG", "validation-only").rows
    (published,) = {row.record.config["data_digest"] for row in rows}
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path))
    for digest in (published, data.load_graphs("MUTAG").digest):
        assert digest in read("reproducing.md")
