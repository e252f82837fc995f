"""A page of headings, texts, tables and pictures, written as Markdown and as one file of HTML.

Every text is plain: names and settings come from files that others wrote, so that whatever would mean something to
Markdown or HTML is escaped here, once.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path


class Bold(str):
    """A text in bold."""

    __slots__ = ()


@dataclass(frozen=True)
class Heading:
    text: str
    level: int


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Items:
    texts: Sequence[str]


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Table:
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A file in the folder of the page, of a kind in :data:`MEDIA`."""

    title: str
    path: Path


@dataclass(frozen=True)
class Contents:
    """Links to the headings that follow. In Markdown there are none: its readers make them of the headings."""


Block = Heading | Text | Items | Code | Table | Picture | Contents


def markdown(blocks: Iterable[Block]) -> str:
    """The page as Markdown; pictures are links to their files."""
    return "\n\n".join(_markdown(block) for block in blocks if not isinstance(block, Contents)) + "\n"


MEDIA = {".svg": "image/svg+xml", ".png": "image/png"}
"""What a browser calls the kinds of pictures."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser lets the page do: style itself and show what is inside of it. Nothing is fetched, no script runs."""


def page(title: str, blocks: Iterable[Block]) -> str:
    """The page as HTML in one piece: style and pictures are inside, nothing is fetched."""
    parts, anchors, section = [], _anchors(blocks := list(blocks)), title
    for place, block in enumerate(blocks):
        if isinstance(block, Heading):
            section = block.text
            parts.append(f'<h{block.level} id="{anchors[place]}">{_safe(section)}</h{block.level}>')
        elif isinstance(block, Contents):
            parts.append(_contents(blocks, anchors, place))
        else:
            parts.append(_html(block, section))
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(POLICY)}">\n'
        f"<title>{html.escape(title)}</title>\n"
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


SHORT = 24
"""Letters of a cell that is not broken into lines."""
STYLE = """
:root {
  color-scheme: light dark;
  --page: #ffffff; --text: #1b1f24; --quiet: #57606a; --line: #d5dae0; --soft: #f3f5f7; --accent: #0067a8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101418; --text: #e7ebef; --quiet: #a3adb8; --line: #343c46; --soft: #1a2027; --accent: #6cc3f5;
  }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body {
  max-width: 78rem; margin: 2rem auto; padding: 0 1rem; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; overflow-wrap: break-word;
}
p, li { max-width: 60rem; }
h1 { line-height: 1.2; margin: 0 0 1rem; }
h2 { margin-top: 3rem; padding-bottom: 0.2rem; border-bottom: 1px solid var(--line); }
h3 { margin: 2rem 0 0.5rem; }
h1, h2, h3 { break-after: avoid; }
a { color: var(--accent); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
nav { background: var(--soft); border: 1px solid var(--line); border-radius: 0.5rem; padding: 0.7rem 1rem; }
nav > ol { margin: 0; padding-left: 1.4rem; }
nav ol ol { display: inline; margin: 0; padding: 0; font-size: 0.85rem; }
nav ol ol li { display: inline; }
nav ol ol li::before { content: " \\00b7  "; color: var(--quiet); }
.wide, pre, figure { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { background: var(--soft); vertical-align: bottom; line-height: 1.25; }
tbody th { font-weight: normal; }
.short { white-space: nowrap; }
.long { min-width: 13rem; max-width: 40rem; }
th:first-child { position: sticky; left: 0; }
tbody th { background: var(--page); }
tbody tr:hover > * { background: var(--soft); }
pre { background: var(--soft); border-radius: 0.4rem; padding: 0.7rem; font-size: 0.85rem; line-height: 1.4; }
/* Pictures are drawn on white: a card that stays white in the dark. */
figure { background: #ffffff; border: 1px solid var(--line); border-radius: 0.5rem; padding: 0.5rem; }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; }
figcaption { color: #57606a; font-size: 0.85rem; text-align: center; margin-top: 0.4rem; }
@media (max-width: 48rem) {
  body { margin-top: 1rem; font-size: 15px; }
  /* At their own size, and not so small that nobody can read them: the card scrolls. */
  img { max-width: none; margin: 0; }
  .long:first-child { min-width: 9rem; max-width: 9rem; }
}
@media print {
  @page { size: A4 landscape; margin: 12mm; }
  :root { --page: #ffffff; --text: #000000; --quiet: #444444; --line: #bbbbbb; --soft: #f3f3f3; --accent: #000000; }
  body { max-width: none; margin: 0; padding: 0; font-size: 10pt; }
  nav { display: none; }
  .wide, pre, figure { overflow: visible; }
  pre { white-space: pre-wrap; }
  table { font-size: 7.5pt; }
  th, td { padding: 0.15rem 0.3rem; position: static !important; }
  .short { white-space: normal; }
  .long { min-width: 0; }
  thead { display: table-header-group; }
  tr, figure { break-inside: avoid; }
  figure { border: none; padding: 0; }
  img { max-width: 100%; max-height: 155mm; margin: 0; }
  figcaption { text-align: left; }
}
"""


