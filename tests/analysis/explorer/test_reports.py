"""The published reports in a real browser."""

from pathlib import Path

import pytest

from browser import Browser

RESULTS = Path(__file__).parents[3] / "results"
REPORTS = sorted(RESULTS.glob("*/report.html"))


def test_reports_exist() -> None:
    assert REPORTS


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.parent.name)
def test_report_loads_without_errors_and_shows_its_images(browser: Browser, report: Path) -> None:
    with browser.open(report) as page:
        assert page.complaints() == []
        assert page.requests() == []
        assert page.evaluate("document.querySelectorAll('table td').length") > 10
        widths = page.evaluate("[...document.images].map((image) => image.complete && image.naturalWidth)")
        assert widths
        assert all(widths)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1400
