"""`make compat` itself; it runs before a release."""

from __future__ import annotations

import json

from packaging.version import Version

from tests import compat

REPORT = """<testsuites><testsuite>
<testcase classname="a.b" name="good"/><testcase classname="a.b" name="also"/>
<testcase classname="a.b" name="bad"><failure/></testcase><testcase classname="a.b" name="left"><skipped/></testcase>
</testsuite></testsuites>"""


def test_declared_versions_are_read() -> None:
    oldest, minors = compat.declared(compat.PYPROJECT.read_text(encoding="utf-8"))
    assert oldest.startswith("2.")
    assert minors[0] == "3.10"
    tests = (*compat.COMPILED, *compat.WITH_EXTRAS, compat.RAY[0])
    assert all((compat.ROOT / path.removeprefix("--ignore=")).exists() for path in tests)


def test_lower_bounds_are_pinned() -> None:
    found = compat.lowest()
    assert [text for text in found if text.startswith("jsonargparse[signatures]==4.")]
    assert "grakel" in found
    assert not [text for text in found if ">=" in text or text.startswith(("pytest", "mkdocs"))]


def test_a_failure_is_counted_and_shown(tmp_path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    started = compat.Outcome("oldest", "core", "3.10.1", "2.5.0", "abcdefg", {"lightning": "2.4.0"}, seconds=3)
    outcome = compat.read_report(path, started)
    assert (outcome.passed, outcome.skipped, outcome.failed) == (2, 1, ["a.b::bad"])
    text = compat.table([outcome])
    assert "| core | 3.10.1 | 2.5.0 | 2 | 1 | 1 | 3 | abcdefg |" in text
    assert "lightning 2.4.0" in text


def test_the_published_record_has_the_declared_versions_and_no_failure() -> None:
    folder = compat.ROOT / "results" / "compat"
    outcomes = [compat.Outcome(**row) for row in json.loads((folder / compat.RECORD).read_text())["outcomes"]]
    oldest, minors = compat.declared(compat.PYPROJECT.read_text(encoding="utf-8"))
    core = [outcome for outcome in outcomes if outcome.what.startswith("core")]
    assert {".".join(outcome.python.split(".")[:2]) for outcome in core} == set(minors)
    assert [outcome for outcome in core if Version(outcome.torch.partition("+")[0]) == Version(oldest)]
    assert {outcome.what for outcome in outcomes} == {"core", "core, compiled", "lowest versions", "ray"}
    assert not [outcome.name for outcome in outcomes if outcome.failed or not outcome.passed]
    bounds = next(outcome.packages for outcome in outcomes if outcome.what == "lowest versions")
    pinned = {text.partition("==")[0].partition("[")[0]: text.partition("==")[2] for text in compat.lowest()}
    assert all(Version(bounds[name]) == Version(bound) for name, bound in pinned.items() if bound)
    assert (folder / compat.TABLE).read_text() == compat.table(outcomes)
