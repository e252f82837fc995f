"""The page, written once, and the browser that opens it."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch

import powerpool as pp
from browser import Browser, Page, find_chromium
from powerpool.analysis import Inspection, inspect_features
from powerpool.analysis.explorer import RunSpectra, spectra_of, write_page

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>&amp;\"'<!--data-->"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture(scope="session")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page without a run."""
    path = tmp_path_factory.mktemp("explore") / "explore.html"
    write_page(path)
    return path


@pytest.fixture(scope="session")
def inspection() -> Inspection:
    """Features of 30 samples with channels of different scale, and MaxExp on the spectrum."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(30, 12, 40, generator=generator, dtype=torch.float64)
    return inspect_features(features * torch.logspace(0, -1.5, 12)[None, :, None], pp.MaxExp(eta=20), eps=0.0)


@pytest.fixture(scope="session")
def run_spectra(inspection: Inspection) -> RunSpectra:
    """Spectra whose title and notes would be markup and scripts without escaping."""
    found = spectra_of(inspection)
    return RunSpectra(HOSTILE, (HOSTILE,), found.spectra, found.start, found.suggestion, found.rounding)


@pytest.fixture(scope="session")
def run_explorer(tmp_path_factory: pytest.TempPathFactory, run_spectra: RunSpectra) -> Path:
    path = tmp_path_factory.mktemp("explore") / "run.html"
    write_page(path, run_spectra)
    return path


@pytest.fixture
def page(browser: Browser, explorer: Path) -> Iterator[Page]:
    """The explorer in a new tab; at the end of the test there must be no errors and no requests."""
    with browser.open(explorer) as opened:
        yield opened
        assert opened.complaints() == []
        assert opened.requests() == []


@pytest.fixture(scope="session")
def used_page(browser: Browser, explorer: Path) -> Iterator[Page]:
    """A shared tab for tests that set everything they depend on: a new one takes a second."""
    with browser.open(explorer) as opened:
        yield opened
        assert opened.complaints() == []
        assert opened.requests() == []


@pytest.fixture(scope="session")
def javascript(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Any]]:
    """Evaluates an expression with the formulas of the page: in Chromium, or else in node."""
    if find_chromium() is not None:
        yield request.getfixturevalue("used_page").evaluate
    elif (node := shutil.which("node")) is not None:
        yield from _run_node(node)
    else:
        pytest.skip("The formulas of the explorer are not tested: there is neither Chromium nor node.")


def _run_node(node: str) -> Iterator[Callable[[str], Any]]:
    """One process for all expressions: each is a line of JSON, and so is its value."""
    formulas = resources.files("powerpool.analysis.explorer").joinpath("assets", "formulas.js")
    loop = "(line) => console.log(JSON.stringify(eval(JSON.parse(line))))"
    listen = f"require('readline').createInterface(process.stdin).on('line', {loop})"
    script = f"{formulas.read_text(encoding='utf-8')};\n{listen};"
    with subprocess.Popen([node, "-e", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        send, receive = process.stdin, process.stdout

        def evaluate(expression: str) -> Any:
            send.write(json.dumps(expression) + "\n")
            send.flush()
            return json.loads(receive.readline())

        yield evaluate
        send.close()
