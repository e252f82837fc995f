"""A report with all its sections in a real browser, on screens of every kind and on paper."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser import Browser, Page
from powerpool.report.write import write_report
from tests.report.samples import full_report

PUBLISHED = sorted(Path(__file__).parents[2].glob("results/*/report.html"))
SECTIONS = {"Training curves", "Test episodes", "Confusion", "Spectra", "Pre-training", "Settings", "How to reproduce"}
CONTRAST = """
(() => {
  const light = (byte) => byte / 255 <= 0.04 ? byte / 255 / 12.92 : ((byte / 255 + 0.055) / 1.055) ** 2.4;
  const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const weights = [0.2126, 0.7152, 0.0722];
  const luminance = (colour) => weights.reduce((sum, weight, place) => sum + weight * light(parse(colour)[place]), 0);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if ((parse(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.querySelectorAll("h1, h2, h3, p, li, a, th, td, pre")].map((element) => {
    const [one, two] = [getComputedStyle(element).color, ground(element)].map(luminance).sort((a, b) => b - a);
    return (one + 0.05) / (two + 0.05);
  });
})()
"""
"""The contrast of every text to its background, as the guidelines for web content define it."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(full_report(), tmp_path_factory.mktemp("report"))[1]


def pixels(page: Page) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(page.screenshot(whole=False))).convert("RGB"))


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 400])
def test_loads_without_complaints_and_fits_the_screen(browser: Browser, report: Path, width: int, dark: bool) -> None:
    with browser.open(report, width, 800, dark=dark) as page:
        page.settle()
        assert page.complaints() == []
        assert page.requests() == []
        widths = page.evaluate("[...document.images].map((image) => image.complete && image.naturalWidth)")
        assert len(widths) == 15
        assert all(widths)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        # Wide elements scroll inside themselves; nothing else is cut off.
        cut = page.evaluate(
            "[...document.querySelectorAll('h1, h2, h3, p, li, nav')].filter((one) => one.scrollWidth > one.clientWidth"
            " && getComputedStyle(one).display !== 'inline').map((one) => one.textContent.slice(0, 60))"
        )
        assert cut == []
        assert (pixels(page).mean() < 100) == dark
        assert min(page.evaluate(CONTRAST)) >= 4.5


def test_contents_lead_to_every_section(browser: Browser, report: Path) -> None:
    with browser.open(report) as page:
        headings = page.evaluate("[...document.querySelectorAll('h2, h3')].map((one) => [one.id, one.textContent])")
        links = page.evaluate(
            "[...document.querySelectorAll('nav a')].map((one) => [one.getAttribute('href').slice(1), one.textContent])"
        )
        assert links == headings
        assert len({name for name, _ in headings}) == len(headings)
        assert {text for _, text in headings} >= SECTIONS
        for number in (1, len(links) - 1):
            page.evaluate(f"document.querySelectorAll('nav a')[{number}].click()")
            page.settle()
            place = page.evaluate(f"document.getElementById('{links[number][0]}').getBoundingClientRect().top")
            assert 0 <= place < 900
            assert page.evaluate("location.hash") == f"#{links[number][0]}"
        assert page.complaints() == []


def test_tables_and_plots_keep_their_size_on_a_narrow_screen(browser: Browser, report: Path) -> None:
    with browser.open(report, 400, 800) as page:
        heights = page.evaluate("[...document.querySelectorAll('tr')].map((row) => row.clientHeight)")
        assert max(heights) < 120  # no column is squeezed to one letter per line
        scales = page.evaluate("[...document.images].map((image) => image.clientWidth / image.naturalWidth)")
        assert min(scales) > 0.95  # labels keep their size; the card scrolls
    with browser.open(report, 1400, 800) as page:
        inside = page.evaluate(
            "[...document.images].every((image) => image.clientWidth <= image.parentElement.clientWidth)"
        )
        assert inside


def test_nothing_is_cut_off_in_print(browser: Browser, report: Path) -> None:
    with browser.open(report, 1050, 740, dark=True) as page:
        page.send("Emulation.setEmulatedMedia", media="print")
        page.settle()
        assert page.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert page.evaluate("getComputedStyle(document.querySelector('.wide')).overflowX") == "visible"
        assert page.evaluate("document.documentElement.scrollWidth") <= 1050
        assert pixels(page).mean() > 180  # a light background, whatever the screen has


def test_injected_script_does_not_run(browser: Browser, report: Path, tmp_path: Path) -> None:
    text = report.read_text(encoding="utf-8")
    evil = "<script>window.hacked = 1</script><img src='https://example.org/x.png'>"
    changed = tmp_path / "report.html"
    changed.write_text(text.replace("</body>", f"{evil}</body>"), encoding="utf-8")
    with browser.open(changed) as page:
        page.settle()
        assert page.evaluate("typeof window.hacked") == "undefined"
        assert len(page.complaints()) >= 2  # the browser reports what it refused


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda path: path.parent.name)
def test_published_reports_show_their_tables_and_images(browser: Browser, published: Path) -> None:
    with browser.open(published) as page:
        assert page.complaints() == []
        assert page.requests() == []
        assert page.evaluate("document.querySelectorAll('table td').length") > 10
        widths = page.evaluate("[...document.images].map((image) => image.complete && image.naturalWidth)")
        assert widths
        assert all(widths)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1400
