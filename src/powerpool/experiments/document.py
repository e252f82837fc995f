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
    """An SVG file in the folder of the page."""

    title: str
    path: Path


Block = Heading | Text | Items | Code | Table | Picture


def markdown(blocks: Iterable[Block]) -> str:
    """The page as Markdown; pictures are links to their files."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def page(title: str, blocks: Iterable[Block]) -> str:
    """The page as HTML in one piece: style and pictures are inside, nothing is fetched."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h2 { margin-top: 3rem; border-bottom: 1px solid #ccc; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid #ddd; text-align: left; }
pre { background: #f4f4f4; padding: 0.7rem; overflow-x: auto; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; }
"""


def _markdown(block: Block) -> str:
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


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{_safe(text)}</h{level}>"
        case Text(text):
            return f"<p>{_safe(text)}</p>"
        case Items(texts):
            return f"<ul>{''.join(f'<li>{_safe(text)}</li>' for text in texts)}</ul>"
        case Code(text):
            return f"<pre>{_safe(text)}</pre>"
        case Table(headings, rows):
            head = "".join(f"<th>{_safe(text)}</th>" for text in headings)
            lines = ("".join(f"<td>{_safe(text)}</td>" for text in row) for row in rows)
            body = "\n".join(f"<tr>{line}</tr>" for line in lines)
            return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'
        case Picture(title, path):
            # As an image: the identifiers inside one SVG cannot meet those of another.
            data = base64.b64encode(path.read_bytes()).decode("ascii")
            source = f"data:image/svg+xml;base64,{data}"
            return f'<figure><img alt="{html.escape(title)}" src="{source}"></figure>'


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