def _anchors(blocks: Sequence[Block]) -> dict[int, str]:
    """A name for each heading that a link can lead to, by the place of the heading; no two are the same."""
    found: dict[int, str] = {}
    for place, block in enumerate(blocks):
        if isinstance(block, Heading):
            base = re.sub(r"[^a-z0-9]+", "-", block.text.lower()).strip("-") or "section"
            names = (base if number == 1 else f"{base}-{number}" for number in count(1))
            found[place] = next(name for name in names if name not in found.values())
    return found


def _contents(blocks: Sequence[Block], anchors: dict[int, str], start: int) -> str:
    """Headings of the second level behind ``start``, each with those of the third below it."""
    parts: list[tuple[str, list[str]]] = []
    for place, block in enumerate(blocks):
        if place > start and isinstance(block, Heading):
            link = f'<a href="#{anchors[place]}">{_safe(block.text)}</a>'
            if block.level == 2:
                parts.append((link, []))
            elif parts:
                parts[-1][1].append(link)
    lines = []
    for link, below in parts:
        inner = f"<ol>{''.join(f'<li>{one}</li>' for one in below)}</ol>" if below else ""
        lines.append(f"<li>{link}{inner}</li>")
    return f'<nav aria-label="Contents"><ol>{"".join(lines)}</ol></nav>'


def _markdown(block: Heading | Text | Items | Code | Table | Picture) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_line(text)}"
        case Text(text):
            return _line(text)
        case Items(texts):
            return "\n".join(f"- {_line(text)}" for text in texts)
        case Code(text):
            # Indented, and not fenced: no text can close it.
            return "\n".join(f"    {line}" for line in text.splitlines())
        case Table(headings, rows):
            lines = [headings, ["---"] * len(headings), *rows]
            cells = [[cell if cell == "---" else escaped(cell) for cell in line] for line in lines]
            return "\n".join(f"| {' | '.join(line)} |" for line in cells)
        case Picture(title, path):
            return f"![{escaped(title)}]({path.name})"


def _html(block: Text | Items | Code | Table | Picture, section: str) -> str:
    """A block below the heading ``section``, which a table is called after."""
    match block:
        case Text(text):
            return f"<p>{_safe(text)}</p>"
        case Items(texts):
            return f"<ul>{''.join(f'<li>{_safe(text)}</li>' for text in texts)}</ul>"
        case Code(text):
            return f'<pre tabindex="0">{_safe(text)}</pre>'
        case Table(headings, rows):
            head = "".join(f'<th scope="col">{_safe(text)}</th>' for text in headings)
            lines = ("".join(_cell(text, place == 0) for place, text in enumerate(row)) for row in rows)
            body = "\n".join(f"<tr>{line}</tr>" for line in lines)
            rows_of = f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>"
            # What scrolls can be reached with the keyboard.
            named = f'role="region" aria-label="{html.escape(f"Table: {section}")}"'
            return f'<div class="wide" tabindex="0" {named}><table>\n{rows_of}\n</table></div>'
        case Picture(title, path):
            # As an image: the identifiers inside one SVG cannot meet those of another.
            data = base64.b64encode(path.read_bytes()).decode("ascii")
            image = f'<img alt="{html.escape(title)}" src="data:{MEDIA[path.suffix]};base64,{data}">'
            return f'<figure tabindex="0">{image}<figcaption>{_safe(title)}</figcaption></figure>'


def _cell(text: str, is_first: bool) -> str:
    """A cell, the first of which names its row; a short text stays on one line, a long one has room."""
    tag, scope = ("th", ' scope="row"') if is_first else ("td", "")
    return f'<{tag}{scope} class="{"short" if len(text) <= SHORT else "long"}">{_safe(text)}</{tag}>'


def _safe(text: str) -> str:
    safe = html.escape(text)
    return f"<b>{safe}</b>" if isinstance(text, Bold) else safe


def escaped(text: str) -> str:
    """``text`` on one line, with a backslash before what Markdown would read as markup."""
    line = re.sub(r"[\\`*\[\]<>|&~$#]|(?<!\w)_|_(?!\w)", r"\\\g<0>", " ".join(text.split()))
    return f"**{line}**" if isinstance(text, Bold) else line


def _line(text: str) -> str:
    """``text`` at the begin of a line, where some signs are a list or a rule."""
    return re.sub(r"^(\d*)(?=[.)+-](?:[ -]|$))", r"\1\\", escaped(text))
