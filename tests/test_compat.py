"""`make compat` itself; it runs before a release."""

from __future__ import annotations

from tests import compat

REPORT = """<testsuites><testsuite>
<testcase classname="a.b" name="good"/><testcase classname="a.b" name="also"/>
<testcase classname="a.b" name="bad"><failure/></testcase><testcase classname="a.b" name="left"><skipped/></testcase>
</testsuite></testsuites>"""


def test_declared_versions_are_read() -> None:
    oldest, minors = compat.declared(compat.PYPROJECT.read_text(encoding="utf-8"))
    assert oldest.startswith("2.")
    assert minors[0] == "3.10"
    assert all((compat.ROOT / path).exists() for path in compat.CORE)


def test_a_failure_is_counted_and_shown(tmp_path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    outcome = compat.read_report(path, "core", "3.10.1", "2.5.0", 3.2)
    assert (outcome.passed, outcome.skipped, outcome.failed) == (2, 1, ["a.b::bad"])
    assert "| core | 3.10.1 | 2.5.0 | 2 | 1 | 1 |" in compat.table({"outcomes": [vars(outcome)]})
