"""The reports that are published with the repository, in a real browser."""

from pathlib import Path

import pytest

from browser import Browser

RESULTS = Path(__file__).parents[2] / "results"
REPORTS = sorted(RESULTS.glob("*/report.html"))


def test_there_are_reports() -> None:
    assert REPORTS


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.parent.name)
def test_a_report_loads_in_silence_and_shows_its_pictures(browser: Browser, report: Path) -> None:
    with browser.open(report) as page:
        assert page.complaints() == []
        assert page.requests() == []
        assert page.evaluate("document.querySelectorAll('table td').length") > 10
        widths = page.evaluate("[...document.images].map((image) => image.complete && image.naturalWidth)")
        assert widths
        assert all(widths)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1400
