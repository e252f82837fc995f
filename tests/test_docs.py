"""The site builds strictly, asks no other server for anything, names the whole API, and quotes what was measured."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from importlib.metadata import metadata
from pathlib import Path
from types import ModuleType
from typing import get_args
from urllib.parse import unquote, urlsplit

import pytest
import torch

import powerpool
from powerpool import analysis as inspection
from powerpool import curves, data, integrations, solvers, theory
from powerpool.analysis import explorer as explore
from powerpool.cli.main import main
from powerpool.runs.engines import INHERITED, EngineName
from powerpool.runs.folder import MODEL, RECORD
from tests.test_readme import commands_of

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MODULES: dict[str, ModuleType] = {
    "powerpool.curves": curves,
    "powerpool.solvers": solvers,
    "powerpool.theory": theory,
    "powerpool.analysis": inspection,
    "powerpool.analysis.explorer": explore,
    "powerpool.data": data,
    "powerpool.integrations.backbones": integrations.backbones,
}
"""Modules with a list of public names, beside those that are frozen."""


@cache
def script(name: str) -> ModuleType:
    """A file below docs as a module."""
    spec = importlib.util.spec_from_file_location(Path(name).name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Page(HTMLParser):
    """What a page of the site asks for, links to, and can be linked at."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.anchors.add(str(found["id"]))
        self.loaded += [str(found[name]) for name in ("src", "srcset", "data") if found.get(name)]
        if found.get("href"):
            (self.linked if tag == "a" else self.loaded).append(str(found["href"]))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The site, built as ``make docs`` builds it."""
    for package in ("mkdocs", "material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason="THE SITE IS NOT TESTED: pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    # Reports of the pipelines are pages of their own, and have tests of their own.
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "report.html"}


def test_every_document_is_a_page(site, pages):
    wanted = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert wanted | {Path("rules.html"), Path("changes.html")} <= {path.relative_to(site) for path in pages}


def test_make_builds_it_as_strictly():
    (line,) = re.findall(r"mkdocs build.*", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert "--strict" in line
    assert "--quiet" not in line  # which silences warnings, and with them what is strict


def test_the_site_asks_no_other_server_for_anything(site, pages):
    for path, page in pages.items():
        outside = [url for url in page.loaded if urlsplit(url).netloc]
        assert not outside, f"{path.name} loads {outside}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_every_link_leads_to_something(site, pages):
    for path, page in pages.items():
        if path.name == "404.html":  # whose links start at the root of a server
            continue
        for url in (*page.linked, *page.loaded):
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.relative_to(site)} links to {url}"
            if parts.fragment and target in pages and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.relative_to(site)} links to {url}"


def test_nothing_of_the_docstrings_is_left_as_it_was(pages):
    for path in pages:
        if path.parent.name == "api":
            text = re.sub(r"<(pre|code)\b.*?</\1>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
            left = re.findall(r":math:|:func:|:class:|:mod:|:meth:|\.\. math|arithmatex|={5,}|\\_", text)
            assert not left, f"{path.name}: {left}"
    assert any("<math" in path.read_text(encoding="utf-8") for path in pages if path.name == "curves.html")


def test_every_reference_of_a_docstring_leads_to_something(pages):
    for path in pages:
        if path.parent.name == "api":
            # What a reference becomes that leads nowhere. Names of types in signatures are no code there.
            left = re.findall(r'<span title="([^"]+)"><code>', path.read_text(encoding="utf-8"))
            assert not left, f"{path.name}: {left}"


def test_no_line_parts_a_mean_from_its_deviation(pages):
    texts = [path.read_text(encoding="utf-8") for path in pages]
    assert not [text for text in texts if re.search(r"<td[^>]*>[^<]*\d (?:±|to) \d", text)]
    assert any(re.search(r"\d\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}\d", text) for text in texts)


def test_every_public_name_is_on_a_page_of_the_api(pages):
    anchors = {anchor for path, page in pages.items() if path.parent.name == "api" for anchor in page.anchors}
    frozen = json.loads((ROOT / "tests/api_surface.json").read_text(encoding="utf-8"))
    named = {f"{module}.{name}" for module, names in frozen.items() for name in names}
    for owner, module in MODULES.items():
        here = {name for name in module.__all__ if f"{owner}.{name}" not in anchors}
        named |= {f"{owner}.{name}" for name in here if not hasattr(powerpool, name)}
    assert not named - anchors, f"on no page of docs/api: {sorted(named - anchors)}"


# ---- pages that could drift ------------------------------------------------------------------------------------------


def test_contributing_shows_every_layer_in_order():
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in settings["contracts"] if contract["id"] == "layers"]
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The layers")[2]
    lines = text.split("```")[1].strip().splitlines()
    assert len(lines) == len(layers)
    unlisted = {"__main__", "_interrupt", "_renamed", "recipes", "vectorize"}
    for line, layer in zip(lines, layers, strict=True):
        assert set(layer.split(" : ")) - unlisted <= set(line.split())


def test_the_page_on_installing_has_every_extra():
    rows = re.findall(r"^\| (`[^|]+) \|", (DOCS / "install.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == set(metadata("powerpool").get_all("Provides-Extra"))


def test_docstrings_become_markdown():
    docstrings = script("making/docstrings")
    griffe = pytest.importorskip("griffe")
    owner = griffe.Function("here")
    text = docstrings.as_markdown(
        ".. math:: a_b\n          + c\n\nof :math:`x`, see :func:`powerpool.spectral`.\n\nArgs:\n    a, b: both.\n\n"
        "Example:\n    >>> 1\n    1\n",
        owner,
    )
    assert r"\[a_b + c\]" in text
    assert r"of \(x\), see <autoref optional identifier=" in text
    assert "    a: both.\n    b: both.\n" in text
    assert "Examples:\n    >>> 1" in text
    table = "Words.\n\n====  ====\nx     y\n====  ====\n1     two\n      lines\n====  ====\n\nMore."
    assert "| x | y |\n| --- | --- |\n| 1 | two lines |\n" in docstrings.as_markdown(table, owner)


# ---- the image of the README -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def overview() -> ModuleType:
    return script("pictures/overview")


def test_one_eigenvalue_dominates_before_and_four_are_alike_after(overview):
    matrix = powerpool.autocorrelation(overview.features())
    values = torch.linalg.eigvalsh(matrix / matrix.trace()).flip(0)
    assert values[0] > 6 * values[1]
    after = torch.linalg.eigvalsh(powerpool.spectral(matrix, powerpool.MaxExp(eta=overview.ETA))).flip(0)
    assert after[overview.PATTERNS - 1] > 0.9 * after[0]
    assert after[overview.PATTERNS] < 0.2 * after[0]


def test_the_stored_image_is_up_to_date(overview, tmp_path):
    overview.main(tmp_path)
    drawn, stored = ((folder / "overview.svg").read_text(encoding="utf-8") for folder in (tmp_path, DOCS / "pictures"))
    versions = [re.search(r"Matplotlib v([\d.]+)", text).group(1) for text in (drawn, stored)]
    if versions[0] != versions[1]:
        pytest.skip(f"the stored image was drawn by Matplotlib {versions[1]}, not {versions[0]}")
    # Pixels of matrices may differ in their last bit on another processor; the words may not.
    words = [re.sub(r'xlink:href="data:[^"]*"', "", text) for text in (drawn, stored)]
    assert words[0].count("<image") == words[1].count("<image") == 3
    assert re.findall(r"<!-- (.*?) -->", words[0]) == re.findall(r"<!-- (.*?) -->", words[1])


# ---- the page on scaling ---------------------------------------------------------------------------------------------


LAUNCHERS = {"python": [sys.executable], "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone"]}


@pytest.mark.stress
def test_the_commands_of_the_page_on_scaling_run_in_their_order(tmp_path, monkeypatch):
    pytest.importorskip("distributed", reason="the page on scaling is not tested: pip install distributed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POWERPOOL_DATA", raising=False)
    monkeypatch.setenv("POWERPOOL_CACHE", str(tmp_path / "cache"))
    commands = commands_of("docs/scaling.md")
    assert [words[0] for words in commands] == ["powerpool", "python", "powerpool", "torchrun"]
    for words in commands:
        if words[0] == "powerpool":
            assert main(words[1:]) == 0, words
        else:
            subprocess.run([*LAUNCHERS[words[0]], *words[1:]], check=True)
    assert (tmp_path / "runs/reproduce/graph-quick/report.html").exists()
    for run in ("devices", "torchrun"):
        assert (tmp_path / "runs" / run / MODEL).exists()
        assert (tmp_path / "runs" / run / RECORD).exists()


def test_every_engine_of_the_page_can_be_asked_for():
    text = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| `--engine`.*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    assert re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE) == list(get_args(EngineName))


def test_the_page_names_the_variables_that_units_do_not_inherit():
    text = " ".join((ROOT / "docs/scaling.md").read_text(encoding="utf-8").split())
    sentence = re.search(r"variables that begin with (.*?) are copied from the command", text)[1]
    assert set(re.findall(r"`(\w+)`", sentence)) == set(INHERITED)
