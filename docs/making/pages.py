"""Hooks of MkDocs: pages that live elsewhere in the project, links that hold there and here, formulas as MathML."""

from __future__ import annotations

import html
import posixpath
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
ELSEWHERE = {"rules.md": "CONTRIBUTING.md", "changes.md": "CHANGELOG.md"}
"""Pages of the site that are files at the root of the project."""
NOT_SHOWN = ("src/", "tests/", "Makefile", "pyproject.toml", "constraints.txt", "LICENSE", "README.md")
"""What a page may link to on a code host, and the site does not have: there the link becomes its text."""
TITLES = {
    "bench": "Time and memory",
    "graph": "Graphs",
    "vision": "Images",
    "fewshot": "Few-shot learning",
    "fewshot-pretraining": "Few-shot learning, pre-training",
    "stress": "Killed and taken up again",
}
"""Of the reports in results, in the order of the menu; others follow by name."""
RESULTS = ("*/README.md", "*/report.html", "*/*.json", "**/*.svg", "**/*.png")
"""Reports, what they show and link to."""
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<path>(?!https?:|#|mailto:)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
SIGN = re.compile(r"\\([<>~])")
"""Signs that reports escape, and that this reader of Markdown does not know as escaped."""
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


SPREAD = re.compile(r"(?<=\d) (±|to) (?=\d)")
"""Between a mean and its deviation, and between the ends of an interval: what no line may part."""
NAME = re.compile(r"(?<=\\texttt\{)[^}]*")
"""A name of the code in a formula, in which an underscore is escaped, as LaTeX wants it and the converter does not."""


def on_config(config: Any) -> Any:
    """Puts the reports into the menu."""
    found = {path.parent.name for path in (ROOT / "results").glob("*/README.md")}
    ordered = [*(name for name in TITLES if name in found), *sorted(found - TITLES.keys())]
    reports = [{TITLES.get(name, name): f"results/{name}/README.md"} for name in ordered]
    for section in config.nav:
        for entry in section.get("Measured", []):
            if "Tables" in entry:
                entry["Tables"] = reports
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the tables of measurements with their pictures and records, and the pages at the root of the project."""
    for page, name in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    for pattern in RESULTS:
        for path in sorted((ROOT / "results").glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turns links between files of the project into links between pages of the site."""
    here = place_of(page.file.src_uri)
    markdown = SIGN.sub(lambda found: html.escape(found[1]), markdown)
    return LINK.sub(lambda link: relinked(link, here, page.file.src_uri), markdown)


def place_of(page: str) -> str:
    """Where the source of a page lies in the project."""
    return page if page.startswith("results/") else ELSEWHERE.get(page, f"docs/{page}")


def relinked(link: re.Match[str], here: str, page: str) -> str:
    """The link as it has to be in the site, or its text where the site does not have what it leads to."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link["path"]))
    if target.startswith(NOT_SHOWN):
        return link["text"].removeprefix("[").removesuffix("]")
    named = {place: name for name, place in ELSEWHERE.items()}
    found = named.get(target, target.removeprefix("docs/"))
    path = posixpath.relpath(found, posixpath.dirname(page) or ".")
    return f"{link['text']}({path}{link['anchor'] or ''})"


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw by themselves; a mean and its deviation on one line."""
    content = SPREAD.sub("\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", content)
    return FORMULA.sub(lambda found: formula(html.unescape(found[2]), found[1] == "div"), content)


def formula(latex: str, is_block: bool) -> str:
    """One formula; a block may scroll by itself on a narrow screen."""
    latex = NAME.sub(lambda name: name[0].replace(r"\_", "_"), latex)
    drawn = convert(latex.strip(), display="block" if is_block else "inline")
    return f'<div class="formula">{drawn}</div>' if is_block else drawn
