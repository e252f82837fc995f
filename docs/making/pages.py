"""Hooks of MkDocs: pages from elsewhere in the project, links that work there and on the site, formulas as MathML."""

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
"""Pages of the site whose source is at the root of the project."""
NOT_SHOWN = ("src/", "tests/", "Makefile", "pyproject.toml", "constraints.txt", "LICENSE", "README.md")
"""Targets of links that the site does not have: there the link becomes its text."""
TITLES = {
    "bench": "Time and memory",
    "graph": "Graphs",
    "graph-protocols": "Graphs, protocols",
    "vision": "Images",
    "fewshot": "Few-shot learning",
    "fewshot-pretraining": "Few-shot learning, pre-training",
    "stress": "Killed and resumed",
    "compat": "Tested versions",
}
"""Titles of the reports in results, in the order of the menu; others follow by name."""
RESULTS = ("*/README.md", "*/report.html", "*/*.json", "**/*.svg", "**/*.png")
"""Reports, and the files that they show and link to."""
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<path>(?!https?:|#|mailto:)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
SIGN = re.compile(r"\\([<>~])")
"""Characters that reports escape, although Python-Markdown does not know them as escaped."""
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


SPREAD = re.compile(r"(?<=\d) (±|to) (?=\d)")
"""Between a mean and its deviation, and between the ends of an interval: no line breaks here."""
NAME = re.compile(r"(?<=\\texttt\{)[^}]*")
"""A name in a formula: LaTeX wants its underscore escaped, and the converter does not."""


def on_config(config: Any) -> Any:
    """Put the reports into the menu."""
    found = {path.parent.name for path in (ROOT / "results").glob("*/README.md")}
    ordered = [*(name for name in TITLES if name in found), *sorted(found - TITLES.keys())]
    reports = [{TITLES.get(name, name): f"results/{name}/README.md"} for name in ordered]
    for section in config.nav:
        for entry in section.get("Results", []):
            if "Tables" in entry:
                entry["Tables"] = reports
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the reports with their plots and records, and the pages at the root of the project."""
    for page, name in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    for pattern in RESULTS:
        for path in sorted((ROOT / "results").glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the project into links between pages of the site."""
    here = find_source(page.file.src_uri)
    markdown = SIGN.sub(lambda found: html.escape(found[1]), markdown)
    return LINK.sub(lambda link: convert_link(link, here, page.file.src_uri), markdown)


def find_source(page: str) -> str:
    """Return the path of the source of a page in the project."""
    return page if page.startswith("results/") else ELSEWHERE.get(page, f"docs/{page}")


def convert_link(link: re.Match[str], here: str, page: str) -> str:
    """Return the link for the site, or its text where the site does not have the target."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(here), link["path"]))
    if target.startswith(NOT_SHOWN):
        return link["text"].removeprefix("[").removesuffix("]")
    named = {place: name for name, place in ELSEWHERE.items()}
    found = named.get(target, target.removeprefix("docs/"))
    path = posixpath.relpath(found, posixpath.dirname(page) or ".")
    return f"{link['text']}({path}{link['anchor'] or ''})"


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers draw themselves; keep a mean and its deviation on one line."""
    content = SPREAD.sub("\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", content)
    return FORMULA.sub(lambda found: convert_formula(html.unescape(found[2]), found[1] == "div"), content)


def convert_formula(latex: str, is_block: bool) -> str:
    """Convert one formula; a block may scroll by itself on a narrow screen."""
    latex = NAME.sub(lambda name: name[0].replace(r"\_", "_"), latex)
    drawn = convert(latex.strip(), display="block" if is_block else "inline")
    return f'<div class="formula">{drawn}</div>' if is_block else drawn
